//! What is in the files of a log, read and checked without the daemon's code.
//!
//! Checks: every position above the floor to the last is held exactly once (LOG-1, LOG-4); the receipts of a stream that
//! say "stored" are disjoint and cover exactly its rows, in each shard; those that say "expired" are one a shard, begin at
//! 1, and cover nothing that is above the floor; together they are dense from 1 (LOG-5); in a stream, the order of
//! sequences is position order; each row matches its checksum; nothing was given up as lost. What was acknowledged (LOG-2)
//! or shown (LOG-3) only the caller knows.

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
    /// Stream ► the last of its numbers; all from 1 on are stored or expired. A producer's epoch above 0 is behind its
    /// name: `p/3`.
    pub last_numbers: BTreeMap<String, u64>,
    /// Stream ► number ► the hash that its producer gave with it.
    pub hashes: BTreeMap<String, BTreeMap<u64, Vec<u8>>>,
    /// Receipts of all shards.
    pub receipt_count: usize,
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
    /// Stream, number, hash.
    hashes: Vec<(u64, u64, Vec<u8>)>,
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
    let mut expired: BTreeMap<u64, u64> = BTreeMap::new();
    let mut all_hashes: BTreeMap<u64, BTreeMap<u64, Vec<u8>>> = BTreeMap::new();
    let mut receipt_count = 0;
    let floor = read_floor(directory)?;
    for path in shard_files(directory)? {
        let shard = read_shard(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let known = log_id.get_or_insert_with(|| shard.log_id.clone());
        ensure(*known == shard.log_id, || format!("{}: is part of another log", path.display()))?;
        for (number, name) in shard.names {
            let known = names.entry(number).or_insert_with(|| name.clone());
            ensure(*known == name, || format!("stream {number} is called \"{known}\" and \"{name}\""))?;
        }
        receipt_count += shard.receipts.len();
        let mut said: BTreeSet<(u64, u64)> = BTreeSet::new();
        let mut with_expired: BTreeSet<u64> = BTreeSet::new();
        for (stream, first, last, stored) in shard.receipts {
            ensure(last >= first, || format!("receipt {first} to {last} of stream {stream} is empty"))?;
            if stored {
                let new = receipts.entry(stream).or_default().insert((first, last));
                ensure(new, || format!("receipt {first} to {last} of stream {stream} is there twice (LOG-5)"))?;
                said.extend((first..=last).map(|number| (stream, number)));
            } else {
                let new = with_expired.insert(stream);
                ensure(new && first == 1, || {
                    format!("{first} to {last} of stream {stream} is expired, in a second row")
                })?;
                let end = expired.entry(stream).or_default();
                *end = last.max(*end);
            }
        }
        let held: BTreeSet<(u64, u64)> = shard.rows.iter().map(|(stream, row)| (*stream, row.sequence)).collect();
        ensure(held == said, || format!("{}: receipts and rows do not agree (LOG-5)", path.display()))?;
        for (stream, number, hash) in shard.hashes {
            let before = all_hashes.entry(stream).or_default().insert(number, hash);
            ensure(before.is_none(), || format!("stream {stream} has two hashes at {number}"))?;
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

    let mut sequences: BTreeMap<u64, u64> = BTreeMap::new();
    for (stream, row) in &mut rows {
        row.stream = names.get(stream).cloned().ok_or_else(|| format!("stream {stream} has rows and no name"))?;
        let before = sequences.insert(*stream, row.sequence);
        ensure(before.is_none_or(|last| last < row.sequence), || {
            format!("position {} has sequence {} of stream {stream}, not in order", row.position, row.sequence)
        })?;
    }
    for (stream, row) in rows.iter().filter(|(_, row)| row.position > floor) {
        let end = expired.get(stream).copied().unwrap_or(0);
        ensure(row.sequence > end, || {
            format!("position {} is above the floor, and number {end} of stream {stream} is expired", row.position)
        })?;
    }
    let mut last_numbers = BTreeMap::new();
    let streams: BTreeSet<u64> = receipts.keys().chain(expired.keys()).copied().collect();
    for stream in streams {
        let end = expired.get(&stream).copied().unwrap_or(0);
        let mut next = 1;
        for (first, last) in receipts.get(&stream).into_iter().flatten() {
            // What retention has not deleted yet has a receipt of its own and is expired as well.
            ensure(*first >= next && *first <= next.max(end + 1), || {
                format!("of stream {stream}, receipt {first} to {last} is where {next} should begin (LOG-5)")
            })?;
            next = last + 1;
        }
        let name = names.get(&stream).ok_or_else(|| format!("stream {stream} has receipts and no name"))?;
        last_numbers.insert(name.clone(), (next - 1).max(end));
    }
    let mut hashes = BTreeMap::new();
    for (stream, of_stream) in all_hashes {
        let name = names.get(&stream).ok_or_else(|| format!("stream {stream} has hashes and no name"))?;
        let (last, greatest) = (last_numbers.get(name), of_stream.last_key_value().map(|(number, _)| number));
        ensure(greatest <= last, || {
            format!("stream {stream} has a hash at {greatest:?}, its last number is {last:?}")
        })?;
        hashes.insert(name.clone(), of_stream);
    }
    let log_id = log_id.ok_or("there are no shards")?;
    let rows = rows.into_iter().map(|(_, row)| row).collect();
    Ok(LogFiles { log_id, floor, rows, last_numbers, hashes, receipt_count })
}

/// The bytes of a slot of the watermark file.
const SLOT: usize = 16_384;

/// The floor, from the valid slot with the greater generation of the watermark file: 16384 bytes, little-endian, magic
/// `PLWATER1`, generation at 8, floor at 32, number of shards at 48, CRC-32C behind the shards' numbers from 56 on.
/// 0 if there is no such slot.
fn read_floor(directory: &Path) -> Result<u64, String> {
    let bytes = match std::fs::read(directory.join("watermark")) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        Err(error) => return Err(error.to_string()),
    };
    Ok(bytes.chunks(SLOT).filter_map(watermark_slot).max().map_or(0, |(_, floor)| floor))
}

/// Generation and floor of a slot, if it is valid.
fn watermark_slot(slot: &[u8]) -> Option<(u64, u64)> {
    let number = |at: usize| Some(u64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?));
    let small = |at: usize| Some(u32::from_le_bytes(slot.get(at..at + 4)?.try_into().ok()?));
    let end = 56 + 8 * small(48)? as usize;
    let valid = slot.get(..8)? == b"PLWATER1" && crc32c(slot.get(..end)?) == small(end)?;
    valid.then_some((number(8)?, number(32)?))
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
    let mut statement =
        connection.prepare("SELECT stream, name, epoch, last_stored_at, crc FROM stream").map_err(text)?;
    let mut found = statement.query([]).map_err(text)?;
    while let Some(row) = found.next().map_err(text)? {
        let get = |column| row.get::<_, u64>(column).map_err(text);
        let (stream, epoch, last_stored_at, crc) = (get(0)?, get(2)?, get(3)?, get(4)?);
        let name: String = row.get(1).map_err(text)?;
        let mut bytes = [stream, epoch, last_stored_at].map(u64::to_le_bytes).concat();
        bytes.extend(name.as_bytes());
        ensure(crc == u64::from(crc32c(&bytes)), || {
            format!("the name of stream {stream} does not match its checksum")
        })?;
        names.insert(stream, if epoch > 0 { format!("{name}/{epoch}") } else { name });
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

    let mut hashes = Vec::new();
    let mut statement = connection.prepare("SELECT stream, sequence, hash, crc FROM stream_hash").map_err(text)?;
    let mut found = statement.query([]).map_err(text)?;
    while let Some(row) = found.next().map_err(text)? {
        let get = |column| row.get::<_, u64>(column).map_err(text);
        let (stream, number) = (get(0)?, get(1)?);
        let hash: Vec<u8> = row.get(2).map_err(text)?;
        let bytes = [&stream.to_le_bytes()[..], &number.to_le_bytes(), &hash].concat();
        ensure(get(3)? == u64::from(crc32c(&bytes)), || {
            format!("the hash at {number} of stream {stream} does not match its checksum")
        })?;
        hashes.push((stream, number, hash));
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
    Ok(Shard { log_id, names, rows, receipts, hashes })
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
