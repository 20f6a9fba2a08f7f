//! Lanes that read the log for themselves: those that catch up, have a schedule or have to stop.

use std::sync::{Arc, Mutex, PoisonError};

use lanes_core::place::Place;
use tokio::sync::Semaphore;

use super::chunks::{Chunks, Routed};
use super::source::{Reader, Source};

/// Lanes that read at the same time.
const CATCH_UP_READERS: usize = 4;

/// A few readers of the log, opened when they are first needed.
pub struct Readers {
    source: Arc<Source>,
    chunks: Arc<Chunks>,
    permits: Semaphore,
    idle: Arc<Mutex<Vec<Reader>>>,
}

impl Readers {
    /// Readers of a log.
    pub fn new(source: &Arc<Source>, chunks: &Arc<Chunks>) -> Readers {
        Readers {
            source: Arc::clone(source),
            chunks: Arc::clone(chunks),
            permits: Semaphore::new(CATCH_UP_READERS),
            idle: Arc::default(),
        }
    }

    /// A chunk that goes on after a place; one that has to be read ends at `until` at the latest.
    ///
    /// # Errors
    /// Why the log cannot be read, in one line.
    pub async fn read(&self, after: Place, until: Place) -> Result<Arc<Routed>, String> {
        if let Some(kept) = self.chunks.find(after) {
            return Ok(kept);
        }
        let _permit = self.permits.acquire().await.map_err(|error| error.to_string())?;
        let (source, chunks, idle) = (Arc::clone(&self.source), Arc::clone(&self.chunks), Arc::clone(&self.idle));
        let read = move || {
            let reader = idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
            let mut reader = match reader {
                Some(reader) => reader,
                None => source.reader()?,
            };
            let chunk = chunks.read(&mut reader, after, until);
            idle.lock().unwrap_or_else(PoisonError::into_inner).push(reader);
            chunk
        };
        tokio::task::spawn_blocking(read).await.map_err(|error| error.to_string())?
    }
}
