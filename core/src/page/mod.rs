//! Paging over a table: pages of rows in an order, each found by an index, whatever row shards the rows are in.
//!
//! - [`order`] reads what the caller sorts by and makes it total: the table's key is added at the end.
//! - [`filter`] reads which rows the caller wants.
//! - [`place`] cuts "all rows after this one" into ranges that an index finds each by its first entry.
//! - [`statement`] writes the SQL of a page, and of the index that it wants.
//! - [`cursor`] carries a row's place to the next call, sealed.
//!
//! Invariants: the rows after a place are exactly those of its ranges; each range is one run of an index on the sort
//! keys; no value of the caller's is written into the SQL, and every name is quoted.

pub mod cursor;
pub mod filter;
pub mod order;
pub mod place;
pub mod statement;

/// The most rows of a page.
pub const MAXIMUM_PAGE_SIZE: i32 = 10_000;

/// The most columns that a caller may sort by: an index cannot have more.
pub const MAXIMUM_SORT_COLUMNS: usize = 32;

/// What a caller asked of a page that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PageError {
    /// A page without rows, or with too many.
    #[error("page_size must be from 1 to {MAXIMUM_PAGE_SIZE}, not {0}")]
    Size(i32),
    /// Something in `order_by` that is no sort column. Holds the rest of it from there.
    #[error("order_by cannot be read at \"{0}\"")]
    Order(String),
    /// More sort columns than an index can have.
    #[error("order_by has {0} columns, more than {MAXIMUM_SORT_COLUMNS}")]
    SortColumns(usize),
    /// A filter that is not of the form that [`filter`] reads.
    #[error("filter must be an array of [column, operator, value], not {0}")]
    Filter(String),
    /// An operator that a filter does not have.
    #[error("filter has no operator \"{0}\"")]
    Operator(String),
    /// A value that does not fit its operator.
    #[error("operator \"{operator}\" of the filter on column \"{column}\" does not take the value {value}")]
    Value {
        /// The condition's column.
        column: String,
        /// Its operator.
        operator: &'static str,
        /// Its value as JSON.
        value: String,
    },
    /// A cursor that was altered, or that another database or an older key made.
    #[error("cursor is not valid in this database")]
    Cursor,
    /// A cursor of another query.
    #[error("cursor belongs to a page of another query")]
    OtherQuery,
}

impl PageError {
    /// What the caller can do about it: full sentences.
    pub fn hint(&self) -> &'static str {
        match self {
            PageError::Size(_) => "It is the number of rows that a page has at most.",
            PageError::Order(_) => {
                "Name columns, each with COLLATE, ASC or DESC, NULLS FIRST or NULLS LAST where needed, parted by commas. \
                 To sort by an expression, add a generated column for it."
            }
            PageError::SortColumns(_) => "An index has no more columns than that.",
            PageError::Filter(_) => "Pass for example '[[\"status\", \"=\", \"open\"], [\"closed_at\", \"is null\"]]'.",
            PageError::Operator(_) => "Use =, <>, <, <=, >, >=, in, is null or is not null.",
            PageError::Value { .. } => {
                "A value is a string as the column's type reads it, a number or a boolean; \"in\" takes an array of them, \
                 \"is null\" and \"is not null\" take none."
            }
            PageError::Cursor => {
                "It was altered, or made before the database was restored or its key in lanes.secret was changed. \
                 Begin again with the first page."
            }
            PageError::OtherQuery => {
                "Table, order_by, filter and time window must be those of the call that returned the cursor."
            }
        }
    }
}

/// The number of rows of a page.
///
/// # Errors
/// [`PageError::Size`] if it is below 1 or above [`MAXIMUM_PAGE_SIZE`].
pub fn check_page_size(page_size: i32) -> Result<i64, PageError> {
    if (1..=MAXIMUM_PAGE_SIZE).contains(&page_size) { Ok(page_size.into()) } else { Err(PageError::Size(page_size)) }
}

/// A name as SQL takes it, whatever is in it.
pub fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
