//! Figures: medians, ratios beside their goals, the table and the JSON.

use std::fmt;
use std::time::{Duration, Instant};

use serde::Serialize;

use crate::machine::Machine;

/// How much more memory than after the first tenth of the time still counts as flat.
const FLAT: f64 = 1.1;

/// Everything measured.
#[derive(Debug, Serialize)]
pub struct Report {
    machine: Machine,
    shards: u32,
    lines: Vec<Line>,
    memory: Option<Memory>,
    disk_bytes_after: Option<u64>,
}

/// One comparison.
#[derive(Debug, Serialize)]
pub struct Line {
    what: String,
    goal: Option<Goal>,
    ratio: f64,
    /// Least and greatest ratio of a round.
    spread: (f64, f64),
    measured: f64,
    against: f64,
    unit: &'static str,
}

#[derive(Debug, Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Goal {
    AtLeast(f64),
    AtMost(f64),
}

impl Line {
    /// A ratio that should not be below `goal`; a round's two figures are at the same place.
    pub fn at_least(what: &str, goal: f64, measured: &[f64], against: &[f64], unit: &'static str) -> Line {
        Line::of_rounds(what, Some(Goal::AtLeast(goal)), measured, against, unit)
    }

    /// A ratio that should not be above `goal`.
    pub fn at_most(what: &str, goal: f64, measured: &[f64], against: &[f64], unit: &'static str) -> Line {
        Line::of_rounds(what, Some(Goal::AtMost(goal)), measured, against, unit)
    }

    /// A ratio without a goal.
    pub fn note(what: &str, measured: &[f64], against: &[f64], unit: &'static str) -> Line {
        Line::of_rounds(what, None, measured, against, unit)
    }

    fn of_rounds(what: &str, goal: Option<Goal>, measured: &[f64], against: &[f64], unit: &'static str) -> Line {
        let ratios: Vec<f64> = measured.iter().zip(against).map(|(measured, against)| measured / against).collect();
        Line {
            what: what.to_owned(),
            goal,
            ratio: median(&ratios),
            spread: (percentile(&ratios, 0), percentile(&ratios, 100)),
            measured: median(measured),
            against: median(against),
            unit,
        }
    }
}

/// What a round of a throughput comparison took.
#[derive(Debug, Clone, Copy)]
pub struct Round {
    /// Events a second by the wall clock.
    pub rate: f64,
    /// CPU time of this process for an event, in microseconds. It hardly depends on what else the machine does.
    pub cpu_microseconds: f64,
}

/// Takes the time of a round.
#[derive(Debug)]
pub struct Clock {
    wall: Instant,
    cpu: Duration,
}

impl Clock {
    /// Begins now.
    pub fn start() -> Clock {
        Clock { wall: Instant::now(), cpu: cpu_time() }
    }

    /// What `events` events took since then.
    pub fn stop(&self, events: usize) -> Round {
        let events = events as f64;
        let cpu = cpu_time().saturating_sub(self.cpu);
        Round { rate: events / self.wall.elapsed().as_secs_f64(), cpu_microseconds: cpu.as_secs_f64() * 1e6 / events }
    }
}

/// The time that all threads of this process have worked.
fn cpu_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The daemon's memory, second by second.
#[derive(Debug, Serialize)]
pub struct Memory {
    /// Resident, in KiB.
    pub kib: Vec<u64>,
    /// Events a second meanwhile.
    pub rate: f64,
}

impl Memory {
    /// The last figure against the one after a tenth of the time, when caches and buffers have their size.
    pub fn line(&self, minutes: u64) -> Line {
        let mib = |kib: Option<&u64>| *kib.unwrap_or(&0) as f64 / 1024.0;
        let (first, last) = (mib(self.kib.get(self.kib.len() / 10)), mib(self.kib.last()));
        let what = format!("memory after {minutes} min at full load / at first");
        let goal = Some(Goal::AtMost(FLAT));
        let ratio = last / first;
        let greatest = mib(self.kib.iter().max()) / first;
        Line { what, goal, ratio, spread: (ratio, greatest), measured: last, against: first, unit: "MiB" }
    }
}

/// Times of several rounds.
#[derive(Debug, Default)]
pub struct Series {
    /// Each round's median.
    pub p50: Vec<f64>,
    /// Each round's 99th percentile.
    pub p99: Vec<f64>,
}

impl Series {
    /// Adds a round.
    pub fn add(&mut self, times: &[f64]) {
        self.p50.push(median(times));
        self.p99.push(percentile(times, 99));
    }
}

/// The middle value.
pub fn median(values: &[f64]) -> f64 {
    percentile(values, 50)
}

/// The value that so many in a hundred do not exceed; 0 and 100 are the least and the greatest. 0 if there is none.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

impl Report {
    /// A report without figures yet.
    pub fn new(machine: Machine, shards: u32) -> Report {
        Report { machine, shards, lines: Vec::new(), memory: None, disk_bytes_after: None }
    }

    /// Adds a comparison.
    pub fn add(&mut self, line: Line) {
        self.lines.push(line);
    }

    /// Adds what was seen of the memory.
    pub fn add_memory(&mut self, memory: Memory, disk_bytes_after: u64) {
        self.memory = Some(memory);
        self.disk_bytes_after = Some(disk_bytes_after);
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(formatter, "{}; {} shards", self.machine, self.shards)?;
        let (what, ratio, goal, spread, measured, against) = ("", "ratio", "goal", "spread", "measured", "against");
        writeln!(formatter, "{what:44} {ratio:>6} {goal:>8} {spread:>13} {measured:>10} {against:>10}")?;
        for Line { what, goal, ratio, spread: (least, greatest), measured, against, unit } in &self.lines {
            let (goal, verdict) = match *goal {
                None => (String::new(), ""),
                Some(Goal::AtLeast(goal)) => (format!(">= {goal}"), if *ratio >= goal { "met" } else { "MISSED" }),
                Some(Goal::AtMost(goal)) => (format!("<= {goal}"), if *ratio <= goal { "met" } else { "MISSED" }),
            };
            let spread = format!("{least:.2} to {greatest:.2}");
            let digits = if *unit == "events/s" { 0 } else { 1 };
            writeln!(
                formatter,
                "{what:44} {ratio:6.2} {goal:>8} {spread:>13} {measured:10.digits$} {against:10.digits$} {unit:8} {verdict}"
            )?;
        }
        if let Some(Memory { kib, rate }) = &self.memory {
            let greatest = kib.iter().max().copied().unwrap_or_default() as f64 / 1024.0;
            writeln!(formatter, "memory: greatest {greatest:.1} MiB, at {rate:.0} events/s")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!([0, 50, 99, 100].map(|percent| percentile(&values, percent)), [1.0, 100.0, 198.0, 200.0]);
        assert_eq!((median(&[3.0]), median(&[])), (3.0, 0.0));
    }

    #[test]
    fn a_ratio_is_the_median_of_the_rounds_and_not_the_ratio_of_medians() {
        let line = Line::at_least("a", 0.5, &[1.0, 8.0, 9.0], &[2.0, 10.0, 9.0], "events/s");
        assert_eq!((line.ratio, line.spread), (0.8, (0.5, 1.0)));
    }
}
