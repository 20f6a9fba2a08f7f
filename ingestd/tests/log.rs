//! The log on real files: what is acknowledged is there after a restart, in order, once; and where it is cut.

mod support;

use std::path::Path;

use ingestd::log::directory::shard_path;
use ingestd::log::drain::{Ack, Refusal};
use ingestd::log::reader::{LogReader, ReadError};
use ingestd::log::shard::{Receipt, ReceiptKind, ShardHeader, open_reader, read_header};
use ingestd::log::stream_hash::StreamHash;
use ingestd::log::verify::verify;
use ingestd::log::{LogSettings, open, watermark};
use rusqlite::Connection;

use support::{
    numbers, read_all, send, send_hashed, send_in_epoch, set_header, set_watermark, settings, store, verified,
    wait_until,
};

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
    shard_0.execute_batch("DELETE FROM event WHERE position >= 13").unwrap();
    set_header(directory.path(), 0, |header| header.horizon = 5);
    drop(shard_0);
    set_header(directory.path(), 1, |header| header.horizon = 10);

    // The receipt of 1 to 10 of `even` still stands; make it what the rows say, so that only the cut is tested here.
    let shard_0 = Connection::open(shard_path(directory.path(), 0)).unwrap();
    shard_0.execute("DELETE FROM receipt WHERE first_sequence = 1", []).unwrap();
    let kind = ReceiptKind::Stored;
    Receipt { stream: 1024, first_sequence: 1, last_sequence: 7, kind }.insert(&shard_0).unwrap();
    drop(shard_0);

    set_watermark(directory.path(), |watermark| {
        watermark.horizon = 5;
        watermark.commit_numbers = vec![1, 1];
    });
    let log = open(&settings(directory.path(), 2, 2)).unwrap();
    assert_eq!(log.horizon().position(), 12);
    assert_eq!(contents(directory.path(), 0).0, [1, 2, 3, 4, 5, 11, 12]);
    assert_eq!(contents(directory.path(), 1).0, [6, 7, 8, 9, 10]);
    let receipts = |name: &str, ranges: &[(u64, u64)]| {
        ranges.iter().map(|(first, last)| (name.to_owned(), *first, *last)).collect::<Vec<_>>()
    };
    assert_eq!(contents(directory.path(), 0).1, receipts("even", &[(1, 7)]));
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
    shard_1.execute_batch("DELETE FROM event; DELETE FROM receipt").unwrap();
    drop(shard_1);
    set_header(directory.path(), 0, |header| header.horizon = 0);
    set_header(directory.path(), 1, |header| header.horizon = 0);

    set_watermark(directory.path(), |watermark| {
        watermark.horizon = 0;
        watermark.commit_numbers = vec![0, 0];
    });
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
    assert_eq!(reader.read(0, 900, 8, usize::MAX).unwrap().events.len(), 8);
    shard(0).execute_batch("DELETE FROM event WHERE position = 9").unwrap();
    assert!(matches!(reader.read(0, 900, u64::MAX, usize::MAX), Err(ReadError::Missing(9))));
    drop(reader);

    // A commit that got lost in the middle shows as a hole in a producer's numbers.
    let (_, receipts) = contents(path, 1);
    assert!(receipts.len() >= 2, "{receipts:?}");
    shard(1).execute("DELETE FROM receipt WHERE first_sequence = ?1", [receipts[0].1]).unwrap();
    let error = open(&settings(path, 1, 2)).unwrap_err().to_string();
    assert!(error.contains("of stream \"p\" the events 257 to") && error.contains("--accept-loss"), "{error}");

    std::fs::rename(shard_path(path, 0), path.join("elsewhere.db")).unwrap();
    let error = open(&settings(path, 1, 2)).unwrap_err().to_string();
    assert!(error.contains("shard-0000.db is missing"), "{error}");
    assert!(!shard_path(path, 0).exists(), "a refused start makes no new file in its place");
}

