//! Lanes, slots and row shards: which of `n` a key belongs to, and what a lane's checkpoint is called.
//!
//! - `lane_of(key, n)` is FNV-1a 64 modulo n. A projection's slots use the same value: slot = fnv mod S with S a
//!   multiple of n, and at first lane = slot mod n, so `lane_of` names the projection's lane.
//! - `lane_of(key, n, 'consistent')` is jump consistent hash of fmix64 of the FNV value.
//! - `shard(key, n)` is MurmurHash3 x86 32 with seed 0, modulo n: another function than `lane_of`, because a lane
//!   that used the same one for its row shards would reach only some of them.

use std::str::FromStr;

use crate::hash::{fmix64, fnv1a_64, jump_consistent, murmur3_x86_32};

/// The least number of slots of a projection.
pub const MINIMUM_SLOTS: u32 = 1024;

/// The most lanes a projection may have.
pub const MAXIMUM_LANES: u32 = 1024;

/// How [`lane_of`] spreads keys.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Strategy {
    /// Hash modulo the number of lanes: what projections use.
    Modulo,
    /// Jump consistent hash: when the number of lanes changes, only the unavoidable share of keys moves.
    Consistent,
}

impl FromStr for Strategy {
    type Err = LaneError;

    fn from_str(name: &str) -> Result<Strategy, LaneError> {
        match name {
            "modulo" => Ok(Strategy::Modulo),
            "consistent" => Ok(Strategy::Consistent),
            other => Err(LaneError::Strategy(other.to_owned())),
        }
    }
}

/// What a caller asked for that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum LaneError {
    /// A number of lanes or shards below 1.
    #[error("number of {what} must be at least 1, not {count}")]
    Count {
        /// `lanes` or `shards`.
        what: &'static str,
        /// The number that was given.
        count: i32,
    },
    /// A strategy that is neither `modulo` nor `consistent`.
    #[error("lane strategy \"{0}\" does not exist")]
    Strategy(String),
    /// A negative lane number.
    #[error("lane number must be at least 0, not {0}")]
    Lane(i32),
    /// A projection name that could not be told apart in a checkpoint's name.
    #[error("projection name \"{0}\" is not valid")]
    Projection(String),
}

impl LaneError {
    /// What the caller can do about it: a full sentence.
    pub fn hint(&self) -> &'static str {
        match self {
            LaneError::Count { what: "shards", .. } => "Pass the number of shards, for example shard('s-99', 16).",
            LaneError::Count { .. } => "Pass the number of lanes, for example lane_of('order-42', 8).",
            LaneError::Strategy(_) => "Use 'modulo' (the default) or 'consistent'.",
            LaneError::Lane(_) => "Lanes are numbered from 0.",
            LaneError::Projection(_) => {
                "Use lower-case letters, digits and underscores, not beginning with a digit; \
                 append ~2, ~3 and so on for a later version."
            }
        }
    }
}

fn positive(what: &'static str, count: i32) -> Result<u32, LaneError> {
    u32::try_from(count).ok().filter(|count| *count >= 1).ok_or(LaneError::Count { what, count })
}

/// The lane in `0..lanes` of a key in canonical form.
///
/// # Errors
/// [`LaneError::Count`] if `lanes` is below 1.
pub fn lane_of(key: &[u8], lanes: i32, strategy: Strategy) -> Result<i32, LaneError> {
    let lanes = positive("lanes", lanes)?;
    let hash = fnv1a_64(key);
    let lane = match strategy {
        Strategy::Modulo => (hash % u64::from(lanes)) as u32,
        Strategy::Consistent => jump_consistent(fmix64(hash), lanes),
    };
    Ok(lane as i32)
}

/// The row shard in `0..shards` of a key in canonical form.
///
/// # Errors
/// [`LaneError::Count`] if `shards` is below 1.
pub fn shard(key: &[u8], shards: i32) -> Result<i32, LaneError> {
    let shards = positive("shards", shards)?;
    Ok((murmur3_x86_32(key, 0) % shards) as i32)
}

/// The number of slots of a projection with `lanes` lanes: the smallest `lanes`·2^k that is at least
/// [`MINIMUM_SLOTS`]. `lanes` is between 1 and [`MAXIMUM_LANES`].
pub fn slots_for(lanes: u32) -> u32 {
    debug_assert!((1..=MAXIMUM_LANES).contains(&lanes), "definitions are checked before");
    let mut slots = lanes;
    while slots < MINIMUM_SLOTS {
        slots *= 2;
    }
    slots
}

/// The slot in `0..slots` of a lane key.
pub fn slot_of(lane_key: &[u8], slots: u32) -> u32 {
    (fnv1a_64(lane_key) % u64::from(slots)) as u32
}

