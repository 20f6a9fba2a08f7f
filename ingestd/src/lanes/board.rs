//! What the daemon knows of each lane, for its status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lanes_core::place::Place;
use serde::{Deserialize, Serialize};

use super::catalog::{Catalog, LaneId};
use super::source::Source;

/// What a lane does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LaneState {
    /// This daemon does not own it.
    Unowned,
    /// It is behind the shared reader and reads for itself.
    CatchingUp,
    /// It takes part in the shared reader.
    Running,
    /// A batch failed for a reason that passes; it is tried again.
    BackingOff,
    /// A batch cannot be applied; it is tried again less and less often.
    Stopped,
    /// It waits for the next time of its schedule.
    Scheduled,
    /// It gives way to lanes of higher priority.
    Paused,
    /// It stands where a change of the map has it wait for other lanes.
    WaitingAtStop,
}

/// What the status shows of a lane.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LaneReport {
    /// The projection's name.
    pub projection: String,
    /// The lane's number.
    pub lane: u32,
    /// What it does.
    pub state: LaneState,
    /// The tick of its checkpoint, in an events table; 0 in a log of the daemon's.
    #[serde(default)]
    pub tick: u64,
    /// Its checkpoint, as last seen or committed by this daemon.
    pub position: u64,
    /// Events between checkpoint and horizon, whoever they belong to.
    pub lag: u64,
    /// Keys whose events wait because one could not be applied.
    pub parked_keys: usize,
    /// Why it backs off, is stopped or paused, or what it waits for.
    pub reason: Option<String>,
}

impl LaneReport {
    /// Its checkpoint.
    pub fn place(&self) -> Place {
        Place { tick: self.tick, position: self.position }
    }
}

#[derive(Debug, Clone)]
struct Entry {
    state: LaneState,
    place: Place,
    parked_keys: usize,
    reason: Option<String>,
}

#[derive(Debug, Default)]
struct State {
    postgres: Option<String>,
    lanes: BTreeMap<LaneId, Entry>,
}

/// The lanes of the daemon's log, shared by all that work on them.
#[derive(Debug, Default)]
pub struct Board(Mutex<State>);

impl Board {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes which lanes there are.
    pub fn set_catalog(&self, catalog: &Catalog) {
        let mut state = self.state();
        let mut lanes = std::mem::take(&mut state.lanes);
        for projection in &catalog.projections {
            for lane in projection.lanes() {
                let id = LaneId { projection: Arc::clone(&projection.name), lane: *lane };
                let entry = lanes.remove(&id).unwrap_or(Entry {
                    state: LaneState::Unowned,
                    place: Place::default(),
                    parked_keys: 0,
                    reason: projection.rules.as_ref().err().cloned(),
                });
                state.lanes.insert(id, entry);
            }
        }
    }

    /// Notes a lane's state and why.
    pub fn set(&self, id: &LaneId, state: LaneState, reason: Option<String>) {
        if let Some(entry) = self.state().lanes.get_mut(id) {
            entry.state = state;
            entry.reason = reason;
        }
    }

    /// Notes a lane's checkpoint.
    pub fn set_place(&self, id: &LaneId, place: Place) {
        if let Some(entry) = self.state().lanes.get_mut(id) {
            entry.place = place;
        }
    }

    /// Notes the checkpoints that Postgres has, of lanes that this daemon does not own.
    pub fn set_foreign_places<'a>(&self, places: impl Iterator<Item = (&'a LaneId, Place)>) {
        let mut state = self.state();
        for (id, place) in places {
            if let Some(entry) = state.lanes.get_mut(id).filter(|entry| entry.state == LaneState::Unowned) {
                entry.place = place;
            }
        }
    }

    /// Notes how many keys of a lane are parked.
    pub fn set_parked(&self, id: &LaneId, keys: usize) {
        if let Some(entry) = self.state().lanes.get_mut(id) {
            entry.parked_keys = keys;
        }
    }

    /// Notes why Postgres cannot be used; none if it can.
    pub fn set_postgres(&self, trouble: Option<String>) {
        self.state().postgres = trouble;
    }

    /// Why Postgres cannot be used; none if it can.
    pub fn postgres(&self) -> Option<String> {
        self.state().postgres.clone()
    }

    /// All lanes, with their lag behind the horizon of the log.
    pub fn report(&self, source: &Source) -> Vec<LaneReport> {
        let report = |(id, entry): (&LaneId, &Entry)| LaneReport {
            projection: id.projection.to_string(),
            lane: id.lane,
            state: entry.state,
            tick: entry.place.tick,
            position: entry.place.position,
            lag: source.lag(entry.place),
            parked_keys: entry.parked_keys,
            reason: entry.reason.clone(),
        };
        self.state().lanes.iter().map(report).collect()
    }
}
