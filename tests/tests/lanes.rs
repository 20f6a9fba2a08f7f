//! Lanes of the daemon: an event that cannot be applied stops its lane, visibly, and nobody else's; what is mended goes
//! on by itself; a lane that is taken away is not written to any more.

use e2e::cluster::Cluster;
use e2e::daemon::Daemon;
use serde_json::Value;

const PROJECTIONS: &str = "
projections:
  totals:
    source_events: [PAID]
    lanes: 4
    lane_key: event.account
    target: { table: totals, primary_key: [account] }
    fields: { account: TEXT, amount: BIGINT, last: INT }
    derive: { account: event.account, last: event.number }
    aggregates: { PAID: { amount: { op: add, by: event.amount } } }
  counts:
    source_events: [PAID]
    lanes: 2
    target: { table: counts, primary_key: [account, lane] }
    fields: { account: TEXT, lane: INT, n: BIGINT }
    derive: { account: event.account, lane: lane() }
    aggregates: { PAID: { n: { op: count } } }
";

fn daemon(cluster: &Cluster, settings: &str) -> Daemon {
    cluster.create_database("app");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("app")), settings);
    daemon.start();
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, PROJECTIONS).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    daemon
}

fn payment(account: &str, amount: &str, number: u32) -> String {
    format!(
        r#"{{"type":"PAID","key":"{account}","ts":1,"payload":{{"account":"{account}","amount":{amount},"number":{number}}}}}"#
    )
}

/// The status of a lane; null while the daemon does not know it yet.
fn lane<'s>(status: &'s Value, projection: &str, lane: i64) -> &'s Value {
    let lanes = status["lanes"].as_array().unwrap();
    lanes.iter().find(|entry| entry["projection"] == projection && entry["lane"] == lane).unwrap_or(&Value::Null)
}

#[test]
fn an_event_that_cannot_be_applied_stops_its_lane_after_everything_before_it_and_nothing_else() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "");
    daemon.expect_errors();
    // Of 40 accounts, 20 payments each, one has a value that is no number in the middle, and one makes its column
    // overflow in Postgres only, not in the fold.
    let mut lines = Vec::new();
    for round in 0..20 {
        for account in 0..40 {
            let amount = match (round, account) {
                (10, 7) => "\"much\"".to_owned(),
                (5, 12) => i64::MAX.to_string(),
                _ => (account + 1).to_string(),
            };
            lines.push(payment(&format!("a{account}"), &amount, round));
        }
    }
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    let lane_of =
        |account: &str| -> i64 { cluster.psql("app", &format!("SELECT lane_of('{account}', 4)")).parse().unwrap() };
    let (bad_value, overflow) = (lane_of("a7"), lane_of("a12"));
    assert_ne!(bad_value, overflow, "the accounts are chosen so that two lanes stop");
    // One request, one drain: the positions are those of the lines, after the row that tells of the daemon's start.
    let (bad_position, overflow_position) = (10 * 40 + 7 + 2, 5 * 40 + 12 + 2);
    let status = daemon.wait_for("as far as it can be", |status| {
        (0..4).all(|number| {
            let entry = lane(status, "totals", number);
            if number == bad_value || number == overflow {
                entry["state"] == "stopped"
            } else {
                entry["position"] == 801
            }
        }) && (0..2).all(|number| lane(status, "counts", number)["position"] == 801)
    });
    assert_eq!(lane(&status, "totals", bad_value)["position"], bad_position - 1);
    let reason = lane(&status, "totals", bad_value)["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains("amount") && reason.contains("much") && reason.contains("409"), "{reason}");
    // The overflow is found by halving the batch, so the lane stands between the event before it and the event itself.
    let position = lane(&status, "totals", overflow)["position"].as_u64().unwrap();
    let applied = cluster.psql("app", "SELECT last, amount FROM totals WHERE account = 'a12'");
    assert_eq!(applied, "4|65", "a12 has what was paid before the overflow, at position {position}");
    assert!(position < overflow_position);
    let reason = lane(&status, "totals", overflow)["reason"].as_str().unwrap();
    assert!(reason.contains("22003") || reason.contains("out of range"), "{reason}");

    // Postgres says the same to whoever asks there.
    let stopped = || cluster.psql("app", "SELECT lane, reason FROM lanes.status WHERE state = 'stopped' ORDER BY lane");
    daemon.wait_until("Postgres knows of both", || stopped().lines().count() == 2);
    assert!(stopped().contains("much"), "{}", stopped());
    // Everything else is as it must be: 20 payments of every account in `counts`, and in `totals` for the other lanes.
    assert_eq!(cluster.psql("app", "SELECT count(*), min(n), max(n) FROM counts_total"), "40|20|20");
    let others = format!(
        "SELECT count(*) FROM generate_series(0, 39) AS i LEFT JOIN totals ON account = 'a' || i
         WHERE lane_of('a' || i, 4) NOT IN ({bad_value}, {overflow}) AND amount IS DISTINCT FROM 20 * (i + 1)"
    );
    assert_eq!(cluster.psql("app", &others), "0");
    // The stopped lane's own accounts are at the round before, in order.
    let before = format!(
        "SELECT count(*) FROM generate_series(0, 39) AS i JOIN totals ON account = 'a' || i
         WHERE lane_of('a' || i, 4) = {bad_value} AND last <> CASE WHEN i < 7 THEN 10 ELSE 9 END"
    );
    assert_eq!(cluster.psql("app", &before), "0");
}

