//! Reading definitions: the document's shape, names, types, and whether lanes could get into each other's way.
//!
//! Format: `{"projections": {NAME: {source_events, target, fields, derive, aggregates, lanes, lane_key}}}`, as in the
//! project's `testdata/projections.yaml`. Every error names its place in the document. Names of the language that this
//! version does not have are told apart from names it never had.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value as Json};

use super::expression::{ExpressionError, kind_of};
use super::{
    ColumnType, Expression, Field, KeyColumn, Number, Operation, Projection, Sharing, Target, Value, ValueColumn,
    ValueKind,
};
use crate::event::MAXIMUM_TYPE_BYTES;
use crate::lane;

/// The most columns of a table in Postgres.
const MAXIMUM_COLUMNS: usize = 1600;

/// The most columns of a primary key in Postgres.
const MAXIMUM_KEY_COLUMNS: usize = 32;

/// Columns that every table in Postgres has already.
const SYSTEM_COLUMNS: [&str; 6] = ["tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"];

/// Types of the language that this version does not have.
const LATER_TYPES: [&str; 8] = ["DOUBLE", "DOUBLE PRECISION", "TIMESTAMPTZ", "DATE", "UUID", "JSONB", "TEXT[]", "JSON"];

/// What the view over a bucketed table is called: the table's name with this behind it.
pub const TOTAL_VIEW_SUFFIX: &str = "_total";

/// Why a document is refused, and where in it. The text is one line: the place, then what is wrong.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{path}: {message}")]
pub struct DefinitionError {
    path: String,
    message: String,
    hint: Option<String>,
}

impl DefinitionError {
    /// The place in the document, such as `projections.orders.fields.total`.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is wrong, without the place.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The way out, in full sentences.
    pub fn hint(&self) -> Option<String> {
        self.hint.clone()
    }

    fn with_hint(mut self, hint: impl Into<String>) -> DefinitionError {
        self.hint = Some(hint.into());
        self
    }
}

/// The names that an object may have here: those of this version, and those of the language that come later.
struct Names {
    known: &'static [&'static str],
    later: &'static [&'static str],
}

const DOCUMENT: Names = Names { known: &["projections"], later: &["queries", "stores"] };

const PROJECTION: Names = Names {
    known: &["source_events", "target", "fields", "derive", "aggregates", "lanes", "lane_key"],
    later: &[
        "type",
        "processing",
        "checkpointing",
        "retry",
        "priority",
        "indexes",
        "sql",
        "single_row_bucket",
        "queries",
        "stores",
        "source",
        "store",
    ],
};

const TARGET: Names = Names { known: &["table", "primary_key"], later: &["partitioning"] };

const OPERATIONS: Names = Names { known: &["add", "count", "set", "min", "max"], later: &["set_once", "delete"] };

const ADD: Names = Names { known: &["op", "by", "floor", "ceiling"], later: &[] };
const COUNT: Names = Names { known: &["op"], later: &[] };
const SET: Names = Names { known: &["op", "value"], later: &["newer_by"] };
const EXTREME: Names = Names { known: &["op", "value"], later: &[] };

/// A piece of the document and its place.
#[derive(Clone)]
struct Place<'a> {
    path: String,
    json: &'a Json,
}

impl<'a> Place<'a> {
    fn error(&self, message: impl Into<String>) -> DefinitionError {
        let path = if self.path.is_empty() { "document" } else { &self.path };
        DefinitionError { path: path.to_owned(), message: message.into(), hint: None }
    }

    fn at(&self, name: &str, json: &'a Json) -> Place<'a> {
        let dot = if self.path.is_empty() { "" } else { "." };
        Place { path: format!("{}{dot}{name}", self.path), json }
    }

    fn object(&self) -> Result<&'a Map<String, Json>, DefinitionError> {
        self.json.as_object().ok_or_else(|| self.error(format!("must be an object, not {}", kind_of(self.json))))
    }

    /// The entries of an object whose names are free.
    fn entries(&self) -> Result<Vec<(&'a str, Place<'a>)>, DefinitionError> {
        Ok(self.object()?.iter().map(|(name, json)| (name.as_str(), self.at(name, json))).collect())
    }

    /// Refuses names that this object cannot have.
    fn check_names(&self, names: &Names) -> Result<(), DefinitionError> {
        for (name, place) in self.entries()? {
            if !names.known.contains(&name) {
                return Err(place.unknown("key", name, names));
            }
        }
        Ok(())
    }

    fn unknown(&self, what: &str, name: &str, names: &Names) -> DefinitionError {
        let error = if names.later.contains(&name) {
            self.error(format!("this version does not support {what} \"{name}\""))
        } else {
            self.error(format!("{what} \"{name}\" is not known"))
        };
        error.with_hint(format!("Known here: {}.", names.known.join(", ")))
    }

