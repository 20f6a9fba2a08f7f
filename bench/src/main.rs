//! `bench`: what pg_lanes costs, as ratios against the bare thing and against its peers, measured in one run.
//!
//! Each round measures both sides of a comparison one after the other, so that both meet the machine in the same state; a
//! value is the median over the rounds. All clusters sync to disk. `docs/BENCHMARKS.md` says how to run it and shows a run.
//!
//! A full run writes `bench/results.json` (with `--growth`: `bench/growth.json`), the charts in `docs/bench/` and its part of
//! `docs/BENCHMARKS.md`; a part of one, or a quick one, writes JSON and charts to `target/bench/`, unless it is told `--write`.

mod chart;
mod comparison;
mod footprint;
mod growth;
mod lanes;
mod log;
mod machine;
mod measurement;
mod peers;
mod projection;
mod projections;
mod report;
mod sample;
mod sql_tools;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde::Serialize;

use chart::Bars;
use comparison::{Goal, Outcome, Row, median};
use growth::GrowthReport;
use machine::Machine;
use measurement::{Failure, Measurement, Scale, caught};
use report::{Report, replace_part};

/// The groups, in the order of the table.
const GROUPS: [&[Measurement]; 6] = [
    log::MEASUREMENTS,
    projections::MEASUREMENTS,
    lanes::MEASUREMENTS,
    sql_tools::MEASUREMENTS,
    footprint::MEASUREMENTS,
    peers::MEASUREMENTS,
];

/// Events of a full run of what grows.
const GROWTH_EVENTS: usize = 10_000_000;

/// Measures pg_lanes against the bare thing and against its peers.
#[derive(Debug, Parser)]
struct Arguments {
    /// Everything small and once, in less than three minutes: to see that it runs.
    #[arg(long)]
    quick: bool,
    /// What to measure: a group, a name, or how one begins. May be repeated. Default: all.
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Tells what there is to measure.
    #[arg(long)]
    list: bool,
    /// Rounds of each comparison. Default: as many as each needs.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Measures what an event costs as the log, its shards, lanes, projections, keys and the time at full load grow.
    #[arg(long, conflicts_with_all = ["quick", "rounds"])]
    growth: bool,
    /// Events of the growth.
    #[arg(long, requires = "growth", default_value_t = GROWTH_EVENTS, value_parser = at_least_twenty_thousand)]
    events: usize,
    /// Writes into the project though it is not a full run.
    #[arg(long)]
    write: bool,
}

/// Fewer are over before anything can be seen.
fn at_least_twenty_thousand(text: &str) -> Result<usize, String> {
    let events = text.parse().map_err(|error| format!("{error}"))?;
    if events >= 20_000 { Ok(events) } else { Err("at least 20000".to_owned()) }
}

impl Arguments {
    fn wants(&self, name: &str) -> bool {
        self.only.is_empty() || self.only.iter().any(|only| name.starts_with(only.as_str()))
    }

    fn is_full(&self) -> bool {
        !self.quick && self.only.is_empty() && self.rounds.is_none() && self.events >= GROWTH_EVENTS
    }

    /// Everything that there is to measure: names, goals, what is done.
    fn catalogue(&self) -> Vec<(&'static str, Option<Goal>, &'static str)> {
        if self.growth {
            return growth::PARTS.iter().map(|part| (part.name, None, part.what)).collect();
        }
        let comparisons = GROUPS.iter().copied().flatten().flat_map(|measurement| measurement.comparisons);
        comparisons.map(|comparison| (comparison.name, comparison.goal, comparison.ours.what)).collect()
    }
}

