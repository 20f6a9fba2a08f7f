//! Group `sql_tools`: what the functions of the extension cost, as ratios of statements that are measured in turn.

use std::time::Instant;

use e2e::cluster::Cluster;
use tokio::runtime::Runtime;
use tokio_postgres::Client;

use crate::comparison::{Comparison, Goal, Rounds, Side};
use crate::measurement::{Failure, Measurement, Scale};
use crate::peers::upsert;
use crate::projection::cluster;
use crate::projections::COMMITTED;

/// Rounds of a full run.
const ROUNDS: usize = 9;

const READ: &str = "nothing is written";

const UNLOGGED: &str = "an unlogged table";

/// Lengths of the keys that are hashed, in bytes.
const LENGTHS: [usize; 4] = [8, 36, 128, 1024];

const SHARD: Comparison = Comparison {
    name: "sql_tools/shard-8-bytes",
    ours: Side { what: "shard(k, 16) a row, keys of so many bytes", durability: READ },
    baseline: Some(Side { what: "hashtextextended(k, 0) % 16", durability: READ }),
    unit: "ms",
    goal: Some(Goal::AtMost(1.15)),
};

const LANE_OF: Comparison = Comparison {
    name: "sql_tools/lane_of-8-bytes",
    ours: Side { what: "lane_of(k, 16) a row, keys of so many bytes", durability: READ },
    ..SHARD
};

const PAGE: Comparison = Comparison {
    name: "sql_tools/page-10000",
    ours: Side { what: "page 10 000 by lanes.page: 50 rows of 600 000 in 16 row shards", durability: READ },
    baseline: Some(Side { what: "page 1 by lanes.page", durability: READ }),
    unit: "ms",
    goal: Some(Goal::AtMost(1.2)),
};

const LOAD: Comparison = Comparison {
    name: "sql_tools/load-by-statement",
    ours: Side { what: "load of 25 000 rows, a sharded counter bumped once a statement", durability: COMMITTED },
    baseline: Some(Side { what: "load of 5 000 rows", durability: COMMITTED }),
    unit: "ms",
    goal: Some(Goal::AtMost(6.0)),
};

/// What is measured.
pub const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        comparisons: &[
            SHARD,
            Comparison { name: "sql_tools/shard-36-bytes", ..SHARD },
            Comparison { name: "sql_tools/shard-128-bytes", goal: None, ..SHARD },
            Comparison { name: "sql_tools/shard-1024-bytes", goal: None, ..SHARD },
            LANE_OF,
            Comparison { name: "sql_tools/lane_of-36-bytes", ..LANE_OF },
            Comparison { name: "sql_tools/lane_of-128-bytes", goal: None, ..LANE_OF },
            Comparison { name: "sql_tools/lane_of-1024-bytes", goal: None, ..LANE_OF },
        ],
        run: hashing,
    },
    Measurement {
        comparisons: &[Comparison {
            name: "sql_tools/counter",
            ours: Side { what: "16 clients add to a sharded counter of 32 shards", durability: COMMITTED },
            baseline: Some(Side { what: "16 clients add to one row", durability: COMMITTED }),
            unit: "adds/s",
            goal: Some(Goal::AtLeast(4.0)),
        }],
        run: counters,
    },
    Measurement {
        comparisons: &[
            PAGE,
            Comparison {
                name: "sql_tools/page-offset",
                ours: Side { what: "the same rows by ORDER BY and OFFSET", durability: READ },
                baseline: Some(Side { what: "page 10 000 by lanes.page", durability: READ }),
                goal: None,
                ..PAGE
            },
            Comparison {
                name: "sql_tools/page-first",
                ours: Side { what: "page 1 by lanes.page", durability: READ },
                baseline: Some(Side { what: "LIMIT 50 by an index without shards, its plan kept", durability: READ }),
                goal: None,
                ..PAGE
            },
        ],
        run: pages,
    },
    Measurement {
        comparisons: &[
            LOAD,
            Comparison {
                name: "sql_tools/load-by-row",
                ours: Side { what: "the same, bumped once a row", durability: COMMITTED },
                goal: None,
                ..LOAD
            },
        ],
        run: bulk_loads,
    },
    Measurement {
        comparisons: &[Comparison {
            name: "sql_tools/shard-column",
            ours: Side { what: "insert into a table with a shard column", durability: UNLOGGED },
            baseline: Some(Side { what: "insert into the same table without", durability: UNLOGGED }),
            unit: "ms",
            goal: None,
        }],
        run: shard_column,
    },
];

