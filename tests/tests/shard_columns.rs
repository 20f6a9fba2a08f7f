//! A shard column on a table in use: writers go on through adding, filling, checking and dropping, whatever cuts off the
//! session or the server in between.

use std::io::Write;
use std::process::{Child, Stdio};
use std::time::Duration;

use e2e::cluster::{Cluster, wait_until};
use tempfile::NamedTempFile;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

/// Rows that are there from the beginning; the writers use these ids and twice as many.
const ROWS: i32 = 8_000;

/// Each transaction changes, in no order, rows that no other writer touches, and does the same to a twin without shard
/// column: so a deadlock can only come from the backfill, and twin and table must be equal whatever was cut off. Every
/// third transaction writes as a replica does, for which ordinary triggers do not fire.
const WRITER: &str = "\\set a :client_id + 4 * random(0, 3999)
    \\set b :client_id + 4 * random(0, 3999)
    \\set c :client_id + 4 * random(0, 3999)
    \\set amount random(1, 1000)
    \\set kind random(1, 3)
    BEGIN;
    \\if :kind = 1
    SET LOCAL session_replication_role = replica;
    \\endif
    UPDATE orders SET amount = :amount WHERE id = :a;
    UPDATE twin SET amount = :amount WHERE id = :a;
    UPDATE orders SET key = 'moved-' || :amount, shard_wish = 5 WHERE id = :b;
    UPDATE twin SET key = 'moved-' || :amount, shard_wish = 5 WHERE id = :b;
    \\if :amount % 2 = 0
    DELETE FROM orders WHERE id = :c;
    DELETE FROM twin WHERE id = :c;
    \\else
    INSERT INTO orders (id, key, amount) VALUES (:c, 'new-' || :amount, 0) ON CONFLICT (id) DO UPDATE SET amount = 7;
    INSERT INTO twin (id, key, amount) VALUES (:c, 'new-' || :amount, 0) ON CONFLICT (id) DO UPDATE SET amount = 7;
    \\endif
    UPDATE orders SET amount = amount + 1 WHERE id = :a;
    UPDATE twin SET amount = amount + 1 WHERE id = :a;
    COMMIT;\n";

/// Writers in the background, ended when dropped.
struct Writers {
    pgbench: Child,
    _script: NamedTempFile,
}

impl Writers {
    fn start(cluster: &Cluster) -> Writers {
        let mut script = NamedTempFile::new().unwrap();
        script.write_all(WRITER.as_bytes()).unwrap();
        let mut command = cluster.program("pgbench", "shop");
        command.args(["-n", "-c", "4", "-T", "3600", "-R", "400", "-f"]).arg(script.path());
        let pgbench = command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        Writers { pgbench, _script: script }
    }

    fn check_running(&mut self) {
        if self.pgbench.try_wait().unwrap().is_some() {
            let mut errors = String::new();
            std::io::Read::read_to_string(&mut self.pgbench.stderr.take().unwrap(), &mut errors).unwrap();
            panic!("the writers ended: {errors}");
        }
    }
}

impl Drop for Writers {
    fn drop(&mut self) {
        let _ = self.pgbench.kill();
        let _ = self.pgbench.wait();
    }
}

/// What cuts off the backfill.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Cut {
    Cancel,
    Terminate,
    KillServer,
}

/// Where it is cut off.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Phase {
    /// Adding the column, waiting for the table.
    AddWaits,
    /// The column is added, and its transaction not committed.
    Added,
    /// Among the first batches.
    Filling,
    /// Waiting for a row that somebody holds.
    SecondPass,
    /// Before the check is added.
    Adding,
    /// Before it is validated.
    Validating,
    /// Before NOT NULL.
    NotNull,
    /// Dropping the column, waiting for the table.
    DropWaits,
    /// The column is dropped, and its transaction not committed.
    Dropped,
}