/// The ways in which stored events disappear, each found by `verify`, named, refused, and given up when an operator says so.
#[tokio::test(flavor = "multi_thread")]
async fn lost_commits_are_named_and_given_up_only_when_told() {
    type Damage = fn(&Path);
    let cases: [(&str, &str, Damage); 5] = [
        ("a missing shard", "shard-0001.db is missing", |path| {
            for suffix in ["", "-wal", "-shm"] {
                let _ = std::fs::remove_file(path.join(format!("shard-0001.db{suffix}")));
            }
        }),
        ("an older copy of a shard", "shard-0001.db has lost its commits 2 to 3", |path| {
            std::fs::copy(path.join("copy"), path.join("shard-0001.db")).unwrap();
        }),
        ("a missing watermark and lost rows", "the file watermark is missing", |path| {
            std::fs::remove_file(path.join(watermark::FILE_NAME)).unwrap();
            std::fs::copy(path.join("copy"), path.join("shard-0001.db")).unwrap();
        }),
        ("a damaged watermark and lost rows", "the file watermark is damaged", |path| {
            std::fs::write(path.join(watermark::FILE_NAME), "x").unwrap();
            std::fs::copy(path.join("copy"), path.join("shard-0001.db")).unwrap();
        }),
        // As after a power cut within a second, before the watermark was synced. The other shard knows of 30.
        ("lost rows that the watermark does not know of", "10 positions are missing: 16 to 20, 26 to 30", |path| {
            std::fs::copy(path.join("copy"), path.join("shard-0001.db")).unwrap();
            set_watermark(path, |watermark| {
                watermark.horizon = 10;
                watermark.commit_numbers[1] = 1;
            });
            let found = verify(path).unwrap().faults.join("\n");
            assert!(found.contains("positions 16 to 20 are missing"), "{found}");
            assert!(found.contains("positions 26 to 30 are missing"), "{found}");
        }),
    ];
    for (what, reason, damage) in cases {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let log = open(&settings(path, 2, 2)).unwrap();
        // Streams 1024 and 1025: `even` is in shard 0, `odd` in shard 1. Positions 1-5, 6-10.
        store(&log, "even", 1, 5).await.unwrap();
        store(&log, "odd", 1, 5).await.unwrap();
        log.close().unwrap();
        std::fs::copy(shard_path(path, 1), path.join("copy")).unwrap();
        let log = open(&settings(path, 2, 2)).unwrap();
        // Positions 11-15 even, 16-20 odd, 21-25 even, 26-30 odd, 31-35 even.
        for (producer, first) in [("even", 6), ("odd", 6), ("even", 11), ("odd", 11), ("even", 16)] {
            store(&log, producer, first, 5).await.unwrap();
        }
        log.close().unwrap();
        damage(path);
        assert!(verify(path).map_or(true, |found| found.fault_count > 0), "{what}");

        let error = open(&settings(path, 2, 2)).unwrap_err().to_string();
        assert!(error.contains(reason) && error.contains("--accept-loss"), "{what}: {error}");
        let whole_shard = what == "a missing shard";
        let missing =
            if whole_shard { "15 positions are missing: 6 to 10, 16 to 20, 26 to 30" } else { "10 positions" };
        assert!(error.contains(missing), "{what}: {error}");

        let log = open(&LogSettings { accept_loss: true, ..settings(path, 2, 2) }).unwrap();
        assert_eq!(log.horizon().position(), 35, "{what}");
        // `even` goes on; `odd` is known up to what is left of it.
        let left = if whole_shard { 0 } else { 5 };
        assert_eq!(store(&log, "even", 21, 1).await, Ok(Ack { stored: 1, duplicates: 0, next_sequence: 22 }), "{what}");
        assert_eq!(store(&log, "odd", 16, 1).await, Err(Refusal::Gap { expected: left + 1, given: 16 }), "{what}");
        log.close().unwrap();
        let events = read_all(path, 36);
        assert_eq!(numbers(&events, "even"), (1..=21).collect::<Vec<_>>(), "{what}");
        assert_eq!(numbers(&events, "odd"), (1..=left as i64).collect::<Vec<_>>(), "{what}");
        let told: Vec<_> = events.iter().filter(|stored| stored.event.event_type == "ingestd.loss").collect();
        assert_eq!(told.len(), 1, "{what}");
        let first = if whole_shard { 6 } else { 16 };
        let payload: serde_json::Value = serde_json::from_str(&told[0].event.payload).unwrap();
        let expected = serde_json::json!({
            "first_position": first, "last_position": 30, "count": if whole_shard { 15 } else { 10 },
        });
        assert_eq!((told[0].position, payload), (first, expected), "{what}");
        // Once given up, it is no more asked for.
        open(&settings(path, 2, 2)).unwrap().close().unwrap();
    }
}

