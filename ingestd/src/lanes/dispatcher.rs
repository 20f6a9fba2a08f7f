//! One reader of the log for all lanes of the process.
//!
//! The dispatcher reads chunks of the log, finds the lane of each event for every projection, and puts what a lane needs
//! into that lane's bounded queue, with the position up to which it has scanned, so that quiet lanes move too (LANE-5).
//!
//! A lane attaches at its checkpoint. If the shared reader is a little ahead, the lane is attached and reads what lies
//! between by itself first (`chunks` mostly has it still); if it is far ahead, the lane catches up alone and attaches
//! later; if nobody is attached, the reader goes to where the lane is. The reader waits for lanes whose queues are full,
//! as long as one after the other is emptied; after [`PATIENCE`] without that they are detached, and catch up by
//! themselves, so that they never hold up the others.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lanes_core::place::Place;
use tokio::sync::Notify;

use super::catalog::{Known, LaneId};
use super::chunks::{Chunks, Delivery};
use super::source::{CHUNK_EVENTS, Reader, Source};

/// The most chunks that wait for a lane.
const QUEUE_CHUNKS: usize = 4;

/// The distance from which a lane joins the shared reader: lanes that begin together join although the first of them lets
/// the reader run ahead by a queue.
const JOIN_DISTANCE: u64 = (QUEUE_CHUNKS as u64 + 2) * CHUNK_EVENTS;

/// How long the reader waits while no full queue is emptied. Only speed depends on it.
const PATIENCE: Duration = Duration::from_secs(2);

/// The reader's wait for lanes whose queues are full. A worker goes round its lanes, and a round of hundreds takes longer than
/// [`PATIENCE`]: if those at its end were detached, each would read the whole log for itself.
#[derive(Debug)]
struct Wait {
    full: usize,
    until: Instant,
}

impl Wait {
    fn begin(now: Instant) -> Wait {
        Wait { full: usize::MAX, until: now + PATIENCE }
    }

    /// How much longer, now that `full` queues are full.
    fn left(&mut self, full: usize, now: Instant) -> Duration {
        if full < self.full {
            *self = Wait { full, until: now + PATIENCE };
        }
        self.until.saturating_duration_since(now)
    }
}

/// How a lane may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// It is attached; what lies between its checkpoint and this place it reads by itself first.
    Attached {
        /// The shared reader's place.
        read_alone_to: Place,
    },
    /// The shared reader is too far ahead.
    Behind,
}

#[derive(Debug)]
struct Attached {
    /// The ownership that it is attached under: a worker may not know yet that another one has the lane now.
    epoch: i64,
    known: Arc<Known>,
    queue: VecDeque<Delivery>,
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// The place up to which everything was given to the attached lanes.
    place: Place,
    lanes: HashMap<LaneId, Attached>,
    closed: bool,
    /// Why the log cannot be read, if it cannot.
    trouble: Option<String>,
}

/// The shared reader's state.
#[derive(Debug, Default)]
pub struct Dispatcher {
    state: Mutex<State>,
    /// Something changed that the reader may be waiting for.
    changed: Condvar,
}

impl Dispatcher {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets a lane, owned in `epoch`, whose checkpoint is `place` take part; `wake` is notified when there is something for
    /// it. One that is attached in a later epoch stays as it is.
    pub fn attach(
        &self,
        id: &LaneId,
        epoch: i64,
        known: &Arc<Known>,
        place: Place,
        wake: &Arc<Notify>,
        source: &Source,
    ) -> Attachment {
        let mut state = self.state();
        if state.lanes.get(id).is_some_and(|present| present.epoch > epoch) {
            return Attachment::Behind;
        }
        if state.lanes.is_empty() {
            state.place = place;
        }
        if state.place > place && source.lag(place) > source.lag(state.place).saturating_add(JOIN_DISTANCE) {
            return Attachment::Behind;
        }
        let lane = Attached { epoch, known: Arc::clone(known), queue: VecDeque::new(), wake: Arc::clone(wake) };
        state.lanes.insert(id.clone(), lane);
        let read_alone_to = state.place.max(place);
        drop(state);
        self.changed.notify_all();
        Attachment::Attached { read_alone_to }
    }