impl Phase {
    /// What is running when it is cut off.
    fn statement(self) -> &'static str {
        match self {
            Phase::AddWaits => "SELECT lanes.add_shard_column('orders', 'key', 4, lock_timeout => '10 min')",
            Phase::Added => {
                "BEGIN; SELECT lanes.add_shard_column('orders', 'key', 4, lock_timeout => '10 min'); SELECT pg_sleep(3600)"
            }
            Phase::Filling => "CALL lanes.backfill_shard_column('orders', 5)",
            Phase::SecondPass | Phase::Adding | Phase::Validating | Phase::NotNull => {
                "CALL lanes.backfill_shard_column('orders', 500)"
            }
            Phase::DropWaits => "SELECT lanes.drop_shard_column('orders', lock_timeout => '10 min')",
            Phase::Dropped => {
                "BEGIN; SELECT lanes.drop_shard_column('orders', lock_timeout => '10 min'); SELECT pg_sleep(3600)"
            }
        }
    }

    /// The state that the table is in after the cut.
    fn state_after(self) -> &'static str {
        match self {
            Phase::AddWaits | Phase::Added => "none",
            Phase::Filling | Phase::SecondPass | Phase::Adding => "filling",
            Phase::Validating => "filled",
            Phase::NotNull => "checked",
            Phase::DropWaits | Phase::Dropped => "ready",
        }
    }
}

async fn state(client: &Client) -> String {
    let state = "SELECT COALESCE((SELECT state FROM lanes.shard_columns), 'none')";
    client.query_one(state, &[]).await.unwrap().get(0)
}

fn in_background(client: Client, statement: &'static str) -> JoinHandle<Result<(), Error>> {
    tokio::spawn(async move { client.batch_execute(statement).await })
}

async fn process_id(client: &Client) -> i32 {
    client.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0)
}

/// Calls a function of one step until no writer was in its way.
async fn until_locked(client: &Client, statement: &str) {
    loop {
        match client.batch_execute(statement).await {
            Ok(()) => return,
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => {}
            Err(error) => panic!("{statement}: {error:?}"),
        }
    }
}

/// The table is what its twin is, and every row that must have its shard has it.
fn check_rows(cluster: &Cluster, with_shard: bool) {
    let differences =
        "SELECT (SELECT count(*) FROM (TABLE only_here) AS h), (SELECT count(*) FROM (TABLE only_there) AS t)";
    let sql = format!(
        "WITH here AS (SELECT id, key, amount, shard_wish FROM orders), only_here AS (TABLE here EXCEPT ALL TABLE twin),
            only_there AS (TABLE twin EXCEPT ALL TABLE here) {differences}"
    );
    assert_eq!(cluster.psql("shop", &sql), "0|0");
    if with_shard {
        assert_eq!(
            cluster.psql("shop", "SELECT count(*) FROM orders WHERE shard_id IS DISTINCT FROM shard(key, 4)"),
            "0"
        );
    }
}

