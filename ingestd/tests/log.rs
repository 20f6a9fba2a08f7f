//! The log on real files: what is acknowledged is there after a restart, in order, once; and where it is cut.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ingestd::log::directory::shard_path;
use ingestd::log::drain::{Ack, Answer, Refusal, Request, Source};
use ingestd::log::reader::{LogReader, ReadError, StoredEvent};
use ingestd::log::{Log, LogSettings, open};
use lanes_core::event::Event;
use rusqlite::Connection;
use tokio::sync::{Semaphore, oneshot};

fn settings(directory: &Path, drains: u32, shards: u32) -> LogSettings {
    LogSettings {
        data_directory: directory.to_owned(),
        drain_threads: drains,
        storage_shards: shards,
        max_batch_size: 10_000,
        max_batch_latency: Duration::from_millis(100),
        max_streams: 1000,
    }
}

fn event(key: &str, number: u64) -> Event {
    Event { event_type: "T".into(), key: key.into(), ts: number as i64, payload: format!("{{\"n\": {number}}}") }
}

/// Sends `count` events of `producer` from `first` on; does not wait.
async fn send(log: &Log, producer: &str, first: u64, count: u64) -> oneshot::Receiver<Answer> {
    let (stream, name) = log.registry().producer(producer).unwrap();
    let (answer, reply) = oneshot::channel();
    let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().unwrap();
    let events = (first..first + count).map(|number| event(producer, number)).collect();
    let source = Source::Producer { stream, name, first_sequence: first };
    log.submit(Request { source, events, answer, memory }).await.unwrap();
    reply
}

async fn store(log: &Log, producer: &str, first: u64, count: u64) -> Answer {
    send(log, producer, first, count).await.await.unwrap()
}

fn read_all(directory: &Path, horizon: u64) -> Vec<StoredEvent> {
    LogReader::open(directory).unwrap().read(0, horizon, u64::MAX, usize::MAX).unwrap()
}

