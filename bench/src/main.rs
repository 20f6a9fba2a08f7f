//! `bench`: what pg_lanes costs, as ratios against the bare thing and against its peers, measured in one run.
//!
//! Each round measures both sides of a comparison one after the other, so that both meet the machine in the same state; a
//! value is the median over the rounds. All clusters sync to disk. `docs/BENCHMARKS.md` says how to run it and shows a run.
//!
//! A full run writes `bench/results.json`, the charts in `docs/bench/` and its part of `docs/BENCHMARKS.md`; a part of one, or
//! a quick one, writes the same to `target/bench/`, unless it is told `--write`.

mod chart;
mod comparison;
mod log;
mod machine;
mod measurement;
mod peers;
mod report;
mod sample;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use clap::Parser;
use serde::Serialize;

use chart::Bars;
use comparison::{Comparison, Goal, Outcome, Row, median};
use machine::Machine;
use measurement::{Failure, Measurement, Scale};
use report::{Report, replace_part};

/// The groups, in the order of the table.
const GROUPS: [&[Measurement]; 2] = [log::MEASUREMENTS, peers::MEASUREMENTS];

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
    /// Writes into the project though it is not a full run.
    #[arg(long)]
    write: bool,
}

impl Arguments {
    fn wants(&self, comparison: &Comparison) -> bool {
        self.only.is_empty() || self.only.iter().any(|name| comparison.name.starts_with(name.as_str()))
    }

    fn is_full(&self) -> bool {
        !self.quick && self.only.is_empty() && self.rounds.is_none()
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
    let comparisons = || GROUPS.iter().copied().flatten().flat_map(|measurement| measurement.comparisons);
    let unknown = |name: &&String| !comparisons().any(|comparison| comparison.name.starts_with(name.as_str()));
    if let Some(name) = arguments.only.iter().find(unknown) {
        return Err(format!("there is nothing called \"{name}\" to measure; `bench --list` tells what there is").into());
    }
    if arguments.list {
        for comparison in comparisons().filter(|comparison| arguments.wants(comparison)) {
            let goal = comparison.goal.map(|goal| goal.to_string()).unwrap_or_default();
            println!("{:34} {goal:>10}  {}", comparison.name, comparison.ours.what);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let machine = Machine::describe(&std::env::temp_dir().canonicalize()?);
    let scale = Scale { quick: arguments.quick, rounds: arguments.rounds.map(|rounds| rounds as usize) };
    let started = Instant::now();
    let mut rows = Vec::new();
    for measurement in GROUPS.iter().copied().flatten() {
        let wanted: Vec<&str> =
            measurement.comparisons.iter().filter(|comparison| arguments.wants(comparison)).map(|it| it.name).collect();
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
    fn names_are_of_their_group_and_there_once() {
        let mut seen = BTreeSet::new();
        for group in GROUPS {
            let comparisons: Vec<&Comparison> = group.iter().flat_map(|measurement| measurement.comparisons).collect();
            for comparison in &comparisons {
                assert_eq!(comparison.group(), comparisons[0].group(), "{}", comparison.name);
                assert!(seen.insert(comparison.name), "{} is there twice", comparison.name);
            }
        }
    }
}