/// A file that SQLite or a checksum says is damaged is refused and named. Given up, it is put aside, whole, and what was in it
/// counts as lost. A file that is only the wrong one is never put aside.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_file_is_put_aside_when_told_and_never_deleted() {
    type Damage = fn(&Path);
    let damages: [Damage; 6] = [
        |file| std::fs::write(file, vec![7; 40_000]).unwrap(),
        |file| {
            let mut bytes = std::fs::read(file).unwrap();
            bytes[4096..].fill(0xff);
            std::fs::write(file, bytes).unwrap();
        },
        |file| Connection::open(file).unwrap().execute_batch("UPDATE receipt SET crc = crc + 1").unwrap(),
        |file| Connection::open(file).unwrap().execute_batch("UPDATE log SET horizon = 77").unwrap(),
        |file| Connection::open(file).unwrap().execute_batch("ALTER TABLE event RENAME COLUMN cpu TO cqu").unwrap(),
        |file| {
            Connection::open(file).unwrap().execute_batch("ALTER TABLE event_type RENAME COLUMN type TO uype").unwrap()
        },
    ];
    for (case, damage) in damages.into_iter().enumerate() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let log = open(&settings(path, 2, 2)).unwrap();
        // Positions 1-5 in shard 0, 6-10 in shard 1, 11-15 in shard 0.
        for (producer, first) in [("even", 1), ("odd", 1), ("even", 6)] {
            store(&log, producer, first, 5).await.unwrap();
        }
        log.close().unwrap();
        let file = shard_path(path, 1);
        damage(&file);
        let damaged = std::fs::read(&file).unwrap();
        let error = open(&settings(path, 2, 2)).unwrap_err().to_string();
        assert!(error.contains("shard-0001.db") && error.contains("--accept-loss"), "case {case}: {error}");
        assert!(file.exists(), "case {case}: a refused start puts nothing aside");

        let log = open(&LogSettings { accept_loss: true, ..settings(path, 2, 2) }).unwrap();
        assert_eq!(store(&log, "even", 11, 1).await, Ok(Ack { stored: 1, duplicates: 0, next_sequence: 12 }));
        log.close().unwrap();
        let events = read_all(path, 16);
        assert_eq!(numbers(&events, "even"), (1..=11).collect::<Vec<_>>(), "case {case}");
        assert_eq!((numbers(&events, "odd").len(), events[5].event.event_type.as_str()), (0, "ingestd.loss"));
        let is_aside = |path: &std::path::PathBuf| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("shard-0001.db.corrupt.") && !name.ends_with("-wal") && !name.ends_with("-shm")
        };
        let aside: Vec<_> =
            std::fs::read_dir(path).unwrap().map(|entry| entry.unwrap().path()).filter(is_aside).collect();
        assert_eq!(aside.len(), 1, "case {case}: {aside:?}");
        // Where SQLite can still read it, all its events are there; else not a byte is different.
        let events: rusqlite::Result<u64> =
            Connection::open(&aside[0]).unwrap().query_row("SELECT count(*) FROM event", [], |row| row.get(0));
        let whole = events.map_or_else(|_| std::fs::read(&aside[0]).unwrap() == damaged, |events| events == 5);
        assert!(whole, "case {case}: something is gone from {aside:?}");
        open(&settings(path, 2, 2)).unwrap().close().unwrap();
    }

    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    open(&settings(path, 1, 2)).unwrap().close().unwrap();
    std::fs::copy(shard_path(path, 0), shard_path(path, 1)).unwrap();
    let error = open(&LogSettings { accept_loss: true, ..settings(path, 1, 2) }).unwrap_err().to_string();
    assert!(error.contains("was written as shard 0; do not rename shard files"), "{error}");
    assert!(shard_path(path, 1).exists());
}

