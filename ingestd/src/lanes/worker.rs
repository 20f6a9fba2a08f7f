//! A worker: one connection to Postgres, the lanes it owns, one transaction a batch.
//!
//! The transaction locks the lane's row and checks epoch, log and position (`lanes.begin_batch`), writes the folded rows,
//! and moves the checkpoint last (`lanes.commit_batch`), so rows and checkpoint are one (LANE-1, LANE-2). What became of
//! a COMMIT without an answer is settled by the next claim, which tells the checkpoint.
//!
//! When a batch fails: a lost connection loses all its lanes, which are claimed again; an error that passes is tried
//! again, less and less often; a batch with an event that cannot be applied is done in parts ([`super::parking`]); where
//! tables, columns or rights are missing the lane stops, and tries again less and less often.
//!
//! In mode `batch` a lane waits until it has so many events, or the first has waited so long. In mode `scheduled` it
//! does not take part in the shared reader, and reads for itself when its time comes.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use lanes_core::projection::policy::{Mode, Priority};
use lanes_core::projection::{DataError, EventView, Fold, Projection};
use tokio::sync::{Notify, Semaphore, watch};
use tokio::time::{Instant, sleep_until};
use tokio_postgres::types::ToSql;
use tokio_postgres::{Client, Config, Error, Statement};
use uuid::Uuid;

use super::board::{Board, LaneState};
use super::catalog::{Catalog, Known, LaneId};
use super::dispatcher::{Attachment, CHUNK_BYTES, CHUNK_EVENTS, Delivery, Dispatcher};
use super::parking::{Parked, WriteFailure, jittered, runs};
use super::priority::Pressure;
use super::session::{Fault, classify, connect, describe};
use crate::log::horizon::Horizon;
use crate::log::reader::{Chunk, LogReader, StoredEvent};

/// Lanes that read the log for themselves at the same time.
pub const CATCH_UP_READERS: usize = 4;

/// Time between two looks for lanes without an owner.
const CLAIM_INTERVAL: Duration = Duration::from_secs(1);

/// How long a lane without events of its own may show a lag (LANE-5).
pub(super) const FLUSH_INTERVAL: Duration = Duration::from_secs(1);

const TRANSIENT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(10));
const PERMANENT_PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));
const CONNECT_PAUSES: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(5));

/// The pause after the given number of failures in a row.
fn pause((first, last): (Duration, Duration), failures: u32) -> Duration {
    jittered(first.saturating_mul(1 << failures.min(16)).min(last))
}

/// Bytes of events that wait for a batch to be full; more are not held back.
const WAITING_BYTES: usize = CHUNK_BYTES;

/// How often the parked keys of a lane are looked at, for those whose retry somebody asked for.
const PARKED_INTERVAL: Duration = Duration::from_secs(1);

/// What all workers share.
pub struct Shared {
    /// How to reach Postgres.
    pub config: Config,
    /// The log's id.
    pub log_id: Uuid,
    /// The log's horizon.
    pub horizon: Arc<Horizon>,
    /// The position up to which retention has deleted.
    pub floor: Box<dyn Fn() -> u64 + Send + Sync>,
    /// The shared reader.
    pub dispatcher: Arc<Dispatcher>,
    /// Where the status is.
    pub board: Arc<Board>,
    /// Readers for lanes that catch up.
    pub readers: Readers,
    /// Workers in this process.
    pub workers: u32,
    /// The most events of a transaction.
    pub batch_events: usize,
    /// For each projection that limits it: how many of its lanes may be worked on now.
    pub concurrency: Mutex<HashMap<Arc<str>, Arc<Semaphore>>>,
    /// Who gives way.
    pub pressure: Arc<Pressure>,
}

impl Shared {
    /// A permit to work on a lane of the projection; none if it has no limit. `max_concurrency` counts from the time when
    /// the daemon first works on the projection.
    async fn permit(&self, known: &Known) -> Option<tokio::sync::OwnedSemaphorePermit> {
        let limit = known.rules.as_ref().ok()?.policy.max_concurrency?;
        let semaphore = {
            let mut all = self.concurrency.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(Semaphore::new(limit as usize));
            Arc::clone(all.entry(Arc::clone(&known.name)).or_insert_with(fresh))
        };
        semaphore.acquire_owned().await.ok()
    }
}

