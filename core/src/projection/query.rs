//! Queries of a document: each is a typed SQL function over one projection's table (of a bucketed table: its view).

use super::document::{DefinitionError, NAME_HINT, Names, Place, check_identifier, known_hint};
use super::expression::kind_of;
use super::{ColumnType, Expression, Field, Projection, Value};
use crate::lane;

const QUERY: Names =
    Names { known: &["from", "input", "where", "group_by", "aggregate", "order_by", "limit"], later: &[] };
const INPUT: Names = Names { known: &["type", "required"], later: &[] };
const INPUT_TYPES: Names =
    Names { known: &["string", "integer", "number", "boolean", "timestamp", "date", "uuid"], later: &[] };
const COMPARISONS: Names = Names { known: &["eq", "ne", "lt", "lte", "gt", "gte"], later: &[] };
const FUNCTIONS: Names = Names { known: &["sum", "count", "min", "max"], later: &[] };
const DIRECTIONS: Names = Names { known: &["asc", "desc"], later: &[] };

/// The most inputs of a query: a function in Postgres has at most 100 arguments.
const MAXIMUM_INPUTS: usize = 50;

/// A query that passed the checks.
#[derive(Debug, Clone, PartialEq)]
pub struct Query {
    /// Its name, which is the function's.
    pub name: String,
    /// The projection whose table it reads.
    pub projection: String,
    /// Its inputs, the required ones first.
    pub inputs: Vec<Input>,
    /// What rows must be like.
    pub filters: Vec<Filter>,
    /// The columns of the answer, in its order.
    pub columns: Vec<Output>,
    /// Whether rows are put together by the columns without a function.
    pub groups: bool,
    /// The order of the answer: places in `columns`, and whether descending.
    pub order_by: Vec<(usize, bool)>,
    /// The most rows of the answer.
    pub limit: Option<u32>,
}

/// An input of a query.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Input {
    /// Its name.
    pub name: String,
    /// Its type.
    pub column_type: ColumnType,
    /// Whether it must be given; the filters of one that is not given are left out.
    pub required: bool,
}

/// What a column must be like.
#[derive(Debug, Clone, PartialEq)]
pub struct Filter {
    /// The column.
    pub column: String,
    /// The operator in SQL.
    pub operator: &'static str,
    /// What it is compared with.
    pub operand: Operand,
}

/// What a column is compared with.
#[derive(Debug, Clone, PartialEq)]
pub enum Operand {
    /// The input at this place in [`Query::inputs`].
    Input(usize),
    /// A constant.
    Literal(Value),
}

/// A column of the answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Output {
    /// Its name.
    pub name: String,
    /// Its type.
    pub column_type: ColumnType,
    /// `sum`, `count`, `min` or `max`; none for the column itself.
    pub function: Option<&'static str>,
    /// The column of the table.
    pub source: String,
}

pub(super) fn parse_query(name: &str, place: &Place<'_>, projections: &[Projection]) -> Result<Query, DefinitionError> {
    if !lane::is_projection_name(name) {
        return Err(place.error(format!("\"{name}\" is not a query's name")).with_hint(NAME_HINT));
    }
    place.check_names(&QUERY)?;
    let from_place = place.required("from")?;
    let from = from_place.text()?;
    let projection = projections.iter().find(|projection| projection.target.table == from).ok_or_else(|| {
        let tables = projections.iter().map(|projection| projection.target.table.as_str());
        from_place
            .error(format!("\"{from}\" is not the table of a projection in this document"))
            .with_hint(known_hint("Tables", from, tables))
    })?;
    // The view of a bucketed table has the key without the bucket.
    let visible: Vec<&Field> = projection
        .fields
        .iter()
        .filter(|field| {
            let mut keys = projection.key_columns.iter();
            !keys.any(|column| column.name == field.name && column.expression == Expression::Lane)
        })
        .collect();
    let find = |place: &Place<'_>, name: &str| {
        visible.iter().copied().find(|field| field.name == name).ok_or_else(|| {
            place
                .error(format!("column \"{name}\" is not among those of \"{from}\" that a query can read"))
                .with_hint(known_hint("Columns", name, visible.iter().map(|field| field.name.as_str())))
        })
    };
    let inputs = match place.optional("input")? {
        None => Vec::new(),
        Some(place) => parse_inputs(&place)?,
    };
    let mut filters = Vec::new();
    if let Some(place) = place.optional("where")? {
        for (column, place) in place.entries()? {
            let field = find(&place, column)?;
            for (comparison, place) in place.entries()? {
                filters.push(parse_filter(&place, field, comparison, &inputs)?);
            }
        }
    }
    let mut columns: Vec<Output> = Vec::new();
    let plain = |field: &Field| Output {
        name: field.name.clone(),
        column_type: field.column_type,
        function: None,
        source: field.name.clone(),
    };
    let group_place = place.optional("group_by")?;
    let aggregate_place = place.optional("aggregate")?;
    let groups = group_place.is_some() || aggregate_place.is_some();
    if !groups {
        columns = visible.iter().map(|field| plain(field)).collect();
    }
    if let Some(place) = group_place {
        for (name, place) in place.texts()? {
            columns.push(plain(find(&place, name)?));
        }
    }
    if let Some(place) = aggregate_place {
        for (name, place) in place.entries()? {
            check_identifier(&place, "column", name)?;
            if columns.iter().any(|column| column.name == name) {
                return Err(place.error(format!("\"{name}\" is a column of the answer already")));
            }
            columns.push(parse_aggregate(name, &place, &find)?);
        }
    }
    let mut order_by = Vec::new();
    if let Some(place) = place.optional("order_by")? {
        for (name, place) in place.entries()? {
            let Some(at) = columns.iter().position(|column| column.name == name) else {
                return Err(place.error(format!("\"{name}\" is not a column of the answer")).with_hint(known_hint(
                    "Columns",
                    name,
                    columns.iter().map(|column| column.name.as_str()),
                )));
            };
            order_by.push((at, place.choice("direction", &DIRECTIONS)? == "desc"));
        }
    }
    let limit = place.optional("limit")?.map(|place| place.whole(1, 1_000_000)).transpose()?;
    Ok(Query {
        name: name.to_owned(),
        projection: projection.name.clone(),
        inputs,
        filters,
        columns,
        groups,
        order_by,
        limit,
    })
}

