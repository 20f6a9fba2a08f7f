//! Writer threads: one per store shard, the only writer of its file.
//!
//! A writer takes all that queued during its last fsync, so the batch grows with the load and needs no timer. It
//! commits when its input is empty, when the batch holds `max_batch_size` events or [`BATCH_BYTES`], or
//! `max_batch_latency` after the batch's first event. Rows, receipts, new streams, the commit's number and the horizon
//! of that moment are one transaction; after it the blocks are completed and acks go out.
//!
//! When the disk is full or refuses, the batch is kept and retried: the horizon stands still, sources wait, the status
//! says why, nothing is lost. An error that a retry cannot mend ends the process, because recovery at start is the one
//! repair.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use rusqlite::{Connection, ErrorCode, OptionalExtension, params};
use uuid::Uuid;

use super::channel::{Block, BlockReceiver, Input};
use super::checkpoint::Checkpoints;
use super::expire::expire;
use super::forget::forget;
use super::horizon::Horizon;
use super::shard::{EventRow, Receipt, ReceiptKind, ShardHeader, StreamRow};
use super::stream_hash::StreamHash;

/// The most bytes of events in a transaction, so that memory is bounded by bytes as well (LOG-6).
pub const BATCH_BYTES: usize = 16 << 20;

/// Types of events that a writer remembers; of further ones each batch asks the table.
pub const KNOWN_TYPES: usize = 10_000;

const FIRST_RETRY: Duration = Duration::from_millis(100);
const LAST_RETRY: Duration = Duration::from_secs(5);

/// What a writer shows of itself.
#[derive(Debug, Default)]
pub struct WriterStatus {
    /// Why it waits, if it does.
    waiting: Mutex<Option<String>>,
    /// Pages that a reader keeps in the shard's WAL, if they are many; else 0.
    held_back: AtomicU64,
    /// Why it waited, when that is over and nobody has taken it yet.
    overcome: Mutex<Option<String>>,
    /// Events committed since the start of the process.
    committed: AtomicU64,
    /// The number of the shard's last commit.
    commit_number: AtomicU64,
}

impl WriterStatus {
    /// Why the writer waits, if it does.
    pub fn waiting(&self) -> Option<String> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// What there is to tell of a writer that does not wait.
    pub fn trouble(&self) -> Option<String> {
        let pages = self.held_back.load(Ordering::Relaxed);
        (pages > 0).then(|| {
            format!("a program that reads the file keeps {pages} pages in its WAL, which grows until that program ends")
        })
    }

    /// Why the writer waited, once when that is over.
    pub fn take_overcome(&self) -> Option<String> {
        self.overcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Events committed since the start of the process.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::Relaxed)
    }

    /// The number of the shard's last commit, which is durable.
    pub fn commit_number(&self) -> u64 {
        self.commit_number.load(Ordering::Acquire)
    }

    /// The status of a shard whose last commit has this number.
    pub fn new(commit_number: u64) -> WriterStatus {
        WriterStatus { commit_number: AtomicU64::new(commit_number), ..WriterStatus::default() }
    }

    fn set_waiting(&self, reason: Option<String>) {
        *self.waiting.lock().unwrap_or_else(PoisonError::into_inner) = reason;
    }
}

/// Tells waiting writers that the log is closing.
#[derive(Debug, Default)]
pub struct Closing {
    closing: AtomicBool,
    lock: Mutex<()>,
    wake: Condvar,
}

impl Closing {
    /// From now on a writer that cannot commit gives up instead of waiting.
    pub fn close(&self) {
        let _guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        self.closing.store(true, Ordering::SeqCst);
        self.wake.notify_all();
    }

    /// Waits for `duration`; true if the log closes before or meanwhile.
    pub fn wait(&self, duration: Duration) -> bool {
        let guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let open = |_: &mut ()| !self.closing.load(Ordering::SeqCst);
        drop(self.wake.wait_timeout_while(guard, duration, open));
        self.closing.load(Ordering::SeqCst)
    }
}

