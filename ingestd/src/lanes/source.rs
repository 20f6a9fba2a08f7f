//! The log that lanes read: the daemon's own, in store shards, or a table of events in Postgres.

use std::path::PathBuf;
use std::sync::Arc;

use lanes_core::event::Event;
use lanes_core::place::Place;
use uuid::Uuid;

use super::events_table::{EventsTable, TableReader};
use crate::log::horizon::Horizon;
use crate::log::reader::LogReader;

/// The most events that are read at once. Each lane gets its part of them, so few would make small transactions.
pub const CHUNK_EVENTS: u64 = 8192;

/// The bytes of events after which a chunk ends.
pub const CHUNK_BYTES: usize = 4 << 20;

/// An event and its place.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlacedEvent {
    /// Where it is in the log.
    pub place: Place,
    /// What it says.
    pub event: Event,
}

/// Events that follow each other.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Chunk {
    /// They, in order.
    pub events: Vec<PlacedEvent>,
    /// There is no other event up to here.
    pub scanned_to: Place,
}

/// Where the log is.
pub enum Source {
    /// In store shards of this daemon.
    Files {
        /// The log's id.
        log_id: Uuid,
        /// Where they are.
        directory: PathBuf,
        /// How far it may be read.
        horizon: Arc<Horizon>,
        /// The position up to which retention has deleted.
        floor: Box<dyn Fn() -> u64 + Send + Sync>,
    },
    /// In a table.
    Table(Arc<EventsTable>),
}

impl Source {
    /// The log's id; none while a table was not found yet.
    pub fn log_id(&self) -> Option<Uuid> {
        match self {
            Source::Files { log_id, .. } => Some(*log_id),
            Source::Table(table) => table.log_id(),
        }
    }

    /// The place up to which lanes may read.
    pub fn horizon(&self) -> Place {
        match self {
            Source::Files { horizon, .. } => Place::at(horizon.position()),
            Source::Table(table) => table.head(),
        }
    }

    /// How many events lie between a place and the horizon, whoever they belong to.
    pub fn lag(&self, place: Place) -> u64 {
        match self {
            Source::Files { horizon, .. } => horizon.position().saturating_sub(place.position),
            Source::Table(table) => table.events_after(place),
        }
    }

    /// The position up to which events were deleted.
    pub fn floor(&self) -> u64 {
        match self {
            Source::Files { floor, .. } => floor(),
            Source::Table(_) => 0,
        }
    }

    /// Why a lane with this checkpoint cannot go on in this log; none if it can.
    pub fn out_of_place(&self, place: Place) -> Option<String> {
        // The ticks of a table are in the database of the checkpoints, and restored with them.
        let Source::Files { horizon, floor, .. } = self else { return None };
        let (position, horizon, floor) = (place.position, horizon.position(), floor());
        if position > horizon {
            Some(format!(
                "the checkpoint is {position}, above the log's horizon {horizon}: the log or Postgres was restored from \
                 an older copy"
            ))
        } else if position < floor {
            Some(format!(
                "the checkpoint is {position}, below the log's floor {floor}: Postgres was restored from an older copy, and \
                 the events between are deleted"
            ))
        } else {
            None
        }
    }

    /// A reader of the log.
    ///
    /// # Errors
    /// Why it cannot be read, in one line.
    pub fn reader(&self) -> Result<Reader, String> {
        Ok(match self {
            Source::Files { directory, .. } => {
                Reader::Files(LogReader::open(directory).map_err(|error| error.to_string())?)
            }
            Source::Table(table) => Reader::Table(TableReader::new(table)),
        })
    }
}

/// Reads the log.
pub enum Reader {
    /// In store shards.
    Files(LogReader),
    /// In a table.
    Table(TableReader),
}

impl Reader {
    /// The events after one place up to another, or the first of them. Blocks.
    ///
    /// # Errors
    /// Why it cannot be read, in one line.
    pub fn read(&mut self, after: Place, until: Place) -> Result<Chunk, String> {
        match self {
            Reader::Files(reader) => {
                let read = reader.read(after.position, until.position, CHUNK_EVENTS, CHUNK_BYTES);
                let chunk = read.map_err(|error| error.to_string())?;
                let placed = chunk
                    .events
                    .into_iter()
                    .map(|stored| PlacedEvent { place: Place::at(stored.position), event: stored.event });
                Ok(Chunk { events: placed.collect(), scanned_to: Place::at(chunk.scanned_to) })
            }
            Reader::Table(reader) => reader.read(after, until),
        }
    }
}
