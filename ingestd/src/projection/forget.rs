//! `ingestd forget`: lets go of a projection, so that the log need not keep events for it.

use std::path::Path;

use tokio_postgres::NoTls;

use super::apply::{ApplyError, postgres_and_log};
use crate::config::Config;

/// Deletes the definition and the checkpoints of a projection of the log; its table stays. `settings` is the settings
/// file's path.
///
/// # Errors
/// [`ApplyError`], also if the log has no such projection.
pub fn forget(projection: &str, config: &Config, settings: &Path) -> Result<(), ApplyError> {
    let (postgres, log) = postgres_and_log(config, settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (client, connection) = postgres.connect(NoTls).await?;
        tokio::spawn(connection);
        let log_id = log.find(&client).await?;
        let statement = include_str!("../../../sql/queries/forget_projection.sql");
        match client.execute(statement, &[&projection, &log_id]).await? {
            0 => Err(ApplyError::Postgres(format!("there is no projection \"{projection}\" of log {log_id}"))),
            _ => Ok(()),
        }
    })
}