    /// Takes a lane out that is attached in this epoch; what is queued for it is dropped.
    pub fn detach(&self, id: &LaneId, epoch: i64) {
        let mut state = self.state();
        if state.lanes.get(id).is_some_and(|present| present.epoch == epoch) {
            state.lanes.remove(id);
        }
        drop(state);
        self.changed.notify_all();
    }

    /// Takes deliveries of an attached lane until they hold `maximum_events`, at least one if there is one. None if the
    /// lane is not attached (any more) in this epoch.
    pub fn take(&self, id: &LaneId, epoch: i64, maximum_events: usize) -> Option<Vec<Delivery>> {
        let mut state = self.state();
        let queue = &mut state.lanes.get_mut(id).filter(|present| present.epoch == epoch)?.queue;
        // The reader waits for no other: with a thousand lanes it would look at all of them a thousand times.
        let was_full = queue.len() >= QUEUE_CHUNKS;
        let mut taken = Vec::new();
        let mut events = 0;
        while let Some(next) = queue.front() {
            if events > 0 && events + next.len() > maximum_events {
                break;
            }
            events += next.len();
            taken.extend(queue.pop_front());
        }
        drop(state);
        if was_full {
            self.changed.notify_all();
        }
        Some(taken)
    }

    /// Why the log cannot be read, if it cannot.
    pub fn trouble(&self) -> Option<String> {
        self.state().trouble.clone()
    }

    /// Ends [`Dispatcher::run`].
    pub fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Notes why the log cannot be read; none if it can.
    pub fn note_trouble(&self, trouble: Option<String>) {
        let before = std::mem::replace(&mut self.state().trouble, trouble.clone());
        match (before, trouble) {
            // Never skipped: lanes wait until the log can be read.
            (None, Some(reason)) => tracing::error!("lanes wait: {reason}"),
            (Some(_), None) => tracing::info!("the log can be read again"),
            _ => {}
        }
    }

    /// Tells the reader that the horizon moved.
    pub fn horizon_moved(&self) {
        // Taking the lock orders this after the reader's look at the horizon, so that no wake-up is lost.
        drop(self.state());
        self.changed.notify_all();
    }

