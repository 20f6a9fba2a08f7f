//! Definitions: what is accepted, what is refused and with which words, and PROJ-2.

use std::collections::BTreeMap;

use lanes_core::projection::{
    ColumnType, DefinitionError, Effect, Expression, Index, Operation, Partitioning, Projection, Sharing, ValueKind,
    parse_document,
};
use proptest::prelude::{Just, Strategy, prop_oneof, proptest};
use serde_json::{Value as Json, json};

fn parse(document: &Json) -> Result<Vec<Projection>, DefinitionError> {
    parse_document(document).map(|document| document.projections)
}

fn orders() -> Json {
    json!({"projections": {"orders": {
        "source_events": ["PLACED", "CANCELLED"],
        "lanes": 4,
        "target": {"table": "app.orders", "primary_key": ["id"]},
        "fields": {"status": "TEXT", "id": "BIGINT", "total": "numeric", "changes": "INT", "first_at": "BIGINT"},
        "derive": {"id": "event.key", "status": "event.type"},
        "aggregates": {
            "PLACED": {
                "total": {"op": "add", "by": "event.amount", "floor": 0},
                "changes": {"op": "count"},
                "first_at": {"op": "min", "value": "event.ts"}},
            "CANCELLED": {"changes": {"op": "add", "by": 1}}}}}})
}

/// The document with one place changed, or removed (null).
fn changed(pointer: &str, to: Json) -> Json {
    let mut document = orders();
    let (parent, name) = pointer.rsplit_once('/').unwrap();
    let object = document.pointer_mut(&format!("/projections/orders{parent}")).unwrap().as_object_mut().unwrap();
    if to.is_null() {
        object.remove(name);
    } else {
        object.insert(name.to_owned(), to);
    }
    document
}

#[test]
fn a_definition_is_read() {
    let document = orders();
    let projections = parse(&document).unwrap();
    let [orders] = projections.as_slice() else { panic!("{projections:?}") };
    assert_eq!((orders.name.as_str(), orders.lanes, orders.slots()), ("orders", 4, 1024));
    assert_eq!((orders.lane_key.clone(), orders.lane_key_type), (Expression::Key, ColumnType::Bigint));
    assert_eq!((orders.target.schema(), orders.target.name()), (Some("app"), "orders"));
    assert_eq!((orders.sharing, orders.is_bucketed()), (Sharing::Plain, false));
    let names: Vec<&str> = orders.fields.iter().map(|field| field.name.as_str()).collect();
    assert_eq!(names, ["status", "id", "total", "changes", "first_at"]);
    let kinds: Vec<ValueKind> = orders.value_columns.iter().map(|column| column.kind).collect();
    let add = |bounded| ValueKind::Add { bounded };
    assert_eq!(kinds, [ValueKind::Set, add(true), add(false), ValueKind::Min]);
    assert_eq!(orders.value_columns[2].operations[0], Some(Operation::Count));
    assert_eq!(orders.value_columns[3].operations[1], None);
    assert_eq!(orders.definition, document["projections"]["orders"]);
    assert_eq!((orders.source_event("CANCELLED"), orders.source_event("OTHER")), (Some(1), None));
}

