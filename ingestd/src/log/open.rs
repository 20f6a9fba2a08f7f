//! A running log: its threads, and the door through which requests come in.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use core_affinity::CoreId;
use lanes_core::log::assignment::shards_of;
use serde::Serialize;
use tokio::sync::mpsc;
use uuid::Uuid;

use super::channel;
use super::directory::{Directory, DirectoryError, MAXIMUM_SHARDS};
use super::drain::{Drain, INBOX_REQUESTS, Request, STRIPE_EVENTS, Source};
use super::horizon::Horizon;
use super::recovery::{RecoveryError, recover};
use super::stream::{FIRST_PRODUCER, StreamRegistry};
use super::writer::{Closing, CommitLimits, Writer, WriterStatus, now_ms};

/// Blocks that wait for a writer.
const CHANNEL_BLOCKS: usize = 1024;

/// Bytes of events that wait for a writer.
const CHANNEL_BYTES: usize = 8 << 20;

/// How a log is opened.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// The data directory.
    pub data_directory: PathBuf,
    /// Drain threads; 0 = one for each CPU that the process may use.
    pub drain_threads: u32,
    /// Store shards; 0 = as many as drain threads.
    pub storage_shards: u32,
    /// The most events of a transaction.
    pub max_batch_size: usize,
    /// The longest time from a batch's first event to its commit.
    pub max_batch_latency: Duration,
    /// The most streams that the log knows.
    pub max_streams: usize,
}

