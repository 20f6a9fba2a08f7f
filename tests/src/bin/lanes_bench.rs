//! What lanes cost and how fast they change hands, on a throw-away cluster with fsync and the installed extension:
//! `make bench-lanes`; `docs/BENCHMARKS.md` says what is measured. Argument: rounds of each part.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use e2e::cluster::Cluster;
use e2e::daemon::{Daemon, post};

/// Lanes of the projection whose number changes.
const FEW: u32 = 8;

/// Lanes of the projection that idles, and whose lanes are taken over.
const MANY: u32 = 64;

/// How long the idle daemon is watched.
const IDLE: Duration = Duration::from_secs(20);

fn main() {
    let rounds = std::env::args().nth(1).map_or(20, |rounds| rounds.parse().expect("the number of rounds"));
    resizes(rounds);
    take_overs(rounds.min(7));
    idle();
}

fn apply(daemon: &Daemon, lanes: u32) {
    let definition = format!(
        "projections:\n  meters:\n    source_events: [READ]\n    lanes: {lanes}\n    target: {{ table: public.meters, primary_key: [meter] }}\n    fields: {{ meter: TEXT, n: BIGINT }}\n    derive: {{ meter: event.key }}\n    aggregates: {{ READ: {{ n: {{ op: count }} }} }}\n"
    );
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, definition).expect("the directory is ours");
    daemon.run(&["apply", file.to_str().expect("the path is UTF-8")]);
}

/// Posts events until told to stop; gives how many.
fn load(address: String, over: &Arc<AtomicBool>) -> JoinHandle<u64> {
    let over = Arc::clone(over);
    thread::spawn(move || {
        let mut events = 0;
        while !over.load(Ordering::Relaxed) {
            let lines: String = (0..500)
                .map(|line| {
                    format!("{{\"type\":\"READ\",\"key\":\"meter-{}\",\"payload\":{{}}}}\n", (events + line) % 4999)
                })
                .collect();
            assert_eq!(post(&address, &lines, &[]).expect("the daemon answers").status, 200);
            events += 500;
        }
        events
    })
}

fn wait_until(cluster: &Cluster, condition: &str) {
    let deadline = Instant::now() + Duration::from_secs(120);
    while cluster.psql("bench", &format!("SELECT {condition}")) != "t" {
        assert!(Instant::now() < deadline, "still not true: {condition}");
        thread::sleep(Duration::from_millis(2));
    }
}

fn report(what: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let milliseconds = |time: Duration| time.as_secs_f64() * 1e3;
    println!(
        "{what:<56} p50 {:>7.1} ms  max {:>7.1} ms",
        milliseconds(times[times.len() / 2]),
        milliseconds(*times.last().expect("there are rounds"))
    );
}

/// From 8 lanes to 16 and back under load. Splits hold a lane up while the call runs; merges make lanes stop, from the call to
/// the change of the map. Both with the time that starting `psql` takes, which an empty statement tells.
fn resizes(rounds: usize) {
    let cluster = Cluster::start_durable();
    cluster.create_database("bench");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("bench")), "postgres_connections = 4");
    daemon.start();
    apply(&daemon, FEW);
    let over = Arc::new(AtomicBool::new(false));
    let load = load(daemon.address(), &over);
    wait_until(&cluster, "(SELECT bool_and(state = 'running' AND events > 0) FROM lanes.status)");
    let timed = |sql: &str| {
        let start = Instant::now();
        cluster.psql("bench", sql);
        start
    };
    let (mut splits, mut merges, mut nothing) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        nothing.push(timed("SELECT 1").elapsed());
        splits.push(timed(&format!("SELECT lanes.resize('meters', {})", 2 * FEW)).elapsed());
        wait_until(&cluster, "(SELECT bool_and(state = 'running' AND events > 0) FROM lanes.status)");
        let start = timed(&format!("SELECT lanes.resize('meters', {FEW})"));
        wait_until(&cluster, "NOT EXISTS (SELECT FROM lanes.reshaping)");
        merges.push(start.elapsed());
        wait_until(&cluster, "(SELECT bool_and(state = 'running') FROM lanes.status)");
    }
    over.store(true, Ordering::Relaxed);
    let events = load.join().expect("the load goes on to its end");
    wait_until(&cluster, &format!("(SELECT sum(n) FROM meters) = {events}"));
    report("nothing (starting psql)", nothing);
    report("resize from 8 lanes to 16 under load: the call", splits);
    report("resize from 16 lanes to 8 under load: call to change", merges);
}

/// Two daemons share the lanes of an events table; one is killed. How long until all its lanes have owners again.
fn take_overs(rounds: usize) {
    let cluster = Cluster::start_durable();
    cluster.create_database("bench");
    cluster.psql(
        "bench",
        "CREATE TABLE events (
             position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
             type text NOT NULL, key text NOT NULL, ts timestamptz NOT NULL DEFAULT now(), payload jsonb NOT NULL);
         SELECT lanes.register_log('events')",
    );
    let settings = "postgres_connections = 2";
    let connection = cluster.connection_string("bench");
    let (mut stays, mut dies) = (
        Daemon::on_table(&connection, "public.events", settings),
        Daemon::on_table(&connection, "public.events", settings),
    );
    stays.start();
    dies.start();
    apply(&stays, MANY);
    let mut times = Vec::new();
    for _ in 0..rounds {
        let shared = "(SELECT count(*) = 4 AND min(n) >= 4 FROM (
             SELECT count(*) AS n FROM lanes.status WHERE state = 'running' GROUP BY owner) AS s)";
        wait_until(&cluster, shared);
        let start = Instant::now();
        dies.kill();
        wait_until(
            &cluster,
            "(SELECT count(*) = 2 AND sum(n) = 64 FROM (
                 SELECT count(*) AS n FROM lanes.status WHERE state = 'running' GROUP BY owner) AS s)",
        );
        times.push(start.elapsed());
        dies.start();
    }
    report("64 lanes, one of two daemons killed: all owned again", times);
}

/// A projection with 64 lanes and nothing to do: what its daemon and its database are busy with.
fn idle() {
    let cluster = Cluster::start_durable();
    cluster.create_database("bench");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("bench")), "postgres_connections = 4");
    daemon.start();
    apply(&daemon, MANY);
    wait_until(&cluster, "(SELECT bool_and(state = 'running' AND lag = 0) FROM lanes.status)");
    // Counts of statements reach the statistics when a session has been idle for a while.
    let transactions = || -> i64 {
        cluster
            .psql("postgres", "SELECT xact_commit FROM pg_stat_database WHERE datname = 'bench'")
            .parse()
            .expect("a number")
    };
    thread::sleep(Duration::from_secs(5));
    let (before, busy) = (transactions(), daemon.cpu_time());
    thread::sleep(IDLE);
    let seconds = IDLE.as_secs_f64();
    println!(
        "idle, 64 lanes: transactions a second in Postgres        {:>7.1}",
        (transactions() - before) as f64 / seconds
    );
    println!(
        "idle, 64 lanes: the daemon's share of a core              {:>7.2} %",
        (daemon.cpu_time() - busy).as_secs_f64() / seconds * 100.0
    );
}
