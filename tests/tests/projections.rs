//! The definition language end to end: the example of the documentation, and cases from practice whose right values were
//! computed independently.

use e2e::cluster::Cluster;
use e2e::daemon::{Daemon, testdata};
use e2e::log_files;

/// Batch sizes to try; those of one event each take long, and only if LANES_LONG_TESTS is set.
fn sizes(others: &[u32]) -> Vec<u32> {
    let long = std::env::var_os("LANES_LONG_TESTS").is_some();
    long.then_some(1).into_iter().chain(others.iter().copied()).collect()
}

fn write(daemon: &Daemon, name: &str, text: &str) -> String {
    let file = daemon.settings_path().with_file_name(name);
    std::fs::write(&file, text).unwrap();
    file.to_str().unwrap().to_owned()
}

/// A daemon on a new database with a document of projections applied.
fn daemon(cluster: &Cluster, database: &str, settings: &str, document: &str) -> Daemon {
    cluster.create_database(database);
    let mut daemon = Daemon::new(Some(&cluster.connection_string(database)), settings);
    daemon.start();
    let file = write(&daemon, "projections.yaml", document);
    daemon.run(&["apply", &file]);
    daemon
}

#[test]
fn the_example_works_as_it_is_written() {
    let cluster = Cluster::start();
    cluster.create_database("app");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("app")), "");
    daemon.start();
    let example = std::fs::read_to_string(testdata("projections-example.yaml")).unwrap();
    let line =
        example.lines().position(|line| line.contains("shard(event.show_id, 16)") && !line.contains('#')).unwrap() + 1;
    let file = write(&daemon, "example.yaml", &example);
    let refused = daemon.output(&["apply", &file]);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains(&format!("line {line}: ")), "{said}");
    assert!(said.contains("projections.show_attendance_sharded.derive.shard_id") && said.contains("shard_id: lane()"));

    // Without it, it applies; first as a plan.
    let start = example.find("  # As users paste it from elsewhere").unwrap();
    let end = example.find("queries:   ").unwrap();
    let good = format!("{}{}", &example[..start], &example[end..]);
    let file = write(&daemon, "example.yaml", &good);
    let plan = daemon.run(&["apply", "--dry-run", &file]);
    for part in [
        "CREATE TABLE \"public\".\"show_checkin_counts\"",
        "CREATE INDEX ON",
        "CREATE VIEW",
        "CREATE OR REPLACE FUNCTION",
    ] {
        assert!(plan.contains(part), "{plan}");
    }
    assert!(plan.contains("floor 0 of column \"checkin_count\" is applied to the total"), "{plan}");
    let nothing = "SELECT to_regclass('show_checkin_counts') IS NULL, count(*) FROM lanes.projection";
    assert_eq!(cluster.psql("app", nothing), "t|0");
    daemon.run(&["apply", &file]);
    let again = daemon.run(&["apply", &file]);
    assert!(
        again.lines().all(|line| line.contains("unchanged") || line.contains("is applied to the total")),
        "{again}"
    );

    let lines: Vec<String> = (0..3000)
        .map(|number| {
            let show = if number % 10 == 0 { number % 4 } else { 0 };
            format!(
                r#"{{"type":"SHOW_CHECK_IN_CREATED","key":"user-{}","ts":{},"payload":{{"show_id":"show-{show}","venue_id":"venue-{}"}}}}"#,
                number % 997,
                1_357_017_300_000u64 + number,
                show % 2
            )
        })
        .collect();
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    daemon.wait_until_applied(9, 3001);
    // Of 300 events with number % 10 = 0, half have number % 4 = 0 and half 2.
    assert_eq!(cluster.psql("app", "SELECT * FROM show_checkin_count('show-0')"), "show-0|2850");
    assert_eq!(cluster.psql("app", "SELECT * FROM show_checkin_count(input_show_id => 'none')"), "");
    assert_eq!(
        cluster.psql("app", "SELECT * FROM venue_leaderboard('venue-0')"),
        "show-0|venue-0|2850\nshow-2|venue-0|150"
    );
    let last = "SELECT show_id, venue_id, last_checkin_at FROM show_checkin_counts_total ORDER BY 1";
    assert_eq!(cluster.psql("app", last), "show-0|venue-0|1357017302999\nshow-2|venue-0|1357017302990");
    assert!(
        cluster
            .psql("app", "SELECT count(*) FROM show_checkin_counts WHERE show_id = 'show-0'")
            .parse::<u32>()
            .unwrap()
            > 4
    );
    let attendance = "SELECT show_id, checkin_count, shard_id = shard(show_id, 32) FROM show_attendance ORDER BY 1";
    assert_eq!(cluster.psql("app", attendance), "show-0|2850|t\nshow-2|150|t");
}

