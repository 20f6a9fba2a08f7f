//! Lanes of daemons while their maps change and while daemons come and go: every event once and in order per key, every
//! lane owned, shares even and at rest.
//!
//! The events of a key are numbered from 1, and a trigger sees that its row has as many events as the number of the last
//! one. So an event that is passed over, repeated or put before its predecessor cannot be committed, at any moment.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use e2e::cluster::{Cluster, project};
use e2e::daemon::Daemon;
use e2e::random::{Random, seeds};
use serde_json::Value;

const KEYS: u64 = 120;

/// How long a state may take to come about before a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "still not: {what}");
        thread::sleep(Duration::from_millis(20));
    }
}

/// (A CHECK would see the row that is proposed to INSERT … ON CONFLICT, not the one that comes of it.)
const ONCE_AND_IN_ORDER: &str = "
    CREATE FUNCTION once_and_in_order() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF NEW.n <> NEW.last THEN
            RAISE EXCEPTION 'key % has % events, and the last one is number %', NEW.meter, NEW.n, NEW.last;
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER once_and_in_order AFTER INSERT OR UPDATE ON numbers
        FOR EACH ROW EXECUTE FUNCTION once_and_in_order()";

/// `numbers` has a writer a row, `counts` rows of lanes of their own.
fn projections(lanes: u32) -> String {
    format!(
        "
projections:
  numbers:
    source_events: [READ]
    lanes: {lanes}
    target: {{ table: public.numbers, primary_key: [meter] }}
    fields: {{ meter: TEXT, n: BIGINT, last: BIGINT }}
    derive: {{ meter: event.key, last: event.number }}
    aggregates: {{ READ: {{ n: {{ op: count }} }} }}
  counts:
    source_events: [READ]
    lanes: 3
    target: {{ table: public.counts, primary_key: [kind, lane] }}
    fields: {{ kind: TEXT, lane: INT, n: BIGINT }}
    derive: {{ kind: event.type, lane: lane() }}
    aggregates: {{ READ: {{ n: {{ op: count }} }} }}
"
    )
}

/// Applies the projections as the owner of the database, and gives the daemon's role the rest of what README says it needs.
fn apply(cluster: &Cluster, daemon: &Daemon, lanes: u32) {
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, projections(lanes)).unwrap();
    let owner = format!("postgres={}", cluster.connection_string("app"));
    daemon.run(&["--set", &owner, "apply", file.to_str().unwrap()]);
    cluster.psql("app", ONCE_AND_IN_ORDER);
    cluster.psql("app", "GRANT SELECT, INSERT, UPDATE ON numbers, counts TO ingestd");
}

/// A database whose role `ingestd` has the grants of README's section on privileges: of its first block, and of its
/// second, if the log is a table.
fn database(cluster: &Cluster, is_table: bool) -> String {
    cluster.create_database("app");
    cluster.psql("app", "CREATE ROLE ingestd LOGIN");
    if is_table {
        cluster.psql("app", EVENTS);
    }
    let readme = std::fs::read_to_string(project().join("README.md")).unwrap();
    let section = readme.split("\n## Privileges\n").nth(1).unwrap().split("\n## ").next().unwrap();
    let blocks: Vec<&str> = section.split("```sql\n").skip(1).map(|rest| rest.split("```").next().unwrap()).collect();
    assert!(blocks[0].contains("lanes.claim") && blocks[1].contains("lanes.tick"), "{section}");
    let of_tables = blocks[0].replace("GRANT SELECT, INSERT, UPDATE ON customer_revenue TO ingestd;", "");
    cluster.psql("app", &of_tables);
    if is_table {
        cluster.psql("app", blocks[1]);
    }
    cluster.connection_string("app").replace("user=postgres", "user=ingestd")
}

