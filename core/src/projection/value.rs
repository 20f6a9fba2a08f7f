//! Values of columns, and how they are read: as Postgres's `->>` followed by a cast would.
//!
//! Invariants: numbers are read from the payload's own digits. No value is a missing field, a null, or a path
//! through something that is no object. Text never holds U+0000, which Postgres's `text` cannot.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use bigdecimal::BigDecimal;

use super::number::Number;

/// The type of a column.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ColumnType {
    /// `text`
    Text,
    /// `integer`
    Int,
    /// `bigint`
    Bigint,
    /// `numeric`, without a precision
    Numeric,
    /// `boolean`
    Boolean,
}

impl ColumnType {
    /// All types, in the order of messages.
    pub const ALL: [ColumnType; 5] =
        [ColumnType::Text, ColumnType::Int, ColumnType::Bigint, ColumnType::Numeric, ColumnType::Boolean];

    /// The name in a definition.
    pub fn name(self) -> &'static str {
        match self {
            ColumnType::Text => "TEXT",
            ColumnType::Int => "INT",
            ColumnType::Bigint => "BIGINT",
            ColumnType::Numeric => "NUMERIC",
            ColumnType::Boolean => "BOOLEAN",
        }
    }

    /// The name as Postgres's `format_type` gives it.
    pub fn sql_name(self) -> &'static str {
        match self {
            ColumnType::Text => "text",
            ColumnType::Int => "integer",
            ColumnType::Bigint => "bigint",
            ColumnType::Numeric => "numeric",
            ColumnType::Boolean => "boolean",
        }
    }

    /// Whether the values are integers.
    pub fn is_integer(self) -> bool {
        matches!(self, ColumnType::Int | ColumnType::Bigint)
    }

    /// Whether the values can be added.
    pub fn is_number(self) -> bool {
        self.is_integer() || self == ColumnType::Numeric
    }
}

/// A value of a column. Null is the absence of one, `Option::None`.
///
/// The order of values of one type is the order that Postgres gives them, text in collation "C".
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Value {
    /// Of a column of type TEXT.
    Text(String),
    /// Of a column of type INT or BIGINT, in the range of that type.
    Integer(i64),
    /// Of a column of type NUMERIC.
    Numeric(BigDecimal),
    /// Of a column of type BOOLEAN.
    Boolean(bool),
}

impl Value {
    /// The value as one of `column_type`.
    ///
    /// # Errors
    /// The reason as a clause that follows the value.
    pub fn cast(&self, column_type: ColumnType) -> Result<Value, &'static str> {
        self.as_ref().cast(column_type).map(ValueRef::into_value)
    }

    /// The same value, borrowed.
    pub fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Text(text) => ValueRef::Text(Cow::Borrowed(text)),
            Value::Integer(integer) => ValueRef::Integer(*integer),
            Value::Numeric(decimal) => ValueRef::Numeric(decimal.clone()),
            Value::Boolean(boolean) => ValueRef::Boolean(*boolean),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Text(text) => formatter.write_str(text),
            Value::Integer(integer) => integer.fmt(formatter),
            Value::Numeric(decimal) => decimal.fmt(formatter),
            Value::Boolean(boolean) => boolean.fmt(formatter),
        }
    }
}

/// A value whose text is still part of the event: what an expression gives before anything is stored.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum ValueRef<'a> {
    /// See [`Value::Text`].
    Text(Cow<'a, str>),
    /// See [`Value::Integer`].
    Integer(i64),
    /// See [`Value::Numeric`].
    Numeric(BigDecimal),
    /// See [`Value::Boolean`].
    Boolean(bool),
}

impl<'a> ValueRef<'a> {
    /// The value with text of its own.
    pub fn into_value(self) -> Value {
        match self {
            ValueRef::Text(text) => Value::Text(text.into_owned()),
            ValueRef::Integer(integer) => Value::Integer(integer),
            ValueRef::Numeric(decimal) => Value::Numeric(decimal),
            ValueRef::Boolean(boolean) => Value::Boolean(boolean),
        }
    }

    /// The order of two values of one type; values of different types are never compared, and count as equal.
    pub fn compare(&self, value: &Value) -> Ordering {
        match (self, value) {
            (ValueRef::Text(left), Value::Text(right)) => left.as_ref().cmp(right),
            (ValueRef::Integer(left), Value::Integer(right)) => left.cmp(right),
            (ValueRef::Numeric(left), Value::Numeric(right)) => left.cmp(right),
            (ValueRef::Boolean(left), Value::Boolean(right)) => left.cmp(right),
            _ => Ordering::Equal,
        }
    }

