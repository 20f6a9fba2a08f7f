//! `ingestd log verify`: checks LOG-1 to LOG-5 on the files of a log, whether a daemon is running on it or not.
//!
//! It reads every row once, in position order over all shards, with its own sums; it changes nothing. The end of the log
//! is where the watermark says; behind it a running daemon is still writing, and after a crash lies what the next start
//! cuts or keeps.

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};

use lanes_core::log::interval::IntervalSet;
use rusqlite::Connection;

use super::directory::{existing_shards, shard_path};
use super::shard::{
    self, EventRow, LossRange, Receipt, ReceiptKind, SCHEMA_VERSION, ShardError, ShardHeader, read_losses,
    read_receipts, read_streams,
};
use super::stream_hash::{StreamHash, read_hashes};
use super::watermark::{self, Reading, Watermark};

/// Faults that are described; more are only counted.
const DESCRIBED_FAULTS: usize = 100;

/// What was checked, and what was found.
#[derive(Debug, Default)]
pub struct Verification {
    /// The position up to which retention has deleted.
    pub floor: u64,
    /// The end of the log.
    pub horizon: u64,
    /// Shard files.
    pub shards: usize,
    /// Events between floor and horizon.
    pub events: u64,
    /// Positions that were given up as lost.
    pub lost_positions: u64,
    /// Rows that retention is about to delete.
    pub rows_below_floor: u64,
    /// Rows above the horizon.
    pub rows_above_horizon: u64,
    /// Streams with receipts.
    pub streams: usize,
    /// Receipts.
    pub receipts: u64,
    /// Hashes of streams.
    pub hashes: u64,
    /// What is wrong, each a line; not more than a hundred.
    pub faults: Vec<String>,
    /// How many faults there are.
    pub fault_count: u64,
}

impl Verification {
    fn fault(&mut self, text: String) {
        self.fault_count += 1;
        if self.faults.len() < DESCRIBED_FAULTS {
            self.faults.push(text);
        }
    }
}

impl fmt::Display for Verification {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "shards     {}", self.shards)?;
        writeln!(
            formatter,
            "positions  {} to {}: {} events, {} given up as lost (LOG-1)",
            self.floor + 1,
            self.horizon,
            self.events,
            self.lost_positions
        )?;
        writeln!(
            formatter,
            "below      {} rows at or below the floor, which retention deletes",
            self.rows_below_floor
        )?;
        writeln!(formatter, "above      {} rows past the watermark's horizon (LOG-4)", self.rows_above_horizon)?;
        writeln!(
            formatter,
            "receipts   {} of {} streams, compared with the rows (LOG-5)",
            self.receipts, self.streams
        )?;
        writeln!(formatter, "hashes     {} of streams, each of numbers that a receipt covers", self.hashes)?;
        for fault in &self.faults {
            writeln!(formatter, "FAULT      {fault}")?;
        }
        match self.fault_count {
            0 => writeln!(formatter, "no fault found"),
            count => writeln!(formatter, "{count} faults found"),
        }
    }
}

struct Shard {
    number: u32,
    path: PathBuf,
    connection: Connection,
    header: ShardHeader,
    receipts: Vec<Receipt>,
    hashes: Vec<StreamHash>,
}

