//! Reading definitions: the document's shape, names and types.
//!
//! Format: `{"projections": {NAME: {source_events, target, fields, derive, aggregates, …}}, "queries": {NAME: {from, …}}}`,
//! as in the project's `testdata/projections-example.yaml`; `docs/PROJECTIONS.md` describes every key. Every error names
//! its place in the document and the nearest right name. Names of the language that come later are told apart from names
//! it never had.

use std::collections::BTreeMap;

use serde_json::Value as Json;

use super::aggregates::parse_aggregates;
use super::columns::Columns;
use super::document::{DefinitionError, NAME_HINT, Names, Place, check_identifier, known_hint};
use super::policy::parse_policy;
use super::query::{Query, parse_query};
use super::sharing::{Shape, check_sharing, check_spreading};
use super::statement::parse_statement;
use super::storage::{Index, Partitioning, SHARD_COLUMN, parse_indexes, parse_partitioning, shard_expression};
use super::{BatchStatement, ColumnType, Effect, Expression, Field, KeyColumn, Projection, Target};
use crate::event::MAXIMUM_TYPE_BYTES;
use crate::lane;

/// The most columns of a table in Postgres.
const MAXIMUM_COLUMNS: usize = 1600;

/// The most columns of a primary key in Postgres.
const MAXIMUM_KEY_COLUMNS: usize = 32;

/// The longest name in Postgres, in bytes.
pub(super) const MAXIMUM_NAME: usize = 63;

/// Columns that every table in Postgres has already.
const SYSTEM_COLUMNS: [&str; 6] = ["tableoid", "xmin", "cmin", "xmax", "cmax", "ctid"];

/// What the view over a bucketed table is called: the table's name with this behind it.
pub const TOTAL_VIEW_SUFFIX: &str = "_total";

const DOCUMENT: Names = Names { known: &["projections", "queries"], later: &["stores"] };

const PROJECTION: Names = Names {
    known: &[
        "type",
        "source_events",
        "lanes",
        "lane_key",
        "target",
        "single_row_bucket",
        "fields",
        "derive",
        "aggregates",
        "sql",
        "indexes",
        "processing",
        "checkpointing",
        "retry",
        "priority",
    ],
    later: &["source", "store", "stores"],
};

const TARGET: Names = Names { known: &["table", "primary_key", "partitioning"], later: &[] };

/// The parts of a projection's definition that may change in place: none of them changes the rows.
pub const CHANGEABLE: [&str; 6] = ["type", "processing", "checkpointing", "retry", "priority", "indexes"];

/// A document that passed the checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Document {
    /// Its projections, in its order.
    pub projections: Vec<Projection>,
    /// Its queries, in its order.
    pub queries: Vec<Query>,
}

/// Reads and checks a document of definitions. All of it is accepted or none.
///
/// # Errors
/// [`DefinitionError`] for the first thing that is wrong.
pub fn parse_document(document: &Json) -> Result<Document, DefinitionError> {
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
    let mut queries = Vec::new();
    if let Some(place) = root.optional("queries")? {
        for (name, place) in place.entries()? {
            queries.push(parse_query(name, &place, &projections)?);
        }
    }
    Ok(Document { projections, queries })
}