    fn optional(&self, name: &str) -> Result<Option<Place<'a>>, DefinitionError> {
        Ok(self.object()?.get(name).map(|json| self.at(name, json)))
    }

    fn required(&self, name: &str) -> Result<Place<'a>, DefinitionError> {
        self.optional(name)?.ok_or_else(|| self.error(format!("\"{name}\" is missing")))
    }

    fn text(&self) -> Result<&'a str, DefinitionError> {
        self.json.as_str().ok_or_else(|| self.error(format!("must be text, not {}", kind_of(self.json))))
    }

    /// A list of texts, none of them twice, at least one.
    fn texts(&self) -> Result<Vec<(&'a str, Place<'a>)>, DefinitionError> {
        let Json::Array(items) = self.json else {
            return Err(self.error(format!("must be a list, not {}", kind_of(self.json))));
        };
        if items.is_empty() {
            return Err(self.error("must not be empty"));
        }
        let mut texts: Vec<(&str, Place<'_>)> = Vec::with_capacity(items.len());
        let mut seen = BTreeSet::new();
        for (index, json) in items.iter().enumerate() {
            let place = Place { path: format!("{}[{index}]", self.path), json };
            let text = place.text()?;
            if !seen.insert(text) {
                return Err(place.error(format!("\"{text}\" is named twice")));
            }
            texts.push((text, place));
        }
        Ok(texts)
    }

    fn expression(&self) -> Result<Expression, DefinitionError> {
        Expression::from_document(self.json).map_err(|error| self.expression_error(error))
    }

    fn expression_error(&self, error: ExpressionError) -> DefinitionError {
        self.error(error.message).with_hint(error.hint)
    }

    /// The expression for a column of this type. `lane()` is no value of an event, so only a key column may hold it.
    fn value_expression(&self, column_type: ColumnType) -> Result<Expression, DefinitionError> {
        let expression = self.expression()?.typed(column_type).map_err(|error| self.expression_error(error))?;
        if expression == Expression::Lane {
            return Err(self
                .error("lane() can only be a column of the primary key")
                .with_hint("Add the column to target.primary_key, or derive it from a field of the event."));
        }
        Ok(expression)
    }
}

/// Reads and checks a document of definitions. All of it is accepted or none.
///
/// # Errors
/// [`DefinitionError`] for the first thing that is wrong.
pub fn parse_document(document: &Json) -> Result<Vec<Projection>, DefinitionError> {
    let root = Place { path: String::new(), json: document };
    root.check_names(&DOCUMENT)?;
    let places = root.required("projections")?;
    let entries = places.entries()?;
    if entries.is_empty() {
        return Err(places.error("must not be empty"));
    }
    let mut projections = Vec::with_capacity(entries.len());
    let mut tables: BTreeMap<String, String> = BTreeMap::new();
    for (name, place) in entries {
        let projection = parse_projection(name, &place)?;
        if let Some(other) = tables.insert(projection.target.table.clone(), name.to_owned()) {
            let table = &projection.target.table;
            return Err(place
                .required("target")?
                .required("table")?
                .error(format!("table \"{table}\" is already that of projection \"{other}\""))
                .with_hint("Give each projection a table of its own."));
        }
        projections.push(projection);
    }
    Ok(projections)
}

fn parse_projection(name: &str, place: &Place<'_>) -> Result<Projection, DefinitionError> {
    if !lane::is_projection_name(name) {
        return Err(place.error(format!("\"{name}\" is not a projection's name")).with_hint(NAME_HINT));
    }
    place.check_names(&PROJECTION)?;
    let source_events = parse_source_events(&place.required("source_events")?)?;
    let lanes = place.optional("lanes")?.map_or(Ok(1), |lanes| parse_lanes(&lanes))?;
    let fields = parse_fields(&place.required("fields")?)?;
    let derived = parse_derive(place, &fields)?;
    let target = parse_target(&place.required("target")?, &fields, &derived)?;
    let key_columns = parse_key_columns(&target, &fields, &derived)?;
    let mut aggregates = parse_aggregates(place, &source_events, &fields, &target, &derived)?;

    let mut value_columns = Vec::new();
    for field in fields.iter().filter(|field| !target.primary_key.contains(&field.name)) {
        value_columns.push(match (derived.get(field.name.as_str()), aggregates.remove(field.name.as_str())) {
            (Some(derive), _) => {
                let operation = Operation::Set(derive.value_expression(field.column_type)?);
                ValueColumn {
                    name: field.name.clone(),
                    column_type: field.column_type,
                    kind: ValueKind::Set,
                    operations: vec![Some(operation); source_events.len()],
                }
            }
            (None, Some(column)) => column,
            (None, None) => {
                let place = place.required("fields")?;
                return Err(place
                    .at(&field.name, place.json)
                    .error("is neither derived nor aggregated")
                    .with_hint("Give it an expression under derive, or an operation under aggregates, or remove it."));
            }
        });
    }

    let (lane_key, lane_key_type) = parse_lane_key(place, &key_columns)?;
    let sharing = check_sharing(place, lanes, &lane_key, &target, &key_columns, &value_columns)?;
    Ok(Projection {
        name: name.to_owned(),
        lanes,
        lane_key,
        lane_key_type,
        source_events,
        target,
        fields,
        key_columns,
        value_columns,
        sharing,
        definition: place.json.clone(),
    })
}

const NAME_HINT: &str =
    "Use lower-case letters, digits and underscores, not beginning with a digit, at most 63 characters.";

