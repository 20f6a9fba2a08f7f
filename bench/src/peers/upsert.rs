//! One UPSERT per event: pgbench with 16 clients, each commit synced to disk.

use std::io::Write;

use e2e::cluster::Cluster;

use crate::measurement::Failure;

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
        .args(["-n", "-M", "prepared", "-c", "16", "-j", "2", "-T", &seconds.to_string(), "-f"])
        .arg(file.path())
        .output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let rate = text.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
    let rate = rate.ok_or_else(|| format!("pgbench: {text}{}", String::from_utf8_lossy(&output.stderr)))?;
    Ok(rate.parse()?)
}
