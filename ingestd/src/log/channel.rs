//! The bounded channel in front of a store shard: many drains, one writer.
//!
//! It is bounded by slots and by bytes (LOG-6). A drain reserves room for a block *before* it takes positions for it,
//! so a full shard never holds up the horizon. Wake-ups need no time-outs in either direction: a waiting drain sleeps in
//! the [`Budget`], a waiting writer in the channel itself.

use std::sync::Arc;

use crossbeam_channel::{Receiver, Sender};
use lanes_core::event::Event;

use super::budget::Budget;
pub use super::budget::Closed;
use super::stream::StreamKey;
use super::stream_hash::ContentHash;

/// A run of successive events of one stream with successive positions.
#[derive(Debug)]
pub struct Block {
    /// Position of the first event.
    pub first_position: u64,
    /// The stream.
    pub stream: StreamKey,
    /// Sequence of the first event.
    pub first_sequence: u64,
    /// Logical CPU id of the drain.
    pub cpu: u32,
    /// The events, at least one.
    pub events: Vec<Event>,
    /// What the stream's events up to the last of these hash to, if its producer has said so.
    pub hash: Option<ContentHash>,
}

impl Block {
    /// What the block counts in a channel's budget, in bytes.
    pub fn size_bytes(&self) -> usize {
        size_bytes(&self.events)
    }
}

/// What `events` count in a channel's budget, in bytes.
pub fn size_bytes(events: &[Event]) -> usize {
    events.iter().map(Event::size_bytes).sum()
}

/// The drains' end.
#[derive(Debug, Clone)]
pub struct BlockSender {
    budget: Arc<Budget>,
    blocks: Sender<Block>,
}

/// Room for one block; given back if it is dropped without sending.
#[derive(Debug)]
pub struct Reservation<'a> {
    sender: &'a BlockSender,
    bytes: usize,
    sent: bool,
}

impl BlockSender {
    /// Waits for room for a block of `bytes`.
    ///
    /// # Errors
    /// [`Closed`] if the writer is gone.
    pub fn reserve(&self, bytes: usize) -> Result<Reservation<'_>, Closed> {
        self.budget.reserve(bytes)?;
        Ok(Reservation { sender: self, bytes, sent: false })
    }
}

impl Reservation<'_> {
    /// Sends the block that the room was reserved for; never waits.
    ///
    /// # Errors
    /// [`Closed`] if the writer is gone.
    pub fn send(mut self, block: Block) -> Result<(), Closed> {
        debug_assert_eq!(block.size_bytes(), self.bytes, "the reservation was for this block");
        self.sent = true;
        self.sender.blocks.send(block).map_err(|_| Closed)
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if !self.sent {
            self.sender.budget.free(self.bytes);
        }
    }
}

/// What came for a writer.
#[derive(Debug)]
pub enum Input<C> {
    /// Events.
    Block(Block),
    /// Something to do between two batches.
    Command(C),
    /// All drains are gone and the channel is empty.
    Closed,
}

/// The writer's end.
#[derive(Debug)]
pub struct BlockReceiver {
    budget: Arc<Budget>,
    blocks: Receiver<Block>,
}

impl BlockReceiver {
    /// Waits for a block or a command, whichever comes first.
    pub fn receive_or<C>(&self, commands: &Receiver<C>) -> Input<C> {
        let block = crossbeam_channel::select! {
            recv(self.blocks) -> block => block.ok(),
            recv(commands) -> command => match command {
                Ok(command) => return Input::Command(command),
                // Nobody commands any more.
                Err(_) => self.blocks.recv().ok(),
            },
        };
        block.map_or(Input::Closed, |block| Input::Block(self.taken(block)))
    }

    /// A block, if one is there.
    pub fn try_receive(&self) -> Option<Block> {
        self.blocks.try_recv().ok().map(|block| self.taken(block))
    }

    fn taken(&self, block: Block) -> Block {
        self.budget.free(block.size_bytes());
        block
    }
}

impl Drop for BlockReceiver {
    fn drop(&mut self) {
        self.budget.close();
    }
}

