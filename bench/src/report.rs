//! The report of a run: the table, the JSON, and the part of `docs/BENCHMARKS.md` that is written from it.

use std::fmt::{self, Write as _};

use serde::{Deserialize, Serialize};

use crate::comparison::{Goal, Outcome, Row, median};
use crate::machine::Machine;

/// Everything measured in a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Where.
    pub machine: Machine,
    /// Whether it was a quick run, whose values say little.
    pub quick: bool,
    /// In the order in which they were measured.
    pub rows: Vec<Row>,
}

impl Report {
    /// The comparisons that did not come out right.
    pub fn failures(&self) -> impl Iterator<Item = &Row> {
        self.rows.iter().filter(|row| matches!(row.outcome, Outcome::Failed(_)))
    }

    /// Machine and table for a file of Markdown, and what each line compares.
    pub fn markdown(&self) -> String {
        let mut text = format!("```\n{self}```\n\n| line | ours | against | goal |\n|---|---|---|---|\n");
        for row in &self.rows {
            let ours = format!("{}; {}", row.ours, row.ours_durability);
            let baseline = match (&row.baseline, &row.baseline_durability) {
                (Some(what), Some(durability)) => format!("{what}; {durability}"),
                _ => String::new(),
            };
            let goal = row.goal.map_or("none".to_owned(), |goal| goal.to_string());
            writeln!(text, "| `{}` | {ours} | {baseline} | {goal} |", row.name).expect("memory");
        }
        text
    }
}

/// `document` with what stands between the comments `<!-- NAME -->` and `<!-- /NAME -->` replaced by `text`; none if they are
/// not there.
pub fn replace_part(document: &str, name: &str, text: &str) -> Option<String> {
    let (before, rest) = document.split_once(&format!("<!-- {name} -->\n"))?;
    let end = format!("<!-- /{name} -->");
    let (_, after) = rest.split_once(&end)?;
    Some(format!("{before}<!-- {name} -->\n{text}{end}{after}"))
}

/// A value with the digits that say something.
pub fn figure(value: f64) -> String {
    match value.abs() {
        1000.0.. => format!("{value:.0}"),
        10.0.. => format!("{value:.1}"),
        0.0 => "0".to_owned(),
        ..0.1 => format!("{value:.4}"),
        _ => format!("{value:.2}"),
    }
}

impl fmt::Display for Goal {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Goal::AtLeast(goal) => write!(formatter, ">= {goal}"),
            Goal::AtMost(goal) => write!(formatter, "<= {goal}"),
        }
    }
}

impl fmt::Display for Report {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(
            formatter,
            "{}{}",
            self.machine,
            if self.quick { "; a quick run, whose values say little" } else { "" }
        )?;
        let heads = ["", "value", "goal", "spread", "ours", "against", "unit", ""];
        line(formatter, heads.map(str::to_owned))?;
        self.rows.iter().try_for_each(|row| fmt::Display::fmt(row, formatter))
    }
}

impl fmt::Display for Row {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rounds = match &self.outcome {
            Outcome::Measured(rounds) => rounds,
            Outcome::NotRun(reason) => return writeln!(formatter, "{:34} not run: {reason}", self.name),
            Outcome::Failed(reason) => return writeln!(formatter, "{:34} FAILED: {reason}", self.name),
        };
        let (least, greatest) = rounds.spread();
        let side = |values: &[f64]| if rounds.baseline.is_empty() { String::new() } else { figure(median(values)) };
        let verdict = match self.verdict() {
            Some(true) => "met",
            Some(false) => "MISSED",
            None => "",
        };
        line(
            formatter,
            [
                self.name.clone(),
                figure(rounds.value()),
                self.goal.map(|goal| goal.to_string()).unwrap_or_default(),
                format!("{} to {}", figure(least), figure(greatest)),
                side(&rounds.ours),
                side(&rounds.baseline),
                self.unit.clone(),
                verdict.to_owned(),
            ],
        )
    }
}

fn line(formatter: &mut fmt::Formatter<'_>, columns: [String; 8]) -> fmt::Result {
    let [name, value, goal, spread, ours, baseline, unit, verdict] = columns;
    let text = format!("{name:34} {value:>9} {goal:>9} {spread:>18} {ours:>9} {baseline:>9} {unit:13} {verdict}");
    writeln!(formatter, "{}", text.trim_end())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::comparison::{Comparison, Rounds, Side};

    const PAIR: Comparison = Comparison {
        name: "projections/read-model",
        ours: Side { what: "ours", durability: "fsync" },
        baseline: Some(Side { what: "by hand", durability: "fsync too" }),
        unit: "events/s",
        goal: Some(Goal::AtLeast(0.8)),
    };

    #[test]
    fn a_row_tells_value_goal_spread_both_sides_and_the_verdict() {
        let rounds = Rounds::against(vec![8000.0, 9000.0, 7000.0], vec![10000.0, 10000.0, 10000.0]);
        let row = PAIR.row(Outcome::Measured(rounds)).to_string();
        let words: Vec<&str> = row.split_whitespace().collect();
        let expected =
            ["projections/read-model", "0.80", ">=", "0.8", "0.70", "to", "0.90", "8000", "10000", "events/s", "met"];
        assert_eq!(words, expected);
    }

    #[test]
    fn a_row_without_a_baseline_has_its_value_once() {
        let alone = Comparison { baseline: None, unit: "ms", goal: None, ..PAIR };
        let row = alone.row(Outcome::Measured(Rounds::of_ours(vec![12.34]))).to_string();
        let words: Vec<&str> = row.split_whitespace().collect();
        assert_eq!(words, ["projections/read-model", "12.3", "12.3", "to", "12.3", "ms"]);
    }

    #[test]
    fn what_was_not_run_or_failed_says_why() {
        let text = |outcome| PAIR.row(outcome).to_string();
        assert!(text(Outcome::NotRun("no server".to_owned())).ends_with("not run: no server\n"));
        assert!(text(Outcome::Failed("3 of 4".to_owned())).ends_with("FAILED: 3 of 4\n"));
    }

    #[test]
    fn a_part_of_a_document_is_replaced_and_the_rest_is_kept() {
        let document = "# A\n<!-- results -->\nold\n<!-- /results -->\nrest\n";
        let replaced = replace_part(document, "results", "new\n").unwrap();
        assert_eq!(replaced, "# A\n<!-- results -->\nnew\n<!-- /results -->\nrest\n");
        assert_eq!(replace_part(&replaced, "results", "new\n").unwrap(), replaced);
        assert_eq!(replace_part(document, "growth", "new\n"), None);
    }
}
