//! From a folded batch to statements: each writes many rows, which are sent as arrays, sorted by key.
//!
//! Rows in which the same `set` columns are touched go into one statement, for a column that is not touched must not
//! be named; mostly that is one statement for the batch. A statement's text depends on the projection, the table and
//! that set alone, so it can be prepared once.
//!
//! Rows that the batch deletes are deleted first, by a statement of their own; what came after the deletion is then
//! inserted. A hidden column is sent beside the columns whose values it orders, and decides in the same statement.
//!
//! There are two forms.
//! - INSERT … ON CONFLICT DO UPDATE, also safe where several lanes write a row at once. A sum must fit its column.
//! - For projections with a floor or a ceiling, UPDATE … FROM and INSERT of the rows that were missing, in one
//!   statement: ON CONFLICT can see no more than the table's own columns, and the bounds are none of these. It is right
//!   because each row has one writer: bounded sums do not commute, so PROJ-2 lets no second lane near. If a stranger
//!   inserts a row in between, the statement fails with 23505, and nothing is lost. Sums go as numeric, so only the
//!   stored value must fit.

use std::collections::BTreeMap;

use lanes_core::projection::{
    Bounds, Change, ColumnType, Field, Folded, FoldedRow, Number, Ordering, Projection, Value, ValueColumn, ValueKind,
};
use tokio_postgres::types::private::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use super::table::quote;

/// The values of one column, one per row. NUMERIC, JSONB and TEXT[] go as text.
#[derive(Debug, Clone, PartialEq)]
pub enum Parameter {
    /// For `text[]`.
    Text(Vec<Option<String>>),
    /// For `integer[]`.
    Integer(Vec<Option<i32>>),
    /// For `bigint[]`.
    Bigint(Vec<Option<i64>>),
    /// For `boolean[]`.
    Boolean(Vec<Option<bool>>),
    /// For `double precision[]`.
    Double(Vec<Option<f64>>),
    /// For `timestamptz[]`.
    Time(Vec<Option<Time>>),
    /// For `date[]`.
    Date(Vec<Option<Date>>),
    /// For `uuid[]`.
    Uuid(Vec<Option<Uuid>>),
}

/// A `timestamptz`: microseconds since 1970 UTC.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Time(pub i64);

/// A `date`: days since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Date(pub i32);

/// Postgres counts from 2000, 10 957 days after 1970.
const DAYS_TO_2000: i32 = 10_957;

impl ToSql for Time {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        (self.0 - i64::from(DAYS_TO_2000) * 86_400_000_000).to_sql(kind, out)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::TIMESTAMPTZ
    }

    to_sql_checked!();
}

impl ToSql for Date {
    fn to_sql(&self, kind: &Type, out: &mut BytesMut) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        (self.0 - DAYS_TO_2000).to_sql(kind, out)
    }

    fn accepts(kind: &Type) -> bool {
        *kind == Type::DATE
    }

    to_sql_checked!();
}

impl Parameter {
    /// The array as tokio-postgres binds it.
    pub fn as_sql(&self) -> &(dyn ToSql + Sync) {
        match self {
            Parameter::Text(values) => values,
            Parameter::Integer(values) => values,
            Parameter::Bigint(values) => values,
            Parameter::Boolean(values) => values,
            Parameter::Double(values) => values,
            Parameter::Time(values) => values,
            Parameter::Date(values) => values,
            Parameter::Uuid(values) => values,
        }
    }
}

/// A statement and its parameters, `$1` first.
#[derive(Debug, Clone, PartialEq)]
pub struct Statement {
    /// The text.
    pub sql: String,
    /// The arrays, all of the same length.
    pub parameters: Vec<Parameter>,
    /// How many rows it writes.
    pub rows: usize,
}

/// A batch's sum, or a single event's number, that its column cannot hold. When the batch is done again in parts, the
/// same events fail as would have failed one by one.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("column \"{column}\": {value} is out of range for type {column_type}")]
pub struct OutOfRange {
    /// The column.
    pub column: String,
    /// The number.
    pub value: String,
    /// The type, as Postgres names it.
    pub column_type: &'static str,
}

