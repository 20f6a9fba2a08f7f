//! An event as expressions see it: its payload is read once, on first use, for all projections.
//!
//! Format: the payload is a JSON object. Of fields with the same name the last one counts, as in `jsonb`. Values stay
//! text until a column asks for them, so numbers keep their digits.

use std::borrow::Cow;
use std::fmt;
use std::sync::OnceLock;

use serde::Deserializer as _;
use serde::de::{DeserializeSeed, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::expression::Expression;
use super::number::Number;
use super::time;
use super::value::{ColumnType, Value, ValueRef, from_json, number_from_json, number_from_text};
use crate::event::Event;
use crate::hash::murmur3_x86_32;

/// How many characters of a value an error shows.
const SHOWN_CHARACTERS: usize = 60;

/// Why an event cannot be applied: a value of it does not fit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DataError {
    /// The event's position.
    pub position: u64,
    /// The column; none for the lane key or the payload as a whole.
    pub column: Option<String>,
    /// The value, shortened.
    pub value: String,
    /// What is wrong with it, a clause that follows the value.
    pub reason: &'static str,
}

impl std::error::Error for DataError {}

impl fmt::Display for DataError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "event at position {}: ", self.position)?;
        if let Some(column) = &self.column {
            write!(formatter, "column \"{column}\": ")?;
        }
        write!(formatter, "value {} {}", self.value, self.reason)
    }
}

/// A value that does not fit, before its column is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Misfit {
    value: String,
    reason: &'static str,
}

impl Misfit {
    fn new(value: &str, reason: &'static str) -> Misfit {
        let value = match value.char_indices().nth(SHOWN_CHARACTERS) {
            None => value.to_owned(),
            Some((end, _)) => format!("{}…", value.get(..end).unwrap_or_default()),
        };
        Misfit { value, reason }
    }

    pub(super) fn at(self, view: &EventView<'_>, column: Option<&str>) -> DataError {
        let column = column.map(str::to_owned);
        DataError { position: view.position, column, value: self.value, reason: self.reason }
    }
}

/// The fields of an object, in the order of the text. Names are bytes, for JSON allows names that are no Unicode.
type Fields<'e> = Vec<(Cow<'e, [u8]>, &'e RawValue)>;

/// An event and its position, with the payload's fields once they were asked for.
#[derive(Debug)]
pub struct EventView<'e> {
    position: u64,
    event: &'e Event,
    fields: OnceLock<Option<Fields<'e>>>,
}

impl<'e> EventView<'e> {
    /// A view of an event. Costs nothing until the payload is needed.
    pub fn new(position: u64, event: &'e Event) -> EventView<'e> {
        EventView { position, event, fields: OnceLock::new() }
    }

    /// The event's position.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// The event.
    pub fn event(&self) -> &'e Event {
        self.event
    }

