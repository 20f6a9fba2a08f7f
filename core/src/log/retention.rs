//! How far retention may delete: the next floor.
//!
//! A prefix of the log goes, by age or by size, whichever reaches further; never past the horizon, and never past what
//! somebody still needs.

/// What is known of a log when its floor is to be raised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// The floor now.
    pub floor: u64,
    /// The horizon.
    pub horizon: u64,
    /// The lowest position that is too young to go; none if all are old enough.
    pub first_young: Option<u64>,
    /// Bytes of all shards.
    pub bytes: u64,
    /// The most bytes that all shards may have; none for no limit.
    pub maximum_bytes: Option<u64>,
    /// The greatest position that nobody needs any more; none if nobody may stand in the way.
    pub hold: Option<u64>,
}

/// The next floor: at least the present one, at most the horizon.
pub fn next_floor(extent: Extent) -> u64 {
    let Extent { floor, horizon, first_young, bytes, maximum_bytes, hold } = extent;
    let by_age = first_young.map_or(horizon, |position| position.saturating_sub(1));
    let held = horizon.saturating_sub(floor);
    let by_size = match maximum_bytes {
        Some(maximum) if bytes > maximum => {
            // Events are taken to be of one size; the next round corrects it.
            let excess = u128::from(bytes - maximum) * u128::from(held);
            floor + excess.div_ceil(u128::from(bytes)) as u64
        }
        _ => floor,
    };
    by_age.max(by_size).min(hold.unwrap_or(u64::MAX)).min(horizon).max(floor)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert, proptest};

    const EXTENT: Extent =
        Extent { floor: 100, horizon: 1100, first_young: Some(101), bytes: 5000, maximum_bytes: None, hold: None };

    #[test]
    fn by_age_by_size_and_no_further_than_is_allowed() {
        assert_eq!(next_floor(EXTENT), 100);
        assert_eq!(next_floor(Extent { first_young: Some(301), ..EXTENT }), 300);
        assert_eq!(next_floor(Extent { first_young: None, ..EXTENT }), 1100);
        assert_eq!(next_floor(Extent { maximum_bytes: Some(5000), ..EXTENT }), 100);
        assert_eq!(next_floor(Extent { maximum_bytes: Some(4000), ..EXTENT }), 300);
        assert_eq!(next_floor(Extent { maximum_bytes: Some(4000), first_young: Some(501), ..EXTENT }), 500);
        assert_eq!(next_floor(Extent { first_young: None, hold: Some(700), ..EXTENT }), 700);
        assert_eq!(next_floor(Extent { first_young: None, hold: Some(7), ..EXTENT }), 100);
    }

    proptest! {
        #[test]
        fn the_floor_never_falls_and_never_passes_horizon_or_hold(
            floor in 0u64..1000, length in 0u64..1000, young in proptest::option::of(0u64..3000),
            bytes in 0u64..u64::MAX / 2, maximum in proptest::option::of(0u64..u64::MAX / 2),
            hold in proptest::option::of(0u64..3000),
        ) {
            let extent = Extent {
                floor, horizon: floor + length, first_young: young, bytes, maximum_bytes: maximum, hold,
            };
            let next = next_floor(extent);
            prop_assert!(next >= floor && next <= floor + length);
            prop_assert!(next == floor || hold.is_none_or(|hold| next <= hold));
        }
    }
}
