//! `ingestd apply`: defines the projections of a YAML file in Postgres.
//!
//! The file applies whole or not at all: one transaction registers the daemon's log, creates the tables, indexes, views and
//! query functions that are missing, checks those that exist, and defines the projections (`lanes.define`, which refuses
//! a change that would need a rebuild). A dry run does the same, shows the statements, and rolls back; only indexes of
//! tables that exist are not built for it.

use std::path::{Path, PathBuf};

use lanes_core::projection::definition::CHANGEABLE;
use lanes_core::projection::{DefinitionError, Document, Projection, Query, parse_document};
use tokio_postgres::{Client, GenericClient, NoTls, Transaction};
use uuid::Uuid;

use super::function::{self, create_function_sql, signature};
use super::lines::Lines;
use super::table::{columns_match, create_index_sql, create_table_sql, qualified_name, quote, sum_view};
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
    /// The table is no log.
    #[error("table {0} is not a log; run SELECT lanes.register_log('{0}') in its database first")]
    NoTable(String),
    /// The log cannot be read.
    #[error(transparent)]
    Shard(#[from] ShardError),
    /// The operating system refused.
    #[error("{0}")]
    Io(#[from] std::io::Error),
    /// Postgres refused or does not answer.
    #[error("Postgres: {0}")]
    Postgres(String),
    /// A function of a query's name and arguments is somebody else's.
    #[error(
        "query {query}: function {function} exists and is not a query of pg_lanes; choose another name, or drop it"
    )]
    Function {
        /// The query's name.
        query: String,
        /// The function, as SQL.
        function: String,
    },
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

/// A refusal with its line and the way out.
fn refusal(error: &DefinitionError, lines: &Lines) -> String {
    let line = lines.line(error.path()).map(|line| format!("line {line}: ")).unwrap_or_default();
    let hint = error.hint().map(|hint| format!("; {hint}")).unwrap_or_default();
    format!("{line}{error}{hint}")
}

/// Applies `file` and returns a line for each thing that was done, or in a dry run would be. `settings` is the
/// settings file's path.
///
/// # Errors
/// [`ApplyError`]; nothing was changed then.
pub fn apply(file: &Path, config: &Config, settings: &Path, dry_run: bool) -> Result<Vec<String>, ApplyError> {
    let text = std::fs::read_to_string(file).map_err(|error| ApplyError::Read(file.to_owned(), error))?;
    let json: serde_json::Value = serde_saphyr::from_str(&text).map_err(|error| {
        let first = error.to_string().lines().next().unwrap_or_default().to_owned();
        ApplyError::Yaml(file.to_owned(), first)
    })?;
    let document = parse_document(&json)
        .map_err(|error| ApplyError::Definition(file.to_owned(), refusal(&error, &Lines::of(&text))))?;
    let (postgres, log) = postgres_and_log(config, settings)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut client, connection) = postgres.connect(NoTls).await?;
        tokio::spawn(connection);
        let mut applying = Applying::begin(&mut client, dry_run).await?;
        let log_id = log.find(&applying.transaction).await?;
        if let Log::Own(_) = log {
            let register = include_str!("../../../sql/queries/register_log.sql");
            applying.transaction.execute(register, &[&log_id]).await?;
        }
        applying.document(&json, &document, log_id).await?;
        applying.end().await
    })
}

/// The log that the settings name.
pub enum Log {
    /// One of the daemon's own, by its id.
    Own(Uuid),
    /// A table of events.
    Table(String),
}

impl Log {
    /// Its id.
    ///
    /// # Errors
    /// [`ApplyError::NoTable`] if the table is no log, and what Postgres says.
    pub async fn find(&self, client: &impl GenericClient) -> Result<Uuid, ApplyError> {
        match self {
            Log::Own(log_id) => Ok(*log_id),
            Log::Table(table) => {
                let row = client.query_opt(include_str!("../../../sql/queries/events_table.sql"), &[table]).await?;
                Ok(row.ok_or_else(|| ApplyError::NoTable(table.clone()))?.try_get(0)?)
            }
        }
    }
}

