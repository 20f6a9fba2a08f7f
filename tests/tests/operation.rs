//! Running the daemon: settings from everywhere and while it runs, readiness, the check, retention, trouble with the disk.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::process::Command;

use e2e::cluster::Cluster;
use e2e::daemon::{Daemon, testdata};
use e2e::flights::{LANES, WEEK_EVENTS, assert_week, week};
use rusqlite::Connection;

const GOOD: &str = r#"{"type":"T","key":"k","ts":1,"payload":{"n":1}}"#;

/// Payloads of the daemon's own rows of a type, in position order, from its files.
fn own_rows(daemon: &Daemon, event_type: &str) -> Vec<String> {
    let mut rows: Vec<(u64, String)> = Vec::new();
    for shard in 0.. {
        let path = daemon.data_directory().join(format!("shard-{shard:04}.db"));
        if !path.exists() {
            break;
        }
        let connection = Connection::open(path).unwrap();
        let mut statement = connection.prepare("SELECT position, payload FROM event WHERE type = ?1").unwrap();
        let found = statement.query_map([event_type], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
        rows.extend(found.map(Result::unwrap));
    }
    rows.sort_unstable();
    rows.into_iter().map(|(_, payload)| payload).collect()
}

/// Sends SIGHUP and waits until the daemon has written a line about it.
fn reload(daemon: &Daemon, expected: &str) {
    daemon.signal("HUP");
    daemon.wait_for_log(expected);
}

#[test]
fn settings_come_from_file_environment_and_flags_in_this_order() {
    let daemon = Daemon::new(None, "storage_shards = 2\ndrain_threads = 1");
    let status = |daemon: &mut Daemon, arguments: &[&str], variables: &[(&str, &str)]| {
        let mut command = daemon.command(&[&["run"], arguments].concat());
        command.envs(variables.iter().copied());
        daemon.start_command(command);
        let shards = daemon.status()["log"]["shards"].as_array().unwrap().len();
        assert!(daemon.stop().success());
        shards
    };
    let mut daemon = daemon;
    assert_eq!(status(&mut daemon, &[], &[]), 2);
    assert_eq!(status(&mut daemon, &[], &[("INGESTD_STORAGE_SHARDS", "3")]), 3);
    let flags = ["--set", "storage_shards=4"];
    assert_eq!(status(&mut daemon, &flags, &[("INGESTD_STORAGE_SHARDS", "3")]), 4);
    for (variable, value, reason) in [
        ("INGESTD_STORAGE_SHARDS", "many", "environment variable INGESTD_STORAGE_SHARDS: invalid type"),
        ("INGESTD_SHARDS", "3", "environment variable INGESTD_SHARDS: unknown field"),
    ] {
        let output = daemon.command(&["run"]).env(variable, value).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(reason), "{said}");
    }
}

#[test]
fn an_environment_that_is_not_utf8_harms_nobody() {
    let daemon = Daemon::new(None, "");
    let text = OsStr::from_bytes(b"caf\xe9");
    let check = |variable: &OsStr| daemon.command(&["check"]).env(variable, text).output().unwrap();
    for others in [OsStr::new("TITLE"), text] {
        let output = check(others);
        assert!(output.status.success(), "{output:?}");
    }
    for (ours, reason) in [
        (OsStr::new("INGESTD_DATA_DIRECTORY"), "environment variable INGESTD_DATA_DIRECTORY: must be UTF-8"),
        (OsStr::from_bytes(b"INGESTD_\xe9"), "environment variable INGESTD_\u{fffd}: must be UTF-8"),
    ] {
        let output = check(ours);
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.code() == Some(1) && said.contains(reason), "{said}");
    }
}