/// A change of the map of `projection` that is drawn by lot, as SQL.
fn change(cluster: &Cluster, projection: &str, random: &mut Random) -> String {
    let lanes = cluster.psql(
        "app",
        &format!(
            "SELECT DISTINCT l FROM lanes.projection, unnest(slot_lanes) AS l WHERE name = '{projection}' ORDER BY l"
        ),
    );
    let lanes: Vec<&str> = lanes.lines().collect();
    let lane = *random.pick(&lanes);
    let other = lanes.iter().copied().find(|other| *other != lane);
    match (random.within(0..=5), other) {
        (0, _) if lanes.len() < 12 => format!("lanes.split('{projection}', {lane})"),
        (1, Some(other)) => format!("lanes.merge('{projection}', {lane}, {other})"),
        (2, _) => {
            let slots: Vec<String> = (0..20).map(|_| random.within(0..=1023).to_string()).collect();
            format!("lanes.move('{projection}', '{{{}}}', {lane})", slots.join(","))
        }
        (3, _) if lanes.len() < 12 => format!("lanes.isolate('{projection}', 'm{}')", random.within(0..=KEYS - 1)),
        _ => format!("lanes.resize('{projection}', {})", random.within(1..=9)),
    }
}

/// Changes the maps again and again, each when the one before has taken effect; gives how many did.
fn change_maps(cluster: &Cluster, changes: usize, random: &mut Random) -> usize {
    let mut changed = 0;
    let version = |projection: &str| -> u64 {
        let sql = format!("SELECT map_version FROM lanes.projection WHERE name = '{projection}'");
        cluster.psql("app", &sql).parse().unwrap()
    };
    while changed < changes {
        let projection = *random.pick(&["numbers", "numbers", "counts"]);
        let before = version(projection);
        let change = change(cluster, projection, random);
        cluster.psql("app", &format!("SELECT {change}"));
        let deadline = Instant::now() + PATIENCE;
        while cluster.psql("app", "SELECT count(*) FROM lanes.reshaping") != "0" {
            let lanes = "SELECT projection, lane, state, reason, owner, place.*, stop_at FROM lanes.status,
                lanes.place(tick, position) AS place";
            assert!(Instant::now() < deadline, "{change} takes no effect: {}", cluster.psql("app", lanes));
            thread::sleep(Duration::from_millis(20));
        }
        changed += usize::from(version(projection) > before);
    }
    changed
}

/// What every run must end with; `stored` is how many events each key has.
fn audit(cluster: &Cluster, stored: &[u64]) {
    let total: u64 = stored.iter().sum();
    wait_until("everything is applied", || {
        cluster.psql("app", "SELECT COALESCE(sum(n), 0) FROM numbers") == total.to_string()
            && cluster.psql("app", "SELECT COALESCE(sum(n), 0) FROM counts") == total.to_string()
    });
    let rows = cluster.psql("app", "SELECT meter, n, last FROM numbers");
    let mut rows: Vec<&str> = rows.lines().collect();
    rows.sort_unstable();
    let mut expected: Vec<String> = (stored.iter().enumerate())
        .filter(|(_, count)| **count > 0)
        .map(|(key, count)| format!("m{key}|{count}|{count}"))
        .collect();
    expected.sort();
    assert_eq!(rows, expected);
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_event"), "0");
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.skipped_event"), "0");
}

/// How many events the lane that is farthest behind is behind.
fn greatest_lag(status: &Value) -> u64 {
    let lanes = status["lanes"].as_array().unwrap();
    lanes.iter().filter_map(|lane| lane["lag"].as_u64()).max().unwrap_or(0)
}

