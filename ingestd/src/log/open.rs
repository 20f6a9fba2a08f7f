//! A running log: its threads, and the door through which requests come in.

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use core_affinity::CoreId;
use lanes_core::log::assignment::shards_of;
use serde::Serialize;
use tokio::sync::{Semaphore, mpsc, oneshot};
use uuid::Uuid;

use super::channel;
use super::checkpoint::{Checkpoints, Turn};
use super::directory::{Directory, DirectoryError, shard_path};
use super::drain::{Answer, Command, Drain, INBOX_REQUESTS, ProducerState, Refusal, Request, Source};
use super::forget::Producers;
use super::horizon::Horizon;
use super::keeper::Keeper;
use super::own::Happened;
use super::recovery::{RecoveryError, RecoverySettings, recover};
use super::retention::{HoldSource, Owner, Retention, RetentionSettings};
use super::shard::{ShardError, open_reader, open_writer};
use super::stream::{DAEMON_STREAM, NameError, StreamKey, StreamRegistry, check_name};
use super::stream_hash::HashReader;
use super::writer::{Closing, CommitLimits, Order, Writer, WriterStatus, now_ms};

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
    /// When writers commit.
    pub limits: CommitLimits,
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
    /// Why it waits, or what else is wrong.
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
    registry: Arc<StreamRegistry>,
    hashes: HashReader,
    inboxes: Vec<mpsc::Sender<Command>>,
    next_anonymous: AtomicUsize,
    statuses: Vec<Arc<WriterStatus>>,
    historical: Vec<u32>,
    closing: Arc<Closing>,
    drains: Vec<JoinHandle<()>>,
    writers: Vec<JoinHandle<Result<(), String>>>,
    commands: Vec<crossbeam_channel::Sender<Order>>,
    limits: Arc<Mutex<CommitLimits>>,
    keeper: Arc<Keeper>,
    threads: Vec<JoinHandle<()>>,
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
        0 => drain_count as u32,
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
    let keys = recovered.streams.values().map(|(key, _)| key);
    let registry = Arc::new(StreamRegistry::new(keys, settings.max_streams, drain_count));
    let limits = Arc::new(Mutex::new(settings.limits));
    let turn = Turn::default();
    let statuses: Vec<Arc<WriterStatus>> =
        recovered.active.iter().map(|active| Arc::new(WriterStatus::new(active.commit_number))).collect();
    // Before any thread is started, which would outlive a refusal.
    let keeper = Keeper::open(
        directory.path(),
        recovered.log_id,
        recovered.floor,
        Arc::clone(&horizon),
        statuses.clone(),
        recovered.historical.iter().map(|(_, commit_number)| *commit_number).collect(),
    )
    .map_err(|error| LogError::Watermark(directory.path().to_owned(), error))?;
    let keeper = Arc::new(keeper);
    let (mut senders, mut writers, mut commands) = (Vec::new(), Vec::new(), Vec::new());
    for ((shard, active), status) in (0..).zip(recovered.active).zip(&statuses) {
        let (sender, receiver) = channel::bounded(CHANNEL_BLOCKS, CHANNEL_BYTES);
        let mut connection = active.connection;
        let checkpoints = Checkpoints::take_over(&mut connection, Arc::clone(&turn))
            .map_err(|error| ShardError::Sqlite(shard_path(directory.path(), shard), error))
            .map_err(RecoveryError::Shard)?;
        let writer = Writer {
            shard,
            log_id: recovered.log_id,
            connection,
            checkpoints,
            streams: active.streams,
            types: HashSet::new(),
            commit_number: active.commit_number,
            limits: Arc::clone(&limits),
            directory: directory.path().to_owned(),
            horizon: Arc::clone(&horizon),
            status: Arc::clone(status),
            closing: Arc::clone(&closing),
        };
        let thread = std::thread::Builder::new().name(format!("writer-{shard}"));
        // Whoever sends a command waits for its answer, so none may stay behind in a queue when the writer ends.
        let (command, queue) = crossbeam_channel::bounded(0);
        writers.push(thread.spawn(move || writer.run(&receiver, &queue))?);
        commands.push(command);
        senders.push(sender);
    }
    let keeping = std::thread::Builder::new().name("watermark".to_owned()).spawn({
        let (keeper, closing) = (Arc::clone(&keeper), Arc::clone(&closing));
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
            registry: Arc::clone(&registry),
            horizon: Arc::clone(&horizon),
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
        hashes: HashReader::new(directory.path()),
        directory,
        log_id: recovered.log_id,
        horizon,
        registry,
        inboxes,
        next_anonymous: AtomicUsize::new(0),
        statuses,
        historical: recovered.historical.iter().map(|(shard, _)| *shard).collect(),
        closing,
        drains,
        writers,
        commands,
        limits,
        keeper,
        threads: vec![keeping],
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

    /// The hashes of streams.
    pub fn hashes(&self) -> &HashReader {
        &self.hashes
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

    /// Starts to delete the low end of the log, as far as `hold` allows.
    ///
    /// # Errors
    /// [`LogError`] if a shard cannot be opened for it.
    pub fn start_retention(
        &mut self,
        settings: Arc<Mutex<RetentionSettings>>,
        hold: HoldSource,
    ) -> Result<(), LogError> {
        let mut shards = Vec::new();
        let shard_error = |error: ShardError| LogError::Recovery(RecoveryError::Shard(error));
        for (shard, command) in (0..).zip(&self.commands) {
            let reader = open_reader(&shard_path(self.directory.path(), shard)).map_err(shard_error)?;
            shards.push((reader, Owner::Writer(command.clone())));
        }
        for shard in &self.historical {
            let path = shard_path(self.directory.path(), *shard);
            let writer = open_writer(&path, self.log_id, *shard, now_ms()).map_err(shard_error)?;
            shards.push((open_reader(&path).map_err(shard_error)?, Owner::Here(writer)));
        }
        let producers = Producers { registry: Arc::clone(&self.registry), inboxes: self.inboxes.clone() };
        let (horizon, keeper) = (Arc::clone(&self.horizon), Arc::clone(&self.keeper));
        let retention = Retention { settings, horizon, keeper, shards, producers, hold };
        let closing = Arc::clone(&self.closing);
        let thread = std::thread::Builder::new().name("retention".to_owned());
        self.threads.push(thread.spawn(move || retention.run(&closing))?);
        Ok(())
    }

    /// Changes when writers commit, from their next batches on.
    pub fn set_limits(&self, limits: CommitLimits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    /// The position up to which retention has deleted.
    pub fn floor(&self) -> u64 {
        self.keeper.floor()
    }

    /// Tells the floor, also after this value was moved.
    pub fn floor_source(&self) -> impl Fn() -> u64 + Send + Sync + 'static {
        let keeper = Arc::clone(&self.keeper);
        move || keeper.floor()
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
            let reason = reason.or_else(|| status.trouble());
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
            floor: self.keeper.floor(),
            uncommitted: self.horizon.uncommitted(),
            drains: self.inboxes.len(),
            shards: active.chain(historical).collect(),
        }
    }

    /// Store shards that could not be written for a while, and can be again since this was asked last: number and reason.
    pub fn take_overcome(&self) -> Vec<(u32, String)> {
        let statuses = (0..).zip(&self.statuses);
        statuses.filter_map(|(shard, status)| Some((shard, status.take_overcome()?))).collect()
    }

    /// Takes no more requests, commits what was taken, and ends the threads. Blocks.
    ///
    /// # Errors
    /// A text for the log if some of what was taken, and not acknowledged, could not be written.
    pub fn close(self) -> Result<(), String> {
        self.closing.close();
        drop(self.inboxes);
        drop(self.commands);
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
        for thread in self.threads {
            let _ = thread.join();
        }
        if let Err(error) = self.keeper.close() {
            tracing::error!("the watermark cannot be written: {error}");
        }
        result
    }
}
