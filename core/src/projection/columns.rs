//! The columns outside the primary key, and what decides between two values of one.

use std::collections::BTreeMap;

use super::aggregates::{Aggregated, Aggregates};
use super::definition::{Derived, MAXIMUM_NAME, type_of};
use super::document::{DefinitionError, Place};
use super::{
    ColumnType, Effect, Expression, Field, KeyColumn, Number, Operation, Ordering, Target, ValueColumn, ValueKind,
};

/// What is known when the columns outside the primary key are put together.
pub(super) struct Columns<'a> {
    pub(super) place: &'a Place<'a>,
    pub(super) is_bucketed: bool,
    pub(super) fields: &'a [Field],
    pub(super) key_columns: &'a [KeyColumn],
    pub(super) effects: &'a [Effect],
    pub(super) derived: &'a BTreeMap<String, Derived>,
    pub(super) notes: Vec<String>,
}

/// What decides between the values of a column, before the hidden columns have names: for each source type the
/// expressions of `newer_by`.
type Deciding = Vec<Option<Vec<Expression>>>;

impl Columns<'_> {
    /// The columns in the order of `fields`, and what decides between values of those that are set.
    ///
    /// # Errors
    /// [`DefinitionError`] for a column that nothing fills, or whose operations do not fit it.
    pub(super) fn build(
        &mut self,
        target: &Target,
        mut aggregates: Aggregates<'_>,
        has_statements: bool,
    ) -> Result<(Vec<ValueColumn>, Vec<Ordering>), DefinitionError> {
        let types = self.known_types(&aggregates);
        let mut columns = Vec::new();
        let mut deciding: Vec<(Deciding, ValueKind, Vec<String>)> = Vec::new();
        for field in self.fields.iter().filter(|field| !target.primary_key.contains(&field.name)) {
            let derive = self.derived.get(&field.name);
            let (mut column, newer_by) = match (derive, aggregates.columns.remove(field.name.as_str())) {
                (Some(derive), _) => self.derived_column(field, derive)?,
                (None, Some(aggregated)) => self.aggregated_column(field, aggregated, &types)?,
                // A statement may write it.
                (None, None) if has_statements => continue,
                (None, None) => {
                    let place = self.place.required("fields")?;
                    return Err(place
                        .at(&field.name, place.json)
                        .error("is neither derived nor aggregated")
                        .with_hint(
                            "Give it an expression under derive, or an operation under aggregates, or remove it.",
                        ));
                }
            };
            let is_decided = match column.kind {
                ValueKind::Set => self.is_bucketed || newer_by.iter().flatten().any(|newer| !newer.is_empty()),
                ValueKind::SetOnce => self.is_bucketed,
                _ => false,
            };
            if is_decided {
                // Columns that the same events set by the same rule share what decides. A null is no value to
                // set_once, so each such column has its own.
                let known = deciding.iter().position(|(other, kind, _)| {
                    column.kind == ValueKind::Set && *kind == ValueKind::Set && *other == newer_by
                });
                let at = known.unwrap_or_else(|| {
                    deciding.push((newer_by, column.kind, Vec::new()));
                    deciding.len() - 1
                });
                if let Some((_, _, names)) = deciding.get_mut(at) {
                    names.push(field.name.clone());
                }
                column.ordering = Some(at);
            }
            columns.push(column);
        }
        let mut orderings = Vec::with_capacity(deciding.len());
        for (expressions, kind, names) in deciding {
            orderings.push(self.ordering(expressions, kind, names, &types)?);
        }
        Ok((columns, orderings))
    }

    /// The types of expressions that columns hold.
    fn known_types(&self, aggregates: &Aggregates<'_>) -> Vec<(Expression, ColumnType)> {
        let derived = self.derived.values().map(|column| (column.expression.clone(), column.column_type));
        let mut types: Vec<(Expression, ColumnType)> = derived.collect();
        for (name, aggregated) in &aggregates.columns {
            let Some(field) = self.fields.iter().find(|field| field.name == *name) else { continue };
            for operation in aggregated.operations.iter().flatten() {
                if let Operation::Set(value)
                | Operation::SetOnce(value)
                | Operation::Min(value)
                | Operation::Max(value) = operation
                {
                    types.push((value.clone(), field.column_type));
                }
            }
        }
        types
    }

    fn derived_column(&self, field: &Field, derive: &Derived) -> Result<(ValueColumn, Deciding), DefinitionError> {
        if derive.expression == Expression::Lane {
            let place = self.place.required("derive")?;
            return Err(place
                .at(&field.name, place.json)
                .error("lane() can only be a column of the primary key")
                .with_hint("Add the column to target.primary_key, or derive it from a field of the event."));
        }
        let keys: Vec<&Expression> = self.key_columns.iter().map(|column| &column.expression).collect();
        let kind = if derive.expression.follows_from(&keys) { ValueKind::Fixed } else { ValueKind::Set };
        let of_type = |effect: &Effect| (*effect == Effect::Fold).then(|| Operation::Set(derive.expression.clone()));
        let operations: Vec<Option<Operation>> = self.effects.iter().map(of_type).collect();
        let newer_by = operations.iter().map(|operation| operation.as_ref().map(|_| Vec::new())).collect();
        let column = ValueColumn {
            name: field.name.clone(),
            column_type: field.column_type,
            kind,
            ordering: None,
            operations,
            total_bounds: (None, None),
        };
        Ok((column, newer_by))
    }

    fn aggregated_column(
        &mut self,
        field: &Field,
        aggregated: Aggregated<'_>,
        types: &[(Expression, ColumnType)],
    ) -> Result<(ValueColumn, Deciding), DefinitionError> {
        let Aggregated { mut kind, mut operations, newer_by, place } = aggregated;
        for operation in operations.iter_mut().flatten() {
            let (Operation::Set(value)
            | Operation::SetOnce(value)
            | Operation::Min(value)
            | Operation::Max(value)
            | Operation::Add { by: value, .. }) = operation
            else {
                continue;
            };
            value.resolve(&|wanted| type_of(types, wanted));
        }
        let mut total_bounds = (None, None);
        if self.is_bucketed && kind == (ValueKind::Add { bounded: true }) {
            total_bounds = self.take_bounds(field, &mut operations, &place)?;
            kind = ValueKind::Add { bounded: false };
        }
        let column = ValueColumn {
            name: field.name.clone(),
            column_type: field.column_type,
            kind,
            ordering: None,
            operations,
            total_bounds,
        };
        Ok((column, newer_by))
    }

    /// In a bucketed table no lane knows the total, so floor and ceiling are applied to the total, by the view.
    fn take_bounds(
        &mut self,
        field: &Field,
        operations: &mut [Option<Operation>],
        place: &Place<'_>,
    ) -> Result<(Option<Number>, Option<Number>), DefinitionError> {
        let mut common: Option<(Option<Number>, Option<Number>)> = None;
        for operation in operations.iter_mut().flatten() {
            let Operation::Add { floor, ceiling, .. } = operation else { continue };
            let bounds = (floor.take(), ceiling.take());
            if bounds == (None, None) {
                continue;
            }
            match &common {
                Some(other) if *other != bounds => {
                    return Err(place
                        .error(format!("column \"{}\" has operations with different floors or ceilings", field.name))
                        .with_hint(
                            "In a table bucketed by lane() the floor and the ceiling are those of the total: give all \
                             operations on the column the same.",
                        ));
                }
                _ => common = Some(bounds),
            }
        }
        let common = common.unwrap_or((None, None));
        for (bound, name) in [(&common.0, "floor"), (&common.1, "ceiling")] {
            if let Some(bound) = bound {
                self.notes.push(format!(
                    "The {name} {} of column \"{}\" is applied to the total, in the view: the rows are bucketed by lane().",
                    bound.to_text(),
                    field.name
                ));
            }
        }
        Ok(common)
    }

    fn ordering(
        &self,
        expressions: Deciding,
        kind: ValueKind,
        mut names: Vec<String>,
        types: &[(Expression, ColumnType)],
    ) -> Result<Ordering, DefinitionError> {
        // Whatever the order of fields, which a definition stored as jsonb loses.
        names.sort();
        let first = names.first().map_or("", String::as_str);
        let hidden = |suffix: String| {
            let name = format!("{first}__{suffix}");
            let place = self.place.required("fields")?;
            if self.fields.iter().any(|field| field.name == name) {
                return Err(place
                    .at(&name, place.json)
                    .error(format!("\"{name}\" is the name of a hidden column that column \"{first}\" needs"))
                    .with_hint("Give the column another name."));
            }
            if name.len() > MAXIMUM_NAME {
                return Err(place
                    .at(first, place.json)
                    .error(format!("the name is too long for the hidden column \"{name}\" that goes with it"))
                    .with_hint(format!("Give it at most {} characters.", MAXIMUM_NAME + first.len() - name.len())));
            }
            Ok(name)
        };
        let length = expressions.iter().flatten().map(Vec::len).max().unwrap_or(0);
        let mut newer = Vec::with_capacity(length);
        let mut typed: Deciding = expressions.iter().map(|of_type| of_type.as_ref().map(|_| Vec::new())).collect();
        for index in 0..length {
            let at_index = |of_type: &Option<Vec<Expression>>| of_type.as_ref()?.get(index).cloned();
            let given: Vec<Expression> = expressions.iter().filter_map(at_index).collect();
            let column_type = given.iter().map(|expression| ordering_type(expression, types)).next();
            let column_type = column_type.unwrap_or(ColumnType::Numeric);
            for (of_type, slot) in expressions.iter().zip(&mut typed) {
                if let (Some(expression), Some(slot)) = (at_index(of_type), slot) {
                    let mut expression =
                        expression.typed(column_type).map_err(|error| self.place.expression_error(error))?;
                    expression.resolve(&|wanted| type_of(types, wanted));
                    slot.push(expression);
                }
            }
            newer.push(Field { name: hidden(format!("newer_{}", index + 1))?, column_type });
        }
        let position = if self.is_bucketed { Some(hidden("position".to_owned())?) } else { None };
        Ok(Ordering { newer, position, expressions: typed, least_wins: kind == ValueKind::SetOnce })
    }
}

/// The type by which values of `newer_by` are compared: that of a column that holds the same, else of the envelope's
/// field, else a number.
fn ordering_type(expression: &Expression, types: &[(Expression, ColumnType)]) -> ColumnType {
    let known = type_of(types, expression).filter(|column_type| column_type.has_order());
    known.unwrap_or(match expression {
        Expression::Time | Expression::Position => ColumnType::Bigint,
        Expression::Key | Expression::Type => ColumnType::Text,
        Expression::Seconds(_) => ColumnType::Timestamptz,
        Expression::Shard { .. } => ColumnType::Int,
        _ => ColumnType::Numeric,
    })
}