/// A hole in the numbers of a stream whose later numbers are there: the stream goes on after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_goes_on_after_a_hole_that_was_given_up() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    // One drain, two shards: 1-256 in shard 0, 257-512 in shard 1, 513-600 in shard 0.
    let log = open(&settings(path, 1, 2)).unwrap();
    store(&log, "p", 1, 600).await.unwrap();
    log.close().unwrap();
    for suffix in ["", "-wal", "-shm"] {
        let _ = std::fs::remove_file(path.join(format!("shard-0001.db{suffix}")));
    }
    let error = open(&settings(path, 1, 2)).unwrap_err().to_string();
    assert!(error.contains("of stream \"p\" the events 257 to 512 are missing"), "{error}");
    assert!(error.contains("256 positions are missing: 257 to 512"), "{error}");
    let log = open(&LogSettings { accept_loss: true, ..settings(path, 1, 2) }).unwrap();
    assert_eq!(store(&log, "p", 601, 1).await, Ok(Ack { stored: 1, duplicates: 0, next_sequence: 602 }));
    assert_eq!(store(&log, "p", 300, 2).await, Ok(Ack { stored: 0, duplicates: 2, next_sequence: 602 }));
    log.close().unwrap();
    let expected: Vec<i64> = (1..=256).chain(513..=601).collect();
    assert_eq!(numbers(&read_all(path, 601), "p"), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_higher_epoch_begins_at_one_and_closes_the_lower_ones_for_ever() {
    let directory = tempfile::tempdir().unwrap();
    let mut horizon = 0;
    for (round, drains) in [(0, 2), (1, 3), (2, 1)] {
        let log = open(&settings(directory.path(), drains, drains)).unwrap();
        if round > 0 {
            let state = log.producer("p").await.unwrap().unwrap();
            assert_eq!((state.epoch, state.next_sequence), (2 * round, 8), "it is known after a restart");
        }
        let store = async |epoch, first, count| send_in_epoch(&log, "p", epoch, first, count).await.await.unwrap();
        let (lower, higher) = (2 * round + 1, 2 * round + 2);
        assert_eq!(store(lower, 2, 1).await, Err(Refusal::Gap { expected: 1, given: 2 }));
        assert_eq!(store(lower, 1, 3).await, Ok(Ack { stored: 3, duplicates: 0, next_sequence: 4 }));
        assert_eq!(store(lower, 2, 3).await, Ok(Ack { stored: 1, duplicates: 2, next_sequence: 5 }));
        assert_eq!(store(higher, 1, 7).await, Ok(Ack { stored: 7, duplicates: 0, next_sequence: 8 }));
        for epoch in 0..higher {
            assert_eq!(store(epoch, 1, 1).await, Err(Refusal::Epoch { current: higher, given: epoch }));
        }
        let state = log.producer("p").await.unwrap().unwrap();
        assert_eq!((state.epoch, state.next_sequence), (higher, 8));
        let unknown = log.producer("q").await.unwrap().unwrap();
        assert_eq!((unknown.epoch, unknown.next_sequence), (0, 1));
        horizon += 11;
        assert_eq!(log.horizon().position(), horizon);
        log.close().unwrap();
    }
    let expected: Vec<i64> = [1, 2, 3, 4, 1, 2, 3, 4, 5, 6, 7].repeat(3);
    assert_eq!(numbers(&read_all(directory.path(), horizon), "p"), expected);
}

#[tokio::test(flavor = "multi_thread")]
async fn reading_is_bounded_by_events_and_by_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(&settings(directory.path(), 2, 2)).unwrap();
    store(&log, "p", 1, 100).await.unwrap();
    log.close().unwrap();
    let reader = LogReader::open(directory.path()).unwrap();
    let count = |after, horizon, bytes| reader.read(after, horizon, 30, bytes).unwrap().events.len();
    assert_eq!(count(0, 100, usize::MAX), 30);
    assert_eq!(count(90, 100, usize::MAX), 10);
    assert_eq!(count(90, 95, usize::MAX), 5);
    assert_eq!(count(0, 100, 1), 1);
    assert_eq!(count(100, 100, 1), 0);
}

