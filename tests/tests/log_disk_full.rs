//! A disk that is full, then not: acknowledgements stop, the status says why, the daemon lives; then all goes on.
//!
//! The disk is a small tmpfs. Where none may be mounted, this test says so and does nothing; a full disk in the process
//! is tested by `log_proofs` of package ingestd.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use e2e::daemon::{Daemon, post};
use e2e::log_files::check;
use e2e::small_disk::SmallDisk;
use serde_json::{Value, json};

const PRODUCERS: [&str; 2] = ["a", "b"];

/// Bytes of the disk.
const DISK: u64 = 12 << 20;

/// Bytes that stand in the way until there must be room.
const BALLAST: usize = 6 << 20;

/// Makes room and ends the producers, also when the test fails.
struct Free<'a> {
    ballast: &'a Path,
    stop: &'a AtomicBool,
}

impl Drop for Free<'_> {
    fn drop(&mut self) {
        let _ = fs::remove_file(self.ballast);
        self.stop.store(true, Ordering::SeqCst);
    }
}

fn body(producer: &str, first: u64, count: u64) -> String {
    let payload = "x".repeat(1000);
    let line = |number: u64| json!({"type": "T", "key": producer, "ts": number, "payload": {"text": payload}});
    (first..first + count).map(|number| line(number).to_string() + "\n").collect()
}

fn shards_are(status: &Value, state: &str) -> bool {
    status["log"]["shards"].as_array().is_some_and(|shards| shards.iter().all(|shard| shard["state"] == state))
}

/// Why shards wait.
fn waiting(status: &Value) -> Vec<String> {
    let shards = status["log"]["shards"].as_array().map_or(&[][..], Vec::as_slice);
    let reasons = shards.iter().filter(|shard| shard["state"] == "waiting");
    reasons.map(|shard| shard["reason"].as_str().unwrap_or_default().to_owned()).collect()
}

#[test]
fn a_full_disk_stops_acknowledgements_and_nothing_is_lost() {
    fill_and_free(0, "full");
}

#[test]
fn the_reserve_of_a_disk_stops_acknowledgements_before_it_is_full() {
    fill_and_free(2 << 20, "disk_reserve_bytes");
}

/// Posts the next 50 events of a producer, and counts them when they are acknowledged.
fn post_next(address: &str, producer: &str, acknowledged: &AtomicU64) {
    let first = acknowledged.load(Ordering::SeqCst) + 1;
    let sequence = first.to_string();
    let headers = [("Ingest-Producer", producer), ("Ingest-Sequence", sequence.as_str())];
    let answer = post(address, &body(producer, first, 50), &headers).expect("the daemon lives");
    assert_eq!((answer.status, &answer.body["stored"]), (200, &50.into()), "{answer:?}");
    acknowledged.store(first + 49, Ordering::SeqCst);
}

fn fill_and_free(reserve_bytes: u64, expected_reason: &str) {
    let settings = format!("drain_threads = 2\nstorage_shards = 2\ndisk_reserve_bytes = {reserve_bytes}");
    let mut daemon = Daemon::new(None, &settings);
    let _disk = match SmallDisk::mount(daemon.data_directory(), DISK) {
        Ok(disk) => disk,
        Err(reason) => {
            println!("skipped: a tmpfs cannot be mounted here: {reason}");
            return;
        }
    };
    daemon.expect_errors();
    let ballast = daemon.data_directory().join("ballast");
    fs::write(&ballast, vec![1; BALLAST]).unwrap();
    daemon.start();

    let acknowledged = [AtomicU64::new(0), AtomicU64::new(0)];
    let total = || acknowledged.iter().map(|number| number.load(Ordering::SeqCst)).sum::<u64>();
    let (stop, address) = (AtomicBool::new(false), daemon.address());
    std::thread::scope(|scope| {
        for (producer, acknowledged) in PRODUCERS.into_iter().zip(&acknowledged) {
            let (stop, address) = (&stop, &address);
            scope.spawn(move || {
                while !stop.load(Ordering::SeqCst) {
                    post_next(address, producer, acknowledged);
                }
            });
        }
        let _free = Free { ballast: &ballast, stop: &stop };
        // One shard that waits holds the horizon, so the other may never be written to again.
        let status = daemon.wait_for("waiting for room", |status| !waiting(status).is_empty());
        for reason in waiting(&status) {
            assert!(reason.contains(expected_reason), "the status says why: {reason}");
        }
        // What is acknowledged is at or below the horizon of any later moment.
        let before = total();
        let horizon = daemon.status()["log"]["horizon"].as_u64().unwrap();
        assert!(before > 0 && before <= horizon, "{before} acknowledged, horizon {horizon}");

        // Only what is under way comes now, so that nobody fills the disk again before this is seen.
        stop.store(true, Ordering::SeqCst);
        fs::remove_file(&ballast).unwrap();
        daemon.wait_for("storing again", |status| shards_are(status, "active"));
    });
    for (producer, acknowledged) in PRODUCERS.into_iter().zip(&acknowledged) {
        for _ in 0..4 {
            post_next(&address, producer, acknowledged);
        }
    }
    assert!(daemon.stop().success());

    daemon.start();
    let horizon = daemon.status()["log"]["horizon"].as_u64().unwrap();
    let files = check(&daemon.data_directory(), Some(horizon)).unwrap();
    for (producer, acknowledged) in PRODUCERS.into_iter().zip(&acknowledged) {
        assert_eq!(files.stream(producer).count() as u64, acknowledged.load(Ordering::SeqCst));
    }
    daemon.run(&["log", "verify"]);
    assert!(daemon.stop().success());
}
