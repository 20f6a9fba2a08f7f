//! Rows of the daemon's own: what happened to the log, told in the log.
//!
//! They have types that begin with `ingestd.`, the key `ingestd`, and a stream of their own, and are stored like any
//! other event. The row that tells of a loss is written by recovery.

use serde_json::{Value, json};

use lanes_core::event::Event;

/// The key of all of them.
pub const KEY: &str = "ingestd";

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum Happened {
    /// The daemon started; the row is durable before it says that it is ready.
    Started {
        /// The program's version.
        version: &'static str,
        /// Store shards that are written to.
        shards: u32,
        /// Store shards that are only read.
        historical: u32,
        /// Drain threads.
        drains: usize,
        /// Rows past the end of the log that this start cut off.
        cut_rows: u64,
    },
    /// The daemon stopped in order.
    Stopped,
    /// A setting was changed while the daemon ran.
    ConfigChanged {
        /// The setting's name.
        setting: &'static str,
        /// What it was.
        before: String,
        /// What it is.
        after: String,
    },
    /// A store shard could not be written for a while.
    StorageError {
        /// The shard's number.
        shard: u32,
        /// What the disk or SQLite said.
        reason: String,
    },
}

impl Happened {
    /// The event that tells of it. `now` in milliseconds since 1970 UTC.
    pub fn event(&self, now: i64) -> Event {
        let (name, payload): (&str, Value) = match self {
            Happened::Started { version, shards, historical, drains, cut_rows } => (
                "started",
                json!({
                    "version": version,
                    "shards": shards,
                    "historical": historical,
                    "drains": drains,
                    "cut_rows": cut_rows,
                }),
            ),
            Happened::Stopped => ("stopped", json!({})),
            Happened::ConfigChanged { setting, before, after } => {
                ("config_changed", json!({ "setting": setting, "before": before, "after": after }))
            }
            Happened::StorageError { shard, reason } => ("storage_error", json!({ "shard": shard, "reason": reason })),
        };
        Event {
            event_type: format!("{}{name}", super::RESERVED_NAME_PREFIX),
            key: KEY.to_owned(),
            ts: now,
            payload: payload.to_string(),
        }
    }
}
