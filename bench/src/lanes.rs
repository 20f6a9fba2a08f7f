//! Group `lanes`: what more lanes bring, and how fast lanes change their number and their owner.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use e2e::cluster::wait_until;
use e2e::daemon::{Daemon, post};

use crate::comparison::{Comparison, Rounds, Side};
use crate::measurement::{Failure, Measurement, Scale};
use crate::peers::unnest;
use crate::projection::{Projections, cluster, filled};
use crate::projections::{APPLIED, COMMITTED};
use crate::sample::{Order, checkin_line, checkin_payload};

/// Lanes whose speed is compared with one worker's.
const NUMBERS: [usize; 4] = [1, 2, 4, 8];

/// Lanes of the projection whose number changes.
const FEW: usize = 8;

/// Lanes of the projection that idles, and whose lanes are taken over.
pub const MANY: usize = 64;

const HOT_COUNTER: Comparison = Comparison {
    name: "lanes/hot-counter-1",
    ours: Side { what: "the hot counter with so many lanes, log to total", durability: APPLIED },
    baseline: Some(Side { what: "one worker by hand, unnest and GROUP BY", durability: COMMITTED }),
    unit: "events/s",
    goal: None,
};

const READ_MODEL: Comparison = Comparison {
    name: "lanes/read-model-1",
    ours: Side { what: "the read model with so many lanes, log to table", durability: APPLIED },
    baseline: Some(Side { what: "one worker by hand, unnest and UPSERT", durability: COMMITTED }),
    ..HOT_COUNTER
};

const RESHAPING: Comparison = Comparison {
    name: "lanes/split",
    ours: Side {
        what: "pause of the lanes when 8 become 16 under load: the call, during which their rows are locked",
        durability: "committed with fsync",
    },
    baseline: None,
    unit: "ms",
    goal: None,
};

/// What is measured.
pub const MEASUREMENTS: &[Measurement] = &[
    Measurement {
        comparisons: &[
            HOT_COUNTER,
            Comparison { name: "lanes/hot-counter-2", ..HOT_COUNTER },
            Comparison { name: "lanes/hot-counter-4", ..HOT_COUNTER },
            Comparison { name: "lanes/hot-counter-8", ..HOT_COUNTER },
        ],
        run: hot_counter,
    },
    Measurement {
        comparisons: &[
            READ_MODEL,
            Comparison { name: "lanes/read-model-2", ..READ_MODEL },
            Comparison { name: "lanes/read-model-4", ..READ_MODEL },
            Comparison { name: "lanes/read-model-8", ..READ_MODEL },
        ],
        run: read_model,
    },
    Measurement {
        comparisons: &[
            RESHAPING,
            Comparison {
                name: "lanes/merge",
                ours: Side {
                    what: "pause of the lanes when 16 become 8 under load: at most from the call to the change of the map",
                    durability: "committed with fsync",
                },
                ..RESHAPING
            },
        ],
        run: resizes,
    },
    Measurement {
        comparisons: &[Comparison {
            name: "lanes/take-over",
            ours: Side {
                what: "two daemons share 64 lanes, one is killed: until all lanes have owners again",
                durability: "committed with fsync",
            },
            ..RESHAPING
        }],
        run: take_overs,
    },
];

fn hot_counter(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (cluster, events) = (cluster(), scale.pick(700_000, 50_000));
    let payloads: Vec<String> = (0..events).map(checkin_payload).collect();
    let mut daemon = filled(&cluster, "", events, checkin_line)?;
    let runtime = tokio::runtime::Runtime::new()?;
    numbers(
        scale,
        || runtime.block_on(unnest::count(&cluster, &payloads)),
        |lanes| {
            let applied = Projections::checkins(lanes).measure(&cluster, &mut daemon, events as u64, "")?;
            Ok(applied.events_per_second)
        },
    )
}

fn read_model(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let (cluster, rows) = (cluster(), scale.pick(200_000, 20_000));
    let orders: Vec<Order> = (0..rows).map(Order::new).collect();
    let mut daemon = filled(&cluster, "", rows, |number| Order::new(number).line())?;
    let runtime = tokio::runtime::Runtime::new()?;
    numbers(
        scale,
        || runtime.block_on(unnest::write_orders(&cluster, &orders, 1, true)),
        |lanes| Ok(Projections::orders(lanes).measure(&cluster, &mut daemon, rows as u64, "")?.events_per_second),
    )
}

/// Each number of lanes against one worker's loop of the same round.
fn numbers(
    scale: Scale,
    by_hand: impl Fn() -> Result<f64, Failure>,
    mut ours: impl FnMut(usize) -> Result<f64, Failure>,
) -> Result<Vec<Rounds>, Failure> {
    let mut all = vec![Rounds::default(); NUMBERS.len()];
    for _ in 0..scale.rounds(5) {
        let baseline = by_hand()?;
        for (rounds, lanes) in all.iter_mut().zip(NUMBERS) {
            rounds.baseline.push(baseline);
            rounds.ours.push(ours(lanes)?);
        }
    }
    Ok(all)
}

