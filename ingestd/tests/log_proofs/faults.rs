//! Every operation of a short scenario fails once; and a disk that is full, then not.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use e2e::log_files;
use e2e::random::Random;
use ingestd::log::drain::Ack;
use ingestd::log::retention::{Hold, RetentionSettings};
use ingestd::log::{Log, LogError, open};

use crate::support::disk::{Disk, Fault, Loss, Operation};
use crate::support::watchdog::watch;
use crate::support::world::{send, settings};

const PRODUCERS: [&str; 2] = ["a", "b"];

/// Scenarios at once: they mostly wait for a writer's next try.
const AT_ONCE: usize = 8;

/// What fails, and how the scenario ends.
#[derive(Debug, Clone, Copy)]
struct Plan {
    operations: &'static [Operation],
    full: bool,
    power_cut_at_the_end: bool,
}

/// Opens the log; a refusal must come from the fault, and the next start must work.
fn open_at_most_twice(directory: &Path, disk: &Disk, shards: u64) -> Log {
    let try_it = || -> Result<Log, LogError> { open(&settings(directory, 2, shards, 100)) };
    try_it().unwrap_or_else(|error| {
        assert!(disk.failed().is_some(), "refused without a fault: {error}");
        assert!(!error.to_string().contains('\n') && !error.to_string().is_empty(), "one line: {error}");
        try_it().unwrap_or_else(|again| panic!("after {error} also the next start fails: {again}"))
    })
}

/// Open, append from two producers, close, open with another shard, append. Returns what has failed, if anything.
fn scenario(number: u64, plan: Plan) -> Option<String> {
    let _watchdog = watch(format!("failure number {number} of {plan:?}"));
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let disk = Disk::new(path);
    disk.fail(Fault { operations: plan.operations, number, full: plan.full });
    let mut acknowledged = 0;
    let append = |log: &Log, acknowledged: &mut u64, requests: u64, count: u64| {
        for _ in 0..requests {
            let first = *acknowledged + 1;
            let replies = PRODUCERS.map(|producer| send(log, producer, first, count));
            *acknowledged += count;
            for reply in replies {
                // A writer tries again by itself, so every event is stored, once.
                let expected = Ok(Ack { stored: count, duplicates: 0, next_sequence: *acknowledged + 1 });
                assert_eq!(reply.blocking_recv().expect("it is answered"), expected);
            }
        }
    };

    let log = open_at_most_twice(path, &disk, 2);
    append(&log, &mut acknowledged, 2, 30);
    // Everything is acknowledged, so there is nothing that closing could fail to write.
    log.close().unwrap();
    log_files::check(path, Some(2 * acknowledged)).unwrap();
    let log = open_at_most_twice(path, &disk, 3);
    assert_eq!(log.horizon().position(), 2 * acknowledged);
    append(&log, &mut acknowledged, 2, 30);
    let failed = if plan.power_cut_at_the_end {
        let failed = disk.stop_failing();
        disk.cut_power();
        let _ = log.close();
        disk.lose_power(Loss::Lost, &mut Random::new(number));
        failed
    } else {
        log.close().unwrap();
        disk.stop_failing()
    };

    let log = open(&settings(path, 1, 1, 100)).unwrap();
    assert_eq!(log.horizon().position(), 2 * acknowledged);
    let files = log_files::check(path, Some(2 * acknowledged)).unwrap();
    for producer in PRODUCERS {
        assert_eq!(files.stream(producer).count() as u64, acknowledged, "{failed:?}");
        let expected = Ok(Ack { stored: 0, duplicates: acknowledged, next_sequence: acknowledged + 1 });
        assert_eq!(send(&log, producer, 1, acknowledged).blocking_recv().unwrap(), expected);
    }
    log.close().unwrap();
    failed
}

/// Runs the scenario for N = 1, 2, 3, … until nothing fails any more. Returns how many have failed.
fn fail_each(plan: Plan) -> u64 {
    let next = AtomicU64::new(1);
    let failures = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..AT_ONCE {
            scope.spawn(|| {
                loop {
                    let number = next.fetch_add(1, Ordering::SeqCst);
                    match scenario(number, plan) {
                        Some(_) => failures.fetch_add(1, Ordering::SeqCst),
                        None => break,
                    };
                }
            });
        }
    });
    failures.into_inner()
}

