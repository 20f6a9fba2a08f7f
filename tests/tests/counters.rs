//! Sharded counters under many sessions: nothing lost, nothing counted twice, no deadlock.

use std::io::Write;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use e2e::cluster::{Cluster, wait_until};
use tokio_postgres::Client;

fn shop() -> Cluster {
    let cluster = Cluster::start();
    cluster.create_database("shop");
    cluster
}

async fn deadlocks(client: &Client) -> i64 {
    client.batch_execute("SELECT pg_stat_force_next_flush()").await.unwrap();
    let query = "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()";
    client.query_one(query, &[]).await.unwrap().get(0)
}

/// Runs pgbench with one script and returns what it printed.
fn pgbench(cluster: &Cluster, script: &str, options: &[&str]) -> String {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(script.as_bytes()).unwrap();
    let mut command: Command = cluster.program("pgbench", "shop");
    let output = command.args(["-n", "-j", "2"]).args(options).arg("-f").arg(file.path()).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{text}");
    text
}

/// 8 sessions, 4 000 transactions with 20 different ids of 0..60 each, in an order of its own (61 is prime, so
/// (a·k + b) mod 61 never repeats an id). The totals were computed from this schedule alone, in Python.
const SCHEDULE: &str = "\\set i :i + 1
    \\set a 1 + mod(:client_id * 31 + :i * 17, 60)
    \\set b mod(:client_id * 5 + :i * 7, 61)
    BEGIN;
    INSERT INTO hit_ledger SELECT mod(:a * k + :b, 61) FROM generate_series(1, 20) AS k;
    ADD;
    COMMIT;\n";
const TOTALS: &str = "e3aa37c422601b93e9037fdb2ca913e6";

#[tokio::test]
async fn overlapping_batches_do_not_deadlock() {
    let cluster = shop();
    let client = cluster.connect("shop").await;
    for (round, shards) in [8, 1].into_iter().enumerate() {
        let setup = format!(
            "CREATE TABLE hit_ledger (segment_id int NOT NULL);
             SELECT lanes.create_sharded_counter('segment_hits', '{{segment_id int}}', '{{hits}}', shards => {shards})"
        );
        client.batch_execute(&setup).await.unwrap();
        let add = "SELECT segment_hits_add_many(array(SELECT mod(:a * k + :b, 61) FROM generate_series(1, 20) AS k))";
        let report = pgbench(
            &cluster,
            &SCHEDULE.replace("ADD", add),
            &["-c", "8", "-t", "500", "-D", "i=0", "--failures-detailed"],
        );
        assert!(report.contains("actually processed: 4000/4000"), "round {round}: {report}");
        assert_eq!(deadlocks(&client).await, 0);
        check_totals(&cluster);
        client.batch_execute("DROP TABLE hit_ledger; DROP TABLE segment_hits CASCADE").await.unwrap();
        client.batch_execute("DROP FUNCTION segment_hits_add, segment_hits_add_many").await.unwrap();
    }
}

fn check_totals(cluster: &Cluster) {
    let facts = cluster.psql(
        "shop",
        "SELECT count(*) FROM hit_ledger;
         SELECT count(*), min(hits), max(hits) FROM segment_hits_total;
         SELECT string_agg(hits::text, ' ' ORDER BY segment_id) FROM segment_hits_total WHERE segment_id IN (0, 1, 30, 60);
         SELECT md5(string_agg(segment_id || ':' || hits, ',' ORDER BY segment_id)) FROM segment_hits_total",
    );
    assert_eq!(facts, format!("80000\n61|1264|1354\n1307 1334 1292 1282\n{TOTALS}"));
}

/// Single adds in one transaction take their rows in the caller's order, so sessions that share a shard can deadlock
/// (docs/SQL_TOOLS.md). Postgres then ends one of them, and the batch that is tried again is counted once.
#[tokio::test]
async fn single_adds_that_deadlock_are_tried_again_and_lose_nothing() {
    let cluster = shop();
    let client = cluster.connect("shop").await;
    client
        .batch_execute(
            "CREATE TABLE hit_ledger (segment_id int NOT NULL);
             SELECT lanes.create_sharded_counter('segment_hits', '{segment_id int}', '{hits}', shards => 2);
             ALTER DATABASE shop SET deadlock_timeout = '20ms'",
        )
        .await
        .unwrap();
    let add = "SELECT count(segment_hits_add(mod(:a * k + :b, 61))) FROM generate_series(1, 20) AS k";
    let options = ["-c", "6", "-t", "20", "-D", "i=0", "--failures-detailed", "--max-tries=1000"];
    let report = pgbench(&cluster, &SCHEDULE.replace("ADD", add), &options);
    assert!(report.contains("actually processed: 120/120"), "{report}");
    let differences = "SELECT count(*), count(*) FILTER (WHERE hits IS DISTINCT FROM n)
        FROM (SELECT segment_id, count(*) AS n FROM hit_ledger GROUP BY segment_id) AS l
        FULL JOIN segment_hits_total AS t USING (segment_id)";
    assert_eq!(cluster.psql("shop", differences), "61|0");
    assert_eq!(cluster.psql("shop", "SELECT count(*) FROM hit_ledger"), "2400");
}

