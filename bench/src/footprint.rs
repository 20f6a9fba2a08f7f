//! Group `footprint`: what idle lanes cost, and the bytes that an event takes on disk and in Postgres's WAL.

use std::thread;
use std::time::Duration;

use e2e::cluster::{Cluster, wait_until};

use crate::comparison::{Comparison, Goal, Rounds, Side};
use crate::lanes::{MANY, idle_daemon};
use crate::measurement::{Failure, Measurement, Scale};
use crate::peers::{unnest, upsert};
use crate::projection::{LANES, Projections, cluster, filled, wal_bytes};
use crate::projections::{APPLIED, COMMITTED, ONE_UPSERT};
use crate::sample::{Order, checkin_line, checkin_payload};

const IDLE: Comparison = Comparison {
    name: "footprint/idle-cpu",
    ours: Side { what: "64 lanes without events: the daemon's share of a core", durability: "nothing is written" },
    baseline: None,
    unit: "% of a core",
    goal: Some(Goal::AtMost(1.0)),
};

const WAL: Comparison = Comparison {
    name: "footprint/wal-upsert",
    ours: Side { what: "Postgres's WAL for an event of the hot counter, 4 lanes", durability: APPLIED },
    baseline: Some(ONE_UPSERT),
    unit: "bytes/event",
    goal: None,
};

/// What is measured.
pub const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        comparisons: &[
            IDLE,
            Comparison {
                name: "footprint/idle-statements",
                ours: Side { what: "the same lanes: statements in Postgres", durability: "nothing is written" },
                unit: "statements/s",
                goal: Some(Goal::AtMost(10.0)),
                ..IDLE
            },
        ],
        run: idle,
    },
    Measurement {
        comparisons: &[
            WAL,
            Comparison {
                name: "footprint/wal-unnest",
                baseline: Some(Side { what: "one worker by hand, unnest and GROUP BY", durability: COMMITTED }),
                ..WAL
            },
            Comparison {
                name: "footprint/disk",
                ours: Side {
                    what: "the log's files after a check-in each was stored, the daemon stopped",
                    durability: "acknowledged after an fsync of SQLite's WAL",
                },
                baseline: Some(Side { what: "the same events as lines of NDJSON", durability: "a file" }),
                ..WAL
            },
        ],
        run: hot_counter,
    },
    Measurement {
        comparisons: &[Comparison {
            name: "footprint/wal-read-model",
            ours: Side { what: "Postgres's WAL for an event of the read model, 4 lanes", durability: APPLIED },
            baseline: Some(Side { what: "a loop by hand on 4 connections, unnest and UPSERT", durability: COMMITTED }),
            ..WAL
        }],
        run: read_model,
    },
];

/// A projection with 64 lanes and nothing to do: what its daemon and its database are busy with.
fn idle(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let cluster = cluster();
    let daemon = idle_daemon(&cluster.connection_string("bench"), MANY)?;
    tokio::runtime::Runtime::new()?.block_on(async {
        let client = cluster.connect("bench").await;
        wait_until(&client, "SELECT bool_and(state = 'running' AND lag = 0) FROM lanes.status").await;
    });
    let window = Duration::from_secs(scale.pick(20, 4));
    let (mut shares, mut statements) = (Vec::new(), Vec::new());
    // What follows the start is no idling.
    thread::sleep(Duration::from_secs(scale.pick(10, 3)));
    for _ in 0..scale.rounds(3) {
        let busy = daemon.cpu_time();
        thread::sleep(window);
        shares.push((daemon.cpu_time() - busy).as_secs_f64() / window.as_secs_f64() * 100.0);
        let before = logged_statements(&cluster, "all");
        thread::sleep(window);
        statements.push((logged_statements(&cluster, "none") - before) as f64 / window.as_secs_f64());
    }
    Ok(vec![Rounds::of_ours(shares), Rounds::of_ours(statements)])
}

/// How many statements are in the server's log; from now on it logs `which` of them.
fn logged_statements(cluster: &Cluster, which: &str) -> usize {
    let log = cluster.log();
    cluster.psql("postgres", &format!("ALTER SYSTEM SET log_statement = '{which}'; SELECT pg_reload_conf()"));
    log.lines().filter(|line| line.contains("LOG:  execute ") || line.contains("LOG:  statement: ")).count()
}

fn hot_counter(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (cluster, events) = (cluster(), scale.pick(700_000, 100_000));
    cluster.psql("bench", upsert::TABLE);
    let mut daemon = filled(&cluster, "", events, checkin_line)?;
    let payloads: Vec<String> = (0..events).map(checkin_payload).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    let (mut ours, mut upserts, mut by_hand) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds(3) {
        cluster.psql("bench", "TRUNCATE one_row; CHECKPOINT");
        let before = wal_bytes(&cluster)?;
        upsert::transactions_per_second(&cluster, upsert::UPSERT, scale.pick(4, 2))?;
        let wal = wal_bytes(&cluster)? - before;
        upserts.push(wal / cluster.psql("bench", "SELECT n FROM one_row").parse::<f64>()?);
        let applied = Projections::checkins(LANES).measure(&cluster, &mut daemon, events as u64, "")?;
        ours.push(applied.wal_bytes / events as f64);
        unnest::create_counted(&cluster);
        let before = wal_bytes(&cluster)?;
        runtime.block_on(unnest::count_into(&cluster, &payloads))?;
        by_hand.push((wal_bytes(&cluster)? - before) / events as f64);
    }
    let stored: u64 = std::fs::read_dir(daemon.data_directory())?
        .map(|entry| Ok(entry?.metadata()?.len()))
        .sum::<std::io::Result<u64>>()?;
    let sent: usize = (0..events).map(|number| checkin_line(number).len() + 1).sum();
    let each = |bytes: f64| vec![bytes / events as f64];
    Ok(vec![
        Rounds::against(ours.clone(), upserts),
        Rounds::against(ours, by_hand),
        Rounds::against(each(stored as f64), each(sent as f64)),
    ])
}

fn read_model(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (cluster, rows) = (cluster(), scale.pick(200_000, 20_000));
    let mut daemon = filled(&cluster, "", rows, |number| Order::new(number).line())?;
    let orders: Vec<Order> = (0..rows).map(Order::new).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds(3) {
        let before = wal_bytes(&cluster)?;
        runtime.block_on(unnest::write_orders(&cluster, &orders, LANES, true))?;
        by_hand.push((wal_bytes(&cluster)? - before) / rows as f64);
        let applied = Projections::orders(LANES).measure(&cluster, &mut daemon, rows as u64, "")?;
        ours.push(applied.wal_bytes / rows as f64);
    }
    Ok(vec![Rounds::against(ours, by_hand)])
}
