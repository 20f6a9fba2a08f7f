//! Expressions of a definition: where a value comes from.
//!
//! Format: `event.field` and `event.outer.inner` (the payload), `event.payload.ts` (a payload field whose name the
//! envelope has too), `event.key`, `event.type`, `event.ts`, `event.position` (the envelope), `lane()`,
//! `shard(event.field, 16)`, `seconds(event.field)` (a time given in seconds since 1970, not in milliseconds), and
//! literals: a number, `true`, `false`, or text in single quotes (`'it''s'`).

use std::fmt;

use serde_json::Value as Json;

use super::number::Number;
use super::value::{ColumnType, Value};

/// The names of the envelope, which come before the payload's.
const ENVELOPE: [&str; 4] = ["key", "type", "ts", "position"];

/// The most row shards that `shard()` spreads over.
pub const MAXIMUM_ROW_SHARDS: u32 = 65_536;

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Expression {
    /// A field of the payload: the names from the outside in, at least one.
    Payload(Vec<String>),
    /// `event.key`
    Key,
    /// `event.type`
    Type,
    /// `event.ts`
    Time,
    /// `event.position`
    Position,
    /// `lane()`: the number of the lane that folds the event.
    Lane,
    /// `shard(expression, count)`: the row shard of a value.
    Shard {
        /// What is hashed.
        expression: Box<Expression>,
        /// The number of row shards.
        count: u32,
        /// The type through which the value goes before it is hashed: that of the column that holds it, so that the
        /// same is hashed here and in SQL.
        through: ColumnType,
    },
    /// `seconds(expression)`: a time, from a number of seconds since 1970.
    Seconds(Box<Expression>),
    /// A constant.
    Literal(Value),
}

/// Why something is not an expression.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ExpressionError {
    /// What is wrong, in one line.
    pub message: String,
    /// The way out, a full sentence.
    pub hint: String,
}

const FORMS: &str = "An expression is event.field, event.outer.inner, event.key, event.type, event.ts, event.position, \
                     event.payload.field, lane(), shard(event.field, 16), seconds(event.field), a number, true, false, \
                     or text in single quotes.";

fn refuse<T>(message: String, hint: impl Into<String>) -> Result<T, ExpressionError> {
    Err(ExpressionError { message, hint: hint.into() })
}

impl Expression {
    /// Reads what stands in a document: a string is an expression's text, a number or boolean is a literal.
    ///
    /// # Errors
    /// [`ExpressionError`] with the forms there are.
    pub fn from_document(document: &Json) -> Result<Expression, ExpressionError> {
        match document {
            Json::String(text) => Expression::parse(text),
            Json::Bool(boolean) => Ok(Expression::Literal(Value::Boolean(*boolean))),
            Json::Number(number) => number_literal(&number.to_string()),
            other => {
                refuse(format!("an expression must be text, a number or a boolean, not {}", kind_of(other)), FORMS)
            }
        }
    }

    /// Reads an expression's text.
    ///
    /// # Errors
    /// [`ExpressionError`] with the forms there are.
    pub fn parse(text: &str) -> Result<Expression, ExpressionError> {
        let text = text.trim();
        if let Some(path) = text.strip_prefix("event.") {
            return parse_path(text, path);
        }
        if let Some(arguments) = text.strip_suffix(')').and_then(|text| text.split_once('(')) {
            return match (arguments.0.trim_end(), arguments.1.trim()) {
                ("lane", "") => Ok(Expression::Lane),
                ("lane", _) => refuse(format!("lane() takes no arguments: {text}"), FORMS),
                ("shard", arguments) => parse_shard(text, arguments),
                ("seconds", argument) => Ok(Expression::Seconds(Box::new(parse_argument(text, argument)?))),
                (name, _) => refuse(format!("function \"{name}\" is not known"), FORMS),
            };
        }
        match text.as_bytes().first() {
            Some(b'\'') => parse_quoted(text),
            Some(b'0'..=b'9' | b'-' | b'+' | b'.') => number_literal(text),
            _ => match text {
                "true" => Ok(Expression::Literal(Value::Boolean(true))),
                "false" => Ok(Expression::Literal(Value::Boolean(false))),
                _ => refuse(format!("\"{text}\" is not an expression"), FORMS),
            },
        }
    }