#[test]
fn a_lane_goes_on_by_itself_when_the_table_is_back() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "");
    daemon.expect_errors();
    assert_eq!(daemon.post(&payment("a", "1", 1), &[]).unwrap().status, 200);
    daemon.wait_until_applied(6, 1);
    cluster.psql("app", "ALTER TABLE totals RENAME TO hidden");
    assert_eq!(daemon.post(&payment("a", "2", 2), &[]).unwrap().status, 200);
    daemon.wait_for("stopped for lack of the table", |status| {
        let lanes = status["lanes"].as_array().unwrap();
        lanes.iter().any(|lane| lane["state"] == "stopped" && lane["reason"].as_str().unwrap().contains("42P01"))
    });
    cluster.psql("app", "ALTER TABLE hidden RENAME TO totals");
    daemon.wait_until_applied(6, 2);
    assert_eq!(cluster.psql("app", "SELECT account, amount, last FROM totals"), "a|3|2");
    let others = "SELECT count(*) FROM lanes.status WHERE state <> 'running'";
    daemon.wait_until("all lanes run", || cluster.psql("app", others) == "0");
}

/// A second worker claims a lane over the head of the daemon: what the daemon had under way is refused, and applied by
/// neither or by one, never by both.
#[test]
fn a_lane_whose_epoch_was_raised_is_given_up_and_claimed_again() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "lane_batch_size = 3");
    daemon.expect_errors();
    let mut sent = 0;
    for round in 0..10 {
        let lines: Vec<String> = (0..100).map(|number| payment(&format!("a{}", number % 10), "1", round)).collect();
        assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
        sent += 100;
        cluster.psql("app", "UPDATE lanes.checkpoint SET epoch = epoch + 1");
    }
    daemon.wait_until_applied(6, sent);
    assert_eq!(cluster.psql("app", "SELECT count(*), min(amount), max(amount) FROM totals"), "10|100|100");
    assert_eq!(cluster.psql("app", "SELECT count(*), min(n), max(n) FROM counts_total"), "10|100|100");
}

#[test]
fn quiet_lanes_show_no_lag_and_new_projections_catch_up() {
    let cluster = Cluster::start();
    let daemon = daemon(&cluster, "");
    let lines: Vec<String> = (0..5000).map(|number| payment("one", "1", number)).collect();
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
    // All events belong to one account, so to one lane of `totals`; the others move by what was scanned (LANE-5).
    daemon.wait_until_applied(6, 5000);
    let other = PROJECTIONS.replace("totals", "later").replace("counts", "later_counts");
    let file = daemon.settings_path().with_file_name("later.yaml");
    std::fs::write(&file, other).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    daemon.wait_until_applied(12, 5000);
    assert_eq!(cluster.psql("app", "SELECT account, amount, last FROM later"), "one|5000|4999");
    assert_eq!(cluster.psql("app", "SELECT account, n FROM later_counts_total"), "one|5000");
}
