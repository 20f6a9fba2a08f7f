//! The extension where one session and one database are not enough: encodings, dumps, drops, several sessions.

use std::collections::BTreeSet;
use std::process::Command;

use e2e::cluster::{Cluster, project, wait_until};
use tokio_postgres::error::{DbError, SqlState};
use tokio_postgres::{Client, Error, Row};

const LOG: &str = "00000000-0000-0000-0000-00000000000a";

/// A document with a projection of two lanes. Its event type is not ASCII.
const ORDERS: &str = r#"{"projections": {"orders": {
    "source_events": ["BESTELLUNG_GRÖßER"],
    "lanes": 2,
    "lane_key": "event.order_id",
    "target": {"table": "orders", "primary_key": ["order_id"]},
    "fields": {"order_id": "TEXT", "placed": "BIGINT"},
    "derive": {"order_id": "event.order_id"},
    "aggregates": {"BESTELLUNG_GRÖßER": {"placed": {"op": "count"}}}}}}"#;

/// A line of core/testdata/lane_v1.tsv.
struct Vector {
    key: &'static str,
    n: i32,
    lane: i32,
    consistent: i32,
    shard: i32,
}

fn text_vectors() -> Vec<Vector> {
    let lines = include_str!("../../core/testdata/lane_v1.tsv").lines();
    let fields = lines.map(|line| line.split('\t').collect::<Vec<_>>()).filter(|fields| fields[0] == "text");
    let vectors: Vec<_> = fields
        .map(|fields| {
            let number = |at: usize| fields[at].parse().unwrap();
            Vector { key: fields[1], n: number(3), lane: number(4), consistent: number(5), shard: number(6) }
        })
        .collect();
    assert!(vectors.len() > 50);
    vectors
}

fn vector(key: &str, n: i32) -> Vector {
    text_vectors().into_iter().find(|vector| vector.key == key && vector.n == n).unwrap()
}

/// Compares SQL's answers for text keys with the vectors.
async fn check_vectors(client: &Client, usable: impl Fn(&str) -> bool) {
    let statement = client
        .prepare("SELECT lane_of($1::text, $2), lane_of($1::text, $2, 'consistent'), shard($1::text, $2)")
        .await
        .unwrap();
    let vectors = text_vectors();
    for vector in vectors.iter().filter(|vector| usable(vector.key)) {
        let row = client.query_one(&statement, &[&vector.key, &vector.n]).await.unwrap();
        let answers: [i32; 3] = [row.get(0), row.get(1), row.get(2)];
        assert_eq!(answers, [vector.lane, vector.consistent, vector.shard], "{:?}, {}", vector.key, vector.n);
    }
    for key in ["ü", "Größe-ß"] {
        assert!(vectors.iter().any(|vector| vector.key == key) && usable(key));
    }
}

fn database_error(error: &Error) -> &DbError {
    error.as_db_error().unwrap_or_else(|| panic!("not an error of the server: {error}"))
}

/// Fails unless the result is an error with this code.
fn assert_code<T>(result: Result<T, Error>, code: &SqlState) {
    match result {
        Ok(_) => panic!("no error, {} expected", code.code()),
        Err(error) => assert_eq!(database_error(&error).code(), code, "{error:?}"),
    }
}

/// A cluster with a database `shop` in which `orders` is defined, reading [`LOG`].
fn shop() -> Cluster {
    let cluster = Cluster::start();
    cluster.create_database("shop");
    cluster.psql("shop", &format!("INSERT INTO lanes.log (log_id, horizon) VALUES ('{LOG}', 100)"));
    cluster.psql("shop", &format!("SELECT lanes.define('{ORDERS}')"));
    cluster
}

/// Claims a lane: lane, epoch and position.
async fn claim(client: &Client) -> Option<(i32, i64, i64)> {
    let rows = try_claim(client).await.unwrap();
    assert!(rows.len() <= 1);
    rows.first().map(|row| (row.get(0), row.get(1), row.get("position")))
}

async fn try_claim(client: &Client) -> Result<Vec<Row>, Error> {
    client.query(&format!("SELECT * FROM lanes.claim('orders', 'worker', '{LOG}')"), &[]).await
}

