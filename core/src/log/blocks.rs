//! Positions given out, and the blocks of them that are not committed yet: what the horizon is made of.
//!
//! A drain takes a block of positions and registers it in one step; a writer completes it after the commit that holds
//! it. The horizon is the greatest position such that it and every lower one are committed (LOG-2, LOG-3).

use std::collections::BTreeMap;

/// The counter of positions and the blocks in flight.
#[derive(Debug)]
pub struct Blocks {
    next: u64,
    /// First position of a block ► number of its positions.
    in_flight: BTreeMap<u64, u64>,
}

impl Blocks {
    /// Begins above `horizon`, with nothing in flight.
    pub fn new(horizon: u64) -> Blocks {
        Blocks { next: horizon + 1, in_flight: BTreeMap::new() }
    }

    /// Takes `count` successive positions, at least one, and returns the first.
    pub fn take(&mut self, count: u64) -> u64 {
        debug_assert!(count >= 1, "a block holds a position");
        let first = self.next;
        self.next += count;
        self.in_flight.insert(first, count);
        first
    }

    /// Notes that the block that begins at `first` is committed.
    ///
    /// # Panics
    /// If no such block is in flight: the caller would acknowledge what it does not hold.
    pub fn complete(&mut self, first: u64) {
        assert!(self.in_flight.remove(&first).is_some(), "no block at {first} is in flight (LOG-2)");
    }

    /// The greatest position such that it and every lower one are committed.
    pub fn horizon(&self) -> u64 {
        self.in_flight.first_key_value().map_or(self.next, |(first, _)| *first) - 1
    }

    /// How many positions were taken and are not committed.
    pub fn uncommitted(&self) -> u64 {
        self.in_flight.values().sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert_eq, proptest};
    use std::collections::BTreeSet;

    #[test]
    fn horizon_waits_for_the_oldest_block() {
        let mut blocks = Blocks::new(10);
        assert_eq!(blocks.horizon(), 10);
        let (a, b, c) = (blocks.take(5), blocks.take(1), blocks.take(4));
        assert_eq!((a, b, c), (11, 16, 17));
        blocks.complete(b);
        blocks.complete(c);
        assert_eq!(blocks.horizon(), 10);
        blocks.complete(a);
        assert_eq!(blocks.horizon(), 20);
    }

    proptest! {
        /// Against a model that keeps every single position.
        #[test]
        fn horizon_is_the_end_of_the_committed_prefix(
            start in 0u64..1000,
            steps in proptest::collection::vec((1u64..50, any::<proptest::sample::Index>(), any::<bool>()), 1..60),
        ) {
            let mut blocks = Blocks::new(start);
            let mut open: Vec<(u64, u64)> = Vec::new();
            let mut committed: BTreeSet<u64> = BTreeSet::new();
            for (count, index, take) in steps {
                if take || open.is_empty() {
                    open.push((blocks.take(count), count));
                } else {
                    let (first, count) = open.swap_remove(index.index(open.len()));
                    blocks.complete(first);
                    committed.extend(first..first + count);
                }
                let expected = (start + 1..).find(|position| !committed.contains(position)).unwrap() - 1;
                prop_assert_eq!(blocks.horizon(), expected);
                prop_assert_eq!(blocks.uncommitted(), open.iter().map(|(_, count)| count).sum::<u64>());
            }
        }
    }
}
