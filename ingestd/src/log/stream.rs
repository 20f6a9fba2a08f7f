//! Streams: the numbered sources of events, and what is stored of each.
//!
//! A stream has a number, given out when its name is first seen and stored with its first events. It belongs to the
//! drain `number mod n` for the life of the process, so in a stream position order is sequence order. The numbers
//! below [`FIRST_PRODUCER`] are the drains' own streams, for events that come without a producer's name.

use std::collections::{BTreeMap, HashMap, VecDeque};
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
    /// The producer was idle for so long that the log forgets it at this moment.
    #[error("producer \"{0}\" was idle for long and is being forgotten; send the request again")]
    Forgetting(String),
}

/// The number of the stream of the daemon's own rows. Drains are numbered below it.
pub const DAEMON_STREAM: u64 = FIRST_PRODUCER - 1;

/// The name of a drain's own stream.
pub fn drain_stream_name(drain: u32) -> String {
    format!("{RESERVED_NAME_PREFIX}drain.{drain}")
}

/// The name of the stream of the daemon's own rows.
pub fn daemon_stream_name() -> String {
    format!("{RESERVED_NAME_PREFIX}daemon")
}

/// A stream: a producer in one epoch, a drain's own, or the daemon's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StreamKey {
    /// Its number, under which it is stored.
    pub number: u64,
    /// The producer's name.
    pub name: Arc<str>,
    /// The producer's epoch; 0 for other streams.
    pub epoch: u64,
}

/// Names and epochs ► numbers of all streams of the log.
///
/// All epochs of a producer belong to one drain, that of its newest one, which so sees their requests in one order: a
/// stream that is new gets a number of the same remainder.
#[derive(Debug)]
pub struct StreamRegistry {
    maximum: usize,
    drains: u64,
    streams: Mutex<Streams>,
}

#[derive(Debug)]
struct Streams {
    producers: HashMap<Arc<str>, Producer>,
    count: usize,
    next: u64,
}

#[derive(Debug)]
struct Producer {
    drain: u64,
    epochs: BTreeMap<u64, Epoch>,
}

#[derive(Debug)]
struct Epoch {
    /// The stream's number.
    number: u64,
    /// Retention is deleting what the shards know of it.
    forgetting: bool,
}

impl StreamRegistry {
    /// The registry of a log that holds `streams`, for at most `maximum` of them, served by `drains` drains.
    pub fn new<'a>(streams: impl Iterator<Item = &'a StreamKey>, maximum: usize, drains: usize) -> StreamRegistry {
        let drains = drains as u64;
        let mut newest: Vec<&StreamKey> = streams.filter(|key| key.number >= FIRST_PRODUCER).collect();
        // The newest epoch last, so that it decides the drain: only its stream can still be written to.
        newest.sort_unstable_by_key(|key| key.epoch);
        let (mut producers, count) = (HashMap::<Arc<str>, Producer>::new(), newest.len());
        let next = newest.iter().map(|key| key.number + 1).max().unwrap_or(FIRST_PRODUCER);
        for key in newest {
            let producer = producers
                .entry(Arc::clone(&key.name))
                .or_insert_with(|| Producer { drain: 0, epochs: BTreeMap::new() });
            producer.drain = key.number % drains;
            producer.epochs.insert(key.epoch, Epoch { number: key.number, forgetting: false });
        }
        StreamRegistry { maximum, drains, streams: Mutex::new(Streams { producers, count, next }) }
    }

    /// The stream of the producer `name` in `epoch`, a new one if it is not known.
    ///
    /// # Errors
    /// [`NameError`] if the name cannot be a producer's or there is no room for another.
    pub fn producer(&self, name: &str, epoch: u64) -> Result<StreamKey, NameError> {
        check_name(name)?;
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let known = streams.producers.get_key_value(name);
        if let Some((key, known)) = known.and_then(|(key, producer)| Some((key, producer.epochs.get(&epoch)?))) {
            return match known.forgetting {
                true => Err(NameError::Forgetting(name.to_owned())),
                false => Ok(StreamKey { number: known.number, name: Arc::clone(key), epoch }),
            };
        }
        if streams.count >= self.maximum {
            return Err(NameError::TooMany(streams.count));
        }
        let drain = known.map(|(_, producer)| producer.drain);
        let mut number = streams.next;
        while drain.is_some_and(|drain| number % self.drains != drain) {
            number += 1;
        }
        streams.next = number + 1;
        streams.count += 1;
        let name: Arc<str> = known_or_new(&streams.producers, name);
        let fresh = || Producer { drain: number % self.drains, epochs: BTreeMap::new() };
        let producer = streams.producers.entry(Arc::clone(&name)).or_insert_with(fresh);
        producer.epochs.insert(epoch, Epoch { number, forgetting: false });
        Ok(StreamKey { number, name, epoch })
    }

    /// Whether `key` is still what its name and epoch stand for. A request that was on its way for long may carry an older
    /// one.
    pub fn knows(&self, key: &StreamKey) -> bool {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let known = streams.producers.get(&key.name).and_then(|producer| producer.epochs.get(&key.epoch));
        known.is_some_and(|epoch| epoch.number == key.number && !epoch.forgetting)
    }

    /// From now on the stream takes no requests, until it is [`StreamRegistry::forgotten`].
    pub fn begin_forgetting(&self, key: &StreamKey) {
        self.set_forgetting(key, true);
    }

    /// The stream stays after all.
    pub fn keep(&self, key: &StreamKey) {
        self.set_forgetting(key, false);
    }

    fn set_forgetting(&self, key: &StreamKey, forgetting: bool) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let known = streams.producers.get_mut(&key.name).and_then(|producer| producer.epochs.get_mut(&key.epoch));
        if let Some(epoch) = known {
            epoch.forgetting = forgetting;
        }
    }

    /// Nothing is known of the stream any more; its name may come again, as a new one.
    pub fn forgotten(&self, key: &StreamKey) {
        let mut streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(producer) = streams.producers.get_mut(&key.name) else { return };
        let removed = producer.epochs.remove(&key.epoch).is_some();
        if producer.epochs.is_empty() {
            streams.producers.remove(&key.name);
        }
        streams.count -= usize::from(removed);
    }

    /// The drain of the producer `name`; none if it is not known.
    pub fn drain_of(&self, name: &str) -> Option<usize> {
        let streams = self.streams.lock().unwrap_or_else(PoisonError::into_inner);
        streams.producers.get(name).map(|producer| producer.drain as usize)
    }
}

