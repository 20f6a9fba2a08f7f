//! What happens to a data directory before the log takes its first event.
//!
//! 1. Every shard is opened, and compared with the watermark: a shard that is missing or behind has lost commits.
//! 2. If anything is missing that must be there, or a file is damaged, the log is not opened, and what is lost is named,
//!    until an operator says `--accept-loss`; then one `ingestd.loss` row tells of it in the log, for ever. A damaged file
//!    is renamed, not deleted, and counts as missing.
//! 3. The log is cut at its end (LOG-4).
//! 4. The receipts of all shards say what is stored of each stream; they are the only authority on it.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use lanes_core::log::recovery::{DuplicatePosition, find_cut};
use rusqlite::{Connection, params};
use serde_json::json;
use uuid::Uuid;

use super::directory::{MAXIMUM_SHARDS, existing_shards, shard_path};
use super::shard::{
    self, EventRow, LossRange, Receipt, ReceiptKind, ShardError, ShardHeader, StreamRow, read_losses, read_receipts,
    read_streams,
};
use super::stream::{DAEMON_STREAM, StreamKey, StreamState, daemon_stream_name};
use super::stream_hash::read_hashes;
use super::watermark::{self, Reading, Watermark};

/// Ranges that an error names; more are only counted.
const NAMED_RANGES: usize = 10;

/// Why a log cannot be opened. The text is one line; nothing has been changed.
#[derive(Debug, thiserror::Error)]
pub enum RecoveryError {
    /// A shard file cannot be used.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The directory cannot be listed or the watermark not read.
    #[error("cannot read the data directory: {0}")]
    Read(#[from] std::io::Error),
    /// A shard file is damaged.
    #[error(
        "the log is damaged: {0}; put a good copy of the file back, or give up all that is in it with --accept-loss"
    )]
    Damaged(ShardError),
    /// Something that was stored is not there any more.
    #[error("the log has lost what it had stored: {0}; put the lost files back, or give it up with --accept-loss")]
    Lost(String),
    /// The log contradicts itself.
    #[error("the log is damaged: {0}")]
    Duplicate(#[from] DuplicatePosition),
    /// The files contradict each other.
    #[error("the log is damaged: {0}")]
    Contradiction(String),
}

/// How a log is recovered.
#[derive(Debug, Clone, Copy)]
pub struct RecoverySettings {
    /// The number of shards to write to.
    pub shard_count: u32,
    /// Whether an operator has given up what is lost.
    pub accept_loss: bool,
    /// The time in milliseconds since 1970 UTC.
    pub now: i64,
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
    /// Numbers of the shards that are only read, with their last commits' numbers.
    pub historical: Vec<(u32, u64)>,
    /// The position up to which retention has deleted.
    pub floor: u64,
    /// Every position up to this one is held; there is none above.
    pub horizon: u64,
    /// How many rows lay past the cut and were deleted.
    pub cut_rows: u64,
    /// What is stored of each stream.
    pub streams: HashMap<u64, (StreamKey, StreamState)>,
    /// What was lost and given up at this start.
    pub losses: Vec<String>,
}

/// A shard as it was found.
struct Found {
    number: u32,
    path: PathBuf,
    connection: Connection,
    header: ShardHeader,
    streams: HashMap<u64, (String, u64)>,
    receipts: Vec<Receipt>,
    losses: Vec<LossRange>,
}

