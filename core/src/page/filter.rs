//! Which rows a page is of: an array of conditions that must all hold, each `[column, operator, value]`.
//!
//! Values stay text: the column's own type reads them, and they reach SQL as parameters. Numbers keep their digits.

use serde_json::value::RawValue;

use super::PageError;

/// How a condition compares.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Comparison {
    /// `=`
    Equal,
    /// `<>`
    NotEqual,
    /// `<`
    Less,
    /// `<=`
    LessOrEqual,
    /// `>`
    Greater,
    /// `>=`
    GreaterOrEqual,
    /// `in`: equal to one of the values
    In,
    /// `is null`
    IsNull,
    /// `is not null`
    IsNotNull,
}

impl Comparison {
    /// Whether it compares values, and does not only ask for nulls.
    pub fn needs_operators(self) -> bool {
        !matches!(self, Comparison::IsNull | Comparison::IsNotNull)
    }
}

/// Names of the comparisons.
const COMPARISONS: [(&str, Comparison); 9] = [
    ("=", Comparison::Equal),
    ("<>", Comparison::NotEqual),
    ("<", Comparison::Less),
    ("<=", Comparison::LessOrEqual),
    (">", Comparison::Greater),
    (">=", Comparison::GreaterOrEqual),
    ("in", Comparison::In),
    ("is null", Comparison::IsNull),
    ("is not null", Comparison::IsNotNull),
];

/// One condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Condition {
    /// Name of the column.
    pub column: String,
    /// How it is compared.
    pub comparison: Comparison,
    /// What it is compared with, as the column's type reads it: one value, or any number for `in`, or none.
    pub values: Vec<String>,
}

/// Reads a filter, which is JSON.
///
/// # Errors
/// [`PageError::Filter`], [`PageError::Operator`] and [`PageError::Value`].
pub fn parse_filter(json: &[u8]) -> Result<Vec<Condition>, PageError> {
    let conditions: Vec<&RawValue> =
        serde_json::from_slice(json).map_err(|_| PageError::Filter(String::from_utf8_lossy(json).into_owned()))?;
    conditions.into_iter().map(|condition| parse_condition(condition.get())).collect()
}

fn parse_condition(json: &str) -> Result<Condition, PageError> {
    let refusal = || PageError::Filter(json.to_owned());
    let parts: Vec<&RawValue> = serde_json::from_str(json).map_err(|_| refusal())?;
    let [column, operator, value @ ..] = parts.as_slice() else { return Err(refusal()) };
    let column: String = serde_json::from_str(column.get()).map_err(|_| refusal())?;
    let operator: String = serde_json::from_str(operator.get()).map_err(|_| refusal())?;
    let Some((operator, comparison)) = COMPARISONS.into_iter().find(|(name, _)| *name == operator) else {
        return Err(PageError::Operator(operator));
    };
    let wrong = |value: &RawValue| PageError::Value { column: column.clone(), operator, value: value.get().to_owned() };
    let values = match (comparison, value) {
        (Comparison::IsNull | Comparison::IsNotNull, []) => Vec::new(),
        (Comparison::IsNull | Comparison::IsNotNull, [value, ..]) => return Err(wrong(value)),
        (Comparison::In, [value]) => {
            let elements: Vec<&RawValue> = serde_json::from_str(value.get()).map_err(|_| wrong(value))?;
            let values: Option<Vec<String>> = elements.into_iter().map(scalar).collect();
            values.ok_or_else(|| wrong(value))?
        }
        (_, [value]) => vec![scalar(value).ok_or_else(|| wrong(value))?],
        _ => return Err(refusal()),
    };
    Ok(Condition { column, comparison, values })
}

/// A string, number or boolean as a type of SQL reads it.
fn scalar(value: &RawValue) -> Option<String> {
    let json = value.get();
    match json.as_bytes().first()? {
        b'"' => serde_json::from_str(json).ok(),
        b'[' | b'{' | b'n' => None,
        _ => Some(json.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn conditions_keep_every_digit_and_every_character() {
        let filter = r#"[["status", "=", "o'k \"ü\""], ["amount", ">=", 12345678901234567890.123456789012345678],
            ["open", "<>", true], ["id", "in", [1, "2", false]], ["id", "in", []], ["closed", "is null"]]"#;
        let condition = |column: &str, comparison, values: &[&str]| Condition {
            column: column.to_owned(),
            comparison,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        assert_eq!(
            parse_filter(filter.as_bytes()),
            Ok(vec![
                condition("status", Comparison::Equal, &["o'k \"ü\""]),
                condition("amount", Comparison::GreaterOrEqual, &["12345678901234567890.123456789012345678"]),
                condition("open", Comparison::NotEqual, &["true"]),
                condition("id", Comparison::In, &["1", "2", "false"]),
                condition("id", Comparison::In, &[]),
                condition("closed", Comparison::IsNull, &[]),
            ])
        );
        assert_eq!(parse_filter(b"[]"), Ok(Vec::new()));
        for (name, comparison) in COMPARISONS {
            let value = match comparison {
                Comparison::In => ", [1]",
                Comparison::IsNull | Comparison::IsNotNull => "",
                _ => ", 1",
            };
            let parsed = parse_filter(format!("[[\"a\", \"{name}\"{value}]]").as_bytes()).unwrap();
            assert_eq!(parsed[0].comparison, comparison);
        }
    }

    #[test]
    fn what_is_no_filter_is_refused_with_what_it_was() {
        for (filter, what) in [
            (r#"{"status": "open"}"#, r#"{"status": "open"}"#),
            ("null", "null"),
            (r#"[["status"]]"#, r#"["status"]"#),
            (r#"[["status", "="]]"#, r#"["status", "="]"#),
            (r#"[[1, "=", 1]]"#, r#"[1, "=", 1]"#),
            (r#"[["a", 1, 1]]"#, r#"["a", 1, 1]"#),
            (r#"[["a", "=", 1, 2]]"#, r#"["a", "=", 1, 2]"#),
            (r#"["a"]"#, r#""a""#),
        ] {
            assert_eq!(parse_filter(filter.as_bytes()), Err(PageError::Filter(what.to_owned())), "{filter}");
        }
        let operator = parse_filter(br#"[["a", "; DROP TABLE", 1]]"#);
        assert_eq!(operator, Err(PageError::Operator("; DROP TABLE".to_owned())));
        for (operator, value) in [
            ("=", "null"),
            ("=", "[1]"),
            ("<", r#"{"a": 1}"#),
            ("in", "1"),
            ("in", "[1, null]"),
            ("in", "[[1]]"),
            ("is null", "true"),
        ] {
            let error = parse_filter(format!("[[\"a\", \"{operator}\", {value}]]").as_bytes()).unwrap_err();
            assert_eq!(
                error,
                PageError::Value { column: "a".to_owned(), operator, value: value.to_owned() },
                "{operator} {value}"
            );
        }
    }
}
