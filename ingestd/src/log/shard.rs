//! One store shard: a SQLite file with a part of the log.
//!
//! Format, schema version 2 (`PRAGMA user_version`; `schema.rs` brings older files to it), application id `0x706c616e`
//! ("plan"):
//! - `log`: one row: the log's id, the shard's number, the number of its last commit and the horizon at that moment, with
//!   a `crc`: a horizon that is too high would let lost commits pass as expected.
//! - `stream`: number ► name and epoch, for the streams that this shard holds something of, with a `crc`: under another
//!   name a producer's resends would be stored again. `last_stored_at` is the time of storing of the first of them, and
//!   when retention has deleted some, of the last of those.
//! - `event`: one row a position. `crc` is CRC-32C over the other columns and is checked by every reader.
//! - `event_type`: the types of the events that were ever stored here.
//! - `receipt`: what became of a range of a stream's numbers ([`ReceiptKind`]), one row a contiguous run of a commit,
//!   with its own `crc`. Stored ones tell exactly what this shard holds. An expired one begins at 1 and is the only one of
//!   its stream: it says that all numbers up to its end, whichever shard held them, lie at or below the floor.
//! - `stream_hash`: what a producer said that its events up to a number hash to, with a `crc`.
//! - `loss`: ranges of positions that were lost and given up with `--accept-loss`; readers pass over them.
//!
//! WAL, `synchronous = FULL`, both read back. There is one read-write connection per file, the writer's; readers open
//! read-only ones.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{CachedStatement, Connection, ErrorCode, OpenFlags, OptionalExtension, Statement, params};
use uuid::Uuid;

use super::schema;

/// The schema version this program writes and reads.
pub const SCHEMA_VERSION: i64 = 2;

const APPLICATION_ID: i64 = 0x706c_616e;

/// SQLite before 3.51.3 can lose commits when a WAL is reset (<https://sqlite.org/wal.html#walresetbug>).
pub const MINIMUM_SQLITE_VERSION: i32 = 3_051_003;

const SCHEMA: &str = "
CREATE TABLE log (
    id            INTEGER PRIMARY KEY CHECK (id = 1),
    log_id        TEXT NOT NULL,
    shard         INTEGER NOT NULL,
    created_at    INTEGER NOT NULL,
    commit_number INTEGER NOT NULL,
    horizon       INTEGER NOT NULL,
    crc           INTEGER NOT NULL
) STRICT;
CREATE TABLE stream (
    stream         INTEGER PRIMARY KEY,
    name           TEXT NOT NULL,
    epoch          INTEGER NOT NULL,
    last_stored_at INTEGER NOT NULL,
    crc            INTEGER NOT NULL
) STRICT;
CREATE TABLE event_type (
    type TEXT PRIMARY KEY
) STRICT, WITHOUT ROWID;
CREATE TABLE event (
    position  INTEGER PRIMARY KEY,
    stream    INTEGER NOT NULL,
    sequence  INTEGER NOT NULL,
    cpu       INTEGER NOT NULL,
    type      TEXT NOT NULL,
    key       TEXT NOT NULL,
    ts        INTEGER NOT NULL,
    stored_at INTEGER NOT NULL,
    payload   TEXT NOT NULL,
    crc       INTEGER NOT NULL
) STRICT;
CREATE TABLE receipt (
    stream         INTEGER NOT NULL,
    first_sequence INTEGER NOT NULL CHECK (first_sequence >= 1),
    last_sequence  INTEGER NOT NULL CHECK (last_sequence >= first_sequence),
    kind           INTEGER NOT NULL CHECK (kind BETWEEN 0 AND 2),
    crc            INTEGER NOT NULL,
    PRIMARY KEY (stream, first_sequence)
) STRICT, WITHOUT ROWID;
CREATE TABLE stream_hash (
    stream   INTEGER NOT NULL,
    sequence INTEGER NOT NULL,
    hash     BLOB NOT NULL CHECK (length(hash) = 32),
    crc      INTEGER NOT NULL,
    PRIMARY KEY (stream, sequence)
) STRICT, WITHOUT ROWID;
CREATE TABLE loss (
    first_position INTEGER PRIMARY KEY,
    last_position  INTEGER NOT NULL CHECK (last_position >= first_position),
    accepted_at    INTEGER NOT NULL,
    crc            INTEGER NOT NULL
) STRICT;
";

