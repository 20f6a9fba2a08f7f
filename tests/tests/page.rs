//! Pages over row shards against a plain ORDER BY of the same server: each row once and in order, whatever it is sorted by,
//! however rows are spread, whatever others write meanwhile, and for the price of a first page.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use e2e::cluster::{Cluster, wait_until};
use e2e::random::{Random, seeds};
use tokio_postgres::Client;
use tokio_postgres::error::SqlState;

/// Asks for page after page until there is no cursor, and returns the ids of each. Before each page `between` may change
/// what it likes.
async fn walk(client: &Client, call: &str, page_size: i32, mut between: impl AsyncFnMut()) -> Vec<Vec<i32>> {
    let sql = format!("SELECT (item).id, cursor FROM {}", call.replace("SIZE", &page_size.to_string()));
    let mut cursor: Option<String> = None;
    let mut pages = Vec::new();
    loop {
        between().await;
        // Prepared each time: settings may have changed what it is planned with.
        let rows = client.query(&sql, &[&cursor]).await.unwrap_or_else(|error| panic!("{sql}: {error:?}"));
        pages.push(rows.iter().map(|row| row.get(0)).collect());
        cursor = rows.last().and_then(|row| row.get(1));
        if cursor.is_none() {
            return pages;
        }
    }
}

async fn ids(client: &Client, table: &str, order: &str) -> Vec<i32> {
    let sql = format!("SELECT id FROM {table} ORDER BY {order}");
    client
        .query(&sql, &[])
        .await
        .unwrap_or_else(|error| panic!("{sql}: {error:?}"))
        .iter()
        .map(|row| row.get(0))
        .collect()
}

async fn shop(cluster: &Cluster) -> Client {
    cluster.create_database("shop");
    // Forbidden ways to scan a table are dear, and would have each statement compiled.
    cluster.psql("shop", "ALTER DATABASE shop SET jit = off; ALTER DATABASE shop SET client_min_messages = warning");
    cluster.connect("shop").await
}

/// Gives a table its shard column, and the index that pages in these orders want.
async fn shard(client: &Client, table: &str, orders: &[&str]) {
    client.batch_execute(&format!("SELECT lanes.add_shard_column('{table}', 'id', 4)")).await.unwrap();
    client.batch_execute(&format!("CALL lanes.backfill_shard_column('{table}', 100)")).await.unwrap();
    for order in orders {
        let index = client.query_one(&format!("SELECT lanes.page_index(NULL::{table}, $1)"), &[order]).await.unwrap();
        client.batch_execute(index.get(0)).await.unwrap();
    }
    client.batch_execute(&format!("ANALYZE {table}")).await.unwrap();
}

/// Case 15. The ids were computed in Python.
#[tokio::test]
async fn pages_go_across_the_edge_of_nulls() {
    const ORDERS: [(&str, &str); 7] = [
        ("started asc nulls last, id", "11 22 19 16 2 21 7 4 1 12 9 6 17 14 3 5 8 10 13 15 18 20 23"),
        ("started desc nulls first, id", "3 5 8 10 13 15 18 20 23 14 6 17 9 1 12 4 7 21 2 16 19 11 22"),
        ("started asc nulls first, id", "3 5 8 10 13 15 18 20 23 11 22 19 16 2 21 7 4 1 12 9 6 17 14"),
        ("started desc nulls last, id", "14 6 17 9 1 12 4 7 21 2 16 19 11 22 3 5 8 10 13 15 18 20 23"),
        (
            "started desc nulls last, name asc nulls first, id",
            "14 6 17 9 12 1 4 7 21 2 16 19 22 11 8 20 3 15 18 10 13 5 23",
        ),
        ("started asc", "11 22 19 16 2 21 7 4 1 12 9 6 17 14 3 5 8 10 13 15 18 20 23"),
        ("started desc, id asc", "3 5 8 10 13 15 18 20 23 14 6 17 9 1 12 4 7 21 2 16 19 11 22"),
    ];
    let cluster = Cluster::start();
    let client = shop(&cluster).await;
    client
        .batch_execute(
            "CREATE TABLE runs (id int PRIMARY KEY, started int, name text);
             INSERT INTO runs SELECT i, CASE WHEN i % 5 IN (0, 3) THEN NULL ELSE (i * 7) % 11 END,
                 CASE WHEN i % 4 = 0 THEN NULL ELSE 'n' || (i % 3) END FROM generate_series(1, 23) i",
        )
        .await
        .unwrap();
    shard(&client, "runs", &["started", "started nulls first"]).await;
    let spread = "SELECT string_agg(n::text, ',' ORDER BY shard_id) FROM (SELECT shard_id, count(*) AS n FROM runs GROUP BY 1) AS s";
    assert_eq!(cluster.psql("shop", spread), "10,5,3,5");
    for (order, expected) in ORDERS {
        let expected: Vec<i32> = expected.split(' ').map(|id| id.parse().unwrap()).collect();
        for page_size in [4, 1, 22, 23, 24] {
            for filter in ["NULL", "'[[\"id\", \">\", 0]]'"] {
                let call = format!("lanes.page(NULL::runs, '{order}', SIZE, {filter}, $1)");
                let pages = walk(&client, &call, page_size, async || {}).await;
                assert_eq!(pages.len(), 23usize.div_ceil(page_size as usize), "{call}, {page_size}");
                assert!(pages[..pages.len() - 1].iter().all(|page| page.len() == page_size as usize));
                assert_eq!(pages.concat(), expected, "{call}, {page_size}");
            }
        }
    }
    // Backwards is the order with every term turned round.
    let backwards =
        walk(&client, "lanes.page(NULL::runs, 'started desc nulls first, id desc', SIZE, NULL, $1)", 4, async || {});
    let backwards: Vec<i32> = backwards.await.concat().into_iter().rev().collect();
    assert_eq!(
        backwards,
        walk(&client, "lanes.page(NULL::runs, 'started', SIZE, NULL, $1)", 4, async || {}).await.concat()
    );
}

