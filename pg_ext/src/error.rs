//! What SQL clients see of an error: the only place that names SQLSTATEs for the functions in Rust.

use lanes_core::lane::LaneError;
use pgrx::PgSqlErrorCode;
use pgrx::pg_sys::panic::ErrorReport;

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

/// Reports that a transaction that took or gave up a lane cannot be prepared.
pub(crate) fn cannot_prepare() -> ErrorReport {
    ErrorReport::new(
        PgSqlErrorCode::ERRCODE_FEATURE_NOT_SUPPORTED,
        "cannot PREPARE a transaction that has claimed or released a lane",
        "pg_lanes",
    )
    .set_hint("Commit it instead: a lane belongs to a session, and a prepared transaction has none.")
}
