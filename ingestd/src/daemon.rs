//! `ingestd run`: opens the log, starts the lanes, serves HTTP, and stops gracefully.
//!
//! Order of stopping: no new requests, those that came in are acknowledged, lanes finish their batches, the log commits.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::status::{PostgresStatus, Status};
use crate::config::{Config, ConfigError, Sources};
use crate::lanes::hold::HoldHistory;
use crate::lanes::{self, LaneSettings};
use crate::log::own::Happened;
use crate::log::reader::ReadError;
use crate::log::retention::{Hold, HoldSource, RetentionSettings};
use crate::log::{self, Log, LogError, LogReport, LogSettings};
use crate::source::http::{RequestLimits, router, status_router};

/// How long requests that came in may take when the daemon stops.
const REQUEST_PATIENCE: Duration = Duration::from_secs(10);

/// Why the daemon does not start or ended. The text is one line.
#[derive(Debug, thiserror::Error)]
pub enum DaemonError {
    /// The settings cannot be used.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The connection string cannot be used. Its text is not shown, because it may hold a password.
    #[error("the setting postgres is not a connection string: {0}")]
    Postgres(String),
    /// The log cannot be opened.
    #[error(transparent)]
    Log(#[from] LogError),
    /// The log cannot be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The address is taken, or not this machine's.
    #[error("cannot listen on {0}: {1}; change the setting listen, or stop what listens there")]
    Listen(std::net::SocketAddr, std::io::Error),
    /// The operating system refused something else.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Events that were taken, and not acknowledged, are not in the log.
    #[error("stopped before everything was written: {0}; what was not acknowledged must be sent again")]
    Unwritten(String),
}

/// Reads a connection string.
///
/// # Errors
/// [`DaemonError::Postgres`].
pub fn postgres_config(text: &str) -> Result<tokio_postgres::Config, DaemonError> {
    text.parse().map_err(|error: tokio_postgres::Error| {
        let source = std::error::Error::source(&error).map(ToString::to_string);
        DaemonError::Postgres(source.unwrap_or_else(|| error.to_string()))
    })
}

/// Runs the daemon until SIGTERM or SIGINT. SIGHUP reads the settings again. `accept_loss` gives up what the log has lost.
///
/// # Errors
/// [`DaemonError`].
pub fn run(config: Config, sources: &Sources, accept_loss: bool) -> Result<(), DaemonError> {
    end_process_on_panic();
    let postgres = config.postgres.as_deref().map(postgres_config).transpose()?;
    if config.events_table().is_some() && postgres.is_none() {
        return Err(ConfigError::Absent(sources.file.clone(), "postgres").into());
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let settings = match config.events_table() {
        Some(_) => None,
        None => Some(LogSettings { accept_loss, ..config.log_settings(&sources.file)? }),
    };
    runtime.block_on(async {
        // The port first: if it is taken, nothing has been touched.
        let listener =
            TcpListener::bind(config.listen).await.map_err(|error| DaemonError::Listen(config.listen, error))?;
        let live = Live::new(&config);
        let hold = Arc::new(HoldHistory::default());
        let Some(settings) = settings else {
            return Daemon { config, sources, live, log: None, hold }.serve(postgres, listener).await;
        };
        let mut log = log::open(&settings)?;
        // Ready means: recovery is done, and the log has taken a row.
        let closing = |_| DaemonError::Unwritten("the log closed at its start".to_owned());
        log.tell(log.started()).await.map_err(closing)?;

        let source: HoldSource = match &postgres {
            None => Box::new(|| Hold::Nobody),
            Some(_) => {
                let (hold, keep) = (Arc::clone(&hold), Arc::clone(&live.keep_applied));
                Box::new(move || hold.hold(Instant::now(), *keep.lock().unwrap_or_else(PoisonError::into_inner)))
            }
        };
        log.start_retention(Arc::clone(&live.retention), source)?;
        let log = Arc::new(log);
        let mut daemon = Daemon { config, sources, live, log: Some(Arc::clone(&log)), hold };
        let served = daemon.serve(postgres, listener).await;
        drop(daemon);
        if let Err(refusal) = log.tell(&Happened::Stopped).await {
            tracing::warn!("the log does not tell that the daemon stopped: {refusal}");
        }
        // The handlers are gone, so this is the last one.
        let closed = match Arc::try_unwrap(log) {
            Ok(log) => tokio::task::block_in_place(|| log.close()),
            Err(_) => Err("requests are still being worked on".to_owned()),
        };
        served?;
        closed.map_err(DaemonError::Unwritten)
    })
}

/// Settings that a running daemon can change.
struct Live {
    retention: Arc<Mutex<RetentionSettings>>,
    keep_applied: Arc<Mutex<Duration>>,
}

impl Live {
    fn new(config: &Config) -> Live {
        Live {
            retention: Arc::new(Mutex::new(config.retention())),
            keep_applied: Arc::new(Mutex::new(config.keep_applied())),
        }
    }

    fn set(&self, config: &Config) {
        *self.retention.lock().unwrap_or_else(PoisonError::into_inner) = config.retention();
        *self.keep_applied.lock().unwrap_or_else(PoisonError::into_inner) = config.keep_applied();
    }
}

struct Daemon<'s> {
    config: Config,
    sources: &'s Sources,
    live: Live,
    /// The daemon's own log; none if it works on a table of events.
    log: Option<Arc<Log>>,
    hold: Arc<HoldHistory>,
}

impl Daemon<'_> {
    /// Serves until a signal says stop.
    async fn serve(
        &mut self,
        postgres: Option<tokio_postgres::Config>,
        listener: TcpListener,
    ) -> Result<(), DaemonError> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        let mut hangup = signal(SignalKind::hangup())?;
        let lanes = match postgres {
            None => None,
            Some(postgres) => {
                let settings = LaneSettings {
                    postgres,
                    connections: self.config.postgres_connections.get() as u32,
                    batch_events: self.config.lane_batch_size.get() as usize,
                    keep_applied: Arc::clone(&self.live.keep_applied),
                    pressure: self.config.pressure(),
                };
                Some(match (&self.log, self.config.events_table()) {
                    (Some(log), _) => lanes::start(log, &settings, &self.hold)?,
                    (None, table) => lanes::start_table(table.unwrap_or_default(), &settings)?,
                })
            }
        };
        let limits = RequestLimits {
            event_bytes: self.config.max_event_bytes.get() as usize,
            request_bytes: self.config.max_request_bytes.get() as usize,
            in_flight_bytes: self.config.max_in_flight_bytes.get() as usize,
        };
        let status = self.status_source(lanes.as_ref().map(lanes::Lanes::view));
        let router = match &self.log {
            Some(log) => router(Arc::clone(log), limits, Box::new(status)),
            None => status_router(Box::new(status)),
        };
        let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
        let server = axum::serve(listener, router).with_graceful_shutdown(async move {
            let _ = stopped.await;
        });
        let mut server = tokio::spawn(server.into_future());
        notify_manager(&[sd_notify::NotifyState::Ready]);
        tracing::info!(listen = %self.config.listen, "ready");
        let mut every_second = tokio::time::interval(Duration::from_secs(1));
        loop {
            tokio::select! {
                _ = terminate.recv() => break,
                _ = interrupt.recv() => break,
                _ = hangup.recv() => self.reload(),
                _ = every_second.tick() => self.tell_of_storage(),
                ended = &mut server => return Ok(ended.map_err(std::io::Error::other)??),
            }
        }
        notify_manager(&[sd_notify::NotifyState::Stopping]);
        tracing::info!("stopping");
        let _ = stop.send(());
        if tokio::time::timeout(REQUEST_PATIENCE, &mut server).await.is_err() {
            tracing::warn!("requests did not end in {} s and are not acknowledged", REQUEST_PATIENCE.as_secs());
            server.abort();
            let _ = server.await;
        }
        if let Some(lanes) = lanes {
            lanes.stop().await;
        }
        tracing::info!("stopped");
        Ok(())
    }

    fn status_source(&self, view: Option<lanes::LaneView>) -> impl Fn() -> Status + Send + Sync + 'static {
        let log = self.log.as_ref().map(Arc::downgrade);
        let hold = Arc::clone(&self.hold);
        move || {
            let report = match (&log, &view) {
                (Some(log), _) => log.upgrade().map(|log| log.report()).unwrap_or_default(),
                (None, Some(view)) => LogReport {
                    log_id: view.source().log_id().unwrap_or_default(),
                    horizon: view.source().horizon().position,
                    ..LogReport::default()
                },
                (None, None) => LogReport::default(),
            };
            Status {
                version: env!("CARGO_PKG_VERSION"),
                log: report,
                retention_held_by: hold.holder(),
                reader_trouble: view.as_ref().and_then(lanes::LaneView::reader),
                postgres: match &view {
                    None => PostgresStatus::NotConfigured,
                    Some(view) => match view.postgres() {
                        None => PostgresStatus::Ready,
                        Some(reason) => PostgresStatus::Unavailable { reason },
                    },
                },
                lanes: view.as_ref().map(lanes::LaneView::lanes).unwrap_or_default(),
            }
        }
    }

    /// Tells in the log of store shards that could not be written for a while.
    fn tell_of_storage(&self) {
        let Some(log) = &self.log else { return };
        for (shard, reason) in log.take_overcome() {
            tell_later(log, Happened::StorageError { shard, reason });
        }
    }

    /// Reads the settings again. Bad ones are refused and those in use kept; what cannot change while the daemon runs is
    /// noted and waits for the next start.
    fn reload(&mut self) {
        let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
        let micros = i128::from(now.tv_sec) * 1_000_000 + i128::from(now.tv_nsec) / 1000;
        notify_manager(&[sd_notify::NotifyState::Reloading, sd_notify::NotifyState::MonotonicUsec(micros)]);
        match self.sources.read() {
            Err(error) => tracing::error!("the settings are not reloaded, those in use stay: {error}"),
            Ok(new) => {
                let before = self.config.describe();
                // Before it is told: who hears that a setting has changed may count on it.
                if let Some(log) = &self.log {
                    log.set_limits(new.commit_limits());
                }
                self.live.set(&new);
                for ((setting, before, live), (_, after, _)) in before.into_iter().zip(new.describe()) {
                    if before == after {
                        continue;
                    }
                    if live {
                        tracing::info!(setting, before, after, "setting changed");
                        if let Some(log) = &self.log {
                            tell_later(log, Happened::ConfigChanged { setting, before, after });
                        }
                    } else {
                        tracing::warn!(setting, "the changed setting takes effect at the next start");
                    }
                }
                self.config.take_live(&new);
            }
        }
        notify_manager(&[sd_notify::NotifyState::Ready]);
    }
}

/// Stores a row of the daemon's own without waiting for it.
fn tell_later(log: &Arc<Log>, happened: Happened) {
    let log = Arc::clone(log);
    tokio::spawn(async move {
        if let Err(refusal) = log.tell(&happened).await {
            tracing::warn!("the log does not tell of {happened:?}: {refusal}");
        }
    });
}

/// Tells the service manager, where there is one.
fn notify_manager(states: &[sd_notify::NotifyState]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!("the service manager cannot be notified: {error}");
    }
}

/// A panic of any thread ends the process with a clear line: recovery at start is the one repair.
fn end_process_on_panic() {
    std::panic::set_hook(Box::new(|panic| {
        let thread = std::thread::current();
        let name = thread.name().unwrap_or("unnamed");
        let what = panic.payload_as_str().unwrap_or("panicked");
        let place = panic.location().map(|location| format!(" at {location}")).unwrap_or_default();
        tracing::error!("ingestd ends: thread {name}{place}: {what}");
        std::process::exit(EXIT_PANIC);
    }));
}

/// Exit code after a panic.
pub const EXIT_PANIC: i32 = 70;
