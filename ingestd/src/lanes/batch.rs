//! A batch: one transaction that writes the folded rows and moves the checkpoint.
//!
//! The transaction locks the lane's row and checks epoch, log, map and place (`lanes.begin_batch`), writes the folded
//! rows, and moves the checkpoint last (`lanes.commit_batch`), so rows and checkpoint are one (LANE-1, LANE-2). What
//! became of a COMMIT without an answer is settled by the next claim, which tells the checkpoint.

use std::sync::Arc;

use lanes_core::place::Place;
use lanes_core::projection::{DataError, EventView, Fold, Projection};
use tokio_postgres::types::ToSql;

use super::failure::Failure;
use super::owned::Owned;
use super::parking::{EVENTS_IN_PARTS, WriteFailure, runs};
use super::source::PlacedEvent;
use super::worker::Session;

/// What a batch adds to the figures of its lane.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Tally {
    /// Events without a lane key or a row key.
    pub(super) skipped_null_key: u64,
    /// Events.
    events: u64,
    /// The time of the last one, in milliseconds.
    event_time: Option<i64>,
}

impl Tally {
    /// That of these events.
    pub(super) fn of(events: &[&PlacedEvent], skipped_null_key: u64) -> Tally {
        let event_time = events.last().map(|placed| placed.event.ts);
        Tally { skipped_null_key, events: events.len() as u64, event_time }
    }
}

