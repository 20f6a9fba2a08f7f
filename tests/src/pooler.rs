//! PgBouncer before a throw-away cluster, in transaction mode. Stopped when dropped.
//!
//! It listens on a Unix socket beside the server's, and runs as the server's user: it refuses to run as root.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::cluster::{Cluster, PATIENCE};

const PORT: u16 = 6432;

/// A running PgBouncer.
#[derive(Debug)]
pub struct Pooler {
    process: Child,
    socket: String,
}

impl Pooler {
    /// Starts one with at most `connections` connections to the database.
    ///
    /// # Panics
    /// If it does not answer within a minute.
    pub fn start(cluster: &Cluster, database: &str, connections: u32) -> Pooler {
        let directory = Path::new(cluster.path());
        let settings = directory.join("pgbouncer.ini");
        let socket = cluster.socket();
        let text = format!(
            "[databases]\n{database} = host={socket} port={} dbname={database} user=postgres\n\
             [pgbouncer]\nlisten_addr =\nlisten_port = {PORT}\nunix_socket_dir = {socket}\nauth_type = any\n\
             pool_mode = transaction\ndefault_pool_size = {connections}\nmax_client_conn = 100\n",
            cluster.port()
        );
        fs::write(&settings, text).expect("the cluster's folder can be written");
        let log = fs::File::create(directory.join("pgbouncer.log")).expect("the cluster's folder can be written");
        let server = fs::metadata(directory).expect("the cluster's folder is there");
        let debian = Path::new("/usr/sbin/pgbouncer");
        let process = Command::new(if debian.exists() { debian } else { Path::new("pgbouncer") })
            .arg(&settings)
            .uid(server.uid())
            .gid(server.gid())
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()
            .expect("scripts/setup installed pgbouncer");
        let mut pooler = Pooler { process, socket: socket.to_owned() };
        let deadline = Instant::now() + PATIENCE;
        while !pooler.psql(cluster, database).args(["-c", "SELECT 1"]).output().expect("psql is there").status.success()
        {
            let ended = pooler.process.try_wait().expect("it is our process");
            let log = || fs::read_to_string(directory.join("pgbouncer.log")).unwrap_or_default();
            assert!(ended.is_none() && Instant::now() < deadline, "pgbouncer does not answer: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
        pooler
    }

    /// Kills it, and starts another in its place.
    pub fn restart(self, cluster: &Cluster, database: &str, connections: u32) -> Pooler {
        drop(self);
        Pooler::start(cluster, database, connections)
    }

    /// A connection string for libpq.
    pub fn connection_string(&self, database: &str) -> String {
        format!("host='{}' port={PORT} user=postgres dbname='{database}'", self.socket)
    }

    /// psql, set up to connect through the pooler, stop at the first error and show its SQLSTATE.
    pub fn psql(&self, cluster: &Cluster, database: &str) -> Command {
        let mut command = cluster.program("psql", database);
        command.env("PGPORT", PORT.to_string());
        command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose"]);
        command
    }
}

impl Drop for Pooler {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
