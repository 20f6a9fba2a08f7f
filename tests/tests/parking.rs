//! Events that cannot be applied: their keys are parked, later events of these wait in order, all other keys go on;
//! retry, skip and block; what stops a lane instead. No event is ever dropped without a row (LANE-3, LANE-4).

use e2e::cluster::{Cluster, wait_until};
use e2e::daemon::Daemon;
use serde_json::Value;

/// A ledger whose rows remember the order: `trail` is written by a trigger, `last` by the projection.
fn projections(retry: &str) -> String {
    format!(
        "
projections:
  ledger:
    source_events: [PAID]
    lanes: 4
    lane_key: event.account
    target: {{ table: ledger, primary_key: [account] }}
    fields: {{ account: TEXT, amount: BIGINT, last: INT, note: TEXT }}
    derive: {{ account: event.account, last: event.number, note: event.note }}
    aggregates: {{ PAID: {{ amount: {{ op: add, by: event.amount }} }} }}
    retry: {retry}
"
    )
}

fn daemon(cluster: &Cluster, database: &str, retry: &str) -> Daemon {
    cluster.create_database(database);
    let mut daemon = Daemon::new(Some(&cluster.connection_string(database)), "");
    daemon.start();
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, projections(retry)).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    daemon
}

fn payment(account: &str, amount: &str, number: u32, note: &str) -> String {
    format!(
        r#"{{"type":"PAID","key":"{account}","ts":1,"payload":{{"account":"{account}","amount":{amount},"number":{number},"note":{note}}}}}"#
    )
}

fn applied(daemon: &Daemon, horizon: u64) {
    daemon.wait_until_applied(4, horizon);
}