/// Checks the log in `directory`.
///
/// # Errors
/// [`ShardError`] for a file that cannot be read at all.
pub fn verify(directory: &Path) -> Result<Verification, ShardError> {
    let mut found = Verification::default();
    let unreadable = |error: std::io::Error| ShardError::Contents(directory.to_owned(), error.to_string());
    // The watermark first: everything that it counts was committed before.
    let watermark = match watermark::read(directory).map_err(unreadable)? {
        Reading::Valid(watermark) => Some(watermark),
        Reading::Absent => {
            found.fault(format!("the file {} is missing", watermark::FILE_NAME));
            None
        }
        Reading::Damaged => {
            found.fault(format!("the file {} is damaged", watermark::FILE_NAME));
            None
        }
    };
    let mut shards = Vec::new();
    let mut losses: Vec<LossRange> = Vec::new();
    for number in existing_shards(directory).map_err(unreadable)? {
        let path = shard_path(directory, number);
        let connection = shard::open_reader(&path)?;
        // One snapshot of the shard for everything that follows: its rows and receipts were committed together.
        connection.execute_batch("BEGIN").map_err(|error| ShardError::Sqlite(path.clone(), error))?;
        let header = shard::read_header(&connection, &path, number)?;
        let version: i64 = connection
            .pragma_query_value(None, "user_version", |row| row.get(0))
            .map_err(|error| ShardError::Sqlite(path.clone(), error))?;
        if version != SCHEMA_VERSION {
            let text = format!("has schema version {version}; a start of this ingestd brings it to {SCHEMA_VERSION}");
            return Err(ShardError::Contents(path, text));
        }
        let receipts = read_receipts(&connection, &path).unwrap_or_else(|error| {
            found.fault(error.to_string());
            Vec::new()
        });
        match read_losses(&connection, &path) {
            Ok(read) => losses.extend(read),
            Err(error) => found.fault(error.to_string()),
        }
        if let Err(error) = read_streams(&connection, &path) {
            found.fault(error.to_string());
        }
        // Only the last one of each stream matters for what follows.
        let mut hashes: BTreeMap<u64, StreamHash> = BTreeMap::new();
        let read = read_hashes(&connection, &path, |hash| {
            found.hashes += 1;
            let last = hashes.entry(hash.stream).or_insert(hash);
            if last.sequence < hash.sequence {
                *last = hash;
            }
        });
        if let Err(error) = read {
            found.fault(error.to_string());
        }
        let hashes = hashes.into_values().collect();
        shards.push(Shard { number, path, connection, header, receipts, hashes });
    }
    found.shards = shards.len();
    compare_with_watermark(&mut found, &shards, watermark.as_ref());
    let known = shards.iter().map(|shard| shard.header.horizon).max().unwrap_or(0);
    found.horizon = watermark.as_ref().map_or(known, |watermark| watermark.horizon.max(known));
    // Read again behind the snapshots: the floor is raised before anything is deleted.
    found.floor = match watermark::read(directory).map_err(unreadable)? {
        Reading::Valid(later) => later.floor,
        Reading::Absent | Reading::Damaged => watermark.as_ref().map_or(0, |watermark| watermark.floor),
    };
    let stored = read_rows(&mut found, &shards, &losses)?;
    compare_receipts(&mut found, &shards, stored);
    Ok(found)
}

fn compare_with_watermark(found: &mut Verification, shards: &[Shard], watermark: Option<&Watermark>) {
    let Some(watermark) = watermark else { return };
    for (number, wanted) in (0u32..).zip(&watermark.commit_numbers) {
        match shards.iter().find(|shard| shard.number == number) {
            None => found.fault(format!("shard-{number:04}.db is missing")),
            Some(shard) if shard.header.commit_number < *wanted => found.fault(format!(
                "shard-{number:04}.db is at commit {}, the watermark saw its commit {wanted}",
                shard.header.commit_number
            )),
            Some(_) => {}
        }
    }
    for shard in shards.iter().filter(|shard| shard.header.log_id != watermark.log_id) {
        let (ours, theirs) = (shard.header.log_id, watermark.log_id);
        found.fault(format!("shard-{:04}.db belongs to log {ours}, the watermark to log {theirs}", shard.number));
    }
}

/// What the rows say.
#[derive(Default)]
struct Stored {
    /// Shard (its place in the list) and stream ► the numbers that it holds.
    numbers: BTreeMap<(usize, u64), IntervalSet>,
    /// Stream ► its last number at or below the horizon. Beyond it shards may be at different moments.
    settled: BTreeMap<u64, u64>,
    /// Stream ► its first number above the floor.
    kept: BTreeMap<u64, u64>,
}

