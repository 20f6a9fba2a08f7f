//! Retention: deletes the low end of the log by age and by bytes.
//!
//! A thread of its own looks from time to time how far the floor may rise, writes the new floor into the watermark file,
//! and then has each shard's owner delete what lies at or below it, in bounded transactions: the writers of the active
//! shards, and this thread itself for the shards that are only read. A crash in between is finished by the next round.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::Sender;
use lanes_core::log::retention::{Extent, next_floor};
use rusqlite::Connection;

use super::expire::{expire, look};
use super::horizon::Horizon;
use super::keeper::Keeper;
use super::writer::{Closing, Expire, now_ms};

/// What retention deletes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetentionSettings {
    /// Events that were stored longer ago may go.
    pub age: Duration,
    /// The most bytes of all shards; none for no limit.
    pub maximum_bytes: Option<u64>,
    /// Time between two rounds.
    pub interval: Duration,
    /// The most rows of one transaction.
    pub delete_rows: u64,
}

/// Who still needs events.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Hold {
    /// Nobody.
    Nobody,
    /// Somebody needs everything above this position.
    Above(u64),
    /// That cannot be told now, so nothing may go.
    Unknown,
}

/// Tells who still needs events; asked once a round.
pub type HoldSource = Box<dyn FnMut() -> Hold + Send>;

/// The owner of a shard's read-write connection.
pub enum Owner {
    /// A writer, which is asked.
    Writer(Sender<Expire>),
    /// This thread, for a shard that is only read otherwise.
    Here(Connection),
}

/// What the thread needs.
pub struct Retention {
    /// What it deletes; may be changed between two rounds.
    pub settings: Arc<Mutex<RetentionSettings>>,
    /// The log's horizon.
    pub horizon: Arc<Horizon>,
    /// The owner of the floor.
    pub keeper: Arc<Keeper>,
    /// A read-only connection to each shard, and who deletes there.
    pub shards: Vec<(Connection, Owner)>,
    /// Who still needs events.
    pub hold: HoldSource,
}

impl Retention {
    /// Works until the log closes.
    pub fn run(mut self, closing: &Closing) {
        loop {
            let settings = *self.settings.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(reason) = self.round(settings) {
                tracing::error!("retention: {reason}; it is tried again in the next round");
            }
            if closing.wait(settings.interval) {
                return;
            }
        }
    }

    fn round(&mut self, settings: RetentionSettings) -> Result<(), String> {
        let sqlite = |error: rusqlite::Error| error.to_string();
        let cutoff = now_ms().saturating_sub(settings.age.as_millis() as i64);
        let floor = self.keeper.floor();
        let horizon = self.horizon.position();
        let hold = match (self.hold)() {
            Hold::Nobody => None,
            Hold::Above(position) => Some(position),
            Hold::Unknown => Some(floor),
        };
        let mut extent =
            Extent { floor, horizon, first_young: None, bytes: 0, maximum_bytes: settings.maximum_bytes, hold };
        for (connection, _) in &self.shards {
            let shard = look(connection, cutoff).map_err(sqlite)?;
            extent.first_young = extent.first_young.into_iter().chain(shard.first_young).min();
            extent.bytes += shard.bytes;
        }
        let next = next_floor(extent);
        if next > floor {
            self.keeper.raise_floor(next).map_err(|error| error.to_string())?;
            tracing::info!(floor = next, "retention raised the floor");
        }
        if next == 0 {
            return Ok(());
        }
        let rows = settings.delete_rows;
        for (_, owner) in &mut self.shards {
            loop {
                let deleted = match owner {
                    Owner::Here(connection) => expire(connection, next, rows).map_err(sqlite)?,
                    Owner::Writer(commands) => {
                        let (done, answer) = crossbeam_channel::bounded(1);
                        let command = Expire { floor: next, rows, done };
                        // Either end is gone only when the log closes.
                        if commands.send(command).is_err() {
                            return Ok(());
                        }
                        match answer.recv() {
                            Ok(deleted) => deleted?,
                            Err(_) => return Ok(()),
                        }
                    }
                };
                if deleted < rows {
                    break;
                }
            }
        }
        Ok(())
    }
}
