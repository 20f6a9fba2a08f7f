//! Producers that send NDJSON over HTTP and wait for the acknowledgement of each request.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::measurement::Failure;
use crate::sample::{Flights, REQUEST_EVENTS};

/// Time between two looks at a daemon under load.
const LOOK: Duration = Duration::from_secs(1);

/// One producer on one connection.
struct Producer {
    agent: ureq::Agent,
    url: String,
    name: String,
    next_sequence: u64,
}

impl Producer {
    fn new(address: &str, number: u32) -> Producer {
        Producer {
            agent: ureq::Agent::config_builder().http_status_as_error(false).build().new_agent(),
            url: format!("http://{address}/v1/events"),
            name: format!("producer-{number}"),
            next_sequence: 1,
        }
    }

    /// Sends [`REQUEST_EVENTS`] events and waits until they are durable.
    fn send(&mut self, body: &str) -> Result<(), Failure> {
        let request = self.agent.post(&self.url).header("ingest-producer", &self.name);
        let mut answer = request.header("ingest-sequence", self.next_sequence.to_string()).send(body)?;
        let text = answer.body_mut().read_to_string()?;
        let stored = serde_json::from_str::<Value>(&text)?["stored"].as_u64();
        if stored != Some(REQUEST_EVENTS as u64) {
            return Err(format!("the daemon answered {}: {text}", answer.status()).into());
        }
        self.next_sequence += REQUEST_EVENTS as u64;
        Ok(())
    }
}

/// Runs `work` on a thread for each connection.
fn on_each_connection<T: Send>(
    address: &str,
    connections: u32,
    work: impl Fn(u32, &mut Producer) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|number| {
                let work = &work;
                scope.spawn(move || work(number, &mut Producer::new(address, number)))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?).collect()
    })
}

/// Stores `events` events as fast as it goes; gives events a second.
pub fn rate(address: &str, connections: u32, flights: &Flights, events: u64) -> Result<f64, Failure> {
    let requests = events as usize / REQUEST_EVENTS;
    let started = Instant::now();
    on_each_connection(address, connections, |connection, producer| {
        (connection as usize..requests)
            .step_by(connections as usize)
            .try_for_each(|number| producer.send(flights.body(number)))
    })?;
    Ok((requests * REQUEST_EVENTS) as f64 / started.elapsed().as_secs_f64())
}

/// Sends `count` requests, one each `interval`; gives the times from when each was due to its acknowledgement, in
/// milliseconds.
pub fn latencies(
    address: &str,
    connections: u32,
    flights: &Flights,
    interval: Duration,
    count: usize,
) -> Result<Vec<f64>, Failure> {
    let started = Instant::now();
    let times = on_each_connection(address, connections, |connection, producer| {
        let mut times = Vec::new();
        for number in (connection as usize..count).step_by(connections as usize) {
            let due = started + interval * number as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            producer.send(flights.body(number))?;
            times.push(due.elapsed().as_secs_f64() * 1000.0);
        }
        Ok(times)
    })?;
    Ok(times.concat())
}

/// Sends as fast as it goes for `duration`, and calls `look` once a second; gives events a second.
pub fn load(
    address: &str,
    connections: u32,
    flights: &Flights,
    duration: Duration,
    mut look: impl FnMut(),
) -> Result<f64, Failure> {
    let over = AtomicBool::new(false);
    let started = Instant::now();
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            on_each_connection(address, connections, |connection, producer| {
                let mut number = connection as usize;
                while !over.load(Ordering::Relaxed) {
                    producer.send(flights.body(number))?;
                    number += 1;
                }
                Ok(number - connection as usize)
            })
        });
        while started.elapsed() < duration && !sending.is_finished() {
            thread::sleep(LOOK);
            look();
        }
        over.store(true, Ordering::Relaxed);
        let requests: usize = sending.join().map_err(|_| "a thread panicked")??.iter().sum();
        Ok((requests * REQUEST_EVENTS) as f64 / started.elapsed().as_secs_f64())
    })
}