fn parse_inputs(place: &Place<'_>) -> Result<Vec<Input>, DefinitionError> {
    let entries = place.entries()?;
    if entries.len() > MAXIMUM_INPUTS {
        return Err(place.error(format!("a query has at most {MAXIMUM_INPUTS} inputs, not {}", entries.len())));
    }
    let mut inputs = Vec::new();
    for (name, place) in entries {
        check_identifier(&place, "input", name)?;
        if name.len() > 57 {
            return Err(place.error("the name of an input has at most 57 characters"));
        }
        place.check_names(&INPUT)?;
        let column_type = match place.required("type")?.choice("type", &INPUT_TYPES)? {
            "string" => ColumnType::Text,
            "integer" => ColumnType::Bigint,
            "number" => ColumnType::Numeric,
            "boolean" => ColumnType::Boolean,
            "timestamp" => ColumnType::Timestamptz,
            "date" => ColumnType::Date,
            _ => ColumnType::Uuid,
        };
        let required = place.optional("required")?.map(|place| place.boolean()).transpose()?.unwrap_or(false);
        inputs.push(Input { name: name.to_owned(), column_type, required });
    }
    // An argument with a default stands behind those without.
    inputs.sort_by_key(|input| !input.required);
    Ok(inputs)
}

/// Whether values of two types can be compared in SQL without a cast.
fn comparable(left: ColumnType, right: ColumnType) -> bool {
    let is_number = |column_type: ColumnType| column_type.is_number() || column_type == ColumnType::Double;
    left == right || (is_number(left) && is_number(right))
}

fn parse_filter(
    place: &Place<'_>,
    field: &Field,
    comparison: &str,
    inputs: &[Input],
) -> Result<Filter, DefinitionError> {
    let operator = match comparison {
        "eq" => "=",
        "ne" => "<>",
        "lt" => "<",
        "lte" => "<=",
        "gt" => ">",
        "gte" => ">=",
        other => return Err(place.unknown("comparison", other, &COMPARISONS)),
    };
    if matches!(field.column_type, ColumnType::Jsonb | ColumnType::TextArray) {
        let type_name = field.column_type.name();
        return Err(place.error(format!("column \"{}\" of type {type_name} cannot be compared", field.name)));
    }
    let input = place.json.as_str().and_then(|text| text.trim().strip_prefix("input."));
    let operand =
        match input {
            Some(name) => {
                let Some(at) = inputs.iter().position(|input| input.name == name) else {
                    return Err(place
                        .error(format!("input \"{name}\" is not among the inputs"))
                        .with_hint(known_hint("Inputs", name, inputs.iter().map(|input| input.name.as_str()))));
                };
                let given = inputs.get(at).map_or(ColumnType::Text, |input| input.column_type);
                if !comparable(field.column_type, given) {
                    let type_name = field.column_type.name();
                    return Err(place
                        .error(format!(
                            "input \"{name}\" cannot be compared with column \"{}\" of type {type_name}",
                            field.name
                        ))
                        .with_hint("Give the input the type of the column."));
                }
                Operand::Input(at)
            }
            None => match place.value_expression(field.column_type)? {
                Expression::Literal(value) => Operand::Literal(value),
                _ => {
                    return Err(place
                        .error(format!("must be input.NAME or a constant, not {}", kind_of(place.json)))
                        .with_hint("A constant text stands in single quotes inside the YAML string: \"'open'\"."));
                }
            },
        };
    Ok(Filter { column: field.name.clone(), operator, operand })
}

fn parse_aggregate<'f>(
    name: &str,
    place: &Place<'_>,
    find: &dyn Fn(&Place<'_>, &str) -> Result<&'f Field, DefinitionError>,
) -> Result<Output, DefinitionError> {
    place.check_names(&FUNCTIONS)?;
    let entries = place.entries()?;
    let [(function, place)] = entries.as_slice() else {
        return Err(place
            .error(format!("must have one function, not {}", entries.len()))
            .with_hint("Write one of sum, count, min and max with the name of a column: { sum: checkin_count }."));
    };
    let field = find(place, place.text()?)?;
    let type_name = field.column_type.name();
    let unfit =
        || Err(place.error(format!("{function} has no answer for column \"{}\" of type {type_name}", field.name)));
    let (function, column_type) = match *function {
        "count" => ("count", ColumnType::Bigint),
        "sum" => match field.column_type {
            ColumnType::Int | ColumnType::Bigint => ("sum", ColumnType::Bigint),
            ColumnType::Numeric | ColumnType::Double => ("sum", field.column_type),
            _ => return unfit(),
        },
        other => match field.column_type.has_order() {
            true if other == "min" => ("min", field.column_type),
            true => ("max", field.column_type),
            false => return unfit(),
        },
    };
    Ok(Output { name: name.to_owned(), column_type, function: Some(function), source: field.name.clone() })
}
