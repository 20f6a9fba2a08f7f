//! Write sharding: one hot key written as n keys, and read as all of them.
//!
//! Format: the key, `#`, the number of the shard in plain decimal: `STATUS#pending#3`. The key itself may hold any
//! number of `#`: the last one parts it from the shard, so composing and splitting are inverse for every key. The shard
//! is that of [`crate::lane::shard`], so the same item is always in the same shard.

use std::num::NonZeroU64;

use bigdecimal::num_bigint::BigInt;
use bigdecimal::{BigDecimal, ToPrimitive};

use crate::lane::{self, LaneError};

/// Parts a key from its shard.
pub const SEPARATOR: char = '#';

/// The most keys that a fan-out read may ask for at once.
pub const MAXIMUM_FAN_OUT: i32 = 65_536;

/// What a caller asked of sharded keys that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ShardKeyError {
    /// No number of shards.
    #[error(transparent)]
    Count(#[from] LaneError),
    /// More shards than a read can sensibly ask for.
    #[error("number of shards must be at most {MAXIMUM_FAN_OUT}, not {0}")]
    FanOut(i32),
    /// A text that [`compose`] never gives.
    #[error("\"{0}\" is not a sharded key")]
    Malformed(String),
    /// A rate, limit or headroom that makes no sense.
    #[error("{what} must be {bound}, not {value}")]
    Range {
        /// Name of the argument.
        what: &'static str,
        /// What it must be.
        bound: &'static str,
        /// What it was.
        value: String,
    },
    /// So many shards that their number is no integer of SQL.
    #[error("{0} shards would be needed, more than there can be")]
    TooMany(String),
}

impl ShardKeyError {
    /// What the caller can do about it: a full sentence.
    pub fn hint(&self) -> &'static str {
        match self {
            ShardKeyError::Count(error) => error.hint(),
            ShardKeyError::FanOut(_) => "A read asks for every shard; suggest_shards says how many a rate needs.",
            ShardKeyError::Malformed(_) => {
                "A sharded key ends in # and the number of the shard, as shard_key makes it."
            }
            ShardKeyError::Range { .. } => "Pass for example suggest_shards(4000), or 4000, 1000 and 2.5.",
            ShardKeyError::TooMany(_) => "Check the units: the rate and the limit are writes per second.",
        }
    }
}

/// The sharded key of `key` in `shard`.
pub fn compose(key: &str, shard: i32) -> String {
    format!("{key}{SEPARATOR}{shard}")
}

/// The sharded key of `key` for an item whose id has the canonical form `id`.
///
/// # Errors
/// [`ShardKeyError::Count`] if `shards` is below 1.
pub fn shard_key(key: &str, id: &[u8], shards: i32) -> Result<String, ShardKeyError> {
    Ok(compose(key, lane::shard(id, shards)?))
}

/// The shard that a random number `at` in 0..1 chooses.
///
/// # Errors
/// [`ShardKeyError::Count`] if `shards` is below 1.
pub fn random_shard_key(key: &str, at: f64, shards: i32) -> Result<String, ShardKeyError> {
    if shards < 1 {
        return Err(LaneError::Count { what: "shards", count: shards }.into());
    }
    // Rounding could reach the bound itself.
    Ok(compose(key, ((at * f64::from(shards)) as i32).clamp(0, shards - 1)))
}

/// All sharded keys of `key`, in the order of their shards: what a fan-out read asks for.
///
/// # Errors
/// [`ShardKeyError::Count`] and [`ShardKeyError::FanOut`] for a number of shards out of range.
pub fn shard_keys(key: &str, shards: i32) -> Result<Vec<String>, ShardKeyError> {
    match shards {
        ..1 => Err(LaneError::Count { what: "shards", count: shards }.into()),
        1..=MAXIMUM_FAN_OUT => Ok((0..shards).map(|shard| compose(key, shard)).collect()),
        _ => Err(ShardKeyError::FanOut(shards)),
    }
}

/// Takes a sharded key apart into key and shard.
///
/// # Errors
/// [`ShardKeyError::Malformed`] for a text that [`compose`] never gives.
pub fn split(sharded_key: &str) -> Result<(&str, i32), ShardKeyError> {
    let malformed = || ShardKeyError::Malformed(sharded_key.to_owned());
    let (key, digits) = sharded_key.rsplit_once(SEPARATOR).ok_or_else(malformed)?;
    let shard = digits.parse::<i32>().map_err(|_| malformed())?;
    // One spelling only, so that two texts are never the same place: no sign, no leading zero.
    if shard.to_string() != digits || shard < 0 { Err(malformed()) } else { Ok((key, shard)) }
}

/// How many shards a rate of writes needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Suggestion {
    /// The rate divided by what one shard takes, times the headroom, rounded up.
    pub shards: i32,
    /// The next power of two: a later doubling then splits each shard in two.
    pub power_of_two: i32,
    /// How many row shards a counter in Postgres needs, from and to; none if one row is enough.
    pub counter_shards: Option<(i32, i32)>,
    /// How many keys one read asks for.
    pub reads_per_query: i32,
}