fn lcg(state: &mut u64) -> u64 {
    *state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    *state >> 33
}

/// Case 07: two minuses for one comment, and a floor at zero, whatever the borders of batches.
#[test]
fn a_floor_is_that_of_every_single_event() {
    let mut state = 7;
    let mut lines = Vec::new();
    for number in 0..6000u64 {
        let (kind, comment) = if number < 200 {
            ("CREATED", number)
        } else {
            let kind = lcg(&mut state) % 4;
            (["REMOVED", "UNREMOVED", "DELETED", "UNDELETED"][kind as usize], lcg(&mut state) % 200)
        };
        lines.push(format!(
            r#"{{"type":"COMMENT_{kind}","key":"post-{post}","ts":{},"payload":{{"post":"post-{post}","comment":"c-{comment}"}}}}"#,
            1_767_225_600_000 + number * 1000,
            post = comment % 20
        ));
    }
    let add = |kind: &str, by: i32| format!("COMMENT_{kind}: {{ n: {{ op: add, by: {by}, floor: 0 }} }}");
    let set =
        |kind: &str, column: &str, to: bool| format!("COMMENT_{kind}: {{ {column}: {{ op: set, value: {to} }} }}");
    let document = |size: u32, lane_key: &str, bucket: bool| {
        format!(
            "
projections:
  comment_count:
    source_events: [COMMENT_CREATED, COMMENT_REMOVED, COMMENT_UNREMOVED, COMMENT_DELETED, COMMENT_UNDELETED]
    lanes: 4
    lane_key: {lane_key}
    target: {{ table: comment_count, primary_key: [post{}] }}
    fields: {{ post: TEXT, n: BIGINT{} }}
    derive: {{ post: event.key{} }}
    aggregates: {{ {}, {}, {}, {}, {} }}
    processing: {{ mode: batch, batch_size: {size}, flush_interval_ms: 50 }}
  comment_state:
    source_events: [COMMENT_CREATED, COMMENT_REMOVED, COMMENT_UNREMOVED, COMMENT_DELETED, COMMENT_UNDELETED]
    lanes: 4
    target: {{ table: comment_state, primary_key: [post, comment] }}
    fields: {{ post: TEXT, comment: TEXT, removed: BOOLEAN, deleted: BOOLEAN }}
    derive: {{ post: event.key, comment: event.comment }}
    aggregates:
      COMMENT_CREATED: {{ removed: {{ op: set, value: false }}, deleted: {{ op: set, value: false }} }}
      {}
      {}
      {}
      {}
",
            if bucket { ", lane" } else { "" },
            if bucket { ", lane: INT" } else { "" },
            if bucket { ", lane: lane()" } else { "" },
            add("CREATED", 1),
            add("REMOVED", -1),
            add("UNREMOVED", 1),
            add("DELETED", -1),
            add("UNDELETED", 1),
            set("REMOVED", "removed", true),
            set("UNREMOVED", "removed", false),
            set("DELETED", "deleted", true),
            set("UNDELETED", "deleted", false),
        )
    };
    let cluster = Cluster::start();
    for size in sizes(&[7, 100, 1000, 10_000]) {
        let database = format!("comments_{size}");
        let settings = format!("lane_batch_size = {size}");
        let mut daemon = daemon(&cluster, &database, &settings, &document(size, "event.key", false));
        assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
        if size == 7 {
            daemon.kill();
            daemon.start();
        }
        daemon.wait_until_applied(8, 6001);
        let counts = "SELECT string_agg(n::text, ' ' ORDER BY substr(post, 6)::int) FROM comment_count";
        assert_eq!(cluster.psql(&database, counts), "17 3 6 2 0 9 8 18 0 4 23 19 9 45 21 6 8 23 5 1", "{size}");
        let visible = "SELECT string_agg(n::text, ' ' ORDER BY post) FROM (SELECT substr(post, 6)::int AS post,
                       count(*) FILTER (WHERE NOT removed AND NOT deleted) AS n FROM comment_state GROUP BY 1) AS s";
        assert_eq!(cluster.psql(&database, visible), "3 4 1 1 1 4 1 1 1 2 2 4 2 1 2 0 2 5 1 3", "{size}");
    }
    // By comment two lanes would meet in one row: refused, or the floor is on the total and it says so.
    cluster.create_database("refused");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("refused")), "");
    daemon.start();
    let file = write(&daemon, "p.yaml", &document(1, "event.payload.comment", false));
    let refused = daemon.output(&["apply", &file]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("two of the 4 lanes could write one row"));
    let file = write(&daemon, "p.yaml", &document(1, "event.payload.comment", true));
    assert!(daemon.run(&["apply", &file]).contains("floor 0 of column \"n\" is applied to the total"));
}

