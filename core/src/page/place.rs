//! All rows after a row, cut into ranges.
//!
//! `(a, b) > (x, y)` says it only where both columns ascend and neither is null, and written as `a > x OR a = x AND b > y` no
//! index finds its beginning. So it is cut into parts that do not overlap, from the nearest to the farthest: those that
//! equal the row in all columns but the last and come after it in the last; those that equal it in all but the last two
//! and come after it in the last but one; and so on. "After" a value are the values beyond it and, as a part of their own,
//! the nulls where they come last; after a null are all values where nulls come first, else nothing.
//!
//! Invariant: each part is a prefix of equalities with at most one inequality behind it, which is one run of an index on
//! the columns in this order; the parts one after another are the rows after the place, in order.

use super::order::SortKey;

/// What one column of a row must be, against the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Test {
    /// The place's value.
    Equal,
    /// A value that comes after the place's.
    Beyond,
    /// Null.
    Null,
    /// Any value.
    NotNull,
}

/// The ranges of the rows after a place, nearest first. `is_null` says for each sort key whether its value in the place is
/// null. Each range tests the first columns, in their order.
pub fn ranges_after(order: &[SortKey], is_null: &[bool]) -> Vec<Vec<Test>> {
    debug_assert_eq!(order.len(), is_null.len(), "a place has a value for each sort key");
    let mut ranges = Vec::new();
    for (at, key) in order.iter().enumerate().rev() {
        let same = is_null[..at].iter().map(|is_null| if *is_null { Test::Null } else { Test::Equal });
        let mut add = |last: Test| ranges.push(same.clone().chain([last]).collect());
        match (is_null[at], key.nulls_first) {
            (false, nulls_first) => {
                add(Test::Beyond);
                if key.column.is_nullable && !nulls_first {
                    add(Test::Null);
                }
            }
            (true, true) => add(Test::NotNull),
            (true, false) => {}
        }
    }
    ranges
}
