//! The share of a worker: it tells that it lives, claims lanes and releases them as `lanes_core::balance` says, and follows
//! the maps.

use std::sync::Arc;
use std::time::Duration;

use lanes_core::place::Place;
use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::board::LaneState;
use super::catalog::{Catalog, Known, LaneId};
use super::failure::Failure;
use super::owned::Owned;
use super::session::{Fault, classify, describe};
use super::standing::Overview;
use super::worker::{PERMANENT_PAUSES, Session, Settled, pause};

/// Time between two signs of life.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(5);

impl Session<'_> {
    /// Tells that this worker lives, if it is time to.
    pub(super) async fn heartbeat_if_due(&mut self) -> Result<(), String> {
        let now = Instant::now();
        if now < self.heartbeat_at {
            return Ok(());
        }
        self.heartbeat_at = now + HEARTBEAT_INTERVAL;
        let statement = self.client.prepared("SELECT lanes.heartbeat($1, $2)").await;
        let told = match statement {
            Ok(statement) => self.client.query(&statement, &[&self.name, &self.log_id]).await,
            Err(error) => Err(error),
        };
        match told {
            Err(error) if classify(&error) == Fault::Connection => Err(describe(&error)),
            Err(error) => {
                tracing::error!("cannot tell that a worker lives: {}", describe(&error));
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Takes over the projections as they are now, and gives up the lanes that are no more.
    pub(super) async fn follow(&mut self, catalog: &Catalog) -> Result<(), String> {
        let dispatcher = &self.shared.dispatcher;
        let mut gone = Vec::new();
        for (index, lane) in self.lanes.iter_mut().enumerate() {
            match catalog.find(&lane.id.projection) {
                Some(known) if Arc::ptr_eq(known, &lane.known) || known.map_version < lane.known.map_version => {}
                Some(known) if known.has_lane(lane.id.lane) => lane.follow(known, dispatcher),
                // While Postgres says nothing the catalog is empty; begin_batch tells what became of a projection.
                Some(_) => gone.push(index),
                None => {}
            }
        }
        for index in gone.into_iter().rev() {
            let lane = self.lanes.swap_remove(index);
            dispatcher.detach(&lane.id, lane.epoch);
            tracing::info!(projection = %lane.id.projection, lane = lane.id.lane, "the lane has no slots any more");
            self.give_up(&lane).await?;
        }
        Ok(())
    }

    /// Notes where lanes have to stop; releases and claims what makes the shares fair.
    pub(super) async fn share(&mut self, catalog: &Catalog, overview: &Overview) -> Result<(), String> {
        for lane in &mut self.lanes {
            if let Some(standing) = overview.find(&lane.id) {
                lane.set_stop(standing.stop, &self.shared.dispatcher);
            }
        }
        let can_work = |projection: &str| catalog.find(projection).is_some_and(|known| known.rules.is_ok());
        let (release, claim) = overview.decide(self.name, can_work);
        if let Some(index) = release.and_then(|id| self.lanes.iter().position(|lane| lane.id == *id)) {
            let lane = self.lanes.swap_remove(index);
            tracing::info!(projection = %lane.id.projection, lane = lane.id.lane, "lane released to another worker");
            self.release(lane).await?;
            self.shared.refresh.notify_one();
        }
        if self.claim_at > Instant::now() {
            return Ok(());
        }
        for id in claim {
            let Some(known) = catalog.find(&id.projection) else { continue };
            self.heartbeat_if_due().await?;
            if !self.claim(known).await? {
                break;
            }
        }
        Ok(())
    }

    /// Claims a lane of a projection, the one that has been without an owner for longest. Gives whether to go on.
    async fn claim(&mut self, known: &Arc<Known>) -> Result<bool, String> {
        let statement = "SELECT lane, epoch, tick, position FROM lanes.claim($1, $2, $3)";
        let claimed = self.client.query_opt(statement, &[&&*known.name, &self.name, &self.log_id]).await;
        let row = match claimed {
            Ok(Some(row)) => row,
            // Another worker was faster.
            Ok(None) => return Ok(true),
            Err(error) if classify(&error) == Fault::Connection => return Err(describe(&error)),
            Err(error) => {
                // The lane is left to others.
                self.claim_at = Instant::now() + pause(PERMANENT_PAUSES, self.claim_failures);
                self.claim_failures = self.claim_failures.saturating_add(1);
                tracing::error!(projection = %known.name, "cannot claim a lane: {}", describe(&error));
                return Ok(false);
            }
        };
        self.claim_failures = 0;
        let (lane, epoch): (i32, i64) = (row.get(0), row.get(1));
        let (tick, position): (i64, i64) = (row.get(2), row.get(3));
        let place = Place { tick: tick.max(0) as u64, position: position.max(0) as u64 };
        let id = LaneId { projection: Arc::clone(&known.name), lane: lane.max(0) as u32 };
        let mut owned = Owned::claimed(id, known, epoch, place);
        tracing::info!(projection = %known.name, lane, %place, epoch, "lane claimed");
        if !known.has_lane(owned.id.lane) {
            // It is younger than what is known of the map.
            owned.map_at_least = known.map_version + 1;
            self.shared.refresh.notify_one();
        }
        // A lane that it had here in an earlier epoch, without having noticed that it was lost.
        self.lanes.retain(|lane| lane.id != owned.id);
        let floor = Place::at(self.shared.source.floor());
        let is_new = place == Place::default() && floor > place && self.never_moved(&owned).await?;
        if is_new {
            self.begin_at(&mut owned, floor).await.map_err(Failure::into_reason)?;
        }
        // Not before: what fails here ends the session, and the lane is nobody's.
        self.shared.board.set_place(&owned.id, owned.place);
        self.shared.board.set(&owned.id, LaneState::CatchingUp, None);
        if !is_new && let Some(reason) = self.shared.source.out_of_place(place) {
            owned.halted = true;
            self.stand_still(&mut owned, LaneState::Stopped, &reason, None).await?;
        }
        self.lanes.push(owned);
        Ok(true)
    }

    /// Whether nobody has worked on a lane yet.
    async fn never_moved(&self, lane: &Owned) -> Result<bool, String> {
        let statement = "SELECT moved_at IS NULL FROM lanes.checkpoint
                         WHERE projection = $1 AND version = 1 AND lane = $2";
        let parameters: [&(dyn ToSql + Sync); 2] = [&&*lane.id.projection, &(lane.id.lane as i32)];
        let row = self.client.query_opt(statement, &parameters).await.map_err(|error| describe(&error))?;
        Ok(row.is_some_and(|row| row.get(0)))
    }

    /// Gives a lane up, with its checkpoint where the scan is. Whatever becomes of that, it is not this worker's any more.
    async fn release(&mut self, lane: Owned) -> Result<(), String> {
        let id = lane.id.clone();
        let released = self.flush_and_give_up(lane).await;
        self.shared.board.set(&id, LaneState::Unowned, released.as_ref().err().cloned());
        released
    }

    async fn flush_and_give_up(&mut self, mut lane: Owned) -> Result<(), String> {
        self.shared.dispatcher.detach(&lane.id, lane.epoch);
        if let Some(first) = lane.waiting.first() {
            // They are read again by the next owner.
            lane.scanned_to = first.place.before();
        }
        if lane.scanned_to > lane.place {
            let scanned_to = lane.scanned_to;
            let flushed = self.apply(&mut lane, &[], scanned_to).await.map(|()| false);
            if let Settled::Lost = self.settle(&mut lane, flushed).await? {
                return Ok(());
            }
        }
        self.give_up(&lane).await
    }

    /// Lets go of a lane, or of what is left of it if somebody else owns it already.
    pub(super) async fn give_up(&self, lane: &Owned) -> Result<(), String> {
        let parameters: [&(dyn ToSql + Sync); 3] = [&&*lane.id.projection, &(lane.id.lane as i32), &lane.epoch];
        match self.client.query("SELECT lanes.release($1, $2, $3)", &parameters).await {
            Err(error) if classify(&error) == Fault::Connection => Err(describe(&error)),
            Err(error) => {
                tracing::warn!(projection = %lane.id.projection, lane = lane.id.lane, "cannot release the lane: {}",
                    describe(&error));
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }

    /// Gives all lanes up, and takes back the signs of life.
    pub(super) async fn release_all(&mut self) -> Result<(), String> {
        while let Some(lane) = self.lanes.pop() {
            self.release(lane).await?;
        }
        let goodbye = "SELECT lanes.goodbye($1, $2)";
        self.client.query(goodbye, &[&self.name, &self.log_id]).await.map(|_| ()).map_err(|error| describe(&error))
    }
}