/// Case 17. Versions of ICU differ in their order, so the same server says what is right.
#[tokio::test]
async fn a_page_is_cut_by_the_collation_that_sorts_it() {
    let cluster = Cluster::start();
    let client = shop(&cluster).await;
    client
        .batch_execute(
            "CREATE COLLATION ci (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
             CREATE TABLE names (id int PRIMARY KEY, name text COLLATE \"en-x-icu\" NOT NULL, folded text COLLATE ci NOT NULL);
             INSERT INTO names SELECT i, n, n FROM unnest(ARRAY['a_z','ab','aB','AB','a b','a-b','ä','az','Za','_x','x_','ß','ss',
                 'SS','résumé','resume','Resume','ı','I','i','10','9','2','',' ','é', E'e\\u0301', 'a_b', 'A_Z', 'o''k', 'ok', 'O-K'])
                 WITH ORDINALITY AS t (n, i)",
        )
        .await
        .unwrap();
    shard(&client, "names", &["name", "folded"]).await;
    let unique = client.batch_execute("CREATE UNIQUE INDEX ON names (folded)").await.unwrap_err();
    assert_eq!(unique.code(), Some(&SqlState::UNIQUE_VIOLATION));
    for (order, plain) in [
        ("name, id", "name, id"),
        ("name collate \"C\", id", "name COLLATE \"C\", id"),
        ("folded, id", "folded, id"),
        ("folded desc, id desc", "folded DESC, id DESC"),
        // Equal names are told apart by the key, which is added.
        ("folded", "folded, id"),
        ("folded desc", "folded DESC, id DESC"),
        ("folded collate \"C\", name", "folded COLLATE \"C\", name, id"),
        ("name collate ci desc", "name COLLATE ci DESC, id DESC"),
    ] {
        let expected = ids(&client, "names", plain).await;
        for page_size in [1, 3, 5, 32] {
            let call = format!("lanes.page(NULL::names, '{order}', SIZE, cursor => $1)");
            assert_eq!(walk(&client, &call, page_size, async || {}).await.concat(), expected, "{order}, {page_size}");
        }
    }
    let refused =
        client.query("SELECT * FROM lanes.page(NULL::names, 'lower(name) collate \"en-x-icu\", id')", &[]).await;
    assert_eq!(refused.unwrap_err().code(), Some(&SqlState::INVALID_PARAMETER_VALUE));
}

/// Columns of many types with few values each, so that most rows tie, and with every value that is hard to write down.
const COLUMNS: [(&str, &str, &[&str]); 18] = [
    ("i", "int", &["0", "-2147483648", "2147483647"]),
    ("l", "bigint", &["9007199254740993", "9007199254740992", "-1"]),
    ("f", "double precision", &["0.1", "'-0'", "0.30000000000000004", "'infinity'", "'-infinity'", "'nan'", "5e-324"]),
    ("r", "real", &["0.1", "16777217", "1e-40"]),
    ("n", "numeric", &["1", "1.0", "'nan'", "'infinity'", "12345678901234567890.123456789", "1e-30"]),
    ("p", "price", &["1", "1.10", "99999999.99"]),
    ("t", "text", &["''", "' '", "'a'", "'Größe €'", "E'tab\\tand ''quote'' \\\\'", "repeat('ü', 500)"]),
    ("c", "char(3)", &["'a'", "'ab'", "'   '"]),
    ("v", "varchar(9)", &["'null'", "'NULL'", "''"]),
    (
        "at",
        "timestamptz",
        &["'2026-03-29 01:30 UTC'", "'infinity'", "'-infinity'", "'1800-01-01 00:00:01.000001'", "'4713-01-01 BC'"],
    ),
    ("ts", "timestamp", &["'2026-10-25 02:30:00.123456'", "'2026-05-06'", "'infinity'"]),
    ("d", "date", &["'2026-05-06'", "'2026-06-05'", "'0044-03-15 BC'"]),
    ("iv", "interval", &["'1 mon'", "'30 days'", "'-1 day 02:03:04.000005'", "'1 year -2 days'"]),
    ("m", "money", &["12.34", "-1234567.89", "0"]),
    ("u", "uuid", &["'00000000-0000-0000-0000-000000000000'", "'ffffffff-ffff-ffff-ffff-ffffffffffff'"]),
    ("y", "bytea", &["''", "'\\x00ff5c'", "'\\xdead'"]),
    ("e", "\"State\"", &["'open'", "'it''s, \"closed\"'", "'Größe'"]),
    ("a", "text[]", &["'{}'", "'{a,NULL}'", "'{\"a,b\",\"\\\"\"}'"]),
];

/// Settings that change how values are written and read, changed between pages.
const SETTINGS: [&str; 14] = [
    "DateStyle = 'SQL, DMY'",
    "DateStyle = 'German'",
    "DateStyle = 'Postgres, MDY'",
    "TimeZone = 'America/New_York'",
    "TimeZone = 'Europe/Lisbon'",
    "extra_float_digits = -15",
    "extra_float_digits = 0",
    "IntervalStyle = 'iso_8601'",
    "IntervalStyle = 'sql_standard'",
    "bytea_output = 'escape'",
    "lc_monetary = 'de_DE.UTF-8'",
    "search_path = hostile, public, pg_catalog",
    "enable_seqscan = off",
    "enable_indexscan = off",
];

/// How the rows are spread over shards, and what of that a call has to name.
const SPREADS: [(&str, &str); 5] =
    [("none", ""), ("ready", ""), ("half filled", ""), ("own", ", shard_column => 'bucket'"), ("partitioned", "")];

async fn random_table(client: &Client, random: &mut Random, spread: &str) {
    let columns: Vec<String> = COLUMNS.iter().map(|(name, of, _)| format!("\"{name}\" {of}")).collect();
    let partitioned = if spread == "partitioned" { "PARTITION BY RANGE (id)" } else { "" };
    let create = format!(
        "DROP TABLE IF EXISTS rows CASCADE;
         CREATE TABLE rows (id int PRIMARY KEY, bucket smallint, {}) {partitioned}",
        columns.join(", ")
    );
    client.batch_execute(&create).await.unwrap();
    if !partitioned.is_empty() {
        let partitions = "CREATE TABLE rows_low PARTITION OF rows FOR VALUES FROM (MINVALUE) TO (40);
            CREATE TABLE rows_high PARTITION OF rows FOR VALUES FROM (40) TO (MAXVALUE)";
        client.batch_execute(partitions).await.unwrap();
    }
    let mut insert = |from: i32, to: i32| {
        let row = |id: i32| {
            let values: Vec<&str> = COLUMNS
                .iter()
                .map(|(_, _, values)| if random.chance(1, 4) { "NULL" } else { *random.pick(values) })
                .collect();
            // Shards that nobody would guess: negative, far apart, none.
            let bucket = random.pick(&["-7", "0", "1", "30000", "NULL"]);
            format!("({id}, {bucket}, {})", values.join(", "))
        };
        format!("INSERT INTO rows VALUES {}", (from..to).map(row).collect::<Vec<_>>().join(", "))
    };
    let (older, newer) = (insert(0, 60), insert(60, 90));
    client.batch_execute(&older).await.unwrap();
    if matches!(spread, "ready" | "half filled") {
        client
            .batch_execute("SELECT lanes.add_shard_column('rows', 'id', 8); CREATE INDEX ON rows (shard_id)")
            .await
            .unwrap();
    }
    client.batch_execute(&newer).await.unwrap();
    if spread == "ready" {
        client.batch_execute("CALL lanes.backfill_shard_column('rows', 100)").await.unwrap();
    }
}

/// The same order as `lanes.page` takes it and as a plain ORDER BY, made total by the key.
fn random_order(random: &mut Random) -> (String, String) {
    let mut terms = Vec::new();
    let mut is_descending = false;
    for _ in 0..random.within(1..=3) {
        let (column, of, _) = random.pick(&COLUMNS);
        let collation = if *of == "text" && random.chance(1, 2) { " collate \"C\"" } else { "" };
        is_descending = random.chance(1, 2);
        let direction = if is_descending { "desc" } else { *random.pick(&["", "asc"]) };
        let nulls = random.pick(&["", "nulls first", "nulls last"]);
        terms.push(format!("\"{column}\"{collation} {direction} {nulls}"));
    }
    let order = terms.join(", ");
    let plain = format!("{order}, id {}", if is_descending { "DESC" } else { "ASC" });
    (order, plain)
}

#[tokio::test]
async fn pages_are_a_plain_order_by_whatever_the_rows_and_the_settings() {
    let cluster = Cluster::start();
    let client = shop(&cluster).await;
    client
        .batch_execute(
            "CREATE DOMAIN price AS numeric(10, 2);
             CREATE TYPE \"State\" AS ENUM ('open', 'it''s, \"closed\"', 'Größe');
             CREATE SCHEMA hostile;
             CREATE FUNCTION hostile.never(int, int) RETURNS boolean LANGUAGE sql AS 'SELECT false';
             CREATE OPERATOR hostile.> (FUNCTION = hostile.never, LEFTARG = int, RIGHTARG = int);
             CREATE OPERATOR hostile.= (FUNCTION = hostile.never, LEFTARG = int, RIGHTARG = int)",
        )
        .await
        .unwrap();
    for seed in seeds(20) {
        let random = &mut Random::new(seed);
        let (spread, call_part) = random.pick(&SPREADS);
        client.batch_execute("RESET ALL").await.unwrap();
        random_table(&client, random, spread).await;
        for _ in 0..4 {
            client.batch_execute("RESET ALL").await.unwrap();
            let (order, plain) = random_order(random);
            let expected = ids(&client, "rows", &plain).await;
            let page_size = *random.pick(&[1, 2, 7, 13, 89, 90, 91]);
            let call = format!(
                "lanes.page(NULL::public.rows, '{}', SIZE, cursor => $1{call_part})",
                order.replace('\'', "''")
            );
            let pages = walk(&client, &call, page_size, async || {
                // A locale that the machine does not have is refused, and nothing changes.
                let _ = client.batch_execute(&format!("SET {}", random.pick(&SETTINGS))).await;
            });
            assert_eq!(pages.await.concat(), expected, "seed {seed}, {spread}: {call}, {page_size}");
        }
    }
}

/// Others insert, delete and move rows as fast as they can: rows that stay where they are come exactly once and in order,
/// and no row comes out of order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rows_that_stay_come_once_and_in_order_while_others_write() {
    const STAY: i32 = 400;
    let cluster = Cluster::start();
    let client = shop(&cluster).await;
    client
        .batch_execute(&format!(
            "CREATE TABLE feed (id int PRIMARY KEY, score int, note text);
             INSERT INTO feed SELECT i, NULLIF(i * 7 % 23, 0), 'n' FROM generate_series(1, {STAY}) AS i"
        ))
        .await
        .unwrap();
    let orders = ["score desc nulls last", "score nulls first, id desc"];
    shard(&client, "feed", &orders).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut writers = Vec::new();
    for writer in 1..=2 {
        let session = cluster.connect("shop").await;
        let stop = Arc::clone(&stop);
        writers.push(tokio::spawn(async move {
            let mut random = Random::new(writer);
            let mut written = 0u64;
            while !stop.load(Ordering::Relaxed) {
                let id = STAY as u64 + 2 * random.within(1..=300) + writer % 2;
                let score = random.within(1..=23);
                let statement = match random.within(0..=2) {
                    0 => format!("DELETE FROM feed WHERE id = {id}"),
                    1 => format!("UPDATE feed SET score = NULL WHERE id = {id}"),
                    _ => format!(
                        "INSERT INTO feed VALUES ({id}, {score}) ON CONFLICT (id) DO UPDATE SET score = {score}"
                    ),
                };
                written += session.execute(&statement, &[]).await.unwrap();
            }
            written
        }));
    }
    for round in 0..6 {
        let order = orders[round % 2];
        let plain = if round % 2 == 0 { "score DESC NULLS LAST, id DESC" } else { "score NULLS FIRST, id DESC" };
        let call = format!("lanes.page(NULL::feed, '{order}', SIZE, cursor => $1)");
        let seen = walk(&client, &call, 7, async || {}).await.concat();
        let stayed: Vec<i32> = seen.iter().copied().filter(|id| *id <= STAY).collect();
        let expected = ids(&client, &format!("feed WHERE id <= {STAY}"), plain).await;
        assert_eq!(stayed, expected, "round {round}");
    }
    stop.store(true, Ordering::Relaxed);
    for writer in writers {
        assert!(writer.await.unwrap() > 50, "the writers wrote all the while");
    }
}

