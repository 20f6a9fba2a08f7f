//! Hashes of streams: what a producer says its events hashed to, at certain of its numbers.
//!
//! A producer that can be read again, a file that grows, sends with a request the hash of everything in its stream up to
//! the request's last event. It is stored with that event, in one transaction, and compared when the same numbers come
//! again: numbers alone cannot tell that a file was changed. What is hashed is the producer's affair.
//!
//! Hashes at multiples of [`HASH_INTERVAL`] stay as long as the stream is known; besides them only the last two that a
//! shard was given, so that their number is bounded by the events. (Two, because the last one may go with its event when the
//! log is cut.)

use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use rusqlite::{Connection, OptionalExtension, params};

use super::directory::{existing_shards, shard_path};
use super::shard::{ShardError, crc_of_numbers, open_reader};

/// A hash as a producer gives it, SHA-256.
pub type ContentHash = [u8; 32];

/// Events between two hashes of a stream that stay.
pub const HASH_INTERVAL: u64 = 1000;

/// A row of `stream_hash`, without its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StreamHash {
    /// The stream's number.
    pub stream: u64,
    /// The number of the last event that was hashed.
    pub sequence: u64,
    /// What all events up to it hash to.
    pub hash: ContentHash,
}

impl StreamHash {
    /// CRC-32C over the numbers, little-endian, and the hash.
    pub fn crc(&self) -> u32 {
        crc32c::crc32c_append(crc_of_numbers(&[self.stream, self.sequence]), &self.hash)
    }

    /// Writes the row in place of the shard's last one of the stream but one, unless that one stays.
    ///
    /// # Errors
    /// SQLite's.
    pub fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        connection
            .prepare_cached(
                "DELETE FROM stream_hash
                 WHERE stream = ?1 AND sequence % ?2 <> 0
                   AND sequence = (SELECT sequence FROM stream_hash WHERE stream = ?1
                                   ORDER BY sequence DESC LIMIT 1 OFFSET 1)",
            )?
            .execute(params![self.stream, HASH_INTERVAL])?;
        connection
            .prepare_cached("INSERT INTO stream_hash (stream, sequence, hash, crc) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![self.stream, self.sequence, self.hash, self.crc()])
            .map(drop)
    }

    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<(StreamHash, bool)> {
        let hash = StreamHash { stream: row.get(0)?, sequence: row.get(1)?, hash: row.get(2)? };
        let matches = hash.crc() == row.get::<_, u32>(3)?;
        Ok((hash, matches))
    }
}

/// Reads all hashes of a shard, one after the other.
///
/// # Errors
/// [`ShardError`]: SQLite's errors, and hashes that do not match their checksum.
pub fn read_hashes(connection: &Connection, path: &Path, mut each: impl FnMut(StreamHash)) -> Result<(), ShardError> {
    let sqlite = |error| ShardError::Sqlite(path.to_owned(), error);
    let mut statement = connection.prepare("SELECT stream, sequence, hash, crc FROM stream_hash").map_err(sqlite)?;
    let mut rows = statement.query([]).map_err(sqlite)?;
    while let Some(row) = rows.next().map_err(sqlite)? {
        each(checked(StreamHash::read(row).map_err(sqlite)?, path)?);
    }
    Ok(())
}

fn checked((hash, matches): (StreamHash, bool), path: &Path) -> Result<StreamHash, ShardError> {
    if matches {
        return Ok(hash);
    }
    let text = format!("the hash at event {} of stream {} does not match its checksum", hash.sequence, hash.stream);
    Err(ShardError::Damaged(path.to_owned(), text))
}

/// Finds hashes in the files of a running log.
#[derive(Debug)]
pub struct HashReader {
    directory: PathBuf,
    /// Read-only connections to all shards, opened when they are needed first.
    shards: Mutex<Vec<(Connection, PathBuf)>>,
}

impl HashReader {
    /// For the log in `directory`.
    pub fn new(directory: &Path) -> HashReader {
        HashReader { directory: directory.to_owned(), shards: Mutex::default() }
    }

    /// The hash that was stored with event `sequence` of a stream; none if there was none. Blocks for a moment.
    ///
    /// # Errors
    /// [`ShardError`] if a file cannot be read.
    pub fn find(&self, stream: u64, sequence: u64) -> Result<Option<ContentHash>, ShardError> {
        let mut shards = self.shards.lock().unwrap_or_else(PoisonError::into_inner);
        if shards.is_empty() {
            let existing = existing_shards(&self.directory)
                .map_err(|error| ShardError::Contents(self.directory.clone(), error.to_string()))?;
            for number in existing {
                let path = shard_path(&self.directory, number);
                shards.push((open_reader(&path)?, path));
            }
        }
        for (connection, path) in shards.iter() {
            let sqlite = |error| ShardError::Sqlite(path.clone(), error);
            let found = connection
                .prepare_cached(
                    "SELECT stream, sequence, hash, crc FROM stream_hash WHERE stream = ?1 AND sequence = ?2",
                )
                .map_err(sqlite)?
                .query_row([stream, sequence], StreamHash::read)
                .optional()
                .map_err(sqlite)?;
            if let Some(found) = found {
                return checked(found, path).map(|found| Some(found.hash));
            }
        }
        Ok(None)
    }
}
