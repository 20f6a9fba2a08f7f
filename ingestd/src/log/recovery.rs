//! What happens to a data directory before the log takes its first event: open every shard, cut the log at its end
//! (LOG-4), and read from the receipts what is stored of each stream.
//!
//! A shard that cannot be read stops the start: the union of all shards' receipts is the only authority on what was
//! stored.

use std::collections::{HashMap, HashSet};
use std::path::Path;

use lanes_core::log::recovery::{DuplicatePosition, find_cut};
use rusqlite::{Connection, params};
use uuid::Uuid;

use super::directory::{MAXIMUM_SHARDS, existing_shards, shard_path};
use super::shard::{self, ShardError, receipt_crc};
use super::stream::StreamState;

/// Why a log cannot be opened. The text is one line; nothing has been changed unless it says so.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A shard file cannot be used.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The directory cannot be listed.
    #[error("cannot list the data directory: {0}")]
    List(#[from] std::io::Error),
    /// A file is not there although one with a higher number is.
    #[error("{0} is missing: its events and receipts are lost; put the file back")]
    MissingShard(String),
    /// The log contradicts itself.
    #[error("the log is damaged: {0}")]
    Duplicate(#[from] DuplicatePosition),
    /// Receipts that contradict each other or their checksums.
    #[error("the log is damaged: {0}")]
    Receipts(String),
}

/// A shard that the log writes to.
#[derive(Debug)]
pub struct ActiveShard {
    /// Its only read-write connection.
    pub connection: Connection,
    /// The streams in its `stream` table.
    pub streams: HashSet<u64>,
    /// The number of its last commit.
    pub commit_number: u64,
}

/// A log that is ready for its next event.
#[derive(Debug)]
pub struct Recovered {
    /// The log's id.
    pub log_id: Uuid,
    /// The shards to write to: numbers 0 to `shard_count` - 1.
    pub active: Vec<ActiveShard>,
    /// Numbers of the shards that are only read.
    pub historical: Vec<u32>,
    /// Every position up to this one is held; there is none above.
    pub horizon: u64,
    /// How many rows lay past the cut and were deleted.
    pub cut_rows: u64,
    /// What is stored of each stream.
    pub streams: HashMap<u64, StreamState>,
}

/// Opens the log in `directory` for writing to `shard_count` shards. `now` is in milliseconds since 1970 UTC.
///
/// # Errors
/// [`RecoveryError`].
pub fn recover(directory: &Path, shard_count: u32, now: i64) -> Result<Recovered, RecoveryError> {
    debug_assert!((1..=MAXIMUM_SHARDS).contains(&shard_count));
    let existing = existing_shards(directory)?;
    if let Some((expected, _)) = (0..).zip(&existing).find(|(expected, shard)| expected != *shard) {
        return Err(RecoveryError::MissingShard(format!("shard-{expected:04}.db")));
    }
    let mut log_id = None;
    for number in &existing {
        if let Some(id) = shard::log_id(&shard_path(directory, *number), *number)? {
            log_id.get_or_insert(id);
        }
    }
    let log_id = log_id.unwrap_or_else(Uuid::new_v4);
    let total = shard_count.max(existing.len() as u32);

    let mut connections = Vec::new();
    let mut headers = Vec::new();
    for number in 0..total {
        let path = shard_path(directory, number);
        let connection = shard::open_writer(&path, log_id, number, now)?;
        headers.push(shard::read_header(&connection, &path, number)?);
        connections.push((connection, path));
    }
    let known = headers.iter().map(|header| header.horizon).max().unwrap_or(0);
    let mut above = Vec::new();
    for (connection, path) in &connections {
        above.extend(positions_above(connection, known).map_err(|error| ShardError::Sqlite(path.clone(), error))?);
    }
    let horizon = find_cut(known, above)?;

    let mut cut_rows = 0;
    let mut streams = HashMap::new();
    let mut stored_streams = Vec::new();
    for (connection, path) in &mut connections {
        let sqlite = |error| ShardError::Sqlite(path.clone(), error);
        cut_rows += cut(connection, horizon).map_err(sqlite)?;
        let names = read_streams(connection).map_err(sqlite)?;
        let receipts = read_receipts(connection).map_err(sqlite)?;
        add_receipts(&mut streams, &names, &receipts)?;
        stored_streams.push(names.into_keys().collect());
    }
    check_without_holes(&streams)?;

    let active = connections
        .into_iter()
        .zip(stored_streams)
        .zip(headers)
        .take(shard_count as usize)
        .map(|(((connection, _), streams), header)| ActiveShard {
            connection,
            streams,
            // The cut was a commit.
            commit_number: header.commit_number + 1,
        })
        .collect();
    Ok(Recovered { log_id, active, historical: (shard_count..total).collect(), horizon, cut_rows, streams })
}

fn positions_above(connection: &Connection, position: u64) -> rusqlite::Result<Vec<u64>> {
    connection
        .prepare("SELECT position FROM event WHERE position > ?1")?
        .query_map([position], |row| row.get(0))?
        .collect()
}

/// Deletes the rows above `horizon` and trims their receipts, in one transaction. Returns the number of rows.
///
/// There is always something to write, and so a sync: what a killed process wrote and did not sync is read from memory
/// now, and from here on counts as stored (LOG-2).
fn cut(connection: &mut Connection, horizon: u64) -> rusqlite::Result<u64> {
    let transaction = connection.transaction()?;
    // In a stream position order is sequence order, so what is cut of a stream is its end.
    let ends: Vec<(u64, u64, u64)> = transaction
        .prepare("SELECT stream, min(sequence), count(*) FROM event WHERE position > ?1 GROUP BY stream")?
        .query_map([horizon], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (stream, end, _) in &ends {
        transaction.execute("DELETE FROM receipt WHERE stream = ?1 AND first_sequence >= ?2", params![stream, end])?;
        let crossing: Vec<u64> = transaction
            .prepare("SELECT first_sequence FROM receipt WHERE stream = ?1 AND last_sequence >= ?2")?
            .query_map(params![stream, end], |row| row.get(0))?
            .collect::<rusqlite::Result<_>>()?;
        for first in crossing {
            transaction.execute(
                "UPDATE receipt SET last_sequence = ?3, crc = ?4 WHERE stream = ?1 AND first_sequence = ?2",
                params![stream, first, end - 1, receipt_crc(*stream, first, end - 1)],
            )?;
        }
    }
    transaction.execute("DELETE FROM event WHERE position > ?1", [horizon])?;
    transaction.execute("UPDATE log SET commit_number = commit_number + 1, horizon = ?1", [horizon])?;
    transaction.commit()?;
    Ok(ends.iter().map(|(_, _, rows)| rows).sum())
}

fn read_streams(connection: &Connection) -> rusqlite::Result<HashMap<u64, String>> {
    connection
        .prepare("SELECT stream, name FROM stream")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect()
}

/// A row of `receipt`.
#[derive(Debug)]
struct Receipt {
    stream: u64,
    first_sequence: u64,
    last_sequence: u64,
    crc: u32,
}

fn read_receipts(connection: &Connection) -> rusqlite::Result<Vec<Receipt>> {
    connection
        .prepare("SELECT stream, first_sequence, last_sequence, crc FROM receipt")?
        .query_map([], |row| {
            Ok(Receipt {
                stream: row.get(0)?,
                first_sequence: row.get(1)?,
                last_sequence: row.get(2)?,
                crc: row.get(3)?,
            })
        })?
        .collect()
}

fn add_receipts(
    streams: &mut HashMap<u64, StreamState>,
    names: &HashMap<u64, String>,
    receipts: &[Receipt],
) -> Result<(), RecoveryError> {
    for (number, name) in names {
        let state = streams.entry(*number).or_insert_with(|| StreamState::new(name.as_str().into()));
        if *state.name != **name {
            let text = format!("stream {number} is called \"{}\" and \"{name}\"", state.name);
            return Err(RecoveryError::Receipts(text));
        }
    }
    for Receipt { stream, first_sequence, last_sequence, crc } in receipts {
        let range = format!("receipt {first_sequence} to {last_sequence} of stream {stream}");
        if receipt_crc(*stream, *first_sequence, *last_sequence) != *crc {
            return Err(RecoveryError::Receipts(format!("{range} does not match its checksum")));
        }
        let Some(state) = streams.get_mut(stream) else {
            return Err(RecoveryError::Receipts(format!("{range} belongs to no known stream")));
        };
        if state.covered.intersects(*first_sequence, *last_sequence) {
            return Err(RecoveryError::Receipts(format!("{range} covers events that another receipt covers (LOG-5)")));
        }
        state.covered.insert(*first_sequence, *last_sequence);
    }
    Ok(())
}

/// Producers number without holes and a stream's order is position order, so a hole below a stored event means that a
/// commit got lost.
fn check_without_holes(streams: &HashMap<u64, StreamState>) -> Result<(), RecoveryError> {
    for state in streams.values() {
        let next = state.next_sequence();
        if let Some((first, _)) = state.covered.ranges().find(|(first, _)| *first > next) {
            return Err(RecoveryError::Receipts(format!(
                "of stream \"{}\" the events {next} to {} are missing",
                state.name,
                first - 1
            )));
        }
    }
    Ok(())
}
