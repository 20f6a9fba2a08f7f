//! Redis Streams as durable ingest, `appendfsync always`: producers send pipelines of XADD and wait for the answers, which
//! Redis gives after the fsync that covers them; a consumer group's one reader folds what it reads into the total, and
//! keeps the last id beside it, in one transaction.

use std::sync::Arc;
use std::time::Instant;

use e2e::cluster::Cluster;
use redis::aio::MultiplexedConnection;
use redis::streams::{StreamReadOptions, StreamReadReply};
use redis::{AsyncCommands, AsyncConnectionConfig, Client};
use tokio::task::{JoinHandle, JoinSet};

use super::checkins::{self, Folded, PRODUCERS, TOTAL};
use super::server::{Server, program};
use super::unnest::BATCH;
use super::{DATABASE, Lines, directory, joined};
use crate::measurement::{Failure, NotRun};
use crate::sample::REQUEST_EVENTS;

const STREAM: &str = "checkins";
const GROUP: &str = "total";

/// Events a second until all were in the total.
pub async fn to_total(cluster: &Cluster, events: &Lines) -> Result<f64, Failure> {
    checkins::create_table(cluster, DATABASE);
    checkins::create_place(cluster, DATABASE);
    let (_server, client) = start().await?;
    let reader = cluster.connect(DATABASE).await;
    let producers = connect_producers(&client).await?;
    let mut connection = connect(&client).await?;
    let _: () = connection.xgroup_create_mkstream(STREAM, GROUP, "0").await?;
    let consumer = consume(connection, cluster.connect(DATABASE).await);
    checkins::rate_to_total(&reader, TOTAL, events.len(), produce(producers, events), consumer).await
}

/// Events a second until all were acknowledged; nobody consumes them.
pub async fn to_acknowledgement(_: &Cluster, events: &Lines) -> Result<f64, Failure> {
    let (_server, client) = start().await?;
    let producers = connect_producers(&client).await?;
    let started = Instant::now();
    produce(producers, events).await?;
    let seconds = started.elapsed().as_secs_f64();
    let stored: usize = connect(&client).await?.xlen(STREAM).await?;
    if stored != events.len() {
        return Err(format!("{stored} of {} events are in the stream", events.len()).into());
    }
    Ok(events.len() as f64 / seconds)
}

async fn start() -> Result<(Server, Client), Failure> {
    let directory = directory()?;
    let path = directory.path().to_str().ok_or("a path that is not UTF-8")?.to_owned();
    let socket = format!("{path}/redis.sock");
    let arguments = [
        ["--port", "0"],
        ["--unixsocket", &socket],
        ["--dir", &path],
        ["--appendonly", "yes"],
        ["--appendfsync", "always"],
        ["--save", ""],
        ["--timeout", "0"],
    ];
    let client = Client::open(format!("redis+unix://{socket}"))?;
    let answers = async || {
        let mut connection = connect(&client).await.ok()?;
        redis::cmd("CONFIG").arg("GET").arg("appendfsync").query_async::<Vec<String>>(&mut connection).await.ok()
    };
    let (server, setting) =
        Server::start(directory, &program("redis-server")?, arguments.as_flattened(), answers).await?;
    if setting.last().map(String::as_str) != Some("always") {
        return Err(NotRun(format!("Redis does not sync each write: {setting:?}")).into());
    }
    Ok((server, client))
}

/// Without a limit of time: a sync takes as long as the disk does.
async fn connect(client: &Client) -> redis::RedisResult<MultiplexedConnection> {
    let patient = AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&patient).await
}

async fn connect_producers(client: &Client) -> Result<Vec<MultiplexedConnection>, Failure> {
    let mut connections = Vec::new();
    for _ in 0..PRODUCERS {
        connections.push(connect(client).await?);
    }
    Ok(connections)
}

async fn produce(connections: Vec<MultiplexedConnection>, events: &Lines) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for (number, mut connection) in connections.into_iter().enumerate() {
        let events = Arc::clone(events);
        tasks.spawn(async move {
            for request in events.chunks(REQUEST_EVENTS).skip(number).step_by(PRODUCERS) {
                let mut pipeline = redis::pipe();
                for line in request {
                    pipeline.xadd(STREAM, "*", &[("event", line)]).ignore();
                }
                pipeline.query_async::<()>(&mut connection).await?;
            }
            Ok(())
        });
    }
    joined(tasks).await
}

/// Reads batches until it is stopped.
fn consume(
    mut connection: MultiplexedConnection,
    mut postgres: tokio_postgres::Client,
) -> JoinHandle<Result<(), Failure>> {
    tokio::spawn(async move {
        let options = StreamReadOptions::default().group(GROUP, "reader").count(BATCH).block(100);
        loop {
            let reply: Option<StreamReadReply> = connection.xread_options(&[STREAM], &[">"], &options).await?;
            let entries: Vec<_> = reply.into_iter().flat_map(|reply| reply.keys).flat_map(|key| key.ids).collect();
            let Some(last) = entries.last() else { continue };
            let mut folded = Folded::default();
            for entry in &entries {
                let line: Vec<u8> = entry.get("event").ok_or("an entry without an event")?;
                folded.add(&line)?;
            }
            folded.write(&mut postgres, &last.id).await?;
            let ids: Vec<&str> = entries.iter().map(|entry| entry.id.as_str()).collect();
            let _: usize = connection.xack(STREAM, GROUP, &ids).await?;
        }
    })
}
