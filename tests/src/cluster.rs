//! A throw-away Postgres cluster for a test, made by `scripts/cluster` and removed when dropped.
//!
//! The server listens on a Unix socket only and runs as user `postgres` where the test runs as root. If the test
//! fails, the server's log is printed.

use std::ffi::OsStr;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tokio_postgres::{Client, NoTls};

/// How long a state may take to come about before a test gives up.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);

/// A running private Postgres cluster with the superuser `postgres`.
#[derive(Debug)]
pub struct Cluster {
    directory: PathBuf,
    socket: String,
    port: u16,
    durable: bool,
    programs: PathBuf,
}

impl Cluster {
    /// Makes and starts a cluster that does not wait for the disk: fast, and safe unless the machine itself fails.
    pub fn start() -> Cluster {
        Cluster::make(false)
    }

    /// As [`Cluster::start`], with fsync, for tests of what a commit promises.
    pub fn start_durable() -> Cluster {
        Cluster::make(true)
    }

    fn make(durable: bool) -> Cluster {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        // `scripts/cluster sweep` reads the process id at the end.
        let name = format!("test/e2e-{}-{}", NUMBER.fetch_add(1, Ordering::Relaxed), std::process::id());
        let directory = PathBuf::from(script("cluster", ["place", &name]));
        let pg_config = script("find_pg_config", [""; 0]);
        let mut cluster = Cluster {
            directory,
            socket: String::new(),
            port: 0,
            durable,
            programs: PathBuf::from(output(Command::new(pg_config).arg("--bindir"), "")),
        };
        cluster.restart();
        cluster
    }

    /// Starts the server again after [`Cluster::stop`] or [`Cluster::crash`].
    pub fn restart(&mut self) {
        let mut arguments = vec!["start", self.path()];
        if !self.durable {
            arguments.push("--no-fsync");
        }
        script("cluster", arguments);
        // export PGHOST=… PGPORT=… PGUSER=…
        let environment = script("cluster", ["env", self.path()]);
        let value = |name: &str| {
            let (_, rest) = environment.split_once(&format!("{name}=")).expect("scripts/cluster prints it");
            rest.split_whitespace().next().unwrap_or_default().to_owned()
        };
        self.socket = value("PGHOST");
        self.port = value("PGPORT").parse().expect("a port is a number");
    }

    /// Stops the server in order.
    pub fn stop(&self) {
        script("cluster", ["stop", self.path()]);
    }

    /// Stops the server as a failure would: connections are cut, and the next start recovers from the WAL.
    pub fn crash(&self) {
        script("cluster", ["crash", self.path()]);
    }

