//! Which errors in the logs of a run are no fault of the product, and why. What is not listed here fails the run; so does
//! a listed one without the fault that explains it.

use std::collections::BTreeSet;

/// Who wrote a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Postgres, with the application's name and the SQLSTATE in each line.
    Postgres,
    /// A daemon.
    Daemon,
    /// The workers in Python.
    Workers,
}

/// An error that may be there.
struct Explained {
    source: Source,
    /// All of these are in the line.
    texts: &'static [&'static str],
    /// One of these kinds of faults explains it; if there is none here, the load does.
    faults: &'static [&'static str],
}

const fn explained(source: Source, texts: &'static [&'static str], faults: &'static [&'static str]) -> Explained {
    Explained { source, texts, faults }
}

const SERVER: [&str; 3] = ["Postgres stopped", "Postgres crashed", "Postgres killed"];

const EXPLAINED: &[Explained] = &[
    // Whoever connects while the server stops, starts or recovers.
    explained(Source::Postgres, &[" 57P03 FATAL:  the database system is "], &SERVER),
    explained(
        Source::Postgres,
        &[" 57P01 FATAL:  terminating connection due to administrator command"],
        &["sessions ended", "Postgres stopped"],
    ),
    // So Postgres calls it if the session was not yet authenticated.
    explained(
        Source::Postgres,
        &[" 57014 FATAL:  canceling authentication due to timeout"],
        &["sessions ended", "Postgres stopped"],
    ),
    explained(
        Source::Postgres,
        &[" 57P01 FATAL:  terminating connection due to unexpected postmaster exit"],
        &["Postgres killed"],
    ),
    // A process that was stopped inside a batch, longer than the database allows.
    explained(Source::Postgres, &["ingestd", " 25P03 FATAL:  "], &["daemon paused"]),
    explained(Source::Postgres, &["[unknown]", " 25P03 FATAL:  "], &["worker paused"]),
    // (The pooler's connections keep the name of the psql that waited for the pooler to answer.)
    explained(Source::Postgres, &["psql", " 25P03 FATAL:  "], &["worker paused"]),
    // The sessions that are ended, and those of a server that stops, may be autovacuum's. It gives way to who changes a table.
    explained(
        Source::Postgres,
        &[" 57P01 FATAL:  terminating autovacuum process due to administrator command"],
        &["sessions ended", "Postgres stopped"],
    ),
    explained(Source::Postgres, &[" 57014 ERROR:  canceling autovacuum task"], &["table mended"]),
    // Who changes a table waits for the batch of a process that was stopped, and all others wait for the change.
    explained(Source::Postgres, &["ingestd", " 55P03 ERROR:  canceling statement due to lock timeout"], &LOCKED),
    explained(Source::Daemon, &["55P03: canceling statement due to lock timeout"], &LOCKED),
    // The session of a process that was killed noticed it while it sent an answer.
    explained(
        Source::Postgres,
        &[" 08006 FATAL:  connection to client lost"],
        &["daemon killed", "shard count changed", "worker killed", "PgBouncer restarted", "disk full"],
    ),
    // A batch of a lane that another worker had taken meanwhile, since the session that owned it had gone, or that has no slots
    // any more: the fence.
    explained(
        Source::Postgres,
        &["ingestd worker", " 40001 ERROR:  lane ", " is in epoch "],
        &["sessions ended", "daemon paused", "Postgres stopped", "Postgres crashed", "Postgres killed", "map changed"],
    ),
    // Poison: its events are found by trying them, so an event is refused several times.
    explained(Source::Postgres, &["ingestd worker", " 23514 ERROR:  ", "\"ledger_", "constraint \"small\""], &[]),
    // A change of a map while the one before still waits.
    explained(Source::Postgres, &["psql", " 55000 ERROR:  a change of the map of projection "], &["map changed"]),
    // A change of a lane that was there when its number was asked for, and that the change before has retired meanwhile.
    explained(Source::Postgres, &["psql", " 42704 ERROR:  lane ", " owns no slots"], &["map changed"]),
    explained(Source::Daemon, &["store shard ", " cannot be written: database or disk is full"], &["disk full"]),
    // So SQLite calls it if there is no room for the index of its WAL.
    explained(Source::Daemon, &["store shard ", " cannot be written: disk I/O error"], &["disk full"]),
    explained(Source::Daemon, &["the watermark cannot be written: No space left on device"], &["disk full"]),
    // A worker's connection to the pooler, or the pooler's to the server, was cut.
    explained(Source::Workers, &["server closed the connection unexpectedly"], &CONNECTION),
    explained(Source::Workers, &["could not receive data from server: "], &CONNECTION),
    explained(Source::Workers, &["could not send data to server: "], &CONNECTION),
    explained(Source::Workers, &["server conn crashed?"], &CONNECTION),
    explained(Source::Workers, &["server connection closed"], &CONNECTION),
    explained(Source::Workers, &["connection failed: "], &["PgBouncer restarted"]),
    explained(Source::Workers, &["connection is bad: "], &["PgBouncer restarted"]),
    explained(Source::Workers, &["terminating connection due to administrator command"], &CONNECTION),
    explained(Source::Workers, &["terminating connection due to unexpected postmaster exit"], &CONNECTION),
    explained(Source::Workers, &["terminating connection due to idle-in-transaction timeout"], &["worker paused"]),
    explained(Source::Workers, &["server login has been failing, try again later"], &SERVER),
    explained(Source::Workers, &["the database system is "], &SERVER),
];

