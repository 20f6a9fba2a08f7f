//! A running log: its threads, and the door through which requests come in.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use core_affinity::CoreId;
use lanes_core::log::assignment::shards_of;
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc, oneshot};
use uuid::Uuid;

use super::channel;
use super::directory::{Directory, DirectoryError, MAXIMUM_SHARDS};
use super::drain::{Answer, Command, Drain, INBOX_REQUESTS, ProducerState, Refusal, Request, STRIPE_EVENTS, Source};
use super::horizon::Horizon;
use super::own::Happened;
use super::recovery::{RecoveryError, RecoverySettings, recover};
use super::stream::{DAEMON_STREAM, NameError, StreamKey, StreamRegistry, check_name};
use super::watermark::{Watermark, WatermarkWriter};
use super::writer::{Closing, CommitLimits, Writer, WriterStatus, now_ms};

/// Blocks that wait for a writer.
const CHANNEL_BLOCKS: usize = 1024;

/// Bytes of events that wait for a writer.
const CHANNEL_BYTES: usize = 8 << 20;

/// Time between two looks whether the watermark must move.
const WATERMARK_INTERVAL: Duration = Duration::from_millis(100);

/// Time between two syncs of the watermark.
const WATERMARK_SYNC_INTERVAL: Duration = Duration::from_secs(1);

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
    /// Whether an operator has given up what the log has lost.
    pub accept_loss: bool,
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
    /// The watermark file cannot be written.
    #[error("cannot write the watermark in {0}: {1}")]
    Watermark(PathBuf, std::io::Error),
    /// More drains than streams are reserved for.
    #[error("{0} drain threads are too many; set drain_threads to at most {DAEMON_STREAM}")]
    TooManyDrains(usize),
}

/// What a log shows of itself.
#[derive(Debug, Default, Serialize)]
pub struct LogReport {
    /// The log's id.
    pub log_id: Uuid,
    /// Every position up to this one is durable.
    pub horizon: u64,
    /// The position up to which retention has deleted.
    pub floor: u64,
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
    inboxes: Vec<mpsc::Sender<Command>>,
    next_anonymous: AtomicUsize,
    statuses: Vec<Arc<WriterStatus>>,
    historical: Vec<(u32, u64)>,
    floor: u64,
    closing: Arc<Closing>,
    drains: Vec<JoinHandle<()>>,
    writers: Vec<JoinHandle<Result<(), String>>>,
    keeper: JoinHandle<Keeper>,
    started: Happened,
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
    if drain_count as u64 > DAEMON_STREAM {
        return Err(LogError::TooManyDrains(drain_count));
    }
    let shard_count = match settings.storage_shards {
        0 => (drain_count as u32).min(MAXIMUM_SHARDS),
        count => count,
    };
    let how = RecoverySettings { shard_count, accept_loss: settings.accept_loss, now: now_ms() };
    let recovered = recover(directory.path(), how)?;
    for loss in &recovered.losses {
        tracing::warn!("given up with --accept-loss: {loss}");
    }
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
    let registry =
        StreamRegistry::new(recovered.streams.values().map(|(key, _)| key), settings.max_streams, drain_count);
    let limits = CommitLimits { events: settings.max_batch_size, latency: settings.max_batch_latency };
    let (mut senders, mut writers, mut statuses) = (Vec::new(), Vec::new(), Vec::new());
    for (shard, active) in (0..).zip(recovered.active) {
        let (sender, receiver) = channel::bounded(CHANNEL_BLOCKS, CHANNEL_BYTES);
        let status = Arc::new(WriterStatus::new(active.commit_number));
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
    let keeper = Keeper {
        log_id: recovered.log_id,
        floor: recovered.floor,
        horizon: Arc::clone(&horizon),
        statuses: statuses.clone(),
        historical: recovered.historical.clone(),
        writer: None,
        written: None,
        synced_at: Instant::now(),
    };
    let keeper =
        keeper.create(directory.path()).map_err(|error| LogError::Watermark(directory.path().to_owned(), error))?;
    let keeper = std::thread::Builder::new().name("watermark".to_owned()).spawn({
        let closing = Arc::clone(&closing);
        move || keeper.run(&closing)
    })?;
    let started = Happened::Started {
        version: env!("CARGO_PKG_VERSION"),
        shards: shard_count,
        historical: recovered.historical.len() as u32,
        drains: drain_count,
        cut_rows: recovered.cut_rows,
    };
    let open_epochs = open_epochs(recovered.streams.values().map(|(key, _)| key));
    let mut streams = recovered.streams;
    // Of a producer's streams only the one of its open epoch can still be written to.
    streams.retain(|number, (key, _)| open_epochs.get(&key.name).is_none_or(|open| open.number == *number));
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
            streams: streams
                .extract_if(|number, _| drain_of(*number, drain_count) == ordinal as usize)
                .map(|(number, (_, state))| (number, state))
                .collect(),
            producers: open_epochs
                .iter()
                .filter(|(_, key)| drain_of(key.number, drain_count) == ordinal as usize)
                .map(|(name, key)| (Arc::clone(name), key.clone()))
                .collect(),
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
        floor: recovered.floor,
        closing,
        drains,
        writers,
        keeper,
        started,
    })
}

/// The stream of each producer's open epoch: the greatest of which anything is known.
fn open_epochs<'a>(streams: impl Iterator<Item = &'a StreamKey>) -> HashMap<Arc<str>, StreamKey> {
    let mut open: HashMap<Arc<str>, StreamKey> = HashMap::new();
    for key in streams.filter(|key| key.number > DAEMON_STREAM) {
        let newest = open.entry(Arc::clone(&key.name)).or_insert_with(|| key.clone());
        if key.epoch > newest.epoch {
            *newest = key.clone();
        }
    }
    open
}

