//! Brings a store shard of an older schema version to the present one, in one transaction.
//!
//! Version 1, of ingestd 0.3.0 and before, had no hashes of streams and no time of storing in `stream`; its expired
//! receipts told exactly which of the shard's own events were deleted, so their number grew for ever.

use rusqlite::{Connection, params};

use super::shard::{Receipt, ReceiptKind, SCHEMA_VERSION, StreamRow};

/// The oldest version that can be brought to the present one.
pub const OLDEST_VERSION: i64 = 1;

/// Does nothing to a shard that has the present version. `now` in milliseconds since 1970 UTC.
///
/// # Errors
/// SQLite's; nothing has changed then.
pub fn bring_up_to_date(connection: &mut Connection, now: i64) -> rusqlite::Result<()> {
    let version: i64 = connection.pragma_query_value(None, "user_version", |row| row.get(0))?;
    if version == SCHEMA_VERSION {
        return Ok(());
    }
    let transaction = connection.transaction()?;
    transaction.execute_batch(
        "CREATE TABLE stream_hash (
            stream   INTEGER NOT NULL,
            sequence INTEGER NOT NULL,
            hash     BLOB NOT NULL CHECK (length(hash) = 32),
            crc      INTEGER NOT NULL,
            PRIMARY KEY (stream, sequence)
        ) STRICT, WITHOUT ROWID;
        ALTER TABLE stream RENAME TO stream_1;
        CREATE TABLE stream (
            stream         INTEGER PRIMARY KEY,
            name           TEXT NOT NULL,
            epoch          INTEGER NOT NULL,
            last_stored_at INTEGER NOT NULL,
            crc            INTEGER NOT NULL
        ) STRICT;",
    )?;
    // Nobody knows when; what counts as idle counts from now.
    let streams: Vec<(u64, String, u64, u32)> = transaction
        .prepare("SELECT stream, name, epoch, crc FROM stream_1")?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (number, name, epoch, crc) in streams {
        let row = StreamRow { number, name: &name, epoch, last_stored_at: now };
        row.insert(&transaction)?;
        if crc_of_version_1(&row) != crc {
            // Damage must be found, not covered up.
            transaction.execute("UPDATE stream SET crc = ?2 WHERE stream = ?1", params![number, !row.crc()])?;
        }
    }
    transaction.execute_batch("DROP TABLE stream_1")?;
    expire_from_one(&transaction)?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION)?;
    transaction.commit()
}

fn crc_of_version_1(row: &StreamRow) -> u32 {
    let numbers = [row.number.to_le_bytes(), row.epoch.to_le_bytes()].concat();
    crc32c::crc32c_append(crc32c::crc32c(&numbers), row.name.as_bytes())
}

/// In a stream position order is sequence order, so all below an expired number lies at or below the floor too.
fn expire_from_one(connection: &Connection) -> rusqlite::Result<()> {
    let expired = ReceiptKind::Expired;
    let receipts: Vec<(Receipt, u32)> = connection
        .prepare("SELECT stream, first_sequence, last_sequence, crc FROM receipt WHERE kind = ?1 ORDER BY 1, 2")?
        .query_map([expired.number()], |row| {
            let (stream, first_sequence, last_sequence) = (row.get(0)?, row.get(1)?, row.get(2)?);
            Ok((Receipt { stream, first_sequence, last_sequence, kind: expired }, row.get(3)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    for of_stream in receipts.chunk_by(|(one, _), (next, _)| one.stream == next.stream) {
        // Damage must be found, not covered up.
        if of_stream.iter().any(|(receipt, crc)| receipt.crc() != *crc) {
            continue;
        }
        let Some((last, _)) = of_stream.last() else { continue };
        connection.execute(
            "DELETE FROM receipt WHERE stream = ?1 AND last_sequence <= ?2",
            params![last.stream, last.last_sequence],
        )?;
        Receipt { first_sequence: 1, ..*last }.insert(connection)?;
    }
    Ok(())
}