/// Sixteen writers, in each of the three ways to spread and with both functions, while cold keys are folded without a
/// pause (a key is cold as soon as nobody holds it).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn totals_are_exact_while_sixteen_write_and_one_compacts() {
    const WRITERS: i64 = 16;
    const ROUNDS: i64 = 150;
    const KEYS: i64 = 12;
    let cluster = shop();
    let client = cluster.connect("shop").await;
    client
        .batch_execute("SELECT lanes.create_sharded_counter('load', '{depot int}', '{parcels,weight}', shards => 4)")
        .await
        .unwrap();
    let removed = Arc::new(AtomicI64::new(0));
    let mut writers = Vec::new();
    for writer in 0..WRITERS {
        let (session, removed) = (cluster.connect("shop").await, Arc::clone(&removed));
        writers.push(tokio::spawn(async move {
            let add = session.prepare("SELECT load_add($1, $2, $3, $4)").await.unwrap();
            let add_many = session.prepare("SELECT load_add_many($1, $2, spread => $3)").await.unwrap();
            for round in 0..ROUNDS {
                // None writes faster than is folded.
                while removed.load(Ordering::SeqCst) < round {
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                let spread = (writer % 2 == 0).then(|| format!("{writer}-{round}"));
                let depot = ((writer + round) % KEYS) as i32;
                session.query(&add, &[&depot, &1i64, &-round, &spread]).await.unwrap();
                // All keys, beginning anywhere: 2 each.
                let depots: Vec<i32> = (0..KEYS).map(|key| ((key * 5 + writer + round) % KEYS) as i32).collect();
                session.query(&add_many, &[&depots, &vec![2i64; depots.len()], &spread]).await.unwrap();
            }
        }));
    }
    let compactor = cluster.connect("shop").await;
    let folded = Arc::clone(&removed);
    let compacting = tokio::spawn(async move {
        loop {
            let row = compactor
                .query_one("SELECT lanes.compact_counter('load', '0 s', 5), pg_stat_get_db_numbackends(oid) FROM pg_database WHERE datname = 'shop'", &[])
                .await
                .unwrap();
            folded.fetch_add(row.get::<_, i64>(0), Ordering::SeqCst);
            // This session and the watching one.
            if row.get::<_, i32>(1) <= 2 {
                return;
            }
        }
    });
    for writer in writers {
        writer.await.unwrap();
    }
    wait_until(&client, "SELECT pg_stat_get_db_numbackends(oid) <= 2 FROM pg_database WHERE datname = 'shop'").await;
    compacting.await.unwrap();
    assert!(removed.load(Ordering::SeqCst) >= ROUNDS - 1, "compaction had hardly anything to do: {removed:?}");

    let parcels = WRITERS * ROUNDS * (1 + 2 * KEYS);
    let weight = -WRITERS * ROUNDS * (ROUNDS - 1) / 2;
    let totals = "SELECT count(*), sum(parcels), sum(weight) FROM load_total";
    assert_eq!(cluster.psql("shop", totals), format!("{KEYS}|{parcels}|{weight}"));
    // Every depot had 2 of each call, and one of each (writer, round) that is its number modulo KEYS.
    let by_depot = cluster.psql("shop", "SELECT string_agg(parcels::text, ',' ORDER BY depot) FROM load_total");
    let expected: Vec<String> = (0..KEYS)
        .map(|depot| {
            let single = (0..WRITERS * ROUNDS).filter(|n| (n % WRITERS + n / WRITERS) % KEYS == depot).count() as i64;
            (2 * WRITERS * ROUNDS + single).to_string()
        })
        .collect();
    assert_eq!(by_depot, expected.join(","));
    assert_eq!(deadlocks(&client).await, 0);
    // With nobody writing, one row a key is left.
    client.batch_execute("SELECT lanes.compact_counter('load', '0 s')").await.unwrap();
    assert_eq!(cluster.psql("shop", "SELECT count(*) FROM load"), KEYS.to_string());
    assert_eq!(cluster.psql("shop", totals), format!("{KEYS}|{parcels}|{weight}"));
}

