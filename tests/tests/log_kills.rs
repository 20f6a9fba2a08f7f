//! A file of real events is imported while the daemon is killed again and again: in the end it is stored once, whole and
//! in order. `LOG_FILE` names another file than the week of flights, `LOG_KILLS` says how often.

use std::io::{BufRead, BufReader, Write};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::mpsc;

use e2e::daemon::{Daemon, testdata};
use e2e::log_files::check;
use flate2::read::MultiGzDecoder;
use serde_json::Value;

#[test]
fn a_file_of_events_is_stored_once_and_whole_however_often_the_daemon_is_killed() {
    let file = std::env::var_os("LOG_FILE").map_or_else(|| testdata("flights-week.ndjson.gz"), PathBuf::from);
    let kills: u64 = std::env::var("LOG_KILLS").map_or(4, |text| text.parse().expect("LOG_KILLS is a number"));
    let contents = std::fs::File::open(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let lines: Vec<String> = BufReader::new(MultiGzDecoder::new(contents)).lines().map(Result::unwrap).collect();
    let expected: Vec<Value> = lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let total = expected.len() as u64;

    let mut daemon = Daemon::new(None, "drain_threads = 2\nstorage_shards = 3");
    daemon.start();
    let path = file.to_str().unwrap();
    for kill in 1..=kills {
        // The last line stays here until the daemon is dead, so that no import is over before.
        let mut import = daemon.command(&["import", "--stream", "file", "-"]);
        import.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut import = import.spawn().unwrap();
        let mut pipe = import.stdin.take().unwrap();
        let ended = std::thread::scope(|scope| {
            let (killed, last_may_go) = mpsc::channel::<()>();
            let lines = &lines;
            scope.spawn(move || {
                let (last, others) = lines.split_last().unwrap();
                let written = others.iter().try_for_each(|line| writeln!(pipe, "{line}"));
                let _ = last_may_go.recv();
                // An import whose daemon died may have ended before it read all.
                let _ = written.and_then(|()| writeln!(pipe, "{last}"));
            });
            daemon.wait_until("some more is stored", || {
                daemon.status()["log"]["horizon"].as_u64() >= Some(total * kill / (kills + 1))
            });
            daemon.kill();
            drop(killed);
            import.wait().unwrap()
        });
        assert!(!ended.success(), "the import says that all is stored, but the daemon never had the last line");
        daemon.start();
        daemon.verify_log();
    }
    let said = daemon.run(&["import", "--stream", "file", path]);
    let horizon = daemon.status()["log"]["horizon"].as_u64().unwrap();
    let files = check(&daemon.data_directory(), Some(horizon)).unwrap();
    let stored: Vec<_> = files.rows.iter().filter(|row| !row.event_type.starts_with("ingestd.")).collect();
    assert_eq!(stored.len() as u64, total);
    for ((row, event), number) in stored.iter().zip(&expected).zip(1..) {
        let same = row.sequence == number
            && event["key"] == *row.key
            && event["type"] == *row.event_type
            && event["payload"] == serde_json::from_str::<Value>(&row.payload).unwrap();
        assert!(same, "line {number} is {event}, stored is {row:?}");
    }
    println!("{kills} kills, {total} events of {}: {}", file.display(), said.trim());
    println!("{}", daemon.run(&["log", "verify"]));
    assert!(daemon.stop().success());
}
