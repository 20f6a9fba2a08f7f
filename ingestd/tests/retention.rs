//! Retention on real files: a prefix goes, what went is still known, nobody's events are taken away.

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ingestd::log::directory::shard_path;
use ingestd::log::drain::{Ack, Refusal};
use ingestd::log::retention::{Hold, RetentionSettings};
use ingestd::log::stream::NameError;
use ingestd::log::{Log, LogSettings, open};
use rusqlite::Connection;

use support::{events_in, numbers, read_from, send_hashed, settings, store, verified, wait_until};

const EVERYTHING: RetentionSettings = RetentionSettings {
    age: Duration::ZERO,
    maximum_bytes: None,
    interval: Duration::from_millis(20),
    delete_rows: 100,
    producer_age: NEVER,
};

const NEVER: Duration = Duration::from_secs(1 << 30);

fn start(log: &mut Log, settings: RetentionSettings, hold: impl FnMut() -> Hold + Send + 'static) {
    log.start_retention(Arc::new(Mutex::new(settings)), Box::new(hold)).unwrap();
}

async fn fill(log: &Log, from: u64, count: u64) {
    for producer in ["a", "b", "c"] {
        assert_eq!(store(log, producer, from, count).await.unwrap().stored, count);
    }
}

/// Waits until nothing is left at or below the floor, which is `floor`.
fn wait_for_floor(log: &Log, path: &Path, floor: u64) {
    wait_until(
        || log.floor() == floor && events_in(path, 0, floor) == 0,
        || format!("floor {} instead of {floor}, {} events below it", log.floor(), events_in(path, 0, floor)),
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_retention_deleted_is_still_a_duplicate_also_after_restarts_with_other_shard_counts() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut sent = 0;
    for (drains, shards) in [(2, 4), (1, 2), (3, 3), (2, 1), (1, 5)] {
        let mut log = open(&settings(path, drains, shards)).unwrap();
        fill(&log, sent + 1, 900).await;
        sent += 900;
        start(&mut log, EVERYTHING, || Hold::Nobody);
        let horizon = 3 * sent;
        wait_for_floor(&log, path, horizon);
        // In any batching.
        let again = store(&log, "a", 1, sent).await;
        assert_eq!(again, Ok(Ack { stored: 0, duplicates: sent, next_sequence: sent + 1 }));
        assert_eq!(store(&log, "b", sent - 9, 10).await.unwrap().duplicates, 10);
        log.close().unwrap();
        assert_eq!(verified(path).floor, horizon);
    }
    let log = open(&settings(path, 2, 2)).unwrap();
    assert_eq!(log.horizon().position(), 3 * sent, "positions that were given out are not given out again");
    assert_eq!(store(&log, "c", sent - 1, 4).await, Ok(Ack { stored: 2, duplicates: 2, next_sequence: sent + 3 }));
    log.close().unwrap();
    let left = read_from(path, 3 * sent, 3 * sent + 2);
    assert_eq!(numbers(&left, "c"), [sent as i64 + 1, sent as i64 + 2]);
    assert_eq!(verified(path).events, 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_that_somebody_still_needs_goes_and_nothing_while_that_is_not_known() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut log = open(&settings(path, 2, 3)).unwrap();
    fill(&log, 1, 1000).await;
    let (holds, next) = std::sync::mpsc::channel();
    let mut hold = Hold::Unknown;
    let asked = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let rounds = std::sync::Arc::clone(&asked);
    start(&mut log, EVERYTHING, move || {
        rounds.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
        hold = next.try_recv().unwrap_or(hold.clone());
        hold.clone()
    });
    let rounds = || asked.load(std::sync::atomic::Ordering::SeqCst);
    wait_until(|| rounds() > 3, || "no rounds".to_owned());
    assert_eq!((log.floor(), events_in(path, 0, 3000)), (0, 3000));

    holds.send(Hold::Above(1234)).unwrap();
    wait_for_floor(&log, path, 1234);
    let now = rounds();
    wait_until(|| rounds() > now + 3, || "no rounds".to_owned());
    assert_eq!((log.floor(), events_in(path, 0, 3000)), (1234, 3000 - 1234));

    holds.send(Hold::Above(7)).unwrap();
    holds.send(Hold::Above(2000)).unwrap();
    wait_for_floor(&log, path, 2000);
    log.close().unwrap();
    assert_eq!(verified(path).events, 1000);
    assert_eq!(read_from(path, 2000, 3000).len(), 1000);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_kept_below_a_number_of_bytes_by_deleting_its_low_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut log = open(&settings(path, 2, 2)).unwrap();
    let limit = 600_000;
    let by_size = RetentionSettings { age: NEVER, maximum_bytes: Some(limit), ..EVERYTHING };
    fill(&log, 1, 500).await;
    start(&mut log, by_size, || Hold::Nobody);
    for round in 1..10 {
        fill(&log, round * 500 + 1, 500).await;
    }
    let in_use = || -> u64 {
        (0..2)
            .map(|shard| {
                let file = ingestd::log::directory::shard_path(path, shard);
                let connection = ingestd::log::shard::open_reader(&file).unwrap();
                ingestd::log::expire::look(&connection, 0).unwrap().bytes
            })
            .sum()
    };
    wait_until(|| in_use() <= limit, || format!("{} bytes in use", in_use()));
    let floor = log.floor();
    assert!(floor > 0 && floor < 15_000, "{floor}");
    log.close().unwrap();
    let verification = verified(path);
    assert_eq!(verification.events, 15_000 - verification.floor);
}

/// A stream that is spread over several shards by stripes has receipts for what is there, and one a shard for all that
/// went, however long it goes on: while the log runs, not only at its start.
#[tokio::test(flavor = "multi_thread")]
async fn receipts_are_bounded_by_what_is_there() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let shards = 3;
    let mut log = open(&settings(path, 1, shards)).unwrap();
    let receipts = || -> u64 {
        let count = |shard| -> u64 {
            let file = ingestd::log::directory::shard_path(path, shard);
            let connection = ingestd::log::shard::open_reader(&file).unwrap();
            connection.query_row("SELECT count(*) FROM receipt WHERE stream >= 1024", [], |row| row.get(0)).unwrap()
        };
        (0..shards).map(count).sum()
    };
    let hold = Arc::new(std::sync::atomic::AtomicU64::new(0));
    let holding = Arc::clone(&hold);
    start(&mut log, EVERYTHING, move || Hold::Above(holding.load(std::sync::atomic::Ordering::SeqCst)));
    let stripes = 12;
    for round in 1..=5 {
        for producer in ["a", "b"] {
            let first = (round - 1) * stripes * 256 + 1;
            assert_eq!(store(&log, producer, first, stripes * 256).await.unwrap().stored, stripes * 256);
        }
        let horizon = log.horizon().position();
        assert!(receipts() >= stripes, "there is a receipt a stripe");
        hold.store(horizon, std::sync::atomic::Ordering::SeqCst);
        wait_for_floor(&log, path, horizon);
        assert!(receipts() <= 2 * u64::from(shards), "round {round}: {} receipts for no event", receipts());
    }
    for producer in ["a", "b"] {
        let sent = 5 * stripes * 256;
        let again = store(&log, producer, 1, sent).await;
        assert_eq!(again, Ok(Ack { stored: 0, duplicates: sent, next_sequence: sent + 1 }));
    }
    log.close().unwrap();
    assert_eq!(e2e::log_files::check(path, None).unwrap().last_numbers["a"], 5 * stripes * 256);
    verified(path);
}

/// A producer that sends nothing for long and of which nothing is left is forgotten: its name is free, and makes room below
/// `max_streams`. One of which something is left, or that was heard of, is not.
#[tokio::test(flavor = "multi_thread")]
async fn idle_producers_of_which_nothing_is_left_are_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let few = |drains, shards| LogSettings { max_streams: 3, ..settings(path, drains, shards) };
    let mut log = open(&few(2, 4)).unwrap();
    fill(&log, 1, 700).await;
    send_hashed(&log, "c", 701, 1, [1; 32]).await;
    assert_eq!(log.registry().producer("d", 0), Err(NameError::TooMany(3)));
    // Nothing of `a` and `b` is left, of `c` the last event is.
    start(&mut log, RetentionSettings { producer_age: Duration::ZERO, ..EVERYTHING }, || Hold::Above(2100));
    wait_until(
        || log.registry().drain_of("a").or(log.registry().drain_of("b")).is_none(),
        || "not forgotten".to_owned(),
    );
    assert!(log.registry().drain_of("c").is_some());
    let unknown = log.producer("a").await.unwrap().unwrap();
    assert_eq!((unknown.epoch, unknown.next_sequence), (0, 1));
    // Its numbers begin again.
    assert_eq!(store(&log, "a", 2, 1).await, Err(Refusal::Gap { expected: 1, given: 2 }));
    assert_eq!(store(&log, "a", 1, 5).await, Ok(Ack { stored: 5, duplicates: 0, next_sequence: 6 }));
    assert_eq!(store(&log, "d", 1, 5).await, Ok(Ack { stored: 5, duplicates: 0, next_sequence: 6 }));
    assert_eq!(log.registry().producer("e", 0), Err(NameError::TooMany(3)));
    log.close().unwrap();
    verified(path);

    // The same holds after a restart, and with shards that are only read.
    let mut log = open(&few(1, 1)).unwrap();
    assert_eq!(store(&log, "c", 700, 3).await, Ok(Ack { stored: 1, duplicates: 2, next_sequence: 703 }));
    assert_eq!(store(&log, "a", 5, 2).await, Ok(Ack { stored: 1, duplicates: 1, next_sequence: 7 }));
    let horizon = log.horizon().position();
    start(&mut log, RetentionSettings { producer_age: Duration::ZERO, ..EVERYTHING }, || Hold::Nobody);
    let known = || ["a", "c", "d"].iter().filter(|name| log.registry().drain_of(name).is_some()).count();
    wait_until(|| known() == 0, || format!("{} are known", known()));
    log.close().unwrap();
    let files = e2e::log_files::check(path, None).unwrap();
    assert_eq!((files.floor, files.last_numbers.len(), files.hashes.len()), (horizon, 0, 0), "{files:?}");
    verified(path);
    let log = open(&few(3, 2)).unwrap();
    assert_eq!(store(&log, "c", 1, 1).await, Ok(Ack { stored: 1, duplicates: 0, next_sequence: 2 }));
    log.close().unwrap();
}