/// When a writer commits, besides an empty input.
#[derive(Debug, Clone, Copy)]
pub struct CommitLimits {
    /// The most events of a transaction.
    pub events: usize,
    /// The longest time from a batch's first event to its commit.
    pub latency: Duration,
    /// Free bytes on the disk below which nothing is written.
    pub disk_reserve_bytes: u64,
    /// Pages of the WAL after which it is copied into the database.
    pub checkpoint_pages: u64,
}

/// What retention wants of a shard's owner.
#[derive(Debug)]
pub enum Chore {
    /// Delete at most `rows` events at or below `floor`.
    Expire {
        /// The floor.
        floor: u64,
        /// The most rows.
        rows: u64,
    },
    /// Delete what the shard knows of streams that are let go.
    Forget {
        /// Their numbers.
        streams: Vec<u64>,
    },
}

impl Chore {
    /// Does it, and returns how many events were deleted. `known` are the streams in the shard's `stream` table.
    ///
    /// # Errors
    /// SQLite's; nothing has changed then.
    pub fn perform(&self, connection: &mut Connection, known: &mut HashSet<u64>) -> rusqlite::Result<u64> {
        match self {
            Chore::Expire { floor, rows } => expire(connection, *floor, *rows),
            Chore::Forget { streams } => {
                forget(connection, streams)?;
                known.retain(|stream| !streams.contains(stream));
                Ok(0)
            }
        }
    }
}

/// Retention's command to a writer.
pub struct Order {
    /// What to do.
    pub chore: Chore,
    /// Gets the number of events that were deleted, or what is wrong.
    pub done: Sender<Result<u64, String>>,
}

/// One shard's writer.
pub struct Writer {
    /// The shard's number.
    pub shard: u32,
    /// The log's id.
    pub log_id: Uuid,
    /// The shard's only read-write connection.
    pub connection: Connection,
    /// The shard's checkpoints.
    pub checkpoints: Checkpoints,
    /// Streams that the shard's `stream` table holds.
    pub streams: HashSet<u64>,
    /// Types of events that the shard's `event_type` table is known to hold; not more than [`KNOWN_TYPES`].
    pub types: HashSet<String>,
    /// The number of the shard's last commit.
    pub commit_number: u64,
    /// When to commit; may be changed between two batches.
    pub limits: Arc<Mutex<CommitLimits>>,
    /// The directory whose disk has the reserve.
    pub directory: PathBuf,
    /// The log's horizon.
    pub horizon: Arc<Horizon>,
    /// What the status shows.
    pub status: Arc<WriterStatus>,
    /// Whether the log is closing.
    pub closing: Arc<Closing>,
}

impl Writer {
    /// Serves blocks until all drains are gone and everything is committed.
    ///
    /// # Errors
    /// A text for the log if the last batches could not be written because the log was closed while the disk refused.
    pub fn run(mut self, input: &BlockReceiver, commands: &Receiver<Order>) -> Result<(), String> {
        let mut left_over = None;
        loop {
            let first = match left_over.take() {
                Some(block) => block,
                None => match input.receive_or(commands) {
                    Input::Block(block) => block,
                    Input::Command(command) => {
                        self.obey(command);
                        continue;
                    }
                    Input::Closed => return Ok(()),
                },
            };
            let limits = self.limits();
            let started = Instant::now();
            let mut batch = Batch::default();
            batch.push(first);
            while batch.events < limits.events && batch.bytes < BATCH_BYTES && started.elapsed() < limits.latency {
                match input.try_receive() {
                    Some(block) if batch.events + block.events.len() > limits.events => {
                        left_over = Some(block);
                        break;
                    }
                    Some(block) => batch.push(block),
                    None => break,
                }
            }
            self.write(&batch, commands)?;
            let firsts: Vec<u64> = batch.blocks.iter().map(|block| block.first_position).collect();
            self.status.committed.fetch_add(batch.events as u64, Ordering::Relaxed);
            self.horizon.complete(&firsts);
            // Behind the acknowledgements, which need not wait for it.
            self.make_checkpoint();
        }
    }

