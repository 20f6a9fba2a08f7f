//! Group `log`: the log's speed against a bare SQLite loop that writes the same rows, and the memory that it takes.
//!
//! The bare loop is one thread a store shard that writes with rusqlite and nothing around it: the log's schema (events with
//! their checksums, one receipt a transaction, the commit's number), its settings (WAL, `synchronous = FULL`, checkpoints
//! every 1 000 pages), as many shards as the log. The events are flights. Every round has fresh directories.

mod bare;
mod http;
mod in_process;

use std::time::{Duration, Instant};

use e2e::daemon::Daemon;
use tempfile::TempDir;

use crate::comparison::{Comparison, Goal, Rounds, Side, median, percentile};
use crate::measurement::{Failure, Measurement, Scale};
use crate::sample::{Flights, REQUEST_EVENTS};

pub use http::{load, send};

/// Connections that send at full load.
pub const CONNECTIONS: u32 = 8;

const SYNCED: &str = "acknowledged after an fsync of SQLite's WAL";

const BARE: Side = Side {
    what: "bare loop: batches of 10 000 committed by one thread a shard",
    durability: "committed with synchronous = FULL",
};

/// What is measured.
pub const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        comparisons: &[
            Comparison {
                name: "log/in-process",
                ours: Side {
                    what: "requests of 1 000 events given to the drains, 2 producers a drain with 64 requests in flight each",
                    durability: SYNCED,
                },
                baseline: Some(BARE),
                unit: "events/s",
                goal: Some(Goal::AtLeast(0.8)),
            },
            Comparison {
                name: "log/in-process-cpu",
                ours: Side { what: "CPU time of an event in the same measurement", durability: SYNCED },
                baseline: Some(BARE),
                unit: "us/event",
                goal: None,
            },
            Comparison {
                name: "log/http",
                ours: Side {
                    what: "ingestd in a process of its own; 8 numbered producers on the same CPUs send NDJSON, each waiting for the acknowledgement of 1 000 events before it sends the next",
                    durability: SYNCED,
                },
                baseline: Some(BARE),
                unit: "events/s",
                goal: Some(Goal::AtLeast(0.5)),
            },
        ],
        run: throughput,
    },
    Measurement {
        comparisons: &[
            Comparison {
                name: "log/ack-p99",
                ours: Side {
                    what: "99th percentile of the time from when a request of 1 000 was due to its acknowledgement over HTTP, at half of full load",
                    durability: SYNCED,
                },
                baseline: Some(PACED),
                unit: "ms",
                goal: Some(Goal::AtMost(2.0)),
            },
            Comparison {
                name: "log/ack-p50",
                ours: Side { what: "the median of the same times", durability: SYNCED },
                baseline: Some(PACED),
                unit: "ms",
                goal: None,
            },
        ],
        run: latency,
    },
    Measurement {
        comparisons: &[Comparison {
            name: "log/memory",
            ours: Side {
                what: "ingestd's resident memory after 5 minutes at full load, retention at work",
                durability: SYNCED,
            },
            baseline: Some(Side { what: "the same after a tenth of the time", durability: SYNCED }),
            unit: "MiB",
            goal: Some(Goal::AtMost(1.1)),
        }],
        run: memory,
    },
];

const PACED: Side = Side {
    what: "bare loop that commits batches of 1 000 at the same rate, from when each was due to the end of its commit",
    durability: "committed with synchronous = FULL",
};

/// Retention to 1 GiB, so that full load does not fill the disk.
pub const BOUNDED: &str = "retention_max_bytes = 1073741824\nretention_interval_s = 1\nretention_delete_rows = 100000";

/// What a round of a throughput comparison took.
#[derive(Debug, Clone, Copy)]
struct Speed {
    /// Events a second by the wall clock.
    rate: f64,
    /// CPU time of this process for an event, in microseconds. It hardly depends on what else the machine does.
    cpu_us: f64,
}

/// Takes the time of a round.
#[derive(Debug)]
struct Clock {
    wall: Instant,
    cpu: Duration,
}

impl Clock {
    fn start() -> Clock {
        Clock { wall: Instant::now(), cpu: cpu_time() }
    }

