//! Producers that send NDJSON over HTTP and wait for the acknowledgement of each request.

use std::borrow::Cow;
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
    fn new(address: &str, name: String) -> Producer {
        Producer {
            agent: ureq::Agent::config_builder().proxy(None).http_status_as_error(false).build().new_agent(),
            url: format!("http://{address}/v1/events"),
            name,
            next_sequence: 1,
        }
    }

    /// Sends `count` events and waits until they are durable.
    fn send(&mut self, body: &str, count: u64) -> Result<(), Failure> {
        let request = self.agent.post(&self.url).header("ingest-producer", &self.name);
        let mut answer = request.header("ingest-sequence", self.next_sequence.to_string()).send(body)?;
        let text = answer.body_mut().read_to_string()?;
        let stored = serde_json::from_str::<Value>(&text)?["stored"].as_u64();
        if stored != Some(count) {
            return Err(format!("the daemon answered {}: {text}", answer.status()).into());
        }
        self.next_sequence += count;
        Ok(())
    }
}

/// Runs `work` on a thread for each connection. The producers have names that begin with `name`.
fn on_each_connection<T: Send>(
    address: &str,
    connections: u32,
    name: &str,
    work: impl Fn(u32, &mut Producer) -> Result<T, Failure> + Sync,
) -> Result<Vec<T>, Failure> {
    thread::scope(|scope| {
        let threads: Vec<_> = (0..connections)
            .map(|number| {
                let work = &work;
                scope.spawn(move || work(number, &mut Producer::new(address, format!("{name}-{number}"))))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().map_err(|_| "a thread panicked")?).collect()
    })
}

/// Sends `requests` requests as fast as it goes, and waits until all are durable; gives events a second. `body` gives the
/// lines of a request and their number. A log knows the producers by `name`, so it is another one each time.
pub fn send<'a>(
    address: &str,
    connections: u32,
    name: &str,
    requests: usize,
    body: impl Fn(usize) -> (Cow<'a, str>, u64) + Sync,
) -> Result<f64, Failure> {
    let started = Instant::now();
    let counts = on_each_connection(address, connections, name, |connection, producer| {
        let mut events = 0;
        for number in (connection as usize..requests).step_by(connections as usize) {
            let (body, count) = body(number);
            producer.send(&body, count)?;
            events += count;
        }
        Ok(events)
    })?;
    Ok(counts.iter().sum::<u64>() as f64 / started.elapsed().as_secs_f64())
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
    let times = on_each_connection(address, connections, "paced", |connection, producer| {
        let mut times = Vec::new();
        for number in (connection as usize..count).step_by(connections as usize) {
            let due = started + interval * number as u32;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            producer.send(flights.body(number), REQUEST_EVENTS as u64)?;
            times.push(due.elapsed().as_secs_f64() * 1000.0);
        }
        Ok(times)
    })?;
    Ok(times.concat())
}

/// Sends as fast as it goes for `duration`, and calls `look` once a second; gives the number of
/// events.
pub fn load(
    address: &str,
    connections: u32,
    flights: &Flights,
    duration: Duration,
    mut look: impl FnMut(),
) -> Result<u64, Failure> {
    let over = AtomicBool::new(false);
    let started = Instant::now();
    thread::scope(|scope| {
        let sending = scope.spawn(|| {
            on_each_connection(address, connections, "load", |connection, producer| {
                let (mut number, mut events) = (connection as usize, 0);
                while !over.load(Ordering::Relaxed) {
                    producer.send(flights.body(number), REQUEST_EVENTS as u64)?;
                    number += 1;
                    events += REQUEST_EVENTS as u64;
                }
                Ok(events)
            })
        });
        while started.elapsed() < duration && !sending.is_finished() {
            thread::sleep(LOOK);
            look();
        }
        over.store(true, Ordering::Relaxed);
        let events: u64 = sending.join().map_err(|_| "a thread panicked")??.iter().sum();
        Ok(events)
    })
}