#[test]
fn wrong_places_are_named() {
    for (pointer, to, message) in [
        ("/fields/total", json!("BIGNUM"), "orders.fields.total: type \"BIGNUM\" is not known"),
        ("/fields/total", json!("uuid"), "orders.aggregates.PLACED.total.op: add needs a number, and column"),
        ("/fields/total", json!("double"), "PLACED.total.op: add needs a number that adds up exactly"),
        ("/fields/id", json!("jsonb"), "target.primary_key[0]: column \"id\" of type JSONB cannot be part"),
        ("/fields/total", json!(5), "orders.fields.total: must be text, not a number"),
        ("/fields/ctid", json!("INT"), "orders.fields.ctid: \"ctid\" is a system column"),
        ("/fields/Total", json!("INT"), "orders.fields.Total: \"Total\" is not the name of a column"),
        ("/fields/extra", json!("INT"), "orders.fields.extra: is neither derived nor aggregated"),
        ("/fields", json!({}), "orders.fields: must not be empty"),
        ("/fields", json!([]), "orders.fields: must be an object, not a list"),
        ("/fields", Json::Null, "orders: \"fields\" is missing"),
        ("/colour", json!(1), "orders.colour: key \"colour\" is not known"),
        ("/source", json!({}), "orders.source: key \"source\" comes in a later version"),
        ("/store", json!("db"), "orders.store: key \"store\" comes in a later version"),
        ("/single_row_bucket", json!("deny"), "orders.single_row_bucket: must be allow, not \"deny\""),
        ("/source_events", json!([]), "orders.source_events: must not be empty"),
        ("/source_events", json!("PLACED"), "orders.source_events: must be a list, not text"),
        ("/source_events", json!(["PLACED", "PLACED"]), "orders.source_events[1]: \"PLACED\" is named twice"),
        ("/source_events", json!(["PLACED"]), "orders.aggregates.CANCELLED: event type \"CANCELLED\" is not among"),
        ("/source_events", json!(["a\u{0}"]), "orders.source_events[0]: an event type has"),
        ("/lanes", json!(0), "orders.lanes: must be a whole number between 1 and 1024, not 0"),
        ("/lanes", json!(1025), "orders.lanes: must be"),
        ("/lanes", json!(2.5), "orders.lanes: must be"),
        ("/lanes", json!("4"), "orders.lanes: must be a whole number between 1 and 1024, not text"),
        ("/lane_key", json!("lane()"), "orders.lane_key: lane_key cannot be lane()"),
        ("/lane_key", json!(1), "orders.lane_key: a constant"),
        ("/lane_key", json!("event.user"), "orders: two of the 4 lanes could write one row"),
        ("/target/table", json!("a.b.c"), "orders.target.table: \"b.c\" is not the name of a table"),
        ("/target/table", json!("x; drop table y"), "orders.target.table: "),
        ("/target/partitioning", json!({}), "orders.target.partitioning: \"key\" is missing"),
        (
            "/target/partitioning",
            json!({"key": "total", "mode": "logical", "partitions": 4}),
            "partitioning.key: column \"total\" is not part of the primary key",
        ),
        (
            "/target/partitioning",
            json!({"strategy": "range", "key": "id", "mode": "logical", "partitions": 4}),
            "partitioning.strategy: strategy \"range\" comes in a later version",
        ),
        (
            "/target/partitioning",
            json!({"key": "id", "mode": "postgres_native", "partitions": 0}),
            "partitioning.partitions: must be a whole number between 1 and 1024, not 0",
        ),
        ("/indexes", json!([{"columns": ["nope"]}]), "orders.indexes[0].columns[0]: column \"nope\" is not among"),
        ("/indexes", json!([{"columns": []}]), "orders.indexes[0].columns: must not be empty"),
        ("/indexes", json!([{"columns": ["id"], "direction": "up"}]), "direction \"up\" is not known"),
        ("/sql", json!({"NOPE": {"statement": "x"}}), "orders.sql.NOPE: event type \"NOPE\" is not among"),
        ("/sql", json!({"PLACED": {}}), "orders.sql.PLACED: \"statement\" is missing"),
        ("/sql", json!({"PLACED": {"statement": "DELETE FROM orders"}}), "does not name its table as {table}"),
        (
            "/sql",
            json!({"PLACED": {"statement": "DELETE FROM {table}", "row_key": ["total"]}}),
            "row_key[0]: column \"total\" is not part of the primary key",
        ),
        (
            "/sql",
            json!({"PLACED": {"statement": "DELETE FROM {table}"}}),
            "two of the 4 lanes could write one row in any order: the row_key of the statement of PLACED does not hold",
        ),
        ("/target/primary_key", json!(["id", "id"]), "orders.target.primary_key[1]: \"id\" is named twice"),
        ("/target/primary_key", json!(["nope"]), "orders.target.primary_key[0]: column \"nope\" is not among"),
        ("/target/primary_key", json!(["total"]), "orders.target.primary_key[0]: column \"total\" of the primary"),
        ("/target/primary_key", Json::Null, "orders.target: \"primary_key\" is missing"),
        ("/derive/nope", json!("event.a"), "orders.derive.nope: column \"nope\" is not among the fields"),
        ("/derive/status", json!("lane()"), "orders.derive.status: lane() cannot be a value of type TEXT"),
        ("/derive/status", json!("status"), "orders.derive.status: \"status\" is not an expression"),
        ("/derive/id", json!("'abc'"), "orders.derive.id: 'abc' cannot be a value of type BIGINT"),
        ("/derive/total", json!("event.a"), "orders.aggregates.PLACED.total: column \"total\" is both derived"),
        ("/aggregates/PLACED/id", json!({"op": "count"}), "PLACED.id: column \"id\" is part of the primary key"),
        ("/aggregates/PLACED/nope", json!({"op": "count"}), "PLACED.nope: column \"nope\" is not among"),
        ("/aggregates/PLACED/total", json!({}), "PLACED.total: \"op\" is missing"),
        ("/aggregates/PLACED/total", json!({"op": "add"}), "PLACED.total: \"by\" is missing"),
        ("/aggregates/PLACED/total", json!({"op": "sub"}), "PLACED.total.op: operation \"sub\" is not known"),
        (
            "/aggregates/PLACED/total",
            json!({"op": "delete"}),
            "PLACED.total: PLACED deletes the row, so it cannot have",
        ),
        ("/aggregates/CANCELLED/changes", json!({"op": "delete", "by": 1}), "changes.by: key \"by\" is not known"),
        ("/aggregates/PLACED/total", json!({"op": "set_once"}), "PLACED.total: \"value\" is missing"),
        ("/aggregates/PLACED/total", json!({"op": "count", "by": 1}), "total.by: key \"by\" is not known"),
        (
            "/aggregates/PLACED/total",
            json!({"op": "set", "value": 1, "newer_by": []}),
            "total.newer_by: must not be empty",
        ),
        ("/aggregates/PLACED/total", json!({"op": "add", "by": "lane()"}), "total.by: lane() cannot be a value"),
        ("/aggregates/PLACED/changes", json!({"op": "add", "by": "lane()"}), "changes.by: lane() can only be"),
        ("/aggregates/PLACED/changes", json!({"op": "add", "by": 0.5}), "changes.by: 0.5 cannot be a value"),
        ("/aggregates/PLACED/changes", json!({"op": "add", "by": 1, "floor": 0.5}), "changes.floor: 0.5 cannot"),
        ("/aggregates/PLACED/changes", json!({"op": "add", "by": 1, "floor": "event.a"}), "must be a number"),
        (
            "/aggregates/PLACED/changes",
            json!({"op": "add", "by": 1, "floor": 5, "ceiling": 4}),
            "changes: floor 5 is above ceiling 4",
        ),
        ("/aggregates/PLACED/changes", json!({"op": "max", "value": 1}), "has operations of different kinds"),
        (
            "/aggregates/PLACED/changes",
            json!({"op": "set", "value": 1, "newer_by": [5]}),
            "newer_by[0]: 5 cannot tell which of two events is newer",
        ),
    ] {
        let error = parse(&changed(pointer, to)).expect_err(message);
        assert!(error.to_string().contains(message), "{message}: {error}");
        assert!(error.to_string().starts_with("projections.orders"), "{error}");
        assert!(!error.to_string().contains('\n'), "{error}");
    }
    let error = parse(&changed("/fields/total", json!("BIGNUM"))).unwrap_err();
    assert_eq!(error.to_string(), "projections.orders.fields.total: type \"BIGNUM\" is not known");
    assert_eq!(
        error.hint().unwrap(),
        "Known types: TEXT, INT, BIGINT, NUMERIC, DOUBLE, BOOLEAN, TIMESTAMPTZ, DATE, UUID, JSONB, TEXT[]."
    );
}

