//! PROJ-1: folding a batch gives the same rows as applying its events one by one.
//!
//! The model here shares no code with the fold: it applies one event after the other to a map of rows, with numbers
//! as decimals, and knows the events' values before they were written as JSON.

use std::collections::HashMap;
use std::fmt::Write as _;

use bigdecimal::BigDecimal;
use lanes_core::event::Event;
use lanes_core::projection::{Change, EventView, Fold, Folded, Number, Projection, Value, parse_document};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use serde_json::json;

/// An event before it was written down.
#[derive(Debug, Clone)]
struct Model {
    event_type: usize,
    /// The row, if it has one.
    row: Option<i64>,
    /// Hundredths, so that they are exact.
    amount: Option<i64>,
    step: Option<i64>,
    name: Option<String>,
    /// Which of several spellings the numbers have.
    spelling: u8,
}

const TYPES: [&str; 3] = ["A", "B", "OTHER"];

fn models() -> impl Strategy<Value = Model> {
    let step = prop_oneof![-9i64..10, any::<i64>()];
    let name = prop_oneof![Just("a".to_owned()), Just("ä\"\\".to_owned()), "[a-zA-Z]{0,3}"];
    (
        0usize..3,
        proptest::option::weighted(0.9, 0i64..4),
        proptest::option::weighted(0.8, -5000i64..5000),
        proptest::option::weighted(0.8, step),
        proptest::option::weighted(0.8, name),
        any::<u8>(),
    )
        .prop_map(|(event_type, row, amount, step, name, spelling)| Model {
            event_type,
            row,
            amount,
            step,
            name,
            spelling,
        })
}

impl Model {
    fn event(&self) -> Event {
        let mut payload = String::from("{\"row\": \"overwritten\"");
        let null = "null".to_owned();
        let row = self.row.map_or(null.clone(), |row| match self.spelling % 4 {
            0 => format!("{row}"),
            1 => format!("\"{row}.0\""),
            2 => format!("{row}e0"),
            _ => format!("{row}.000E+0"),
        });
        write!(payload, ", \"row\": {row}").unwrap();
        if let Some(amount) = self.amount {
            let amount = match self.spelling / 4 % 3 {
                0 => format!("{amount}e-2"),
                1 => format!("\"{amount}E-2\""),
                _ => BigDecimal::new(amount.into(), 2).to_plain_string(),
            };
            write!(payload, ", \"deep\": {{\"amount\": {amount}}}").unwrap();
        }
        if self.step.is_some() || self.spelling.is_multiple_of(2) {
            let step = self.step.map_or(null.clone(), |step| step.to_string());
            write!(payload, ", \"step\": {step}").unwrap();
        }
        if let Some(name) = &self.name {
            write!(payload, ", \"name\": {}", serde_json::to_string(name).unwrap()).unwrap();
        }
        payload.push('}');
        Event { event_type: TYPES[self.event_type].to_owned(), key: "k".to_owned(), ts: 7, payload }
    }
}

/// Floor and ceiling of one operation.
type Bounds = (Option<i64>, Option<i64>);

fn bounds() -> impl Strategy<Value = Bounds> {
    (proptest::option::of(-30i64..30), proptest::option::of(-30i64..30)).prop_map(|(one, other)| match (one, other) {
        (Some(one), Some(other)) => (Some(one.min(other)), Some(one.max(other))),
        both => both,
    })
}