/// Whether `name` is a projection's name: `[a-z_][a-z0-9_]*`, at most 63 bytes, so that it is an SQL identifier that
/// needs no quotes.
pub fn is_projection_name(name: &str) -> bool {
    let mut bytes = name.bytes();
    bytes.next().is_some_and(|first| first.is_ascii_lowercase() || first == b'_')
        && bytes.all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_')
        && name.len() <= 63
}

/// Splits `orders` or `orders~2` into name and version; without `~` the version is none, which means the one in use.
///
/// # Errors
/// [`LaneError::Projection`] if the name or the version is malformed.
pub fn parse_projection(projection: &str) -> Result<(&str, Option<u32>), LaneError> {
    let invalid = || LaneError::Projection(projection.to_owned());
    let (name, version) = match projection.split_once('~') {
        None => (projection, None),
        Some((name, digits)) => {
            let plain = digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
            let version = digits.parse::<u32>().ok().filter(|version| plain && *version >= 1).ok_or_else(invalid)?;
            (name, Some(version))
        }
    };
    if is_projection_name(name) { Ok((name, version)) } else { Err(invalid()) }
}

/// The name of a lane's checkpoint: `orders#p3`, for later versions `orders~2#p3`.
///
/// # Errors
/// [`LaneError::Projection`] and [`LaneError::Lane`] for arguments out of range.
pub fn checkpoint_name(projection: &str, lane: i32) -> Result<String, LaneError> {
    let (name, version) = parse_projection(projection)?;
    if lane < 0 {
        return Err(LaneError::Lane(lane));
    }
    Ok(match version {
        None | Some(1) => format!("{name}#p{lane}"),
        Some(version) => format!("{name}~{version}#p{lane}"),
    })
}

/// The key of the advisory lock of a lane: FNV-1a 64 of its checkpoint's name, as a signed number.
///
/// # Errors
/// As [`checkpoint_name`].
pub fn lock_key(projection: &str, lane: i32) -> Result<i64, LaneError> {
    Ok(fnv1a_64(checkpoint_name(projection, lane)?.as_bytes()) as i64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    #[test]
    fn counts_below_one_are_refused_with_their_value() {
        for count in [0, -1, i32::MIN] {
            let error = lane_of(b"x", count, Strategy::Modulo).unwrap_err();
            assert_eq!(error, LaneError::Count { what: "lanes", count });
            assert!(error.to_string().contains(&count.to_string()));
            assert_eq!(shard(b"x", count).unwrap_err(), LaneError::Count { what: "shards", count });
        }
    }

    #[test]
    fn strategies_have_names() {
        assert_eq!("modulo".parse(), Ok(Strategy::Modulo));
        assert_eq!("consistent".parse(), Ok(Strategy::Consistent));
        assert_eq!("ring".parse::<Strategy>(), Err(LaneError::Strategy("ring".to_owned())));
    }

    #[test]
    fn checkpoint_names() {
        assert_eq!(checkpoint_name("orders", 3).unwrap(), "orders#p3");
        assert_eq!(checkpoint_name("orders~1", 3).unwrap(), "orders#p3");
        assert_eq!(checkpoint_name("orders~2", 3).unwrap(), "orders~2#p3");
        for name in ["", "Orders", "9x", "a-b", "a~", "a~0", "a~02", "a~x", "a~-1", "a~+2", "ä", "a b", "a#p1"] {
            assert_eq!(checkpoint_name(name, 0), Err(LaneError::Projection(name.to_owned())), "{name}");
        }
        assert_eq!(checkpoint_name("orders", -1), Err(LaneError::Lane(-1)));
    }

    proptest! {
        /// What `lane_of` says is the lane that the projection's slots give (DESIGN: at first lane = slot mod n).
        #[test]
        fn slots_agree_with_lane_of(key in ".{0,40}", lanes in 1u32..=MAXIMUM_LANES) {
            let slots = slots_for(lanes);
            prop_assert!(slots >= MINIMUM_SLOTS && slots.is_multiple_of(lanes) && (slots / lanes).is_power_of_two());
            prop_assert!(slots / 2 < MINIMUM_SLOTS || slots == lanes);
            let lane = lane_of(key.as_bytes(), lanes as i32, Strategy::Modulo).unwrap();
            prop_assert_eq!(slot_of(key.as_bytes(), slots) % lanes, lane as u32);
        }

        #[test]
        fn results_are_in_range(key in proptest::collection::vec(any::<u8>(), 0..64), n in 1i32..) {
            prop_assert!((0..n).contains(&lane_of(&key, n, Strategy::Modulo).unwrap()));
            prop_assert!((0..n).contains(&lane_of(&key, n, Strategy::Consistent).unwrap()));
            prop_assert!((0..n).contains(&shard(&key, n).unwrap()));
        }
    }
}