#[test]
fn operations_need_types_that_have_them() {
    for (column_type, operation, message) in [
        ("TEXT", json!({"op": "count"}), "count needs a number"),
        ("BOOLEAN", json!({"op": "add", "by": 1}), "add needs a number"),
        ("BOOLEAN", json!({"op": "max", "value": true}), "max needs values with an order"),
    ] {
        let mut document = changed("/fields/total", json!(column_type));
        document["projections"]["orders"]["aggregates"]["PLACED"]["total"] = operation;
        let error = parse(&document).expect_err(message).to_string();
        assert!(error.contains(message), "{error}");
    }
}

#[test]
fn documents_have_one_shape() {
    for (document, message) in [
        (json!([]), "document: must be an object, not a list"),
        (json!({}), "document: \"projections\" is missing"),
        (json!({"projections": {}}), "projections: must not be empty"),
        (json!({"projections": {"x": 1}}), "projections.x: must be an object, not a number"),
        (json!({"projections": {"X": {}}}), "projections.X: \"X\" is not a projection's name"),
        (json!({"projections": {"x~2": {}}}), "projections.x~2: \"x~2\" is not a projection's name"),
        (json!({"projections": {}, "stores": {}}), "stores: key \"stores\" comes in a later version"),
        (json!({"projektions": {}}), "projektions: key \"projektions\" is not known"),
    ] {
        assert_eq!(parse(&document).expect_err(message).to_string(), message);
    }
    let mut document = orders();
    document["projections"]["copy"] = document["projections"]["orders"].clone();
    let error = parse(&document).unwrap_err().to_string();
    assert_eq!(error, "projections.copy.target.table: table \"app.orders\" is already that of projection \"orders\"");
}

