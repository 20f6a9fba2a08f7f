//! Ends the test process, with a clear message, when something hangs that must not.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// How long one round of a proof may take on a busy machine with a slow disk.
const PATIENCE: Duration = Duration::from_secs(1200);

/// While this value lives, its time runs.
pub struct Watchdog {
    _alive: mpsc::Sender<()>,
}

/// Aborts the process if the result is not dropped in time.
pub fn watch(what: String) -> Watchdog {
    let (alive, dropped) = mpsc::channel::<()>();
    std::thread::spawn(move || {
        if dropped.recv_timeout(PATIENCE) == Err(RecvTimeoutError::Timeout) {
            eprintln!("{what} hangs: no end in {} s; the test process is aborted", PATIENCE.as_secs());
            std::process::abort();
        }
    });
    Watchdog { _alive: alive }
}