/// Why a shard file cannot be used. The text is one line and names the file.
#[derive(Debug, thiserror::Error)]
pub enum ShardError {
    /// SQLite refused.
    #[error("{path}: {1}", path = .0.display())]
    Sqlite(PathBuf, rusqlite::Error),
    /// The file says something that it should not.
    #[error("{path}: {1}", path = .0.display())]
    Contents(PathBuf, String),
    /// The file does not say any more what was written into it.
    #[error("{path}: {1}", path = .0.display())]
    Damaged(PathBuf, String),
}

impl ShardError {
    /// Whether the file is damaged. Else it may be another than the one that is wanted, or be good and out of reach.
    pub fn is_damage(&self) -> bool {
        match self {
            ShardError::Damaged(..) => true,
            ShardError::Contents(..) => false,
            ShardError::Sqlite(_, error) => {
                matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase))
            }
        }
    }
}

/// What a shard says of itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardHeader {
    /// The log that the shard is part of.
    pub log_id: Uuid,
    /// The number of the shard's last commit.
    pub commit_number: u64,
    /// The horizon at the moment of that commit.
    pub horizon: u64,
}

impl ShardHeader {
    /// CRC-32C over the numbers, little-endian, and the log's id.
    fn crc(&self, shard: u32) -> u32 {
        let numbers = crc_of_numbers(&[u64::from(shard), self.commit_number, self.horizon]);
        crc32c::crc32c_append(numbers, self.log_id.as_bytes())
    }

    /// Writes what changes with a commit, as part of it.
    ///
    /// # Errors
    /// SQLite's.
    pub fn write(&self, connection: &Connection, shard: u32) -> rusqlite::Result<()> {
        connection
            .prepare_cached("UPDATE log SET commit_number = ?1, horizon = ?2, crc = ?3")?
            .execute(params![self.commit_number, self.horizon, self.crc(shard)])
            .map(drop)
    }
}

/// The columns of an event row that a checksum covers.
#[derive(Debug, Clone, Copy)]
pub struct EventRow<'a> {
    /// Place in the log.
    pub position: u64,
    /// The stream's number.
    pub stream: u64,
    /// Number in the stream.
    pub sequence: u64,
    /// Logical CPU id of the drain that took it in.
    pub cpu: u32,
    /// The event's type.
    pub event_type: &'a str,
    /// The event's key.
    pub key: &'a str,
    /// The event's time, milliseconds since 1970 UTC.
    pub ts: i64,
    /// Time of storing, milliseconds since 1970 UTC.
    pub stored_at: i64,
    /// The payload, byte for byte.
    pub payload: &'a str,
}

impl<'a> EventRow<'a> {
    /// The columns of `event`, in the order in which [`EventRow::read`] wants them.
    pub const COLUMNS: &'static str = "position, stream, sequence, cpu, type, key, ts, stored_at, payload, crc";

    /// A row of [`EventRow::COLUMNS`], and whether it matches its checksum.
    ///
    /// # Errors
    /// SQLite's.
    pub fn read(row: &'a rusqlite::Row<'_>) -> rusqlite::Result<(EventRow<'a>, bool)> {
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
        let matches = fields.crc() == row.get::<_, u32>(9)?;
        Ok((fields, matches))
    }