/// A few readers of the log, opened when they are first needed.
pub struct Readers {
    directory: std::path::PathBuf,
    permits: Semaphore,
    idle: Arc<Mutex<Vec<LogReader>>>,
}

impl Readers {
    /// Readers of the log in `directory`.
    pub fn new(directory: &std::path::Path) -> Readers {
        let (permits, idle) = (Semaphore::new(CATCH_UP_READERS), Arc::default());
        Readers { directory: directory.to_owned(), permits, idle }
    }

    /// A chunk of the log after `after` up to `until`.
    async fn read(&self, after: u64, until: u64) -> Result<Chunk, String> {
        let _permit = self.permits.acquire().await.map_err(|error| error.to_string())?;
        let (directory, idle) = (self.directory.clone(), Arc::clone(&self.idle));
        let read = move || {
            let reader = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let reader = match reader {
                Some(reader) => reader,
                None => LogReader::open(&directory)?,
            };
            let chunk = reader.read(after, until, CHUNK_EVENTS, CHUNK_BYTES);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            chunk
        };
        let chunk = tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?;
        chunk.map_err(|error| error.to_string())
    }
}

/// Runs worker `ordinal` until `stop` is true.
pub async fn run(
    shared: Arc<Shared>,
    ordinal: u32,
    catalog: watch::Receiver<Arc<Catalog>>,
    mut stop: watch::Receiver<bool>,
) {
    let name = format!("ingestd worker {ordinal}");
    let mut failures = 0;
    while !*stop.borrow() {
        match connect(&shared.config, &name).await {
            Ok(client) => {
                failures = 0;
                let mut session = Session {
                    shared: &shared,
                    name: &name,
                    ordinal,
                    client,
                    statements: HashMap::new(),
                    lanes: Vec::new(),
                    wake: Arc::new(Notify::new()),
                };
                let ended = session.work(catalog.clone(), &mut stop).await;
                let reason = ended.err();
                if let Some(reason) = &reason {
                    tracing::warn!(worker = ordinal, "connection to Postgres lost: {reason}");
                }
                for lane in session.lanes {
                    shared.dispatcher.detach(&lane.id);
                    shared.board.set(&lane.id, LaneState::Unowned, reason.clone());
                }
            }
            // The reporter says why Postgres is away.
            Err(error) => tracing::debug!(worker = ordinal, "cannot connect: {}", describe(&error)),
        }
        failures += 1;
        tokio::select! {
            () = tokio::time::sleep(pause(CONNECT_PAUSES, failures - 1)) => {}
            _ = stop.wait_for(|stop| *stop) => {}
        }
    }
}

/// A lane that this worker owns.
pub(super) struct Owned {
    pub(super) id: LaneId,
    pub(super) known: Arc<Known>,
    pub(super) epoch: i64,
    /// The checkpoint.
    pub(super) position: u64,
    /// Everything of the lane up to here is accounted for, in the checkpoint or because there was nothing, or waits.
    scanned_to: u64,
    /// Events that wait for a batch to be full.
    waiting: Vec<StoredEvent>,
    waiting_bytes: usize,
    /// When they wait no longer.
    batch_at: Option<Instant>,
    /// Up to where the lane reads alone although it is attached; none if it is not attached.
    attached: Option<u64>,
    /// In mode scheduled: the next time, and up to where the lane reads now.
    run_at: Instant,
    run_to: Option<u64>,
    /// Batches that failed in a row.
    pub(super) failures: u32,
    /// Events that failed in a row.
    pub(super) failed_in_a_row: u32,
    /// The next batch is done in parts from the start: somebody may have asked that an event be skipped.
    in_parts: bool,
    /// The parked keys of the lane.
    pub(super) parked: Parked,
    /// When they are looked at again.
    parked_at: Instant,
    /// Not before this moment is a batch tried again.
    retry_at: Option<Instant>,
    /// When the checkpoint must follow `scanned_to` although there was no event.
    flush_at: Option<Instant>,
    /// The reason that Postgres was told for the lane's standing still.
    recorded: Option<String>,
    /// The lane cannot go on for as long as this process lives.
    halted: bool,
    /// It gives way to lanes of higher priority.
    paused: bool,
}

