//! How the table of a projection is stored: its indexes and how it is divided.

use super::document::{DefinitionError, Names, Place, check_identifier, known_hint};
use super::{ColumnType, Expression, Field};

const PARTITIONING: Names = Names { known: &["strategy", "key", "partitions", "mode"], later: &[] };
const STRATEGIES: Names = Names { known: &["hash"], later: &["range"] };
const MODES: Names = Names { known: &["logical", "postgres_native"], later: &[] };
const INDEX: Names = Names { known: &["columns", "direction"], later: &[] };
const DIRECTIONS: Names = Names { known: &["asc", "desc"], later: &[] };

/// The name of the bucket column of a table that is divided logically.
pub const SHARD_COLUMN: &str = "shard_id";

/// The most columns of an index in Postgres.
const MAXIMUM_INDEX_COLUMNS: usize = 32;

/// An index that the table should have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Index {
    /// Its columns.
    pub columns: Vec<String>,
    /// Whether the order of all columns is descending.
    pub descending: bool,
}

/// How a table is divided by the hash of a column of its primary key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Partitioning {
    /// The column.
    pub key: String,
    /// Into how many parts.
    pub partitions: u32,
    /// Whether the parts are tables of their own (PARTITION BY HASH), and not only a bucket column.
    pub native: bool,
}

pub(super) fn parse_partitioning(
    place: &Place<'_>,
    fields: &[Field],
    primary_key: &[String],
) -> Result<Partitioning, DefinitionError> {
    place.check_names(&PARTITIONING)?;
    if let Some(place) = place.optional("strategy")? {
        place.choice("strategy", &STRATEGIES)?;
    }
    let key_place = place.required("key")?;
    let key = key_place.text()?;
    let field = fields.iter().find(|field| field.name == key).filter(|_| primary_key.iter().any(|name| name == key));
    let Some(field) = field else {
        return Err(key_place.error(format!("column \"{key}\" is not part of the primary key")).with_hint(known_hint(
            "The primary key",
            key,
            primary_key.iter().map(String::as_str),
        )));
    };
    let native = place.required("mode")?.choice("mode", &MODES)? == "postgres_native";
    let hashed =
        matches!(field.column_type, ColumnType::Text | ColumnType::Int | ColumnType::Bigint | ColumnType::Uuid);
    if !native && !hashed {
        return Err(key_place
            .error(format!("shard() has no answer in SQL for column \"{key}\" of type {}", field.column_type.name()))
            .with_hint("Divide by a column of type TEXT, INT, BIGINT or UUID, or use mode: postgres_native."));
    }
    let partitions = place.required("partitions")?.whole(1, if native { 1024 } else { 65_536 })?;
    Ok(Partitioning { key: key.to_owned(), partitions, native })
}

/// The bucket column of a logically divided table: what must stand under `derive` for it.
pub(super) fn shard_expression(key_expression: &Expression, partitions: u32) -> Expression {
    Expression::Shard { expression: Box::new(key_expression.clone()), count: partitions, through: ColumnType::Text }
}

pub(super) fn parse_indexes(place: &Place<'_>, fields: &[Field]) -> Result<Vec<Index>, DefinitionError> {
    let mut indexes: Vec<Index> = Vec::new();
    for place in place.list()? {
        place.check_names(&INDEX)?;
        let columns_place = place.required("columns")?;
        let mut columns = Vec::new();
        for (name, place) in columns_place.texts()? {
            check_identifier(&place, "column", name)?;
            let Some(field) = fields.iter().find(|field| field.name == name) else {
                return Err(place.error(format!("column \"{name}\" is not among the fields")).with_hint(known_hint(
                    "Fields",
                    name,
                    fields.iter().map(|field| field.name.as_str()),
                )));
            };
            if field.column_type == ColumnType::Jsonb || field.column_type == ColumnType::TextArray {
                return Err(place
                    .error(format!(
                        "column \"{name}\" of type {} has no use in such an index",
                        field.column_type.name()
                    ))
                    .with_hint("Create an index of another method (gin) by hand; the table is yours."));
            }
            columns.push(name.to_owned());
        }
        if columns.len() > MAXIMUM_INDEX_COLUMNS {
            let count = columns.len();
            return Err(
                columns_place.error(format!("an index has at most {MAXIMUM_INDEX_COLUMNS} columns, not {count}"))
            );
        }
        let direction = place.optional("direction")?.map(|place| place.choice("direction", &DIRECTIONS)).transpose()?;
        let index = Index { columns, descending: direction == Some("desc") };
        if indexes.contains(&index) {
            return Err(place.error("the same index is named twice").with_hint("Remove one of them."));
        }
        indexes.push(index);
    }
    Ok(indexes)
}