/// Why a log cannot be opened. The text is one line.
#[derive(Debug, thiserror::Error)]
pub enum LogError {
    /// The directory cannot be used.
    #[error(transparent)]
    Directory(#[from] DirectoryError),
    /// Its contents cannot be used.
    #[error(transparent)]
    Recovery(#[from] RecoveryError),
    /// The operating system gives no thread.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
    /// More drains than streams are reserved for.
    #[error("{0} drain threads are too many; set drain_threads to at most {FIRST_PRODUCER}")]
    TooManyDrains(usize),
}

/// What a log shows of itself.
#[derive(Debug, Default, Serialize)]
pub struct LogReport {
    /// The log's id.
    pub log_id: Uuid,
    /// Every position up to this one is durable.
    pub horizon: u64,
    /// Positions given out and not durable yet.
    pub uncommitted: u64,
    /// Drain threads.
    pub drains: usize,
    /// The store shards.
    pub shards: Vec<ShardReport>,
}

/// What a store shard shows of itself.
#[derive(Debug, Serialize)]
pub struct ShardReport {
    /// Its number.
    pub shard: u32,
    /// `active`, `historical` (only read), or `waiting` (its disk refuses).
    pub state: &'static str,
    /// Why it waits.
    pub reason: Option<String>,
    /// Events committed since the daemon's start.
    pub committed: u64,
}

/// A running log.
#[derive(Debug)]
pub struct Log {
    directory: Directory,
    log_id: Uuid,
    horizon: Arc<Horizon>,
    registry: StreamRegistry,
    inboxes: Vec<mpsc::Sender<Request>>,
    next_anonymous: AtomicUsize,
    statuses: Vec<Arc<WriterStatus>>,
    historical: Vec<u32>,
    closing: Arc<Closing>,
    drains: Vec<JoinHandle<()>>,
    writers: Vec<JoinHandle<Result<(), String>>>,
}

/// Opens the log: takes the directory, recovers what is in it, starts the threads.
///
/// # Errors
/// [`LogError`].
pub fn open(settings: &LogSettings) -> Result<Log, LogError> {
    let directory = Directory::open(&settings.data_directory)?;
    let cpus = core_affinity::get_core_ids().filter(|cpus| !cpus.is_empty()).unwrap_or(vec![CoreId { id: 0 }]);
    let drain_count = match settings.drain_threads {
        0 => cpus.len(),
        count => count as usize,
    };
    if drain_count as u64 > FIRST_PRODUCER {
        return Err(LogError::TooManyDrains(drain_count));
    }
    let shard_count = match settings.storage_shards {
        0 => (drain_count as u32).min(MAXIMUM_SHARDS),
        count => count,
    };
    let recovered = recover(directory.path(), shard_count, now_ms())?;
    tracing::info!(
        log_id = %recovered.log_id,
        horizon = recovered.horizon,
        cut_rows = recovered.cut_rows,
        streams = recovered.streams.len(),
        shards = shard_count,
        historical = recovered.historical.len(),
        drains = drain_count,
        "log recovered"
    );

    let horizon = Arc::new(Horizon::new(recovered.horizon));
    let closing = Arc::new(Closing::default());
    let registry = StreamRegistry::new(
        recovered.streams.iter().map(|(number, state)| (*number, &state.name)),
        settings.max_streams,
    );
    let limits = CommitLimits { events: settings.max_batch_size, latency: settings.max_batch_latency };
    let (mut senders, mut writers, mut statuses) = (Vec::new(), Vec::new(), Vec::new());
    for (shard, active) in (0..).zip(recovered.active) {
        let (sender, receiver) = channel::bounded(CHANNEL_BLOCKS, CHANNEL_BYTES);
        let status = Arc::new(WriterStatus::default());
        let writer = Writer {
            shard,
            connection: active.connection,
            streams: active.streams,
            commit_number: active.commit_number,
            limits,
            horizon: Arc::clone(&horizon),
            status: Arc::clone(&status),
            closing: Arc::clone(&closing),
        };
        let thread = std::thread::Builder::new().name(format!("writer-{shard}"));
        writers.push(thread.spawn(move || writer.run(&receiver))?);
        senders.push(sender);
        statuses.push(status);
    }
    let mut streams = recovered.streams;
    let (mut inboxes, mut drains) = (Vec::new(), Vec::new());
    for ordinal in 0..drain_count as u32 {
        let cpu = cpus[ordinal as usize % cpus.len()];
        let drain = Drain {
            ordinal,
            cpu: cpu.id as u32,
            shards: shards_of(ordinal, drain_count as u32, shard_count)
                .into_iter()
                .map(|shard| senders[shard as usize].clone())
                .collect(),
            streams: streams.extract_if(|number, _| drain_of(*number, drain_count) == ordinal as usize).collect(),
            horizon: Arc::clone(&horizon),
            block_events: STRIPE_EVENTS.min(settings.max_batch_size),
        };
        let (inbox, requests) = mpsc::channel(INBOX_REQUESTS);
        let thread = std::thread::Builder::new().name(format!("drain-{ordinal}"));
        drains.push(thread.spawn(move || {
            // A drain that cannot be pinned works as well, only less evenly.
            if !core_affinity::set_for_current(cpu) {
                tracing::warn!(cpu = cpu.id, "the drain thread could not be pinned to its CPU");
            }
            drain.run(requests);
        })?);
        inboxes.push(inbox);
    }
    Ok(Log {
        directory,
        log_id: recovered.log_id,
        horizon,
        registry,
        inboxes,
        next_anonymous: AtomicUsize::new(0),
        statuses,
        historical: recovered.historical,
        closing,
        drains,
        writers,
    })
}

/// The drain that a stream belongs to for the life of the process.
fn drain_of(stream: u64, drains: usize) -> usize {
    (stream % drains as u64) as usize
}

impl Log {
    /// The log's id.
    pub fn log_id(&self) -> Uuid {
        self.log_id
    }

    /// The log's horizon.
    pub fn horizon(&self) -> &Arc<Horizon> {
        &self.horizon
    }

    /// The data directory.
    pub fn directory(&self) -> &std::path::Path {
        self.directory.path()
    }

    /// The streams by name.
    pub fn registry(&self) -> &StreamRegistry {
        &self.registry
    }

    /// Gives a request to the drain that its stream belongs to, waiting for room. The answer comes through the request.
    ///
    /// # Errors
    /// Gives the request back if the log is closing.
    pub async fn submit(&self, request: Request) -> Result<(), Request> {
        let drain = match request.source {
            Source::Producer { stream, .. } => drain_of(stream, self.inboxes.len()),
            Source::Anonymous => self.next_anonymous.fetch_add(1, Ordering::Relaxed) % self.inboxes.len(),
        };
        self.inboxes[drain].send(request).await.map_err(|error| error.0)
    }

    /// What the log shows of itself.
    pub fn report(&self) -> LogReport {
        let active = (0..).zip(&self.statuses).map(|(shard, status)| {
            let reason = status.waiting();
            let state = if reason.is_some() { "waiting" } else { "active" };
            ShardReport { shard, state, reason, committed: status.committed() }
        });
        let historical = self.historical.iter().map(|shard| ShardReport {
            shard: *shard,
            state: "historical",
            reason: None,
            committed: 0,
        });
        LogReport {
            log_id: self.log_id,
            horizon: self.horizon.position(),
            uncommitted: self.horizon.uncommitted(),
            drains: self.inboxes.len(),
            shards: active.chain(historical).collect(),
        }
    }

    /// Takes no more requests, commits what was taken, and ends the threads. Blocks.
    ///
    /// # Errors
    /// A text for the log if some of what was taken, and not acknowledged, could not be written.
    pub fn close(self) -> Result<(), String> {
        self.closing.close();
        drop(self.inboxes);
        for drain in self.drains {
            // A panic has ended the process already.
            let _ = drain.join();
        }
        let mut result = Ok(());
        for writer in self.writers {
            if let Ok(Err(reason)) = writer.join() {
                result = Err(reason);
            }
        }
        result
    }
}
