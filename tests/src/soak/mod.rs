//! The soak: one run of everything at once under real load, with faults of every kind from one seed; then the audit.
//!
//! `event` and `plan` draw what is sent and what is done from the seed alone. `site` is what runs, `producer` and `appender`
//! are the load. When all is over and settled, `audit` compares what is there with what must be, which `fold` and the
//! producers' records say; `control` then spoils copies and totals, and each must be found.

pub mod appender;
pub mod audit;
pub mod control;
pub mod errors;
pub mod event;
pub mod fold;
pub mod plan;
pub mod producer;
pub mod projections;
pub mod site;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::log_files::{self, LogFiles};
use crate::random::Random;
use crate::readings::{DISORDER, METERS};
use appender::{Committed, Last, append};
use audit::Audit;
use errors::Source;
use event::Events;
use plan::{DAEMONS, Fault, Plan, Step};
use producer::{Record, Sent, produce};
use site::{Outcome, Site, producers};

/// Writers of the events table.
const APPENDERS: u64 = 2;

/// How often a run tells how far it is.
const TELL: Duration = Duration::from_secs(60);

/// How many kinds of lines that nothing explains are shown of a log.
const SHOWN: usize = 20;

/// What was done of each kind of fault, and what was missed.
#[derive(Debug, Default)]
struct Inflicted(BTreeMap<&'static str, (u64, u64)>);

impl Inflicted {
    fn add(&mut self, fault: Fault, outcome: &Outcome) {
        let (done, missed) = self.0.entry(fault.kind()).or_default();
        match outcome {
            Outcome::Done => *done += 1,
            Outcome::Missed(_) => *missed += 1,
        }
    }

    fn kinds(&self) -> BTreeSet<&'static str> {
        // What was asked for and not answered may have happened.
        self.0.keys().copied().collect()
    }
}

/// What a run came to.
#[derive(Debug)]
pub struct Report {
    /// The counts, as text.
    pub counts: String,
    /// What is wrong.
    pub faults: Vec<String>,
}

/// Ends everybody when a thread panics.
struct Alarm<'a>(&'a AtomicBool);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.store(true, Ordering::Relaxed);
        }
    }
}

/// Runs a plan, and audits what came of it.
///
/// # Panics
/// If something does not come about at all: a start, an answer that keeps to the protocol, rest in the end.
pub fn run(plan: &Plan) -> Report {
    let site = Site::start();
    let (sent, committed, inflicted) = (Sent::default(), Committed::default(), Mutex::new(Inflicted::default()));
    let (over, failed) = (AtomicBool::new(false), AtomicBool::new(false));
    let mut random = Random::new(plan.seed).fork();
    let addresses: Vec<String> = (0..DAEMONS).map(|daemon| site.daemon(daemon).address()).collect();
    let started = Instant::now();
    let (mut records, mut last): (Vec<Vec<Record>>, Last) = (Vec::new(), Last::new());
    std::thread::scope(|scope| {
        let (site, sent, committed, inflicted) = (&site, &sent, &committed, &inflicted);
        let (over, failed, addresses) = (&over, &failed, &addresses);
        let load: Vec<Vec<_>> = (0..DAEMONS)
            .map(|daemon| {
                let produce = |name: String| {
                    let (events, random) = (Events::new(plan.seed, &name), random.fork());
                    scope.spawn(move || {
                        let _alarm = Alarm(failed);
                        produce(&addresses[daemon], &name, events, random, sent, over)
                    })
                };
                producers(daemon).map(produce).into()
            })
            .collect();
        let appenders: Vec<_> = (0..APPENDERS)
            .map(|writer| {
                let random = random.fork();
                scope.spawn(move || append(site.connection(), writer, random, committed, over))
            })
            .collect();
        let actors: Vec<_> = (plan.actors.iter())
            .map(|(_, steps)| {
                scope.spawn(move || {
                    let _alarm = Alarm(failed);
                    act(site, steps, started, inflicted, failed);
                })
            })
            .collect();
        let mut told = started;
        while started.elapsed() < plan.length && !failed.load(Ordering::Relaxed) {
            std::thread::sleep(Duration::from_millis(50));
            if told.elapsed() >= TELL {
                told = Instant::now();
                let faults: u64 = lock(inflicted).0.values().map(|(done, _)| done).sum();
                let acknowledged = sent.acknowledged.load(Ordering::Relaxed);
                println!("{:>5} s: {acknowledged} events acknowledged, {faults} faults", started.elapsed().as_secs());
            }
        }
        actors.into_iter().for_each(|actor| actor.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        over.store(true, Ordering::Relaxed);
        for daemon in load {
            records.push(daemon.into_iter().map(|producer| producer.join().expect("it has told why")).collect());
        }
        for appender in appenders {
            last.extend(appender.join().expect("it has told why"));
        }
    });
    let done = started.elapsed();
    site.settle();
    let settled = started.elapsed();

    let mut audit = Audit::default();
    let logs: Vec<Option<LogFiles>> = records
        .iter()
        .enumerate()
        .map(|(daemon, records)| audit_log(&site, plan.seed, daemon, records, &mut audit))
        .collect();
    let table = site
        .psql("SELECT key, payload ->> 'nr', payload ->> 'wh' FROM readings ORDER BY key, (payload ->> 'nr')::bigint");
    audit.meters(&table, &site.psql(METERS), &last);
    audit.same_lines("batches that left a meter out of order", &site.psql(DISORDER), "0");
    let inflicted = inflicted.into_inner().expect("no thread has panicked with it");
    let errors = audit_errors(&site, &inflicted.kinds(), &mut audit);
    let controls = control::controls(&site, plan.seed, &logs, &records, &mut audit);

    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    let mut counts = String::new();
    let stored: usize = logs.iter().flatten().map(|files| files.rows.len()).sum();
    let mut line =
        |name: &str, value: String| writeln!(counts, "{name:<34}{value:>12}").expect("text can be written to");
    line("events acknowledged", get(&sent.acknowledged).to_string());
    line("  requests acknowledged", get(&sent.acks).to_string());
    line("  requests sent again", get(&sent.resends).to_string());
    line("  events known as duplicates", get(&sent.duplicates).to_string());
    line("  rows in the logs", stored.to_string());
    line("events appended to the table", table.lines().count().to_string());
    line("poison events, all skipped", site.psql("SELECT count(*) FROM lanes.skipped_event"));
    for (kind, (done, missed)) in &inflicted.0 {
        let missed = if *missed > 0 { format!(" (and {missed} missed)") } else { String::new() };
        line(kind, format!("{done}{missed}"));
    }
    line("errors in logs", errors.to_string());
    line("controls, all found", controls.to_string());
    line("checks", audit.checks.to_string());
    line("seconds of load and faults", format!("{:.1}", done.as_secs_f64()));
    line("seconds until all was settled", format!("{:.1}", (settled - done).as_secs_f64()));
    Report { counts, faults: audit.faults }
}

fn lock(inflicted: &Mutex<Inflicted>) -> std::sync::MutexGuard<'_, Inflicted> {
    inflicted.lock().expect("no thread has panicked with it")
}