    /// CRC-32C over all columns. Numbers are little-endian; each text is preceded by its length, so that no two rows
    /// give the same bytes.
    pub fn crc(&self) -> u32 {
        let mut numbers = [0u8; 72];
        let fields = [
            self.position,
            self.stream,
            self.sequence,
            u64::from(self.cpu),
            self.ts as u64,
            self.stored_at as u64,
            self.event_type.len() as u64,
            self.key.len() as u64,
            self.payload.len() as u64,
        ];
        for (bytes, field) in numbers.chunks_exact_mut(8).zip(fields) {
            bytes.copy_from_slice(&field.to_le_bytes());
        }
        let mut crc = crc32c::crc32c(&numbers);
        for text in [self.event_type, self.key, self.payload] {
            crc = crc32c::crc32c_append(crc, text.as_bytes());
        }
        crc
    }

    /// The statement that [`EventRow::insert`] needs. It is looked up once a transaction: once a row it takes a tenth of
    /// the writer's time.
    ///
    /// # Errors
    /// SQLite's.
    pub fn prepare_insert(connection: &Connection) -> rusqlite::Result<CachedStatement<'_>> {
        connection.prepare_cached(
            "INSERT INTO event (position, stream, sequence, cpu, type, key, ts, stored_at, payload, crc)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )
    }

    /// Writes the row by the statement of [`EventRow::prepare_insert`].
    ///
    /// # Errors
    /// SQLite's; a row at the same position is one.
    pub fn insert(&self, statement: &mut Statement<'_>) -> rusqlite::Result<()> {
        statement
            .execute(params![
                self.position,
                self.stream,
                self.sequence,
                self.cpu,
                self.event_type,
                self.key,
                self.ts,
                self.stored_at,
                self.payload,
                self.crc()
            ])
            .map(drop)
    }
}

/// A row of `stream`, without its checksum.
#[derive(Debug, Clone, Copy)]
pub struct StreamRow<'a> {
    /// The stream's number.
    pub number: u64,
    /// The producer's name.
    pub name: &'a str,
    /// The producer's epoch.
    pub epoch: u64,
    /// Time of storing, milliseconds since 1970 UTC, of the first event of the stream in the shard, or of the last one that
    /// retention has deleted.
    pub last_stored_at: i64,
}

impl StreamRow<'_> {
    /// CRC-32C over the numbers, little-endian, and the name.
    pub fn crc(&self) -> u32 {
        let numbers = [self.number, self.epoch, self.last_stored_at as u64];
        crc32c::crc32c_append(crc_of_numbers(&numbers), self.name.as_bytes())
    }

    /// Writes the row; nothing if it is there.
    ///
    /// # Errors
    /// SQLite's.
    pub fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let statement =
            "INSERT OR IGNORE INTO stream (stream, name, epoch, last_stored_at, crc) VALUES (?1, ?2, ?3, ?4, ?5)";
        let values = params![self.number, self.name, self.epoch, self.last_stored_at, self.crc()];
        connection.execute(statement, values).map(drop)
    }

    /// Notes when the last event of stream `number` that retention deletes was stored. A row that does not match its
    /// checksum stays as it is, so that the damage is found and not covered up.
    ///
    /// # Errors
    /// SQLite's.
    pub fn set_last_stored_at(connection: &Connection, number: u64, last_stored_at: i64) -> rusqlite::Result<()> {
        let found: Option<(String, u64, i64, u32)> = connection
            .prepare_cached("SELECT name, epoch, last_stored_at, crc FROM stream WHERE stream = ?1")?
            .query_row([number], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))
            .optional()?;
        let Some((name, epoch, before, crc)) = found else { return Ok(()) };
        let row = StreamRow { number, name: &name, epoch, last_stored_at: before };
        if row.crc() == crc {
            let row = StreamRow { last_stored_at, ..row };
            connection
                .prepare_cached("UPDATE stream SET last_stored_at = ?2, crc = ?3 WHERE stream = ?1")?
                .execute(params![number, last_stored_at, row.crc()])?;
        }
        Ok(())
    }
}