/// Suggests a number of shards. All of it is exact arithmetic: 10 times 1.1 is 11, not a little more.
///
/// # Errors
/// [`ShardKeyError::Range`] and [`ShardKeyError::TooMany`].
pub fn suggest_shards(
    writes_per_second: i64,
    per_shard_limit: i64,
    headroom: &BigDecimal,
) -> Result<Suggestion, ShardKeyError> {
    if writes_per_second < 0 {
        return Err(out_of_range("writes_per_second", "at least 0", writes_per_second));
    }
    let limit = u64::try_from(per_shard_limit).ok().and_then(NonZeroU64::new);
    let limit = limit.ok_or_else(|| out_of_range("per_shard_limit", "at least 1", per_shard_limit))?;
    if headroom < &BigDecimal::from(1) {
        return Err(out_of_range("headroom", "at least 1", headroom));
    }

    let needed = (headroom * BigDecimal::from(writes_per_second)).normalized();
    // needed = digits / 10^scale, so that the division is one of integers.
    let (digits, scale) = needed.into_bigint_and_exponent();
    let ten = BigInt::from(10);
    let (above, below) = match u32::try_from(scale) {
        Ok(scale) => (digits, ten.pow(scale)),
        Err(_) => (digits * ten.pow(scale.unsigned_abs().try_into().unwrap_or(u32::MAX)), BigInt::from(1)),
    };
    let below = below * limit.get();
    let shards: BigInt = (above + &below - 1) / below;
    let shards = shards.max(BigInt::from(1));
    let too_many = || ShardKeyError::TooMany(shards.to_string());
    let count = shards.to_i32().filter(|count| *count <= 1 << 30).ok_or_else(too_many)?;
    Ok(Suggestion {
        shards: count,
        power_of_two: count.unsigned_abs().next_power_of_two() as i32,
        counter_shards: match writes_per_second {
            ..1_000 => None,
            1_000..=10_000 => Some((8, 16)),
            10_001..=100_000 => Some((32, 64)),
            _ => Some((64, 256)),
        },
        reads_per_query: count,
    })
}

fn out_of_range(what: &'static str, bound: &'static str, value: impl ToString) -> ShardKeyError {
    ShardKeyError::Range { what, bound, value: value.to_string() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert, prop_assert_eq, proptest};

    fn suggest(rate: i64, limit: i64, headroom: &str) -> Result<Suggestion, ShardKeyError> {
        suggest_shards(rate, limit, &headroom.parse().unwrap())
    }

    #[test]
    fn suggestions_of_the_issue() {
        let suggested = |rate| suggest(rate, 1000, "2.5").unwrap();
        let expected = |shards, power_of_two, counter_shards| Suggestion {
            shards,
            power_of_two,
            counter_shards,
            reads_per_query: shards,
        };
        assert_eq!(suggested(0), expected(1, 1, None));
        assert_eq!(suggested(999), expected(3, 4, None));
        assert_eq!(suggested(1_000), expected(3, 4, Some((8, 16))));
        assert_eq!(suggested(4_000), expected(10, 16, Some((8, 16))));
        assert_eq!(suggested(10_000), expected(25, 32, Some((8, 16))));
        assert_eq!(suggested(10_001), expected(26, 32, Some((32, 64))));
        assert_eq!(suggested(50_000), expected(125, 128, Some((32, 64))));
        assert_eq!(suggested(100_000), expected(250, 256, Some((32, 64))));
        assert_eq!(suggested(200_000), expected(500, 512, Some((64, 256))));
    }

    #[test]
    fn suggestions_are_exact() {
        // In floating point 10 * 1.1 is 11.000000000000002, and its ceiling 12.
        assert_eq!(suggest(10, 1, "1.1").unwrap().shards, 11);
        assert_eq!(suggest(1_000_000, 1_000_000, "1e0").unwrap().shards, 1);
        assert_eq!(suggest(3, 1, "1e2").unwrap().shards, 300);
        assert_eq!(suggest(3, 7, "1.00000000000000000000000000001").unwrap().shards, 1);
        assert_eq!(suggest(7, 7, "1.00000000000000000000000000001").unwrap().shards, 2);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let range = |result: Result<Suggestion, _>| matches!(result, Err(ShardKeyError::Range { .. }));
        assert!(range(suggest(-1, 1000, "2.5")));
        assert!(range(suggest(1, 0, "2.5")));
        assert!(range(suggest(1, 1000, "0.99")));
        assert!(matches!(suggest(i64::MAX, 1, "2.5"), Err(ShardKeyError::TooMany(_))));
        assert_eq!(shard_keys("k", 0), Err(LaneError::Count { what: "shards", count: 0 }.into()));
        assert_eq!(shard_keys("k", MAXIMUM_FAN_OUT + 1), Err(ShardKeyError::FanOut(MAXIMUM_FAN_OUT + 1)));
        for text in ["", "a", "#", "a#", "a#-1", "a#+1", "a#01", "a# 1", "a#2147483648", "a#x", "#1 "] {
            assert_eq!(split(text), Err(ShardKeyError::Malformed(text.to_owned())), "{text}");
        }
    }

    proptest! {
        #[test]
        fn splitting_undoes_composing(key in "[#a-c0-9ä]{0,12}", shard in 0..i32::MAX) {
            let sharded_key = compose(&key, shard);
            prop_assert_eq!(split(&sharded_key), Ok((key.as_str(), shard)));
        }

        #[test]
        fn every_item_is_in_one_of_the_keys_read(key in ".{0,8}", id in ".{0,8}", at in 0.0..1.0f64, shards in 1..300i32) {
            let keys = shard_keys(&key, shards).unwrap();
            prop_assert!(keys.contains(&shard_key(&key, id.as_bytes(), shards).unwrap()));
            prop_assert!(keys.contains(&random_shard_key(&key, at, shards).unwrap()));
        }
    }
}
