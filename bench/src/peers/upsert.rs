//! One UPSERT per event by 16 clients, each commit synced to disk: what an application does that has no projections.

use std::io::Write;
use std::sync::Arc;
use std::time::Instant;

use e2e::cluster::Cluster;
use tokio::task::JoinSet;

use super::checkins::{self, Checkin, TOTAL};
use super::{DATABASE, Lines, joined};
use crate::measurement::Failure;

const CLIENTS: usize = 16;

/// What somebody writes first: a row is locked for as long as a commit takes.
pub const UPSERT: &str = "INSERT INTO one_row AS c VALUES ('show-7', 1, 1357017300000) ON CONFLICT (show)
                          DO UPDATE SET n = c.n + EXCLUDED.n, last = EXCLUDED.last;";

/// The table of [`UPSERT`].
pub const TABLE: &str =
    "CREATE TABLE one_row (show text PRIMARY KEY, n bigint NOT NULL, last bigint) WITH (fillfactor = 50)";

/// Transactions a second of `script`, which 16 clients run again and again for so many seconds.
pub fn transactions_per_second(cluster: &Cluster, script: &str, seconds: u64) -> Result<f64, Failure> {
    let mut file = tempfile::NamedTempFile::new()?;
    file.write_all(script.as_bytes())?;
    let mut command = cluster.program("pgbench", "bench");
    let output = command
        .args(["-n", "-M", "prepared", "-c", &CLIENTS.to_string(), "-j", "2", "-T", &seconds.to_string(), "-f"])
        .arg(file.path())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
    let rate = rate.ok_or_else(|| format!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(rate.parse()?)
}

/// Events a second of 16 clients that share `events` and UPSERT one after the other.
pub async fn to_total(cluster: &Cluster, events: &Lines) -> Result<f64, Failure> {
    checkins::create_table(cluster, DATABASE);
    let reader = cluster.connect(DATABASE).await;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        let client = cluster.connect(DATABASE).await;
        let upsert = client
            .prepare(
                "INSERT INTO total AS t VALUES ($1, 1, $2)
                 ON CONFLICT (show) DO UPDATE SET n = t.n + 1, last = greatest(t.last, excluded.last)",
            )
            .await?;
        clients.push((client, upsert));
    }
    let started = Instant::now();
    let mut tasks = JoinSet::new();
    for (number, (client, upsert)) in clients.into_iter().enumerate() {
        let events = Arc::clone(events);
        tasks.spawn(async move {
            for line in events.iter().skip(number).step_by(CLIENTS) {
                let checkin = Checkin::read(line.as_bytes())?;
                client.execute(&upsert, &[&checkin.show(), &checkin.ts]).await?;
            }
            Ok(())
        });
    }
    joined(tasks).await?;
    checkins::wait_for_total(&reader, TOTAL, events.len()).await?;
    Ok(events.len() as f64 / started.elapsed().as_secs_f64())
}