/// The statements that apply a batch, in order. `table` is the table's name as SQL, quoted where needed.
///
/// # Errors
/// [`OutOfRange`] for a sum that cannot be sent.
pub fn statements(projection: &Projection, table: &str, folded: Folded) -> Result<Vec<Statement>, OutOfRange> {
    let mut statements = Vec::new();
    if folded.rows.iter().any(|row| row.deleted) {
        statements.push(delete_statement(projection, table, folded.rows.iter().filter(|row| row.deleted)));
    }
    let mut rows = folded.rows;
    rows.retain(|row| row.present);
    let Some(first) = rows.first() else { return Ok(statements) };
    let common: Vec<bool> = written(projection, first).collect();
    if rows.iter().all(|row| written(projection, row).eq(common.iter().copied())) {
        statements.push(statement(projection, table, &common, rows)?);
        return Ok(statements);
    }
    let mut groups: BTreeMap<Vec<bool>, Vec<FoldedRow>> = BTreeMap::new();
    for row in rows {
        groups.entry(written(projection, &row).collect()).or_default().push(row);
    }
    for (written, rows) in groups {
        statements.push(statement(projection, table, &written, rows)?);
    }
    Ok(statements)
}

/// Which value columns a statement for this row names: all but the untouched `set` columns.
fn written(projection: &Projection, row: &FoldedRow) -> impl Iterator<Item = bool> {
    let columns = projection.value_columns.iter().zip(&row.changes);
    columns.map(|(column, change)| !column.kind.is_set() || !matches!(change, Change::Untouched))
}

fn is_bounded(projection: &Projection) -> bool {
    projection.value_columns.iter().any(|column| column.kind == ValueKind::Add { bounded: true })
}

/// An ordering whose hidden columns a statement sends.
struct Ordered<'p> {
    ordering: &'p Ordering,
    at: usize,
}

/// The orderings of the columns that a statement names.
fn ordered<'p>(projection: &'p Projection, columns: &[&ValueColumn]) -> Vec<Ordered<'p>> {
    let named = |at: &usize| columns.iter().any(|column| column.ordering == Some(*at));
    let orderings = projection.orderings.iter().enumerate().filter(|(at, _)| named(at));
    orderings.map(|(at, ordering)| Ordered { ordering, at }).collect()
}

fn statement(
    projection: &Projection,
    table: &str,
    written: &[bool],
    rows: Vec<FoldedRow>,
) -> Result<Statement, OutOfRange> {
    let bounded = is_bounded(projection);
    let columns: Vec<&ValueColumn> = selected(&projection.value_columns, written).collect();
    let orderings = ordered(projection, &columns);
    let count = rows.len();
    let mut keys: Vec<Array> =
        projection.key_columns.iter().map(|column| Array::new(column.column_type, count)).collect();
    let mut values: Vec<Vec<Array>> = columns
        .iter()
        .map(|column| sent_types(column, bounded).map(|sent| Array::new(sent, count)).collect())
        .collect();
    let mut hidden: Vec<Vec<Array>> = orderings
        .iter()
        .map(|ordered| ordered.ordering.hidden().map(|field| Array::new(field.column_type, count)).collect())
        .collect();
    for row in rows {
        for (array, value) in keys.iter_mut().zip(row.key) {
            array.push(Some(value));
        }
        let mut orders = row.orders;
        for (arrays, ordered) in hidden.iter_mut().zip(&orderings) {
            let mut order = orders.get_mut(ordered.at).and_then(Option::take).unwrap_or_default().into_iter();
            for array in arrays {
                array.push(order.next());
            }
        }
        let changes = row.changes.into_iter().zip(written).filter(|(_, written)| **written).map(|(change, _)| change);
        for ((arrays, column), change) in values.iter_mut().zip(&columns).zip(changes) {
            push_change(arrays, column, change)?;
        }
    }
    let form = Form { projection, table, columns: &columns, orderings: &orderings, bounded };
    let sql = if bounded { form.join_sql() } else { form.upsert_sql() };
    let arrays = keys.into_iter().chain(values.into_iter().flatten()).chain(hidden.into_iter().flatten());
    Ok(Statement { sql, parameters: arrays.map(|array| array.0).collect(), rows: count })
}

