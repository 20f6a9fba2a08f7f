//! A table of events in Postgres as the log: its ticks, and its events between them.
//!
//! Every daemon that works on the table calls `lanes.tick` again and again; of two that do at once one makes the tick, and
//! both see it. An event is read once it is in a tick, and what is in a tick never changes. Postgres being away stops
//! the reading, and nothing else is needed to go on.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lanes_core::event::Event;
use lanes_core::place::Place;
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio_postgres::{Client, Config, Error, Row};
use uuid::Uuid;

use super::board::Board;
use super::dispatcher::Dispatcher;
use super::session::{Connection, connect, describe};
use super::source::{CHUNK_BYTES, CHUNK_EVENTS, Chunk, PlacedEvent};

/// Time between two ticks while there are new events.
const BUSY_INTERVAL: Duration = Duration::from_millis(50);

/// And while there are none.
const IDLE_INTERVAL: Duration = Duration::from_millis(400);

/// After so many ticks without anything new there is nothing to hurry for.
const IDLE_ROUNDS: u32 = 40;

/// Ticks that are remembered, to tell how far behind a lane is.
const REMEMBERED_TICKS: usize = 10_000;

const RECONNECT_INTERVAL: Duration = Duration::from_secs(1);

/// What is registered of the table.
#[derive(Debug, Clone)]
struct Registered {
    log_id: Uuid,
    /// Reads events between two snapshots, see [`TableReader::read_tick`].
    query: Arc<str>,
}

/// A tick, as far as it is remembered.
#[derive(Debug, Clone, Copy)]
struct Tick {
    number: u64,
    /// Events of the table up to it.
    events: u64,
    last_position: u64,
}

#[derive(Debug, Default)]
struct State {
    registered: Option<Registered>,
    ticks: VecDeque<Tick>,
}

/// The table, shared by all that read it.
#[derive(Debug)]
pub struct EventsTable {
    name: String,
    config: Config,
    state: Mutex<State>,
}

