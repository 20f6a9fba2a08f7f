//! Chunks of the log that were read last, and the lanes of their events.
//!
//! Lanes that begin together, and the shared reader beside them, need the same part of the log one after the other. So a
//! chunk is kept for a while: it is read once, and each projection finds the lanes of its events once. What is kept is
//! bounded by number and by bytes (LOG-6); events below the horizon never change, so it cannot be out of date.

use std::collections::{HashMap, VecDeque};
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use lanes_core::place::Place;
use uuid::Uuid;

use super::catalog::Known;
use super::source::{CHUNK_BYTES, Chunk, PlacedEvent, Reader, Source};

/// The most chunks that are kept: some for each of a few workers that go round their lanes.
const KEPT_CHUNKS: usize = 12;

/// The most bytes of events that are kept.
const KEPT_BYTES: usize = 4 * CHUNK_BYTES;

/// A chunk, and where the lanes of projections find their events in it.
#[derive(Debug)]
pub struct Routed {
    log_id: Option<Uuid>,
    after: Place,
    chunk: Chunk,
    bytes: usize,
    routes: Mutex<Vec<Arc<Routes>>>,
}

/// Where the lanes of a projection find their events in a chunk.
#[derive(Debug)]
struct Routes {
    known: Arc<Known>,
    /// Lane ► places in the chunk, ascending.
    places: HashMap<u32, Vec<u32>>,
}

impl Routed {
    /// What was read of a log after a place.
    pub(super) fn new(log_id: Option<Uuid>, after: Place, chunk: Chunk) -> Routed {
        let bytes = chunk.events.iter().map(|placed| placed.event.size_bytes()).sum();
        Routed { log_id, after, chunk, bytes, routes: Mutex::default() }
    }

    /// The places of a projection's lanes. Whoever asks meanwhile waits, and does not look for them, too.
    fn routes(&self, known: &Arc<Known>) -> Arc<Routes> {
        let mut all = self.routes.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(found) = all.iter().find(|routes| Arc::ptr_eq(&routes.known, known)) {
            return Arc::clone(found);
        }
        let mut places: HashMap<u32, Vec<u32>> = HashMap::new();
        for (place, placed) in (0u32..).zip(&self.chunk.events) {
            if let Some(lane) = known.lane_of(placed) {
                places.entry(lane).or_default().push(place);
            }
        }
        let found = Arc::new(Routes { known: Arc::clone(known), places });
        all.push(Arc::clone(&found));
        found
    }
}

/// What a lane needs of a chunk.
#[derive(Debug, Clone)]
pub struct Delivery {
    chunk: Arc<Routed>,
    routes: Arc<Routes>,
    lane: u32,
    /// Of the lane's places.
    range: Range<usize>,
    /// Everything of the lane up to this place was in the delivery before it.
    pub after: Place,
    /// Everything of the lane up to this place is in this delivery or before it.
    pub scanned_to: Place,
}

impl Delivery {
    /// The events of lane `lane` of `known` in `chunk`, after one place and up to another.
    pub fn select(chunk: &Arc<Routed>, known: &Arc<Known>, lane: u32, after: Place, until: Place) -> Delivery {
        let routes = chunk.routes(known);
        let places = routes.places.get(&lane).map_or(&[][..], Vec::as_slice);
        let up_to = |place: Place| places.partition_point(|at| chunk.chunk.events[*at as usize].place <= place);
        let range = up_to(after)..up_to(until.max(after));
        let scanned_to = chunk.chunk.scanned_to.min(until);
        Delivery { chunk: Arc::clone(chunk), routes, lane, range, after, scanned_to }
    }

    fn places(&self) -> &[u32] {
        self.routes.places.get(&self.lane).map_or(&[], |places| &places[self.range.clone()])
    }

    /// The lane's events, in order.
    pub fn events(&self) -> impl Iterator<Item = &PlacedEvent> {
        self.places().iter().map(|place| &self.chunk.chunk.events[*place as usize])
    }

    /// How many events there are for the lane.
    pub fn len(&self) -> usize {
        self.range.len()
    }

    /// Whether there is no event for the lane.
    pub fn is_empty(&self) -> bool {
        self.range.is_empty()
    }

    /// The version of the map that said so.
    pub fn map_version(&self) -> i64 {
        self.routes.known.map_version
    }
}

/// Some chunks, the last one read at the end.
#[derive(Debug, Default)]
struct Kept(VecDeque<Arc<Routed>>);

impl Kept {
    fn find(&self, log_id: Option<Uuid>, after: Place) -> Option<Arc<Routed>> {
        let goes_on =
            |routed: &&Arc<Routed>| routed.after <= after && after < routed.chunk.scanned_to && routed.log_id == log_id;
        self.0.iter().rev().find(goes_on).cloned()
    }

    fn keep(&mut self, routed: &Arc<Routed>) {
        self.0.push_back(Arc::clone(routed));
        while self.0.len() > KEPT_CHUNKS || self.0.iter().map(|routed| routed.bytes).sum::<usize>() > KEPT_BYTES {
            self.0.pop_front();
        }
    }
}

/// The chunks of a log that were read last.
pub struct Chunks {
    source: Arc<Source>,
    kept: Mutex<Kept>,
}

impl Chunks {
    /// Of a log, of which nothing was read yet.
    pub fn new(source: &Arc<Source>) -> Chunks {
        Chunks { source: Arc::clone(source), kept: Mutex::default() }
    }

