//! Nothing that a definition or an event can hold makes the rules panic: any JSON in any place of a document, any event
//! into every operation on every type.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use lanes_core::event::Event;
use lanes_core::projection::{EventView, Fold, Projection, parse_document};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop_assert_eq, prop_oneof, proptest};
use proptest::sample::Index;
use serde_json::{Map, Value as Json, json};

/// Words that mean something somewhere.
const WORDS: [&str; 40] = [
    "projections",
    "queries",
    "event.v",
    "event.key",
    "event.ts",
    "event.position",
    "event.payload.ts",
    "event.",
    "lane()",
    "shard(event.v, 16)",
    "shard(event.v, 0)",
    "seconds(event.v)",
    "'it''s'",
    "'",
    "v",
    "lane",
    "TEXT",
    "int",
    "numeric",
    "DOUBLE",
    "timestamptz",
    "TEXT[]",
    "add",
    "count",
    "set",
    "set_once",
    "min",
    "max",
    "delete",
    "op",
    "by",
    "value",
    "newer_by",
    "floor",
    "ceiling",
    "hot",
    "p0",
    "5m",
    "99999999999999999999h",
    "{table}",
];

/// Any JSON, with a liking for words of the language and for numbers at their limits.
fn any_json() -> impl Strategy<Value = Json> {
    let text = prop_oneof![
        proptest::sample::select(WORDS.to_vec()).prop_map(str::to_owned),
        any::<String>(),
        "[0-9eE.+-]{1,40}",
        "[0-9]{4}-[0-9]{2}-[0-9]{2}(T[0-9:.]{1,12}(Z|[+-][0-9:]{1,6})?)?",
        "[0-9a-fA-F-]{30,38}",
    ];
    let leaf = prop_oneof![
        text.clone().prop_map(Json::String),
        any::<i64>().prop_map(|number| json!(number)),
        any::<u64>().prop_map(|number| json!(number)),
        any::<f64>().prop_map(|number| json!(number)),
        Just(json!(null)),
        any::<bool>().prop_map(|boolean| json!(boolean)),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(Json::Array),
            proptest::collection::vec((text.clone(), inner), 0..5)
                .prop_map(|entries| Json::Object(entries.into_iter().collect())),
        ]
    })
}

/// A document in which every key of the language stands.
fn whole_document() -> Json {
    json!({
        "projections": {
            "accounts": {
                "type": "hot", "source_events": ["OPENED", "PAID", "CLOSED", "NOTED"], "lanes": 4, "lane_key": "event.account",
                "target": {"table": "app.accounts", "primary_key": ["account"],
                           "partitioning": {"strategy": "hash", "key": "account", "partitions": 8, "mode": "logical"}},
                "fields": {"account": "TEXT", "cents": "BIGINT", "n": "INT", "name": "TEXT", "first": "TIMESTAMPTZ",
                           "least": "NUMERIC", "most": "DOUBLE", "seen": "BIGINT", "notes": "INT"},
                "derive": {"account": "event.account", "seen": "event.ts"},
                "aggregates": {
                    "OPENED": {"first": {"op": "set_once", "value": "seconds(event.at)"}, "n": {"op": "count"}},
                    "PAID": {"cents": {"op": "add", "by": "event.cents", "floor": 0, "ceiling": 1000},
                             "n": {"op": "add", "by": 2},
                             "name": {"op": "set", "value": "event.name", "newer_by": ["event.ts", "event.revision"]},
                             "least": {"op": "min", "value": "event.cents"}, "most": {"op": "max", "value": "event.x"}},
                    "CLOSED": {"account": {"op": "delete"}}},
                "sql": {"NOTED": {"row_key": ["account"],
                                  "statement": "UPDATE {table} AS t SET notes = 1 FROM batch AS b WHERE t.account = b.key"}},
                "indexes": [{"columns": ["n", "seen"], "direction": "desc"}],
                "processing": {"mode": "batch", "batch_size": 10, "flush_interval_ms": 5, "max_concurrency": 2},
                "checkpointing": {"enabled": true, "strategy": "per_projection_partition"},
                "retry": {"max_attempts": 3, "backoff": "fixed", "on_error": "park", "dead_letter": true, "parked_limit": 9},
                "priority": "p1"},
            "shows": {
                "source_events": ["SEEN"], "lanes": 2,
                "target": {"table": "shows", "primary_key": ["show", "lane"]},
                "fields": {"show": "TEXT", "lane": "INT", "n": "BIGINT", "last": "TEXT", "first": "TEXT"},
                "derive": {"show": "event.show", "lane": "lane()", "last": "event.key"},
                "aggregates": {"SEEN": {"n": {"op": "add", "by": -1, "floor": 0},
                                        "first": {"op": "set_once", "value": "event.key"}}},
                "processing": {"mode": "scheduled", "every": "5m"}, "single_row_bucket": "allow"}},
        "queries": {"by_show": {
            "from": "shows", "input": {"show": {"type": "string", "required": true}},
            "where": {"show": {"eq": "input.show"}}, "group_by": ["show"], "aggregate": {"total": {"sum": "n"}},
            "order_by": {"total": "desc"}, "limit": 5}}})
}