/// Every kind of poison, in the middle of good events of the same and of other keys.
#[test]
fn poison_of_every_kind_parks_its_key_and_nothing_else() {
    let cluster = Cluster::start();
    let daemon = daemon(&cluster, "app", "{ dead_letter: true, max_attempts: 1 }");
    cluster.psql(
        "app",
        "ALTER TABLE ledger ADD CONSTRAINT one_note UNIQUE (note), ADD CONSTRAINT note_given CHECK (note <> 'forbidden');
         CREATE TABLE allowed (note text PRIMARY KEY);
         INSERT INTO allowed SELECT 'n' || i FROM generate_series(0, 9999) AS i; INSERT INTO allowed VALUES ('same');
         ALTER TABLE ledger ADD FOREIGN KEY (note) REFERENCES allowed DEFERRABLE INITIALLY DEFERRED;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.last = 666 THEN RAISE EXCEPTION 'the number of the beast'; END IF; RETURN NEW; END $$;
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON ledger FOR EACH ROW EXECUTE FUNCTION refuse();",
    );
    // Ten rounds over 60 accounts; in the fifth round some accounts are sent poison. What came before it in a batch of its
    // own, for a constraint sees what a batch leaves of a row, not what was in between.
    let mut lines = Vec::new();
    for round in 0..10u32 {
        // Also a6 has its note before a7, in another lane, asks for the same.
        if round == 5 || round == 6 {
            assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
            applied(&daemon, u64::from(round) * 60 + 1);
            lines.clear();
        }
        for account in 0..60u32 {
            let good = format!("\"n{}\"", account * 10 + round);
            let (amount, number, note) = match (round, account) {
                (5, 0) => ("\"much\"".to_owned(), 5, good),
                (5, 1) => (i64::MAX.to_string(), 5, good),
                (5, 2) => ("1".to_owned(), 666, good),
                (5, 3) => ("1".to_owned(), 5, "\"forbidden\"".to_owned()),
                (5, 4) => ("1".to_owned(), 5, "\"not allowed\"".to_owned()),
                (5, 5) => ("1".to_owned(), 5, "\"a\\u0000b\"".to_owned()),
                (_, 6) => ("1".to_owned(), round, "\"same\"".to_owned()),
                (5, 7) => ("1".to_owned(), 5, "\"same\"".to_owned()),
                _ => ("1".to_owned(), round, good),
            };
            lines.push(payment(&format!("a{account}"), &amount, number, &note));
        }
    }
    // A lane key that Postgres cannot hold.
    lines.push(
        r#"{"type":"PAID","key":"k","ts":1,"payload":{"account":"x\u0000y","amount":1,"number":1,"note":null}}"#
            .to_owned(),
    );
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    applied(&daemon, 602);

    let parked = "SELECT k.key, k.sqlstate, count(*), min(position) FROM lanes.parked_key AS k
                  JOIN lanes.parked_event USING (projection, version, slot, key_hash) GROUP BY 1, 2 ORDER BY 1";
    let waiting = cluster.psql("app", parked);
    // Five events of each poisoned account wait: that of round 5 at 5 * 60 + account + 2 (the daemon's own first row is 1), and four behind it.
    let expected = [
        ("\"x\\u0000y\"", "22000", 1, 602),
        ("a0", "22000", 5, 302),
        ("a1", "22003", 5, 303),
        ("a2", "P0001", 5, 304),
        ("a3", "23514", 5, 305),
        ("a4", "23503", 5, 306),
        ("a5", "22000", 5, 307),
        ("a7", "23505", 5, 309),
    ];
    let expected: Vec<String> =
        expected.iter().map(|(key, state, count, first)| format!("{key}|{state}|{count}|{first}")).collect();
    assert_eq!(waiting, expected.join("\n"));
    // All others have all ten; the parked ones have the five before.
    let rows =
        "SELECT count(*) FILTER (WHERE amount = 10 AND last = 9), count(*) FILTER (WHERE amount = 5 AND last = 4)
                FROM ledger";
    assert_eq!(cluster.psql("app", rows), "53|7");
    assert_eq!(cluster.psql("app", "SELECT sum(parked_keys), sum(parked_events) FROM lanes.status"), "8|36");

    // Each is mended or skipped, and what waited comes in order.
    cluster.psql(
        "app",
        "INSERT INTO allowed VALUES ('not allowed'), ('forbidden'); DROP TRIGGER refuse ON ledger;
         ALTER TABLE ledger DROP CONSTRAINT one_note, DROP CONSTRAINT note_given",
    );
    let list = daemon.run(&["dead-letters", "list"]);
    assert!(list.contains("a3") && list.contains("23514") && list.lines().count() == 9, "{list}");
    let show = daemon.run(&["dead-letters", "show", "ledger", "a1"]);
    assert!(show.contains("303") && show.contains("22003") && show.contains("9223372036854775807"), "{show}");
    for key in ["a2", "a3", "a4", "a7"] {
        daemon.run(&["dead-letters", "retry", "ledger", key]);
    }
    for position in ["302", "303", "307", "602"] {
        daemon.run(&["dead-letters", "skip", "ledger", position, "--reason", "test"]);
    }
    daemon.wait_for("nothing is parked", |_| cluster.psql("app", "SELECT count(*) FROM lanes.parked_key") == "0");
    let rows =
        "SELECT count(*) FILTER (WHERE amount = 10 AND last = 9), count(*) FILTER (WHERE amount = 9 AND last = 9)
                FROM ledger";
    assert_eq!(cluster.psql("app", rows), "57|3");
    let audit = "SELECT string_agg(position::text, ',' ORDER BY position), min(reason), bool_and(payload IS NOT NULL),
                 bool_and(skipped_by = 'postgres') FROM lanes.skipped_event";
    assert_eq!(cluster.psql("app", audit), "302,303,307,602|test|t|t");
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_event"), "0");
}

