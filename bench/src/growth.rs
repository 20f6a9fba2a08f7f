//! `--growth`: what an event costs as something grows: the log, its store shards, lanes, projections, keys, and the time at
//! full load.
//!
//! A part is a chart. Its costs should be flat; the greatest against the first value of each series says how flat, and
//! `docs/BENCHMARKS.md` explains what is not. Everything is checked as in the other groups: totals must be right.

use std::fmt;
use std::time::{Duration, Instant};

use e2e::cluster::Cluster;
use e2e::daemon::Daemon;
use serde::{Deserialize, Serialize};

use crate::chart::Lines;
use crate::log::{BOUNDED, CONNECTIONS, load};
use crate::machine::Machine;
use crate::measurement::Failure;
use crate::projection::{LANES, Projections, cluster, fill, filled};
use crate::report::figure;
use crate::sample::{Flights, Order, checkin_line, checkin_line_of, payment_cents, payment_key, payment_line};

/// Parts of the log whose cost is told each by itself.
const SLICES: usize = 20;

/// One thing that grows.
pub struct Part {
    /// Its name, such as `growth/keys`.
    pub name: &'static str,
    /// What is measured.
    pub what: &'static str,
    /// What grows.
    grows: &'static str,
    unit: &'static str,
    logarithmic: bool,
    /// Measures, with so many events where a full run has ten million.
    run: fn(usize) -> Result<Vec<Series>, Failure>,
}

/// Values over what grows.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Series {
    name: String,
    points: Vec<(f64, f64)>,
}

/// What came of a part.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Grown {
    /// Its name.
    pub name: String,
    what: String,
    grows: String,
    unit: String,
    logarithmic: bool,
    series: Vec<Series>,
}

/// Everything measured in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GrowthReport {
    /// Where.
    pub machine: Machine,
    /// How many events.
    pub events: usize,
    /// The parts that came out right.
    pub parts: Vec<Grown>,
}

/// What is measured.
pub const PARTS: &[Part] = &[
    Part {
        name: "growth/log",
        what: "microseconds for an event as the log grows: stored over HTTP, and applied by 4 lanes of the hot counter",
        grows: "events in the log, millions",
        unit: "us/event",
        logarithmic: false,
        run: log_size,
    },
    Part {
        name: "growth/shards",
        what: "microseconds for an event by the number of store shards: stored over HTTP, and applied by 4 lanes",
        grows: "store shards",
        unit: "us/event",
        logarithmic: true,
        run: shards,
    },
    Part {
        name: "growth/lanes",
        what: "microseconds for an event by the number of lanes: hot counter and read model",
        grows: "lanes",
        unit: "us/event",
        logarithmic: true,
        run: lanes,
    },
    Part {
        name: "growth/claims",
        what: "milliseconds for a lane until all lanes have owners, after the start of a daemon with four connections",
        grows: "lanes",
        unit: "ms/lane",
        logarithmic: true,
        run: claims,
    },
    Part {
        name: "growth/projections",
        what: "microseconds by the number of projections, one lane each: for an event and projection where all apply all events, and for an event where each has a type of its own",
        grows: "projections",
        unit: "us",
        logarithmic: true,
        run: projections,
    },
    Part {
        name: "growth/keys",
        what: "microseconds for an event by the number of keys in the table, hit at random: 4 lanes, and one worker by hand",
        grows: "keys",
        unit: "us/event",
        logarithmic: true,
        run: keys,
    },
    Part {
        name: "growth/memory",
        what: "resident memory of the daemon at full load, storing and applying, retention at work",
        grows: "seconds",
        unit: "MiB",
        logarithmic: false,
        run: memory,
    },
];

impl Part {
    /// Measures with `events` events where a full run has ten million.
    pub fn measure(&self, events: usize) -> Result<Grown, Failure> {
        Ok(Grown {
            name: self.name.to_owned(),
            what: self.what.to_owned(),
            grows: self.grows.to_owned(),
            unit: self.unit.to_owned(),
            logarithmic: self.logarithmic,
            series: (self.run)(events)?,
        })
    }
}

impl GrowthReport {
    /// The table for a file of Markdown.
    pub fn markdown(&self) -> String {
        format!("```\n{self}```\n")
    }
}

impl Series {
    fn new(name: &str, points: Vec<(f64, f64)>) -> Series {
        Series { name: name.to_owned(), points }
    }

    /// How many times its first value the greatest is: 1 is flat, or falling.
    fn growth(&self) -> f64 {
        let first = self.points.first().map_or(f64::NAN, |(_, y)| *y);
        self.points.iter().map(|(_, y)| y / first).fold(0.0, f64::max)
    }
}