impl Session<'_> {
    /// Applies events, all of which the lane has not seen, and moves the checkpoint to `to`.
    pub(super) async fn apply(&mut self, lane: &mut Owned, events: &[&PlacedEvent], to: Place) -> Result<(), Failure> {
        let known = Arc::clone(&lane.known);
        let rules = known.rules.as_ref().map_err(|reason| Failure::Permanent(reason.clone()))?;
        // A statement that is canceled again and again is canceled for its data: in parts it is found which.
        let mut in_parts = lane.in_parts || !lane.parked.is_empty() || lane.failures >= rules.policy.max_attempts;
        if !in_parts && to > lane.place {
            match self.apply_at_once(lane, rules, events, to).await {
                Err(Failure::InParts(_)) => {
                    self.client.roll_back().await?;
                    in_parts = true;
                }
                other => other?,
            }
        }
        if in_parts {
            let mut rest = events;
            loop {
                let (batch, later) = rest.split_at(rest.len().min(EVENTS_IN_PARTS));
                let to = later.first().map_or(to, |next| next.place.before());
                self.apply_in_parts(lane, rules, batch, to).await.map_err(Failure::of_parts)?;
                rest = later;
                if rest.is_empty() {
                    break;
                }
            }
        }
        if lane.failures > 0 {
            tracing::info!(projection = %lane.id.projection, lane = lane.id.lane, "the lane goes on");
        }
        (lane.failures, lane.recorded, lane.in_parts) = (0, None, false);
        Ok(())
    }

    /// One batch in which nothing fails: rows and checkpoint in one transaction.
    async fn apply_at_once(
        &mut self,
        lane: &mut Owned,
        rules: &Projection,
        events: &[&PlacedEvent],
        to: Place,
    ) -> Result<(), Failure> {
        let views: Vec<EventView<'_>> =
            events.iter().map(|placed| EventView::new(placed.place.position, &placed.event)).collect();
        let views: Vec<&EventView<'_>> = views.iter().collect();
        let in_parts = |error: DataError| Failure::InParts(error.to_string());
        // Folded before the lane is locked.
        let mut folded = Vec::new();
        for run in runs(rules, &views) {
            let mut fold = Fold::new(rules, lane.id.lane);
            let mut seen = Vec::new();
            for view in run {
                if rules.has_statements() && fold.has_place(view).map_err(in_parts)? {
                    seen.push(*view);
                }
                fold.add(view).map_err(in_parts)?;
            }
            folded.push((fold.finish(), seen));
        }
        let table = self.begin(lane, to).await?;
        let mut skipped_null_key = 0;
        for (folded, seen) in folded {
            skipped_null_key += folded.skipped_null_key;
            self.write(lane, rules, &table, folded, &seen).await.map_err(|failure| match failure {
                WriteFailure::OutOfRange(reason) => Failure::InParts(reason),
                WriteFailure::Postgres(error) => error.into(),
            })?;
        }
        self.commit(lane, to, Tally::of(events, skipped_null_key)).await
    }

    /// Begins the transaction of a batch that goes up to `to`. Gives the table that it may write to.
    pub(super) async fn begin(&mut self, lane: &Owned, to: Place) -> Result<String, Failure> {
        let begin = self
            .client
            .prepared(
                "SELECT tick, position, target_table, map_version, stop_tick, stop_position \
                 FROM lanes.begin_batch($1, $2, $3, $4)",
            )
            .await?;
        // Sent together, in this order: one round trip.
        let parameters: [&(dyn ToSql + Sync); 4] =
            [&&*lane.id.projection, &(lane.id.lane as i32), &lane.epoch, &self.log_id];
        let (began, row) = tokio::join!(biased; self.client.begin(), self.client.query_one(&begin, &parameters));
        began?;
        let row = row?;
        let place = |tick: i64, position: i64| Place { tick: tick.max(0) as u64, position: position.max(0) as u64 };
        let (table, map_version): (String, i64) = (row.try_get(2)?, row.try_get(3)?);
        // In this order: under another map the lane may be anywhere. Committed, because it may be begin_batch that has just
        // changed the map, now that all lanes stand at their stop; rolled back, it would be as before, again and again.
        if map_version != lane.known.map_version {
            self.client.commit().await?;
            return Err(Failure::MapChanged(map_version));
        }
        let checkpoint = place(row.try_get(0)?, row.try_get(1)?);
        if checkpoint != lane.place {
            return Err(Failure::Moved(checkpoint));
        }
        let (stop_tick, stop_position): (Option<i64>, Option<i64>) = (row.try_get(4)?, row.try_get(5)?);
        match stop_tick.zip(stop_position).map(|(tick, position)| place(tick, position)) {
            Some(stop) if to > stop => Err(Failure::PastStop(stop)),
            _ => Ok(table),
        }
    }

    /// Moves the checkpoint and ends the batch's transaction.
    pub(super) async fn commit(&mut self, lane: &mut Owned, to: Place, tally: Tally) -> Result<(), Failure> {
        let commit =
            self.client.prepared("SELECT lanes.commit_batch($1, $2, $3, $4, $5, $6, lanes.time_of($7), $8)").await?;
        let (tick, position) = (to.tick as i64, to.position as i64);
        let (skipped, events) = (tally.skipped_null_key as i64, tally.events as i64);
        let parameters: [&(dyn ToSql + Sync); 8] = [
            &&*lane.id.projection,
            &(lane.id.lane as i32),
            &lane.epoch,
            &position,
            &skipped,
            &tick,
            &tally.event_time,
            &events,
        ];
        let timed = self.shared.pressure.commit();
        // Sent together, in this order.
        let (moved, committed) =
            tokio::join!(biased; self.client.query_one(&commit, &parameters), self.client.commit());
        drop(timed);
        moved?;
        committed?;
        // commit_batch has taken back what Postgres was told.
        lane.recorded = None;
        if to > lane.place {
            lane.place = to;
            lane.scanned_to = lane.scanned_to.max(to);
            lane.flush_at = None;
            self.shared.board.set_place(&lane.id, to);
        }
        Ok(())
    }

    /// Lets a lane that was never worked on begin at the floor: what retention deleted before the projection was defined is
    /// not its. Written down at once, so that a checkpoint below the floor always means a fault.
    pub(super) async fn begin_at(&mut self, lane: &mut Owned, floor: Place) -> Result<(), Failure> {
        self.begin(lane, floor).await?;
        self.commit(lane, floor, Tally::default()).await
    }
}
