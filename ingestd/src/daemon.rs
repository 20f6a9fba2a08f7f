//! `ingestd run`: opens the log, starts the lanes, serves HTTP, and stops gracefully.
//!
//! Order of stopping: no new requests, those that came in are acknowledged, lanes finish their batches, the log commits.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::admin::status::{PostgresStatus, Status};
use crate::config::{Config, ConfigError};
use crate::lanes::{self, LaneSettings};
use crate::log::own::Happened;
use crate::log::reader::ReadError;
use crate::log::{self, Log, LogError, LogSettings};
use crate::source::http::{RequestLimits, router};

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

/// Runs the daemon until SIGTERM or SIGINT. `path` is the settings file's, to be named in messages. `accept_loss` gives up
/// what the log has lost.
///
/// # Errors
/// [`DaemonError`].
pub fn run(config: &Config, path: &Path, accept_loss: bool) -> Result<(), DaemonError> {
    end_process_on_panic();
    let settings = LogSettings { accept_loss, ..config.log_settings(path)? };
    let postgres = config.postgres.as_deref().map(postgres_config).transpose()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        // The port first: if it is taken, nothing has been touched.
        let listener =
            TcpListener::bind(config.listen).await.map_err(|error| DaemonError::Listen(config.listen, error))?;
        let log = Arc::new(log::open(&settings)?);
        let closing = |_| DaemonError::Unwritten("the log closed at its start".to_owned());
        // Ready means: recovery is done, and the log has taken a row.
        log.tell(log.started()).await.map_err(closing)?;
        let served = serve(config, postgres, listener, &log).await;
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

async fn serve(
    config: &Config,
    postgres: Option<tokio_postgres::Config>,
    listener: TcpListener,
    log: &Arc<Log>,
) -> Result<(), DaemonError> {
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let lanes = match postgres {
        None => None,
        Some(postgres) => {
            let settings = LaneSettings {
                postgres,
                connections: config.postgres_connections.get() as u32,
                batch_events: config.lane_batch_size.get() as usize,
            };
            Some(lanes::start(log, &settings)?)
        }
    };
    let view = lanes.as_ref().map(lanes::Lanes::view);
    let status = {
        let log = Arc::downgrade(log);
        move || {
            let report = log.upgrade().map(|log| log.report()).unwrap_or_default();
            let horizon = report.horizon;
            Status {
                version: env!("CARGO_PKG_VERSION"),
                log: report,
                reader_trouble: view.as_ref().and_then(lanes::LaneView::reader),
                postgres: match &view {
                    None => PostgresStatus::NotConfigured,
                    Some(view) => match view.postgres() {
                        None => PostgresStatus::Ready,
                        Some(reason) => PostgresStatus::Unavailable { reason },
                    },
                },
                lanes: view.as_ref().map(|view| view.lanes(horizon)).unwrap_or_default(),
            }
        }
    };
    let limits = RequestLimits {
        event_bytes: config.max_event_bytes.get() as usize,
        request_bytes: config.max_request_bytes.get() as usize,
        in_flight_bytes: config.max_in_flight_bytes.get() as usize,
    };
    let router = router(Arc::clone(log), limits, Box::new(status));
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let server = axum::serve(listener, router).with_graceful_shutdown(async move {
        let _ = stopped.await;
    });
    let mut server = tokio::spawn(server.into_future());
    tracing::info!(listen = %config.listen, "ready");
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
        ended = &mut server => return Ok(ended.map_err(std::io::Error::other)??),
    }
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