async fn begin_batch(client: &Client, lane: i32, epoch: i64) -> Result<i64, Error> {
    let sql = format!("SELECT \"position\" FROM lanes.begin_batch('orders', $1, $2, '{LOG}')");
    Ok(client.query_one(&sql, &[&lane, &epoch]).await?.get(0))
}

async fn commit_batch(client: &Client, lane: i32, epoch: i64, position: i64) -> Result<(), Error> {
    client.query_one("SELECT lanes.commit_batch('orders', $1, $2, $3)", &[&lane, &epoch, &position]).await.map(drop)
}

#[test]
fn a_fresh_database_gives_the_published_answers() {
    let cluster = Cluster::start();
    cluster.create_database("fresh");
    let (order, show) = (vector("order-42", 8), vector("s-99", 16));
    assert_eq!(
        cluster.psql("fresh", "SELECT lane_of('order-42', 8), shard('s-99', 16)"),
        format!("{}|{}", order.lane, show.shard)
    );
}

#[tokio::test]
async fn a_latin1_database_gives_the_utf8_vectors() {
    let cluster = Cluster::start();
    cluster.create_database_with("latin", "ENCODING 'LATIN1' TEMPLATE template0");
    cluster.psql("latin", "CREATE EXTENSION pg_lanes");
    let client = cluster.connect("latin").await;
    let row =
        client.query_one("SELECT current_setting('server_encoding'), octet_length('ü'::text)", &[]).await.unwrap();
    assert_eq!((row.get(0), row.get(1)), ("LATIN1", 1));
    check_vectors(&client, |key| key.chars().all(|character| u32::from(character) < 256)).await;

    // A message is in the database's encoding as well; what it cannot be sure to hold is escaped.
    let error = client.query_one("SELECT checkpoint_name('Größe', 0)", &[]).await.unwrap_err();
    assert_eq!(database_error(&error).message(), r#"projection name "Gr\u00f6\u00dfe" is not valid"#);

    // Documents go to core and come back.
    let row = client
        .query_one("SELECT name, definition = $1::text::jsonb -> 'projections' -> name FROM lanes.check_definition($1::text::jsonb)", &[&ORDERS])
        .await
        .unwrap();
    assert_eq!((row.get(0), row.get(1)), ("orders", true));
}

#[tokio::test]
async fn sql_ascii_takes_bytes_as_utf8_or_refuses_them() {
    let cluster = Cluster::start();
    cluster.create_database_with("bytes", "ENCODING 'SQL_ASCII' TEMPLATE template0");
    cluster.psql("bytes", "CREATE EXTENSION pg_lanes");
    let client = cluster.connect("bytes").await;
    check_vectors(&client, |_| true).await;
    for call in
        ["lane_of(t, 8)", "lane_of(t, 8, 'consistent')", "shard(t, 8)", "lane_of('x', 8, t)", "checkpoint_name(t, 0)"]
    {
        let sql = format!("SELECT {call} FROM convert_from('\\x61ff62', 'SQL_ASCII') AS t");
        let error = client.query_one(&sql, &[]).await.unwrap_err();
        let error = database_error(&error);
        assert_eq!(error.code(), &SqlState::CHARACTER_NOT_IN_REPERTOIRE, "{call}: {error:?}");
        let shown = format!("{} {:?} {:?}", error.message(), error.detail(), error.hint()).to_lowercase();
        assert!(!shown.contains("backtrace") && !shown.contains(".rs"), "{call}: {shown}");
        assert!(error.detail().is_none(), "{call}: {error:?}");
    }
    // The session goes on.
    assert_eq!(client.query_one("SELECT lane_of('a'::text, 1)", &[]).await.unwrap().get::<_, i32>(0), 0);
}

#[tokio::test]
async fn dump_and_restore_keeps_checkpoints_and_definitions() {
    let cluster = shop();
    let owner = cluster.connect("shop").await;
    let (lane, epoch, _) = claim(&owner).await.unwrap();
    owner.batch_execute("BEGIN").await.unwrap();
    begin_batch(&owner, lane, epoch).await.unwrap();
    commit_batch(&owner, lane, epoch, 77).await.unwrap();
    owner.batch_execute("COMMIT").await.unwrap();

    let dump = cluster.dump("shop");
    cluster.create_database_with("copy", "TEMPLATE template0");
    cluster.psql("copy", &dump);

    let contents =
        "SELECT l::text FROM lanes.log AS l ORDER BY 1; SELECT p::text FROM lanes.projection AS p ORDER BY 1;
        SELECT c::text FROM lanes.checkpoint AS c ORDER BY 1";
    let kept = cluster.psql("copy", contents);
    assert_eq!(kept, cluster.psql("shop", contents));
    assert_eq!(kept.lines().count(), 1 + 1 + 2, "{kept}");
    assert_eq!(
        cluster.psql("copy", "SELECT epoch, \"position\" FROM lanes.checkpoint WHERE \"position\" > 0"),
        format!("{epoch}|77")
    );

    // The row still names an owner, which is alive and holds its lock, but in the other database.
    let states = "SELECT string_agg(state, ',' ORDER BY lane) FROM lanes.status";
    assert_eq!(cluster.psql("shop", states), "running,unowned");
    assert_eq!(cluster.psql("copy", states), "unowned,unowned");

    // The copy works on.
    assert_eq!(cluster.psql("copy", &format!("SELECT * FROM lanes.define('{ORDERS}')")), "orders|f");
    let more = ORDERS.replace("orders", "more").replace("order_id", "id");
    assert_eq!(cluster.psql("copy", &format!("SELECT * FROM lanes.define('{more}')")), "more|t");
    let heir = cluster.connect("copy").await;
    let mut claimed = [claim(&heir).await.unwrap(), claim(&heir).await.unwrap()];
    claimed.sort_unstable();
    assert_eq!(claimed, [(lane, epoch + 1, 77), (1 - lane, 1, 0)]);
}

#[tokio::test]
async fn drop_extension_spares_user_rows() {
    let cluster = shop();
    let client = cluster.connect("shop").await;
    client
        .batch_execute(
            "CREATE TABLE orders (order_id text, bucket int, placed bigint, PRIMARY KEY (order_id, bucket));
             INSERT INTO orders SELECT 'o' || n, n % 2, n FROM generate_series(1, 10) AS n;
             CREATE INDEX orders_by_lane ON orders (lane_of(order_id, 8));
             SELECT lanes.create_sum_view('orders_total', 'orders', '{order_id}', '{placed}')",
        )
        .await
        .unwrap();
    assert_code(client.batch_execute("DROP EXTENSION pg_lanes").await, &SqlState::DEPENDENT_OBJECTS_STILL_EXIST);
    client.batch_execute("DROP EXTENSION pg_lanes CASCADE").await.unwrap();
    assert_eq!(cluster.psql("shop", "SELECT count(*), sum(placed) FROM orders"), "10|55");
    assert_eq!(cluster.psql("shop", "SELECT sum(placed) FROM orders_total"), "55");
    assert_eq!(
        cluster.psql("shop", "SELECT to_regclass('orders_by_lane') IS NULL, to_regnamespace('lanes') IS NULL"),
        "t|t"
    );
    // Nothing of the user's is in the way of a plain drop otherwise.
    client.batch_execute("CREATE EXTENSION pg_lanes; DROP EXTENSION pg_lanes").await.unwrap();
}

#[test]
fn exported_symbols_are_those_that_the_sql_declares() {
    let mut declared = BTreeSet::new();
    // A database that was not upgraded yet calls the symbols of its old script.
    let folders = ["sql/install", "sql/frozen", "sql/upgrade"].map(|folder| project().join(folder));
    for file in folders.iter().flat_map(|folder| std::fs::read_dir(folder).unwrap()) {
        let sql = std::fs::read_to_string(file.unwrap().path()).unwrap();
        for part in sql.split("'MODULE_PATHNAME', '").skip(1) {
            declared.insert(part.split('\'').next().unwrap().to_owned());
        }
    }
    assert!(declared.contains("lane_of_text_wrapper"));

    let pg_config = Command::new(project().join("scripts/find_pg_config")).output().unwrap().stdout;
    let pg_config = String::from_utf8(pg_config).unwrap();
    let directory = Command::new(pg_config.trim()).arg("--pkglibdir").output().unwrap().stdout;
    let library = format!("{}/pg_lanes.so", String::from_utf8(directory).unwrap().trim());
    let symbols =
        Command::new("nm").args(["-D", "--defined-only", "--format=just-symbols", &library]).output().unwrap();
    assert!(symbols.status.success(), "{symbols:?}");
    let symbols = String::from_utf8(symbols.stdout).unwrap();
    let exported = |prefix: &str| -> BTreeSet<String> {
        symbols.lines().filter_map(|symbol| symbol.strip_prefix(prefix)).map(str::to_owned).collect()
    };
    let functions: BTreeSet<String> = exported("")
        .into_iter()
        .filter(|symbol| symbol.ends_with("_wrapper") && !symbol.starts_with("pg_finfo_"))
        .collect();
    assert_eq!(functions, declared);
    // Postgres asks each for the version of its calling convention.
    assert_eq!(exported("pg_finfo_"), declared);
}

#[tokio::test]
async fn a_lane_has_one_owner() {
    let cluster = shop();
    let (first, second) = (cluster.connect("shop").await, cluster.connect("shop").await);
    let (lane, epoch, position) = claim(&first).await.unwrap();
    assert_eq!((lane, epoch, position), (0, 1, 0));
    assert_eq!(claim(&second).await, Some((1, 1, 0)));
    assert_eq!(claim(&second).await, None);
    assert_eq!(claim(&first).await, None);
    // Nobody else can release it.
    let released: bool = second.query_one("SELECT lanes.release('orders', 0, 1)", &[]).await.unwrap().get(0);
    assert!(!released);

    // When its session ends, the lane is free at once, without a release.
    drop(first);
    wait_until(&second, "SELECT state = 'unowned' FROM lanes.status WHERE lane = 0").await;
    let reason: String = second.query_one("SELECT reason FROM lanes.status WHERE lane = 0", &[]).await.unwrap().get(0);
    assert_eq!(reason, "the session of its last owner is gone");
    assert_eq!(claim(&second).await, Some((0, 2, 0)));
}

#[tokio::test]
async fn a_claim_that_is_rolled_back_is_no_claim() {
    let cluster = shop();
    let (first, second) = (cluster.connect("shop").await, cluster.connect("shop").await);

    first.batch_execute("BEGIN").await.unwrap();
    assert_eq!(claim(&first).await, Some((0, 1, 0)));
    assert_eq!(claim(&second).await, Some((1, 1, 0)));
    assert_eq!(claim(&second).await, None);
    first.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(claim(&second).await, Some((0, 1, 0)));
    second.batch_execute("SELECT lanes.release('orders', 0, 1)").await.unwrap();

    // Under a savepoint: given back as soon as that is rolled back, while the transaction goes on.
    first.batch_execute("BEGIN; SAVEPOINT s").await.unwrap();
    assert_eq!(claim(&first).await, Some((0, 2, 0)));
    first.batch_execute("ROLLBACK TO s").await.unwrap();
    assert_eq!(claim(&second).await, Some((0, 2, 0)));
    first.batch_execute("COMMIT").await.unwrap();

    // By an error, also one inside a function that catches it.
    second.batch_execute("SELECT lanes.release('orders', 0, 2)").await.unwrap();
    first
        .batch_execute(&format!(
            "DO $$ BEGIN PERFORM lanes.claim('orders', 'w', '{LOG}'); PERFORM 1 / 0;
             EXCEPTION WHEN division_by_zero THEN NULL; END $$"
        ))
        .await
        .unwrap();
    assert_eq!(claim(&second).await, Some((0, 3, 0)));

    // A release counts when it is committed, not before.
    second.batch_execute("BEGIN; SELECT lanes.release('orders', 0, 3)").await.unwrap();
    assert_eq!(claim(&first).await, None);
    second.batch_execute("ROLLBACK").await.unwrap();
    assert_eq!(claim(&first).await, None);
    second.batch_execute("SELECT lanes.release('orders', 0, 3)").await.unwrap();
    assert_eq!(claim(&first).await, Some((0, 4, 0)));
}

#[tokio::test]
async fn a_zombie_is_stopped_by_the_epoch() {
    let cluster = shop();
    let (zombie, heir) = (cluster.connect("shop").await, cluster.connect("shop").await);
    assert_eq!(claim(&zombie).await, Some((0, 1, 0)));
    assert_eq!(claim(&heir).await, Some((1, 1, 0)));

    // The owner's lock is lost (a pooler's DISCARD ALL does that) while it is in a batch.
    zombie.batch_execute("BEGIN").await.unwrap();
    assert_eq!(begin_batch(&zombie, 0, 1).await.unwrap(), 0);
    zombie.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    let heir_process: i32 = heir.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    let taking = tokio::spawn(async move { (claim(&heir).await, heir) });
    // The claim waits for the row lock, so the batch that holds it may still commit ...
    let watcher = cluster.connect("shop").await;
    wait_until(&watcher, &format!("SELECT cardinality(pg_blocking_pids({heir_process})) > 0")).await;
    commit_batch(&zombie, 0, 1, 7).await.unwrap();
    zombie.batch_execute("COMMIT").await.unwrap();
    // ... and the new owner begins where it ended.
    let (claimed, heir) = taking.await.unwrap();
    assert_eq!(claimed, Some((0, 2, 7)));

    // From now on the old owner is refused, before it can touch a row.
    zombie.batch_execute("BEGIN").await.unwrap();
    assert_code(begin_batch(&zombie, 0, 1).await, &SqlState::T_R_SERIALIZATION_FAILURE);
    zombie.batch_execute("ROLLBACK; BEGIN").await.unwrap();
    assert_code(commit_batch(&zombie, 0, 1, 9).await, &SqlState::T_R_SERIALIZATION_FAILURE);
    zombie.batch_execute("ROLLBACK").await.unwrap();
    let stop = zombie.batch_execute("SELECT lanes.stop_lane('orders', 0, 1, 'why')").await;
    assert_code(stop, &SqlState::T_R_SERIALIZATION_FAILURE);

    heir.batch_execute("BEGIN").await.unwrap();
    assert_eq!(begin_batch(&heir, 0, 2).await.unwrap(), 7);
    commit_batch(&heir, 0, 2, 8).await.unwrap();
    heir.batch_execute("COMMIT").await.unwrap();
}

#[tokio::test]
async fn a_crash_keeps_what_was_committed_and_frees_the_lanes() {
    let mut cluster = shop();
    let owner = cluster.connect("shop").await;
    assert_eq!(claim(&owner).await, Some((0, 1, 0)));
    owner.batch_execute("BEGIN").await.unwrap();
    begin_batch(&owner, 0, 1).await.unwrap();
    commit_batch(&owner, 0, 1, 5).await.unwrap();
    owner.batch_execute("COMMIT; BEGIN").await.unwrap();
    begin_batch(&owner, 0, 1).await.unwrap();
    commit_batch(&owner, 0, 1, 6).await.unwrap();
    cluster.crash();
    cluster.restart();
    let heir = cluster.connect("shop").await;
    assert_eq!(claim(&heir).await, Some((1, 1, 0)));
    assert_eq!(claim(&heir).await, Some((0, 2, 5)));
}

#[tokio::test]
async fn two_defines_at_once_agree() {
    let cluster = Cluster::start();
    cluster.create_database("shop");
    cluster.psql("shop", &format!("INSERT INTO lanes.log (log_id) VALUES ('{LOG}')"));
    let watcher = cluster.connect("shop").await;
    for (end, created) in [("ROLLBACK", true), ("COMMIT", false)] {
        cluster.psql("shop", "DELETE FROM lanes.projection");
        let (first, second) = (cluster.connect("shop").await, cluster.connect("shop").await);
        let process: i32 = second.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
        let define = format!("SELECT created FROM lanes.define('{ORDERS}')");
        first.batch_execute("BEGIN").await.unwrap();
        assert!(first.query_one(&define, &[]).await.unwrap().get::<_, bool>(0));
        let waiting = tokio::spawn(async move { second.query_one(&define, &[]).await });
        wait_until(&watcher, &format!("SELECT cardinality(pg_blocking_pids({process})) > 0")).await;
        first.batch_execute(end).await.unwrap();
        let answer: bool = waiting.await.unwrap().unwrap().get(0);
        assert_eq!(answer, created, "after {end}");
        assert_eq!(cluster.psql("shop", "SELECT count(*) FROM lanes.checkpoint"), "2");
    }
}