#[test]
fn live_settings_change_on_sighup_bad_ones_are_refused_and_the_others_wait_for_the_restart() {
    let mut daemon = Daemon::new(None, "max_batch_size = 500\nstorage_shards = 2");
    daemon.expect_errors();
    daemon.start();
    assert_eq!(own_rows(&daemon, "ingestd.started").len(), 1, "the row is durable before the daemon answers");
    let text = fs::read_to_string(daemon.settings_path()).unwrap();

    fs::write(daemon.settings_path(), text.replace("max_batch_size = 500", "max_batch_size = 5")).unwrap();
    reload(&daemon, "those in use stay");
    let changed = text.replace("max_batch_size = 500", "max_batch_size = 600");
    let changed = changed.replace("storage_shards = 2", "storage_shards = 7");
    fs::write(daemon.settings_path(), changed).unwrap();
    reload(&daemon, "the changed setting takes effect at the next start");
    daemon.wait_until("the change is told", || !own_rows(&daemon, "ingestd.config_changed").is_empty());
    assert_eq!(
        own_rows(&daemon, "ingestd.config_changed"),
        [r#"{"setting":"max_batch_size","before":"500","after":"600"}"#]
    );
    assert_eq!(daemon.status()["log"]["shards"].as_array().unwrap().len(), 2);
    assert!(daemon.stop().success());
    assert_eq!(own_rows(&daemon, "ingestd.stopped").len(), 1);
    daemon.start();
    assert_eq!(daemon.status()["log"]["shards"].as_array().unwrap().len(), 7);
    assert_eq!(own_rows(&daemon, "ingestd.started").len(), 2);
}

/// A disk that is down to its reserve: sources wait, the status names the reason, the process lives, nothing is lost, and
/// all goes on when there is room again.
#[test]
fn a_disk_at_its_reserve_makes_sources_wait_and_everything_goes_on_when_there_is_room() {
    let mut daemon = Daemon::new(None, "disk_reserve_bytes = 0");
    daemon.expect_errors();
    daemon.start();
    assert_eq!(daemon.post(GOOD, &[]).unwrap().status, 200);
    let text = fs::read_to_string(daemon.settings_path()).unwrap();
    fs::write(daemon.settings_path(), text.replace("= 0", "= 1125899906842624")).unwrap();
    reload(&daemon, "setting changed");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| daemon.post(&format!("{GOOD}\n{GOOD}"), &[]).unwrap());
        let status = daemon.wait_for("waiting for the disk", |status| {
            let shards = status["log"]["shards"].as_array().unwrap();
            shards.iter().any(|shard| shard["state"] == "waiting")
        });
        let shards = status["log"]["shards"].as_array().unwrap();
        let reason = shards.iter().find_map(|shard| shard["reason"].as_str()).unwrap();
        assert!(reason.contains("disk_reserve_bytes keeps 1125899906842624"), "{reason}");
        assert!(!waiting.is_finished() || daemon.stored_events() < 3, "nothing is acknowledged that is not stored");
        fs::write(daemon.settings_path(), &text).unwrap();
        daemon.signal("HUP");
        assert_eq!(waiting.join().unwrap().body["stored"], 2);
    });
    daemon.wait_until("the trouble is told", || !own_rows(&daemon, "ingestd.storage_error").is_empty());
    assert_eq!(daemon.stored_events(), 3);
    daemon.verify_log();
}

#[test]
fn producers_learn_where_they_are_and_epochs_close_each_other_over_http() {
    let mut daemon = Daemon::new(None, "");
    daemon.start();
    let post = |epoch: &str, sequence: &str, events: usize| {
        let headers = [("Ingest-Producer", "app"), ("Ingest-Epoch", epoch), ("Ingest-Sequence", sequence)];
        daemon.post(&vec![GOOD; events].join("\n"), &headers).unwrap()
    };
    let place = |daemon: &Daemon| {
        let answer = daemon.get("/v1/producers/app").unwrap();
        (answer["epoch"].as_u64().unwrap(), answer["next_sequence"].as_u64().unwrap())
    };
    assert_eq!(place(&daemon), (0, 1));
    assert_eq!(post("0", "1", 5).status, 200);
    assert_eq!(place(&daemon), (0, 6));
    let array = format!("[{GOOD},\n {GOOD}]");
    let headers = [("Ingest-Producer", "app"), ("Ingest-Sequence", "6")];
    assert_eq!(daemon.post(&array, &headers).unwrap().body["stored"], 2);
    let gap = post("3", "2", 1);
    assert_eq!((gap.status, &gap.body["expected"]), (409, &1.into()));
    assert_eq!(post("3", "1", 2).body["stored"], 2);
    let closed = post("0", "8", 1);
    assert_eq!((closed.status, &closed.body["epoch"]), (409, &3.into()));
    assert!(closed.body["error"].as_str().unwrap().contains("epoch 0 is closed"));
    assert_eq!(place(&daemon), (3, 3));
    daemon.kill();
    daemon.start();
    assert_eq!(daemon.get("/v1/producers/app").unwrap()["next_sequence"], 3);
    assert_eq!(daemon.stored_events(), 9);
    daemon.verify_log();
}

