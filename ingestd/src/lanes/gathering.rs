//! What a lane does next: it gathers what has come for it, from the shared reader, or by itself where it is behind, has a
//! schedule or has to stop, and has it applied.
//!
//! In mode `batch` a lane waits until it has so many events, or the first has waited so long. In mode `scheduled` it
//! does not take part in the shared reader, and reads for itself when its time comes.

use std::time::Duration;

use lanes_core::place::Place;
use lanes_core::projection::policy::{Mode, Priority};
use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::batch::Tally;
use super::board::LaneState;
use super::chunks::Delivery;
use super::dispatcher::Attachment;
use super::failure::Failure;
use super::owned::Owned;
use super::source::{CHUNK_BYTES, PlacedEvent};
use super::worker::Session;

/// How long a lane without events of its own may show a lag (LANE-5).
pub(super) const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

/// Bytes of events that wait for a batch to be full; more are not held back.
const WAITING_BYTES: usize = CHUNK_BYTES;

/// The most chunks that a lane reads for itself before it works on them.
const CHUNKS_ALONE: usize = 4;

/// How often the parked keys of a lane are looked at, for those whose retry somebody asked for.
const PARKED_INTERVAL: Duration = Duration::from_secs(1);

/// How often a lane that stands at its stop asks whether the map can change.
const FINISH_INTERVAL: Duration = Duration::from_millis(250);

