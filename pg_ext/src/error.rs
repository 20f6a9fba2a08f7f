//! What SQL clients see of an error: the only place that names SQLSTATEs for the functions in Rust.

use std::panic::{RefUnwindSafe, UnwindSafe};

use lanes_core::lane::LaneError;
use lanes_core::page::PageError;
use lanes_core::projection::DefinitionError;
use lanes_core::shard_key::ShardKeyError;
use lanes_core::slot_map::SlotMapError;
use pgrx::pg_sys::panic::{CaughtError, ErrorReport};
use pgrx::{PgLogLevel, PgSqlErrorCode, PgTryBuilder};

use crate::encoding::for_message;

/// Reports what a caller asked of lanes and row shards that has no answer.
pub(crate) fn lane_error(error: &LaneError) -> ErrorReport {
    let code = match error {
        LaneError::Count { .. } | LaneError::Strategy(_) | LaneError::Lane(_) => {
            PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE
        }
        LaneError::Projection(_) => PgSqlErrorCode::ERRCODE_INVALID_NAME,
    };
    ErrorReport::new(code, for_message(&error.to_string()), "pg_lanes").set_hint(for_message(error.hint()))
}

/// Reports what a caller asked of sharded keys that has no answer.
pub(crate) fn shard_key_error(error: &ShardKeyError) -> ErrorReport {
    let code = match error {
        ShardKeyError::Count(error) => return lane_error(error),
        ShardKeyError::FanOut(_) | ShardKeyError::Range { .. } => PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
        ShardKeyError::Malformed(_) => PgSqlErrorCode::ERRCODE_INVALID_TEXT_REPRESENTATION,
        ShardKeyError::TooMany(_) => PgSqlErrorCode::ERRCODE_NUMERIC_VALUE_OUT_OF_RANGE,
    };
    ErrorReport::new(code, for_message(&error.to_string()), "pg_lanes").set_hint(for_message(error.hint()))
}

/// Reports what a caller asked of a map of slots that has no answer.
pub(crate) fn slot_map_error(error: &SlotMapError) -> ErrorReport {
    let code = match error {
        SlotMapError::NoSuchLane(_) => PgSqlErrorCode::ERRCODE_UNDEFINED_OBJECT,
        SlotMapError::LanesFull | SlotMapError::TooFine(_) => PgSqlErrorCode::ERRCODE_PROGRAM_LIMIT_EXCEEDED,
        SlotMapError::Slots(_)
        | SlotMapError::Lanes(_)
        | SlotMapError::LaneNumber(_)
        | SlotMapError::NoSuchSlot { .. }
        | SlotMapError::SameLane(_)
        | SlotMapError::WeightCount { .. }
        | SlotMapError::Weight(_)
        | SlotMapError::NotRefined { .. } => PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
    };
    ErrorReport::new(code, for_message(&error.to_string()), "pg_lanes").set_hint(for_message(error.hint()))
}

/// Reports a null in an array that has to be full.
pub(crate) fn null_element(array: &str) -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED,
        for_message(&format!("{array} must not contain null")),
        "pg_lanes",
    )
}

/// Reports arrays that do not hold the same events.
pub(crate) fn unequal_arrays(lengths: &[usize]) -> ErrorReport {
    let lengths: Vec<String> = lengths.iter().map(usize::to_string).collect();
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_ARRAY_ELEMENT_ERROR,
        for_message(&format!("arrays of events must have one length, not {}", lengths.join(", "))),
        "pg_lanes",
    )
    .set_hint("Pass one element for each event in each of the arrays.")
}

/// Reports what a caller asked of a page that has no answer.
pub(crate) fn page_error(error: &PageError) -> ErrorReport {
    let code = match error {
        PageError::Size(_)
        | PageError::Order(_)
        | PageError::SortColumns(_)
        | PageError::Filter(_)
        | PageError::Operator(_)
        | PageError::Value { .. }
        | PageError::Cursor
        | PageError::OtherQuery => PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE,
    };
    ErrorReport::new(code, for_message(&error.to_string()), "pg_lanes").set_hint(for_message(error.hint()))
}

/// Reports that the number of rows of a page is null.
pub(crate) fn null_page_size() -> ErrorReport {
    ErrorReport::new(PgSqlErrorCode::ERRCODE_NULL_VALUE_NOT_ALLOWED, "page_size must not be null", "pg_lanes")
}

/// Reports a type that is not that of a table's rows.
pub(crate) fn no_row_type(type_name: &str) -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
        for_message(&format!("type {type_name} is not the row type of a table")),
        "pg_lanes",
    )
    .set_hint("Name the table by a null of its row type, for example lanes.page(NULL::orders, 'created_at desc').")
}

