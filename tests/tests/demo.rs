//! The demo as a newcomer runs it, in a place of its own: twice, stopped, started again, removed. What it prints as the
//! lines to try next is what is run here.
//!
//! `make demo` builds and installs before it calls the script, so here the daemon's program must be there: the release
//! build, or what INGESTD names.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use e2e::cluster::project;
use e2e::flights::assert_week_by;

/// How long an event may take from its ack to a row before a test gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// A demo that is removed when the test is over, also if it fails.
struct Demo {
    /// `scripts/demo sweep` reads the process id at the end.
    name: String,
}

impl Demo {
    fn output(&self, command: &str) -> Output {
        let mut script = Command::new(project().join("scripts/demo"));
        script.arg(command).env("PG_LANES_DEMO", &self.name).stdin(Stdio::null());
        script.output().expect("the script can be run")
    }

    /// Runs a command of the script that must succeed; gives what it printed.
    fn run(&self, command: &str) -> String {
        let output = self.output(command);
        let text = String::from_utf8(output.stdout).expect("it prints UTF-8");
        assert!(output.status.success(), "{command}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    fn place(&self) -> PathBuf {
        let output = Command::new(project().join("scripts/cluster")).args(["place", &self.name]).output();
        String::from_utf8(output.expect("the script can be run").stdout).expect("it prints UTF-8").trim_end().into()
    }

    /// The process id of the running daemon.
    fn process(&self) -> String {
        std::fs::read_to_string(self.place().join("data/ingestd.lock")).expect("the daemon runs").trim_end().to_owned()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let output = self.output("clean");
        if !std::thread::panicking() {
            assert!(output.status.success(), "clean: {}", String::from_utf8_lossy(&output.stderr));
        }
    }
}

/// Whether a process lives; one that has ended and is not reaped does not.
fn is_alive(process: &str) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let state = status.lines().find_map(|line| line.strip_prefix("State:"));
    state.is_some_and(|state| !state.trim_start().starts_with(['Z', 'X']))
}

/// The line among those to try next that begins with `beginning`.
fn line<'t>(text: &'t str, beginning: &str) -> &'t str {
    let (_, lines) = text.split_once("Try next:\n").unwrap_or_else(|| panic!("no lines to try: {text}"));
    let mut lines = lines.lines().map(str::trim).filter(|line| line.starts_with(beginning));
    lines.next().unwrap_or_else(|| panic!("no line \"{beginning}\" in {text}"))
}

/// Runs a line as a shell does; it must succeed.
fn shell(line: &str) -> String {
    let mut command = Command::new("bash");
    // A proxy cannot reach the loopback address.
    command.args(["-euo", "pipefail", "-c", line]).env("no_proxy", "127.0.0.1").stdin(Stdio::null());
    let output = command.output().expect("there is bash");
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("it prints UTF-8").trim_end_matches('\n').to_owned()
}

/// Runs SQL by the psql line that the demo printed.
fn psql(said: &str, sql: &str) -> String {
    let quoted = sql.replace('\'', r"'\''");
    shell(&format!("{} -X -q -A -t -v ON_ERROR_STOP=1 -c '{quoted}'", line(said, "psql ")))
}

fn departures_from_newark(said: &str) -> String {
    psql(said, "SELECT departures FROM airport_departures_total WHERE origin = 'EWR'")
}

#[test]
fn twice_it_shows_the_week_and_keeps_what_it_has_until_it_is_cleaned() {
    let demo = Demo { name: format!("test/demo-{}", std::process::id()) };
    let first = demo.run("start");
    assert!(first.contains("6099 events stored, 0 were already stored"), "{first}");
    assert!(first.contains(" EWR    |       2197 |            14 | 2187684 |           379"), "{first}");
    let lanes: Vec<&str> = first.lines().filter(|line| line.contains(" running ")).collect();
    assert!(lanes.len() == 12 && lanes.iter().all(|line| line.ends_with("  0")), "{first}");
    assert_week_by(|sql| psql(&first, sql));
    let process = demo.process();

    let second = demo.run("start");
    assert!(second.contains("0 events stored, 6099 were already stored"), "{second}");
    assert_eq!(demo.process(), process, "what runs is left alone");
    assert_week_by(|sql| psql(&second, sql));

    // The lines to try: the status, and a post that is one more departure.
    assert!(shell(line(&second, "curl ")).contains(r#""postgres":{"state":"ready"}"#));
    let post = second.lines().find(|line| line.contains("/v1/events")).expect("there is a post to try");
    assert_eq!(shell(post), r#"{"stored":1,"duplicates":0}"#);
    let deadline = Instant::now() + PATIENCE;
    while departures_from_newark(&second) != "2198" {
        assert!(Instant::now() < deadline, "the event that was posted is in no total");
        std::thread::sleep(Duration::from_millis(20));
    }

    // A daemon that died is started again, and its port is kept.
    // It has ended when its lock is free.
    let lock = demo.place().join("data/ingestd.lock");
    shell(&format!("kill -9 {process}; flock -w 60 '{}' true", lock.display()));
    let restarted = demo.run("start");
    assert_eq!(departures_from_newark(&restarted), "2198");
    assert_ne!(demo.process(), process);
    assert_eq!(line(&restarted, "curl "), line(&first, "curl "));

    let process = demo.process();
    assert!(demo.run("stop").contains("ingestd has ended"));
    assert!(!is_alive(&process), "the daemon still runs");
    assert!(!demo.place().join("postgres/data/postmaster.pid").exists(), "the cluster still runs");
    demo.run("stop");

    let again = demo.run("start");
    assert!(again.contains("0 events stored, 6099 were already stored"), "{again}");
    assert_eq!(departures_from_newark(&again), "2198");

    // Removed while it runs.
    let process = demo.process();
    demo.run("clean");
    assert!(!demo.place().exists());
    assert!(!is_alive(&process), "the daemon still runs");
    assert!(demo.run("clean").contains("there is no demo"));
}

#[test]
fn a_folder_that_is_no_demo_is_neither_used_nor_removed() {
    let demo = Demo { name: format!("test/demo-{}-kept", std::process::id()) };
    let kept = demo.place().join("kept");
    std::fs::create_dir_all(demo.place()).unwrap();
    std::fs::write(&kept, "mine").unwrap();
    let refused = demo.output("start");
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.lines().count() == 1 && said.contains("is not a demo"), "{said}");
    demo.run("clean");
    assert_eq!(std::fs::read_to_string(&kept).unwrap(), "mine");
    std::fs::remove_dir_all(demo.place()).unwrap();
}