/// Resends count as signs of life, and what is idle counts from the last event that was stored.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_was_heard_of_is_not_forgotten() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut log = open(&settings(path, 1, 2)).unwrap();
    fill(&log, 1, 600).await;
    let age = Arc::new(Mutex::new(RetentionSettings { producer_age: NEVER, ..EVERYTHING }));
    log.start_retention(Arc::clone(&age), Box::new(|| Hold::Nobody)).unwrap();
    wait_for_floor(&log, path, 1800);
    let stored = Instant::now();
    // Longer ago than now, so that the age can be between the two.
    wait_until(|| stored.elapsed() > Duration::from_millis(500), || "time stands still".to_owned());
    let heard = Instant::now();
    assert_eq!(store(&log, "a", 1, 600).await.unwrap().duplicates, 600);
    let patience = Duration::from_millis(400);
    age.lock().unwrap().producer_age = patience;
    wait_until(
        || log.registry().drain_of("b").or(log.registry().drain_of("c")).is_none(),
        || "not forgotten".to_owned(),
    );
    let known = log.registry().drain_of("a").is_some();
    // The log counts whole milliseconds.
    assert!(known || heard.elapsed() + Duration::from_millis(1) >= patience, "forgotten too soon");
    wait_until(|| log.registry().drain_of("a").is_none(), || "not forgotten".to_owned());
    log.close().unwrap();
    verified(path);
}

