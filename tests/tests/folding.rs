//! PROJ-1 in a real Postgres: random definitions over random events, folded in batches by the daemon, give the same rows
//! as applying the events one by one.
//!
//! One by one is a loop in PL/pgSQL that this test writes for each definition. It shares nothing with the daemon: values
//! are read by `->>` and casts, each event is one UPDATE, and several lanes are nothing but one table.
//!
//! `PROJECTION_ROUNDS=…` runs so many rounds with fresh seeds, which are printed; `PROJECTION_SEED=…` repeats one.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use e2e::cluster::Cluster;
use e2e::daemon::Daemon;
use e2e::log_files;
use e2e::random::{Random, seeds_of};
use serde_json::{Map, Value, json};

/// Projections of a round.
const PROJECTIONS: usize = 20;

/// A value that an expression can have, and how this test reads it.
struct Source {
    expression: &'static str,
    /// The type of the column.
    kind: &'static str,
    sql: &'static str,
    /// Whether it may be part of a primary key here.
    key: bool,
    ordered: bool,
}

const fn source(expression: &'static str, kind: &'static str, sql: &'static str, key: bool, ordered: bool) -> Source {
    Source { expression, kind, sql, key, ordered }
}

/// `e` is the event; `moment` is below.
const SOURCES: [Source; 25] = [
    source("event.key", "TEXT", "e.key", true, true),
    source("event.user", "TEXT", "e.payload ->> 'user'", true, true),
    source("event.row", "INT", "(e.payload ->> 'row')::numeric::int", true, true),
    source("event.row", "BIGINT", "(e.payload ->> 'row')::numeric::bigint", true, true),
    source("event.row", "NUMERIC", "(e.payload ->> 'row')::numeric", true, true),
    source("event.flag", "BOOLEAN", "(e.payload ->> 'flag')::boolean", true, false),
    source("event.id", "UUID", "(e.payload ->> 'id')::uuid", true, false),
    source("event.day", "DATE", "(moment(e.payload -> 'day') AT TIME ZONE 'UTC')::date", true, true),
    source("event.at", "TIMESTAMPTZ", "moment(e.payload -> 'at')", true, true),
    source("event.type", "TEXT", "e.type", false, true),
    source("event.ts", "BIGINT", "e.ts", false, true),
    source("event.position", "BIGINT", "e.position", false, true),
    source("event.payload.ts", "TEXT", "e.payload ->> 'ts'", false, true),
    source("event.n", "INT", "(e.payload ->> 'n')::numeric::int", false, true),
    source("event.n", "BIGINT", "(e.payload ->> 'n')::numeric::bigint", false, true),
    source("event.n", "NUMERIC", "(e.payload ->> 'n')::numeric", false, true),
    source("event.deep.inner.decimal", "NUMERIC", "(e.payload #>> '{deep,inner,decimal}')::numeric", false, true),
    source("event.big", "NUMERIC", "(e.payload ->> 'big')::numeric", false, true),
    source("event.x", "DOUBLE", "(e.payload ->> 'x')::double precision", false, true),
    source(
        "seconds(event.s)",
        "TIMESTAMPTZ",
        "'epoch'::timestamptz + make_interval(secs => (e.payload ->> 's')::float8)",
        false,
        true,
    ),
    source("event.json", "JSONB", "NULLIF(e.payload -> 'json', 'null'::jsonb)", false, false),
    source(
        "event.tags",
        "TEXT[]",
        "CASE WHEN jsonb_typeof(e.payload -> 'tags') = 'array' THEN ARRAY(SELECT jsonb_array_elements_text(e.payload -> 'tags')) END",
        false,
        false,
    ),
    source("'it''s'", "TEXT", "'it''s'", false, true),
    source("42", "INT", "42", false, true),
    source("shard(event.user, 16)", "INT", "shard(e.payload ->> 'user', 16)", false, true),
];