/// Does the steps of an actor at their times.
fn act(site: &Site, steps: &[Step], started: Instant, inflicted: &Mutex<Inflicted>, failed: &AtomicBool) {
    for step in steps {
        let at = started + Duration::from_millis(step.at_ms);
        while Instant::now() < at {
            if failed.load(Ordering::Relaxed) {
                return;
            }
            std::thread::sleep(at.saturating_duration_since(Instant::now()).min(Duration::from_millis(50)));
        }
        let outcome = site.inflict(step.fault);
        lock(inflicted).add(step.fault, &outcome);
    }
}

/// Audits a daemon's log and its projections; the log, if it can be read.
fn audit_log(site: &Site, seed: u64, daemon: usize, records: &[Record], audit: &mut Audit) -> Option<LogFiles> {
    let guard = site.daemon(daemon);
    let verified = guard.output(&["log", "verify"]);
    let said = String::from_utf8_lossy(&verified.stdout).into_owned();
    audit.that(verified.status.success() && said.contains("no fault found"), || format!("log verify: {said}"));
    let horizon = guard.status()["log"]["horizon"].as_u64();
    match log_files::check(&guard.data_directory(), horizon) {
        Err(fault) => {
            audit.faults.push(format!("log of daemon {daemon}: {fault}"));
            None
        }
        Ok(files) => {
            audit.stored(seed, &files, records);
            audit.projections(daemon, &files, &projections::queries(daemon).map(|query| site.psql(&query)));
            Some(files)
        }
    }
}

/// Audits the logs of all processes; how many errors they tell of.
fn audit_errors(site: &Site, faults: &BTreeSet<&str>, audit: &mut Audit) -> u64 {
    let mut logs = vec![(Source::Postgres, site.server_log()), (Source::Workers, site.worker_log())];
    logs.extend((0..DAEMONS).map(|daemon| (Source::Daemon, site.daemon(daemon).log())));
    if let Some(directory) = std::env::var_os("SOAK_LOGS") {
        std::fs::create_dir_all(&directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
        for (number, (source, log)) in logs.iter().enumerate() {
            let path = Path::new(&directory).join(format!("{number}-{source:?}.log").to_lowercase());
            std::fs::write(&path, log).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        }
    }
    let mut all = 0;
    for (source, log) in logs {
        let (errors, unexplained) = errors::unexplained(source, &log, faults);
        all += errors;
        audit.that(unexplained.is_empty(), || {
            format!("{} errors of {source:?} that nothing explains:\n{}", unexplained.len(), grouped(&unexplained))
        });
    }
    all
}

/// The first of all lines that differ in numbers alone, and how many there are.
fn grouped(lines: &[&str]) -> String {
    let mut groups: BTreeMap<String, (usize, &str)> = BTreeMap::new();
    for line in lines {
        let without_numbers = line.replace(|character: char| character.is_ascii_digit(), "");
        groups.entry(without_numbers).or_insert((0, line)).0 += 1;
    }
    let shown = groups.values().take(SHOWN).map(|(count, line)| format!("  {count} times: {line}"));
    shown.collect::<Vec<_>>().join("\n")
}
