//! The events of a producer: drawn from its seed alone, so that the audit can draw them again and needs no record of their
//! contents.
//!
//! The events of a key are numbered (`nr`) from 1 by the one producer that the key belongs to. `CLOSED` deletes the key's
//! row of the ledger, so that a ledger shows in what order it was written; so do the bounds of its level.

use std::collections::BTreeMap;

use serde_json::json;

use crate::random::Random;
use crate::soak::plan::KEYS;

/// Greater amounts are refused by the table of the ledger, until it is mended.
pub const LIMIT: i64 = 1_000_000;

/// An event as it is sent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// The type: `PAID`, `REFUNDED`, `CLOSED`, or `NOTED`, which no projection reads.
    pub event_type: &'static str,
    /// The key.
    pub key: String,
    /// The time.
    pub ts: i64,
    /// The payload.
    pub payload: String,
}

impl Event {
    /// Its line of NDJSON.
    pub fn line(&self) -> String {
        let Event { event_type, key, ts, payload } = self;
        format!("{{\"type\":\"{event_type}\",\"key\":\"{key}\",\"ts\":{ts},\"payload\":{payload}}}\n")
    }
}

/// All events of a producer, without end.
#[derive(Debug)]
pub struct Events {
    producer: String,
    random: Random,
    numbers: BTreeMap<u64, u64>,
    sent: i64,
}

impl Events {
    /// The events of `producer` in the run of `seed`.
    pub fn new(seed: u64, producer: &str) -> Events {
        let mixed = producer.bytes().fold(seed, |mixed, byte| Random::new(mixed ^ u64::from(byte)).number());
        Events { producer: producer.to_owned(), random: Random::new(mixed), numbers: BTreeMap::new(), sent: 0 }
    }
}

/// The name of a producer's key by its number.
pub fn key(producer: &str, number: u64) -> String {
    format!("{producer}-{number}")
}

impl Iterator for Events {
    type Item = Event;

    fn next(&mut self) -> Option<Event> {
        let random = &mut self.random;
        // One key in ten events, the others evenly.
        let number = if random.chance(1, 10) { 0 } else { random.within(0..=KEYS - 1) };
        let kind = if random.chance(1, 40) { json!(null) } else { json!(format!("kind-{}", random.within(0..=3))) };
        let cents = random.within(0..=100_000) as i64 - 20_000;
        let lot = random.within(0..=199);
        self.sent += 1;
        let event_type = match lot {
            0 => "CLOSED",
            1..=20 => "NOTED",
            21..=60 => "REFUNDED",
            _ => "PAID",
        };
        let nr = self.numbers.entry(number).or_default();
        if event_type != "NOTED" {
            *nr += 1;
        }
        let small = random.within(0..=1000) as i64 - 500;
        let amount = match random.within(0..=2999) {
            0 => json!("much"),
            1 => json!(3_000_000_000_i64),
            2 | 3 => json!(LIMIT + small + 501),
            _ => json!(small),
        };
        let payload = match event_type {
            "PAID" => json!({"nr": nr, "kind": kind, "cents": cents, "amount": amount}),
            "REFUNDED" => json!({"nr": nr, "kind": kind, "cents": cents, "refund": small}),
            "CLOSED" => json!({"nr": nr, "kind": kind, "cents": cents}),
            _ => json!({"text": "ü".repeat(number as usize)}),
        };
        let ts = 1_700_000_000_000 + self.sent * 7;
        Some(Event { event_type, key: key(&self.producer, number), ts, payload: payload.to_string() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_and_a_name_give_one_sequence_of_events() {
        let events = |seed, name| Events::new(seed, name).take(1000).collect::<Vec<_>>();
        assert_eq!(events(1, "p"), events(1, "p"));
        assert_ne!(events(1, "p"), events(2, "p"));
        assert_ne!(events(1, "p")[0].payload, events(1, "q")[0].payload);
    }

    #[test]
    fn the_events_of_a_key_are_numbered_from_one_and_all_kinds_come_up() {
        let mut numbers: BTreeMap<String, i64> = BTreeMap::new();
        let (mut much, mut great, mut refused, mut without_kind) = (0, 0, 0, 0);
        for event in Events::new(3, "p").take(100_000).filter(|event| event.event_type != "NOTED") {
            let payload: serde_json::Value = serde_json::from_str(&event.payload).unwrap();
            let last = numbers.entry(event.key).or_default();
            *last += 1;
            assert_eq!(payload["nr"], *last);
            much += u32::from(payload["amount"] == "much");
            great += u32::from(payload["amount"] == 3_000_000_000_i64);
            refused += u32::from(payload["amount"].as_i64().is_some_and(|a| a > LIMIT && a < 2 * LIMIT));
            without_kind += u32::from(payload["kind"].is_null());
        }
        assert_eq!(numbers.len(), KEYS as usize);
        assert!([much, great, refused, without_kind].iter().all(|count| *count > 5));
    }
}
