//! Folding: a batch of events becomes one change per row, the same as applying the events one by one (PROJ-1).
//!
//! Invariants: sums are exact, whatever their size; only what is stored must fit its column. An `add` with bounds is
//! the function x ► min(max(x + sum, floor), ceiling), and two of them in succession are again one such function.
//! An event that cannot be applied leaves the fold as it was. Of two values of an ordered `set` column the one whose
//! order values are greater stays, the later one if they are equal.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};

use super::number::Number;
use super::value::{Value, ValueRef};
use super::view::{DataError, EventView};
use super::{Effect, Expression, Field, Operation, Ordering, Projection, ValueColumn, ValueKind};

/// What a batch does to one column of one row.
#[derive(Debug, Clone, PartialEq)]
pub enum Change {
    /// Nothing: the stored value stays; in a new row it is the column's start.
    Untouched,
    /// The value becomes this one; in a column with an ordering, if the row's order values allow it.
    Set(Option<Value>),
    /// The value becomes this one if it was null.
    SetOnce(Value),
    /// x becomes min(max(x + sum, floor), ceiling).
    Add {
        /// What is added; it may be greater than the column holds.
        sum: Number,
        /// Floor and ceiling; none if there is neither. Apart, so that changes without them, of which a batch has many
        /// thousands, are small.
        bounds: Option<Box<Bounds>>,
    },
    /// The value becomes this one if it was null or greater.
    Min(Value),
    /// The value becomes this one if it was null or less.
    Max(Value),
}

/// What bounds a value after an `add`; an absent bound bounds nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Bounds {
    /// The least value there is afterwards.
    pub floor: Option<Number>,
    /// The greatest value there is afterwards, at least `floor`.
    pub ceiling: Option<Number>,
}

impl Bounds {
    /// None if neither is there.
    fn new(floor: Option<Number>, ceiling: Option<Number>) -> Option<Box<Bounds>> {
        (floor.is_some() || ceiling.is_some()).then(|| Box::new(Bounds { floor, ceiling }))
    }

    /// Floor and ceiling of a change.
    pub fn of(bounds: Option<Box<Bounds>>) -> (Option<Number>, Option<Number>) {
        bounds.map_or((None, None), |bounds| (bounds.floor, bounds.ceiling))
    }
}

/// One row and its changes.
#[derive(Debug, Clone, PartialEq)]
pub struct FoldedRow {
    /// The primary key, in the order of [`Projection::key_columns`].
    pub key: Vec<Value>,
    /// One change per entry of [`Projection::value_columns`].
    pub changes: Vec<Change>,
    /// For each entry of [`Projection::orderings`] the values of its hidden columns, where a column of it is touched.
    pub orders: Vec<Option<Vec<Value>>>,
    /// Whether the row that is stored is deleted first.
    pub deleted: bool,
    /// Whether there is a row afterwards.
    pub present: bool,
}

/// What a batch does to the table.
#[derive(Debug, Clone, PartialEq)]
pub struct Folded {
    /// The rows, sorted by key, each once.
    pub rows: Vec<FoldedRow>,
    /// How many events changed no row because their lane key or row key was null.
    pub skipped_null_key: u64,
}

/// A batch in the making. Events are added in position order.
#[derive(Debug)]
pub struct Fold<'p> {
    projection: &'p Projection,
    lane: u32,
    /// Whether the lane key may be null without the row key being so.
    checks_lane_key: bool,
    rows: Vec<FoldedRow>,
    /// By the hash of a key, the row that was last added with that hash, and for each row the one before it. So a key
    /// is looked up without making an owned copy of it.
    newest: HashMap<u64, usize>,
    before: Vec<Option<usize>>,
    hasher: RandomState,
    skipped_null_key: u64,
}

