//! Projections whose speed is measured, and how long they take for a log that holds all events before the clock starts.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use e2e::cluster::Cluster;
use e2e::daemon::Daemon;

use crate::log::{CONNECTIONS, send};
use crate::measurement::Failure;

/// Lanes of a projection, unless their number is what is measured; the daemon has as many connections.
pub const LANES: usize = 4;

/// Lines of a request with which a log is filled.
const REQUEST: usize = 5_000;

/// How long lanes may stand still before a measurement gives up.
const PATIENCE: Duration = Duration::from_secs(60);

/// Projections that are measured together.
#[derive(Debug)]
pub struct Projections {
    /// The tables that they write.
    pub tables: Vec<String>,
    /// Lanes of all together.
    pub lanes: usize,
    /// What `ingestd apply` reads.
    pub definition: String,
    /// The query that says how many events are visible.
    pub visible: String,
}

/// What it took to apply a log.
#[derive(Debug, Clone, Copy)]
pub struct Applied {
    /// From the claim of the first lane until all were at the horizon.
    pub events_per_second: f64,
    /// What Postgres wrote to its WAL meanwhile.
    pub wal_bytes: f64,
}

impl Projections {
    /// The hot counter: check-ins of one show, counted in rows of lanes.
    pub fn checkins(lanes: usize) -> Projections {
        Projections {
            tables: vec!["checkins".to_owned()],
            lanes,
            definition: format!("projections:\n{}", Projections::counter("checkins", "CHECKED_IN", lanes)),
            visible: "SELECT coalesce(sum(n), 0) FROM checkins_total WHERE show = 'show-7'".to_owned(),
        }
    }

    /// As many hot counters, of one lane each. Each counts the events of one type.
    pub fn counters(types: &[String]) -> Projections {
        let tables: Vec<String> = (0..types.len()).map(|number| format!("checkins_{number}")).collect();
        let counters = tables.iter().zip(types).map(|(table, event_type)| Projections::counter(table, event_type, 1));
        let totals: Vec<String> = tables.iter().map(|table| format!("SELECT n FROM {table}")).collect();
        Projections {
            lanes: tables.len(),
            definition: format!("projections:\n{}", counters.collect::<String>()),
            visible: format!("SELECT coalesce(sum(n), 0) FROM ({}) AS t", totals.join(" UNION ALL ")),
            tables,
        }
    }

    fn counter(table: &str, event_type: &str, lanes: usize) -> String {
        format!(
            "  {table}:\n    type: hot\n    source_events: [{event_type}]\n    lanes: {lanes}\n    target: {{ table: {table}, primary_key: [show, lane] }}\n    fields: {{ show: TEXT, lane: INT, n: BIGINT, last: BIGINT }}\n    derive: {{ show: event.show, lane: lane(), last: event.ts }}\n    aggregates: {{ {event_type}: {{ n: {{ op: count }} }} }}\n"
        )
    }

    /// The read model: a row of five columns for each order.
    pub fn orders(lanes: usize) -> Projections {
        Projections {
            tables: vec!["orders".to_owned()],
            lanes,
            definition: format!(
                "projections:\n  orders:\n    source_events: [PLACED]\n    lanes: {lanes}\n    target: {{ table: orders, primary_key: [id] }}\n    fields: {{ id: TEXT, customer: TEXT, status: TEXT, cents: BIGINT, changed: BIGINT }}\n    derive: {{ id: event.key, customer: event.customer, status: event.status, changed: event.ts }}\n    aggregates: {{ PLACED: {{ cents: {{ op: add, by: event.cents }} }} }}\n"
            ),
            visible: "SELECT count(*) FROM orders".to_owned(),
        }
    }

    /// A balance for each account.
    pub fn balances(lanes: usize) -> Projections {
        Projections {
            tables: vec!["balances".to_owned()],
            lanes,
            definition: format!(
                "projections:\n  balances:\n    source_events: [PAID]\n    lanes: {lanes}\n    target: {{ table: balances, primary_key: [account] }}\n    fields: {{ account: TEXT, n: BIGINT, cents: BIGINT }}\n    derive: {{ account: event.key }}\n    aggregates: {{ PAID: {{ n: {{ op: count }}, cents: {{ op: add, by: event.cents }} }} }}\n"
            ),
            visible: "SELECT coalesce(sum(n), 0) FROM balances".to_owned(),
        }
    }

    /// Has `daemon` define them; it may run or not.
    pub fn apply(&self, daemon: &Daemon) -> Result<(), Failure> {
        let file = daemon.settings_path().with_file_name("projections.yaml");
        std::fs::write(&file, &self.definition)?;
        daemon.run(&["apply", file.to_str().ok_or("the temporary directory's name is not UTF-8")?]);
        Ok(())
    }