impl Owned {
    fn mode(&self) -> Mode {
        self.known.rules.as_ref().map_or(Mode::Realtime, |rules| rules.policy.mode)
    }

    /// When there may be something to do although nothing came.
    fn deadline(&self) -> Option<Instant> {
        if self.halted || self.paused {
            return None;
        }
        let parked = (!self.parked.is_empty()).then_some(self.parked_at);
        let run = matches!(self.mode(), Mode::Scheduled { .. }).then_some(self.run_at);
        let due = self.parked.values().flatten().min().copied();
        if let Some(retry_at) = self.retry_at {
            return Some(retry_at);
        }
        [self.flush_at, self.batch_at, parked, run, due].into_iter().flatten().min()
    }
}

/// Why a batch was not applied.
pub(super) enum Failure {
    /// The connection is gone.
    Connection(String),
    /// The lane is somebody else's.
    LaneLost(String),
    /// It can be tried again.
    Transient(String),
    /// It cannot be applied as things are.
    Permanent(String),
    /// The checkpoint is not where this worker left it.
    Moved(u64),
    /// The event at this position cannot be applied, and everything of the lane before it is.
    AtEvent(u64, String),
    /// Some event cannot be applied, for this reason: the batch is to be done in parts.
    InParts(String),
}

impl Failure {
    /// What a failure means to a batch that is done in parts already: no event of it is to blame.
    fn of_parts(self) -> Failure {
        if let Failure::InParts(reason) = self { Failure::Permanent(reason) } else { self }
    }
}

impl Failure {
    /// What went wrong, where it does not matter what is to be done about it.
    fn into_reason(self) -> String {
        match self {
            Failure::Connection(reason)
            | Failure::Transient(reason)
            | Failure::Permanent(reason)
            | Failure::LaneLost(reason)
            | Failure::InParts(reason)
            | Failure::AtEvent(_, reason) => reason,
            Failure::Moved(position) => format!("the checkpoint moved to {position} meanwhile"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let reason = describe(&error);
        match classify(&error) {
            Fault::Connection => Failure::Connection(reason),
            Fault::LaneLost => Failure::LaneLost(reason),
            Fault::Transient | Fault::Canceled => Failure::Transient(reason),
            Fault::Definition => Failure::Permanent(reason),
            Fault::Data => Failure::InParts(reason),
        }
    }
}

/// What a connection can do until it is lost.
pub(super) struct Session<'s> {
    pub(super) shared: &'s Shared,
    name: &'s str,
    ordinal: u32,
    pub(super) client: Client,
    statements: HashMap<String, Statement>,
    lanes: Vec<Owned>,
    wake: Arc<Notify>,
}

impl Session<'_> {
    /// Works until `stop` is true, or the connection is lost, which is the error.
    async fn work(
        &mut self,
        catalog: watch::Receiver<Arc<Catalog>>,
        stop: &mut watch::Receiver<bool>,
    ) -> Result<(), String> {
        let mut next_claim = Instant::now();
        while !*stop.borrow() {
            let now = Instant::now();
            if now >= next_claim {
                let catalog = Arc::clone(&catalog.borrow());
                for lane in &mut self.lanes {
                    // A policy may have changed.
                    let known = catalog.projections.iter().find(|known| known.name == lane.id.projection);
                    if let Some(known) = known {
                        lane.known = Arc::clone(known);
                    }
                }
                self.claim(&catalog).await?;
                next_claim = now + CLAIM_INTERVAL;
            }
            let mut worked = false;
            let mut index = 0;
            while index < self.lanes.len() {
                let mut lane = self.lanes.swap_remove(index);
                let step = self.step(&mut lane).await;
                let outcome = self.settle(&mut lane, step).await;
                // Back to its place whatever happened, so that a lost connection finds all its lanes.
                let last = self.lanes.len();
                self.lanes.push(lane);
                self.lanes.swap(index, last);
                match outcome? {
                    Settled::Worked => worked = true,
                    Settled::Idle => {}
                    Settled::Lost => {
                        self.lanes.swap_remove(index);
                        continue;
                    }
                }
                index += 1;
            }
            if worked {
                continue;
            }
            let deadlines = self.lanes.iter().filter_map(Owned::deadline);
            let deadline = deadlines.min().unwrap_or(next_claim).min(next_claim);
            tokio::select! {
                () = self.wake.notified() => {}
                () = sleep_until(deadline) => {}
                _ = stop.wait_for(|stop| *stop) => {}
            }
        }
        self.release_all().await
    }

