//! Where a log is cut after a crash (LOG-4).
//!
//! Every commit records the horizon of its moment, so everything up to the greatest recorded horizon is known to be
//! complete. Above it, shards may have committed blocks while a block before them was lost. The cut is the end of the
//! unbroken run above the recorded horizon; what lies past it was never acknowledged and never shown to a reader.

/// The same position in two rows: the log contradicts itself (LOG-1).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("position {0} is held twice")]
pub struct DuplicatePosition(
    /// The position.
    pub u64,
);

/// The greatest position that the log keeps: the end of the unbroken run of `positions` that begins right above
/// `known`. `positions` are those above `known` from all shards, in any order.
///
/// # Errors
/// [`DuplicatePosition`] if a position occurs twice.
pub fn find_cut(known: u64, mut positions: Vec<u64>) -> Result<u64, DuplicatePosition> {
    positions.sort_unstable();
    if let Some(pair) = positions.windows(2).find(|pair| pair[0] == pair[1]) {
        return Err(DuplicatePosition(pair[0]));
    }
    let run = positions.iter().zip(known + 1..).take_while(|(position, expected)| *position == expected).count();
    Ok(known + run as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cut_is_before_the_first_missing_position() {
        assert_eq!(find_cut(0, vec![]), Ok(0));
        assert_eq!(find_cut(7, vec![]), Ok(7));
        assert_eq!(find_cut(0, vec![3, 1, 2]), Ok(3));
        assert_eq!(find_cut(0, vec![2, 3]), Ok(0));
        assert_eq!(find_cut(5, vec![6, 9, 7, 10]), Ok(7));
        assert_eq!(find_cut(5, vec![6, 7, 7]), Err(DuplicatePosition(7)));
    }
}