#[test]
fn changes_of_the_map_under_load_keep_every_event_once_and_in_order() {
    for seed in seeds(1) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let cluster = Cluster::start();
        let mut daemon = Daemon::new(Some(&database(&cluster, false)), "lane_batch_size = 50");
        daemon.start();
        apply(&cluster, &daemon, 4);
        let over = AtomicBool::new(false);
        let (changed, stored) = thread::scope(|scope| {
            let (over, daemon, mut load_random) = (&over, &daemon, random.fork());
            let load = scope.spawn(move || {
                let random = &mut load_random;
                let mut stored = vec![0; KEYS as usize];
                while !over.load(Ordering::Relaxed) {
                    // What a fast disk takes has to be applied, too.
                    daemon.wait_for("lanes are not far behind", |status| greatest_lag(status) < 10_000);
                    let mut lines = String::new();
                    for _ in 0..random.within(1..=80) {
                        let key = random.within(0..=KEYS - 1) as usize;
                        stored[key] += 1;
                        let number = stored[key];
                        lines +=
                            &format!("{{\"type\":\"READ\",\"key\":\"m{key}\",\"payload\":{{\"number\":{number}}}}}\n");
                    }
                    assert_eq!(daemon.post(&lines, &[]).unwrap().status, 200);
                }
                stored
            });
            let changed = change_maps(&cluster, 20, &mut random);
            over.store(true, Ordering::Relaxed);
            (changed, load.join().unwrap())
        });
        println!("{changed} changes, {} events", stored.iter().sum::<u64>());
        audit(&cluster, &stored);
        // The status knows the lanes there are now, and nothing of those there were.
        let lanes: usize = cluster.psql("app", "SELECT sum(lanes) FROM lanes.projection").parse().unwrap();
        daemon.wait_for("all lanes at the horizon", |status| {
            let all = status["lanes"].as_array().unwrap();
            all.len() == lanes && all.iter().all(|lane| lane["lag"] == 0 && lane["state"] == "running")
        });
        let others = "SELECT count(*) FROM lanes.status WHERE state <> 'running'";
        daemon.wait_until("all lanes run", || cluster.psql("app", others) == "0");
    }
}

const EVENTS: &str = "
    CREATE SCHEMA shop;
    CREATE TABLE shop.events (
        position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        type text NOT NULL, key text NOT NULL, ts timestamptz NOT NULL DEFAULT clock_timestamp(), payload jsonb NOT NULL);
    SELECT lanes.register_log('shop.events')";

const INSERT: &str = "INSERT INTO shop.events (type, key, payload)
    VALUES ('READ', $1, jsonb_build_object('number', $2::bigint))";

/// Appends to keys of its own until `over`: transactions of several events, some of which wait before they commit, so that
/// they commit in another order than they drew positions, and some of which roll back.
fn append(connection: &str, writer: u64, over: &AtomicBool, mut random: Random) -> Vec<u64> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let (mut client, driver) = tokio_postgres::connect(connection, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(driver);
        let mut stored = vec![0u64; KEYS as usize];
        while !over.load(Ordering::Relaxed) {
            let mut then = stored.clone();
            let transaction = client.transaction().await.unwrap();
            for _ in 0..random.within(1..=20) {
                let key = (random.within(0..=KEYS / 3 - 1) * 3 + writer) as usize;
                then[key] += 1;
                transaction.execute(INSERT, &[&format!("m{key}"), &(then[key] as i64)]).await.unwrap();
            }
            if random.chance(1, 20) {
                tokio::time::sleep(Duration::from_millis(random.within(1..=200))).await;
            }
            if random.chance(1, 10) {
                transaction.rollback().await.unwrap();
            } else {
                transaction.commit().await.unwrap();
                stored = then;
            }
        }
        stored
    })
}

#[test]
fn two_daemons_share_an_events_table_while_maps_change_and_one_is_killed() {
    for seed in seeds(1) {
        println!("seed {seed}");
        let mut random = Random::new(seed);
        let cluster = Cluster::start();
        let role = database(&cluster, true);
        let connection = cluster.connection_string("app");
        let daemon = || Daemon::on_table(&role, "shop.events", "postgres_connections = 2\nlane_batch_size = 50");
        let (mut first, mut second) = (daemon(), daemon());
        // What is under way when it is killed, or meets a lane that moved, may be told as an error.
        first.expect_errors();
        second.expect_errors();
        first.start();
        second.start();
        apply(&cluster, &first, 4);
        let over = Arc::new(AtomicBool::new(false));
        let writers: Vec<_> = (0..3)
            .map(|writer| {
                let (over, connection, random) = (Arc::clone(&over), connection.clone(), random.fork());
                thread::spawn(move || append(&connection, writer, &over, random))
            })
            .collect();
        change_maps(&cluster, 4, &mut random);
        first.kill();
        change_maps(&cluster, 4, &mut random);
        first.start();
        second.kill();
        change_maps(&cluster, 4, &mut random);
        over.store(true, Ordering::Relaxed);
        let mut stored = vec![0; KEYS as usize];
        for writer in writers {
            for (sum, count) in stored.iter_mut().zip(writer.join().unwrap()) {
                *sum += count;
            }
        }
        let counted = cluster.psql("app", "SELECT count(*) FROM shop.events");
        assert_eq!(counted, stored.iter().sum::<u64>().to_string(), "what was written is there");
        println!("{counted} events");
        audit(&cluster, &stored);
        first.wait_for("no lag", |status| status["lanes"].as_array().unwrap().iter().all(|lane| lane["lag"] == 0));
    }
}