    /// Claims lanes without an owner, up to this worker's share, from all projections in turn.
    async fn claim(&mut self, catalog: &Catalog) -> Result<(), String> {
        let share = catalog.lane_count().div_ceil(self.shared.workers) as usize;
        let count = catalog.projections.len();
        let mut open: Vec<&Arc<Known>> = (0..count)
            .map(|offset| &catalog.projections[(self.ordinal as usize + offset) % count])
            .filter(|known| known.rules.is_ok())
            .collect();
        while !open.is_empty() && self.lanes.len() < share {
            let mut still_open = Vec::new();
            for known in open {
                if self.lanes.len() < share && self.claim_one(known).await? {
                    still_open.push(known);
                }
            }
            open = still_open;
        }
        Ok(())
    }

    async fn claim_one(&mut self, known: &Arc<Known>) -> Result<bool, String> {
        let statement = "SELECT lane, epoch, position FROM lanes.claim($1, $2, $3)";
        let claimed = self.client.query_opt(statement, &[&&*known.name, &self.name, &self.shared.log_id]).await;
        let row = match claimed {
            Ok(Some(row)) => row,
            Ok(None) => return Ok(false),
            Err(error) if classify(&error) == Fault::Connection => return Err(describe(&error)),
            Err(error) => {
                tracing::error!(projection = %known.name, "cannot claim a lane: {}", describe(&error));
                return Ok(false);
            }
        };
        let (lane, epoch, position): (i32, i64, i64) = (row.get(0), row.get(1), row.get(2));
        let (lane, position) = (lane.max(0) as u32, position.max(0) as u64);
        let mut owned = Owned {
            id: LaneId { projection: Arc::clone(&known.name), lane },
            known: Arc::clone(known),
            epoch,
            position,
            scanned_to: position,
            waiting: Vec::new(),
            waiting_bytes: 0,
            batch_at: None,
            attached: None,
            run_at: Instant::now(),
            run_to: None,
            failures: 0,
            failed_in_a_row: 0,
            in_parts: true,
            parked: Parked::new(),
            parked_at: Instant::now(),
            retry_at: None,
            flush_at: None,
            recorded: None,
            halted: false,
            paused: false,
        };
        tracing::info!(projection = %known.name, lane, position, epoch, "lane claimed");
        self.shared.board.set_position(&owned.id, position);
        self.shared.board.set(&owned.id, LaneState::CatchingUp, None);
        let floor = (self.shared.floor)();
        if position == 0 && epoch == 1 && floor > 0 {
            self.begin_at(&mut owned, floor).await?;
        } else if let Some(reason) = self.out_of_place(position, floor) {
            owned.halted = true;
            self.stand_still(&mut owned, LaneState::Stopped, &reason, None).await?;
        }
        self.lanes.push(owned);
        Ok(true)
    }

    /// Why a lane with this checkpoint cannot go on in this log; none if it can.
    fn out_of_place(&self, position: u64, floor: u64) -> Option<String> {
        let horizon = self.shared.horizon.position();
        if position > horizon {
            Some(format!(
                "the checkpoint is {position}, above the log's horizon {horizon}: the log or Postgres was restored from \
                 an older copy"
            ))
        } else if position < floor {
            Some(format!(
                "the checkpoint is {position}, below the log's floor {floor}: Postgres was restored from an older copy, and \
                 the events between are deleted"
            ))
        } else {
            None
        }
    }

    /// Lets a lane that was never worked on begin at the floor: what retention deleted before the projection was defined is
    /// not its. Written down at once, so that a checkpoint below the floor always means a fault.
    async fn begin_at(&mut self, lane: &mut Owned, floor: u64) -> Result<(), String> {
        self.begin(lane).await.map_err(Failure::into_reason)?;
        self.commit(lane, floor, 0).await.map_err(Failure::into_reason)?;
        lane.position = floor;
        lane.scanned_to = floor;
        self.shared.board.set_position(&lane.id, floor);
        Ok(())
    }