    /// Reads and dispatches until it is closed. Blocks; runs on a thread of its own.
    pub fn run(&self, source: &Source, chunks: &Chunks, mut reader: Reader) {
        let mut state = self.state();
        loop {
            if state.closed {
                return;
            }
            let after = state.place;
            let until = source.horizon();
            if state.lanes.is_empty() || until <= after {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let lanes: Vec<(LaneId, Arc<Known>)> =
                state.lanes.iter().map(|(id, lane)| (id.clone(), Arc::clone(&lane.known))).collect();
            drop(state);
            let routed = chunks.read(&mut reader, after, until).map(|chunk| {
                let delivery = |(id, known): &(LaneId, Arc<Known>)| {
                    (id.clone(), Delivery::select(&chunk, known, id.lane, after, until))
                };
                lanes.iter().map(delivery).collect()
            });
            self.note_trouble(routed.as_ref().err().cloned());
            state = self.state();
            state = match routed {
                Ok(routed) => self.deliver(state, after, routed),
                Err(_) => self.wait(state, PATIENCE),
            };
        }
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Puts deliveries into the queues of the lanes that are still attached, unless the reader was moved meanwhile.
    fn deliver<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        after: Place,
        routed: Vec<(LaneId, Delivery)>,
    ) -> MutexGuard<'a, State> {
        let Some(scanned_to) = routed.first().map(|(_, delivery)| delivery.scanned_to) else { return state };
        let is_full = |lane: &Attached| lane.queue.len() >= QUEUE_CHUNKS;
        let mut wait = Wait::begin(Instant::now());
        while !state.closed {
            let full = state.lanes.values().filter(|lane| is_full(lane)).count();
            if full == 0 {
                break;
            }
            let left = wait.left(full, Instant::now());
            if left.is_zero() {
                state.lanes.retain(|id, lane| {
                    if is_full(lane) {
                        tracing::warn!(projection = %id.projection, lane = id.lane, "the lane fell behind the shared reader");
                    }
                    !is_full(lane)
                });
                break;
            }
            state = self.wait(state, left);
        }
        // A lane that attached while the chunk was being read is not among the routed ones, or under another map; the same
        // chunk is then read again for all. Reading again is right, because deliveries below a lane's place are dropped by
        // the lane.
        let routed_by: HashMap<&LaneId, i64> =
            routed.iter().map(|(id, delivery)| (id, delivery.map_version())).collect();
        let complete = state.lanes.iter().all(|(id, lane)| routed_by.get(id) == Some(&lane.known.map_version));
        if state.place != after || !complete {
            return state;
        }
        for (id, delivery) in routed {
            if let Some(lane) = state.lanes.get_mut(&id) {
                // Moves without events are joined, so that a quiet lane's queue does not fill.
                match lane.queue.back_mut() {
                    Some(last) if delivery.is_empty() => last.scanned_to = delivery.scanned_to,
                    _ => lane.queue.push_back(delivery),
                }
                lane.wake.notify_one();
            }
        }
        state.place = scanned_to;
        state
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::known;
    use super::super::chunks::Routed;
    use super::super::source::Chunk;
    use super::*;
    use crate::log::horizon::Horizon;

    /// A worker that has lost its session notices it late. What is queued is for the one that has the lane now.
    #[test]
    fn who_had_the_lane_before_takes_nothing_of_its_successor() {
        let source = Source::Files {
            log_id: uuid::Uuid::nil(),
            directory: std::path::PathBuf::new(),
            horizon: Arc::new(Horizon::new(100)),
            floor: Box::new(|| 0),
        };
        let (dispatcher, known, wake) = (Dispatcher::default(), known(1, 1), Arc::new(Notify::new()));
        let id = LaneId { projection: "p".into(), lane: 0 };
        let attach = |epoch| dispatcher.attach(&id, epoch, &known, Place::at(0), &wake, &source);
        assert_eq!(attach(1), Attachment::Attached { read_alone_to: Place::at(0) });
        assert_eq!(attach(2), Attachment::Attached { read_alone_to: Place::at(0) });
        let chunk = Arc::new(Routed::new(None, Place::at(0), Chunk { events: Vec::new(), scanned_to: Place::at(100) }));
        let delivery = Delivery::select(&chunk, &known, 0, Place::at(0), Place::at(100));
        drop(dispatcher.deliver(dispatcher.state(), Place::at(0), vec![(id.clone(), delivery)]));
        assert!(dispatcher.take(&id, 1, 10).is_none());
        dispatcher.detach(&id, 1);
        assert_eq!(attach(1), Attachment::Behind);
        let taken = dispatcher.take(&id, 2, 10).expect("it is attached");
        assert_eq!(
            taken.iter().map(|taken| (taken.after, taken.scanned_to)).collect::<Vec<_>>(),
            [(Place::at(0), Place::at(100))]
        );
    }

    #[test]
    fn the_reader_waits_while_one_full_queue_after_the_other_is_emptied_and_no_longer() {
        let (begin, most) = (Instant::now(), PATIENCE - Duration::from_millis(1));
        let mut wait = Wait::begin(begin);
        for emptied in 0..300 {
            assert!(!wait.left(300 - emptied, begin + most * emptied as u32).is_zero(), "after {emptied} were emptied");
        }
        // The last one is not emptied.
        let last = begin + most * 299;
        assert!(!wait.left(1, last + most).is_zero());
        assert!(wait.left(1, last + PATIENCE).is_zero());
    }
}
