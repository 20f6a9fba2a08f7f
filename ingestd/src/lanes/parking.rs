//! Batches with an event that cannot be applied, and retries of parked keys.
//!
//! The batch is done again in parts under savepoints. A part that fails for its data is halved until one event is left:
//! it is parked with its key, skipped, or the lane stops before it, as the projection's policy says. Events of parked
//! keys wait behind the first one. All of it is in the one transaction that moves the checkpoint past these events
//! (LANE-2, LANE-4). Each part ends with `SET CONSTRAINTS ALL IMMEDIATE`, so that a deferred constraint fails where its
//! event is.
//!
//! A bad deploy is not bad data: when too many keys fail, nothing is parked and the lane stops.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use lanes_core::event::Event;
use lanes_core::place::Place;
use lanes_core::projection::policy::{Backoff, OnError};
use lanes_core::projection::{DataError, EventView, Fold, Policy, Projection};
use tokio::time::Instant;
use tokio_postgres::types::ToSql;

use super::batch::Tally;
use super::failure::Failure;
use super::owned::Owned;
use super::session::{Fault, classify, describe};
use super::source::PlacedEvent;
use super::worker::Session;
use crate::projection::upsert::{self, Parameter};

/// A parked key: its slot and text.
pub type ParkedKey = (u32, String);

/// The parked keys of a lane, each with the time of its next try; none: when it is asked for.
pub type Parked = HashMap<ParkedKey, Option<Instant>>;

/// More failing keys than this in one transaction, and more than a tenth of its keys, stop the lane.
const MANY_KEYS: usize = 10;

/// The most events that are done in parts in one transaction. It is what the lane is judged by, and does not grow with how
/// far it is behind: else a long batch would have as many failing keys of some bad data as a bad deploy has.
pub(super) const EVENTS_IN_PARTS: usize = 1000;

/// So many failing events without one that could be applied stop the lane.
const MANY_IN_A_ROW: u32 = 25;

/// Undoes a part. Without the release the next part would be nested in what is left of this one.
const UNDO_PART: &str = "ROLLBACK TO SAVEPOINT part; RELEASE SAVEPOINT part";

/// The most parked events of a key that are applied in one transaction.
const RETRY_EVENTS: i32 = 1000;

/// What went wrong with an event, for people and for `sqlstate` columns.
#[derive(Debug, Clone)]
struct Reason {
    sqlstate: String,
    text: String,
}

impl From<DataError> for Reason {
    fn from(error: DataError) -> Reason {
        // data_exception, as Postgres would have called it.
        Reason { sqlstate: "22000".to_owned(), text: error.to_string() }
    }
}

/// Why a part of a batch was not applied.
enum PartFailure {
    /// Everything of the transaction is lost.
    Batch(Failure),
    /// The first event of the part cannot be applied.
    First(Reason),
    /// The event at this place cannot be applied.
    At(usize),
    /// Some event of the part cannot be applied.
    Some(Reason),
}

/// What a transaction has done so far.
#[derive(Default)]
struct Outcome<'e> {
    /// Events that wait, with the reason where it parks the key, in order.
    parked: Vec<(&'e PlacedEvent, ParkedKey, Option<Reason>)>,
    skipped: Vec<(&'e PlacedEvent, String, Option<Reason>)>,
    /// Keys parked by this batch.
    failed: HashSet<ParkedKey>,
    skipped_null_key: u64,
    applied: usize,
}

/// The time until a key is tried again after its `attempts`-th failure; none when it has had its tries.
pub fn retry_after(policy: &Policy, attempts: u32) -> Option<Duration> {
    if attempts >= policy.max_attempts {
        return None;
    }
    let pause = match policy.backoff {
        Backoff::None => Duration::from_millis(100),
        Backoff::Fixed => Duration::from_secs(10),
        Backoff::Exponential => {
            let seconds = 1u64.checked_shl(attempts.saturating_sub(1)).unwrap_or(u64::MAX);
            Duration::from_secs(seconds.min(600))
        }
    };
    Some(jittered(pause))
}

/// A pause up to a fifth longer or shorter, so that those who failed together do not come back together.
pub fn jittered(pause: Duration) -> Duration {
    let random = RandomState::new().hash_one(0) % 401;
    pause * (800 + random as u32) / 1000
}

fn milliseconds(pause: Option<Duration>) -> Option<i64> {
    pause.map(|pause| i64::try_from(pause.as_millis()).unwrap_or(i64::MAX))
}

/// The events of a batch as the arrays that `lanes.park` and `lanes.skip_failed` take.
#[derive(Default)]
struct Columns<'e> {
    slots: Vec<i32>,
    keys: Vec<&'e str>,
    ticks: Vec<i64>,
    positions: Vec<i64>,
    types: Vec<&'e str>,
    event_keys: Vec<&'e str>,
    times: Vec<i64>,
    payloads: Vec<&'e str>,
    sqlstates: Vec<Option<&'e str>>,
    errors: Vec<Option<&'e str>>,
}