/// A definition of counts by show, for PROJ-2.
fn counts(lanes: u32, lane_key: &str, bucket: Option<&str>, operation: Json) -> Json {
    let mut document = json!({"projections": {"counts": {
        "source_events": ["IN", "OUT"], "lanes": lanes, "lane_key": lane_key,
        "target": {"table": "counts", "primary_key": ["show"]},
        "fields": {"show": "TEXT", "n": "INT"},
        "derive": {"show": "event.payload.show"},
        "aggregates": {"IN": {"n": {"op": "count"}}}}}});
    let counts = &mut document["projections"]["counts"];
    if operation["op"] == "delete" {
        counts["aggregates"]["OUT"] = json!({"show": operation});
    } else {
        counts["aggregates"]["IN"]["n"] = operation;
    }
    if let Some(bucket) = bucket {
        counts["target"]["primary_key"] = json!(["show", "bucket"]);
        counts["fields"]["bucket"] = json!("INT");
        counts["derive"]["bucket"] = json!(bucket);
    }
    document
}

/// PROJ-2: the table of docs/PROJECTIONS.md.
#[test]
fn lanes_never_get_into_each_others_way() {
    let check = |lanes: u32, lane_key: &str, bucket: Option<&str>, operation: Json| {
        parse(&counts(lanes, lane_key, bucket, operation)).map(|projections| projections[0].sharing)
    };
    let commuting = || [json!({"op": "count"}), json!({"op": "add", "by": 2}), json!({"op": "min", "value": 1})];
    let ordered = || {
        [
            json!({"op": "set", "value": 1}),
            json!({"op": "set_once", "value": "event.n"}),
            json!({"op": "set", "value": 1, "newer_by": ["event.ts"]}),
            json!({"op": "add", "by": 2, "ceiling": 9}),
        ]
    };
    let delete = || json!({"op": "delete"});
    let refused = |lanes: u32, lane_key: &str, bucket: Option<&str>, operation: Json, message: &str, ways: &[&str]| {
        let error = check(lanes, lane_key, bucket, operation).unwrap_err();
        assert!(error.to_string().contains(message), "{error}");
        let hint = error.hint().unwrap();
        assert!(ways.iter().all(|way| hint.contains(way)), "{hint}");
    };
    for operation in commuting() {
        assert_eq!(check(1, "event.key", None, operation.clone()), Ok(Sharing::Commuting));
        assert_eq!(check(4, "event.key", None, operation.clone()), Ok(Sharing::Commuting));
        assert_eq!(check(4, "event.key", Some("shard(event.user, 8)"), operation), Ok(Sharing::Commuting));
    }
    for operation in commuting().into_iter().chain(ordered()) {
        assert_eq!(check(4, "event.show", None, operation.clone()), Ok(Sharing::Plain));
        for lanes in [1, 4] {
            assert_eq!(check(lanes, "event.key", Some("lane()"), operation.clone()), Ok(Sharing::Bucketed));
        }
        // The row key may hold the lane key as a row shard.
        assert_eq!(
            check(4, "shard(event.user, 8)", Some("shard(event.user, 8)"), operation.clone()),
            Ok(Sharing::Plain)
        );
        // A bucket by the counter's own key spreads nothing.
        refused(
            1,
            "event.key",
            Some("shard(event.show, 16)"),
            operation,
            "shard(event.show, 16) spreads nothing",
            &["\"bucket: lane()\"", "\"bucket: shard(event.key, 16)\"", "\"single_row_bucket: allow\""],
        );
    }
    for operation in ordered().into_iter().chain([delete()]) {
        assert_eq!(check(1, "event.key", None, operation.clone()), Ok(Sharing::OneLane));
        let message = "two of the 4 lanes could write one row in any order";
        refused(4, "event.key", None, operation, message, &["lane_key", "lane()", "lanes: 1"]);
    }
    assert_eq!(check(4, "event.show", None, delete()), Ok(Sharing::Plain));
    for lanes in [1, 4] {
        // Also with one lane, for a resize must not make a good definition a bad one.
        refused(lanes, "event.show", Some("lane()"), delete(), "OUT deletes rows", &["Take lane() out"]);
    }
    let mut allowed = counts(1, "event.key", Some("shard(event.show, 16)"), json!({"op": "count"}));
    allowed["projections"]["counts"]["single_row_bucket"] = json!("allow");
    assert_eq!(parse(&allowed).unwrap()[0].sharing, Sharing::Commuting);
}

