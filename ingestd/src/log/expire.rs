//! Deleting what lies at or below the floor, in bounded transactions by the owner of the shard's connection.
//!
//! The rows go and their numbers' receipts become `Expired` in one transaction, so that a resend of what retention has
//! deleted is still a duplicate (LOG-5).

use std::collections::BTreeMap;

use rusqlite::{Connection, OptionalExtension, params};

use super::shard::{Receipt, ReceiptKind};

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
    // In a stream position order is sequence order, so of each stream its lowest numbers go.
    let ends: BTreeMap<u64, u64> = transaction
        .prepare_cached("SELECT stream, max(sequence) FROM event WHERE position <= ?1 GROUP BY stream")?
        .query_map([last], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (stream, end) in ends {
        expire_receipts(&transaction, stream, end)?;
    }
    let deleted = transaction.prepare_cached("DELETE FROM event WHERE position <= ?1")?.execute([last])?;
    transaction.commit()?;
    Ok(deleted as u64)
}

/// Turns the stored numbers of a stream up to `end` into expired ones; runs that touch become one row.
fn expire_receipts(connection: &Connection, stream: u64, end: u64) -> rusqlite::Result<()> {
    let stored: Vec<(u64, u64)> = connection
        .prepare_cached(
            "SELECT first_sequence, last_sequence FROM receipt
             WHERE stream = ?1 AND first_sequence <= ?2 AND kind = ?3 ORDER BY first_sequence",
        )?
        .query_map(params![stream, end, ReceiptKind::Stored.number()], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let Some((lowest, _)) = stored.first() else { return Ok(()) };
    // What expired right before it, so that a stream's expired numbers do not become a row a round.
    let before: Option<(u64, u64, u8)> = connection
        .prepare_cached(
            "SELECT first_sequence, last_sequence, kind FROM receipt
             WHERE stream = ?1 AND first_sequence < ?2 ORDER BY first_sequence DESC LIMIT 1",
        )?
        .query_row(params![stream, lowest], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
        .optional()?;
    let before = before
        .filter(|(_, last, kind)| last + 1 == *lowest && *kind == ReceiptKind::Expired.number())
        .map(|(first, last, _)| (first, last));

    let mut delete = connection.prepare_cached("DELETE FROM receipt WHERE stream = ?1 AND first_sequence = ?2")?;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (first, last) in before.into_iter().chain(stored) {
        delete.execute(params![stream, first])?;
        if last > end {
            let kind = ReceiptKind::Stored;
            Receipt { stream, first_sequence: end + 1, last_sequence: last, kind }.insert(connection)?;
        }
        match runs.last_mut() {
            Some((_, end_of_run)) if *end_of_run + 1 == first => *end_of_run = last.min(end),
            _ => runs.push((first, last.min(end))),
        }
    }
    let kind = ReceiptKind::Expired;
    runs.into_iter().try_for_each(|(first_sequence, last_sequence)| {
        Receipt { stream, first_sequence, last_sequence, kind }.insert(connection)
    })
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