/// Number ► name and epoch of all streams of a shard.
///
/// # Errors
/// [`ShardError`]: SQLite's errors, and rows that do not match their checksum.
pub fn read_streams(connection: &Connection, path: &Path) -> Result<HashMap<u64, (String, u64)>, ShardError> {
    let sqlite = |error| ShardError::Sqlite(path.to_owned(), error);
    let mut statement =
        connection.prepare("SELECT stream, name, epoch, last_stored_at, crc FROM stream").map_err(sqlite)?;
    let mut rows = statement.query([]).map_err(sqlite)?;
    let mut streams = HashMap::new();
    while let Some(row) = rows.next().map_err(sqlite)? {
        let read = || -> rusqlite::Result<(u64, String, u64, i64, u32)> {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
        };
        let (number, name, epoch, last_stored_at, crc) = read().map_err(sqlite)?;
        if (StreamRow { number, name: &name, epoch, last_stored_at }).crc() != crc {
            let text = format!("the name \"{name}\" of stream {number} does not match its checksum");
            return Err(ShardError::Damaged(path.to_owned(), text));
        }
        streams.insert(number, (name, epoch));
    }
    Ok(streams)
}

/// What became of a range of a stream's numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ReceiptKind {
    /// The events are in this shard.
    Stored,
    /// They were stored, in this shard or another, and lie at or below the floor: retention has deleted them, or does so.
    Expired,
    /// They were stored, and lost by the disk; an operator accepted it.
    Lost,
}

impl ReceiptKind {
    /// The number in the column `kind`.
    pub fn number(self) -> u8 {
        match self {
            ReceiptKind::Stored => 0,
            ReceiptKind::Expired => 1,
            ReceiptKind::Lost => 2,
        }
    }

    /// The kind that a number in the column means.
    pub fn from_number(number: u8) -> Option<ReceiptKind> {
        [ReceiptKind::Stored, ReceiptKind::Expired, ReceiptKind::Lost].into_iter().find(|kind| kind.number() == number)
    }
}

/// A row of `receipt`, without its checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Receipt {
    /// The stream's number.
    pub stream: u64,
    /// First number of the range.
    pub first_sequence: u64,
    /// Last number of the range.
    pub last_sequence: u64,
    /// What became of it.
    pub kind: ReceiptKind,
}

impl Receipt {
    /// CRC-32C over the columns, little-endian.
    pub fn crc(&self) -> u32 {
        let fields = [self.stream, self.first_sequence, self.last_sequence, u64::from(self.kind.number())];
        crc_of_numbers(&fields)
    }

    /// Writes the row.
    ///
    /// # Errors
    /// SQLite's; a row for the same beginning is one.
    pub fn insert(&self, connection: &Connection) -> rusqlite::Result<()> {
        let mut insert = connection.prepare_cached(
            "INSERT INTO receipt (stream, first_sequence, last_sequence, kind, crc) VALUES (?1, ?2, ?3, ?4, ?5)",
        )?;
        let kind = self.kind.number();
        insert.execute(params![self.stream, self.first_sequence, self.last_sequence, kind, self.crc()]).map(drop)
    }
}

