//! The horizon of a running log, and who waits for it.
//!
//! Positions are given out and blocks completed under one mutex, taken once a block. (An atomic counter with a table
//! of lower bounds would avoid the mutex; at hundreds of events a block it cannot be measured.)

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use lanes_core::log::blocks::Blocks;
use tokio::sync::{oneshot, watch};

use super::drain::{Ack, Answer};

#[derive(Debug)]
struct State {
    blocks: Blocks,
    /// Position ► answers that may go out when the horizon has reached it.
    waiting: BTreeMap<u64, Vec<(oneshot::Sender<Answer>, Ack)>>,
}

/// The horizon (LOG-2, LOG-3).
#[derive(Debug)]
pub struct Horizon {
    state: Mutex<State>,
    published: watch::Sender<u64>,
}

impl Horizon {
    /// A log whose positions up to `position` are committed.
    pub fn new(position: u64) -> Horizon {
        let state = State { blocks: Blocks::new(position), waiting: BTreeMap::new() };
        Horizon { state: Mutex::new(state), published: watch::Sender::new(position) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic of a log thread ends the process.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes `count` successive positions and returns the first.
    pub fn take(&self, count: u64) -> u64 {
        self.state().blocks.take(count)
    }

    /// Notes that the blocks that begin at `firsts` are committed, and sends the answers that waited for it.
    pub fn complete(&self, firsts: &[u64]) {
        let ready = {
            let mut state = self.state();
            for first in firsts {
                state.blocks.complete(*first);
            }
            let horizon = state.blocks.horizon();
            // Readers see the new horizon before any producer is acknowledged.
            self.published.send_if_modified(|published| std::mem::replace(published, horizon) != horizon);
            let later = state.waiting.split_off(&(horizon + 1));
            std::mem::replace(&mut state.waiting, later)
        };
        for (answer, ack) in ready.into_values().flatten() {
            // A producer that has gone away asks again.
            let _ = answer.send(Ok(ack));
        }
    }

    /// Sends `ack` when the horizon has reached `position`, at once if it has already.
    pub fn acknowledge(&self, position: u64, answer: oneshot::Sender<Answer>, ack: Ack) {
        let mut state = self.state();
        if position <= state.blocks.horizon() {
            drop(state);
            let _ = answer.send(Ok(ack));
        } else {
            state.waiting.entry(position).or_default().push((answer, ack));
        }
    }

    /// The horizon now.
    pub fn position(&self) -> u64 {
        *self.published.borrow()
    }

    /// Tells of every move of the horizon.
    pub fn subscribe(&self) -> watch::Receiver<u64> {
        self.published.subscribe()
    }

    /// How many positions were taken and are not committed.
    pub fn uncommitted(&self) -> u64 {
        self.state().blocks.uncommitted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ack() -> Ack {
        Ack { stored: 1, duplicates: 0, next_sequence: 2 }
    }

    #[test]
    fn an_answer_waits_for_the_horizon_and_not_for_its_own_commit() {
        let horizon = Horizon::new(0);
        let (first, second) = (horizon.take(3), horizon.take(2));
        let (answer, mut reply) = oneshot::channel();
        horizon.acknowledge(5, answer, ack());
        horizon.complete(&[second]);
        assert!(reply.try_recv().is_err());
        assert_eq!((horizon.position(), horizon.uncommitted()), (0, 3));
        horizon.complete(&[first]);
        assert_eq!(reply.try_recv(), Ok(Ok(ack())));
        assert_eq!((horizon.position(), horizon.uncommitted()), (5, 0));

        let (answer, mut reply) = oneshot::channel();
        horizon.acknowledge(5, answer, ack());
        assert_eq!(reply.try_recv(), Ok(Ok(ack())));
    }
}
