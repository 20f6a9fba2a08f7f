//! The HTTP source: `POST /v1/events` takes NDJSON and answers when the events are durable (LOG-2).
//!
//! A request is taken whole or refused whole. With `Ingest-Producer` and `Ingest-Sequence` (the number of its first
//! event, from 1) a resend is recognised; without them delivery is at least once. `Ingest-Epoch` (0 if absent) tells
//! lives of a producer apart: a higher one begins at 1 again and closes those below it. With `Ingest-Hash` a producer says
//! what its events up to the request's last one hash to; a resend that says something else is refused.
//!
//! Answers: 200 `{"stored":…,"duplicates":…,"next_sequence":…}`; 400 with line numbers and reasons; 409 with the
//! sequence that is expected, or the epoch that is open; 413 for what is too long; 503 while the daemon stops.
//!
//! `GET /readyz` answers from the moment when recovery is done and the row that tells of the start is durable.
//! `GET /v1/producers/NAME` tells a producer that starts its epoch and its next sequence.

use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::{Path, Request as HttpRequest, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use lanes_core::event::{Event, parse_line};
use serde::{Deserialize, Serialize};
use serde_json::json;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, oneshot};

use crate::admin::status::Status;
use crate::log::Log;
use crate::log::drain::{Ack, ProducerState, Refusal, Request, Source};
use crate::log::stream::{NameError, StreamKey};
use crate::log::stream_hash::ContentHash;
use crate::log::writer::now_ms;

/// Faults that an answer describes; more are only counted.
const DESCRIBED_FAULTS: usize = 20;

/// Bodies above this many bytes are parsed on a thread of their own, so that they hold up no other request.
const PARSE_INLINE_BYTES: usize = 64 << 10;

/// Name of the header that carries the producer's name.
pub const PRODUCER_HEADER: &str = "ingest-producer";
/// Name of the header that carries the producer's epoch.
pub const EPOCH_HEADER: &str = "ingest-epoch";
/// Name of the header that carries the number of the request's first event.
pub const SEQUENCE_HEADER: &str = "ingest-sequence";
/// Name of the header that carries the hash of the stream's events up to the request's last one.
pub const HASH_HEADER: &str = "ingest-hash";

/// The limits of a request.
#[derive(Debug, Clone, Copy)]
pub struct RequestLimits {
    /// The longest line, in bytes.
    pub event_bytes: usize,
    /// The longest body, in bytes.
    pub request_bytes: usize,
    /// Bytes of bodies that are being worked on.
    pub in_flight_bytes: usize,
}

/// What the handlers share.
pub struct Server {
    log: Arc<Log>,
    limits: RequestLimits,
    memory: Arc<Semaphore>,
}

/// Where the status comes from.
pub type StatusSource = Box<dyn Fn() -> Status + Send + Sync>;

/// The answer to a request whose events are durable.
#[derive(Debug, Serialize, Deserialize)]
pub struct Stored {
    /// Events that this request added.
    pub stored: u64,
    /// Events that were stored before.
    pub duplicates: u64,
    /// The sequence that the producer's next event has; absent without a producer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub next_sequence: Option<u64>,
}

/// Why a request was refused.
#[derive(Debug)]
struct Refused {
    status: StatusCode,
    body: serde_json::Value,
}

impl Refused {
    fn new(status: StatusCode, error: impl Into<String>) -> Refused {
        Refused { status, body: json!({ "error": error.into() }) }
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        (self.status, Json(self.body)).into_response()
    }
}

/// The routes of a daemon with a log of its own.
pub fn router(log: Arc<Log>, limits: RequestLimits, status: StatusSource) -> Router {
    let memory = Arc::new(Semaphore::new(limits.in_flight_bytes));
    let ingest = Router::new()
        .route("/v1/events", post(post_events))
        .route("/v1/producers/{name}", get(get_producer))
        .with_state(Arc::new(Server { log, limits, memory }));
    with_status(ingest, status, "see POST /v1/events")
}

/// The routes of a daemon that works on a table of events.
pub fn status_router(status: StatusSource) -> Router {
    with_status(Router::new(), status, "events are appended to the table, see GET /v1/status")
}

