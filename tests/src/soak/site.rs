//! Everything that runs: a Postgres cluster with fsync, PgBouncer before it, daemons with logs of their own, workers on an
//! events table; and how each fault is done to it.

use std::fs::File;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, RwLock, RwLockReadGuard};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::cluster::Cluster;
use crate::daemon::Daemon;
use crate::pooler::Pooler;
use crate::readings::{self, PythonWorker};
use crate::small_disk::SmallDisk;
use crate::soak::event;
use crate::soak::plan::{Change, DAEMONS, Fault, WORKERS};
use crate::soak::projections::{self, DATABASE};

/// Connections of the pooler to the server: fewer than it has clients.
const POOLED: u32 = 2;

/// Lanes of a projection after which only changes that make fewer are done.
const MOST_LANES: usize = 12;

/// Bytes that are left when the disk is full: it is full in the middle of a transaction.
const LEFT_WHEN_FULL: u64 = 64 << 10;

/// Bytes that are free when it is not.
const FREE: u64 = 4 << 30;

/// How long everything may take to settle when all faults are over.
const PATIENCE: Duration = Duration::from_secs(300);

/// What became of a fault.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// It was done.
    Done,
    /// It was refused, or could not be done at that moment, and why.
    Missed(String),
}

/// The producers of a daemon, by their names.
pub fn producers(daemon: usize) -> [String; 3] {
    [0, 1, 2].map(|producer| format!("p-{daemon}-{producer}"))
}

/// All that runs. It ends in the order of the fields.
#[derive(Debug)]
pub struct Site {
    disk: Result<SmallDisk, String>,
    workers: Mutex<Vec<PythonWorker>>,
    daemons: Vec<Mutex<Daemon>>,
    pooler: Mutex<Option<Pooler>>,
    cluster: RwLock<Cluster>,
    /// What outlives a restart: connection strings of the server and of the pooler.
    connection: String,
    pooled: String,
    directory: TempDir,
}

impl Site {
    /// Sets everything up and starts it.
    pub fn start() -> Site {
        let cluster = Cluster::start_durable();
        // The audit wants to know who met an error, and which.
        cluster.psql("postgres", "ALTER SYSTEM SET log_line_prefix = '%m [%p] %a %e '; SELECT pg_reload_conf()");
        readings::set_up(&cluster, DATABASE);
        let connection = cluster.connection_string(DATABASE);
        let mut disk = Err("there is no daemon".to_owned());
        let daemons = (0..DAEMONS).map(|number| {
            // The first works on all priorities alike, and its disk is to be really full, not up to its reserve.
            let settings = match number {
                0 => "disk_reserve_bytes = 0\npressure_lag_ms = 3600000\npressure_commit_ms = 60000",
                _ => "lane_batch_size = 200",
            };
            let mut daemon = Daemon::new(Some(&connection), settings);
            daemon.expect_errors();
            if number == 0 {
                disk = SmallDisk::mount(daemon.data_directory(), FREE);
            }
            daemon.set_shards(2, 2);
            daemon.start();
            let file = daemon.settings_path().with_file_name("projections.yaml");
            std::fs::write(&file, projections::definitions(number)).expect("the directory is ours");
            daemon.run(&["apply", file.to_str().expect("the path is UTF-8")]);
            projections::watch(&cluster, number);
            daemon
        });
        let mut daemons: Vec<Daemon> = daemons.collect();
        // For who works on lanes; sessions that there are keep what they have.
        cluster.psql("postgres", &format!("ALTER DATABASE {DATABASE} SET idle_in_transaction_session_timeout = '2s'"));
        for daemon in &mut daemons {
            assert!(daemon.stop().success());
            daemon.start();
        }
        let daemons = daemons.into_iter().map(Mutex::new).collect();
        let pooler = Pooler::start(&cluster, DATABASE, POOLED);
        let site = Site {
            disk,
            workers: Mutex::new(Vec::new()),
            daemons,
            pooled: pooler.connection_string(DATABASE),
            pooler: Mutex::new(Some(pooler)),
            cluster: RwLock::new(cluster),
            connection,
            directory: tempfile::tempdir().expect("the temporary directory can be written"),
        };
        let workers = (0..WORKERS).map(|_| site.worker()).collect();
        *site.workers() = workers;
        site
    }

    /// The connection string of the server.
    pub fn connection(&self) -> &str {
        &self.connection
    }

