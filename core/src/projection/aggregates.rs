//! What stands under `aggregates`: for each column what each source event does to it.

use std::collections::{BTreeMap, BTreeSet};

use super::definition::{Derived, find_field, source_of};
use super::document::{DefinitionError, Place};
use super::operation::{Parsed, is_delete, parse_operation};
use super::{Expression, Field, Operation, Target, ValueKind};

/// An aggregated column with what each source event does to it.
pub(super) struct Aggregated<'a> {
    pub(super) kind: ValueKind,
    pub(super) operations: Vec<Option<Operation>>,
    /// The expressions of `newer_by` of each operation, untyped.
    pub(super) newer_by: Vec<Option<Vec<Expression>>>,
    pub(super) place: Place<'a>,
}

/// What stands under `aggregates`.
pub(super) struct Aggregates<'a> {
    pub(super) columns: BTreeMap<&'a str, Aggregated<'a>>,
    /// The event types that have an entry.
    pub(super) types: BTreeSet<&'a str>,
    /// The event types that delete their row.
    pub(super) deleting: BTreeSet<&'a str>,
}

/// Reads `aggregates`.
///
/// # Errors
/// [`DefinitionError`] for a column, an event or an operation that does not fit.
pub(super) fn parse_aggregates<'a>(
    place: &Place<'a>,
    source_events: &[String],
    fields: &[Field],
    target: &Target,
    derived: &BTreeMap<String, Derived>,
) -> Result<Aggregates<'a>, DefinitionError> {
    let mut aggregates = Aggregates { columns: BTreeMap::new(), types: BTreeSet::new(), deleting: BTreeSet::new() };
    let Some(place) = place.optional("aggregates")? else { return Ok(aggregates) };
    for (event_type, type_place) in place.entries()? {
        let source = source_of(&type_place, source_events, event_type)?;
        aggregates.types.insert(event_type);
        let entries = type_place.entries()?;
        for (name, place) in &entries {
            let field = find_field(place, fields, name)?;
            if is_delete(place)? {
                if entries.len() > 1 {
                    return Err(place
                        .error(format!("{event_type} deletes the row, so it cannot have other operations"))
                        .with_hint("Leave delete alone, under the name of a column of the primary key."));
                }
                aggregates.deleting.insert(event_type);
                continue;
            }
            if target.primary_key.iter().any(|column| column == name) {
                return Err(place
                    .error(format!("column \"{name}\" is part of the primary key and cannot be aggregated"))
                    .with_hint("A column of the primary key is derived."));
            }
            if derived.contains_key(*name) {
                return Err(place
                    .error(format!("column \"{name}\" is both derived and aggregated"))
                    .with_hint("Remove it from derive or from aggregates."));
            }
            let Parsed { operation, kind, newer_by } = parse_operation(place, field)?;
            let column = aggregates.columns.entry(name).or_insert_with(|| Aggregated {
                kind,
                operations: vec![None; source_events.len()],
                newer_by: vec![None; source_events.len()],
                place: place.clone(),
            });
            column.kind = join_kinds(column.kind, kind).ok_or_else(|| {
                place
                    .error(format!("column \"{name}\" has operations of different kinds"))
                    .with_hint("On one column, add and count go together; set, set_once, min and max each stand alone.")
            })?;
            if let Some(other) = column.newer_by.iter().flatten().next()
                && other.len() != newer_by.len()
            {
                return Err(place
                    .error(format!("column \"{name}\" has operations with different newer_by"))
                    .with_hint("Give all operations on one column a newer_by of the same length, or none of them."));
            }
            if let (Some(operations), Some(newer)) =
                (column.operations.get_mut(source), column.newer_by.get_mut(source))
            {
                *operations = Some(operation);
                *newer = Some(newer_by);
            }
        }
    }
    Ok(aggregates)
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
