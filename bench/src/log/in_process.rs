//! The in-process path: requests given to the drains of a log in this process, until all are acknowledged.

use std::collections::VecDeque;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ingestd::log::drain::{Request, Source};
use ingestd::log::writer::CommitLimits;
use ingestd::log::{Log, LogSettings, open};
use lanes_core::event::Event;
use tokio::sync::{Semaphore, oneshot};

use crate::log::{Clock, Speed};
use crate::measurement::Failure;
use crate::sample::{Flights, REQUEST_EVENTS};

/// Producers of each drain.
const PRODUCERS: usize = 2;

/// Requests of a producer that wait for their acknowledgement.
const IN_FLIGHT: usize = 64;

/// Stores `events` events as fast as it goes.
pub fn round(directory: &Path, shards: u32, flights: &Flights, events: u64) -> Result<Speed, Failure> {
    let log = Arc::new(open(&LogSettings {
        data_directory: directory.to_owned(),
        drain_threads: shards,
        storage_shards: shards,
        limits: CommitLimits {
            events: 10_000,
            latency: Duration::from_millis(100),
            disk_reserve_bytes: 64 << 20,
            checkpoint_pages: 1000,
        },
        max_streams: 1000,
        accept_loss: false,
    })?);
    let producers = PRODUCERS * shards as usize;
    let requests = events as usize / REQUEST_EVENTS / producers;
    let share = requests * REQUEST_EVENTS;
    let work: Vec<Vec<Vec<Event>>> = (0..producers)
        .map(|producer| {
            let first = producer * share;
            (0..requests).map(|number| flights.events(first + number * REQUEST_EVENTS, REQUEST_EVENTS)).collect()
        })
        .collect();
    let runtime = tokio::runtime::Builder::new_current_thread().build()?;
    let clock = Clock::start();
    let round = runtime.block_on(async {
        let mut tasks = Vec::new();
        for (producer, requests) in work.into_iter().enumerate() {
            tasks.push(tokio::spawn(produce(Arc::clone(&log), format!("producer-{producer}"), requests)));
        }
        for task in tasks {
            task.await??;
        }
        Ok::<_, Failure>(clock.stop(producers * share))
    })?;
    Arc::try_unwrap(log).map_err(|_| "the log is still in use")?.close()?;
    Ok(round)
}

async fn produce(log: Arc<Log>, name: String, requests: Vec<Vec<Event>>) -> Result<(), Failure> {
    let stream = log.registry().producer(&name, 0)?;
    let memory = Arc::new(Semaphore::new(requests.len()));
    let mut waiting = VecDeque::new();
    let mut first_sequence = 1;
    for events in requests {
        if waiting.len() == IN_FLIGHT {
            acknowledged(waiting.pop_front()).await?;
        }
        let source = Source::Producer { stream: stream.clone(), first_sequence, hash: None };
        first_sequence += events.len() as u64;
        let (answer, reply) = oneshot::channel();
        let memory = Arc::clone(&memory).acquire_owned().await?;
        log.submit(Request { source, events, answer, memory }).await.map_err(|_| "the log is closed")?;
        waiting.push_back(reply);
    }
    while let Some(reply) = waiting.pop_front() {
        acknowledged(Some(reply)).await?;
    }
    Ok(())
}

async fn acknowledged(reply: Option<oneshot::Receiver<ingestd::log::drain::Answer>>) -> Result<(), Failure> {
    if let Some(reply) = reply {
        reply.await??;
    }
    Ok(())
}
