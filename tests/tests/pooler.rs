//! Lanes behind PgBouncer in transaction mode: the session form is refused and leaves nothing behind, the transaction form
//! works, whoever is killed; and what becomes of lanes whose worker dies, with a word or without (LANE-1).

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use e2e::cluster::{Cluster, wait_until};
use e2e::pooler::Pooler;
use e2e::readings::{APPLIED, PythonWorker, Readings, set_up};
use tokio_postgres::error::SqlState;

const METERS: u64 = 200;
const EVENTS: u64 = 20_000;

/// psql as a process of its own that is told what to do, and can be stopped and killed.
struct Psql {
    process: Child,
    input: ChildStdin,
    lines: Receiver<String>,
}

impl Psql {
    fn start(mut command: Command) -> Psql {
        command.args(["-X", "-q", "-A", "-t", "-v", "VERBOSITY=sqlstate"]);
        // Errors are answers too, and come in order with the others.
        let (output, both) = std::io::pipe().unwrap();
        command.stdin(Stdio::piped()).stdout(both.try_clone().unwrap()).stderr(both);
        let mut process = command.spawn().expect("psql is there");
        // It holds the other ends of the pipe: when the process has gone, so must they.
        drop(command);
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                let _ = sender.send(line);
            }
        });
        let input = process.stdin.take().unwrap();
        Psql { process, input, lines }
    }

    /// Sends statements; does not wait. If psql is gone, [`Psql::line`] tells it.
    fn send(&mut self, sql: &str) {
        let _ = writeln!(self.input, "{sql}");
    }

    /// The next line that it prints. None: it is gone.
    fn line(&self) -> Option<String> {
        self.lines.recv().ok()
    }

    /// Sends statements and returns all that they print.
    fn ask(&mut self, sql: &str) -> Vec<String> {
        self.send(sql);
        self.send("\\echo done");
        std::iter::from_fn(|| self.line().filter(|line| line != "done")).collect()
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([&format!("-{name}"), &self.process.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Psql {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn advisory_locks(cluster: &Cluster) -> String {
    cluster.psql("c19", "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory'")
}

/// Runs one statement through the pooler, as a client of its own: what it prints, or its error.
fn once(cluster: &Cluster, pooler: &Pooler, sql: &str) -> Result<String, String> {
    let output = pooler.psql(cluster, "c19").args(["-c", sql]).output().unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap().trim_end().to_owned();
    if output.status.success() { Ok(text(output.stdout)) } else { Err(text(output.stderr)) }
}

#[test]
fn the_session_form_is_refused_and_leaves_nothing_behind() {
    let cluster = Cluster::start();
    set_up(&cluster, "c19");
    let pooler = Pooler::start(&cluster, "c19", 2);

    // What it is kept from: a lock that belongs to nobody. The client is gone, the connection and its lock are not.
    assert_eq!(once(&cluster, &pooler, "SELECT pg_try_advisory_lock(42)").unwrap(), "t");
    assert_eq!(advisory_locks(&cluster), "1");
    let mut holder = Psql::start(pooler.psql(&cluster, "c19"));
    assert_eq!(
        holder.ask("BEGIN; SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND pid = pg_backend_pid();"),
        ["1"]
    );
    assert_eq!(once(&cluster, &pooler, "SELECT pg_try_advisory_lock(42)").unwrap(), "f");
    assert_eq!(once(&cluster, &pooler, "SELECT pg_advisory_unlock(42)").unwrap(), "f");
    assert_eq!(advisory_locks(&cluster), "1");
    holder.ask("SELECT pg_advisory_unlock(42); COMMIT;");
    assert_eq!(advisory_locks(&cluster), "0");

    let refused = |worker: &str| {
        let error = once(&cluster, &pooler, &format!("SELECT lanes.claim('meters', '{worker}')")).unwrap_err();
        assert!(error.contains("55000") && error.contains("transaction pooler"), "{error}");
        assert!(error.contains("HINT") && error.contains("lanes.claim_batch"), "{error}");
    };
    refused("w1");
    assert_eq!(advisory_locks(&cluster), "0");
    // Both connections are used.
    holder.ask("BEGIN; SELECT 1;");
    for worker in 1..=8 {
        refused(&format!("w{worker}"));
        if worker == 4 {
            holder.ask("COMMIT;");
        }
    }
    assert_eq!(advisory_locks(&cluster), "0");
    assert_eq!(cluster.psql("c19", "SELECT count(*), count(owner), sum(epoch) FROM lanes.checkpoint"), "4|0|0");

    // A pooler that brings a name is not found out by `claim`. Its batches are, when they run in another session.
    let mut first = worker(&cluster, "postgres");
    assert_eq!(claim(&mut first, "w1", "30 s"), ["0|1"]);
    let log = cluster.psql("c19", "SELECT log_id FROM lanes.log");
    let mut second = cluster.program("psql", "c19");
    let begin = format!("SELECT lanes.begin_batch('meters', 0, 1, '{log}')");
    let second = second.args(["-X", "-v", "VERBOSITY=verbose", "-c", &begin]).output().unwrap();
    let error = String::from_utf8(second.stderr).unwrap();
    assert!(!second.status.success() && error.contains("40001") && error.contains("lanes.claim_batch"), "{error}");
}

/// The example's worker, twice as many processes as the pooler has connections, killed one after the other, while the number
/// of lanes changes and the pooler itself is killed.
#[tokio::test(flavor = "multi_thread")]
async fn workers_of_the_transaction_form_may_be_killed_at_any_time() {
    let cluster = Cluster::start();
    set_up(&cluster, "c19");
    let mut pooler = Pooler::start(&cluster, "c19", 4);
    let client = cluster.connect("c19").await;
    let string = pooler.connection_string("c19");
    let mut resizes = 0;

    let mut readings = Readings::default();
    for number in 0..EVENTS {
        readings.add(&format!("meter-{}", number % METERS), number * 7919 % 1000);
    }
    let append = |from: u64, to: u64| {
        let sql = format!(
            "INSERT INTO readings (type, key, payload)
             SELECT 'READ', 'meter-' || i % {METERS}, jsonb_build_object('meter', 'meter-' || i % {METERS},
                 'nr', i / {METERS} + 1, 'wh', i * 7919 % 1000)
             FROM generate_series({from}, {} - 1) AS i",
            to
        );
        cluster.psql("c19", &sql);
    };
    append(0, EVENTS / 2);
    let mut workers: Vec<_> = (0..8).map(|_| PythonWorker::start(&string)).collect();
    for (round, target) in (1..10).map(|round| round * EVENTS / 10).enumerate() {
        wait_until(&client, &format!("{APPLIED} >= {}", target - EVENTS / 10 + 1)).await;
        workers[round % 8].kill();
        workers[round % 8] = PythonWorker::start(&string);
        if round == 4 {
            append(EVENTS / 2, EVENTS);
        }
        if round == 6 {
            pooler = pooler.restart(&cluster, "c19", 4);
        }
        // One at a time: the one before may still wait.
        let resize = format!("SELECT lanes.resize('meters', {})", [8, 3, 5, 16, 2, 7, 4, 12, 6][round]);
        match client.execute(&resize, &[]).await {
            Ok(_) => resizes += 1,
            Err(error) => assert_eq!(error.code(), Some(&SqlState::OBJECT_NOT_IN_PREREQUISITE_STATE), "{error}"),
        }
    }
    wait_until(&client, &format!("{APPLIED} >= {EVENTS}")).await;
    wait_until(&client, "NOT EXISTS (SELECT FROM lanes.reshaping)").await;
    assert!(resizes > 1, "{resizes}");
    drop(workers);
    readings.assert_applied(&cluster, "c19");
    assert_eq!(
        cluster.psql("c19", "SELECT count(*), min(n), max(n), min(last), max(last), sum(wh) FROM meters"),
        "200|100|100|100|100|9990000"
    );
    wait_until(&client, "SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory'").await;
}

/// One that is stopped inside its batch loses the lane when Postgres ends the idle transaction, and changes nothing when it
/// wakes up. That takes the 60 s of the product with POOLER_WAITS_IN_FULL=1, else 2 s.
#[tokio::test(flavor = "multi_thread")]
async fn a_worker_that_was_stopped_inside_its_batch_changes_nothing_when_it_wakes_up() {
    let cluster = Cluster::start();
    set_up(&cluster, "c19");
    let pooler = Pooler::start(&cluster, "c19", 4);
    let client = cluster.connect("c19").await;
    let mut readings = Readings::default();
    cluster.psql(
        "c19",
        r#"INSERT INTO readings (type, key, payload) SELECT 'READ', 'meter-' || i, '{"nr": 1, "wh": 7}' FROM generate_series(1, 100) AS i;
           SELECT lanes.tick('readings')"#,
    );
    (1..=100).for_each(|number| readings.add(&format!("meter-{number}"), 7));

    let mut stopped = Psql::start(pooler.psql(&cluster, "c19"));
    let claimed = stopped.ask("BEGIN; SELECT lane, epoch FROM lanes.claim_batch('meters', 'stopped');");
    assert_eq!(claimed, ["0|1"]);
    let mut apply = "WITH applied AS (
             INSERT INTO meters SELECT event_key, 1, 7, 1 FROM lanes.read_batch('meters', 0) RETURNING 1)
         SELECT count(*) > 0 FROM applied;"
        .to_owned();
    if std::env::var_os("POOLER_WAITS_IN_FULL").is_none() {
        // Nothing is asked of the transaction any more, so that only its standing still can be too long.
        apply += " SET LOCAL idle_in_transaction_session_timeout = '2s';";
    }
    assert_eq!(stopped.ask(&apply), ["t"]);
    stopped.signal("STOP");

    let _workers: Vec<_> = (0..2).map(|_| PythonWorker::start(&pooler.connection_string("c19"))).collect();
    // The other lanes go on; this one is free when the server has ended its transaction.
    wait_until(
        &client,
        &format!("{APPLIED} >= (SELECT count(*) FROM readings WHERE lanes.lane_for('meters', key) <> 0)"),
    )
    .await;
    let deadline = Instant::now() + Duration::from_secs(120);
    while cluster.psql("c19", &format!("SELECT {APPLIED}")) != "100" {
        assert!(Instant::now() < deadline, "lane 0 was not taken over");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    readings.assert_applied(&cluster, "c19");

    stopped.signal("CONT");
    let answer = stopped.ask("SELECT lanes.commit_batch('meters', 0, 1); COMMIT;");
    assert!(answer.iter().any(|line| retryable(line)), "{answer:?}");
    readings.assert_applied(&cluster, "c19");
    let checkpoint = "SELECT count(*) FROM lanes.checkpoint WHERE owner IS NOT NULL OR (tick, position) <> (1, 100)";
    wait_until(&client, &format!("({checkpoint}) = 0")).await;
}

/// Whether a line of psql tells of an error after which a worker tries again.
fn retryable(line: &str) -> bool {
    let lost = [
        "server closed the connection",
        "connection to server was lost",
        "server conn crashed",
        "terminating connection",
    ];
    ["40001", "57P01", "25P03", "08P01", "08006"].iter().any(|code| line.contains(code))
        || lost.iter().any(|text| line.contains(text))
}

/// A session of its own, as a worker in the session form has it.
fn worker(cluster: &Cluster, user: &str) -> Psql {
    let mut command = cluster.program("psql", "c19");
    command.env("PGUSER", user);
    Psql::start(command)
}

fn claim(worker: &mut Psql, name: &str, lease: &str) -> Vec<String> {
    worker.ask(&format!("SELECT lane, epoch FROM lanes.claim('meters', '{name}', lease => '{lease}');"))
}

const STATES: &str = "SELECT string_agg(DISTINCT state || ' ' || COALESCE(owner, 'nobody'), ', ') FROM lanes.status";

#[tokio::test(flavor = "multi_thread")]
async fn lanes_of_a_dead_worker_are_taken_over() {
    let cluster = Cluster::start();
    set_up(&cluster, "c19");
    let client = cluster.connect("c19").await;
    let log = cluster.psql("c19", "SELECT log_id FROM lanes.log");
    let claim_all = |worker: &mut Psql, name: &str, lease: &str, epoch: u32| {
        let mut lanes: Vec<_> = (0..4).flat_map(|_| claim(worker, name, lease)).collect();
        lanes.sort();
        assert_eq!(lanes, (0..4).map(|lane| format!("{lane}|{epoch}")).collect::<Vec<_>>(), "{name}");
        assert!(claim(worker, name, lease).is_empty());
    };
    let append = |number: u32| {
        cluster.psql(
            "c19",
            &format!(
                r#"INSERT INTO readings (type, key, payload)
                   SELECT 'READ', 'meter-' || i, '{{"nr": {number}, "wh": 1}}' FROM generate_series(1, 40) AS i;
                   SELECT lanes.tick('readings')"#
            ),
        );
    };
    let batch = |lane: u32, epoch: u32| {
        format!(
            "BEGIN; SELECT tick FROM lanes.begin_batch('meters', {lane}, {epoch}, '{log}');
             INSERT INTO meters AS m SELECT event_key, 1, 1, (payload ->> 'nr')::int FROM lanes.read_batch('meters', {lane})
             ON CONFLICT (meter) DO UPDATE SET n = m.n + 1, wh = m.wh + 1, last = EXCLUDED.last;
             SELECT lanes.commit_batch('meters', {lane}, {epoch}); COMMIT;"
        )
    };

    // Killed: the server sees the closed socket, and the status names lanes without an owner until somebody comes.
    let mut first = worker(&cluster, "postgres");
    claim_all(&mut first, "first", "1 h", 1);
    assert_eq!(cluster.psql("c19", STATES), "running first");
    append(1);
    first.send(&batch(0, 1));
    wait_until(&client, "EXISTS (SELECT FROM meters)").await;
    first.kill();
    wait_until(&client, &format!("({STATES}) = 'unowned nobody'")).await;
    let reasons = cluster.psql("c19", "SELECT DISTINCT reason FROM lanes.status");
    assert_eq!(reasons, "the session of its last owner is gone");
    let mut second = worker(&cluster, "postgres");
    claim_all(&mut second, "second", "1 h", 2);

    // Silent: its lease runs out, and whoever may not end its session takes the lanes nevertheless.
    let short_leases = "UPDATE lanes.checkpoint SET lease = '1 s'";
    cluster.psql("c19", short_leases);
    second.signal("STOP");
    cluster.psql(
        "c19",
        "CREATE ROLE modest LOGIN;
         GRANT USAGE ON SCHEMA lanes TO modest;
         GRANT ALL ON ALL TABLES IN SCHEMA lanes, public TO modest;
         GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA lanes TO modest",
    );
    let free = "(SELECT bool_and(c.owner IS NULL OR lanes.lease_ran_out(c)) FROM lanes.checkpoint AS c)";
    wait_until(&client, free).await;
    let mut third = worker(&cluster, "modest");
    claim_all(&mut third, "third", "1 h", 3);
    assert_eq!(cluster.psql("c19", STATES), "running third");
    for lane in 0..4 {
        let answer = third.ask(&batch(lane, 3));
        assert!(!answer.iter().any(|line| line.contains("ERROR")), "{answer:?}");
    }
    append(2);
    second.signal("CONT");
    let answer = second.ask(&batch(0, 2));
    assert!(answer[0].contains("40001"), "{answer:?}");
    second.ask("ROLLBACK;");
    assert_eq!(second.ask("SELECT lanes.commit_batch('meters', 1, 2);").len(), 1);
    let ledger = "SELECT count(*), min(n), max(n), max(last) FROM meters";
    assert_eq!(cluster.psql("c19", ledger), "40|1|1|1");

    // Silent, and whoever takes over may end its session: it learns that with its next statement.
    cluster.psql("c19", short_leases);
    third.signal("STOP");
    wait_until(&client, free).await;
    let idle = "SELECT min(clock_timestamp() - state_change) > '1 s' FROM pg_stat_activity WHERE usename = 'modest'";
    wait_until(&client, idle).await;
    let mut fourth = worker(&cluster, "postgres");
    claim_all(&mut fourth, "fourth", "1 h", 4);
    wait_until(&client, "SELECT count(*) = 0 FROM pg_stat_activity WHERE usename = 'modest'").await;
    third.signal("CONT");
    let answer = third.ask(&batch(0, 3));
    assert!(answer.iter().any(|line| retryable(line)), "{answer:?}");
    for lane in 0..4 {
        let answer = fourth.ask(&batch(lane, 4));
        assert!(!answer.iter().any(|line| line.contains("ERROR")), "{answer:?}");
    }
    assert_eq!(cluster.psql("c19", ledger), "40|2|2|2");
    assert_eq!(cluster.psql("c19", "SELECT count(*) FROM disorder"), "0");
}
