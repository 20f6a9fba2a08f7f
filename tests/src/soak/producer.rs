//! A producer over HTTP: it numbers its events, and sends again what was not answered, cut in other places, now and then
//! over two connections at once. From time to time it begins a new epoch, when nothing is under way.
//!
//! It keeps what it was told, and nothing else: how many events of each epoch were acknowledged.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use serde_json::Value;

use crate::daemon::{Answer, post_within};
use crate::random::Random;
use crate::soak::event::{Event, Events};

/// What all producers of a run did so far.
#[derive(Debug, Default)]
pub struct Sent {
    /// Events whose requests were acknowledged.
    pub acknowledged: AtomicU64,
    /// Requests that were acknowledged.
    pub acks: AtomicU64,
    /// Requests that were sent again, since the try before had no answer.
    pub resends: AtomicU64,
    /// Events that the daemons said they had already.
    pub duplicates: AtomicU64,
}

/// What a producer knows of its events in the end.
#[derive(Debug, Clone)]
pub struct Record {
    /// Its name.
    pub name: String,
    /// How many events of each epoch were acknowledged, from epoch 0 on. The events of an epoch follow on those of the one
    /// before.
    pub epochs: Vec<u64>,
}

/// Sends the events of `name` until `over`; and then until everything that was ever sent is acknowledged.
///
/// # Panics
/// If an answer is not what the protocol promises.
pub fn produce(
    address: &str,
    name: &str,
    mut events: Events,
    mut random: Random,
    sent: &Sent,
    over: &AtomicBool,
) -> Record {
    let mut epochs = vec![0];
    let mut unanswered: VecDeque<Event> = VecDeque::new();
    // How many of these were sent before.
    let mut tried = 0;
    loop {
        let enough = if random.chance(1, 100) { random.within(300..=1500) } else { random.within(1..=60) } as usize;
        if over.load(Ordering::Relaxed) {
            unanswered.truncate(tried);
        } else if unanswered.len() < enough {
            unanswered.extend(events.by_ref().take(enough - unanswered.len()));
        }
        if unanswered.is_empty() {
            return Record { name: name.to_owned(), epochs };
        }
        let count = enough.min(unanswered.len());
        let body: String = unanswered.iter().take(count).map(Event::line).collect();
        let (epoch, first) = (epochs.len() as u64 - 1, epochs.last().copied().unwrap_or_default() + 1);
        if tried > 0 {
            sent.resends.fetch_add(1, Ordering::Relaxed);
        }
        tried = tried.max(count);
        // Some have hardly any patience, so that answers are lost although all is well.
        let patience_ms = *random.pick(&[20, 1000, 5000, 5000, 5000, 30_000]);
        let tries = if random.chance(1, 10) { 2 } else { 1 };
        let answers = send(address, name, epoch, first, &body, tries, Duration::from_millis(patience_ms));
        match settle(&answers, count as u64, first) {
            Ok(None) => pause(&mut random, 5..=60),
            Ok(Some(duplicates)) => {
                unanswered.drain(..count);
                tried -= count;
                epochs[epoch as usize] += count as u64;
                sent.acknowledged.fetch_add(count as u64, Ordering::Relaxed);
                sent.acks.fetch_add(1, Ordering::Relaxed);
                sent.duplicates.fetch_add(duplicates, Ordering::Relaxed);
                if tried == 0 && random.chance(1, 100) {
                    epochs.push(0);
                }
                if !over.load(Ordering::Relaxed) {
                    pause(&mut random, 0..=300);
                }
            }
            Err(fault) => panic!("{name}, epoch {epoch}, from {first}, {count} events: {fault}"),
        }
    }
}

fn pause(random: &mut Random, milliseconds: std::ops::RangeInclusive<u64>) {
    std::thread::sleep(Duration::from_millis(random.within(milliseconds)));
}

/// Sends a request `tries` times at once; the answers that came in time.
fn send(
    address: &str,
    name: &str,
    epoch: u64,
    first: u64,
    body: &str,
    tries: usize,
    patience: Duration,
) -> Vec<Answer> {
    let (epoch, first) = (epoch.to_string(), first.to_string());
    let headers = [("Ingest-Producer", name), ("Ingest-Epoch", &epoch), ("Ingest-Sequence", &first)];
    std::thread::scope(|scope| {
        let post = || post_within(Some(patience), address, body, &headers).ok();
        let tries: Vec<_> = (0..tries).map(|_| scope.spawn(post)).collect();
        tries.into_iter().filter_map(|one| one.join().expect("sending does not panic")).collect()
    })
}

/// What the answers to one request say: none that acknowledges it, or how many of its events were duplicates.
///
/// # Errors
/// If they say what they must not.
fn settle(answers: &[Answer], count: u64, first: u64) -> Result<Option<u64>, String> {
    let (mut acknowledged, mut stored, mut duplicates) = (false, 0, 0);
    for answer in answers {
        let number = |field: &str| answer.body[field].as_u64();
        match (answer.status, number("stored"), number("duplicates")) {
            (503, ..) => {}
            (200, Some(new), Some(old)) if new + old == count && number("next_sequence") >= Some(first + count) => {
                acknowledged = true;
                stored += new;
                duplicates += old;
            }
            _ => return Err(format!("the answer is {} {}", answer.status, compact(&answer.body))),
        }
    }
    if stored > count {
        return Err(format!("{stored} were stored, say the answers"));
    }
    Ok(acknowledged.then_some(duplicates))
}

fn compact(body: &Value) -> String {
    body.to_string().chars().take(300).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn answer(status: u16, stored: u64, duplicates: u64, next: u64) -> Answer {
        Answer { status, body: json!({"stored": stored, "duplicates": duplicates, "next_sequence": next}) }
    }

    #[test]
    fn answers_are_believed_only_if_they_add_up() {
        assert_eq!(settle(&[], 10, 1), Ok(None));
        assert_eq!(settle(&[answer(200, 10, 0, 11)], 10, 1), Ok(Some(0)));
        assert_eq!(settle(&[answer(200, 4, 6, 11), answer(200, 0, 10, 11)], 10, 1), Ok(Some(16)));
        assert_eq!(settle(&[answer(503, 0, 0, 0), answer(200, 10, 0, 11)], 10, 1), Ok(Some(0)));
        assert!(settle(&[answer(200, 9, 0, 10)], 10, 1).is_err(), "one is missing");
        assert!(settle(&[answer(200, 10, 0, 10)], 10, 1).is_err(), "the next number is one of these");
        assert!(settle(&[answer(200, 10, 0, 11), answer(200, 10, 0, 11)], 10, 1).is_err(), "stored twice");
        assert!(settle(&[answer(409, 0, 0, 0)], 10, 1).is_err(), "numbers in order are refused");
    }
}
