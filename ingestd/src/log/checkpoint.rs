//! When a shard's WAL is copied into its database: on the writer's thread, and not in all shards at the same time.
//!
//! A checkpoint is the longest pause that a producer sees. A larger threshold makes it rarer and longer; two at once make
//! both slower. So writers take turns: one that finds another at it waits for its next commit, unless its own WAL has
//! grown far. PASSIVE never waits for a reader; what one holds back is tried again later, and told when it is much.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, TryLockError};

use rusqlite::Connection;

/// A WAL of so many times the threshold does not wait for its turn any more.
const URGENT: u64 = 4;

/// Whose turn it is; shared by all writers of a log.
pub type Turn = Arc<Mutex<()>>;

/// The checkpoints of one shard.
#[derive(Debug)]
pub struct Checkpoints {
    turn: Turn,
    /// Pages in the WAL after the last commit.
    pages: Arc<AtomicU64>,
    /// The size at which the next checkpoint is due, if a reader held the last one back.
    due_at: u64,
    /// Pages that a reader kept the last checkpoint from copying.
    held_back: u64,
}

impl Checkpoints {
    /// Takes over from SQLite's own checkpoints on `connection`.
    ///
    /// # Errors
    /// SQLite's.
    pub fn take_over(connection: &mut Connection, turn: Turn) -> rusqlite::Result<Checkpoints> {
        let pages = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&pages);
        connection.wal_hook(Some(move |_: &mut rusqlite::hooks::Wal, count: std::ffi::c_int| {
            counted.store(count.max(0) as u64, Ordering::Relaxed);
            Ok(())
        }))?;
        Ok(Checkpoints { turn, pages, due_at: 0, held_back: 0 })
    }

    /// Makes a checkpoint if the WAL has `threshold` pages and it is this shard's turn. To be called after commits.
    ///
    /// # Errors
    /// SQLite's; the committed events are durable all the same.
    pub fn after_commit(&mut self, connection: &Connection, threshold: u64) -> rusqlite::Result<()> {
        let pages = self.pages.load(Ordering::Relaxed);
        if pages < threshold {
            // The WAL has begun anew.
            self.due_at = 0;
            self.held_back = 0;
        }
        if pages < threshold.max(self.due_at) {
            return Ok(());
        }
        let turn = Arc::clone(&self.turn);
        let _turn = match turn.try_lock() {
            Ok(guard) => guard,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) if pages < URGENT * threshold => return Ok(()),
            Err(TryLockError::WouldBlock) => turn.lock().unwrap_or_else(PoisonError::into_inner),
        };
        let (in_wal, copied): (i64, i64) =
            connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| Ok((row.get(1)?, row.get(2)?)))?;
        self.held_back = u64::try_from(in_wal - copied).unwrap_or(0);
        self.due_at = pages + threshold;
        Ok(())
    }

    /// Pages that a reader keeps in the WAL, if they are so many that somebody should know.
    pub fn held_back(&self, threshold: u64) -> Option<u64> {
        (self.held_back >= URGENT * threshold).then_some(self.held_back)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pages_in_database(connection: &Connection) -> u64 {
        // What a checkpoint copies out of the WAL shows in the file's size.
        std::fs::metadata(connection.path().unwrap()).unwrap().len() / 4096
    }

    fn open(directory: &std::path::Path) -> Connection {
        let connection = Connection::open(directory.join("t.db")).unwrap();
        let _: String = connection.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).unwrap();
        connection.execute_batch("CREATE TABLE t (a BLOB)").unwrap();
        connection
    }

    fn grow(connection: &Connection) {
        connection.execute("INSERT INTO t VALUES (randomblob(40000))", []).unwrap();
    }

    #[test]
    fn a_checkpoint_comes_at_the_threshold_and_only_in_turn_until_it_is_urgent() {
        let directory = tempfile::tempdir().unwrap();
        let mut connection = open(directory.path());
        let turn = Turn::default();
        let mut checkpoints = Checkpoints::take_over(&mut connection, Arc::clone(&turn)).unwrap();
        let mut step = |connection: &Connection| {
            grow(connection);
            checkpoints.after_commit(connection, 20).unwrap();
            pages_in_database(connection)
        };
        assert!(step(&connection) < 5, "below the threshold");
        let after_first = {
            step(&connection);
            step(&connection)
        };
        assert!(after_first > 20, "{after_first}");

        // Somebody else's turn: nothing until the WAL is four times the threshold, then this one waits for its turn.
        let held = turn.lock().unwrap();
        for _ in 0..5 {
            assert_eq!(step(&connection), after_first);
        }
        drop(held);
        assert!(step(&connection) > after_first);
    }

    #[test]
    fn a_reader_that_holds_the_wal_back_does_not_make_every_commit_try_again() {
        let directory = tempfile::tempdir().unwrap();
        let mut connection = open(directory.path());
        let mut checkpoints = Checkpoints::take_over(&mut connection, Turn::default()).unwrap();
        let reader = Connection::open(directory.path().join("t.db")).unwrap();
        reader.execute_batch("BEGIN; SELECT count(*) FROM t").unwrap();
        let mut due = Vec::new();
        for _ in 0..12 {
            grow(&connection);
            checkpoints.after_commit(&connection, 20).unwrap();
            due.push(checkpoints.due_at);
        }
        due.dedup();
        assert!(due.len() < 8, "{due:?}");
        assert!(checkpoints.held_back(20).is_some_and(|pages| pages >= 80), "{checkpoints:?}");
        assert_eq!(checkpoints.held_back(1000), None);
        reader.execute_batch("COMMIT").unwrap();
        for _ in 0..4 {
            grow(&connection);
            checkpoints.after_commit(&connection, 20).unwrap();
        }
        assert!(pages_in_database(&connection) > 100, "it is caught up when the reader has gone");
        assert_eq!(checkpoints.held_back(20), None);
    }
}