fn parse_source_events(place: &Place<'_>) -> Result<Vec<String>, DefinitionError> {
    let mut events = Vec::new();
    for (event_type, place) in place.texts()? {
        if event_type.is_empty() || event_type.len() > MAXIMUM_TYPE_BYTES || event_type.contains('\0') {
            return Err(place.error(format!("an event type has 1 to {MAXIMUM_TYPE_BYTES} bytes without U+0000")));
        }
        events.push(event_type.to_owned());
    }
    Ok(events)
}

fn parse_lanes(place: &Place<'_>) -> Result<u32, DefinitionError> {
    let maximum = lane::MAXIMUM_LANES;
    let number = place.json.as_u64().and_then(|lanes| u32::try_from(lanes).ok());
    number.filter(|lanes| (1..=maximum).contains(lanes)).ok_or_else(|| {
        let given = match place.json {
            Json::Number(number) => number.to_string(),
            other => kind_of(other).to_owned(),
        };
        place.error(format!("must be a whole number between 1 and {maximum}, not {given}"))
    })
}

/// A name that needs no quotes in SQL. (Projections' names follow the same rule.)
fn check_identifier(place: &Place<'_>, what: &str, name: &str) -> Result<(), DefinitionError> {
    if lane::is_projection_name(name) {
        return Ok(());
    }
    Err(place.error(format!("\"{name}\" is not the name of a {what}")).with_hint(NAME_HINT))
}

fn parse_fields(place: &Place<'_>) -> Result<Vec<Field>, DefinitionError> {
    let entries = place.entries()?;
    if entries.is_empty() {
        return Err(place.error("must not be empty"));
    }
    if entries.len() > MAXIMUM_COLUMNS {
        return Err(place.error(format!("a table has at most {MAXIMUM_COLUMNS} columns, not {}", entries.len())));
    }
    let mut fields = Vec::with_capacity(entries.len());
    for (name, place) in entries {
        check_identifier(&place, "column", name)?;
        if SYSTEM_COLUMNS.contains(&name) {
            return Err(place
                .error(format!("\"{name}\" is a system column of every table"))
                .with_hint("Give the column another name."));
        }
        let given = place.text()?;
        let upper = given.trim().to_ascii_uppercase();
        let column_type = ColumnType::ALL.into_iter().find(|column_type| column_type.name() == upper);
        let column_type = column_type.ok_or_else(|| {
            let known: Vec<&str> = ColumnType::ALL.iter().map(|column_type| column_type.name()).collect();
            let error = if LATER_TYPES.contains(&upper.as_str()) {
                place.error(format!("this version does not support type \"{given}\""))
            } else {
                place.error(format!("type \"{given}\" is not known"))
            };
            error.with_hint(format!("Known types: {}.", known.join(", ")))
        })?;
        fields.push(Field { name: name.to_owned(), column_type });
    }
    Ok(fields)
}

fn find_field<'a>(place: &Place<'_>, fields: &'a [Field], name: &str) -> Result<&'a Field, DefinitionError> {
    fields.iter().find(|field| field.name == name).ok_or_else(|| {
        let known: Vec<&str> = fields.iter().map(|field| field.name.as_str()).collect();
        place
            .error(format!("column \"{name}\" is not among the fields"))
            .with_hint(format!("Fields: {}.", known.join(", ")))
    })
}

/// The places of the derived columns' expressions.
fn parse_derive<'a>(place: &Place<'a>, fields: &[Field]) -> Result<BTreeMap<&'a str, Place<'a>>, DefinitionError> {
    let Some(place) = place.optional("derive")? else { return Ok(BTreeMap::new()) };
    let mut derived = BTreeMap::new();
    for (name, place) in place.entries()? {
        find_field(&place, fields, name)?;
        derived.insert(name, place);
    }
    Ok(derived)
}

fn parse_target(
    place: &Place<'_>,
    fields: &[Field],
    derived: &BTreeMap<&str, Place<'_>>,
) -> Result<Target, DefinitionError> {
    place.check_names(&TARGET)?;
    let table_place = place.required("table")?;
    let table = table_place.text()?;
    match table.split_once('.') {
        None => check_identifier(&table_place, "table", table)?,
        Some((schema, name)) => {
            check_identifier(&table_place, "schema", schema)?;
            check_identifier(&table_place, "table", name)?;
        }
    }
    let key_place = place.required("primary_key")?;
    let mut primary_key = Vec::new();
    for (name, place) in key_place.texts()? {
        find_field(&place, fields, name)?;
        if !derived.contains_key(name) {
            return Err(place
                .error(format!("column \"{name}\" of the primary key is not derived"))
                .with_hint(format!("Say under derive where {name} comes from.")));
        }
        primary_key.push(name.to_owned());
    }
    if primary_key.len() > MAXIMUM_KEY_COLUMNS {
        let count = primary_key.len();
        return Err(key_place.error(format!("a primary key has at most {MAXIMUM_KEY_COLUMNS} columns, not {count}")));
    }
    Ok(Target { table: table.to_owned(), primary_key })
}