    /// A chunk that goes on after a place, if one is kept. It may begin before the place.
    pub fn find(&self, after: Place) -> Option<Arc<Routed>> {
        let log_id = self.source.log_id();
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).find(log_id, after)
    }

    /// A chunk that goes on after a place, kept or read. One that is read ends at `until` at the latest. Blocks.
    ///
    /// # Errors
    /// Why the log cannot be read, in one line.
    pub fn read(&self, reader: &mut Reader, after: Place, until: Place) -> Result<Arc<Routed>, String> {
        if let Some(kept) = self.find(after) {
            return Ok(kept);
        }
        // First: of a table that is another one meanwhile, nothing may be kept under the new one's name.
        let log_id = self.source.log_id();
        let routed = Arc::new(Routed::new(log_id, after, reader.read(after, until)?));
        self.kept.lock().unwrap_or_else(PoisonError::into_inner).keep(&routed);
        Ok(routed)
    }
}

#[cfg(test)]
mod tests {
    use super::super::catalog::known;
    use super::*;
    use lanes_core::event::Event;

    fn placed(position: u64) -> PlacedEvent {
        let key = position.to_string();
        let event = Event { event_type: "T".into(), key, ts: 0, payload: "{}".into() };
        PlacedEvent { place: Place::at(position), event }
    }

    /// Positions 1 to 200.
    fn chunk() -> Arc<Routed> {
        let events = (1..=200).map(placed).collect();
        Arc::new(Routed::new(None, Place::at(0), Chunk { events, scanned_to: Place::at(200) }))
    }

    #[test]
    fn a_chunk_is_found_by_every_place_in_it_and_of_its_log_alone() {
        let (log, other) = (Some(Uuid::from_u128(1)), Some(Uuid::from_u128(2)));
        let mut kept = Kept::default();
        for first in [100, 200] {
            let events = vec![placed(first + 1), placed(first + 7)];
            let chunk = Chunk { events, scanned_to: Place::at(first + 100) };
            kept.keep(&Arc::new(Routed::new(log, Place::at(first), chunk)));
        }
        let found = |log_id, position| kept.find(log_id, Place::at(position)).map(|routed| routed.after.position);
        assert_eq!([100, 150, 199].map(|position| found(log, position)), [Some(100); 3]);
        assert_eq!([200, 299].map(|position| found(log, position)), [Some(200); 2]);
        assert_eq!([0, 99, 300].map(|position| found(log, position)), [None; 3]);
        assert_eq!((found(other, 150), found(None, 150)), (None, None));
    }

    #[test]
    fn what_is_kept_is_bounded_by_number_and_by_bytes_and_the_oldest_go_first() {
        let mut kept = Kept::default();
        let mut keep = |number: u64, bytes: usize| {
            let mut event = placed(number + 1);
            event.event.payload = "x".repeat(bytes);
            let chunk = Chunk { events: vec![event], scanned_to: Place::at(number + 1) };
            kept.keep(&Arc::new(Routed::new(None, Place::at(number), chunk)));
            kept.0.iter().map(|routed| routed.after.position).collect::<Vec<_>>()
        };
        for number in 0..50 {
            let last = keep(number, 10);
            assert_eq!(last, ((number + 1).saturating_sub(KEPT_CHUNKS as u64)..=number).collect::<Vec<_>>());
        }
        assert_eq!(keep(50, KEPT_BYTES / 2), (39..=50).collect::<Vec<_>>());
        assert_eq!(keep(51, KEPT_BYTES / 2), [51]);
        assert_eq!(keep(52, 2 * KEPT_BYTES), [0; 0], "it is used and not kept");
    }

    /// While a policy or a map changes, lanes of one projection are attached with what they know at that time.
    #[test]
    fn each_lane_is_given_each_of_its_events_once_by_the_map_it_knows() {
        let (old, same_map, new_map) = (known(4, 1), known(4, 1), known(2, 2));
        let chunk = chunk();
        for (known, lane) in [(&old, 0), (&same_map, 1), (&old, 2), (&new_map, 3), (&new_map, 1)] {
            let delivery = Delivery::select(&chunk, known, lane, Place::at(0), Place::at(200));
            let own = (1..=200).map(placed).filter(|placed| known.lane_of(placed) == Some(lane));
            assert_eq!(delivery.events().cloned().collect::<Vec<_>>(), own.collect::<Vec<_>>(), "lane {lane}");
            assert_eq!(delivery.is_empty(), lane == 3, "there are two lanes in the new map");
            assert_eq!((delivery.map_version(), delivery.scanned_to), (known.map_version, Place::at(200)));
        }
    }

    #[test]
    fn a_lane_is_given_what_lies_between_its_place_and_its_stop() {
        let (chunk, known) = (chunk(), known(2, 1));
        for (after, until) in [(0, 200), (0, 7), (13, 14), (150, 150), (199, 300), (60, 40), (200, 200)] {
            let delivery = Delivery::select(&chunk, &known, 1, Place::at(after), Place::at(until));
            let own = (after + 1..=until.min(200)).map(placed).filter(|placed| known.lane_of(placed) == Some(1));
            assert_eq!(delivery.events().cloned().collect::<Vec<_>>(), own.collect::<Vec<_>>(), "{after} to {until}");
            assert_eq!(delivery.len(), delivery.events().count());
            assert_eq!(delivery.scanned_to, Place::at(until.min(200)));
        }
    }
}