/// Every kind of damage to a log at rest is found by `verify`, and told apart.
#[tokio::test(flavor = "multi_thread")]
async fn verify_finds_every_kind_of_damage() {
    type Damage = fn(&Connection);
    let cases: [(&str, Damage); 11] = [
        ("position 3 does not match its checksum", |shard| {
            shard.execute_batch("UPDATE event SET key = 'q' WHERE position = 3").unwrap();
        }),
        ("positions 3 to 3 are missing (LOG-1)", |shard| {
            shard.execute_batch("DELETE FROM event WHERE position = 3").unwrap();
        }),
        ("the rows are 1-2 4-256 513-600 and the receipts 1-256 513-600", |shard| {
            shard.execute_batch("DELETE FROM event WHERE position = 3").unwrap();
        }),
        ("receipt 1 to 256 of stream 1024 does not match its checksum", |shard| {
            shard.execute_batch("UPDATE receipt SET kind = 1 WHERE first_sequence = 1").unwrap();
        }),
        ("the rows are 1-256 513-600 and the receipts 513-600", |shard| {
            shard.execute_batch("DELETE FROM receipt WHERE first_sequence = 1").unwrap();
        }),
        ("have two receipts (LOG-5)", |shard| {
            let kind = ReceiptKind::Stored;
            Receipt { stream: 1024, first_sequence: 300, last_sequence: 301, kind }.insert(shard).unwrap();
        }),
        ("position 300 is held twice (LOG-1)", |shard| {
            shard
                .execute_batch(
                    "INSERT INTO event SELECT 300, stream, 9999, cpu, type, key, ts, stored_at, payload, crc
                                 FROM event WHERE position = 3",
                )
                .unwrap();
        }),
        ("event 2 of stream 1024 comes after its event 3", |shard| {
            shard.execute_batch("UPDATE event SET sequence = 5 - sequence WHERE position IN (2, 3)").unwrap();
        }),
        ("event 1 of stream 1024 is above the floor, and a receipt says that 256 is expired", |shard| {
            shard.execute_batch("DELETE FROM receipt WHERE first_sequence = 1").unwrap();
            let kind = ReceiptKind::Expired;
            Receipt { stream: 1024, first_sequence: 1, last_sequence: 256, kind }.insert(shard).unwrap();
        }),
        ("the hash at event 601 of stream 1024 is of no event that a receipt covers", |shard| {
            StreamHash { stream: 1024, sequence: 601, hash: [1; 32] }.insert(shard).unwrap();
        }),
        ("is at commit 0, the watermark saw its commit", |shard| {
            let path = Path::new(shard.path().unwrap());
            let header = read_header(shard, path, 0).unwrap();
            ShardHeader { commit_number: 0, ..header }.write(shard, 0).unwrap();
        }),
    ];
    for (expected, damage) in cases {
        let directory = tempfile::tempdir().unwrap();
        let log = open(&settings(directory.path(), 1, 2)).unwrap();
        store(&log, "p", 1, 600).await.unwrap();
        log.close().unwrap();
        read_all(directory.path(), 600);
        damage(&Connection::open(shard_path(directory.path(), 0)).unwrap());
        let said = verify(directory.path()).unwrap().to_string();
        assert!(said.contains(expected), "{expected}: {said}");
    }
    // A horizon that rotted would let lost commits pass as expected, so it has a checksum of its own.
    let directory = tempfile::tempdir().unwrap();
    open(&settings(directory.path(), 1, 1)).unwrap().close().unwrap();
    let shard = Connection::open(shard_path(directory.path(), 0)).unwrap();
    shard.execute_batch("UPDATE log SET horizon = 1000000").unwrap();
    drop(shard);
    assert!(verify(directory.path()).unwrap_err().to_string().contains("does not match its checksum"));
    assert!(open(&settings(directory.path(), 1, 1)).unwrap_err().to_string().contains("does not match its checksum"));

    let directory = tempfile::tempdir().unwrap();
    open(&settings(directory.path(), 1, 1)).unwrap().close().unwrap();
    std::fs::remove_file(directory.path().join(watermark::FILE_NAME)).unwrap();
    assert!(verify(directory.path()).unwrap().to_string().contains("watermark is missing"));
}