/// Case 21: the older message arrives later. All 720 orders of six messages.
#[test]
fn older_news_changes_nothing() {
    let life = [
        (1, 100, "incomplete", "basic"),
        (2, 100, "active", "basic"),
        (3, 160, "active", "silver"),
        (4, 220, "past_due", "silver"),
        (5, 300, "active", "silver"),
        (6, 300, "active", "gold"),
    ];
    let mut orders: Vec<Vec<usize>> = vec![vec![]];
    for _ in 0..6 {
        let longer = |order: &Vec<usize>| {
            let free = (0..6).filter(|next| !order.contains(next)).collect::<Vec<_>>();
            free.into_iter().map(|next| [order.as_slice(), &[next]].concat()).collect::<Vec<_>>()
        };
        orders = orders.iter().flat_map(longer).collect();
    }
    let mut lines = Vec::new();
    for (number, order) in orders.iter().enumerate() {
        for index in order {
            let (rev, created, status, plan) = life[*index];
            lines.push(format!(
                r#"{{"type":"CHANGED","key":"sub-{number}","ts":{},"payload":{{"sub":"sub-{number}","rev":{rev},"created":{},"status":"{status}","plan":"{plan}"}}}}"#,
                1_767_225_600_001 + lines.len(),
                1_767_225_600 + created
            ));
        }
    }
    assert_eq!(lines.len(), 4320);
    let version = |name: &str, newer: &str, bucket: bool, size: u32| {
        let set = |column: &str| format!("{column}: {{ op: set, value: event.{column}{newer} }}");
        let (key, field, derive) = if bucket { (", lane", ", lane: INT", ", lane: lane()") } else { ("", "", "") };
        format!(
            "  {name}:
    source_events: [CHANGED]
    lanes: 4
    target: {{ table: {name}, primary_key: [sub{key}] }}
    fields: {{ sub: TEXT, status: TEXT, plan: TEXT, rev: INT, seen: BIGINT, first: BIGINT{field} }}
    derive: {{ sub: event.sub{derive} }}
    lane_key: {}
    processing: {{ mode: batch, batch_size: {size}, flush_interval_ms: 50 }}
    aggregates:
      CHANGED: {{ {}, {}, {}, seen: {{ op: count }}, first: {{ op: min, value: event.created }} }}
",
            if bucket { "event.rev" } else { "event.sub" },
            set("status"),
            set("plan"),
            set("rev"),
        )
    };
    let both = ", newer_by: [event.created, event.rev]";
    let cluster = Cluster::start();
    let mut sums: Vec<String> = Vec::new();
    for size in sizes(&[7, 1000]) {
        let database = format!("subs_{size}");
        let document = format!(
            "projections:\n{}{}{}{}",
            version("a", "", false, size),
            version("b", ", newer_by: [event.created]", false, size),
            version("c", both, false, size),
            // Messages of one subscription in several lanes: each keeps the newest it saw, the view picks among them.
            version("d", both, true, size),
        );
        let daemon = daemon(&cluster, &database, &format!("lane_batch_size = {size}"), &document);
        assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
        daemon.wait_until_applied(16, 4321);
        let query = |table: &str| {
            cluster.psql(
                &database,
                &format!(
                    "SELECT count(*) FILTER (WHERE (status, plan, rev) = ('active', 'gold', 6)), count(*), sum(seen),
                     min(first), max(first) FROM {table}"
                ),
            )
        };
        for (table, right) in [("a", 120), ("b", 360), ("c", 720), ("d_total", 720)] {
            assert_eq!(query(table), format!("{right}|720|4320|1767225700|1767225700"), "{table} {size}");
        }
        // `set` follows the stored order: right are those whose last message is number 6.
        let right = "SELECT string_agg(substr(sub, 5), ',' ORDER BY substr(sub, 5)::int) FROM a
                     WHERE (status, plan, rev) = ('active', 'gold', 6)";
        let last_is_6: Vec<String> = (0..orders.len())
            .filter(|number| orders[*number].last() == Some(&5))
            .map(|number| number.to_string())
            .collect();
        assert_eq!(cluster.psql(&database, right), last_is_6.join(","));
        let all = |table: &str| {
            format!(
                "(SELECT md5(string_agg(concat_ws('|', sub, status, plan, rev, seen), E'\\n' ORDER BY sub)) FROM {table})"
            )
        };
        sums.push(cluster.psql(&database, &format!("SELECT {}, {}, {}", all("a"), all("b"), all("c"))));
    }
    assert!(sums.iter().all(|sum| *sum == sums[0]), "the same rows for every batch size: {sums:?}");
}

