//! `bench-log`: the log's speed, as ratios against a bare SQLite loop that writes the same rows in the same run.
//!
//! Each round measures the bare loop and then what is compared with it, so that both meet the machine in the same state;
//! a ratio is the median over the rounds. `docs/BENCHMARKS.md` says what each line compares.

mod bare;
mod daemon;
mod http;
mod in_process;
mod machine;
mod report;
mod sample;

use std::path::{Path, PathBuf};
use std::time::Duration;

use clap::{Parser, ValueEnum};
use tempfile::TempDir;

use machine::Machine;
use report::{Line, Report, Round, Series, median};
use sample::Sample;

/// What ends the program with a message.
type Failure = Box<dyn std::error::Error + Send + Sync>;

/// Events of a request and of a batch of the latency measurement.
const REQUEST_EVENTS: usize = 1000;

/// Measures the log against a bare SQLite loop that writes the same rows.
#[derive(Debug, Parser)]
struct Arguments {
    /// Rounds of each comparison.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Events of a round of the throughput comparisons.
    #[arg(long, default_value_t = 200_000, value_parser = clap::value_parser!(u64).range(10_000..))]
    events: u64,
    /// Seconds of a round of the latency comparison.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    latency_seconds: u64,
    /// Minutes at full load over which the daemon's memory is watched.
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..))]
    memory_minutes: u64,
    /// Store shards, drain threads, and threads of the bare loop. Default: one for each CPU.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=256))]
    shards: Option<u32>,
    /// Connections that send at full load.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(1..))]
    connections: u32,
    /// What to measure; all if absent. May be repeated.
    #[arg(long)]
    part: Vec<Part>,
    /// Where the files are written; the system's temporary directory if absent.
    #[arg(long)]
    directory: Option<PathBuf>,
    /// Writes everything measured to this file.
    #[arg(long)]
    json: Option<PathBuf>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Part {
    /// Requests given to the drains, against the bare loop.
    InProcess,
    /// NDJSON over HTTP, against the bare loop.
    Http,
    /// Time to an acknowledgement at half load, against the bare loop's commits.
    Latency,
    /// The daemon's memory at full load.
    Memory,
}

impl Arguments {
    fn wants(&self, part: Part) -> bool {
        self.part.is_empty() || self.part.contains(&part)
    }

    fn fresh_directory(&self) -> std::io::Result<TempDir> {
        let parent = self.directory.clone().unwrap_or_else(std::env::temp_dir);
        tempfile::Builder::new().prefix("bench-log-").tempdir_in(parent.canonicalize()?)
    }
}

fn main() -> Result<(), Failure> {
    let arguments = Arguments::parse();
    let cpus = std::thread::available_parallelism().map_or(1, |count| count.get() as u32);
    let shards = arguments.shards.unwrap_or(cpus);
    let sample = Sample::load()?;
    let machine = Machine::describe(arguments.fresh_directory()?.path());
    let mut report = Report::new(machine, shards);

    let full_load = throughput(&arguments, shards, &sample, &mut report)?;
    if arguments.wants(Part::Latency) {
        let rate = match full_load {
            Some(rate) => rate / 2.0,
            None => http_round(&arguments, shards, &sample)? / 2.0,
        };
        latency(&arguments, shards, &sample, rate, &mut report)?;
    }
    if arguments.wants(Part::Memory) {
        memory(&arguments, shards, &sample, &mut report)?;
    }
    print!("{report}");
    if let Some(path) = &arguments.json {
        std::fs::write(path, serde_json::to_vec_pretty(&report)?)?;
    }
    Ok(())
}