    /// Does a lane's next piece of work, if there is one.
    async fn step(&mut self, lane: &mut Owned) -> Result<bool, Failure> {
        let now = Instant::now();
        if lane.halted || lane.retry_at.is_some_and(|retry_at| retry_at > now) {
            return Ok(false);
        }
        if self.pause(lane).await? {
            return Ok(false);
        }
        lane.retry_at = None;
        if lane.parked_at <= now && (lane.in_parts || !lane.parked.is_empty()) {
            lane.parked_at = now + PARKED_INTERVAL;
            self.read_parked(lane).await?;
        }
        let shared = self.shared;
        if !lane.parked.is_empty() {
            let _permit = shared.permit(&lane.known).await;
            if self.retry_parked(lane).await.map_err(Failure::of_parts)? {
                return Ok(true);
            }
        }
        let deliveries = self.gather(lane).await?;
        let gathered = !deliveries.is_empty();
        let scanned_to = deliveries.iter().map(|delivery| delivery.scanned_to).max().unwrap_or(lane.scanned_to);
        let before = lane.scanned_to;
        let events: Vec<&StoredEvent> =
            deliveries.iter().flat_map(Delivery::events).filter(|stored| stored.position > before).collect();
        if let Mode::Batch { size, flush_interval_ms } = lane.mode() {
            let count = lane.waiting.len() + events.len();
            let bytes = lane.waiting_bytes + events.iter().map(|stored| stored.event.size_bytes()).sum::<usize>();
            if count > 0 && count < size as usize && bytes < WAITING_BYTES {
                let flush = Duration::from_millis(flush_interval_ms.into());
                let batch_at = *lane.batch_at.get_or_insert(now + flush);
                if batch_at > now {
                    lane.waiting.extend(events.into_iter().cloned());
                    (lane.waiting_bytes, lane.flush_at) = (bytes, None);
                    lane.scanned_to = lane.scanned_to.max(scanned_to);
                    return Ok(gathered);
                }
            }
        }
        let scanned_to = lane.scanned_to.max(scanned_to);
        let waited = std::mem::take(&mut lane.waiting);
        (lane.waiting_bytes, lane.batch_at) = (0, None);
        let events: Vec<&StoredEvent> = waited.iter().chain(events).collect();
        if !events.is_empty() {
            let _permit = shared.permit(&lane.known).await;
            let mut rest = events.as_slice();
            while !rest.is_empty() {
                let (batch, later) = rest.split_at(rest.len().min(shared.batch_events));
                let to = later.first().map_or(scanned_to, |next| next.position - 1);
                self.apply(lane, batch, to).await?;
                rest = later;
            }
            return Ok(true);
        }
        lane.scanned_to = scanned_to;
        match lane.flush_at {
            _ if lane.scanned_to == lane.position => lane.flush_at = None,
            None => lane.flush_at = Some(now + FLUSH_INTERVAL),
            Some(flush_at) if flush_at <= now => {
                let scanned_to = lane.scanned_to;
                self.apply(lane, &[], scanned_to).await?;
            }
            Some(_) => {}
        }
        Ok(gathered)
    }

    /// Whether the lane gives way now. It leaves the shared reader, and keeps what waits for a batch to be full.
    async fn pause(&mut self, lane: &mut Owned) -> Result<bool, Failure> {
        let priority = lane.known.rules.as_ref().map_or(Priority::P0, |rules| rules.policy.priority);
        let Some(reason) = self.shared.pressure.pauses(priority) else {
            if std::mem::take(&mut lane.paused) {
                self.shared.board.set(&lane.id, LaneState::CatchingUp, None);
                // An empty batch: it takes back what Postgres was told.
                self.begin(lane).await?;
                self.commit(lane, lane.position, 0).await?;
            }
            return Ok(false);
        };
        if lane.attached.take().is_some() {
            self.shared.dispatcher.detach(&lane.id);
        }
        if !std::mem::replace(&mut lane.paused, true) {
            self.shared.board.set(&lane.id, LaneState::Paused, Some(reason.clone()));
            let reason = format!("paused: {reason}");
            let parameters: [&(dyn ToSql + Sync); 4] =
                [&&*lane.id.projection, &(lane.id.lane as i32), &lane.epoch, &reason];
            self.client.query("SELECT lanes.stop_lane($1, $2, $3, $4)", &parameters).await?;
        }
        Ok(true)
    }