/// Compaction never waits: a key that somebody is writing is passed over, and what that one adds is kept.
#[tokio::test]
async fn compaction_passes_over_rows_that_are_locked() {
    let cluster = shop();
    let (writer, compactor) = (cluster.connect("shop").await, cluster.connect("shop").await);
    writer
        .batch_execute(
            "SELECT lanes.create_sharded_counter('likes', '{post int}', '{n}', shards => 8);
             SELECT likes_add(p, 1, s) FROM generate_series(1, 3) AS p, unnest('{u1,u2,u3}'::text[]) AS s",
        )
        .await
        .unwrap();
    writer.batch_execute("BEGIN; SELECT likes_add(2, 10, 'u1')").await.unwrap();
    compactor.batch_execute("SET lock_timeout = '1s'").await.unwrap();
    let row = compactor.query_one("SELECT lanes.compact_counter('likes', '0 s')", &[]).await.unwrap();
    // u1, u2, u3 are in shards 0, 5 and 1: two rows go of posts 1 and 3, and one of post 2, whose row 0 is locked.
    assert_eq!(row.get::<_, i64>(0), 2 + 2 + 1);
    writer.batch_execute("COMMIT").await.unwrap();
    assert_eq!(cluster.psql("shop", "SELECT string_agg(n::text, ',' ORDER BY post) FROM likes_total"), "3,13,3");

    // The other way round: what a writer adds to a row that is being folded away is a new row, not lost.
    compactor.batch_execute("BEGIN; SELECT lanes.compact_counter('likes', '0 s')").await.unwrap();
    let waiting = tokio::spawn(async move { writer.batch_execute("SELECT likes_add(2, 100, 'u3')").await });
    let watcher = cluster.connect("shop").await;
    wait_until(&watcher, "EXISTS (SELECT FROM pg_locks WHERE NOT granted)").await;
    compactor.batch_execute("COMMIT").await.unwrap();
    waiting.await.unwrap().unwrap();
    assert_eq!(cluster.psql("shop", "SELECT string_agg(n::text, ',' ORDER BY post) FROM likes_total"), "3,113,3");
}

/// Calls that chose their row and then waited for the table while the number of shards was lowered add to that row.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_that_wait_for_a_lower_number_of_shards_lose_nothing() {
    const SESSIONS: i64 = 5;
    let cluster = shop();
    let (owner, watcher) = (cluster.connect("shop").await, cluster.connect("shop").await);
    owner
        .batch_execute("SELECT lanes.create_sharded_counter('likes', '{post int}', '{n}', shards => 8)")
        .await
        .unwrap();
    owner.batch_execute("BEGIN; SELECT lanes.set_counter_shards('likes', 1)").await.unwrap();
    // u1 to u5 are in shards 0, 5, 1, 5 and 6.
    let mut adding = Vec::new();
    for session in 1..=SESSIONS {
        for add in ["likes_add(1, 10, $1)", "likes_add_many('{1,2}', '{100,1000}', $1)"] {
            let client = cluster.connect("shop").await;
            let statement = format!("SELECT {}", add.replace("$1", &format!("'u{session}'")));
            adding.push(tokio::spawn(async move { client.batch_execute(&statement).await }));
        }
    }
    let waiting = "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'likes'::regclass";
    wait_until(&watcher, &format!("({waiting}) = {}", 2 * SESSIONS)).await;
    owner.batch_execute("COMMIT").await.unwrap();
    for call in adding {
        call.await.unwrap().unwrap();
    }
    let totals = "SELECT string_agg(post || ' ' || n, ', ' ORDER BY post) FROM likes_total";
    let expected = format!("1 {}, 2 {}", SESSIONS * 110, SESSIONS * 1000);
    assert_eq!(cluster.psql("shop", totals), expected);
    let rows = "SELECT string_agg(shard_id::text, ',' ORDER BY shard_id) FROM likes WHERE post = 1";
    assert_eq!(cluster.psql("shop", rows), "0,1,5,6");
    // From now on there is one row a key, and the others are folded into it.
    cluster.psql("shop", "SELECT likes_add(3, 7, 'u2')");
    assert_eq!(cluster.psql("shop", "SELECT shard_id FROM likes WHERE post = 3"), "0");
    assert_eq!(cluster.psql("shop", "SELECT lanes.compact_counter('likes', '0 s')"), "6");
    assert_eq!(cluster.psql("shop", "SELECT count(*), max(shard_id) FROM likes"), "3|0");
    assert_eq!(cluster.psql("shop", totals), format!("{expected}, 3 7"));
}

