//! What is in the files of a log, read and checked without the daemon's code.
//!
//! Checks: every position from 1 to the last is held exactly once (LOG-1, LOG-4); the receipts of a stream are disjoint
//! and cover exactly its rows (LOG-5); in a stream, sequences are dense from 1 and their order is position order; each
//! row matches its checksum. What was acknowledged (LOG-2) or shown (LOG-3) only the caller knows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

/// The kind of the receipts of events that are there.
const STORED: u64 = 0;

/// An event as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredRow {
    /// Place in the log.
    pub position: u64,
    /// Name of the stream.
    pub stream: String,
    /// Number in the stream.
    pub sequence: u64,
    /// The event's type.
    pub event_type: String,
    /// The event's key.
    pub key: String,
    /// The event's time.
    pub ts: i64,
    /// The payload.
    pub payload: String,
}

/// What a log's files hold.
#[derive(Debug)]
pub struct LogFiles {
    /// The log's id.
    pub log_id: String,
    /// The events in position order; the first has position 1.
    pub rows: Vec<StoredRow>,
}

impl LogFiles {
    /// The last position.
    pub fn horizon(&self) -> u64 {
        self.rows.len() as u64
    }

    /// The events of a stream, in order.
    pub fn stream<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a StoredRow> {
        self.rows.iter().filter(move |row| row.stream == name)
    }
}

/// What one shard holds.
#[derive(Debug)]
struct Shard {
    log_id: String,
    names: BTreeMap<u64, String>,
    /// Stream's number, and the row, its name not yet known.
    rows: Vec<(u64, StoredRow)>,
    /// Stream, first, last.
    receipts: Vec<(u64, u64, u64)>,
}

/// The shard files in `directory`, in the order of their numbers.
///
/// # Errors
/// If the directory cannot be listed.
pub fn shard_files(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(text)? {
        let path = entry.map_err(text)?.path();
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if name.starts_with("shard-") && name.ends_with(".db") {
            paths.push(path);
        }
    }
    paths.sort();
    Ok(paths)
}

/// Reads and checks the log in `directory`, whose last position must be `horizon` if one is given. The log may be open,
/// but nothing may be written meanwhile.
///
/// # Errors
/// The first thing that is wrong.
pub fn check(directory: &Path, horizon: Option<u64>) -> Result<LogFiles, String> {
    let mut log_id = None;
    let mut names: BTreeMap<u64, String> = BTreeMap::new();
    let mut rows: Vec<(u64, StoredRow)> = Vec::new();
    let mut receipts: BTreeMap<u64, BTreeSet<(u64, u64)>> = BTreeMap::new();
    for path in shard_files(directory)? {
        let shard = read_shard(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let known = log_id.get_or_insert_with(|| shard.log_id.clone());
        ensure(*known == shard.log_id, || format!("{}: is part of another log", path.display()))?;
        for (number, name) in shard.names {
            let known = names.entry(number).or_insert_with(|| name.clone());
            ensure(*known == name, || format!("stream {number} is called \"{known}\" and \"{name}\""))?;
        }
        for (stream, first, last) in shard.receipts {
            let new = receipts.entry(stream).or_default().insert((first, last));
            ensure(new, || format!("receipt {first} to {last} of stream {stream} is there twice (LOG-5)"))?;
        }
        rows.extend(shard.rows);
    }
    rows.sort_by_key(|(_, row)| row.position);
    for ((_, row), expected) in rows.iter().zip(1..) {
        ensure(row.position == expected, || {
            format!("position {} is where position {expected} should be (LOG-1)", row.position)
        })?;
    }
    let last = rows.len() as u64;
    if let Some(horizon) = horizon {
        ensure(last == horizon, || format!("the horizon is {horizon}, but the last position is {last} (LOG-4)"))?;
    }
    let distinct: BTreeSet<&String> = names.values().collect();
    ensure(distinct.len() == names.len(), || format!("two streams have one name: {names:?}"))?;

    let mut sequences: BTreeMap<u64, u64> = BTreeMap::new();
    for (stream, row) in &mut rows {
        row.stream = names.get(stream).cloned().ok_or_else(|| format!("stream {stream} has rows and no name"))?;
        let sequence = sequences.entry(*stream).or_default();
        *sequence += 1;
        ensure(row.sequence == *sequence, || {
            let StoredRow { position, stream, sequence: found, .. } = &*row;
            format!("position {position} has sequence {found} of stream {stream}, {sequence} should follow")
        })?;
    }
    for (stream, ranges) in &receipts {
        let mut next = 1;
        for (first, last) in ranges {
            ensure(*first == next && last >= first, || {
                format!("of stream {stream}, receipt {first} to {last} is where {next} should begin (LOG-5)")
            })?;
            next = last + 1;
        }
    }
    let covered: BTreeMap<u64, u64> =
        receipts.iter().filter_map(|(stream, ranges)| Some((*stream, ranges.last()?.1))).collect();
    ensure(covered == sequences, || format!("receipts cover {covered:?}, rows are {sequences:?} (LOG-5)"))?;
    Ok(LogFiles { log_id: log_id.ok_or("there are no shards")?, rows: rows.into_iter().map(|(_, row)| row).collect() })
}

fn ensure(holds: bool, otherwise: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(otherwise()) }
}