    /// What has come for a lane. Attaches it to the shared reader if it can be.
    async fn gather(&self, lane: &mut Owned) -> Result<Vec<Delivery>, Failure> {
        let shared = self.shared;
        if let Mode::Scheduled { every_ms } = lane.mode() {
            return self.gather_scheduled(lane, Duration::from_millis(every_ms)).await;
        }
        if lane.attached.is_none() {
            match shared.dispatcher.attach(&lane.id, &lane.known, lane.scanned_to, &self.wake) {
                Attachment::Attached { read_alone_to } => {
                    lane.attached = Some(read_alone_to);
                    shared.board.set(&lane.id, LaneState::Running, None);
                }
                Attachment::Behind => shared.board.set(&lane.id, LaneState::CatchingUp, None),
            }
        }
        let alone_to = lane.attached.unwrap_or_else(|| shared.horizon.position());
        if alone_to > lane.scanned_to {
            let chunk = shared.readers.read(lane.scanned_to, alone_to).await.map_err(Failure::Transient)?;
            return Ok(vec![Delivery::select(&lane.known, lane.id.lane, chunk)]);
        }
        match shared.dispatcher.take(&lane.id, shared.batch_events) {
            Some(deliveries) => Ok(deliveries),
            None => {
                lane.attached = None;
                // An empty delivery makes the caller come again at once.
                let nothing = Chunk { events: Vec::new(), scanned_to: lane.scanned_to };
                Ok(vec![Delivery::select(&lane.known, lane.id.lane, nothing)])
            }
        }
    }

    /// What there is for a lane whose time has come: everything up to the horizon of that moment.
    async fn gather_scheduled(&self, lane: &mut Owned, every: Duration) -> Result<Vec<Delivery>, Failure> {
        let (shared, now) = (self.shared, Instant::now());
        if lane.attached.take().is_some() {
            shared.dispatcher.detach(&lane.id);
        }
        if lane.run_to.is_none() && lane.run_at <= now {
            lane.run_to = Some(shared.horizon.position());
            lane.run_at = now + every;
            shared.board.set(&lane.id, LaneState::Running, None);
        }
        match lane.run_to {
            Some(run_to) if run_to > lane.scanned_to => {
                let chunk = shared.readers.read(lane.scanned_to, run_to).await.map_err(Failure::Transient)?;
                Ok(vec![Delivery::select(&lane.known, lane.id.lane, chunk)])
            }
            _ => {
                lane.run_to = None;
                let reason = (lane.scanned_to == lane.position).then(|| "until its next time".to_owned());
                shared.board.set(&lane.id, LaneState::Scheduled, reason);
                Ok(Vec::new())
            }
        }
    }

    /// Applies events, all of which the lane has not seen, and moves the checkpoint to `to`.
    async fn apply(&mut self, lane: &mut Owned, events: &[&StoredEvent], to: u64) -> Result<(), Failure> {
        let known = Arc::clone(&lane.known);
        let rules = known.rules.as_ref().map_err(|reason| Failure::Permanent(reason.clone()))?;
        let mut in_parts = lane.in_parts || !lane.parked.is_empty();
        if !in_parts && to > lane.position {
            match self.apply_at_once(lane, rules, events, to).await {
                Err(Failure::InParts(_)) => {
                    self.client.batch_execute("ROLLBACK").await?;
                    in_parts = true;
                }
                other => other?,
            }
        }
        if in_parts {
            self.apply_in_parts(lane, rules, events, to).await.map_err(Failure::of_parts)?;
        }
        if lane.failures > 0 {
            tracing::info!(projection = %lane.id.projection, lane = lane.id.lane, "the lane goes on");
        }
        (lane.failures, lane.recorded, lane.in_parts) = (0, None, false);
        Ok(())
    }