    /// What `events` events took since then.
    fn stop(&self, events: usize) -> Speed {
        let (events, cpu) = (events as f64, cpu_time().saturating_sub(self.cpu));
        Speed { rate: events / self.wall.elapsed().as_secs_f64(), cpu_us: cpu.as_secs_f64() * 1e6 / events }
    }
}

/// The time that all threads of this process have worked.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// Store shards, drain threads, and threads of the bare loop: one for each CPU.
fn shards() -> u32 {
    std::thread::available_parallelism().map_or(1, |count| count.get() as u32)
}

/// A running daemon without Postgres. `settings` are lines of TOML.
pub fn daemon(settings: &str) -> Daemon {
    let mut daemon = Daemon::new(None, settings);
    daemon.start();
    daemon
}

fn stop(mut daemon: Daemon) -> Result<(), Failure> {
    let status = daemon.stop();
    if status.success() { Ok(()) } else { Err(format!("the daemon ended with {status}").into()) }
}

/// Events a second over HTTP, all of which must be in the log afterwards.
fn http_round(flights: &Flights, events: u64) -> Result<f64, Failure> {
    let daemon = daemon("");
    let requests = events as usize / REQUEST_EVENTS;
    let body = |number| (flights.body(number).into(), REQUEST_EVENTS as u64);
    let rate = send(&daemon.address(), CONNECTIONS, "producer", requests, body)?;
    let stored = daemon.stored_events();
    stop(daemon)?;
    let sent = (requests * REQUEST_EVENTS) as u64;
    if stored == sent { Ok(rate) } else { Err(format!("{stored} of {sent} events are in the log").into()) }
}

fn throughput(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (flights, shards, events) = (Flights::load()?, shards(), scale.pick(400_000, 60_000));
    let (mut bare, mut in_process, mut http) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds(7) {
        bare.push(bare::round(TempDir::new()?.path(), shards, &flights, events)?);
        in_process.push(in_process::round(TempDir::new()?.path(), shards, &flights, events)?);
        http.push(http_round(&flights, events)?);
    }
    let rates = |rounds: &[Speed]| rounds.iter().map(|round| round.rate).collect::<Vec<f64>>();
    let cpu = |rounds: &[Speed]| rounds.iter().map(|round| round.cpu_us).collect::<Vec<f64>>();
    Ok(vec![
        Rounds::against(rates(&in_process), rates(&bare)),
        Rounds::against(cpu(&in_process), cpu(&bare)),
        Rounds::against(http, rates(&bare)),
    ])
}

fn latency(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let flights = Flights::load()?;
    let full_load: Vec<f64> =
        (0..scale.rounds(3)).map(|_| http_round(&flights, scale.pick(200_000, 60_000))).collect::<Result<_, _>>()?;
    let interval = Duration::from_secs_f64(REQUEST_EVENTS as f64 / (median(&full_load) / 2.0));
    let count = (scale.pick(5.0, 1.0) / interval.as_secs_f64()).ceil() as usize;
    let (mut commits, mut acks) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds(5) {
        commits.push(bare::latencies(TempDir::new()?.path(), shards(), &flights, interval, count)?);
        let daemon = daemon("");
        acks.push(http::latencies(&daemon.address(), CONNECTIONS, &flights, interval, count)?);
        stop(daemon)?;
    }
    let at = |percent: usize| {
        let of = |rounds: &[Vec<f64>]| rounds.iter().map(|times| percentile(times, percent)).collect();
        Rounds::against(of(&acks), of(&commits))
    };
    Ok(vec![at(99), at(50)])
}

fn memory(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let flights = Flights::load()?;
    let daemon = daemon(BOUNDED);
    let mut resident_mib = Vec::new();
    load(&daemon.address(), CONNECTIONS, &flights, Duration::from_secs(scale.pick(300, 5)), || {
        resident_mib.push(daemon.resident_kib() as f64 / 1024.0);
    })?;
    stop(daemon)?;
    let first = resident_mib.get(resident_mib.len() / 10).ok_or("the load ended at once")?;
    let last = resident_mib.last().ok_or("the load ended at once")?;
    Ok(vec![Rounds::against(vec![*last], vec![*first])])
}