/// The two comparisons of throughput; gives the rate over HTTP, in events a second, if it was measured.
fn throughput(
    arguments: &Arguments,
    shards: u32,
    sample: &Sample,
    report: &mut Report,
) -> Result<Option<f64>, Failure> {
    let (mut bare, mut in_process, mut http) = (Vec::new(), Vec::new(), Vec::new());
    if !arguments.wants(Part::InProcess) && !arguments.wants(Part::Http) {
        return Ok(None);
    }
    for round in 1..=arguments.rounds {
        eprintln!("throughput, round {round} of {}", arguments.rounds);
        let directory = arguments.fresh_directory()?;
        bare.push(bare::round(directory.path(), shards, sample, arguments.events)?);
        drop(directory);
        if arguments.wants(Part::InProcess) {
            let directory = arguments.fresh_directory()?;
            in_process.push(in_process::round(directory.path(), shards, sample, arguments.events)?);
        }
        if arguments.wants(Part::Http) {
            http.push(http_round(arguments, shards, sample)?);
        }
    }
    let rate = |rounds: &[Round]| rounds.iter().map(|round| round.rate).collect::<Vec<f64>>();
    let cpu = |rounds: &[Round]| rounds.iter().map(|round| round.cpu_microseconds).collect::<Vec<f64>>();
    if arguments.wants(Part::InProcess) {
        report.add(Line::at_least("in-process path / bare loop", 0.8, &rate(&in_process), &rate(&bare), "events/s"));
        report.add(Line::note("CPU an event, in-process / bare", &cpu(&in_process), &cpu(&bare), "us"));
    }
    if !arguments.wants(Part::Http) {
        return Ok(None);
    }
    report.add(Line::at_least("HTTP NDJSON by 1 000 / bare loop", 0.5, &http, &rate(&bare), "events/s"));
    Ok(Some(median(&http)))
}

fn http_round(arguments: &Arguments, shards: u32, sample: &Sample) -> Result<f64, Failure> {
    let directory = arguments.fresh_directory()?;
    let daemon = daemon::Daemon::start(directory.path(), shards, "")?;
    let rate = http::rate(daemon.address(), arguments.connections, sample, arguments.events)?;
    daemon.stop()?;
    Ok(rate)
}

/// Acknowledgements at `rate` events a second against the bare loop's commits at the same rate, by [`REQUEST_EVENTS`].
fn latency(arguments: &Arguments, shards: u32, sample: &Sample, rate: f64, report: &mut Report) -> Result<(), Failure> {
    let interval = Duration::from_secs_f64(REQUEST_EVENTS as f64 / rate);
    let count = (arguments.latency_seconds as f64 / interval.as_secs_f64()).ceil() as usize;
    let (mut commits, mut acks) = (Series::default(), Series::default());
    for round in 1..=arguments.rounds {
        eprintln!("latency at {rate:.0} events/s, round {round} of {}", arguments.rounds);
        let directory = arguments.fresh_directory()?;
        commits.add(&bare::latencies(directory.path(), shards, sample, interval, count)?);
        drop(directory);
        let directory = arguments.fresh_directory()?;
        let daemon = daemon::Daemon::start(directory.path(), shards, "")?;
        acks.add(&http::latencies(daemon.address(), arguments.connections, sample, interval, count)?);
        daemon.stop()?;
    }
    report.add(Line::at_most("ack p99 at half load / bare p99", 2.0, &acks.p99, &commits.p99, "ms"));
    report.add(Line::note("ack p50 at half load / bare p50", &acks.p50, &commits.p50, "ms"));
    Ok(())
}

/// The daemon's resident memory at full load, with retention at work so that the disk stays bounded.
fn memory(arguments: &Arguments, shards: u32, sample: &Sample, report: &mut Report) -> Result<(), Failure> {
    eprintln!("memory over {} min at full load", arguments.memory_minutes);
    let directory = arguments.fresh_directory()?;
    let retention = "retention_max_bytes = 1073741824\nretention_interval_s = 1\nretention_delete_rows = 100000";
    let daemon = daemon::Daemon::start(directory.path(), shards, retention)?;
    let load = Duration::from_secs(60 * arguments.memory_minutes);
    let watched = http::watch_memory(&daemon, arguments.connections, sample, load)?;
    daemon.stop()?;
    report.add(watched.line(arguments.memory_minutes));
    report.add_memory(watched, directory_bytes(&directory.path().join("data"))?);
    Ok(())
}

fn directory_bytes(directory: &Path) -> std::io::Result<u64> {
    std::fs::read_dir(directory)?.map(|entry| Ok(entry?.metadata()?.len())).sum()
}