    /// One batch in which nothing fails: rows and checkpoint in one transaction.
    async fn apply_at_once(
        &mut self,
        lane: &mut Owned,
        rules: &Projection,
        events: &[&StoredEvent],
        to: u64,
    ) -> Result<(), Failure> {
        let views: Vec<EventView<'_>> =
            events.iter().map(|stored| EventView::new(stored.position, &stored.event)).collect();
        let views: Vec<&EventView<'_>> = views.iter().collect();
        let in_parts = |error: DataError| Failure::InParts(error.to_string());
        // Folded before the lane is locked.
        let mut folded = Vec::new();
        for run in runs(rules, &views) {
            let mut fold = Fold::new(rules, lane.id.lane);
            let mut seen = Vec::new();
            for view in run {
                if rules.has_statements() && fold.has_place(view).map_err(in_parts)? {
                    seen.push(*view);
                }
                fold.add(view).map_err(in_parts)?;
            }
            folded.push((fold.finish(), seen));
        }
        let table = self.begin(lane).await?;
        let mut skipped_null_key = 0;
        for (folded, seen) in folded {
            skipped_null_key += folded.skipped_null_key;
            self.write(lane, rules, &table, folded, &seen).await.map_err(|failure| match failure {
                WriteFailure::OutOfRange(reason) => Failure::InParts(reason),
                WriteFailure::Postgres(error) => error.into(),
            })?;
        }
        self.commit(lane, to, skipped_null_key).await
    }