/// PROJ-2 for statements.
#[test]
fn a_statement_declares_the_rows_it_writes() {
    let check = |lanes: u32, lane_key: &str, bucket: Option<&str>, row_key: Json| {
        let mut document = counts(lanes, lane_key, bucket, json!({"op": "count"}));
        document["projections"]["counts"]["sql"]["OUT"] = json!({"statement": "DELETE FROM {table}"});
        if !row_key.is_null() {
            document["projections"]["counts"]["sql"]["OUT"]["row_key"] = row_key;
        }
        parse(&document).map(|projections| projections[0].clone())
    };
    let undeclared = check(1, "event.show", None, Json::Null).unwrap();
    assert_eq!(undeclared.sharing, Sharing::OneLane);
    assert_eq!(undeclared.effects, [Effect::Fold, Effect::Statement]);
    assert_eq!(check(1, "event.key", None, Json::Null).unwrap().sharing, Sharing::OneLane);
    assert_eq!(check(4, "event.show", None, json!(["show"])).unwrap().sharing, Sharing::Plain);
    assert!(check(4, "event.show", None, Json::Null).unwrap_err().hint().unwrap().contains("add show to row_key"));
    assert!(
        check(4, "event.key", None, json!(["show"])).unwrap_err().message().contains("the statement of OUT may do")
    );
    assert_eq!(check(4, "event.key", Some("lane()"), json!(["show", "bucket"])).unwrap().sharing, Sharing::Bucketed);
    let error = check(1, "event.key", Some("lane()"), json!(["show"])).unwrap_err();
    assert!(error.hint().unwrap().contains("bucket = batch.lane"), "{error}");
}

#[test]
fn a_bucketed_table_needs_something_to_add_up_and_room_for_the_view_s_name() {
    let document = |table: &str, aggregates: Json| {
        let mut fields = json!({"show": "TEXT", "bucket": "INT"});
        if aggregates.get("IN").is_some() {
            fields["n"] = json!("INT");
        }
        json!({"projections": {"counts": {
            "source_events": ["IN"], "lanes": 4, "fields": fields, "aggregates": aggregates,
            "target": {"table": table, "primary_key": ["show", "bucket"]},
            "derive": {"show": "event.show", "bucket": "lane()"}}}})
    };
    let count = json!({"IN": {"n": {"op": "count"}}});
    assert!(parse(&document(&"t".repeat(57), count.clone())).is_ok());
    let error = parse(&document(&"t".repeat(58), count)).unwrap_err().to_string();
    assert!(error.contains("at most 57 characters"), "{error}");
    let error = parse(&document("t", json!({}))).unwrap_err().to_string();
    assert!(error.contains("needs a column to add up"), "{error}");
}

