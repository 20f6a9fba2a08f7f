//! Keeps the watermark file near the log, and owns the floor.

use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use uuid::Uuid;

use super::horizon::Horizon;
use super::watermark::{Watermark, WatermarkWriter};
use super::writer::{Closing, WriterStatus};

/// Time between two looks whether the watermark must move.
const INTERVAL: Duration = Duration::from_millis(100);

/// Time between two syncs of the watermark.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// The keeper of a running log.
#[derive(Debug)]
pub struct Keeper {
    log_id: Uuid,
    horizon: Arc<Horizon>,
    statuses: Vec<Arc<WriterStatus>>,
    /// Last commits of the shards that are only read, in the order of their numbers.
    historical: Vec<u64>,
    file: Mutex<WatermarkFile>,
}

#[derive(Debug)]
struct WatermarkFile {
    writer: WatermarkWriter,
    floor: u64,
    /// What the file says, synced or not; none if that is not known.
    written: Option<Watermark>,
    dirty: bool,
    synced_at: Instant,
}

impl Keeper {
    /// Creates or opens the watermark file in `directory`, which says where the log is now.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn open(
        directory: &Path,
        log_id: Uuid,
        floor: u64,
        horizon: Arc<Horizon>,
        statuses: Vec<Arc<WriterStatus>>,
        historical: Vec<u64>,
    ) -> io::Result<Keeper> {
        let now = watermark(log_id, floor, &horizon, &statuses, &historical);
        let writer = WatermarkWriter::create(directory, &now)?;
        let file = WatermarkFile { writer, floor, written: Some(now), dirty: false, synced_at: Instant::now() };
        Ok(Keeper { log_id, horizon, statuses, historical, file: Mutex::new(file) })
    }

    fn file(&self) -> MutexGuard<'_, WatermarkFile> {
        self.file.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The position up to which retention has deleted, or is deleting.
    pub fn floor(&self) -> u64 {
        self.file().floor
    }

    /// Raises the floor: when this returns, no start will miss what lies below it. Both slots say so, so that one that rots
    /// does not lower it again.
    ///
    /// # Errors
    /// What the operating system says; the floor is not raised then.
    pub fn raise_floor(&self, floor: u64) -> io::Result<()> {
        let mut file = self.file();
        let now = watermark(self.log_id, floor, &self.horizon, &self.statuses, &self.historical);
        file.written = None;
        for _ in 0..2 {
            file.writer.write(&now)?;
            file.writer.sync()?;
        }
        file.floor = floor;
        file.written = Some(now);
        file.dirty = false;
        file.synced_at = Instant::now();
        Ok(())
    }

    /// Follows the horizon until the log closes.
    pub fn run(&self, closing: &Closing) {
        while !closing.wait(INTERVAL) {
            if let Err(error) = self.follow(false) {
                // The log itself goes on: what the file cannot say now is only a weaker check at the next start.
                tracing::error!("the watermark cannot be written: {error}");
            }
        }
    }

    /// Writes the last state, when all threads of the log have ended.
    ///
    /// # Errors
    /// What the operating system says.
    pub fn close(&self) -> io::Result<()> {
        self.follow(true)
    }

    fn follow(&self, sync: bool) -> io::Result<()> {
        let mut file = self.file();
        let now = watermark(self.log_id, file.floor, &self.horizon, &self.statuses, &self.historical);
        if file.written.as_ref() != Some(&now) {
            file.written = None;
            file.writer.write(&now)?;
            file.written = Some(now);
            file.dirty = true;
        }
        if file.dirty && (sync || file.synced_at.elapsed() >= SYNC_INTERVAL) {
            // What a failed sync should have covered is written again: a later sync says that all is well without it.
            file.writer.sync().inspect_err(|_| file.written = None)?;
            file.dirty = false;
            file.synced_at = Instant::now();
        }
        Ok(())
    }
}

/// What the watermark should say. The horizon is read first, so the commits that it needs are among those counted.
fn watermark(
    log_id: Uuid,
    floor: u64,
    horizon: &Horizon,
    statuses: &[Arc<WriterStatus>],
    historical: &[u64],
) -> Watermark {
    let horizon = horizon.position();
    let active = statuses.iter().map(|status| status.commit_number());
    let commit_numbers = active.chain(historical.iter().copied()).collect();
    Watermark { log_id, floor, horizon, commit_numbers }
}