/// Reports a column that a page was asked for and its table does not have.
pub(crate) fn missing_page_column(name: &str, table: &str) -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
        for_message(&format!("column \"{name}\" of table {table} does not exist")),
        "pg_lanes",
    )
}

/// Reports a column whose values Postgres cannot put in an order.
pub(crate) fn no_order_of_type(column: &str, type_name: &str) -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_UNDEFINED_FUNCTION,
        for_message(&format!("column \"{column}\" of type {type_name} cannot be compared")),
        "pg_lanes",
    )
    .set_hint("A page is sorted and filtered by columns whose type has an order.")
}

/// Reports a collation for a column that has none.
pub(crate) fn no_collations(column: &str, type_name: &str) -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
        for_message(&format!("collations are not supported by column \"{column}\" of type {type_name}")),
        "pg_lanes",
    )
}

/// Reports a time window over a column that holds no times.
pub(crate) fn no_page_time(column: &str, type_name: &str) -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_DATATYPE_MISMATCH,
        for_message(&format!("column \"{column}\" of type {type_name} cannot have a time window")),
        "pg_lanes",
    )
    .set_hint(
        "time_from and time_to bound the first column of order_by, which must be a timestamp or a date. Bound others by filter.",
    )
}

/// Reports that somebody deleted the key that signs cursors.
pub(crate) fn missing_secret() -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_OBJECT_NOT_IN_PREREQUISITE_STATE,
        "lanes.secret has no key to sign cursors with",
        "pg_lanes",
    )
    .set_hint("Its owner can insert a new one: 32 or more random bytes.")
}

/// Reports a trigger that lanes.add_shard_column did not make.
pub(crate) fn bad_shard_trigger() -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_E_R_I_E_TRIGGER_PROTOCOL_VIOLATED,
        "lanes.set_shard_id must be a row trigger before insert or update, of a key and a shard column",
        "pg_lanes",
    )
    .set_hint("Let lanes.add_shard_column make the trigger.")
}

/// Reports that a column, which the trigger knows by name, is gone or renamed.
pub(crate) fn missing_shard_trigger_column(name: &str) -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_UNDEFINED_COLUMN,
        for_message(&format!("column \"{name}\", which a row shard needs, does not exist")),
        "pg_lanes",
    )
    .set_hint("Rename it back, or call lanes.drop_shard_column and add the shard column again for the new name.")
}

/// Reports that a transaction that took or gave up a lane cannot be prepared.
pub(crate) fn cannot_prepare() -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        "cannot PREPARE a transaction that has claimed or released a lane",
        "pg_lanes",
    )
    .set_hint("Commit it instead: a lane belongs to a session, and a prepared transaction has none.")
}

/// Reports why a document of projections is refused.
pub(crate) fn definition_error(error: &DefinitionError) -> ErrorReport {
    let report =
        ErrorReport::new(PgSqlErrorCode::ERRCODE_INVALID_PARAMETER_VALUE, for_message(&error.to_string()), "pg_lanes");
    match error.hint() {
        Some(hint) => report.set_hint(for_message(&hint)),
        None => report,
    }
}

/// Reports a document that Postgres holds as jsonb but that Rust's reader of JSON does not take, such as a number
/// beyond double precision.
pub(crate) fn unreadable_document(error: &serde_json::Error) -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_INVALID_TEXT_REPRESENTATION,
        for_message(&format!("definition cannot be read: {error}")),
        "pg_lanes",
    )
    .set_hint("Numbers in a definition must fit double precision, and objects must not be nested too deeply.")
}

/// Runs a function of Postgres whose errors are meant for the client, and raises them as they are. (pgrx adds a
/// backtrace to the detail of an error that it has caught from Postgres, where the server's environment asks for
/// backtraces.)
pub(crate) fn without_backtrace<T>(function: impl FnOnce() -> T + UnwindSafe + RefUnwindSafe) -> T {
    PgTryBuilder::new(function)
        .catch_others(|caught| match caught {
            CaughtError::PostgresError(error) => {
                let mut plain = ErrorReport::new(error.sql_error_code(), error.message().to_owned(), "pg_lanes");
                if let Some(detail) = error.detail() {
                    plain = plain.set_detail(detail);
                }
                if let Some(hint) = error.hint() {
                    plain = plain.set_hint(hint);
                }
                plain.report(PgLogLevel::ERROR);
                unreachable!("an error of level ERROR unwinds")
            }
            other => other.rethrow(),
        })
        .execute()
}