#[test]
fn check_says_what_is_there_and_what_is_not() {
    let cluster = Cluster::start();
    cluster.create_database_with("app", "");
    let daemon = Daemon::new(Some(&cluster.connection_string("app")), "");
    let check = |daemon: &Daemon| {
        let output = daemon.command(&["check"]).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let (code, said) = check(&daemon);
    assert!(code == Some(1) && said.contains("BAD  extension    not there"), "{said}");
    cluster.psql("app", "CREATE EXTENSION pg_lanes");
    let mut limited = Command::new("bash");
    let line = format!("ulimit -n 512; exec \"$0\" --config '{}' check", daemon.settings_path().display());
    let output = limited.args(["-c", &line]).arg(e2e::daemon::program()).output().unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(said.contains("BAD  descriptors") && said.contains("limit 512"), "{said}");
    for line in ["ok   directory", "ok   disk", "ok   SQLite", "ok   Postgres     15", "ok   extension    0."] {
        assert!(said.contains(line), "{line}: {said}");
    }
    cluster.stop();
    let (code, said) = check(&daemon);
    assert!(code == Some(1) && said.contains("BAD  Postgres"), "{said}");
    fs::remove_dir(daemon.data_directory()).unwrap();
    assert!(check(&daemon).1.contains("BAD  directory"));
}

/// Retention follows the projections, not past the one that is behind, until it is forgotten.
#[test]
fn retention_waits_for_projections_and_lets_go_of_one_that_is_forgotten() {
    let cluster = Cluster::start();
    cluster.create_database("flights");
    let settings =
        "keep_applied_s = 0\nretention_max_bytes = 1\nretention_interval_s = 1\nretention_delete_rows = 1000";
    let mut daemon = Daemon::new(Some(&cluster.connection_string("flights")), settings);
    daemon.expect_errors();
    daemon.start();
    // The row that tells of the start is gone before there is a projection: lanes begin at the floor.
    daemon.wait_for("deleted", |status| status["log"]["floor"] == 1);
    daemon.run(&["apply", testdata("projections.yaml").to_str().unwrap()]);
    let held =
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
                CREATE TRIGGER refuse BEFORE INSERT ON route_delay EXECUTE FUNCTION refuse()";
    cluster.psql("flights", held);
    let lines = week();
    assert_eq!(
        daemon.post(&lines.join("\n"), &[("Ingest-Producer", "p"), ("Ingest-Sequence", "1")]).unwrap().status,
        200
    );
    let status = daemon.wait_for("held by route_delay", |status| {
        status["retention_held_by"] == "route_delay"
            && status["lanes"].as_array().unwrap().iter().all(|lane| {
                let applied = lane["position"] == status["log"]["horizon"];
                applied || (lane["projection"] == "route_delay" && lane["state"] == "stopped")
            })
    });
    let least = cluster.psql("flights", "SELECT min(position) FROM lanes.checkpoint").parse::<u64>().unwrap();
    assert!(status["log"]["floor"].as_u64().unwrap() <= least);
    assert!(daemon.stored_events() >= WEEK_EVENTS - least, "what route_delay has not applied is still there");

    cluster.psql("flights", "DROP TRIGGER refuse ON route_delay");
    daemon.wait_for("applied", |status| {
        let lanes = status["lanes"].as_array().unwrap();
        lanes.len() == LANES && lanes.iter().all(|lane| lane["position"] == status["log"]["horizon"])
    });
    assert_week(&cluster, "flights");
    daemon.wait_for("deleted", |status| status["log"]["floor"] == status["log"]["horizon"]);
    daemon.wait_until("nothing is left", || daemon.stored_events() == 0);
    let again = daemon.post(&lines[..100].join("\n"), &[("Ingest-Producer", "p"), ("Ingest-Sequence", "1")]).unwrap();
    assert_eq!(again.body["duplicates"], 100, "what retention deleted is still known");
    daemon.verify_log();

    assert!(daemon.run(&["forget", "route_delay"]).contains("is forgotten"));
    assert_eq!(cluster.psql("flights", "SELECT count(*) FROM lanes.checkpoint WHERE projection = 'route_delay'"), "0");
    assert_eq!(cluster.psql("flights", "SELECT sum(flights) FROM route_delay"), "6064");
    assert!(!daemon.output(&["forget", "route_delay"]).status.success());
}
