//! Operations of a definition: `{ op: add, by: event.amount, floor: 0 }` and the others.

use super::document::{DefinitionError, Names, Place};
use super::{ColumnType, Expression, Field, Number, Operation, Value, ValueKind};

pub(super) const OPERATIONS: Names =
    Names { known: &["add", "count", "set", "set_once", "min", "max", "delete"], later: &[] };

const ADD: Names = Names { known: &["op", "by", "floor", "ceiling"], later: &[] };
const ALONE: Names = Names { known: &["op"], later: &[] };
const SET: Names = Names { known: &["op", "value", "newer_by"], later: &[] };
const VALUE: Names = Names { known: &["op", "value"], later: &[] };

/// An operation as it stands in the document.
pub(super) struct Parsed {
    pub(super) operation: Operation,
    pub(super) kind: ValueKind,
    /// The expressions of `newer_by`, untyped, and their places.
    pub(super) newer_by: Vec<Expression>,
}

/// Whether the operation at `place` deletes the row.
pub(super) fn is_delete(place: &Place<'_>) -> Result<bool, DefinitionError> {
    let op = place.required("op")?.text()?;
    if op == "delete" {
        place.check_names(&ALONE)?;
    }
    Ok(op == "delete")
}

pub(super) fn parse_operation(place: &Place<'_>, field: &Field) -> Result<Parsed, DefinitionError> {
    let op_place = place.required("op")?;
    let op = op_place.choice("operation", &OPERATIONS)?;
    let type_name = field.column_type.name();
    let needs = |what: &str, hint: &str| {
        let message = format!("{op} needs {what}, and column \"{}\" has type {type_name}", field.name);
        Err(op_place.error(message).with_hint(hint))
    };
    match op {
        "add" | "count" if field.column_type == ColumnType::Double => {
            return needs(
                "a number that adds up exactly",
                "Give the column the type NUMERIC, which keeps every digit.",
            );
        }
        "add" | "count" if !field.column_type.is_number() => {
            return needs("a number", "Give the column the type INT, BIGINT or NUMERIC.");
        }
        "min" | "max" if !field.column_type.has_order() => {
            return needs("values with an order", "Give the column another type, or use set.");
        }
        _ => {}
    }
    let value = || place.required("value")?.value_expression(field.column_type);
    let mut newer_by = Vec::new();
    let (operation, kind) = match op {
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
            place.check_names(&ALONE)?;
            (Operation::Count, ValueKind::Add { bounded: false })
        }
        "set" => {
            place.check_names(&SET)?;
            if let Some(place) = place.optional("newer_by")? {
                newer_by = parse_newer_by(&place)?;
            }
            (Operation::Set(value()?), ValueKind::Set)
        }
        "set_once" => {
            place.check_names(&VALUE)?;
            (Operation::SetOnce(value()?), ValueKind::SetOnce)
        }
        "min" => {
            place.check_names(&VALUE)?;
            (Operation::Min(value()?), ValueKind::Min)
        }
        _ => {
            place.check_names(&VALUE)?;
            (Operation::Max(value()?), ValueKind::Max)
        }
    };
    Ok(Parsed { operation, kind, newer_by })
}

fn parse_newer_by(place: &Place<'_>) -> Result<Vec<Expression>, DefinitionError> {
    let places = place.list()?;
    if places.is_empty() {
        return Err(place.error("must not be empty").with_hint("Name at least one field, or remove newer_by."));
    }
    let mut expressions = Vec::with_capacity(places.len());
    for place in places {
        let expression = place.expression()?;
        if matches!(expression, Expression::Literal(_) | Expression::Lane) {
            return Err(place
                .error(format!("{expression} cannot tell which of two events is newer"))
                .with_hint("Name a field of the event that grows, such as a time or a revision."));
        }
        expressions.push(expression);
    }
    Ok(expressions)
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
