//! A document of definitions as a tree of places: each error names its place, and the nearest right name where a name
//! is wrong.

use std::collections::BTreeSet;

use serde_json::{Map, Value as Json};

use super::expression::{ExpressionError, kind_of};
use super::{ColumnType, Expression};
use crate::lane;

pub(super) const NAME_HINT: &str =
    "Use lower-case letters, digits and underscores, not beginning with a digit, at most 63 characters.";

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

    pub(super) fn with_hint(mut self, hint: impl Into<String>) -> DefinitionError {
        self.hint = Some(hint.into());
        self
    }
}

/// The names that an object may have here: those of this version, and those of the language that come later.
pub(super) struct Names {
    pub(super) known: &'static [&'static str],
    pub(super) later: &'static [&'static str],
}

/// The known name that `name` may be a slip of: at most a third of its letters are wrong.
pub(super) fn nearest<'n>(name: &str, known: impl IntoIterator<Item = &'n str>) -> Option<&'n str> {
    let wanted: Vec<char> = name.to_lowercase().chars().take(64).collect();
    let limit = (wanted.len() / 3).max(1);
    let candidates = known.into_iter().map(|known| (distance(&wanted, &known.to_lowercase()), known));
    candidates.filter(|(distance, _)| *distance <= limit).min().map(|(_, known)| known)
}

/// How many letters must be put in, taken out, changed or swapped with their neighbour.
fn distance(from: &[char], to: &str) -> usize {
    let to: Vec<char> = to.chars().take(64).collect();
    let mut before_last: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=to.len()).collect();
    for (row, letter) in from.iter().enumerate() {
        let mut next = vec![row + 1];
        for (column, other) in to.iter().enumerate() {
            let at = |line: &[usize], place: usize| line.get(place).copied().unwrap_or(usize::MAX / 2);
            let mut least = at(&last, column) + usize::from(letter != other);
            least = least.min(at(&last, column + 1) + 1).min(at(&next, column) + 1);
            let swapped =
                row > 0 && column > 0 && from.get(row - 1) == Some(other) && to.get(column - 1) == Some(letter);
            if swapped {
                least = least.min(at(&before_last, column - 1) + 1);
            }
            next.push(least);
        }
        before_last = std::mem::replace(&mut last, next);
    }
    last.last().copied().unwrap_or(0)
}

/// A hint that lists the names there are, and the nearest one first.
pub(super) fn known_hint<'n>(what: &str, name: &str, known: impl IntoIterator<Item = &'n str> + Clone) -> String {
    let list: Vec<&str> = known.clone().into_iter().collect();
    let guess = nearest(name, known).map(|nearest| format!("Did you mean \"{nearest}\"? ")).unwrap_or_default();
    format!("{guess}{what}: {}.", list.join(", "))
}

/// A piece of the document and its place.
#[derive(Clone)]
pub(super) struct Place<'a> {
    pub(super) path: String,
    pub(super) json: &'a Json,
}

impl<'a> Place<'a> {
    pub(super) fn error(&self, message: impl Into<String>) -> DefinitionError {
        let path = if self.path.is_empty() { "document" } else { &self.path };
        DefinitionError { path: path.to_owned(), message: message.into(), hint: None }
    }

    pub(super) fn at(&self, name: &str, json: &'a Json) -> Place<'a> {
        let dot = if self.path.is_empty() { "" } else { "." };
        Place { path: format!("{}{dot}{name}", self.path), json }
    }

    pub(super) fn object(&self) -> Result<&'a Map<String, Json>, DefinitionError> {
        self.json.as_object().ok_or_else(|| self.error(format!("must be an object, not {}", kind_of(self.json))))
    }

    /// The entries of an object whose names are free.
    pub(super) fn entries(&self) -> Result<Vec<(&'a str, Place<'a>)>, DefinitionError> {
        Ok(self.object()?.iter().map(|(name, json)| (name.as_str(), self.at(name, json))).collect())
    }

    /// Refuses names that this object cannot have.
    pub(super) fn check_names(&self, names: &Names) -> Result<(), DefinitionError> {
        for (name, place) in self.entries()? {
            if !names.known.contains(&name) {
                return Err(place.unknown("key", name, names));
            }
        }
        Ok(())
    }

    pub(super) fn unknown(&self, what: &str, name: &str, names: &Names) -> DefinitionError {
        let error = if names.later.contains(&name) {
            self.error(format!("{what} \"{name}\" comes in a later version"))
        } else {
            self.error(format!("{what} \"{name}\" is not known"))
        };
        error.with_hint(known_hint("Known here", name, names.known.iter().copied()))
    }