/// While writers commit out of order, a reader sees a dense prefix of the log and nothing else (LOG-3), and it only grows.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_beside_busy_writers_sees_every_position_up_to_the_horizon_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(&settings(directory.path(), 3, 4)).unwrap();
    let horizon = std::sync::Arc::clone(log.horizon());
    let path = directory.path().to_owned();
    let seen = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    let told = std::sync::Arc::clone(&seen);
    let reading = std::thread::spawn(move || {
        let reader = LogReader::open(&path).unwrap();
        let (mut after, mut rounds) = (0, 0);
        while after < 9 * 2000 {
            let until = horizon.position();
            let chunk = reader.read(after, until, u64::MAX, usize::MAX).unwrap();
            let positions: Vec<u64> = chunk.events.iter().map(|stored| stored.position).collect();
            assert_eq!(positions, (after + 1..=until).collect::<Vec<_>>());
            after = until;
            told.store(after, std::sync::atomic::Ordering::SeqCst);
            rounds += 1;
        }
        rounds
    });
    let mut replies = Vec::new();
    for round in 0..20 {
        for producer in ["a", "b", "c", "d", "e", "f", "g", "h", "i"] {
            replies.push(send(&log, producer, round * 100 + 1, 100).await);
        }
        if round == 9 {
            // So there are events after what it has read.
            let begun = || seen.load(std::sync::atomic::Ordering::SeqCst) > 0 || reading.is_finished();
            wait_until(begun, || "the reader has read nothing".to_owned());
        }
    }
    for reply in replies {
        reply.await.unwrap().unwrap();
    }
    assert!(tokio::task::spawn_blocking(|| reading.join().unwrap()).await.unwrap() > 1);
    log.close().unwrap();
}

