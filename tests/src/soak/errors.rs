//! Which errors in the logs of a run are no fault of the product, and why. What is not listed here fails the run; so does
//! a listed one without the fault that explains it.

use std::collections::BTreeSet;

/// Who wrote a log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Postgres, with the application's name and the SQLSTATE in each line.
    Postgres,
    /// A daemon.
    Daemon,
    /// The workers in Python.
    Workers,
}

/// An error that may be there.
struct Explained {
    source: Source,
    /// All of these are in the line.
    texts: &'static [&'static str],
    /// One of these kinds of faults explains it; none: the load does.
    faults: &'static [&'static str],
}

const EXPLAINED: &[Explained] = &[];

/// Lines that tell of an error, in a log of that source.
fn errors(source: Source, log: &str) -> impl Iterator<Item = &str> {
    let words: &[&str] = match source {
        Source::Postgres => &[" ERROR:  ", " FATAL:  ", " PANIC:  ", "TRAP:"],
        Source::Daemon => &["ERROR", "panicked"],
        Source::Workers => &[""],
    };
    log.lines().filter(move |line| !line.is_empty() && words.iter().any(|word| line.contains(word)))
}

/// How many errors a log tells of, and those that nothing explains. `faults` are the kinds there were.
pub fn unexplained<'l>(source: Source, log: &'l str, faults: &BTreeSet<&str>) -> (u64, Vec<&'l str>) {
    let mut count = 0;
    let is_explained = |line: &str| {
        EXPLAINED.iter().any(|known| {
            known.source == source
                && known.texts.iter().all(|text| line.contains(text))
                && (known.faults.is_empty() || known.faults.iter().any(|fault| faults.contains(fault)))
        })
    };
    let unexplained = errors(source, log).inspect(|_| count += 1).filter(|line| !is_explained(line)).collect();
    (count, unexplained)
}
