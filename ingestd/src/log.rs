//! The log: a total order of events, striped over SQLite files, durable before it is acknowledged.
//!
//! ```text
//! request ─► drain thread (duplicates out, positions taken) ─► bounded channel ─► writer thread ─► shard-NNNN.db
//!                                                                                   │ commit
//!                             acks go out, readers are woken  ◄── horizon advances ◄┘
//! ```
//!
//! Invariants: LOG-1 to LOG-6 of `docs/INVARIANTS.md`. No thread here talks to Postgres; no other module writes the
//! shard files.

pub mod budget;
pub mod channel;
pub mod checkpoint;
pub mod directory;
pub mod drain;
pub mod expire;
pub mod forget;
pub mod horizon;
pub mod keeper;
pub mod own;
pub mod reader;
pub mod recovery;
pub mod retention;
pub mod schema;
pub mod shard;
pub mod stream;
pub mod stream_hash;
pub mod verify;
pub mod watermark;
pub mod writer;

mod open;
mod sync;

#[cfg(test)]
mod budget_model;

pub use open::{Log, LogError, LogReport, LogSettings, open};

/// The name of a stream of the daemon's own and the beginning of names that producers may not use.
pub const RESERVED_NAME_PREFIX: &str = lanes_core::event::RESERVED_TYPE_PREFIX;