    /// The value in the one spelling that all equal values have: 1.0 and 1 are one key.
    #[must_use]
    pub fn normalized(self) -> ValueRef<'a> {
        match self {
            ValueRef::Numeric(decimal) => ValueRef::Numeric(decimal.normalized()),
            other => other,
        }
    }

    /// The value as text.
    pub fn into_text(self) -> Cow<'a, str> {
        match self {
            ValueRef::Text(text) => text,
            ValueRef::Integer(integer) => Cow::Owned(integer.to_string()),
            ValueRef::Numeric(decimal) => Cow::Owned(decimal.to_string()),
            ValueRef::Boolean(boolean) => Cow::Borrowed(if boolean { "true" } else { "false" }),
        }
    }

    /// The value as one of `column_type`.
    ///
    /// # Errors
    /// The reason as a clause that follows the value.
    pub fn cast(self, column_type: ColumnType) -> Result<ValueRef<'a>, &'static str> {
        match (self, column_type) {
            (ValueRef::Text(text), _) => from_text(text, column_type),
            (value, ColumnType::Text) => Ok(ValueRef::Text(value.into_text())),
            (ValueRef::Integer(integer), ColumnType::Int | ColumnType::Bigint) => in_range(integer.into(), column_type),
            (ValueRef::Integer(integer), ColumnType::Numeric) => Ok(ValueRef::Numeric(BigDecimal::from(integer))),
            (ValueRef::Numeric(decimal), ColumnType::Numeric) => Ok(ValueRef::Numeric(decimal)),
            (ValueRef::Numeric(decimal), ColumnType::Int | ColumnType::Bigint) => {
                in_range(Number::parse_integer(&decimal.to_string())?, column_type)
            }
            (ValueRef::Boolean(boolean), ColumnType::Boolean) => Ok(ValueRef::Boolean(boolean)),
            (_, ColumnType::Boolean) => Err("is not a boolean"),
            (_, _) => Err("is not a number"),
        }
    }
}

fn in_range(integer: i128, column_type: ColumnType) -> Result<ValueRef<'static>, &'static str> {
    match column_type {
        ColumnType::Int => i32::try_from(integer)
            .map(|integer| ValueRef::Integer(integer.into()))
            .map_err(|_| "is out of range for type integer"),
        _ => i64::try_from(integer).map(ValueRef::Integer).map_err(|_| "is out of range for type bigint"),
    }
}

/// Text, or the digits of a number, as a value of `column_type`.
fn from_text(text: Cow<'_, str>, column_type: ColumnType) -> Result<ValueRef<'_>, &'static str> {
    match column_type {
        ColumnType::Text => Ok(ValueRef::Text(text)),
        ColumnType::Int | ColumnType::Bigint => in_range(Number::parse_integer(&text)?, column_type),
        ColumnType::Numeric => Ok(ValueRef::Numeric(match Number::parse(&text)? {
            Number::Integer(integer) => BigDecimal::from(integer),
            Number::Decimal(decimal) => decimal,
        })),
        ColumnType::Boolean => match text.as_ref() {
            "true" => Ok(ValueRef::Boolean(true)),
            "false" => Ok(ValueRef::Boolean(false)),
            _ => Err("is not a boolean"),
        },
    }
}

