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

use lanes_core::place::Place;
use tokio::sync::Notify;

use super::catalog::{Known, LaneId};
use super::source::{CHUNK_EVENTS, Chunk, PlacedEvent, Reader, Source};

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
    chunk: Arc<Vec<PlacedEvent>>,
    /// Places of the lane's events in the chunk.
    places: Vec<u32>,
    /// The map that said so.
    map_version: i64,
    /// Everything of the lane up to this place is in this delivery or before it.
    pub scanned_to: Place,
}

impl Delivery {
    /// The events of lane `lane` of `known` in `chunk`.
    pub fn select(known: &Known, lane: u32, chunk: Chunk) -> Delivery {
        let places = (0u32..).zip(&chunk.events).filter(|(_, placed)| known.lane_of(placed) == Some(lane));
        let places = places.map(|(place, _)| place).collect();
        Delivery { chunk: Arc::new(chunk.events), places, map_version: known.map_version, scanned_to: chunk.scanned_to }
    }

    /// The lane's events, in order.
    pub fn events(&self) -> impl Iterator<Item = &PlacedEvent> {
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

    /// Lets a lane whose checkpoint is `place` take part; `wake` is notified when there is something for it.
    pub fn attach(
        &self,
        id: &LaneId,
        known: &Arc<Known>,
        place: Place,
        wake: &Arc<Notify>,
        source: &Source,
    ) -> Attachment {
        let mut state = self.state();
        if state.lanes.is_empty() {
            state.place = place;
        }
        if state.place > place && source.lag(place) > source.lag(state.place).saturating_add(JOIN_DISTANCE) {
            return Attachment::Behind;
        }
        let lane = Attached { known: Arc::clone(known), queue: VecDeque::new(), wake: Arc::clone(wake) };
        state.lanes.insert(id.clone(), lane);
        let read_alone_to = state.place.max(place);
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
    pub fn run(&self, source: &Source, mut reader: Reader) {
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
            let routed = reader.read(after, until).map(|chunk| route(chunk, &lanes));
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
        let deadline = Instant::now() + PATIENCE;
        let is_full = |lane: &Attached| lane.queue.len() >= QUEUE_CHUNKS;
        while !state.closed && state.lanes.values().any(is_full) {
            let left = deadline.saturating_duration_since(Instant::now());
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
        let routed_by: HashMap<&LaneId, i64> = routed.iter().map(|(id, delivery)| (id, delivery.map_version)).collect();
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

/// Selects each lane's events of a chunk.
fn route(chunk: Chunk, lanes: &[(LaneId, Arc<Known>)]) -> Vec<(LaneId, Delivery)> {
    let Chunk { events, scanned_to } = chunk;
    let chunk = Arc::new(events);
    // Each projection finds the lane of an event once, for all its lanes.
    let mut places: HashMap<(LaneId, i64), Vec<u32>> = HashMap::new();
    let mut projections: Vec<&Arc<Known>> = Vec::new();
    for (_, known) in lanes {
        // Once for each map, also while lanes hold it with different policies: else they would be given events twice.
        if !projections.iter().any(|other| other.name == known.name && other.map_version == known.map_version) {
            projections.push(known);
        }
    }
    for known in projections {
        for (place, placed) in (0u32..).zip(chunk.iter()) {
            if let Some(lane) = known.lane_of(placed) {
                let id = LaneId { projection: Arc::clone(&known.name), lane };
                places.entry((id, known.map_version)).or_default().push(place);
            }
        }
    }
    // Lanes of one projection may have attached under different maps for a moment: each gets what its own map says.
    let delivery = |(id, known): &(LaneId, Arc<Known>)| {
        let places = places.remove(&(id.clone(), known.map_version)).unwrap_or_default();
        (id.clone(), Delivery { chunk: Arc::clone(&chunk), places, map_version: known.map_version, scanned_to })
    };
    lanes.iter().map(delivery).collect()
}

#[cfg(test)]
mod tests {
    use super::super::catalog::known;
    use super::*;
    use lanes_core::event::Event;

    /// While a policy or a map changes, lanes of one projection are attached with what they know at that time.
    #[test]
    fn each_lane_is_given_each_of_its_events_once_by_the_map_it_knows() {
        let event = |key: u32| Event { event_type: "T".into(), key: key.to_string(), ts: 0, payload: "{}".into() };
        let events: Vec<PlacedEvent> =
            (0..200).map(|key| PlacedEvent { place: Place::at(u64::from(key) + 1), event: event(key) }).collect();
        let (old, same_map, new_map) = (known(4, 1), known(4, 1), known(2, 2));
        let lane = |known: &Arc<Known>, lane| (LaneId { projection: Arc::clone(&known.name), lane }, Arc::clone(known));
        let lanes = [lane(&old, 0), lane(&same_map, 1), lane(&old, 2), lane(&new_map, 3)];
        let chunk = Chunk { events: events.clone(), scanned_to: Place::at(200) };
        for (id, delivery) in route(chunk, &lanes) {
            let known = lanes.iter().find(|(other, _)| *other == id).map(|(_, known)| known).unwrap();
            let own: Vec<&PlacedEvent> =
                events.iter().filter(|placed| known.lane_of(placed) == Some(id.lane)).collect();
            assert_eq!(delivery.events().collect::<Vec<_>>(), own, "lane {}", id.lane);
            assert_eq!(own.is_empty(), id.lane == 3, "there are two lanes in the new map");
        }
    }
}