/// Blocks that a page reads, counted by the server: the least of three runs, for some also read the catalog.
async fn blocks(client: &Client, call: &str) -> i64 {
    let explain = format!("EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) SELECT * FROM {call}");
    let mut least = i64::MAX;
    for _ in 0..3 {
        let plan: serde_json::Value = client.query_one(&explain, &[]).await.unwrap().get(0);
        let node = &plan[0]["Plan"];
        let blocks = node["Shared Hit Blocks"].as_i64().unwrap() + node["Shared Read Blocks"].as_i64().unwrap();
        least = least.min(blocks);
    }
    least
}

/// The page at every depth reads the blocks of its own rows and a few of the index, at most so many for each shard and
/// range. So the index is used up to its last column, for nulls and mixed directions too.
#[tokio::test]
async fn a_deep_page_reads_what_the_first_one_does() {
    const ROWS: i64 = 40_000;
    const PAGE: i64 = 20;
    const SHARDS: i64 = 4;
    let cluster = Cluster::start();
    let client = shop(&cluster).await;
    client
        .batch_execute(&format!(
            "CREATE TABLE orders (id int PRIMARY KEY, created int NOT NULL, closed int, status text NOT NULL, filler text)
                 WITH (autovacuum_enabled = off);
             INSERT INTO orders SELECT i, i % 1000, NULLIF(i % 7, 0), 's' || i % 3, repeat('x', 200) FROM generate_series(1, {ROWS}) AS i"
        ))
        .await
        .unwrap();
    // With the number of ranges that the rows after a place are cut into.
    let orders = [
        ("created", "NULL", 1),
        ("created desc, id", "NULL", 2),
        ("closed nulls first, created desc", "NULL", 2),
        ("closed desc nulls last", "NULL", 2),
        ("status collate \"C\" desc, closed, created desc", "NULL", 4),
        ("closed", "'[[\"status\", \"=\", \"s1\"]]'", 2),
    ];
    shard(&client, "orders", &[]).await;
    for (order, filter, _) in orders {
        let index = format!("SELECT lanes.page_index(NULL::orders, '{order}', {filter})");
        let index: String = client.query_one(&index, &[]).await.unwrap().get(0);
        client.batch_execute(&index).await.unwrap();
    }
    client.batch_execute("VACUUM ANALYZE orders").await.unwrap();
    let table_blocks: i64 = client.query_one("SELECT pg_relation_size('orders') / 8192", &[]).await.unwrap().get(0);
    assert!(table_blocks > 1000);
    for (order, filter, ranges) in orders {
        let first = blocks(&client, &format!("lanes.page(NULL::orders, '{order}', {PAGE}, {filter})")).await;
        let mut cursor: Option<String> = None;
        let mut deepest = 0;
        loop {
            let step = format!("SELECT cursor FROM lanes.page(NULL::orders, '{order}', 3000, {filter}, $1)");
            let rows = client.query(&step, &[&cursor]).await.unwrap();
            cursor = rows.last().unwrap().get(0);
            let Some(place) = &cursor else { break };
            let call = format!("lanes.page(NULL::orders, '{order}', {PAGE}, {filter}, '{place}')");
            deepest = deepest.max(blocks(&client, &call).await);
        }
        // Of each shard and range the page's rows, one more, and the levels of the index; then the catalog and the key.
        let bound = SHARDS * ranges * (PAGE + 1 + 4) + 60;
        assert!(
            first <= bound && deepest <= bound,
            "{order}: {first} blocks first, {deepest} later, of {table_blocks}"
        );
    }
}