const LOCKED: [&str; 3] = ["table mended", "daemon paused", "worker paused"];

const CONNECTION: [&str; 6] = [
    "sessions ended",
    "Postgres stopped",
    "Postgres crashed",
    "Postgres killed",
    "PgBouncer restarted",
    "worker paused",
];

/// Lines that tell of an error, in a log of that source.
fn errors(source: Source, log: &str) -> impl Iterator<Item = &str> {
    let words: &[&str] = match source {
        // (Who ends a transaction where there is none, which is a warning, has lost count.)
        Source::Postgres => &[" ERROR:  ", " FATAL:  ", " PANIC:  ", "TRAP:", " 25P01 WARNING:  "],
        Source::Daemon => &["ERROR", "panicked"],
        // "NAME PID: what libpq says", which may go on in further lines; or Python's own.
        Source::Workers => &["Traceback", "Warning"],
    };
    let is_told = |line: &str| {
        let process = line.split_once(": ").and_then(|(who, _)| who.rsplit_once(' '));
        process.is_some_and(|(_, process)| process.parse::<u32>().is_ok())
    };
    log.lines()
        .filter(move |line| words.iter().any(|word| line.contains(word)) || source == Source::Workers && is_told(line))
}

/// How many errors a log tells of, and those that nothing explains. `faults` are the kinds there were.
pub fn unexplained<'l>(source: Source, log: &'l str, faults: &BTreeSet<&str>) -> (u64, Vec<&'l str>) {
    let mut count = 0;
    let is_explained = |line: &str| {
        EXPLAINED.iter().any(|known| {
            known.source == source
                && known.texts.iter().all(|text| line.contains(text))
                && (known.faults.is_empty() || known.faults.iter().any(|fault| faults.contains(fault)))
        })
    };
    let unexplained = errors(source, log).inspect(|_| count += 1).filter(|line| !is_explained(line)).collect();
    (count, unexplained)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_explained_by_its_fault_alone_and_what_is_no_error_by_none() {
        let log = "2026-11-30 21:58:05.697 UTC [17329] ingestd worker 1 57P01 FATAL:  terminating connection due to administrator command
2026-11-30 21:58:05.700 UTC [17329] ingestd worker 1 00000 LOG:  disconnection
2026-11-30 21:58:05.797 UTC [17329] ingestd worker 1 P0001 ERROR:  key a has 3 events, and the last one is number 5
2026-11-30 21:58:05.797 UTC [17329] psql 55000 ERROR:  a change of the map of projection \"meters\" is waiting";
        let left = |faults: &[&str]| {
            let (errors, left) = unexplained(Source::Postgres, log, &faults.iter().copied().collect());
            assert_eq!(errors, 3);
            left.iter().map(|line| log.lines().position(|other| other == *line).unwrap()).collect::<Vec<_>>()
        };
        assert_eq!(left(&[]), [0, 2, 3]);
        assert_eq!(left(&["sessions ended"]), [2, 3]);
        assert_eq!(left(&["sessions ended", "map changed"]), [2]);
        let said = "host 17: consuming input failed: server closed the connection unexpectedly
\tThis probably means the server terminated abnormally
host 17: lane 3 stands at 7 of tick 2: value \"x\" is out of range
Traceback (most recent call last):
NameError: name 'cluster' is not defined";
        let (errors, left) = unexplained(Source::Workers, said, &["PgBouncer restarted"].into());
        assert_eq!((errors, left.len()), (3, 2), "{left:?}");
        assert_eq!(unexplained(Source::Daemon, log, &BTreeSet::new()).1.len(), 2);
    }

    #[test]
    fn the_faults_that_explain_are_those_that_there_are() {
        let plan = crate::soak::plan::Plan::new(1, std::time::Duration::from_secs(600), 9);
        let kinds: BTreeSet<&str> =
            plan.actors.iter().flat_map(|(_, steps)| steps).map(|step| step.fault.kind()).collect();
        for known in EXPLAINED {
            assert!(known.faults.iter().all(|fault| kinds.contains(fault)), "{:?}", known.texts);
        }
    }
}
