//! A lane that a worker owns: what is known of it, and what waits for it.

use std::sync::Arc;

use lanes_core::place::Place;
use lanes_core::projection::policy::Mode;
use tokio::time::Instant;

use super::catalog::{Known, LaneId};
use super::dispatcher::Dispatcher;
use super::parking::Parked;
use super::source::PlacedEvent;

/// A lane that this worker owns.
pub(super) struct Owned {
    pub(super) id: LaneId,
    pub(super) known: Arc<Known>,
    pub(super) epoch: i64,
    /// The checkpoint.
    pub(super) place: Place,
    /// Everything of the lane up to here is accounted for, in the checkpoint or because there was nothing, or waits.
    pub(super) scanned_to: Place,
    /// Where the lane has to stop for a change of the map, if it has to.
    pub(super) stop: Option<Place>,
    /// When it is next asked whether the map can change.
    pub(super) finish_at: Instant,
    /// Nothing is done before the catalog has this version of the map.
    pub(super) map_at_least: i64,
    /// Events that wait for a batch to be full.
    pub(super) waiting: Vec<PlacedEvent>,
    pub(super) waiting_bytes: usize,
    /// When they wait no longer.
    pub(super) batch_at: Option<Instant>,
    /// Up to where the lane reads alone although it is attached; none if it is not attached.
    pub(super) attached: Option<Place>,
    /// In mode scheduled: the next time, and up to where the lane reads now.
    pub(super) run_at: Instant,
    pub(super) run_to: Option<Place>,
    /// Batches that failed in a row.
    pub(super) failures: u32,
    /// Events that failed in a row.
    pub(super) failed_in_a_row: u32,
    /// The next batch is done in parts from the start: somebody may have asked that an event be skipped.
    pub(super) in_parts: bool,
    /// The parked keys of the lane; none until they were read.
    pub(super) parked: Parked,
    /// They have to be read, whatever was known of them.
    pub(super) parked_unread: bool,
    /// When they are looked at again.
    pub(super) parked_at: Instant,
    /// Not before this moment is a batch tried again.
    pub(super) retry_at: Option<Instant>,
    /// When the checkpoint must follow `scanned_to` although there was no event.
    pub(super) flush_at: Option<Instant>,
    /// The reason that Postgres was told for the lane's standing still.
    pub(super) recorded: Option<String>,
    /// The lane cannot go on for as long as this process lives.
    pub(super) halted: bool,
    /// It gives way to lanes of higher priority.
    pub(super) paused: bool,
}

impl Owned {
    /// A lane that was just claimed.
    pub(super) fn claimed(id: LaneId, known: &Arc<Known>, epoch: i64, place: Place) -> Owned {
        let now = Instant::now();
        Owned {
            id,
            known: Arc::clone(known),
            epoch,
            place,
            scanned_to: place,
            stop: None,
            finish_at: now,
            map_at_least: 0,
            waiting: Vec::new(),
            waiting_bytes: 0,
            batch_at: None,
            attached: None,
            run_at: now,
            run_to: None,
            failures: 0,
            failed_in_a_row: 0,
            in_parts: true,
            parked: Parked::new(),
            parked_unread: true,
            parked_at: now,
            retry_at: None,
            flush_at: None,
            recorded: None,
            halted: false,
            paused: false,
        }
    }

    pub(super) fn mode(&self) -> Mode {
        self.known.rules.as_ref().map_or(Mode::Realtime, |rules| rules.policy.mode)
    }

    /// Forgets what was gathered beyond the checkpoint: it is read again.
    pub(super) fn reset(&mut self, dispatcher: &Dispatcher) {
        dispatcher.detach(&self.id, self.epoch);
        (self.attached, self.flush_at, self.batch_at) = (None, None, None);
        self.waiting.clear();
        self.waiting_bytes = 0;
        self.scanned_to = self.place;
    }

    /// Takes over what the catalog knows now. Under another map other events are the lane's, and other parked keys.
    pub(super) fn follow(&mut self, known: &Arc<Known>, dispatcher: &Dispatcher) {
        if known.map_version != self.known.map_version {
            self.reset(dispatcher);
            (self.stop, self.in_parts, self.parked_unread, self.recorded) = (None, true, true, None);
        }
        self.known = Arc::clone(known);
    }

    /// Notes where the lane has to stop, or that it has not.
    pub(super) fn set_stop(&mut self, stop: Option<Place>, dispatcher: &Dispatcher) {
        if self.stop != stop {
            self.stop = stop;
            self.reset(dispatcher);
            self.finish_at = Instant::now();
        }
    }

    /// Whether the lane stands where it has to stop.
    pub(super) fn is_at_stop(&self) -> bool {
        self.stop.is_some_and(|stop| self.place >= stop)
    }

    /// Whether the lane cannot do anything before the catalog is read again.
    pub(super) fn waits_for_map(&self) -> bool {
        self.known.map_version < self.map_at_least
    }

    /// When there may be something to do although nothing came.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.halted || self.paused || self.waits_for_map() {
            return None;
        }
        let parked = (!self.parked.is_empty()).then_some(self.parked_at);
        let run = matches!(self.mode(), Mode::Scheduled { .. }).then_some(self.run_at);
        let due = self.parked.values().flatten().min().copied();
        if let Some(retry_at) = self.retry_at {
            return Some(retry_at);
        }
        let finish = self.is_at_stop().then_some(self.finish_at);
        [self.flush_at, self.batch_at, parked, run, due, finish].into_iter().flatten().min()
    }
}
