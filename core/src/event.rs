//! An event: type, key, time and payload, as a producer sent it.
//!
//! Format of a line (NDJSON): `{"type":"…","key":"…","ts":1357017300000,"payload":{…}}`. `ts` is in milliseconds
//! since 1970 UTC; absent means the time of receipt. Other names at the top are refused. The payload is a JSON object
//! and is kept byte for byte.

use serde::Deserialize;
use serde_json::value::RawValue;

/// The most bytes of a type's name.
pub const MAXIMUM_TYPE_BYTES: usize = 255;

/// The most bytes of a key.
pub const MAXIMUM_KEY_BYTES: usize = 1024;

/// The prefix of the types that the daemon itself writes; a producer may not use it.
pub const RESERVED_TYPE_PREFIX: &str = "ingestd.";

/// An event as a producer sent it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The kind of the event, for example `ORDER_PLACED`.
    pub event_type: String,
    /// The aggregate id. Order is promised per key and nowhere else.
    pub key: String,
    /// Time of the event in milliseconds since 1970 UTC.
    pub ts: i64,
    /// A JSON object, byte for byte as it was sent.
    pub payload: String,
}

impl Event {
    /// What the event takes in memory, in bytes, for budgets (LOG-6): its text and a fixed overhead.
    pub fn size_bytes(&self) -> usize {
        size_of::<Event>() + self.event_type.len() + self.key.len() + self.payload.len()
    }
}

/// Why a line is not an event. The text is one clause that can follow a line number.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EventError {
    /// Not JSON, or not an object with the known names and types.
    #[error("{0}")]
    Malformed(String),
    /// A type that is empty or too long, or holds U+0000.
    #[error("\"type\" must have 1 to {MAXIMUM_TYPE_BYTES} bytes without U+0000, this one has {0}")]
    Type(usize),
    /// A type that only the daemon may write.
    #[error("\"type\" must not begin with \"{RESERVED_TYPE_PREFIX}\", which is reserved: \"{0}\"")]
    ReservedType(String),
    /// A key that is empty or too long, or holds U+0000.
    #[error("\"key\" must have 1 to {MAXIMUM_KEY_BYTES} bytes without U+0000, this one has {0}")]
    Key(usize),
    /// A payload that is not an object.
    #[error("\"payload\" must be a JSON object, not {0}")]
    Payload(&'static str),
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<'a> {
    #[serde(rename = "type")]
    event_type: String,
    key: String,
    ts: Option<i64>,
    #[serde(borrow)]
    payload: &'a RawValue,
}

/// Reads one line. `received_at` is the time of receipt in milliseconds since 1970 UTC, used where `ts` is absent.
///
/// # Errors
/// [`EventError`], which says what is wrong with the line.
pub fn parse_line(line: &str, received_at: i64) -> Result<Event, EventError> {
    let line: Line = serde_json::from_str(line).map_err(|error| EventError::Malformed(describe(&error)))?;
    let fits = |text: &str, maximum: usize| (1..=maximum).contains(&text.len()) && !text.contains('\0');
    if !fits(&line.event_type, MAXIMUM_TYPE_BYTES) {
        return Err(EventError::Type(line.event_type.len()));
    }
    if line.event_type.starts_with(RESERVED_TYPE_PREFIX) {
        return Err(EventError::ReservedType(line.event_type));
    }
    if !fits(&line.key, MAXIMUM_KEY_BYTES) {
        return Err(EventError::Key(line.key.len()));
    }
    let payload = line.payload.get();
    match payload.as_bytes().first() {
        Some(b'{') => {}
        Some(b'[') => return Err(EventError::Payload("an array")),
        Some(b'"') => return Err(EventError::Payload("a string")),
        Some(b'n') => return Err(EventError::Payload("null")),
        Some(b't' | b'f') => return Err(EventError::Payload("a boolean")),
        _ => return Err(EventError::Payload("a number")),
    }
    Ok(Event {
        event_type: line.event_type,
        key: line.key,
        ts: line.ts.unwrap_or(received_at),
        payload: payload.to_owned(),
    })
}

/// The parser's message with the column alone: an NDJSON line is always its line 1.
fn describe(error: &serde_json::Error) -> String {
    let text = error.to_string();
    match text.rsplit_once(" at line ") {
        Some((what, _)) if error.column() > 0 => format!("{what} at column {}", error.column()),
        Some((what, _)) => what.to_owned(),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn payload_is_kept_byte_for_byte() {
        let line = r#"{"payload": {"b" : 1.50, "a":"\u00fc",  "b":2e3} ,"key":"k","type":"T","ts":-5}"#;
        let event = parse_line(line, 7).unwrap();
        assert_eq!(event.payload, r#"{"b" : 1.50, "a":"\u00fc",  "b":2e3}"#);
        assert_eq!((event.event_type.as_str(), event.key.as_str(), event.ts), ("T", "k", -5));
    }

    #[test]
    fn absent_time_is_the_time_of_receipt() {
        assert_eq!(parse_line(r#"{"type":"T","key":"k","payload":{}}"#, 7).unwrap().ts, 7);
        assert_eq!(parse_line(r#"{"type":"T","key":"k","ts":null,"payload":{}}"#, 7).unwrap().ts, 7);
    }

    #[test]
    fn bad_lines_are_refused_with_the_reason() {
        let long = "x".repeat(MAXIMUM_KEY_BYTES + 1);
        for (line, reason) in [
            ("", "EOF"),
            ("nonsense", "expected"),
            ("[1]", "invalid type"),
            (r#"{"key":"k","payload":{}}"#, "missing field `type`"),
            (r#"{"type":"T","payload":{}}"#, "missing field `key`"),
            (r#"{"type":"T","key":"k"}"#, "missing field `payload`"),
            (r#"{"type":"T","key":"k","payload":{},"x":1}"#, "unknown field `x`"),
            (r#"{"type":"T","key":"k","key":"l","payload":{}}"#, "duplicate field `key`"),
            (r#"{"type":"T","key":5,"payload":{}}"#, "invalid type"),
            (r#"{"type":"T","key":"k","ts":1.5,"payload":{}}"#, "invalid type"),
            (r#"{"type":"T","key":"k","ts":"2013","payload":{}}"#, "invalid type"),
            (r#"{"type":"","key":"k","payload":{}}"#, "\"type\" must have"),
            (r#"{"type":"T","key":"","payload":{}}"#, "\"key\" must have"),
            (r#"{"type":"T","key":"a\u0000b","payload":{}}"#, "\"key\" must have"),
            (&format!(r#"{{"type":"T","key":"{long}","payload":{{}}}}"#), "this one has 1025"),
            (r#"{"type":"ingestd.gap","key":"k","payload":{}}"#, "reserved"),
            (r#"{"type":"T","key":"k","payload":[]}"#, "not an array"),
            (r#"{"type":"T","key":"k","payload":null}"#, "not null"),
            (r#"{"type":"T","key":"k","payload":"{}"}"#, "not a string"),
            (r#"{"type":"T","key":"k","payload":3}"#, "not a number"),
            (r#"{"type":"T","key":"k","payload":true}"#, "not a boolean"),
            (r#"{"type":"T","key":"k","payload":{}} x"#, "trailing"),
            (r#"{"type":"T","key":"k","payload":{]}"#, "column"),
        ] {
            let error = parse_line(line, 0).expect_err(line).to_string();
            assert!(error.contains(reason), "{line}: {error}");
            assert!(!error.contains("at line"), "{error}");
        }
    }
}