/// Reads all rows in position order: positions, checksums, order in each stream.
fn read_rows(found: &mut Verification, shards: &[Shard], losses: &[LossRange]) -> Result<Stored, ShardError> {
    let mut statements = Vec::new();
    for shard in shards {
        let sqlite = |error| ShardError::Sqlite(shard.path.clone(), error);
        let statement = shard.connection.prepare(&format!("SELECT {} FROM event ORDER BY position", EventRow::COLUMNS));
        statements.push(statement.map_err(sqlite)?);
    }
    let mut cursors = Vec::new();
    for (statement, shard) in statements.iter_mut().zip(shards) {
        let rows = statement.query([]).map_err(|error| ShardError::Sqlite(shard.path.clone(), error))?;
        let mut cursor = Cursor { rows, path: &shard.path, next: None };
        cursor.advance()?;
        cursors.push(cursor);
    }
    let mut stored = Stored::default();
    let mut last_sequences: BTreeMap<u64, u64> = BTreeMap::new();
    let mut expected = found.floor + 1;
    loop {
        let nearest = cursors.iter().enumerate().filter_map(|(at, cursor)| Some((cursor.next.as_ref()?.position, at)));
        let Some((position, at)) = nearest.min() else { break };
        let Some(row) = cursors[at].next.take() else { break };
        cursors[at].advance()?;
        if !row.matches {
            found.fault(format!("the event at position {position} does not match its checksum"));
        }
        if position <= found.floor {
            // The floor is raised first, then what lies below it is deleted.
            found.rows_below_floor += 1;
        } else if position < expected {
            found.fault(format!("position {position} is held twice (LOG-1)"));
        }
        if position <= found.horizon {
            stored.settled.insert(row.stream, row.sequence);
            if position > found.floor {
                stored.kept.entry(row.stream).or_insert(row.sequence);
                found.events += 1;
                check_gap(found, losses, expected, position);
            }
        } else {
            // What is missing at the end of the log is behind nothing that could tell of it later.
            check_gap(found, losses, expected, found.horizon + 1);
            found.rows_above_horizon += 1;
        }
        expected = expected.max(position + 1);
        let numbers = stored.numbers.entry((at, row.stream)).or_default();
        if numbers.intersects(row.sequence, row.sequence) {
            found.fault(format!("event {} of stream {} is stored twice in a shard (LOG-5)", row.sequence, row.stream));
        }
        numbers.insert(row.sequence, row.sequence);
        if let Some(last) = last_sequences.insert(row.stream, row.sequence)
            && last >= row.sequence
        {
            let (stream, sequence) = (row.stream, row.sequence);
            found.fault(format!(
                "event {sequence} of stream {stream} comes after its event {last}, at position {position}"
            ));
        }
    }
    let end = found.horizon + 1;
    check_gap(found, losses, expected, end);
    Ok(stored)
}

/// Everything from `expected` to before `position` must have been given up.
fn check_gap(found: &mut Verification, losses: &[LossRange], expected: u64, position: u64) {
    let mut at = expected;
    while at < position {
        match losses.iter().find(|range| (range.first_position..=range.last_position).contains(&at)) {
            Some(range) => {
                let end = range.last_position.min(position - 1);
                found.lost_positions += end - at + 1;
                at = end + 1;
            }
            None => {
                let next = losses.iter().map(|range| range.first_position).filter(|first| *first > at).min();
                let end = next.unwrap_or(position).min(position) - 1;
                found.fault(format!("positions {at} to {end} are missing (LOG-1)"));
                at = end + 1;
            }
        }
    }
}

