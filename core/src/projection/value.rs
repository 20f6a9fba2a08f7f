//! Values of columns, and how they are read: as Postgres's `->>` followed by a cast would.
//!
//! Invariants: numbers are read from the payload's own digits. No value is a missing field, a null, or a path
//! through something that is no object. Text never holds U+0000, which Postgres's `text` cannot.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use std::hash::{Hash, Hasher};

use bigdecimal::BigDecimal;

use super::number::Number;
use super::time;

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
    /// `double precision`
    Double,
    /// `boolean`
    Boolean,
    /// `timestamp with time zone`
    Timestamptz,
    /// `date`
    Date,
    /// `uuid`
    Uuid,
    /// `jsonb`
    Jsonb,
    /// `text[]`, of one dimension
    TextArray,
}

impl ColumnType {
    /// All types, in the order of messages.
    pub const ALL: [ColumnType; 11] = [
        ColumnType::Text,
        ColumnType::Int,
        ColumnType::Bigint,
        ColumnType::Numeric,
        ColumnType::Double,
        ColumnType::Boolean,
        ColumnType::Timestamptz,
        ColumnType::Date,
        ColumnType::Uuid,
        ColumnType::Jsonb,
        ColumnType::TextArray,
    ];

    /// The name in a definition.
    pub fn name(self) -> &'static str {
        match self {
            ColumnType::Text => "TEXT",
            ColumnType::Int => "INT",
            ColumnType::Bigint => "BIGINT",
            ColumnType::Numeric => "NUMERIC",
            ColumnType::Double => "DOUBLE",
            ColumnType::Boolean => "BOOLEAN",
            ColumnType::Timestamptz => "TIMESTAMPTZ",
            ColumnType::Date => "DATE",
            ColumnType::Uuid => "UUID",
            ColumnType::Jsonb => "JSONB",
            ColumnType::TextArray => "TEXT[]",
        }
    }

    /// The name as Postgres's `format_type` gives it.
    pub fn sql_name(self) -> &'static str {
        match self {
            ColumnType::Text => "text",
            ColumnType::Int => "integer",
            ColumnType::Bigint => "bigint",
            ColumnType::Numeric => "numeric",
            ColumnType::Double => "double precision",
            ColumnType::Boolean => "boolean",
            ColumnType::Timestamptz => "timestamp with time zone",
            ColumnType::Date => "date",
            ColumnType::Uuid => "uuid",
            ColumnType::Jsonb => "jsonb",
            ColumnType::TextArray => "text[]",
        }
    }

    /// Whether the values are integers.
    pub fn is_integer(self) -> bool {
        matches!(self, ColumnType::Int | ColumnType::Bigint)
    }

    /// Whether the values can be added: numbers that add up exactly.
    pub fn is_number(self) -> bool {
        self.is_integer() || self == ColumnType::Numeric
    }

    /// Whether the values have a least and a greatest one that `min` and `max` of every supported Postgres find.
    pub fn has_order(self) -> bool {
        !matches!(self, ColumnType::Boolean | ColumnType::Uuid | ColumnType::Jsonb | ColumnType::TextArray)
    }

    /// Whether equal values are the same key to Postgres and to the fold, so that a column of the type can be part of
    /// a primary key.
    pub fn can_be_key(self) -> bool {
        !matches!(self, ColumnType::Double | ColumnType::Jsonb | ColumnType::TextArray)
    }

    /// Whether the values are moments or days.
    pub fn is_time(self) -> bool {
        matches!(self, ColumnType::Timestamptz | ColumnType::Date)
    }
}

/// A finite floating-point number, with the order that Postgres gives it: 0 and -0 are equal.
#[derive(Debug, Clone, Copy)]
pub struct Double(f64);

impl Double {
    /// The number.
    pub fn get(self) -> f64 {
        self.0
    }

    /// Reads a number's digits.
    ///
    /// # Errors
    /// The reason as a clause that follows the value.
    pub fn parse(text: &str) -> Result<Double, &'static str> {
        const OUT_OF_RANGE: &str = "is out of range for type double precision";
        // Rust reads names such as "inf" too, and rounds what is too small to 0.
        let number = Number::parse(text);
        if number == Err("is not a number") {
            return Err("is not a number");
        }
        let double: f64 = text.trim_ascii().parse().map_err(|_| "is not a number")?;
        let is_zero = number.is_ok_and(|number| number == Number::ZERO);
        if double.is_finite() && (double != 0.0 || is_zero) { Ok(Double(double)) } else { Err(OUT_OF_RANGE) }
    }
}

impl PartialEq for Double {
    fn eq(&self, other: &Double) -> bool {
        self.cmp(other).is_eq()
    }
}

impl Eq for Double {}