/// `hint` says where to go from a path or a method that there is not.
fn with_status(routes: Router, status: StatusSource, hint: &'static str) -> Router {
    routes
        .route("/readyz", get(|| async { "ready\n" }))
        .route("/v1/status", get(get_status).with_state(Arc::new(status)))
        .method_not_allowed_fallback(move || async move {
            Refused::new(StatusCode::METHOD_NOT_ALLOWED, format!("this path has another method; {hint}"))
        })
        .fallback(move || async move { Refused::new(StatusCode::NOT_FOUND, format!("there is no such path; {hint}")) })
}

async fn get_status(State(status): State<Arc<StatusSource>>) -> Json<Status> {
    Json(status())
}

async fn get_producer(
    State(server): State<Arc<Server>>,
    Path(name): Path<String>,
) -> Result<Json<serde_json::Value>, Refused> {
    match server.log.producer(&name).await {
        Ok(Some(ProducerState { epoch, next_sequence })) => {
            Ok(Json(json!({ "producer": name, "epoch": epoch, "next_sequence": next_sequence })))
        }
        Ok(None) => Err(stopping()),
        Err(error) => Err(Refused::new(StatusCode::BAD_REQUEST, error.to_string())),
    }
}

fn stopping() -> Refused {
    Refused::new(StatusCode::SERVICE_UNAVAILABLE, "the daemon is stopping; send the request again")
}

async fn post_events(State(server): State<Arc<Server>>, request: HttpRequest) -> Result<Json<Stored>, Refused> {
    let (parts, body) = request.into_parts();
    if let Some(encoding) = parts.headers.get(header::CONTENT_ENCODING).filter(|encoding| *encoding != "identity") {
        let text = format!("content-encoding {encoding:?} is not understood; send the body as it is");
        return Err(Refused::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, text));
    }
    let numbered = numbering(&parts.headers)?;
    let limits = server.limits;
    let announced = content_length(&parts.headers)?.unwrap_or(limits.request_bytes);
    if announced > limits.request_bytes {
        return Err(too_large(&limits));
    }
    let memory =
        Arc::clone(&server.memory).acquire_many_owned(announced.max(1) as u32).await.map_err(|_| stopping())?;
    let body = read_body(body, &limits).await?;
    let received_at = now_ms();
    let events = if body.len() <= PARSE_INLINE_BYTES {
        parse_body(&body, received_at, limits.event_bytes)?
    } else {
        tokio::task::spawn_blocking(move || parse_body(&body, received_at, limits.event_bytes))
            .await
            .map_err(|error| Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()))??
    };
    let is_numbered = numbered.is_some();
    let mut claim = None;
    let source = match numbered {
        None => Source::Anonymous,
        Some(Numbering { producer, epoch, first_sequence, hash }) => {
            let stream = server.log.registry().producer(&producer, epoch).map_err(|error| {
                let status = match error {
                    NameError::TooMany(_) | NameError::Forgetting(_) => StatusCode::SERVICE_UNAVAILABLE,
                    NameError::Malformed(_) | NameError::Reserved(_) => StatusCode::BAD_REQUEST,
                };
                Refused::new(status, error.to_string())
            })?;
            let last = first_sequence + events.len() as u64 - 1;
            claim = hash.map(|hash| Claim { stream: stream.clone(), first: first_sequence, last, hash });
            Source::Producer { stream, first_sequence, hash }
        }
    };
    let (answer, reply) = oneshot::channel();
    server.log.submit(Request { source, events, answer, memory }).await.map_err(|_| stopping())?;
    match reply.await.map_err(|_| stopping())? {
        Ok(Ack { stored, duplicates, next_sequence }) => {
            // What was stored of this request has its own hash now; what was there before may have another.
            if let Some(claim) = claim.filter(|_| stored == 0) {
                tokio::task::block_in_place(|| claim.check(&server.log))?;
            }
            Ok(Json(Stored { stored, duplicates, next_sequence: is_numbered.then_some(next_sequence) }))
        }
        Err(refusal @ Refusal::Gap { expected, .. }) => Err(Refused {
            status: StatusCode::CONFLICT,
            body: json!({ "error": refusal.to_string(), "expected": expected }),
        }),
        Err(refusal @ Refusal::Epoch { current, .. }) => Err(Refused {
            status: StatusCode::CONFLICT,
            body: json!({ "error": refusal.to_string(), "epoch": current }),
        }),
        Err(refusal @ Refusal::Forgotten) => Err(Refused::new(StatusCode::SERVICE_UNAVAILABLE, refusal.to_string())),
        Err(Refusal::Closing) => Err(stopping()),
    }
}