fn projection(of_a: Bounds, of_b: Bounds) -> Projection {
    let add = |by: &str, (floor, ceiling): Bounds| {
        let mut operation = json!({"op": "add", "by": by});
        if let Some(floor) = floor {
            operation["floor"] = json!(floor);
        }
        if let Some(ceiling) = ceiling {
            operation["ceiling"] = json!(ceiling);
        }
        operation
    };
    let document = json!({"projections": {"p": {
        "source_events": ["A", "B"],
        "target": {"table": "p", "primary_key": ["row"]},
        "fields": {
            "row": "INT", "balance": "NUMERIC", "steps": "BIGINT", "n": "INT", "name": "TEXT", "last_name": "TEXT",
            "least": "BIGINT", "greatest": "NUMERIC", "first_name": "TEXT", "at": "BIGINT"},
        "derive": {"row": "event.row", "name": "event.name", "at": "event.position"},
        "aggregates": {
            "A": {
                "balance": add("event.deep.amount", of_a), "n": {"op": "count"}, "steps": add("event.step", (None, None)),
                "last_name": {"op": "set", "value": "event.name"}, "first_name": {"op": "min", "value": "event.name"}},
            "B": {
                "balance": add("event.deep.amount", of_b), "n": add("-2", (None, None)),
                "least": {"op": "min", "value": "event.step"},
                "greatest": {"op": "max", "value": "event.deep.amount"}}}}}});
    parse_document(&document).unwrap().projections.remove(0)
}

/// A stored row: numbers as decimals, so that nothing overflows.
#[derive(Debug, Clone, PartialEq, Default)]
struct Row {
    balance: BigDecimal,
    steps: BigDecimal,
    n: BigDecimal,
    name: Option<String>,
    last_name: Option<String>,
    least: Option<i64>,
    greatest: Option<BigDecimal>,
    first_name: Option<String>,
    at: u64,
}

/// One event after the other. Gives the rows and the number of events without a key.
fn one_by_one(models: &[Model], of_a: Bounds, of_b: Bounds) -> (HashMap<i64, Row>, u64) {
    let mut rows: HashMap<i64, Row> = HashMap::new();
    let mut skipped = 0;
    for (index, model) in models.iter().enumerate() {
        if model.event_type == 2 {
            continue;
        }
        let Some(key) = model.row else {
            skipped += 1;
            continue;
        };
        let row = rows.entry(key).or_default();
        let is_a = model.event_type == 0;
        row.name = model.name.clone();
        row.at = index as u64 + 1;
        let amount = model.amount.map(|amount| BigDecimal::from(amount) / BigDecimal::from(100));
        if let Some(amount) = &amount {
            let (floor, ceiling) = if is_a { of_a } else { of_b };
            row.balance += amount;
            if let Some(floor) = floor.map(BigDecimal::from)
                && row.balance < floor
            {
                row.balance = floor;
            }
            if let Some(ceiling) = ceiling.map(BigDecimal::from)
                && row.balance > ceiling
            {
                row.balance = ceiling;
            }
        }
        if is_a {
            row.n += BigDecimal::from(1);
            if let Some(step) = model.step {
                row.steps += BigDecimal::from(step);
            }
            row.last_name = model.name.clone();
            if let Some(name) = &model.name
                && row.first_name.as_ref().is_none_or(|first| name.as_bytes() < first.as_bytes())
            {
                row.first_name = Some(name.clone());
            }
        } else {
            row.n -= BigDecimal::from(2);
            if let Some(step) = model.step {
                row.least = Some(row.least.map_or(step, |least| least.min(step)));
            }
            if let Some(amount) = amount
                && row.greatest.as_ref().is_none_or(|greatest| amount > *greatest)
            {
                row.greatest = Some(amount);
            }
        }
    }
    (rows, skipped)
}