/// Checks a producer's name.
///
/// # Errors
/// [`NameError`] if the name cannot be a producer's.
pub fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() || name.len() > MAXIMUM_NAME_BYTES || !name.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(NameError::Malformed(name.to_owned()));
    }
    if name.starts_with(RESERVED_NAME_PREFIX) {
        return Err(NameError::Reserved(name.to_owned()));
    }
    Ok(())
}

fn known_or_new(producers: &HashMap<Arc<str>, Producer>, name: &str) -> Arc<str> {
    producers.get_key_value(name).map_or_else(|| name.into(), |(name, _)| Arc::clone(name))
}

/// What a drain knows of one of its streams. The default is a stream of which nothing is stored.
#[derive(Debug, Clone, Default)]
pub struct StreamState {
    /// Sequences that are stored or in flight.
    pub covered: IntervalSet,
    /// When its producer sent something last, in milliseconds since 1970 UTC; 0 if not in this process.
    pub heard_of_at: i64,
    /// Last sequence and last position of the blocks that may still be in flight, ascending.
    in_flight: VecDeque<(u64, u64)>,
}

impl StreamState {
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

    fn key(number: u64, name: &str, epoch: u64) -> StreamKey {
        StreamKey { number, name: name.into(), epoch }
    }

    #[test]
    fn names_keep_their_numbers() {
        let known = [key(0, &drain_stream_name(0), 0), key(2000, "old", 0)];
        let registry = StreamRegistry::new(known.iter(), 3, 2);
        assert_eq!(registry.producer("old", 0).unwrap().number, 2000);
        assert_eq!(registry.producer("new", 0).unwrap(), key(2001, "new", 0));
        assert_eq!(registry.producer("new", 0).unwrap(), key(2001, "new", 0));
        assert_eq!(registry.producer("newer", 0).unwrap().number, 2002);
        assert_eq!(registry.producer("one more", 0), Err(NameError::Malformed("one more".into())));
        assert_eq!(registry.producer("newest", 0), Err(NameError::TooMany(3)));
        assert_eq!(registry.producer("old", 1), Err(NameError::TooMany(3)));
        assert_eq!(registry.producer("old", 0).unwrap().number, 2000);
        assert!(matches!(registry.producer("ingestd.drain.0", 0), Err(NameError::Reserved(_))));
        assert!(matches!(registry.producer(&"x".repeat(256), 0), Err(NameError::Malformed(_))));
        assert_eq!(registry.drain_of("new"), Some(1));
        assert_eq!(registry.drain_of("unknown"), None);
    }

    #[test]
    fn all_epochs_of_a_producer_belong_to_one_drain() {
        for drains in 1..8 {
            let known = [key(1030, "p", 0), key(1041, "p", 3), key(1035, "q", 0)];
            let registry = StreamRegistry::new(known.iter(), 1000, drains);
            let drain = 1041 % drains as u64;
            for epoch in 4..20 {
                let stream = registry.producer("p", epoch).unwrap();
                assert_eq!(stream.number % drains as u64, drain);
                assert!(stream.number > 1041);
                registry.producer(&format!("other-{epoch}"), 0).unwrap();
            }
        }
    }

    #[test]
    fn the_first_producer_comes_after_the_drains_and_the_daemon() {
        let registry = StreamRegistry::new([].into_iter(), 4, 1);
        assert_eq!(registry.producer("a", 0).unwrap().number, FIRST_PRODUCER);
        assert_eq!(DAEMON_STREAM + 1, FIRST_PRODUCER);
    }

    #[test]
    fn a_resend_waits_for_what_it_needs_and_no_more() {
        let mut stream = StreamState::default();
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