    fn make_checkpoint(&mut self) {
        let pages = self.limits().checkpoint_pages;
        if let Err(error) = self.checkpoints.after_commit(&self.connection, pages) {
            // The events are durable in the WAL; a full disk that causes this shows at the next commit.
            tracing::warn!(shard = self.shard, "checkpoint: {error}; it is tried again");
        }
        let held_back = self.checkpoints.held_back(pages).unwrap_or(0);
        if self.status.held_back.swap(held_back, Ordering::Relaxed) == 0
            && let Some(trouble) = self.status.trouble()
        {
            tracing::warn!(shard = self.shard, "{trouble}");
        }
    }

    fn limits(&self) -> CommitLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn obey(&mut self, Order { chore, done }: Order) {
        let deleted = chore.perform(&mut self.connection, &mut self.streams).map_err(|error| error.to_string());
        self.make_checkpoint();
        // Whoever asked is gone only when the log closes.
        let _ = done.send(deleted);
    }

    /// Waits for `pause`, or until something was deleted, which may have made room; true if the log closes.
    fn wait(&mut self, pause: Duration, commands: &Receiver<Order>) -> bool {
        let deadline = Instant::now() + pause;
        match commands.recv_deadline(deadline) {
            Ok(command) => {
                self.obey(command);
                self.closing.wait(Duration::ZERO)
            }
            Err(RecvTimeoutError::Timeout) => self.closing.wait(Duration::ZERO),
            // Nobody commands any more.
            Err(RecvTimeoutError::Disconnected) => self.closing.wait(deadline.duration_since(Instant::now())),
        }
    }

    /// Commits a batch, however long it takes.
    fn write(&mut self, batch: &Batch, commands: &Receiver<Order>) -> Result<(), String> {
        let mut pause = FIRST_RETRY;
        loop {
            let Err(error) = self.check_reserve(batch).and_then(|()| self.commit(batch)) else {
                if let Some(reason) = self.status.waiting() {
                    tracing::info!(shard = self.shard, "store shard accepts writes again");
                    *self.status.overcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
                    self.status.set_waiting(None);
                }
                return Ok(());
            };
            assert!(
                is_transient(&error),
                "store shard {} cannot be written and a retry cannot mend it: {error}; the process ends, acknowledged \
                 events are safe",
                self.shard
            );
            let reason = format!("store shard {} cannot be written: {error}", self.shard);
            if self.status.waiting().is_none() {
                tracing::error!("{reason}; sources wait, it is tried again");
            }
            self.status.set_waiting(Some(reason.clone()));
            if self.wait(pause, commands) {
                return Err(reason);
            }
            pause = (pause * 2).min(LAST_RETRY);
        }
    }