/// Numbers of a producer's events, in position order.
fn numbers(events: &[StoredEvent], producer: &str) -> Vec<i64> {
    events.iter().filter(|stored| stored.event.key == producer).map(|stored| stored.event.ts).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_read_in_order_once_after_a_restart_with_any_shard_count() {
    let directory = tempfile::tempdir().unwrap();
    let mut horizon = 0;
    let mut sent = 0;
    for (drains, shards) in [(2, 2), (1, 5), (3, 1), (2, 8), (4, 3)] {
        let log = open(&settings(directory.path(), drains, shards)).unwrap();
        assert_eq!(log.horizon().position(), horizon);
        let mut replies = Vec::new();
        for round in 0..4 {
            for producer in ["a", "b", "c"] {
                replies.push(send(&log, producer, sent + round * 700 + 1, 700).await);
            }
        }
        sent += 4 * 700;
        for reply in replies {
            assert!(matches!(reply.await.unwrap(), Ok(Ack { stored: 700, duplicates: 0, .. })));
        }
        horizon = log.horizon().position();
        assert_eq!(horizon, 3 * sent);
        log.close().unwrap();
        let events = read_all(directory.path(), horizon);
        for producer in ["a", "b", "c"] {
            assert_eq!(numbers(&events, producer), (1..=sent as i64).collect::<Vec<_>>());
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn resends_are_duplicates_in_any_batching_also_after_a_restart() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(&settings(directory.path(), 2, 2)).unwrap();
    assert_eq!(store(&log, "p", 1, 10).await, Ok(Ack { stored: 10, duplicates: 0, next_sequence: 11 }));
    assert_eq!(store(&log, "p", 1, 10).await, Ok(Ack { stored: 0, duplicates: 10, next_sequence: 11 }));
    assert_eq!(store(&log, "p", 6, 10).await, Ok(Ack { stored: 5, duplicates: 5, next_sequence: 16 }));
    assert_eq!(store(&log, "p", 17, 1).await, Err(Refusal::Gap { expected: 16, given: 17 }));
    // Two tries of the same numbers, the second while the first may be in flight: one stores, both are acknowledged.
    let (first, second) = (send(&log, "p", 16, 500).await, send(&log, "p", 16, 500).await);
    assert_eq!(first.await.unwrap(), Ok(Ack { stored: 500, duplicates: 0, next_sequence: 516 }));
    assert_eq!(second.await.unwrap(), Ok(Ack { stored: 0, duplicates: 500, next_sequence: 516 }));
    log.close().unwrap();

    let log = open(&settings(directory.path(), 3, 3)).unwrap();
    assert_eq!(store(&log, "p", 400, 200).await, Ok(Ack { stored: 84, duplicates: 116, next_sequence: 600 }));
    assert_eq!(store(&log, "new", 2, 1).await, Err(Refusal::Gap { expected: 1, given: 2 }));
    let horizon = log.horizon().position();
    log.close().unwrap();
    assert_eq!(numbers(&read_all(directory.path(), horizon), "p"), (1..=599).collect::<Vec<_>>());
}

/// The contents of a shard: positions, and receipts as (stream name, first, last).
fn contents(directory: &Path, shard: u32) -> (Vec<u64>, Vec<(String, u64, u64)>) {
    let connection = Connection::open(shard_path(directory, shard)).unwrap();
    let positions = connection
        .prepare("SELECT position FROM event ORDER BY 1")
        .unwrap()
        .query_map([], |row| row.get(0))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    let receipts = connection
        .prepare("SELECT name, first_sequence, last_sequence FROM receipt JOIN stream USING (stream) ORDER BY 1, 2")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .unwrap()
        .collect::<Result<_, _>>()
        .unwrap();
    (positions, receipts)
}

/// A directory as a crash leaves it when shard 1 committed and shard 0 did not: shard 0 lacks a position that shard 1
/// has passed. Both shards are cut before it, rows and receipts, and what was cut can be sent again.
#[tokio::test(flavor = "multi_thread")]
async fn the_log_is_cut_at_the_first_missing_position_in_every_shard() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(&settings(directory.path(), 2, 2)).unwrap();
    // The registry numbers streams from 1024 on, so `even` goes to drain 0 and shard 0, `odd` to drain 1 and shard 1.
    // One request at a time: positions 1-5, 6-10, 11-15, 16-20.
    for (producer, first) in [("even", 1), ("odd", 1), ("even", 6), ("odd", 6)] {
        store(&log, producer, first, 5).await.unwrap();
    }
    log.close().unwrap();
    assert_eq!(contents(directory.path(), 0).0, [1, 2, 3, 4, 5, 11, 12, 13, 14, 15]);
    assert_eq!(contents(directory.path(), 1).0, [6, 7, 8, 9, 10, 16, 17, 18, 19, 20]);

    // Take back shard 0's second commit but for its first two rows, with the horizon that its first commit recorded;
    // shard 1 recorded, at its second commit, a horizon below what is now missing. (A transaction is atomic, so a real
    // crash leaves whole blocks; a cut in the middle of a receipt is the harder case.)
    let shard_0 = Connection::open(shard_path(directory.path(), 0)).unwrap();
    shard_0.execute_batch("DELETE FROM event WHERE position >= 13; UPDATE log SET horizon = 5").unwrap();
    drop(shard_0);
    let shard_1 = Connection::open(shard_path(directory.path(), 1)).unwrap();
    shard_1.execute_batch("UPDATE log SET horizon = 10").unwrap();
    drop(shard_1);

    // The receipt of 6 to 10 of `even` still stands; make it what the rows say, so that only the cut is tested here.
    let shard_0 = Connection::open(shard_path(directory.path(), 0)).unwrap();
    let crc = ingestd::log::shard::receipt_crc(1024, 6, 7);
    shard_0.execute("UPDATE receipt SET last_sequence = 7, crc = ?1 WHERE first_sequence = 6", [crc]).unwrap();
    drop(shard_0);

    let log = open(&settings(directory.path(), 2, 2)).unwrap();
    assert_eq!(log.horizon().position(), 12);
    assert_eq!(contents(directory.path(), 0).0, [1, 2, 3, 4, 5, 11, 12]);
    assert_eq!(contents(directory.path(), 1).0, [6, 7, 8, 9, 10]);
    let receipts = |name: &str, ranges: &[(u64, u64)]| {
        ranges.iter().map(|(first, last)| (name.to_owned(), *first, *last)).collect::<Vec<_>>()
    };
    assert_eq!(contents(directory.path(), 0).1, receipts("even", &[(1, 5), (6, 7)]));
    assert_eq!(contents(directory.path(), 1).1, receipts("odd", &[(1, 5)]));
    assert_eq!(store(&log, "odd", 6, 5).await, Ok(Ack { stored: 5, duplicates: 0, next_sequence: 11 }));
    assert_eq!(store(&log, "even", 6, 5).await, Ok(Ack { stored: 3, duplicates: 2, next_sequence: 11 }));
    assert_eq!(log.horizon().position(), 20);
    log.close().unwrap();
    let events = read_all(directory.path(), 20);
    assert_eq!(numbers(&events, "even"), (1..=10).collect::<Vec<_>>());
    assert_eq!(numbers(&events, "odd"), (1..=10).collect::<Vec<_>>());
}

/// The cut falls inside a receipt when two blocks of a stream were committed together.
#[tokio::test(flavor = "multi_thread")]
async fn a_receipt_that_crosses_the_cut_is_trimmed() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(&settings(directory.path(), 1, 2)).unwrap();
    // One drain with two shards: stripes of 256 events alternate, so 600 events are positions 1-256 in shard 0,
    // 257-512 in shard 1, 513-600 in shard 0.
    store(&log, "p", 1, 600).await.unwrap();
    log.close().unwrap();
    let shard_1 = Connection::open(shard_path(directory.path(), 1)).unwrap();
    let before = contents(directory.path(), 1);
    assert_eq!(before.1, [("p".to_owned(), 257, 512)]);
    shard_1.execute_batch("DELETE FROM event; DELETE FROM receipt; UPDATE log SET horizon = 0").unwrap();
    drop(shard_1);
    Connection::open(shard_path(directory.path(), 0)).unwrap().execute_batch("UPDATE log SET horizon = 0").unwrap();

    let log = open(&settings(directory.path(), 1, 2)).unwrap();
    assert_eq!(log.horizon().position(), 256);
    let (positions, receipts) = contents(directory.path(), 0);
    assert_eq!(positions, (1..=256).collect::<Vec<_>>());
    assert_eq!(receipts, [("p".to_owned(), 1, 256)]);
    assert_eq!(store(&log, "p", 1, 600).await, Ok(Ack { stored: 344, duplicates: 256, next_sequence: 601 }));
    log.close().unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_log_is_refused_or_stops_its_reader_and_is_never_read_short() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(&settings(directory.path(), 1, 2)).unwrap();
    for first in [1, 301, 601] {
        store(&log, "p", first, 300).await.unwrap();
    }
    log.close().unwrap();
    let path = directory.path();
    let shard = |number| Connection::open(shard_path(path, number)).unwrap();
    let reader = LogReader::open(path).unwrap();

    shard(0).execute_batch("UPDATE event SET payload = '{\"n\": 7}' WHERE position = 9").unwrap();
    assert!(matches!(reader.read(0, 900, u64::MAX, usize::MAX), Err(ReadError::Checksum(9))));
    assert_eq!(reader.read(0, 900, 8, usize::MAX).unwrap().len(), 8);
    shard(0).execute_batch("DELETE FROM event WHERE position = 9").unwrap();
    assert!(matches!(reader.read(0, 900, u64::MAX, usize::MAX), Err(ReadError::Missing(9))));
    drop(reader);

    // A commit that got lost in the middle shows as a hole in a producer's numbers.
    let (_, receipts) = contents(path, 1);
    assert!(receipts.len() >= 2, "{receipts:?}");
    shard(1).execute("DELETE FROM receipt WHERE first_sequence = ?1", [receipts[0].1]).unwrap();
    let error = open(&settings(path, 1, 2)).unwrap_err().to_string();
    assert!(error.contains("of stream \"p\" the events 257 to"), "{error}");

    std::fs::rename(shard_path(path, 0), path.join("elsewhere.db")).unwrap();
    let error = open(&settings(path, 1, 2)).unwrap_err().to_string();
    assert!(error.contains("shard-0000.db is missing"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_is_bounded_by_events_and_by_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(&settings(directory.path(), 2, 2)).unwrap();
    store(&log, "p", 1, 100).await.unwrap();
    log.close().unwrap();
    let reader = LogReader::open(directory.path()).unwrap();
    assert_eq!(reader.read(0, 100, 30, usize::MAX).unwrap().len(), 30);
    assert_eq!(reader.read(90, 100, 30, usize::MAX).unwrap().len(), 10);
    assert_eq!(reader.read(90, 95, 30, usize::MAX).unwrap().len(), 5);
    assert_eq!(reader.read(0, 100, 30, 1).unwrap().len(), 1);
    assert_eq!(reader.read(100, 100, 30, 1).unwrap().len(), 0);
}