/// Many bumps of one counter in one transaction: by a statement trigger there is one row version a statement and key.
#[test]
fn one_bump_a_statement_writes_few_versions() {
    let cluster = shop();
    let setup = "CREATE TABLE parcel (id bigint PRIMARY KEY, depot text NOT NULL, weight bigint NOT NULL);
        SELECT lanes.create_sharded_counter('depot_load', '{depot text}', '{parcels,weight}', shards => 8);
        CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM depot_load_add_many(array_agg(depot), array_agg(n), array_agg(w))
            FROM (SELECT depot, count(*) AS n, sum(weight)::bigint AS w FROM fresh GROUP BY depot) AS s HAVING count(*) > 0;
            RETURN NULL; END $$;
        CREATE TRIGGER tell AFTER INSERT ON parcel REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tell()";
    cluster.psql("shop", setup);
    let load = |low: i32, high: i32| {
        format!(
            "INSERT INTO parcel SELECT i, (ARRAY['A','B','C'])[i % 3 + 1], (i * 37) % 101 FROM generate_series({low}, {high}) AS i"
        )
    };
    let versions = "SELECT pg_stat_force_next_flush();
        SELECT sum(n_tup_ins + n_tup_upd) FROM pg_stat_user_tables WHERE relname LIKE 'depot\\_load%'";
    // Computed in Python from the same rows.
    let totals =
        "SELECT string_agg(depot || ' ' || parcels || ' ' || weight, ', ' ORDER BY depot) FROM depot_load_total";
    let expected = "A 10000 499960, B 10000 499987, C 10000 500024";

    cluster.psql("shop", &load(1, 5000));
    cluster.psql("shop", &load(5001, 30000));
    assert_eq!(cluster.psql("shop", totals), expected);
    let written: i64 = cluster.psql("shop", versions).trim().parse().unwrap();
    assert!(written <= 64, "{written} versions");

    // Ten transactions of 3 000.
    cluster.psql("shop", "TRUNCATE parcel, depot_load");
    for part in 0..10 {
        cluster.psql("shop", &load(part * 3000 + 1, (part + 1) * 3000));
    }
    assert_eq!(cluster.psql("shop", totals), expected);

    // The row form gives the same totals (and a version a row, which the docs warn of).
    cluster.psql(
        "shop",
        "TRUNCATE parcel, depot_load; DROP TRIGGER tell ON parcel;
         CREATE FUNCTION tell_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM depot_load_add(NEW.depot, 1, NEW.weight); RETURN NULL; END $$;
         CREATE TRIGGER tell_row AFTER INSERT ON parcel FOR EACH ROW EXECUTE FUNCTION tell_row()",
    );
    for part in 0..10 {
        cluster.psql("shop", &load(part * 3000 + 1, (part + 1) * 3000));
    }
    assert_eq!(cluster.psql("shop", totals), expected);
}

/// SQL-3: after DROP EXTENSION CASCADE every row is there, and so is the view.
#[test]
fn a_counter_outlives_the_extension() {
    let cluster = shop();
    cluster.psql("shop", "SELECT lanes.create_sharded_counter('likes', '{post int}', '{n}')");
    cluster.psql("shop", "SELECT count(likes_add(p)) FROM generate_series(1, 10) AS p, generate_series(1, 3)");
    let dump = cluster.dump("shop");
    cluster.psql("shop", "DROP EXTENSION pg_lanes");
    assert_eq!(cluster.psql("shop", "SELECT count(*), sum(n) FROM likes_total"), "10|30");
    cluster.psql("shop", "SELECT likes_add(1)");

    cluster.create_database_with("copy", "TEMPLATE template0");
    cluster.psql("copy", &dump);
    cluster.psql("copy", "SELECT likes_add(1), likes_add_many('{1,2}'); SELECT lanes.compact_counter('likes', '0 s')");
    assert_eq!(cluster.psql("copy", "SELECT count(*), sum(n) FROM likes_total"), "10|33");
}