/// Events of a key that is parked wait behind it, also those that come later, and are applied in order by the automatic
/// retry; a key that fails for good waits until it is asked for.
#[test]
fn later_events_wait_and_the_retry_comes_by_itself() {
    let cluster = Cluster::start();
    let daemon = daemon(&cluster, "app", "{ dead_letter: true, max_attempts: 4, backoff: none }");
    cluster.psql("app", "ALTER TABLE ledger ADD CONSTRAINT small CHECK (last < 3)");
    for number in 0..6 {
        let lines = [payment("a", "1", number, "null"), payment("b", "1", 0, "null")].join("\n");
        assert_eq!(daemon.post(&lines, &[]).unwrap().status, 200);
        applied(&daemon, 3 + 2 * u64::from(number));
    }
    assert_eq!(cluster.psql("app", "SELECT account, amount, last FROM ledger ORDER BY 1"), "a|3|2\nb|6|0");
    // It is tried four times in all, then no more.
    daemon.wait_for("given up", |_| {
        cluster.psql("app", "SELECT attempts, next_try_at IS NULL FROM lanes.parked_key") == "4|t"
    });
    let order = "SELECT string_agg(position::text, ',' ORDER BY position) FROM lanes.parked_event";
    assert_eq!(cluster.psql("app", order), "8,10,12");
    // One more is let through, then the next fails and is the first.
    cluster.psql("app", "ALTER TABLE ledger DROP CONSTRAINT small, ADD CONSTRAINT small CHECK (last < 4)");
    cluster.psql("app", "SELECT lanes.retry('ledger', 'a')");
    daemon.wait_for("given up again", |_| {
        cluster.psql("app", "SELECT attempts, next_try_at IS NULL FROM lanes.parked_key") == "4|t"
    });
    assert_eq!(cluster.psql("app", order), "10,12");
    cluster.psql("app", "ALTER TABLE ledger DROP CONSTRAINT small");
    assert_eq!(daemon.post(&payment("a", "1", 9, "null"), &[]).unwrap().status, 200);
    cluster.psql("app", "SELECT lanes.retry('ledger')");
    daemon.wait_for("free", |_| cluster.psql("app", "SELECT count(*) FROM lanes.parked_key") == "0");
    applied(&daemon, 14);
    assert_eq!(cluster.psql("app", "SELECT account, amount, last FROM ledger ORDER BY 1"), "a|7|9\nb|6|0");
}

#[test]
fn skip_sets_the_event_alone_aside_with_a_row() {
    let cluster = Cluster::start();
    let daemon = daemon(&cluster, "app", "{ on_error: skip }");
    let lines: Vec<String> =
        (0..20).map(|number| payment("a", if number % 5 == 0 { "\"x\"" } else { "1" }, number, "null")).collect();
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    applied(&daemon, 21);
    assert_eq!(cluster.psql("app", "SELECT account, amount, last FROM ledger"), "a|16|19");
    let rows = "SELECT string_agg(position::text, ',' ORDER BY position), min(reason), min(key), min(error) FROM lanes.skipped_event";
    let rows = cluster.psql("app", rows);
    assert!(rows.starts_with("2,7,12,17|on_error: skip|a|event at position 12: column \"amount\""), "{rows}");
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_event"), "0");
}

#[test]
fn a_blocked_lane_goes_on_when_its_event_is_skipped() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "app", "{ dead_letter: false }");
    daemon.expect_errors();
    let lines = [
        payment("a", "1", 1, "null"),
        payment("a", "\"x\"", 2, "null"),
        payment("a", "1", 3, "null"),
        payment("b", "1", 4, "null"),
    ];
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    daemon.wait_for("blocked", |status| {
        status["lanes"].as_array().unwrap().iter().any(|lane| lane["state"] == "stopped" && lane["position"] == 2)
    });
    daemon.wait_for("recorded", |_| {
        cluster.psql("app", "SELECT failed_position FROM lanes.checkpoint WHERE failed_position IS NOT NULL") == "3"
    });
    let refused = daemon.output(&["dead-letters", "skip", "ledger", "4", "--reason", "no"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("position 4 of projection \"ledger\" is not waiting"));
    daemon.run(&["dead-letters", "skip", "ledger", "3", "--reason", "a typing error"]);
    applied(&daemon, 5);
    assert_eq!(cluster.psql("app", "SELECT account, amount, last FROM ledger ORDER BY 1"), "a|2|3\nb|1|4");
    let audit = "SELECT position, key, event_type, reason FROM lanes.skipped_event";
    assert_eq!(cluster.psql("app", audit), "3|a|PAID|a typing error");
}

/// A bad deploy is not bad data: nothing is parked, the lane stops and says why, and goes on when it is mended.
#[test]
fn too_many_failing_keys_stop_the_lane() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "app", "{ dead_letter: true }");
    daemon.expect_errors();
    cluster.psql("app", "ALTER TABLE ledger ADD CONSTRAINT never CHECK (amount < 0)");
    let lines: Vec<String> = (0..400).map(|number| payment(&format!("a{number}"), "1", number, "null")).collect();
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    daemon.wait_for("all four lanes stopped", |status| {
        let stopped =
            |lane: &Value| lane["reason"].as_str().is_some_and(|reason| reason.contains("too many keys fail"));
        status["lanes"].as_array().unwrap().iter().all(stopped)
    });
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_event"), "0");
    cluster.psql("app", "ALTER TABLE ledger DROP CONSTRAINT never");
    applied(&daemon, 401);
    assert_eq!(cluster.psql("app", "SELECT count(*), sum(amount) FROM ledger"), "400|400");
}