/// All receipts of a shard.
///
/// # Errors
/// [`ShardError`]: SQLite's errors, and receipts that do not match their checksum.
pub fn read_receipts(connection: &Connection, path: &Path) -> Result<Vec<Receipt>, ShardError> {
    let sqlite = |error| ShardError::Sqlite(path.to_owned(), error);
    let read = || -> rusqlite::Result<Vec<(Receipt, bool)>> {
        connection
            .prepare("SELECT stream, first_sequence, last_sequence, kind, crc FROM receipt")?
            .query_map([], |row| {
                let kind = ReceiptKind::from_number(row.get(3)?);
                let receipt = Receipt {
                    stream: row.get(0)?,
                    first_sequence: row.get(1)?,
                    last_sequence: row.get(2)?,
                    kind: kind.unwrap_or(ReceiptKind::Stored),
                };
                Ok((receipt, kind.is_some() && receipt.crc() == row.get::<_, u32>(4)?))
            })?
            .collect()
    };
    let receipts = read().map_err(sqlite)?;
    if let Some((bad, _)) = receipts.iter().find(|(_, matches)| !matches) {
        let Receipt { stream, first_sequence, last_sequence, .. } = bad;
        return Err(ShardError::Damaged(
            path.to_owned(),
            format!("receipt {first_sequence} to {last_sequence} of stream {stream} does not match its checksum"),
        ));
    }
    Ok(receipts.into_iter().map(|(receipt, _)| receipt).collect())
}

/// A range of positions that was lost and given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LossRange {
    /// First position that is in no shard.
    pub first_position: u64,
    /// Last position that is in no shard.
    pub last_position: u64,
}

impl LossRange {
    /// Writes the row. `accepted_at` in milliseconds since 1970 UTC.
    ///
    /// # Errors
    /// SQLite's.
    pub fn insert(&self, connection: &Connection, accepted_at: i64) -> rusqlite::Result<()> {
        let crc = crc_of_numbers(&[self.first_position, self.last_position, accepted_at as u64]);
        let statement = "INSERT INTO loss (first_position, last_position, accepted_at, crc) VALUES (?1, ?2, ?3, ?4)";
        connection.execute(statement, params![self.first_position, self.last_position, accepted_at, crc]).map(drop)
    }
}

/// All ranges of a shard that were lost and given up.
///
/// # Errors
/// [`ShardError`]: SQLite's errors, and rows that do not match their checksum.
pub fn read_losses(connection: &Connection, path: &Path) -> Result<Vec<LossRange>, ShardError> {
    let sqlite = |error| ShardError::Sqlite(path.to_owned(), error);
    let read = || -> rusqlite::Result<Vec<(LossRange, bool)>> {
        connection
            .prepare("SELECT first_position, last_position, accepted_at, crc FROM loss")?
            .query_map([], |row| {
                let range = LossRange { first_position: row.get(0)?, last_position: row.get(1)? };
                let fields = [range.first_position, range.last_position, row.get::<_, i64>(2)? as u64];
                Ok((range, crc_of_numbers(&fields) == row.get::<_, u32>(3)?))
            })?
            .collect()
    };
    let losses = read().map_err(sqlite)?;
    if losses.iter().any(|(_, matches)| !matches) {
        return Err(ShardError::Damaged(path.to_owned(), "a row of table loss does not match its checksum".to_owned()));
    }
    Ok(losses.into_iter().map(|(range, _)| range).collect())
}

/// CRC-32C over numbers, little-endian.
pub fn crc_of_numbers(numbers: &[u64]) -> u32 {
    numbers.iter().fold(0, |crc, number| crc32c::crc32c_append(crc, &number.to_le_bytes()))
}