fn text(error: impl Display) -> String {
    error.to_string()
}

fn read_shard(path: &Path) -> Result<Shard, String> {
    // By its name, because tests put a layer of their own over the usual one.
    let connection =
        Connection::open_with_flags_and_vfs(path, OpenFlags::SQLITE_OPEN_READ_ONLY, "unix").map_err(text)?;
    let log_id = connection.query_row("SELECT log_id FROM log", [], |row| row.get(0)).map_err(text)?;
    let mut names = BTreeMap::new();
    let mut statement = connection.prepare("SELECT stream, name, epoch, crc FROM stream").map_err(text)?;
    let mut found = statement.query([]).map_err(text)?;
    while let Some(row) = found.next().map_err(text)? {
        let get = |column| row.get::<_, u64>(column).map_err(text);
        let (stream, epoch, crc) = (get(0)?, get(2)?, get(3)?);
        let name: String = row.get(1).map_err(text)?;
        let mut bytes = [stream.to_le_bytes(), epoch.to_le_bytes()].concat();
        bytes.extend(name.as_bytes());
        ensure(crc == u64::from(crc32c(&bytes)), || {
            format!("the name of stream {stream} does not match its checksum")
        })?;
        names.insert(stream, name);
    }

    let mut receipts = Vec::new();
    let mut statement =
        connection.prepare("SELECT stream, first_sequence, last_sequence, kind, crc FROM receipt").map_err(text)?;
    let mut found = statement.query([]).map_err(text)?;
    while let Some(row) = found.next().map_err(text)? {
        let get = |column| row.get::<_, u64>(column).map_err(text);
        let (stream, first, last, kind) = (get(0)?, get(1)?, get(2)?, get(3)?);
        let bytes: Vec<u8> = [stream, first, last, kind].into_iter().flat_map(u64::to_le_bytes).collect();
        ensure(get(4)? == u64::from(crc32c(&bytes)), || {
            format!("receipt {first} to {last} of stream {stream} does not match its checksum")
        })?;
        ensure(kind == STORED, || format!("receipt {first} to {last} of stream {stream} is of kind {kind}"))?;
        receipts.push((stream, first, last));
    }

    let mut rows = Vec::new();
    let mut statement = connection
        .prepare("SELECT position, stream, sequence, cpu, ts, stored_at, type, key, payload, crc FROM event")
        .map_err(text)?;
    let mut found = statement.query([]).map_err(text)?;
    while let Some(row) = found.next().map_err(text)? {
        let number = |column| row.get::<_, i64>(column).map_err(text);
        let string = |column| row.get::<_, String>(column).map_err(text);
        let strings = [string(6)?, string(7)?, string(8)?];
        let mut bytes = Vec::new();
        for column in 0..6 {
            bytes.extend(number(column)?.to_le_bytes());
        }
        for string in &strings {
            bytes.extend((string.len() as u64).to_le_bytes());
        }
        for string in &strings {
            bytes.extend(string.as_bytes());
        }
        let position = number(0)? as u64;
        ensure(number(9)? == i64::from(crc32c(&bytes)), || format!("position {position} does not match its checksum"))?;
        let [event_type, key, payload] = strings;
        let sequence = number(2)? as u64;
        let row = StoredRow { position, stream: String::new(), sequence, event_type, key, ts: number(4)?, payload };
        rows.push((number(1)? as u64, row));
    }
    Ok(Shard { log_id, names, rows, receipts })
}

/// CRC-32C (Castagnoli, reflected), by its definition, bytewise through a table.
fn crc32c(bytes: &[u8]) -> u32 {
    const TABLE: [u32; 256] = {
        let mut table = [0u32; 256];
        let mut byte = 0;
        while byte < 256 {
            let mut value = byte as u32;
            let mut bit = 0;
            while bit < 8 {
                value = (value >> 1) ^ (0x82f6_3b78 * (value & 1));
                bit += 1;
            }
            table[byte] = value;
            byte += 1;
        }
        table
    };
    !bytes.iter().fold(!0, |crc: u32, byte| (crc >> 8) ^ TABLE[((crc as u8) ^ byte) as usize])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_checksum_is_crc_32c() {
        // Check value of the catalogue of parametrised CRC algorithms; RFC 3720 B.4 for 32 bytes of zeros.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }
}
