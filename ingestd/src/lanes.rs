//! Lanes: the workers that bring the log's events into the projections in Postgres.
//!
//! ```text
//! LogReader ─► dispatcher (key ► slot ► lane, once for all projections) ─► queue per lane ─► worker ─► Postgres
//! ```
//!
//! - [`catalog`]: which projections there are, read from Postgres once a second by the [`reporter`], which also reports
//!   the log's horizon there.
//! - [`dispatcher`]: one reader for all lanes.
//! - [`worker`]: one connection, the lanes it owns, one transaction a batch.
//! - `parking`: events that cannot be applied.
//! - [`priority`]: who gives way under pressure.
//! - [`board`]: what the status shows of each lane.
//! - [`hold`]: what retention must leave for them.
//!
//! Invariants: LANE-1 to LANE-5 of `docs/INVARIANTS.md`. While Postgres is away lanes wait and go on by themselves.

pub mod board;
pub mod catalog;
pub mod dispatcher;
pub mod hold;
mod parking;
pub mod priority;
pub mod reporter;
pub mod session;
pub mod worker;

mod start;

pub use start::{LaneSettings, LaneView, Lanes, start};