    /// Kills the postmaster with SIGKILL, and then what it leaves behind, as the failure of a machine would.
    ///
    /// # Panics
    /// If they are still there after three minutes.
    pub fn kill(&self) {
        let file = std::fs::read_to_string(self.directory.join("data/postmaster.pid")).expect("the server runs");
        let postmaster = file.lines().next().expect("its first line is the process id").to_owned();
        // Stopped, it makes no more sessions: one that is not in the list would outlive it and keep its shared memory.
        output(Command::new("kill").args(["-STOP", &postmaster]), "");
        let deadline = Instant::now() + PATIENCE;
        let stat = format!("/proc/{postmaster}/stat");
        let is_stopped = |stat: String| stat.rsplit_once(") ").is_some_and(|(_, state)| state.starts_with('T'));
        while !std::fs::read_to_string(&stat).is_ok_and(is_stopped) {
            assert!(Instant::now() < deadline, "the server does not stop");
            std::thread::sleep(Duration::from_millis(1));
        }
        let children = output(Command::new("pgrep").args(["-P", &postmaster]), "");
        output(Command::new("kill").args(["-KILL", &postmaster]), "");
        // Those that noticed are gone already. A session that is busy would go on.
        let _ = Command::new("kill").arg("-KILL").args(children.lines()).stderr(Stdio::null()).status();
        while children.lines().chain([postmaster.as_str()]).any(|process| Path::new("/proc").join(process).exists()) {
            assert!(Instant::now() < deadline, "processes of the killed server are still there: {children}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// A connection string for libpq and tokio-postgres.
    pub fn connection_string(&self, database: &str) -> String {
        format!("host='{}' port={} user=postgres dbname='{database}' application_name=e2e", self.socket, self.port)
    }

    /// Connects to a database. The connection ends when the client is dropped.
    pub async fn connect(&self, database: &str) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.connection_string(database), NoTls)
            .await
            .unwrap_or_else(|error| panic!("cannot connect to {database}: {error}"));
        // The server's notices and the end of the connection are of no interest here.
        tokio::spawn(async move {
            let _ = connection.await;
        });
        client
    }

    /// The folder of the server's socket.
    pub fn socket(&self) -> &str {
        &self.socket
    }

    /// The server's port, a part of its socket's name.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Creates a database with the extension in it.
    pub fn create_database(&self, name: &str) {
        self.create_database_with(name, "");
        self.psql(name, "CREATE EXTENSION pg_lanes");
    }

    /// Creates an empty database with options of CREATE DATABASE, for example an encoding.
    pub fn create_database_with(&self, name: &str, options: &str) {
        self.psql("postgres", &format!("CREATE DATABASE {name} {options}"));
    }

    /// Runs SQL and returns its rows: one a line, columns parted by `|`.
    ///
    /// # Panics
    /// If a statement fails.
    pub fn psql(&self, database: &str, sql: &str) -> String {
        self.try_psql(database, sql).unwrap_or_else(|error| panic!("{error}"))
    }

    /// As [`Cluster::psql`], also while the server may be down.
    ///
    /// # Errors
    /// If there is no connection, or a statement fails: what psql says, with the SQLSTATE.
    pub fn try_psql(&self, database: &str, sql: &str) -> Result<String, String> {
        let mut command = self.program("psql", database);
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]);
        try_output(&mut command, sql)
    }

    /// What the server wrote to its log.
    pub fn log(&self) -> String {
        script("cluster", ["log", self.path()])
    }

    /// A dump of a database, as `pg_dump` writes it.
    pub fn dump(&self, database: &str) -> String {
        output(&mut self.program("pg_dump", database), "")
    }

    /// A program of this Postgres, set up to connect to a database.
    pub fn program(&self, name: &str, database: &str) -> Command {
        let mut command = Command::new(self.programs.join(name));
        command
            .env("PGHOST", &self.socket)
            .env("PGPORT", self.port.to_string())
            .env("PGUSER", "postgres")
            .env("PGDATABASE", database)
            .env("PGCLIENTENCODING", "UTF8");
        command
    }

    pub(crate) fn path(&self) -> &str {
        self.directory.to_str().expect("the path of the project is UTF-8")
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- log of {} ---\n{}", self.path(), self.log());
        }
        script("cluster", ["remove", self.path()]);
    }
}

/// Waits until `condition`, an SQL expression, is true.
///
/// # Panics
/// If it is still false after three minutes.
pub async fn wait_until(client: &Client, condition: &str) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let row = client.query_one(&format!("SELECT ({condition})"), &[]).await.expect("the condition is valid SQL");
        if row.get(0) {
            return;
        }
        assert!(Instant::now() < deadline, "still not true: {condition}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The version of the server that clusters run, in its own words.
pub fn server_version() -> String {
    output(Command::new(script("find_pg_config", [""; 0])).arg("--version"), "")
}

/// The folder of the project.
pub fn project() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("tests/ is in the project")
}

/// Runs a script of the project and returns what it printed.
pub(crate) fn script<S: AsRef<OsStr>>(name: &str, arguments: impl IntoIterator<Item = S>) -> String {
    let mut command = Command::new(project().join("scripts").join(name));
    // The server inherits it: a backtrace that could reach a client does reach it, and the tests see it.
    command.env("RUST_BACKTRACE", "1");
    output(command.args(arguments), "")
}

/// Runs a command with `input` and returns what it printed, without the last newline.
fn output(command: &mut Command, input: &str) -> String {
    try_output(command, input).unwrap_or_else(|error| panic!("{error}"))
}

/// As [`output`]; an error if the command fails.
fn try_output(command: &mut Command, input: &str) -> Result<String, String> {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let mut stdin = child.stdin.take().expect("it was piped");
    let input = input.to_owned();
    // In a thread of its own: a program that prints before it has read all would wait for ever.
    let writer = std::thread::spawn(move || {
        let _ = stdin.write_all(input.as_bytes());
    });
    let output = child.wait_with_output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    writer.join().expect("writing does not panic");
    let text = String::from_utf8(output.stdout).expect("it prints UTF-8");
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed ({}):\n{text}{said}", output.status));
    }
    Ok(text.trim_end_matches('\n').to_owned())
}