/// Pages in a database of another encoding: names, collations and values beyond ASCII.
#[tokio::test]
async fn a_latin1_database_pages_over_its_own_letters() {
    let cluster = Cluster::start();
    cluster.create_database_with("latin", "ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0");
    let client = cluster.connect("latin").await;
    client
        .batch_execute(
            "CREATE EXTENSION pg_lanes;
             CREATE TABLE \"Größen\" (id int PRIMARY KEY, \"Maß\" text);
             INSERT INTO \"Größen\" VALUES (1, 'ü'), (2, 'ä'), (3, 'z'), (4, NULL), (5, 'ü')",
        )
        .await
        .unwrap();
    let call = "lanes.page(NULL::\"Größen\", '\"Maß\" desc nulls last', SIZE, '[[\"Maß\", \"in\", [\"ü\", \"ä\", \"z\"]]]', $1)";
    assert_eq!(walk(&client, call, 1, async || {}).await.concat(), [5, 1, 2, 3]);
    let error = client.query("SELECT * FROM lanes.page(NULL::\"Größen\", '\"Maße\"')", &[]).await.unwrap_err();
    let error = error.as_db_error().unwrap();
    assert_eq!((error.code(), error.detail()), (&SqlState::UNDEFINED_COLUMN, None));
    assert!(error.message().contains("Ma\\u00dfe"), "{}", error.message());
}