/// What one event does to one column, before it is applied.
enum Input<'v> {
    Nothing,
    Set(Option<ValueRef<'v>>),
    SetOnce(ValueRef<'v>),
    Add(Number, Option<&'v Number>, Option<&'v Number>),
    Min(ValueRef<'v>),
    Max(ValueRef<'v>),
}

impl<'p> Fold<'p> {
    /// An empty batch of the lane `lane`.
    pub fn new(projection: &'p Projection, lane: u32) -> Fold<'p> {
        let in_row_key = projection.key_columns.iter().any(|column| column.expression == projection.lane_key);
        let may_be_null = matches!(projection.lane_key, Expression::Payload(_));
        Fold {
            projection,
            lane,
            checks_lane_key: may_be_null && !in_row_key,
            rows: Vec::new(),
            newest: HashMap::new(),
            before: Vec::new(),
            hasher: RandomState::new(),
            skipped_null_key: 0,
        }
    }

    /// The number of rows so far.
    pub fn row_count(&self) -> usize {
        self.rows.len()
    }

    /// Adds an event. One whose type is not a source of the projection changes nothing.
    ///
    /// # Errors
    /// [`DataError`] if a value does not fit; the fold is as it was before.
    pub fn add(&mut self, view: &EventView<'_>) -> Result<(), DataError> {
        let projection = self.projection;
        let Some(source) = projection.source_event(&view.event().event_type) else { return Ok(()) };
        if self.checks_lane_key && projection.lane_key_of(view)?.is_none() {
            self.skipped_null_key += 1;
            return Ok(());
        }
        let Some(key) = self.key_of(view)? else {
            self.skipped_null_key += 1;
            return Ok(());
        };
        match projection.effects.get(source) {
            Some(Effect::Fold) => {}
            Some(Effect::Delete) => {
                let row = self.row_of(key);
                if let Some(row) = self.rows.get_mut(row) {
                    row.changes.fill(Change::Untouched);
                    row.orders.fill(None);
                    (row.deleted, row.present) = (true, false);
                }
                return Ok(());
            }
            Some(Effect::Statement) | None => return Ok(()),
        }
        let mut inputs = Vec::with_capacity(projection.value_columns.len());
        for column in &projection.value_columns {
            let operation = column.operations.get(source).and_then(Option::as_ref);
            let input = input_of(operation, column.column_type, view);
            inputs.push(input.map_err(|misfit| misfit.at(view, Some(&column.name)))?);
        }
        let mut orders = Vec::with_capacity(projection.orderings.len());
        for ordering in &projection.orderings {
            orders.push(order_of(ordering, source, view)?);
        }
        // From here on nothing fails.
        let row = self.row_of(key);
        if let Some(row) = self.rows.get_mut(row) {
            row.present = true;
            apply_all(row, &projection.value_columns, inputs, orders);
        }
        Ok(())
    }

    /// Whether the event has a place in the projection: an event without a lane key or a row key has none, and is
    /// counted by [`Fold::add`].
    ///
    /// # Errors
    /// [`DataError`] if a value of either does not fit.
    pub fn has_place(&self, view: &EventView<'_>) -> Result<bool, DataError> {
        if self.checks_lane_key && self.projection.lane_key_of(view)?.is_none() {
            return Ok(false);
        }
        Ok(self.key_of(view)?.is_some())
    }

    /// The batch's rows, sorted by key.
    pub fn finish(self) -> Folded {
        let mut rows = self.rows;
        rows.sort_unstable_by(|left, right| left.key.cmp(&right.key));
        Folded { rows, skipped_null_key: self.skipped_null_key }
    }

    /// The row key of an event; none if a column of it is null.
    fn key_of<'v>(&self, view: &'v EventView<'_>) -> Result<Option<Vec<ValueRef<'v>>>, DataError>
    where
        'p: 'v,
    {
        let mut key = Vec::with_capacity(self.projection.key_columns.len());
        for column in &self.projection.key_columns {
            let value = view.value(&column.expression, column.column_type, self.lane);
            match value.map_err(|misfit| misfit.at(view, Some(&column.name)))? {
                Some(value) => key.push(value.normalized()),
                None => return Ok(None),
            }
        }
        Ok(Some(key))
    }

    /// The place of the row with this key, which is made if it does not exist.
    fn row_of(&mut self, key: Vec<ValueRef<'_>>) -> usize {
        let hash = self.hasher.hash_one(&key);
        let mut candidate = self.newest.get(&hash).copied();
        while let Some(at) = candidate {
            if self
                .rows
                .get(at)
                .is_some_and(|row| key.iter().zip(&row.key).all(|(left, right)| left.compare(right).is_eq()))
            {
                return at;
            }
            candidate = self.before.get(at).copied().flatten();
        }
        let at = self.rows.len();
        self.rows.push(FoldedRow {
            key: key.into_iter().map(ValueRef::into_value).collect(),
            changes: vec![Change::Untouched; self.projection.value_columns.len()],
            orders: vec![None; self.projection.orderings.len()],
            deleted: false,
            present: false,
        });
        self.before.push(self.newest.insert(hash, at));
        at
    }
}

fn input_of<'v>(
    operation: Option<&'v Operation>,
    column_type: super::ColumnType,
    view: &'v EventView<'_>,
) -> Result<Input<'v>, super::view::Misfit> {
    let value = |expression: &'v Expression| view.value(expression, column_type, 0);
    Ok(match operation {
        None => Input::Nothing,
        Some(Operation::Set(expression)) => Input::Set(value(expression)?),
        Some(Operation::SetOnce(expression)) => value(expression)?.map_or(Input::Nothing, Input::SetOnce),
        Some(Operation::Count) => Input::Add(Number::Integer(1), None, None),
        Some(Operation::Add { by, floor, ceiling }) => match view.number(by, column_type)? {
            Some(by) => Input::Add(by, floor.as_ref(), ceiling.as_ref()),
            None => Input::Nothing,
        },
        Some(Operation::Min(expression)) => value(expression)?.map_or(Input::Nothing, Input::Min),
        Some(Operation::Max(expression)) => value(expression)?.map_or(Input::Nothing, Input::Max),
    })
}

/// The order values of an event: those of `newer_by`, then the position where it is kept.
enum Order {
    /// The event sets no column of the ordering, or has no order among others: a value of `newer_by` is null.
    None,
    Values(Vec<Value>),
}

fn order_of(ordering: &Ordering, source: usize, view: &EventView<'_>) -> Result<Order, DataError> {
    let Some(Some(expressions)) = ordering.expressions.get(source) else { return Ok(Order::None) };
    let mut values = Vec::with_capacity(expressions.len() + 1);
    for (expression, Field { name, column_type }) in expressions.iter().zip(&ordering.newer) {
        let value = view.value(expression, *column_type, 0);
        match value.map_err(|misfit| misfit.at(view, Some(name)))? {
            Some(value) => values.push(value.into_value()),
            None => return Ok(Order::None),
        }
    }
    if ordering.position.is_some() {
        values.push(Value::Integer(i64::try_from(view.position()).unwrap_or(i64::MAX)));
    }
    Ok(Order::Values(values))
}

/// Applies what one event does to a row.
fn apply_all(row: &mut FoldedRow, columns: &[ValueColumn], inputs: Vec<Input<'_>>, orders: Vec<Order>) {
    // Decided once for all columns of an ordering, before any of them changes.
    let newer: Vec<bool> = orders
        .iter()
        .zip(&row.orders)
        .map(|(order, standing)| match (order, standing) {
            (Order::None, _) => false,
            (Order::Values(_), None) => true,
            (Order::Values(values), Some(standing)) => values >= standing,
        })
        .collect();
    let mut decided = vec![false; orders.len()];
    for ((change, column), input) in row.changes.iter_mut().zip(columns).zip(inputs) {
        let Some(at) = column.ordering else {
            apply(change, input);
            continue;
        };
        let wins = match column.kind {
            // The first value that is not null has the least position, for events come in their order.
            ValueKind::SetOnce => matches!((&input, &*change), (Input::SetOnce(_), Change::Untouched)),
            _ => newer.get(at).copied().unwrap_or(false),
        };
        if wins {
            apply(change, input);
            if let Some(slot) = decided.get_mut(at) {
                *slot = true;
            }
        }
    }
    for ((decided, order), standing) in decided.into_iter().zip(orders).zip(&mut row.orders) {
        if let (true, Order::Values(values)) = (decided, order) {
            *standing = Some(values);
        }
    }
}

fn apply(change: &mut Change, input: Input<'_>) {
    match (&mut *change, input) {
        (_, Input::Nothing) => {}
        // The common case of a text that is set again and again: its memory is used again too.
        (Change::Set(Some(Value::Text(old))), Input::Set(Some(ValueRef::Text(new)))) => {
            old.clear();
            old.push_str(&new);
        }
        (Change::SetOnce(_), Input::SetOnce(_)) => {}
        (_, Input::SetOnce(value)) => *change = Change::SetOnce(value.into_value()),
        (_, Input::Set(value)) => *change = Change::Set(value.map(ValueRef::into_value)),
        (Change::Add { sum, bounds: None }, Input::Add(by, None, None)) => *sum = sum.plus(&by),
        (Change::Add { sum, bounds }, Input::Add(by, low, high)) => {
            *sum = sum.plus(&by);
            // What was the least value before is moved by the sum, then bounded like every other value.
            let (floor, ceiling) = Bounds::of(bounds.take());
            let (mut floor, mut ceiling) =
                (floor.map(|floor| floor.plus(&by)), ceiling.map(|ceiling| ceiling.plus(&by)));
            if let Some(low) = low {
                floor = Some(floor.map_or_else(|| low.clone(), |floor| floor.max(low.clone())));
                ceiling = ceiling.map(|ceiling| ceiling.max(low.clone()));
            }
            if let Some(high) = high {
                ceiling = Some(ceiling.map_or_else(|| high.clone(), |ceiling| ceiling.min(high.clone())));
                floor = floor.map(|floor| floor.min(high.clone()));
            }
            *bounds = Bounds::new(floor, ceiling);
        }
        (_, Input::Add(by, floor, ceiling)) => {
            *change = Change::Add { sum: by, bounds: Bounds::new(floor.cloned(), ceiling.cloned()) };
        }
        (Change::Min(old), Input::Min(new)) if new.compare(old).is_ge() => {}
        (_, Input::Min(value)) => *change = Change::Min(value.into_value()),
        (Change::Max(old), Input::Max(new)) if new.compare(old).is_le() => {}
        (_, Input::Max(value)) => *change = Change::Max(value.into_value()),
    }
}

impl ValueKind {
    /// Whether a row starts with 0 in such a column; the others start with null.
    pub fn starts_at_zero(self) -> bool {
        matches!(self, ValueKind::Add { .. })
    }
}
