//! One reader of the log for all lanes of the process.
//!
//! The dispatcher reads chunks of the log, finds the lane of each event for every projection, and puts what a lane needs
//! into that lane's bounded queue, with the position up to which it has scanned, so that quiet lanes move too (LANE-5).
//!
//! A lane attaches at its checkpoint. If the shared reader is a little ahead, the lane is attached and reads what lies
//! between by itself first; if it is far ahead, the lane catches up alone and attaches later; if nobody is attached,
//! the reader goes to where the lane is. The reader waits for a lane whose queue is full, but not longer than
//! [`PATIENCE`]: then that lane is detached, and catches up by itself, so that it never holds up the others.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use super::catalog::{Known, LaneId};
use crate::log::horizon::Horizon;
use crate::log::reader::{Chunk, LogReader, ReadError, StoredEvent};

/// The most events that are read at once. Each lane gets its part of them, so few would make small transactions.
pub const CHUNK_EVENTS: u64 = 8192;

/// The bytes of events after which a chunk ends.
pub const CHUNK_BYTES: usize = 4 << 20;

/// The most chunks that wait for a lane.
const QUEUE_CHUNKS: usize = 4;

/// The distance from which a lane joins the shared reader: lanes that begin together join although the first of them lets
/// the reader run ahead by a queue.
const JOIN_DISTANCE: u64 = (QUEUE_CHUNKS as u64 + 2) * CHUNK_EVENTS;

/// How long the reader waits for a lane whose queue is full. Only speed depends on it.
const PATIENCE: Duration = Duration::from_secs(2);

/// What a lane needs of a chunk.
#[derive(Debug, Clone)]
pub struct Delivery {
    chunk: Arc<Vec<StoredEvent>>,
    /// Places of the lane's events in the chunk.
    places: Vec<u32>,
    /// Everything of the lane up to this position is in this delivery or before it.
    pub scanned_to: u64,
}

impl Delivery {
    /// The events of lane `lane` of `known` in `chunk`.
    pub fn select(known: &Known, lane: u32, chunk: Chunk) -> Delivery {
        let places = (0u32..).zip(&chunk.events).filter(|(_, stored)| known.lane_of(stored) == Some(lane));
        let places = places.map(|(place, _)| place).collect();
        Delivery { chunk: Arc::new(chunk.events), places, scanned_to: chunk.scanned_to }
    }

    /// The lane's events, in position order.
    pub fn events(&self) -> impl Iterator<Item = &StoredEvent> {
        self.places.iter().map(|place| &self.chunk[*place as usize])
    }

    /// How many events there are for the lane.
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Whether there is no event for the lane.
    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
}

/// How a lane may go on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attachment {
    /// It is attached; what lies between its checkpoint and this position it reads by itself first.
    Attached {
        /// The shared reader's position.
        read_alone_to: u64,
    },
    /// The shared reader is too far ahead.
    Behind,
}

#[derive(Debug)]
struct Attached {
    known: Arc<Known>,
    queue: VecDeque<Delivery>,
    wake: Arc<Notify>,
}

#[derive(Debug, Default)]
struct State {
    /// The position up to which everything was given to the attached lanes.
    position: u64,
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

    /// Lets a lane whose checkpoint is `position` take part; `wake` is notified when there is something for it.
    pub fn attach(&self, id: &LaneId, known: &Arc<Known>, position: u64, wake: &Arc<Notify>) -> Attachment {
        let mut state = self.state();
        if state.lanes.is_empty() {
            state.position = position;
        }
        if state.position > position.saturating_add(JOIN_DISTANCE) {
            return Attachment::Behind;
        }
        let lane = Attached { known: Arc::clone(known), queue: VecDeque::new(), wake: Arc::clone(wake) };
        state.lanes.insert(id.clone(), lane);
        let read_alone_to = state.position.max(position);
        drop(state);
        self.changed.notify_all();
        Attachment::Attached { read_alone_to }
    }

    /// Takes a lane out; what is queued for it is dropped.
    pub fn detach(&self, id: &LaneId) {
        self.state().lanes.remove(id);
        self.changed.notify_all();
    }