/// A channel for at most `slots` blocks and `bytes` of events.
pub fn bounded(slots: usize, bytes: usize) -> (BlockSender, BlockReceiver) {
    let budget = Arc::new(Budget::new(slots, bytes));
    // The budget already bounds the slots, so sending never waits.
    let (sender, receiver) = crossbeam_channel::bounded(slots);
    (BlockSender { budget: Arc::clone(&budget), blocks: sender }, BlockReceiver { budget, blocks: receiver })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc;
    use std::thread;

    fn block(payload_bytes: usize) -> Block {
        let event = Event { event_type: "T".into(), key: "k".into(), ts: 0, payload: "x".repeat(payload_bytes) };
        Block {
            first_position: 1,
            stream: StreamKey { number: 1, name: "s".into(), epoch: 0 },
            first_sequence: 1,
            cpu: 0,
            events: vec![event],
            hash: None,
        }
    }

    fn send(sender: &BlockSender, payload_bytes: usize) -> Result<(), Closed> {
        let block = block(payload_bytes);
        sender.reserve(block.size_bytes())?.send(block)
    }

    fn receive(receiver: &BlockReceiver) -> Block {
        match receiver.receive_or(&crossbeam_channel::never::<()>()) {
            Input::Block(block) => block,
            other => panic!("a block was expected: {other:?}"),
        }
    }

    /// Sends on another thread; the receiver tells when the send is through.
    fn send_elsewhere(sender: &BlockSender, payload_bytes: usize) -> mpsc::Receiver<Result<(), Closed>> {
        let (done, through) = mpsc::channel();
        let sender = sender.clone();
        thread::spawn(move || done.send(send(&sender, payload_bytes)));
        through
    }

    #[test]
    fn slots_are_a_bound_and_receiving_wakes_a_waiting_drain() {
        let (sender, receiver) = bounded(2, 1 << 20);
        send(&sender, 1).unwrap();
        send(&sender, 1).unwrap();
        let through = send_elsewhere(&sender, 1);
        assert_eq!(through.try_recv(), Err(mpsc::TryRecvError::Empty));
        receive(&receiver);
        assert_eq!(through.recv().unwrap(), Ok(()));
    }

    #[test]
    fn bytes_are_a_bound() {
        let room = block(600).size_bytes() + 100;
        let (sender, receiver) = bounded(100, room);
        send(&sender, 600).unwrap();
        let through = send_elsewhere(&sender, 600);
        receive(&receiver);
        assert_eq!(through.recv().unwrap(), Ok(()));
        assert_eq!(receive(&receiver).events[0].payload.len(), 600);
    }

    #[test]
    fn an_oversize_block_is_admitted_alone() {
        let (sender, receiver) = bounded(4, 10);
        send(&sender, 5000).unwrap();
        let through = send_elsewhere(&sender, 1);
        assert_eq!(receive(&receiver).events[0].payload.len(), 5000);
        assert_eq!(through.recv().unwrap(), Ok(()));
    }

    #[test]
    fn a_reservation_that_is_dropped_is_given_back() {
        let (sender, _receiver) = bounded(1, 1000);
        drop(sender.reserve(10).unwrap());
        send(&sender, 1).unwrap();
    }

    #[test]
    fn commands_come_between_blocks_and_their_end_is_not_the_end() {
        let (sender, receiver) = bounded(4, 1000);
        let (commands, queue) = crossbeam_channel::unbounded();
        commands.send(7).unwrap();
        assert!(matches!(receiver.receive_or(&queue), Input::Command(7)));
        drop(commands);
        send(&sender, 1).unwrap();
        assert!(matches!(receiver.receive_or(&queue), Input::Block(_)));
        drop(sender);
        assert!(matches!(receiver.receive_or(&queue), Input::Closed));
    }

    #[test]
    fn closing_wakes_a_waiting_drain() {
        let (sender, receiver) = bounded(1, 1000);
        send(&sender, 1).unwrap();
        let through = send_elsewhere(&sender, 1);
        drop(receiver);
        assert_eq!(through.recv().unwrap(), Err(Closed));
    }
}