    /// A daemon, locked until the guard is dropped.
    pub fn daemon(&self, number: usize) -> MutexGuard<'_, Daemon> {
        self.daemons[number].lock().expect("no other thread has panicked with it")
    }

    /// Runs SQL, whether or not the server is there.
    ///
    /// # Errors
    /// If it cannot be run, why.
    pub fn try_psql(&self, sql: &str) -> Result<String, String> {
        self.cluster().try_psql(DATABASE, sql)
    }

    /// Runs SQL that must succeed.
    pub fn psql(&self, sql: &str) -> String {
        self.cluster().psql(DATABASE, sql)
    }

    /// What the server wrote to its log.
    pub fn server_log(&self) -> String {
        self.cluster().log()
    }

    /// What the workers wrote.
    pub fn worker_log(&self) -> String {
        std::fs::read_to_string(self.worker_log_path()).unwrap_or_default()
    }

    fn worker_log_path(&self) -> PathBuf {
        self.directory.path().join("workers.log")
    }

    fn cluster(&self) -> RwLockReadGuard<'_, Cluster> {
        self.cluster.read().expect("no other thread has panicked with it")
    }

    fn workers(&self) -> MutexGuard<'_, Vec<PythonWorker>> {
        self.workers.lock().expect("no other thread has panicked with it")
    }

    fn worker(&self) -> PythonWorker {
        let log = File::options().create(true).append(true).open(self.worker_log_path());
        PythonWorker::start_saying(&self.pooled, log.expect("the directory is ours"))
    }

    /// Does a fault, and waits until it is over.
    pub fn inflict(&self, fault: Fault) -> Outcome {
        match fault {
            Fault::KillDaemon { daemon, down_ms } => {
                let mut daemon = self.daemon(daemon);
                daemon.kill();
                rest(down_ms);
                daemon.start();
            }
            Fault::ReshardDaemon { daemon, killed, drains, shards } => {
                let mut daemon = self.daemon(daemon);
                if killed {
                    daemon.kill();
                } else {
                    let status = daemon.stop();
                    // A request whose sender stands still is waited for, but not for ever.
                    let is_left = daemon.log().contains("requests did not end in");
                    assert!(status.success() || is_left, "SIGTERM ended a daemon with {status}");
                }
                daemon.set_shards(drains, shards);
                daemon.start();
            }
            Fault::PauseDaemon { daemon, pause_ms } => {
                let daemon = self.daemon(daemon);
                daemon.signal("STOP");
                rest(pause_ms);
                daemon.signal("CONT");
            }
            Fault::FillDisk { killed, full_ms } => return self.fill_disk(killed, full_ms),
            Fault::EndSessions { sessions, lot } => {
                let sql = format!(
                    "SELECT count(pg_terminate_backend(pid)) FROM (
                         SELECT pid FROM pg_stat_activity
                         WHERE datname = current_database() AND pid <> pg_backend_pid() AND application_name <> 'psql'
                         ORDER BY md5(pid::text || {lot}) LIMIT {sessions}) AS s"
                );
                return self.ask(&sql);
            }
            Fault::StopPostgres { down_ms } => self.restart_server(down_ms, Cluster::stop),
            Fault::CrashPostgres { down_ms } => self.restart_server(down_ms, Cluster::crash),
            Fault::KillPostgres { down_ms } => self.restart_server(down_ms, Cluster::kill),
            Fault::RestartPooler => {
                let mut pooler = self.pooler.lock().expect("no other thread has panicked with it");
                let old = pooler.take().expect("there is one");
                *pooler = Some(old.restart(&self.cluster(), DATABASE, POOLED));
            }
            Fault::ChangeMap { projection, change } => return self.change_map(projection, change),
            Fault::KillWorker { worker } => {
                let new = self.worker();
                self.workers()[worker] = new;
            }
            Fault::PauseWorker { worker, pause_ms } => {
                let workers = self.workers();
                workers[worker].signal("STOP");
                rest(pause_ms);
                workers[worker].signal("CONT");
            }
            Fault::SkipPoison { daemon } => return self.ask(&projections::skip(daemon)),
            Fault::MendTable { daemon } => {
                let retry = format!("{}; SELECT lanes.retry('ledger_{daemon}')", projections::mend(daemon));
                let asked = self.ask(&retry);
                rest(300);
                // If it was mended and cannot be guarded now, the next mending does it.
                let _ = self.ask(&format!("{}; {}", projections::mend(daemon), projections::guard(daemon)));
                return asked;
            }
        }
        Outcome::Done
    }

    fn restart_server(&self, down_ms: u64, end: fn(&Cluster)) {
        end(&self.cluster());
        rest(down_ms);
        self.cluster.write().expect("no other thread has panicked with it").restart();
    }

    fn fill_disk(&self, killed: bool, full_ms: u64) -> Outcome {
        let disk = match &self.disk {
            Ok(disk) => disk,
            Err(reason) => return Outcome::Missed(format!("no small disk can be mounted: {reason}")),
        };
        let mut daemon = self.daemon(0);
        disk.leave_free(LEFT_WHEN_FULL).expect("a tmpfs can be made smaller");
        rest(full_ms);
        if killed {
            daemon.kill();
        }
        disk.leave_free(FREE).expect("a tmpfs can be made greater");
        if killed {
            daemon.start();
        }
        Outcome::Done
    }

    fn change_map(&self, projection: usize, change: Change) -> Outcome {
        let name = &projections::names()[projection];
        let lanes = format!(
            "SELECT DISTINCT l FROM lanes.projection, unnest(slot_lanes) AS l WHERE name = '{name}' ORDER BY l"
        );
        let lanes = match self.try_psql(&lanes) {
            Ok(lanes) => lanes,
            Err(error) => return Outcome::Missed(error),
        };
        let lanes: Vec<&str> = lanes.lines().collect();
        let lane = |number: u64| lanes[number as usize % lanes.len()];
        let many = lanes.len() >= MOST_LANES;
        let call = match change {
            Change::Resize(n) => format!("resize('{name}', {n})"),
            Change::Split(_) | Change::Isolate(_) if many => format!("resize('{name}', 3)"),
            Change::Merge(one, _) if lanes.len() == 1 => format!("split('{name}', {})", lane(one)),
            Change::Split(one) => format!("split('{name}', {})", lane(one)),
            Change::Merge(one, other) => {
                let other = if lane(one) == lane(other) { one + 1 } else { other };
                format!("merge('{name}', {}, {})", lane(one), lane(other))
            }
            Change::Move(first, count, one) => {
                format!("move('{name}', ARRAY(SELECT generate_series({first}, {first} + {count})), {})", lane(one))
            }
            Change::Isolate(number) => {
                let key = if name == "meters" {
                    format!("meter-0-{}", number % 8)
                } else {
                    event::key(&producers(projection / projections::PER_DAEMON)[0], number)
                };
                format!("isolate('{name}', '{key}')")
            }
        };
        self.ask(&format!("SELECT lanes.{call}"))
    }

    fn ask(&self, sql: &str) -> Outcome {
        match self.try_psql(sql) {
            Ok(_) => Outcome::Done,
            Err(error) => Outcome::Missed(error),
        }
    }

    /// Heals everything, and waits until every lane has accounted for everything there is and nothing is parked.
    ///
    /// # Panics
    /// If that does not come about in five minutes.
    pub fn settle(&self) {
        for daemon in 0..DAEMONS {
            self.psql(&projections::mend(daemon));
        }
        let deadline = Instant::now() + PATIENCE;
        loop {
            let waiting = self.waiting();
            if waiting.is_empty() {
                return;
            }
            if Instant::now() >= deadline {
                let lanes = self.psql("SELECT * FROM lanes.status ORDER BY projection, lane");
                panic!("it does not settle: {}\n{lanes}", waiting.join("\n"));
            }
            rest(500);
        }
    }

    /// What is not settled yet.
    fn waiting(&self) -> Vec<String> {
        let mut waiting = Vec::new();
        let mut none = |what: String, sql: &str| {
            let rows = self.psql(sql);
            if !rows.is_empty() {
                waiting.push(format!("{what}: {rows}"));
            }
        };
        for daemon in 0..DAEMONS {
            let horizon = self.daemon(daemon).status()["log"]["horizon"].to_string();
            // A change of the map needs a batch, and a batch an event or two, which only projections of a log have in common.
            none(
                format!("lanes of daemon {daemon} before {horizon}"),
                &format!(
                    "SELECT projection, lane, position FROM lanes.checkpoint
                     WHERE projection LIKE '%\\_{daemon}' AND retired_at IS NULL AND position <> {horizon}"
                ),
            );
            self.psql(&format!("{}; SELECT lanes.retry('ledger_{daemon}')", projections::skip(daemon)));
        }
        self.psql("SELECT lanes.tick('readings')");
        none("lanes behind".to_owned(), "SELECT projection, lane, lag FROM lanes.status WHERE lag <> 0");
        none("parked keys".to_owned(), "SELECT projection, key, error FROM lanes.parked_key");
        none("changes of maps".to_owned(), "SELECT projection FROM lanes.reshaping");
        waiting
    }
}

/// Lets a fault last, or a state come about that is asked for again.
fn rest(milliseconds: u64) {
    std::thread::sleep(Duration::from_millis(milliseconds));
}