fn parse_projection(name: &str, place: &Place<'_>) -> Result<Projection, DefinitionError> {
    if !lane::is_projection_name(name) {
        return Err(place.error(format!("\"{name}\" is not a projection's name")).with_hint(NAME_HINT));
    }
    place.check_names(&PROJECTION)?;
    let policy = parse_policy(place)?;
    let source_events = parse_source_events(&place.required("source_events")?)?;
    let lanes = place.optional("lanes")?.map_or(Ok(1), |lanes| lanes.whole(1, lane::MAXIMUM_LANES))?;
    let fields_place = place.required("fields")?;
    let mut fields = parse_fields(&fields_place)?;
    let empty = Json::Object(serde_json::Map::new());
    let derive_place = place.optional("derive")?.unwrap_or_else(|| place.at("derive", &empty));
    let mut derived = parse_derive(&derive_place, &fields)?;
    let target_place = place.required("target")?;
    let target = parse_target(&target_place, &fields, &derived)?;
    let mut indexes = match place.optional("indexes")? {
        None => Vec::new(),
        Some(place) => parse_indexes(&place, &fields)?,
    };
    let partitioning = match target_place.optional("partitioning")? {
        None => None,
        Some(place) => {
            let partitioning = parse_partitioning(&place, &fields, &target.primary_key)?;
            if !partitioning.native {
                divide_logically(&place, &partitioning, &mut fields, &mut derived, &mut indexes)?;
            }
            Some(partitioning)
        }
    };
    resolve_shards(&mut derived);
    let key_columns = key_columns(&target, &derived);
    let (lane_key, lane_key_type) = parse_lane_key(place, &key_columns)?;
    check_spreading(place, &derive_place, &lane_key, &key_columns)?;

    let statements = parse_statements(place, &source_events, &target)?;
    let is_bucketed = key_columns.iter().any(|column| column.expression == Expression::Lane);
    let aggregates = parse_aggregates(place, &source_events, &fields, &target, &derived)?;
    let effects: Vec<Effect> = source_events
        .iter()
        .zip(&statements)
        .map(|(event_type, statement)| match (aggregates.deleting.contains(event_type.as_str()), statement) {
            (true, _) => Effect::Delete,
            (false, Some(_)) if !aggregates.types.contains(event_type.as_str()) => Effect::Statement,
            (false, _) => Effect::Fold,
        })
        .collect();
    let mut columns = Columns {
        place,
        is_bucketed,
        fields: &fields,
        key_columns: &key_columns,
        effects: &effects,
        derived: &derived,
        notes: Vec::new(),
    };
    let (value_columns, orderings) = columns.build(&target, aggregates, statements.iter().any(Option::is_some))?;
    let notes = columns.notes;

    if is_bucketed && target.name().len() + TOTAL_VIEW_SUFFIX.len() > MAXIMUM_NAME {
        return Err(target_place.at("table", target_place.json).error(format!(
            "the name of a table bucketed by lane() has at most {} characters, for its view \"…{TOTAL_VIEW_SUFFIX}\"",
            MAXIMUM_NAME - TOTAL_VIEW_SUFFIX.len()
        )));
    }
    let sharing = check_sharing(
        place,
        &Shape {
            lanes,
            lane_key: &lane_key,
            key_columns: &key_columns,
            value_columns: &value_columns,
            effects: &effects,
            source_events: &source_events,
            statements: &statements,
        },
    )?;
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
        orderings,
        effects,
        statements,
        indexes,
        partitioning,
        policy,
        sharing,
        notes,
        definition: place.json.clone(),
    })
}

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
            place.error(format!("type \"{given}\" is not known")).with_hint(known_hint(
                "Known types",
                &upper,
                ColumnType::ALL.iter().map(|known| known.name()),
            ))
        })?;
        fields.push(Field { name: name.to_owned(), column_type });
    }
    Ok(fields)
}

pub(super) fn find_field<'a>(place: &Place<'_>, fields: &'a [Field], name: &str) -> Result<&'a Field, DefinitionError> {
    fields.iter().find(|field| field.name == name).ok_or_else(|| {
        place.error(format!("column \"{name}\" is not among the fields")).with_hint(known_hint(
            "Fields",
            name,
            fields.iter().map(|field| field.name.as_str()),
        ))
    })
}

/// A derived column's expression, typed, and its type.
pub(super) struct Derived {
    pub(super) expression: Expression,
    pub(super) column_type: ColumnType,
}

fn parse_derive(place: &Place<'_>, fields: &[Field]) -> Result<BTreeMap<String, Derived>, DefinitionError> {
    let mut derived = BTreeMap::new();
    for (name, place) in place.entries()? {
        let column_type = find_field(&place, fields, name)?.column_type;
        let expression = place.expression()?.typed(column_type).map_err(|error| place.expression_error(error))?;
        derived.insert(name.to_owned(), Derived { expression, column_type });
    }
    Ok(derived)
}

/// `shard(event.x, n)` hashes what the column of `event.x` holds, as SQL would.
fn resolve_shards(derived: &mut BTreeMap<String, Derived>) {
    let types: Vec<(Expression, ColumnType)> =
        derived.values().map(|column| (column.expression.clone(), column.column_type)).collect();
    for column in derived.values_mut() {
        column.expression.resolve(&|wanted| type_of(&types, wanted));
    }
}

pub(super) fn type_of(types: &[(Expression, ColumnType)], wanted: &Expression) -> Option<ColumnType> {
    types.iter().find(|(expression, _)| expression == wanted).map(|(_, column_type)| *column_type)
}