/// Each shard's rows must be what its receipts say, what is expired must lie at or below the floor, and all receipts
/// together must be each stream's numbers from 1.
fn compare_receipts(found: &mut Verification, shards: &[Shard], mut stored: Stored) {
    let mut all: BTreeMap<u64, IntervalSet> = BTreeMap::new();
    let mut expired: BTreeMap<u64, u64> = BTreeMap::new();
    for (at, shard) in shards.iter().enumerate() {
        let mut said: BTreeMap<u64, IntervalSet> = BTreeMap::new();
        for receipt in &shard.receipts {
            found.receipts += 1;
            let Receipt { stream, first_sequence, last_sequence, kind } = *receipt;
            if kind == ReceiptKind::Expired {
                let end = expired.entry(stream).or_default();
                *end = last_sequence.max(*end);
                continue;
            }
            let everywhere = all.entry(stream).or_default();
            if everywhere.intersects(first_sequence, last_sequence) {
                found.fault(format!(
                    "events {first_sequence} to {last_sequence} of stream {stream} have two receipts (LOG-5)"
                ));
            }
            everywhere.insert(first_sequence, last_sequence);
            if kind == ReceiptKind::Stored {
                said.entry(stream).or_default().insert(first_sequence, last_sequence);
            }
        }
        let streams: Vec<u64> = stored.numbers.range((at, 0)..(at + 1, 0)).map(|((_, stream), _)| *stream).collect();
        for stream in streams.iter().chain(said.keys()).copied().collect::<std::collections::BTreeSet<_>>() {
            let rows = stored.numbers.remove(&(at, stream)).unwrap_or_default();
            let receipts = said.get(&stream).cloned().unwrap_or_default();
            if rows != receipts {
                found.fault(format!(
                    "{}: of stream {stream} the rows are {} and the receipts {} (LOG-5)",
                    shard.path.file_name().unwrap_or_default().to_string_lossy(),
                    ranges(&rows),
                    ranges(&receipts)
                ));
            }
        }
    }
    for (stream, end) in expired {
        all.entry(stream).or_default().insert(1, end);
        if let Some(first) = stored.kept.get(&stream).filter(|first| **first <= end) {
            found.fault(format!(
                "event {first} of stream {stream} is above the floor, and a receipt says that {end} is expired (LOG-5)"
            ));
        }
    }
    for StreamHash { stream, sequence, .. } in shards.iter().flat_map(|shard| &shard.hashes) {
        if all.get(stream).is_none_or(|numbers| numbers.end() < *sequence) {
            found
                .fault(format!("the hash at event {sequence} of stream {stream} is of no event that a receipt covers"));
        }
    }
    found.streams = all.len();
    for (stream, numbers) in &all {
        let next = numbers.first_missing(1);
        if next <= stored.settled.get(stream).copied().unwrap_or(0) {
            found.fault(format!("stream {stream} lacks a receipt for event {next} (LOG-5)"));
        }
    }
}

fn ranges(set: &IntervalSet) -> String {
    let mut texts: Vec<String> = set.ranges().take(5).map(|(first, last)| format!("{first}-{last}")).collect();
    if set.ranges().count() > texts.len() {
        texts.push("…".to_owned());
    }
    if texts.is_empty() { "none".to_owned() } else { texts.join(" ") }
}

/// What is checked of a row.
struct Row {
    position: u64,
    stream: u64,
    sequence: u64,
    matches: bool,
}

struct Cursor<'a> {
    rows: rusqlite::Rows<'a>,
    path: &'a Path,
    next: Option<Row>,
}

impl Cursor<'_> {
    fn advance(&mut self) -> Result<(), ShardError> {
        let sqlite = |error| ShardError::Sqlite(self.path.to_owned(), error);
        self.next = match self.rows.next().map_err(sqlite)? {
            None => None,
            Some(row) => Some(read(row).map_err(sqlite)?),
        };
        Ok(())
    }
}

fn read(row: &rusqlite::Row) -> rusqlite::Result<Row> {
    let (EventRow { position, stream, sequence, .. }, matches) = EventRow::read(row)?;
    Ok(Row { position, stream, sequence, matches })
}
