//! Streams: the numbered sources of events, and what is stored of each.
//!
//! A stream has a number, given out when its name is first seen and stored with its first events. It belongs to the
//! drain `number mod n` for the life of the process, so in a stream position order is sequence order. The numbers
//! below [`FIRST_PRODUCER`] are the drains' own streams, for events that come without a producer's name.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use lanes_core::log::interval::IntervalSet;

use super::RESERVED_NAME_PREFIX;

/// The number of the first stream that is not a drain's own. It bounds the number of drains.
pub const FIRST_PRODUCER: u64 = 1024;

/// The most bytes of a producer's name.
pub const MAXIMUM_NAME_BYTES: usize = 255;

/// Why a name cannot be a producer's.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NameError {
    /// Empty, too long, or with characters that do not travel in a header.
    #[error("a producer's name has 1 to {MAXIMUM_NAME_BYTES} printable ASCII characters without spaces: \"{0}\"")]
    Malformed(String),
    /// A name that only the daemon may use.
    #[error("names that begin with \"{RESERVED_NAME_PREFIX}\" are reserved: \"{0}\"")]
    Reserved(String),
    /// The log knows as many producers as it may.
    #[error("the log knows {0} producers already, the most that max_streams allows")]
    TooMany(usize),
}

/// The name of a drain's own stream.
pub fn drain_stream_name(drain: u32) -> String {
    format!("{RESERVED_NAME_PREFIX}drain.{drain}")
}

/// Names ► numbers of all streams of the log.
#[derive(Debug)]
pub struct StreamRegistry {
    maximum: usize,
    streams: Mutex<Streams>,
}

#[derive(Debug)]
struct Streams {
    numbers: HashMap<Arc<str>, u64>,
    next: u64,
}

impl StreamRegistry {
    /// The registry of a log that holds `streams`, for at most `maximum` names.
    pub fn new<'a>(streams: impl Iterator<Item = (u64, &'a Arc<str>)>, maximum: usize) -> StreamRegistry {
        let numbers: HashMap<_, _> = streams.map(|(number, name)| (Arc::clone(name), number)).collect();
        let next = numbers.values().map(|number| number + 1).max().unwrap_or(0).max(FIRST_PRODUCER);
        StreamRegistry { maximum, streams: Mutex::new(Streams { numbers, next }) }
    }

    /// The number of the producer `name`, a new one if it is not known.
    ///
    /// # Errors
    /// [`NameError`] if the name cannot be a producer's or there is no room for another.
    pub fn producer(&self, name: &str) -> Result<(u64, Arc<str>), NameError> {
        if name.is_empty() || name.len() > MAXIMUM_NAME_BYTES || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(NameError::Malformed(name.to_owned()));
        }
        if name.starts_with(RESERVED_NAME_PREFIX) {
            return Err(NameError::Reserved(name.to_owned()));
        }
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((name, number)) = streams.numbers.get_key_value(name) {
            return Ok((*number, Arc::clone(name)));
        }
        if streams.numbers.len() >= self.maximum {
            return Err(NameError::TooMany(streams.numbers.len()));
        }
        let (name, number): (Arc<str>, u64) = (name.into(), streams.next);
        streams.next += 1;
        streams.numbers.insert(Arc::clone(&name), number);
        Ok((number, name))
    }
}

/// What a drain knows of one of its streams.
#[derive(Debug, Clone)]
pub struct StreamState {
    /// The stream's name.
    pub name: Arc<str>,
    /// Sequences that are stored or in flight.
    pub covered: IntervalSet,
    /// Last sequence and last position of the blocks that may still be in flight, ascending.
    in_flight: VecDeque<(u64, u64)>,
}

impl StreamState {
    /// A stream of which nothing is stored.
    pub fn new(name: Arc<str>) -> StreamState {
        StreamState { name, covered: IntervalSet::default(), in_flight: VecDeque::new() }
    }

    /// The sequence that comes next: producers number from 1 without holes.
    pub fn next_sequence(&self) -> u64 {
        self.covered.first_missing(1)
    }

    /// Notes a block of `count` events that was given to a writer.
    pub fn sent(&mut self, first_sequence: u64, first_position: u64, count: u64, horizon: u64) {
        self.covered.insert(first_sequence, first_sequence + count - 1);
        while self.in_flight.front().is_some_and(|(_, position)| *position <= horizon) {
            self.in_flight.pop_front();
        }
        self.in_flight.push_back((first_sequence + count - 1, first_position + count - 1));
    }

    /// The position that the horizon must reach before everything up to `sequence` may be acknowledged; 0 if it has.
    /// A resend that meets its own first try waits for that one's commit.
    pub fn position_covering(&self, sequence: u64) -> u64 {
        self.in_flight.iter().find(|(last, _)| *last >= sequence).map_or(0, |(_, position)| *position)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_keep_their_numbers() {
        let known: [(u64, Arc<str>); 2] = [(0, drain_stream_name(0).into()), (2000, "old".into())];
        let registry = StreamRegistry::new(known.iter().map(|(number, name)| (*number, name)), 4);
        assert_eq!(registry.producer("old").unwrap().0, 2000);
        assert_eq!(registry.producer("new").unwrap().0, 2001);
        assert_eq!(registry.producer("new").unwrap().0, 2001);
        assert_eq!(registry.producer("newer").unwrap().0, 2002);
        assert_eq!(registry.producer("one more"), Err(NameError::Malformed("one more".into())));
        assert_eq!(registry.producer("newest"), Err(NameError::TooMany(4)));
        assert_eq!(registry.producer("old").unwrap().0, 2000);
        assert!(matches!(registry.producer("ingestd.drain.0"), Err(NameError::Reserved(_))));
        assert!(matches!(registry.producer(&"x".repeat(256)), Err(NameError::Malformed(_))));
    }

    #[test]
    fn the_first_producer_comes_after_the_drains() {
        assert_eq!(StreamRegistry::new([].into_iter(), 4).producer("a").unwrap().0, FIRST_PRODUCER);
    }

    #[test]
    fn a_resend_waits_for_what_it_needs_and_no_more() {
        let mut stream = StreamState::new("s".into());
        assert_eq!(stream.next_sequence(), 1);
        stream.sent(1, 100, 10, 0);
        stream.sent(11, 200, 5, 0);
        assert_eq!(stream.next_sequence(), 16);
        assert_eq!(stream.position_covering(3), 109);
        assert_eq!(stream.position_covering(10), 109);
        assert_eq!(stream.position_covering(11), 204);
        stream.sent(16, 300, 1, 150);
        assert_eq!(stream.position_covering(3), 204, "the first block is committed and forgotten");
    }
}
