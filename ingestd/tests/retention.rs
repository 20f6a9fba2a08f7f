//! Retention on real files: a prefix goes, what went is still known, nobody's events are taken away.

mod support;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ingestd::log::drain::Ack;
use ingestd::log::retention::{Hold, RetentionSettings};
use ingestd::log::{Log, open};

use support::{events_in, numbers, read_from, settings, store, verified, wait_until};

const EVERYTHING: RetentionSettings = RetentionSettings {
    age: Duration::ZERO,
    maximum_bytes: None,
    interval: Duration::from_millis(20),
    delete_rows: 100,
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