/// What a crash in the middle leaves is known as far as it ever was: the shard with the greatest number forgets last.
#[tokio::test(flavor = "multi_thread")]
async fn a_producer_that_was_half_forgotten_is_known_as_before() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let mut log = open(&settings(path, 1, 3)).unwrap();
    fill(&log, 1, 1200).await;
    start(&mut log, EVERYTHING, || Hold::Nobody);
    wait_for_floor(&log, path, 3600);
    log.close().unwrap();
    let end_in = |shard: u32| -> u64 {
        let connection = Connection::open(shard_path(path, shard)).unwrap();
        let end = "SELECT max(last_sequence) FROM receipt WHERE stream = 1024";
        connection.query_row(end, [], |row| row.get(0)).unwrap()
    };
    let mut order: Vec<(u64, u32)> = (0..3).map(|shard| (end_in(shard), shard)).collect();
    order.sort_unstable();
    assert_eq!(order[2].0, 1200);
    for (_, shard) in &order[..2] {
        let mut connection = Connection::open(shard_path(path, *shard)).unwrap();
        ingestd::log::forget::forget(&mut connection, &[1024]).unwrap();
        drop(connection);
        let log = open(&settings(path, 2, 3)).unwrap();
        let again = store(&log, "a", 1, 1200).await;
        assert_eq!(again, Ok(Ack { stored: 0, duplicates: 1200, next_sequence: 1201 }));
        log.close().unwrap();
        verified(path);
    }
}

/// A crash between the new floor and the deletes: the next start's first round finishes it.
#[tokio::test(flavor = "multi_thread")]
async fn deletes_that_a_crash_interrupted_are_finished() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let log = open(&settings(path, 2, 2)).unwrap();
    fill(&log, 1, 400).await;
    log.close().unwrap();
    support::set_watermark(path, |watermark| watermark.floor = 700);
    let mut log = open(&settings(path, 2, 2)).unwrap();
    assert_eq!(log.floor(), 700);
    let by_size = RetentionSettings { age: NEVER, maximum_bytes: None, ..EVERYTHING };
    start(&mut log, by_size, || Hold::Unknown);
    wait_for_floor(&log, path, 700);
    assert_eq!(store(&log, "a", 1, 400).await.unwrap().duplicates, 400);
    log.close().unwrap();
    assert_eq!(verified(path).events, 500);
}