/// What orders the values of a bucketed table is kept in hidden columns, one set for columns that change together.
#[test]
fn bucketed_sets_keep_what_orders_them() {
    let mut document = json!({"projections": {"p": {
        "source_events": ["A", "B"], "lanes": 4,
        "target": {"table": "p", "primary_key": ["show", "bucket"]},
        "fields": {"show": "TEXT", "bucket": "INT", "venue": "TEXT", "at": "BIGINT", "shown": "TEXT", "rev": "INT",
                   "first": "TEXT", "n": "INT", "shard": "INT"},
        "derive": {"show": "event.show", "bucket": "lane()", "venue": "event.venue", "at": "event.ts",
                   "shard": "shard(event.show, 4)"},
        "aggregates": {
            "A": {"shown": {"op": "set", "value": "event.s", "newer_by": ["event.when", "event.rev"]},
                  "rev": {"op": "set", "value": "event.rev", "newer_by": ["event.when", "event.rev"]},
                  "first": {"op": "set_once", "value": "event.s"},
                  "n": {"op": "add", "by": 1, "floor": 0, "ceiling": 9}},
            "B": {"n": {"op": "add", "by": -1, "floor": 0, "ceiling": 9}}}}}});
    let projection = parse(&document).unwrap().remove(0);
    let hidden: Vec<(String, ColumnType)> =
        projection.hidden_columns().into_iter().map(|field| (field.name, field.column_type)).collect();
    let hidden: Vec<(&str, ColumnType)> = hidden.iter().map(|(name, kind)| (name.as_str(), *kind)).collect();
    assert_eq!(
        hidden,
        [
            ("at__position", ColumnType::Bigint),
            ("rev__newer_1", ColumnType::Numeric),
            ("rev__newer_2", ColumnType::Int),
            ("rev__position", ColumnType::Bigint),
            ("first__position", ColumnType::Bigint),
        ]
    );
    let orderings: Vec<Option<usize>> = projection.value_columns.iter().map(|column| column.ordering).collect();
    assert_eq!(orderings, [Some(0), Some(0), Some(1), Some(1), Some(2), None, None]);
    assert_eq!(projection.value_columns[6].kind, ValueKind::Fixed, "it follows from the row key");
    assert_eq!(projection.value_columns[5].kind, ValueKind::Add { bounded: false });
    assert_eq!(projection.notes.len(), 2);
    assert!(projection.notes[0].contains("floor 0 of column \"n\" is applied to the total"), "{:?}", projection.notes);

    document["projections"]["p"]["aggregates"]["B"]["n"]["floor"] = json!(1);
    let error = parse(&document).unwrap_err();
    assert!(error.message().contains("different floors or ceilings"), "{error}");
    document["projections"]["p"]["aggregates"]["B"] = json!({"rev": {"op": "set", "value": "event.rev"}});
    assert!(parse(&document).unwrap_err().message().contains("different newer_by"));
    document["projections"]["p"]["aggregates"]["B"] = json!({});
    document["projections"]["p"]["fields"]["at__position"] = json!("INT");
    document["projections"]["p"]["derive"]["at__position"] = json!("event.ts");
    assert!(parse(&document).unwrap_err().message().contains("is the name of a hidden column"));
}

#[test]
fn tables_can_be_divided() {
    let mut document = orders();
    document["projections"]["orders"]["target"]["partitioning"] =
        json!({"strategy": "hash", "key": "id", "partitions": 32, "mode": "logical"});
    let projection = parse(&document).unwrap().remove(0);
    assert_eq!(projection.partitioning, Some(Partitioning { key: "id".to_owned(), partitions: 32, native: false }));
    let shard = projection.value_columns.iter().find(|column| column.name == "shard_id").unwrap();
    let Some(Operation::Set(expression @ Expression::Shard { through, .. })) = &shard.operations[0] else {
        panic!("{shard:?}")
    };
    assert_eq!((expression.to_string().as_str(), *through), ("shard(event.key, 32)", ColumnType::Bigint));
    let columns = vec!["shard_id".to_owned(), "id".to_owned()];
    assert_eq!(projection.indexes, [Index { columns, descending: false }]);

    // What is given must agree.
    document["projections"]["orders"]["fields"]["shard_id"] = json!("INT");
    document["projections"]["orders"]["derive"]["shard_id"] = json!("shard(event.key, 32)");
    assert!(parse(&document).is_ok());
    document["projections"]["orders"]["derive"]["shard_id"] = json!("shard(event.key, 16)");
    let error = parse(&document).unwrap_err();
    assert!(error.message().contains("does not agree") && error.hint().unwrap().contains("shard(event.key, 32)"));
}