impl Grown {
    /// The chart of it.
    pub fn chart(&self) -> Lines {
        Lines {
            title: self.name.clone(),
            x: self.grows.clone(),
            y: self.unit.clone(),
            logarithmic: self.logarithmic,
            series: self.series.iter().map(|series| (series.name.clone(), series.points.clone())).collect(),
        }
    }
}

impl fmt::Display for Grown {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}: {}", self.name, self.what)?;
        let longest = self.series.iter().max_by_key(|series| series.points.len());
        let places: Vec<f64> = longest.map_or(Vec::new(), |series| series.points.iter().map(|(x, _)| *x).collect());
        // Second by second is for the chart.
        let step = places.len().div_ceil(11).max(1);
        let shown = || places.iter().step_by(step);
        let cells = |values: Vec<String>| values.iter().map(|value| format!("{value:>9}")).collect::<String>();
        writeln!(formatter, "  {:32}{}", self.grows, cells(shown().map(|x| plain(*x)).collect()))?;
        for series in &self.series {
            let value =
                |x: &f64| series.points.iter().find(|(place, _)| place == x).map_or(String::new(), |(_, y)| figure(*y));
            let growth = format!("greatest / first {}", figure(series.growth()));
            writeln!(formatter, "  {:32}{}  {growth}", series.name, cells(shown().map(value).collect()))?;
        }
        Ok(())
    }
}

/// A number of things: without digits after the point unless it has some.
fn plain(value: f64) -> String {
    if value.fract() == 0.0 { format!("{value:.0}") } else { figure(value) }
}

impl fmt::Display for GrowthReport {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}; {} events", self.machine, self.events)?;
        self.parts.iter().try_for_each(|part| fmt::Display::fmt(part, formatter))
    }
}

fn microseconds(events_per_second: f64) -> f64 {
    1e6 / events_per_second
}

fn log_size(events: usize) -> Result<Vec<Series>, Failure> {
    let cluster = cluster();
    let mut daemon = filled(&cluster, "", 0, checkin_line)?;
    let slice = events / SLICES;
    daemon.start();
    let mut stored = Vec::new();
    for number in 0..SLICES {
        let start = Instant::now();
        fill(&daemon, number * slice, (number + 1) * slice, checkin_line)?;
        let place = ((number + 1) * slice) as f64 / 1e6;
        stored.push((place, start.elapsed().as_secs_f64() * 1e6 / slice as f64));
    }
    if !daemon.stop().success() {
        return Err("the daemon did not end in order".into());
    }
    // When the slowest lane had passed the end of each slice.
    let mut passed: Vec<Instant> = Vec::new();
    let mut begun = None;
    let total = slice * SLICES;
    Projections::checkins(LANES).progress(&cluster, &mut daemon, total as u64, "", |position| {
        let now = Instant::now();
        // The first slice begins when the lanes do: before it they are claimed and prepared.
        if position > 0 {
            begun.get_or_insert(now);
        }
        while passed.len() < SLICES && position as usize >= (passed.len() + 1) * slice {
            passed.push(now);
        }
    })?;
    let begun = begun.ok_or("the lanes did not move")?;
    let ends = passed.iter().enumerate();
    let mut before = begun;
    let applied = ends.filter_map(|(number, end)| {
        let time = end.duration_since(std::mem::replace(&mut before, *end));
        // A slice that was passed between two looks has no time of its own.
        let point = (((number + 1) * slice) as f64 / 1e6, time.as_secs_f64() * 1e6 / slice as f64);
        (!time.is_zero()).then_some(point)
    });
    Ok(vec![Series::new("stored", stored), Series::new("applied", applied.collect())])
}

fn shards(events: usize) -> Result<Vec<Series>, Failure> {
    let events = (events / 20).max(1000);
    let (mut stored, mut applied) = (Vec::new(), Vec::new());
    for shards in [1, 2, 4, 8, 16, 32, 64, 128, 256] {
        let cluster = cluster();
        let mut daemon = filled(&cluster, &format!("storage_shards = {shards}"), 0, checkin_line)?;
        daemon.start();
        let start = Instant::now();
        fill(&daemon, 0, events, checkin_line)?;
        stored.push((f64::from(shards), start.elapsed().as_secs_f64() * 1e6 / events as f64));
        if !daemon.stop().success() {
            return Err("the daemon did not end in order".into());
        }
        let done = Projections::checkins(LANES).measure(&cluster, &mut daemon, events as u64, "")?;
        applied.push((f64::from(shards), microseconds(done.events_per_second)));
    }
    Ok(vec![Series::new("stored", stored), Series::new("applied", applied)])
}