/// What the UPSERT does to the stored rows.
fn upsert(rows: &mut HashMap<i64, Row>, folded: Folded) {
    let decimal = |number: Number| number.to_text().parse::<BigDecimal>().unwrap();
    let add = |cell: &mut BigDecimal, change: Change| match change {
        Change::Untouched => {}
        Change::Add { sum, bounds } => {
            *cell += decimal(sum);
            let (floor, ceiling) = lanes_core::projection::Bounds::of(bounds);
            if let Some(floor) = floor {
                *cell = cell.clone().max(decimal(floor));
            }
            if let Some(ceiling) = ceiling {
                *cell = cell.clone().min(decimal(ceiling));
            }
        }
        other => panic!("{other:?}"),
    };
    let set = |cell: &mut Option<String>, change: Change| match change {
        Change::Untouched => {}
        Change::Set(None) => *cell = None,
        Change::Set(Some(Value::Text(text))) => *cell = Some(text),
        other => panic!("{other:?}"),
    };
    for folded in folded.rows {
        let [Value::Integer(key)] = folded.key.as_slice() else { panic!("{:?}", folded.key) };
        let row = rows.entry(*key).or_default();
        let changes: [Change; 9] = folded.changes.try_into().unwrap();
        let [balance, steps, n, name, last_name, least, greatest, first_name, at] = changes;
        add(&mut row.balance, balance);
        add(&mut row.steps, steps);
        add(&mut row.n, n);
        set(&mut row.name, name);
        set(&mut row.last_name, last_name);
        match least {
            Change::Untouched => {}
            Change::Min(Value::Integer(value)) => row.least = Some(row.least.map_or(value, |least| least.min(value))),
            other => panic!("{other:?}"),
        }
        match greatest {
            Change::Untouched => {}
            Change::Max(Value::Numeric(value)) => {
                row.greatest = Some(row.greatest.take().map_or(value.clone(), |greatest| greatest.max(value)));
            }
            other => panic!("{other:?}"),
        }
        match first_name {
            Change::Untouched => {}
            Change::Min(Value::Text(text)) => {
                row.first_name = Some(row.first_name.take().map_or(text.clone(), |first| first.min(text)));
            }
            other => panic!("{other:?}"),
        }
        match at {
            Change::Set(Some(Value::Integer(position))) => row.at = position as u64,
            other => panic!("{other:?}"),
        }
    }
}

/// An event with a value that does not fit, which a batch must survive.
fn poison(spelling: u8) -> Event {
    let payload = match spelling % 5 {
        0 => r#"{"row": "one"}"#,
        1 => r#"{"row": 3000000000}"#,
        2 => r#"{"row": 1, "step": 1, "name": "\u0000", "deep": {"amount": 1}}"#,
        3 => r#"{"row": 1, "step": 1, "name": "x", "deep": {"amount": "much"}}"#,
        _ => "{",
    };
    Event { event_type: "A".to_owned(), key: "k".to_owned(), ts: 7, payload: payload.to_owned() }
}