/// How many lanes each worker owns, least first; empty unless all of `lanes` are owned.
fn shares(cluster: &Cluster, lanes: usize) -> Vec<usize> {
    let owned =
        cluster.psql("app", "SELECT count(*) FROM lanes.status WHERE state = 'running' GROUP BY owner ORDER BY 1");
    let owned: Vec<usize> = owned.lines().map(|count| count.parse().unwrap()).collect();
    if owned.iter().sum::<usize>() == lanes { owned } else { Vec::new() }
}

#[test]
fn after_a_start_a_kill_and_a_join_all_lanes_are_owned_evenly_and_at_rest() {
    let cluster = Cluster::start();
    let role = database(&cluster, true);
    let daemon = || Daemon::on_table(&role, "shop.events", "postgres_connections = 2");
    let (mut first, mut second) = (daemon(), daemon());
    first.start();
    second.start();
    apply(&cluster, &first, 61);
    let even = |shares: &[usize], workers: usize| {
        shares.len() == workers && shares.iter().all(|share| share.abs_diff(64 / workers) <= 1)
    };
    // However many claim and release at one time, nobody takes a lane in spite of a lock: no owner was ever silent.
    let forced = || cluster.psql("app", "SELECT count(*) FROM lanes.checkpoint WHERE taken_over");
    wait_until("64 lanes are shared by four workers", || even(&shares(&cluster, 64), 4));
    assert_eq!(forced(), "0");
    second.kill();
    wait_until("two workers have all", || even(&shares(&cluster, 64), 2));
    assert_eq!(forced(), "0");
    second.start();
    wait_until("four workers have their shares again", || even(&shares(&cluster, 64), 4));
    assert_eq!(forced(), "0");
    // At rest: while each worker tells three times that it lives, no lane is claimed by anybody.
    let epochs = || cluster.psql("app", "SELECT sum(epoch) FROM lanes.checkpoint");
    let beats = || {
        cluster.psql(
            "app",
            "SELECT string_agg(EXTRACT(epoch FROM heartbeat_at)::text, ' ' ORDER BY worker) FROM lanes.worker w
        WHERE EXISTS (SELECT FROM pg_stat_activity a WHERE a.pid = w.process_id)",
        )
    };
    let looks = || -> i64 {
        let sql = "SELECT seq_scan + idx_scan FROM pg_stat_all_tables WHERE relid = 'lanes.parked_key'::regclass";
        cluster.psql("app", sql).parse().unwrap()
    };
    let (mut claimed, mut quiet, mut told, mut looked) = (epochs(), 0, beats(), looks());
    wait_until("the lanes are at rest", || {
        if epochs() != claimed {
            (claimed, quiet, told, looked) = (epochs(), 0, beats(), looks());
        }
        let now = beats();
        if now.split(' ').zip(told.split(' ')).all(|(now, told)| now != told) {
            (quiet, told) = (quiet + 1, now);
        }
        quiet >= 3
    });
    assert!(even(&shares(&cluster, 64), 4));
    // Nor does a lane without parked keys ask for them again and again: once after each claim, which is long ago.
    let looked = looks() - looked;
    assert!(looked <= 64, "{looked} looks for parked keys while 64 lanes had nothing to do");
}