fn delete_statement<'r>(
    projection: &Projection,
    table: &str,
    rows: impl Iterator<Item = &'r FoldedRow> + Clone,
) -> Statement {
    let count = rows.clone().count();
    let mut keys: Vec<Array> =
        projection.key_columns.iter().map(|column| Array::new(column.column_type, count)).collect();
    for row in rows {
        for (array, value) in keys.iter_mut().zip(&row.key) {
            array.push(Some(value.clone()));
        }
    }
    let source = source_sql(projection.key_columns.iter().map(|column| column.column_type));
    let sql = format!(
        "DELETE FROM {table} AS t USING ({source}) AS i ({}) WHERE {}",
        parameter_names(keys.len()).join(", "),
        same_key(projection, "t")
    );
    Statement { sql, parameters: keys.into_iter().map(|array| array.0).collect(), rows: count }
}

fn selected<'a, T>(all: &'a [T], written: &[bool]) -> impl Iterator<Item = &'a T> {
    all.iter().zip(written.to_owned()).filter(|(_, written)| *written).map(|(item, _)| item)
}

/// The types of the arrays of a column: the column's own; in the form for bounds, sums go as numeric, and a bounded
/// one is followed by floor and ceiling.
fn sent_types(column: &ValueColumn, bounded: bool) -> impl Iterator<Item = ColumnType> {
    let (sent, times) = match column.kind {
        ValueKind::Add { bounded: true } => (ColumnType::Numeric, 3),
        ValueKind::Add { bounded: false } if bounded => (ColumnType::Numeric, 1),
        _ => (column.column_type, 1),
    };
    std::iter::repeat_n(sent, times)
}

/// A parameter in the making.
struct Array(Parameter);

impl Array {
    fn new(column_type: ColumnType, rows: usize) -> Array {
        Array(match column_type {
            ColumnType::Text | ColumnType::Numeric | ColumnType::Jsonb | ColumnType::TextArray => {
                Parameter::Text(Vec::with_capacity(rows))
            }
            ColumnType::Int => Parameter::Integer(Vec::with_capacity(rows)),
            ColumnType::Bigint => Parameter::Bigint(Vec::with_capacity(rows)),
            ColumnType::Boolean => Parameter::Boolean(Vec::with_capacity(rows)),
            ColumnType::Double => Parameter::Double(Vec::with_capacity(rows)),
            ColumnType::Timestamptz => Parameter::Time(Vec::with_capacity(rows)),
            ColumnType::Date => Parameter::Date(Vec::with_capacity(rows)),
            ColumnType::Uuid => Parameter::Uuid(Vec::with_capacity(rows)),
        })
    }

    /// Adds a value of the column's type; the fold has checked its range.
    fn push(&mut self, value: Option<Value>) {
        match (&mut self.0, value) {
            (Parameter::Text(values), value) => values.push(value.map(|value| match value {
                Value::Text(text) | Value::Json(text) => text,
                other => other.to_string(),
            })),
            (Parameter::Integer(values), Some(Value::Integer(integer))) => values.push(i32::try_from(integer).ok()),
            (Parameter::Bigint(values), Some(Value::Integer(integer))) => values.push(Some(integer)),
            (Parameter::Boolean(values), Some(Value::Boolean(boolean))) => values.push(Some(boolean)),
            (Parameter::Double(values), Some(Value::Double(double))) => values.push(Some(double.get())),
            (Parameter::Time(values), Some(Value::Time(time))) => values.push(Some(Time(time))),
            (Parameter::Date(values), Some(Value::Date(date))) => values.push(Some(Date(date))),
            (Parameter::Uuid(values), Some(Value::Uuid(uuid))) => values.push(Some(Uuid::from_u128(uuid))),
            (Parameter::Integer(values), _) => values.push(None),
            (Parameter::Bigint(values), _) => values.push(None),
            (Parameter::Boolean(values), _) => values.push(None),
            (Parameter::Double(values), _) => values.push(None),
            (Parameter::Time(values), _) => values.push(None),
            (Parameter::Date(values), _) => values.push(None),
            (Parameter::Uuid(values), _) => values.push(None),
        }
    }