fn parse_key_columns(
    target: &Target,
    fields: &[Field],
    derived: &BTreeMap<&str, Place<'_>>,
) -> Result<Vec<KeyColumn>, DefinitionError> {
    let mut columns = Vec::with_capacity(target.primary_key.len());
    for name in &target.primary_key {
        let Some(derive) = derived.get(name.as_str()) else { continue };
        let field = find_field(derive, fields, name)?;
        let expression =
            derive.expression()?.typed(field.column_type).map_err(|error| derive.expression_error(error))?;
        columns.push(KeyColumn { name: name.clone(), column_type: field.column_type, expression });
    }
    Ok(columns)
}

/// The aggregated columns with what each source event does to them.
fn parse_aggregates<'a>(
    place: &Place<'a>,
    source_events: &[String],
    fields: &[Field],
    target: &Target,
    derived: &BTreeMap<&str, Place<'_>>,
) -> Result<BTreeMap<&'a str, ValueColumn>, DefinitionError> {
    let Some(place) = place.optional("aggregates")? else { return Ok(BTreeMap::new()) };
    let mut columns: BTreeMap<&str, ValueColumn> = BTreeMap::new();
    for (event_type, place) in place.entries()? {
        let Some(source) = source_events.iter().position(|source| source == event_type) else {
            return Err(place
                .error(format!("event type \"{event_type}\" is not among the source_events"))
                .with_hint(format!("Source events: {}.", source_events.join(", "))));
        };
        for (name, place) in place.entries()? {
            let field = find_field(&place, fields, name)?;
            if target.primary_key.iter().any(|column| column == name) {
                return Err(place
                    .error(format!("column \"{name}\" is part of the primary key and cannot be aggregated"))
                    .with_hint("A column of the primary key is derived."));
            }
            if derived.contains_key(name) {
                return Err(place
                    .error(format!("column \"{name}\" is both derived and aggregated"))
                    .with_hint("Remove it from derive or from aggregates."));
            }
            let (operation, kind) = parse_operation(&place, field)?;
            let column = columns.entry(name).or_insert_with(|| ValueColumn {
                name: name.to_owned(),
                column_type: field.column_type,
                kind,
                operations: vec![None; source_events.len()],
            });
            column.kind = join_kinds(column.kind, kind).ok_or_else(|| {
                place
                    .error(format!("column \"{name}\" has operations of different kinds"))
                    .with_hint("On one column, add and count go together; set, min and max each stand alone.")
            })?;
            if let Some(slot) = column.operations.get_mut(source) {
                *slot = Some(operation);
            }
        }
    }
    Ok(columns)
}

fn join_kinds(left: ValueKind, right: ValueKind) -> Option<ValueKind> {
    match (left, right) {
        (ValueKind::Add { bounded: left }, ValueKind::Add { bounded: right }) => {
            Some(ValueKind::Add { bounded: left || right })
        }
        _ if left == right => Some(left),
        _ => None,
    }
}

fn parse_operation(place: &Place<'_>, field: &Field) -> Result<(Operation, ValueKind), DefinitionError> {
    let op_place = place.required("op")?;
    let op = op_place.text()?;
    let type_name = field.column_type.name();
    match op {
        "add" | "count" if !field.column_type.is_number() => {
            return Err(op_place
                .error(format!("{op} needs a number, and column \"{}\" has type {type_name}", field.name))
                .with_hint("Give the column the type INT, BIGINT or NUMERIC."));
        }
        "min" | "max" if field.column_type == ColumnType::Boolean => {
            return Err(op_place
                .error(format!("{op} needs values with an order, and column \"{}\" has type {type_name}", field.name))
                .with_hint("Give the column another type, or use set."));
        }
        _ => {}
    }
    Ok(match op {
        "add" => {
            place.check_names(&ADD)?;
            let by = place.required("by")?.value_expression(field.column_type)?;
            let floor = place.optional("floor")?.map(|bound| parse_bound(&bound, field)).transpose()?;
            let ceiling = place.optional("ceiling")?.map(|bound| parse_bound(&bound, field)).transpose()?;
            if let (Some(low), Some(high)) = (&floor, &ceiling)
                && low > high
            {
                return Err(place.error(format!("floor {} is above ceiling {}", low.to_text(), high.to_text())));
            }
            let bounded = floor.is_some() || ceiling.is_some();
            (Operation::Add { by, floor, ceiling }, ValueKind::Add { bounded })
        }
        "count" => {
            place.check_names(&COUNT)?;
            (Operation::Count, ValueKind::Add { bounded: false })
        }
        "set" => {
            place.check_names(&SET)?;
            (Operation::Set(place.required("value")?.value_expression(field.column_type)?), ValueKind::Set)
        }
        "min" => {
            place.check_names(&EXTREME)?;
            (Operation::Min(place.required("value")?.value_expression(field.column_type)?), ValueKind::Min)
        }
        "max" => {
            place.check_names(&EXTREME)?;
            (Operation::Max(place.required("value")?.value_expression(field.column_type)?), ValueKind::Max)
        }
        other => return Err(op_place.unknown("operation", other, &OPERATIONS)),
    })
}