fn lanes(events: usize) -> Result<Vec<Series>, Failure> {
    let cluster = cluster();
    let (checkins, orders) = ((events / 10).max(1000), (events / 25).max(1000));
    let over = |daemon: &mut Daemon, events: usize, projection: fn(usize) -> Projections| {
        [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024]
            .into_iter()
            .map(|lanes| {
                let done = projection(lanes).measure(&cluster, daemon, events as u64, "")?;
                Ok((lanes as f64, microseconds(done.events_per_second)))
            })
            .collect::<Result<Vec<_>, Failure>>()
    };
    let hot_counter = over(&mut filled(&cluster, "", checkins, checkin_line)?, checkins, Projections::checkins)?;
    let mut daemon = filled(&cluster, "", orders, |number| Order::new(number).line())?;
    let read_model = over(&mut daemon, orders, Projections::orders)?;
    Ok(vec![Series::new("hot counter", hot_counter), Series::new("read model", read_model)])
}

/// From the first claim to the last, over a log without events.
fn claims(_events: usize) -> Result<Vec<Series>, Failure> {
    let cluster = cluster();
    let mut points = Vec::new();
    for lanes in [4, 8, 16, 32, 64, 128, 256, 512, 1024] {
        let mut daemon = filled(&cluster, "", 0, checkin_line)?;
        let projection = Projections::checkins(lanes);
        projection.apply(&daemon)?;
        daemon.start();
        daemon.wait_until_applied(lanes, 0);
        let claiming = "SELECT extract(epoch FROM max(claimed_at) - min(claimed_at)) * 1000 FROM lanes.checkpoint";
        points.push((lanes as f64, cluster.psql("bench", claiming).parse::<f64>()? / lanes as f64));
        if !daemon.stop().success() {
            return Err("the daemon did not end in order".into());
        }
        projection.drop(&cluster);
    }
    Ok(vec![Series::new("until all are owned", points)])
}

fn projections(events: usize) -> Result<Vec<Series>, Failure> {
    let cluster = cluster();
    let events = (events / 20).max(1000);
    let (mut all_events, mut own_events) = (Vec::new(), Vec::new());
    let mut daemon = filled(&cluster, "", events, checkin_line)?;
    for count in [1, 2, 5, 10, 20, 50, 100] {
        let each = Projections::counters(&vec!["CHECKED_IN".to_owned(); count]);
        let done = each.measure(&cluster, &mut daemon, (events * count) as u64, "")?;
        // Its events are those of all projections.
        all_events.push((count as f64, microseconds(done.events_per_second)));
        let types: Vec<String> = (0..count).map(|number| format!("CHECKED_IN_{number}")).collect();
        let mut daemon = filled(&cluster, "", events, |number| checkin_line_of(&types[number % count], number))?;
        let done = Projections::counters(&types).measure(&cluster, &mut daemon, events as u64, "")?;
        own_events.push((count as f64, microseconds(done.events_per_second)));
    }
    Ok(vec![Series::new("each applies all events", all_events), Series::new("each has its own type", own_events)])
}

fn keys(events: usize) -> Result<Vec<Series>, Failure> {
    let cluster = cluster();
    let applied = (events / 20).max(1000);
    let (mut ours, mut by_hand) = (Vec::new(), Vec::new());
    let runtime = tokio::runtime::Runtime::new()?;
    for keys in [10, 100, 1_000, 10_000, 100_000, 1_000_000, 10_000_000] {
        // Growth of a tenth is a tenth of the keys as well.
        if keys > events {
            break;
        }
        let rows = format!("SELECT 'account-' || i, 0, 0 FROM generate_series(0, {}) AS i", keys - 1);
        let mut daemon = filled(&cluster, "", applied, |number| payment_line(number, keys))?;
        let before = format!("INSERT INTO balances (account, n, cents) {rows}; VACUUM ANALYZE balances");
        let done = Projections::balances(LANES).measure(&cluster, &mut daemon, applied as u64, &before)?;
        ours.push((keys as f64, microseconds(done.events_per_second)));
        by_hand.push((keys as f64, microseconds(runtime.block_on(balances_by_hand(&cluster, applied, keys, &rows))?)));
    }
    Ok(vec![Series::new("4 lanes", ours), Series::new("one worker by hand", by_hand)])
}