impl EventsTable {
    /// The table of this name, schema and all.
    pub fn new(name: &str, config: &Config) -> EventsTable {
        EventsTable { name: name.to_owned(), config: config.clone(), state: Mutex::default() }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The log's id, once the table was found.
    pub fn log_id(&self) -> Option<Uuid> {
        self.state().registered.as_ref().map(|registered| registered.log_id)
    }

    /// The end of the newest tick.
    pub fn head(&self) -> Place {
        let newest = self.state().ticks.back().copied();
        newest.map_or(Place::default(), |tick| Place { tick: tick.number, position: tick.last_position })
    }

    /// Events from a place to the end of the newest tick; those of a tick that is read in part count. At least so many, if
    /// the ticks of the place are forgotten.
    pub fn events_after(&self, place: Place) -> u64 {
        let state = self.state();
        let Some(newest) = state.ticks.back() else { return 0 };
        let first_open =
            state.ticks.partition_point(|tick| (tick.number, tick.last_position) <= (place.tick, place.position));
        let accounted = match first_open.checked_sub(1).and_then(|last| state.ticks.get(last)) {
            Some(tick) => tick.events,
            // The oldest one that is known is open.
            None if state.ticks.front().is_some_and(|tick| tick.number == 1) => 0,
            None => state.ticks.front().map_or(0, |tick| tick.events),
        };
        newest.events.saturating_sub(accounted)
    }

    /// Makes ticks until `stop` is true; `found` is notified when the table's log is known.
    pub async fn tick(
        self: Arc<Self>,
        dispatcher: Arc<Dispatcher>,
        board: Arc<Board>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut client = None;
        let mut quiet_rounds = 0;
        loop {
            let round = match client.take() {
                Some(connected) => self.round(connected).await,
                None => match connect(&self.config, "ingestd ticker").await {
                    Ok(connected) => self.round(connected).await,
                    Err(error) => Err(describe(&error)),
                },
            };
            let pause = match round {
                Ok((connected, is_new)) => {
                    client = Some(connected);
                    dispatcher.note_trouble(None);
                    quiet_rounds = if is_new { 0 } else { quiet_rounds + 1 };
                    if is_new {
                        dispatcher.horizon_moved();
                    }
                    if quiet_rounds < IDLE_ROUNDS { BUSY_INTERVAL } else { IDLE_INTERVAL }
                }
                Err(reason) => {
                    if self.log_id().is_none() {
                        // The reporter has nothing to say before the log is known.
                        board.set_postgres(Some(reason.clone()));
                    }
                    dispatcher.note_trouble(Some(reason));
                    RECONNECT_INTERVAL
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    /// One tick. Gives the client back, and whether there is something new to read.
    async fn round(&self, mut client: Connection) -> Result<(Connection, bool), String> {
        let log_id = match self.log_id() {
            Some(log_id) => log_id,
            None => self.find(&client).await?,
        };
        let known = self.head().tick;
        let newest = self.make_tick(&mut client).await.map_err(|error| describe(&error))?;
        // Null: another daemon is at it, and its tick may be there already.
        if newest.is_some_and(|newest| newest as u64 <= known) {
            return Ok((client, false));
        }
        let rows = self.ticks_after(&mut client, log_id, known).await.map_err(|error| describe(&error))?;
        let mut state = self.state();
        for row in &rows {
            let number = |column| row.try_get::<_, i64>(column).map(|number| number.max(0) as u64);
            let tick =
                (|| Ok::<_, Error>(Tick { number: number(0)?, events: number(1)?, last_position: number(2)? }))();
            state.ticks.push_back(tick.map_err(|error| describe(&error))?);
            if state.ticks.len() > REMEMBERED_TICKS {
                state.ticks.pop_front();
            }
        }
        drop(state);
        Ok((client, !rows.is_empty()))
    }

    /// Makes a tick if there is something new. Gives the number of the newest one, none while another session is at it.
    async fn make_tick(&self, client: &mut Connection) -> Result<Option<i64>, Error> {
        let statement = client.prepared("SELECT lanes.tick($1::text::regclass)").await?;
        client.query_one(&statement, &[&self.name]).await?.try_get(0)
    }

    /// The newest ticks after the one that is known.
    async fn ticks_after(&self, client: &mut Connection, log_id: Uuid, known: u64) -> Result<Vec<Row>, Error> {
        let statement = client.prepared(include_str!("../../../sql/queries/ticks.sql")).await?;
        client.query(&statement, &[&log_id, &(known as i64), &(REMEMBERED_TICKS as i64)]).await
    }

    /// Finds what is registered of the table.
    async fn find(&self, client: &Client) -> Result<Uuid, String> {
        let row = client
            .query_opt(include_str!("../../../sql/queries/events_table.sql"), &[&self.name])
            .await
            .map_err(|error| describe(&error))?;
        let Some(row) = row else {
            return Err(format!(
                "table {} is not a log: run SELECT lanes.register_log('{}') in its database",
                self.name, self.name
            ));
        };
        let (log_id, query): (Uuid, String) =
            row.try_get(0).and_then(|log_id| Ok((log_id, row.try_get(1)?))).map_err(|error| describe(&error))?;
        self.state().registered = Some(Registered { log_id, query: query.into() });
        Ok(log_id)
    }
}

/// Reads the table, on a connection of its own that is opened when it is needed.
pub struct TableReader {
    table: Arc<EventsTable>,
    runtime: Handle,
    client: Option<Connection>,
}

impl TableReader {
    /// A reader of the table. To be made where the runtime is.
    pub fn new(table: &Arc<EventsTable>) -> TableReader {
        TableReader { table: Arc::clone(table), runtime: Handle::current(), client: None }
    }

    /// The events after one place up to another, or the first of them. Blocks; not for a thread of the runtime.
    ///
    /// # Errors
    /// What Postgres says, in one line.
    pub fn read(&mut self, after: Place, until: Place) -> Result<Chunk, String> {
        let runtime = self.runtime.clone();
        runtime.block_on(async {
            let mut client = match self.client.take() {
                Some(client) => client,
                None => connect(&self.table.config, "ingestd reader").await.map_err(|error| describe(&error))?,
            };
            let chunk = self.read_with(&mut client, after, until).await.map_err(|error| describe(&error))?;
            self.client = Some(client);
            Ok(chunk)
        })
    }

    async fn read_with(&self, client: &mut Connection, after: Place, until: Place) -> Result<Chunk, Error> {
        let mut chunk = Chunk { events: Vec::new(), scanned_to: after };
        let mut bytes = 0;
        let Some(registered) = self.table.state().registered.clone() else { return Ok(chunk) };
        let next_tick = client.prepared(include_str!("../../../sql/queries/next_tick.sql")).await?;
        let read = client.prepared(&registered.query).await?;
        while chunk.scanned_to < until && chunk.events.len() < CHUNK_EVENTS as usize && bytes < CHUNK_BYTES {
            let at = chunk.scanned_to;
            let (tick, position) = (at.tick as i64, at.position as i64);
            let row = client.query_opt(&next_tick, &[&registered.log_id, &tick, &position]).await?;
            let Some(row) = row else { break };
            let (number, last_position): (i64, i64) = (row.try_get(0)?, row.try_get(1)?);
            let (before, snapshot): (Option<String>, String) = (row.try_get(2)?, row.try_get(3)?);
            if number as u64 > until.tick {
                chunk.scanned_to = until;
                break;
            }
            let after_position = if number == tick { position } else { 0 };
            let end = if number as u64 == until.tick { until.position as i64 } else { last_position };
            let room = CHUNK_EVENTS as i64 - chunk.events.len() as i64;
            let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                [&before, &snapshot, &after_position, &end, &room];
            let rows = client.query(&read, &parameters).await?;
            let is_whole = (rows.len() as i64) < room;
            let mut cut = false;
            for row in &rows {
                let event = Event {
                    event_type: row.try_get(1)?,
                    key: row.try_get(2)?,
                    ts: row.try_get(3)?,
                    payload: row.try_get(4)?,
                };
                bytes += event.size_bytes();
                let place = Place { tick: number as u64, position: row.try_get::<_, i64>(0)?.max(0) as u64 };
                chunk.scanned_to = place;
                chunk.events.push(PlacedEvent { place, event });
                if bytes >= CHUNK_BYTES {
                    cut = true;
                    break;
                }
            }
            if is_whole && !cut {
                chunk.scanned_to = Place { tick: number as u64, position: end.max(0) as u64 };
            }
        }
        Ok(chunk)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lag_counts_the_events_of_open_ticks() {
        let table = EventsTable::new("public.events", &Config::new());
        assert_eq!((table.head(), table.events_after(Place::default())), (Place::default(), 0));
        let ticks = [(1, 10, 10), (2, 15, 17), (3, 25, 12)];
        table.state().ticks.extend(ticks.map(|(number, events, last_position)| Tick { number, events, last_position }));
        let place = |tick, position| Place { tick, position };
        assert_eq!(table.head(), place(3, 12));
        for (at, lag) in [((1, 0), 25), ((1, 9), 25), ((1, 10), 15), ((2, 16), 15), ((2, 17), 10), ((3, 12), 0)] {
            assert_eq!(table.events_after(place(at.0, at.1)), lag, "{at:?}");
        }
        table.state().ticks.pop_front();
        assert_eq!(table.events_after(place(1, 3)), 10, "at least so many");
    }
}
