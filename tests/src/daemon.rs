//! A throw-away daemon: its settings, its data directory, the running process.
//!
//! Tests speak to it as anybody does: through its program, its HTTP address, its files and its signals. When a test is
//! over, an ERROR in the daemon's log that the test did not expect fails it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tokio::net::TcpSocket;

use crate::cluster::project;

/// How long a state may take to come about before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// A daemon with a data directory of its own.
#[derive(Debug)]
pub struct Daemon {
    directory: TempDir,
    /// Bound and not listening: the daemon may listen at its port, and nobody else is given it while the daemon is down.
    port: TcpSocket,
    child: Option<Child>,
    errors_expected: bool,
}

/// An answer over HTTP.
#[derive(Debug)]
pub struct Answer {
    /// The status code.
    pub status: u16,
    /// The body; null if it is not JSON.
    pub body: Value,
}

/// The path of the daemon's program.
///
/// # Panics
/// If it is not built; `make test` builds it.
pub fn program() -> PathBuf {
    // A test: target/debug/deps/test-… ► target/debug/ingestd. Benchmarks: target/release/bench ► target/release/ingestd.
    let this = std::env::current_exe().expect("a test knows its own path");
    let folder = this.parent().expect("it is in a folder");
    let folder = if folder.ends_with("deps") { folder.parent().expect("tests are in target/…/deps") } else { folder };
    let program = folder.join("ingestd");
    assert!(program.exists(), "{} is not built: run make test, or cargo build -p ingestd", program.display());
    program
}

impl Daemon {
    /// A daemon that is not running yet. `postgres` is a connection string; `settings` are lines of TOML.
    pub fn new(postgres: Option<&str>, settings: &str) -> Daemon {
        let daemon = Daemon::make(postgres, settings);
        fs::create_dir(daemon.data_directory()).expect("the directory is new");
        let directory = format!("data_directory = '{}'\n", daemon.data_directory().display());
        let text = directory + &fs::read_to_string(daemon.settings_path()).expect("it was just written");
        fs::write(daemon.settings_path(), text).expect("the directory is new");
        daemon
    }

    /// A daemon, not running yet, without a log of its own: it works on a table of events, `schema.table`.
    pub fn on_table(postgres: &str, table: &str, settings: &str) -> Daemon {
        Daemon::make(Some(postgres), &format!("log = \"postgres:{table}\"\n{settings}"))
    }

    fn make(postgres: Option<&str>, settings: &str) -> Daemon {
        let directory = tempfile::tempdir().expect("the temporary directory can be written");
        let port = TcpSocket::new_v4().expect("there is IPv4");
        port.set_reuseaddr(true).expect("any system can");
        port.bind(([127, 0, 0, 1], 0).into()).expect("there is a free port");
        let daemon = Daemon { directory, port, child: None, errors_expected: false };
        let postgres = postgres.map(|text| format!("postgres = \"{text}\"\n")).unwrap_or_default();
        let text = format!("listen = \"{}\"\n{postgres}{settings}\n", daemon.address());
        fs::write(daemon.settings_path(), text).expect("the directory is new");
        daemon
    }

    /// From now on ERROR lines in the daemon's log do not fail the test.
    pub fn expect_errors(&mut self) {
        self.errors_expected = true;
    }

    /// `host:port` of its HTTP address.
    pub fn address(&self) -> String {
        self.port.local_addr().expect("it was bound when it was made").to_string()
    }

    /// Where its store shards are.
    pub fn data_directory(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    /// Its settings file.
    pub fn settings_path(&self) -> PathBuf {
        self.directory.path().join("ingestd.toml")
    }

    /// What it wrote to its log.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    /// Sets the numbers of drain threads and store shards for its next start.
    pub fn set_shards(&self, drains: u64, shards: u64) {
        let text = fs::read_to_string(self.settings_path()).expect("it was written when it was made");
        let mut lines: Vec<&str> = text.lines().collect();
        lines.retain(|line| !line.starts_with("storage_shards") && !line.starts_with("drain_threads"));
        let text = format!("{}\ndrain_threads = {drains}\nstorage_shards = {shards}\n", lines.join("\n"));
        fs::write(self.settings_path(), text).expect("the directory is ours");
    }

    /// A command of the daemon's program with its settings.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.arg("--config").arg(self.settings_path()).args(arguments).stdin(Stdio::null());
        command
    }

