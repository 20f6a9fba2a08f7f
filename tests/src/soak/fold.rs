//! What the projections of a daemon's log must say: its events, applied one after the other by a few lines of Rust that
//! share nothing with the product.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::log_files::StoredRow;

/// Rows as the queries of [`super::projections::queries`] print them, in their order.
#[derive(Debug, PartialEq, Eq)]
pub struct Folded {
    /// The tables' names, and their rows, one a line.
    pub tables: [(String, String); 6],
}

#[derive(Default)]
struct Account {
    payments: i64,
    level: i64,
    last_amount: Option<i64>,
    first_nr: Option<i64>,
    last_nr: i64,
}

impl Account {
    fn change_level(&mut self, by: i64) {
        self.level = (self.level + by).clamp(0, 2000);
    }
}

#[derive(Default)]
struct Counter {
    events: i64,
    cents: i64,
    largest: Option<i64>,
}

#[derive(Default)]
struct Summary {
    events: i64,
    cents: i64,
    least: Option<i64>,
    latest: Option<i64>,
}

/// Folds the events of a log in their order.
///
/// # Errors
/// If the log has the events of a key in another order than they were numbered in, or one of them not once.
pub fn fold(daemon: usize, rows: &[StoredRow]) -> Result<Folded, String> {
    let mut ledger: BTreeMap<&str, Account> = BTreeMap::new();
    let mut numbers: BTreeMap<&str, i64> = BTreeMap::new();
    let mut counter: BTreeMap<String, Counter> = BTreeMap::new();
    let mut summary: BTreeMap<String, Summary> = BTreeMap::new();
    let mut never_applied = Vec::new();
    let mut without_kind = [0; 2];
    for row in rows {
        let (key, event_type) = (row.key.as_str(), row.event_type.as_str());
        if !["PAID", "REFUNDED", "CLOSED"].contains(&event_type) {
            continue;
        }
        let payload: Value = serde_json::from_str(&row.payload).map_err(|error| format!("{}: {error}", row.payload))?;
        let number = |name: &str| payload[name].as_i64();
        let nr = number("nr").ok_or_else(|| format!("position {} has no number", row.position))?;
        let last = numbers.entry(key).or_default();
        if nr != *last + 1 {
            return Err(format!("position {}: key {key} has number {nr} after {last}", row.position));
        }
        *last = nr;

        let amount = number("amount").filter(|amount| i32::try_from(*amount).is_ok());
        match (event_type, amount) {
            ("PAID", Some(amount)) => {
                let account = ledger.entry(key).or_default();
                account.payments += 1;
                account.change_level(amount);
                account.last_amount = Some(amount);
                account.first_nr = account.first_nr.or(Some(nr));
                account.last_nr = nr;
            }
            ("PAID", None) => never_applied.push(row.position),
            ("REFUNDED", _) => {
                let account = ledger.entry(key).or_default();
                account.change_level(number("refund").unwrap_or_default());
                account.last_nr = nr;
            }
            _ => drop(ledger.remove(key)),
        }

        let cents = number("cents").unwrap_or_default();
        let kind = payload["kind"].as_str();
        if event_type != "CLOSED" {
            match kind {
                None => without_kind[0] += 1,
                Some(kind) => {
                    let counter = counter.entry(kind.to_owned()).or_default();
                    counter.events += 1;
                    counter.cents += cents;
                    counter.largest = counter.largest.max(Some(cents));
                }
            }
        }
        if event_type != "REFUNDED" {
            match kind {
                None => without_kind[1] += 1,
                Some(kind) => {
                    let summary = summary.entry(kind.to_owned()).or_default();
                    summary.events += 1;
                    if event_type == "PAID" {
                        summary.cents += cents;
                        summary.least = Some(summary.least.map_or(cents, |least| least.min(cents)));
                        summary.latest = summary.latest.max(Some(row.ts));
                    }
                }
            }
        }
    }
    let ledger = ledger.iter().map(|(key, row)| {
        let (amount, first) = (text(row.last_amount), text(row.first_nr));
        format!("{key}|{}|{}|{amount}|{first}|{}", row.payments, row.level, row.last_nr)
    });
    let numbers = numbers.iter().map(|(key, last)| format!("{key}|{last}|{last}"));
    let counter =
        counter.iter().map(|(kind, row)| format!("{kind}|{}|{}|{}", row.events, row.cents, text(row.largest)));
    let summary = summary
        .iter()
        .map(|(kind, row)| format!("{kind}|{}|{}|{}|{}", row.events, row.cents, text(row.least), text(row.latest)));
    let without_kind = [("counter", without_kind[0]), ("summary", without_kind[1])]
        .map(|(name, count): (&str, u64)| format!("{name}_{daemon}|{count}"));
    let table = |name: &str, rows: Vec<String>| (format!("{name}_{daemon}"), rows.join("\n"));
    Ok(Folded {
        tables: [
            table("ledger", ledger.collect()),
            table("numbers", numbers.collect()),
            table("counter", counter.collect()),
            table("summary", summary.collect()),
            table("skipped events of ledger", never_applied.iter().map(u64::to_string).collect()),
            table("events without a kind", without_kind.to_vec()),
        ],
    })
}