/// The places of a document: itself and all that is in it.
fn places(json: &Json, at: &str, found: &mut Vec<String>) {
    found.push(at.to_owned());
    let escaped = |name: &str| name.replace('~', "~0").replace('/', "~1");
    match json {
        Json::Object(members) => {
            members.iter().for_each(|(name, inner)| places(inner, &format!("{at}/{}", escaped(name)), found));
        }
        Json::Array(items) => {
            items.iter().enumerate().for_each(|(index, inner)| places(inner, &format!("{at}/{index}"), found));
        }
        _ => {}
    }
}

/// What is done to a place.
#[derive(Debug, Clone)]
enum Edit {
    Replace(Json),
    Remove,
    /// A member of it gets another name.
    Rename(String),
    /// It gets another member, or another element.
    Add(String, Json),
}

fn edits() -> impl Strategy<Value = Edit> {
    let word = prop_oneof![proptest::sample::select(WORDS.to_vec()).prop_map(str::to_owned), any::<String>()];
    prop_oneof![
        4 => any_json().prop_map(Edit::Replace),
        1 => Just(Edit::Remove),
        1 => word.clone().prop_map(Edit::Rename),
        2 => (word, any_json()).prop_map(|(name, json)| Edit::Add(name, json)),
    ]
}

fn edit(document: &mut Json, place: &str, edit: Edit) {
    let parent = place.rsplit_once('/').map_or("", |(parent, _)| parent);
    let name = place.rsplit('/').next().unwrap_or_default();
    match edit {
        Edit::Replace(json) => {
            if let Some(found) = document.pointer_mut(place) {
                *found = json;
            }
        }
        Edit::Remove | Edit::Rename(_) => {
            let Some(Json::Object(members)) = document.pointer_mut(parent) else { return };
            if let (Some(json), Edit::Rename(other)) = (members.remove(name), edit) {
                members.insert(other, json);
            }
        }
        Edit::Add(name, json) => match document.pointer_mut(place) {
            Some(Json::Object(members)) => drop(members.insert(name, json)),
            Some(Json::Array(items)) => items.push(json),
            _ => {}
        },
    }
}

const TYPES: [&str; 11] =
    ["TEXT", "INT", "BIGINT", "NUMERIC", "DOUBLE", "BOOLEAN", "TIMESTAMPTZ", "DATE", "UUID", "JSONB", "TEXT[]"];

/// Definitions that between them have every operation on every type that takes it, and every type as a key.
static EVERY_OPERATION: LazyLock<Vec<Projection>> = LazyLock::new(every_operation);

fn every_operation() -> Vec<Projection> {
    let mut projections = Vec::new();
    for key in TYPES {
        for bucketed in [false, true] {
            let mut fields = Map::new();
            let mut columns = Map::new();
            for column_type in TYPES {
                let name = |operation: &str| format!("{operation}_{}", column_type.replace("[]", "s").to_lowercase());
                for operation in [
                    json!({"op": "set", "value": "event.v"}),
                    json!({"op": "set_once", "value": "event.v"}),
                    json!({"op": "min", "value": "event.v"}),
                    json!({"op": "max", "value": "event.w"}),
                    json!({"op": "add", "by": "event.v"}),
                    json!({"op": "count"}),
                ] {
                    let column = name(operation["op"].as_str().unwrap());
                    fields.insert(column.clone(), json!(column_type));
                    columns.insert(column, operation);
                }
                for (column, operation) in [
                    (name("bounded"), json!({"op": "add", "by": "event.w", "floor": -3, "ceiling": 7})),
                    (
                        name("newer"),
                        json!({"op": "set", "value": "event.v", "newer_by": ["event.w", "event.position"]}),
                    ),
                    (name("timed"), json!({"op": "set", "value": "seconds(event.v)"})),
                    (name("sharded"), json!({"op": "set", "value": "shard(event.v, 16)"})),
                ] {
                    fields.insert(column.clone(), json!(column_type));
                    columns.insert(column, operation);
                }
            }
            let primary_key = if bucketed { json!(["k", "lane"]) } else { json!(["k"]) };
            fields.insert("k".to_owned(), json!(key));
            if bucketed {
                fields.insert("lane".to_owned(), json!("INT"));
            }
            // One column at a time, so that an operation that a type does not take leaves the others.
            for (column, operation) in columns {
                let mut derive = json!({"k": "event.k"});
                if bucketed {
                    derive["lane"] = json!("lane()");
                }
                let fields: Map<String, Json> = fields
                    .iter()
                    .filter(|(name, _)| **name == column || ["k", "lane"].contains(&name.as_str()))
                    .map(|(name, column_type)| (name.clone(), column_type.clone()))
                    .collect();
                let document = json!({"projections": {"p": {
                    "source_events": ["T", "GONE"], "lane_key": "event.k",
                    "target": {"table": "p", "primary_key": primary_key}, "fields": fields, "derive": derive,
                    "aggregates": {"T": {column: operation}}}}});
                projections.extend(parse_document(&document).into_iter().flat_map(|parsed| parsed.projections));
            }
        }
    }
    projections
}

