//! From a folded batch to statements: each writes many rows, which are sent as arrays, sorted by key.
//!
//! Rows in which the same `set` columns are touched go into one statement, for a column that is not touched must not
//! be named; mostly that is one statement for the batch. A statement's text depends on the projection, the table and
//! that set alone, so it can be prepared once.
//!
//! There are two forms.
//! - INSERT … ON CONFLICT DO UPDATE, also safe where several lanes write a row at once. A sum must fit its column.
//! - For projections with a floor or a ceiling, UPDATE … FROM and INSERT of the rows that were missing, in one
//!   statement: ON CONFLICT can see no more than the table's own columns, and the bounds are none of these. It is right
//!   because each row has one writer: bounded sums do not commute, so PROJ-2 lets no second lane near. If a stranger
//!   inserts a row in between, the statement fails with 23505, and nothing is lost. Sums go as numeric, so only the
//!   stored value must fit.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use lanes_core::projection::{
    Change, ColumnType, Folded, FoldedRow, Number, Projection, Value, ValueColumn, ValueKind,
};
use tokio_postgres::types::ToSql;

use super::table::quote;

/// The values of one column, one per row. NUMERIC goes as text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Parameter {
    /// For `text[]`.
    Text(Vec<Option<String>>),
    /// For `integer[]`.
    Integer(Vec<Option<i32>>),
    /// For `bigint[]`.
    Bigint(Vec<Option<i64>>),
    /// For `boolean[]`.
    Boolean(Vec<Option<bool>>),
}

impl Parameter {
    /// The array as tokio-postgres binds it.
    pub fn as_sql(&self) -> &(dyn ToSql + Sync) {
        match self {
            Parameter::Text(values) => values,
            Parameter::Integer(values) => values,
            Parameter::Bigint(values) => values,
            Parameter::Boolean(values) => values,
        }
    }
}

/// A statement and its parameters, `$1` first.
#[derive(Debug, Clone, PartialEq, Eq)]
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

/// The statements that apply a batch. `table` is the table's name as SQL, quoted where needed.
///
/// # Errors
/// [`OutOfRange`] for a sum that cannot be sent.
pub fn statements(projection: &Projection, table: &str, folded: Folded) -> Result<Vec<Statement>, OutOfRange> {
    let mut groups: BTreeMap<Vec<bool>, Vec<FoldedRow>> = BTreeMap::new();
    for row in folded.rows {
        groups.entry(written(projection, &row)).or_default().push(row);
    }
    groups.into_iter().map(|(written, rows)| statement(projection, table, &written, rows)).collect()
}

/// Which value columns a statement for this row names: all but the untouched `set` columns.
fn written(projection: &Projection, row: &FoldedRow) -> Vec<bool> {
    let columns = projection.value_columns.iter().zip(&row.changes);
    columns.map(|(column, change)| column.kind != ValueKind::Set || *change != Change::Untouched).collect()
}

fn is_bounded(projection: &Projection) -> bool {
    projection.value_columns.iter().any(|column| column.kind == ValueKind::Add { bounded: true })
}

