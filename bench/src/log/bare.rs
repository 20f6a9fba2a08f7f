//! The bare loop: one thread a shard that writes the rows of the log with nothing around it.
//!
//! Schema and settings are the log's own, and so are the rows: events with their checksums, one receipt a transaction,
//! the commit's number. The statements are prepared once.

use std::path::Path;
use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use ingestd::log::directory::shard_path;
use ingestd::log::shard::{EventRow, Receipt, ReceiptKind, ShardHeader, open_writer};
use ingestd::log::writer::now_ms;
use lanes_core::event::Event;
use rusqlite::{Connection, params};
use uuid::Uuid;

use crate::log::{Clock, Speed};
use crate::measurement::Failure;
use crate::sample::{Flights, REQUEST_EVENTS};

/// Events of a transaction when throughput is measured: the log's `max_batch_size`.
const BATCH_EVENTS: usize = 10_000;

/// One shard's loop.
struct Loop {
    connection: Connection,
    shard: u32,
    shards: u32,
    written: u64,
    commits: u64,
}

impl Loop {
    fn open(directory: &Path, shard: u32, shards: u32) -> Result<Loop, Failure> {
        let connection = open_writer(&shard_path(directory, shard), Uuid::nil(), shard, now_ms())?;
        Ok(Loop { connection, shard, shards, written: 0, commits: 0 })
    }

    fn commit(&mut self, events: &[Event]) -> rusqlite::Result<()> {
        let stored_at = now_ms();
        let stream = 1024 + u64::from(self.shard);
        let first_sequence = self.written + 1;
        let transaction = self.connection.transaction()?;
        {
            let mut insert = transaction.prepare_cached(
                "INSERT INTO event (position, stream, sequence, cpu, type, key, ts, stored_at, payload, crc)
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
            )?;
            for event in events {
                self.written += 1;
                let row = EventRow {
                    position: self.written * u64::from(self.shards) + u64::from(self.shard),
                    stream,
                    sequence: self.written,
                    cpu: self.shard,
                    event_type: &event.event_type,
                    key: &event.key,
                    ts: event.ts,
                    stored_at,
                    payload: &event.payload,
                };
                insert.execute(params![
                    row.position,
                    row.stream,
                    row.sequence,
                    row.cpu,
                    row.event_type,
                    row.key,
                    row.ts,
                    row.stored_at,
                    row.payload,
                    row.crc()
                ])?;
            }
            let kind = ReceiptKind::Stored;
            Receipt { stream, first_sequence, last_sequence: self.written, kind }.insert(&transaction)?;
            self.commits += 1;
            ShardHeader { log_id: Uuid::nil(), commit_number: self.commits, horizon: self.written }
                .write(&transaction, self.shard)?;
        }
        transaction.commit()
    }
}

/// Runs `work` on a thread for each shard; gives what they return and a clock that began at their common start.
fn on_each_shard<T: Send>(
    directory: &Path,
    shards: u32,
    work: impl Fn(&mut Loop, &Barrier) -> Result<T, Failure> + Sync,
) -> Result<(Vec<T>, Clock), Failure> {
    // With the thread that holds the clock.
    let start = Barrier::new(shards as usize + 1);
    let mut loops = (0..shards).map(|shard| Loop::open(directory, shard, shards)).collect::<Result<Vec<_>, _>>()?;
    thread::scope(|scope| {
        let threads: Vec<_> = loops
            .iter_mut()
            .map(|shard| {
                let (work, start) = (&work, &start);
                let thread = thread::Builder::new().name(format!("bare-{}", shard.shard));
                thread.spawn_scoped(scope, move || work(shard, start))
            })
            .collect::<Result<_, _>>()?;
        start.wait();
        let clock = Clock::start();
        let results: Result<Vec<T>, Failure> =
            threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?).collect();
        Ok((results?, clock))
    })
}

/// Writes `events` events as fast as it goes.
pub fn round(directory: &Path, shards: u32, flights: &Flights, events: u64) -> Result<Speed, Failure> {
    let share = (events / u64::from(shards)) as usize;
    let (_events, clock) = on_each_shard(directory, shards, |shard, start| {
        let events = flights.events(share * shard.shard as usize, share);
        start.wait();
        for batch in events.chunks(BATCH_EVENTS) {
            shard.commit(batch)?;
        }
        // The events are freed when the clock has stopped: a bare loop would not have them in memory of their own.
        Ok(events)
    })?;
    Ok(clock.stop(share * shards as usize))
}

/// Commits `count` batches of [`REQUEST_EVENTS`], one each `interval`; gives the times from when each was due, in
/// milliseconds.
pub fn latencies(
    directory: &Path,
    shards: u32,
    flights: &Flights,
    interval: Duration,
    count: usize,
) -> Result<Vec<f64>, Failure> {
    let (times, _) = on_each_shard(directory, shards, |shard, start| {
        let batches: Vec<Vec<Event>> =
            (0..6).map(|batch| flights.events(batch * REQUEST_EVENTS, REQUEST_EVENTS)).collect();
        let mut times = Vec::new();
        start.wait();
        let started = Instant::now();
        for number in (shard.shard as usize..count).step_by(shard.shards as usize) {
            let due = started + interval * number as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            shard.commit(&batches[number % batches.len()])?;
            times.push(due.elapsed().as_secs_f64() * 1000.0);
        }
        Ok(times)
    })?;
    Ok(times.concat())
}
