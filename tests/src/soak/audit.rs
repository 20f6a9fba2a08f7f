//! What is checked when a run is over: what producers were told against the log's files, the tables against a fold of the
//! log, the logs of the processes against what the faults explain. It finds; it does not panic.

use std::collections::BTreeMap;

use crate::log_files::{LogFiles, StoredRow};
use crate::readings::Readings;
use crate::soak::appender::Last;
use crate::soak::event::Events;
use crate::soak::fold::fold;
use crate::soak::producer::Record;

/// How many of the rows that differ are shown of a table.
const SHOWN: usize = 5;

/// What was checked so far, and what was found.
#[derive(Debug, Default)]
pub struct Audit {
    /// How many single comparisons were made.
    pub checks: u64,
    /// What is wrong.
    pub faults: Vec<String>,
}

impl Audit {
    /// Checks one thing.
    pub fn that(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        self.checks += 1;
        if !holds {
            self.faults.push(otherwise());
        }
    }

    /// Checks that two texts have the same lines, in any order.
    pub fn same_lines(&mut self, what: &str, found: &str, expected: &str) {
        let count = |text: &str| {
            let mut counts: BTreeMap<String, i64> = BTreeMap::new();
            text.lines().for_each(|line| *counts.entry(line.to_owned()).or_default() += 1);
            counts
        };
        let (found, expected) = (count(found), count(expected));
        let differing = found.iter().map(|(line, count)| (line, *count, expected.get(line).copied().unwrap_or(0)));
        let missing = expected.iter().filter(|(line, _)| !found.contains_key(*line)).map(|(line, n)| (line, 0, *n));
        let differing: Vec<String> = differing
            .chain(missing)
            .filter(|(_, found, expected)| found != expected)
            .map(|(line, found, expected)| format!("\"{line}\" is there {found} times, must be {expected}"))
            .collect();
        self.checks += expected.len().max(1) as u64;
        if !differing.is_empty() {
            let shown = differing.iter().take(SHOWN).cloned().collect::<Vec<_>>().join("; ");
            self.faults.push(format!("{what}: {} lines differ: {shown}", differing.len()));
        }
    }

    /// Checks that the log has exactly what the producers know to be acknowledged, each event once, whole, under its number
    /// (LOG-1, LOG-2), and nothing that nobody sent. In the end everything that was sent was acknowledged.
    pub fn stored(&mut self, seed: u64, files: &LogFiles, records: &[Record]) {
        let mut streams: BTreeMap<&str, Vec<&StoredRow>> = BTreeMap::new();
        for row in files.rows.iter().filter(|row| !row.event_type.starts_with("ingestd.")) {
            streams.entry(&row.stream).or_default().push(row);
        }
        for record in records {
            let mut events = Events::new(seed, &record.name);
            for (epoch, acknowledged) in record.epochs.iter().enumerate() {
                let stream = if epoch == 0 { record.name.clone() } else { format!("{}/{epoch}", record.name) };
                let stored = streams.remove(stream.as_str()).unwrap_or_default();
                self.that(stored.len() as u64 == *acknowledged, || {
                    format!("stream {stream}: {acknowledged} events acknowledged, {} stored", stored.len())
                });
                for ((event, sequence), row) in events.by_ref().take(*acknowledged as usize).zip(1..).zip(stored) {
                    let same = row.sequence == sequence
                        && row.event_type == event.event_type
                        && row.key == event.key
                        && row.ts == event.ts
                        && row.payload == event.payload;
                    self.that(same, || format!("stream {stream}: number {sequence} was {event:?}, stored is {row:?}"));
                }
            }
        }
        for (stream, rows) in streams {
            self.faults.push(format!("stream {stream}: {} events that no producer sent", rows.len()));
        }
    }

    /// Checks the rows of a daemon's projections against a fold of its log (LANE-3, LANE-4, PROJ-1). `found` are the answers
    /// to its queries.
    pub fn projections(&mut self, daemon: usize, files: &LogFiles, found: &[String; 6]) {
        match fold(daemon, &files.rows) {
            Err(fault) => self.faults.push(format!("log of daemon {daemon}: {fault}")),
            Ok(folded) => {
                for ((table, expected), found) in folded.tables.iter().zip(found) {
                    self.same_lines(table, found, expected);
                }
            }
        }
    }

