//! The status of a running daemon: `GET /v1/status`, and `ingestd status`, which asks for it and prints it.

use std::fmt::Write as _;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::lanes::board::{LaneReport, LaneState};
use crate::log::LogReport;

/// Everything that the daemon shows of itself.
#[derive(Debug, Serialize)]
pub struct Status {
    /// The daemon's version.
    pub version: &'static str,
    /// The log.
    pub log: LogReport,
    /// The projection that needs the oldest events, so that retention leaves them.
    pub retention_held_by: Option<String>,
    /// Why the lanes cannot read the log; none if they can.
    pub reader_trouble: Option<String>,
    /// Postgres.
    pub postgres: PostgresStatus,
    /// Every lane of every projection of the log.
    pub lanes: Vec<LaneReport>,
}

/// Whether Postgres can be used.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum PostgresStatus {
    /// No `postgres` in the settings: the log alone.
    NotConfigured,
    /// The last report went through.
    Ready,
    /// It did not.
    Unavailable {
        /// Why.
        reason: String,
    },
}

/// The parts of a status that are printed.
#[derive(Debug, Deserialize)]
struct Received {
    log: ReceivedLog,
    retention_held_by: Option<String>,
    reader_trouble: Option<String>,
    postgres: PostgresStatus,
    lanes: Vec<LaneReport>,
}

#[derive(Debug, Deserialize)]
struct ReceivedLog {
    log_id: Uuid,
    horizon: u64,
    floor: u64,
    uncommitted: u64,
    drains: u64,
    shards: Vec<ReceivedShard>,
}

#[derive(Debug, Deserialize)]
struct ReceivedShard {
    shard: u32,
    state: String,
    reason: Option<String>,
}

/// Asks the daemon at `address` (`host:port`) for its status, as JSON text.
///
/// # Errors
/// One line that says that it does not answer and why.
pub fn fetch(address: &str) -> Result<String, String> {
    // The daemon is this machine's or is named; a proxy of the environment is for the world outside.
    let agent: ureq::Agent =
        ureq::Agent::config_builder().proxy(None).timeout_global(Some(Duration::from_secs(10))).build().new_agent();
    let answer = agent.get(format!("http://{address}/v1/status")).call();
    answer
        .and_then(|mut response| response.body_mut().read_to_string())
        .map_err(|error| format!("the daemon at {address} does not answer ({error})"))
}

/// A status in words.
///
/// # Errors
/// One line, if `json` is not the status of a daemon of this version.
pub fn describe(json: &str) -> Result<String, String> {
    let status: Received =
        serde_json::from_str(json).map_err(|error| format!("the daemon's status cannot be read: {error}"))?;
    let mut text = String::new();
    let log = &status.log;
    let _ = writeln!(text, "log       {}", log.log_id);
    let _ = writeln!(text, "horizon   {} ({} positions not durable yet)", log.horizon, log.uncommitted);
    let held = status.retention_held_by.as_deref().map(|name| format!(", held by projection {name}"));
    let _ = writeln!(text, "floor     {}{}", log.floor, held.unwrap_or_default());
    let _ = writeln!(text, "threads   {} drains, {} store shards", log.drains, log.shards.len());
    for shard in log.shards.iter().filter(|shard| shard.state != "active" || shard.reason.is_some()) {
        let reason = shard.reason.as_deref().unwrap_or("only read");
        let _ = writeln!(text, "shard {}   {}: {reason}", shard.shard, shard.state);
    }
    if let Some(trouble) = &status.reader_trouble {
        let _ = writeln!(text, "reader    {trouble}");
    }
    let _ = match &status.postgres {
        PostgresStatus::NotConfigured => writeln!(text, "postgres  not configured: the log alone"),
        PostgresStatus::Ready => writeln!(text, "postgres  ready"),
        PostgresStatus::Unavailable { reason } => writeln!(text, "postgres  unavailable: {reason}"),
    };
    if !status.lanes.is_empty() {
        let _ =
            writeln!(text, "\n{:<32} {:>5}  {:<12} {:>12} {:>10}", "projection", "lane", "state", "position", "lag");
    }
    for lane in &status.lanes {
        let state = match lane.state {
            LaneState::Unowned => "unowned",
            LaneState::CatchingUp => "catching up",
            LaneState::Running => "running",
            LaneState::BackingOff => "backing off",
            LaneState::Stopped => "stopped",
            LaneState::Scheduled => "scheduled",
            LaneState::Paused => "paused",
            LaneState::WaitingAtStop => "at stop",
        };
        let parked = if lane.parked_keys > 0 { format!("  {} keys parked", lane.parked_keys) } else { String::new() };
        let reason = lane.reason.as_deref().map(|reason| format!("  {reason}")).unwrap_or_default();
        let _ = writeln!(
            text,
            "{:<32} {:>5}  {state:<12} {:>12} {:>10}{parked}{reason}",
            lane.projection, lane.lane, lane.position, lane.lag
        );
    }
    Ok(text)
}