/// A projection whose lanes are all busy when `READ` events of many meters come.
fn meters(lanes: usize) -> Projections {
    Projections {
        tables: vec!["meters".to_owned()],
        lanes,
        definition: format!(
            "projections:\n  meters:\n    source_events: [READ]\n    lanes: {lanes}\n    target: {{ table: public.meters, primary_key: [meter] }}\n    fields: {{ meter: TEXT, n: BIGINT }}\n    derive: {{ meter: event.key }}\n    aggregates: {{ READ: {{ n: {{ op: count }} }} }}\n"
        ),
        visible: "SELECT coalesce(sum(n), 0) FROM meters".to_owned(),
    }
}

/// A running daemon with that projection and nothing to do.
pub fn idle_daemon(connection: &str, lanes: usize) -> Result<Daemon, Failure> {
    let mut daemon = Daemon::new(Some(connection), "postgres_connections = 4");
    daemon.start();
    meters(lanes).apply(&daemon)?;
    Ok(daemon)
}

/// Posts events until told to stop; gives how many.
fn post_readings(address: String, over: &Arc<AtomicBool>) -> JoinHandle<Result<u64, String>> {
    let over = Arc::clone(over);
    thread::spawn(move || {
        let mut events = 0;
        while !over.load(Ordering::Relaxed) {
            let line = |number| format!("{{\"type\":\"READ\",\"key\":\"meter-{}\",\"payload\":{{}}}}\n", number % 4999);
            let answer = post(&address, &(events..events + 500).map(line).collect::<String>(), &[])?;
            if answer.status != 200 {
                return Err(format!("{answer:?}"));
            }
            events += 500;
        }
        Ok(events)
    })
}

/// From 8 lanes to 16 and back under load. A split holds lanes up while the call runs; a merge makes lanes stop, from the
/// call at the earliest, to the change of the map.
fn resizes(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let cluster = cluster();
    let daemon = idle_daemon(&cluster.connection_string("bench"), FEW)?;
    let over = Arc::new(AtomicBool::new(false));
    let load = post_readings(daemon.address(), &over);
    let runtime = tokio::runtime::Runtime::new()?;
    let (mut splits, mut merges) = (Vec::new(), Vec::new());
    let measured: Result<(), Failure> = runtime.block_on(async {
        let client = cluster.connect("bench").await;
        const BUSY: &str = "SELECT bool_and(state = 'running' AND events > 0) FROM lanes.status";
        let milliseconds = |start: Instant| start.elapsed().as_secs_f64() * 1e3;
        wait_until(&client, BUSY).await;
        for _ in 0..scale.rounds(20) {
            let start = Instant::now();
            client.batch_execute(&format!("SELECT lanes.resize('meters', {})", 2 * FEW)).await?;
            splits.push(milliseconds(start));
            wait_until(&client, BUSY).await;
            let start = Instant::now();
            client.batch_execute(&format!("SELECT lanes.resize('meters', {FEW})")).await?;
            wait_until(&client, "NOT EXISTS (SELECT FROM lanes.reshaping)").await;
            merges.push(milliseconds(start));
            wait_until(&client, "SELECT bool_and(state = 'running') FROM lanes.status").await;
        }
        Ok(())
    });
    over.store(true, Ordering::Relaxed);
    let events = load.join().map_err(|_| "the load panicked")??;
    measured?;
    // Changes of lanes lose and repeat nothing.
    runtime.block_on(async {
        let client = cluster.connect("bench").await;
        wait_until(&client, "SELECT bool_and(lag = 0) FROM lanes.status").await;
    });
    let counted = cluster.psql("bench", &meters(FEW).visible);
    if counted != events.to_string() {
        return Err(format!("{counted} of {events} events were counted").into());
    }
    Ok(vec![Rounds::of_ours(splits), Rounds::of_ours(merges)])
}

/// Two daemons share the lanes of an events table; one is killed. How long until all its lanes have owners again.
fn take_overs(scale: Scale) -> Result<Vec<Rounds>, Failure> {
    let cluster = cluster();
    cluster.psql(
        "bench",
        "CREATE TABLE events (
             position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
             type text NOT NULL, key text NOT NULL, ts timestamptz NOT NULL DEFAULT now(), payload jsonb NOT NULL);
         SELECT lanes.register_log('events')",
    );
    let connection = cluster.connection_string("bench");
    let daemon = || Daemon::on_table(&connection, "public.events", "postgres_connections = 2");
    let (mut stays, mut dies) = (daemon(), daemon());
    stays.start();
    dies.start();
    meters(MANY).apply(&stays)?;
    let owners = |condition: &str| {
        format!(
            "SELECT {condition} FROM (SELECT count(*) AS n FROM lanes.status WHERE state = 'running' GROUP BY owner) AS s"
        )
    };
    let runtime = tokio::runtime::Runtime::new()?;
    let mut times_ms = Vec::new();
    runtime.block_on(async {
        let client = cluster.connect("bench").await;
        for _ in 0..scale.rounds(9) {
            wait_until(&client, &owners("count(*) = 4 AND min(n) >= 4")).await;
            let start = Instant::now();
            dies.kill();
            wait_until(&client, &owners("count(*) = 2 AND sum(n) = 64")).await;
            times_ms.push(start.elapsed().as_secs_f64() * 1e3);
            dies.start();
        }
    });
    Ok(vec![Rounds::of_ours(times_ms)])
}
