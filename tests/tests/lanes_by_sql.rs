//! The workers of `docs/LANES.md`, as they stand there: several processes share the lanes of an events table, without the
//! daemon, and apply every event once and in the order of its key (LANE-1 to LANE-4).

use std::sync::atomic::{AtomicBool, Ordering};

use e2e::cluster::{Cluster, wait_until};
use e2e::random::Random;
use e2e::readings::{APPLIED, PythonWorker, Readings, block, set_up, worker_grants, write};

const WRITERS: u64 = 4;

async fn write_at_once(cluster: &Cluster, database: &str, transactions: u64, seed: u64) -> Readings {
    let mut random = Random::new(seed);
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let client = cluster.connect(database).await;
        writers.push(tokio::spawn(write(client, writer, transactions, random.fork())));
    }
    let mut committed = Readings::default();
    for writer in writers {
        committed.extend(writer.await.unwrap());
    }
    committed
}

#[tokio::test(flavor = "multi_thread")]
async fn the_python_worker_of_the_docs_applies_every_event_once_and_in_order() {
    let cluster = Cluster::start();
    set_up(&cluster, "app");
    let client = cluster.connect("app").await;
    let string = cluster.connection_string("app");
    let mut workers: Vec<_> = (0..3).map(|_| PythonWorker::start(&string)).collect();
    let killing = async {
        for (number, worker) in workers.iter_mut().enumerate() {
            wait_until(&client, &format!("{APPLIED} > {}", 200 * number)).await;
            worker.kill();
            *worker = PythonWorker::start(&string);
        }
    };
    let (mut committed, ()) = tokio::join!(write_at_once(&cluster, "app", 100, 1), killing);
    wait_until(&client, &format!("{APPLIED} >= {}", committed.count())).await;
    committed.assert_applied(&cluster, "app");

    // What cannot be applied stops its own lane and no other, and keeps nothing of its batch.
    cluster.psql(
        "app",
        r#"INSERT INTO readings (type, key, payload) VALUES
               ('READ', 'poison', '{"nr": 1, "wh": 1}'), ('READ', 'poison', '{"nr": 2, "wh": "much"}');
           INSERT INTO readings (type, key, payload)
           SELECT 'READ', 'fresh-' || i, '{"nr": 1, "wh": 5}' FROM generate_series(1, 100) AS i"#,
    );
    let poisoned = "SELECT lanes.lane_for('meters', 'poison')";
    let others = cluster.psql(
        "app",
        &format!(
            "SELECT 'fresh-' || i FROM generate_series(1, 100) AS i WHERE lanes.lane_for('meters', 'fresh-' || i) <> ({poisoned})"
        ),
    );
    let others_count = others.lines().count();
    assert!((1..100).contains(&others_count), "{others}");
    let fresh = "(SELECT count(*) FROM meters WHERE meter LIKE 'fresh-%')";
    wait_until(&client, &format!("{fresh} = {others_count}")).await;
    // Its lane is tried again and again, and comes last each time.
    let tries = format!("(SELECT epoch FROM lanes.checkpoint WHERE lane = ({poisoned}))");
    let before = cluster.psql("app", &format!("SELECT {tries}"));
    wait_until(&client, &format!("{tries} > {before} + 2")).await;
    assert_eq!(cluster.psql("app", &format!("SELECT {fresh}")), others_count.to_string());
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM meters WHERE meter = 'poison'"), "0");

    // Once its cause is mended it goes on.
    cluster.psql("app", r#"UPDATE readings SET payload = '{"nr": 2, "wh": 2}' WHERE payload ->> 'wh' = 'much'"#);
    committed.add("poison", 1);
    committed.add("poison", 2);
    (1..=100).for_each(|number| committed.add(&format!("fresh-{number}"), 5));
    wait_until(&client, &format!("{APPLIED} >= {}", committed.count())).await;
    committed.assert_applied(&cluster, "app");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_sql_of_the_docs_applies_every_event_once_and_in_order() {
    let cluster = Cluster::start();
    set_up(&cluster, "app");
    let call = || cluster.psql("app", "CALL apply_meters()");
    cluster.psql("app", block("apply_meters.sql"));
    // An empty table is nothing to do.
    call();

    let written = AtomicBool::new(false);
    let mut committed = std::thread::scope(|scope| {
        for _ in 0..3 {
            // The last call of each begins after the last event.
            scope.spawn(|| {
                let mut last = false;
                while !last {
                    last = written.load(Ordering::Relaxed);
                    call();
                }
            });
        }
        let committed = tokio::task::block_in_place(|| {
            tokio::runtime::Handle::current().block_on(write_at_once(&cluster, "app", 100, 2))
        });
        written.store(true, Ordering::Relaxed);
        committed
    });
    // Whom another session's tick kept from ticking may have found nothing.
    call();
    committed.assert_applied(&cluster, "app");

    // The session form: one lane, one batch.
    append(&cluster, &mut committed, "session", 40, "now()");
    cluster.psql("app", "SELECT lanes.tick('readings')");
    let lane_rows = "SELECT lane, epoch, tick, position FROM lanes.checkpoint WHERE retired_at IS NULL ORDER BY lane";
    let moved = || {
        let before = cluster.psql("app", lane_rows);
        cluster.psql("app", block("session.sql"));
        let after = cluster.psql("app", lane_rows);
        before.lines().zip(after.lines()).filter(|(before, after)| before != after).count()
    };
    assert_eq!(moved(), 1);
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.checkpoint WHERE owner IS NOT NULL"), "0");

    // More lanes. Some have events waiting, so they are split where they stand.
    assert!(cluster.psql("app", block("resize.sql")).ends_with("\nt"));
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.status"), "8");
    call();
    committed.assert_applied(&cluster, "app");

    // What all lanes have read may be deleted; what one of them still has to read may not.
    append(&cluster, &mut committed, "read", 50, "now() - interval '31 days'");
    call();
    append(&cluster, &mut committed, "unread", 50, "now() - interval '31 days'");
    cluster.psql("app", "SELECT lanes.tick('readings')");
    assert_eq!(moved(), 1);
    cluster.psql("app", block("prune.sql"));
    let kept = "SELECT count(*) FILTER (WHERE key LIKE 'read-%'), count(*) FILTER (WHERE key LIKE 'unread-%'),
        count(*) FILTER (WHERE ts < now() - interval '30 days') FROM readings";
    assert_eq!(cluster.psql("app", kept), "0|50|50");
    call();
    committed.assert_applied(&cluster, "app");
    // Waiting for one's own event, and for one that is not there.
    cluster
        .psql("app", r#"INSERT INTO readings (type, key, payload) VALUES ('READ', 'meter-0-0', '{"nr": 0, "wh": 0}')"#);
    let wait = |timeout| {
        let position = "(SELECT max(position) FROM readings)";
        cluster.psql("app", &format!("SELECT lanes.wait_for('meters', 'meter-0-0', {position}, '{timeout}')"))
    };
    assert_eq!(wait("10 ms"), "f");
    call();
    assert_eq!(wait("1 min"), "t");
}

/// A worker with the grants that the docs name, and no more, ticks, applies, and changes the map when that is due; and so
/// does a role wait.
#[test]
fn the_grants_of_the_docs_are_enough() {
    let cluster = Cluster::start();
    set_up(&cluster, "app");
    cluster.psql("app", block("apply_meters.sql"));
    cluster.psql("app", "CREATE ROLE worker LOGIN; CREATE ROLE app LOGIN");
    cluster.psql("app", worker_grants());
    cluster
        .psql("app", "GRANT SELECT ON readings TO worker; GRANT SELECT, INSERT, UPDATE ON meters, disorder TO worker");
    cluster.psql("app", block("wait.sql"));
    let run_as = |user: &str, sql: &str| {
        let mut psql = cluster.program("psql", "app");
        let output = psql.env("PGUSER", user).args(["-X", "-q", "-A", "-t", "-c", sql]).output().unwrap();
        assert!(output.status.success(), "{user}: {}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap().trim_end().to_owned()
    };
    let mut committed = Readings::default();
    append(&cluster, &mut committed, "meter", 50, "now()");
    run_as("worker", "SELECT lanes.tick('readings')");
    cluster.psql("app", block("session.sql"));
    assert_eq!(cluster.psql("app", "SELECT lanes.resize('meters', 3)"), "f");
    run_as("worker", "CALL apply_meters()");
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.status"), "3");
    let lane = run_as("worker", "SELECT lane FROM lanes.claim('meters', 'w')");
    assert_eq!(lane.lines().count(), 1);
    assert_eq!(run_as("app", "SELECT lanes.wait_for('meters', 'meter-7', 7, '1 min')"), "t");
    committed.assert_applied(&cluster, "app");
}

/// Appends one reading each of `meters` new meters.
fn append(cluster: &Cluster, committed: &mut Readings, name: &str, meters: u32, time: &str) {
    cluster.psql(
        "app",
        &format!(
            r#"INSERT INTO readings (type, key, ts, payload)
               SELECT 'READ', '{name}-' || i, {time}, '{{"nr": 1, "wh": 3}}' FROM generate_series(1, {meters}) AS i"#
        ),
    );
    (1..=meters).for_each(|number| committed.add(&format!("{name}-{number}"), 3));
}
