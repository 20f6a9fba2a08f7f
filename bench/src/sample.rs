//! The events that are written: a week of real flights, repeated; check-ins of one show; orders; payments.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use lanes_core::event::{Event, parse_line};

use crate::measurement::Failure;

/// Events of a request where nothing else is said.
pub const REQUEST_EVENTS: usize = 1000;

/// A week of flights.
#[derive(Debug)]
pub struct Flights {
    events: Vec<Event>,
    bodies: Vec<String>,
}

impl Flights {
    /// Reads the sample that is in the project.
    pub fn load() -> Result<Flights, Failure> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/flights-week.ndjson.gz");
        let mut text = String::new();
        GzDecoder::new(std::fs::File::open(path)?).read_to_string(&mut text)?;
        let events = text.lines().map(|line| parse_line(line, 0)).collect::<Result<Vec<Event>, _>>()?;
        let lines: Vec<&str> = text.lines().collect();
        let bodies = lines.chunks_exact(REQUEST_EVENTS).map(|lines| lines.join("\n")).collect();
        Ok(Flights { events, bodies })
    }

    /// `count` events from the `first`-th on, each with memory of its own, as a source would hand them over.
    pub fn events(&self, first: usize, count: usize) -> Vec<Event> {
        self.events.iter().cycle().skip(first % self.events.len()).take(count).cloned().collect()
    }

    /// The body of the `number`-th request: [`REQUEST_EVENTS`] lines.
    pub fn body(&self, number: usize) -> &str {
        &self.bodies[number % self.bodies.len()]
    }
}

/// The time of the first check-in and of the first order, in epoch milliseconds.
const BEGIN_MS: i64 = 1_357_017_300_000;

/// The payload of the `number`-th check-in: all of one show.
pub fn checkin_payload(number: usize) -> String {
    format!(r#"{{"show":"show-7","venue":"venue-2","gate":{}}}"#, number % 9)
}

/// The key of the `number`-th check-in: one of 50 021 users.
pub fn checkin_key(number: usize) -> String {
    format!("user-{}", number % 50_021)
}

/// The `number`-th check-in as a line that a producer sends.
pub fn checkin_line(number: usize) -> String {
    checkin_line_of("CHECKED_IN", number)
}

/// The same as an event of another type.
pub fn checkin_line_of(event_type: &str, number: usize) -> String {
    let (key, ts, payload) = (checkin_key(number), BEGIN_MS + number as i64, checkin_payload(number));
    format!(r#"{{"type":"{event_type}","key":"{key}","ts":{ts},"payload":{payload}}}"#)
}

/// The account of the `number`-th payment: one of `keys`, as if by chance.
pub fn payment_key(number: usize, keys: usize) -> String {
    format!("account-{}", lanes_core::hash::murmur3_x86_32(&(number as u64).to_le_bytes(), 0) as usize % keys)
}

/// The amount of the `number`-th payment.
pub fn payment_cents(number: usize) -> i64 {
    (number % 10_007) as i64
}

/// The `number`-th payment as a line that a producer sends.
pub fn payment_line(number: usize, keys: usize) -> String {
    let (key, ts, cents) = (payment_key(number, keys), BEGIN_MS + number as i64, payment_cents(number));
    format!(r#"{{"type":"PAID","key":"{key}","ts":{ts},"payload":{{"cents":{cents}}}}}"#)
}

/// An order, whose key no other one has.
#[derive(Debug, Clone)]
pub struct Order {
    /// The event's key.
    pub key: String,
    /// The event's time.
    pub ts: i64,
    /// The event's payload.
    pub payload: String,
}

impl Order {
    /// The `number`-th one.
    pub fn new(number: usize) -> Order {
        let payload = format!(
            r#"{{"customer":"customer-{}","status":"placed","cents":{},"note":"left at the door"}}"#,
            number % 7919,
            number % 10_007
        );
        Order { key: format!("order-{number}"), ts: BEGIN_MS + number as i64, payload }
    }

    /// The line that a producer sends.
    pub fn line(&self) -> String {
        let Order { key, ts, payload } = self;
        format!(r#"{{"type":"PLACED","key":"{key}","ts":{ts},"payload":{payload}}}"#)
    }
}