/// Opens the log in `directory` for writing.
///
/// # Errors
/// [`RecoveryError`].
pub fn recover(directory: &Path, settings: RecoverySettings) -> Result<Recovered, RecoveryError> {
    debug_assert!((1..=MAXIMUM_SHARDS).contains(&settings.shard_count));
    let mut existing = existing_shards(directory)?;
    let reading = watermark::read(directory)?;
    let mut log_id = None;
    let mut doubts = Vec::new();
    for number in existing.clone() {
        match shard::log_id(&shard_path(directory, number), number) {
            Ok(id) => log_id = log_id.or(id),
            Err(error) => {
                doubts.push(put_aside(directory, number, error, settings)?);
                existing.retain(|other| *other != number);
            }
        }
    }
    let (watermark, trouble) = match reading {
        Reading::Valid(watermark) => (Some(watermark), None),
        Reading::Absent => (None, Some("missing")),
        Reading::Damaged => (None, Some("damaged")),
    };
    if let (Some(in_shards), Some(watermark)) = (log_id, &watermark)
        && in_shards != watermark.log_id
    {
        let text = format!("the shards belong to log {in_shards}, the watermark to log {}", watermark.log_id);
        return Err(RecoveryError::Contradiction(text));
    }
    let log_id = log_id.or(watermark.as_ref().map(|watermark| watermark.log_id)).unwrap_or_else(Uuid::new_v4);

    let mut found = Vec::new();
    for number in existing.clone() {
        match find(directory, number, log_id, settings.now) {
            Ok(shard) => found.push(shard),
            Err(error) => {
                doubts.push(put_aside(directory, number, error, settings)?);
                existing.retain(|other| *other != number);
            }
        }
    }
    // The first start makes the shards, then the watermark; it may have died between them.
    let is_new = found.iter().all(|shard| shard.header.commit_number == 0);
    if let Some(trouble) = trouble
        && !is_new
    {
        doubts.push(format!("the file {} is {trouble}", watermark::FILE_NAME));
    }
    doubts.extend(missing_commits(&found, watermark.as_ref()));

    let recorded = found.iter().map(|shard| shard.header.horizon).max().unwrap_or(0);
    let marked = watermark.as_ref().map_or(0, |watermark| watermark.horizon);
    let floor = match &watermark {
        Some(watermark) => watermark.floor,
        None => lowest_position(&found)?.map_or(0, |lowest| lowest - 1),
    };
    let known = recorded.max(marked).max(floor);
    let horizon = find_cut(known, positions_above(&found, known)?)?;
    let streams = add_up(&found)?;
    // What is cut was never acknowledged, so holes that it leaves are none.
    let mut holes = holes(&streams);
    holes.retain(|hole| !ends_in_cut(&found, hole, horizon));
    doubts.extend(holes.iter().map(|hole| {
        let Hole { stream, first, last, .. } = hole;
        let name = streams.get(stream).map_or("", |(key, _)| &key.name);
        format!("of stream \"{name}\" the events {first} to {last} are missing")
    }));
    // Up to the watermark the commits' numbers vouch for the positions, which may be many. Behind it another shard may know of
    // commits that are lost.
    let vouched = if doubts.is_empty() { marked.max(floor) } else { floor };
    let missing = missing_positions(&found, vouched, known)?;
    if !missing.is_empty() {
        let count: u64 = missing.iter().map(|range| range.last_position - range.first_position + 1).sum();
        let named: Vec<String> = missing.iter().take(NAMED_RANGES).map(describe_range).collect();
        let more = if missing.len() > NAMED_RANGES { " and others" } else { "" };
        doubts.push(format!("{count} positions are missing: {}{more}", named.join(", ")));
    }
    if !doubts.is_empty() && !settings.accept_loss {
        return Err(RecoveryError::Lost(doubts.join("; ")));
    }

    let mut cut_rows = 0;
    for shard in &mut found {
        cut_rows +=
            cut(&mut shard.connection, horizon).map_err(|error| ShardError::Sqlite(shard.path.clone(), error))?;
    }
    let total = settings.shard_count.max(existing.last().map_or(0, |last| last + 1));
    for number in (0..total).filter(|number| !existing.contains(number)) {
        found.push(find(directory, number, log_id, settings.now)?);
    }
    found.sort_unstable_by_key(|shard| shard.number);
    if !doubts.is_empty() {
        let next = streams.get(&DAEMON_STREAM).map_or(1, |(_, state)| state.covered.end() + 1);
        give_up(&mut found[0], &missing, &holes, next, settings.now)?;
    }
    // Read again: the cut and what was given up have changed them.
    for shard in &mut found {
        shard.receipts = read_receipts(&shard.connection, &shard.path)?;
        shard.streams = read_streams(&shard.connection, &shard.path)?;
    }
    let streams = add_up(&found)?;
    let (active, historical): (Vec<Found>, Vec<Found>) =
        found.into_iter().partition(|shard| shard.number < settings.shard_count);
    Ok(Recovered {
        log_id,
        active: active
            .into_iter()
            .map(|shard| ActiveShard {
                connection: shard.connection,
                streams: shard.streams.into_keys().collect(),
                commit_number: shard.header.commit_number,
            })
            .collect(),
        historical: historical.iter().map(|shard| (shard.number, shard.header.commit_number)).collect(),
        floor,
        horizon,
        cut_rows,
        streams,
        losses: doubts,
    })
}