    /// A text that is one of `names`.
    pub(super) fn choice(&self, what: &str, names: &Names) -> Result<&'a str, DefinitionError> {
        let text = self.text()?;
        if names.known.contains(&text) { Ok(text) } else { Err(self.unknown(what, text, names)) }
    }

    pub(super) fn optional(&self, name: &str) -> Result<Option<Place<'a>>, DefinitionError> {
        Ok(self.object()?.get(name).map(|json| self.at(name, json)))
    }

    pub(super) fn required(&self, name: &str) -> Result<Place<'a>, DefinitionError> {
        self.optional(name)?.ok_or_else(|| self.error(format!("\"{name}\" is missing")))
    }

    pub(super) fn text(&self) -> Result<&'a str, DefinitionError> {
        self.json.as_str().ok_or_else(|| self.error(format!("must be text, not {}", kind_of(self.json))))
    }

    pub(super) fn boolean(&self) -> Result<bool, DefinitionError> {
        self.json.as_bool().ok_or_else(|| self.error(format!("must be true or false, not {}", kind_of(self.json))))
    }

    /// A whole number between two.
    pub(super) fn whole(&self, minimum: u32, maximum: u32) -> Result<u32, DefinitionError> {
        let number = self.json.as_u64().and_then(|number| u32::try_from(number).ok());
        number.filter(|number| (minimum..=maximum).contains(number)).ok_or_else(|| {
            let given = match self.json {
                Json::Number(number) => number.to_string(),
                other => kind_of(other).to_owned(),
            };
            self.error(format!("must be a whole number between {minimum} and {maximum}, not {given}"))
        })
    }

    pub(super) fn list(&self) -> Result<Vec<Place<'a>>, DefinitionError> {
        let Json::Array(items) = self.json else {
            return Err(self.error(format!("must be a list, not {}", kind_of(self.json))));
        };
        let item = |(index, json)| Place { path: format!("{}[{index}]", self.path), json };
        Ok(items.iter().enumerate().map(item).collect())
    }

    /// A list of texts, none of them twice, at least one.
    pub(super) fn texts(&self) -> Result<Vec<(&'a str, Place<'a>)>, DefinitionError> {
        let places = self.list()?;
        if places.is_empty() {
            return Err(self.error("must not be empty"));
        }
        let mut texts: Vec<(&str, Place<'_>)> = Vec::with_capacity(places.len());
        let mut seen = BTreeSet::new();
        for place in places {
            let text = place.text()?;
            if !seen.insert(text) {
                return Err(place.error(format!("\"{text}\" is named twice")));
            }
            texts.push((text, place));
        }
        Ok(texts)
    }

    pub(super) fn expression(&self) -> Result<Expression, DefinitionError> {
        Expression::from_document(self.json).map_err(|error| self.expression_error(error))
    }

    pub(super) fn expression_error(&self, error: ExpressionError) -> DefinitionError {
        self.error(error.message).with_hint(error.hint)
    }

    /// The expression for a column of this type. `lane()` is no value of an event, so only a key column may hold it.
    pub(super) fn value_expression(&self, column_type: ColumnType) -> Result<Expression, DefinitionError> {
        let expression = self.expression()?.typed(column_type).map_err(|error| self.expression_error(error))?;
        if expression == Expression::Lane {
            return Err(self
                .error("lane() can only be a column of the primary key")
                .with_hint("Add the column to target.primary_key, or derive it from a field of the event."));
        }
        Ok(expression)
    }
}

/// A name that needs no quotes in SQL. (Projections' names follow the same rule.)
pub(super) fn check_identifier(place: &Place<'_>, what: &str, name: &str) -> Result<(), DefinitionError> {
    if lane::is_projection_name(name) {
        return Ok(());
    }
    Err(place.error(format!("\"{name}\" is not the name of a {what}")).with_hint(NAME_HINT))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_found() {
        let known = ["source_events", "target", "fields", "derive", "aggregates", "retry", "set_once"];
        for (name, expected) in [
            ("source_event", Some("source_events")),
            ("traget", Some("target")),
            ("Fields", Some("fields")),
            ("agregates", Some("aggregates")),
            ("rtery", Some("retry")),
            ("setonce", Some("set_once")),
            ("colour", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(name, known), expected, "{name}");
        }
        assert_eq!(nearest(&"ä".repeat(10_000), known), None);
    }
}
