//! Drain threads: one per CPU in use, pinned. A drain takes requests, takes out what is stored already, and hands the
//! rest to the writers in blocks with successive positions.
//!
//! Order of operations per block: room in the shard's channel is reserved (slot and bytes), then positions are taken,
//! then the block is sent. A drain never touches SQLite. With several shards it sends a stripe of successive events to
//! one, then moves to the next.

use std::collections::HashMap;
use std::sync::Arc;

use lanes_core::event::Event;
use tokio::sync::{OwnedSemaphorePermit, mpsc, oneshot};

use super::channel::{self, Block, BlockSender, Closed};
use super::horizon::Horizon;
use super::stream::{DAEMON_STREAM, StreamKey, StreamRegistry, StreamState, daemon_stream_name, drain_stream_name};
use super::stream_hash::ContentHash;
use super::writer::now_ms;

/// Events of a stripe: so many successive events of a drain go to one store shard before the next one's turn. Fixed
/// for the life of the process and never stored; recovery does not need it.
pub const STRIPE_EVENTS: usize = 256;

/// The most events of a block: no more than the smallest transaction holds.
const BLOCK_EVENTS: usize = 100;

/// Requests that wait for a drain.
pub const INBOX_REQUESTS: usize = 256;

/// What a producer is told when its events are durable (LOG-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ack {
    /// Events that this request added to the log.
    pub stored: u64,
    /// Events that were stored before.
    pub duplicates: u64,
    /// The sequence that the stream expects next.
    pub next_sequence: u64,
}

/// Why a drain did not take a request. Nothing of it is stored then.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The producer skipped numbers.
    #[error("sequence {given} was sent, {expected} is expected next")]
    Gap {
        /// The number that would be taken.
        expected: u64,
        /// The number of the request's first event.
        given: u64,
    },
    /// A later epoch of the producer has begun, which closed this one.
    #[error("epoch {given} is closed, the producer is in epoch {current}")]
    Epoch {
        /// The epoch that is open.
        current: u64,
        /// The request's epoch.
        given: u64,
    },
    /// The producer was idle for so long that the log forgets it at this moment. A resend finds it unknown.
    #[error("the producer was idle for long and is being forgotten; send the request again")]
    Forgotten,
    /// The log is closing. A prefix of the request may be stored; a resend settles it.
    #[error("the log is closing")]
    Closing,
}

/// What a request is answered with.
pub type Answer = Result<Ack, Refusal>;

/// Where the events of a request come from.
#[derive(Debug)]
pub enum Source {
    /// A producer that numbers its events.
    Producer {
        /// The stream.
        stream: StreamKey,
        /// The number of the request's first event, from 1.
        first_sequence: u64,
        /// What the stream's events up to the request's last one hash to, if the producer says so.
        hash: Option<ContentHash>,
    },
    /// Nobody in particular: the drain's own stream.
    Anonymous,
    /// The daemon itself.
    Daemon,
}

/// Events to be stored together.
#[derive(Debug)]
pub struct Request {
    /// Whose they are.
    pub source: Source,
    /// The events, at least one.
    pub events: Vec<Event>,
    /// Gets the answer after the horizon has passed the events.
    pub answer: oneshot::Sender<Answer>,
    /// The request's share of the memory that requests may take, given back when its events are with a writer.
    pub memory: OwnedSemaphorePermit,
}

/// Where a producer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProducerState {
    /// The epoch that is open.
    pub epoch: u64,
    /// The sequence that it expects next; everything before it is durable.
    pub next_sequence: u64,
}

/// What a drain is asked for.
#[derive(Debug)]
pub enum Command {
    /// Store events.
    Store(Request),
    /// Tell where a producer is, when everything it sent so far is durable.
    Describe {
        /// The producer's name.
        name: Arc<str>,
        /// Gets the answer, whose `stored` and `duplicates` are 0.
        answer: oneshot::Sender<Answer>,
        /// Gets the epoch, before the answer.
        epoch: oneshot::Sender<u64>,
    },
    /// Let go of a stream of which retention has deleted everything.
    Forget {
        /// The stream.
        stream: StreamKey,
        /// The greatest of its numbers that retention has seen.
        end: u64,
        /// Its producer counts as idle if it was not heard of since, in milliseconds since 1970 UTC.
        idle_since: i64,
        /// Tells whether it is let go: then it takes nothing any more.
        answer: oneshot::Sender<bool>,
    },
}

/// One drain's state.
#[derive(Debug)]
pub struct Drain {
    /// Dense ordinal.
    pub ordinal: u32,
    /// Logical CPU id, stored with each event.
    pub cpu: u32,
    /// The channels of its store shards, in the order of its stripes.
    pub shards: Vec<BlockSender>,
    /// The streams that belong to it. Of a producer's streams only the one of its open epoch is here.
    pub streams: HashMap<u64, StreamState>,
    /// Producers ► the stream of their open epoch.
    pub producers: HashMap<Arc<str>, StreamKey>,
    /// The streams of the log by name.
    pub registry: Arc<StreamRegistry>,
    /// The log's horizon.
    pub horizon: Arc<Horizon>,
}

impl Drain {
    /// Serves commands until all senders are gone.
    pub fn run(mut self, mut inbox: mpsc::Receiver<Command>) {
        let mut stripe = Stripe { shard: 0, left: STRIPE_EVENTS };
        while let Some(command) = inbox.blocking_recv() {
            match command {
                Command::Store(request) => self.store(request, &mut stripe),
                Command::Describe { name, answer, epoch } => self.describe(&name, answer, epoch),
                Command::Forget { stream, end, idle_since, answer } => {
                    // Whoever asked is gone only when the log closes.
                    let _ = answer.send(self.let_go(&stream, end, idle_since));
                }
            }
        }
    }