/// A directory as ingestd 0.3.0 left it: one drain, two shards; the producer `p` sent 1600 events, of which retention had
/// deleted 1241, `q` 40 in its first epoch and 30 in epoch 2.
#[tokio::test(flavor = "multi_thread")]
async fn a_directory_of_schema_version_1_is_brought_to_the_present_one() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let unpack = |path: &Path| {
        let kept = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/version-1");
        for name in ["shard-0000.db", "shard-0001.db", "watermark"] {
            let packed = std::fs::read(kept.join(format!("{name}.gz"))).unwrap();
            let mut file = std::fs::File::create(path.join(name)).unwrap();
            std::io::copy(&mut flate2::read::GzDecoder::new(&packed[..]), &mut file).unwrap();
        }
    };
    unpack(path);
    let refused = verify(path).unwrap_err().to_string();
    assert!(refused.contains("has schema version 1; a start of this ingestd brings it to 2"), "{refused}");

    let log = open(&settings(path, 1, 2)).unwrap();
    assert_eq!((log.horizon().position(), log.floor()), (1674, 1242));
    assert_eq!(store(&log, "p", 1, 1600).await, Ok(Ack { stored: 0, duplicates: 1600, next_sequence: 1601 }));
    assert_eq!(store(&log, "p", 1601, 400).await, Ok(Ack { stored: 400, duplicates: 0, next_sequence: 2001 }));
    let closed = send_in_epoch(&log, "q", 0, 41, 1).await.await.unwrap();
    assert_eq!(closed, Err(Refusal::Epoch { current: 2, given: 0 }));
    let open_epoch = send_in_epoch(&log, "q", 2, 30, 2).await.await.unwrap();
    assert_eq!(open_epoch, Ok(Ack { stored: 1, duplicates: 1, next_sequence: 32 }));
    log.close().unwrap();
    let files = e2e::log_files::check(path, Some(2075)).unwrap();
    assert_eq!(files.stream("p").map(|row| row.sequence).collect::<Vec<_>>(), (1242..=2000).collect::<Vec<_>>());
    assert_eq!(files.stream("q").count(), 40);
    assert_eq!(verified(path).events, 2075 - 1242);

    // What had rotted before is still found, by its old checksums.
    type Damage = (&'static str, &'static str);
    let damages: [Damage; 2] = [
        ("UPDATE stream SET name = 'r' WHERE stream = 1024", "the name \"r\" of stream 1024 does not match"),
        (
            "UPDATE receipt SET last_sequence = 999 WHERE first_sequence = 512",
            "receipt 512 to 999 of stream 1024 does not",
        ),
    ];
    for (damage, expected) in damages {
        let directory = tempfile::tempdir().unwrap();
        unpack(directory.path());
        Connection::open(shard_path(directory.path(), 0)).unwrap().execute_batch(damage).unwrap();
        let error = open(&settings(directory.path(), 1, 2)).unwrap_err().to_string();
        assert!(error.contains(expected), "{expected}: {error}");
    }
}

/// A cut takes the hash of an event that it takes, and leaves the one before.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_hash_below_the_cut_stays() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let log = open(&settings(path, 1, 2)).unwrap();
    // Stripes of 256: 1-256 in shard 0, 257-512 in shard 1, 513-600 in shard 0.
    for (first, count) in [(1, 50), (51, 50), (101, 500)] {
        let last = first + count - 1;
        assert_eq!(send_hashed(&log, "p", first, count, [(last / 10) as u8; 32]).await.stored, count);
    }
    assert_eq!(log.hashes().find(1024, 600).unwrap(), Some([60; 32]));
    log.close().unwrap();
    Connection::open(shard_path(path, 1)).unwrap().execute_batch("DELETE FROM event; DELETE FROM receipt").unwrap();
    for shard in [0, 1] {
        set_header(path, shard, |header| header.horizon = 0);
    }
    set_watermark(path, |watermark| {
        watermark.horizon = 0;
        watermark.commit_numbers = vec![0, 0];
    });
    let log = open(&settings(path, 1, 2)).unwrap();
    assert_eq!(log.horizon().position(), 256);
    let kept = [50, 100, 600].map(|sequence| log.hashes().find(1024, sequence).unwrap());
    assert_eq!(kept, [None, Some([10; 32]), None]);
    log.close().unwrap();
    verified(path);
}

