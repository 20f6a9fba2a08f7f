//! What is compared, and what was measured of it.
//!
//! A [`Comparison`] is fixed text: a name (`group/line`), what the two sides do, what either has promised when an event
//! counts as done, and the goal. Measuring gives [`Rounds`], and both together are a [`Row`] of the table and of the JSON.
//! A row's value is the median of the rounds' ratios, ours / baseline; without a baseline it is the median of ours.

use serde::{Deserialize, Serialize};

/// What a value has to reach.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// It should not be below this.
    AtLeast(f64),
    /// It should not be above this.
    AtMost(f64),
}

/// One side of a comparison.
#[derive(Debug, Clone, Copy)]
pub struct Side {
    /// What it does.
    pub what: &'static str,
    /// What holds of an event when it is counted as done.
    pub durability: &'static str,
}

/// What is compared.
#[derive(Debug, Clone, Copy)]
pub struct Comparison {
    /// Its group and its own name, such as `projections/hot-counter`.
    pub name: &'static str,
    /// The product.
    pub ours: Side,
    /// What it is compared with; none if the goal is absolute.
    pub baseline: Option<Side>,
    /// The unit of both sides' values.
    pub unit: &'static str,
    /// None if the line is there to be read only.
    pub goal: Option<Goal>,
}

/// What was measured: a value of each side a round, at the same place.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Rounds {
    /// The product's values.
    pub ours: Vec<f64>,
    /// The baseline's; none if there is no baseline.
    pub baseline: Vec<f64>,
}

/// What came of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Values.
    Measured(Rounds),
    /// It cannot be measured on this machine, and why.
    NotRun(String),
    /// What was done did not come out right, so there is no value.
    Failed(String),
}

/// A comparison with its outcome: a line of the table.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Row {
    /// As in [`Comparison`], like the following ones.
    pub name: String,
    /// What the product does.
    pub ours: String,
    /// What holds of an event that it has done.
    pub ours_durability: String,
    /// What the baseline does.
    pub baseline: Option<String>,
    /// What holds of an event that the baseline has done.
    pub baseline_durability: Option<String>,
    /// Of the rounds' values.
    pub unit: String,
    /// What the value has to reach.
    pub goal: Option<Goal>,
    /// What was measured.
    pub outcome: Outcome,
}

impl Comparison {
    /// The line of the table that tells `outcome`.
    pub fn row(&self, outcome: Outcome) -> Row {
        Row {
            name: self.name.to_owned(),
            ours: self.ours.what.to_owned(),
            ours_durability: self.ours.durability.to_owned(),
            baseline: self.baseline.map(|side| side.what.to_owned()),
            baseline_durability: self.baseline.map(|side| side.durability.to_owned()),
            unit: self.unit.to_owned(),
            goal: self.goal,
            outcome,
        }
    }
}

impl Goal {
    /// Whether `value` reaches it.
    pub fn is_met_by(self, value: f64) -> bool {
        match self {
            Goal::AtLeast(least) => value >= least,
            Goal::AtMost(most) => value <= most,
        }
    }
}

impl Rounds {
    /// Values of ours alone.
    pub fn of_ours(ours: Vec<f64>) -> Rounds {
        Rounds { ours, baseline: Vec::new() }
    }

    /// Values of both sides; a round's two are at the same place.
    pub fn against(ours: Vec<f64>, baseline: Vec<f64>) -> Rounds {
        assert_eq!(ours.len(), baseline.len(), "a round has a value of each side");
        Rounds { ours, baseline }
    }

    /// Each round's ratio, or its value where there is no baseline.
    pub fn values(&self) -> Vec<f64> {
        if self.baseline.is_empty() {
            return self.ours.clone();
        }
        self.ours.iter().zip(&self.baseline).map(|(ours, baseline)| ours / baseline).collect()
    }

    /// The median of the rounds' values: not the ratio of medians, since a round's two sides met the machine in the same
    /// state.
    pub fn value(&self) -> f64 {
        median(&self.values())
    }

    /// The least and the greatest of the rounds' values.
    pub fn spread(&self) -> (f64, f64) {
        let values = self.values();
        (percentile(&values, 0), percentile(&values, 100))
    }
}

impl Row {
    /// Whether the goal is met; none without a goal or without a value.
    pub fn verdict(&self) -> Option<bool> {
        match (&self.outcome, self.goal) {
            (Outcome::Measured(rounds), Some(goal)) => Some(goal.is_met_by(rounds.value())),
            _ => None,
        }
    }
}

/// The middle value, of an even number of values the mean of the two in the middle; 0 if there is none.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let at = |place: usize| sorted.get(place).copied().unwrap_or_default();
    f64::midpoint(at(sorted.len().saturating_sub(1) / 2), at(sorted.len() / 2))
}

/// The value that so many in a hundred do not exceed; 0 and 100 are the least and the greatest. 0 if there is none.
pub fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    let rank = (sorted.len() * percent).div_ceil(100);
    sorted.get(rank.saturating_sub(1)).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SIDE: Side = Side { what: "does", durability: "holds" };

    const COMPARISON: Comparison = Comparison {
        name: "group/line",
        ours: SIDE,
        baseline: Some(SIDE),
        unit: "events/s",
        goal: Some(Goal::AtLeast(0.8)),
    };

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let values: Vec<f64> = (1..=200).rev().map(f64::from).collect();
        assert_eq!([0, 50, 99, 100].map(|percent| percentile(&values, percent)), [1.0, 100.0, 198.0, 200.0]);
        assert_eq!((median(&[3.0]), median(&[9.0, 1.0, 4.0]), median(&[4.0, 1.0]), median(&[])), (3.0, 4.0, 2.5, 0.0));
    }

    #[test]
    fn a_value_is_the_median_of_the_rounds_ratios_and_not_the_ratio_of_medians() {
        let rounds = Rounds::against(vec![1.0, 8.0, 9.0], vec![2.0, 10.0, 9.0]);
        assert_eq!((rounds.value(), rounds.spread()), (0.8, (0.5, 1.0)));
    }

    #[test]
    fn without_a_baseline_the_values_are_ours() {
        let rounds = Rounds::of_ours(vec![3.0, 1.0, 2.0]);
        assert_eq!((rounds.value(), rounds.spread()), (2.0, (1.0, 3.0)));
    }

    #[test]
    fn a_goal_is_met_at_its_bound_and_not_beyond() {
        assert_eq!([0.79, 0.8, 0.81].map(|value| Goal::AtLeast(0.8).is_met_by(value)), [false, true, true]);
        assert_eq!([0.79, 0.8, 0.81].map(|value| Goal::AtMost(0.8).is_met_by(value)), [true, true, false]);
    }

    #[test]
    fn only_a_value_with_a_goal_has_a_verdict() {
        let verdict = |comparison: Comparison, outcome| comparison.row(outcome).verdict();
        let slow = Outcome::Measured(Rounds::against(vec![1.0], vec![2.0]));
        assert_eq!(verdict(COMPARISON, slow.clone()), Some(false));
        assert_eq!(verdict(Comparison { goal: None, ..COMPARISON }, slow), None);
        assert_eq!(verdict(COMPARISON, Outcome::NotRun("no server".to_owned())), None);
        assert_eq!(verdict(COMPARISON, Outcome::Failed("3 of 4 events".to_owned())), None);
    }
}