const ALL: &[Operation] = &[Operation::Open, Operation::Write, Operation::Sync, Operation::Truncate, Operation::Delete];

#[test]
fn each_operation_fails_once_with_an_input_output_error() {
    let failures = fail_each(Plan { operations: ALL, full: false, power_cut_at_the_end: false });
    println!("{failures} operations failed, one a run");
    assert!(failures >= 60, "the scenario has only {failures} operations");
}

/// What a failed sync should have covered is written again before it is acknowledged.
#[test]
fn each_write_and_sync_fails_once_and_the_power_goes_afterwards() {
    for operation in [&[Operation::Write][..], &[Operation::Sync]] {
        let failures = fail_each(Plan { operations: operation, full: false, power_cut_at_the_end: true });
        println!("{failures} times {operation:?} failed, one a run");
        assert!(failures >= 10, "the scenario has only {failures} of {operation:?}");
    }
}

#[test]
fn each_write_fails_once_because_the_disk_is_full() {
    let failures = fail_each(Plan { operations: &[Operation::Write], full: true, power_cut_at_the_end: false });
    println!("{failures} writes failed, one a run");
    assert!(failures >= 40, "the scenario has only {failures} writes");
}

/// The disk stays full for a while: nothing is acknowledged, the status says why; then there is room and all goes on.
#[test]
fn a_full_disk_makes_producers_wait_and_loses_nothing() {
    let _watchdog = watch("a full disk".to_owned());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let disk = Disk::new(path);
    let log = open(&settings(path, 2, 2, 100)).unwrap();
    for producer in PRODUCERS {
        send(&log, producer, 1, 100).blocking_recv().unwrap().unwrap();
    }
    disk.fill();
    let mut replies: Vec<_> = PRODUCERS.into_iter().map(|producer| send(&log, producer, 101, 100)).collect();
    // Each writer has been refused more than once.
    while disk.refused_for_room() < 4 || log.report().shards.iter().any(|shard| shard.state != "waiting") {
        std::thread::yield_now();
    }
    for shard in log.report().shards {
        let reason = shard.reason.unwrap_or_default();
        assert!(reason.contains("full"), "the status says why: {reason}");
    }
    assert!(replies.iter_mut().all(|reply| reply.try_recv().is_err()), "nothing is acknowledged");
    assert_eq!(log.horizon().position(), 200);

    disk.free();
    for reply in replies {
        let expected = Ok(Ack { stored: 100, duplicates: 0, next_sequence: 201 });
        assert_eq!(reply.blocking_recv().unwrap(), expected);
    }
    assert!(log.report().shards.iter().all(|shard| shard.state == "active" && shard.reason.is_none()));
    log.close().unwrap();
    let files = log_files::check(path, Some(400)).unwrap();
    assert!(PRODUCERS.iter().all(|producer| files.stream(producer).count() == 200));
}

/// On a disk that is down to its reserve, retention still deletes, and what it deletes is room for the writers that wait.
#[test]
fn retention_makes_room_on_a_disk_that_is_down_to_its_reserve() {
    let _watchdog = watch("retention on a full disk".to_owned());
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path();
    let log = open(&settings(path, 2, 2, 100)).unwrap();
    for producer in PRODUCERS {
        send(&log, producer, 1, 3000).blocking_recv().unwrap().unwrap();
    }
    log.close().unwrap();

    let mut settings = settings(path, 2, 2, 100);
    settings.limits.disk_reserve_bytes = u64::MAX;
    let mut log = open(&settings).unwrap();
    let replies = PRODUCERS.map(|producer| send(&log, producer, 3001, 100));
    while log.report().shards.iter().any(|shard| shard.state != "waiting") {
        std::thread::yield_now();
    }
    assert_eq!(log.horizon().position(), 6000);
    let retention = RetentionSettings {
        age: Duration::ZERO,
        maximum_bytes: None,
        interval: Duration::from_millis(10),
        delete_rows: 500,
        producer_age: Duration::from_secs(1 << 30),
    };
    log.start_retention(Arc::new(Mutex::new(retention)), Box::new(|| Hold::Above(6000))).unwrap();
    for reply in replies {
        assert_eq!(reply.blocking_recv().unwrap().unwrap().stored, 100);
    }
    log.close().unwrap();
    assert_eq!(log_files::check(path, Some(6200)).unwrap().floor, 6000);
}