impl Session<'_> {
    /// Does a lane's next piece of work, if there is one.
    pub(super) async fn step(&mut self, lane: &mut Owned) -> Result<bool, Failure> {
        let now = Instant::now();
        if lane.halted || lane.retry_at.is_some_and(|retry_at| retry_at > now) {
            return Ok(false);
        }
        if lane.waits_for_map() || self.pause(lane).await? {
            return Ok(false);
        }
        lane.retry_at = None;
        if lane.parked_unread || (lane.parked_at <= now && !lane.parked.is_empty()) {
            lane.parked_at = now + PARKED_INTERVAL;
            self.read_parked(lane).await.map_err(Failure::of_parts)?;
        }
        let shared = self.shared;
        if !lane.parked.is_empty() {
            let _permit = shared.permit(&lane.known).await;
            if self.retry_parked(lane).await.map_err(Failure::of_parts)? {
                return Ok(true);
            }
        }
        if lane.is_at_stop() {
            return self.wait_at_stop(lane).await;
        }
        let deliveries = self.gather(lane).await?;
        // Nothing may be passed over, whoever is at fault: then it is read again (LANE-4).
        let mut reached = lane.scanned_to;
        for delivery in &deliveries {
            if delivery.after > reached {
                lane.reset(&shared.dispatcher);
                return Ok(true);
            }
            reached = reached.max(delivery.scanned_to);
        }
        let gathered = !deliveries.is_empty();
        let scanned_to = deliveries.iter().map(|delivery| delivery.scanned_to).max().unwrap_or(lane.scanned_to);
        let before = lane.scanned_to;
        let events: Vec<&PlacedEvent> =
            deliveries.iter().flat_map(Delivery::events).filter(|placed| placed.place > before).collect();
        // A lane that has to stop goes there without delay: others wait for it.
        if let (Mode::Batch { size, flush_interval_ms }, None) = (lane.mode(), lane.stop) {
            let count = lane.waiting.len() + events.len();
            let bytes = lane.waiting_bytes + events.iter().map(|placed| placed.event.size_bytes()).sum::<usize>();
            if count > 0 && count < size as usize && bytes < WAITING_BYTES {
                let flush = Duration::from_millis(flush_interval_ms.into());
                let batch_at = *lane.batch_at.get_or_insert(now + flush);
                if batch_at > now {
                    lane.waiting.extend(events.into_iter().cloned());
                    (lane.waiting_bytes, lane.flush_at) = (bytes, None);
                    lane.scanned_to = lane.scanned_to.max(scanned_to);
                    return Ok(gathered);
                }
            }
        }
        let scanned_to = lane.scanned_to.max(scanned_to);
        let waited = std::mem::take(&mut lane.waiting);
        (lane.waiting_bytes, lane.batch_at) = (0, None);
        let events: Vec<&PlacedEvent> = waited.iter().chain(events).collect();
        if !events.is_empty() {
            let _permit = shared.permit(&lane.known).await;
            let mut rest = events.as_slice();
            while !rest.is_empty() {
                let (batch, later) = rest.split_at(rest.len().min(shared.batch_events));
                let to = later.first().map_or(scanned_to, |next| next.place.before());
                self.apply(lane, batch, to).await?;
                rest = later;
            }
            return Ok(true);
        }
        lane.scanned_to = scanned_to;
        match lane.flush_at {
            _ if lane.scanned_to == lane.place => lane.flush_at = None,
            _ if lane.stop == Some(lane.scanned_to) => self.apply(lane, &[], scanned_to).await?,
            None => lane.flush_at = Some(now + FLUSH_INTERVAL),
            Some(flush_at) if flush_at <= now => self.apply(lane, &[], scanned_to).await?,
            Some(_) => {}
        }
        Ok(gathered)
    }

    /// Whether the lane gives way now. It leaves the shared reader, and keeps what waits for a batch to be full.
    async fn pause(&mut self, lane: &mut Owned) -> Result<bool, Failure> {
        let priority = lane.known.rules.as_ref().map_or(Priority::P0, |rules| rules.policy.priority);
        let Some(reason) = self.shared.pressure.pauses(priority) else {
            if std::mem::take(&mut lane.paused) {
                self.shared.board.set(&lane.id, LaneState::CatchingUp, None);
                // An empty batch: it takes back what Postgres was told.
                let place = lane.place;
                self.begin(lane, place).await?;
                self.commit(lane, place, Tally::default()).await?;
            }
            return Ok(false);
        };
        if lane.attached.take().is_some() {
            self.shared.dispatcher.detach(&lane.id, lane.epoch);
        }
        if !std::mem::replace(&mut lane.paused, true) {
            self.shared.board.set(&lane.id, LaneState::Paused, Some(reason.clone()));
            let parameters: [&(dyn ToSql + Sync); 4] =
                [&&*lane.id.projection, &(lane.id.lane as i32), &lane.epoch, &reason];
            self.client.query("SELECT lanes.hold_lane($1, $2, $3, 'paused', $4)", &parameters).await?;
        }
        Ok(true)
    }

    /// What a lane does that stands where it has to stop: it asks whether the map can change now.
    async fn wait_at_stop(&mut self, lane: &mut Owned) -> Result<bool, Failure> {
        let now = Instant::now();
        if lane.finish_at > now {
            return Ok(false);
        }
        lane.finish_at = now + FINISH_INTERVAL;
        let reason = "a change of the map waits until other lanes stand here".to_owned();
        self.shared.board.set(&lane.id, LaneState::WaitingAtStop, Some(reason));
        let finish = self.client.prepared("SELECT lanes.finish_reshaping($1)").await?;
        self.client.begin().await?;
        self.client.query_one(&finish, &[&&*lane.id.projection]).await?;
        self.client.commit().await?;
        // Whoever finished it, and also if it was taken back.
        self.shared.refresh.notify_one();
        Ok(false)
    }

    /// What has come for a lane. Attaches it to the shared reader if it can be.
    async fn gather(&self, lane: &mut Owned) -> Result<Vec<Delivery>, Failure> {
        let shared = self.shared;
        if let Some(stop) = lane.stop {
            return self.read_alone(lane, stop).await;
        }
        if let Mode::Scheduled { every_ms } = lane.mode() {
            return self.gather_scheduled(lane, Duration::from_millis(every_ms)).await;
        }
        if lane.attached.is_none() {
            match shared.dispatcher.attach(
                &lane.id,
                lane.epoch,
                &lane.known,
                lane.scanned_to,
                &self.wake,
                &shared.source,
            ) {
                Attachment::Attached { read_alone_to } => {
                    lane.attached = Some(read_alone_to);
                    shared.board.set(&lane.id, LaneState::Running, None);
                }
                Attachment::Behind => shared.board.set(&lane.id, LaneState::CatchingUp, None),
            }
        }
        let alone_to = lane.attached.unwrap_or_else(|| shared.source.horizon());
        if alone_to > lane.scanned_to {
            return self.read_alone(lane, alone_to).await;
        }
        match shared.dispatcher.take(&lane.id, lane.epoch, shared.batch_events) {
            Some(deliveries) => Ok(deliveries),
            None => {
                lane.attached = None;
                // The worker comes again at once.
                self.wake.notify_one();
                Ok(Vec::new())
            }
        }
    }

    /// What a lane reads for itself, up to `until`: several chunks where it has few events in each, so that one transaction
    /// does not have to be made for a few.
    async fn read_alone(&self, lane: &Owned, until: Place) -> Result<Vec<Delivery>, Failure> {
        let (mut deliveries, mut scanned_to, mut events) = (Vec::new(), lane.scanned_to, 0);
        while scanned_to < until && events < self.shared.batch_events && deliveries.len() < CHUNKS_ALONE {
            let chunk = self.shared.readers.read(scanned_to, until).await.map_err(Failure::Transient)?;
            let delivery = Delivery::select(&chunk, &lane.known, lane.id.lane, scanned_to, until);
            if delivery.scanned_to == scanned_to {
                break;
            }
            scanned_to = delivery.scanned_to;
            events += delivery.len();
            deliveries.push(delivery);
        }
        Ok(deliveries)
    }

    /// What there is for a lane whose time has come: everything up to the horizon of that moment.
    async fn gather_scheduled(&self, lane: &mut Owned, every: Duration) -> Result<Vec<Delivery>, Failure> {
        let (shared, now) = (self.shared, Instant::now());
        if lane.attached.take().is_some() {
            shared.dispatcher.detach(&lane.id, lane.epoch);
        }
        if lane.run_to.is_none() && lane.run_at <= now {
            lane.run_to = Some(shared.source.horizon());
            lane.run_at = now + every;
            shared.board.set(&lane.id, LaneState::Running, None);
        }
        match lane.run_to {
            Some(run_to) if run_to > lane.scanned_to => self.read_alone(lane, run_to).await,
            _ => {
                lane.run_to = None;
                let reason = (lane.scanned_to == lane.place).then(|| "until its next time".to_owned());
                shared.board.set(&lane.id, LaneState::Scheduled, reason);
                Ok(Vec::new())
            }
        }
    }
}