impl<'e> Columns<'e> {
    fn push(&mut self, placed: &'e PlacedEvent, slot: u32, key: &'e str, reason: Option<&'e Reason>) {
        self.slots.push(slot as i32);
        self.keys.push(key);
        self.ticks.push(placed.place.tick as i64);
        self.positions.push(placed.place.position as i64);
        self.types.push(&placed.event.event_type);
        self.event_keys.push(&placed.event.key);
        self.times.push(placed.event.ts);
        self.payloads.push(&placed.event.payload);
        self.sqlstates.push(reason.map(|reason| reason.sqlstate.as_str()));
        self.errors.push(reason.map(|reason| reason.text.as_str()));
    }
}

impl Session<'_> {
    /// Reads the lane's parked keys as they are now.
    pub(super) async fn read_parked(&mut self, lane: &mut Owned) -> Result<(), Failure> {
        let statement = self.client.prepared("SELECT slot, key, next_try_ms FROM lanes.parked_keys($1, $2)").await?;
        let parameters: [&(dyn ToSql + Sync); 2] = [&&*lane.id.projection, &(lane.id.lane as i32)];
        let rows = self.client.query(&statement, &parameters).await?;
        let now = Instant::now();
        let mut parked = Parked::with_capacity(rows.len());
        for row in rows {
            let (slot, key, wait): (i32, String, Option<i64>) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
            let next = wait.map(|wait| now + Duration::from_millis(wait.max(0) as u64));
            parked.insert((slot.max(0) as u32, key), next);
        }
        (lane.parked, lane.parked_unread) = (parked, false);
        self.shared.board.set_parked(&lane.id, lane.parked.len());
        Ok(())
    }

    /// Applies a batch that may hold events which cannot be applied, or which wait behind such ones.
    pub(super) async fn apply_in_parts(
        &mut self,
        lane: &mut Owned,
        rules: &Projection,
        events: &[&PlacedEvent],
        to: Place,
    ) -> Result<(), Failure> {
        let table = self.begin(lane, to).await?;
        self.read_parked(lane).await?;
        let skips = self.skips_ahead(lane).await?;
        let slots = lane.known.slots();
        let views: Vec<EventView<'_>> =
            events.iter().map(|placed| EventView::new(placed.place.position, &placed.event)).collect();
        let mut keys: Vec<ParkedKey> = Vec::with_capacity(events.len());
        keys.extend(views.iter().map(|view| rules.parking_place(view, slots)));

        let mut outcome = Outcome::default();
        // A try that is not committed does not count.
        let mut in_a_row = lane.failed_in_a_row;
        let mut noted = HashSet::new();
        let mut stop: Option<(Place, Reason)> = None;
        // Parts still to do, the next one last.
        let mut parts = Vec::new();
        parts.push(0..events.len());
        'parts: while let Some(range) = parts.pop() {
            let mut part = Vec::with_capacity(range.len());
            for index in range {
                let (placed, place) = (events[index], &keys[index]);
                let skip = skips.contains(&placed.place.position);
                if !skip && !lane.parked.contains_key(place) && !outcome.failed.contains(place) {
                    part.push(index);
                } else if noted.insert(placed.place.position) {
                    // A part is looked at again when it was halved, but an event waits once.
                    match skip {
                        true => outcome.skipped.push((placed, place.1.clone(), None)),
                        false => outcome.parked.push((placed, place.clone(), None)),
                    }
                }
            }
            let (Some(first), Some(last)) = (part.first().copied(), part.last().copied()) else { continue };
            let chosen: Vec<&EventView<'_>> = part.iter().map(|index| &views[*index]).collect();
            let reason = match self.apply_part(lane, rules, &table, &chosen).await {
                Ok(skipped_null_key) => {
                    outcome.skipped_null_key += skipped_null_key;
                    outcome.applied += part.len();
                    continue;
                }
                Err(PartFailure::Batch(failure)) => return Err(failure),
                Err(PartFailure::At(place)) => {
                    let middle = part[place];
                    parts.push(middle..last + 1);
                    parts.push(first..middle);
                    continue;
                }
                Err(PartFailure::Some(reason)) if part.len() == 1 => reason,
                Err(PartFailure::Some(_)) => {
                    let middle = part[part.len() / 2];
                    parts.push(middle..last + 1);
                    parts.push(first..middle);
                    continue;
                }
                Err(PartFailure::First(reason)) => {
                    parts.push(first + 1..last + 1);
                    reason
                }
            };
            let (placed, place) = (events[first], keys[first].clone());
            match rules.policy.on_error {
                OnError::Block => {
                    stop = Some((placed.place, reason));
                    break 'parts;
                }
                OnError::Skip => {
                    in_a_row += 1;
                    outcome.skipped.push((placed, place.1, Some(reason)));
                }
                OnError::Park => {
                    in_a_row += 1;
                    outcome.parked.push((placed, place.clone(), Some(reason)));
                    outcome.failed.insert(place);
                }
            }
            if outcome.applied > 0 {
                in_a_row = 0;
            }
            check_breaker(in_a_row, &keys, &outcome)?;
        }
        let to = stop.as_ref().map_or(to, |(place, _)| place.before());
        // What lies beyond comes again.
        outcome.parked.retain(|(placed, ..)| placed.place <= to);
        outcome.skipped.retain(|(placed, ..)| placed.place <= to);
        self.record(lane, rules, &outcome).await?;
        // Until they were read again: later events of these keys have to wait from now on (LANE-3).
        lane.parked_unread |= !outcome.failed.is_empty();
        if to > lane.place || !outcome.parked.is_empty() || !outcome.skipped.is_empty() {
            let done = events.iter().take_while(|placed| placed.place <= to).copied().collect::<Vec<_>>();
            self.commit(lane, to.max(lane.place), Tally::of(&done, outcome.skipped_null_key)).await?;
        } else {
            self.client.roll_back().await?;
        }
        lane.failed_in_a_row = if outcome.applied > 0 { 0 } else { in_a_row };
        if !outcome.failed.is_empty() {
            for (placed, (_, key), reason) in &outcome.parked {
                if let Some(reason) = reason {
                    tracing::warn!(projection = %lane.id.projection, lane = lane.id.lane, position = placed.place.position,
                        key, "key parked: {}", reason.text);
                }
            }
            self.read_parked(lane).await?;
        }
        for (placed, key, reason) in &outcome.skipped {
            let reason = reason.as_ref().map_or("it was asked for", |reason| reason.text.as_str());
            tracing::warn!(projection = %lane.id.projection, lane = lane.id.lane, position = placed.place.position, key,
                "event skipped: {reason}");
        }
        match stop {
            None => Ok(()),
            Some((place, reason)) => Err(Failure::AtEvent(place.position, reason.text)),
        }
    }

    /// Applies events of a batch under a savepoint. Gives how many had no key.
    async fn apply_part(
        &mut self,
        lane: &Owned,
        rules: &Projection,
        table: &str,
        part: &[&EventView<'_>],
    ) -> Result<u64, PartFailure> {
        let batch = |error: tokio_postgres::Error| PartFailure::Batch(error.into());
        self.client.batch_execute("SAVEPOINT part; SET CONSTRAINTS ALL DEFERRED").await.map_err(batch)?;
        let mut skipped_null_key = 0;
        // With statements of `sql`, events of one type at a time, so that the order of types is kept.
        for run in runs(rules, part) {
            let mut fold = Fold::new(rules, lane.id.lane);
            let mut seen: Vec<&EventView<'_>> = Vec::new();
            for (at, view) in run.iter().enumerate() {
                let place = if rules.has_statements() { fold.has_place(view) } else { Ok(true) };
                let added = place.and_then(|has_place| {
                    if has_place && rules.has_statements() {
                        seen.push(view);
                    }
                    fold.add(view)
                });
                if let Err(error) = added {
                    self.client.batch_execute(UNDO_PART).await.map_err(batch)?;
                    let at = at + part.iter().position(|first| first.position() == run[0].position()).unwrap_or(0);
                    return Err(if at == 0 { PartFailure::First(error.into()) } else { PartFailure::At(at) });
                }
            }
            let folded = fold.finish();
            skipped_null_key += folded.skipped_null_key;
            if let Err(failure) = self.write(lane, rules, table, folded, &seen).await {
                let reason = match failure {
                    WriteFailure::OutOfRange(text) => Reason { sqlstate: "22003".to_owned(), text },
                    WriteFailure::Postgres(error) => self.reason_of(lane, rules, error)?,
                };
                self.client.batch_execute(UNDO_PART).await.map_err(batch)?;
                return Err(PartFailure::Some(reason));
            }
        }
        let ended = self.client.batch_execute("SET CONSTRAINTS ALL IMMEDIATE; RELEASE SAVEPOINT part").await;
        if let Err(error) = ended {
            let reason = self.reason_of(lane, rules, error)?;
            self.client.batch_execute(UNDO_PART).await.map_err(batch)?;
            return Err(PartFailure::Some(reason));
        }
        Ok(skipped_null_key)
    }

    /// The reason of an error that lies in the data; any other error ends the batch.
    fn reason_of(&self, lane: &Owned, rules: &Projection, error: tokio_postgres::Error) -> Result<Reason, PartFailure> {
        let is_data = match classify(&error) {
            Fault::Data => true,
            // A statement that is canceled again and again is canceled for its data.
            Fault::Canceled => lane.failures >= rules.policy.max_attempts,
            _ => false,
        };
        if !is_data {
            return Err(PartFailure::Batch(error.into()));
        }
        let sqlstate = error.code().map_or("XX000", |code| code.code()).to_owned();
        Ok(Reason { sqlstate, text: describe(&error) })
    }

    /// Writes what a fold did, then has the statement of the events' type see them.
    pub(super) async fn write(
        &mut self,
        lane: &Owned,
        rules: &Projection,
        table: &str,
        folded: lanes_core::projection::Folded,
        seen: &[&EventView<'_>],
    ) -> Result<(), WriteFailure> {
        let statements =
            upsert::statements(rules, table, folded).map_err(|error| WriteFailure::OutOfRange(error.to_string()))?;
        for statement in statements {
            let prepared = self.client.prepared(&statement.sql).await?;
            let parameters: Vec<_> = statement.parameters.iter().map(Parameter::as_sql).collect();
            self.client.execute(&prepared, &parameters).await?;
        }
        let Some(first) = seen.first() else { return Ok(()) };
        let source = rules.source_event(&first.event().event_type);
        let Some(Some(statement)) = source.and_then(|source| rules.statements.get(source)) else { return Ok(()) };
        let rows = "SELECT position, type, key, ts, $6::integer, payload::jsonb \
                    FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::text[]) \
                    AS e (position, type, key, ts, payload)";
        let prepared = self.client.prepared(&statement.sql(table, rows)).await?;
        let positions: Vec<i64> = seen.iter().map(|view| view.position() as i64).collect();
        let types: Vec<&str> = seen.iter().map(|view| view.event().event_type.as_str()).collect();
        let keys: Vec<&str> = seen.iter().map(|view| view.event().key.as_str()).collect();
        let times: Vec<i64> = seen.iter().map(|view| view.event().ts).collect();
        let payloads: Vec<&str> = seen.iter().map(|view| view.event().payload.as_str()).collect();
        let lane = lane.id.lane as i32;
        let parameters: [&(dyn ToSql + Sync); 6] = [&positions, &types, &keys, &times, &payloads, &lane];
        self.client.query(&prepared, &parameters).await?;
        Ok(())
    }

    /// Writes the rows of events that wait or are skipped.
    async fn record(&mut self, lane: &Owned, rules: &Projection, outcome: &Outcome<'_>) -> Result<(), Failure> {
        let (projection, number) = (&*lane.id.projection, lane.id.lane as i32);
        if !outcome.parked.is_empty() {
            let mut columns = Columns::default();
            for (placed, (slot, key), reason) in &outcome.parked {
                columns.push(placed, *slot, key, reason.as_ref());
            }
            let retry = milliseconds(retry_after(&rules.policy, 1));
            let statement = self
                .client
                .prepared("SELECT lanes.park($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14)")
                .await?;
            let parameters: [&(dyn ToSql + Sync); 14] = [
                &projection,
                &number,
                &lane.epoch,
                &columns.slots,
                &columns.keys,
                &columns.positions,
                &columns.types,
                &columns.event_keys,
                &columns.times,
                &columns.payloads,
                &columns.sqlstates,
                &columns.errors,
                &retry,
                &columns.ticks,
            ];
            let waiting: i64 = self.client.query_one(&statement, &parameters).await?.try_get(0)?;
            if waiting > i64::from(rules.policy.parked_limit) {
                return Err(Failure::Permanent(format!(
                    "{waiting} events of the projection would be parked, and parked_limit is {}: mend the cause and \
                     have the parked keys retried, or raise the limit",
                    rules.policy.parked_limit
                )));
            }
        }
        if !outcome.skipped.is_empty() {
            let mut columns = Columns::default();
            for (placed, key, reason) in &outcome.skipped {
                columns.push(placed, 0, key, reason.as_ref());
            }
            let statement =
                self.client.prepared("SELECT lanes.skip_failed($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)").await?;
            let parameters: [&(dyn ToSql + Sync); 11] = [
                &projection,
                &number,
                &lane.epoch,
                &columns.keys,
                &columns.positions,
                &columns.types,
                &columns.event_keys,
                &columns.times,
                &columns.payloads,
                &columns.sqlstates,
                &columns.errors,
            ];
            self.client.query_one(&statement, &parameters).await?;
        }
        Ok(())
    }

    async fn skips_ahead(&mut self, lane: &Owned) -> Result<HashSet<u64>, Failure> {
        let statement = self.client.prepared("SELECT position FROM lanes.skips_ahead($1, $2) AS position").await?;
        let parameters: [&(dyn ToSql + Sync); 2] = [&&*lane.id.projection, &(lane.id.lane as i32)];
        let rows = self.client.query(&statement, &parameters).await?;
        rows.iter().map(|row| Ok(row.try_get::<_, i64>(0)?.max(0) as u64)).collect()
    }

    /// Tries the parked keys that are due. Gives whether there was one.
    pub(super) async fn retry_parked(&mut self, lane: &mut Owned) -> Result<bool, Failure> {
        let now = Instant::now();
        let due = lane.parked.iter().find(|(_, next)| next.is_some_and(|next| next <= now));
        let Some(place) = due.map(|(place, _)| place.clone()) else { return Ok(false) };
        let known = std::sync::Arc::clone(&lane.known);
        let rules = known.rules.as_ref().map_err(|reason| Failure::Permanent(reason.clone()))?;
        let retried = self.retry_key(lane, rules, &place).await;
        if let Err(Failure::Transient(_) | Failure::Permanent(_)) = &retried {
            // The batch loop will meet the same trouble; the key must not be tried in a tight loop meanwhile.
            lane.parked.insert(place, Some(now + jittered(Duration::from_secs(1))));
        }
        retried.map(|()| true)
    }

    async fn retry_key(&mut self, lane: &mut Owned, rules: &Projection, place: &ParkedKey) -> Result<(), Failure> {
        let table = self.begin(lane, lane.place).await?;
        let statement = self
            .client
            .prepared(
                "SELECT position, event_type, event_key, event_ts, payload, attempts, tick \
                 FROM lanes.parked_events($1, $2, $3, $4)",
            )
            .await?;
        let projection = &*lane.id.projection;
        let slot = place.0 as i32;
        let parameters: [&(dyn ToSql + Sync); 4] = [&projection, &slot, &place.1, &RETRY_EVENTS];
        let rows = self.client.query(&statement, &parameters).await?;
        let mut events = Vec::with_capacity(rows.len());
        let mut attempts: i32 = 0;
        for row in &rows {
            let event = Event {
                event_type: row.try_get(1)?,
                key: row.try_get(2)?,
                ts: row.try_get(3)?,
                payload: row.try_get(4)?,
            };
            let place = Place { tick: row.try_get::<_, i64>(6)? as u64, position: row.try_get::<_, i64>(0)? as u64 };
            events.push(PlacedEvent { place, event });
            attempts = row.try_get(5)?;
        }
        let views: Vec<EventView<'_>> =
            events.iter().map(|placed| EventView::new(placed.place.position, &placed.event)).collect();
        let (mut applied, mut skipped_null_key, mut failed) = (0, 0, None);
        let mut length = views.len();
        while applied < views.len() && length > 0 {
            let part: Vec<&EventView<'_>> = views[applied..(applied + length).min(views.len())].iter().collect();
            match self.apply_part(lane, rules, &table, &part).await {
                Ok(skipped) => {
                    applied += part.len();
                    skipped_null_key += skipped;
                }
                Err(PartFailure::Batch(failure)) => return Err(failure),
                Err(PartFailure::At(place)) => length = place,
                Err(PartFailure::Some(reason)) if part.len() == 1 => {
                    failed = Some(reason);
                    break;
                }
                Err(PartFailure::Some(_)) => length = part.len() / 2,
                Err(PartFailure::First(reason)) => {
                    failed = Some(reason);
                    break;
                }
            }
        }
        let applied_to = applied.checked_sub(1).map_or(Place::default(), |last| events[last].place);
        let attempts = if applied > 0 { 1 } else { attempts.max(0) as u32 + 1 };
        let retry = failed.as_ref().and_then(|_| milliseconds(retry_after(&rules.policy, attempts)));
        let (sqlstate, error) = failed.map(|reason| (reason.sqlstate, reason.text)).unzip();
        let statement = self.client.prepared("SELECT lanes.unpark($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)").await?;
        let number = lane.id.lane as i32;
        let parameters: [&(dyn ToSql + Sync); 10] = [
            &projection,
            &number,
            &lane.epoch,
            &slot,
            &place.1,
            &(applied_to.position as i64),
            &sqlstate,
            &error,
            &retry,
            &(applied_to.tick as i64),
        ];
        let freed: bool = self.client.query_one(&statement, &parameters).await?.try_get(0)?;
        self.commit(lane, lane.place, Tally::of(&[], skipped_null_key)).await?;
        if freed {
            tracing::info!(projection = %lane.id.projection, lane = lane.id.lane, key = place.1, applied,
                "parked key applied");
        } else if let Some(error) = error {
            tracing::warn!(projection = %lane.id.projection, lane = lane.id.lane, key = place.1, applied,
                "parked key failed again: {error}");
        }
        self.read_parked(lane).await
    }
}

/// Tells a bad deploy from bad data, by the keys and the events that fail.
fn check_breaker(in_a_row: u32, keys: &[ParkedKey], outcome: &Outcome<'_>) -> Result<(), Failure> {
    let failed = outcome.failed.len();
    let latest = outcome.parked.iter().rev().find_map(|(_, _, reason)| reason.as_ref());
    let latest = latest.or_else(|| outcome.skipped.last().and_then(|(_, _, reason)| reason.as_ref()));
    let latest = latest.map_or("", |reason| reason.text.as_str());
    if failed > MANY_KEYS {
        let all: HashSet<&ParkedKey> = keys.iter().collect();
        if failed * 10 > all.len() {
            return Err(Failure::Permanent(format!(
                "too many keys fail: {failed} of the {} keys of one transaction, so nothing of it is parked; the latest: {latest}",
                all.len()
            )));
        }
    }
    if in_a_row > MANY_IN_A_ROW {
        return Err(Failure::Permanent(format!(
            "too many events fail: {in_a_row} in a row without one that could be applied; the latest: {latest}"
        )));
    }
    Ok(())
}

/// Why a part's rows could not be written.
pub(super) enum WriteFailure {
    /// A sum that its column cannot hold.
    OutOfRange(String),
    /// Postgres refused.
    Postgres(tokio_postgres::Error),
}

impl From<tokio_postgres::Error> for WriteFailure {
    fn from(error: tokio_postgres::Error) -> WriteFailure {
        WriteFailure::Postgres(error)
    }
}

/// Events in runs of one type where the projection has statements; else all at once.
pub(super) fn runs<'a, 'e>(rules: &Projection, events: &'a [&'a EventView<'e>]) -> Vec<&'a [&'a EventView<'e>]> {
    if rules.has_statements() {
        events.chunk_by(|left, right| left.event().event_type == right.event().event_type).collect()
    } else {
        vec![events]
    }
}
