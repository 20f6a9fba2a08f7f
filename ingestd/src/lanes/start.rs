//! Starts and stops everything that works on lanes.

use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::{Notify, watch};
use tokio::task::JoinSet;
use tokio_postgres::Config;

use super::board::{Board, LaneReport};
use super::catalog::Catalog;
use super::chunks::Chunks;
use super::dispatcher::Dispatcher;
use super::events_table::EventsTable;
use super::hold::HoldHistory;
use super::priority::{Limits, Pressure};
use super::readers::Readers;
use super::reporter::{OwnLog, Reporter};
use super::source::Source;
use super::standing::Overview;
use super::worker::{self, News, Shared};
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
    source: Arc<Source>,
    reader: JoinHandle<()>,
    tasks: JoinSet<()>,
    stop: watch::Sender<bool>,
}

/// Starts lanes that read the daemon's own log. `hold` learns what retention must leave.
///
/// # Errors
/// [`ReadError`] if the log's files cannot be opened for reading.
pub fn start(log: &Log, settings: &LaneSettings, hold: &Arc<HoldHistory>) -> Result<Lanes, ReadError> {
    let own = OwnLog {
        reader: Mutex::new(LogReader::open(log.directory())?),
        hold: Arc::clone(hold),
        keep_applied: Arc::clone(&settings.keep_applied),
    };
    let source = Arc::new(Source::Files {
        log_id: log.log_id(),
        directory: log.directory().to_owned(),
        horizon: Arc::clone(log.horizon()),
        floor: Box::new(log.floor_source()),
    });
    let mut lanes = start_reading(&source, Some(own), settings)?;
    let mut moves = log.horizon().subscribe();
    let mut ending = lanes.stop.subscribe();
    let dispatcher = Arc::clone(&lanes.dispatcher);
    lanes.tasks.spawn(async move {
        loop {
            tokio::select! {
                moved = moves.changed() => if moved.is_err() { return },
                _ = ending.wait_for(|stop| *stop) => return,
            }
            dispatcher.horizon_moved();
        }
    });
    Ok(lanes)
}

/// Starts lanes that read a table of events in Postgres.
///
/// # Errors
/// [`ReadError`] if the shared reader's thread cannot be started.
pub fn start_table(table: &str, settings: &LaneSettings) -> Result<Lanes, ReadError> {
    let table = Arc::new(EventsTable::new(table, &settings.postgres));
    let source = Arc::new(Source::Table(Arc::clone(&table)));
    let mut lanes = start_reading(&source, None, settings)?;
    lanes.tasks.spawn(table.tick(Arc::clone(&lanes.dispatcher), Arc::clone(&lanes.board), lanes.stop.subscribe()));
    Ok(lanes)
}

/// Starts the shared reader, the reporter and the workers.
fn start_reading(source: &Arc<Source>, own: Option<OwnLog>, settings: &LaneSettings) -> Result<Lanes, ReadError> {
    let board = Arc::new(Board::default());
    let dispatcher = Arc::new(Dispatcher::default());
    let chunks = Arc::new(Chunks::new(source));
    let refresh = Arc::new(Notify::new());
    let (stop, stopping) = watch::channel(false);
    let (catalog, projections) = watch::channel(Arc::new(Catalog::default()));
    let (overview, standings) = watch::channel(Arc::new(Overview::default()));

    let shared_reader = source.reader().map_err(|reason| ReadError::List(std::io::Error::other(reason)))?;
    let reader = std::thread::Builder::new().name("reader".to_owned()).spawn({
        let (dispatcher, source, chunks) = (Arc::clone(&dispatcher), Arc::clone(source), Arc::clone(&chunks));
        move || dispatcher.run(&source, &chunks, shared_reader)
    })?;

    let mut tasks = JoinSet::new();
    let reporter = Reporter {
        config: settings.postgres.clone(),
        source: Arc::clone(source),
        own,
        board: Arc::clone(&board),
        catalog,
        overview,
        refresh: Arc::clone(&refresh),
    };
    tasks.spawn(reporter.run(stopping.clone()));
    let pressure = Arc::new(Pressure::new(settings.pressure));
    tasks.spawn(Arc::clone(&pressure).watch(
        Arc::clone(&board),
        Arc::clone(source),
        projections.clone(),
        stopping.clone(),
    ));
    let shared = Arc::new(Shared {
        config: settings.postgres.clone(),
        source: Arc::clone(source),
        dispatcher: Arc::clone(&dispatcher),
        board: Arc::clone(&board),
        readers: Readers::new(source, &chunks),
        process: this_process(),
        batch_events: settings.batch_events,
        concurrency: Mutex::default(),
        pressure,
        refresh,
    });
    let news = News { catalog: projections, overview: standings };
    for ordinal in 0..settings.connections {
        tasks.spawn(worker::run(Arc::clone(&shared), ordinal, news.clone(), stopping.clone()));
    }
    Ok(Lanes { board, dispatcher, source: Arc::clone(source), reader, tasks, stop })
}

/// What tells this process from all others that work on the same lanes: its host, its number, and when it came.
fn this_process() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match host.trim() {
        "" => "host",
        name => name,
    };
    // Containers of one image may have one name and one process number.
    let random = uuid::Uuid::new_v4().simple().to_string();
    format!("ingestd {host} {} {}", std::process::id(), random.get(..8).unwrap_or_default())
}

/// What the lanes show of themselves.
pub struct LaneView {
    board: Arc<Board>,
    dispatcher: Arc<Dispatcher>,
    source: Arc<Source>,
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

    /// All lanes, with their lag.
    pub fn lanes(&self) -> Vec<LaneReport> {
        self.board.report(&self.source)
    }

    /// The log that is read.
    pub fn source(&self) -> &Source {
        &self.source
    }
}

impl Lanes {
    /// What the lanes show of themselves.
    pub fn view(&self) -> LaneView {
        LaneView {
            board: Arc::clone(&self.board),
            dispatcher: Arc::clone(&self.dispatcher),
            source: Arc::clone(&self.source),
        }
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