fn parse_target(
    place: &Place<'_>,
    fields: &[Field],
    derived: &BTreeMap<String, Derived>,
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
        let field = find_field(&place, fields, name)?;
        if !derived.contains_key(name) {
            return Err(place
                .error(format!("column \"{name}\" of the primary key is not derived"))
                .with_hint(format!("Say under derive where {name} comes from.")));
        }
        if !field.column_type.can_be_key() {
            let type_name = field.column_type.name();
            return Err(place
                .error(format!("column \"{name}\" of type {type_name} cannot be part of the primary key"))
                .with_hint("Give it the type TEXT or NUMERIC: equal values of it must have one spelling."));
        }
        primary_key.push(name.to_owned());
    }
    if primary_key.len() > MAXIMUM_KEY_COLUMNS {
        let count = primary_key.len();
        return Err(key_place.error(format!("a primary key has at most {MAXIMUM_KEY_COLUMNS} columns, not {count}")));
    }
    Ok(Target { table: table.to_owned(), primary_key })
}

fn key_columns(target: &Target, derived: &BTreeMap<String, Derived>) -> Vec<KeyColumn> {
    let column = |name: &String| {
        let Derived { expression, column_type } = derived.get(name)?;
        Some(KeyColumn { name: name.clone(), column_type: *column_type, expression: expression.clone() })
    };
    target.primary_key.iter().filter_map(column).collect()
}

/// Adds the bucket column of `mode: logical` and its index, unless they are there; then they must agree.
fn divide_logically(
    place: &Place<'_>,
    partitioning: &Partitioning,
    fields: &mut Vec<Field>,
    derived: &mut BTreeMap<String, Derived>,
    indexes: &mut Vec<Index>,
) -> Result<(), DefinitionError> {
    let Some(key) = derived.get(&partitioning.key) else { return Ok(()) };
    let wanted = shard_expression(&key.expression, partitioning.partitions);
    let agree = format!(
        "It must be \"{SHARD_COLUMN}: INT\" under fields and \"{SHARD_COLUMN}: {wanted}\" under derive, \
                         or be left out of both."
    );
    if !fields.iter().any(|field| field.name == SHARD_COLUMN) {
        fields.push(Field { name: SHARD_COLUMN.to_owned(), column_type: ColumnType::Int });
        derived.insert(SHARD_COLUMN.to_owned(), Derived { expression: wanted, column_type: ColumnType::Int });
    } else {
        let column = derived.get(SHARD_COLUMN);
        if !column.is_some_and(|column| column.column_type == ColumnType::Int && column.expression == wanted) {
            let given = column.map_or("not derived".to_owned(), |column| {
                format!("{} of type {}", column.expression, column.column_type.name())
            });
            return Err(place
                .error(format!("column \"{SHARD_COLUMN}\" does not agree with the partitioning: it is {given}"))
                .with_hint(agree));
        }
    }
    let leads = |index: &Index| index.columns.first().is_some_and(|first| first == SHARD_COLUMN);
    if !indexes.iter().any(leads) {
        indexes.push(Index { columns: vec![SHARD_COLUMN.to_owned(), partitioning.key.clone()], descending: false });
    }
    Ok(())
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
            Expression::Seconds(_) => {
                return Err(place
                    .error("lane_key cannot be seconds()")
                    .with_hint("Name the field itself, without seconds()."));
            }
            mut expression => {
                let types: Vec<_> =
                    key_columns.iter().map(|column| (column.expression.clone(), column.column_type)).collect();
                expression.resolve(&|wanted| type_of(&types, wanted));
                expression
            }
        },
    };
    let column = key_columns.iter().find(|column| column.expression == expression);
    let column_type = column.map_or(ColumnType::Text, |column| column.column_type);
    Ok((expression, column_type))
}

fn parse_statements(
    place: &Place<'_>,
    source_events: &[String],
    target: &Target,
) -> Result<Vec<Option<BatchStatement>>, DefinitionError> {
    let mut statements = vec![None; source_events.len()];
    if let Some(place) = place.optional("sql")? {
        for (event_type, place) in place.entries()? {
            let source = source_of(&place, source_events, event_type)?;
            if let Some(slot) = statements.get_mut(source) {
                *slot = Some(parse_statement(&place, &target.primary_key)?);
            }
        }
    }
    Ok(statements)
}

pub(super) fn source_of(
    place: &Place<'_>,
    source_events: &[String],
    event_type: &str,
) -> Result<usize, DefinitionError> {
    source_events.iter().position(|source| source == event_type).ok_or_else(|| {
        place.error(format!("event type \"{event_type}\" is not among the source_events")).with_hint(known_hint(
            "Source events",
            event_type,
            source_events.iter().map(String::as_str),
        ))
    })
}