/// A floor or ceiling: a number that the column can hold.
fn parse_bound(place: &Place<'_>, field: &Field) -> Result<Number, DefinitionError> {
    let type_name = field.column_type.name();
    match place.expression()? {
        Expression::Literal(value @ (Value::Integer(_) | Value::Numeric(_))) => match value.cast(field.column_type) {
            Ok(Value::Integer(integer)) => Ok(Number::Integer(integer.into())),
            Ok(Value::Numeric(decimal)) => Ok(Number::Decimal(decimal)),
            _ => Err(place.error(format!("{value} cannot be a value of type {type_name}"))),
        },
        other => Err(place.error(format!("must be a number, not {other}"))),
    }
}

fn parse_lane_key(place: &Place<'_>, key_columns: &[KeyColumn]) -> Result<(Expression, ColumnType), DefinitionError> {
    let expression = match place.optional("lane_key")? {
        None => Expression::Key,
        Some(place) => match place.expression()? {
            Expression::Lane => {
                return Err(place
                    .error("lane_key cannot be lane(), which follows from it")
                    .with_hint("Name a field of the event; the default is event.key."));
            }
            Expression::Literal(_) => {
                return Err(place
                    .error("a constant as lane_key would send every event to one lane")
                    .with_hint("Name a field of the event, or remove lane_key and set lanes: 1."));
            }
            expression => expression,
        },
    };
    let column = key_columns.iter().find(|column| column.expression == expression);
    let column_type = column.map_or(ColumnType::Text, |column| column.column_type);
    Ok((expression, column_type))
}

