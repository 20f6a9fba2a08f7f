//! All rows after a row, cut into ranges.
//!
//! `(a, b) > (x, y)` says it only where both columns sort in one direction and neither is null, and written as
//! `a > x OR a = x AND b > y` no index finds its beginning. So it is cut into parts that do not overlap. Each equals the row in
//! its first columns, and comes after it in the next: for a run of columns with values and one direction as a row
//! comparison; for nulls that come last as a part of their own; and after a null that comes first are all values.
//!
//! Invariants: a row after the place is in exactly one range, and every other row in none; each range is a prefix of
//! equalities with one inequality behind it, which is one run of an index on the columns in this order. (A row comparison
//! rather than equality and inequality also keeps Postgres from reading the key's own index instead, which has the order
//! of what is left, and passing over other rows on the way.)

use super::order::SortKey;

/// A range: the first columns are as in the place, the next differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Range {
    /// Number of the first column that differs. Those before it equal the place's, or are null where it is null.
    pub at: usize,
    /// How it differs.
    pub difference: Difference,
}

/// How a row of a range differs from the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Difference {
    /// The columns up to `end` (without it), compared as a row, come after the place's.
    Beyond {
        /// Number of the first column that is not compared.
        end: usize,
    },
    /// The column is null, where nulls come last.
    Null,
    /// The column has any value, where nulls come first.
    NotNull,
}

/// The ranges of the rows after a place. `is_null` says for each sort key whether its value in the place is null.
pub fn ranges_after(order: &[SortKey], is_null: &[bool]) -> Vec<Range> {
    debug_assert_eq!(order.len(), is_null.len(), "a place has a value for each sort key");
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < order.len() {
        if is_null[at] {
            if order[at].nulls_first {
                ranges.push(Range { at, difference: Difference::NotNull });
            }
            at += 1;
            continue;
        }
        // A row comparison has one operator for all of its columns.
        let run = order[at..].iter().zip(&is_null[at..]);
        let length = run.take_while(|(key, is_null)| !**is_null && key.beyond() == order[at].beyond()).count();
        let end = at + length;
        ranges.push(Range { at, difference: Difference::Beyond { end } });
        let with_nulls_last = (at..end).filter(|at| order[*at].column.is_nullable && !order[*at].nulls_first);
        ranges.extend(with_nulls_last.map(|at| Range { at, difference: Difference::Null }));
        at = end;
    }
    ranges
}
