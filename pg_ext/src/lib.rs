//! The Postgres extension `pg_lanes`: glue only. Decode the arguments, call `lanes_core`, map its errors to SQLSTATEs.
//!
//! Invariants of this crate:
//! - The SQL is written by hand in `sql/install/`, also the declarations of the functions here (`sql = false`); a
//!   test compares them with the symbols that this library exports.
//! - A function returns a value or an [`pgrx::pg_sys::panic::ErrorReport`] made in [`error`]; no panic is meant to
//!   reach a client, since it would come as XX000 with a backtrace.
//! - Text is never taken as `&str`: the database may be in another encoding than UTF-8 (see [`encoding`]).
#![allow(unsafe_code, reason = "Postgres hands over raw pointers; every block says why it is sound")]
#![allow(clippy::result_large_err, reason = "ErrorReport is pgrx's, and an error ends the statement anyway")]

#[cfg(not(panic = "unwind"))]
compile_error!("pg_lanes needs panic = \"unwind\": pgrx turns a panic into a Postgres error by unwinding");

pgrx::pg_module_magic!();

mod catalog;
mod definition;
mod encoding;
mod error;
mod hashing;
mod lane_lock;
mod page;
mod query;
mod shard_key;
mod shard_trigger;
mod slot_map;
