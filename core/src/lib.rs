//! The rules of `pg_lanes`, as pure functions: what a key hashes to, which lane it belongs to, how lanes are resized and
//! shared out, what an event is, how a log recovers, how a batch folds.
//!
//! Invariants of this crate: no I/O, no clock, no global state, no unsafe code. The extension and the daemon both
//! call it, so that SQL and the daemon can never disagree (HASH-1 and HASH-2 of `docs/INVARIANTS.md`).
#![forbid(unsafe_code)]

pub mod balance;
pub mod event;
pub mod hash;
pub mod key;
pub mod lane;
pub mod log;
pub mod page;
pub mod place;
pub mod projection;
pub mod shard_key;
pub mod slot_map;
