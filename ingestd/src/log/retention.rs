//! Retention: deletes the low end of the log by age and by bytes, and forgets producers of which nothing is left.
//!
//! A thread of its own looks from time to time how far the floor may rise, writes the new floor into the watermark file,
//! and then has each shard's owner delete what lies at or below it, in bounded transactions: the writers of the active
//! shards, and this thread itself for the shards that are only read. A crash in between is finished by the next round.
//!
//! A producer that was idle for long and has no event above the floor is let go by its drain first, so that nothing new
//! comes; then the shards forget it, the one that knows its greatest number last: whatever a crash leaves, the stream is
//! known as far as it ever was, or not at all. Only then its name may come again, under another number.

use std::collections::HashSet;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use crossbeam_channel::Sender;
use lanes_core::log::retention::{Extent, next_floor};
use rusqlite::Connection;

use super::expire::look;
use super::forget::{Producers, Remains, idle_streams, remains};
use super::horizon::Horizon;
use super::keeper::Keeper;
use super::stream::{FIRST_PRODUCER, StreamKey};
use super::writer::{Chore, Closing, Order, now_ms};

/// Streams that are forgotten at once.
const FORGET_STREAMS: u64 = 1000;

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
    /// Producers of which nothing is left and that were idle for longer are forgotten.
    pub producer_age: Duration,
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
    Writer(Sender<Order>),
    /// This thread, for a shard that is only read otherwise.
    Here(Connection),
}

impl Owner {
    /// Lets the owner do something; the number of events that were deleted, or none if the log closes.
    fn ask(&mut self, chore: Chore) -> Result<Option<u64>, String> {
        match self {
            Owner::Here(connection) => {
                let deleted = chore.perform(connection, &mut HashSet::new());
                deleted.map(Some).map_err(|error| error.to_string())
            }
            Owner::Writer(commands) => {
                let (done, answer) = crossbeam_channel::bounded(1);
                // Either end is gone only when the log closes.
                if commands.send(Order { chore, done }).is_err() {
                    return Ok(None);
                }
                answer.recv().ok().transpose()
            }
        }
    }
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
    /// Who knows the producers.
    pub producers: Producers,
    /// Who still needs events.
    pub hold: HoldSource,
}

impl Retention {
    /// Works until the log closes.
    pub fn run(mut self, closing: &Closing) {
        loop {
            let settings = *self.settings.lock().unwrap_or_else(PoisonError::into_inner);
            if let Err(reason) = self.round(settings).and_then(|()| self.forget_idle(settings.producer_age)) {
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
                match owner.ask(Chore::Expire { floor: next, rows })? {
                    None => return Ok(()),
                    Some(deleted) if deleted < rows => break,
                    Some(_) => {}
                }
            }
        }
        Ok(())
    }

    /// Forgets the streams of producers that were idle for `age` and of which nothing is above the floor.
    fn forget_idle(&mut self, age: Duration) -> Result<(), String> {
        let idle_since = now_ms().saturating_sub(age.as_millis() as i64);
        for shard in 0..self.shards.len() {
            let mut after = FIRST_PRODUCER - 1;
            loop {
                let page = idle_streams(&self.shards[shard].0, after, idle_since, FORGET_STREAMS);
                let page = page.map_err(|error| error.to_string())?;
                let Some(last) = page.last() else { break };
                after = last.number;
                let mut ending = Vec::new();
                for key in page {
                    if let Some(holders) = self.let_go(&key, idle_since)? {
                        ending.push((key, holders));
                    }
                }
                if !self.forget(&ending)? {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Lets go of a stream if nothing is left of it and it is idle; the shards that know it then, the one with the greatest
    /// number last.
    fn let_go(&self, key: &StreamKey, idle_since: i64) -> Result<Option<Vec<usize>>, String> {
        let Some((end, _)) = self.holders(key.number, idle_since)? else { return Ok(None) };
        if !self.producers.let_go(key, end, idle_since) {
            return Ok(None);
        }
        // Of a closed epoch the last events may have been committed since.
        match self.holders(key.number, idle_since)? {
            Some((_, holders)) => Ok(Some(holders)),
            None => {
                self.producers.registry.keep(key);
                Ok(None)
            }
        }
    }

    /// The greatest number of a stream, and the shards that know it in the order of theirs; none if any of its events is
    /// left or was stored since `idle_since`.
    fn holders(&self, stream: u64, idle_since: i64) -> Result<Option<(u64, Vec<usize>)>, String> {
        let mut holders = Vec::new();
        for (shard, (connection, _)) in self.shards.iter().enumerate() {
            match remains(connection, stream).map_err(|error| error.to_string())? {
                None => {}
                Some(Remains { stored: true, .. }) => return Ok(None),
                Some(Remains { last_stored_at, .. }) if last_stored_at > idle_since => return Ok(None),
                Some(Remains { end, .. }) => holders.push((end, shard)),
            }
        }
        holders.sort_unstable();
        Ok(holders.last().map(|(end, _)| (*end, holders.iter().map(|(_, shard)| *shard).collect())))
    }

    /// Deletes streams that are let go from all shards; false if the log closes meanwhile.
    fn forget(&mut self, ending: &[(StreamKey, Vec<usize>)]) -> Result<bool, String> {
        for last in [false, true] {
            for shard in 0..self.shards.len() {
                let here: Vec<&StreamKey> = ending
                    .iter()
                    .filter(|(_, holders)| holders.contains(&shard) && (holders.last() == Some(&shard)) == last)
                    .map(|(key, _)| key)
                    .collect();
                if here.is_empty() {
                    continue;
                }
                let streams = here.iter().map(|key| key.number).collect();
                if self.shards[shard].1.ask(Chore::Forget { streams })?.is_none() {
                    return Ok(false);
                }
                if last {
                    for key in here {
                        tracing::info!(producer = %key.name, epoch = key.epoch, "idle producer forgotten");
                        self.producers.registry.forgotten(key);
                    }
                }
            }
        }
        Ok(true)
    }
}