/// Renames a damaged shard file, with its WAL, if an operator has given up what is in it, so that another can take its
/// place. Nothing of it is deleted. Tells what was done.
fn put_aside(
    directory: &Path,
    number: u32,
    error: ShardError,
    settings: RecoverySettings,
) -> Result<String, RecoveryError> {
    if !error.is_damage() {
        return Err(error.into());
    }
    if !settings.accept_loss {
        return Err(RecoveryError::Damaged(error));
    }
    let path = shard_path(directory, number);
    // The database last: a start that dies before it finds the file damaged again.
    for suffix in ["-shm", "-wal", ""] {
        let from = PathBuf::from(format!("{}{suffix}", path.display()));
        if from.exists() {
            std::fs::rename(&from, format!("{}.corrupt.{}{suffix}", path.display(), settings.now))?;
        }
    }
    std::fs::File::open(directory)?.sync_all()?;
    Ok(format!("shard-{number:04}.db was damaged and is renamed ({error})"))
}

/// Opens a shard, creating it if it is not there, and reads what recovery needs of it.
fn find(directory: &Path, number: u32, log_id: Uuid, now: i64) -> Result<Found, ShardError> {
    let path = shard_path(directory, number);
    let connection = shard::open_writer(&path, log_id, number, now)?;
    check_tables(&connection, &path)?;
    make_durable(&connection).map_err(|error| ShardError::Sqlite(path.clone(), error))?;
    let header = shard::read_header(&connection, &path, number)?;
    let streams = read_streams(&connection, &path)?;
    let receipts = read_receipts(&connection, &path)?;
    let losses = read_losses(&connection, &path)?;
    read_hashes(&connection, &path, |_| {})?;
    Ok(Found { number, path, connection, header, streams, receipts, losses })
}

/// Rows have checksums, but a damaged page can hide rows altogether. Missing events are noticed by their positions; a
/// missing receipt would let a resend be stored again. So the trees of the small tables are checked as a whole, and of all the
/// columns, which nobody may look at before the first write.
fn check_tables(connection: &Connection, path: &Path) -> Result<(), ShardError> {
    let altered = shard::altered_table(connection).map_err(|error| ShardError::Sqlite(path.to_owned(), error))?;
    if let Some(table) = altered {
        return Err(ShardError::Damaged(
            path.to_owned(),
            format!("table {table} has not the columns that it should have"),
        ));
    }
    for table in ["log", "stream", "receipt", "stream_hash", "loss"] {
        let said: String = connection
            .query_row(&format!("PRAGMA quick_check({table})"), [], |row| row.get(0))
            .map_err(|error| ShardError::Sqlite(path.to_owned(), error))?;
        if said != "ok" {
            let text = format!("table {table} is damaged: {}", said.replace('\n', " "));
            return Err(ShardError::Damaged(path.to_owned(), text));
        }
    }
    Ok(())
}

