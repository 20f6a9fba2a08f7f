//! Seeded random numbers for tests, and which seeds a test runs.
//!
//! The same seed gives the same plan on every machine. Threads of the program under test still interleave as they like.

use std::ops::RangeInclusive;
use std::time::{SystemTime, UNIX_EPOCH};

/// A random number generator (SplitMix64).
#[derive(Debug, Clone)]
pub struct Random(u64);

impl Random {
    /// The generator that begins with `seed`.
    pub fn new(seed: u64) -> Random {
        Random(seed)
    }

    /// Any number.
    pub fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number of `range`.
    pub fn within(&mut self, range: RangeInclusive<u64>) -> u64 {
        range.start() + self.number() % (range.end() - range.start() + 1)
    }

    /// True `times` times out of `of`.
    pub fn chance(&mut self, times: u64, of: u64) -> bool {
        self.number() % of < times
    }

    /// One of `choices`.
    pub fn pick<'a, T>(&mut self, choices: &'a [T]) -> &'a T {
        &choices[self.number() as usize % choices.len()]
    }

    /// Puts `cards` into a random order.
    pub fn shuffle<T>(&mut self, cards: &mut [T]) {
        for index in (1..cards.len()).rev() {
            cards.swap(index, self.within(0..=index as u64) as usize);
        }
    }

    /// A generator of its own, for a part of a plan.
    pub fn fork(&mut self) -> Random {
        Random(self.number())
    }
}

/// How many rounds the environment asks for (`LOG_ROUNDS`), else `default`.
///
/// # Panics
/// If `LOG_ROUNDS` is not a number.
pub fn rounds(default: u64) -> u64 {
    environment_number("LOG_ROUNDS").unwrap_or(default)
}

/// The seeds of a test of the log: as [`seeds_of`] with `LOG`.
///
/// # Panics
/// If `LOG_SEED` or `LOG_ROUNDS` is not a number.
pub fn seeds(default: u64) -> Vec<u64> {
    seeds_of("LOG", default)
}

/// The seeds of a test of `part`: the one in `PART_SEED`, to repeat a round; or fresh ones for a long run
/// (`PART_ROUNDS`); or else the numbers from 1 to `default`.
///
/// # Panics
/// If one of these variables is not a number.
pub fn seeds_of(part: &str, default: u64) -> Vec<u64> {
    if let Some(seed) = environment_number(&format!("{part}_SEED")) {
        return vec![seed];
    }
    match environment_number(&format!("{part}_ROUNDS")) {
        None => (1..=default).collect(),
        Some(rounds) => {
            let mut random = Random::new(fresh_seed());
            (0..rounds).map(|_| random.number()).collect()
        }
    }
}

/// A seed that no run had before, as far as clocks tell.
pub fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

/// A number from the environment; none if it is not set.
///
/// # Panics
/// If it is not a number.
pub fn environment_number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not \"{text}\"")))
}