    /// Begins a batch's transaction. Gives the table that it may write to.
    pub(super) async fn begin(&mut self, lane: &Owned) -> Result<String, Failure> {
        let begin = self.prepare("SELECT position, target_table FROM lanes.begin_batch($1, $2, $3, $4)").await?;
        // Sent together: one round trip.
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&&*lane.id.projection, &(lane.id.lane as i32), &lane.epoch, &self.shared.log_id];
        let (began, row) = tokio::join!(
            self.client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED"),
            self.client.query_one(&begin, &parameters)
        );
        began?;
        let row = row?;
        let (position, table): (i64, String) = (row.try_get(0)?, row.try_get(1)?);
        if position as u64 != lane.position {
            return Err(Failure::Moved(position.max(0) as u64));
        }
        Ok(table)
    }

    /// Moves the checkpoint and ends the batch's transaction.
    pub(super) async fn commit(&mut self, lane: &mut Owned, to: u64, skipped_null_key: u64) -> Result<(), Failure> {
        let commit = self.prepare("SELECT lanes.commit_batch($1, $2, $3, $4, $5)").await?;
        let (position, skipped) = (to as i64, skipped_null_key as i64);
        let parameters: [&(dyn ToSql + Sync); 5] =
            [&&*lane.id.projection, &(lane.id.lane as i32), &lane.epoch, &position, &skipped];
        let timed = self.shared.pressure.commit();
        let (moved, committed) =
            tokio::join!(self.client.query_one(&commit, &parameters), self.client.batch_execute("COMMIT"));
        drop(timed);
        moved?;
        committed?;
        if to > lane.position {
            lane.position = to;
            lane.scanned_to = lane.scanned_to.max(to);
            lane.flush_at = None;
            self.shared.board.set_position(&lane.id, to);
        }
        Ok(())
    }

    pub(super) async fn prepare(&mut self, text: &str) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(text) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(text).await?;
        self.statements.insert(text.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Draws the consequences of a step. The error is a lost connection.
    async fn settle(&mut self, lane: &mut Owned, step: Result<bool, Failure>) -> Result<Settled, String> {
        let failure = match step {
            Ok(true) => return Ok(Settled::Worked),
            Ok(false) => return Ok(Settled::Idle),
            Err(failure) => failure,
        };
        // Whatever was delivered beyond the checkpoint is read again.
        self.shared.dispatcher.detach(&lane.id);
        (lane.attached, lane.flush_at, lane.batch_at) = (None, None, None);
        lane.waiting.clear();
        lane.waiting_bytes = 0;
        lane.scanned_to = lane.position;
        if let Failure::Connection(reason) = failure {
            return Err(reason);
        }
        self.client.batch_execute("ROLLBACK").await.map_err(|error| describe(&error))?;
        match failure {
            Failure::Connection(reason) => return Err(reason),
            Failure::LaneLost(reason) => {
                tracing::warn!(projection = %lane.id.projection, lane = lane.id.lane, "lane lost: {reason}");
                let give_up = "SELECT lanes.give_up_lane_lock($1, $2)";
                let parameters: [&(dyn ToSql + Sync); 2] = [&&*lane.id.projection, &(lane.id.lane as i32)];
                self.client.query(give_up, &parameters).await.map_err(|error| describe(&error))?;
                self.shared.board.set(&lane.id, LaneState::Unowned, Some(reason));
                return Ok(Settled::Lost);
            }
            Failure::InParts(_) => lane.in_parts = true,
            Failure::AtEvent(position, reason) => {
                lane.in_parts = true;
                lane.retry_at = Some(Instant::now() + pause(PERMANENT_PAUSES, lane.failures));
                self.stand_still(lane, LaneState::Stopped, &reason, Some(position)).await?;
            }
            Failure::Moved(position) => {
                lane.position = position;
                lane.scanned_to = position;
                self.shared.board.set_position(&lane.id, position);
            }
            Failure::Transient(reason) => {
                lane.retry_at = Some(Instant::now() + pause(TRANSIENT_PAUSES, lane.failures));
                self.stand_still(lane, LaneState::BackingOff, &reason, None).await?;
            }
            Failure::Permanent(reason) => {
                lane.retry_at = Some(Instant::now() + pause(PERMANENT_PAUSES, lane.failures));
                self.stand_still(lane, LaneState::Stopped, &reason, None).await?;
            }
        }
        Ok(Settled::Worked)
    }

    /// Says why a lane does not go on: in the log, in the status, and if it is stopped in Postgres.
    async fn stand_still(
        &self,
        lane: &mut Owned,
        state: LaneState,
        reason: &str,
        failed: Option<u64>,
    ) -> Result<(), String> {
        lane.failures = lane.failures.saturating_add(1);
        self.shared.board.set(&lane.id, state, Some(reason.to_owned()));
        if lane.recorded.as_deref() == Some(reason) {
            return Ok(());
        }
        tracing::error!(projection = %lane.id.projection, lane = lane.id.lane, position = lane.position, "{reason}");
        lane.recorded = Some(reason.to_owned());
        if state == LaneState::Stopped {
            let (projection, number) = (&*lane.id.projection, lane.id.lane as i32);
            let told = match failed {
                Some(position) => {
                    let statement = "SELECT lanes.stop_at_event($1, $2, $3, $4, $5)";
                    self.client
                        .query(statement, &[&projection, &number, &lane.epoch, &(position as i64), &reason])
                        .await
                }
                None => {
                    let statement = "SELECT lanes.stop_lane($1, $2, $3, $4)";
                    self.client.query(statement, &[&projection, &number, &lane.epoch, &reason]).await
                }
            };
            match told {
                Err(error) if classify(&error) == Fault::Connection => return Err(describe(&error)),
                Err(error) => tracing::warn!("cannot record why the lane is stopped: {}", describe(&error)),
                Ok(_) => {}
            }
        }
        Ok(())
    }

    /// Gives all lanes up, with their checkpoints where the scan is.
    async fn release_all(&mut self) -> Result<(), String> {
        while let Some(mut lane) = self.lanes.pop() {
            self.shared.dispatcher.detach(&lane.id);
            if let Some(first) = lane.waiting.first() {
                // They are read again by the next owner.
                lane.scanned_to = first.position - 1;
            }
            if lane.scanned_to > lane.position {
                let scanned_to = lane.scanned_to;
                let flushed = self.apply(&mut lane, &[], scanned_to).await.map(|()| false);
                self.settle(&mut lane, flushed).await?;
            }
            let parameters: [&(dyn ToSql + Sync); 3] = [&&*lane.id.projection, &(lane.id.lane as i32), &lane.epoch];
            let released = self.client.query("SELECT lanes.release($1, $2, $3)", &parameters).await;
            self.shared.board.set(&lane.id, LaneState::Unowned, None);
            released.map_err(|error| describe(&error))?;
        }
        Ok(())
    }
}

/// What became of a step.
enum Settled {
    /// There may be more at once.
    Worked,
    /// There is nothing to do now.
    Idle,
    /// The lane is no longer this worker's.
    Lost,
}
