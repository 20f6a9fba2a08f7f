//! Lanes: the workers that bring the log's events into the projections in Postgres.
//!
//! ```text
//! reader ─► dispatcher (key ► slot ► lane, once for all projections) ─► queue per lane ─► worker ─► Postgres
//! ```
//!
//! - [`source`]: the log that is read, the daemon's own or an [`events_table`].
//! - [`catalog`]: which projections there are and which slots their lanes own; [`standing`]: how the lanes stand and who
//!   works on them. Both are read from Postgres once a second by the [`reporter`], which also reports the log's horizon
//!   there.
//! - [`dispatcher`]: one reader for all lanes; `readers` for those that cannot go with it; `chunks` what all of them read
//!   last.
//! - [`worker`]: one connection and the lanes it owns: `owned` what is known of one, `share` which are claimed and
//!   released, `gathering` what a lane does next, `batch` one transaction, `failure` why one was not applied.
//! - `parking`: events that cannot be applied.
//! - [`priority`]: who gives way under pressure.
//! - [`board`]: what the status shows of each lane.
//! - [`hold`]: what retention must leave for them.
//!
//! Invariants: LANE-1 to LANE-5 of `docs/INVARIANTS.md`. While Postgres is away lanes wait and go on by themselves.

mod batch;
pub mod board;
pub mod catalog;
mod chunks;
pub mod dispatcher;
pub mod events_table;
mod failure;
mod gathering;
pub mod hold;
mod owned;
mod parking;
pub mod priority;
mod readers;
pub mod reporter;
pub mod session;
mod share;
pub mod source;
pub mod standing;
mod start;
pub mod worker;

pub use start::{LaneSettings, LaneView, Lanes, start, start_table};