/// How to reach Postgres, and the log that the settings name.
///
/// # Errors
/// [`ApplyError`].
pub fn postgres_and_log(config: &Config, settings: &Path) -> Result<(tokio_postgres::Config, Log), ApplyError> {
    let postgres = config.postgres.as_deref().ok_or_else(|| ConfigError::Absent(settings.to_owned(), "postgres"))?;
    let postgres = postgres_config(postgres)?;
    if let Some(table) = config.events_table() {
        return Ok((postgres, Log::Table(table.to_owned())));
    }
    let directory = config.log_settings(settings)?.data_directory;
    let first = shard_path(&directory, 0);
    let log_id = match first.exists() {
        true => shard::log_id(&first, 0)?,
        false => None,
    };
    Ok((postgres, Log::Own(log_id.ok_or(ApplyError::NoLog(directory))?)))
}

/// One transaction that applies a file.
struct Applying<'c> {
    transaction: Transaction<'c>,
    /// Where a table goes whose definition names no schema.
    schema: String,
    dry_run: bool,
    done: Vec<String>,
}

impl<'c> Applying<'c> {
    async fn begin(client: &'c mut Client, dry_run: bool) -> Result<Applying<'c>, ApplyError> {
        let transaction = client.transaction().await?;
        let schema: Option<String> =
            transaction.query_one("SELECT pg_catalog.current_schema()", &[]).await?.try_get(0)?;
        // Without a schema in search_path only qualified tables can be found; lanes.define says so.
        Ok(Applying { transaction, schema: schema.unwrap_or_default(), dry_run, done: Vec::new() })
    }

    async fn end(self) -> Result<Vec<String>, ApplyError> {
        if self.dry_run {
            self.transaction.rollback().await?;
        } else {
            self.transaction.commit().await?;
        }
        Ok(self.done)
    }

    /// Notes what is done, and in a dry run the statement that does it.
    fn note(&mut self, what: String, sql: &str) {
        self.done.push(what);
        if self.dry_run {
            self.done.push(format!("{sql};"));
        }
    }

    async fn document(
        &mut self,
        json: &serde_json::Value,
        document: &Document,
        log_id: Uuid,
    ) -> Result<(), ApplyError> {
        for projection in &document.projections {
            self.table(projection).await?;
            self.view(projection).await?;
        }
        let changes = self.changes(document).await?;
        let defined = "SELECT projection, created FROM lanes.define($1, $2)";
        for row in self.transaction.query(defined, &[json, &log_id]).await? {
            let (name, created): (&str, bool) = (row.try_get(0)?, row.try_get(1)?);
            let changed = changes.iter().find(|(changed, _)| changed == name);
            let what = match (created, changed) {
                (true, _) => "defined".to_owned(),
                (false, Some((_, parts))) => format!("changed: {}", parts.join(", ")),
                (false, None) => "is defined already, unchanged".to_owned(),
            };
            self.done.push(format!("projection {name} {what}"));
        }
        for projection in &document.projections {
            self.done.extend(projection.notes.iter().map(|note| format!("projection {}: {note}", projection.name)));
        }
        for query in &document.queries {
            let projection = document.projections.iter().find(|projection| projection.name == query.projection);
            if let Some(projection) = projection {
                self.query(query, projection).await?;
            }
        }
        Ok(())
    }

    async fn table(&mut self, projection: &Projection) -> Result<(), ApplyError> {
        let table = qualified_name(projection, &self.schema);
        let existing = self
            .transaction
            .query(include_str!("../../../sql/queries/table_columns.sql"), &[&table])
            .await?
            .iter()
            .map(|row| Ok((row.try_get(0)?, row.try_get(1)?, row.try_get(2)?, row.try_get(3)?)))
            .collect::<Result<Vec<(String, String, bool, Option<i16>)>, tokio_postgres::Error>>()?;
        let is_new = existing.is_empty();
        if is_new {
            let statements = create_table_sql(projection, &self.schema);
            for sql in &statements {
                self.transaction.batch_execute(sql).await?;
            }
            self.note(format!("table {table} created"), &statements.join(";\n"));
        } else {
            check_table(projection, &table, &existing)?;
        }
        let indexes = self.transaction.query(include_str!("../../../sql/queries/table_indexes.sql"), &[&table]).await?;
        let mut known = Vec::with_capacity(indexes.len());
        for row in &indexes {
            known.push((row.try_get::<_, Vec<String>>(0)?, row.try_get::<_, bool>(1)?));
        }
        for index in &projection.indexes {
            if known.iter().any(|(columns, descending)| *columns == index.columns && *descending == index.descending) {
                continue;
            }
            let sql = create_index_sql(index, &table);
            if is_new || !self.dry_run {
                self.transaction.batch_execute(&sql).await?;
            }
            self.note(format!("index of {table} on {} created", index.columns.join(", ")), &sql);
        }
        Ok(())
    }

    async fn view(&mut self, projection: &Projection) -> Result<(), ApplyError> {
        let Some(view) = sum_view(projection) else { return Ok(()) };
        let table = qualified_name(projection, &self.schema);
        let name = format!("{}.{}", quote(self.schema_of(projection)), quote(&view.view));
        let exists: bool =
            self.transaction.query_one("SELECT pg_catalog.to_regclass($1) IS NOT NULL", &[&name]).await?.try_get(0)?;
        if !exists {
            self.transaction
                .query(
                    "SELECT lanes.create_sum_view($1, $2::text::pg_catalog.regclass, $3, $4, $5, $6, '{}', $7, $8, $9, \
                     $10, true)",
                    &[
                        &view.view,
                        &table,
                        &view.group_by,
                        &view.sums,
                        &view.mins,
                        &view.maxs,
                        &view.floors,
                        &view.ceilings,
                        &view.lasts,
                        &view.firsts,
                    ],
                )
                .await?;
            let shown: String = self
                .transaction
                .query_one("SELECT pg_catalog.pg_get_viewdef($1::text::pg_catalog.regclass)", &[&name])
                .await?
                .try_get(0)?;
            let sql = format!("CREATE VIEW {name} AS\n{}", shown.trim_end_matches(';'));
            self.note(format!("view {name} created"), &sql);
        }
        Ok(())
    }

    fn schema_of<'s>(&'s self, projection: &'s Projection) -> &'s str {
        projection.target.schema().unwrap_or(&self.schema)
    }

    async fn query(&mut self, query: &Query, projection: &Projection) -> Result<(), ApplyError> {
        let schema = self.schema_of(projection).to_owned();
        let function = signature(query, &schema);
        let comment = "SELECT COALESCE(pg_catalog.obj_description(p.oid, 'pg_proc'), ''), p.prosrc \
                       FROM pg_catalog.pg_proc AS p WHERE p.oid = pg_catalog.to_regprocedure($1)";
        let standing = self.transaction.query_opt(comment, &[&function]).await?;
        let standing = standing.map(|row| Ok::<_, tokio_postgres::Error>((row.try_get(0)?, row.try_get(1)?)));
        let standing: Option<(String, String)> = standing.transpose()?;
        if standing.as_ref().is_some_and(|(comment, _)| !comment.starts_with(function::COMMENT)) {
            return Err(ApplyError::Function { query: query.name.clone(), function });
        }
        let sql = create_function_sql(query, projection, &schema);
        if standing.as_ref().is_some_and(|(_, source)| sql.contains(source.as_str())) {
            self.done.push(format!("query {} is there already, unchanged", query.name));
            return Ok(());
        }
        self.transaction.batch_execute(&sql).await?;
        let comment = format!("COMMENT ON FUNCTION {function} IS '{} {}'", function::COMMENT, query.name);
        self.transaction.batch_execute(&comment).await?;
        let what = if standing.is_some() { "changed" } else { "created" };
        self.note(format!("query {} {what}: function {function}", query.name), &sql);
        Ok(())
    }

    /// The parts that change of projections that are defined already.
    async fn changes(&self, document: &Document) -> Result<Vec<(String, Vec<&'static str>)>, ApplyError> {
        let mut changes = Vec::new();
        let stored = "SELECT definition FROM lanes.projection WHERE name = $1 AND version = 1";
        for projection in &document.projections {
            let Some(row) = self.transaction.query_opt(stored, &[&projection.name]).await? else { continue };
            let stored: serde_json::Value = row.try_get(0)?;
            let differs = |part: &&str| stored.get(part) != projection.definition.get(part);
            let parts: Vec<&'static str> = CHANGEABLE.into_iter().filter(differs).collect();
            if !parts.is_empty() {
                changes.push((projection.name.clone(), parts));
            }
        }
        Ok(changes)
    }
}

/// Whether a table that exists can be the projection's. `existing` holds name, type, NOT NULL, and the place in the
/// primary key.
fn check_table(
    projection: &Projection,
    table: &str,
    existing: &[(String, String, bool, Option<i16>)],
) -> Result<(), ApplyError> {
    let mismatch =
        |reason: String| ApplyError::Table { projection: projection.name.clone(), table: table.to_owned(), reason };
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
    Ok(())
}
