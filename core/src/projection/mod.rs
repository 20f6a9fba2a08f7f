//! Projections: which events change which table, and how.
//!
//! [`parse_document`] reads and checks definitions; the daemon and the extension both call it, so they accept and
//! refuse the same. An [`EventView`] reads an event once for all projections; [`Fold`] turns a batch of events into
//! one change per row.
//!
//! Invariants: a [`Projection`] exists only if it passed every check, PROJ-2 among them. Nothing depends on the order
//! of names in a document, except the order of columns, which is that of `fields`.

mod aggregates;
mod columns;
pub mod definition;
mod document;
pub mod expression;
pub mod fold;
pub mod number;
mod operation;
pub mod policy;
pub mod query;
mod sharing;
pub mod statement;
pub mod storage;
pub mod time;
pub mod value;
pub mod view;

pub use definition::{Document, parse_document};
pub use document::DefinitionError;
pub use expression::Expression;
pub use fold::{Bounds, Change, Fold, Folded, FoldedRow};
pub use number::Number;
pub use policy::Policy;
pub use query::Query;
pub use statement::BatchStatement;
pub use storage::{Index, Partitioning};
pub use value::{ColumnType, Value};
pub use view::{DataError, EventView};

use std::borrow::Cow;

use crate::lane;

/// A definition that passed the checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Projection {
    /// Its name, see [`lane::is_projection_name`].
    pub name: String,
    /// The number of lanes at the start, between 1 and [`lane::MAXIMUM_LANES`].
    pub lanes: u32,
    /// What is hashed to slots.
    pub lane_key: Expression,
    /// The type through which the lane key goes before it is text. Where the row key holds the lane key in an INT
    /// column, the keys 7 and "7.0" mean one row and so must go to one lane.
    pub lane_key_type: ColumnType,
    /// The types of the events that change it, each once.
    pub source_events: Vec<String>,
    /// The table.
    pub target: Target,
    /// All columns, in the order of `fields`.
    pub fields: Vec<Field>,
    /// The primary key, in the order of `target.primary_key`.
    pub key_columns: Vec<KeyColumn>,
    /// All columns outside the primary key that events change by operations, in the order of `fields`.
    pub value_columns: Vec<ValueColumn>,
    /// What decides between the values of `set` and `set_once` columns where the order of events alone does not.
    pub orderings: Vec<Ordering>,
    /// What an event of each source type does to its row: one entry per entry of `source_events`.
    pub effects: Vec<Effect>,
    /// The statements of `sql`: one entry per entry of `source_events`.
    pub statements: Vec<Option<BatchStatement>>,
    /// The indexes that the table should have besides that of the primary key.
    pub indexes: Vec<Index>,
    /// How the table is divided, if it is.
    pub partitioning: Option<Partitioning>,
    /// How it is worked on.
    pub policy: Policy,
    /// Why more than one lane would be safe, or that it would not.
    pub sharing: Sharing,
    /// What a user should know of the definition, in full sentences.
    pub notes: Vec<String>,
    /// Its own part of the document, as it was given.
    pub definition: serde_json::Value,
}

/// The table of a projection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// `table` or `schema.table`, both plain identifiers.
    pub table: String,
    /// The columns of the primary key.
    pub primary_key: Vec<String>,
}

impl Target {
    /// The schema, if the definition names one.
    pub fn schema(&self) -> Option<&str> {
        self.table.split_once('.').map(|(schema, _)| schema)
    }

    /// The table's name without the schema.
    pub fn name(&self) -> &str {
        self.table.split_once('.').map_or(self.table.as_str(), |(_, name)| name)
    }
}

/// A column and its type.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// The column's name.
    pub name: String,
    /// The column's type.
    pub column_type: ColumnType,
}

/// A column of the primary key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeyColumn {
    /// The column's name.
    pub name: String,
    /// The column's type.
    pub column_type: ColumnType,
    /// Where its value comes from.
    pub expression: Expression,
}

/// A column outside the primary key.
#[derive(Debug, Clone, PartialEq)]
pub struct ValueColumn {
    /// The column's name.
    pub name: String,
    /// The column's type.
    pub column_type: ColumnType,
    /// How its changes are put together.
    pub kind: ValueKind,
    /// The place in [`Projection::orderings`] of what decides between its values; for `set` and `set_once` only.
    pub ordering: Option<usize>,
    /// What an event of each source type does to it: one entry per entry of `source_events`.
    pub operations: Vec<Option<Operation>>,
    /// Floor and ceiling of the total over all lanes' rows, which the view of a bucketed table applies.
    pub total_bounds: (Option<Number>, Option<Number>),
}

/// How the changes of a column are put together. All operations on one column are of one kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ValueKind {
    /// The last value wins, null included. Starts at null.
    Set,
    /// The same value for all events of one row key. Starts at null.
    Fixed,
    /// The first value wins that is not null. Starts at null.
    SetOnce,
    /// Numbers are added. Starts at 0.
    Add {
        /// Whether an operation has a floor or a ceiling; such sums do not commute.
        bounded: bool,
    },
    /// The least value wins. Starts at null.
    Min,
    /// The greatest value wins. Starts at null.
    Max,
}