async fn cut_off_in(cluster: &mut Cluster, writers: &mut Option<Writers>, phase: Phase, cut: Cut) {
    let blocker = cluster.connect("shop").await;
    let watcher = cluster.connect("shop").await;
    let session = cluster.connect("shop").await;
    let process = process_id(&session).await;
    let block = match phase {
        Phase::Added | Phase::Dropped => "SELECT 1",
        // Between the rows of a batch and its commit, see `GATE`.
        Phase::Filling => "SELECT pg_advisory_lock(4711)",
        // No writer uses this row, and it is the last to be filled.
        Phase::SecondPass => "BEGIN; SELECT FROM orders WHERE id = -1 FOR UPDATE",
        Phase::AddWaits | Phase::Adding | Phase::NotNull | Phase::DropWaits => {
            "BEGIN; LOCK TABLE orders IN ACCESS SHARE MODE"
        }
        Phase::Validating => "BEGIN; LOCK TABLE orders IN SHARE UPDATE EXCLUSIVE MODE",
    };
    // The last steps are gone to by hand, so that it stops before the one that is meant.
    let before = match phase {
        Phase::Validating => "filled",
        Phase::NotNull => "checked",
        _ => "",
    };
    while !before.is_empty() && state(&watcher).await != before {
        watcher.batch_execute("SELECT lanes.check_shard_column('orders', 'shard_id')").await.unwrap();
    }
    blocker.batch_execute(block).await.unwrap();
    let running = in_background(session, phase.statement());
    let reached = match phase {
        Phase::Filling => format!(
            "EXISTS (SELECT FROM lanes.shard_columns WHERE rows_filled > 0)
             AND {} = ANY (pg_blocking_pids({process}))",
            process_id(&blocker).await
        ),
        Phase::SecondPass => format!(
            "EXISTS (SELECT FROM lanes.shard_backfill WHERE rows_skipped > 0) AND cardinality(pg_blocking_pids({process})) > 0"
        ),
        Phase::Added | Phase::Dropped => {
            format!("EXISTS (SELECT FROM pg_stat_activity WHERE pid = {process} AND wait_event = 'PgSleep')")
        }
        // It waits for the table's lock, and for the blocker, not for a writer.
        _ => format!(
            "EXISTS (SELECT FROM pg_locks WHERE pid = {process} AND NOT granted AND relation = 'orders'::regclass)
             AND {} = ANY (pg_blocking_pids({process}))",
            process_id(&blocker).await
        ),
    };
    wait_until(&watcher, &reached).await;
    if let Some(writers) = writers.as_mut() {
        writers.check_running();
    }
    match cut {
        Cut::Cancel => watcher.batch_execute(&format!("SELECT pg_cancel_backend({process})")).await.unwrap(),
        Cut::Terminate => watcher.batch_execute(&format!("SELECT pg_terminate_backend({process})")).await.unwrap(),
        Cut::KillServer => {
            *writers = None;
            cluster.kill();
        }
    }
    running.await.unwrap().expect_err("it was cut off");
    if cut == Cut::KillServer {
        cluster.restart();
        *writers = Some(Writers::start(cluster));
    }
    drop(blocker);
}

async fn cut_off_in_each(cluster: &mut Cluster, writers: &mut Option<Writers>, phases: &[Phase], cut: Cut) {
    for phase in phases {
        cut_off_in(cluster, writers, *phase, cut).await;
        let client = cluster.connect("shop").await;
        // A session that was killed in a transaction ends when it notices.
        wait_until(&client, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE wait_event = 'PgSleep')").await;
        assert_eq!(state(&client).await, phase.state_after(), "after {cut:?} in {phase:?}");
    }
}

/// Holds a backfill that has filled some rows for as long as somebody has the lock.
const GATE: &str = "
    CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
        PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;
    CREATE TRIGGER gate AFTER UPDATE ON lanes.shard_backfill FOR EACH ROW WHEN (NEW.rows_filled >= 50)
        EXECUTE FUNCTION gate()";

