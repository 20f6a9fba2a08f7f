//! A set of sequence numbers as disjoint, non-adjacent closed ranges: what was stored of a stream.
//!
//! It answers for any re-batching of a resend, has no time window, and takes one entry for a producer that numbers
//! without holes.

use std::collections::BTreeMap;

/// A set of numbers. The default is the empty set.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct IntervalSet {
    /// First number of a range ► its last number.
    ranges: BTreeMap<u64, u64>,
}

impl IntervalSet {
    /// Adds `first..=last`, merging with what it touches. `first` is at most `last`.
    pub fn insert(&mut self, first: u64, last: u64) {
        debug_assert!(first <= last, "a range is not empty");
        let (mut first, mut last) = (first, last);
        // Ranges that begin at or before the end of the new one (plus one: adjacent ranges merge) and reach it.
        while let Some((&start, &end)) = self.ranges.range(..=last.saturating_add(1)).next_back() {
            if end.saturating_add(1) < first {
                break;
            }
            self.ranges.remove(&start);
            first = first.min(start);
            last = last.max(end);
        }
        self.ranges.insert(first, last);
    }

    /// Whether any number of `first..=last` is in the set.
    pub fn intersects(&self, first: u64, last: u64) -> bool {
        self.ranges.range(..=last).next_back().is_some_and(|(_, end)| *end >= first)
    }

    /// The least number at or above `from` that is not in the set.
    pub fn first_missing(&self, from: u64) -> u64 {
        match self.ranges.range(..=from).next_back() {
            Some((_, end)) if *end >= from => end + 1,
            _ => from,
        }
    }

    /// The greatest number in the set; 0 if it is empty.
    pub fn end(&self) -> u64 {
        self.ranges.last_key_value().map_or(0, |(_, last)| *last)
    }

    /// The ranges in ascending order.
    pub fn ranges(&self) -> impl Iterator<Item = (u64, u64)> {
        self.ranges.iter().map(|(first, last)| (*first, *last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};
    use std::collections::BTreeSet;

    #[test]
    fn adjacent_ranges_are_one() {
        let mut set = IntervalSet::default();
        set.insert(1, 3);
        set.insert(7, 9);
        set.insert(4, 6);
        assert_eq!(set.ranges().collect::<Vec<_>>(), [(1, 9)]);
        assert_eq!(set.first_missing(1), 10);
    }

    proptest! {
        #[test]
        fn behaves_like_a_set_of_numbers(inserts in proptest::collection::vec((1u64..80, 0u64..12), 0..30)) {
            let mut set = IntervalSet::default();
            let mut model = BTreeSet::new();
            for (first, length) in inserts {
                set.insert(first, first + length);
                model.extend(first..=first + length);
            }
            for number in 0..100u64 {
                prop_assert_eq!(set.intersects(number, number), model.contains(&number));
                prop_assert_eq!(set.first_missing(number), (number..).find(|n| !model.contains(n)).unwrap());
                prop_assert_eq!(set.intersects(number, number + 3), (number..=number + 3).any(|n| model.contains(&n)));
            }
            prop_assert_eq!(set.end(), model.last().copied().unwrap_or(0));
            let ranges: Vec<_> = set.ranges().collect();
            prop_assert!(ranges.windows(2).all(|pair| pair[0].1 + 1 < pair[1].0), "{:?}", ranges);
            prop_assert_eq!(ranges.iter().map(|(a, b)| b - a + 1).sum::<u64>(), model.len() as u64);
        }
    }
}
