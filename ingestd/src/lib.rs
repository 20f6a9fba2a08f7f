//! `ingestd`: a durable, totally ordered log on SQLite beside Postgres, and the workers that keep projections in
//! Postgres up to date from it.
//!
//! - [`source`]: where events come from: HTTP, and files imported over it.
//! - [`log`]: drains, channels, writers, recovery, reader.
//! - [`lanes`]: from the log to Postgres: dispatcher, workers, checkpoints.
//! - [`projection`]: definitions applied to Postgres, and folded batches as SQL.
//! - [`admin`]: the status.
//! - [`config`], [`command`], [`daemon`]: settings, command line, and how it all runs together.

pub mod admin;
pub mod command;
pub mod config;
pub mod daemon;
pub mod lanes;
pub mod log;
pub mod projection;
pub mod source;
