//! PgQ, the queue of Skytools in Postgres: producers insert events by `pgq.insert_event`, many a transaction; `pgqd` makes
//! ticks; one consumer takes batch after batch and adds it to the total by one statement, in one transaction with the end of
//! the batch.

use std::sync::Arc;
use std::time::{Duration, Instant};

use e2e::cluster::Cluster;
use tokio::task::{JoinHandle, JoinSet};
use tokio_postgres::Client;

use super::checkins::{self, PRODUCERS, TOTAL};
use super::server::{Server, program};
use super::{DATABASE, Lines, directory, joined};
use crate::measurement::{Failure, NotRun};
use crate::sample::REQUEST_EVENTS;

/// Events a second until all were in the total.
pub async fn to_total(cluster: &Cluster, events: &Lines) -> Result<f64, Failure> {
    checkins::create_table(cluster, DATABASE);
    create_queue(cluster)?;
    let _ticker = start_ticker(cluster).await?;
    let reader = cluster.connect(DATABASE).await;
    let producers = connect_producers(cluster).await?;
    let consumer = consume(cluster.connect(DATABASE).await);
    checkins::rate_to_total(&reader, TOTAL, events.len(), produce(producers, events), consumer).await
}

/// Events a second until all were inserted; nobody consumes them.
pub async fn to_acknowledgement(cluster: &Cluster, events: &Lines) -> Result<f64, Failure> {
    create_queue(cluster)?;
    let producers = connect_producers(cluster).await?;
    let started = Instant::now();
    produce(producers, events).await?;
    let seconds = started.elapsed().as_secs_f64();
    let stored = cluster.psql(DATABASE, "SELECT count(*) FROM pgq.event_template");
    if stored != events.len().to_string() {
        return Err(format!("{stored} of {} events are in the queue", events.len()).into());
    }
    Ok(events.len() as f64 / seconds)
}

fn create_queue(cluster: &Cluster) -> Result<(), NotRun> {
    let available = "SELECT count(*) FROM pg_available_extensions WHERE name = 'pgq'";
    if cluster.psql(DATABASE, available) == "0" {
        return Err(NotRun("the extension pgq is not installed (scripts/setup_peers)".to_owned()));
    }
    cluster.psql(
        DATABASE,
        "DROP EXTENSION IF EXISTS pgq CASCADE; CREATE EXTENSION pgq;
         DO $$BEGIN
             PERFORM pgq.create_queue('checkins');
             PERFORM pgq.register_consumer('checkins', 'total');
             PERFORM pgq.set_queue_config('checkins', 'ticker_max_lag', '100 milliseconds');
             PERFORM pgq.set_queue_config('checkins', 'ticker_idle_period', '100 milliseconds');
             PERFORM pgq.ticker();
         END$$;
         CHECKPOINT",
    );
    Ok(())
}

/// The daemon, with ticks as often as it can make them: its default is one a second.
async fn start_ticker(cluster: &Cluster) -> Result<Server, Failure> {
    let directory = directory()?;
    let file = directory.path().join("pgqd.ini");
    let (socket, port, path) = (cluster.socket(), cluster.port(), directory.path().display());
    std::fs::write(
        &file,
        format!(
            "[pgqd]\nbase_connstr = host={socket} port={port} user=postgres\ninitial_database = {DATABASE}\n\
             database_list = {DATABASE}\nlogfile = {path}/pgqd.log\npidfile = {path}/pgqd.pid\nticker_period = 0.05\n"
        ),
    )?;
    let ticks = || cluster.psql(DATABASE, "SELECT max(tick_id) FROM pgq.tick");
    let before = ticks();
    let ticked = async || (ticks() != before).then_some(());
    let (server, ()) =
        Server::start(directory, &program("pgqd")?, &[file.to_str().ok_or("a path that is not UTF-8")?], ticked)
            .await?;
    Ok(server)
}

async fn connect_producers(cluster: &Cluster) -> Result<Vec<Client>, Failure> {
    let mut clients = Vec::new();
    for _ in 0..PRODUCERS {
        clients.push(cluster.connect(DATABASE).await);
    }
    Ok(clients)
}

async fn produce(clients: Vec<Client>, events: &Lines) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for (number, client) in clients.into_iter().enumerate() {
        let events = Arc::clone(events);
        tasks.spawn(async move {
            let insert = client
                .prepare("SELECT count(pgq.insert_event('checkins', 'CHECKED_IN', line)) FROM unnest($1::text[]) AS b (line)")
                .await?;
            for request in events.chunks(REQUEST_EVENTS).skip(number).step_by(PRODUCERS) {
                client.execute(&insert, &[&request]).await?;
            }
            Ok(())
        });
    }
    joined(tasks).await
}

/// Takes batches until it is stopped.
fn consume(mut client: Client) -> JoinHandle<Result<(), Failure>> {
    tokio::spawn(async move {
        let next = client.prepare("SELECT pgq.next_batch('checkins', 'total')").await?;
        let fold = client
            .prepare(
                "INSERT INTO total AS t
                 SELECT e.line -> 'payload' ->> 'show', count(*), max((e.line ->> 'ts')::bigint)
                 FROM (SELECT ev_data::json AS line FROM pgq.get_batch_events($1)) AS e GROUP BY 1
                 ON CONFLICT (show) DO UPDATE SET n = t.n + excluded.n, last = greatest(t.last, excluded.last)",
            )
            .await?;
        let finish = client.prepare("SELECT pgq.finish_batch($1)").await?;
        loop {
            let transaction = client.transaction().await?;
            let batch: Option<i64> = transaction.query_one(&next, &[]).await?.try_get(0)?;
            if let Some(batch) = batch {
                transaction.execute(&fold, &[&batch]).await?;
                transaction.execute(&finish, &[&batch]).await?;
                transaction.commit().await?;
            } else {
                transaction.commit().await?;
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
    })
}
