//! Controls: what the audit has found right is spoilt, on copies and on single rows that are put right again, and each must
//! be found. An audit that finds nothing because it looks at nothing would pass everything.

use std::path::Path;

use rusqlite::Connection;

use crate::log_files::{LogFiles, check, shard_files};
use crate::soak::audit::Audit;
use crate::soak::plan::DAEMONS;
use crate::soak::producer::Record;
use crate::soak::projections;
use crate::soak::site::Site;

/// The last daemon's log is the one that is copied: it is on the real disk.
const DAEMON: usize = DAEMONS - 1;

/// Does all controls and notes those that were not found as faults; how many there were.
pub fn controls(site: &Site, seed: u64, logs: &[Option<LogFiles>], records: &[Vec<Record>], audit: &mut Audit) -> u64 {
    // What cannot be read is a fault already.
    let Some(files) = logs[DAEMON].as_ref() else { return 0 };
    let stored = |files: &LogFiles, records: &[Record]| {
        let mut control = Audit::default();
        control.stored(seed, files, records);
        !control.faults.is_empty()
    };
    let mut controls = 0;
    let mut must = |found: bool, what: &str| {
        controls += 1;
        audit.that(found, || format!("the audit does not find {what}"));
    };

    let mut more = records[DAEMON].clone();
    if let Some(acknowledged) = more[0].epochs.last_mut() {
        *acknowledged += 1;
    }
    must(stored(files, &more), "an event that was acknowledged and is not stored");

    let copy = tempfile::tempdir().expect("the temporary directory can be written");
    copy_files(&site.daemon(DAEMON).data_directory(), copy.path());
    let middle = &files.rows[files.rows.len() / 2];
    let again = files.rows.last().map_or(0, |row| row.position) + 1;
    spoil(copy.path(), |shard| {
        shard.execute(
            "INSERT INTO event (position, stream, sequence, cpu, ts, stored_at, type, key, payload, crc)
             SELECT ?2, stream, sequence, cpu, ts, stored_at, type, key, payload, crc FROM event WHERE position = ?1",
            [middle.position, again],
        )
    });
    must(is_wrong(copy.path(), |copied| stored(copied, &records[DAEMON])), "an event that is stored twice");
    spoil(copy.path(), |shard| shard.execute("DELETE FROM event WHERE position = ?1", [again]));
    must(!is_wrong(copy.path(), |copied| stored(copied, &records[DAEMON])), "that a copy is right again");
    spoil(copy.path(), |shard| shard.execute("DELETE FROM event WHERE position = ?1", [middle.position]));
    must(is_wrong(copy.path(), |copied| stored(copied, &records[DAEMON])), "an event that is deleted");

    for (table, key, column, what) in [
        ("counter", "kind, lane", "cents", "a total that is off by one"),
        ("summary", "kind", "events", "an event that is counted twice"),
        ("ledger", "account", "level", "a level that is off by one"),
    ] {
        let table = format!("{table}_{DAEMON}");
        let row = format!("({key}) IN (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1)");
        let add = |by: i32| format!("UPDATE {table} SET {column} = {column} + {by} WHERE {row}");
        site.psql(&add(1));
        let mut control = Audit::default();
        control.projections(DAEMON, files, &projections::queries(DAEMON).map(|query| site.psql(&query)));
        must(control.faults.len() == 1, what);
        site.psql(&add(-1));
    }
    controls
}

fn copy_files(from: &Path, to: &Path) {
    for entry in std::fs::read_dir(from).expect("the data directory can be listed") {
        let entry = entry.expect("the data directory can be listed");
        // The index of a WAL is made anew.
        if !entry.file_name().to_string_lossy().ends_with("-shm") {
            std::fs::copy(entry.path(), to.join(entry.file_name())).expect("the files can be read");
        }
    }
}

/// Changes the shard that has the event.
fn spoil(copy: &Path, change: impl Fn(&Connection) -> rusqlite::Result<usize>) {
    let shards = shard_files(copy).expect("the copy can be listed");
    let changed: usize = shards
        .iter()
        .map(|path| Connection::open(path).and_then(|shard| change(&shard)).expect("the copy is SQLite"))
        .sum();
    assert_eq!(changed, 1, "one event is in one shard");
}

fn is_wrong(copy: &Path, is_wrong: impl FnOnce(&LogFiles) -> bool) -> bool {
    check(copy, None).map_or(true, |files| is_wrong(&files))
}