async fn run(cut: Cut) {
    let mut cluster = Cluster::start();
    cluster.create_database("shop");
    cluster.psql("shop", GATE);
    cluster.psql(
        "shop",
        &format!(
            "CREATE TABLE orders (id int PRIMARY KEY, key text NOT NULL, amount int NOT NULL, shard_wish int);
             INSERT INTO orders SELECT i, 'k' || i, 0 FROM generate_series(0, {ROWS}) AS i;
             INSERT INTO orders VALUES (-1, 'last', 0);
             CREATE TABLE twin (LIKE orders INCLUDING ALL);
             INSERT INTO twin TABLE orders"
        ),
    );
    let mut writers = Some(Writers::start(&cluster));
    let client = cluster.connect("shop").await;
    wait_until(&client, "EXISTS (SELECT FROM orders WHERE amount > 0)").await;

    // Adding: first against somebody who holds the table, then in peace.
    let blocker = cluster.connect("shop").await;
    blocker.batch_execute("BEGIN; LOCK TABLE orders IN ACCESS SHARE MODE").await.unwrap();
    let refused =
        client.batch_execute("SELECT lanes.add_shard_column('orders', 'key', 4, lock_timeout => '100 ms')").await;
    assert_eq!(refused.unwrap_err().code(), Some(&SqlState::LOCK_NOT_AVAILABLE));
    drop(blocker);
    drop(client);
    cut_off_in_each(&mut cluster, &mut writers, &[Phase::AddWaits, Phase::Added], cut).await;
    let client = cluster.connect("shop").await;
    until_locked(&client, "SELECT lanes.add_shard_column('orders', 'key', 4)").await;
    assert_eq!(state(&client).await, "added");
    drop(client);

    let phases = [Phase::Filling, Phase::SecondPass, Phase::Adding, Phase::Validating, Phase::NotNull];
    cut_off_in_each(&mut cluster, &mut writers, &phases, cut).await;
    let client = cluster.connect("shop").await;
    client.batch_execute("CALL lanes.backfill_shard_column('orders')").await.unwrap();
    assert_eq!(state(&client).await, "ready");
    writers.as_mut().unwrap().check_running();
    // A moment of writing on the finished table: some transactions more.
    let committed = "(SELECT xact_commit FROM pg_stat_database WHERE datname = 'shop')";
    let now: i64 = client.query_one(&format!("SELECT {committed}"), &[]).await.unwrap().get(0);
    wait_until(&client, &format!("pg_stat_clear_snapshot() IS NOT NULL AND {committed} > {now} + 100")).await;
    writers.as_mut().unwrap().check_running();
    drop(writers.take());
    // Sessions of writers that were killed in a transaction end when they notice.
    wait_until(&client, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgbench')").await;
    check_rows(&cluster, true);

    // Dropping, with writers.
    let mut writers = Some(Writers::start(&cluster));
    drop(client);
    cut_off_in_each(&mut cluster, &mut writers, &[Phase::DropWaits, Phase::Dropped], cut).await;
    let client = cluster.connect("shop").await;
    until_locked(&client, "SELECT lanes.drop_shard_column('orders')").await;
    writers.as_mut().unwrap().check_running();
    drop(writers);
    wait_until(&client, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'pgbench')").await;
    check_rows(&cluster, false);
    let left = "SELECT count(*) FROM pg_attribute WHERE attrelid = 'orders'::regclass AND attname = 'shard_id'";
    assert_eq!(cluster.psql("shop", left), "0");
    if cut != Cut::KillServer {
        let deadlocks = "SELECT deadlocks FROM pg_stat_database WHERE datname = 'shop'";
        assert_eq!(cluster.psql("shop", deadlocks), "0");
    }
}

async fn within_an_hour(cut: Cut) {
    tokio::time::timeout(Duration::from_secs(3600), run(cut)).await.expect("it ends in time");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backfill_that_is_cancelled_goes_on() {
    within_an_hour(Cut::Cancel).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backfill_whose_session_is_ended_goes_on() {
    within_an_hour(Cut::Terminate).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backfill_whose_server_is_killed_goes_on() {
    within_an_hour(Cut::KillServer).await;
}

/// A column that is dropped in the middle of its backfill: the two take the table and the row of `lanes.shard_backfill` in
/// the same order, so neither is a victim, and no row is left from which another backfill would go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropping_a_column_waits_for_the_batch_and_ends_the_backfill() {
    let cluster = Cluster::start();
    cluster.create_database("shop");
    cluster.psql(
        "shop",
        "CREATE TABLE orders (id int PRIMARY KEY, key text NOT NULL);
         INSERT INTO orders SELECT i, 'k' || i FROM generate_series(1, 2000) AS i;
         CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;
         CREATE TRIGGER gate AFTER UPDATE ON lanes.shard_backfill FOR EACH ROW EXECUTE FUNCTION gate()",
    );
    let watcher = cluster.connect("shop").await;
    // First a batch that begins again, since the table was rewritten: it writes its row before it reads the table. Then
    // the first batch of all, whose row nobody else sees before it ends.
    for before in ["SELECT lanes.fill_shard_batch('orders', 'shard_id', 100); VACUUM FULL orders", ""] {
        watcher.batch_execute("SELECT lanes.add_shard_column('orders', 'key', 4)").await.unwrap();
        for statement in before.split_terminator("; ") {
            watcher.batch_execute(statement).await.unwrap();
        }
        let gate = cluster.connect("shop").await;
        gate.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
        let (filler, dropper) = (cluster.connect("shop").await, cluster.connect("shop").await);
        let (filler_id, dropper_id) = (process_id(&filler).await, process_id(&dropper).await);
        let filling = in_background(filler, "CALL lanes.backfill_shard_column('orders', 100)");
        let gate_id = process_id(&gate).await;
        wait_until(&watcher, &format!("{gate_id} = ANY (pg_blocking_pids({filler_id}))")).await;
        let dropping = in_background(dropper, "SELECT lanes.drop_shard_column('orders', lock_timeout => '10 min')");
        wait_until(&watcher, &format!("{filler_id} = ANY (pg_blocking_pids({dropper_id}))")).await;
        gate.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();

        dropping.await.unwrap().expect("the column is dropped");
        let ended = filling.await.unwrap().expect_err("there is no column to fill any more");
        assert_eq!(ended.code(), Some(&SqlState::UNDEFINED_OBJECT), "{ended:?}");
        assert_eq!(cluster.psql("shop", "SELECT count(*) FROM lanes.shard_backfill"), "0");
    }
    // Added once more, it is filled from the first row on.
    cluster.psql("shop", "SELECT lanes.add_shard_column('orders', 'key', 4)");
    cluster.psql("shop", "SET client_min_messages = warning; CALL lanes.backfill_shard_column('orders')");
    assert_eq!(cluster.psql("shop", "SELECT count(*) FROM orders WHERE shard_id = shard(key, 4)"), "2000");
    assert_eq!(cluster.psql("shop", "SELECT deadlocks FROM pg_stat_database WHERE datname = 'shop'"), "0");
}

/// SQL-1 and SQL-3: a dump holds the column with its trigger and check, and after DROP EXTENSION CASCADE the rows and the
/// column are still there.
#[test]
fn a_shard_column_survives_dump_and_drop() {
    let cluster = Cluster::start();
    cluster.create_database("shop");
    cluster.psql(
        "shop",
        "CREATE TABLE done (id int PRIMARY KEY); INSERT INTO done SELECT generate_series(1, 100);
         CREATE TABLE half (id int PRIMARY KEY); INSERT INTO half SELECT generate_series(1, 100)",
    );
    cluster.psql("shop", "SELECT lanes.add_shard_column('done', 'id', 4), lanes.add_shard_column('half', 'id', 4)");
    cluster.psql("shop", "SET client_min_messages = warning; CALL lanes.backfill_shard_column('done')");
    cluster.psql("shop", "SELECT lanes.fill_shard_batch('half', 'shard_id', 10); INSERT INTO half VALUES (101)");

    cluster.create_database_with("copy", "TEMPLATE template0");
    cluster.psql("copy", &cluster.dump("shop"));
    let states = "SELECT string_agg(source || ' ' || state, ', ' ORDER BY source::text) FROM lanes.shard_columns";
    assert_eq!(cluster.psql("copy", states), "done ready, half added");
    cluster.psql("copy", "SET client_min_messages = warning; CALL lanes.backfill_shard_column('half')");
    cluster.psql("copy", "INSERT INTO half VALUES (102); INSERT INTO done VALUES (102)");
    let right = "SELECT count(*) FROM half JOIN done USING (id, shard_id) WHERE shard_id = shard(id, 4)";
    assert_eq!(cluster.psql("copy", right), "101");

    let refused = cluster.program("psql", "shop").args(["-X", "-q", "-c", "DROP EXTENSION pg_lanes"]).output().unwrap();
    assert!(!refused.status.success() && String::from_utf8_lossy(&refused.stderr).contains("depend"), "{refused:?}");
    cluster.psql("shop", "SET client_min_messages = warning; DROP EXTENSION pg_lanes CASCADE");
    assert_eq!(cluster.psql("shop", "SELECT count(*), count(shard_id) FROM done"), "100|100");
    assert_eq!(cluster.psql("shop", "SELECT count(*), count(shard_id) FROM half"), "101|11");
}
