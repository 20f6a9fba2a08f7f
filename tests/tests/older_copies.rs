//! The log or Postgres restored from an older copy: what can be made good is, what cannot is named and nothing is applied.

use std::fs;
use std::path::Path;

use e2e::cluster::Cluster;
use e2e::daemon::{Daemon, testdata};
use e2e::flights::{LANES, WEEK_EVENTS, assert_week, daemon_with_projections, week};

const PROJECTIONS: [&str; 3] = ["airport_departures", "aircraft_last_seen", "route_delay"];

fn copy(from: &Path, to: &Path) {
    fs::create_dir(to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, to.join(path.file_name().unwrap())).unwrap();
    }
}

fn post(daemon: &Daemon, lines: &[String], first: usize) {
    let sequence = first.to_string();
    let headers = [("Ingest-Producer", "week"), ("Ingest-Sequence", sequence.as_str())];
    assert_eq!(daemon.post(&lines.join("\n"), &headers).unwrap().status, 200);
}

#[test]
fn a_log_from_an_older_copy_is_not_applied_over_what_came_after_it() {
    let cluster = Cluster::start();
    let mut daemon = daemon_with_projections(&cluster, "flights", "");
    let lines = week();
    post(&daemon, &lines[..2000], 1);
    daemon.wait_until_applied(LANES, 2000);
    assert!(daemon.stop().success());
    let older = daemon.data_directory().with_file_name("older");
    copy(&daemon.data_directory(), &older);

    daemon.start();
    post(&daemon, &lines[2000..], 2001);
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    assert_week(&cluster, "flights");
    assert!(daemon.stop().success());

    fs::remove_dir_all(daemon.data_directory()).unwrap();
    fs::rename(&older, daemon.data_directory()).unwrap();
    daemon.expect_errors();
    daemon.start();
    daemon.wait_for("refused", |status| {
        let reason = status["postgres"]["reason"].as_str().unwrap_or_default();
        status["postgres"]["state"] == "unavailable" && reason.contains("the log was restored from an older copy")
    });
    // Other events than those that stood at these positions before: none of them may reach a table, also when the log has
    // grown past all that Postgres knew of it, and after restarts.
    let other: Vec<String> = lines.iter().map(|line| line.replace("EWR", "ZZZ")).collect();
    let refused = |daemon: &Daemon, reason: &str| {
        daemon.wait_for("refused", |status| {
            let said = status["postgres"]["reason"].as_str().unwrap_or_default();
            said.contains(reason) && said.contains("the log was restored from an older copy")
        });
        let claimed = "SELECT count(*) FROM lanes.status WHERE state <> 'unowned'";
        assert_eq!(cluster.psql("flights", claimed), "0");
        assert_week(&cluster, "flights");
    };
    post(&daemon, &other[2000..2500], 2001);
    refused(&daemon, "the log's horizon is ");
    post(&daemon, &other[2500..], 2501);
    post(&daemon, &other[..1000], WEEK_EVENTS as usize + 1);
    refused(&daemon, "another event stands now");
    for _ in 0..2 {
        assert!(daemon.stop().success());
        daemon.start();
        refused(&daemon, "another event stands now");
    }

    // Told to let go of what was applied, it begins anew: with the log as it is now.
    for projection in PROJECTIONS {
        daemon.run(&["forget", projection]);
        cluster.psql("flights", &format!("DROP TABLE {projection} CASCADE"));
    }
    daemon.wait_for("reported", |status| status["postgres"]["state"] == "ready");
    daemon.run(&["apply", testdata("projections.yaml").to_str().unwrap()]);
    daemon.wait_until_applied(LANES, WEEK_EVENTS + 1000);
    let renamed = "SELECT count(*) > 0 FROM airport_departures WHERE origin = 'ZZZ'";
    assert_eq!(cluster.psql("flights", renamed), "t");
}

#[test]
fn a_postgres_from_an_older_copy_is_caught_up_exactly() {
    let cluster = Cluster::start();
    let mut daemon = daemon_with_projections(&cluster, "flights", "");
    let lines = week();
    post(&daemon, &lines[..2500], 1);
    daemon.wait_until_applied(LANES, 2500);
    let dump = cluster.dump("flights");
    post(&daemon, &lines[2500..], 2501);
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    assert!(daemon.stop().success());

    cluster.create_database_with("restored", "");
    cluster.psql("restored", &dump);
    let settings = fs::read_to_string(daemon.settings_path()).unwrap();
    fs::write(daemon.settings_path(), settings.replace("dbname='flights'", "dbname='restored'")).unwrap();
    daemon.start();
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    assert_week(&cluster, "restored");
    let again = daemon.run(&["apply", testdata("projections.yaml").to_str().unwrap()]);
    assert!(again.lines().all(|line| line.ends_with("is defined already, unchanged")), "{again}");
}

/// A checkpoint that Postgres says is further than the log ever came.
#[test]
fn a_checkpoint_above_the_horizon_stops_its_lane_and_says_why() {
    let cluster = Cluster::start();
    let mut daemon = daemon_with_projections(&cluster, "flights", "");
    post(&daemon, &week()[..100], 1);
    daemon.wait_until_applied(LANES, 100);
    assert!(daemon.stop().success());
    daemon.expect_errors();
    cluster
        .psql("flights", "UPDATE lanes.checkpoint SET position = 100000 WHERE projection = 'route_delay' AND lane = 2");
    daemon.start();
    daemon.wait_for("stopped", |status| {
        status["lanes"]
            .as_array()
            .unwrap()
            .iter()
            .any(|lane| lane["state"] == "stopped" && lane["projection"] == "route_delay" && lane["lane"] == 2)
    });
    let said = || cluster.psql("flights", "SELECT lane, reason FROM lanes.status WHERE state = 'stopped'");
    daemon.wait_until("Postgres says it too", || {
        said().starts_with("2|the checkpoint is 100000, above the log's horizon")
    });
}