    /// A disk whose free space is down to the reserve counts as full: what is left is for deletes and checkpoints. Pages
    /// that deletes have freed are room in the file.
    fn check_reserve(&self, batch: &Batch) -> rusqlite::Result<()> {
        let reserve = self.limits().disk_reserve_bytes;
        if reserve == 0 {
            return Ok(());
        }
        let free = rustix::fs::statvfs(&self.directory).map_or(u64::MAX, |disk| disk.f_bavail * disk.f_frsize);
        if free >= reserve {
            return Ok(());
        }
        let pragma = |name: &str| self.connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
        if pragma("freelist_count")? * pragma("page_size")? >= 2 * batch.bytes as u64 {
            return Ok(());
        }
        let text = format!("{free} bytes are free on its disk, and disk_reserve_bytes keeps {reserve}");
        Err(rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_FULL), Some(text)))
    }

    fn commit(&mut self, batch: &Batch) -> rusqlite::Result<()> {
        let stored_at = now_ms();
        let transaction = self.connection.transaction()?;
        let mut new_streams = Vec::new();
        let mut new_types = HashSet::new();
        let mut receipts: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        {
            let mut insert_event = EventRow::prepare_insert(&transaction)?;
            for block in &batch.blocks {
                let stream = block.stream.number;
                if !self.streams.contains(&stream) && !new_streams.contains(&stream) {
                    let (name, epoch) = (&block.stream.name, block.stream.epoch);
                    StreamRow { number: stream, name, epoch, last_stored_at: stored_at }.insert(&transaction)?;
                    new_streams.push(stream);
                }
                for event in &block.events {
                    if !self.types.contains(&event.event_type) && new_types.insert(event.event_type.clone()) {
                        transaction
                            .prepare_cached("INSERT OR IGNORE INTO event_type (type) VALUES (?1)")?
                            .execute([&event.event_type])?;
                    }
                }
                for (event, offset) in block.events.iter().zip(0u64..) {
                    let row = EventRow {
                        position: block.first_position + offset,
                        stream,
                        sequence: block.first_sequence + offset,
                        cpu: block.cpu,
                        event_type: &event.event_type,
                        key: &event.key,
                        ts: event.ts,
                        stored_at,
                        payload: &event.payload,
                    };
                    row.insert(&mut insert_event)?;
                }
                let last = block.first_sequence + block.events.len() as u64 - 1;
                if let Some(hash) = block.hash {
                    StreamHash { stream, sequence: last, hash }.insert(&transaction)?;
                }
                match receipts.get_mut(&stream) {
                    Some(run) if run.1 + 1 == block.first_sequence => run.1 = last,
                    Some(run) => {
                        let before = std::mem::replace(run, (block.first_sequence, last));
                        write_receipt(&transaction, stream, before)?;
                    }
                    None => drop(receipts.insert(stream, (block.first_sequence, last))),
                }
            }
            for (stream, run) in &receipts {
                write_receipt(&transaction, *stream, *run)?;
            }
            let commit_number = self.commit_number + 1;
            ShardHeader { log_id: self.log_id, commit_number, horizon: self.horizon.position() }
                .write(&transaction, self.shard)?;
        }
        transaction.commit()?;
        self.commit_number += 1;
        self.status.commit_number.store(self.commit_number, Ordering::Release);
        self.streams.extend(new_streams);
        if self.types.len() + new_types.len() <= KNOWN_TYPES {
            self.types.extend(new_types);
        }
        Ok(())
    }
}

/// Writes the receipt of a run of stored events. If it begins where the shard's last one of the stream ends, that one
/// becomes longer: a stream that always goes to one shard has one row. A row that does not match its checksum stays as it
/// is, so that the damage is found and not covered up.
fn write_receipt(connection: &Connection, stream: u64, (first, last): (u64, u64)) -> rusqlite::Result<()> {
    let kind = ReceiptKind::Stored;
    let before: Option<(Receipt, u8, u32)> = connection
        .prepare_cached(
            "SELECT first_sequence, last_sequence, kind, crc FROM receipt WHERE stream = ?1
             ORDER BY first_sequence DESC LIMIT 1",
        )?
        .query_row([stream], |row| {
            let stored = Receipt { stream, first_sequence: row.get(0)?, last_sequence: row.get(1)?, kind };
            Ok((stored, row.get(2)?, row.get(3)?))
        })
        .optional()?;
    let joined = before.filter(|(stored, stored_kind, crc)| {
        stored.last_sequence + 1 == first && *stored_kind == kind.number() && stored.crc() == *crc
    });
    let first_sequence = joined.as_ref().map_or(first, |(stored, _, _)| stored.first_sequence);
    if joined.is_some() {
        connection
            .prepare_cached("DELETE FROM receipt WHERE stream = ?1 AND first_sequence = ?2")?
            .execute(params![stream, first_sequence])?;
    }
    Receipt { stream, first_sequence, last_sequence: last, kind }.insert(connection)
}

#[derive(Default)]
struct Batch {
    blocks: Vec<Block>,
    events: usize,
    bytes: usize,
}

impl Batch {
    fn push(&mut self, block: Block) {
        self.events += block.events.len();
        self.bytes += block.size_bytes();
        self.blocks.push(block);
    }
}

/// Whether the same write can succeed when the disk or another process has given way.
fn is_transient(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::CannotOpen
                | ErrorCode::OutOfMemory
                | ErrorCode::ReadOnly
        )
    )
}

/// The time in milliseconds since 1970 UTC.
pub fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as i64)
}
