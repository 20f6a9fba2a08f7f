//! `ingestd apply`: defines the projections of a YAML file in Postgres.
//!
//! The file applies whole or not at all: one transaction registers the log, creates the tables and views that are
//! missing, checks those that exist, and defines the projections (`lanes.define`, which refuses a changed definition).

use std::path::{Path, PathBuf};

use lanes_core::projection::{Projection, parse_document};
use tokio_postgres::{Client, NoTls, Transaction};
use uuid::Uuid;

use super::table::{columns_match, create_table_sql, qualified_name, sum_view};
use crate::config::{Config, ConfigError};
use crate::daemon::{DaemonError, postgres_config};
use crate::lanes::session::describe;
use crate::log::directory::shard_path;
use crate::log::shard::{self, ShardError};

/// Why a file was not applied; nothing of it was. The text is one line, with a hint after a semicolon where there is
/// one.
#[derive(Debug, thiserror::Error)]
pub enum ApplyError {
    /// The file cannot be read.
    #[error("cannot read {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// The file is not YAML.
    #[error("{0}: {1}")]
    Yaml(PathBuf, String),
    /// A definition is not valid.
    #[error("{0}: {1}")]
    Definition(PathBuf, String),
    /// The settings lack something.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The settings are wrong.
    #[error(transparent)]
    Settings(#[from] DaemonError),
    /// There is no log yet.
    #[error("there is no log in {0} yet; start ingestd run first")]
    NoLog(PathBuf),
    /// The log cannot be read.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Postgres refused or does not answer.
    #[error("Postgres: {0}")]
    Postgres(String),
    /// A table that exists cannot be the projection's.
    #[error("projection {projection}: table {table} {reason}; choose another table, or change that one")]
    Table {
        /// The projection's name.
        projection: String,
        /// The table, as SQL.
        table: String,
        /// What is wrong with it.
        reason: String,
    },
}

impl From<tokio_postgres::Error> for ApplyError {
    fn from(error: tokio_postgres::Error) -> ApplyError {
        let hint = error.as_db_error().and_then(|error| error.hint()).map(|hint| format!("; {hint}"));
        ApplyError::Postgres(describe(&error) + &hint.unwrap_or_default())
    }
}

/// Applies `file` and returns a line for each thing that was done. `settings` is the settings file's path.
///
/// # Errors
/// [`ApplyError`]; nothing was changed then.
pub fn apply(file: &Path, config: &Config, settings: &Path) -> Result<Vec<String>, ApplyError> {
    let text = std::fs::read_to_string(file).map_err(|error| ApplyError::Read(file.to_owned(), error))?;
    let document: serde_json::Value = serde_saphyr::from_str(&text).map_err(|error| {
        let first = error.to_string().lines().next().unwrap_or_default().to_owned();
        ApplyError::Yaml(file.to_owned(), first)
    })?;
    let projections = parse_document(&document).map_err(|error| {
        let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
        ApplyError::Definition(file.to_owned(), format!("{error}{hint}"))
    })?;
    let (postgres, log_id) = postgres_and_log(config, settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut client, connection) = postgres.connect(NoTls).await?;
        tokio::spawn(connection);
        apply_to(&mut client, &document, &projections, log_id).await
    })
}

/// How to reach Postgres, and the id of the log that the settings name.
///
/// # Errors
/// [`ApplyError`].
pub fn postgres_and_log(config: &Config, settings: &Path) -> Result<(tokio_postgres::Config, Uuid), ApplyError> {
    let postgres = config.postgres.as_deref().ok_or_else(|| ConfigError::Absent(settings.to_owned(), "postgres"))?;
    let postgres = postgres_config(postgres)?;
    let directory = config.log_settings(settings)?.data_directory;
    let first = shard_path(&directory, 0);
    let log_id = match first.exists() {
        true => shard::log_id(&first, 0)?,
        false => None,
    };
    Ok((postgres, log_id.ok_or(ApplyError::NoLog(directory))?))
}

async fn apply_to(
    client: &mut Client,
    document: &serde_json::Value,
    projections: &[Projection],
    log_id: Uuid,
) -> Result<Vec<String>, ApplyError> {
    let transaction = client.transaction().await?;
    let mut done = Vec::new();
    transaction.execute(include_str!("../../../sql/queries/register_log.sql"), &[&log_id]).await?;
    let schema: Option<String> = transaction.query_one("SELECT pg_catalog.current_schema()", &[]).await?.try_get(0)?;
    // Without a schema in search_path only qualified tables can be found; lanes.define says so.
    let schema = schema.unwrap_or_default();
    for projection in projections {
        create_or_check_table(&transaction, projection, &schema, &mut done).await?;
    }
    for row in transaction.query("SELECT projection, created FROM lanes.define($1, $2)", &[document, &log_id]).await? {
        let (name, created): (&str, bool) = (row.try_get(0)?, row.try_get(1)?);
        let what = if created { "defined" } else { "is defined already, unchanged" };
        done.push(format!("projection {name} {what}"));
    }
    transaction.commit().await?;
    Ok(done)
}

async fn create_or_check_table(
    transaction: &Transaction<'_>,
    projection: &Projection,
    schema: &str,
    done: &mut Vec<String>,
) -> Result<(), ApplyError> {
    let table = qualified_name(projection, schema);
    let existing = transaction
        .query(include_str!("../../../sql/queries/table_columns.sql"), &[&table])
        .await?
        .iter()
        .map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)))
        .collect::<Result<Vec<(String, String, bool, Option<i16>)>, tokio_postgres::Error>>()?;
    if existing.is_empty() {
        transaction.batch_execute(&create_table_sql(projection, schema)).await?;
        done.push(format!("table {table} created"));
    } else {
        let mismatch =
            |reason: String| ApplyError::Table { projection: projection.name.clone(), table: table.clone(), reason };
        let columns: Vec<_> =
            existing.iter().map(|(name, kind, not_null, _)| (name.clone(), kind.clone(), *not_null)).collect();
        columns_match(projection, &columns).map_err(|error| mismatch(error.to_string()))?;
        let mut key: Vec<&str> =
            existing.iter().filter(|(_, _, _, place)| place.is_some()).map(|(name, ..)| name.as_str()).collect();
        let mut wanted: Vec<&str> = projection.target.primary_key.iter().map(String::as_str).collect();
        key.sort_unstable();
        wanted.sort_unstable();
        if key != wanted {
            let expected = projection.target.primary_key.join(", ");
            return Err(mismatch(format!("has not the primary key ({expected})")));
        }
    }
    if let Some(view) = sum_view(projection) {
        let name = table_name(&table, &view.view);
        let exists: bool =
            transaction.query_one("SELECT pg_catalog.to_regclass($1) IS NOT NULL", &[&name]).await?.try_get(0)?;
        if !exists {
            transaction
                .query(
                    "SELECT lanes.create_sum_view($1, $2::text::pg_catalog.regclass, $3, $4, $5, $6)",
                    &[&view.view, &table, &view.group_by, &view.sums, &view.mins, &view.maxs],
                )
                .await?;
            done.push(format!("view {name} created"));
        }
    }
    Ok(())
}

/// The view's name in the schema of `table`, which is quoted: `"public"."t"` and `t_total` give `"public"."t_total"`.
fn table_name(table: &str, view: &str) -> String {
    let schema = table.split_once('.').map_or("", |(schema, _)| schema);
    format!("{schema}.{}", super::table::quote(view))
}