/// What a producer says that its events hash to, all of which were stored before.
struct Claim {
    stream: StreamKey,
    first: u64,
    last: u64,
    hash: ContentHash,
}

impl Claim {
    /// Compares it with the hash that was stored with the request's last event, if one was. Reads the log's files.
    fn check(&self, log: &Log) -> Result<(), Refused> {
        let Claim { stream, first, last, hash } = self;
        match log.hashes().find(stream.number, *last) {
            Ok(Some(stored)) if stored != *hash => {
                let error = format!(
                    "events {first} to {last} of producer \"{}\", or some before them, are not those that were stored: \
                     their hashes differ",
                    stream.name
                );
                Err(Refused { status: StatusCode::CONFLICT, body: json!({ "error": error, "differs_at": last }) })
            }
            Ok(_) => Ok(()),
            Err(error) => Err(Refused::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())),
        }
    }
}

/// Who numbered a request, and how.
#[derive(Debug, PartialEq, Eq)]
struct Numbering {
    producer: String,
    epoch: u64,
    first_sequence: u64,
    hash: Option<ContentHash>,
}

/// The greatest epoch, and the greatest number of a request's first event: far enough from the end of the 63 bits that
/// SQLite has for a number.
const MAXIMUM_NUMBER: u64 = i64::MAX as u64 / 2;

/// How the request is numbered; none if it is not.
fn numbering(headers: &HeaderMap) -> Result<Option<Numbering>, Refused> {
    let bad = |text: String| Refused::new(StatusCode::BAD_REQUEST, text);
    let text = |name: &'static str| match headers.get(name) {
        None => Ok(None),
        Some(value) => {
            value.to_str().map(Some).map_err(|_| bad(format!("header {name} has characters that are not ASCII")))
        }
    };
    let number = |name: &str, text: &str, minimum: u64| match text.parse::<u64>() {
        Ok(number) if (minimum..=MAXIMUM_NUMBER).contains(&number) => Ok(number),
        _ => Err(bad(format!("header {name} must be a number from {minimum}, not \"{text}\""))),
    };
    let (producer, epoch, sequence) = (text(PRODUCER_HEADER)?, text(EPOCH_HEADER)?, text(SEQUENCE_HEADER)?);
    let hash = text(HASH_HEADER)?;
    let (producer, sequence) = match (producer, sequence) {
        (None, None) if epoch.is_none() && hash.is_none() => return Ok(None),
        (Some(producer), Some(sequence)) => (producer.to_owned(), sequence),
        (None, _) => return Err(bad(format!("header {PRODUCER_HEADER} is missing: it names the numbered stream"))),
        (_, None) => return Err(bad(format!("header {SEQUENCE_HEADER} is missing: the number of the first event"))),
    };
    let epoch = epoch.map_or(Ok(0), |epoch| number(EPOCH_HEADER, epoch, 0))?;
    let first_sequence = number(SEQUENCE_HEADER, sequence, 1)?;
    let hash = hash.map(|text| {
        parse_hash(text)
            .ok_or_else(|| bad(format!("header {HASH_HEADER} must be 64 hexadecimal digits, not \"{text}\"")))
    });
    Ok(Some(Numbering { producer, epoch, first_sequence, hash: hash.transpose()? }))
}

/// 32 bytes in hexadecimal.
fn parse_hash(text: &str) -> Option<ContentHash> {
    let digits = text.as_bytes();
    if digits.len() != 64 || !digits.iter().all(u8::is_ascii_hexdigit) {
        return None;
    }
    let mut hash = ContentHash::default();
    for (byte, at) in hash.iter_mut().zip((0..).step_by(2)) {
        *byte = u8::from_str_radix(text.get(at..at + 2)?, 16).ok()?;
    }
    Some(hash)
}

fn content_length(headers: &HeaderMap) -> Result<Option<usize>, Refused> {
    let Some(value) = headers.get(header::CONTENT_LENGTH) else { return Ok(None) };
    let length = value.to_str().ok().and_then(|text| text.parse().ok());
    length.map(Some).ok_or_else(|| Refused::new(StatusCode::BAD_REQUEST, "header content-length is not a number"))
}