impl PartialOrd for Double {
    fn partial_cmp(&self, other: &Double) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Double {
    fn cmp(&self, other: &Double) -> Ordering {
        // Adding 0 makes 0 of -0.
        (self.0 + 0.0).total_cmp(&(other.0 + 0.0))
    }
}

impl Hash for Double {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.0 + 0.0).to_bits().hash(state);
    }
}

impl fmt::Display for Double {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
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
    /// Of a column of type DOUBLE.
    Double(Double),
    /// Of a column of type TIMESTAMPTZ: microseconds since 1970 UTC.
    Time(i64),
    /// Of a column of type DATE: days since 1970.
    Date(i32),
    /// Of a column of type UUID.
    Uuid(u128),
    /// Of a column of type JSONB: its text, valid JSON that `jsonb` can hold.
    Json(String),
    /// Of a column of type TEXT[].
    Texts(Vec<Option<String>>),
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
            Value::Double(double) => ValueRef::Double(*double),
            Value::Time(time) => ValueRef::Time(*time),
            Value::Date(date) => ValueRef::Date(*date),
            Value::Uuid(uuid) => ValueRef::Uuid(*uuid),
            Value::Json(json) => ValueRef::Json(Cow::Borrowed(json)),
            Value::Texts(texts) => ValueRef::Texts(texts.clone()),
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.as_ref().into_text())
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
    /// See [`Value::Double`].
    Double(Double),
    /// See [`Value::Time`].
    Time(i64),
    /// See [`Value::Date`].
    Date(i32),
    /// See [`Value::Uuid`].
    Uuid(u128),
    /// See [`Value::Json`].
    Json(Cow<'a, str>),
    /// See [`Value::Texts`].
    Texts(Vec<Option<String>>),
}

impl<'a> ValueRef<'a> {
    /// The value with text of its own.
    pub fn into_value(self) -> Value {
        match self {
            ValueRef::Text(text) => Value::Text(text.into_owned()),
            ValueRef::Integer(integer) => Value::Integer(integer),
            ValueRef::Numeric(decimal) => Value::Numeric(decimal),
            ValueRef::Boolean(boolean) => Value::Boolean(boolean),
            ValueRef::Double(double) => Value::Double(double),
            ValueRef::Time(time) => Value::Time(time),
            ValueRef::Date(date) => Value::Date(date),
            ValueRef::Uuid(uuid) => Value::Uuid(uuid),
            ValueRef::Json(json) => Value::Json(json.into_owned()),
            ValueRef::Texts(texts) => Value::Texts(texts),
        }
    }

    /// The order of two values of one type; values of different types are never compared, and count as equal.
    pub fn compare(&self, value: &Value) -> Ordering {
        match (self, value) {
            (ValueRef::Text(left), Value::Text(right)) => left.as_ref().cmp(right),
            (ValueRef::Integer(left), Value::Integer(right)) => left.cmp(right),
            (ValueRef::Numeric(left), Value::Numeric(right)) => left.cmp(right),
            (ValueRef::Boolean(left), Value::Boolean(right)) => left.cmp(right),
            (ValueRef::Double(left), Value::Double(right)) => left.cmp(right),
            (ValueRef::Time(left), Value::Time(right)) => left.cmp(right),
            (ValueRef::Date(left), Value::Date(right)) => left.cmp(right),
            (ValueRef::Uuid(left), Value::Uuid(right)) => left.cmp(right),
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
            ValueRef::Double(double) => Cow::Owned(double.to_string()),
            ValueRef::Time(time) => Cow::Owned(time::time_text(time)),
            ValueRef::Date(date) => Cow::Owned(time::date_text(date.into())),
            ValueRef::Uuid(uuid) => Cow::Owned(uuid_text(uuid)),
            ValueRef::Json(json) => json,
            ValueRef::Texts(texts) => Cow::Owned(array_text(&texts)),
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
            (ValueRef::Time(time), ColumnType::Timestamptz) => Ok(ValueRef::Time(time)),
            (ValueRef::Time(time), ColumnType::Date) => Ok(ValueRef::Date(time::date_of(time))),
            (ValueRef::Double(double), ColumnType::Double) => Ok(ValueRef::Double(double)),
            (ValueRef::Date(date), ColumnType::Date) => Ok(ValueRef::Date(date)),
            (ValueRef::Uuid(uuid), ColumnType::Uuid) => Ok(ValueRef::Uuid(uuid)),
            (ValueRef::Json(json), ColumnType::Jsonb) => Ok(ValueRef::Json(json)),
            (ValueRef::Texts(texts), ColumnType::TextArray) => Ok(ValueRef::Texts(texts)),
            (value @ (ValueRef::Integer(_) | ValueRef::Numeric(_)), ColumnType::Timestamptz | ColumnType::Date) => {
                from_text(Cow::Owned(value.into_text().into_owned()), column_type)
            }
            (value @ (ValueRef::Integer(_) | ValueRef::Numeric(_)), ColumnType::Double) => {
                Double::parse(&value.into_text()).map(ValueRef::Double)
            }
            (value @ (ValueRef::Integer(_) | ValueRef::Numeric(_) | ValueRef::Boolean(_)), ColumnType::Jsonb) => {
                Ok(ValueRef::Json(value.into_text()))
            }
            (_, ColumnType::Boolean) => Err("is not a boolean"),
            (_, ColumnType::Uuid) => Err(NOT_A_UUID),
            (_, ColumnType::TextArray) => Err(NOT_A_LIST),
            (_, ColumnType::Timestamptz | ColumnType::Date) => Err("is not a time"),
            (_, _) => Err("is not a number"),
        }
    }
}