/// The example of the documentation, as it stands there.
const EXAMPLE: &str = include_str!("../../testdata/projections-example.yaml");

#[test]
fn the_example_is_refused_for_one_projection_and_read_without_it() {
    let mut document: Json = serde_saphyr::from_str(EXAMPLE).unwrap();
    let error = parse_document(&document).unwrap_err();
    assert_eq!(error.path(), "projections.show_attendance_sharded.derive.shard_id");
    assert!(error.message().contains("shard(event.show_id, 16) spreads nothing"), "{error}");
    let hint = error.hint().unwrap();
    for line in ["\"shard_id: lane()\"", "\"shard_id: shard(event.key, 16)\"", "\"single_row_bucket: allow\""] {
        assert!(hint.contains(line), "{hint}");
    }
    let mut allowed = document.clone();
    allowed["projections"]["show_attendance_sharded"]["single_row_bucket"] = json!("allow");
    assert_eq!(parse_document(&allowed).unwrap().projections.len(), 3);

    document["projections"].as_object_mut().unwrap().remove("show_attendance_sharded");
    let read = parse_document(&document).unwrap();
    let [counts, attendance] = read.projections.as_slice() else { panic!("{read:?}") };
    assert_eq!((counts.lanes, counts.sharing), (8, Sharing::Bucketed));
    assert_eq!((attendance.lanes, attendance.sharing), (1, Sharing::Plain));
    assert_eq!(counts.policy.max_attempts, 10);
    assert_eq!(counts.indexes.len(), 2);
    assert_eq!(attendance.partitioning.as_ref().unwrap().partitions, 32);
    let [total, leaderboard] = read.queries.as_slice() else { panic!("{read:?}") };
    assert_eq!((total.name.as_str(), total.projection.as_str()), ("show_checkin_count", "show_checkin_counts"));
    let names: Vec<&str> = leaderboard.columns.iter().map(|column| column.name.as_str()).collect();
    assert_eq!(names, ["show_id", "venue_id", "total_checkins"]);
    assert_eq!((leaderboard.order_by.as_slice(), leaderboard.limit), ([(2, true)].as_slice(), Some(20)));
}

#[test]
fn queries_are_checked() {
    let mut document: Json = serde_saphyr::from_str(EXAMPLE).unwrap();
    document["projections"].as_object_mut().unwrap().remove("show_attendance_sharded");
    for (pointer, to, message) in [
        ("/from", json!("show_checkin_count"), "from: \"show_checkin_count\" is not the table"),
        ("/input/venue_id/type", json!("text"), "type \"text\" is not known"),
        ("/where/venue_id/eq", json!("input.venue"), "input \"venue\" is not among the inputs"),
        ("/where/venue_id/like", json!("input.venue_id"), "comparison \"like\" is not known"),
        ("/where/shard_id", json!({"eq": 1}), "where.shard_id: column \"shard_id\" is not among those"),
        ("/where/last_checkin_at", json!({"eq": "input.venue_id"}), "cannot be compared with column"),
        ("/where/last_checkin_at", json!({"eq": "event.ts"}), "must be input.NAME or a constant"),
        ("/group_by", json!(["nope"]), "group_by[0]: column \"nope\" is not among"),
        ("/aggregate/venue_id", json!({"sum": "checkin_count"}), "\"venue_id\" is a column of the answer already"),
        ("/aggregate/total_checkins", json!({"avg": "checkin_count"}), "avg: key \"avg\" is not known"),
        ("/aggregate/total_checkins", json!({"sum": "venue_id"}), "sum has no answer for column \"venue_id\""),
        ("/order_by/total", json!("desc"), "\"total\" is not a column of the answer"),
        ("/order_by/total_checkins", json!("down"), "direction \"down\" is not known"),
        ("/limit", json!(0), "limit: must be a whole number between 1 and 1000000"),
        ("/having", json!({}), "having: key \"having\" is not known"),
    ] {
        let mut document = document.clone();
        let (parent, name) = pointer.rsplit_once('/').unwrap();
        let object = document.pointer_mut(&format!("/queries/venue_leaderboard{parent}")).unwrap();
        object.as_object_mut().unwrap().insert(name.to_owned(), to);
        let error = parse_document(&document).expect_err(message).to_string();
        assert!(error.starts_with("queries.venue_leaderboard") && error.contains(message), "{message}: {error}");
    }
}

