//! NATS JetStream, one stream on files, `sync_interval: always`: producers publish and wait for the acknowledgements of many
//! messages at once; a pull consumer's one reader folds what it fetches into the total, and keeps the last sequence beside
//! it, in one transaction.

use std::net::TcpStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use async_nats::jetstream::consumer::{PullConsumer, pull};
use async_nats::jetstream::{Context, stream};
use e2e::cluster::Cluster;
use futures_util::StreamExt;
use serde_json::Value;
use tokio::task::{JoinHandle, JoinSet};

use super::checkins::{self, Folded, PRODUCERS, TOTAL};
use super::server::{Server, program};
use super::unnest::BATCH;
use super::{DATABASE, Lines, directory, free_port, joined};
use crate::measurement::{Failure, NotRun};
use crate::sample::REQUEST_EVENTS;

const STREAM: &str = "checkins";

/// Events a second until all were in the total.
pub async fn to_total(cluster: &Cluster, events: &Lines) -> Result<f64, Failure> {
    checkins::create_table(cluster, DATABASE);
    checkins::create_place(cluster, DATABASE);
    let (_server, address) = start().await?;
    let producers = connect_producers(&address).await?;
    let reader = cluster.connect(DATABASE).await;
    let consumer = create_consumer(&connect(&address).await?).await?;
    let consumer = consume(consumer, cluster.connect(DATABASE).await);
    checkins::rate_to_total(&reader, TOTAL, events.len(), produce(producers, events), consumer).await
}

/// Events a second until all were acknowledged; nobody consumes them.
pub async fn to_acknowledgement(_: &Cluster, events: &Lines) -> Result<f64, Failure> {
    let (_server, address) = start().await?;
    let producers = connect_producers(&address).await?;
    let started = Instant::now();
    produce(producers, events).await?;
    let seconds = started.elapsed().as_secs_f64();
    let stored = connect(&address).await?.get_stream(STREAM).await?.get_info().await?.state.messages;
    if stored != events.len() as u64 {
        return Err(format!("{stored} of {} events are in the stream", events.len()).into());
    }
    Ok(events.len() as f64 / seconds)
}

/// A server that says that it syncs each write, and the address of its clients.
async fn start() -> Result<(Server, String), Failure> {
    let directory = directory()?;
    let (clients, monitoring) = (free_port()?, free_port()?);
    let file = directory.path().join("nats.conf");
    std::fs::write(
        &file,
        format!(
            "listen: \"127.0.0.1:{clients}\"\nhttp: \"127.0.0.1:{monitoring}\"\n\
             jetstream {{ store_dir: \"{}\", sync_interval: always }}\n",
            directory.path().join("store").display()
        ),
    )?;
    let address = format!("127.0.0.1:{clients}");
    let agent: ureq::Agent = ureq::Agent::config_builder().proxy(None).build().new_agent();
    let answers = async || {
        // It opens the port for monitoring first.
        TcpStream::connect(&address).ok()?;
        let mut answer = agent.get(format!("http://127.0.0.1:{monitoring}/varz")).call().ok()?;
        serde_json::from_str::<Value>(&answer.body_mut().read_to_string().ok()?).ok()
    };
    let arguments = ["--config", file.to_str().ok_or("a path that is not UTF-8")?];
    let (server, variables) = Server::start(directory, &program("nats-server")?, &arguments, answers).await?;
    if variables["jetstream"]["config"]["sync_always"] != Value::Bool(true) {
        return Err(NotRun("this nats-server does not know sync_interval: always".to_owned()).into());
    }
    let configuration = stream::Config {
        name: STREAM.to_owned(),
        subjects: vec![STREAM.to_owned()],
        storage: stream::StorageType::File,
        // Numbers of messages, by which duplicates are told, are not given.
        duplicate_window: Duration::from_secs(1),
        ..stream::Config::default()
    };
    connect(&address).await?.create_stream(configuration).await?;
    Ok((server, address))
}

async fn connect(address: &str) -> Result<Context, Failure> {
    let mut context = async_nats::jetstream::new(async_nats::connect(address).await?);
    context.set_timeout(Duration::from_secs(60));
    Ok(context)
}

async fn connect_producers(address: &str) -> Result<Vec<Context>, Failure> {
    let mut producers = Vec::new();
    for _ in 0..PRODUCERS {
        producers.push(connect(address).await?);
    }
    Ok(producers)
}

async fn create_consumer(context: &Context) -> Result<PullConsumer, Failure> {
    let configuration = pull::Config {
        durable_name: Some("total".to_owned()),
        ack_policy: async_nats::jetstream::consumer::AckPolicy::All,
        max_ack_pending: 2 * BATCH as i64,
        ..pull::Config::default()
    };
    Ok(context.get_stream(STREAM).await?.create_consumer(configuration).await?)
}

async fn produce(producers: Vec<Context>, events: &Lines) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for (number, producer) in producers.into_iter().enumerate() {
        let events = Arc::clone(events);
        tasks.spawn(async move {
            for request in events.chunks(REQUEST_EVENTS).skip(number).step_by(PRODUCERS) {
                let mut acknowledgements = Vec::with_capacity(REQUEST_EVENTS);
                for line in request {
                    acknowledgements.push(producer.publish(STREAM, line.clone().into()).await?);
                }
                for acknowledgement in acknowledgements {
                    acknowledgement.await?;
                }
            }
            Ok(())
        });
    }
    joined(tasks).await
}

/// Fetches batches until it is stopped.
fn consume(consumer: PullConsumer, mut postgres: tokio_postgres::Client) -> JoinHandle<Result<(), Failure>> {
    tokio::spawn(async move {
        loop {
            let mut batch = consumer.fetch().max_messages(BATCH).messages().await?;
            let mut folded = Folded::default();
            let mut last = None;
            while let Some(message) = batch.next().await {
                let message = message?;
                folded.add(&message.payload)?;
                last = Some(message);
            }
            let Some(last) = last else {
                tokio::time::sleep(Duration::from_millis(10)).await;
                continue;
            };
            let sequence = last.info()?.stream_sequence;
            folded.write(&mut postgres, &sequence.to_string()).await?;
            last.ack().await?;
        }
    })
}