/// Nor is bad data a bad deploy because there is much of it: a lane that is far behind parks what one that keeps up parks.
#[test]
fn a_lane_that_is_far_behind_parks_bad_data_as_one_that_keeps_up() {
    let cluster = Cluster::start();
    cluster.create_database("app");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("app")), "");
    daemon.start();
    // Of 1000 events two or three are poison; of the 8192 that the one lane is given at once, twenty, each of another account.
    let mut right = vec![(0u32, false); 79];
    let line = |number: u32| {
        let account = &mut right[(number % 79) as usize];
        let poison = number % 400 == 399;
        account.1 |= poison;
        account.0 += u32::from(!account.1);
        payment(&format!("a{}", number % 79), if poison { "\"x\"" } else { "1" }, number, "null")
    };
    let lines: Vec<String> = (0..16_000).map(line).collect();
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    let file = daemon.settings_path().with_file_name("projections.yaml");
    let projections = projections("{ dead_letter: true, max_attempts: 1 }").replace("lanes: 4", "lanes: 1");
    std::fs::write(&file, projections).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    daemon.wait_until_applied(1, 16_001);
    let poisoned = right.iter().filter(|(_, poison)| *poison).count();
    assert_eq!(poisoned, 40, "each poison has an account of its own");
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_key"), poisoned.to_string());
    let rows: Vec<String> =
        right.iter().enumerate().map(|(account, (amount, _))| format!("a{account}|{amount}")).collect();
    let found = cluster.psql("app", "SELECT account, amount FROM ledger ORDER BY substr(account, 2)::int");
    assert_eq!(found, rows.join("\n"));
}

#[test]
fn parked_limit_stops_the_lane() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "app", "{ dead_letter: true, parked_limit: 5, max_attempts: 1 }");
    daemon.expect_errors();
    let lines: Vec<String> = (0..9).map(|number| payment("a", "\"x\"", number, "null")).collect();
    for line in &lines[..5] {
        assert_eq!(daemon.post(line, &[]).unwrap().status, 200);
    }
    applied(&daemon, 6);
    assert_eq!(daemon.post(&lines[5..].join("\n"), &[]).unwrap().status, 200);
    daemon.wait_for("stopped by the limit", |status| {
        let over = |lane: &Value| lane["reason"].as_str().is_some_and(|reason| reason.contains("parked_limit is 5"));
        status["lanes"].as_array().unwrap().iter().any(over)
    });
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_event"), "5");
    // A retry that fails is a batch of the lane, too: Postgres knows after it why the lane stands.
    daemon.run(&["dead-letters", "retry", "ledger", "a"]);
    daemon.wait_for_log("parked key failed again");
    daemon.wait_until("Postgres knows", || {
        let stopped = "SELECT count(*) FROM lanes.status WHERE state = 'stopped' AND reason LIKE '%parked_limit is 5%'";
        cluster.psql("app", stopped) == "1"
    });
    // Raised in place: a policy changes no rows.
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, projections("{ dead_letter: true, parked_limit: 50, max_attempts: 1 }")).unwrap();
    let said = daemon.run(&["apply", file.to_str().unwrap()]);
    assert!(said.contains("projection ledger changed: retry"), "{said}");
    applied(&daemon, 10);
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_event"), "9");
}

/// A daemon with a projection of one lane, so that all keys are its.
fn daemon_with_one_lane(cluster: &Cluster, connection: &str, retry: &str) -> Daemon {
    cluster.create_database("app");
    let mut daemon = Daemon::new(Some(connection), "");
    daemon.expect_errors();
    daemon.start();
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, projections(retry).replace("lanes: 4", "lanes: 1")).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    daemon
}

