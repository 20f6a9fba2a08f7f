//! What is in the files of a log, read and checked without the daemon's code.
//!
//! Checks: every position above the floor to the last is held exactly once (LOG-1, LOG-4); the receipts of a stream are
//! disjoint, dense from 1, and those that say "stored" cover exactly its rows (LOG-5); in a stream, the order of sequences
//! is position order; each row matches its checksum; nothing was given up as lost. What was acknowledged (LOG-2) or shown
//! (LOG-3) only the caller knows.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OpenFlags};

/// The kind of the receipts of events that are there.
const STORED: u64 = 0;

/// The kind of the receipts of events that retention has deleted.
const EXPIRED: u64 = 1;

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
    /// The position up to which retention has deleted or is deleting.
    pub floor: u64,
    /// The events in position order. Some at or below the floor may still be there.
    pub rows: Vec<StoredRow>,
    /// Stream ► the last of its numbers; all from 1 on are stored or expired.
    pub last_numbers: BTreeMap<String, u64>,
}

impl LogFiles {
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
    /// Stream, first, last, whether they are stored.
    receipts: Vec<(u64, u64, u64, bool)>,
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
    let mut receipts: BTreeMap<u64, BTreeSet<(u64, u64, bool)>> = BTreeMap::new();
    let floor = read_floor(directory)?;
    for path in shard_files(directory)? {
        let shard = read_shard(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let known = log_id.get_or_insert_with(|| shard.log_id.clone());
        ensure(*known == shard.log_id, || format!("{}: is part of another log", path.display()))?;
        for (number, name) in shard.names {
            let known = names.entry(number).or_insert_with(|| name.clone());
            ensure(*known == name, || format!("stream {number} is called \"{known}\" and \"{name}\""))?;
        }
        for (stream, first, last, stored) in shard.receipts {
            let new = receipts.entry(stream).or_default().insert((first, last, stored));
            ensure(new, || format!("receipt {first} to {last} of stream {stream} is there twice (LOG-5)"))?;
        }
        rows.extend(shard.rows);
    }
    rows.sort_by_key(|(_, row)| row.position);
    let above = rows.iter().map(|(_, row)| row.position).filter(|position| *position > floor);
    for (position, expected) in above.zip(floor + 1..) {
        ensure(position == expected, || format!("position {position} is where {expected} should be (LOG-1)"))?;
    }
    let last = rows.last().map_or(floor, |(_, row)| row.position.max(floor));
    if let Some(horizon) = horizon {
        ensure(last == horizon, || format!("the horizon is {horizon}, but the last position is {last} (LOG-4)"))?;
    }
    let distinct: BTreeSet<&String> = names.values().collect();
    ensure(distinct.len() == names.len(), || format!("two streams have one name: {names:?}"))?;

    let mut sequences: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (stream, row) in &mut rows {
        row.stream = names.get(stream).cloned().ok_or_else(|| format!("stream {stream} has rows and no name"))?;
        let before = sequences.entry(*stream).or_default();
        ensure(before.last().is_none_or(|last| *last < row.sequence), || {
            format!("position {} has sequence {} of stream {stream}, not in order", row.position, row.sequence)
        })?;
        before.push(row.sequence);
    }
    let mut last_numbers = BTreeMap::new();
    let mut covered: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    for (stream, ranges) in &receipts {
        let mut next = 1;
        for (first, last, stored) in ranges {
            ensure(*first == next && last >= first, || {
                format!("of stream {stream}, receipt {first} to {last} is where {next} should begin (LOG-5)")
            })?;
            next = last + 1;
            if *stored {
                covered.entry(*stream).or_default().extend(*first..=*last);
            }
        }
        let name = names.get(stream).ok_or_else(|| format!("stream {stream} has receipts and no name"))?;
        last_numbers.insert(name.clone(), next - 1);
    }
    for stream in covered.keys().chain(sequences.keys()) {
        ensure(covered.get(stream) == sequences.get(stream), || {
            format!("receipts and rows of stream {stream} do not agree (LOG-5)")
        })?;
    }
    let log_id = log_id.ok_or("there are no shards")?;
    Ok(LogFiles { log_id, floor, rows: rows.into_iter().map(|(_, row)| row).collect(), last_numbers })
}

/// The floor, from the valid slot with the greater generation of the watermark file: 4096 bytes, little-endian, magic
/// `PLWATER1`, generation at 8, floor at 32, number of shards at 48, CRC-32C behind the shards' numbers from 56 on.
/// 0 if there is no such slot.
fn read_floor(directory: &Path) -> Result<u64, String> {
    let bytes = match std::fs::read(directory.join("watermark")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.to_string()),
    };
    Ok(bytes.chunks(4096).filter_map(watermark_slot).max().map_or(0, |(_, floor)| floor))
}

/// Generation and floor of a slot, if it is valid.
fn watermark_slot(slot: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
    let small = |at: usize| Some(u32::from_le_bytes(slot.get(at..at + 4)?.try_into().ok()?));
    let end = 56 + 8 * small(48)? as usize;
    let valid = slot.get(..8)? == b"PLWATER1" && crc32c(slot.get(..end)?) == small(end)?;
    valid.then_some((number(8)?, number(32)?))
}

/// What a power cut may do to the newest slot of the watermark file, if the other one is valid: lose a sector of it. (The
/// slot that the last sync covered is never written again before the other one is synced.)
///
/// # Panics
/// If the file cannot be written.
pub fn tear_watermark(directory: &Path) {
    let path = directory.join("watermark");
    let Ok(mut bytes) = std::fs::read(&path) else { return };
    let slots: Vec<_> = bytes.chunks(4096).map(watermark_slot).collect();
    if let [Some(first), Some(second)] = slots[..] {
        let newest = if first > second { 0 } else { 4096 };
        bytes[newest..newest + 512].fill(0);
        std::fs::write(&path, bytes).expect("the directory is the test's");
    }
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
        let known = [STORED, EXPIRED].contains(&kind);
        ensure(known, || format!("receipt {first} to {last} of stream {stream} is of kind {kind}"))?;
        receipts.push((stream, first, last, kind == STORED));
    }

    let losses: u64 = connection.query_row("SELECT count(*) FROM loss", [], |row| row.get(0)).map_err(text)?;
    ensure(losses == 0, || "something was given up as lost".to_owned())?;

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