/// Keeps the watermark file near the log.
#[derive(Debug)]
struct Keeper {
    log_id: Uuid,
    floor: u64,
    horizon: Arc<Horizon>,
    statuses: Vec<Arc<WriterStatus>>,
    historical: Vec<(u32, u64)>,
    writer: Option<WatermarkWriter>,
    /// What the file says, synced or not.
    written: Option<Watermark>,
    synced_at: Instant,
}

impl Keeper {
    /// What the watermark should say. The horizon is read first, so the commits it needs are among those counted.
    fn now(&self) -> Watermark {
        let horizon = self.horizon.position();
        let active = self.statuses.iter().map(|status| status.commit_number());
        let historical = self.historical.iter().map(|(_, commit_number)| *commit_number);
        Watermark {
            log_id: self.log_id,
            floor: self.floor,
            horizon,
            commit_numbers: active.chain(historical).collect(),
        }
    }

    fn create(mut self, directory: &std::path::Path) -> std::io::Result<Keeper> {
        let now = self.now();
        self.writer = Some(WatermarkWriter::create(directory, &now)?);
        self.written = Some(now);
        Ok(self)
    }

    /// Follows the horizon until the log closes.
    fn run(mut self, closing: &Closing) -> Keeper {
        let mut dirty = false;
        while !closing.wait(WATERMARK_INTERVAL) {
            let now = self.now();
            let Some(writer) = &mut self.writer else { break };
            let mut result = Ok(());
            if self.written.as_ref() != Some(&now) {
                result = writer.write(&now);
                self.written = Some(now);
                dirty = true;
            }
            if result.is_ok() && dirty && self.synced_at.elapsed() >= WATERMARK_SYNC_INTERVAL {
                result = writer.sync();
                self.synced_at = Instant::now();
                dirty = false;
            }
            if let Err(error) = result {
                // The log itself goes on: what the file cannot say now is only a weaker check at the next start.
                tracing::error!("the watermark cannot be written: {error}");
                self.written = None;
            }
        }
        self
    }

    /// Writes the last state.
    fn close(mut self) -> std::io::Result<()> {
        let now = self.now();
        match &mut self.writer {
            Some(writer) => writer.write(&now).and_then(|()| writer.sync()),
            None => Ok(()),
        }
    }
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
            // Not by the number: that of an epoch that was closed in an earlier process may have another remainder.
            Source::Producer { ref stream, .. } => {
                self.registry.drain_of(&stream.name).unwrap_or_else(|| drain_of(stream.number, self.inboxes.len()))
            }
            Source::Daemon => drain_of(DAEMON_STREAM, self.inboxes.len()),
            Source::Anonymous => self.next_anonymous.fetch_add(1, Ordering::Relaxed) % self.inboxes.len(),
        };
        let command = Command::Store(request);
        match self.inboxes[drain].send(command).await {
            Ok(()) => Ok(()),
            Err(mpsc::error::SendError(Command::Store(request))) => Err(request),
            // What was sent is what comes back.
            Err(_) => Ok(()),
        }
    }

    /// Tells where a producer is, when everything it sent so far is durable. An unknown one is in epoch 0 and expects 1.
    ///
    /// # Errors
    /// [`NameError`] for a name that cannot be a producer's; none for a log that is closing.
    pub async fn producer(&self, name: &str) -> Result<Option<ProducerState>, NameError> {
        check_name(name)?;
        let Some(drain) = self.registry.drain_of(name) else {
            return Ok(Some(ProducerState { epoch: 0, next_sequence: 1 }));
        };
        let (answer, reply) = oneshot::channel();
        let (epoch, in_epoch) = oneshot::channel();
        let command = Command::Describe { name: name.into(), answer, epoch };
        if self.inboxes[drain].send(command).await.is_err() {
            return Ok(None);
        }
        Ok(match (in_epoch.await, reply.await) {
            (Ok(epoch), Ok(Ok(ack))) => Some(ProducerState { epoch, next_sequence: ack.next_sequence }),
            _ => None,
        })
    }

    /// Stores a row of the daemon's own and waits until it is durable.
    ///
    /// # Errors
    /// [`Refusal`] if the log is closing.
    pub async fn tell(&self, happened: &Happened) -> Result<(), Refusal> {
        let (answer, reply) = oneshot::channel::<Answer>();
        let memory = Arc::new(Semaphore::new(1)).try_acquire_owned().map_err(|_| Refusal::Closing)?;
        let events = vec![happened.event(now_ms())];
        let request = Request { source: Source::Daemon, events, answer, memory };
        self.submit(request).await.map_err(|_| Refusal::Closing)?;
        reply.await.map_err(|_| Refusal::Closing)?.map(drop)
    }

    /// What there is to tell of this start.
    pub fn started(&self) -> &Happened {
        &self.started
    }

    /// What the log shows of itself.
    pub fn report(&self) -> LogReport {
        let active = (0..).zip(&self.statuses).map(|(shard, status)| {
            let reason = status.waiting();
            let state = if reason.is_some() { "waiting" } else { "active" };
            ShardReport { shard, state, reason, committed: status.committed() }
        });
        let historical = self.historical.iter().map(|(shard, _)| ShardReport {
            shard: *shard,
            state: "historical",
            reason: None,
            committed: 0,
        });
        LogReport {
            log_id: self.log_id,
            horizon: self.horizon.position(),
            floor: self.floor,
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
        if let Ok(keeper) = self.keeper.join()
            && let Err(error) = keeper.close()
        {
            tracing::error!("the watermark cannot be written: {error}");
        }
        result
    }
}