    /// Takes deliveries of an attached lane until they hold `maximum_events`, at least one if there is one. None if the
    /// lane is not attached (any more).
    pub fn take(&self, id: &LaneId, maximum_events: usize) -> Option<Vec<Delivery>> {
        let mut state = self.state();
        let queue = &mut state.lanes.get_mut(id)?.queue;
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
        if !taken.is_empty() {
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

    /// Tells the reader that the horizon moved.
    pub fn horizon_moved(&self) {
        // Taking the lock orders this after the reader's look at the horizon, so that no wake-up is lost.
        drop(self.state());
        self.changed.notify_all();
    }

    /// Reads and dispatches until it is closed. Blocks; runs on a thread of its own.
    pub fn run(&self, reader: &LogReader, horizon: &Horizon) {
        let mut state = self.state();
        loop {
            if state.closed {
                return;
            }
            let after = state.position;
            let until = horizon.position();
            if state.lanes.is_empty() || until <= after {
                state = self.changed.wait(state).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let lanes: Vec<(LaneId, Arc<Known>)> =
                state.lanes.iter().map(|(id, lane)| (id.clone(), Arc::clone(&lane.known))).collect();
            drop(state);
            let read = read_and_route(reader, after, until, &lanes);
            state = self.state();
            match read {
                Ok(routed) => {
                    if state.trouble.take().is_some() {
                        tracing::info!("the log can be read again");
                    }
                    state = self.deliver(state, after, routed);
                }
                Err(error) => {
                    // Never skipped: lanes wait until the log can be read.
                    if state.trouble.is_none() {
                        tracing::error!("lanes wait: {error}");
                    }
                    state.trouble = Some(error.to_string());
                    state = self.wait(state, PATIENCE);
                }
            }
        }
    }

    fn wait<'a>(&'a self, state: MutexGuard<'a, State>, time: Duration) -> MutexGuard<'a, State> {
        self.changed.wait_timeout(state, time).unwrap_or_else(PoisonError::into_inner).0
    }

    /// Puts deliveries into the queues of the lanes that are still attached, unless the reader was moved meanwhile.
    fn deliver<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        after: u64,
        routed: Vec<(LaneId, Delivery)>,
    ) -> MutexGuard<'a, State> {
        let Some(scanned_to) = routed.first().map(|(_, delivery)| delivery.scanned_to) else { return state };
        let deadline = Instant::now() + PATIENCE;
        let full = |state: &State| -> Vec<LaneId> {
            let full = state.lanes.iter().filter(|(_, lane)| lane.queue.len() >= QUEUE_CHUNKS);
            full.map(|(id, _)| id.clone()).collect()
        };
        loop {
            let waiting = full(&state);
            if waiting.is_empty() || state.closed {
                break;
            }
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                for id in waiting {
                    tracing::warn!(projection = %id.projection, lane = id.lane, "the lane fell behind the shared reader");
                    state.lanes.remove(&id);
                }
                break;
            }
            state = self.wait(state, left);
        }
        // A lane that attached while the chunk was being read is not among the routed ones; the same chunk is then read
        // again for all. Reading again is right, because deliveries below a lane's position are dropped by the lane.
        let complete = state.lanes.keys().all(|id| routed.iter().any(|(other, _)| other == id));
        if state.position != after || !complete {
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
        state.position = scanned_to;
        state
    }
}

/// Reads a chunk after `after` and selects each lane's events.
fn read_and_route(
    reader: &LogReader,
    after: u64,
    until: u64,
    lanes: &[(LaneId, Arc<Known>)],
) -> Result<Vec<(LaneId, Delivery)>, ReadError> {
    let Chunk { events, scanned_to } = reader.read(after, until, CHUNK_EVENTS, CHUNK_BYTES)?;
    let chunk = Arc::new(events);
    // Each projection finds the lane of an event once, for all its lanes.
    let mut places: HashMap<LaneId, Vec<u32>> = HashMap::new();
    let mut projections: Vec<&Arc<Known>> = Vec::new();
    for (_, known) in lanes {
        if !projections.iter().any(|other| Arc::ptr_eq(other, known)) {
            projections.push(known);
        }
    }
    for known in projections {
        for (place, stored) in (0u32..).zip(chunk.iter()) {
            if let Some(lane) = known.lane_of(stored) {
                places.entry(LaneId { projection: Arc::clone(&known.name), lane }).or_default().push(place);
            }
        }
    }
    let delivery = |(id, _): &(LaneId, Arc<Known>)| {
        let places = places.remove(id).unwrap_or_default();
        (id.clone(), Delivery { chunk: Arc::clone(&chunk), places, scanned_to })
    };
    Ok(lanes.iter().map(delivery).collect())
}