    /// What a path of names leads to, as JSON text; none if it leads nowhere.
    fn find(&self, path: &[String]) -> Result<Option<&'e str>, Misfit> {
        let fields = self.fields.get_or_init(|| read_fields(&self.event.payload));
        let Some(fields) = fields else { return Err(Misfit::new(&self.event.payload, "is not a JSON object")) };
        let Some((first, rest)) = path.split_first() else { return Ok(None) };
        let mut found = last_named(fields, first);
        for name in rest {
            found = found.and_then(|json| last_named(&read_fields(json)?, name));
        }
        Ok(found)
    }

    /// The value of an expression for a column of `column_type`.
    pub(super) fn value<'v>(
        &'v self,
        expression: &'v Expression,
        column_type: ColumnType,
        lane: u32,
    ) -> Result<Option<ValueRef<'v>>, Misfit> {
        let value = match expression {
            Expression::Payload(path) => {
                let Some(json) = self.find(path)? else { return Ok(None) };
                return from_json(json, column_type).map_err(|reason| Misfit::new(json, reason));
            }
            // The definition gave it the column's type.
            Expression::Literal(value) => return Ok(Some(value.as_ref())),
            Expression::Key => ValueRef::Text(Cow::Borrowed(&self.event.key)),
            Expression::Type => ValueRef::Text(Cow::Borrowed(&self.event.event_type)),
            Expression::Time => ValueRef::Integer(self.event.ts),
            Expression::Position => ValueRef::Integer(self.signed_position()?),
            Expression::Lane => ValueRef::Integer(lane.into()),
            Expression::Shard { expression, count, through } => {
                let Some(value) = self.value(expression, *through, lane)? else { return Ok(None) };
                let text = value.normalized().into_text();
                ValueRef::Integer((murmur3_x86_32(text.as_bytes(), 0) % (*count).max(1)).into())
            }
            Expression::Seconds(expression) => {
                let Some(number) = self.number(expression, ColumnType::Numeric)? else { return Ok(None) };
                let time = time::from_number(&number, 1_000_000);
                ValueRef::Time(time.map_err(|reason| Misfit::new(&number.to_text(), reason))?)
            }
        };
        let shown = || value.clone().into_text().into_owned();
        value.clone().cast(column_type).map(Some).map_err(|reason| Misfit::new(&shown(), reason))
    }

    /// The value of an expression as a number to add to a column of `column_type`.
    pub(super) fn number(&self, expression: &Expression, column_type: ColumnType) -> Result<Option<Number>, Misfit> {
        let number =
            |text: &str| number_from_text(text, column_type).map(Some).map_err(|reason| Misfit::new(text, reason));
        match expression {
            Expression::Payload(path) => {
                let Some(json) = self.find(path)? else { return Ok(None) };
                number_from_json(json, column_type).map_err(|reason| Misfit::new(json, reason))
            }
            Expression::Literal(Value::Integer(integer)) => Ok(Some(Number::Integer((*integer).into()))),
            Expression::Literal(Value::Numeric(decimal)) => Ok(Some(Number::Decimal(decimal.clone()))),
            Expression::Literal(other) => Err(Misfit::new(&other.to_string(), "is not a number")),
            Expression::Key => number(&self.event.key),
            Expression::Type => number(&self.event.event_type),
            Expression::Time => Ok(Some(Number::Integer(self.event.ts.into()))),
            Expression::Position => Ok(Some(Number::Integer(self.position.into()))),
            Expression::Shard { .. } => match self.value(expression, ColumnType::Bigint, 0)? {
                Some(ValueRef::Integer(shard)) => Ok(Some(Number::Integer(shard.into()))),
                _ => Ok(None),
            },
            Expression::Lane | Expression::Seconds(_) => {
                Err(Misfit::new(&expression.to_string(), "is not a number of an event"))
            }
        }
    }

    /// The lane key's place among parked keys when its value cannot be text in Postgres: the payload's own spelling of
    /// it, shortened.
    pub(super) fn spelling(&self, expression: &Expression) -> String {
        match self.value(expression, ColumnType::Text, 0) {
            Ok(value) => value.map(|value| value.into_text().into_owned()).unwrap_or_default(),
            Err(misfit) => misfit.value,
        }
    }

    fn signed_position(&self) -> Result<i64, Misfit> {
        i64::try_from(self.position)
            .map_err(|_| Misfit::new(&self.position.to_string(), "is out of range for type bigint"))
    }
}

fn last_named<'e>(fields: &Fields<'e>, name: &str) -> Option<&'e str> {
    fields.iter().rev().find(|(field, _)| field.as_ref() == name.as_bytes()).map(|(_, json)| json.get())
}

/// The fields of an object; none if the text is not one.
fn read_fields(json: &str) -> Option<Fields<'_>> {
    if json.trim_ascii_start().as_bytes().first() != Some(&b'{') {
        return None;
    }
    let mut deserializer = serde_json::Deserializer::from_str(json);
    let fields = deserializer.deserialize_map(FieldsVisitor).ok()?;
    deserializer.end().ok()?;
    Some(fields)
}

struct FieldsVisitor;

