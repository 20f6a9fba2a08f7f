//! Real events end to end: the week's flights give the week's values, each event once, whatever is killed meanwhile.

use std::io::Write;
use std::process::Stdio;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

use e2e::cluster::Cluster;
use e2e::daemon::{count_events, post, testdata};
use e2e::flights::{LANES, WEEK_EVENTS, assert_week, daemon_with_projections, week};

fn week_path() -> String {
    testdata("flights-week.ndjson.gz").to_str().expect("the path is UTF-8").to_owned()
}

#[test]
fn the_week_imported_twice_is_stored_and_applied_once() {
    let cluster = Cluster::start();
    let mut daemon = daemon_with_projections(&cluster, "flights", "");
    assert_eq!(daemon.run(&["import", &week_path()]), "6099 events stored, 0 were already stored\n");
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    assert_week(&cluster, "flights");

    // Applying the same file again changes nothing.
    let again = daemon.run(&["apply", testdata("projections.yaml").to_str().unwrap()]);
    assert!(again.lines().all(|line| line.ends_with("is defined already, unchanged")), "{again}");

    assert!(daemon.stop().success());
    let unowned = cluster.psql("flights", "SELECT count(*) FROM lanes.status WHERE state = 'unowned' AND lag = 0");
    assert_eq!(unowned, "12", "after an orderly stop every lane is released where the log was reported to be");

    daemon.start();
    assert_eq!(daemon.run(&["import", &week_path()]), "0 events stored, 6099 were already stored\n");
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    assert_week(&cluster, "flights");
    assert!(daemon.stop().success());
}

