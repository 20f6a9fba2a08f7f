//! A worker: one connection to Postgres, and the lanes it owns.
//!
//! When a batch fails: a lost connection loses all its lanes, which are claimed again; an error that passes is tried
//! again, less and less often; a batch with an event that cannot be applied is done in parts ([`super::parking`]); where
//! tables, columns or rights are missing the lane stops, and tries again less and less often. A batch that was gathered
//! under another map, or goes past the place where the lane has to stop, is dropped and gathered again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep_until};
use tokio_postgres::Config;
use tokio_postgres::types::ToSql;
use uuid::Uuid;

use super::board::{Board, LaneState};
use super::catalog::{Catalog, Known};
use super::dispatcher::Dispatcher;
use super::failure::Failure;
use super::owned::Owned;
use super::parking::jittered;
use super::priority::Pressure;
use super::readers::Readers;
use super::session::{Connection, Fault, classify, connect, describe};
use super::source::Source;
use super::standing::Overview;

const TRANSIENT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
pub(super) const PERMANENT_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const CONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The pause after the given number of failures in a row.
pub(super) fn pause((first, last): (Duration, Duration), failures: u32) -> Duration {
    jittered(first.saturating_mul(1 << failures.min(16)).min(last))
}

/// What all workers share.
pub struct Shared {
    /// How to reach Postgres.
    pub config: Config,
    /// The log.
    pub source: Arc<Source>,
    /// The shared reader.
    pub dispatcher: Arc<Dispatcher>,
    /// Where the status is.
    pub board: Arc<Board>,
    /// Readers for lanes that catch up.
    pub readers: Readers,
    /// What tells this process's workers from others: host and process.
    pub process: String,
    /// The most events of a transaction.
    pub batch_events: usize,
    /// For each projection that limits it: how many of its lanes may be worked on now.
    pub concurrency: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    /// Who gives way.
    pub pressure: Arc<Pressure>,
    /// Asks the reporter to read projections and lanes again at once.
    pub refresh: Arc<Notify>,
}

impl Shared {
    /// A permit to work on a lane of the projection; none if it has no limit. `max_concurrency` counts from the time when
    /// the daemon first works on the projection.
    pub(super) async fn permit(&self, known: &Known) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let limit = known.rules.as_ref().ok()?.policy.max_concurrency?;
        let semaphore = {
            let mut all = self.concurrency.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(Semaphore::new(limit as usize));
            Arc::clone(all.entry(Arc::clone(&known.name)).or_insert_with(fresh))
        };
        semaphore.acquire_owned().await.ok()
    }
}

/// What workers follow, as the reporter reads it.
#[derive(Clone)]
pub struct News {
    /// The projections.
    pub catalog: watch::Receiver<Arc<Catalog>>,
    /// How the lanes stand.
    pub overview: watch::Receiver<Arc<Overview>>,
}

/// Runs worker `ordinal` until `stop` is true.
pub async fn run(shared: Arc<Shared>, ordinal: u32, mut news: News, mut stop: watch::Receiver<bool>) {
    let application = format!("ingestd worker {ordinal}");
    let name = format!("{} worker {ordinal}", shared.process);
    let mut failures = 0;
    while !*stop.borrow() {
        match (shared.source.log_id(), connect(&shared.config, &application).await) {
            (Some(log_id), Ok(client)) => {
                failures = 0;
                let mut session = Session {
                    shared: &shared,
                    name: &name,
                    log_id,
                    client,
                    lanes: Vec::new(),
                    wake: Arc::new(Notify::new()),
                    heartbeat_at: Instant::now(),
                    claim_failures: 0,
                    claim_at: Instant::now(),
                };
                let ended = session.work(&mut news, &mut stop).await;
                let reason = ended.err();
                if let Some(reason) = &reason {
                    tracing::warn!(worker = ordinal, "connection to Postgres lost: {reason}");
                }
                for lane in session.lanes {
                    shared.dispatcher.detach(&lane.id, lane.epoch);
                    shared.board.set(&lane.id, LaneState::Unowned, reason.clone());
                }
            }
            // The ticker says why there is no log yet.
            (None, _) => {}
            // The reporter says why Postgres is away.
            (_, Err(error)) => tracing::debug!(worker = ordinal, "cannot connect: {}", describe(&error)),
        }
        failures += 1;
        tokio::select! {
            () = tokio::time::sleep(pause(CONNECT_PAUSES, failures - 1)) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }
}

/// What a connection can do until it is lost.
pub(super) struct Session<'s> {
    pub(super) shared: &'s Shared,
    pub(super) name: &'s str,
    pub(super) log_id: Uuid,
    pub(super) client: Connection,
    pub(super) lanes: Vec<Owned>,
    pub(super) wake: Arc<Notify>,
    /// When the next sign of life is due.
    pub(super) heartbeat_at: Instant,
    /// Claims that failed in a row, and when the next one may be tried.
    pub(super) claim_failures: u32,
    pub(super) claim_at: Instant,
}

