//! The loop that somebody would write by hand: payloads in memory are parsed, and batches of 10 000 are sent as arrays to
//! one UPSERT, one transaction each.

use std::time::Instant;

use e2e::cluster::Cluster;
use tokio::task::JoinSet;
use tokio_postgres::Client;

use super::checkins::{self, Checkin, TOTAL};
use super::{DATABASE, Lines};
use crate::measurement::Failure;
use crate::sample::Order;

/// Rows of a transaction: `lane_batch_size` of the daemon.
pub const BATCH: usize = 10_000;

/// The table of [`count_into`], empty.
pub fn create_counted(cluster: &Cluster) {
    cluster.psql(
        "bench",
        "DROP TABLE IF EXISTS counted; CREATE TABLE counted (show text PRIMARY KEY, n bigint NOT NULL); CHECKPOINT",
    );
}

/// Events a second of one worker that parses payloads of check-ins and has Postgres count what it sends.
pub async fn count(cluster: &Cluster, payloads: &[String]) -> Result<f64, Failure> {
    create_counted(cluster);
    count_into(cluster, payloads).await
}

/// As [`count`], into the table that is there.
pub async fn count_into(cluster: &Cluster, payloads: &[String]) -> Result<f64, Failure> {
    let client = cluster.connect("bench").await;
    let upsert =
        "INSERT INTO counted AS c (show, n) SELECT show, count(*) FROM unnest($1::text[]) AS s (show) GROUP BY show
         ON CONFLICT (show) DO UPDATE SET n = c.n + excluded.n";
    let start = Instant::now();
    for batch in payloads.chunks(BATCH) {
        let mut shows = Vec::with_capacity(batch.len());
        for payload in batch {
            let payload: serde_json::Value = serde_json::from_str(payload)?;
            shows.push(payload["show"].as_str().map(str::to_owned));
        }
        client.execute(upsert, &[&shows]).await?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let counted = cluster.psql("bench", "SELECT n FROM counted");
    if counted != payloads.len().to_string() {
        return Err(format!("{counted} of {} events were counted by hand", payloads.len()).into());
    }
    Ok(payloads.len() as f64 / seconds)
}

/// Events a second of one worker that reads whole check-ins.
pub async fn to_total(cluster: &Cluster, events: &Lines) -> Result<f64, Failure> {
    checkins::create_table(cluster, DATABASE);
    let reader = cluster.connect(DATABASE).await;
    let client = cluster.connect(DATABASE).await;
    let upsert = client
        .prepare(
            "INSERT INTO total AS t SELECT show, count(*), max(ts) FROM unnest($1::text[], $2::bigint[]) AS b (show, ts) GROUP BY show
             ON CONFLICT (show) DO UPDATE SET n = t.n + excluded.n, last = greatest(t.last, excluded.last)",
        )
        .await?;
    let started = Instant::now();
    for batch in events.chunks(BATCH) {
        let (mut shows, mut times) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        for line in batch {
            let checkin = Checkin::read(line.as_bytes())?;
            shows.push(checkin.show());
            times.push(checkin.ts);
        }
        client.execute(&upsert, &[&shows, &times]).await?;
    }
    checkins::wait_for_total(&reader, TOTAL, events.len()).await?;
    Ok(events.len() as f64 / started.elapsed().as_secs_f64())
}

/// Rows a second of `workers` workers that write orders. Without `parses` their arrays are ready before the clock starts.
pub async fn write_orders(cluster: &Cluster, orders: &[Order], workers: usize, parses: bool) -> Result<f64, Failure> {
    cluster.psql(
        "bench",
        "DROP TABLE IF EXISTS by_hand, done; CREATE TABLE done (worker int PRIMARY KEY, rows bigint);
         CREATE TABLE by_hand (id text PRIMARY KEY, customer text, status text, cents bigint NOT NULL DEFAULT 0, changed bigint);
         CHECKPOINT",
    );
    let share = orders.len().div_ceil(workers);
    let mut work = Vec::new();
    for part in orders.chunks(share) {
        let ready =
            if parses { Vec::new() } else { part.chunks(BATCH).map(Columns::read).collect::<Result<_, _>>()? };
        work.push((cluster.connect("bench").await, part.to_vec(), ready));
    }
    let mut tasks = JoinSet::new();
    let start = Instant::now();
    for (worker, (client, part, ready)) in work.into_iter().enumerate() {
        tasks.spawn(async move {
            if parses {
                for batch in part.chunks(BATCH) {
                    send(&client, worker as i32, &Columns::read(batch)?).await?;
                }
            }
            for columns in &ready {
                send(&client, worker as i32, columns).await?;
            }
            Ok::<(), Failure>(())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    let seconds = start.elapsed().as_secs_f64();
    let written = cluster.psql("bench", "SELECT count(*) FROM by_hand");
    if written != orders.len().to_string() {
        return Err(format!("{written} of {} rows were written by hand", orders.len()).into());
    }
    Ok(orders.len() as f64 / seconds)
}

/// The arrays of a batch, sorted by key.
#[derive(Default)]
struct Columns {
    ids: Vec<String>,
    customers: Vec<Option<String>>,
    states: Vec<Option<String>>,
    cents: Vec<Option<i64>>,
    changed: Vec<i64>,
}

impl Columns {
    fn read(batch: &[Order]) -> serde_json::Result<Columns> {
        let mut sorted: Vec<&Order> = batch.iter().collect();
        sorted.sort_unstable_by(|left, right| left.key.cmp(&right.key));
        let mut columns = Columns::default();
        for Order { key, ts, payload } in sorted {
            let payload: serde_json::Value = serde_json::from_str(payload)?;
            columns.ids.push(key.clone());
            columns.customers.push(payload["customer"].as_str().map(str::to_owned));
            columns.states.push(payload["status"].as_str().map(str::to_owned));
            columns.cents.push(payload["cents"].as_i64());
            columns.changed.push(*ts);
        }
        Ok(columns)
    }
}

async fn send(client: &Client, worker: i32, columns: &Columns) -> Result<(), tokio_postgres::Error> {
    const UPSERT: &str = "INSERT INTO by_hand AS t (id, customer, status, cents, changed)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
        ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, status = excluded.status,
            cents = t.cents + excluded.cents, changed = excluded.changed";
    let Columns { ids, customers, states, cents, changed } = columns;
    client.batch_execute("BEGIN").await?;
    client.execute(UPSERT, &[ids, customers, states, cents, changed]).await?;
    let done = "INSERT INTO done AS d VALUES ($1, $2) ON CONFLICT (worker) DO UPDATE SET rows = d.rows + excluded.rows";
    client.execute(done, &[&worker, &(ids.len() as i64)]).await?;
    client.batch_execute("COMMIT").await
}
