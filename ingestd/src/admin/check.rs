//! `ingestd check`: whether everything is there that the daemon needs. It changes nothing and takes no lock.

use std::fmt::Write as _;
use std::path::Path;

use tokio_postgres::NoTls;

use crate::config::{Config, ConfigError};
use crate::daemon::postgres_config;
use crate::lanes::session::describe;
use crate::log::directory::existing_shards;
use crate::log::shard::MINIMUM_SQLITE_VERSION;

/// Queries that are served at once, for which descriptors are counted.
const QUERIES: u64 = 128;

/// Descriptors that the daemon may need: `4·Q·max(E,1) + 4·Q + 3·(E+3) + 2·C + 256`, for Q queries at once, E shard files
/// and C drains. A planning allowance, not a bound.
pub fn descriptors(queries: u64, shards: u64, drains: u64) -> u64 {
    4 * queries * shards.max(1) + 4 * queries + 3 * (shards + 3) + 2 * drains + 256
}

/// What was found, a line each, and whether all of it is as it must be. `settings` is the settings file's path.
///
/// # Errors
/// [`ConfigError`] if the settings name no log.
pub fn check(config: &Config, settings: &Path) -> Result<(String, bool), ConfigError> {
    let mut report = Report { text: String::new(), good: true };
    if config.events_table().is_none() {
        check_log(&mut report, config, settings)?;
    }
    match &config.postgres {
        None => report.line(true, "Postgres", "not configured: the log alone"),
        Some(postgres) => match ask_postgres(postgres) {
            Ok((server, extension)) => {
                report.line(true, "Postgres", &server);
                let text = extension.as_deref().unwrap_or("not there: CREATE EXTENSION pg_lanes");
                report.line(extension.is_some(), "extension", text);
            }
            Err(reason) => report.line(false, "Postgres", &reason),
        },
    }
    Ok((report.text, report.good))
}

/// Whether the directory, the disk and SQLite are as the daemon's own log needs them.
fn check_log(report: &mut Report, config: &Config, settings: &Path) -> Result<(), ConfigError> {
    let log = config.log_settings(settings)?;
    let directory = &log.data_directory;

    let cpus = core_affinity::get_core_ids().map_or(1, |cpus| cpus.len().max(1)) as u64;
    let drains = if log.drain_threads == 0 { cpus } else { u64::from(log.drain_threads) };
    let active = match log.storage_shards {
        0 => drains,
        shards => u64::from(shards),
    };
    match existing_shards(directory) {
        Ok(existing) => {
            report.line(true, "directory", &format!("{}, {} shard files", directory.display(), existing.len()));
            let need = descriptors(QUERIES, active.max(existing.len() as u64), drains);
            let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
            let limit_text = limit.map_or("none".to_owned(), |limit| limit.to_string());
            let text = format!("{need} needed at most, limit {limit_text}; set LimitNOFILE in the unit, or ulimit -n");
            report.line(limit.is_none_or(|limit| limit >= need), "descriptors", &text);
        }
        Err(error) => report.line(false, "directory", &format!("{}: {error}", directory.display())),
    }
    match rustix::fs::statvfs(directory) {
        Ok(disk) => {
            let free = disk.f_bavail * disk.f_frsize;
            let reserve = config.disk_reserve_bytes.get();
            let text = format!("{free} bytes free, disk_reserve_bytes keeps {reserve}");
            report.line(free >= reserve, "disk", &text);
        }
        Err(error) => report.line(false, "disk", &error.to_string()),
    }
    let sqlite = rusqlite::version_number() >= MINIMUM_SQLITE_VERSION;
    report.line(sqlite, "SQLite", &format!("{}, 3.51.3 or later is needed", rusqlite::version()));
    Ok(())
}

/// The server's version, and the extension's if it is there.
fn ask_postgres(postgres: &str) -> Result<(String, Option<String>), String> {
    let postgres = postgres_config(postgres).map_err(|error| error.to_string())?;
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    runtime
        .block_on(async {
            let (client, connection) = postgres.connect(NoTls).await?;
            tokio::spawn(connection);
            let server = client.query_one("SELECT pg_catalog.current_setting('server_version')", &[]).await?;
            let sql = "SELECT extversion FROM pg_catalog.pg_extension WHERE extname = 'pg_lanes'";
            let extension = client.query_opt(sql, &[]).await?;
            Ok((server.try_get(0)?, extension.map(|row| row.try_get(0)).transpose()?))
        })
        .map_err(|error: tokio_postgres::Error| describe(&error))
}

struct Report {
    text: String,
    good: bool,
}

impl Report {
    fn line(&mut self, good: bool, what: &str, found: &str) {
        self.good &= good;
        let mark = if good { "ok " } else { "BAD" };
        // Writing to a string cannot fail.
        let _ = writeln!(self.text, "{mark}  {what:<12} {found}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The design's own example.
    #[test]
    fn descriptors_by_the_formula() {
        assert_eq!(descriptors(128, 256, 256), 133_129);
        assert_eq!(descriptors(1, 0, 1), 4 + 4 + 9 + 2 + 256);
    }
}