/// PROJ-2: refuses what would let two lanes write one row in a way that does not commute.
fn check_sharing(
    place: &Place<'_>,
    lanes: u32,
    lane_key: &Expression,
    target: &Target,
    key_columns: &[KeyColumn],
    value_columns: &[ValueColumn],
) -> Result<Sharing, DefinitionError> {
    let blocker = value_columns.iter().find(|column| !column.kind.commutes());
    let describe = |column: &ValueColumn| match column.kind {
        ValueKind::Add { .. } => format!("column \"{}\" has a floor or a ceiling", column.name),
        _ => format!("column \"{}\" is set to the last value", column.name),
    };
    if key_columns.iter().any(|column| column.expression == Expression::Lane) {
        if let Some(column) = blocker {
            return Err(place
                .error(format!(
                    "{}, which cannot be put together from the rows of several lanes (the primary key holds lane())",
                    describe(column)
                ))
                .with_hint(format!(
                    "In a table bucketed by lane() use add without floor and ceiling, count, min or max; \
                     or take lane() out of the primary key and make {lane_key} part of it; \
                     or move the column to a projection of its own."
                )));
        }
        if value_columns.is_empty() {
            return Err(place
                .error("a table bucketed by lane() needs a column to add up")
                .with_hint("Add a column with an operation under aggregates, or take lane() out of the primary key."));
        }
        if target.name().len() + TOTAL_VIEW_SUFFIX.len() > 63 {
            return Err(place.error(format!(
                "the name of a table bucketed by lane() has at most {} characters, for its view \"…{TOTAL_VIEW_SUFFIX}\"",
                63 - TOTAL_VIEW_SUFFIX.len()
            )));
        }
        return Ok(Sharing::Bucketed);
    }
    if key_columns.iter().any(|column| column.expression == *lane_key) {
        return Ok(Sharing::Plain);
    }
    match blocker {
        None => Ok(Sharing::Commuting),
        Some(_) if lanes == 1 => Ok(Sharing::OneLane),
        Some(column) => {
            let expressions: Vec<String> = key_columns.iter().map(|column| column.expression.to_string()).collect();
            Err(place
                .error(format!(
                    "two of the {lanes} lanes could write one row in any order: the primary key does not hold the \
                     lane key {lane_key}, and {}",
                    describe(column)
                ))
                .with_hint(format!(
                    "Either set lane_key to an expression of the primary key ({}); or add a column derived from \
                     lane() to the primary key, with operations that commute; or set lanes: 1.",
                    expressions.join(", ")
                )))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{Just, Strategy, prop_oneof, proptest};
    use serde_json::json;

    fn orders() -> Json {
        json!({"projections": {"orders": {
            "source_events": ["PLACED", "CANCELLED"],
            "lanes": 4,
            "target": {"table": "app.orders", "primary_key": ["id"]},
            "fields": {"status": "TEXT", "id": "BIGINT", "total": "numeric", "changes": "INT", "first_at": "BIGINT"},
            "derive": {"id": "event.key", "status": "event.type"},
            "aggregates": {
                "PLACED": {
                    "total": {"op": "add", "by": "event.amount", "floor": 0},
                    "changes": {"op": "count"},
                    "first_at": {"op": "min", "value": "event.ts"}},
                "CANCELLED": {"changes": {"op": "add", "by": 1}}}}}})
    }

    /// The document with one place changed, or removed (null).
    fn changed(pointer: &str, to: Json) -> Json {
        let mut document = orders();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let object = document.pointer_mut(&format!("/projections/orders{parent}")).unwrap().as_object_mut().unwrap();
        if to.is_null() {
            object.remove(name);
        } else {
            object.insert(name.to_owned(), to);
        }
        document
    }

    #[test]
    fn a_definition_is_read() {
        let document = orders();
        let projections = parse_document(&document).unwrap();
        let [orders] = projections.as_slice() else { panic!("{projections:?}") };
        assert_eq!((orders.name.as_str(), orders.lanes, orders.slots()), ("orders", 4, 1024));
        assert_eq!((orders.lane_key.clone(), orders.lane_key_type), (Expression::Key, ColumnType::Bigint));
        assert_eq!((orders.target.schema(), orders.target.name()), (Some("app"), "orders"));
        assert_eq!((orders.sharing, orders.is_bucketed()), (Sharing::Plain, false));
        let names: Vec<&str> = orders.fields.iter().map(|field| field.name.as_str()).collect();
        assert_eq!(names, ["status", "id", "total", "changes", "first_at"]);
        let kinds: Vec<ValueKind> = orders.value_columns.iter().map(|column| column.kind).collect();
        let add = |bounded| ValueKind::Add { bounded };
        assert_eq!(kinds, [ValueKind::Set, add(true), add(false), ValueKind::Min]);
        assert_eq!(orders.value_columns[2].operations[0], Some(Operation::Count));
        assert_eq!(orders.value_columns[3].operations[1], None);
        assert_eq!(orders.definition, document["projections"]["orders"]);
        assert_eq!((orders.source_event("CANCELLED"), orders.source_event("OTHER")), (Some(1), None));
    }

    #[test]
    fn wrong_places_are_named() {
        for (pointer, to, message) in [
            ("/fields/total", json!("BIGNUM"), "orders.fields.total: type \"BIGNUM\" is not known"),
            ("/fields/total", json!("uuid"), "orders.fields.total: this version does not support type \"uuid\""),
            ("/fields/total", json!(5), "orders.fields.total: must be text, not a number"),
            ("/fields/ctid", json!("INT"), "orders.fields.ctid: \"ctid\" is a system column"),
            ("/fields/Total", json!("INT"), "orders.fields.Total: \"Total\" is not the name of a column"),
            ("/fields/extra", json!("INT"), "orders.fields.extra: is neither derived nor aggregated"),
            ("/fields", json!({}), "orders.fields: must not be empty"),
            ("/fields", json!([]), "orders.fields: must be an object, not a list"),
            ("/fields", Json::Null, "orders: \"fields\" is missing"),
            ("/colour", json!(1), "orders.colour: key \"colour\" is not known"),
            ("/retry", json!({}), "orders.retry: this version does not support key \"retry\""),
            ("/type", json!("hot"), "orders.type: this version does not support key \"type\""),
            ("/source_events", json!([]), "orders.source_events: must not be empty"),
            ("/source_events", json!("PLACED"), "orders.source_events: must be a list, not text"),
            ("/source_events", json!(["PLACED", "PLACED"]), "orders.source_events[1]: \"PLACED\" is named twice"),
            ("/source_events", json!(["PLACED"]), "orders.aggregates.CANCELLED: event type \"CANCELLED\" is not among"),
            ("/source_events", json!(["a\u{0}"]), "orders.source_events[0]: an event type has"),
            ("/lanes", json!(0), "orders.lanes: must be a whole number between 1 and 1024, not 0"),
            ("/lanes", json!(1025), "orders.lanes: must be"),
            ("/lanes", json!(2.5), "orders.lanes: must be"),
            ("/lanes", json!("4"), "orders.lanes: must be a whole number between 1 and 1024, not text"),
            ("/lane_key", json!("lane()"), "orders.lane_key: lane_key cannot be lane()"),
            ("/lane_key", json!(1), "orders.lane_key: a constant"),
            ("/lane_key", json!("event.user"), "orders: two of the 4 lanes could write one row"),
            ("/target/table", json!("a.b.c"), "orders.target.table: \"b.c\" is not the name of a table"),
            ("/target/table", json!("x; drop table y"), "orders.target.table: "),
            ("/target/partitioning", json!({}), "orders.target.partitioning: this version does not support"),
            ("/target/primary_key", json!(["id", "id"]), "orders.target.primary_key[1]: \"id\" is named twice"),
            ("/target/primary_key", json!(["nope"]), "orders.target.primary_key[0]: column \"nope\" is not among"),
            ("/target/primary_key", json!(["total"]), "orders.target.primary_key[0]: column \"total\" of the primary"),
            ("/target/primary_key", Json::Null, "orders.target: \"primary_key\" is missing"),
            ("/derive/nope", json!("event.a"), "orders.derive.nope: column \"nope\" is not among the fields"),
            ("/derive/status", json!("lane()"), "orders.derive.status: lane() cannot be a value of type TEXT"),
            ("/derive/status", json!("status"), "orders.derive.status: \"status\" is not an expression"),
            ("/derive/id", json!("'abc'"), "orders.derive.id: 'abc' cannot be a value of type BIGINT"),
            ("/derive/total", json!("event.a"), "orders.aggregates.PLACED.total: column \"total\" is both derived"),
            ("/aggregates/PLACED/id", json!({"op": "count"}), "PLACED.id: column \"id\" is part of the primary key"),
            ("/aggregates/PLACED/nope", json!({"op": "count"}), "PLACED.nope: column \"nope\" is not among"),
            ("/aggregates/PLACED/total", json!({}), "PLACED.total: \"op\" is missing"),
            ("/aggregates/PLACED/total", json!({"op": "add"}), "PLACED.total: \"by\" is missing"),
            ("/aggregates/PLACED/total", json!({"op": "sub"}), "PLACED.total.op: operation \"sub\" is not known"),
            ("/aggregates/PLACED/total", json!({"op": "delete"}), "total.op: this version does not support operation"),
            (
                "/aggregates/PLACED/total",
                json!({"op": "set_once"}),
                "total.op: this version does not support operation",
            ),
            ("/aggregates/PLACED/total", json!({"op": "count", "by": 1}), "total.by: key \"by\" is not known"),
            (
                "/aggregates/PLACED/total",
                json!({"op": "set", "value": 1, "newer_by": []}),
                "total.newer_by: this version does not support key \"newer_by\"",
            ),
            ("/aggregates/PLACED/total", json!({"op": "add", "by": "lane()"}), "total.by: lane() cannot be a value"),
            ("/aggregates/PLACED/changes", json!({"op": "add", "by": "lane()"}), "changes.by: lane() can only be"),
            ("/aggregates/PLACED/changes", json!({"op": "add", "by": 0.5}), "changes.by: 0.5 cannot be a value"),
            ("/aggregates/PLACED/changes", json!({"op": "add", "by": 1, "floor": 0.5}), "changes.floor: 0.5 cannot"),
            ("/aggregates/PLACED/changes", json!({"op": "add", "by": 1, "floor": "event.a"}), "must be a number"),
            (
                "/aggregates/PLACED/changes",
                json!({"op": "add", "by": 1, "floor": 5, "ceiling": 4}),
                "changes: floor 5 is above ceiling 4",
            ),
            ("/aggregates/PLACED/changes", json!({"op": "max", "value": 1}), "has operations of different kinds"),
        ] {
            let error = parse_document(&changed(pointer, to)).expect_err(message);
            assert!(error.to_string().contains(message), "{message}: {error}");
            assert!(error.to_string().starts_with("projections.orders"), "{error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
        let error = parse_document(&changed("/fields/total", json!("BIGNUM"))).unwrap_err();
        assert_eq!(error.to_string(), "projections.orders.fields.total: type \"BIGNUM\" is not known");
        assert_eq!(error.hint().unwrap(), "Known types: TEXT, INT, BIGINT, NUMERIC, BOOLEAN.");
    }

    #[test]
    fn operations_need_types_that_have_them() {
        for (column_type, operation, message) in [
            ("TEXT", json!({"op": "count"}), "count needs a number"),
            ("BOOLEAN", json!({"op": "add", "by": 1}), "add needs a number"),
            ("BOOLEAN", json!({"op": "max", "value": true}), "max needs values with an order"),
        ] {
            let mut document = changed("/fields/total", json!(column_type));
            document["projections"]["orders"]["aggregates"]["PLACED"]["total"] = operation;
            let error = parse_document(&document).expect_err(message).to_string();
            assert!(error.contains(message), "{error}");
        }
    }

    #[test]
    fn documents_have_one_shape() {
        for (document, message) in [
            (json!([]), "document: must be an object, not a list"),
            (json!({}), "document: \"projections\" is missing"),
            (json!({"projections": {}}), "projections: must not be empty"),
            (json!({"projections": {"x": 1}}), "projections.x: must be an object, not a number"),
            (json!({"projections": {"X": {}}}), "projections.X: \"X\" is not a projection's name"),
            (json!({"projections": {"x~2": {}}}), "projections.x~2: \"x~2\" is not a projection's name"),
            (json!({"projections": {}, "queries": {}}), "queries: this version does not support key \"queries\""),
            (json!({"projektions": {}}), "projektions: key \"projektions\" is not known"),
        ] {
            assert_eq!(parse_document(&document).expect_err(message).to_string(), message);
        }
        let mut document = orders();
        document["projections"]["copy"] = document["projections"]["orders"].clone();
        let error = parse_document(&document).unwrap_err().to_string();
        assert_eq!(
            error,
            "projections.copy.target.table: table \"app.orders\" is already that of projection \"orders\""
        );
    }

    /// PROJ-2, as a table.
    #[test]
    fn lanes_never_get_into_each_others_way() {
        let check = |lanes: u32, lane_key: &str, bucket: bool, operation: Json| {
            let mut key = vec!["show"];
            if bucket {
                key.push("bucket");
            }
            let mut document = json!({"projections": {"counts": {
                "source_events": ["IN"], "lanes": lanes, "lane_key": lane_key,
                "target": {"table": "counts", "primary_key": key},
                "fields": {"show": "TEXT", "n": "INT"},
                "derive": {"show": "event.payload.show"},
                "aggregates": {"IN": {"n": operation}}}}});
            if bucket {
                document["projections"]["counts"]["fields"]["bucket"] = json!("INT");
                document["projections"]["counts"]["derive"]["bucket"] = json!("lane()");
            }
            parse_document(&document).map(|projections| projections[0].sharing)
        };
        let commuting = || [json!({"op": "count"}), json!({"op": "add", "by": 2}), json!({"op": "min", "value": 1})];
        let ordered = || [json!({"op": "set", "value": 1}), json!({"op": "add", "by": 2, "ceiling": 9})];
        for operation in commuting() {
            assert_eq!(check(1, "event.key", false, operation.clone()), Ok(Sharing::Commuting));
            assert_eq!(check(4, "event.key", false, operation.clone()), Ok(Sharing::Commuting));
            assert_eq!(check(4, "event.show", false, operation.clone()), Ok(Sharing::Plain));
            assert_eq!(check(4, "event.key", true, operation.clone()), Ok(Sharing::Bucketed));
            assert_eq!(check(1, "event.key", true, operation), Ok(Sharing::Bucketed));
        }
        for operation in ordered() {
            assert_eq!(check(4, "event.show", false, operation.clone()), Ok(Sharing::Plain));
            assert_eq!(check(1, "event.key", false, operation.clone()), Ok(Sharing::OneLane));
            let error = check(4, "event.key", false, operation.clone()).unwrap_err();
            assert!(error.to_string().contains("two of the 4 lanes could write one row"), "{error}");
            let hint = error.hint().unwrap();
            assert!(hint.contains("lane_key") && hint.contains("lane()") && hint.contains("lanes: 1"), "{hint}");
            // Also with one lane, for a resize must not make a good definition a bad one.
            for lanes in [1, 4] {
                let error = check(lanes, "event.show", true, operation.clone()).unwrap_err();
                assert!(error.to_string().contains("cannot be put together"), "{error}");
            }
        }
    }

    #[test]
    fn a_bucketed_table_needs_something_to_add_up_and_room_for_the_view_s_name() {
        let document = |table: &str, aggregates: Json| {
            let mut fields = json!({"show": "TEXT", "bucket": "INT"});
            if aggregates.get("IN").is_some() {
                fields["n"] = json!("INT");
            }
            json!({"projections": {"counts": {
                "source_events": ["IN"], "lanes": 4, "fields": fields, "aggregates": aggregates,
                "target": {"table": table, "primary_key": ["show", "bucket"]},
                "derive": {"show": "event.show", "bucket": "lane()"}}}})
        };
        let count = json!({"IN": {"n": {"op": "count"}}});
        assert!(parse_document(&document(&"t".repeat(57), count.clone())).is_ok());
        let error = parse_document(&document(&"t".repeat(58), count)).unwrap_err().to_string();
        assert!(error.contains("at most 57 characters"), "{error}");
        let error = parse_document(&document("t", json!({}))).unwrap_err().to_string();
        assert!(error.contains("needs a column to add up"), "{error}");
    }

    #[test]
    fn the_order_of_names_changes_nothing_but_the_order_of_columns() {
        let document = orders();
        let projection = parse_document(&document).unwrap().remove(0);
        let sorted: BTreeMap<String, Json> = serde_json::from_value(document["projections"]["orders"].clone()).unwrap();
        let sorted = json!({"projections": {"orders": sorted}});
        let other = parse_document(&sorted).unwrap().remove(0);
        assert_eq!(projection.value_columns, other.value_columns);
        assert_eq!(projection.key_columns, other.key_columns);
    }

    /// Documents made of the language's own words in random places.
    fn documents() -> impl Strategy<Value = Json> {
        let words = [
            "projections",
            "orders",
            "source_events",
            "target",
            "fields",
            "derive",
            "aggregates",
            "lanes",
            "lane_key",
            "table",
            "primary_key",
            "op",
            "by",
            "floor",
            "ceiling",
            "value",
            "add",
            "count",
            "set",
            "min",
            "max",
            "id",
            "total",
            "PLACED",
            "TEXT",
            "INT",
            "event.id",
            "event.key",
            "lane()",
            "'x'",
            "",
        ];
        let word = proptest::sample::select(words.to_vec()).prop_map(str::to_owned);
        let leaf = prop_oneof![
            word.clone().prop_map(Json::String),
            (-3i64..2000).prop_map(|number| json!(number)),
            Just(json!(0.5)),
            Just(json!(null)),
            Just(json!(true)),
        ];
        leaf.prop_recursive(6, 60, 6, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::Array),
                proptest::collection::vec((word.clone(), inner), 0..6)
                    .prop_map(|entries| Json::Object(entries.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn random_documents_never_panic(document in documents(), at in 0usize..20) {
            let _ = parse_document(&document);
            let _ = parse_document(&json!({"projections": document.clone()}));
            let _ = parse_document(&json!({"projections": {"orders": document.clone()}}));
            let pointers = [
                "/source_events", "/lanes", "/lane_key", "/target", "/target/table", "/target/primary_key", "/fields",
                "/fields/id", "/fields/total", "/fields/changes", "/derive", "/derive/id", "/derive/status",
                "/aggregates", "/aggregates/PLACED", "/aggregates/PLACED/total", "/aggregates/PLACED/total/op",
                "/aggregates/PLACED/total/by", "/aggregates/PLACED/total/floor", "/extra",
            ];
            let _ = parse_document(&changed(pointers[at], document));
        }
    }
}