/// At least 1500; more where PROPTEST_CASES asks for more.
fn cases() -> ProptestConfig {
    let asked = ProptestConfig::default();
    ProptestConfig { cases: asked.cases.max(1500), ..asked }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn folding_is_applying_one_by_one(
        models in proptest::collection::vec(models(), 0..60),
        cuts in proptest::collection::vec(1usize..20, 1..20),
        of_a in bounds(),
        of_b in bounds(),
        poisoned in any::<u8>(),
    ) {
        let projection = projection(of_a, of_b);
        let (expected, expected_skipped) = one_by_one(&models, of_a, of_b);
        let mut cuts = cuts.iter().cycle();
        let mut rows = HashMap::new();
        let mut skipped = 0;
        let mut position = 0;
        let mut rest = models.as_slice();
        while !rest.is_empty() {
            let (batch, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            rest = after;
            let mut fold = Fold::new(&projection, 0);
            for model in batch {
                position += 1;
                let event = model.event();
                fold.add(&EventView::new(position, &event)).unwrap();
                let bad = poison(poisoned.wrapping_add(position as u8));
                prop_assert!(fold.add(&EventView::new(position, &bad)).is_err());
            }
            let folded = fold.finish();
            prop_assert!(folded.rows.is_sorted_by(|left, right| left.key < right.key));
            skipped += folded.skipped_null_key;
            upsert(&mut rows, folded);
        }
        prop_assert_eq!(rows, expected);
        prop_assert_eq!(skipped, expected_skipped);
    }

    #[test]
    fn random_payloads_never_panic(
        payload in "(\\{(\"(row|deep|step|name)\":(\\{\"amount\":[0-9eE.-]{1,9}\\}|[0-9eE.+-]{1,12}|\"[a-z0-9\\\\u]{0,8}\"|null|\\[\\]),?){0,5}\\})|.{0,40}",
        key in ".{0,5}",
        position in any::<u64>(),
        ts in any::<i64>(),
    ) {
        let projection = projection((Some(0), None), (None, Some(5)));
        for event_type in TYPES {
            let event = Event { event_type: event_type.to_owned(), key: key.clone(), ts, payload: payload.clone() };
            let view = EventView::new(position, &event);
            let _ = projection.lane_key_of(&view);
            let mut fold = Fold::new(&projection, 3);
            let rows = fold.row_count();
            if fold.add(&view).is_err() {
                prop_assert_eq!(fold.row_count(), rows);
            }
            let _ = fold.finish();
        }
    }
}

/// 7, "7.0" and 7e0 name one row of an INT key, so they must go to one lane.
#[test]
fn equal_keys_have_one_lane_key() {
    let document = |column_type: &str| {
        json!({"projections": {"p": {
            "source_events": ["A"], "lanes": 4, "lane_key": "event.id",
            "target": {"table": "p", "primary_key": ["id"]},
            "fields": {"id": column_type, "n": "INT"},
            "derive": {"id": "event.id"},
            "aggregates": {"A": {"n": {"op": "count"}}}}}})
    };
    let lane_key = |projection: &Projection, id: &str| {
        let payload = format!("{{\"id\": {id}}}");
        let event = Event { event_type: "A".to_owned(), key: "k".to_owned(), ts: 0, payload };
        projection.lane_key_of(&EventView::new(1, &event)).unwrap().map(|key| key.into_owned())
    };
    for column_type in ["INT", "BIGINT", "NUMERIC"] {
        let projection = parse_document(&document(column_type)).unwrap().projections.remove(0);
        for spelling in ["7", "\"7.0\"", "7e0", "70e-1", "\"007\""] {
            assert_eq!(lane_key(&projection, spelling), Some("7".to_owned()), "{column_type} {spelling}");
        }
        // Such an event fails, in the lane of its text.
        assert_eq!(lane_key(&projection, "\"seven\""), Some("seven".to_owned()));
        assert_eq!(lane_key(&projection, "null"), None);
    }
    let projection = parse_document(&document("TEXT")).unwrap().projections.remove(0);
    assert_eq!(lane_key(&projection, "7.0"), Some("7.0".to_owned()));
}

/// A lane key that is no part of the row key may be null while the row key is not.
#[test]
fn a_null_lane_key_is_counted() {
    let document = json!({"projections": {"p": {
        "source_events": ["A"], "lanes": 4, "lane_key": "event.user",
        "target": {"table": "p", "primary_key": ["show", "lane"]},
        "fields": {"show": "TEXT", "lane": "INT", "n": "INT"},
        "derive": {"show": "event.show", "lane": "lane()"},
        "aggregates": {"A": {"n": {"op": "count"}}}}}});
    let projection = parse_document(&document).unwrap().projections.remove(0);
    let mut fold = Fold::new(&projection, 2);
    for payload in [r#"{"show": "s", "user": null}"#, r#"{"show": "s", "user": 1}"#, r#"{"user": 1}"#] {
        let event = Event { event_type: "A".to_owned(), key: "k".to_owned(), ts: 0, payload: payload.to_owned() };
        fold.add(&EventView::new(1, &event)).unwrap();
    }
    let folded = fold.finish();
    assert_eq!(folded.skipped_null_key, 2);
    assert_eq!(folded.rows.len(), 1);
    assert_eq!(folded.rows[0].key, [Value::Text("s".to_owned()), Value::Integer(2)]);
    let one = Change::Add { sum: Number::Integer(1), bounds: None };
    assert_eq!(folded.rows[0].changes, [one]);
}