/// What a piece of valid JSON is.
enum Json<'a> {
    Null,
    Boolean(&'a str),
    Number(&'a str),
    String(Cow<'a, str>),
    /// An array or object, as its text.
    Nested(&'a str),
}

fn read_json(json: &str) -> Result<Json<'_>, &'static str> {
    Ok(match json.as_bytes().first() {
        Some(b'n') => Json::Null,
        Some(b't' | b'f') => Json::Boolean(json),
        Some(b'"') => Json::String(unescape(json)?),
        Some(b'{' | b'[') => Json::Nested(json),
        _ => Json::Number(json),
    })
}

/// A JSON string's text. Without an escape, which is nearly always, it is borrowed.
fn unescape(json: &str) -> Result<Cow<'_, str>, &'static str> {
    if !json.as_bytes().contains(&b'\\') {
        return json.get(1..json.len().saturating_sub(1)).map(Cow::Borrowed).ok_or("is not valid text");
    }
    let text: String = serde_json::from_str(json).map_err(|_| "is not valid text")?;
    if text.contains('\0') { Err("contains U+0000, which text cannot hold") } else { Ok(Cow::Owned(text)) }
}

/// A piece of valid JSON as a value of `column_type`; null is no value.
///
/// # Errors
/// The reason as a clause that follows the value.
pub fn from_json(json: &str, column_type: ColumnType) -> Result<Option<ValueRef<'_>>, &'static str> {
    match (read_json(json)?, column_type) {
        (Json::Null, _) => Ok(None),
        (Json::String(text), _) => from_text(text, column_type).map(Some),
        (Json::Boolean(text) | Json::Number(text) | Json::Nested(text), ColumnType::Text) => {
            Ok(Some(ValueRef::Text(Cow::Borrowed(text))))
        }
        (Json::Boolean(text), ColumnType::Boolean) => Ok(Some(ValueRef::Boolean(text == "true"))),
        (Json::Number(_) | Json::Nested(_), ColumnType::Boolean) => Err("is not a boolean"),
        (Json::Boolean(_) | Json::Nested(_), _) => Err("is not a number"),
        (Json::Number(digits), _) => from_text(Cow::Borrowed(digits), column_type).map(Some),
    }
}

/// A piece of valid JSON as a number to add to a column of `column_type`. It need not fit the column: only the sum
/// that is stored must. For an integer column it must be an integer in the range of `i128`.
///
/// # Errors
/// The reason as a clause that follows the value.
pub fn number_from_json(json: &str, column_type: ColumnType) -> Result<Option<Number>, &'static str> {
    let text = match read_json(json)? {
        Json::Null => return Ok(None),
        Json::Number(digits) => Cow::Borrowed(digits),
        Json::String(text) => text,
        Json::Boolean(_) | Json::Nested(_) => return Err("is not a number"),
    };
    number_from_text(&text, column_type).map(Some)
}

/// As [`number_from_json`], from text.
///
/// # Errors
/// The reason as a clause that follows the value.
pub fn number_from_text(text: &str, column_type: ColumnType) -> Result<Number, &'static str> {
    if column_type.is_integer() { Number::parse_integer(text).map(Number::Integer) } else { Number::parse(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(json: &str, column_type: ColumnType) -> Result<Option<Value>, &'static str> {
        from_json(json, column_type).map(|value| value.map(ValueRef::into_value))
    }

    #[test]
    fn json_is_read_as_the_column_wants_it() {
        use ColumnType::{Bigint, Boolean, Int, Numeric, Text};
        let text = |text: &str| Ok(Some(Value::Text(text.to_owned())));
        let integer = |integer| Ok(Some(Value::Integer(integer)));
        for column_type in ColumnType::ALL {
            assert_eq!(read("null", column_type), Ok(None));
        }
        assert_eq!(read("1.50", Text), text("1.50"));
        assert_eq!(read("true", Text), text("true"));
        assert_eq!(read(r#"{"a": [1,  2]}"#, Text), text(r#"{"a": [1,  2]}"#));
        assert_eq!(read(r#""aä\n\u00e9\ud83d\ude00""#, Text), text("aä\né😀"));
        assert_eq!(read(r#""a\u0000""#, Text), Err("contains U+0000, which text cannot hold"));
        assert_eq!(read(r#""a\ud800""#, Text), Err("is not valid text"));
        assert_eq!(read("1e3", Int), integer(1000));
        assert_eq!(read("\"2.0\"", Bigint), integer(2));
        assert_eq!(read("2147483647", Int), integer(2_147_483_647));
        assert_eq!(read("2147483648", Int), Err("is out of range for type integer"));
        assert_eq!(read("9223372036854775808", Bigint), Err("is out of range for type bigint"));
        assert_eq!(read("2.5", Int), Err("is not an integer"));
        assert_eq!(read("true", Int), Err("is not a number"));
        assert_eq!(read("[]", Numeric), Err("is not a number"));
        assert_eq!(read("0.10", Numeric), Ok(Some(Value::Numeric("0.1".parse().unwrap()))));
        assert_eq!(read("1e999999999", Numeric), Err("has more digits than numeric holds"));
        assert_eq!(read("\"NaN\"", Numeric), Err("is not a number"));
        assert_eq!(read("false", Boolean), Ok(Some(Value::Boolean(false))));
        assert_eq!(read("\"true\"", Boolean), Ok(Some(Value::Boolean(true))));
        assert_eq!(read("\"t\"", Boolean), Err("is not a boolean"));
        assert_eq!(read("1", Boolean), Err("is not a boolean"));
    }

    #[test]
    fn values_cast() {
        assert_eq!(Value::Integer(7).cast(ColumnType::Text), Ok(Value::Text("7".to_owned())));
        assert_eq!(Value::Integer(1 << 40).cast(ColumnType::Int), Err("is out of range for type integer"));
        assert_eq!(Value::Integer(7).cast(ColumnType::Boolean), Err("is not a boolean"));
        assert_eq!(Value::Boolean(true).cast(ColumnType::Int), Err("is not a number"));
        assert_eq!(Value::Numeric("3.00".parse().unwrap()).cast(ColumnType::Int), Ok(Value::Integer(3)));
        assert_eq!(Value::Text("3".to_owned()).cast(ColumnType::Int), Ok(Value::Integer(3)));
    }
}
