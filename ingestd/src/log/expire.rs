//! Deleting what lies at or below the floor, in bounded transactions by the owner of the shard's connection.
//!
//! The rows go and their numbers' receipts become an expired one in the same transaction, so that a resend of what
//! retention has deleted is still a duplicate (LOG-5). Since in a stream position order is sequence order, and the floor is
//! durable before anything is deleted, all numbers below a deleted one lie at or below the floor too, whichever shard
//! holds them. So the expired receipt begins at 1, and a stream has one a shard, however many stripes it was spread over.

use rusqlite::{Connection, OptionalExtension, params};

use super::shard::{Receipt, ReceiptKind, StreamRow};

/// Deletes at most `rows` events at or below `floor`, the lowest first, and returns how many.
///
/// # Errors
/// SQLite's; nothing has changed then.
pub fn expire(connection: &mut Connection, floor: u64, rows: u64) -> rusqlite::Result<u64> {
    let transaction = connection.transaction()?;
    let last: Option<u64> = transaction.query_row(
        "SELECT max(position) FROM (SELECT position FROM event WHERE position <= ?1 ORDER BY position LIMIT ?2)",
        params![floor, rows],
        |row| row.get(0),
    )?;
    let Some(last) = last else { return Ok(0) };
    let ends: Vec<(u64, u64, i64)> = transaction
        .prepare_cached("SELECT stream, max(sequence), max(stored_at) FROM event WHERE position <= ?1 GROUP BY stream")?
        .query_map([last], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (stream, end, last_stored_at) in ends {
        expire_receipts(&transaction, stream, end)?;
        StreamRow::set_last_stored_at(&transaction, stream, last_stored_at)?;
    }
    let deleted = transaction.prepare_cached("DELETE FROM event WHERE position <= ?1")?.execute([last])?;
    transaction.commit()?;
    Ok(deleted as u64)
}

/// Makes one expired receipt of all that the shard has of a stream up to `end`, which is the number of one of its events.
/// A row that does not match its checksum stays as it is, so that the damage is found and not covered up.
fn expire_receipts(connection: &Connection, stream: u64, end: u64) -> rusqlite::Result<()> {
    let receipts: Vec<(Receipt, u32)> = connection
        .prepare_cached(
            "SELECT first_sequence, last_sequence, kind, crc FROM receipt WHERE stream = ?1 AND first_sequence <= ?2",
        )?
        .query_map(params![stream, end], |row| {
            let kind = ReceiptKind::from_number(row.get(2)?).unwrap_or(ReceiptKind::Stored);
            let (first_sequence, last_sequence) = (row.get(0)?, row.get(1)?);
            Ok((Receipt { stream, first_sequence, last_sequence, kind }, row.get(3)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    if receipts.iter().any(|(receipt, crc)| receipt.crc() != *crc) {
        return Ok(());
    }
    connection
        .prepare_cached("DELETE FROM receipt WHERE stream = ?1 AND first_sequence <= ?2")?
        .execute(params![stream, end])?;
    let rest = receipts.iter().map(|(receipt, _)| receipt).find(|receipt| receipt.last_sequence > end);
    if let Some(rest) = rest {
        Receipt { first_sequence: end + 1, ..*rest }.insert(connection)?;
    }
    Receipt { stream, first_sequence: 1, last_sequence: end, kind: ReceiptKind::Expired }.insert(connection)
}

/// What retention must know of a shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShardExtent {
    /// The lowest position whose event was stored at or after the cutoff; none if there is none.
    pub first_young: Option<u64>,
    /// Bytes in use, without free pages.
    pub bytes: u64,
}

/// Looks at a shard. `cutoff` in milliseconds since 1970 UTC.
///
/// # Errors
/// SQLite's.
pub fn look(connection: &Connection, cutoff: i64) -> rusqlite::Result<ShardExtent> {
    let pragma = |name: &str| connection.pragma_query_value(None, name, |row| row.get::<_, u64>(0));
    // From the low end, so it reads what is about to be deleted and no more.
    let first_young = connection
        .prepare_cached("SELECT position FROM event WHERE stored_at >= ?1 ORDER BY position LIMIT 1")?
        .query_row([cutoff], |row| row.get(0))
        .optional()?;
    let bytes = (pragma("page_count")? - pragma("freelist_count")?) * pragma("page_size")?;
    Ok(ShardExtent { first_young, bytes })
}