    /// The expression for a column of `column_type`: a literal becomes a value of that type.
    ///
    /// # Errors
    /// What cannot be a value of that type, whatever the event.
    pub fn typed(self, column_type: ColumnType) -> Result<Expression, ExpressionError> {
        let type_name = column_type.name();
        let unfit = |expression: &Expression| {
            let message = format!("{expression} cannot be a value of type {type_name}");
            refuse(message, format!("Change the expression, or the type of the column from {type_name}."))
        };
        match &self {
            Expression::Literal(value) => match value.cast(column_type) {
                Ok(value) => Ok(Expression::Literal(value)),
                Err(_) => unfit(&self),
            },
            Expression::Time | Expression::Position
                if matches!(column_type, ColumnType::Boolean | ColumnType::Uuid | ColumnType::TextArray) =>
            {
                unfit(&self)
            }
            Expression::Position if column_type.is_time() => unfit(&self),
            Expression::Key | Expression::Type if column_type == ColumnType::TextArray => unfit(&self),
            Expression::Lane | Expression::Shard { .. } if !column_type.is_integer() => {
                refuse(format!("{self} cannot be a value of type {type_name}"), "Give the column the type INT.")
            }
            Expression::Seconds(_) if !column_type.is_time() => {
                let hint =
                    "seconds() makes a time: give the column the type TIMESTAMPTZ or DATE, or leave seconds() out.";
                refuse(format!("{self} cannot be a value of type {type_name}"), hint)
            }
            _ => Ok(self),
        }
    }
}

impl Expression {
    /// Tells `shard()` the type of the column that holds what it hashes: `type_of` gives it for an expression.
    pub(super) fn resolve(&mut self, type_of: &dyn Fn(&Expression) -> Option<ColumnType>) {
        if let Expression::Shard { expression, through, .. } = self {
            *through = type_of(expression).unwrap_or(ColumnType::Text);
        }
    }

    /// Whether the value is the same for all events for which these expressions have the same values.
    pub(super) fn follows_from(&self, known: &[&Expression]) -> bool {
        match self {
            Expression::Literal(_) => true,
            Expression::Shard { expression, .. } | Expression::Seconds(expression) => {
                known.contains(&self) || expression.follows_from(known)
            }
            other => known.contains(&other),
        }
    }
}

impl fmt::Display for Expression {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Expression::Payload(path) => {
                let envelope =
                    path.first().is_some_and(|first| ENVELOPE.contains(&first.as_str()) || first == "payload");
                write!(formatter, "event.{}{}", if envelope { "payload." } else { "" }, path.join("."))
            }
            Expression::Key => formatter.write_str("event.key"),
            Expression::Type => formatter.write_str("event.type"),
            Expression::Time => formatter.write_str("event.ts"),
            Expression::Position => formatter.write_str("event.position"),
            Expression::Lane => formatter.write_str("lane()"),
            Expression::Shard { expression, count, .. } => write!(formatter, "shard({expression}, {count})"),
            Expression::Seconds(expression) => write!(formatter, "seconds({expression})"),
            Expression::Literal(Value::Text(text)) => write!(formatter, "'{}'", text.replace('\'', "''")),
            Expression::Literal(value) => value.fmt(formatter),
        }
    }
}

fn parse_path(text: &str, path: &str) -> Result<Expression, ExpressionError> {
    let names: Vec<&str> = path.split('.').collect();
    // Names as they are found in JSON; anything else would be a typing error more often than a name.
    let is_name = |name: &&str| {
        !name.is_empty()
            && name.chars().all(|letter| letter.is_alphanumeric() || matches!(letter, '_' | '-' | '$' | '@'))
    };
    if let Some(name) = names.iter().find(|name| !is_name(name)) {
        return refuse(format!("\"{name}\" in {text} is not the name of a field"), FORMS);
    }
    let owned = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect();
    match names.as_slice() {
        ["key"] => Ok(Expression::Key),
        ["type"] => Ok(Expression::Type),
        ["ts"] => Ok(Expression::Time),
        ["position"] => Ok(Expression::Position),
        ["payload"] => refuse(
            "event.payload needs the name of a field".to_owned(),
            "Write event.payload.NAME; a field called payload is event.payload.payload.",
        ),
        ["payload", rest @ ..] => Ok(Expression::Payload(owned(rest))),
        [first, ..] if ENVELOPE.contains(first) => refuse(
            format!("{text}: event.{first} has no fields"),
            format!("The payload's own field is event.payload.{path}."),
        ),
        all => Ok(Expression::Payload(owned(all))),
    }
}