/// A process that was killed between writing a commit and syncing it leaves the commit in the WAL, where it looks like any
/// other, but only the page cache holds it. What recovery finds is acknowledged to whoever resends it, so it must
/// survive the machine first: the sync of any later commit covers all of the WAL. (A checkpoint would do it as well,
/// but not while a reader holds it up.) SQLite leaves out an UPDATE that changes nothing, but always writes this number.
fn make_durable(connection: &Connection) -> rusqlite::Result<()> {
    connection.pragma_update(None, "user_version", shard::SCHEMA_VERSION)
}

/// Shards that are not there or behind the watermark.
fn missing_commits(found: &[Found], watermark: Option<&Watermark>) -> Vec<String> {
    let numbers = watermark.map_or(&[][..], |watermark| &watermark.commit_numbers);
    // Shard files are numbered without holes, so one below the greatest is missing also without a watermark.
    let expected = (numbers.len() as u32).max(found.last().map_or(0, |last| last.number + 1));
    let mut doubts = Vec::new();
    for number in 0..expected {
        let wanted = numbers.get(number as usize).copied().unwrap_or(0);
        match found.iter().find(|shard| shard.number == number) {
            None => doubts.push(format!("shard-{number:04}.db is missing")),
            Some(shard) if shard.header.commit_number < wanted => {
                let first = shard.header.commit_number + 1;
                doubts.push(format!("shard-{number:04}.db has lost its commits {first} to {wanted}"));
            }
            Some(_) => {}
        }
    }
    doubts
}

fn describe_range(range: &LossRange) -> String {
    if range.first_position == range.last_position {
        range.first_position.to_string()
    } else {
        format!("{} to {}", range.first_position, range.last_position)
    }
}

fn lowest_position(found: &[Found]) -> Result<Option<u64>, ShardError> {
    let mut lowest: Option<u64> = None;
    for shard in found {
        let own: Option<u64> = shard
            .connection
            .query_row("SELECT min(position) FROM event", [], |row| row.get(0))
            .map_err(|error| ShardError::Sqlite(shard.path.clone(), error))?;
        lowest = own.into_iter().chain(lowest).min();
    }
    Ok(lowest)
}

fn positions_above(found: &[Found], position: u64) -> Result<Vec<u64>, ShardError> {
    let mut above = Vec::new();
    for Found { connection, path, .. } in found {
        let read = || -> rusqlite::Result<Vec<u64>> {
            connection
                .prepare("SELECT position FROM event WHERE position > ?1")?
                .query_map([position], |row| row.get(0))?
                .collect()
        };
        above.extend(read().map_err(|error| ShardError::Sqlite(path.clone(), error))?);
    }
    Ok(above)
}

/// The ranges above `floor` and up to `known` that no shard holds and that were not given up before.
fn missing_positions(found: &[Found], floor: u64, known: u64) -> Result<Vec<LossRange>, ShardError> {
    // One bit a position: this is read only when something is known to be wrong.
    let mut held = vec![0u64; ((known - floor) as usize).div_ceil(64)];
    let mut hold = |position: u64| {
        let at = (position - floor - 1) as usize;
        held[at / 64] |= 1 << (at % 64);
    };
    for Found { connection, path, losses, .. } in found {
        let mut read = || -> rusqlite::Result<()> {
            let mut statement =
                connection.prepare("SELECT position FROM event WHERE position > ?1 AND position <= ?2")?;
            let mut rows = statement.query(params![floor, known])?;
            while let Some(row) = rows.next()? {
                hold(row.get(0)?);
            }
            Ok(())
        };
        read().map_err(|error| ShardError::Sqlite(path.clone(), error))?;
        for loss in losses {
            (loss.first_position.max(floor + 1)..=loss.last_position.min(known)).for_each(&mut hold);
        }
    }
    let mut ranges: Vec<LossRange> = Vec::new();
    for position in floor + 1..=known {
        let at = (position - floor - 1) as usize;
        if held[at / 64] >> (at % 64) & 1 == 1 {
            continue;
        }
        match ranges.last_mut() {
            Some(range) if range.last_position + 1 == position => range.last_position = position,
            _ => ranges.push(LossRange { first_position: position, last_position: position }),
        }
    }
    Ok(ranges)
}