impl Session<'_> {
    /// Works until `stop` is true, or the connection is lost, which is the error.
    async fn work(&mut self, news: &mut News, stop: &mut watch::Receiver<bool>) -> Result<(), String> {
        let mut acted_on = Arc::default();
        self.heartbeat_if_due().await?;
        // Others have to see it before it may claim a lane.
        self.shared.refresh.notify_one();
        while !*stop.borrow() {
            self.heartbeat_if_due().await?;
            let catalog = Arc::clone(&news.catalog.borrow_and_update());
            self.follow(&catalog).await?;
            let overview = Arc::clone(&news.overview.borrow_and_update());
            if !Arc::ptr_eq(&overview, &acted_on) {
                self.share(&catalog, &overview).await?;
                acted_on = overview;
            }
            if self.work_once().await? {
                continue;
            }
            let deadlines = self.lanes.iter().filter_map(Owned::deadline);
            let deadline = deadlines.min().unwrap_or(self.heartbeat_at).min(self.heartbeat_at);
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep_until(deadline) => {}
                Ok(()) = news.catalog.changed() => {}
                Ok(()) = news.overview.changed() => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
        self.release_all().await
    }

    /// One step of each lane. Gives whether there may be more to do at once.
    async fn work_once(&mut self) -> Result<bool, String> {
        let mut worked = false;
        let mut index = 0;
        while index < self.lanes.len() {
            // A round of hundreds of lanes takes longer than a lease where all is slow.
            self.heartbeat_if_due().await?;
            let mut lane = self.lanes.swap_remove(index);
            let step = self.step(&mut lane).await;
            let outcome = self.settle(&mut lane, step).await;
            // Back to its place whatever happened, so that a lost connection finds all its lanes.
            let last = self.lanes.len();
            self.lanes.push(lane);
            self.lanes.swap(index, last);
            match outcome? {
                Settled::Worked => worked = true,
                Settled::Idle => {}
                Settled::Lost => {
                    self.lanes.swap_remove(index);
                    continue;
                }
            }
            index += 1;
        }
        Ok(worked)
    }

    /// Draws the consequences of a step. The error is a lost connection.
    pub(super) async fn settle(&mut self, lane: &mut Owned, step: Result<bool, Failure>) -> Result<Settled, String> {
        let failure = match step {
            Ok(true) => return Ok(Settled::Worked),
            Ok(false) => return Ok(Settled::Idle),
            Err(failure) => failure,
        };
        let shared = self.shared;
        // Whatever was delivered beyond the checkpoint is read again.
        lane.reset(&shared.dispatcher);
        if let Failure::Connection(reason) = failure {
            return Err(reason);
        }
        self.client.roll_back().await.map_err(|error| describe(&error))?;
        match failure {
            Failure::Connection(reason) => return Err(reason),
            Failure::LaneLost(reason) => {
                tracing::warn!(projection = %lane.id.projection, lane = lane.id.lane, "lane lost: {reason}");
                // Whatever the row says of the owner: this session is not it.
                let give_up = "SELECT lanes.give_up_lane_lock($1, $2)";
                let parameters: [&(dyn ToSql + Sync); 2] = [&&*lane.id.projection, &(lane.id.lane as i32)];
                self.client.query(give_up, &parameters).await.map_err(|error| describe(&error))?;
                shared.board.set(&lane.id, LaneState::Unowned, Some(reason));
                return Ok(Settled::Lost);
            }
            Failure::InParts(_) => lane.in_parts = true,
            Failure::AtEvent(position, reason) => {
                lane.in_parts = true;
                lane.retry_at = Some(Instant::now() + pause(PERMANENT_PAUSES, lane.failures));
                self.stand_still(lane, LaneState::Stopped, &reason, Some(position)).await?;
            }
            Failure::Moved(place) => {
                (lane.place, lane.scanned_to) = (place, place);
                shared.board.set_place(&lane.id, place);
            }
            Failure::MapChanged(version) => {
                lane.map_at_least = version;
                shared.refresh.notify_one();
            }
            Failure::PastStop(stop) => lane.set_stop(Some(stop), &shared.dispatcher),
            Failure::Transient(reason) => {
                lane.retry_at = Some(Instant::now() + pause(TRANSIENT_PAUSES, lane.failures));
                self.stand_still(lane, LaneState::BackingOff, &reason, None).await?;
            }
            Failure::Permanent(reason) => {
                lane.retry_at = Some(Instant::now() + pause(PERMANENT_PAUSES, lane.failures));
                self.stand_still(lane, LaneState::Stopped, &reason, None).await?;
            }
        }
        Ok(Settled::Worked)
    }

    /// Says why a lane does not go on: in the log, in the status, and in Postgres.
    pub(super) async fn stand_still(
        &self,
        lane: &mut Owned,
        state: LaneState,
        reason: &str,
        failed: Option<u64>,
    ) -> Result<(), String> {
        lane.failures = lane.failures.saturating_add(1);
        self.shared.board.set(&lane.id, state, Some(reason.to_owned()));
        if lane.recorded.as_deref() == Some(reason) {
            return Ok(());
        }
        tracing::error!(projection = %lane.id.projection, lane = lane.id.lane, place = %lane.place, "{reason}");
        lane.recorded = Some(reason.to_owned());
        let (projection, number) = (&*lane.id.projection, lane.id.lane as i32);
        let told = match failed {
            Some(position) => {
                let statement = "SELECT lanes.stop_at_event($1, $2, $3, $4, $5)";
                self.client.query(statement, &[&projection, &number, &lane.epoch, &(position as i64), &reason]).await
            }
            None if state == LaneState::BackingOff => {
                let statement = "SELECT lanes.hold_lane($1, $2, $3, 'backing_off', $4)";
                self.client.query(statement, &[&projection, &number, &lane.epoch, &reason]).await
            }
            None => {
                let statement = "SELECT lanes.stop_lane($1, $2, $3, $4)";
                self.client.query(statement, &[&projection, &number, &lane.epoch, &reason]).await
            }
        };
        match told {
            Err(error) if classify(&error) == Fault::Connection => Err(describe(&error)),
            Err(error) => {
                tracing::warn!("cannot record why the lane does not go on: {}", describe(&error));
                Ok(())
            }
            Ok(_) => Ok(()),
        }
    }
}

/// What became of a step.
pub(super) enum Settled {
    /// There may be more at once.
    Worked,
    /// There is nothing to do now.
    Idle,
    /// The lane is no longer this worker's.
    Lost,
}