/// The argument of a function: where a value of the event is.
fn parse_argument(text: &str, argument: &str) -> Result<Expression, ExpressionError> {
    match Expression::parse(argument)? {
        expression @ (Expression::Payload(_) | Expression::Key | Expression::Type | Expression::Time) => Ok(expression),
        other => refuse(
            format!("{text}: {other} is not a field of the event"),
            "A function takes event.field, event.key, event.type or event.ts.",
        ),
    }
}

fn parse_shard(text: &str, arguments: &str) -> Result<Expression, ExpressionError> {
    let Some((expression, count)) = arguments.rsplit_once(',') else {
        return refuse(
            format!("{text}: shard() takes a field and the number of row shards"),
            "Write shard(event.field, 16).",
        );
    };
    let expression = Box::new(parse_argument(text, expression)?);
    let count = count.trim();
    match count.parse::<u32>() {
        Ok(count @ 1..=MAXIMUM_ROW_SHARDS) => Ok(Expression::Shard { expression, count, through: ColumnType::Text }),
        _ => refuse(
            format!("{text}: the number of row shards is between 1 and {MAXIMUM_ROW_SHARDS}, not \"{count}\""),
            "Write shard(event.field, 16).",
        ),
    }
}

fn parse_quoted(text: &str) -> Result<Expression, ExpressionError> {
    let inner = text.strip_prefix('\'').and_then(|text| text.strip_suffix('\''));
    // Every quote inside must be doubled: none may be left when the pairs are gone.
    match inner {
        Some(inner) if !inner.replace("''", "").contains(['\'', '\0']) => {
            Ok(Expression::Literal(Value::Text(inner.replace("''", "'"))))
        }
        _ => refuse(
            format!("{text} is not text in single quotes"),
            "Write 'text'; a single quote inside it is written twice, and U+0000 cannot be stored.",
        ),
    }
}

fn number_literal(text: &str) -> Result<Expression, ExpressionError> {
    match Number::parse(text) {
        Ok(number) => {
            // 1e1 is spelled 10, and 1.0 keeps its digit.
            let has_fraction = matches!(&number, Number::Decimal(decimal) if decimal.fractional_digit_count() > 0);
            Ok(Expression::Literal(match number.to_bigint() {
                Some(integer) if !has_fraction => Value::Integer(integer),
                _ => Value::Numeric(number.to_decimal()),
            }))
        }
        Err(reason) => refuse(format!("\"{text}\" {reason}"), FORMS),
    }
}

