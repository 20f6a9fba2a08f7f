//! What the daemon refuses, how it says so, and that nothing is harmed by it.

use std::fs;
use std::process::Output;

use e2e::cluster::Cluster;
use e2e::daemon::Daemon;
use serde_json::Value;

const GOOD: &str = r#"{"type":"T","key":"k","ts":1,"payload":{"n":1}}"#;

/// One line on standard error and exit code 1: what a refused start looks like.
fn refusal(output: &Output) -> String {
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{text}");
    // The daemon's log may precede it.
    let lines: Vec<&str> = text.lines().filter(|line| !line.contains(" INFO ")).collect();
    assert_eq!(lines.len(), 1, "{text}");
    assert!(lines[0].starts_with("ingestd: "), "{text}");
    lines[0].to_owned()
}

#[test]
fn bad_requests_are_refused_whole_with_line_numbers_and_reasons() {
    let mut daemon = Daemon::new(None, "max_event_bytes = 1024\nmax_request_bytes = 4096");
    daemon.start();
    let long = format!(r#"{{"type":"T","key":"k","payload":{{"x":"{}"}}}}"#, "x".repeat(1100));
    let numbered = |sequence: &'static str| vec![("Ingest-Producer", "p"), ("Ingest-Sequence", sequence)];
    for (body, headers, status, line, reason) in [
        (format!("{GOOD}\nnonsense\n{GOOD}"), vec![], 400, 2, "expected"),
        (format!("{GOOD}\n{{\"key\":\"k\",\"payload\":{{}}}}"), vec![], 400, 2, "missing field `type`"),
        (format!("{GOOD}\n\n{{\"type\":\"T\",\"payload\":{{}}}}"), vec![], 400, 3, "missing field `key`"),
        (r#"{"type":"T","key":"k","payload":[1]}"#.to_owned(), vec![], 400, 1, "must be a JSON object, not an array"),
        (r#"{"type":"T","key":"k","payload":{},"id":1}"#.to_owned(), numbered("1"), 400, 1, "unknown field `id`"),
        (format!("{GOOD}\n{long}"), vec![], 413, 2, "has 1141 bytes, 1024 are allowed"),
        (GOOD.repeat(100), vec![], 413, 0, "longer than 4096 bytes"),
        (String::new(), vec![], 400, 0, "no events"),
        (GOOD.to_owned(), vec![("Ingest-Producer", "p")], 400, 0, "ingest-sequence is missing"),
        (GOOD.to_owned(), vec![("Ingest-Sequence", "1")], 400, 0, "ingest-producer is missing"),
        (GOOD.to_owned(), numbered("0"), 400, 0, "must be a number from 1"),
        (GOOD.to_owned(), numbered("two"), 400, 0, "must be a number from 1"),
        (GOOD.to_owned(), vec![("Ingest-Producer", "a b"), ("Ingest-Sequence", "1")], 400, 0, "a producer's name"),
        (GOOD.to_owned(), vec![("Ingest-Producer", "ingestd.x"), ("Ingest-Sequence", "1")], 400, 0, "reserved"),
        (GOOD.to_owned(), [numbered("1"), vec![("Ingest-Epoch", "x")]].concat(), 400, 0, "must be a number from 0"),
        (GOOD.to_owned(), numbered("2"), 409, 0, "1 is expected next"),
    ] {
        let answer = daemon.post(&body, &headers).unwrap();
        assert_eq!(answer.status, status, "{body}: {answer:?}");
        let said = match line {
            0 => answer.body["error"].as_str().unwrap(),
            line => {
                assert_eq!(answer.body["lines"][0]["line"], line, "{answer:?}");
                answer.body["lines"][0]["reason"].as_str().unwrap()
            }
        };
        assert!(said.contains(reason), "{body}: {answer:?}");
    }
    assert_eq!(daemon.stored_events(), 0, "nothing of a refused request is stored");

    let stored = |sequence: &'static str, body: &str| daemon.post(body, &numbered(sequence)).unwrap();
    assert_eq!(stored("1", &format!("{GOOD}\n{GOOD}")).body["stored"], 2);
    let gap = stored("4", GOOD);
    assert_eq!((gap.status, &gap.body["expected"]), (409, &3.into()));
    let again = stored("2", &format!("{GOOD}\n{GOOD}"));
    assert_eq!((again.status, &again.body["stored"], &again.body["duplicates"]), (200, &1.into(), &1.into()));
    assert_eq!(again.body["next_sequence"], 4);
    assert_eq!(daemon.post(GOOD, &[]).unwrap().body["next_sequence"], Value::Null);
    assert_eq!(daemon.stored_events(), 4);
}

#[test]
fn a_start_that_cannot_be_is_one_clear_line_and_harms_nothing() {
    let mut running = Daemon::new(None, "");
    running.start();
    running.post(GOOD, &[]).unwrap();

    // A second daemon on the same directory, with a port of its own.
    let second = Daemon::new(None, "");
    let text = fs::read_to_string(second.settings_path()).unwrap();
    let other = second.data_directory().display().to_string();
    fs::write(second.settings_path(), text.replace(&other, &running.data_directory().display().to_string())).unwrap();
    let said = refusal(&second.output(&["run"]));
    assert!(said.contains("is in use by another ingestd (process "), "{said}");

    // The port is taken.
    let text = fs::read_to_string(running.settings_path()).unwrap();
    let taken = Daemon::new(None, "");
    let ours = taken.data_directory().display().to_string();
    fs::write(taken.settings_path(), text.replace(&running.data_directory().display().to_string(), &ours)).unwrap();
    let said = refusal(&taken.output(&["run"]));
    assert!(said.contains("cannot listen on") && said.contains("in use"), "{said}");
    assert_eq!(fs::read_dir(taken.data_directory()).unwrap().count(), 0, "the directory is untouched");

    // Directories that cannot be used.
    let missing = Daemon::new(None, "");
    fs::remove_dir(missing.data_directory()).unwrap();
    assert!(refusal(&missing.output(&["run"])).contains("does not exist"));
    std::os::unix::fs::symlink(taken.data_directory(), missing.data_directory()).unwrap();
    assert!(refusal(&missing.output(&["run"])).contains("symbolic link"));

    assert_eq!(running.post(GOOD, &[]).unwrap().status, 200, "the running daemon was not disturbed");
    assert_eq!(running.stored_events(), 2);
}

/// Root may write everywhere, so the test takes the directory's owner for root and its mode for everybody else.
#[test]
fn a_directory_of_somebody_else_or_without_write_permission_is_refused() {
    let daemon = Daemon::new(None, "");
    let is_root = std::os::unix::fs::MetadataExt::uid(&fs::metadata("/proc/self").unwrap()) == 0;
    if is_root {
        std::os::unix::fs::chown(daemon.data_directory(), Some(65534), None).unwrap();
        let said = refusal(&daemon.output(&["run"]));
        assert!(said.contains("belongs to user 65534, but ingestd runs as user 0"), "{said}");
    } else {
        let mode = std::os::unix::fs::PermissionsExt::from_mode;
        fs::set_permissions(daemon.data_directory(), mode(0o500)).unwrap();
        let said = refusal(&daemon.output(&["run"]));
        assert!(said.contains("cannot open its lock file"), "{said}");
        fs::set_permissions(daemon.data_directory(), mode(0o700)).unwrap();
    }
}

#[test]
fn bad_settings_are_refused_with_their_line_and_secrets_are_not_shown() {
    for (settings, reason) in [
        ("storage_shard = 3", "line 3: unknown field `storage_shard`"),
        ("max_batch_size = 5", "line 3: 5 is out of range"),
        ("postgres = \"host=x password=geheim port=many\"", "is not a connection string"),
    ] {
        let daemon = Daemon::new(None, settings);
        let said = refusal(&daemon.output(&["run"]));
        assert!(said.contains(reason), "{said}");
        assert!(!said.contains("geheim"), "{said}");
    }
    let daemon = Daemon::new(None, "");
    fs::remove_file(daemon.settings_path()).unwrap();
    assert!(refusal(&daemon.output(&["run"])).contains("cannot read the settings file"));
}

#[test]
fn an_import_stops_at_a_malformed_line_and_says_what_is_stored() {
    let mut daemon = Daemon::new(None, "");
    let file = daemon.settings_path().with_file_name("events.ndjson");
    let path = file.to_str().unwrap().to_owned();
    fs::write(&file, format!("{GOOD}\n\n{GOOD}\n{{\"type\":1}}\n{GOOD}\n")).unwrap();
    assert!(refusal(&daemon.output(&["import", &path])).contains("does not answer"));

    daemon.start();
    let said = refusal(&daemon.output(&["import", &path]));
    assert!(said.contains("events.ndjson, line 4: invalid type") && said.contains("the 2 events before it"), "{said}");
    assert_eq!(daemon.stored_events(), 2);
    assert!(refusal(&daemon.output(&["import", "-"])).contains("needs a stream name"));
    assert!(refusal(&daemon.output(&["import", "/nonexistent"])).contains("cannot read /nonexistent"));
    // A growing file under a name: what is stored is not stored again.
    fs::write(&file, format!("{GOOD}\n\n{GOOD}\n")).unwrap();
    assert!(daemon.run(&["import", "--stream", "log", &path]).starts_with("2 events stored, 0 were"));
    fs::write(&file, format!("{GOOD}\n\n{GOOD}\n{GOOD}")).unwrap();
    assert!(daemon.run(&["import", "--stream", "log", &path]).starts_with("1 events stored, 2 were"));
}

#[test]
fn a_file_of_projections_applies_whole_or_not_at_all() {
    let cluster = Cluster::start();
    cluster.create_database("app");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("app")), "");
    let file = daemon.settings_path().with_file_name("projections.yaml");
    let path = file.to_str().unwrap().to_owned();
    let counter = |name: &str, table: &str, extra: &str| {
        format!(
            "  {name}:\n    source_events: [T]\n    lanes: 2\n    target: {{ table: {table}, primary_key: [k] }}\n    \
             fields: {{ k: TEXT, n: BIGINT }}\n    derive: {{ k: event.key }}\n    aggregates: {{ T: {{ n: {{ op: count }} }} }}\n{extra}"
        )
    };
    let good = format!("projections:\n{}", counter("first", "first", ""));
    fs::write(&file, &good).unwrap();
    assert!(refusal(&daemon.output(&["apply", &path])).contains("start ingestd run first"));
    daemon.start();
    for (text, reason) in [
        ("projections: [".to_owned(), "projections.yaml"),
        (format!("{good}{}", counter("second", "second", "    speed: high\n")), "speed"),
        (format!("{good}{}", counter("second", "second", "").replace("op: count", "op: multiply")), "multiply"),
        (format!("{good}{}", counter("second", "second", "").replace("k: event.key", "k: event.key, z: event.z")), "z"),
        (format!("{good}{}", counter("second", "nowhere.second", "")), "nowhere"),
    ] {
        fs::write(&file, &text).unwrap();
        let said = refusal(&daemon.output(&["apply", &path]));
        assert!(said.contains(reason), "{said}");
        let left = cluster.psql("app", "SELECT count(*), to_regclass('first') IS NULL FROM lanes.projection");
        assert_eq!(left, "0|t", "nothing of a refused file is applied: {said}");
    }
    fs::write(&file, &good).unwrap();
    daemon.run(&["apply", &path]);

    // A table that is there already must fit.
    cluster.psql("app", "CREATE TABLE second (k text PRIMARY KEY, n int NOT NULL)");
    fs::write(&file, format!("{good}{}", counter("second", "second", ""))).unwrap();
    let said = refusal(&daemon.output(&["apply", &path]));
    assert!(said.contains("has column \"n\" of type integer, not bigint"), "{said}");
    cluster.psql("app", "ALTER TABLE second DROP CONSTRAINT second_pkey, ALTER n TYPE bigint");
    cluster.psql("app", "ALTER TABLE second ADD PRIMARY KEY (n)");
    cluster.psql("app", "ALTER TABLE second ALTER k SET NOT NULL");
    let said = refusal(&daemon.output(&["apply", &path]));
    assert!(said.contains("has not the primary key (k)"), "{said}");

    // A definition does not change in place.
    fs::write(&file, good.replace("lanes: 2", "lanes: 3")).unwrap();
    let said = refusal(&daemon.output(&["apply", &path]));
    assert!(said.contains("projection \"first\" is already defined differently") && said.contains("lanes"), "{said}");
}