/// SQL-1: the key is not in a dump; a restored database has one of its own, and the old one's cursors end with a hint.
/// A database that was copied file by file has the key, and cursors do not pass between the two either.
#[tokio::test]
async fn a_restored_database_has_a_key_of_its_own() {
    let cluster = Cluster::start();
    let client = shop(&cluster).await;
    client
        .batch_execute("CREATE TABLE runs (id int PRIMARY KEY); INSERT INTO runs SELECT generate_series(1, 9)")
        .await
        .unwrap();
    shard(&client, "runs", &["id"]).await;
    let page = "SELECT (item).id, cursor FROM lanes.page(NULL::runs, 'id', 3, cursor => $1)";
    let cursor: String = client.query(page, &[&None::<String>]).await.unwrap()[2].get(1);
    drop(client);
    let key = "SELECT encode(key, 'hex') FROM lanes.secret";
    let dump = cluster.dump("shop");
    assert!(!dump.contains(&cluster.psql("shop", key)));
    cluster.create_database_with("restored", "TEMPLATE template0");
    cluster.psql("restored", &dump);
    // A database that somebody uses cannot be copied.
    let watcher = cluster.connect("postgres").await;
    wait_until(&watcher, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE datname = 'shop')").await;
    cluster.create_database_with("copied", "TEMPLATE shop");
    assert_ne!(cluster.psql("restored", key), cluster.psql("shop", key));
    assert_eq!(cluster.psql("copied", key), cluster.psql("shop", key));
    for (database, message) in
        [("restored", "cursor is not valid in this database"), ("copied", "cursor belongs to a page of another query")]
    {
        let client = cluster.connect(database).await;
        let error = client.query(page, &[&Some(&cursor)]).await.unwrap_err();
        let error = error.as_db_error().unwrap();
        assert_eq!((error.code(), error.message()), (&SqlState::INVALID_PARAMETER_VALUE, message), "{database}");
        assert!(error.hint().is_some());
        let pages = walk(&client, "lanes.page(NULL::runs, 'id', SIZE, cursor => $1)", 4, async || {}).await;
        assert_eq!(pages.concat(), (1..=9).collect::<Vec<i32>>());
    }
    let client = cluster.connect("shop").await;
    let next: Vec<i32> = client.query(page, &[&Some(&cursor)]).await.unwrap().iter().map(|row| row.get(0)).collect();
    assert_eq!(next, [4, 5, 6]);
}