/// Case 23: push hooks of a code host: nested paths, two kinds of time, nulls, lists by `sql:`; payloads byte for byte.
#[test]
fn push_hooks_are_read_as_they_are() {
    // The case's own file: every second line writes what is not ASCII as an escape.
    let file = testdata("push.ndjson");
    let lines = std::fs::read_to_string(&file).unwrap();
    let payloads = [
        "7613bda4880bdd488ac97868c11c124c",
        "e3285fe68404bff420cc972c8ba17fd7",
        "db854caf0aa9299b559f7d6fdd1c6026",
        "0287308de170d596f84d96676a6e2c69",
        "cbf8a4389035b4f7e03e0b871547f89c",
        "37c7327a69a91f9a5a5676d1b5773a47",
        "2fb2e350c9c0ca7e6b8bac8a13ed9a08",
    ];
    let document = "
projections:
  repos:
    source_events: [PUSH]
    lanes: 4
    target: { table: repos, primary_key: [repo] }
    fields: { repo: TEXT, pushes: BIGINT, last_push: TIMESTAMPTZ, updated: TIMESTAMPTZ, about: TEXT, head: TEXT,
              commits: BIGINT, files: BIGINT, newest: TIMESTAMPTZ }
    derive: { repo: event.key, about: event.repository.description, head: event.head_commit.message }
    aggregates:
      PUSH:
        pushes:    { op: count }
        last_push: { op: max, value: seconds(event.repository.pushed_at) }
        updated:   { op: max, value: event.repository.updated_at }
    sql:
      PUSH:
        row_key: [repo]
        statement: |
          WITH listed AS (
              SELECT b.key, c.value AS commit FROM batch AS b, jsonb_array_elements(b.payload -> 'commits') AS c
          ), counted AS (
              SELECT b.key, count(l.commit) AS commits, max((l.commit ->> 'timestamp')::timestamptz) AS newest,
                  COALESCE(sum(jsonb_array_length(l.commit -> 'added') + jsonb_array_length(l.commit -> 'modified')), 0) AS files
              FROM (SELECT DISTINCT key FROM batch) AS b LEFT JOIN listed AS l USING (key) GROUP BY b.key
          )
          UPDATE {table} AS t SET commits = COALESCE(t.commits, 0) + n.commits, files = COALESCE(t.files, 0) + n.files,
              newest = GREATEST(t.newest, n.newest)
          FROM counted AS n WHERE t.repo = n.key
  branches:
    source_events: [PUSH]
    lanes: 4
    target: { table: branches, primary_key: [repo, ref] }
    fields: { repo: TEXT, ref: TEXT }
    derive: { repo: event.key, ref: event.ref }
    sql:
      PUSH:
        row_key: [repo, ref]
        statement: |
          WITH last AS (
              SELECT DISTINCT ON (key, payload ->> 'ref') key, payload ->> 'ref' AS ref, (payload ->> 'deleted')::boolean AS gone
              FROM batch ORDER BY key, payload ->> 'ref', position DESC
          ), removed AS (
              DELETE FROM {table} AS t USING last AS l WHERE t.repo = l.key AND t.ref = l.ref AND l.gone
          )
          INSERT INTO {table} (repo, ref) SELECT key, ref FROM last WHERE NOT gone ON CONFLICT DO NOTHING
";
    let cluster = Cluster::start();
    for size in [1, 3, 1000] {
        let database = format!("push_{size}");
        let daemon = daemon(&cluster, &database, &format!("lane_batch_size = {size}"), document);
        if size == 1000 {
            assert_eq!(daemon.run(&["import", file.to_str().unwrap()]), "7 events stored, 0 were already stored\n");
        } else {
            assert_eq!(daemon.post(&lines, &[]).unwrap().status, 200);
        }
        daemon.wait_until_applied(8, 8);
        let log = log_files::check(&daemon.data_directory(), None).unwrap();
        let stored = log
            .rows
            .iter()
            .filter(|row| row.event_type == "PUSH")
            .map(|row| cluster.psql(&database, &format!("SELECT md5($payload${}$payload$)", row.payload)));
        assert_eq!(stored.collect::<Vec<_>>(), payloads);
        let repos = "SELECT repo, pushes, commits, files, extract(epoch FROM last_push)::bigint,
                     to_char(updated AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI:SS'), about, head,
                     extract(epoch FROM newest)::bigint FROM repos ORDER BY 1";
        assert_eq!(
            cluster.psql(&database, repos),
            "acme/anvil|4|3|6|1770040000|2026-02-02 13:46:40|||1770019200\n\
             acme/bellows|2|3|3|1770076900|2026-02-03 00:01:40||b3|1770076801\n\
             acme/crucible|1|0|0|1770030000|2026-02-02 11:00:00|||"
        );
        assert_eq!(
            cluster.psql(&database, "SELECT repo, ref FROM branches ORDER BY 1"),
            "acme/anvil|refs/heads/main\nacme/bellows|refs/heads/main\nacme/crucible|refs/tags/v1.0"
        );
    }
}

/// Modes: a batch waits until it is full or its time is over; a schedule reads everything when its time comes.
#[test]
fn batches_wait_and_schedules_keep_their_times() {
    let projection = |name: &str, processing: &str| {
        format!(
            "  {name}:\n    source_events: [T]\n    target: {{ table: {name}, primary_key: [k] }}\n    fields: {{ k: TEXT, n: BIGINT }}\n    derive: {{ k: event.key }}\n    aggregates: {{ T: {{ n: {{ op: count }} }} }}\n    processing: {processing}\n"
        )
    };
    let document = format!(
        "projections:\n{}{}",
        projection("full", "{ mode: batch, batch_size: 5, flush_interval_ms: 3600000 }"),
        projection("timed", "{ mode: scheduled, every: 1s }")
    );
    let cluster = Cluster::start();
    let daemon = daemon(&cluster, "app", "", &document);
    let event = r#"{"type":"T","key":"k","payload":{}}"#;
    let at = |name: &'static str, position: u64| {
        daemon.wait_for(&format!("{name} at {position}"), |status| {
            let mut lanes = status["lanes"].as_array().unwrap().iter();
            lanes.any(|lane| lane["projection"] == name && lane["position"] == position)
        })
    };
    for _ in 0..4 {
        assert_eq!(daemon.post(event, &[]).unwrap().status, 200);
    }
    let status = at("timed", 5);
    let full = status["lanes"].as_array().unwrap().iter().find(|lane| lane["projection"] == "full").unwrap();
    assert!(full["position"].as_u64().unwrap() <= 1, "four events wait for the fifth: {full}");
    assert_eq!(daemon.post(event, &[]).unwrap().status, 200);
    at("full", 6);
    at("timed", 6);
    assert_eq!(cluster.psql("app", "SELECT n FROM \"full\" UNION ALL SELECT n FROM timed"), "5\n5");
}