fn statement(
    projection: &Projection,
    table: &str,
    written: &[bool],
    rows: Vec<FoldedRow>,
) -> Result<Statement, OutOfRange> {
    let bounded = is_bounded(projection);
    let columns: Vec<&ValueColumn> = selected(&projection.value_columns, written).collect();
    let count = rows.len();
    let mut keys: Vec<Array> =
        projection.key_columns.iter().map(|column| Array::new(column.column_type, count)).collect();
    let mut values: Vec<Vec<Array>> = columns
        .iter()
        .map(|column| sent_types(column, bounded).map(|sent| Array::new(sent, count)).collect())
        .collect();
    for row in rows {
        for (array, value) in keys.iter_mut().zip(row.key) {
            array.push(Some(value));
        }
        let changes = row.changes.into_iter().zip(written).filter(|(_, written)| **written).map(|(change, _)| change);
        for ((arrays, column), change) in values.iter_mut().zip(&columns).zip(changes) {
            push_change(arrays, column, change)?;
        }
    }
    let sql = if bounded { join_sql(projection, table, &columns) } else { upsert_sql(projection, table, &columns) };
    let arrays = keys.into_iter().chain(values.into_iter().flatten());
    Ok(Statement { sql, parameters: arrays.map(|array| array.0).collect(), rows: count })
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
            ColumnType::Text | ColumnType::Numeric => Parameter::Text(Vec::with_capacity(rows)),
            ColumnType::Int => Parameter::Integer(Vec::with_capacity(rows)),
            ColumnType::Bigint => Parameter::Bigint(Vec::with_capacity(rows)),
            ColumnType::Boolean => Parameter::Boolean(Vec::with_capacity(rows)),
        })
    }

    /// Adds a value of the column's type; the fold has checked its range.
    fn push(&mut self, value: Option<Value>) {
        match &mut self.0 {
            Parameter::Text(values) => values.push(value.map(|value| match value {
                Value::Text(text) => text,
                other => other.to_string(),
            })),
            Parameter::Integer(values) => values.push(integer(value).and_then(|value| i32::try_from(value).ok())),
            Parameter::Bigint(values) => values.push(integer(value)),
            Parameter::Boolean(values) => values.push(match value {
                Some(Value::Boolean(boolean)) => Some(boolean),
                _ => None,
            }),
        }
    }

    /// Adds a number; none if it does not fit.
    fn push_number(&mut self, number: &Number) -> Option<()> {
        match &mut self.0 {
            Parameter::Text(values) => values.push(Some(number.to_text())),
            Parameter::Integer(values) => values.push(Some(i32::try_from(number.to_bigint()?).ok()?)),
            Parameter::Bigint(values) => values.push(Some(number.to_bigint()?)),
            Parameter::Boolean(_) => return None,
        }
        Some(())
    }
}

fn integer(value: Option<Value>) -> Option<i64> {
    match value {
        Some(Value::Integer(integer)) => Some(integer),
        _ => None,
    }
}

