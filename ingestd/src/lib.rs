//! `ingestd`: a durable, totally ordered log on SQLite beside Postgres, and the workers that keep projections in
//! Postgres up to date from it.
//!
//! - [`log`]: drains, channels, writers, recovery, reader.
//! - [`config`]: what an operator can set.

pub mod config;
pub mod log;