/// Payments a second of one worker that sends keys and amounts in batches of 10 000 and has Postgres add them up.
async fn balances_by_hand(cluster: &Cluster, events: usize, keys: usize, rows: &str) -> Result<f64, Failure> {
    cluster.psql(
        "bench",
        "DROP TABLE IF EXISTS balances_by_hand;
         CREATE TABLE balances_by_hand (account text PRIMARY KEY, n bigint NOT NULL, cents bigint NOT NULL)",
    );
    cluster.psql("bench", &format!("INSERT INTO balances_by_hand {rows}"));
    cluster.psql("bench", "VACUUM ANALYZE balances_by_hand");
    cluster.psql("bench", "CHECKPOINT");
    let client = cluster.connect("bench").await;
    let upsert = "INSERT INTO balances_by_hand AS b
        SELECT account, count(*), sum(cents) FROM unnest($1::text[], $2::bigint[]) AS s (account, cents) GROUP BY account
        ON CONFLICT (account) DO UPDATE SET n = b.n + excluded.n, cents = b.cents + excluded.cents";
    let numbers: Vec<usize> = (0..events).collect();
    let start = Instant::now();
    for batch in numbers.chunks(10_000) {
        let accounts: Vec<String> = batch.iter().map(|number| payment_key(*number, keys)).collect();
        let cents: Vec<i64> = batch.iter().map(|number| payment_cents(*number)).collect();
        client.execute(upsert, &[&accounts, &cents]).await?;
    }
    let seconds = start.elapsed().as_secs_f64();
    let counted = cluster.psql("bench", "SELECT sum(n) FROM balances_by_hand");
    if counted != events.to_string() {
        return Err(format!("{counted} of {events} payments were counted by hand").into());
    }
    Ok(events as f64 / seconds)
}

fn memory(events: usize) -> Result<Vec<Series>, Failure> {
    let cluster = cluster();
    let seconds = (600 * events / 10_000_000).clamp(10, 600) as u64;
    // Without it applied events stay for an hour.
    let settings = format!("postgres_connections = {LANES}\nkeep_applied_s = 0\n{BOUNDED}");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("bench")), &settings);
    daemon.start();
    let (flights, projection) = (Flights::load()?, flight_counter());
    projection.apply(&daemon)?;
    let (mut resident, started) = (Vec::new(), Instant::now());
    let events = load(&daemon.address(), CONNECTIONS, &flights, Duration::from_secs(seconds), || {
        // After a tenth of the time caches and buffers have their size.
        if started.elapsed().as_secs() >= seconds / 10 {
            resident.push((started.elapsed().as_secs_f64().round(), daemon.resident_kib() as f64 / 1024.0));
        }
    })?;
    eprintln!("{:.0} events/s were stored", events as f64 / started.elapsed().as_secs_f64());
    daemon.wait_until_applied(LANES, events);
    let counted = cluster.psql("bench", &projection.visible);
    if counted != events.to_string() {
        return Err(format!("{counted} of {events} flights were counted").into());
    }
    Ok(vec![Series::new("resident", resident)])
}

/// Counts flights by origin.
fn flight_counter() -> Projections {
    Projections {
        tables: vec!["departures".to_owned()],
        lanes: LANES,
        definition: format!(
            "projections:\n  departures:\n    type: hot\n    source_events: [FLIGHT_DEPARTED, FLIGHT_CANCELLED]\n    lanes: {LANES}\n    target: {{ table: departures, primary_key: [origin, lane] }}\n    fields: {{ origin: TEXT, lane: INT, n: BIGINT }}\n    derive: {{ origin: event.origin, lane: lane() }}\n    aggregates: {{ FLIGHT_DEPARTED: {{ n: {{ op: count }} }}, FLIGHT_CANCELLED: {{ n: {{ op: count }} }} }}\n"
        ),
        visible: "SELECT coalesce(sum(n), 0) FROM departures".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn growth_is_the_greatest_value_against_the_first() {
        let growth = |values: &[f64]| Series::new("a", values.iter().map(|y| (1.0, *y)).collect()).growth();
        assert_eq!((growth(&[2.0, 1.0, 3.0, 2.5]), growth(&[2.0, 1.0])), (1.5, 1.0));
    }

    #[test]
    fn a_table_has_a_line_for_each_series_and_gaps_where_there_is_no_value() {
        let series =
            vec![Series::new("stored", vec![(1.0, 4.0), (2.0, 6.0)]), Series::new("applied", vec![(2.0, 5.0)])];
        let text = |text: &str| text.to_owned();
        let (name, what, grows, unit) = (text("growth/log"), text("cost"), text("millions"), text("us/event"));
        let table = Grown { name, what, grows, unit, logarithmic: false, series }.to_string();
        let words: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(words[1], ["millions", "1", "2"]);
        assert_eq!(words[2], ["stored", "4.00", "6.00", "greatest", "/", "first", "1.50"]);
        assert_eq!(words[3], ["applied", "5.00", "greatest", "/", "first", "1.00"]);
    }
}
