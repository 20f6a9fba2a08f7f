//! `ingestd import --stream NAME`: a file that grows is taken in once, and one that was changed in what is stored is
//! refused with the lines in which it differs.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Stdio;

use e2e::daemon::Daemon;
use e2e::log_files::check;

/// A file of which every seventh line is blank.
struct Events {
    path: PathBuf,
    lines: Vec<String>,
}

impl Events {
    fn new(daemon: &Daemon, name: &str) -> Events {
        Events { path: daemon.settings_path().with_file_name(name), lines: Vec::new() }
    }

    /// Makes the file hold `count` events.
    fn grow(&mut self, count: usize) {
        while self.count() < count {
            if self.lines.len() % 7 == 3 {
                self.lines.push(String::new());
            }
            let number = self.count() + 1;
            self.lines.push(format!(r#"{{"type":"T","key":"k","ts":{number},"payload":{{"n":{number}}}}}"#));
        }
        self.write();
    }

    fn write(&self) {
        fs::write(&self.path, self.lines.join("\n") + "\n").unwrap();
    }

    fn count(&self) -> usize {
        self.lines.iter().filter(|line| !line.is_empty()).count()
    }

    /// The line number of an event, both from 1.
    fn line_of(&self, event: usize) -> usize {
        let numbered = self.lines.iter().enumerate().filter(|(_, line)| !line.is_empty());
        numbered.map(|(line, _)| line + 1).nth(event - 1).unwrap()
    }

    fn import(&self, daemon: &Daemon) -> String {
        daemon.run(&["import", "--stream", "app.log", self.path.to_str().unwrap()])
    }

    /// Imports the file with one event changed, which must be refused, and puts the event back.
    fn refused_with_change(&mut self, daemon: &Daemon, event: usize) -> String {
        let line = self.line_of(event) - 1;
        let original = self.lines[line].clone();
        // Same length, another digit.
        self.lines[line] = original.replacen(r#""n":"#, r#""m":"#, 1);
        self.write();
        let output = daemon.output(&["import", "--stream", "app.log", self.path.to_str().unwrap()]);
        self.lines[line] = original;
        self.write();
        assert!(!output.status.success(), "a change of event {event} was not noticed");
        String::from_utf8(output.stderr).unwrap()
    }
}

/// What is said of events `first` to `last`.
fn difference(events: &Events, first: usize, last: usize) -> String {
    let lines = (events.line_of(first), events.line_of(last));
    format!("lines {} to {} differ from what is stored (events {first} to {last})", lines.0, lines.1)
}

#[test]
fn a_growing_file_is_stored_once_and_a_changed_one_is_refused_with_the_thousand_lines() {
    let mut daemon = Daemon::new(None, "drain_threads = 1\nstorage_shards = 3");
    daemon.start();
    let mut events = Events::new(&daemon, "app.log");
    for (count, before) in [(2500, 0), (2500, 2500), (2512, 2500), (4200, 2512)] {
        events.grow(count);
        let said = events.import(&daemon);
        assert_eq!(said.trim(), format!("{} events stored, {before} were already stored", count - before));
    }
    for round in 0..2 {
        let end = 4200 + 700 * round;
        for (changed, first) in [(1, 1), (1000, 1), (1001, 1001), (2505, 2001), (4001, 4001), (4200, 4001)] {
            let last = end.min(first + 999);
            let said = events.refused_with_change(&daemon, changed);
            assert!(said.contains(&difference(&events, first, last)), "round {round}, event {changed}: {said}");
            assert!(said.contains("is not what stream \"app.log\" was made of") && said.lines().count() == 1, "{said}");
        }
        // Also when it has grown: nothing that is new is stored.
        events.grow(end + 700);
        let said = events.refused_with_change(&daemon, 4150);
        assert!(said.contains(&difference(&events, 4001, end)), "{said}");
        assert_eq!(daemon.stored_events(), end as u64);
        // A change in what is not stored yet is none.
        let said = events.import(&daemon);
        assert_eq!(said.trim(), format!("700 events stored, {end} were already stored"));
        daemon.kill();
        daemon.start();
    }
    let horizon = daemon.status()["log"]["horizon"].as_u64().unwrap();
    let files = check(&daemon.data_directory(), Some(horizon)).unwrap();
    let numbers: Vec<i64> = files.stream("app.log").map(|row| row.ts).collect();
    assert_eq!(numbers, (1..=5600).collect::<Vec<_>>());
    daemon.verify_log();
}

/// Standard input takes what comes, in portions that nobody chose; it is compared at the same places.
#[test]
fn standard_input_is_compared_with_what_a_file_gave() {
    let mut daemon = Daemon::new(None, "");
    daemon.start();
    let mut events = Events::new(&daemon, "app.log");
    events.grow(2600);
    let pipe = |daemon: &Daemon, path: &PathBuf| {
        let mut command = daemon.command(&["import", "--stream", "app.log", "-"]);
        command.stdin(Stdio::from(File::open(path).unwrap())).output().unwrap()
    };
    let said = pipe(&daemon, &events.path);
    assert!(String::from_utf8_lossy(&said.stdout).starts_with("2600 events stored, 0 were"), "{said:?}");
    assert!(events.import(&daemon).starts_with("0 events stored, 2600 were"));
    let said = events.refused_with_change(&daemon, 1999);
    assert!(said.contains(&difference(&events, 1001, 2000)), "{said}");

    let changed = daemon.settings_path().with_file_name("changed.log");
    let text = fs::read_to_string(&events.path).unwrap().replace(r#""n":2599"#, r#""n":2598"#);
    fs::write(&changed, text).unwrap();
    let said = pipe(&daemon, &changed);
    let error = String::from_utf8(said.stderr).unwrap();
    assert!(!said.status.success() && error.contains(&difference(&events, 2001, 2600)), "{error}");
    assert_eq!(daemon.stored_events(), 2600);
}

/// The daemon and the import die at random moments; what is stored in the end is the file, once, with its hashes.
#[test]
fn hashes_survive_kill_9_with_their_events() {
    let mut daemon = Daemon::new(None, "drain_threads = 2\nstorage_shards = 4");
    let mut events = Events::new(&daemon, "app.log");
    events.grow(12_000);
    let path = events.path.to_str().unwrap().to_owned();
    daemon.start();
    for round in 1..=6 {
        let mut import = daemon.command(&["import", "--stream", "app.log", &path]);
        let import = import.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        let import = std::sync::Mutex::new(import);
        daemon.wait_until("some more is stored", || {
            daemon.stored_events() >= 1500 * round || import.lock().unwrap().try_wait().unwrap().is_some()
        });
        daemon.kill();
        import.into_inner().unwrap().wait().unwrap();
        daemon.start();
    }
    events.import(&daemon);
    let horizon = daemon.status()["log"]["horizon"].as_u64().unwrap();
    let files = check(&daemon.data_directory(), Some(horizon)).unwrap();
    assert_eq!(files.stream("app.log").map(|row| row.ts).collect::<Vec<_>>(), (1..=12_000).collect::<Vec<_>>());
    let thousands = files.hashes["app.log"].keys().filter(|number| **number % 1000 == 0).count();
    assert_eq!(thousands, 12, "{:?}", files.hashes);
    daemon.verify_log();
    for changed in [17, 6_500, 11_999] {
        let first = (changed - 1) / 1000 * 1000 + 1;
        let said = events.refused_with_change(&daemon, changed);
        assert!(said.contains(&difference(&events, first, first + 999)), "{said}");
    }
}

#[test]
fn over_http_a_hash_that_differs_is_a_conflict_and_a_malformed_one_a_fault() {
    const EVENT: &str = r#"{"type":"T","key":"k","payload":{}}"#;
    let mut daemon = Daemon::new(None, "");
    daemon.start();
    let post = |hash: &str, count: usize| {
        let headers = [("Ingest-Producer", "a/b#c%"), ("Ingest-Sequence", "1"), ("Ingest-Hash", hash)];
        daemon.post(&vec![EVENT; count].join("\n"), &headers).unwrap()
    };
    let (one, other) = ("0f".repeat(32), "f0".repeat(32));
    assert_eq!(post(&one, 3).body["stored"], 3);
    assert_eq!(post(&one.to_uppercase(), 3).body["duplicates"], 3);
    let refused = post(&other, 3);
    assert_eq!((refused.status, &refused.body["differs_at"]), (409, &3.into()));
    assert!(refused.body["error"].as_str().unwrap().contains("events 1 to 3 of producer \"a/b#c%\""), "{refused:?}");
    // Where no hash is kept there is nothing to compare.
    assert_eq!(post(&other, 2).body["duplicates"], 2);
    assert_eq!(post("0f", 3).status, 400);
    assert_eq!(daemon.stored_events(), 3);
    // A stream whose name needs escapes in a path.
    let mut events = Events::new(&daemon, "escapes");
    events.grow(3);
    let output = daemon.output(&["import", "--stream", "a/b#c%", events.path.to_str().unwrap()]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("lines 1 to 3 differ from what is stored (events 1 to 3)"), "{said}");
}