/// A daemon that hangs gives no sign of life: when its leases have run out, others take its lanes in spite of their locks.
#[test]
fn lanes_of_a_daemon_that_hangs_are_taken_over() {
    let cluster = Cluster::start();
    let role = database(&cluster, true);
    let daemon = || Daemon::on_table(&role, "shop.events", "postgres_connections = 1");
    let (mut first, mut second) = (daemon(), daemon());
    first.expect_errors();
    second.expect_errors();
    first.start();
    second.start();
    apply(&cluster, &first, 5);
    wait_until("both have lanes", || shares(&cluster, 8) == [4, 4]);
    second.signal("STOP");
    wait_until("one is silent", || {
        let alive = "SELECT count(*) FROM lanes.worker WHERE heartbeat_at > clock_timestamp() - interval '6 s'";
        cluster.psql("app", alive) == "1"
    });
    let hung = cluster.psql("app", "SELECT worker FROM lanes.worker ORDER BY heartbeat_at LIMIT 1");
    // Its leases end now.
    cluster.psql(
        "app",
        &format!(
            "UPDATE lanes.checkpoint SET lease = '1 s' WHERE owner = '{hung}';
             UPDATE lanes.worker SET heartbeat_at = heartbeat_at - interval '1 min' WHERE worker = '{hung}'"
        ),
    );
    wait_until("the other one has all", || shares(&cluster, 8) == [8]);
    second.signal("CONT");
    wait_until("both have lanes again", || shares(&cluster, 8) == [4, 4]);
}

/// A batch inserts no row before it has got a ticket.
const TICKETS: &str = "
    CREATE TABLE ticket (id bigint GENERATED ALWAYS AS IDENTITY);
    CREATE FUNCTION wait_for_ticket() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
        got bigint;
    BEGIN
        LOOP
            DELETE FROM public.ticket WHERE id = (SELECT min(id) FROM public.ticket) RETURNING id INTO got;
            EXIT WHEN FOUND;
            PERFORM pg_sleep(0.02);
        END LOOP;
        RETURN NEW;
    END $$;
    CREATE TRIGGER wait_for_ticket BEFORE INSERT ON numbers FOR EACH ROW EXECUTE FUNCTION wait_for_ticket();
    GRANT SELECT, DELETE ON ticket TO ingestd";

/// The lanes of one worker have more to do than a lease is long: others would take them over.
#[test]
fn a_worker_tells_that_it_lives_between_the_batches_of_a_long_round() {
    let cluster = Cluster::start();
    let connection = database(&cluster, false);
    let mut daemon = Daemon::new(Some(&connection), "postgres_connections = 1");
    daemon.start();
    apply(&cluster, &daemon, 8);
    cluster.psql("app", TICKETS);
    daemon.wait_until_applied(11, 0);
    let ask = |sql: &str| cluster.psql("app", sql);
    // A lane each, by the extension's word.
    let keys = ask("SELECT DISTINCT ON (lane_of('m' || i, 8)) 'm' || i FROM generate_series(1, 200) AS i
                    ORDER BY lane_of('m' || i, 8), i");
    let line = |key: &str| format!("{{\"type\":\"READ\",\"key\":\"{key}\",\"ts\":1,\"payload\":{{\"number\":1}}}}\n");
    let body: String = keys.lines().map(line).collect();
    assert_eq!(daemon.post(&body, &[]).unwrap().status, 200);

    let waits = "SELECT count(*) FROM pg_stat_activity
                 WHERE application_name = 'ingestd worker 0' AND wait_event = 'PgSleep'";
    let is_waiting = |applied: usize| ask("SELECT count(*) FROM numbers") == applied.to_string() && ask(waits) == "1";
    let silent = "SELECT count(*) FROM lanes.worker WHERE now() - heartbeat_at > interval '6 s'";
    let told = "SELECT heartbeat_at FROM lanes.worker";
    for applied in 0..8 {
        wait_until("a batch waits for its ticket", || is_waiting(applied));
        let before = ask(told);
        let is_long = applied == 2 || applied == 5;
        if is_long {
            wait_until("a sign of life is due", || ask(silent) == "1");
        }
        ask("INSERT INTO ticket DEFAULT VALUES");
        if is_long {
            wait_until("the next batch waits for its ticket", || is_waiting(applied + 1));
            assert_ne!(ask(told), before, "no sign of life after batch {applied} of a round");
        }
    }
    daemon.wait_until_applied(11, 8);
}