/// The read-write connection to a shard, creating the file if it is not there.
///
/// `log_id` and `shard` are written into a new file, at `now` (milliseconds since 1970 UTC). A file of an older schema
/// version is brought to the present one.
///
/// # Errors
/// [`ShardError`]: SQLite's own errors, or a file that is not a shard of this schema version.
pub fn open_writer(path: &Path, log_id: Uuid, shard: u32, now: i64) -> Result<Connection, ShardError> {
    let sqlite = |error| ShardError::Sqlite(path.to_owned(), error);
    let contents = |text: String| ShardError::Contents(path.to_owned(), text);
    if rusqlite::version_number() < MINIMUM_SQLITE_VERSION {
        return Err(contents(format!("SQLite {} can lose commits; 3.51.3 is needed", rusqlite::version())));
    }
    let mut connection = Connection::open(path).map_err(sqlite)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(sqlite)?;
    let mode: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(sqlite)?;
    if mode != "wal" {
        return Err(contents(format!("the file system does not allow WAL, journal mode is {mode}")));
    }
    connection.pragma_update(None, "synchronous", "FULL").map_err(sqlite)?;
    let synchronous: i64 = connection.query_row("PRAGMA synchronous", [], |row| row.get(0)).map_err(sqlite)?;
    if synchronous != 2 {
        return Err(contents(format!("synchronous is {synchronous}, not FULL")));
    }
    connection.set_prepared_statement_cache_capacity(16);

    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sqlite)?;
    if tables == 0 {
        let transaction = connection.transaction().map_err(sqlite)?;
        transaction.execute_batch(SCHEMA).map_err(sqlite)?;
        transaction.pragma_update(None, "application_id", APPLICATION_ID).map_err(sqlite)?;
        transaction.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(sqlite)?;
        let header = ShardHeader { log_id, commit_number: 0, horizon: 0 };
        transaction
            .execute(
                "INSERT INTO log (id, log_id, shard, created_at, commit_number, horizon, crc)
                 VALUES (1, ?1, ?2, ?3, 0, 0, ?4)",
                params![log_id.to_string(), shard, now, header.crc(shard)],
            )
            .map_err(sqlite)?;
        transaction.commit().map_err(sqlite)?;
    }
    let header = read_header(&connection, path, shard)?;
    if header.log_id != log_id {
        return Err(contents(format!("belongs to log {}, the other shards to log {log_id}", header.log_id)));
    }
    schema::bring_up_to_date(&mut connection, now).map_err(sqlite)?;
    Ok(connection)
}

/// The first table whose columns are not those that it was made with: a damaged page of the schema has other names.
///
/// # Errors
/// SQLite's.
pub fn altered_table(connection: &Connection) -> rusqlite::Result<Option<String>> {
    let made = Connection::open_in_memory()?;
    made.execute_batch(SCHEMA)?;
    let mut tables = made.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'")?;
    for table in tables.query_map([], |row| row.get::<_, String>(0))? {
        let table = table?;
        if columns(connection, &table)? != columns(&made, &table)? {
            return Ok(Some(table));
        }
    }
    Ok(None)
}