fn main() -> ExitCode {
    match run(&Arguments::parse()) {
        Ok(code) => code,
        Err(failure) => {
            eprintln!("bench: {failure}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let catalogue = arguments.catalogue();
    let unknown = |only: &&String| !catalogue.iter().any(|(name, ..)| name.starts_with(only.as_str()));
    if let Some(name) = arguments.only.iter().find(unknown) {
        return Err(format!("there is nothing called \"{name}\" to measure; `--list` tells what there is").into());
    }
    if arguments.list {
        for (name, goal, what) in catalogue.iter().filter(|(name, ..)| arguments.wants(name)) {
            println!("{name:34} {:>10}  {what}", goal.map(|goal| goal.to_string()).unwrap_or_default());
        }
        return Ok(ExitCode::SUCCESS);
    }
    if arguments.growth { measure_growth(arguments) } else { measure(arguments) }
}

fn measure(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let machine = Machine::describe(&std::env::temp_dir().canonicalize()?);
    let scale = Scale { quick: arguments.quick, rounds: arguments.rounds.map(|rounds| rounds as usize) };
    let started = Instant::now();
    let mut rows = Vec::new();
    for measurement in GROUPS.iter().copied().flatten() {
        let wanted: Vec<&str> = measurement
            .comparisons
            .iter()
            .map(|comparison| comparison.name)
            .filter(|name| arguments.wants(name))
            .collect();
        if wanted.is_empty() {
            continue;
        }
        eprintln!("{:4.0} s: {}", started.elapsed().as_secs_f64(), wanted.join(", "));
        let measured = measurement.rows(scale).into_iter().filter(|row| wanted.contains(&row.name.as_str()));
        // At once, so that a long run that is interrupted has not told nothing.
        rows.extend(measured.inspect(|row| eprint!("{row}")));
    }
    let report = Report { machine, quick: arguments.quick, rows };
    print!("{report}");
    write_report(&report, arguments.is_full() || arguments.write)?;
    Ok(if report.failures().next().is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn measure_growth(arguments: &Arguments) -> Result<ExitCode, Failure> {
    let machine = Machine::describe(&std::env::temp_dir().canonicalize()?);
    let (mut parts, mut failed) = (Vec::new(), false);
    for part in growth::PARTS.iter().filter(|part| arguments.wants(part.name)) {
        eprintln!("{}: {}", part.name, part.what);
        match caught(|| part.measure(arguments.events)) {
            Ok(grown) => {
                eprint!("{grown}");
                parts.push(grown);
            }
            Err(failure) => {
                eprintln!("{} FAILED: {failure}", part.name);
                failed = true;
            }
        }
    }
    let report = GrowthReport { machine, events: arguments.events, parts };
    print!("{report}");
    let into_project = arguments.write || (arguments.is_full() && !failed);
    let (json, charts) = folders(into_project)?;
    write_json(&json.join("growth.json"), &report)?;
    for part in &report.parts {
        part.chart().write(&charts.join(part.name.replace('/', "-") + ".svg"))?;
    }
    if into_project {
        write_part("growth", &report.markdown())?;
    }
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// Where files are written: the JSON's folder, and that of the charts.
fn folders(into_project: bool) -> Result<(PathBuf, PathBuf), Failure> {
    let (json, charts) = if into_project {
        (e2e::cluster::project().join("bench"), e2e::cluster::project().join("docs/bench"))
    } else {
        // target/release/bench ► target/bench
        let program = std::env::current_exe()?;
        let target = program.parent().and_then(Path::parent).ok_or("the program is not in a folder of cargo's")?;
        (target.join("bench"), target.join("bench"))
    };
    std::fs::create_dir_all(&json)?;
    std::fs::create_dir_all(&charts)?;
    Ok((json, charts))
}

fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    std::fs::write(path, serde_json::to_string_pretty(value)? + "\n")?;
    println!("written: {}", path.display());
    Ok(())
}

fn write_report(report: &Report, into_project: bool) -> Result<(), Failure> {
    let (json, charts) = folders(into_project)?;
    write_json(&json.join("results.json"), report)?;
    goals_chart(&report.rows).write(&charts.join("goals.svg"))?;
    rates_chart(&report.rows).write(&charts.join("rates.svg"))?;
    if into_project {
        write_part("results", &report.markdown())?;
    }
    Ok(())
}

/// Replaces a part of `docs/BENCHMARKS.md`.
fn write_part(name: &str, text: &str) -> Result<(), Failure> {
    let path = e2e::cluster::project().join("docs/BENCHMARKS.md");
    let document = std::fs::read_to_string(&path)?;
    let replaced = replace_part(&document, name, text);
    std::fs::write(&path, replaced.ok_or_else(|| format!("{} has no part {name}", path.display()))?)?;
    Ok(())
}

/// How far each value is from its goal: to the right of 1 it is met.
fn goals_chart(rows: &[Row]) -> Bars {
    let line = |row: &Row| {
        let (Outcome::Measured(rounds), Some(goal)) = (&row.outcome, row.goal) else { return None };
        let against_goal = |value: f64| match goal {
            Goal::AtLeast(least) => value / least,
            Goal::AtMost(most) => most / value,
        };
        let (least, greatest) = rounds.spread();
        Some((row.name.clone(), vec![[rounds.value(), least, greatest].map(against_goal)]))
    };
    Bars {
        title: "How far each value is from its goal, and the spread of the rounds",
        axis: "1 is the goal, to the right of it is better",
        sides: &["reached"],
        lines: rows
            .iter()
            .filter_map(line)
            .filter(|(_, sides)| sides[0].iter().all(|value| value.is_finite()))
            .collect(),
        mark: Some(1.0),
    }
}

/// Events a second of both sides.
fn rates_chart(rows: &[Row]) -> Bars {
    let line = |row: &Row| match &row.outcome {
        Outcome::Measured(rounds) if row.unit == "events/s" && !rounds.baseline.is_empty() => {
            let side = |values: &[f64]| {
                [median(values), comparison::percentile(values, 0), comparison::percentile(values, 100)]
            };
            Some((row.name.clone(), vec![side(&rounds.ours), side(&rounds.baseline)]))
        }
        _ => None,
    };
    Bars {
        title: "Events a second",
        axis: "events a second, median and spread of the rounds",
        sides: &["pg_lanes", "what it is compared with"],
        lines: rows.iter().filter_map(line).collect(),
        mark: None,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_begin_with_their_group_and_are_there_once() {
        let mut seen = BTreeSet::new();
        for group in GROUPS {
            let mut prefixes = BTreeSet::new();
            for comparison in group.iter().flat_map(|measurement| measurement.comparisons) {
                assert!(seen.insert(comparison.name), "{} is there twice", comparison.name);
                prefixes.extend(comparison.name.split('/').next());
            }
            assert!(prefixes.len() <= 1, "one group has the names {prefixes:?}");
        }
    }

    /// What is between the comments of `docs/BENCHMARKS.md` was written by a run, and is changed by nothing else.
    #[test]
    fn the_docs_show_what_the_json_says() {
        let read = |path: &str| std::fs::read_to_string(e2e::cluster::project().join(path)).unwrap();
        let docs = read("docs/BENCHMARKS.md");
        let results: Report = serde_json::from_str(&read("bench/results.json")).unwrap();
        assert_eq!(replace_part(&docs, "results", &results.markdown()).unwrap(), docs);
        let growth: GrowthReport = serde_json::from_str(&read("bench/growth.json")).unwrap();
        assert_eq!(replace_part(&docs, "growth", &growth.markdown()).unwrap(), docs);
    }
}
