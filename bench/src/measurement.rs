//! A measurement: the run that gives the values of one comparison or of several, and how large it is.
//!
//! Each group is a module with a list of measurements. A measurement checks what came out (totals, numbers of rows) before
//! it gives a value: what is not right is an error, and a panic counts as one.

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::comparison::{Comparison, Outcome, Rounds, Row};

/// What ends a measurement without values.
pub type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The [`Failure`] of what this machine does not have: a program is missing, or too old. It fails no run.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotRun(pub String);

/// How much is measured.
#[derive(Debug, Clone, Copy)]
pub struct Scale {
    /// Everything once or twice and small, to see that it runs; its values say little.
    pub quick: bool,
    /// Rounds of each comparison, if the caller says how many.
    pub rounds: Option<usize>,
}

/// The run of one comparison or of several.
pub struct Measurement {
    /// What is compared.
    pub comparisons: &'static [Comparison],
    /// Measures; gives the values in the order of `comparisons`.
    pub run: fn(Scale) -> Result<Vec<Rounds>, Failure>,
}

impl Scale {
    /// `full`, or `quick` in a quick run: numbers of events, seconds, and the like.
    pub fn pick<T>(self, full: T, quick: T) -> T {
        if self.quick { quick } else { full }
    }

    /// How many rounds, where a full run has `full` of them and the caller says nothing else.
    pub fn rounds(self, full: usize) -> usize {
        self.rounds.unwrap_or(self.pick(full, 1))
    }
}

impl Measurement {
    /// Measures, and gives a row for each comparison whatever happens.
    pub fn rows(&self, scale: Scale) -> Vec<Row> {
        let ended =
            catch_unwind(AssertUnwindSafe(|| (self.run)(scale))).unwrap_or_else(|panic| Err(message(&*panic).into()));
        let failed: fn(String) -> Outcome = match &ended {
            Err(failure) if failure.is::<NotRun>() => Outcome::NotRun,
            _ => Outcome::Failed,
        };
        match ended {
            Ok(all) if all.len() == self.comparisons.len() => self
                .comparisons
                .iter()
                .zip(all)
                .map(|(comparison, rounds)| comparison.row(Outcome::Measured(rounds)))
                .collect(),
            Ok(all) => self.without_values(|| failed(format!("it gave values of {} comparisons", all.len()))),
            Err(failure) => self.without_values(|| failed(failure.to_string())),
        }
    }

    fn without_values(&self, outcome: impl Fn() -> Outcome) -> Vec<Row> {
        self.comparisons.iter().map(|comparison| comparison.row(outcome())).collect()
    }
}

/// What `work` gives; a failure also if it panics.
pub fn caught<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| Err(message(&*panic).into()))
}

fn message(panic: &(dyn std::any::Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_else(|| "it panicked".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::Side;

    const SIDE: Side = Side { what: "does", durability: "holds" };

    const ONE: Comparison = Comparison { name: "group/one", ours: SIDE, baseline: None, unit: "events/s", goal: None };

    const SCALE: Scale = Scale { quick: false, rounds: None };

    fn outcomes(run: fn(Scale) -> Result<Vec<Rounds>, Failure>) -> Vec<Outcome> {
        let measurement = Measurement { comparisons: &[ONE, Comparison { name: "group/two", ..ONE }], run };
        measurement.rows(SCALE).into_iter().map(|row| row.outcome).collect()
    }

    #[test]
    fn values_go_to_the_comparisons_in_their_order() {
        let measured = outcomes(|_| Ok(vec![Rounds::of_ours(vec![1.0]), Rounds::of_ours(vec![2.0])]));
        assert_eq!(measured, [1.0, 2.0].map(|value| Outcome::Measured(Rounds::of_ours(vec![value]))));
    }

    #[test]
    fn every_comparison_has_a_row_whatever_ends_the_run() {
        let failed = |text: &str| vec![Outcome::Failed(text.to_owned()); 2];
        assert_eq!(outcomes(|_| Err("3 of 4 events".into())), failed("3 of 4 events"));
        assert_eq!(outcomes(|_| panic!("3 of {} events", 4)), failed("3 of 4 events"));
        assert_eq!(outcomes(|_| Ok(vec![Rounds::default()])), failed("it gave values of 1 comparisons"));
        assert_eq!(
            outcomes(|_| Err(NotRun("no server".to_owned()).into())),
            vec![Outcome::NotRun("no server".to_owned()); 2]
        );
    }

    #[test]
    fn a_quick_run_has_one_round_unless_the_caller_wants_more() {
        assert_eq!((SCALE.rounds(9), Scale { quick: true, ..SCALE }.rounds(9)), (9, 1));
        assert_eq!(Scale { quick: true, rounds: Some(3) }.rounds(9), 3);
    }
}