impl<'e> Visitor<'e> for FieldsVisitor {
    type Value = Fields<'e>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a JSON object")
    }

    fn visit_map<A: MapAccess<'e>>(self, mut map: A) -> Result<Fields<'e>, A::Error> {
        let mut fields = Vec::with_capacity(16);
        while let Some(name) = map.next_key_seed(NameSeed)? {
            fields.push((name, map.next_value::<&'e RawValue>()?));
        }
        Ok(fields)
    }
}

/// Reads a name as bytes: borrowed where it has no escapes, and without an error for a lone surrogate, so that a field
/// that no definition asks for cannot make an event fail.
struct NameSeed;

impl<'e> DeserializeSeed<'e> for NameSeed {
    type Value = Cow<'e, [u8]>;

    fn deserialize<D: serde::Deserializer<'e>>(self, deserializer: D) -> Result<Cow<'e, [u8]>, D::Error> {
        deserializer.deserialize_bytes(self)
    }
}

impl<'e> Visitor<'e> for NameSeed {
    type Value = Cow<'e, [u8]>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a name")
    }

    fn visit_borrowed_bytes<E>(self, name: &'e [u8]) -> Result<Cow<'e, [u8]>, E> {
        Ok(Cow::Borrowed(name))
    }

    fn visit_bytes<E>(self, name: &[u8]) -> Result<Cow<'e, [u8]>, E> {
        Ok(Cow::Owned(name.to_owned()))
    }

    fn visit_borrowed_str<E>(self, name: &'e str) -> Result<Cow<'e, [u8]>, E> {
        Ok(Cow::Borrowed(name.as_bytes()))
    }

    fn visit_str<E>(self, name: &str) -> Result<Cow<'e, [u8]>, E> {
        Ok(Cow::Owned(name.as_bytes().to_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(payload: &str) -> Event {
        Event { event_type: "T".to_owned(), key: "7.0".to_owned(), ts: -5, payload: payload.to_owned() }
    }

    fn read(payload: &str, expression: &str, column_type: ColumnType) -> Result<Option<Value>, String> {
        let event = event(payload);
        let view = EventView::new(42, &event);
        let expression = Expression::parse(expression).unwrap();
        let value = view.value(&expression, column_type, 3);
        value.map(|value| value.map(ValueRef::into_value)).map_err(|misfit| misfit.at(&view, Some("c")).to_string())
    }

    #[test]
    fn fields_are_found() {
        let payload = r#" {"a": 1, "b": {"c": {"d": "x"}, "c": {"d": "y"}}, "a": 2, "ts": 9, "\u00e9": 5, "n": null} "#;
        let integer = |integer| Ok(Some(Value::Integer(integer)));
        assert_eq!(read(payload, "event.a", ColumnType::Int), integer(2));
        assert_eq!(read(payload, "event.b.c.d", ColumnType::Text), Ok(Some(Value::Text("y".to_owned()))));
        assert_eq!(read(payload, "event.payload.ts", ColumnType::Int), integer(9));
        assert_eq!(read(payload, "event.é", ColumnType::Int), integer(5));
        assert_eq!(read(payload, "event.ts", ColumnType::Int), integer(-5));
        assert_eq!(read(payload, "event.position", ColumnType::Bigint), integer(42));
        assert_eq!(read(payload, "event.key", ColumnType::Bigint), integer(7));
        assert_eq!(read(payload, "lane()", ColumnType::Int), integer(3));
        let shard = i64::from(crate::lane::shard(b"y", 16).unwrap());
        assert_eq!(read(payload, "shard(event.b.c.d, 16)", ColumnType::Int), integer(shard));
        assert_eq!(read(payload, "shard(event.n, 16)", ColumnType::Int), Ok(None));
        assert_eq!(read(payload, "seconds(event.a)", ColumnType::Timestamptz), Ok(Some(Value::Time(2_000_000))));
        assert_eq!(read(payload, "event.ts", ColumnType::Timestamptz), Ok(Some(Value::Time(-5000))));
        assert_eq!(read(payload, "seconds(event.x)", ColumnType::Timestamptz), Ok(None));
        assert!(read(payload, "seconds(event.b.c.d)", ColumnType::Timestamptz).unwrap_err().contains("\"y\" is not"));
        for nowhere in ["event.n", "event.n.x", "event.a.x", "event.x", "event.b.c.d.e", "event.b.x"] {
            assert_eq!(read(payload, nowhere, ColumnType::Int), Ok(None), "{nowhere}");
        }
    }

    #[test]
    fn errors_name_event_column_and_value() {
        assert_eq!(
            read(r#"{"a": "ten"}"#, "event.a", ColumnType::Int).unwrap_err(),
            "event at position 42: column \"c\": value \"ten\" is not a number"
        );
        let long = format!("{{\"a\": \"{}\"}}", "ä".repeat(500));
        let error = read(&long, "event.a", ColumnType::Int).unwrap_err();
        assert!(error.ends_with("ä… is not a number") && error.chars().count() < 150, "{error}");
        for payload in ["", "[]", "nonsense", "{\"a\":}", "{} x", "\u{feff}{}"] {
            assert!(
                read(payload, "event.a", ColumnType::Int).unwrap_err().ends_with("is not a JSON object"),
                "{payload}"
            );
            assert!(read(payload, "event.key", ColumnType::Text).is_ok(), "the payload is not needed");
        }
    }

    #[test]
    fn a_strange_field_does_no_harm_until_it_is_asked_for() {
        let payload = r#"{"\ud800": 1, "a": "\u0000", "b": "\udc00x", "c": 1}"#;
        assert_eq!(read(payload, "event.c", ColumnType::Int), Ok(Some(Value::Integer(1))));
        assert!(read(payload, "event.a", ColumnType::Text).unwrap_err().contains("U+0000"));
        assert!(read(payload, "event.b", ColumnType::Text).unwrap_err().contains("is not valid text"));
    }

    #[test]
    fn deep_nesting_is_read_without_recursion() {
        let payload = format!("{{\"a\": {}{}, \"b\": 1}}", "[".repeat(100_000), "]".repeat(100_000));
        assert_eq!(read(&payload, "event.b", ColumnType::Int), Ok(Some(Value::Integer(1))));
        assert_eq!(read(&payload, "event.a.b", ColumnType::Int), Ok(None));
    }
}