/// A payload: mostly an object with the fields that are read, sometimes not even JSON.
fn payloads() -> impl Strategy<Value = String> {
    let raw = prop_oneof!["[0-9eE.+-]{1,30}", "\"[ -~]{0,20}\"", ".{0,20}", "[\\[\\]{}\",:0-9a-z\\\\]{0,20}"];
    let member = prop_oneof![3 => any_json().prop_map(|json| json.to_string()), 1 => raw.clone()];
    let object = (member.clone(), member.clone(), member, any::<bool>()).prop_map(|(k, v, w, twice)| {
        let again = if twice { format!(",\"v\":{w}") } else { String::new() };
        format!("{{\"k\":{k},\"v\":{v},\"w\":{w}{again}}}")
    });
    prop_oneof![8 => object, 1 => any_json().prop_map(|json| json.to_string()), 1 => raw]
}

#[test]
fn the_whole_document_is_read() {
    assert_eq!(parse_document(&whole_document()).map(|parsed| parsed.projections.len()), Ok(2));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_document_is_read_or_refused(json in any_json()) {
        let _ = parse_document(&json);
    }

    #[test]
    fn any_json_in_any_place_is_read_or_refused(all in proptest::collection::vec((any::<Index>(), edits()), 1..4)) {
        let mut document = whole_document();
        for (index, change) in all {
            let mut found = Vec::new();
            places(&document, "", &mut found);
            edit(&mut document, index.get(&found).as_str(), change);
        }
        if let Err(error) = parse_document(&document) {
            let _ = (error.to_string(), error.hint());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    /// An event that cannot be applied leaves the fold as it was.
    #[test]
    fn any_event_is_applied_or_refused_by_every_operation(
        events in proptest::collection::vec((payloads(), any::<String>(), any::<i64>(), any::<u64>()), 1..6),
    ) {
        for projection in EVERY_OPERATION.iter() {
            let mut fold = Fold::new(projection, 3);
            for (payload, key, ts, position) in &events {
                for event_type in ["T", "GONE"] {
                    let event =
                        Event { event_type: event_type.into(), key: key.as_str().into(), ts: *ts, payload: payload.as_str().into() };
                    let view = EventView::new(*position, &event);
                    let rows = fold.row_count();
                    if fold.add(&view).is_err() {
                        prop_assert_eq!(fold.row_count(), rows);
                    }
                    let _ = (projection.lane_key_of(&view), projection.parking_place(&view, 1024), fold.has_place(&view));
                }
            }
            let folded = fold.finish();
            prop_assert_eq!(folded.rows.is_sorted_by(|left, right| left.key < right.key), true);
        }
    }
}

/// The test above reaches what it says it reaches.
#[test]
fn every_operation_is_there_on_every_type_that_takes_it() {
    let projections = &EVERY_OPERATION;
    let columns: BTreeSet<&str> = projections
        .iter()
        .flat_map(|projection| projection.value_columns.iter().map(|column| column.name.as_str()))
        .collect();
    for name in TYPES.map(|column_type| column_type.replace("[]", "s").to_lowercase()) {
        for operation in ["set", "set_once", "newer"] {
            assert!(columns.contains(format!("{operation}_{name}").as_str()), "{operation} on {name}");
        }
    }
    for name in
        ["add_int", "add_bigint", "add_numeric", "bounded_numeric", "count_int", "min_text", "max_double", "min_date"]
    {
        assert!(columns.contains(name), "{name}: {columns:?}");
    }
}