    /// Adds a number; none if it does not fit.
    fn push_number(&mut self, number: &Number) -> Option<()> {
        match &mut self.0 {
            Parameter::Text(values) => values.push(Some(number.to_text())),
            Parameter::Integer(values) => values.push(Some(i32::try_from(number.to_bigint()?).ok()?)),
            Parameter::Bigint(values) => values.push(Some(number.to_bigint()?)),
            _ => return None,
        }
        Some(())
    }
}

fn push_change(arrays: &mut [Array], column: &ValueColumn, change: Change) -> Result<(), OutOfRange> {
    let [first, bounds @ ..] = arrays else { return Ok(()) };
    let (sum, bounded) = match change {
        Change::Set(value) => {
            first.push(value);
            return Ok(());
        }
        Change::SetOnce(value) | Change::Min(value) | Change::Max(value) => {
            first.push(Some(value));
            return Ok(());
        }
        Change::Untouched if !column.kind.starts_at_zero() => {
            first.push(None);
            return Ok(());
        }
        Change::Untouched => (Number::ZERO, None),
        Change::Add { sum, bounds } => (sum, bounds),
    };
    first.push_number(&sum).ok_or_else(|| OutOfRange {
        column: column.name.clone(),
        value: shortened(sum.to_text()),
        column_type: column.column_type.sql_name(),
    })?;
    let (floor, ceiling) = Bounds::of(bounded);
    for (array, bound) in bounds.iter_mut().zip([floor, ceiling]) {
        match bound {
            // A bound goes as numeric, which holds every number there is here.
            Some(bound) => drop(array.push_number(&bound)),
            None => array.push(None),
        }
    }
    Ok(())
}

fn shortened(digits: String) -> String {
    match digits.get(..60) {
        Some(start) if digits.len() > 60 => format!("{start}…"),
        _ => digits,
    }
}

/// A SELECT over `unnest($1::text[], …)`, one column per type.
fn source_sql(types: impl Iterator<Item = ColumnType>) -> String {
    let (mut arrays, mut columns, mut converted) = (Vec::new(), Vec::new(), false);
    for (column_type, number) in types.zip(1..) {
        let cast = match column_type {
            ColumnType::Numeric => "text[]::numeric[]".to_owned(),
            ColumnType::Jsonb => "text[]::jsonb[]".to_owned(),
            // An array of arrays would be unnested to the bottom.
            ColumnType::TextArray => "text[]".to_owned(),
            other => format!("{}[]", other.sql_name()),
        };
        arrays.push(format!("${number}::{cast}"));
        let is_array = column_type == ColumnType::TextArray;
        converted |= is_array;
        columns.push(format!("a.p{number}{}", if is_array { "::text[]" } else { "" }));
    }
    let unnest = format!("unnest({})", arrays.join(", "));
    if converted {
        let names = parameter_names(arrays.len()).join(", ");
        format!("SELECT {} FROM {unnest} AS a ({names})", columns.join(", "))
    } else {
        format!("SELECT * FROM {unnest}")
    }
}

/// p1, p2 and so on.
fn parameter_names(count: usize) -> Vec<String> {
    (1..=count).map(|number| format!("p{number}")).collect()
}

