//! PROJ-2: whether two lanes could write one row in a way that does not commute. `docs/PROJECTIONS.md` has the cases as
//! a table.

use super::document::{DefinitionError, Place};
use super::{BatchStatement, Effect, Expression, KeyColumn, Sharing, ValueColumn, ValueKind};

/// What the check looks at.
pub(super) struct Shape<'a> {
    pub(super) lanes: u32,
    pub(super) lane_key: &'a Expression,
    pub(super) key_columns: &'a [KeyColumn],
    pub(super) value_columns: &'a [ValueColumn],
    pub(super) effects: &'a [Effect],
    pub(super) source_events: &'a [String],
    pub(super) statements: &'a [Option<BatchStatement>],
}

impl Shape<'_> {
    /// The first statement that may write a row which does not hold the column `column`, by its type.
    fn stray_statement(&self, column: &str) -> Option<&str> {
        let types = self.source_events.iter().zip(self.statements);
        let stray = |statement: &BatchStatement| {
            !statement.row_key.as_ref().is_some_and(|row_key| row_key.iter().any(|name| name == column))
        };
        types
            .filter(|(_, statement)| statement.as_ref().is_some_and(stray))
            .map(|(event_type, _)| event_type.as_str())
            .next()
    }

    fn deleting(&self) -> Option<&str> {
        let mut types = self.source_events.iter().zip(self.effects);
        types.find(|(_, effect)| **effect == Effect::Delete).map(|(event_type, _)| event_type.as_str())
    }

    /// What does not commute, in words.
    fn blocker(&self) -> Option<String> {
        if let Some(event_type) = self.deleting() {
            return Some(format!("{event_type} deletes rows"));
        }
        if let Some(event_type) = self.stray_statement("") {
            return Some(format!("the statement of {event_type} may do anything"));
        }
        let column = self.value_columns.iter().find(|column| !column.kind.commutes())?;
        Some(match column.kind {
            ValueKind::Add { .. } => format!("column \"{}\" has a floor or a ceiling", column.name),
            ValueKind::SetOnce => format!("column \"{}\" is set to the first value", column.name),
            _ => format!("column \"{}\" is set to the last value", column.name),
        })
    }
}

pub(super) fn check_sharing(place: &Place<'_>, shape: &Shape<'_>) -> Result<Sharing, DefinitionError> {
    let lane_key = shape.lane_key;
    if let Some(bucket) = shape.key_columns.iter().find(|column| column.expression == Expression::Lane) {
        if let Some(event_type) = shape.deleting() {
            return Err(place
                .error(format!(
                    "{event_type} deletes rows, which cannot be done over the rows of several lanes (the primary key \
                     holds lane())"
                ))
                .with_hint(format!(
                    "Take lane() out of the primary key and make {lane_key} part of it; or set a column that says \
                     that the thing is deleted."
                )));
        }
        if let Some(event_type) = shape.stray_statement(&bucket.name) {
            return Err(place
                .error(format!(
                    "the statement of {event_type} may write rows of other lanes: its row_key does not hold \"{}\"",
                    bucket.name
                ))
                .with_hint(format!(
                    "Have it write rows with {} = batch.lane only, and add {} to its row_key.",
                    bucket.name, bucket.name
                )));
        }
        if shape.value_columns.is_empty() {
            return Err(place
                .error("a table bucketed by lane() needs a column to add up")
                .with_hint("Add a column with an operation under aggregates, or take lane() out of the primary key."));
        }
        return Ok(Sharing::Bucketed);
    }
    let holder = shape.key_columns.iter().find(|column| column.expression == *lane_key);
    if let Some(holder) = holder {
        match shape.stray_statement(&holder.name) {
            None => return Ok(Sharing::Plain),
            Some(_) if shape.lanes == 1 => return Ok(Sharing::OneLane),
            Some(event_type) => {
                return Err(place
                    .error(format!(
                        "two of the {} lanes could write one row in any order: the row_key of the statement of \
                         {event_type} does not hold the lane key's column \"{}\"",
                        shape.lanes, holder.name
                    ))
                    .with_hint(format!(
                        "If each event's part of the statement writes only rows with that event's {}, add {} to \
                         row_key; else set lanes: 1.",
                        holder.name, holder.name
                    )));
            }
        }
    }
    match shape.blocker() {
        None => Ok(Sharing::Commuting),
        Some(_) if shape.lanes == 1 => Ok(Sharing::OneLane),
        Some(blocker) => {
            let expressions: Vec<String> =
                shape.key_columns.iter().map(|column| column.expression.to_string()).collect();
            Err(place
                .error(format!(
                    "two of the {} lanes could write one row in any order: the primary key does not hold the lane key \
                     {lane_key}, and {blocker}",
                    shape.lanes
                ))
                .with_hint(format!(
                    "Either set lane_key to an expression of the primary key ({}); or add a column derived from \
                     lane() to the primary key; or set lanes: 1.",
                    expressions.join(", ")
                )))
        }
    }
}

/// Refuses row shards that spread nothing: `shard(event.show_id, 16)` beside `event.show_id` in the primary key is
/// one row a show, as if it were not there.
pub(super) fn check_spreading(
    place: &Place<'_>,
    derive: &Place<'_>,
    lane_key: &Expression,
    key_columns: &[KeyColumn],
) -> Result<(), DefinitionError> {
    let allowed = match place.optional("single_row_bucket")? {
        None => false,
        Some(place) if place.text()? == "allow" => true,
        Some(place) => return Err(place.error(format!("must be allow, not \"{}\"", place.text()?))),
    };
    let expressions: Vec<&Expression> = key_columns.iter().map(|column| &column.expression).collect();
    for column in key_columns {
        let Expression::Shard { expression, count, .. } = &column.expression else { continue };
        if allowed || !expressions.contains(&expression.as_ref()) {
            continue;
        }
        let other = match lane_key {
            Expression::Payload(_) | Expression::Key if lane_key != expression.as_ref() => lane_key.clone(),
            _ => Expression::Payload(vec!["user_id".to_owned()]),
        };
        let name = &column.name;
        return Err(derive
            .at(name, derive.json)
            .error(format!(
                "{} spreads nothing: {expression} is part of the primary key itself, so it has one hash and one row",
                column.expression
            ))
            .with_hint(format!(
                "Write \"{name}: lane()\" (one writer a row, and the view adds the rows up) or \
                 \"{name}: shard({other}, {count})\" under derive; or \"single_row_bucket: allow\" beside target to have \
                 it as it is."
            )));
    }
    Ok(())
}
