//! `kill -9` at random moments under load: what was acknowledged is stored, once, in order.
//!
//! Producers number their events and resend what was not acknowledged, in other batches, and now and then over a second
//! connection while the first try is in flight. The number of shards changes from start to start. `LOG_ROUNDS=200` for
//! the long form.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use e2e::daemon::{Answer, Daemon, post};
use e2e::log_files::check;
use e2e::random::{Random, seeds};
use serde_json::json;

const PRODUCERS: usize = 4;

/// Rounds on one data directory; each checks all of it.
const ROUNDS_PER_LOG: usize = 10;

/// Lets producers wait for the next start, and tells them when to end.
#[derive(Default)]
struct Gate {
    state: Mutex<GateState>,
    changed: Condvar,
}

#[derive(Default)]
struct GateState {
    starts: u64,
    waiting: usize,
    closed: bool,
}

impl Gate {
    fn state(&self) -> MutexGuard<'_, GateState> {
        self.state.lock().expect("nothing panics while it holds the gate")
    }

    /// The number of the present start; none if producers must end.
    fn starts(&self) -> Option<u64> {
        let state = self.state();
        (!state.closed).then_some(state.starts)
    }

    /// Waits for a start after number `known`.
    fn wait_for_start_after(&self, known: u64) {
        let mut state = self.state();
        state.waiting += 1;
        self.changed.notify_all();
        drop(self.changed.wait_while(state, |state| state.starts <= known && !state.closed).unwrap());
    }

    /// Waits until all producers wait.
    fn wait_for_producers(&self) {
        let more = |state: &mut GateState| state.waiting < PRODUCERS && !state.closed;
        let state = self.changed.wait_while(self.state(), more).unwrap();
        assert!(!state.closed, "a producer has given up");
    }

    fn open(&self) {
        let mut state = self.state();
        state.starts += 1;
        // Whoever has not yet woken does not wait for the next start.
        state.waiting = 0;
        drop(state);
        self.changed.notify_all();
    }
}

/// Ends everybody when the rounds are over, or when one panics.
struct Close<'a>(&'a Gate);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_all();
    }
}

struct Producer {
    name: String,
    acknowledged: AtomicU64,
}

fn body(producer: &str, first: u64, count: u64) -> String {
    let line = |number: u64| json!({"type": "T", "key": producer, "ts": number, "payload": {"number": number}});
    (first..first + count).map(|number| line(number).to_string() + "\n").collect()
}

/// Sends from the first number that is not acknowledged on, until the gate is closed.
fn produce(producer: &Producer, address: &str, mut random: Random, gate: &Gate) {
    let _close = Close(gate);
    while let Some(starts) = gate.starts() {
        let first = producer.acknowledged.load(Ordering::SeqCst) + 1;
        let count = random.within(1..=60);
        let (body, sequence) = (body(&producer.name, first, count), first.to_string());
        let headers = [("Ingest-Producer", producer.name.as_str()), ("Ingest-Sequence", sequence.as_str())];
        let tries = if random.chance(1, 4) { 2 } else { 1 };
        let answers: Vec<Result<Answer, String>> = std::thread::scope(|scope| {
            let tries: Vec<_> = (0..tries).map(|_| scope.spawn(|| post(address, &body, &headers))).collect();
            tries.into_iter().map(|a_try| a_try.join().unwrap()).collect()
        });
        let mut stored = 0;
        let mut acknowledged = false;
        for answer in answers.into_iter().flatten() {
            assert_eq!(answer.status, 200, "{} from {first}: {answer:?}", producer.name);
            let number = |field: &str| answer.body[field].as_u64().unwrap();
            stored += number("stored");
            assert_eq!(number("stored") + number("duplicates"), count, "{answer:?}");
            acknowledged = true;
        }
        assert!(stored <= count, "{} events from {first} on are stored {stored} times", producer.name);
        if acknowledged {
            producer.acknowledged.store(first + count - 1, Ordering::SeqCst);
        } else {
            gate.wait_for_start_after(starts);
        }
    }
}

/// Checks the files of a daemon that takes in nothing now.
fn check_files(daemon: &Daemon, producers: &[Producer]) {
    let horizon = daemon.status()["log"]["horizon"].as_u64().unwrap();
    let files = check(&daemon.data_directory(), Some(horizon)).unwrap_or_else(|error| panic!("{error}"));
    for producer in producers {
        let mut stored = 0;
        for row in files.stream(&producer.name) {
            stored += 1;
            let expected = (&producer.name, stored as i64, format!("{{\"number\":{stored}}}"));
            assert_eq!((&row.key, row.ts, row.payload.clone()), expected, "position {}", row.position);
        }
        let acknowledged = producer.acknowledged.load(Ordering::SeqCst);
        assert!(stored >= acknowledged, "{}: {acknowledged} acknowledged, {stored} stored (LOG-2)", producer.name);
    }
    let theirs = files.rows.iter().filter(|row| row.event_type == "T").count();
    let counted: usize = producers.iter().map(|producer| files.stream(&producer.name).count()).sum();
    assert_eq!(theirs, counted, "events that nobody sent");
    daemon.run(&["log", "verify"]);
}

fn rounds_on_one_log(seeds: &[u64]) {
    let mut daemon = Daemon::new(None, "");
    let producers: Vec<Producer> = (0..PRODUCERS)
        .map(|number| Producer { name: format!("producer-{number}"), acknowledged: AtomicU64::new(0) })
        .collect();
    let total = || producers.iter().map(|producer| producer.acknowledged.load(Ordering::SeqCst)).sum::<u64>();
    let (gate, address) = (Gate::default(), daemon.address());
    daemon.start();
    std::thread::scope(|scope| {
        let _close = Close(&gate);
        let first = seeds.first().copied().unwrap_or_default();
        let threads: Vec<_> = producers
            .iter()
            .zip(0..)
            .map(|(producer, number)| {
                let (gate, address) = (&gate, &address);
                scope.spawn(move || produce(producer, address, Random::new(first.wrapping_add(number)), gate))
            })
            .collect();
        for seed in seeds {
            let mut random = Random::new(*seed);
            let wanted = total() + random.within(1..=1500);
            while total() < wanted {
                assert!(threads.iter().all(|thread| !thread.is_finished()), "a producer has given up");
                std::thread::yield_now();
            }
            // A moment that no answer decides.
            let moment = Instant::now() + Duration::from_micros(random.within(0..=3000));
            while Instant::now() < moment {
                std::hint::spin_loop();
            }
            daemon.kill();
            gate.wait_for_producers();
            daemon.set_shards(random.within(1..=3), random.within(1..=4));
            daemon.start();
            check_files(&daemon, &producers);
            println!("kill -9, LOG_SEED={seed}: {} acknowledged, all stored", total());
            gate.open();
        }
    });
    assert!(daemon.stop().success());
}

#[test]
fn kill_9_under_load_loses_and_repeats_nothing() {
    for seeds in seeds(10).chunks(ROUNDS_PER_LOG) {
        rounds_on_one_log(seeds);
    }
}