/// That a row of `relation` has the key of the row `i` of the batch.
fn same_key(projection: &Projection, relation: &str) -> String {
    let pairs = projection.key_columns.iter().zip(1..);
    let pairs = pairs.map(|(column, number)| format!("{relation}.{} = i.p{number}", quote(&column.name)));
    pairs.collect::<Vec<_>>().join(" AND ")
}

fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> String {
    names.map(|name| quote(name)).collect::<Vec<_>>().join(", ")
}

/// `least` or `greatest`, which pass over nulls; text in the collation in which the fold compares it.
fn extreme_sql(column: &ValueColumn, left: &str, right: &str) -> String {
    let function = if column.kind == ValueKind::Min { "least" } else { "greatest" };
    let collation = if column.column_type == ColumnType::Text { " COLLATE pg_catalog.\"C\"" } else { "" };
    format!("{function}({left}{collation}, {right}{collation})")
}

/// Text is compared as the fold compares it.
fn comparable(text: String, column_type: ColumnType) -> String {
    if column_type == ColumnType::Text { format!("{text} COLLATE pg_catalog.\"C\"") } else { text }
}

/// What the text of a statement is made of.
struct Form<'a> {
    projection: &'a Projection,
    table: &'a str,
    columns: &'a [&'a ValueColumn],
    orderings: &'a [Ordered<'a>],
    bounded: bool,
}

