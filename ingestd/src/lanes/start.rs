//! Starts and stops everything that works on lanes.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_postgres::Config;

use super::board::{Board, LaneReport};
use super::catalog::Catalog;
use super::dispatcher::Dispatcher;
use super::hold::HoldHistory;
use super::priority::{Limits, Pressure};
use super::reporter::Reporter;
use super::worker::{self, Readers, Shared};
use crate::log::Log;
use crate::log::reader::{LogReader, ReadError};

/// How long lanes may take to finish their batches when the daemon stops.
const STOP_PATIENCE: Duration = Duration::from_secs(10);

/// How lanes are worked on.
#[derive(Debug, Clone)]
pub struct LaneSettings {
    /// How to reach Postgres.
    pub postgres: Config,
    /// Connections on which the lanes work, and one more for reports.
    pub connections: u32,
    /// The most events of a transaction.
    pub batch_events: usize,
    /// How long events stay after they were applied; may change.
    pub keep_applied: Arc<Mutex<Duration>>,
    /// What makes lanes of lower priority pause.
    pub pressure: Limits,
}

/// The running lanes.
pub struct Lanes {
    board: Arc<Board>,
    dispatcher: Arc<Dispatcher>,
    reader: JoinHandle<()>,
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

/// Starts the shared reader, the reporter and the workers. `hold` learns what retention must leave.
///
/// # Errors
/// [`ReadError`] if the log's files cannot be opened for reading.
pub fn start(log: &Log, settings: &LaneSettings, hold: &Arc<HoldHistory>) -> Result<Lanes, ReadError> {
    let board = Arc::new(Board::default());
    let dispatcher = Arc::new(Dispatcher::default());
    let horizon = Arc::clone(log.horizon());
    let (stop, stopping) = watch::channel(false);
    let (catalog, projections) = watch::channel(Arc::new(Catalog::default()));

    let shared_reader = LogReader::open(log.directory())?;
    let reader = std::thread::Builder::new().name("reader".to_owned()).spawn({
        let (dispatcher, horizon) = (Arc::clone(&dispatcher), Arc::clone(&horizon));
        move || dispatcher.run(&shared_reader, &horizon)
    })?;

    let mut tasks = JoinSet::new();
    let mut moves = horizon.subscribe();
    let mut ending = stopping.clone();
    tasks.spawn({
        let dispatcher = Arc::clone(&dispatcher);
        async move {
            loop {
                tokio::select! {
                    moved = moves.changed() => if moved.is_err() { return },
                    _ = ending.wait_for(|stop| *stop) => return,
                }
                dispatcher.horizon_moved();
            }
        }
    });
    let reporter = Reporter {
        config: settings.postgres.clone(),
        log_id: log.log_id(),
        horizon: Arc::clone(&horizon),
        reader: Mutex::new(LogReader::open(log.directory())?),
        floor: Box::new(log.floor_source()),
        hold: Arc::clone(hold),
        keep_applied: Arc::clone(&settings.keep_applied),
        board: Arc::clone(&board),
        catalog,
    };
    tasks.spawn(reporter.run(stopping.clone()));
    let pressure = Arc::new(Pressure::new(settings.pressure));
    tasks.spawn(Arc::clone(&pressure).watch(
        Arc::clone(&board),
        Arc::clone(&horizon),
        projections.clone(),
        stopping.clone(),
    ));
    let shared = Arc::new(Shared {
        config: settings.postgres.clone(),
        log_id: log.log_id(),
        horizon,
        floor: Box::new(log.floor_source()),
        dispatcher: Arc::clone(&dispatcher),
        board: Arc::clone(&board),
        readers: Readers::new(log.directory()),
        workers: settings.connections,
        batch_events: settings.batch_events,
        concurrency: Mutex::default(),
        pressure,
    });
    for ordinal in 0..settings.connections {
        tasks.spawn(worker::run(Arc::clone(&shared), ordinal, projections.clone(), stopping.clone()));
    }
    Ok(Lanes { board, dispatcher, reader, tasks, stop })
}

/// What the lanes show of themselves.
pub struct LaneView {
    board: Arc<Board>,
    dispatcher: Arc<Dispatcher>,
}

impl LaneView {
    /// Why Postgres cannot be used; none if it can.
    pub fn postgres(&self) -> Option<String> {
        self.board.postgres()
    }

    /// Why the log cannot be read; none if it can.
    pub fn reader(&self) -> Option<String> {
        self.dispatcher.trouble()
    }

    /// All lanes, with their lag behind `horizon`.
    pub fn lanes(&self, horizon: u64) -> Vec<LaneReport> {
        self.board.report(horizon)
    }
}

impl Lanes {
    /// What the lanes show of themselves.
    pub fn view(&self) -> LaneView {
        LaneView { board: Arc::clone(&self.board), dispatcher: Arc::clone(&self.dispatcher) }
    }

    /// Lets the running batches finish, gives the lanes up, and ends all tasks.
    pub async fn stop(mut self) {
        let _ = self.stop.send(true);
        let ended = async { while self.tasks.join_next().await.is_some() {} };
        if tokio::time::timeout(STOP_PATIENCE, ended).await.is_err() {
            tracing::warn!(
                "lanes did not finish their batches in {} s; the next start settles them",
                STOP_PATIENCE.as_secs()
            );
            self.tasks.shutdown().await;
        }
        self.dispatcher.close();
        // The reader sees it after its present chunk.
        let _ = self.reader.join();
    }
}