/// A cluster, and a session whose plans are serial and not compiled.
fn session() -> Result<(Cluster, Runtime, Client), Failure> {
    let (cluster, runtime) = (cluster(), Runtime::new()?);
    let client = runtime.block_on(cluster.connect("bench"));
    runtime.block_on(client.batch_execute("SET max_parallel_workers_per_gather = 0; SET jit = off"))?;
    Ok((cluster, runtime, client))
}

async fn milliseconds(client: &Client, sql: &str) -> Result<f64, Failure> {
    let start = Instant::now();
    client.batch_execute(sql).await?;
    Ok(start.elapsed().as_secs_f64() * 1e3)
}

/// Each statement by itself: some of them do not run in a transaction with others.
async fn execute(client: &Client, statements: &str) -> Result<(), Failure> {
    for statement in statements.split(';') {
        client.batch_execute(statement).await?;
    }
    Ok(())
}

/// `shard` and `lane_of` per row against the built-in `hashtextextended`.
fn hashing(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (_cluster, runtime, client) = session()?;
    let mut all = vec![Rounds::default(); 2 * LENGTHS.len()];
    runtime.block_on(async {
        for (place, length) in LENGTHS.into_iter().enumerate() {
            let rows = scale.pick(300_000, 50_000) / if length > 200 { 10 } else { 1 };
            let table = format!(
                "DROP TABLE IF EXISTS keys; CREATE UNLOGGED TABLE keys (k text);
                 INSERT INTO keys SELECT rpad(i || '-', {length}, 'abcdefgh') FROM generate_series(1, {rows}) AS i;
                 VACUUM ANALYZE keys"
            );
            execute(&client, &table).await?;
            let run = |call: &str| format!("SELECT count(*) FROM keys WHERE {call} = -1");
            for (function, call) in ["shard(k, 16)", "lane_of(k, 16)"].into_iter().enumerate() {
                let rounds = &mut all[function * LENGTHS.len() + place];
                for _ in 0..scale.rounds(ROUNDS) {
                    rounds.ours.push(milliseconds(&client, &run(call)).await?);
                    rounds.baseline.push(milliseconds(&client, &run("hashtextextended(k, 0) % 16")).await?);
                }
            }
        }
        Ok(all)
    })
}

/// Page 10 000 against page 1, and against what OFFSET makes of it, by 50 rows over 16 row shards. A quick run has a tenth of
/// the pages.
fn pages(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    const ROWS: usize = 50;
    let (_cluster, runtime, client) = session()?;
    let (rows, page_number, jumps) = scale.pick((600_000, 10_000, 50), (60_000, 1_000, 5));
    let skipped = (page_number - 1) * ROWS;
    runtime.block_on(async {
        let table = format!(
            "CREATE UNLOGGED TABLE feed (id bigint PRIMARY KEY, created timestamptz NOT NULL, note text);
             SELECT lanes.add_shard_column('feed', 'id', 16);
             INSERT INTO feed SELECT i, 'epoch'::timestamptz + i * 7919 % 100000 * interval '1 s', repeat('x', 40)
                 FROM generate_series(1::bigint, {rows}) AS i;
             CREATE INDEX ON feed (shard_id, created, id);
             CREATE INDEX ON feed (created, id);
             VACUUM ANALYZE feed;
             CALL lanes.backfill_shard_column('feed')"
        );
        execute(&client, &table).await?;
        let mut place: Option<String> = None;
        for jump in 0..jumps {
            let jump = skipped * (jump + 1) / jumps - skipped * jump / jumps;
            let last = format!(
                "SELECT cursor FROM lanes.page(NULL::feed, 'created', {jump}, cursor => $1) OFFSET {}",
                jump - 1
            );
            place = client.query_one(&last, &[&place]).await?.get(0);
        }
        let place = place.ok_or("no rows follow")?;
        let plain =
            |offset: usize| format!("(SELECT f FROM feed AS f ORDER BY created, id LIMIT {ROWS} OFFSET {offset}) AS p");
        let page = |cursor: &str| format!("lanes.page(NULL::feed, 'created', {ROWS}, cursor => {cursor})");
        let (first, deep) = (page("NULL"), page(&format!("'{place}'")));
        let (plain_first, plain_deep) = (plain(0), plain(skipped));
        let same =
            format!("SELECT array_agg((p.item).id) = (SELECT array_agg((p.f).id) FROM {plain_deep}) FROM {deep} AS p");
        if !client.query_one(&same, &[]).await?.get::<_, bool>(0) {
            return Err("lanes.page and ORDER BY give different rows".into());
        }
        let mut all = Vec::new();
        for (ours, theirs, times) in [(&deep, &first, 100), (&plain_deep, &deep, 5), (&first, &plain_first, 100)] {
            let run = |from: &str| {
                format!("DO $$ BEGIN FOR i IN 1..{times} LOOP PERFORM count(*) FROM {from}; END LOOP; END $$")
            };
            let mut rounds = Rounds::default();
            for _ in 0..scale.rounds(ROUNDS) {
                rounds.ours.push(milliseconds(&client, &run(ours)).await?);
                rounds.baseline.push(milliseconds(&client, &run(theirs)).await?);
            }
            all.push(rounds);
        }
        Ok(all)
    })
}