impl Form<'_> {
    /// The types of the arrays, in the order of the parameters.
    fn types(&self) -> impl Iterator<Item = ColumnType> {
        let keys = self.projection.key_columns.iter().map(|column| column.column_type);
        let values = self.columns.iter().flat_map(|column| sent_types(column, self.bounded));
        let hidden = self.orderings.iter().flat_map(|ordered| ordered.ordering.hidden());
        keys.chain(values).chain(hidden.map(|field| field.column_type))
    }

    /// The columns that are written, quoted: key, values, hidden.
    fn names(&self) -> String {
        let keys = self.projection.key_columns.iter().map(|column| quote(&column.name));
        let values = self.columns.iter().map(|column| quote(&column.name));
        let hidden = self.orderings.iter().flat_map(|ordered| ordered.ordering.hidden());
        keys.chain(values).chain(hidden.map(|field| quote(&field.name))).collect::<Vec<_>>().join(", ")
    }

    /// The assignments to a row `t` that is there. `sent` gives the sent value of the array at a place behind the key,
    /// for a column of the name.
    fn assignments(&self, sent: &dyn Fn(usize, &str) -> String) -> Vec<String> {
        let mut at = 0;
        let mut places = Vec::with_capacity(self.columns.len());
        for column in self.columns {
            places.push(at);
            at += sent_types(column, self.bounded).count();
        }
        let mut hidden = Vec::with_capacity(self.orderings.len());
        for ordered in self.orderings {
            let fields: Vec<_> = ordered.ordering.hidden().collect();
            let sent: Vec<String> = fields.iter().zip(at..).map(|(field, at)| sent(at, &field.name)).collect();
            at += fields.len();
            hidden.push((ordered, fields, sent));
        }
        let mut assignments = Vec::new();
        for (column, at) in self.columns.iter().zip(places) {
            let (name, sent_value) = (quote(&column.name), sent(at, &column.name));
            let stored = format!("t.{name}");
            let value = match column.kind {
                ValueKind::Fixed => sent_value,
                ValueKind::Set => {
                    let ordering = hidden.iter().find(|(ordered, ..)| column.ordering == Some(ordered.at));
                    match ordering.and_then(|(ordered, fields, sent)| wins_sql(ordered.ordering, fields, sent)) {
                        Some(wins) => format!("CASE WHEN {wins} THEN {sent_value} ELSE {stored} END"),
                        None => sent_value,
                    }
                }
                ValueKind::SetOnce => format!("coalesce({stored}, {sent_value})"),
                ValueKind::Add { bounded: true } => {
                    let (low, high) = (sent(at + 1, ""), sent(at + 2, ""));
                    format!("least(greatest({stored} + {sent_value}, {low}), {high})")
                }
                ValueKind::Add { bounded: false } => format!("{stored} + {sent_value}"),
                ValueKind::Min | ValueKind::Max => extreme_sql(column, &stored, &sent_value),
            };
            assignments.push(format!("{name} = {value}"));
        }
        for (ordered, fields, sent) in &hidden {
            let condition = if ordered.ordering.least_wins {
                let column = self.columns.iter().find(|column| column.ordering == Some(ordered.at));
                column.map(|column| format!("t.{} IS NULL", quote(&column.name)))
            } else {
                wins_sql(ordered.ordering, fields, sent)
            };
            for (field, sent) in fields.iter().zip(sent) {
                let name = quote(&field.name);
                assignments.push(match &condition {
                    Some(condition) => format!("{name} = CASE WHEN {condition} THEN {sent} ELSE t.{name} END"),
                    None => format!("{name} = {sent}"),
                });
            }
        }
        assignments
    }

    /// The form without bounds.
    fn upsert_sql(&self) -> String {
        let (table, names, source) = (self.table, self.names(), source_sql(self.types()));
        let key = quoted(self.projection.key_columns.iter().map(|column| &column.name));
        let assignments = self.assignments(&|_, name| format!("excluded.{}", quote(name)));
        let action = if assignments.is_empty() {
            "DO NOTHING".to_owned()
        } else {
            format!("DO UPDATE SET {}", assignments.join(", "))
        };
        format!("INSERT INTO {table} AS t ({names}) {source} ON CONFLICT ({key}) {action}")
    }

    /// The form with bounds. The arrays are called p1, p2 and so on.
    fn join_sql(&self) -> String {
        let (table, projection) = (self.table, self.projection);
        let types: Vec<ColumnType> = self.types().collect();
        let parameters = parameter_names(types.len());
        let key_count = projection.key_columns.len();
        let sent = |at: usize, _: &str| format!("i.p{}", key_count + at + 1);

        // A row that is missing begins at the column's start: 0 for sums.
        let mut inserts: Vec<String> = (1..=key_count).map(|number| format!("i.p{number}")).collect();
        let mut at = 0;
        for column in self.columns {
            let value = sent(at, "");
            inserts.push(match column.kind {
                ValueKind::Add { bounded: true } => {
                    format!("least(greatest({value}, {}), {})", sent(at + 1, ""), sent(at + 2, ""))
                }
                _ => value,
            });
            at += sent_types(column, true).count();
        }
        inserts.extend((at..types.len() - key_count).map(|at| sent(at, "")));
        let key_parameters: Vec<String> = parameters.iter().take(key_count).cloned().collect();
        let missing: Vec<String> = key_parameters.iter().map(|name| format!("u.{name} = i.{name}")).collect();
        format!(
            "WITH i ({parameters}) AS ({source}), \
             u AS (UPDATE {table} AS t SET {updates} FROM i WHERE {join} RETURNING {returning}) \
             INSERT INTO {table} ({names}) SELECT {inserts} FROM i WHERE NOT EXISTS (SELECT FROM u WHERE {missing})",
            parameters = parameters.join(", "),
            source = source_sql(types.into_iter()),
            updates = self.assignments(&sent).join(", "),
            join = same_key(projection, "t"),
            returning = key_parameters.iter().map(|name| format!("i.{name}")).collect::<Vec<_>>().join(", "),
            names = self.names(),
            inserts = inserts.join(", "),
            missing = missing.join(" AND "),
        )
    }
}