    /// Runs a command to its end.
    pub fn output(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("the program can be run")
    }

    /// Runs a command that must succeed; gives what it printed.
    pub fn run(&self, arguments: &[&str]) -> String {
        let output = self.output(arguments);
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{arguments:?}: {text}{}", String::from_utf8_lossy(&output.stderr));
        text
    }

    /// Starts it and waits until it answers.
    pub fn start(&mut self) {
        let command = self.command(&["run"]);
        self.start_command(command);
    }

    /// Starts it on the first CPU that this process may use.
    pub fn start_on_one_cpu(&mut self) {
        let status = fs::read_to_string("/proc/self/status").expect("there is /proc");
        let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        let first = allowed.expect("the kernel tells it").trim().split(['-', ',']).next().unwrap_or_default();
        let run = self.command(&["run"]);
        let mut command = Command::new("taskset");
        command.args(["-c", first]).arg(run.get_program()).args(run.get_args()).stdin(Stdio::null());
        self.start_command(command);
    }

    /// Starts it by `command` and waits until it answers.
    pub fn start_command(&mut self, mut command: Command) {
        assert!(self.child.is_none(), "it runs already");
        let log = File::options().create(true).append(true).open(self.log_path()).expect("the directory is ours");
        self.child = Some(command.stderr(log).spawn().expect("the program can be run"));
        let deadline = Instant::now() + PATIENCE;
        while self.get("/v1/status").is_none() {
            let ended = self.child.as_mut().and_then(|child| child.try_wait().expect("it is our child"));
            assert!(ended.is_none(), "the daemon ended: {}", self.log());
            assert!(Instant::now() < deadline, "the daemon does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends it as `kill -9` does.
    pub fn kill(&mut self) {
        let mut child = self.child.take().expect("it runs");
        child.kill().expect("it runs");
        child.wait().expect("it is our child");
    }

    /// Ends it by SIGTERM and waits.
    pub fn stop(&mut self) -> ExitStatus {
        self.signal("TERM");
        self.child.take().expect("it runs").wait().expect("it is our child")
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, name: &str) {
        let process = self.child.as_ref().expect("it runs").id().to_string();
        let sent = Command::new("kill").args([&format!("-{name}"), &process]).status();
        assert!(sent.expect("there is kill").success());
    }

    /// The time that it kept CPUs busy, in its own code and in the kernel.
    ///
    /// # Panics
    /// If it does not run.
    pub fn cpu_time(&self) -> Duration {
        let process = self.child.as_ref().expect("it runs").id();
        let stat = fs::read_to_string(format!("/proc/{process}/stat")).expect("it runs");
        // proc(5): after the name in brackets, utime and stime are the 12th and 13th fields, in ticks of 10 ms.
        let (_, fields) = stat.rsplit_once(')').expect("the name is in brackets");
        let ticks = fields.split_whitespace().skip(11).take(2).map(|ticks| ticks.parse::<u64>().expect("a number"));
        Duration::from_millis(ticks.sum::<u64>() * 10)
    }

    /// Its resident memory in KiB.
    ///
    /// # Panics
    /// If it does not run.
    pub fn resident_kib(&self) -> u64 {
        let process = self.child.as_ref().expect("it runs").id();
        let status = fs::read_to_string(format!("/proc/{process}/status")).expect("it runs");
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("the kernel tells VmRSS");
        line.trim().trim_end_matches(" kB").parse().expect("a number")
    }

    /// Waits until its log has a line with this text.
    pub fn wait_for_log(&self, text: &str) {
        self.wait_until(&format!("\"{text}\" is in its log"), || self.log().contains(text));
    }

    /// Waits until a condition holds.
    pub fn wait_until(&self, what: &str, condition: impl Fn() -> bool) {
        let deadline = Instant::now() + PATIENCE;
        while !condition() {
            assert!(Instant::now() < deadline, "still not: {what}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// What it answers to GET; none if it does not.
    pub fn get(&self, path: &str) -> Option<Value> {
        let agent: ureq::Agent =
            ureq::Agent::config_builder().proxy(None).timeout_global(Some(Duration::from_secs(10))).build().new_agent();
        let mut answer = agent.get(format!("http://{}{path}", self.address())).call().ok()?;
        serde_json::from_str(&answer.body_mut().read_to_string().ok()?).ok()
    }

    /// Its status.
    pub fn status(&self) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            if let Some(status) = self.get("/v1/status") {
                return status;
            }
            assert!(Instant::now() < deadline, "the daemon does not answer: {}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until its status is as wanted.
    pub fn wait_for(&self, what: &str, mut wanted: impl FnMut(&Value) -> bool) -> Value {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let status = self.status();
            if wanted(&status) {
                return status;
            }
            assert!(Instant::now() < deadline, "still not {what}: {status:#}\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Waits until `lanes` lanes are all at the horizon, and the log holds at least `events` events. The daemon's own rows
    /// count among these, so wait for acknowledgements first.
    pub fn wait_until_applied(&self, lanes: usize, events: u64) {
        self.wait_for(&format!("applied up to {events} events"), |status| {
            let all = status["lanes"].as_array().map_or(&[][..], Vec::as_slice);
            let horizon = &status["log"]["horizon"];
            horizon.as_u64() >= Some(events)
                && all.len() == lanes
                && all.iter().all(|lane| lane["position"] == *horizon)
        });
    }

    /// Checks its log's files by `ingestd log verify`.
    pub fn verify_log(&self) {
        let said = self.run(&["log", "verify"]);
        assert!(said.contains("no fault found"), "{said}");
    }

    /// How many events of producers its log holds, counted from its files.
    pub fn stored_events(&self) -> u64 {
        let shards = (0..256).map(|shard| self.data_directory().join(format!("shard-{shard:04}.db")));
        shards.take_while(|path| path.exists()).map(|path| count_events(&path)).sum()
    }

    /// Posts a body of events.
    ///
    /// # Errors
    /// If there is no answer, why.
    pub fn post(&self, body: &str, headers: &[(&str, &str)]) -> Result<Answer, String> {
        post(&self.address(), body, headers)
    }
}

/// Posts a body of events to a daemon.
///
/// # Errors
/// If there is no answer, why.
pub fn post(address: &str, body: &str, headers: &[(&str, &str)]) -> Result<Answer, String> {
    post_within(None, address, body, headers)
}

/// As [`post`], for a client that waits no longer than `patience` for the whole of the answer.
///
/// # Errors
/// If there is no answer in that time, why.
pub fn post_within(
    patience: Option<Duration>,
    address: &str,
    body: &str,
    headers: &[(&str, &str)],
) -> Result<Answer, String> {
    let configuration = ureq::Agent::config_builder().proxy(None).http_status_as_error(false).timeout_global(patience);
    let agent: ureq::Agent = configuration.build().new_agent();
    let mut request = agent.post(format!("http://{address}/v1/events"));
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    let mut answer = request.send(body).map_err(|error| error.to_string())?;
    let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
    Ok(Answer { status: answer.status().as_u16(), body: serde_json::from_str(&text).unwrap_or(Value::Null) })
}

/// How many events of producers a store shard holds.
pub fn count_events(shard: &Path) -> u64 {
    let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_ONLY;
    let connection = rusqlite::Connection::open_with_flags(shard, flags).expect("it is a SQLite file");
    let count = "SELECT count(*) FROM event WHERE type NOT LIKE 'ingestd.%'";
    connection.query_row(count, [], |row| row.get(0)).expect("it is a store shard")
}

/// A file of the project's `testdata`.
pub fn testdata(name: &str) -> PathBuf {
    project().join("testdata").join(name)
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
        let log = self.log();
        if std::thread::panicking() {
            eprintln!("--- log of the daemon ---\n{log}");
        } else if !self.errors_expected {
            // A machine on which somebody with a lock stands still for seconds is slow, and that is all.
            let is_slow = |line: &&str| line.contains("55P03: canceling statement due to lock timeout");
            let errors: Vec<&str> = log.lines().filter(|line| line.contains("ERROR") && !is_slow(line)).collect();
            assert!(errors.is_empty(), "unexpected errors in the daemon's log: {errors:#?}");
        }
    }
}
