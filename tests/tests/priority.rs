//! Priorities: under pressure lanes of p2 pause first, then those of p1, those of p0 never; and all go on when it is over.

use e2e::cluster::Cluster;
use e2e::daemon::Daemon;
use serde_json::Value;

const NAMES: [&str; 3] = ["first", "second", "third"];

/// One projection of each priority over the same events.
fn daemon(cluster: &Cluster, database: &str, settings: &str, names: &[&str]) -> Daemon {
    cluster.create_database(database);
    let mut daemon = Daemon::new(Some(&cluster.connection_string(database)), settings);
    daemon.start();
    let mut document = "projections:\n".to_owned();
    for name in names {
        let priority = NAMES.iter().position(|known| known == name).unwrap();
        document += &format!(
            "  {name}:\n    source_events: [T]\n    lanes: 2\n    target: {{ table: {name}, primary_key: [k] }}\n    fields: {{ k: TEXT, n: BIGINT }}\n    derive: {{ k: event.key }}\n    aggregates: {{ T: {{ n: {{ op: count }} }} }}\n    priority: p{priority}\n"
        );
    }
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, document).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    daemon
}

fn post(daemon: &Daemon, events: usize) {
    let lines: Vec<String> =
        (0..events).map(|number| format!(r#"{{"type":"T","key":"k{}","payload":{{}}}}"#, number % 10)).collect();
    assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
}

/// How many lanes of each projection are paused; none of p0 in any moment.
fn paused(status: &Value) -> [usize; 3] {
    let lanes = status["lanes"].as_array().unwrap();
    let count =
        |name: &str| lanes.iter().filter(|lane| lane["projection"] == name && lane["state"] == "paused").count();
    let paused = NAMES.map(count);
    assert_eq!(paused[0], 0, "a lane of p0 is paused: {status:#}");
    paused
}

/// The order in which priorities paused and went on, from the daemon's log.
fn changes(daemon: &Daemon) -> Vec<&'static str> {
    let log = daemon.log();
    let known = ["p1 and p2 pause", "p2 pause", "p1 go on", "p2 go on"];
    log.lines()
        .filter_map(|line| known.into_iter().find(|change| line.contains(&format!("priority {change}"))))
        .collect()
}

#[test]
fn lower_priorities_pause_one_after_the_other_while_p0_is_behind() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "app", "pressure_lag_ms = 500\npressure_commit_ms = 60000", &NAMES);
    daemon.expect_errors();
    daemon.wait_for("all lanes are at work", |status| {
        let lanes = status["lanes"].as_array().unwrap();
        lanes.len() == 6 && lanes.iter().all(|lane| lane["state"] == "running")
    });
    post(&daemon, 100);
    daemon.wait_until_applied(6, 101);

    // p0 can write nothing: what it waits for is in nobody's way but its own.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let blocker = runtime.block_on(cluster.connect("app"));
    runtime.block_on(blocker.batch_execute("BEGIN; LOCK TABLE \"first\" IN SHARE ROW EXCLUSIVE MODE")).unwrap();
    post(&daemon, 100);
    daemon.wait_for("p2 is paused", |status| paused(status)[2] == 2);
    let status = daemon.wait_for("p1 is paused too", |status| paused(status) == [0, 2, 2]);
    let reason = "of projection \"first\" (p0) is behind by more than 500 ms";
    for lane in status["lanes"].as_array().unwrap().iter().filter(|lane| lane["state"] == "paused") {
        assert!(lane["reason"].as_str().unwrap().contains(reason), "{status:#}");
    }
    // A lane that goes to another worker is without an owner for a moment.
    daemon.wait_until("all four are printed", || {
        let printed = daemon.run(&["status"]);
        let printed: Vec<&str> = printed.lines().filter(|line| line.contains("paused")).collect();
        printed.len() == 4 && printed.iter().all(|line| line.contains(reason))
    });
    let told =
        "SELECT projection, count(*) FROM lanes.status WHERE state = 'paused' AND reason LIKE 'lane % of projection \"first\" (p0)%'
                GROUP BY 1 ORDER BY 1";
    daemon.wait_until("Postgres tells it too", || cluster.psql("app", told) == "second|2\nthird|2");

    // What comes while they pause is left where it is.
    let before = cluster.psql("app", "SELECT sum(n) FROM second UNION ALL SELECT sum(n) FROM third");
    post(&daemon, 100);
    daemon.wait_for("the horizon is known", |status| status["log"]["horizon"] == 301);
    assert_eq!(cluster.psql("app", "SELECT sum(n) FROM second UNION ALL SELECT sum(n) FROM third"), before);

    runtime.block_on(blocker.batch_execute("ROLLBACK")).unwrap();
    daemon.wait_for("p1 goes on", |status| paused(status)[1] == 0);
    daemon.wait_for("p2 goes on", |status| paused(status) == [0, 0, 0]);
    daemon.wait_until_applied(6, 301);
    for name in NAMES {
        assert_eq!(cluster.psql("app", &format!("SELECT sum(n), count(*) FROM \"{name}\"")), "300|10");
    }
    // A lane that has just been claimed is behind too, so that p2 may have paused for it before.
    let changes = changes(&daemon);
    assert!(changes.ends_with(&["p2 pause", "p1 and p2 pause", "p1 go on", "p2 go on"]), "{changes:?}");
    let quiet = "SELECT count(*) FROM lanes.status WHERE state <> 'running' OR reason IS NOT NULL";
    daemon.wait_until("nothing is left of it", || cluster.psql("app", quiet) == "0");
}

/// Slow commits press as well; where p1 is the highest there is, it does not pause.
#[test]
fn lower_priorities_pause_while_commits_are_slow() {
    let cluster = Cluster::start();
    let mut daemon = daemon(&cluster, "app", "pressure_commit_ms = 50", &NAMES[1..]);
    daemon.expect_errors();
    cluster.psql(
        "app",
        "CREATE FUNCTION slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM pg_sleep(0.1); RETURN NULL; END $$;
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT OR UPDATE ON second DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION slow();
         CREATE CONSTRAINT TRIGGER slow AFTER INSERT OR UPDATE ON third DEFERRABLE INITIALLY DEFERRED
             FOR EACH ROW EXECUTE FUNCTION slow();",
    );
    let mut posted = 0;
    let status = daemon.wait_for("p2 is paused", |status| {
        post(&daemon, 10);
        posted += 10;
        paused(status)[2] == 2
    });
    assert_eq!(paused(&status)[1], 0);
    for lane in status["lanes"].as_array().unwrap().iter().filter(|lane| lane["state"] == "paused") {
        assert_eq!(lane["reason"], "commits take longer than 50 ms");
    }
    cluster.psql("app", "DROP TRIGGER slow ON second; DROP TRIGGER slow ON third");
    daemon.wait_until_applied(4, posted + 1);
    assert_eq!(
        cluster.psql("app", "SELECT sum(n) FROM second UNION ALL SELECT sum(n) FROM third"),
        format!("{posted}\n{posted}")
    );
    // The commits of p2 itself may have been slow again.
    daemon.wait_until("p2 goes on for good", || changes(&daemon).last() == Some(&"p2 go on"));
    let changes = changes(&daemon);
    assert!(changes.iter().all(|change| !change.contains("p1")), "{changes:?}");
}
