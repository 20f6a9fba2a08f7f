//! Lanes of an events table under everything at once: workers of both forms and two daemons, sessions that are ended,
//! daemons that are killed, zombies that wake up late, a crash of Postgres, the map changed all the time, and writers that
//! commit out of order, roll back and stay open. Afterwards every event that was committed was applied exactly once, and
//! each key's in order (LANE-1 to LANE-4).
//!
//! The seed of a run is printed. `LANE_SEED=…` repeats its plan, `LANE_ROUNDS=100` asks for at least so many changes of
//! the map, ended sessions and zombies (`make soak SOAK_PARTS=lanes`).
//!
//! Two control runs take a part of the protection out, and must be caught by the same audit.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use e2e::cluster::{Cluster, wait_until};
use e2e::daemon::Daemon;
use e2e::random::{Random, environment_number};
use tokio::sync::RwLock;
use tokio_postgres::error::SqlState;
use tokio_postgres::{Client, Error};

const KEYS_OF_A_WRITER: u64 = 6;
const WRITERS: u64 = 4;
const LEASE: &str = "1 s";

/// After this time of calm a run without protection is taken to stand still.
const STANDSTILL: Duration = Duration::from_secs(45);

/// The ledger: what was applied, and whether a key's events came in the order of their numbers, as the rows themselves
/// saw it.
const SETUP: &str = r#"
    CREATE TABLE events (
        position bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
        type text NOT NULL, key text NOT NULL, ts timestamptz NOT NULL DEFAULT clock_timestamp(), payload jsonb NOT NULL);
    SELECT lanes.register_log('events');
    SELECT lanes.define('{"projections": {"meters": {
        "source_events": ["READ"], "lanes": 4,
        "target": {"table": "meters", "primary_key": ["meter"]},
        "fields": {"meter": "TEXT", "n": "BIGINT"}, "derive": {"meter": "event.key"},
        "sql": {"READ": {"row_key": ["meter"], "statement":
            "SELECT public.apply_event(b.position, b.lane, b.key, (b.payload -> ''nr'')::bigint) FROM (SELECT * FROM batch ORDER BY position) AS b WHERE ''{table}''::regclass = ''public.meters''::regclass"}}}}}');
    CREATE TABLE meters (meter text PRIMARY KEY, n bigint NOT NULL, last bigint NOT NULL, inversions bigint NOT NULL);
    CREATE TABLE applied (position bigint NOT NULL, lane int NOT NULL);
    CREATE FUNCTION apply_event(place bigint, lane int, key text, nr bigint) RETURNS void LANGUAGE sql AS $$
        INSERT INTO public.applied VALUES (place, lane);
        INSERT INTO public.meters AS m VALUES (key, 1, nr, 0)
        ON CONFLICT (meter) DO UPDATE
        SET n = m.n + 1, last = EXCLUDED.last, inversions = m.inversions + (EXCLUDED.last <= m.last)::int
    $$;
    CREATE FUNCTION apply_next(lane int, maximum int) RETURNS bigint LANGUAGE plpgsql AS $$
    DECLARE
        event record;
        done  bigint := 0;
    BEGIN
        FOR event IN SELECT * FROM lanes.read_batch('meters', lane, maximum) LOOP
            PERFORM apply_event(event.position, lane, event.event_key, (event.payload -> 'nr')::bigint);
            done := done + 1;
        END LOOP;
        RETURN done;
    END $$;
"#;

/// What a run takes out of the protection.
#[derive(Clone, Copy, PartialEq)]
enum Without {
    Nothing,
    /// No lock on the lane's row and no check of epoch and session.
    Fence,
    /// A map changes at once, wherever the lanes stand.
    Alignment,
}

const NO_FENCE: &str = r"
    CREATE OR REPLACE FUNCTION lanes.lock_lane(projection text, lane int, epoch bigint) RETURNS lanes.checkpoint
    LANGUAGE sql AS $$ SELECT c FROM lanes.checkpoint AS c WHERE c.lane = lock_lane.lane $$;";

const NO_ALIGNMENT: &str = r"
    CREATE OR REPLACE FUNCTION lanes.change_map(defined lanes.projection, kind text, slot_lanes int[]) RETURNS boolean
    LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM FROM lanes.checkpoint AS c ORDER BY c.lane FOR UPDATE;
        PERFORM lanes.apply_map(defined, slot_lanes);
        RETURN true;
    END $$;";

