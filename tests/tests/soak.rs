//! The soak in short, with a fresh seed. `make soak` runs it for `SOAK_MINUTES`; `SOAK_SEED=…` repeats a plan, and
//! `SOAK_PLAN=1` prints it and runs nothing. A plan is given by seed and length together. `SOAK_LOGS=…` names a directory
//! for what all processes wrote.

use std::time::Duration;

use e2e::random::{environment_number, fresh_seed};
use e2e::soak::plan::Plan;
use e2e::soak::{projections, run};

/// The length within `make test`.
const SHORT: Duration = Duration::from_secs(25);

#[test]
fn under_all_faults_at_once_every_event_is_stored_once_and_applied_once_in_order() {
    let seed = environment_number("SOAK_SEED").unwrap_or_else(fresh_seed);
    let length = environment_number("SOAK_MINUTES").map_or(SHORT, |minutes| Duration::from_secs(minutes * 60));
    let plan = Plan::new(seed, length, projections::names().len());
    println!("SOAK_SEED={seed}, {} s, {} steps", length.as_secs(), plan.steps());
    if environment_number("SOAK_PLAN").is_some() {
        print!("{plan}");
        return;
    }
    let report = run(&plan);
    println!("{}", report.counts);
    assert!(report.faults.is_empty(), "SOAK_SEED={seed}:\n{}", report.faults.join("\n"));
}