/// Deletes the rows above `horizon` and trims their receipts, in one transaction. Returns the number of rows.
fn cut(connection: &mut Connection, horizon: u64) -> rusqlite::Result<u64> {
    let transaction = connection.transaction()?;
    // In a stream position order is sequence order, so what is cut of a stream is its end.
    let ends: Vec<(u64, u64, u64)> = transaction
        .prepare("SELECT stream, min(sequence), count(*) FROM event WHERE position > ?1 GROUP BY stream")?
        .query_map([horizon], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (stream, end, _) in &ends {
        transaction.execute("DELETE FROM stream_hash WHERE stream = ?1 AND sequence >= ?2", params![stream, end])?;
        transaction.execute("DELETE FROM receipt WHERE stream = ?1 AND first_sequence >= ?2", params![stream, end])?;
        let crossing: Option<u64> = transaction.query_row(
            "SELECT max(first_sequence) FROM receipt WHERE stream = ?1 AND last_sequence >= ?2",
            params![stream, end],
            |row| row.get(0),
        )?;
        if let Some(first_sequence) = crossing {
            transaction.execute(
                "DELETE FROM receipt WHERE stream = ?1 AND first_sequence = ?2",
                params![stream, first_sequence],
            )?;
            let kind = ReceiptKind::Stored;
            Receipt { stream: *stream, first_sequence, last_sequence: end - 1, kind }.insert(&transaction)?;
        }
    }
    transaction.execute("DELETE FROM event WHERE position > ?1", [horizon])?;
    transaction.commit()?;
    Ok(ends.iter().map(|(_, _, rows)| rows).sum())
}

/// What all shards together say of each stream.
fn add_up(found: &[Found]) -> Result<HashMap<u64, (StreamKey, StreamState)>, RecoveryError> {
    let mut streams: HashMap<u64, (StreamKey, StreamState)> = HashMap::new();
    for (number, (name, epoch)) in found.iter().flat_map(|shard| &shard.streams) {
        let fresh = || {
            let key = StreamKey { number: *number, name: name.as_str().into(), epoch: *epoch };
            (key, StreamState::default())
        };
        let (key, _) = streams.entry(*number).or_insert_with(fresh);
        if *key.name != **name || key.epoch != *epoch {
            let text =
                format!("stream {number} is \"{}\" in epoch {} and \"{name}\" in epoch {epoch}", key.name, key.epoch);
            return Err(RecoveryError::Contradiction(text));
        }
    }
    let receipts = || found.iter().flat_map(|shard| &shard.receipts);
    let is_expired = |receipt: &&Receipt| receipt.kind == ReceiptKind::Expired;
    // Those of events that are there, or were lost, exclude each other. Expired ones overlap: they tell how far.
    for receipt in receipts().filter(|receipt| !is_expired(receipt)).chain(receipts().filter(is_expired)) {
        let Receipt { stream, first_sequence, last_sequence, .. } = receipt;
        let range = format!("receipt {first_sequence} to {last_sequence} of stream {stream}");
        let Some((_, state)) = streams.get_mut(stream) else {
            return Err(RecoveryError::Contradiction(format!("{range} belongs to no known stream")));
        };
        if !is_expired(&receipt) && state.covered.intersects(*first_sequence, *last_sequence) {
            let text = format!("{range} covers events that another receipt covers (LOG-5)");
            return Err(RecoveryError::Contradiction(text));
        }
        state.covered.insert(*first_sequence, *last_sequence);
    }
    Ok(streams)
}

/// Numbers of a stream that no receipt covers, below one that is covered.
struct Hole {
    stream: u64,
    name: String,
    epoch: u64,
    first: u64,
    last: u64,
}

/// Producers number without holes and a stream's order is position order, so a hole means that a commit got lost.
fn holes(streams: &HashMap<u64, (StreamKey, StreamState)>) -> Vec<Hole> {
    let mut holes = Vec::new();
    for (key, state) in streams.values() {
        let mut expected = 1;
        for (first, last) in state.covered.ranges() {
            if first > expected {
                let (stream, name, epoch) = (key.number, key.name.to_string(), key.epoch);
                holes.push(Hole { stream, name, epoch, first: expected, last: first - 1 });
            }
            expected = last + 1;
        }
    }
    holes.sort_unstable_by_key(|hole| (hole.stream, hole.first));
    holes
}

/// Whether everything of the stream above a hole lies past the cut: a block of it was committed while the one before was
/// not, as a crash leaves it.
fn ends_in_cut(found: &[Found], hole: &Hole, horizon: u64) -> bool {
    found.iter().all(|shard| {
        let kept = shard.connection.query_row(
            "SELECT count(*) FROM event WHERE stream = ?1 AND sequence > ?2 AND position <= ?3",
            params![hole.stream, hole.last, horizon],
            |row| row.get::<_, u64>(0),
        );
        let expired = shard.receipts.iter().any(|receipt| {
            receipt.stream == hole.stream && receipt.first_sequence > hole.last && receipt.kind != ReceiptKind::Stored
        });
        kept.is_ok_and(|kept| kept == 0) && !expired
    })
}

/// Writes down what is lost: one `ingestd.loss` row, the ranges that readers pass over, and receipts for the numbers.
///
/// `next` is the number of the daemon's own next row.
fn give_up(shard: &mut Found, missing: &[LossRange], holes: &[Hole], next: u64, now: i64) -> Result<(), RecoveryError> {
    let header = ShardHeader { commit_number: shard.header.commit_number + 1, ..shard.header };
    let write = |connection: &mut Connection| -> rusqlite::Result<()> {
        let transaction = connection.transaction()?;
        let insert_stream = |number: u64, name: &str, epoch: u64| {
            StreamRow { number, name, epoch, last_stored_at: now }.insert(&transaction)
        };
        for hole in holes {
            insert_stream(hole.stream, &hole.name, hole.epoch)?;
            Receipt {
                stream: hole.stream,
                first_sequence: hole.first,
                last_sequence: hole.last,
                kind: ReceiptKind::Lost,
            }
            .insert(&transaction)?;
        }
        if let (Some(first), Some(last)) = (missing.first(), missing.last()) {
            let count: u64 = missing.iter().map(|range| range.last_position - range.first_position + 1).sum();
            let payload = json!({
                "first_position": first.first_position,
                "last_position": last.last_position,
                "count": count,
            })
            .to_string();
            insert_stream(DAEMON_STREAM, &daemon_stream_name(), 0)?;
            let row = EventRow {
                position: first.first_position,
                stream: DAEMON_STREAM,
                sequence: next,
                cpu: 0,
                event_type: LOSS_TYPE,
                key: super::own::KEY,
                ts: now,
                stored_at: now,
                payload: &payload,
            };
            let mut insert = EventRow::prepare_insert(&transaction)?;
            row.insert(&mut insert)?;
            let kind = ReceiptKind::Stored;
            Receipt { stream: DAEMON_STREAM, first_sequence: next, last_sequence: next, kind }.insert(&transaction)?;
            for range in missing {
                // The row itself holds the very first position.
                let first_position = range.first_position.max(first.first_position + 1);
                if first_position <= range.last_position {
                    LossRange { first_position, last_position: range.last_position }.insert(&transaction, now)?;
                }
            }
        }
        header.write(&transaction, shard.number)?;
        transaction.commit()
    };
    write(&mut shard.connection).map_err(|error| ShardError::Sqlite(shard.path.clone(), error))?;
    shard.header = header;
    Ok(())
}

/// The type of the row that tells of a loss.
pub const LOSS_TYPE: &str = "ingestd.loss";