const NOT_A_UUID: &str = "is not a uuid";
const NOT_A_LIST: &str = "is not a list of texts";

/// The canonical spelling: lower case, with hyphens.
fn uuid_text(uuid: u128) -> String {
    String::from_utf8_lossy(&crate::key::uuid(uuid.to_be_bytes())).into_owned()
}

/// 32 hexadecimal digits, with hyphens after the 8th, 12th, 16th and 20th or without, in braces or not.
fn parse_uuid(text: &str) -> Option<u128> {
    let text = text.trim_ascii();
    let text = text.strip_prefix('{').map_or(Some(text), |inner| inner.strip_suffix('}'))?;
    let digits = match text.len() {
        32 => text.to_owned(),
        36 if text.bytes().enumerate().all(|(place, byte)| matches!(place, 8 | 13 | 18 | 23) == (byte == b'-')) => {
            text.replace('-', "")
        }
        _ => return None,
    };
    if digits.bytes().all(|digit| digit.is_ascii_hexdigit()) { u128::from_str_radix(&digits, 16).ok() } else { None }
}

/// Texts as Postgres reads an array of one dimension.
fn array_text(texts: &[Option<String>]) -> String {
    let element = |text: &Option<String>| match text {
        None => "NULL".to_owned(),
        Some(text) => format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"")),
    };
    format!("{{{}}}", texts.iter().map(element).collect::<Vec<_>>().join(","))
}

/// Whether `jsonb` can hold a piece of valid JSON: it stores text, so neither U+0000 nor half a surrogate pair.
fn check_jsonb(json: &str) -> Result<(), &'static str> {
    let mut rest = json;
    // The high half of a pair that must be followed by its low half at once.
    let mut high = false;
    while let Some(at) = rest.find('\\') {
        if high && at > 0 {
            break;
        }
        let (escape, after) = match rest.get(at + 1..) {
            Some(after) if after.starts_with('u') => (after.get(1..5), after.get(5..)),
            after => (None, after.and_then(|after| after.get(1..))),
        };
        let unit = escape.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        match unit {
            Some(0) => return Err("contains U+0000, which jsonb cannot hold"),
            Some(0xd800..0xdc00) if !high => high = true,
            Some(0xdc00..0xe000) if high => high = false,
            Some(0xd800..0xe000) => return Err("is not valid text"),
            _ if high => break,
            _ => {}
        }
        rest = after.unwrap_or_default();
    }
    if high { Err("is not valid text") } else { Ok(()) }
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
        ColumnType::Double => Double::parse(&text).map(ValueRef::Double),
        ColumnType::Timestamptz => time::parse_time(&text).map(ValueRef::Time),
        ColumnType::Date => time::parse_date(&text).map(ValueRef::Date),
        ColumnType::Uuid => parse_uuid(&text).map(ValueRef::Uuid).ok_or(NOT_A_UUID),
        ColumnType::Jsonb => Ok(ValueRef::Json(Cow::Owned(serde_json::Value::from(text.as_ref()).to_string()))),
        ColumnType::TextArray => Err(NOT_A_LIST),
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
    match column_type {
        ColumnType::Jsonb if json == "null" => return Ok(None),
        ColumnType::Jsonb => {
            check_jsonb(json)?;
            return Ok(Some(ValueRef::Json(Cow::Borrowed(json))));
        }
        _ => {}
    }
    match (read_json(json)?, column_type) {
        (Json::Null, _) => Ok(None),
        (Json::Nested(list), ColumnType::TextArray) => texts_from_json(list).map(|texts| Some(ValueRef::Texts(texts))),
        (_, ColumnType::TextArray) => Err(NOT_A_LIST),
        (Json::String(text), _) => from_text(text, column_type).map(Some),
        (Json::Boolean(text) | Json::Number(text) | Json::Nested(text), ColumnType::Text) => {
            Ok(Some(ValueRef::Text(Cow::Borrowed(text))))
        }
        (Json::Boolean(text), ColumnType::Boolean) => Ok(Some(ValueRef::Boolean(text == "true"))),
        (Json::Number(_) | Json::Nested(_), ColumnType::Boolean) => Err("is not a boolean"),
        (Json::Boolean(_) | Json::Nested(_), ColumnType::Timestamptz | ColumnType::Date) => Err("is not a time"),
        (Json::Boolean(_) | Json::Nested(_) | Json::Number(_), ColumnType::Uuid) => Err(NOT_A_UUID),
        (Json::Boolean(_) | Json::Nested(_), _) => Err("is not a number"),
        (Json::Number(digits), _) => from_text(Cow::Borrowed(digits), column_type).map(Some),
    }
}

