//! The three projections of the demo over the week of real flights, folded by lanes and in batches, against totals
//! that were counted independently.

use std::collections::{BTreeMap, HashMap};
use std::io::Read;

use lanes_core::event::{Event, parse_line};
use lanes_core::lane::{Strategy, lane_of};
use lanes_core::projection::{Change, EventView, Fold, Number, Projection, Sharing, Value, parse_document};
use md5::{Digest, Md5};

fn projections() -> Vec<Projection> {
    let text = include_str!("../../testdata/projections.yaml");
    let document: serde_json::Value = serde_saphyr::from_str(text).unwrap();
    parse_document(&document).unwrap().projections
}

fn week() -> Vec<Event> {
    let compressed = include_bytes!("../../testdata/flights-week.ndjson.gz");
    let mut text = String::new();
    flate2::read::GzDecoder::new(&compressed[..]).read_to_string(&mut text).unwrap();
    text.lines().map(|line| parse_line(line, 0).unwrap()).collect()
}

/// A table whose rows hold numbers and texts; what `apply` does is what the UPSERT does in Postgres.
type Table = BTreeMap<Vec<Value>, Vec<Option<Value>>>;

fn integer(value: &Option<Value>) -> i64 {
    match value {
        Some(Value::Integer(integer)) => *integer,
        other => panic!("no integer: {other:?}"),
    }
}

fn apply(table: &mut Table, projection: &Projection, key: Vec<Value>, changes: Vec<Change>) {
    let start = || {
        let zero = |at: usize| projection.value_columns[at].kind.starts_at_zero().then_some(Value::Integer(0));
        (0..projection.value_columns.len()).map(zero).collect()
    };
    let row = table.entry(key).or_insert_with(start);
    for (cell, change) in row.iter_mut().zip(changes) {
        match change {
            Change::Untouched => {}
            Change::Set(value) => *cell = value,
            Change::Add { sum: Number::Integer(sum), bounds: None } => {
                *cell = Some(Value::Integer(integer(cell) + sum as i64));
            }
            Change::Min(value) => *cell = cell.take().map_or(Some(value.clone()), |old| Some(old.min(value))),
            Change::Max(value) => *cell = cell.take().map_or(Some(value.clone()), |old| Some(old.max(value))),
            other => panic!("not in these definitions: {other:?}"),
        }
    }
}

/// Applies all events in batches of `batch_size`, each lane on its own, and gives the table and the skipped count.
fn run(projection: &Projection, events: &[Event], batch_size: usize) -> (Table, u64) {
    let mut table = Table::new();
    let mut skipped = 0;
    for (batch, events) in events.chunks(batch_size).enumerate() {
        let mut folds: Vec<Fold> = (0..projection.lanes).map(|lane| Fold::new(projection, lane)).collect();
        for (index, event) in events.iter().enumerate() {
            let view = EventView::new((batch * batch_size + index + 1) as u64, event);
            // Without a lane key an event belongs to the owner of slot 0.
            let lane = projection
                .lane_key_of(&view)
                .unwrap()
                .map_or(0, |key| lane_of(key.as_bytes(), projection.lanes as i32, Strategy::Modulo).unwrap());
            folds[lane as usize].add(&view).unwrap();
        }
        for fold in folds {
            let folded = fold.finish();
            assert!(folded.rows.is_sorted_by(|left, right| left.key < right.key));
            skipped += folded.skipped_null_key;
            for row in folded.rows {
                apply(&mut table, projection, row.key, row.changes);
            }
        }
    }
    (table, skipped)
}

fn named<'a>(projections: &'a [Projection], name: &str) -> &'a Projection {
    projections.iter().find(|projection| projection.name == name).unwrap()
}

fn line(values: &[String]) -> String {
    values.join("|") + "\n"
}

fn texts<'a>(values: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    values.into_iter().map(Value::to_string).collect()
}

fn md5_of(mut lines: Vec<String>) -> String {
    lines.sort();
    let mut md5 = Md5::new();
    for line in lines {
        md5.update(line);
    }
    md5.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

const BATCH_SIZES: [usize; 4] = [1, 97, 1000, 10_000];

#[test]
fn the_definitions_use_all_kinds_of_sharing() {
    let projections = projections();
    let sharing: HashMap<&str, Sharing> = projections.iter().map(|p| (p.name.as_str(), p.sharing)).collect();
    assert_eq!(projections.len(), 3);
    assert_eq!(sharing["airport_departures"], Sharing::Bucketed);
    assert_eq!(sharing["aircraft_last_seen"], Sharing::Plain);
    assert_eq!(sharing["route_delay"], Sharing::Commuting);
    assert!(projections.iter().all(|projection| projection.lanes >= 4));
}

#[test]
fn airport_departures_of_the_week() {
    let projections = projections();
    let projection = named(&projections, "airport_departures");
    let events = week();
    for batch_size in BATCH_SIZES {
        let (table, skipped) = run(projection, &events, batch_size);
        assert_eq!(skipped, 0);
        // What the view adds up: departures, cancellations, miles; and the greatest delay.
        let mut totals: BTreeMap<String, [i64; 4]> = BTreeMap::new();
        for (key, row) in &table {
            let total = totals.entry(key[0].to_string()).or_insert([0, 0, 0, i64::MIN]);
            for (sum, cell) in total.iter_mut().zip(&row[..3]) {
                *sum += integer(cell);
            }
            if row[3].is_some() {
                total[3] = total[3].max(integer(&row[3]));
            }
        }
        assert_eq!(table.len(), 12, "three airports in four lanes");
        assert_eq!(totals["EWR"], [2197, 14, 2_187_684, 379]);
        assert_eq!(totals["LGA"], [1703, 15, 1_409_248, 379]);
        assert_eq!(totals["JFK"], [2164, 6, 2_739_458, 853]);
        assert_eq!(totals.len(), 3);
    }
}

#[test]
fn aircraft_last_seen_of_the_week() {
    let projections = projections();
    let projection = named(&projections, "aircraft_last_seen");
    let events = week();
    for batch_size in BATCH_SIZES {
        let (table, skipped) = run(projection, &events, batch_size);
        assert_eq!(skipped, 8);
        assert_eq!(table.len(), 2048);
        assert_eq!(table.values().map(|row| integer(&row[0])).sum::<i64>(), 2_779_943_544_960_000);
        let lines = table.iter().map(|(key, row)| line(&texts(key.iter().chain(row.iter().flatten())))).collect();
        assert_eq!(md5_of(lines), "f78eadcf3cc736fe95632c4708404cdd");
    }
}

#[test]
fn route_delay_of_the_week() {
    let projections = projections();
    let projection = named(&projections, "route_delay");
    let events = week();
    for batch_size in BATCH_SIZES {
        let (table, skipped) = run(projection, &events, batch_size);
        assert_eq!(skipped, 0);
        assert_eq!(table.len(), 186);
        assert_eq!(table.values().map(|row| integer(&row[0])).sum::<i64>(), 6064);
        assert_eq!(table.values().map(|row| integer(&row[1])).sum::<i64>(), 23_514);
        assert_eq!(table.values().map(|row| integer(&row[2])).min(), Some(-70));
        assert_eq!(table.values().map(|row| integer(&row[3])).max(), Some(851));
        let lines = table.iter().map(|(key, row)| line(&texts(key.iter().chain(row.iter().flatten())))).collect();
        assert_eq!(md5_of(lines), "312902178a12757cd4822485940edd7d");
    }
}