#[test]
fn a_stream_on_standard_input_is_applied_while_it_is_open_and_survives_kill_9() {
    let cluster = Cluster::start();
    let mut daemon = daemon_with_projections(&cluster, "flights", "");
    let lines = week();
    let mut import = daemon
        .command(&["import", "--stream", "week", "-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let mut pipe = import.stdin.take().unwrap();
    pipe.write_all((lines[..1000].join("\n") + "\n").as_bytes()).unwrap();
    daemon.wait_until("they are stored", || daemon.stored_events() == 1000);
    daemon.wait_until_applied(LANES, 1000);

    pipe.write_all((lines[1000..3000].join("\n") + "\n").as_bytes()).unwrap();
    daemon.kill();
    drop(pipe);
    import.wait().unwrap();

    daemon.start();
    let whole = daemon.data_directory().join("../week.ndjson");
    std::fs::write(&whole, lines.join("\n")).unwrap();
    let said = daemon.run(&["import", "--stream", "week", whole.to_str().unwrap()]);
    let duplicates: u64 = said.split(' ').nth(3).unwrap().parse().unwrap();
    assert!((1000..=3000).contains(&duplicates), "{said}");
    assert_eq!(said, format!("{} events stored, {duplicates} were already stored\n", WEEK_EVENTS - duplicates));
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    assert_week(&cluster, "flights");
    // Also while the daemon is running.
    daemon.verify_log();
}

/// Tells producers whose daemon was killed that it is back.
#[derive(Default)]
struct Restarts {
    count: Mutex<usize>,
    happened: Condvar,
}

/// The week over HTTP by eight producers at once, each key always with one of them, seven events a request; `kill -9` in
/// the middle; each producer resends from its first unanswered request.
fn eight_producers(one_cpu: bool) {
    let cluster = Cluster::start();
    let mut daemon = daemon_with_projections(&cluster, "flights", "drain_threads = 2\nstorage_shards = 2");
    if one_cpu {
        assert!(daemon.stop().success());
        daemon.start_on_one_cpu();
    }
    let mut shares: Vec<Vec<String>> = vec![Vec::new(); 8];
    for line in week() {
        let event: serde_json::Value = serde_json::from_str(&line).unwrap();
        let key = event["key"].as_str().unwrap();
        shares[key.bytes().map(usize::from).sum::<usize>() % 8].push(line);
    }
    let requests: usize = shares.iter().map(|share| share.len().div_ceil(7)).sum();
    let answered = AtomicUsize::new(0);
    let restarts = Restarts::default();
    let address = daemon.address();
    std::thread::scope(|scope| {
        for (number, share) in shares.iter().enumerate() {
            let (answered, restarts, address) = (&answered, &restarts, &address);
            scope.spawn(move || {
                let producer = format!("producer-{number}");
                for (request, lines) in share.chunks(7).enumerate() {
                    let sequence = (request * 7 + 1).to_string();
                    let headers = [("Ingest-Producer", producer.as_str()), ("Ingest-Sequence", sequence.as_str())];
                    // The last one is held back until the daemon was killed: no machine is done before.
                    if (request + 1) * 7 >= share.len() {
                        let count = restarts.count.lock().unwrap();
                        drop(restarts.happened.wait_while(count, |count| *count == 0).unwrap());
                    }
                    loop {
                        let before = *restarts.count.lock().unwrap();
                        match post(address, &lines.join("\n"), &headers) {
                            Ok(answer) if answer.status == 200 => {
                                let (stored, duplicates) = (&answer.body["stored"], &answer.body["duplicates"]);
                                let total = stored.as_u64().unwrap() + duplicates.as_u64().unwrap();
                                assert_eq!(total, lines.len() as u64, "{answer:?}");
                                break;
                            }
                            Ok(answer) => panic!("{producer}, sequence {sequence}: {answer:?}"),
                            Err(_) => {
                                let count = restarts.count.lock().unwrap();
                                drop(restarts.happened.wait_while(count, |count| *count == before).unwrap());
                            }
                        }
                    }
                    answered.fetch_add(1, Ordering::SeqCst);
                }
            });
        }
        while answered.load(Ordering::SeqCst) < requests / 2 {
            std::thread::yield_now();
        }
        daemon.kill();
        assert!(answered.load(Ordering::SeqCst) < requests, "the daemon was killed in the middle");
        if one_cpu {
            daemon.start_on_one_cpu();
        } else {
            daemon.start();
        }
        *restarts.count.lock().unwrap() += 1;
        restarts.happened.notify_all();
    });
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    assert_week(&cluster, "flights");
    assert!(daemon.stop().success());
    for shard in 0..2 {
        let events = count_events(&daemon.data_directory().join(format!("shard-000{shard}.db")));
        assert!(events >= 1000, "shard {shard} holds {events} events");
    }
    assert_eq!(daemon.stored_events(), WEEK_EVENTS);
    daemon.verify_log();
}

#[test]
fn eight_producers_and_kill_9_lose_and_repeat_nothing() {
    eight_producers(false);
}

#[test]
fn eight_producers_and_kill_9_lose_and_repeat_nothing_on_one_cpu() {
    eight_producers(true);
}

#[test]
fn events_are_acknowledged_while_postgres_is_away_and_applied_when_it_is_back() {
    let mut cluster = Cluster::start();
    let daemon = daemon_with_projections(&cluster, "flights", "");
    let lines = week();
    let half = daemon.post(&lines[..3000].join("\n"), &[("Ingest-Producer", "p"), ("Ingest-Sequence", "1")]).unwrap();
    assert_eq!((half.status, &half.body["stored"]), (200, &3000.into()));
    daemon.wait_until_applied(LANES, 3000);

    cluster.stop();
    daemon.wait_for("aware that Postgres is away", |status| status["postgres"]["state"] == "unavailable");
    let rest =
        daemon.post(&lines[3000..].join("\n"), &[("Ingest-Producer", "p"), ("Ingest-Sequence", "3001")]).unwrap();
    assert_eq!((rest.status, &rest.body["stored"]), (200, &3099.into()));
    assert_eq!(daemon.stored_events(), WEEK_EVENTS);
    let status = daemon.status();
    assert_eq!(status["lanes"].as_array().unwrap().len(), LANES, "lanes stay visible");

    cluster.restart();
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    daemon.wait_for("ready", |status| status["postgres"]["state"] == "ready");
    assert_week(&cluster, "flights");
}

#[test]
fn crashes_of_postgres_and_ended_sessions_repeat_and_lose_nothing() {
    let mut cluster = Cluster::start_durable();
    let daemon = daemon_with_projections(&cluster, "flights", "lane_batch_size = 50");
    let lines = week();
    for (number, part) in lines.chunks(1017).enumerate() {
        let sequence = (number * 1017 + 1).to_string();
        let headers = [("Ingest-Producer", "p"), ("Ingest-Sequence", sequence.as_str())];
        assert_eq!(daemon.post(&part.join("\n"), &headers).unwrap().status, 200);
        // At once, while batches are under way.
        if number % 2 == 0 {
            cluster.psql(
                "flights",
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'ingestd worker%'",
            );
        } else {
            cluster.crash();
            cluster.restart();
        }
    }
    daemon.wait_until_applied(LANES, WEEK_EVENTS);
    assert_week(&cluster, "flights");
}
