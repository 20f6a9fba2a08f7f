//! The worked example of `docs/LANES.md`: its code, taken from that file, writers for its table of events, and what must
//! come out.
//!
//! A reading's `nr` counts the readings of its meter, so a row of `meters` whose `last` is not its `n` has lost, repeated
//! or reordered one. A trigger looks at every state that a batch leaves, and keeps what it finds.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio_postgres::Client;

use crate::cluster::{Cluster, project, script};
use crate::random::Random;

const DOCS: &str = include_str!("../../docs/LANES.md");
const SQL_README: &str = include_str!("../../sql/README.md");

/// The code block of `docs/LANES.md` whose first line names it.
///
/// # Panics
/// If there is not exactly one.
pub fn block(name: &str) -> &'static str {
    let mut found = DOCS.split("\n```").skip(1).step_by(2).filter_map(|block| {
        let (_, code) = block.split_once('\n')?;
        let first = code.lines().next()?;
        first.trim_start_matches(['-', '#', ' ']).strip_prefix(name)?.starts_with(':').then_some(code)
    });
    let code = found.next().unwrap_or_else(|| panic!("docs/LANES.md has no block {name}"));
    assert!(found.next().is_none(), "docs/LANES.md has two blocks {name}");
    code
}

/// The grants that `sql/README.md` names for a role `worker`.
///
/// # Panics
/// If it names none.
pub fn worker_grants() -> &'static str {
    let (_, code) = SQL_README.split_once("```sql\n").expect("it has a block of SQL");
    let (grants, _) = code.split_once("```").expect("the block ends");
    assert!(grants.contains("lanes.claim_batch") && grants.contains("TO worker"), "{grants}");
    grants
}

/// Sets the example up in a database, with the trigger that watches the order.
pub fn set_up(cluster: &Cluster, database: &str) {
    cluster.create_database(database);
    cluster.psql(database, block("meters.sql"));
    cluster.psql(
        database,
        "CREATE TABLE disorder (meter text, n bigint, last int);
         CREATE FUNCTION watch_order() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.n <> NEW.last THEN INSERT INTO public.disorder VALUES (NEW.meter, NEW.n, NEW.last); END IF;
             RETURN NULL; END $$;
         CREATE TRIGGER watch_order AFTER INSERT OR UPDATE ON meters FOR EACH ROW EXECUTE FUNCTION watch_order();",
    );
}

/// How many readings are summed up so far.
pub const APPLIED: &str = "(SELECT COALESCE(sum(n), 0) FROM meters)";

/// The rows of `meters`.
pub const METERS: &str = "SELECT meter, n, wh, last FROM meters ORDER BY meter COLLATE \"C\"";

/// How often a batch left a meter out of order.
pub const DISORDER: &str = "SELECT count(*) FROM disorder";

/// What was committed of each meter: number of readings, and their sum.
#[derive(Debug, Default)]
pub struct Readings(BTreeMap<String, (u64, u64)>);

impl Readings {
    /// Notes a reading that was committed.
    pub fn add(&mut self, meter: &str, wh: u64) {
        let (n, sum) = self.0.entry(meter.to_owned()).or_default();
        *n += 1;
        *sum += wh;
    }

    /// Adds what another writer committed, to meters of its own.
    pub fn extend(&mut self, other: Readings) {
        self.0.extend(other.0);
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.0.values().map(|(n, _)| n).sum()
    }

    /// The rows of `meters` that they make, as [`METERS`] shows them.
    pub fn rows(&self) -> String {
        let row = |(meter, (n, wh)): (&String, &(u64, u64))| format!("{meter}|{n}|{wh}|{n}");
        self.0.iter().map(row).collect::<Vec<_>>().join("\n")
    }

    /// Fails unless `meters` says exactly this, and did so at every batch.
    pub fn assert_applied(&self, cluster: &Cluster, database: &str) {
        assert_eq!(cluster.psql(database, METERS), self.rows());
        assert_eq!(cluster.psql(database, DISORDER), "0");
    }
}

/// Appends readings of meters of its own, in `transactions` transactions: some are rolled back, some stay open for a
/// while, so that writers commit in another order than they draw positions.
pub async fn write(mut client: Client, writer: u64, transactions: u64, mut random: Random) -> Readings {
    let mut committed = Readings::default();
    for _ in 0..transactions {
        let transaction = client.transaction().await.unwrap();
        let mut appended = Vec::new();
        for _ in 0..random.within(1..=20) {
            let (meter, wh) = (format!("meter-{writer}-{}", random.within(0..=4)), random.within(0..=999));
            let before = committed.0.get(&meter).map_or(0, |(n, _)| *n);
            let nr = before + 1 + appended.iter().filter(|(other, _)| *other == meter).count() as u64;
            let payload = serde_json::json!({ "nr": nr, "wh": wh });
            let insert = "INSERT INTO readings (type, key, payload) VALUES ('READ', $1, $2)";
            transaction.execute(insert, &[&meter, &payload]).await.unwrap();
            appended.push((meter, wh));
        }
        if random.chance(1, 20) {
            tokio::time::sleep(Duration::from_millis(random.within(20..=200))).await;
        }
        if random.chance(1, 8) {
            transaction.rollback().await.unwrap();
            continue;
        }
        transaction.commit().await.unwrap();
        for (meter, wh) in appended {
            committed.add(&meter, wh);
        }
    }
    committed
}

/// A process that runs the worker in Python of the docs, killed when dropped.
#[derive(Debug)]
pub struct PythonWorker(Child);

impl PythonWorker {
    /// Starts one that connects as `connection_string` says.
    pub fn start(connection_string: &str) -> PythonWorker {
        PythonWorker::start_saying(connection_string, Stdio::inherit())
    }

    /// Starts one whose errors go to `errors`.
    pub fn start_saying(connection_string: &str, errors: impl Into<Stdio>) -> PythonWorker {
        let child = Command::new(script("find_python", [""; 0]))
            .args(["-c", block("worker.py"), connection_string])
            .current_dir(project())
            .stdin(Stdio::null())
            .stderr(errors)
            .spawn()
            .expect("scripts/find_python found it");
        PythonWorker(child)
    }

    /// Sends it a signal, by name.
    pub fn signal(&self, name: &str) {
        let sent = Command::new("kill").args([&format!("-{name}"), &self.0.id().to_string()]).status();
        assert!(sent.expect("there is kill").success());
    }

    /// Kills it with SIGKILL.
    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for PythonWorker {
    fn drop(&mut self) {
        self.kill();
    }
}
