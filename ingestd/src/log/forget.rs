//! Forgetting streams of which retention has deleted everything and whose producers were idle for long.

use std::sync::Arc;

use rusqlite::{Connection, OptionalExtension, params};
use tokio::sync::{mpsc, oneshot};

use super::drain::Command;
use super::shard::ReceiptKind;
use super::stream::{StreamKey, StreamRegistry};

/// The streams of a shard with numbers above `after`, of which nothing is stored and whose last known event was stored at
/// or before `idle_since`; at most `most`, in the order of their numbers.
///
/// # Errors
/// SQLite's.
pub fn idle_streams(
    connection: &Connection,
    after: u64,
    idle_since: i64,
    most: u64,
) -> rusqlite::Result<Vec<StreamKey>> {
    connection
        .prepare_cached(
            "SELECT stream, name, epoch FROM stream
             WHERE stream > ?1 AND last_stored_at <= ?2
               AND NOT EXISTS (SELECT 1 FROM receipt WHERE receipt.stream = stream.stream AND kind = ?3)
             ORDER BY stream LIMIT ?4",
        )?
        .query_map(params![after, idle_since, ReceiptKind::Stored.number(), most], |row| {
            Ok(StreamKey { number: row.get(0)?, name: row.get::<_, String>(1)?.into(), epoch: row.get(2)? })
        })?
        .collect()
}

/// What a shard knows of a stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Remains {
    /// Whether it holds any of its events.
    pub stored: bool,
    /// The greatest number in its receipts.
    pub end: u64,
    /// See the table `stream`.
    pub last_stored_at: i64,
}

/// What the shard knows of `stream`; none if it does not know it.
///
/// # Errors
/// SQLite's.
pub fn remains(connection: &Connection, stream: u64) -> rusqlite::Result<Option<Remains>> {
    connection
        .prepare_cached(
            "SELECT last_stored_at,
                    (SELECT COALESCE(max(last_sequence), 0) FROM receipt WHERE receipt.stream = stream.stream),
                    EXISTS (SELECT 1 FROM receipt WHERE receipt.stream = stream.stream AND kind = ?2)
             FROM stream WHERE stream = ?1",
        )?
        .query_row(params![stream, ReceiptKind::Stored.number()], |row| {
            Ok(Remains { last_stored_at: row.get(0)?, end: row.get(1)?, stored: row.get(2)? })
        })
        .optional()
}

/// Deletes all that the shard knows of `streams`.
///
/// # Errors
/// SQLite's; nothing has changed then.
pub fn forget(connection: &mut Connection, streams: &[u64]) -> rusqlite::Result<()> {
    let transaction = connection.transaction()?;
    for stream in streams {
        for table in ["stream_hash", "receipt", "stream"] {
            transaction.prepare_cached(&format!("DELETE FROM {table} WHERE stream = ?1"))?.execute([stream])?;
        }
    }
    transaction.commit()
}

/// The running log's knowledge of its producers.
#[derive(Debug)]
pub struct Producers {
    /// The streams by name.
    pub registry: Arc<StreamRegistry>,
    /// The drains, by ordinal.
    pub inboxes: Vec<mpsc::Sender<Command>>,
}

impl Producers {
    /// Lets the drain of a stream let go of it; see [`Command::Forget`]. Blocks.
    pub fn let_go(&self, stream: &StreamKey, end: u64, idle_since: i64) -> bool {
        let Some(drain) = self.registry.drain_of(&stream.name) else { return false };
        let (answer, reply) = oneshot::channel();
        let command = Command::Forget { stream: stream.clone(), end, idle_since, answer };
        // Either end is gone only when the log closes.
        self.inboxes[drain].blocking_send(command).is_ok() && reply.blocking_recv().unwrap_or(false)
    }
}