/// What a piece of a document is, with its article.
pub(super) fn kind_of(document: &Json) -> &'static str {
    match document {
        Json::Null => "null",
        Json::Bool(_) => "a boolean",
        Json::Number(_) => "a number",
        Json::String(_) => "text",
        Json::Array(_) => "a list",
        Json::Object(_) => "an object",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{prop_assert_eq, proptest};
    use serde_json::json;

    fn payload(names: &[&str]) -> Expression {
        Expression::Payload(names.iter().map(|name| (*name).to_owned()).collect())
    }

    #[test]
    fn expressions_are_read() {
        for (document, expression) in [
            (json!("event.show_id"), payload(&["show_id"])),
            (json!(" event.repository.pushed_at "), payload(&["repository", "pushed_at"])),
            (json!("event.payload.ts"), payload(&["ts"])),
            (json!("event.payload.show_id"), payload(&["show_id"])),
            (json!("event.payload.payload"), payload(&["payload"])),
            (json!("event.key"), Expression::Key),
            (json!("event.type"), Expression::Type),
            (json!("event.ts"), Expression::Time),
            (json!("event.position"), Expression::Position),
            (json!("lane()"), Expression::Lane),
            (json!("lane( )"), Expression::Lane),
            (
                json!("shard( event.show_id , 16 )"),
                Expression::Shard { expression: Box::new(payload(&["show_id"])), count: 16, through: ColumnType::Text },
            ),
            (json!("seconds(event.pushed_at)"), Expression::Seconds(Box::new(payload(&["pushed_at"])))),
            (json!(1), Expression::Literal(Value::Integer(1))),
            (json!("-7"), Expression::Literal(Value::Integer(-7))),
            (json!("1e1"), Expression::Literal(Value::Integer(10))),
            (json!("1.0"), Expression::Literal(Value::Numeric("1.0".parse().unwrap()))),
            (json!(0.1), Expression::Literal(Value::Numeric("0.1".parse().unwrap()))),
            (json!("0.10"), Expression::Literal(Value::Numeric("0.10".parse().unwrap()))),
            (json!(true), Expression::Literal(Value::Boolean(true))),
            (json!("false"), Expression::Literal(Value::Boolean(false))),
            (json!("'it''s'"), Expression::Literal(Value::Text("it's".to_owned()))),
            (json!("''"), Expression::Literal(Value::Text(String::new()))),
        ] {
            let read = Expression::from_document(&document).unwrap();
            assert_eq!(read, expression, "{document}");
            assert_eq!(Expression::parse(&read.to_string()), Ok(read), "{document}");
        }
    }

    #[test]
    fn others_are_refused_with_the_reason() {
        for (document, reason) in [
            (json!("show_id"), "is not an expression"),
            (json!(""), "is not an expression"),
            (json!("event"), "is not an expression"),
            (json!("event."), "is not the name of a field"),
            (json!("event.a..b"), "is not the name of a field"),
            (json!("event.a + 1"), "is not the name of a field"),
            (json!("event.payload"), "needs the name of a field"),
            (json!("event.ts.x"), "has no fields"),
            (json!("lane(3)"), "takes no arguments"),
            (json!("shard(event.show_id)"), "takes a field and the number of row shards"),
            (json!("shard(event.show_id, 0)"), "between 1 and 65536, not \"0\""),
            (json!("shard(event.show_id, 70000)"), "between 1 and 65536"),
            (json!("shard(event.show_id, -1)"), "between 1 and 65536"),
            (json!("shard(lane(), 16)"), "lane() is not a field of the event"),
            (json!("shard(shard(event.a, 2), 16)"), "is not a field of the event"),
            (json!("seconds(5)"), "5 is not a field of the event"),
            (json!("seconds()"), "is not an expression"),
            (json!("now()"), "function \"now\" is not known"),
            (json!("'it's'"), "is not text in single quotes"),
            (json!("'"), "is not text in single quotes"),
            (json!("'a\u{0}'"), "is not text in single quotes"),
            (json!("1e999999999"), "more digits"),
            (json!("12x"), "is not a number"),
            (json!(null), "not null"),
            (json!(["event.a"]), "not a list"),
        ] {
            let error = Expression::from_document(&document).expect_err(&document.to_string());
            assert!(error.message.contains(reason), "{document}: {error}");
        }
    }

    #[test]
    fn literals_take_the_type_of_the_column() {
        let typed = |text: &str, column_type| Expression::parse(text).unwrap().typed(column_type);
        assert_eq!(typed("1", ColumnType::Text), Ok(Expression::Literal(Value::Text("1".to_owned()))));
        assert_eq!(typed("'5'", ColumnType::Int), Ok(Expression::Literal(Value::Integer(5))));
        assert!(typed("'x'", ColumnType::Int).is_err());
        assert!(typed("3000000000", ColumnType::Int).is_err());
        assert!(typed("event.ts", ColumnType::Boolean).is_err());
        assert!(typed("lane()", ColumnType::Text).is_err());
        assert!(typed("shard(event.a, 4)", ColumnType::Text).is_err());
        assert!(typed("seconds(event.a)", ColumnType::Bigint).is_err());
        assert!(typed("seconds(event.a)", ColumnType::Date).is_ok());
        assert!(typed("'tomorrow'", ColumnType::Timestamptz).is_err());
        assert_eq!(typed("'1970-01-02'", ColumnType::Date), Ok(Expression::Literal(Value::Date(1))));
        assert!(typed("event.anything", ColumnType::Boolean).is_ok());
    }

    proptest! {
        #[test]
        fn reading_never_panics_and_the_spelling_reads_back(text in "(event\\.)?[a-z.'()0-9 -]{0,20}|.{0,20}") {
            if let Ok(expression) = Expression::parse(&text) {
                prop_assert_eq!(Expression::parse(&expression.to_string()), Ok(expression));
            }
        }
    }
}