impl ValueKind {
    /// Whether changes may be applied in any order.
    pub fn commutes(self) -> bool {
        !matches!(self, ValueKind::Set | ValueKind::SetOnce | ValueKind::Add { bounded: true })
    }

    /// Whether a column of the kind is named only in statements for rows in which it is touched.
    pub fn is_set(self) -> bool {
        matches!(self, ValueKind::Set | ValueKind::Fixed)
    }
}

/// What decides between two values of a column: hidden columns of the table, kept beside the value.
///
/// The order is that of `newer` from left to right, then of the position. Of `set` the greatest wins, of `set_once`
/// the least. In a table where each row has one writer the position is not kept, for events come in its order.
#[derive(Debug, Clone, PartialEq)]
pub struct Ordering {
    /// The hidden columns of `newer_by`, in its order.
    pub newer: Vec<Field>,
    /// The hidden column of the position, where it is kept.
    pub position: Option<String>,
    /// The expressions of `newer_by` for each source type; none where the type sets no column of this ordering.
    pub expressions: Vec<Option<Vec<Expression>>>,
    /// Whether the least wins and not the greatest.
    pub least_wins: bool,
}

impl Ordering {
    /// All hidden columns.
    pub fn hidden(&self) -> impl Iterator<Item = Field> + '_ {
        let position = self.position.iter().map(|name| Field { name: name.clone(), column_type: ColumnType::Bigint });
        self.newer.iter().cloned().chain(position)
    }
}

/// What an event does to its row.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Its operations are applied to the row, which is made if it is missing.
    Fold,
    /// The row is deleted.
    Delete,
    /// Only the statement of its type sees it.
    Statement,
}

/// What an event does to a column.
#[derive(Debug, Clone, PartialEq)]
pub enum Operation {
    /// Sets the value; a null is set too.
    Set(Expression),
    /// Sets the value if there is none; a null changes nothing.
    SetOnce(Expression),
    /// Adds 1.
    Count,
    /// x becomes min(max(x + by, floor), ceiling); a null `by` changes nothing.
    Add {
        /// What is added.
        by: Expression,
        /// The least value there is after this operation.
        floor: Option<Number>,
        /// The greatest value there is after this operation.
        ceiling: Option<Number>,
    },
    /// Lowers the value to this one; a null changes nothing.
    Min(Expression),
    /// Raises the value to this one; a null changes nothing.
    Max(Expression),
}

/// Why several lanes may work on the table at once (PROJ-2).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sharing {
    /// The row key holds the lane key: each row has one writer.
    Plain,
    /// The row key holds `lane()`: each lane writes rows of its own, a view adds them up.
    Bucketed,
    /// Rows are shared by lanes, and all changes commute.
    Commuting,
    /// None of these: the projection has one lane for good.
    OneLane,
}

impl Projection {
    /// Whether a column of the primary key is `lane()`, so that each lane writes rows of its own.
    pub fn is_bucketed(&self) -> bool {
        self.sharing == Sharing::Bucketed
    }

    /// The hidden columns of the table, which keep what decides between values.
    pub fn hidden_columns(&self) -> Vec<Field> {
        self.orderings.iter().flat_map(Ordering::hidden).collect()
    }

    /// Whether some source type has a statement.
    pub fn has_statements(&self) -> bool {
        self.statements.iter().any(Option::is_some)
    }

    /// The slot among the projection's `slots` of an event of a source type, and its lane key; slot 0 for one without.
    /// If the lane key cannot be text, it is in slot 0 too, by the payload's spelling of it.
    pub fn slot_and_key(&self, view: &EventView<'_>, slots: u32) -> (u32, Option<String>) {
        match self.lane_key_of(view) {
            Ok(Some(key)) => (lane::slot_of(key.as_bytes(), slots), Some(key.into_owned())),
            Ok(None) => (0, None),
            Err(_) => (0, Some(view.spelling(&self.lane_key))),
        }
    }

    /// The slot, and the key in that slot under which an event is parked.
    pub fn parking_place(&self, view: &EventView<'_>, slots: u32) -> (u32, String) {
        let (slot, key) = self.slot_and_key(view, slots);
        (slot, key.unwrap_or_default())
    }

    /// The number of slots at the start.
    pub fn slots(&self) -> u32 {
        lane::slots_for(self.lanes)
    }

    /// The place of `event_type` in `source_events`; none if its events change nothing.
    pub fn source_event(&self, event_type: &str) -> Option<usize> {
        self.source_events.iter().position(|source| source == event_type)
    }

    /// The lane key of an event, as text; none if it is null. For an event of a source type; of others it has no
    /// meaning.
    ///
    /// # Errors
    /// [`DataError`] for text that Postgres cannot hold.
    pub fn lane_key_of<'v>(&'v self, view: &'v EventView<'_>) -> Result<Option<Cow<'v, str>>, DataError> {
        // Where the value does not fit the type, the event will fail: in the lane of its text, as an event of that key.
        if self.lane_key_type != ColumnType::Text
            && let Ok(value) = view.value(&self.lane_key, self.lane_key_type, 0)
        {
            return Ok(value.map(|value| value.normalized().into_text()));
        }
        let value = view.value(&self.lane_key, ColumnType::Text, 0).map_err(|misfit| misfit.at(view, None))?;
        Ok(value.map(value::ValueRef::into_text))
    }
}