/// Only what is committed is held against a lane: nine keys that fail are parked, however often the batch is tried for
/// another reason.
#[test]
fn keys_that_fail_are_counted_once_however_often_the_batch_is_tried() {
    let cluster = Cluster::start();
    let daemon =
        daemon_with_one_lane(&cluster, &cluster.connection_string("app"), "{ dead_letter: true, max_attempts: 1 }");
    cluster.psql(
        "app",
        "CREATE TABLE trouble (); INSERT INTO trouble DEFAULT VALUES; CREATE SEQUENCE tries;
         CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF EXISTS (SELECT FROM public.trouble) THEN
                 PERFORM nextval('public.tries'); RAISE SQLSTATE '53100' USING MESSAGE = 'no room';
             END IF;
             RETURN NEW; END $$;
         CREATE TRIGGER stumble BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION stumble()",
    );
    let bad = (0..9).map(|number| payment(&format!("a{number}"), "\"x\"", number, "null"));
    let lines: Vec<String> = bad.chain([payment("good", "1", 9, "null")]).collect();
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    daemon.wait_until("it was tried five times", || {
        cluster.psql("app", "SELECT last_value FROM tries").parse::<u32>().unwrap() >= 5
    });
    cluster.psql("app", "DELETE FROM trouble");
    daemon.wait_until_applied(1, 11);
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_key"), "9");
    assert_eq!(cluster.psql("app", "SELECT account, amount FROM ledger"), "good|1");
    assert!(!daemon.log().contains("too many events fail"));
}

/// An event whose statement is canceled again and again is parked like any that cannot be applied.
#[test]
fn a_statement_that_is_canceled_for_its_data_parks_its_key() {
    let cluster = Cluster::start();
    // For the daemon alone: what the test itself asks may take longer.
    let connection = cluster.connection_string("app") + " options='-c statement_timeout=1s'";
    let daemon = daemon_with_one_lane(&cluster, &connection, "{ dead_letter: true, max_attempts: 2, backoff: fixed }");
    assert_eq!(daemon.post(&payment("a", "1", 1, "null"), &[]).unwrap().status, 200);
    daemon.wait_until_applied(1, 2);
    cluster.psql(
        "app",
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.account = 'slow' THEN PERFORM pg_sleep(600); END IF; RETURN NEW; END $$;
         CREATE TRIGGER slow BEFORE INSERT ON ledger FOR EACH ROW EXECUTE FUNCTION slow()",
    );
    let lines = [payment("slow", "1", 1, "null"), payment("b", "1", 2, "null")].join("\n");
    assert_eq!(daemon.post(&lines, &[]).unwrap().status, 200);
    daemon.wait_until_applied(1, 4);
    assert_eq!(cluster.psql("app", "SELECT key, sqlstate FROM lanes.parked_key"), "slow|57014");
    assert_eq!(cluster.psql("app", "SELECT account, amount FROM ledger ORDER BY 1"), "a|1\nb|1");
}

/// What stands behind the event at which a lane stops is read again when it goes on; nothing of it is put aside before.
#[test]
fn a_lane_that_stops_puts_nothing_aside_that_it_has_not_come_to() {
    let cluster = Cluster::start();
    let mut daemon =
        daemon_with_one_lane(&cluster, &cluster.connection_string("app"), "{ dead_letter: true, max_attempts: 1 }");
    cluster.psql("app", "ALTER TABLE ledger ADD CONSTRAINT small CHECK (last < 3)");
    assert_eq!(daemon.post(&payment("a", "500", 5, "null"), &[]).unwrap().status, 200);
    daemon.wait_until_applied(1, 2);
    assert_eq!(cluster.psql("app", "SELECT key FROM lanes.parked_key"), "a");
    // From now on the lane stops.
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, projections("{ dead_letter: false }").replace("lanes: 4", "lanes: 1")).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    let blocks = || cluster.psql("app", "SELECT definition #>> '{retry,dead_letter}' FROM lanes.projection");
    assert_eq!(blocks(), "false");
    daemon.kill();
    daemon.start();
    let lines = [payment("b", "\"x\"", 1, "null"), payment("a", "1", 1, "null")].join("\n");
    assert_eq!(daemon.post(&lines, &[]).unwrap().status, 200);
    let failed = || cluster.psql("app", "SELECT failed_position FROM lanes.checkpoint");
    daemon.wait_until("it stops", || !failed().is_empty());
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_event"), "1");
    cluster.psql("app", "ALTER TABLE ledger DROP CONSTRAINT small");
    daemon.run(&["dead-letters", "retry", "ledger", "a"]);
    daemon.wait_until("it is applied", || cluster.psql("app", "SELECT count(*) FROM lanes.parked_key") == "0");
    daemon.run(&["dead-letters", "skip", "ledger", &failed(), "--reason", "test"]);
    daemon.wait_until("all is accounted for", || {
        daemon.status()["lanes"][0]["position"] == daemon.status()["log"]["horizon"]
    });
    assert_eq!(cluster.psql("app", "SELECT account, amount FROM ledger"), "a|501");
}

