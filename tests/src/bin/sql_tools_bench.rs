//! Speed of the SQL tools as ratios within one run, on a throw-away cluster with the installed extension:
//! `cargo run -p e2e --bin sql_tools_bench [pairs [part]]`. Medians of pairs that are measured in turn, because a
//! machine that others use is fast and slow by turns.

use std::io::Write;
use std::time::Instant;

use e2e::cluster::Cluster;
use tokio_postgres::Client;

const ROWS: i64 = 300_000;

#[tokio::main]
async fn main() {
    let pairs: usize = std::env::args().nth(1).map_or(9, |pairs| pairs.parse().expect("the number of pairs"));
    // With fsync: how long a row stays locked is how long a commit takes.
    let cluster = Cluster::start_durable();
    cluster.create_database("bench");
    let client = cluster.connect("bench").await;
    client.batch_execute("SET max_parallel_workers_per_gather = 0; SET jit = off").await.expect("settings");
    let part = std::env::args().nth(2);
    let wanted = |name: &str| part.as_ref().is_none_or(|part| part == name);
    if wanted("pages") {
        pages(&client, pairs).await;
    }
    if wanted("bulk") {
        bulk_loads(&client, pairs).await;
    }
    if wanted("counters") {
        counters(&cluster, pairs);
    }
    if wanted("hashing") {
        hashing(&client, pairs).await;
    }
    if wanted("trigger") {
        trigger(&client, pairs).await;
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

async fn seconds(client: &Client, sql: &str) -> f64 {
    let start = Instant::now();
    client.batch_execute(sql).await.unwrap_or_else(|error| panic!("{sql}: {error}"));
    start.elapsed().as_secs_f64()
}

/// `lane_of` and `shard` per row against the built-in `hashtextextended`.
async fn hashing(client: &Client, pairs: usize) {
    for length in [8, 36, 128, 1024] {
        let table = format!(
            "DROP TABLE IF EXISTS keys; CREATE UNLOGGED TABLE keys (k text);
             INSERT INTO keys SELECT rpad(i || '-', {length}, 'abcdefgh') FROM generate_series(1, {}) AS i; VACUUM ANALYZE keys",
            if length > 200 { ROWS / 10 } else { ROWS }
        );
        for statement in table.split(';') {
            client.batch_execute(statement).await.expect("a table of keys");
        }
        for call in ["lane_of(k, 16)", "shard(k, 16)"] {
            let run = |call: &str| format!("SELECT count(*) FROM keys WHERE {call} = -1");
            let mut ratios = Vec::new();
            for _ in 0..pairs {
                let ours = seconds(client, &run(call)).await;
                let theirs = seconds(client, &run("hashtextextended(k, 0) % 16")).await;
                ratios.push(ours / theirs);
            }
            println!("{call} / hashtextextended(k, 0) % 16, keys of {length} bytes: {:.2}", median(ratios));
        }
    }
}

/// Page 10 000 against page 1, and against what OFFSET makes of it, by 50 rows over 16 row shards.
async fn pages(client: &Client, pairs: usize) {
    let table = "CREATE UNLOGGED TABLE feed (id bigint PRIMARY KEY, created timestamptz NOT NULL, note text);
        SELECT lanes.add_shard_column('feed', 'id', 16);
        INSERT INTO feed SELECT i, 'epoch'::timestamptz + i * 7919 % 100000 * interval '1 s', repeat('x', 40)
            FROM generate_series(1::bigint, 600000) AS i;
        CREATE INDEX ON feed (shard_id, created, id);
        CREATE INDEX ON feed (created, id);
        VACUUM ANALYZE feed";
    for statement in table.split(';') {
        client.batch_execute(statement).await.expect("a feed");
    }
    client.batch_execute("CALL lanes.backfill_shard_column('feed')").await.expect("checked and NOT NULL");
    let mut place: Option<String> = None;
    for rows in std::iter::repeat_n(10_000, 49).chain([9_950]) {
        let last =
            format!("SELECT cursor FROM lanes.page(NULL::feed, 'created', {rows}, cursor => $1) OFFSET {}", rows - 1);
        place = client.query_one(&last, &[&place]).await.expect("a page").get(0);
    }
    let place = place.expect("more rows follow");
    let plain = |offset: u32| format!("(SELECT f FROM feed AS f ORDER BY created, id LIMIT 50 OFFSET {offset}) AS p");
    let page = |cursor: &str| format!("lanes.page(NULL::feed, 'created', 50, cursor => {cursor})");
    let (first, deep) = (page("NULL"), page(&format!("'{place}'")));
    let (plain_first, plain_deep) = (plain(0), plain(499_950));
    let check =
        format!("SELECT array_agg((p.item).id) = (SELECT array_agg((p.f).id) FROM {plain_deep}) FROM {deep} AS p");
    assert!(client.query_one(&check, &[]).await.expect("both").get::<_, bool>(0), "the same 50 rows");
    for (what, ours, theirs, times) in [
        ("page 10 000 / page 1", &deep, &first, 100),
        ("OFFSET 499 950 / page 10 000", &plain_deep, &deep, 5),
        ("page 1 / LIMIT by an index without shards", &first, &plain_first, 100),
    ] {
        let run =
            |from: &str| format!("DO $$ BEGIN FOR i IN 1..{times} LOOP PERFORM count(*) FROM {from}; END LOOP; END $$");
        let mut ratios = Vec::new();
        for _ in 0..pairs {
            ratios.push(seconds(client, &run(ours)).await / seconds(client, &run(theirs)).await);
        }
        println!("{what}: {:.2}", median(ratios));
    }
}

/// A load of 25 000 rows against one of 5 000, of which each bumps one of three counters, once a statement and once a row.
async fn bulk_loads(client: &Client, pairs: usize) {
    client
        .batch_execute(
            "CREATE TABLE parcel (id bigint PRIMARY KEY, depot text NOT NULL, weight bigint NOT NULL);
             SELECT lanes.create_sharded_counter('depot_load', '{depot text}', '{parcels,weight}', shards => 8);
             CREATE FUNCTION tell() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM depot_load_add_many(array_agg(depot), array_agg(n), array_agg(w))
                 FROM (SELECT depot, count(*) AS n, sum(weight)::bigint AS w FROM fresh GROUP BY depot) AS s HAVING count(*) > 0;
                 RETURN NULL; END $$;
             CREATE FUNCTION tell_row() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM depot_load_add(NEW.depot, 1, NEW.weight); RETURN NULL; END $$",
        )
        .await
        .expect("a counter of parcels");
    for (form, trigger) in [
        ("once a statement", "REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tell()"),
        ("once a row", "FOR EACH ROW EXECUTE FUNCTION tell_row()"),
    ] {
        let create =
            format!("DROP TRIGGER IF EXISTS tell ON parcel; CREATE TRIGGER tell AFTER INSERT ON parcel {trigger}");
        client.batch_execute(&create).await.expect("a trigger");
        let mut ratios = Vec::new();
        for _ in 0..pairs {
            client.batch_execute("TRUNCATE parcel, depot_load").await.expect("empty");
            let load = |low: i32, high: i32| {
                format!(
                    "INSERT INTO parcel SELECT i, (ARRAY['A','B','C'])[i % 3 + 1], (i * 37) % 101
                     FROM generate_series({low}, {high}) AS i"
                )
            };
            let small = seconds(client, &load(1, 5_000)).await;
            ratios.push(seconds(client, &load(5_001, 30_000)).await / small);
        }
        println!("load of 25 000 rows / of 5 000, bumping {form}: {:.1}", median(ratios));
    }
}

/// A million inserts' worth of the shard column's trigger.
async fn trigger(client: &Client, pairs: usize) {
    client
        .batch_execute(
            "CREATE UNLOGGED TABLE plain (id bigint NOT NULL, filler text);
             CREATE UNLOGGED TABLE sharded (id bigint NOT NULL, filler text)",
        )
        .await
        .expect("two tables");
    client.batch_execute("SELECT lanes.add_shard_column('sharded', 'id', 16)").await.expect("a shard column");
    let mut ratios = Vec::new();
    for _ in 0..pairs {
        let insert = |table: &str| {
            format!("INSERT INTO {table} (id, filler) SELECT i, 'x' FROM generate_series(1, {ROWS}) AS i")
        };
        let ours = seconds(client, &insert("sharded")).await;
        let theirs = seconds(client, &insert("plain")).await;
        ratios.push(ours / theirs);
        client.batch_execute("TRUNCATE plain, sharded").await.expect("truncated");
    }
    println!("insert with a shard column / without: {:.2}", median(ratios));
}

/// Sixteen clients that add to one counter of 32 shards (process ids of 16 sessions seldom fill 16 evenly), against one row.
fn counters(cluster: &Cluster, pairs: usize) {
    cluster.psql(
        "bench",
        "CREATE TABLE one_row (post int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50);
         SELECT lanes.create_sharded_counter('likes', '{post int}', '{n}', shards => 32)",
    );
    let one_row = "INSERT INTO one_row AS c VALUES (1, 1) ON CONFLICT (post) DO UPDATE SET n = c.n + EXCLUDED.n;";
    let mut ratios = Vec::new();
    let (mut sharded_rates, mut one_row_rates) = (Vec::new(), Vec::new());
    for _ in 0..pairs {
        let sharded = transactions_per_second(cluster, "SELECT likes_add(1);");
        let single = transactions_per_second(cluster, one_row);
        ratios.push(sharded / single);
        sharded_rates.push(sharded);
        one_row_rates.push(single);
    }
    println!(
        "sharded counter / one row, 16 clients: {:.2} ({:.0}/s against {:.0}/s)",
        median(ratios),
        median(sharded_rates),
        median(one_row_rates)
    );
}

fn transactions_per_second(cluster: &Cluster, script: &str) -> f64 {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(script.as_bytes()).expect("written");
    let mut command = cluster.program("pgbench", "bench");
    let output = command
        .args(["-n", "-M", "prepared", "-c", "16", "-j", "2", "-T", "3", "-f"])
        .arg(file.path())
        .output()
        .expect("pgbench");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("tps = ")).unwrap_or_else(|| panic!("{output:?}"));
    line["tps = ".len()..].split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}