/// Hashes at every thousandth number stay; of the others only the last two of a shard.
#[tokio::test(flavor = "multi_thread")]
async fn hashes_are_stored_with_their_events_and_only_those_that_matter_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let hash = |number: u64| [(number % 251) as u8; 32];
    let mut next = 1;
    for (drains, shards, requests) in
        [(1, 1, &[400, 600, 1000, 17][..]), (1, 3, &[983, 500, 500, 500]), (2, 2, &[7, 8])]
    {
        let log = open(&settings(path, drains, shards)).unwrap();
        for count in requests {
            let last = next + count - 1;
            assert_eq!(send_hashed(&log, "p", next, *count, hash(last)).await.stored, *count);
            assert_eq!(log.hashes().find(1024, last).unwrap(), Some(hash(last)));
            next = last + 1;
        }
        // A resend with another hash changes nothing: who compares is the source.
        assert_eq!(send_hashed(&log, "p", 1, 1000, [255; 32]).await.duplicates, 1000);
        assert_eq!(log.hashes().find(1024, 1000).unwrap(), Some(hash(1000)));
        assert_eq!(log.hashes().find(1024, 999).unwrap(), None);
        log.close().unwrap();
        let files = e2e::log_files::check(path, Some(next - 1)).unwrap();
        let kept = &files.hashes["p"];
        assert!(kept.iter().all(|(number, kept)| *kept == hash(*number)), "{kept:?}");
        let thousands: Vec<u64> = (1..next).filter(|number| number % 1000 == 0).collect();
        assert!(thousands.iter().all(|number| kept.contains_key(number)), "{kept:?}");
        assert!(kept.contains_key(&(next - 1)), "the last one is kept: {kept:?}");
        assert!(kept.len() <= thousands.len() + 2 * 3, "others are two a shard: {kept:?}");
    }
    assert_eq!(verified(path).hashes, e2e::log_files::check(path, None).unwrap().hashes["p"].len() as u64);
    let shard = Connection::open(shard_path(path, 0)).unwrap();
    shard.execute_batch("UPDATE stream_hash SET crc = crc + 1 WHERE sequence = 1000").unwrap();
    drop(shard);
    let expected = "the hash at event 1000 of stream 1024 does not match its checksum";
    assert!(verify(path).unwrap().to_string().contains(expected));
    assert!(open(&settings(path, 1, 1)).unwrap_err().to_string().contains(expected));
}

/// A reader that holds an old snapshot keeps the WAL from beginning anew: the status says so, nothing waits, and when the
/// reader ends all is as before.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_holds_the_wal_back_is_told_of() {
    let directory = tempfile::tempdir().unwrap();
    let mut settings = settings(directory.path(), 1, 1);
    settings.limits.checkpoint_pages = 100;
    let log = open(&settings).unwrap();
    store(&log, "p", 1, 10).await.unwrap();
    let trouble = || log.report().shards[0].reason.clone();
    let reader = open_reader(&shard_path(directory.path(), 0)).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM event").unwrap();
    let mut next = 11;
    let mut append = async || {
        assert_eq!(store(&log, "p", next, 2000).await.unwrap().stored, 2000);
        next += 2000;
    };
    while trouble().is_none() {
        append().await;
    }
    assert!(trouble().unwrap().contains("pages in its WAL"), "{:?}", trouble());
    assert_eq!(log.report().shards[0].state, "active");
    reader.execute_batch("COMMIT").unwrap();
    while trouble().is_some() {
        append().await;
    }
    log.close().unwrap();
}

/// A receipt that rotted while the log was open is found at the next start, although its stream went on.
#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_receipt_is_not_covered_up_by_the_next_one() {
    let directory = tempfile::tempdir().unwrap();
    let log = open(&settings(directory.path(), 1, 1)).unwrap();
    store(&log, "p", 1, 10).await.unwrap();
    let shard = Connection::open(shard_path(directory.path(), 0)).unwrap();
    shard.execute_batch("UPDATE receipt SET crc = crc + 1 WHERE stream = 1024").unwrap();
    drop(shard);
    store(&log, "p", 11, 10).await.unwrap();
    log.close().unwrap();
    let error = open(&settings(directory.path(), 1, 1)).unwrap_err().to_string();
    assert!(error.contains("receipt 1 to 10 of stream 1024 does not match its checksum"), "{error}");
}