/// A key is parked, and the lane cannot read right after it which keys are: what comes then waits all the same.
#[tokio::test(flavor = "multi_thread")]
async fn nothing_overtakes_a_parked_event_while_the_list_of_parked_keys_cannot_be_read() {
    let cluster = Cluster::start();
    let daemon = tokio::task::block_in_place(|| {
        daemon_with_one_lane(&cluster, &cluster.connection_string("app"), "{ dead_letter: true, max_attempts: 1 }")
    });
    // A batch waits here, when all that it does is done but the commit.
    cluster.psql(
        "app",
        "CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             PERFORM pg_advisory_xact_lock_shared(4711); RETURN NULL; END $$;
         CREATE TRIGGER gate AFTER UPDATE ON lanes.checkpoint FOR EACH ROW WHEN (NEW.position > OLD.position)
             EXECUTE FUNCTION gate()",
    );
    let post = |amount: &str| assert_eq!(daemon.post(&payment("a", amount, 1, "null"), &[]).unwrap().status, 200);
    tokio::task::block_in_place(|| {
        post("1");
        daemon.wait_until_applied(1, 2);
    });
    let (gate, table, watcher) =
        (cluster.connect("app").await, cluster.connect("app").await, cluster.connect("app").await);
    gate.batch_execute("SELECT pg_advisory_lock(4711)").await.unwrap();
    tokio::task::block_in_place(|| post("\"x\""));
    wait_until(&watcher, "EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND NOT granted)").await;
    let locked = tokio::spawn(async move {
        table.batch_execute("BEGIN; LOCK TABLE lanes.parked_key IN ACCESS EXCLUSIVE MODE").await.unwrap();
        table
    });
    let waits = "EXISTS (SELECT FROM pg_locks WHERE relation = 'lanes.parked_key'::regclass AND NOT granted)";
    wait_until(&watcher, waits).await;
    gate.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
    let table = locked.await.unwrap();
    tokio::task::block_in_place(|| {
        post("10");
        post("100");
        daemon.wait_for_log("55P03");
    });
    table.batch_execute("ROLLBACK").await.unwrap();
    tokio::task::block_in_place(|| daemon.wait_until_applied(1, 5));
    assert_eq!(cluster.psql("app", "SELECT account, amount FROM ledger"), "a|1");
    let order = "SELECT string_agg(position::text, ',' ORDER BY position) FROM lanes.parked_event";
    assert_eq!(cluster.psql("app", order), "3,4,5");
}

/// Deadlocks, lock timeouts and canceled statements pass: the batch is tried again, and nobody is parked.
#[test]
fn what_passes_parks_nobody() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "app", "{ dead_letter: true }");
    daemon.expect_errors();
    assert_eq!(daemon.post(&payment("a", "1", 1, "null"), &[]).unwrap().status, 200);
    applied(&daemon, 2);
    cluster.psql(
        "app",
        "CREATE SEQUENCE tries;
         CREATE FUNCTION stumble() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             CASE nextval('public.tries')
                 WHEN 1 THEN RAISE SQLSTATE '40P01'; WHEN 2 THEN RAISE SQLSTATE '55P03';
                 WHEN 3 THEN RAISE SQLSTATE '57014'; WHEN 4 THEN RAISE SQLSTATE '53200';
                 ELSE RETURN NEW; END CASE; END $$;
         CREATE TRIGGER stumble BEFORE UPDATE ON ledger FOR EACH ROW EXECUTE FUNCTION stumble();",
    );
    assert_eq!(daemon.post(&payment("a", "2", 2, "null"), &[]).unwrap().status, 200);
    applied(&daemon, 3);
    assert_eq!(cluster.psql("app", "SELECT amount, (SELECT last_value FROM tries) FROM ledger"), "3|5");
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_key"), "0");
}