    /// Checks the rows of `meters` against a fold of the events table, whose rows are `meter|nr|wh`, in the order of their
    /// numbers; and the events table against what appenders know to be committed.
    pub fn meters(&mut self, table: &str, meters: &str, committed: &Last) {
        let mut readings = Readings::default();
        let mut last: BTreeMap<&str, i64> = BTreeMap::new();
        for row in table.lines() {
            let mut columns = row.split('|');
            let (Some(meter), Some(Ok(nr)), Some(Ok(wh))) =
                (columns.next(), columns.next().map(str::parse::<i64>), columns.next().map(str::parse::<u64>))
            else {
                self.faults.push(format!("the events table has \"{row}\""));
                continue;
            };
            readings.add(meter, wh);
            let before = last.insert(meter, nr).unwrap_or(0);
            self.that(nr == before + 1, || format!("the events table has number {nr} of {meter} after {before}"));
        }
        for (meter, nr) in committed {
            let stored = last.get(meter.as_str()).copied().unwrap_or(0);
            self.that(stored >= *nr, || {
                format!("{meter}: number {nr} was committed, the last in the table is {stored}")
            });
        }
        self.same_lines("meters", meters, &readings.rows());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEED: u64 = 5;

    /// A log as it must be: the events of two epochs of one producer.
    fn log() -> (LogFiles, Vec<Record>) {
        let row = |(event, position): (crate::soak::event::Event, u64), stream: &str, sequence| StoredRow {
            position,
            stream: stream.to_owned(),
            sequence,
            event_type: event.event_type.to_owned(),
            key: event.key,
            ts: event.ts,
            payload: event.payload,
        };
        let mut events = Events::new(SEED, "p").zip(1..);
        let mut rows: Vec<StoredRow> = (1..=300).map(|number| row(events.next().unwrap(), "p", number)).collect();
        rows.extend((1..=200).map(|number| row(events.next().unwrap(), "p/1", number)));
        let files = LogFiles {
            log_id: String::new(),
            floor: 0,
            rows,
            last_numbers: BTreeMap::new(),
            hashes: BTreeMap::new(),
            receipt_count: 0,
        };
        (files, vec![Record { name: "p".to_owned(), epochs: vec![300, 200, 0] }])
    }

    fn faults(check: impl FnOnce(&mut Audit)) -> usize {
        let mut audit = Audit::default();
        check(&mut audit);
        assert!(audit.checks > 0);
        audit.faults.len()
    }

    #[test]
    fn an_event_that_is_lost_repeated_changed_or_invented_is_found() {
        let (files, records) = log();
        assert_eq!(faults(|audit| audit.stored(SEED, &files, &records)), 0);
        let changes: [fn(&mut LogFiles); 6] = [
            |files| drop(files.rows.remove(150)),
            // The last of a stream leaves no gap: only the producer knows.
            |files| drop(files.rows.pop()),
            |files| files.rows.push(files.rows[7].clone()),
            |files| files.rows[8].payload.push(' '),
            |files| files.rows.swap(20, 21),
            |files| files.rows[9].stream = "q".to_owned(),
        ];
        for (number, change) in changes.iter().enumerate() {
            let (mut changed, _) = log();
            change(&mut changed);
            assert!(faults(|audit| audit.stored(SEED, &changed, &records)) > 0, "change {number}");
        }
        let mut more = records;
        more[0].epochs[1] += 1;
        assert!(faults(|audit| audit.stored(SEED, &files, &more)) > 0, "an acknowledgement that was not kept");
    }

    #[test]
    fn a_row_that_is_off_by_one_missing_or_there_twice_is_found() {
        let (files, _) = log();
        let right = fold(0, &files.rows).unwrap().tables.map(|(_, rows)| rows);
        assert_eq!(faults(|audit| audit.projections(0, &files, &right)), 0);
        for table in [0, 1, 2, 3, 5] {
            let change = |change: fn(&str) -> String| {
                let mut wrong = right.clone();
                wrong[table] = change(&right[table]);
                assert_ne!(wrong, right);
                faults(|audit| audit.projections(0, &files, &wrong))
            };
            let last_digit = |text: &str| {
                let (rest, last) = text.split_at(text.len() - 1);
                format!("{rest}{}", (last.parse::<u32>().unwrap() + 1) % 10)
            };
            assert_eq!(change(last_digit), 1);
            assert_eq!(change(|text| text.lines().skip(1).collect::<Vec<_>>().join("\n")), 1);
            assert_eq!(change(|text| format!("{text}\n{}", text.lines().next().unwrap())), 1);
        }
    }

    /// As if a batch had been applied and its checkpoint not been moved.
    #[test]
    fn an_event_that_is_applied_twice_is_found() {
        let (files, _) = log();
        let is_read = |row: &&StoredRow| ["PAID", "REFUNDED"].contains(&row.event_type.as_str());
        for row in files.rows.iter().filter(is_read).step_by(7) {
            let mut twice = files.rows.clone();
            let mut again = row.clone();
            // A key of its own and number 1 get it past the check of order, to the tables.
            again.key = "again".to_owned();
            let payload: serde_json::Value = serde_json::from_str(&again.payload).unwrap();
            again.payload = again.payload.replace(&format!("\"nr\":{}", payload["nr"]), "\"nr\":1");
            twice.push(again);
            let found = fold(0, &twice).unwrap().tables.map(|(_, rows)| rows);
            assert!(faults(|audit| audit.projections(0, &files, &found)) > 1);
        }
    }

    #[test]
    fn readings_that_are_lost_repeated_or_not_summed_up_are_found() {
        let table = "m|1|5\nm|2|7\nn|1|1";
        let meters = "m|2|12|2\nn|1|1|1";
        let committed: Last = [("m".to_owned(), 2)].into();
        let faults = |table: &str, meters: &str| faults(|audit| audit.meters(table, meters, &committed));
        assert_eq!(faults(table, meters), 0);
        assert_eq!(faults(table, "m|2|13|2\nn|1|1|1"), 1);
        assert_eq!(faults("m|1|5\nn|1|1", "m|1|5|1\nn|1|1|1"), 1, "a commit was lost");
        assert_eq!(faults("m|1|5\nm|3|7\nn|1|1", meters), 1, "a number is missing");
        assert_eq!(faults("m|1|5\nm|2|7\nm|2|7\nn|1|1", meters), 2, "a number is there twice");
    }
}