/// The elements of a list as texts, each as `->>` would give it.
fn texts_from_json(json: &str) -> Result<Vec<Option<String>>, &'static str> {
    let elements: Vec<&serde_json::value::RawValue> = serde_json::from_str(json).map_err(|_| NOT_A_LIST)?;
    let text = |element: &&serde_json::value::RawValue| match from_json(element.get(), ColumnType::Text)? {
        Some(ValueRef::Text(text)) => Ok(Some(text.into_owned())),
        _ => Ok(None),
    };
    elements.iter().map(text).collect()
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
    fn every_type_is_read() {
        use ColumnType::{Bigint, Date, Double as Float, Jsonb, TextArray, Timestamptz, Uuid};
        let shown = |json: &str, column_type| read(json, column_type).map(|value| value.unwrap().to_string());
        let text = |text: &str| Ok(text.to_owned());
        assert_eq!(shown("1.5e1", Float), text("15"));
        assert_eq!(shown("\"0.1\"", Float), text("0.1"));
        assert_eq!(shown("1e400", Float), Err("is out of range for type double precision"));
        assert_eq!(shown("1e-400", Float), Err("is out of range for type double precision"));
        assert_eq!(shown("1e-999999", Float), Err("is out of range for type double precision"));
        assert_eq!(shown("\"inf\"", Float), Err("is not a number"));
        assert_eq!(shown("true", Float), Err("is not a number"));
        assert_eq!(read("-0.0", Float), read("0", Float));
        assert_eq!(shown("1769918500123", Timestamptz), text("2026-02-01T04:01:40.123000Z"));
        assert_eq!(shown("\"2026-02-01T10:00:00+07:00\"", Timestamptz), text("2026-02-01T03:00:00.000000Z"));
        assert!(shown("[]", Timestamptz).is_err() && shown("\"soon\"", Timestamptz).is_err());
        assert_eq!(shown("\"2026-02-01\"", Date), text("2026-02-01"));
        assert_eq!(shown("-1", Date), text("1969-12-31"));
        let uuid = "6e8bc430-9c3a-11d9-9669-0800200c9a66";
        for spelling in [uuid.to_owned(), uuid.to_uppercase(), uuid.replace('-', ""), format!("{{{uuid}}}")] {
            assert_eq!(shown(&format!("\"{spelling}\""), Uuid), text(uuid));
        }
        for wrong in ["5", "\"\"", "\"6e8bc430-9c3a-11d9-96690800200c9a66-\"", "\"ä\"", "true"] {
            assert_eq!(shown(wrong, Uuid), Err("is not a uuid"), "{wrong}");
        }
        assert_eq!(shown(r#"{"a": [1,  "x"]}"#, Jsonb), text(r#"{"a": [1,  "x"]}"#));
        assert_eq!(shown(r#""\\u0000 \ud83d\ude00""#, Jsonb), text(r#""\\u0000 \ud83d\ude00""#));
        for wrong in
            [r#"["\u0000"]"#, r#""\ud800""#, r#""\ud800x""#, r#""\ude00""#, r#""\ud800\n""#, r#""\ud800\ud800""#]
        {
            assert!(shown(wrong, Jsonb).is_err(), "{wrong}");
        }
        assert_eq!(read("null", Jsonb), Ok(None));
        assert_eq!(
            shown(r#"["a\"b\\", null, 1.50, {"x": 1}]"#, TextArray),
            text(r#"{"a\"b\\",NULL,"1.50","{\"x\": 1}"}"#)
        );
        assert_eq!(shown("[]", TextArray), text("{}"));
        assert_eq!(shown("\"a\"", TextArray), Err("is not a list of texts"));
        assert_eq!(shown("{}", TextArray), Err("is not a list of texts"));
        assert_eq!(Value::Text("x".to_owned()).cast(Jsonb), Ok(Value::Json("\"x\"".to_owned())));
        assert_eq!(Value::Time(86_400_000_000).cast(Date), Ok(Value::Date(1)));
        assert_eq!(Value::Integer(5).cast(Timestamptz), Ok(Value::Time(5000)));
        assert!(Value::Time(0).cast(Bigint).is_err());
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
