//! `ingestd dead-letters`: the parked keys of all projections, what waits of one, and what is to be done with it.
//!
//! Speaks to Postgres alone, so that it works while the daemon is away. `retry` and `skip` are `lanes.retry` and
//! `lanes.skip`; the lane's owner does the work within seconds.

use std::fmt::Write as _;

use clap::Subcommand;
use tokio_postgres::{Client, Error, NoTls};

use crate::lanes::session::describe;

/// What to do with parked keys.
#[derive(Debug, Subcommand)]
pub enum Action {
    /// List the parked keys.
    List {
        /// Of this projection alone.
        projection: Option<String>,
    },
    /// Show the events that wait of a key, the one that failed first.
    Show {
        /// The projection.
        projection: String,
        /// The key.
        key: String,
        /// The most events that are shown.
        #[arg(long, default_value_t = 20)]
        limit: i32,
    },
    /// Have a key, or all keys of a projection, tried again now.
    Retry {
        /// The projection.
        projection: String,
        /// The key; absent: all of them.
        key: Option<String>,
    },
    /// Say that an event is never to be applied; what waits behind it is tried again.
    Skip {
        /// The projection.
        projection: String,
        /// The event's position, which `show` tells.
        position: i64,
        /// Why; it is kept in `lanes.skipped_event`.
        #[arg(long)]
        reason: String,
    },
}

/// Does what was asked and gives the text to print.
///
/// # Errors
/// One line with the reason, and the way out where Postgres names one.
pub fn perform(action: &Action, postgres: &tokio_postgres::Config) -> Result<String, String> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(|error| error.to_string())?;
    let done = runtime.block_on(async {
        let (client, connection) = postgres.connect(NoTls).await?;
        tokio::spawn(connection);
        match action {
            Action::List { projection } => list(&client, projection.as_deref()).await,
            Action::Show { projection, key, limit } => show(&client, projection, key, *limit).await,
            Action::Retry { projection, key } => {
                let asked: i32 =
                    client.query_one("SELECT lanes.retry($1, $2)", &[projection, key]).await?.try_get(0)?;
                Ok(format!("{asked} keys are tried again\n"))
            }
            Action::Skip { projection, position, reason } => {
                let skipped =
                    client.query_one("SELECT lanes.skip($1, $2, $3)", &[projection, position, reason]).await?;
                let what = if skipped.try_get(0)? { "is skipped" } else { "was skipped already" };
                Ok(format!("the event at position {position} {what}\n"))
            }
        }
    });
    done.map_err(|error: Error| {
        let hint = error.as_db_error().and_then(|error| error.hint()).map(|hint| format!("; {hint}"));
        describe(&error) + &hint.unwrap_or_default()
    })
}

async fn list(client: &Client, projection: Option<&str>) -> Result<String, Error> {
    let rows = client.query(include_str!("../../../sql/queries/parked_keys.sql"), &[&projection]).await?;
    if rows.is_empty() {
        return Ok("no key is parked\n".to_owned());
    }
    let mut text = format!(
        "{:<24} {:<24} {:>12} {:>8} {:>8}  {:<20} {:<8} error\n",
        "projection", "key", "position", "events", "attempts", "next try", "sqlstate"
    );
    for row in rows {
        let (projection, key, position): (&str, &str, i64) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let (events, attempts, next): (i64, i32, &str) = (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
        let (sqlstate, error): (&str, &str) = (row.try_get(6)?, row.try_get(7)?);
        // Writing to a String cannot fail.
        let _ = writeln!(
            text,
            "{projection:<24} {key:<24} {position:>12} {events:>8} {attempts:>8}  {next:<20} {sqlstate:<8} {}",
            error.replace('\n', " ")
        );
    }
    Ok(text)
}

async fn show(client: &Client, projection: &str, key: &str, limit: i32) -> Result<String, Error> {
    let rows = client
        .query(include_str!("../../../sql/queries/parked_events.sql"), &[&projection, &key, &i64::from(limit)])
        .await?;
    let Some(first) = rows.first() else {
        return Ok(format!("key \"{key}\" of projection \"{projection}\" is not parked\n"));
    };
    let (sqlstate, error, events): (&str, &str, i64) = (first.try_get(0)?, first.try_get(1)?, first.try_get(2)?);
    let mut text = format!("{sqlstate}: {error}\n{events} events wait:\n");
    for row in &rows {
        let (position, kind, key): (i64, &str, &str) = (row.try_get(3)?, row.try_get(4)?, row.try_get(5)?);
        let (ts, payload): (i64, &str) = (row.try_get(6)?, row.try_get(7)?);
        let _ = writeln!(text, "{position} {kind} key={key} ts={ts} {payload}");
    }
    Ok(text)
}