/// Name, type and place in the primary key of each column.
fn columns(connection: &Connection, table: &str) -> rusqlite::Result<Vec<(String, String, u32)>> {
    connection
        .prepare("SELECT name, type, pk FROM pragma_table_info(?1) ORDER BY cid")?
        .query_map([table], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect()
}

/// A read-only connection to a shard.
///
/// # Errors
/// [`ShardError`] if SQLite cannot open the file.
pub fn open_reader(path: &Path) -> Result<Connection, ShardError> {
    let sqlite = |error| ShardError::Sqlite(path.to_owned(), error);
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(sqlite)?;
    Ok(connection)
}

/// The id of the log that a shard file belongs to, or none if nothing was ever written to it.
///
/// The file is opened for writing, because a crash in the middle of its creation leaves a journal that only a writer can
/// roll back.
///
/// # Errors
/// [`ShardError`], also for a file that is not a shard of this schema version.
pub fn log_id(path: &Path, shard: u32) -> Result<Option<Uuid>, ShardError> {
    let sqlite = |error| ShardError::Sqlite(path.to_owned(), error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(sqlite)?;
    connection.busy_timeout(Duration::from_secs(5)).map_err(sqlite)?;
    let tables: i64 =
        connection.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).map_err(sqlite)?;
    if tables == 0 { Ok(None) } else { read_header(&connection, path, shard).map(|header| Some(header.log_id)) }
}

/// Reads and checks what a shard says of itself.
///
/// # Errors
/// [`ShardError`] if the file is not shard `shard` of this schema version.
pub fn read_header(connection: &Connection, path: &Path, shard: u32) -> Result<ShardHeader, ShardError> {
    let sqlite = |error| ShardError::Sqlite(path.to_owned(), error);
    let contents = |text: String| ShardError::Contents(path.to_owned(), text);
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, i64>(0)).map_err(sqlite);
    if pragma("application_id")? != APPLICATION_ID {
        return Err(contents("is not a store shard of ingestd".to_owned()));
    }
    let version = pragma("user_version")?;
    if !(schema::OLDEST_VERSION..=SCHEMA_VERSION).contains(&version) {
        return Err(contents(format!("has schema version {version}; this ingestd knows {SCHEMA_VERSION}")));
    }
    let row = connection
        .query_row("SELECT log_id, shard, commit_number, horizon, crc FROM log", [], |row| {
            let (log_id, number): (String, u32) = (row.get(0)?, row.get(1)?);
            Ok((log_id, number, row.get(2)?, row.get(3)?, row.get::<_, u32>(4)?))
        })
        .optional()
        .map_err(sqlite)?;
    let (log_id, number, commit_number, horizon, crc) =
        row.ok_or_else(|| ShardError::Damaged(path.to_owned(), "lacks its header row".to_owned()))?;
    let log_id = log_id.parse().map_err(|_| contents(format!("has a malformed log id \"{log_id}\"")))?;
    if number != shard {
        return Err(contents(format!("was written as shard {number}; do not rename shard files")));
    }
    let header = ShardHeader { log_id, commit_number, horizon };
    if header.crc(shard) != crc {
        let text = "has a header row that does not match its checksum".to_owned();
        return Err(ShardError::Damaged(path.to_owned(), text));
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn foreign_files_and_unknown_versions_are_refused_and_kept() {
        let directory = tempfile::tempdir().unwrap();
        let id = Uuid::new_v4();

        let foreign = directory.path().join("shard-0000.db");
        Connection::open(&foreign).unwrap().execute_batch("CREATE TABLE t (a); INSERT INTO t VALUES (1)").unwrap();
        assert!(open_writer(&foreign, id, 0, 0).unwrap_err().to_string().contains("is not a store shard"));
        assert!(log_id(&foreign, 0).is_err());
        let kept: i64 =
            Connection::open(&foreign).unwrap().query_row("SELECT count(*) FROM t", [], |row| row.get(0)).unwrap();
        assert_eq!(kept, 1);

        let newer = directory.path().join("shard-0001.db");
        open_writer(&newer, id, 1, 0).unwrap().pragma_update(None, "user_version", 99).unwrap();
        assert!(open_writer(&newer, id, 1, 0).unwrap_err().to_string().contains("schema version 99"));

        let renamed = directory.path().join("shard-0002.db");
        drop(open_writer(&renamed, id, 7, 0).unwrap());
        assert!(open_writer(&renamed, id, 2, 0).unwrap_err().to_string().contains("written as shard 7"));

        let other = directory.path().join("shard-0003.db");
        drop(open_writer(&other, id, 3, 0).unwrap());
        assert!(open_writer(&other, Uuid::new_v4(), 3, 0).unwrap_err().to_string().contains("belongs to log"));
    }

    #[test]
    fn checksums_tell_columns_apart() {
        let row = EventRow {
            position: 1,
            stream: 2,
            sequence: 3,
            cpu: 4,
            event_type: "ab",
            key: "c",
            ts: 5,
            stored_at: 6,
            payload: "{}",
        };
        let crc = row.crc();
        assert_eq!(crc, row.crc());
        for other in [
            EventRow { event_type: "a", key: "bc", ..row },
            EventRow { position: 2, stream: 1, ..row },
            EventRow { cpu: 5, ..row },
            EventRow { ts: 6, stored_at: 5, ..row },
            EventRow { payload: "{ }", ..row },
        ] {
            assert_ne!(crc, other.crc(), "{other:?}");
        }
        // The check value of CRC-32C for "123456789" (RFC 3720 uses the same polynomial).
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
    }
}
