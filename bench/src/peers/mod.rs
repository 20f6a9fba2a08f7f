//! Group `peers`: other ways to the same total, each configured so that it promises what pg_lanes promises: an acknowledged
//! event is on disk. One file a peer.
//!
//! Both sides of a line start with the same events in the producer's memory. The first lines end when the same total stands
//! in the same Postgres (`checkins.rs`), those named `…-ingest` when all events are acknowledged and counted where they lie.
//! Rates differ by orders of magnitude, so each peer gets as many events as it handles in some seconds; values are events a
//! second. A peer that this machine does not have (`scripts/setup_peers`) is not run.

mod checkins;
mod nats;
mod ours;
mod pgq;
mod redis;
mod rsyslog;
mod server;
pub mod unnest;
pub mod upsert;

use std::net::TcpListener;
use std::sync::Arc;

use e2e::cluster::Cluster;
use tempfile::TempDir;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::comparison::{Comparison, Rounds, Side};
use crate::measurement::{Failure, Measurement, Scale};

/// The database of all that need one.
const DATABASE: &str = "bench";

const ROUNDS: usize = 3;

/// What pg_lanes gets against each peer.
const OUR_EVENTS: usize = 500_000;

/// A quick run has so many times fewer events.
const QUICK: usize = 8;

const TO_TOTAL: Side = Side {
    what: "500 000 check-ins over HTTP by 8 numbered producers, 1 000 a request, through the log and 4 lanes to the total",
    durability: "acknowledged after an fsync of the log, total committed with fsync, each event once",
};

const TO_ACKNOWLEDGEMENT: Side = Side {
    what: "500 000 check-ins over HTTP by 8 numbered producers, 1 000 a request, until acknowledged",
    durability: "acknowledged after an fsync of the log",
};

/// What is measured.
pub const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        comparisons: &[against(
            "peers/upsert",
            TO_TOTAL,
            Side {
                what: "10 000 check-ins, 16 clients, one UPSERT of the one row per event",
                durability: "each committed with fsync; an event is nowhere before",
            },
        )],
        run: |scale| compare(scale, 10_000, ours::to_total, upsert::to_total),
    },
    Measurement {
        comparisons: &[against(
            "peers/unnest",
            TO_TOTAL,
            Side {
                what: "1 000 000 check-ins, one worker that parses 10 000 and sends them as arrays to one UPSERT",
                durability: "each batch committed with fsync; no log: an event is nowhere before",
            },
        )],
        run: |scale| compare(scale, 1_000_000, ours::to_total, unnest::to_total),
    },
    Measurement {
        comparisons: &[against(
            "peers/pgq",
            TO_TOTAL,
            Side {
                what: "100 000 check-ins, PgQ: 8 producers insert 1 000 a transaction by pgq.insert_event, pgqd ticks 10 times a second, one consumer folds a batch by one statement",
                durability: "inserted with fsync, batch ended in one transaction with the total, each event once",
            },
        )],
        run: |scale| compare(scale, 100_000, ours::to_total, pgq::to_total),
    },
    Measurement {
        comparisons: &[against(
            "peers/redis",
            TO_TOTAL,
            Side {
                what: "200 000 check-ins, Redis Streams: 8 producers pipeline XADD by 1 000, one reader of a consumer group folds up to 10 000",
                durability: "acknowledged after an fsync of the append-only file (appendfsync always), last id committed with the total, each event once",
            },
        )],
        run: |scale| compare(scale, 200_000, ours::to_total, redis::to_total),
    },
    Measurement {
        comparisons: &[against(
            "peers/rsyslog",
            TO_TOTAL,
            Side {
                what: "10 000 check-ins as syslog lines over one Unix socket, rsyslog: ompgsql runs an UPSERT a message",
                durability: "main queue on disk, written through and its state synced for each message; a sender learns nothing; at least once",
            },
        )],
        run: |scale| compare(scale, 10_000, ours::to_total, rsyslog::to_total),
    },
    Measurement {
        comparisons: &[against(
            "peers/nats",
            TO_TOTAL,
            Side {
                what: "5 000 check-ins, NATS JetStream: 8 producers publish 1 000 and await their acknowledgements, one pull consumer folds up to 10 000",
                durability: "file storage, sync_interval: always; last sequence committed with the total, each event once",
            },
        )],
        run: |scale| compare(scale, 5_000, ours::to_total, nats::to_total),
    },
    Measurement {
        comparisons: &[against(
            "peers/pgq-ingest",
            TO_ACKNOWLEDGEMENT,
            Side {
                what: "100 000 check-ins, PgQ: the same producers until their last commit, nobody consumes",
                durability: "each transaction of 1 000 committed with fsync",
            },
        )],
        run: |scale| compare(scale, 100_000, ours::to_acknowledgement, pgq::to_acknowledgement),
    },
    Measurement {
        comparisons: &[against(
            "peers/redis-ingest",
            TO_ACKNOWLEDGEMENT,
            Side {
                what: "200 000 check-ins, Redis Streams: the same producers until the last answer, nobody consumes",
                durability: "acknowledged after an fsync of the append-only file (appendfsync always)",
            },
        )],
        run: |scale| compare(scale, 200_000, ours::to_acknowledgement, redis::to_acknowledgement),
    },
    Measurement {
        comparisons: &[against(
            "peers/nats-ingest",
            TO_ACKNOWLEDGEMENT,
            Side {
                what: "5 000 check-ins, NATS JetStream: the same producers until the last acknowledgement, nobody consumes",
                durability: "file storage, sync_interval: always",
            },
        )],
        run: |scale| compare(scale, 5_000, ours::to_acknowledgement, nats::to_acknowledgement),
    },
];

const fn against(name: &'static str, ours: Side, peer: Side) -> Comparison {
    Comparison { name, ours, baseline: Some(peer), unit: "events/s", goal: None }
}

/// The lines of the events that a producer has in memory.
type Lines = Arc<Vec<String>>;

/// Both ways, one after the other in each round; theirs first, so that what is missing here is known at once.
fn compare(
    scale: Scale,
    their_events: usize,
    ours: impl AsyncFn(&Cluster, &Lines) -> Result<f64, Failure>,
    theirs: impl AsyncFn(&Cluster, &Lines) -> Result<f64, Failure>,
) -> Result<Vec<Rounds>, Failure> {
    let cluster = Cluster::start_durable();
    cluster.create_database(DATABASE);
    let runtime = Runtime::new()?;
    let lines = |events: usize| checkins::lines(scale.pick(events, events / QUICK));
    let (our_lines, their_lines) = (lines(OUR_EVENTS), lines(their_events));
    let (mut our_rates, mut their_rates) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds(ROUNDS) {
        their_rates.push(runtime.block_on(theirs(&cluster, &their_lines))?);
        our_rates.push(runtime.block_on(ours(&cluster, &our_lines))?);
    }
    Ok(vec![Rounds::against(our_rates, their_rates)])
}

/// A folder for a server, with a path that is short enough for the name of a socket.
fn directory() -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix("pg_lanes-").tempdir()
}

/// A port that was free a moment ago.
fn free_port() -> std::io::Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Waits for all tasks; the first failure is the whole's.
async fn joined(mut tasks: JoinSet<Result<(), Failure>>) -> Result<(), Failure> {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}
