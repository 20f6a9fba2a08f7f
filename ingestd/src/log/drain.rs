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
use super::stream::{StreamState, drain_stream_name};

/// Events of a stripe: so many successive events of a drain go to one store shard before the next one's turn. Fixed
/// for the life of the process and never stored; recovery does not need it.
pub const STRIPE_EVENTS: usize = 256;

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
        /// The stream's number.
        stream: u64,
        /// The stream's name.
        name: Arc<str>,
        /// The number of the request's first event, from 1.
        first_sequence: u64,
    },
    /// Nobody in particular: the drain's own stream.
    Anonymous,
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

/// One drain's state.
#[derive(Debug)]
pub struct Drain {
    /// Dense ordinal.
    pub ordinal: u32,
    /// Logical CPU id, stored with each event.
    pub cpu: u32,
    /// The channels of its store shards, in the order of its stripes.
    pub shards: Vec<BlockSender>,
    /// The streams that belong to it.
    pub streams: HashMap<u64, StreamState>,
    /// The log's horizon.
    pub horizon: Arc<Horizon>,
    /// The most events of a block.
    pub block_events: usize,
}

impl Drain {
    /// Serves requests until all senders are gone.
    pub fn run(mut self, mut inbox: mpsc::Receiver<Request>) {
        let mut stripe = Stripe { shard: 0, left: STRIPE_EVENTS };
        while let Some(request) = inbox.blocking_recv() {
            self.serve(request, &mut stripe);
        }
    }

    fn serve(&mut self, request: Request, stripe: &mut Stripe) {
        let Request { source, events, answer, memory } = request;
        let (number, name, given) = match source {
            Source::Producer { stream, name, first_sequence } => (stream, name, Some(first_sequence)),
            Source::Anonymous => (u64::from(self.ordinal), drain_stream_name(self.ordinal).into(), None),
        };
        let stream = self.streams.entry(number).or_insert_with(|| StreamState::new(name));
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
            let block: Vec<Event> = events.by_ref().take(stripe.left.min(self.block_events)).collect();
            let length = block.len();
            match send_block(&self.shards[stripe.shard], &self.horizon, stream, number, self.cpu, block) {
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
    number: u64,
    cpu: u32,
    events: Vec<Event>,
) -> Result<u64, Closed> {
    let room = shard.reserve(channel::size_bytes(&events))?;
    let count = events.len() as u64;
    let first_sequence = stream.next_sequence();
    let first_position = horizon.take(count);
    room.send(Block {
        first_position,
        stream: number,
        stream_name: Arc::clone(&stream.name),
        first_sequence,
        cpu,
        events,
    })?;
    stream.sent(first_sequence, first_position, count, horizon.position());
    Ok(first_position + count - 1)
}
