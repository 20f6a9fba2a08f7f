//! Reads the log in position order, merged over all shards.
//!
//! A reader takes the horizon before it opens its snapshots, so it never sees a position above it (LOG-3). It stops at
//! a missing position and at a row that does not match its checksum, and never skips one, except positions that an
//! operator has given up as lost. It assumes nothing about which shard holds what.

use std::path::{Path, PathBuf};

use lanes_core::event::Event;
use rusqlite::{Connection, Row, params};

use super::directory::{existing_shards, shard_path};
use super::shard::{self, EventRow, LossRange, ShardError, read_losses};

/// An event with its place in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredEvent {
    /// Its place.
    pub position: u64,
    /// Time of storing, milliseconds since 1970 UTC.
    pub stored_at: i64,
    /// The event as it was sent.
    pub event: Event,
}

/// A part of the log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    /// Its events, in position order.
    pub events: Vec<StoredEvent>,
    /// Everything up to this position is in the chunk or before it.
    pub scanned_to: u64,
}

/// Why the log cannot be read. The text is one line.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A shard file cannot be used.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The directory cannot be listed.
    #[error("cannot list the data directory: {0}")]
    List(#[from] std::io::Error),
    /// A position at or below the horizon is in no shard (LOG-1).
    #[error("the log is damaged: position {0} is missing")]
    Missing(u64),
    /// A position is in two shards (LOG-1).
    #[error("the log is damaged: position {0} is held twice")]
    Twice(u64),
    /// A row is not what was written.
    #[error("the log is damaged: the event at position {0} does not match its checksum")]
    Checksum(u64),
}

/// Read-only connections to all shards of a log.
#[derive(Debug)]
pub struct LogReader {
    shards: Vec<(Connection, PathBuf)>,
    losses: Vec<LossRange>,
}

const SELECT: &str = "
    SELECT position, stream, sequence, cpu, type, key, ts, stored_at, payload, crc FROM event
    WHERE position > ?1 AND position <= ?2 ORDER BY position";

impl LogReader {
    /// Opens all shards, active and historical, of the log in `directory`.
    ///
    /// # Errors
    /// [`ReadError`] if one cannot be opened.
    pub fn open(directory: &Path) -> Result<LogReader, ReadError> {
        let mut shards = Vec::new();
        let mut losses = Vec::new();
        for number in existing_shards(directory)? {
            let path = shard_path(directory, number);
            let connection = shard::open_reader(&path)?;
            losses.extend(read_losses(&connection, &path)?);
            shards.push((connection, path));
        }
        Ok(LogReader { shards, losses })
    }

    /// The events after position `after` up to `horizon`, at most `maximum_events` of them, and no more once they have
    /// `maximum_bytes`; at least one if there is one.
    ///
    /// # Errors
    /// [`ReadError`]. The events before the fault are not returned; ask for fewer to get them.
    pub fn read(
        &self,
        after: u64,
        horizon: u64,
        maximum_events: u64,
        maximum_bytes: usize,
    ) -> Result<Chunk, ReadError> {
        let until = horizon.min(after.saturating_add(maximum_events));
        let mut statements = Vec::new();
        for (connection, path) in &self.shards {
            let sqlite = |error| ShardError::Sqlite(path.clone(), error);
            statements.push((connection.prepare_cached(SELECT).map_err(sqlite)?, path));
        }
        let mut cursors = Vec::new();
        for (statement, path) in &mut statements {
            let sqlite = |error| ShardError::Sqlite(path.clone(), error);
            let rows = statement.query(params![after, until]).map_err(sqlite)?;
            let mut cursor = Cursor { rows, path, next: None };
            cursor.advance()?;
            cursors.push(cursor);
        }
        let mut chunk = Chunk { events: Vec::new(), scanned_to: after };
        let mut bytes = 0;
        for position in after + 1..=until {
            let mut holders =
                cursors.iter_mut().filter(|cursor| cursor.next.as_ref().is_some_and(|next| next.position == position));
            let Some(cursor) = holders.next() else {
                if self.is_lost(position) {
                    chunk.scanned_to = position;
                    continue;
                }
                return Err(ReadError::Missing(position));
            };
            if holders.next().is_some() {
                return Err(ReadError::Twice(position));
            }
            chunk.events.extend(cursor.next.take());
            chunk.scanned_to = position;
            cursor.advance()?;
            bytes += chunk.events.last().map_or(0, |stored| stored.event.size_bytes());
            if bytes >= maximum_bytes {
                break;
            }
        }
        Ok(chunk)
    }

    fn is_lost(&self, position: u64) -> bool {
        self.losses.iter().any(|range| (range.first_position..=range.last_position).contains(&position))
    }
}

struct Cursor<'a> {
    rows: rusqlite::Rows<'a>,
    path: &'a Path,
    next: Option<StoredEvent>,
}

impl Cursor<'_> {
    fn advance(&mut self) -> Result<(), ReadError> {
        let sqlite = |error| ShardError::Sqlite(self.path.to_owned(), error);
        self.next = match self.rows.next().map_err(sqlite)? {
            None => None,
            Some(row) => Some(checked(row).map_err(sqlite)?.map_err(ReadError::Checksum)?),
        };
        Ok(())
    }
}

/// The event of a row, or its position if it does not match its checksum.
fn checked(row: &Row) -> rusqlite::Result<Result<StoredEvent, u64>> {
    let fields = EventRow {
        position: row.get(0)?,
        stream: row.get(1)?,
        sequence: row.get(2)?,
        cpu: row.get(3)?,
        event_type: row.get_ref(4)?.as_str()?,
        key: row.get_ref(5)?.as_str()?,
        ts: row.get(6)?,
        stored_at: row.get(7)?,
        payload: row.get_ref(8)?.as_str()?,
    };
    if fields.crc() != row.get::<_, u32>(9)? {
        return Ok(Err(fields.position));
    }
    Ok(Ok(StoredEvent {
        position: fields.position,
        stored_at: fields.stored_at,
        event: Event {
            event_type: fields.event_type.to_owned(),
            key: fields.key.to_owned(),
            ts: fields.ts,
            payload: fields.payload.to_owned(),
        },
    }))
}