    fn store(&mut self, request: Request, stripe: &mut Stripe) {
        let Request { source, events, answer, memory } = request;
        let mut hash = None;
        let (key, given) = match source {
            Source::Producer { stream, first_sequence, hash: given } => {
                if let Err(refusal) = self.check_epoch(&stream, first_sequence) {
                    let _ = answer.send(Err(refusal));
                    return;
                }
                hash = given;
                (stream, Some(first_sequence))
            }
            Source::Anonymous => {
                let number = u64::from(self.ordinal);
                (StreamKey { number, name: drain_stream_name(self.ordinal).into(), epoch: 0 }, None)
            }
            Source::Daemon => (StreamKey { number: DAEMON_STREAM, name: daemon_stream_name().into(), epoch: 0 }, None),
        };
        let stream = self.streams.entry(key.number).or_default();
        stream.heard_of_at = now_ms();
        let expected = stream.next_sequence();
        let given = given.unwrap_or(expected);
        if given > expected {
            let _ = answer.send(Err(Refusal::Gap { expected, given }));
            return;
        }
        let count = events.len() as u64;
        let duplicates = count.min(expected - given);
        let mut last_position = match duplicates {
            0 => 0,
            _ => stream.position_covering(given + duplicates - 1),
        };
        let mut events = events.into_iter();
        // The duplicates are the request's first events: producers number without holes.
        events.by_ref().take(duplicates as usize).for_each(drop);
        while events.len() > 0 {
            let block: Vec<Event> = events.by_ref().take(stripe.left.min(BLOCK_EVENTS)).collect();
            let length = block.len();
            let hash = hash.filter(|_| events.len() == 0);
            match send_block(&self.shards[stripe.shard], &self.horizon, stream, &key, self.cpu, block, hash) {
                Ok(position) => last_position = position,
                Err(Closed) => {
                    let _ = answer.send(Err(Refusal::Closing));
                    return;
                }
            }
            stripe.advance(length, self.shards.len());
        }
        drop(memory);
        let ack = Ack { stored: count - duplicates, duplicates, next_sequence: stream.next_sequence() };
        self.horizon.acknowledge(last_position, answer, ack);
    }

    /// Refuses requests of a closed epoch; the first event of a higher one closes those below it.
    fn check_epoch(&mut self, stream: &StreamKey, first_sequence: u64) -> Result<(), Refusal> {
        let current = match self.producers.get(&stream.name) {
            Some(open) if open.number == stream.number => return Ok(()),
            Some(open) if open.epoch > stream.epoch => {
                return Err(Refusal::Epoch { current: open.epoch, given: stream.epoch });
            }
            current => current.map(|open| open.number),
        };
        if !self.registry.knows(stream) {
            return Err(Refusal::Forgotten);
        }
        if first_sequence != 1 {
            return Err(Refusal::Gap { expected: 1, given: first_sequence });
        }
        if let Some(closed) = current {
            // What is in flight of it is committed all the same; nobody will ask for it again.
            self.streams.remove(&closed);
        }
        self.producers.insert(Arc::clone(&stream.name), stream.clone());
        Ok(())
    }

    /// Lets go of a stream, unless it has more than retention has seen, is in use, or has something in flight.
    fn let_go(&mut self, stream: &StreamKey, end: u64, idle_since: i64) -> bool {
        let durable = |state: &StreamState, sequence| state.position_covering(sequence) <= self.horizon.position();
        if let Some(open) = self.producers.get(&stream.name)
            && let Some(state) = self.streams.get(&open.number)
        {
            let may_go = if open.number == stream.number {
                state.covered.end() == end && state.heard_of_at <= idle_since && durable(state, end)
            } else {
                // Everything of a closed epoch is before the first event of the open one.
                durable(state, 1)
            };
            if !may_go {
                return false;
            }
            if open.number == stream.number {
                self.streams.remove(&stream.number);
                self.producers.remove(&stream.name);
            }
        }
        self.registry.begin_forgetting(stream);
        true
    }

    fn describe(&self, name: &str, answer: oneshot::Sender<Answer>, epoch: oneshot::Sender<u64>) {
        let open = self.producers.get(name);
        let _ = epoch.send(open.map_or(0, |open| open.epoch));
        let state = open.and_then(|open| self.streams.get(&open.number));
        let next_sequence = state.map_or(1, StreamState::next_sequence);
        let position = state.map_or(0, |state| state.position_covering(next_sequence.saturating_sub(1)));
        self.horizon.acknowledge(position, answer, Ack { stored: 0, duplicates: 0, next_sequence });
    }
}

/// Where in its stripes a drain is.
struct Stripe {
    shard: usize,
    left: usize,
}

impl Stripe {
    fn advance(&mut self, events: usize, shards: usize) {
        self.left -= events;
        if self.left == 0 {
            *self = Stripe { shard: (self.shard + 1) % shards, left: STRIPE_EVENTS };
        }
    }
}

/// Gives a block to a shard's writer and returns its last position.
fn send_block(
    shard: &BlockSender,
    horizon: &Horizon,
    stream: &mut StreamState,
    key: &StreamKey,
    cpu: u32,
    events: Vec<Event>,
    hash: Option<ContentHash>,
) -> Result<u64, Closed> {
    let room = shard.reserve(channel::size_bytes(&events))?;
    let count = events.len() as u64;
    let first_sequence = stream.next_sequence();
    let first_position = horizon.take(count);
    room.send(Block { first_position, stream: key.clone(), first_sequence, cpu, events, hash })?;
    stream.sent(first_sequence, first_position, count, horizon.position());
    Ok(first_position + count - 1)
}