/// As psql prints it.
fn text(number: Option<i64>) -> String {
    number.map(|number| number.to_string()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::soak::event::Events;

    fn row(position: u64, event_type: &str, key: &str, payload: &str) -> StoredRow {
        let (event_type, key, payload) = (event_type.to_owned(), key.to_owned(), payload.to_owned());
        StoredRow {
            position,
            stream: "p".to_owned(),
            sequence: position,
            event_type,
            key,
            ts: position as i64,
            payload,
        }
    }

    /// By hand.
    #[test]
    fn a_short_log_folds_to_these_rows() {
        let rows = [
            row(1, "ingestd.started", "ingestd", "{}"),
            row(2, "PAID", "a", r#"{"nr":1,"kind":"x","cents":5,"amount":1500}"#),
            row(3, "PAID", "b", r#"{"nr":1,"kind":"y","cents":-7,"amount":"much"}"#),
            row(4, "PAID", "a", r#"{"nr":2,"kind":null,"cents":1,"amount":1500}"#),
            row(5, "REFUNDED", "a", r#"{"nr":3,"kind":"x","cents":9,"refund":-300}"#),
            row(6, "NOTED", "a", r#"{"text":""}"#),
            row(7, "CLOSED", "c", r#"{"nr":1,"kind":"x","cents":3}"#),
            row(8, "PAID", "b", r#"{"nr":2,"kind":"y","cents":-8,"amount":3000000000}"#),
            row(9, "REFUNDED", "b", r#"{"nr":3,"kind":"y","cents":2,"refund":4}"#),
            row(10, "PAID", "d", r#"{"nr":1,"kind":"y","cents":2,"amount":4}"#),
            row(11, "CLOSED", "d", r#"{"nr":2,"kind":null,"cents":2}"#),
        ];
        let folded = fold(0, &rows).unwrap();
        let shown: Vec<&str> = folded.tables.iter().map(|(_, rows)| rows.as_str()).collect();
        assert_eq!(
            shown,
            [
                "a|2|1700|1500|1|3\nb|0|4|||3",
                "a|3|3\nb|3|3\nc|1|1\nd|2|2",
                "x|2|14|9\ny|4|-11|2",
                "x|2|5|5|2\ny|3|-13|-8|10",
                "3\n8",
                "counter_0|1\nsummary_0|2",
            ]
        );
    }

    fn log(events: usize) -> Vec<StoredRow> {
        let events = Events::new(1, "p").take(events);
        events.zip(1..).map(|(event, at)| row(at, event.event_type, &event.key, &event.payload)).collect()
    }

    /// An event that is lost, repeated or before its predecessor of the same key is told.
    #[test]
    fn disorder_of_a_key_is_found() {
        let rows = log(400);
        assert!(fold(0, &rows).is_ok());
        let read: Vec<usize> = (0..400).step_by(7).filter(|at| rows[*at].event_type != "NOTED").collect();
        for at in read {
            let mut lost = rows.clone();
            let row = lost.remove(at);
            let has_next = lost[at..].iter().any(|other| other.key == row.key && other.event_type != "NOTED");
            assert_eq!(fold(0, &lost).is_err(), has_next);
            let mut twice = rows.clone();
            twice.push(row);
            assert!(fold(0, &twice).is_err());
        }
    }
}