/// When the sent values of an ordering's columns win over the stored ones; none if they always do, because only the
/// position orders them, and events come in its order.
fn wins_sql(ordering: &Ordering, fields: &[Field], sent: &[String]) -> Option<String> {
    let first = ordering.newer.first()?;
    let list = |values: Vec<String>| format!("({})", values.join(", "));
    let sent = fields.iter().zip(sent).map(|(field, sent)| comparable(sent.clone(), field.column_type));
    let stored = fields.iter().map(|field| comparable(format!("t.{}", quote(&field.name)), field.column_type));
    Some(format!("t.{} IS NULL OR {} >= {}", quote(&first.name), list(sent.collect()), list(stored.collect())))
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes_core::event::Event;
    use lanes_core::projection::{EventView, Fold, parse_document};
    use serde_json::{Value as Json, json};

    fn projection(aggregates: Json) -> Projection {
        let fields = json!({"id": "TEXT", "part": "INT", "n": "INT", "total": "NUMERIC", "first": "TEXT",
                            "late": "BIGINT", "note": "BOOLEAN", "seen": "BIGINT"});
        let named = |name: &str| {
            let known = ["id", "part", "seen"].contains(&name);
            known || aggregates.as_object().unwrap().values().any(|columns| columns.get(name).is_some())
        };
        let fields: serde_json::Map<String, Json> =
            fields.as_object().unwrap().clone().into_iter().filter(|(name, _)| named(name)).collect();
        let document = json!({"projections": {"p": {
            "source_events": ["A", "B"],
            "target": {"table": "p", "primary_key": ["id", "part"]},
            "fields": fields,
            "derive": {"id": "event.key", "part": "event.part", "seen": "event.ts"},
            "aggregates": aggregates}}});
        parse_document(&document).unwrap().projections.remove(0)
    }

    fn fold(projection: &Projection, events: &[(&str, &str, &str)]) -> Folded {
        let mut fold = Fold::new(projection, 0);
        for (index, (event_type, key, payload)) in events.iter().enumerate() {
            let event = Event {
                event_type: (*event_type).to_owned(),
                key: (*key).to_owned(),
                ts: 1000 + index as i64,
                payload: (*payload).to_owned(),
            };
            fold.add(&EventView::new(index as u64 + 1, &event)).unwrap();
        }
        fold.finish()
    }

    fn text(value: &str) -> Option<String> {
        Some(value.to_owned())
    }

    #[test]
    fn a_batch_is_one_statement_per_set_of_touched_columns() {
        let projection = projection(json!({
            "A": {"n": {"op": "count"}, "total": {"op": "add", "by": "event.amount"},
                  "first": {"op": "min", "value": "event.name"}, "late": {"op": "max", "value": "event.late"}},
            "B": {"note": {"op": "set", "value": "event.note"}}}));
        let folded = fold(
            &projection,
            &[
                ("A", "y", r#"{"part": 2, "amount": 0.10, "name": "x", "late": 5}"#),
                ("A", "x", r#"{"part": 1}"#),
                ("A", "y", r#"{"part": 2, "amount": 0.25}"#),
                ("B", "z", r#"{"part": 1, "note": true}"#),
            ],
        );
        let statements = statements(&projection, "\"s\".\"p\"", folded).unwrap();
        let [without, with] = statements.as_slice() else { panic!("{statements:?}") };
        assert_eq!(
            without.sql,
            "INSERT INTO \"s\".\"p\" AS t (\"id\", \"part\", \"n\", \"total\", \"first\", \"late\", \"seen\") \
             SELECT * FROM unnest($1::text[], $2::integer[], $3::integer[], $4::text[]::numeric[], $5::text[], \
             $6::bigint[], $7::bigint[]) ON CONFLICT (\"id\", \"part\") DO UPDATE SET \"n\" = t.\"n\" + excluded.\"n\", \
             \"total\" = t.\"total\" + excluded.\"total\", \
             \"first\" = least(t.\"first\" COLLATE pg_catalog.\"C\", excluded.\"first\" COLLATE pg_catalog.\"C\"), \
             \"late\" = greatest(t.\"late\", excluded.\"late\"), \"seen\" = excluded.\"seen\""
        );
        assert_eq!(without.rows, 2);
        assert_eq!(
            without.parameters,
            [
                Parameter::Text(vec![text("x"), text("y")]),
                Parameter::Integer(vec![Some(1), Some(2)]),
                Parameter::Integer(vec![Some(1), Some(2)]),
                Parameter::Text(vec![text("0"), text("0.35")]),
                Parameter::Text(vec![None, text("x")]),
                Parameter::Bigint(vec![None, Some(5)]),
                Parameter::Bigint(vec![Some(1001), Some(1002)]),
            ]
        );
        assert!(with.sql.contains("\"note\" = excluded.\"note\""), "{}", with.sql);
        assert_eq!(with.parameters[2], Parameter::Integer(vec![Some(0)]), "an untouched counter adds nothing");
        assert_eq!(with.parameters[6], Parameter::Boolean(vec![Some(true)]));
    }

    #[test]
    fn bounds_need_the_form_with_a_join() {
        let projection = projection(json!({
            "A": {"n": {"op": "add", "by": "event.n", "floor": 0}, "total": {"op": "add", "by": "event.n"}}}));
        let folded = fold(&projection, &[("A", "x", r#"{"part": 1, "n": 9000000000}"#), ("B", "y", r#"{"part": 1}"#)]);
        let statements = statements(&projection, "p", folded).unwrap();
        let [statement] = statements.as_slice() else { panic!("{statements:?}") };
        assert_eq!(
            statement.sql,
            "WITH i (p1, p2, p3, p4, p5, p6, p7) AS (SELECT * FROM unnest($1::text[], $2::integer[], \
             $3::text[]::numeric[], $4::text[]::numeric[], $5::text[]::numeric[], $6::text[]::numeric[], $7::bigint[])), \
             u AS (UPDATE p AS t SET \"n\" = least(greatest(t.\"n\" + i.p3, i.p4), i.p5), \
             \"total\" = t.\"total\" + i.p6, \"seen\" = i.p7 FROM i \
             WHERE t.\"id\" = i.p1 AND t.\"part\" = i.p2 RETURNING i.p1, i.p2) \
             INSERT INTO p (\"id\", \"part\", \"n\", \"total\", \"seen\") \
             SELECT i.p1, i.p2, least(greatest(i.p3, i.p4), i.p5), i.p6, i.p7 FROM i \
             WHERE NOT EXISTS (SELECT FROM u WHERE u.p1 = i.p1 AND u.p2 = i.p2)"
        );
        assert_eq!(statement.parameters[2], Parameter::Text(vec![text("9000000000"), text("0")]));
        assert_eq!(statement.parameters[3], Parameter::Text(vec![text("0"), None]));
        assert_eq!(statement.parameters[4], Parameter::Text(vec![None, None]));
    }

    #[test]
    fn a_sum_that_the_column_cannot_hold_is_named() {
        let projection = projection(json!({"A": {"n": {"op": "add", "by": "event.n"}}}));
        let folded =
            fold(&projection, &[("A", "x", r#"{"part": 1, "n": 2147483647}"#), ("A", "x", r#"{"part": 1, "n": 1}"#)]);
        let error = statements(&projection, "p", folded).unwrap_err();
        assert_eq!(error.to_string(), "column \"n\": 2147483648 is out of range for type integer");
    }

    #[test]
    fn a_table_of_keys_alone_is_only_filled() {
        let document = json!({"projections": {"p": {
            "source_events": ["A"], "target": {"table": "p", "primary_key": ["id"]},
            "fields": {"id": "TEXT"}, "derive": {"id": "event.key"}}}});
        let projection = parse_document(&document).unwrap().projections.remove(0);
        let statements = statements(&projection, "p", fold(&projection, &[("A", "x", "{}")])).unwrap();
        assert_eq!(
            statements[0].sql,
            "INSERT INTO p AS t (\"id\") SELECT * FROM unnest($1::text[]) ON CONFLICT (\"id\") DO NOTHING"
        );
        let empty = super::statements(&projection, "p", fold(&projection, &[]));
        assert_eq!(empty, Ok(vec![]));
    }
}