    /// Applies the log of `daemon`, which is stopped and holds `events` events for them. They are new, and so are their
    /// tables, into which `before` puts what shall be there.
    pub fn measure(
        &self,
        cluster: &Cluster,
        daemon: &mut Daemon,
        events: u64,
        before: &str,
    ) -> Result<Applied, Failure> {
        self.progress(cluster, daemon, events, before, |_| ())
    }

    /// As [`Projections::measure`]; tells the least position of all lanes again and again.
    pub fn progress(
        &self,
        cluster: &Cluster,
        daemon: &mut Daemon,
        events: u64,
        before: &str,
        mut tell: impl FnMut(u64),
    ) -> Result<Applied, Failure> {
        self.apply(daemon)?;
        cluster.psql("bench", before);
        cluster.psql("bench", "CHECKPOINT");
        let wal_before = wal_bytes(cluster)?;
        daemon.start();
        self.wait_until_applied(daemon, &mut tell)?;
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64();
        let wal_bytes = wal_bytes(cluster)? - wal_before;
        let claimed = cluster.psql("bench", "SELECT extract(epoch FROM min(claimed_at)) FROM lanes.checkpoint");
        let visible = cluster.psql("bench", &self.visible);
        let status = daemon.stop();
        self.drop(cluster);
        if visible != events.to_string() || !status.success() {
            return Err(format!("{visible} of {events} events are visible; the daemon ended with {status}").into());
        }
        Ok(Applied { events_per_second: events as f64 / (now - claimed.parse::<f64>()?), wal_bytes })
    }

    /// Takes them away, with their tables. No daemon runs.
    pub fn drop(&self, cluster: &Cluster) {
        cluster.psql("bench", &format!("DELETE FROM lanes.projection; DROP TABLE {} CASCADE", self.tables.join(", ")));
    }

    /// Asks the daemon: asking Postgres again and again would cost it as much as the work does.
    fn wait_until_applied(&self, daemon: &Daemon, tell: &mut impl FnMut(u64)) -> Result<(), Failure> {
        let (mut reached, mut moved) = (0, Instant::now());
        loop {
            let status = daemon.status();
            let lanes = status["lanes"].as_array().map_or(&[][..], Vec::as_slice);
            let positions = || lanes.iter().map(|lane| lane["position"].as_u64().unwrap_or_default());
            // All together: the slowest lane of a thousand may wait for long.
            let sum: u64 = positions().sum();
            if lanes.len() == self.lanes {
                tell(positions().min().unwrap_or_default());
                if positions().all(|position| Some(position) == status["log"]["horizon"].as_u64()) {
                    return Ok(());
                }
            }
            if sum > reached {
                (reached, moved) = (sum, Instant::now());
            } else if moved.elapsed() > PATIENCE {
                return Err(format!("{} lanes stand still: {status:#}", self.lanes).into());
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

/// A daemon whose log holds `events` lines, stopped, in a cluster's database `bench`.
pub fn filled(
    cluster: &Cluster,
    settings: &str,
    events: usize,
    line: impl Fn(usize) -> String + Sync,
) -> Result<Daemon, Failure> {
    let settings = format!("postgres_connections = {LANES}\n{settings}");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("bench")), &settings);
    daemon.start();
    fill(&daemon, 0, events, line)?;
    if !daemon.stop().success() {
        return Err("the daemon did not end in order".into());
    }
    Ok(daemon)
}

/// Stores the lines from `first` to the one before `end`; all of them, or it fails.
pub fn fill(daemon: &Daemon, first: usize, end: usize, line: impl Fn(usize) -> String + Sync) -> Result<(), Failure> {
    let requests = (end - first).div_ceil(REQUEST);
    send(&daemon.address(), CONNECTIONS, &format!("fill-{first}"), requests, |number| {
        let begin = first + number * REQUEST;
        let lines: Vec<String> = (begin..end.min(begin + REQUEST)).map(&line).collect();
        let count = lines.len() as u64;
        (lines.join("\n").into(), count)
    })?;
    Ok(())
}

/// What Postgres has written to its WAL since the cluster was made.
pub fn wal_bytes(cluster: &Cluster) -> Result<f64, Failure> {
    Ok(cluster.psql("bench", "SELECT pg_current_wal_insert_lsn() - '0/0'").parse()?)
}

/// A cluster that syncs to disk, with a database `bench`.
pub fn cluster() -> Cluster {
    let cluster = Cluster::start_durable();
    cluster.create_database("bench");
    cluster
}