fn push_change(arrays: &mut [Array], column: &ValueColumn, change: Change) -> Result<(), OutOfRange> {
    let [first, bounds @ ..] = arrays else { return Ok(()) };
    let (sum, floor, ceiling) = match change {
        Change::Set(value) => {
            first.push(value);
            return Ok(());
        }
        Change::Min(value) | Change::Max(value) => {
            first.push(Some(value));
            return Ok(());
        }
        Change::Untouched if !column.kind.starts_at_zero() => {
            first.push(None);
            return Ok(());
        }
        Change::Untouched => (Number::ZERO, None, None),
        Change::Add { sum, floor, ceiling } => (sum, floor, ceiling),
    };
    first.push_number(&sum).ok_or_else(|| OutOfRange {
        column: column.name.clone(),
        value: shortened(sum.to_text()),
        column_type: column.column_type.sql_name(),
    })?;
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

/// `unnest($1::text[], …)`, with the parameters' number.
fn unnest_sql(types: impl Iterator<Item = ColumnType>) -> (String, usize) {
    let mut sql = String::from("unnest(");
    let mut count = 0;
    for column_type in types {
        count += 1;
        let comma = if count == 1 { "" } else { ", " };
        let cast = match column_type {
            ColumnType::Numeric => "text[]::numeric[]".to_owned(),
            other => format!("{}[]", other.sql_name()),
        };
        // Writing to a String cannot fail.
        let _ = write!(sql, "{comma}${count}::{cast}");
    }
    sql.push(')');
    (sql, count)
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

/// The form without bounds.
fn upsert_sql(projection: &Projection, table: &str, columns: &[&ValueColumn]) -> String {
    let key_types = projection.key_columns.iter().map(|column| column.column_type);
    let (unnest, _) = unnest_sql(key_types.chain(columns.iter().map(|column| column.column_type)));
    let key = quoted(projection.key_columns.iter().map(|column| &column.name));
    let names = quoted(
        projection.key_columns.iter().map(|column| &column.name).chain(columns.iter().map(|column| &column.name)),
    );
    let assignments: Vec<String> = columns
        .iter()
        .map(|column| {
            let name = quote(&column.name);
            let (stored, sent) = (format!("t.{name}"), format!("excluded.{name}"));
            let value = match column.kind {
                ValueKind::Set => sent,
                ValueKind::Add { .. } => format!("{stored} + {sent}"),
                ValueKind::Min | ValueKind::Max => extreme_sql(column, &stored, &sent),
            };
            format!("{name} = {value}")
        })
        .collect();
    let action = if assignments.is_empty() {
        "DO NOTHING".to_owned()
    } else {
        format!("DO UPDATE SET {}", assignments.join(", "))
    };
    format!("INSERT INTO {table} AS t ({names}) SELECT * FROM {unnest} ON CONFLICT ({key}) {action}")
}

/// The form with bounds. The arrays are called p1, p2 and so on.
fn join_sql(projection: &Projection, table: &str, columns: &[&ValueColumn]) -> String {
    let key_types = projection.key_columns.iter().map(|column| column.column_type);
    let (unnest, count) = unnest_sql(key_types.chain(columns.iter().flat_map(|column| sent_types(column, true))));
    let parameters: Vec<String> = (1..=count).map(|number| format!("p{number}")).collect();
    let key_count = projection.key_columns.len();

    let mut updates = Vec::new();
    let mut inserts: Vec<String> = (1..=key_count).map(|number| format!("i.p{number}")).collect();
    let mut at = key_count + 1;
    for column in columns {
        let name = quote(&column.name);
        let (stored, sent) = (format!("t.{name}"), format!("i.p{at}"));
        let bounds = |value: String| format!("least(greatest({value}, i.p{}), i.p{})", at + 1, at + 2);
        let (update, insert) = match column.kind {
            ValueKind::Set => (sent.clone(), sent),
            ValueKind::Add { bounded: true } => (bounds(format!("{stored} + {sent}")), bounds(sent)),
            ValueKind::Add { bounded: false } => (format!("{stored} + {sent}"), sent),
            ValueKind::Min | ValueKind::Max => (extreme_sql(column, &stored, &sent), sent),
        };
        updates.push(format!("{name} = {update}"));
        inserts.push(insert);
        at += sent_types(column, true).count();
    }
    let same = |left: &str, names: &[String]| {
        let pairs = names.iter().zip(1..).map(|(name, number)| format!("{left}.{name} = i.p{number}"));
        pairs.collect::<Vec<_>>().join(" AND ")
    };
    let key_names: Vec<String> = projection.key_columns.iter().map(|column| quote(&column.name)).collect();
    let key_parameters: Vec<String> = parameters.iter().take(key_count).cloned().collect();
    let names = quoted(
        projection.key_columns.iter().map(|column| &column.name).chain(columns.iter().map(|column| &column.name)),
    );
    format!(
        "WITH i ({parameters}) AS (SELECT * FROM {unnest}), \
         u AS (UPDATE {table} AS t SET {updates} FROM i WHERE {join} RETURNING {returning}) \
         INSERT INTO {table} ({names}) SELECT {inserts} FROM i WHERE NOT EXISTS (SELECT FROM u WHERE {missing})",
        parameters = parameters.join(", "),
        updates = updates.join(", "),
        join = same("t", &key_names),
        returning = key_parameters.iter().map(|name| format!("i.{name}")).collect::<Vec<_>>().join(", "),
        inserts = inserts.join(", "),
        missing = same("u", &key_parameters),
    )
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
        parse_document(&document).unwrap().remove(0)
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
        let projection = parse_document(&document).unwrap().remove(0);
        let statements = statements(&projection, "p", fold(&projection, &[("A", "x", "{}")])).unwrap();
        assert_eq!(
            statements[0].sql,
            "INSERT INTO p AS t (\"id\") SELECT * FROM unnest($1::text[]) ON CONFLICT (\"id\") DO NOTHING"
        );
        let empty = super::statements(&projection, "p", fold(&projection, &[]));
        assert_eq!(empty, Ok(vec![]));
    }
}