/// `kill -9` and ended sessions while keys are parked, retried and waited for.
#[test]
fn parking_survives_crashes_in_every_phase() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "app", "{ dead_letter: true, max_attempts: 100, backoff: none }");
    daemon.expect_errors();
    let mut sent = 0;
    for round in 0..12u32 {
        let line = |number: u32| {
            let bad = round == 3 && matches!(number, 5 | 15);
            payment(&format!("a{}", number % 20), if bad { "\"x\"" } else { "1" }, round, "null")
        };
        let lines: Vec<String> = (0..200).map(line).collect();
        assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
        sent += 200;
        if round % 3 == 0 {
            daemon.kill();
            daemon.start();
        } else {
            cluster.psql(
                "app",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'ingestd worker%'",
            );
        }
    }
    applied(&daemon, sent + 1);
    // a5 and a15 stand before their first event of round 3; all of theirs since then wait, each once.
    let rows =
        "SELECT count(*) FILTER (WHERE amount = 120), count(*) FILTER (WHERE amount = 30 AND last = 2) FROM ledger";
    assert_eq!(cluster.psql("app", rows), "18|2");
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_event"), "180");
    // The first of each is skipped, and the rest is applied, while sessions are ended again and again.
    let skip = "SELECT lanes.skip('ledger', (SELECT min(position) FROM lanes.parked_event), 'test')";
    cluster.psql("app", skip);
    daemon.wait_for("one is free", |_| cluster.psql("app", "SELECT count(*) FROM lanes.parked_key") == "1");
    cluster.psql("app", skip);
    daemon.wait_for("free", |_| {
        cluster.psql(
            "app",
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
             WHERE application_name LIKE 'ingestd worker%' AND random() < 0.1",
        );
        cluster.psql("app", "SELECT count(*) FROM lanes.parked_key") == "0"
    });
    let rows =
        "SELECT count(*) FILTER (WHERE amount = 120), count(*) FILTER (WHERE amount = 119), min(last) FROM ledger";
    assert_eq!(cluster.psql("app", rows), "18|2|11");
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.skipped_event"), "2");
}

/// Whoever lets go of a projection waits for the batch that runs, though that wants rows which refer to the projection.
#[tokio::test(flavor = "multi_thread")]
async fn forgetting_a_projection_and_a_batch_that_parks_do_not_wait_for_each_other() {
    let cluster = Cluster::start();
    let mut daemon = tokio::task::block_in_place(|| daemon(&cluster, "app", "{ dead_letter: true }"));
    assert!(daemon.stop().success());
    let worker = cluster.connect("app").await;
    let claim =
        "SELECT c.lane, c.epoch, l.log_id::text FROM lanes.log AS l, lanes.claim('ledger', 'test', l.log_id) AS c";
    let row = worker.query_one(claim, &[]).await.unwrap();
    let (lane, epoch, log): (i32, i64, String) = (row.get(0), row.get(1), row.get(2));
    let begin = format!("BEGIN; SELECT lanes.begin_batch('ledger', {lane}, {epoch}, '{log}')");
    worker.batch_execute(&begin).await.unwrap();
    let forgotten = std::thread::scope(|scope| {
        let forgotten = scope.spawn(|| daemon.output(&["forget", "ledger"]));
        daemon.wait_until("it waits for the batch", || {
            let waits =
                "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%DELETE%'";
            cluster.psql("app", waits) == "1"
        });
        let park = format!(
            "SELECT lanes.park('ledger', {lane}, {epoch}, '{{0}}', '{{a}}', '{{1}}', '{{PAID}}', '{{a}}', '{{0}}', ARRAY['{{}}'],
                 '{{23514}}', '{{refused}}', NULL);
             SELECT lanes.commit_batch('ledger', {lane}, {epoch}, 1); COMMIT"
        );
        let runtime = tokio::runtime::Handle::current();
        tokio::task::block_in_place(|| runtime.block_on(worker.batch_execute(&park))).unwrap();
        forgotten.join().unwrap()
    });
    assert!(forgotten.status.success(), "{forgotten:?}");
    let left = "SELECT (SELECT count(*) FROM lanes.projection), (SELECT count(*) FROM lanes.parked_key),
        (SELECT count(*) FROM lanes.parked_event)";
    assert_eq!(cluster.psql("app", left), "0|0|0");
}