/// What happened so far.
#[derive(Default)]
struct Counts {
    appended: AtomicU64,
    rolled_back: AtomicU64,
    batches: AtomicU64,
    refused: AtomicU64,
    changes: AtomicU64,
    kills: AtomicU64,
    daemons_killed: AtomicU64,
    zombies: AtomicU64,
}

impl Counts {
    fn add(counter: &AtomicU64) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

struct Run {
    /// Taken for writing by whoever crashes the server.
    cluster: RwLock<Cluster>,
    counts: Counts,
    /// Nobody begins anything harmful any more.
    calm: AtomicBool,
    /// Writers stop.
    full: AtomicBool,
    /// Everybody stops.
    over: AtomicBool,
}

impl Run {
    async fn connect(&self, name: &str) -> Option<Client> {
        let string = format!("{} application_name={name}", self.cluster.read().await.connection_string("shop"));
        let (client, connection) = tokio_postgres::connect(&string, tokio_postgres::NoTls).await.ok()?;
        tokio::spawn(async move {
            let _ = connection.await;
        });
        Some(client)
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn is_calm(&self) -> bool {
        self.calm.load(Ordering::Relaxed)
    }
}

async fn pause(random: &mut Random, milliseconds: std::ops::RangeInclusive<u64>) {
    tokio::time::sleep(Duration::from_millis(random.within(milliseconds))).await;
}

/// Appends to keys of its own; so the order of each key is that of its numbers.
async fn write(run: Arc<Run>, writer: u64, mut random: Random) {
    while !run.full.load(Ordering::Relaxed) {
        let Some(mut client) = run.connect("writer").await else {
            pause(&mut random, 5..=50).await;
            continue;
        };
        while !run.full.load(Ordering::Relaxed) {
            if append(&run, &mut client, writer, &mut random).await.is_err() {
                break;
            }
            pause(&mut random, 0..=4).await;
        }
    }
}

async fn append(run: &Run, client: &mut Client, writer: u64, random: &mut Random) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    let events = random.within(1..=6);
    for _ in 0..events {
        let key = format!("meter-{writer}-{}", random.within(0..=KEYS_OF_A_WRITER - 1));
        // What a COMMIT without an answer became is asked of the table.
        let next = "INSERT INTO events (type, key, payload)
            SELECT CASE WHEN $2 THEN 'OTHER' ELSE 'READ' END, $1,
                jsonb_build_object('nr', 1 + COALESCE(max((payload -> 'nr')::bigint), 0)) FROM events WHERE key = $1";
        transaction.execute(next, &[&key, &random.chance(1, 20)]).await?;
        if random.chance(1, 60) {
            pause(random, 200..=1500).await;
        }
    }
    if random.chance(1, 10) {
        Counts::add(&run.counts.rolled_back);
        return transaction.rollback().await;
    }
    transaction.commit().await?;
    run.counts.appended.fetch_add(events, Ordering::Relaxed);
    Ok(())
}

async fn tick(run: Arc<Run>) {
    while !run.is_over() {
        if let Some(client) = run.connect("ticker").await {
            while !run.is_over() && client.execute("SELECT lanes.tick('events')", &[]).await.is_ok() {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

/// A worker of the session form. After each life it comes again with a new session.
async fn own_lanes(run: Arc<Run>, name: String, mut random: Random) {
    while !run.is_over() {
        if let Some(mut client) = run.connect(&name).await {
            let _ = own_lanes_until_trouble(&run, &mut client, &name, &mut random).await;
        }
        pause(&mut random, 5..=50).await;
    }
}

async fn own_lanes_until_trouble(run: &Run, client: &mut Client, name: &str, random: &mut Random) -> Result<(), Error> {
    let log: String = client.query_one("SELECT log_id::text FROM lanes.log", &[]).await?.get(0);
    let mut lanes: Vec<(i32, i64)> = Vec::new();
    while !run.is_over() {
        if lanes.len() < 3 {
            let claim = "SELECT lane, epoch FROM lanes.claim('meters', $1, lease => $2::text::interval)";
            if let Some(row) = client.query_opt(claim, &[&name, &LEASE]).await? {
                lanes.push((row.get(0), row.get(1)));
            }
        }
        let mut index = 0;
        while index < lanes.len() {
            let (lane, epoch) = lanes[index];
            match own_batch(run, client, lane, epoch, &log, random).await {
                Ok(()) => index += 1,
                Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                    Counts::add(&run.counts.refused);
                    client.execute("SELECT lanes.release('meters', $1, $2)", &[&lane, &epoch]).await?;
                    lanes.swap_remove(index);
                }
                Err(error) => return Err(error),
            }
        }
        client.execute("SELECT lanes.heartbeat($1, (SELECT log_id FROM lanes.log))", &[&name]).await?;
        if !run.is_calm() && random.chance(1, 50) {
            // It sleeps past its lease, and goes on as if nothing had been.
            Counts::add(&run.counts.zombies);
            pause(random, 1000..=2500).await;
        }
        if random.chance(1, 100)
            && let Some((lane, epoch)) = lanes.pop()
        {
            client.execute("SELECT lanes.release('meters', $1, $2)", &[&lane, &epoch]).await?;
        }
        pause(random, 1..=10).await;
    }
    Ok(())
}

async fn own_batch(
    run: &Run,
    client: &mut Client,
    lane: i32,
    epoch: i64,
    log: &str,
    random: &mut Random,
) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    let begin = "SELECT position FROM lanes.begin_batch('meters', $1, $2, $3::text::uuid)";
    transaction.query_one(begin, &[&lane, &epoch, &log]).await?;
    apply(run, &transaction, lane, epoch, random).await?;
    transaction.commit().await
}

/// A worker of the transaction form.
async fn take_batches(run: Arc<Run>, name: String, mut random: Random) {
    while !run.is_over() {
        if let Some(mut client) = run.connect(&name).await {
            while !run.is_over() {
                match take_batch(&run, &mut client, &name, &mut random).await {
                    Ok(()) => pause(&mut random, 0..=10).await,
                    Err(error) if error.code() == Some(&SqlState::T_R_SERIALIZATION_FAILURE) => {
                        Counts::add(&run.counts.refused);
                    }
                    Err(_) => break,
                }
            }
        }
        pause(&mut random, 5..=50).await;
    }
}

async fn take_batch(run: &Run, client: &mut Client, name: &str, random: &mut Random) -> Result<(), Error> {
    let transaction = client.transaction().await?;
    let claim = "SELECT lane, epoch FROM lanes.claim_batch('meters', $1)";
    if let Some(row) = transaction.query_opt(claim, &[&name]).await? {
        apply(run, &transaction, row.get(0), row.get(1), random).await?;
    }
    transaction.commit().await
}

async fn apply(
    run: &Run,
    transaction: &tokio_postgres::Transaction<'_>,
    lane: i32,
    epoch: i64,
    random: &mut Random,
) -> Result<(), Error> {
    // Few, so that lanes stand apart.
    let maximum = random.within(1..=30) as i32;
    transaction.query_one("SELECT apply_next($1, $2)", &[&lane, &maximum]).await?;
    if !run.is_calm() && random.chance(1, 100) {
        Counts::add(&run.counts.zombies);
        pause(random, 200..=2000).await;
    }
    transaction.execute("SELECT lanes.commit_batch('meters', $1, $2)", &[&lane, &epoch]).await?;
    Counts::add(&run.counts.batches);
    Ok(())
}

/// Changes the map, as often as it may.
async fn reshape(run: Arc<Run>, mut random: Random) {
    while !run.is_calm() {
        let Some(client) = run.connect("reshaper").await else {
            pause(&mut random, 5..=50).await;
            continue;
        };
        while !run.is_calm() {
            let change = match random.within(0..=9) {
                0..=3 => format!("lanes.resize('meters', {}, {})", random.within(1..=12), random.chance(1, 3)),
                4..=5 => format!("lanes.split('meters', {})", random.within(0..=12)),
                6..=7 => format!("lanes.merge('meters', {}, {})", random.within(0..=12), random.within(0..=12)),
                8 => format!(
                    "lanes.move('meters', ARRAY[{}, {}], {})",
                    random.within(0..=1023),
                    random.within(0..=1023),
                    random.within(0..=12)
                ),
                _ => format!("lanes.isolate('meters', 'meter-0-{}')", random.within(0..=KEYS_OF_A_WRITER - 1)),
            };
            match client.execute(&format!("SELECT {change}"), &[]).await {
                Ok(_) => Counts::add(&run.counts.changes),
                // Lanes that there are not, or a change that still waits.
                Err(error) if error.as_db_error().is_some() && !client.is_closed() => {
                    if random.chance(1, 20) {
                        let _ = client.execute("SELECT lanes.cancel_resize('meters')", &[]).await;
                    }
                }
                Err(_) => break,
            }
            pause(&mut random, 10..=150).await;
        }
    }
}

/// A daemon that works on the table too, and is killed again and again.
async fn run_daemon(run: Arc<Run>, mut random: Random) {
    let connection = run.cluster.read().await.connection_string("shop");
    let mut daemon = Daemon::on_table(&connection, "public.events", "postgres_connections = 2\nlane_batch_size = 30");
    // Killed sessions and lanes that moved may be told as errors.
    daemon.expect_errors();
    tokio::task::block_in_place(|| daemon.start());
    while !run.is_calm() {
        pause(&mut random, 500..=3000).await;
        tokio::task::block_in_place(|| {
            daemon.kill();
            daemon.start();
        });
        Counts::add(&run.counts.daemons_killed);
    }
    while !run.is_over() {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Ends sessions of workers and writers.
async fn terminate(run: Arc<Run>, mut random: Random) {
    while !run.is_calm() {
        if let Some(client) = run.connect("killer").await {
            let kill = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity
                WHERE application_name ~ '^(worker|taker|writer|reshaper|ingestd)' ORDER BY md5(pid::text || $1) LIMIT 1";
            while !run.is_calm() && client.query(kill, &[&random.number().to_string()]).await.is_ok() {
                Counts::add(&run.counts.kills);
                pause(&mut random, 50..=300).await;
            }
        }
        pause(&mut random, 20..=100).await;
    }
}

/// How many committed events were not applied exactly once, how many keys are out of order, and how many slots belong to no
/// lane that works: all three are 0 if all is well.
async fn audit(client: &Client) -> (i64, i64, i64) {
    let query = "SELECT
        (SELECT count(*) FROM (SELECT position FROM events WHERE type = 'READ') AS e
         FULL JOIN (SELECT position, count(*) AS times FROM applied GROUP BY position) AS a USING (position)
         WHERE a.times IS DISTINCT FROM 1 OR NOT EXISTS (SELECT FROM events AS x WHERE x.position = a.position)),
        (SELECT count(*) FROM (
             SELECT key, count(*) AS n, max((payload -> 'nr')::bigint) AS last FROM events WHERE type = 'READ' GROUP BY key) AS e
         FULL JOIN meters AS m ON m.meter = e.key
         WHERE (m.n, m.last, m.inversions) IS DISTINCT FROM (e.n, e.last, 0::bigint)),
        (SELECT count(*) FROM lanes.projection AS p, unnest(p.slot_lanes) AS s (lane)
         WHERE NOT EXISTS (SELECT FROM lanes.checkpoint AS c WHERE c.lane = s.lane AND c.retired_at IS NULL))";
    let row = client.query_one(query, &[]).await.unwrap();
    (row.get(0), row.get(1), row.get(2))
}

/// Everything at once until `rounds` changes, kills and zombies have been, then calm, then the audit.
async fn chaos(seed: u64, rounds: u64, without: Without) -> (i64, i64, i64) {
    println!("LANE_SEED={seed} LANE_ROUNDS={rounds}");
    let mut random = Random::new(seed);
    let cluster = Cluster::start();
    cluster.create_database("shop");
    cluster.psql("shop", SETUP);
    match without {
        Without::Nothing => {}
        Without::Fence => drop(cluster.psql("shop", NO_FENCE)),
        Without::Alignment => drop(cluster.psql("shop", NO_ALIGNMENT)),
    }
    let run = Arc::new(Run {
        cluster: RwLock::new(cluster),
        counts: Counts::default(),
        calm: AtomicBool::new(false),
        full: AtomicBool::new(false),
        over: AtomicBool::new(false),
    });
    let mut tasks = tokio::task::JoinSet::new();
    for writer in 0..WRITERS {
        tasks.spawn(write(Arc::clone(&run), writer, random.fork()));
    }
    for worker in 0..3 {
        tasks.spawn(own_lanes(Arc::clone(&run), format!("worker-{worker}"), random.fork()));
        tasks.spawn(take_batches(Arc::clone(&run), format!("taker-{worker}"), random.fork()));
    }
    for _ in 0..2 {
        tasks.spawn(run_daemon(Arc::clone(&run), random.fork()));
    }
    tasks.spawn(tick(Arc::clone(&run)));
    tasks.spawn(reshape(Arc::clone(&run), random.fork()));
    tasks.spawn(terminate(Arc::clone(&run), random.fork()));

    let counts = &run.counts;
    let least = || {
        [&counts.changes, &counts.kills, &counts.zombies]
            .map(|counter| counter.load(Ordering::Relaxed))
            .into_iter()
            .min()
    };
    let mut crashes = 0;
    while least() < Some(rounds) {
        tokio::time::sleep(Duration::from_millis(50)).await;
        // Once halfway, and in a long run again and again.
        if least() >= Some(rounds / 2 + 25 * crashes) {
            let mut cluster = run.cluster.write().await;
            tokio::task::block_in_place(|| {
                cluster.crash();
                cluster.restart();
            });
            crashes += 1;
        }
    }
    run.calm.store(true, Ordering::Relaxed);
    run.full.store(true, Ordering::Relaxed);
    let client = loop {
        if let Some(client) = run.connect("audit").await {
            break client;
        }
    };
    wait_until(&client, "NOT EXISTS (SELECT FROM pg_stat_activity WHERE application_name = 'writer')").await;
    wait_until(&client, "lanes.tick('events') IS NOT NULL").await;
    // Without the protection a lane can go past its stop, and the change of the map then waits for it for ever.
    let past_stop = "EXISTS (SELECT FROM lanes.checkpoint WHERE (tick, position) > (stop_tick, stop_position))";
    let at_rest = "NOT EXISTS (SELECT FROM lanes.reshaping) AND (SELECT bool_and(lag = 0) FROM lanes.status)";
    let rest = format!("({at_rest}) OR {past_stop}");
    // Without it a worker whose checkpoint somebody else moved may wait for ever, too.
    let settled = tokio::time::timeout(STANDSTILL, wait_until(&client, &rest));
    let stuck = without != Without::Nothing && settled.await.is_err();
    if !stuck {
        wait_until(&client, &rest).await;
    }
    let past_stop: bool = client.query_one(&format!("SELECT {past_stop}"), &[]).await.unwrap().get(0);
    run.over.store(true, Ordering::Relaxed);
    while let Some(ended) = tasks.join_next().await {
        ended.unwrap();
    }
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    println!(
        "{} events appended, {} transactions rolled back, {} batches, {} refused; {} changes of the map, {} sessions \
         ended, {} daemons killed, {} zombies, {crashes} crashes",
        get(&counts.appended),
        get(&counts.rolled_back),
        get(&counts.batches),
        get(&counts.refused),
        get(&counts.changes),
        get(&counts.kills),
        get(&counts.daemons_killed),
        get(&counts.zombies),
    );
    let faults = if past_stop || stuck { (0, 0, 1) } else { audit(&client).await };
    println!("faults: {faults:?}");
    faults
}

fn plan(default_seed: u64) -> (u64, u64) {
    let seed = environment_number("LANE_SEED").unwrap_or(default_seed);
    (seed, environment_number("LANE_ROUNDS").unwrap_or(12))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn each_event_is_applied_once_and_in_order_whatever_happens() {
    let (seed, rounds) = plan(1);
    assert_eq!(chaos(seed, rounds, Without::Nothing).await, (0, 0, 0));
}

/// Whether one of many runs is caught: a fault needs two at one place at one time. Most often the first or second is.
async fn is_caught(default_seed: u64, without: Without) -> bool {
    let (first, _) = plan(default_seed);
    for seed in first..first + 40 {
        if chaos(seed, 6, without).await != (0, 0, 0) {
            return true;
        }
    }
    false
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_fence_the_audit_finds_faults() {
    assert!(is_caught(2, Without::Fence).await);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn without_the_alignment_the_audit_finds_faults() {
    assert!(is_caught(30, Without::Alignment).await);
}