fn too_large(limits: &RequestLimits) -> Refused {
    let text = format!("the body is longer than {} bytes; send fewer events a request", limits.request_bytes);
    Refused::new(StatusCode::PAYLOAD_TOO_LARGE, text)
}

async fn read_body(body: Body, limits: &RequestLimits) -> Result<Bytes, Refused> {
    axum::body::to_bytes(body, limits.request_bytes).await.map_err(|error| {
        let mut cause: Option<&(dyn std::error::Error + 'static)> = Some(&error);
        while let Some(inner) = cause {
            // The length limit's own error type is not re-exported by axum; its text is stable.
            if inner.to_string() == "length limit exceeded" {
                return too_large(limits);
            }
            cause = inner.source();
        }
        Refused::new(StatusCode::BAD_REQUEST, format!("the body could not be read: {error}"))
    })
}

/// The events of a body: NDJSON, where blank lines are skipped, or a JSON array of events.
fn parse_body(body: &[u8], received_at: i64, maximum_bytes: usize) -> Result<Vec<Event>, Refused> {
    let mut parsed = Parsed { unit: "line", maximum_bytes, received_at, ..Parsed::default() };
    if body.trim_ascii_start().first() == Some(&b'[') {
        parsed.unit = "event";
        let elements: Vec<&RawValue> = serde_json::from_slice(body)
            .map_err(|error| Refused::new(StatusCode::BAD_REQUEST, format!("the body is not a JSON array: {error}")))?;
        for (element, number) in elements.into_iter().zip(1u64..) {
            parsed.add(element.get().as_bytes(), number);
        }
    } else {
        for (line, number) in body.split(|byte| *byte == b'\n').zip(1u64..) {
            if !line.trim_ascii().is_empty() {
                parsed.add(line, number);
            }
        }
    }
    parsed.finish()
}

/// What was read of a body so far.
#[derive(Default)]
struct Parsed {
    /// What an event is in this body: `line` or `event`, which is how a fault is numbered.
    unit: &'static str,
    maximum_bytes: usize,
    received_at: i64,
    events: Vec<Event>,
    faults: Vec<serde_json::Value>,
    faulty: usize,
    too_long: bool,
}

impl Parsed {
    fn add(&mut self, text: &[u8], number: u64) {
        let event = if text.len() > self.maximum_bytes {
            self.too_long = true;
            Err(format!("has {} bytes, {} are allowed", text.len(), self.maximum_bytes))
        } else {
            std::str::from_utf8(text)
                .map_err(|error| format!("is not UTF-8 after byte {}", error.valid_up_to()))
                .and_then(|text| parse_line(text, self.received_at).map_err(|error| error.to_string()))
        };
        match event {
            Ok(event) => self.events.push(event),
            Err(reason) => {
                self.faulty += 1;
                if self.faults.len() < DESCRIBED_FAULTS {
                    self.faults.push(json!({ self.unit: number, "reason": reason }));
                }
            }
        }
    }

    fn finish(self) -> Result<Vec<Event>, Refused> {
        let Parsed { unit, events, faults, faulty, too_long, .. } = self;
        if faulty > 0 {
            let status = if too_long { StatusCode::PAYLOAD_TOO_LARGE } else { StatusCode::BAD_REQUEST };
            let error = format!("{faulty} of the body's {unit}s cannot be stored; nothing of this request was stored");
            return Err(Refused { status, body: json!({ "error": error, format!("{unit}s"): faults }) });
        }
        if events.is_empty() {
            return Err(Refused::new(StatusCode::BAD_REQUEST, "the body holds no events; send one JSON object a line"));
        }
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_counted_as_an_editor_counts_them() {
        let good = r#"{"type":"T","key":"k","payload":{}}"#;
        let body = format!("{good}\r\n\n   \n{good}\nnonsense\n{good}\n\u{e4}");
        let refused = parse_body(body.as_bytes(), 0, 1000).unwrap_err();
        assert_eq!(refused.status, StatusCode::BAD_REQUEST);
        let lines: Vec<u64> =
            refused.body["lines"].as_array().unwrap().iter().map(|line| line["line"].as_u64().unwrap()).collect();
        assert_eq!(lines, [5, 7]);
        assert_eq!(parse_body(format!("{good}\n\n{good}").as_bytes(), 0, 1000).unwrap().len(), 2);
    }

    #[test]
    fn long_lines_empty_bodies_and_bytes_that_are_not_text_are_refused() {
        let good = br#"{"type":"T","key":"k","payload":{}}"#;
        assert_eq!(parse_body(good, 0, good.len() - 1).unwrap_err().status, StatusCode::PAYLOAD_TOO_LARGE);
        assert_eq!(parse_body(good, 0, good.len()).unwrap().len(), 1);
        assert_eq!(parse_body(b"\n \n", 0, 10).unwrap_err().status, StatusCode::BAD_REQUEST);
        let refused = parse_body(b"{\"type\":\"\xff\"}", 0, 100).unwrap_err();
        assert_eq!(refused.body["lines"][0]["reason"], "is not UTF-8 after byte 9");
    }

    #[test]
    fn an_array_is_taken_as_lines_are() {
        let good = r#"{"type":"T","key":"k","payload":{"a" : 1.50}}"#;
        let events = parse_body(format!(" [ {good} ,\n{good}]").as_bytes(), 7, 1000).unwrap();
        assert_eq!((events.len(), events[1].ts, events[1].payload.as_str()), (2, 7, r#"{"a" : 1.50}"#));
        let refused = parse_body(format!("[{good},{{}},{good},3]").as_bytes(), 0, 1000).unwrap_err();
        assert_eq!((refused.status, refused.body["events"].as_array().unwrap().len()), (StatusCode::BAD_REQUEST, 2));
        assert_eq!(refused.body["events"][1]["event"], 4);
        for body in ["[", "[1", "[]", "[{}] x"] {
            assert_eq!(parse_body(body.as_bytes(), 0, 1000).unwrap_err().status, StatusCode::BAD_REQUEST, "{body}");
        }
    }

    #[test]
    fn numbering_is_all_or_nothing() {
        let headers = |pairs: &[(&'static str, &'static str)]| {
            pairs.iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect::<HeaderMap>()
        };
        assert_eq!(numbering(&headers(&[])).unwrap(), None);
        let full = [(PRODUCER_HEADER, "p"), (SEQUENCE_HEADER, "7"), (EPOCH_HEADER, "2")];
        let expected = Numbering { producer: "p".to_owned(), epoch: 2, first_sequence: 7, hash: None };
        assert_eq!(numbering(&headers(&full)).unwrap(), Some(expected));
        let digits = "00ff10Ab".repeat(8);
        let hashed = [(PRODUCER_HEADER, "p"), (SEQUENCE_HEADER, "7"), (HASH_HEADER, digits.leak())];
        let expected: Vec<u8> = [0x00, 0xff, 0x10, 0xab].repeat(8);
        assert_eq!(numbering(&headers(&hashed)).unwrap().unwrap().hash.unwrap(), *expected);
        for (pairs, reason) in [
            (&[(PRODUCER_HEADER, "p")][..], "ingest-sequence is missing"),
            (&[(SEQUENCE_HEADER, "1")], "ingest-producer is missing"),
            (&[(EPOCH_HEADER, "0")], "ingest-producer is missing"),
            (&[(HASH_HEADER, "0")], "ingest-producer is missing"),
            (&[(PRODUCER_HEADER, "p"), (SEQUENCE_HEADER, "1"), (HASH_HEADER, "0")], "must be 64 hexadecimal digits"),
            (&[(PRODUCER_HEADER, "p"), (SEQUENCE_HEADER, "0")], "must be a number from 1"),
            (&[(PRODUCER_HEADER, "p"), (SEQUENCE_HEADER, "-1")], "must be a number from 1"),
            (&[(PRODUCER_HEADER, "p"), (SEQUENCE_HEADER, "9223372036854775807")], "must be a number from 1"),
            (
                &[(PRODUCER_HEADER, "p"), (SEQUENCE_HEADER, "1"), (EPOCH_HEADER, "-1")],
                "ingest-epoch must be a number from 0",
            ),
        ] {
            let refused = numbering(&headers(pairs)).unwrap_err();
            assert_eq!(refused.status, StatusCode::BAD_REQUEST);
            assert!(refused.body["error"].as_str().unwrap().contains(reason), "{pairs:?}: {}", refused.body);
        }
    }
}