/// A load of 25 000 rows against one of 5 000, of which each bumps one of three counters, once a statement and once a row.
fn bulk_loads(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (_cluster, runtime, client) = session()?;
    runtime.block_on(async {
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
            .await?;
        let mut all = Vec::new();
        for trigger in [
            "REFERENCING NEW TABLE AS fresh FOR EACH STATEMENT EXECUTE FUNCTION tell()",
            "FOR EACH ROW EXECUTE FUNCTION tell_row()",
        ] {
            let create =
                format!("DROP TRIGGER IF EXISTS tell ON parcel; CREATE TRIGGER tell AFTER INSERT ON parcel {trigger}");
            client.batch_execute(&create).await?;
            let load = |low: i32, high: i32| {
                format!(
                    "INSERT INTO parcel SELECT i, (ARRAY['A','B','C'])[i % 3 + 1], (i * 37) % 101
                     FROM generate_series({low}, {high}) AS i"
                )
            };
            let mut rounds = Rounds::default();
            for _ in 0..scale.rounds(ROUNDS) {
                client.batch_execute("TRUNCATE parcel, depot_load").await?;
                rounds.baseline.push(milliseconds(&client, &load(1, 5_000)).await?);
                rounds.ours.push(milliseconds(&client, &load(5_001, 30_000)).await?);
                let counted = "SELECT sum(parcels) = 30000 FROM depot_load";
                if !client.query_one(counted, &[]).await?.get::<_, bool>(0) {
                    return Err("the counter does not count 30 000 parcels".into());
                }
            }
            all.push(rounds);
        }
        Ok(all)
    })
}

/// Inserts into a table with a shard column, which a trigger fills.
fn shard_column(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (_cluster, runtime, client) = session()?;
    let rows = scale.pick(300_000, 50_000);
    runtime.block_on(async {
        execute(
            &client,
            "CREATE UNLOGGED TABLE plain (id bigint NOT NULL, filler text);
             CREATE UNLOGGED TABLE sharded (id bigint NOT NULL, filler text);
             SELECT lanes.add_shard_column('sharded', 'id', 16)",
        )
        .await?;
        let mut rounds = Rounds::default();
        for _ in 0..scale.rounds(ROUNDS) {
            let insert = |table: &str| {
                format!("INSERT INTO {table} (id, filler) SELECT i, 'x' FROM generate_series(1, {rows}) AS i")
            };
            rounds.ours.push(milliseconds(&client, &insert("sharded")).await?);
            rounds.baseline.push(milliseconds(&client, &insert("plain")).await?);
            client.batch_execute("TRUNCATE plain, sharded").await?;
        }
        Ok(vec![rounds])
    })
}

/// Sixteen clients that add to one counter of 32 shards (process ids of 16 sessions seldom fill 16 evenly), against one row.
fn counters(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let cluster = cluster();
    cluster.psql(
        "bench",
        "CREATE TABLE one_row (post int PRIMARY KEY, n bigint NOT NULL) WITH (fillfactor = 50);
         SELECT lanes.create_sharded_counter('likes', '{post int}', '{n}', shards => 32)",
    );
    let one_row = "INSERT INTO one_row AS c VALUES (1, 1) ON CONFLICT (post) DO UPDATE SET n = c.n + EXCLUDED.n;";
    let mut rounds = Rounds::default();
    for _ in 0..scale.rounds(ROUNDS) {
        rounds.ours.push(upsert::transactions_per_second(&cluster, "SELECT likes_add(1);", scale.pick(3, 1))?);
        rounds.baseline.push(upsert::transactions_per_second(&cluster, one_row, scale.pick(3, 1))?);
    }
    Ok(vec![rounds])
}
