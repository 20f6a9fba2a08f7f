//! Connections to Postgres: how they are opened, and what an error of one means.

use std::collections::HashMap;
use std::error::Error as _;
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio_postgres::error::{Severity, SqlState};
use tokio_postgres::{Client, Config, Error, NoTls, Statement};

/// A client that remembers its prepared statements, each of which would cost a round trip and a transaction more if given
/// as text, and whether it is in a transaction.
pub struct Connection {
    client: Client,
    statements: HashMap<String, Statement>,
    in_transaction: AtomicBool,
}

impl Connection {
    /// The statement of this text, prepared at most once.
    ///
    /// # Errors
    /// What Postgres says.
    pub async fn prepared(&mut self, text: &str) -> Result<Statement, Error> {
        if let Some(statement) = self.statements.get(text) {
            return Ok(statement.clone());
        }
        let statement = self.client.prepare(text).await?;
        self.statements.insert(text.to_owned(), statement.clone());
        Ok(statement)
    }

    /// Begins a transaction.
    ///
    /// # Errors
    /// What Postgres says.
    pub async fn begin(&self) -> Result<(), Error> {
        self.in_transaction.store(true, Ordering::Relaxed);
        self.client.batch_execute("BEGIN ISOLATION LEVEL READ COMMITTED").await
    }

    /// Ends the transaction; after an error in it nothing of it is kept.
    ///
    /// # Errors
    /// What Postgres says.
    pub async fn commit(&self) -> Result<(), Error> {
        self.in_transaction.store(false, Ordering::Relaxed);
        self.client.batch_execute("COMMIT").await
    }

    /// Ends the transaction, if there is one, and keeps nothing of it.
    ///
    /// # Errors
    /// What Postgres says.
    pub async fn roll_back(&self) -> Result<(), Error> {
        if self.in_transaction.swap(false, Ordering::Relaxed) {
            self.client.batch_execute("ROLLBACK").await?;
        }
        Ok(())
    }
}

impl Deref for Connection {
    type Target = Client;

    fn deref(&self) -> &Client {
        &self.client
    }
}

/// A connection that is driven by a task of its own.
///
/// `application` becomes `application_name`. The session trusts no search_path and waits at most 5 s for a lock. A server that
/// is gone without a word is noticed within half a minute, unless the settings say something else.
///
/// # Errors
/// What Postgres or the network says.
pub async fn connect(config: &Config, application: &str) -> Result<Connection, Error> {
    let mut config = config.clone();
    config.application_name(application).connect_timeout(Duration::from_secs(10));
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(30));
    }
    // What the library has if nothing is said.
    if config.get_keepalives_idle() == Duration::from_secs(2 * 60 * 60) {
        config.keepalives_idle(Duration::from_secs(10));
    }
    let (client, connection) = config.connect(NoTls).await?;
    tokio::spawn(async move {
        // The client sees the same error at its next statement.
        if let Err(error) = connection.await {
            tracing::debug!("connection to Postgres ended: {error}");
        }
    });
    client.batch_execute("SELECT pg_catalog.set_config('search_path', '', false)").await?;
    client.batch_execute("SET lock_timeout = '5s'").await?;
    Ok(Connection { client, statements: HashMap::new(), in_transaction: AtomicBool::new(false) })
}

/// What is to be done after an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The connection is gone: connect again.
    Connection,
    /// The lane is somebody else's now.
    LaneLost,
    /// The same batch can succeed later.
    Transient,
    /// The statement took too long or somebody canceled it: for its data, or because all is slow.
    Canceled,
    /// Tables, columns, functions or rights are not as they must be: no event is to blame.
    Definition,
    /// Some event of the batch cannot be applied.
    Data,
}

/// Tells errors apart by severity and SQLSTATE.
pub fn classify(error: &Error) -> Fault {
    match error.as_db_error() {
        Some(error) => fault_of(error.parsed_severity(), error.code()),
        None => Fault::Connection,
    }
}

fn fault_of(severity: Option<Severity>, state: &SqlState) -> Fault {
    // The server ends the session after such an error, whatever it is about.
    if matches!(severity, Some(Severity::Fatal | Severity::Panic)) {
        return Fault::Connection;
    }
    match state {
        // A stale epoch: begin_batch and commit_batch refuse with it.
        &SqlState::T_R_SERIALIZATION_FAILURE => Fault::LaneLost,
        &SqlState::ADMIN_SHUTDOWN | &SqlState::CRASH_SHUTDOWN | &SqlState::CANNOT_CONNECT_NOW => Fault::Connection,
        &SqlState::T_R_DEADLOCK_DETECTED | &SqlState::LOCK_NOT_AVAILABLE | &SqlState::OBJECT_IN_USE => Fault::Transient,
        &SqlState::QUERY_CANCELED => Fault::Canceled,
        state if state.code().starts_with("08") => Fault::Connection,
        // Resources, an operator, files; a server that is only read from for now.
        state if ["53", "57", "58"].contains(&&state.code()[..2]) || state.code() == "25006" => Fault::Transient,
        // Class 42 (42P01, 42703, 42501 and their like), a schema that is gone, an object in the wrong state, a damaged
        // table.
        state if state.code().starts_with("42") || ["3F000", "55000", "XX001", "XX002"].contains(&state.code()) => {
            Fault::Definition
        }
        _ => Fault::Data,
    }
}

/// One line: SQLSTATE, message, detail. Never a connection string.
pub fn describe(error: &Error) -> String {
    match error.as_db_error() {
        Some(error) => {
            let detail = error.detail().map(|detail| format!(" ({detail})")).unwrap_or_default();
            format!("{}: {}{detail}", error.code().code(), error.message()).replace('\n', " ")
        }
        None => match error.source() {
            Some(source) => format!("{error}: {source}"),
            None => error.to_string(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes of the SQLSTATE appendix of Postgres's manual, by what a batch must do when it meets them.
    #[test]
    fn errors_are_told_apart_by_their_state() {
        let cases = [
            (Fault::Connection, "08000 08003 08006 57P01 57P02 57P03"),
            (Fault::LaneLost, "40001"),
            (Fault::Transient, "40P01 55P03 55006 53100 53200 53300 57P04 58000 58030 25006"),
            (Fault::Canceled, "57014"),
            (Fault::Definition, "42P01 42703 42501 42883 3F000 55000 XX001 XX002"),
            (Fault::Data, "22001 22003 22012 22P02 23502 23503 23505 23514 21000 P0001 54000 XX000"),
        ];
        for (fault, states) in cases {
            for state in states.split(' ') {
                assert_eq!(fault_of(Some(Severity::Error), &SqlState::from_code(state)), fault, "{state}");
                assert_eq!(fault_of(None, &SqlState::from_code(state)), fault, "{state}");
            }
        }
    }

    /// Also where an error of that state would be the data's fault: nobody can go on in a session that is gone.
    #[test]
    fn an_error_that_ends_the_session_is_a_lost_connection() {
        for state in ["25P03", "57P05", "57P01", "22003", "53300", "XX000"] {
            for severity in [Severity::Fatal, Severity::Panic] {
                assert_eq!(fault_of(Some(severity), &SqlState::from_code(state)), Fault::Connection, "{state}");
            }
        }
    }
}