#[test]
fn the_order_of_names_changes_nothing_but_the_order_of_columns() {
    let document = orders();
    let projection = parse(&document).unwrap().remove(0);
    let sorted: BTreeMap<String, Json> = serde_json::from_value(document["projections"]["orders"].clone()).unwrap();
    let sorted = json!({"projections": {"orders": sorted}});
    let other = parse(&sorted).unwrap().remove(0);
    assert_eq!(projection.value_columns, other.value_columns);
    assert_eq!(projection.key_columns, other.key_columns);
}

/// Documents made of the language's own words in random places.
fn documents() -> impl Strategy<Value = Json> {
    let words = [
        "projections",
        "orders",
        "source_events",
        "target",
        "fields",
        "derive",
        "aggregates",
        "lanes",
        "lane_key",
        "table",
        "primary_key",
        "op",
        "by",
        "floor",
        "ceiling",
        "value",
        "add",
        "count",
        "set",
        "min",
        "max",
        "id",
        "total",
        "PLACED",
        "TEXT",
        "INT",
        "event.id",
        "event.key",
        "lane()",
        "'x'",
        "",
        "type",
        "hot",
        "retry",
        "processing",
        "newer_by",
        "set_once",
        "delete",
        "sql",
        "statement",
        "{table}",
        "row_key",
        "indexes",
        "columns",
        "partitioning",
        "key",
        "mode",
        "logical",
        "partitions",
        "queries",
        "from",
        "where",
        "eq",
        "shard(event.id, 4)",
        "JSONB",
    ];
    let word = proptest::sample::select(words.to_vec()).prop_map(str::to_owned);
    let leaf = prop_oneof![
        word.clone().prop_map(Json::String),
        (-3i64..2000).prop_map(|number| json!(number)),
        Just(json!(0.5)),
        Just(json!(null)),
        Just(json!(true)),
    ];
    leaf.prop_recursive(6, 60, 6, move |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4).prop_map(Json::Array),
            proptest::collection::vec((word.clone(), inner), 0..6)
                .prop_map(|entries| Json::Object(entries.into_iter().collect())),
        ]
    })
}

proptest! {
    #[test]
    fn random_documents_never_panic(document in documents(), at in 0usize..28) {
        let _ = parse(&document);
        let _ = parse(&json!({"projections": document.clone()}));
        let _ = parse(&json!({"projections": {"orders": document.clone()}}));
        let mut with_query = orders();
        with_query["queries"] = json!({"q": document.clone()});
        let _ = parse(&with_query);
        let pointers = [
            "/source_events", "/lanes", "/lane_key", "/target", "/target/table", "/target/primary_key", "/fields",
            "/fields/id", "/fields/total", "/fields/changes", "/derive", "/derive/id", "/derive/status",
            "/aggregates", "/aggregates/PLACED", "/aggregates/PLACED/total", "/aggregates/PLACED/total/op",
            "/aggregates/PLACED/total/by", "/aggregates/PLACED/total/floor", "/extra", "/sql", "/aggregates/CANCELLED", "/indexes",
            "/retry", "/processing", "/target/partitioning", "/type", "/single_row_bucket",
        ];
        let _ = parse(&changed(pointers[at], document));
    }
}