/// In a bucketed table each lane keeps its own first and last value and its own sum: the view picks among the lanes' by
/// position, and bounds the total alone.
#[test]
fn the_view_decides_between_lanes_and_bounds_their_total() {
    let document = "
projections:
  shows:
    source_events: [SEEN]
    lanes: 4
    target: { table: shows, primary_key: [show, lane] }
    fields: { show: TEXT, lane: INT, n: BIGINT, capped: NUMERIC, first: TEXT, last: TEXT }
    derive: { show: event.show, lane: lane(), last: event.key }
    aggregates:
      SEEN:
        n:      { op: add, by: event.n, floor: 0 }
        capped: { op: add, by: event.n, ceiling: 6 }
        first:  { op: set_once, value: event.name }
";
    let cluster = Cluster::start();
    let daemon = daemon(&cluster, "app", "", document);
    // A user of each lane.
    let users: Vec<String> = (0..4)
        .map(|lane| {
            cluster.psql(
                "app",
                &format!("SELECT min('u' || n) FROM generate_series(1, 99) AS n WHERE lane_of('u' || n, 4) = {lane}"),
            )
        })
        .collect();
    let mut posted = 0;
    let mut post = |user: usize, n: i64, name: Option<&str>| {
        let name = name.map_or("null".to_owned(), |name| format!("\"{name}\""));
        let line =
            format!(r#"{{"type":"SEEN","key":"{}","payload":{{"show":"s","n":{n},"name":{name}}}}}"#, users[user]);
        assert_eq!(daemon.post(&line, &[]).unwrap().status, 200);
        posted += 1;
        daemon.wait_until_applied(4, posted + 1);
    };
    let total = || cluster.psql("app", "SELECT n, capped, first, last FROM shows_total");
    let lanes = |column: &str| {
        cluster.psql("app", &format!("SELECT string_agg(coalesce({column}::text, '-'), ' ' ORDER BY lane) FROM shows"))
    };
    // The least lane has no value first, the greatest has the first one.
    post(0, -5, None);
    post(3, 3, Some("in lane 3"));
    assert_eq!(total(), format!("0|-2|in lane 3|{}", users[3]));
    post(1, 0, Some("in lane 1"));
    post(0, 0, Some("in lane 0"));
    assert_eq!(total(), format!("0|-2|in lane 3|{}", users[0]));
    assert_eq!(lanes("first"), "in lane 0 in lane 1 in lane 3");
    // -2 + 10 is 8: what the floor hid is not forgotten, and no lane's own sum is bounded.
    post(2, 10, Some("in lane 2"));
    assert_eq!(lanes("n"), "-5 0 10 3");
    assert_eq!(lanes("capped"), "-5 0 10 3");
    assert_eq!(total(), format!("8|6|in lane 3|{}", users[2]));
    post(3, -3, Some("in lane 3 again"));
    assert_eq!(total(), format!("5|5|in lane 3|{}", users[3]));
    assert_eq!(lanes("first"), "in lane 0 in lane 1 in lane 2 in lane 3");
}

/// No more lanes of a projection are worked on at once than it says, and as many as there are where it says nothing.
#[test]
fn max_concurrency_is_the_most_lanes_at_once() {
    let cluster = Cluster::start();
    let most_at_once = |database: &str, processing: &str| -> u32 {
        let document = format!(
            "projections:\n  slow:\n    source_events: [T]\n    lanes: 4\n    target: {{ table: slow, primary_key: [k] }}\n    fields: {{ k: TEXT, n: BIGINT }}\n    derive: {{ k: event.key }}\n    aggregates: {{ T: {{ n: {{ op: count }} }} }}\n    processing: {processing}\n"
        );
        let daemon = daemon(&cluster, database, "lane_batch_size = 1", &document);
        // Each statement notes when it began and when it was done.
        cluster.psql(
            database,
            "CREATE TABLE note (at timestamptz, step int);
             CREATE FUNCTION note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 INSERT INTO public.note VALUES (clock_timestamp(), TG_ARGV[0]::int);
                 IF TG_ARGV[0] = '1' THEN PERFORM pg_sleep(0.1); END IF;
                 RETURN NULL; END $$;
             CREATE TRIGGER begins BEFORE INSERT ON slow EXECUTE FUNCTION note('1');
             CREATE TRIGGER ends AFTER INSERT ON slow EXECUTE FUNCTION note('-1');",
        );
        let lines: Vec<String> =
            (0..40).map(|number| format!(r#"{{"type":"T","key":"k{}","payload":{{}}}}"#, number % 20)).collect();
        // One that owns all lanes works on one after the other.
        daemon.wait_until("each worker has a lane", || {
            cluster.psql(database, "SELECT count(DISTINCT owner) FROM lanes.status") == "4"
        });
        assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
        daemon.wait_until_applied(4, 41);
        assert_eq!(cluster.psql(database, "SELECT sum(n), (SELECT count(*) FROM note) FROM slow"), "40|80");
        let most = "SELECT max(running) FROM (SELECT sum(step) OVER (ORDER BY at, step) AS running FROM note) AS n";
        cluster.psql(database, most).parse().unwrap()
    };
    assert_eq!(most_at_once("at_most_two", "{ max_concurrency: 2 }"), 2);
    assert_eq!(most_at_once("at_most_one", "{ max_concurrency: 1 }"), 1);
    assert!(most_at_once("unlimited", "{}") > 2);
}