/// RFC 3339 text, or milliseconds since 1970.
const MOMENT: &str = "CREATE FUNCTION moment(value jsonb) RETURNS timestamptz LANGUAGE sql AS $$
    SELECT CASE jsonb_typeof(value)
        WHEN 'number' THEN 'epoch'::timestamptz + make_interval(secs => (value #>> '{}')::float8 / 1000)
        WHEN 'string' THEN CASE WHEN length(value #>> '{}') = 10 THEN (value #>> '{}' || 'T00:00:00Z')::timestamptz
            ELSE (value #>> '{}')::timestamptz END
    END $$";

/// What decides between values: expression, type of the hidden column, how it is read.
const NEWER: [(&str, &str, &str); 3] = [
    ("event.revision", "numeric", "(e.payload ->> 'revision')::numeric"),
    ("event.ts", "bigint", "e.ts"),
    ("event.n", "numeric", "(e.payload ->> 'n')::numeric"),
];

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Sharing {
    Plain,
    Bucketed,
    Commuting,
    OneLane,
}

/// A projection: its definition, and the statements that do the same one by one.
struct Case {
    name: String,
    definition: Value,
    reference: String,
    /// Compares both; gives how many rows differ.
    compare: String,
    /// What it has in it, to see that the dice reach everything.
    features: Vec<String>,
}

fn random_case(random: &mut Random, number: usize) -> Case {
    let name = format!("p{number}");
    let sharing = *random.pick(&[Sharing::Plain, Sharing::Bucketed, Sharing::Commuting, Sharing::OneLane]);
    let types: Vec<String> = ["A", "B", "C"].iter().map(|kind| format!("{}_{kind}", name.to_uppercase())).collect();
    let deletes = matches!(sharing, Sharing::Plain | Sharing::OneLane) && random.chance(1, 2);
    let folding = &types[..if deletes { 2 } else { 3 }];
    let mut features = vec![format!("{sharing:?}")];

    // The primary key: one or two columns, and the lane key.
    let candidates: Vec<&Source> = SOURCES.iter().filter(|source| source.key).collect();
    let mut keys: Vec<&Source> = vec![*random.pick(&candidates)];
    let second = *random.pick(&candidates);
    if second.expression != keys[0].expression && random.chance(1, 2) {
        keys.push(second);
    }
    let in_key = |expression: &str| keys.iter().any(|key| key.expression == expression);
    let lane_key = match sharing {
        Sharing::Plain => keys[random.number() as usize % keys.len()].expression,
        _ => *["event.key", "event.user", "event.id"].iter().find(|expression| !in_key(expression)).unwrap(),
    };
    let lane_key_sql = SOURCES.iter().find(|source| source.expression == lane_key).unwrap().sql;
    let lanes = if sharing == Sharing::OneLane { 1 } else { random.within(2..=5) };

    let mut fields = Map::new();
    let mut derive = Map::new();
    let mut aggregates: Map<String, Value> = Map::new();
    let mut columns: Vec<(String, String)> = Vec::new(); // name, and what the reference shows of it
    let mut created: Vec<String> = Vec::new();
    let mut changes: Vec<(String, Vec<String>)> = folding.iter().map(|kind| (kind.clone(), Vec::new())).collect();
    let key_names: Vec<String> = (0..keys.len()).map(|index| format!("k{index}")).collect();
    for (key, source) in key_names.iter().zip(&keys) {
        fields.insert(key.clone(), json!(source.kind));
        derive.insert(key.clone(), json!(source.expression));
        created.push(format!("{key} {}", sql_type(source.kind)));
        columns.push((key.clone(), key.clone()));
    }
    if sharing == Sharing::Bucketed {
        fields.insert("lane".to_owned(), json!("INT"));
        derive.insert("lane".to_owned(), json!("lane()"));
    }

    for index in 0..random.within(2..=6) {
        let column = format!("c{index}");
        let commuting = ["add", "add", "count", "min", "max"];
        let any = ["derive", "set", "newer_by", "newer_by", "set_once", "set_once", "bounded", "bounded"];
        let all: Vec<&str> =
            if sharing == Sharing::Commuting { commuting.to_vec() } else { commuting.into_iter().chain(any).collect() };
        let kind = *random.pick(&all);
        features.push(format!("{sharing:?} {kind}"));
        let used: Vec<usize> = (0..folding.len()).filter(|_| random.chance(2, 3)).collect();
        let used = if used.is_empty() { vec![0] } else { used };
        let mut shown = column.clone();
        if let "add" | "bounded" | "count" = kind {
            let column_type = *random.pick(&["INT", "BIGINT", "NUMERIC"]);
            let numbers: Vec<&Source> = SOURCES
                .iter()
                .filter(|source| {
                    source.kind == column_type && !["event.ts", "event.position"].contains(&source.expression)
                })
                .filter(|source| !source.expression.starts_with("shard"))
                .collect();
            fields.insert(column.clone(), json!(column_type));
            created.push(format!("{column} {} NOT NULL DEFAULT 0", sql_type(column_type)));
            let common = bounds(random);
            for at in used {
                let (by, sql, operation) = if kind == "count" && random.chance(2, 3) {
                    ("1", "1".to_owned(), json!({ "op": "count" }))
                } else {
                    let by = *random.pick(&numbers);
                    (by.expression, by.sql.to_owned(), json!({ "op": "add", "by": by.expression }))
                };
                let mut operation = operation;
                let mut sum = format!("{column} + ({sql})");
                if kind == "bounded" {
                    let (floor, ceiling) = if sharing == Sharing::Bucketed { common } else { bounds(random) };
                    if let Some(floor) = floor {
                        operation["floor"] = json!(floor);
                        sum = format!("greatest({sum}, {floor})");
                    }
                    if let Some(ceiling) = ceiling {
                        operation["ceiling"] = json!(ceiling);
                        sum = format!("least({sum}, {ceiling})");
                    }
                    if sharing == Sharing::Bucketed {
                        // On the total.
                        sum = format!("{column} + ({sql})");
                        let floored = floor.map_or(column.clone(), |floor| format!("greatest({column}, {floor})"));
                        shown = ceiling.map_or(floored.clone(), |ceiling| format!("least({floored}, {ceiling})"));
                    }
                }
                assert!(operation["op"] == "count" || !by.is_empty());
                aggregate(&mut aggregates, &folding[at], &column, operation);
                changes[at].1.push(format!("{column} = CASE WHEN ({sql}) IS NULL THEN {column} ELSE {sum} END"));
            }
            columns.push((column, shown));
            continue;
        }
        let fitting: Vec<&Source> =
            SOURCES.iter().filter(|source| !["min", "max"].contains(&kind) || source.ordered).collect();
        let first = *random.pick(&fitting);
        let fitting: Vec<&Source> = fitting.into_iter().filter(|source| source.kind == first.kind).collect();
        fields.insert(column.clone(), json!(first.kind));
        created.push(format!("{column} {}", sql_type(first.kind)));
        let newer: Vec<(&str, &str, &str)> = match kind {
            "newer_by" => NEWER.iter().copied().filter(|_| random.chance(1, 2)).collect(),
            _ => Vec::new(),
        };
        for (index, (_, hidden, _)) in newer.iter().enumerate() {
            created.push(format!("{column}_{index} {hidden}"));
        }
        let list = |items: Vec<String>| format!("({})", items.join(", "));
        let hidden: Vec<String> = (0..newer.len()).map(|index| format!("{column}_{index}")).collect();
        let given: Vec<String> = newer.iter().map(|(.., sql)| (*sql).to_owned()).collect();
        if kind == "derive" {
            derive.insert(column.clone(), json!(first.expression));
            for (_, changes) in &mut changes {
                changes.push(format!("{column} = {}", first.sql));
            }
            columns.push((column, shown));
            continue;
        }
        for at in used {
            let value = *random.pick(&fitting);
            let sql = value.sql;
            let (operation, change) = match kind {
                "set" => (json!({ "op": "set", "value": value.expression }), sql.to_owned()),
                "set_once" => {
                    (json!({ "op": "set_once", "value": value.expression }), format!("coalesce({column}, {sql})"))
                }
                "newer_by" if newer.is_empty() => (json!({ "op": "set", "value": value.expression }), sql.to_owned()),
                "newer_by" => {
                    let expressions: Vec<&str> = newer.iter().map(|(expression, ..)| *expression).collect();
                    let wins = format!(
                        "({} IS NOT NULL AND ({}_0 IS NULL OR {} >= {}))",
                        given.join(" IS NOT NULL AND "),
                        column,
                        list(given.clone()),
                        list(hidden.clone())
                    );
                    for (hidden, given) in hidden.iter().zip(&given) {
                        changes[at].1.push(format!("{hidden} = CASE WHEN {wins} THEN {given} ELSE {hidden} END"));
                    }
                    (
                        json!({ "op": "set", "value": value.expression, "newer_by": expressions }),
                        format!("CASE WHEN {wins} THEN {sql} ELSE {column} END"),
                    )
                }
                _ => {
                    let collation = if first.kind == "TEXT" { " COLLATE \"C\"" } else { "" };
                    let less = if kind == "min" { "<" } else { ">" };
                    (
                        json!({ "op": kind, "value": value.expression }),
                        format!(
                            "CASE WHEN ({sql}) IS NULL THEN {column} WHEN {column} IS NULL OR (({sql}) {less} {column}{collation}) \
                             THEN {sql} ELSE {column} END"
                        ),
                    )
                }
            };
            aggregate(&mut aggregates, &folding[at], &column, operation);
            changes[at].1.push(format!("{column} = {change}"));
        }
        columns.push((column, shown));
    }
    if deletes {
        aggregate(&mut aggregates, &types[2], &key_names[0], json!({ "op": "delete" }));
        features.push(format!("{sharing:?} delete"));
    }

    let mut primary_key = key_names.clone();
    if sharing == Sharing::Bucketed {
        primary_key.push("lane".to_owned());
    }
    let processing = match random.within(0..=2) {
        0 => json!({ "mode": "realtime" }),
        _ => {
            json!({ "mode": "batch", "batch_size": random.within(1..=40), "flush_interval_ms": random.within(0..=50) })
        }
    };
    let definition = json!({
        "source_events": types, "lanes": lanes, "lane_key": lane_key,
        "target": { "table": name, "primary_key": primary_key },
        "fields": fields, "derive": derive, "aggregates": aggregates, "processing": processing,
    });

    let same_key = key_names
        .iter()
        .zip(&keys)
        .map(|(name, key)| format!("{name} = {}", key.sql))
        .collect::<Vec<_>>()
        .join(" AND ");
    let mut loop_body = String::new();
    for (kind, changes) in &changes {
        if !changes.is_empty() {
            writeln!(
                loop_body,
                "IF e.type = '{kind}' THEN UPDATE r_{name} SET {} WHERE {same_key}; END IF;",
                changes.join(", ")
            )
            .unwrap();
        }
    }
    let nulls: Vec<String> =
        keys.iter().map(|key| key.sql).chain([lane_key_sql]).map(|sql| format!("({sql}) IS NULL")).collect();
    let reference = format!(
        "CREATE TABLE r_{name} ({created}, PRIMARY KEY ({key_list}));
         DO $do$ DECLARE e record; skipped bigint := 0; BEGIN
         FOR e IN SELECT * FROM arrived WHERE type IN ({types}) ORDER BY position LOOP
             IF {nulls} THEN skipped := skipped + 1; CONTINUE; END IF;
             IF {deletes} AND e.type = '{third}' THEN DELETE FROM r_{name} WHERE {same_key}; CONTINUE; END IF;
             INSERT INTO r_{name} ({key_list}) VALUES ({keys}) ON CONFLICT DO NOTHING;
             {loop_body}
         END LOOP;
         INSERT INTO skipped VALUES ('{name}', skipped); END $do$;",
        created = created.join(", "),
        key_list = key_names.join(", "),
        types = types.iter().map(|kind| format!("'{kind}'")).collect::<Vec<_>>().join(", "),
        nulls = nulls.join(" OR "),
        third = types[2],
        keys = keys.iter().map(|key| key.sql).collect::<Vec<_>>().join(", "),
    );
    let table = if sharing == Sharing::Bucketed { format!("{name}_total") } else { name.clone() };
    let names = columns.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
    let shown = columns.iter().map(|(_, shown)| shown.as_str()).collect::<Vec<_>>().join(", ");
    let compare = format!(
        "SELECT count(*) FROM ((SELECT {names} FROM {table} EXCEPT SELECT {shown} FROM r_{name}) UNION ALL
                               (SELECT {shown} FROM r_{name} EXCEPT SELECT {names} FROM {table})) AS different"
    );
    Case { name, definition, reference, compare, features }
}

fn aggregate(aggregates: &mut Map<String, Value>, kind: &str, column: &str, operation: Value) {
    aggregates.entry(kind).or_insert_with(|| json!({}))[column] = operation;
}

fn bounds(random: &mut Random) -> (Option<i64>, Option<i64>) {
    let (low, high) = (random.within(0..=12) as i64 - 8, random.within(0..=12) as i64 - 4);
    match random.within(0..=2) {
        0 => (Some(low), None),
        1 => (None, Some(high)),
        _ => (Some(low.min(high)), Some(low.max(high))),
    }
}

fn sql_type(kind: &str) -> &str {
    if kind == "DOUBLE" { "double precision" } else { kind }
}

/// One of several spellings of a number.
fn spelled(random: &mut Random, number: i64) -> String {
    match random.within(0..=3) {
        0 => format!("{number}"),
        1 => format!("\"{number}\""),
        2 => format!("{number}.0"),
        _ => format!("{}e-1", number * 10),
    }
}

/// An event as a line of NDJSON.
fn random_event(random: &mut Random, kind: &str) -> String {
    let mut members: Vec<String> = Vec::new();
    let mut member = |random: &mut Random, name: &str, value: String| match random.within(0..=9) {
        0 => {}
        1 => members.push(format!("\"{name}\":null")),
        _ => members.push(format!("\"{name}\":{value}")),
    };
    let texts = ["\"\"", "\"a\"", "\"Z\"", "\"ä\\\"\\\\\"", "\"\\u00e4\"", "\"b,{}\"", "\"\u{1F600}\""];
    let text = *random.pick(&texts);
    member(random, "user", text.to_owned());
    let number = random.within(0..=3) as i64;
    let row = spelled(random, number);
    member(random, "row", row);
    let flag = *random.pick(&["true", "false", "\"true\"", "\"false\""]);
    member(random, "flag", flag.to_owned());
    let id = format!("\"0195{:04}-0000-7000-8000-00000000000A\"", random.within(0..=2));
    member(random, "id", id);
    let milliseconds = 1_767_225_600_000 + random.within(0..=3) * 40_000_123;
    let day = match random.within(0..=1) {
        0 => format!("\"2026-01-0{}\"", random.within(1..=3)),
        _ => milliseconds.to_string(),
    };
    member(random, "day", day);
    let at = match random.within(0..=2) {
        0 => milliseconds.to_string(),
        1 => format!("\"2026-01-01T0{}:30:00.25+01:30\"", random.within(0..=3)),
        _ => format!("\"2026-01-01T0{}:30:00Z\"", random.within(0..=3)),
    };
    member(random, "at", at);
    let number = random.within(0..=18) as i64 - 9;
    let n = spelled(random, number);
    member(random, "n", n);
    let number = random.within(0..=4) as i64;
    let revision = spelled(random, number);
    member(random, "revision", revision);
    let cents = random.within(0..=1000) as i64 - 500;
    let decimal = match random.within(0..=2) {
        0 => format!("{cents}e-2"),
        1 => format!("\"{}.{:02}\"", cents / 100, cents.abs() % 100),
        _ => format!("{}.{:02}", cents / 100, cents.abs() % 100),
    };
    member(random, "deep", format!("{{\"inner\":{{\"decimal\":{decimal}}}}}"));
    let big = format!("{}{:018}.{:09}", random.within(1..=9), random.within(0..=999_999), random.within(0..=999_999));
    member(random, "big", big);
    let x = *random.pick(&["0", "-0.25", "1.5e300", "\"2.5\"", "3"]);
    member(random, "x", x.to_owned());
    let seconds = *random.pick(&["1767225600", "1767225600.125", "\"1767225601\"", "0.5"]);
    member(random, "s", seconds.to_owned());
    let json = *random.pick(&["{\"a\":[1,null,1.50]}", "\"text\"", "5", "[]", "{\"b\":1,\"a\":2}"]);
    member(random, "json", json.to_owned());
    let tags = *random.pick(&["[]", "[\"a\"]", "[\"b\",\"a,b\",\"\\\"\"]", "[\"null\",\"{}\"]"]);
    member(random, "tags", tags.to_owned());
    member(random, "ts", "\"inner\"".to_owned());
    format!(
        r#"{{"type":"{kind}","key":"key-{}","ts":{},"payload":{{{}}}}}"#,
        random.within(0..=4),
        1_767_225_600_000 + random.within(0..=20),
        members.join(",")
    )
}

#[test]
fn batches_give_the_rows_of_one_event_after_the_other() {
    let cluster = Cluster::start();
    let mut reached: BTreeSet<String> = BTreeSet::new();
    for seed in seeds_of("PROJECTION", 3) {
        println!("PROJECTION_SEED={seed}");
        let mut random = Random::new(seed);
        let cases: Vec<Case> = (0..PROJECTIONS).map(|number| random_case(&mut random, number)).collect();
        reached.extend(cases.iter().flat_map(|case| case.features.iter().cloned()));
        let document: Map<String, Value> =
            cases.iter().map(|case| (case.name.clone(), case.definition.clone())).collect();
        let lanes: u64 = cases.iter().map(|case| case.definition["lanes"].as_u64().unwrap()).sum();

        let database = format!("seed_{seed}");
        cluster.create_database(&database);
        let batch = random.pick(&[1, 3, 17, 10_000]);
        let mut daemon =
            Daemon::new(Some(&cluster.connection_string(&database)), &format!("lane_batch_size = {batch}"));
        daemon.start();
        let file = daemon.settings_path().with_file_name("projections.json");
        std::fs::write(&file, json!({ "projections": document }).to_string()).unwrap();
        daemon.run(&["apply", file.to_str().unwrap()]);

        let mut stored = 0;
        for _ in 0..random.within(2..=8) {
            let lines: Vec<String> = (0..random.within(20..=600))
                .map(|_| {
                    let kind =
                        format!("P{}_{}", random.within(0..=PROJECTIONS as u64 - 1), random.pick(&["A", "B", "C"]));
                    random_event(&mut random, &kind)
                })
                .collect();
            stored += lines.len() as u64;
            let answer = daemon.post(&lines.join("\n"), &[]).unwrap();
            assert_eq!(answer.status, 200, "{}", answer.body);
        }
        daemon.wait_for("everything is applied", |status| {
            let all = status["lanes"].as_array().unwrap();
            let stopped = all.iter().find(|lane| lane["state"] == "stopped" && lane["lag"] != 0);
            assert_eq!(stopped, None, "seed {seed}: every event has values that fit");
            all.len() as u64 == lanes && all.iter().all(|lane| lane["position"].as_u64() >= Some(stored + 1))
        });
        assert!(daemon.stop().success());

        // The same events, in the order in which the log holds them.
        let log = log_files::check(&daemon.data_directory(), None).unwrap();
        let mut sql = format!(
            "SET timezone = 'UTC'; {MOMENT}; CREATE TABLE skipped (projection text, n bigint);
             CREATE TABLE arrived (position bigint PRIMARY KEY, type text, key text, ts bigint, payload jsonb);\n"
        );
        for row in log.rows.iter().filter(|row| !row.event_type.starts_with("ingestd.")) {
            writeln!(
                sql,
                "INSERT INTO arrived VALUES ({}, '{}', '{}', {}, $json${}$json$);",
                row.position, row.event_type, row.key, row.ts, row.payload
            )
            .unwrap();
        }
        for case in &cases {
            sql += &case.reference;
        }
        cluster.psql(&database, &sql);
        assert_eq!(cluster.psql(&database, "SELECT count(*) FROM arrived"), stored.to_string());
        for case in &cases {
            let different = cluster.psql(&database, &case.compare);
            assert_eq!(different, "0", "seed {seed}: {} {:#}\n{}", case.name, case.definition, case.reference);
        }
        let skipped =
            "SELECT projection, s.n, sum(skipped_null_key) FROM skipped AS s JOIN lanes.checkpoint USING (projection)
                       GROUP BY 1, 2 HAVING s.n <> sum(skipped_null_key)";
        assert_eq!(cluster.psql(&database, skipped), "", "seed {seed}");
        let rows = cases.iter().map(|case| format!("SELECT count(*) FROM r_{}", case.name)).collect::<Vec<_>>();
        let rows = cluster.psql(&database, &rows.join(" UNION ALL "));
        assert!(rows.lines().filter(|rows| *rows != "0").count() > PROJECTIONS / 2, "seed {seed}: {rows}");
    }
    for sharing in ["Plain", "Bucketed", "OneLane"] {
        for kind in ["set", "newer_by", "set_once", "bounded", "min", "max", "add", "count", "derive"] {
            let feature = format!("{sharing} {kind}");
            assert!(std::env::var_os("PROJECTION_SEED").is_some() || reached.contains(&feature), "{feature}");
        }
    }
}
