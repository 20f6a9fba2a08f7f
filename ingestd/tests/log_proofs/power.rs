//! Power cuts and deaths of the process: in a start, under load, one after the other.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e::log_files;
use e2e::random::{Random, seeds};
use ingestd::log::open;
use ingestd::log::retention::{Hold, RetentionSettings};

use crate::support::disk::{Disk, Loss};
use crate::support::watchdog::watch;
use crate::support::world::{World, send, settings};

/// What ends a process.
#[derive(Debug, Clone, Copy)]
enum End {
    Kill,
    Power(Loss),
}

/// A start that ends at any of its operations: the next start works.
#[test]
fn a_start_that_is_cut_short_can_be_repeated() {
    for end in [End::Kill, End::Power(Loss::Lost), End::Power(Loss::Torn)] {
        let mut random = Random::new(1);
        for operations in 0.. {
            let _watchdog = watch(format!("a start that ends by {end:?} after {operations} operations"));
            let directory = tempfile::tempdir().unwrap();
            let disk = Disk::new(directory.path());
            disk.cut_power_after(operations);
            // Its first shard, and in the next start two more.
            let whole = match open(&settings(directory.path(), 1, 1, 100)) {
                Ok(log) => log.close().is_ok() && !disk.stop_cutting(),
                Err(_) => false,
            };
            match end {
                End::Kill => disk.restart_process(),
                End::Power(loss) => disk.lose_power(loss, &mut random),
            }
            let log = open(&settings(directory.path(), 1, 3, 100))
                .unwrap_or_else(|error| panic!("after {end:?} at operation {operations}: {error}"));
            send(&log, "a", 1, 300).blocking_recv().unwrap().unwrap();
            log.close().unwrap();
            assert_eq!(log_files::check(directory.path(), Some(300)).unwrap().stream("a").count(), 300);
            if whole {
                break;
            }
        }
    }
}

/// What a dead process wrote and did not sync is stored for the next one, which acknowledges its resend. A power cut
/// after that must not take it away (LOG-2).
#[test]
fn what_recovery_found_is_durable_before_it_is_acknowledged() {
    for seed in 1..=40 {
        let _watchdog = watch(format!("round {seed}"));
        let directory = tempfile::tempdir().unwrap();
        let disk = Disk::new(directory.path());
        let log = open(&settings(directory.path(), 2, 2, 100)).unwrap();
        for producer in ["a", "b"] {
            send(&log, producer, 1, 5).blocking_recv().unwrap().unwrap();
        }
        disk.cut_power_after(seed);
        let tries: Vec<_> =
            [("a", 6), ("b", 6), ("a", 11), ("b", 11)].map(|(name, first)| send(&log, name, first, 5)).into();
        // The process dies at the latest when it has stored everything.
        while !disk.power_is_off() && tries.iter().any(|reply| reply.is_empty()) {
            std::thread::yield_now();
        }
        disk.cut_power();
        let _ = log.close();
        disk.restart_process();

        let log = open(&settings(directory.path(), 2, 2, 100)).unwrap();
        let horizon = log.horizon().position();
        let kept = log_files::check(directory.path(), Some(horizon)).unwrap();
        let mut acknowledged = Vec::new();
        for producer in ["a", "b"] {
            let stored = kept.stream(producer).count() as u64;
            let ack = send(&log, producer, 1, stored).blocking_recv().unwrap().unwrap();
            assert_eq!((ack.stored, ack.duplicates), (0, stored));
            acknowledged.push((producer, stored));
        }
        disk.cut_power();
        let _ = log.close();
        disk.lose_power(Loss::Lost, &mut Random::new(seed));

        let log = open(&settings(directory.path(), 2, 2, 100)).unwrap();
        let after = log_files::check(directory.path(), Some(log.horizon().position())).unwrap();
        for (producer, stored) in acknowledged {
            let left = after.stream(producer).count() as u64;
            assert!(
                left >= stored,
                "round {seed}: of {stored} acknowledged events of {producer} {left} are left (LOG-2)"
            );
        }
        log.close().unwrap();
    }
}

/// The power goes at any moment while retention forgets a producer: it is known as far as it ever was, or not at all.
#[test]
fn a_producer_is_forgotten_whole_or_not_at_all() {
    const EVENTS: u64 = 1100;
    let mut outcomes = [0, 0];
    for operations in 0.. {
        let _watchdog = watch(format!("forgetting that ends after {operations} operations"));
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path();
        let disk = Disk::new(path);
        // One drain and three shards, so that the stream is spread over all.
        let mut log = open(&settings(path, 1, 3, 1000)).unwrap();
        send(&log, "a", 1, EVENTS).blocking_recv().unwrap().unwrap();
        let retention = Arc::new(Mutex::new(RetentionSettings {
            age: Duration::ZERO,
            maximum_bytes: None,
            interval: Duration::from_millis(1),
            delete_rows: 1000,
            producer_age: Duration::from_secs(1 << 30),
        }));
        log.start_retention(Arc::clone(&retention), Box::new(|| Hold::Nobody)).unwrap();
        while log_files::check(path, None).map_or(true, |files| !files.rows.is_empty()) {
            std::thread::yield_now();
        }
        disk.cut_power_after(operations);
        retention.lock().unwrap().producer_age = Duration::ZERO;
        while !disk.power_is_off() && log.registry().drain_of("a").is_some() {
            std::thread::yield_now();
        }
        let whole = log.registry().drain_of("a").is_none();
        disk.cut_power();
        let _ = log.close();
        disk.lose_power(Loss::Lost, &mut Random::new(operations));

        let log = open(&settings(path, 1, 3, 1000)).unwrap();
        let known = log.registry().drain_of("a").is_some();
        outcomes[usize::from(known)] += 1;
        assert!(!(whole && known), "it was forgotten, and comes back");
        let ack = send(&log, "a", 1, EVENTS).blocking_recv().unwrap().unwrap();
        let duplicates = if known { EVENTS } else { 0 };
        assert_eq!((ack.duplicates, ack.stored), (duplicates, EVENTS - duplicates), "after {operations} operations");
        log.close().unwrap();
        log_files::check(path, None).unwrap();
        if whole {
            break;
        }
    }
    assert!(outcomes[0] > 0 && outcomes[1] > 3, "{outcomes:?}: forgotten, known");
}

/// Rounds of load that a power cut ends at a random operation.
#[test]
fn power_cuts_under_load_lose_nothing_that_was_acknowledged() {
    for seed in seeds(20) {
        let mut world = World::new("power cut", seed);
        for _ in 0..6 {
            for _ in 0..world.random().within(0..=10) {
                world.append();
            }
            let operations = world.random().within(0..=120);
            world.lose_power_within(operations);
        }
        world.close_and_reopen();
        println!("power cut, LOG_SEED={seed}: nothing lost");
    }
}
