//! Group `projections`: from the log to the table, against SQL written by hand.
//!
//! The log holds all events before the clock starts: it runs from the claim of the first lane to the moment when all lanes
//! are at the horizon, and then the total must be right.

use crate::comparison::{Comparison, Goal, Rounds, Side};
use crate::measurement::{Failure, Measurement, Scale};
use crate::peers::{unnest, upsert};
use crate::projection::{LANES, Projections, cluster, filled};
use crate::sample::{Order, checkin_line};

/// What holds of an event that a lane has applied.
pub const APPLIED: &str = "rows and checkpoint committed with fsync";

/// What holds of an event that SQL by hand has applied.
pub const COMMITTED: &str = "rows committed with fsync";

/// One UPSERT per event.
pub const ONE_UPSERT: Side =
    Side { what: "one prepared UPSERT of the one row per event, 16 clients of pgbench", durability: COMMITTED };

const HOT_COUNTER: Side = Side {
    what: "check-ins of one show by 50 000 users, counted in per-lane rows by 4 lanes, log to total",
    durability: APPLIED,
};

const READ_MODEL: Side =
    Side { what: "a new row of five columns for each event, 4 lanes, log to table", durability: APPLIED };

/// What is measured.
pub const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        comparisons: &[
            Comparison {
                name: "projections/hot-counter",
                ours: HOT_COUNTER,
                baseline: Some(ONE_UPSERT),
                unit: "events/s",
                goal: Some(Goal::AtLeast(200.0)),
            },
            Comparison {
                name: "projections/hot-counter-rate",
                ours: HOT_COUNTER,
                baseline: None,
                unit: "events/s",
                goal: Some(Goal::AtLeast(100_000.0)),
            },
        ],
        run: hot_counter,
    },
    Measurement {
        comparisons: &[
            Comparison {
                name: "projections/read-model",
                ours: READ_MODEL,
                baseline: Some(Side {
                    what: "a loop by hand that parses payloads in memory and sends batches of 10 000 as arrays, on 4 connections",
                    durability: COMMITTED,
                }),
                unit: "events/s",
                goal: Some(Goal::AtLeast(0.8)),
            },
            Comparison {
                name: "projections/read-model-parsed",
                ours: READ_MODEL,
                baseline: Some(Side {
                    what: "the same loop with its arrays ready before the clock starts",
                    durability: COMMITTED,
                }),
                unit: "events/s",
                goal: None,
            },
        ],
        run: read_model,
    },
];

fn hot_counter(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (cluster, events) = (cluster(), scale.pick(700_000, 100_000));
    cluster.psql("bench", upsert::TABLE);
    let mut daemon = filled(&cluster, "", events, checkin_line)?;
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..scale.rounds(5) {
        theirs.push(upsert::transactions_per_second(&cluster, upsert::UPSERT, scale.pick(4, 2))?);
        let applied = Projections::checkins(LANES).measure(&cluster, &mut daemon, events as u64, "")?;
        ours.push(applied.events_per_second);
    }
    Ok(vec![Rounds::against(ours.clone(), theirs), Rounds::of_ours(ours)])
}

fn read_model(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (cluster, rows) = (cluster(), scale.pick(300_000, 50_000));
    let mut daemon = filled(&cluster, "", rows, |number| Order::new(number).line())?;
    let orders: Vec<Order> = (0..rows).map(Order::new).collect();
    let runtime = tokio::runtime::Runtime::new()?;
    let (mut ours, mut theirs, mut parsed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..scale.rounds(5) {
        theirs.push(runtime.block_on(unnest::write_orders(&cluster, &orders, LANES, true))?);
        let applied = Projections::orders(LANES).measure(&cluster, &mut daemon, rows as u64, "")?;
        ours.push(applied.events_per_second);
        parsed.push(runtime.block_on(unnest::write_orders(&cluster, &orders, LANES, false))?);
    }
    Ok(vec![Rounds::against(ours.clone(), theirs), Rounds::against(ours, parsed)])
}
