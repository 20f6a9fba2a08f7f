//! An events table after dump and restore into other clusters: after `lanes.rebase` every lane goes on exactly where it
//! stood, inside a tick or between two, with parked keys and a change of the map that waits (SQL-1, LANE-3, LANE-4).
//!
//! The ledger is the table `applied`, which is dumped with the checkpoints: each event once and by its key's numbers.

use std::collections::BTreeMap;

use e2e::cluster::Cluster;
use e2e::random::Random;
use e2e::readings::{block, set_up};

/// `advance` claims every lane, works on one, and gives all back. An event with `poison` parks its key.
const WORKER: &str = r"
    CREATE TABLE applied (
        id bigint GENERATED ALWAYS AS IDENTITY, projection text, lane int, position bigint, key text, nr bigint);

    CREATE FUNCTION apply_batch(name text, lane int, epoch bigint, maximum int) RETURNS void LANGUAGE plpgsql AS $$
    DECLARE
        defined lanes.projection := lanes.find_projection(name);
        waiting record;
        event   record;
        parked  text[] := '{}';
        poison  boolean;
    BEGIN
        PERFORM lanes.begin_batch(name, lane, epoch, defined.log_id);
        FOR waiting IN SELECT * FROM lanes.parked_keys(name, lane) WHERE next_try_ms = 0 LOOP
            FOR event IN SELECT * FROM lanes.parked_events(name, waiting.slot, waiting.key, 1000) LOOP
                INSERT INTO applied (projection, lane, position, key, nr)
                VALUES (name, lane, event.position, event.event_key, (event.payload::jsonb -> 'nr')::bigint);
            END LOOP;
            PERFORM lanes.unpark(name, lane, epoch, waiting.slot, waiting.key, event.position, applied_to_tick => event.tick);
        END LOOP;
        FOR event IN SELECT * FROM lanes.read_batch(name, lane, maximum) LOOP
            poison := event.payload ? 'poison' AND event.lane_key <> ALL (parked);
            IF poison OR event.lane_key = ANY (parked) THEN
                PERFORM lanes.park(name, lane, epoch, ARRAY[lane_of(event.lane_key, defined.slots)], ARRAY[event.lane_key],
                    ARRAY[event.position], ARRAY[event.event_type], ARRAY[event.event_key], ARRAY[0::bigint],
                    ARRAY[event.payload::text], ARRAY[CASE WHEN poison THEN '22000' END],
                    ARRAY[CASE WHEN poison THEN 'poison' END], NULL, ARRAY[event.tick]);
                parked := parked || event.lane_key;
            ELSE
                INSERT INTO applied (projection, lane, position, key, nr)
                VALUES (name, lane, event.position, event.event_key, (event.payload -> 'nr')::bigint);
            END IF;
        END LOOP;
        PERFORM lanes.commit_batch(name, lane, epoch);
    END $$;

    CREATE PROCEDURE advance(name text, wanted int, maximum int) LANGUAGE plpgsql AS $$
    DECLARE
        claimed record;
        held    int[] := '{}';
        epochs  bigint[] := '{}';
    BEGIN
        LOOP
            SELECT c.lane, c.epoch INTO claimed FROM lanes.claim(name, 'test') AS c;
            EXIT WHEN NOT FOUND;
            held := held || claimed.lane;
            epochs := epochs || claimed.epoch;
        END LOOP;
        FOR i IN 1 .. cardinality(held) LOOP
            IF held[i] = wanted THEN
                PERFORM apply_batch(name, wanted, epochs[i], maximum);
            END IF;
            PERFORM lanes.release(name, held[i], epochs[i]);
        END LOOP;
    END $$;";

const LATE: &str = r#"SELECT lanes.define('{"projections": {"late": {
    "source_events": ["READ"], "lanes": 3,
    "target": {"table": "late", "primary_key": ["meter"]},
    "fields": {"meter": "TEXT", "n": "BIGINT"}, "derive": {"meter": "event.key"},
    "aggregates": {"READ": {"n": {"op": "count"}}}}}}')"#;

/// How often each key was appended to, and who appends with what chance.
struct Plan {
    random: Random,
    appended: BTreeMap<String, u64>,
}

impl Plan {
    /// The number of the next event of a key.
    fn next(&mut self, key: &str) -> u64 {
        let nr = self.appended.entry(key.to_owned()).or_default();
        *nr += 1;
        *nr
    }

    /// A statement that appends a few events of `writer`'s keys.
    fn insert(&mut self, writer: &str) -> String {
        let rows: Vec<String> = (0..self.random.within(1..=12))
            .map(|_| {
                let key = format!("{writer}-{}", self.random.within(0..=9));
                let nr = self.next(&key);
                let poison = if key == "early-3" && nr == 2 { r#", "poison": true"# } else { "" };
                format!(r#"('READ', '{key}', '{{"nr": {nr}{poison}}}')"#)
            })
            .collect();
        format!("INSERT INTO readings (type, key, payload) VALUES {}", rows.join(", "))
    }

    /// Appends, with a transaction that stays open over a tick, and lets some lanes read some events.
    async fn round(&mut self, cluster: &Cluster, lanes: &[(&str, u64)]) {
        let client = cluster.connect("app").await;
        // Transactions that have nothing to do with it: the clusters' ids differ.
        client.batch_execute("SELECT pg_current_xact_id(); SELECT pg_current_xact_id()").await.unwrap();
        client.batch_execute(&format!("BEGIN; {}", self.insert("open"))).await.unwrap();
        cluster.psql("app", &self.insert("early"));
        cluster.psql("app", "SELECT lanes.tick('readings')");
        client.batch_execute(&format!("{}; COMMIT", self.insert("open"))).await.unwrap();
        cluster.psql("app", &self.insert("early"));
        cluster.psql("app", "SELECT lanes.tick('readings')");
        for (projection, count) in lanes {
            for _ in 0..2 {
                self.advance(cluster, projection, *count);
            }
        }
    }

    fn advance(&mut self, cluster: &Cluster, projection: &str, lanes: u64) {
        let (lane, maximum) = (self.random.within(0..=lanes - 1), self.random.within(1..=9));
        cluster.psql("app", &format!("CALL advance('{projection}', {lane}, {maximum})"));
    }

    fn events(&self) -> u64 {
        self.appended.values().sum()
    }
}

/// Every lane reads all that there is, a few events a batch.
fn drain(cluster: &Cluster) {
    cluster.psql("app", "SELECT lanes.tick('readings')");
    let behind = "SELECT projection, lane FROM lanes.status WHERE lag > 0 OR state = 'waiting_at_stop'";
    for _ in 0..1000 {
        let lanes = cluster.psql("app", behind);
        if lanes.is_empty() {
            return;
        }
        for line in lanes.lines() {
            let (projection, lane) = line.split_once('|').unwrap();
            cluster.psql("app", &format!("CALL advance('{projection}', {lane}, 7)"));
        }
    }
    panic!("these lanes do not come to the end: {}", cluster.psql("app", "SELECT * FROM lanes.status WHERE lag > 0"));
}

/// Fails unless each projection has applied or parked each event once, and each key's in the order of their numbers.
fn assert_ledger(cluster: &Cluster, plan: &Plan) {
    let disorder = "SELECT count(*) FROM (
        SELECT nr, row_number() OVER (PARTITION BY projection, key ORDER BY id) AS n FROM applied) AS a WHERE nr <> n";
    assert_eq!(cluster.psql("app", disorder), "0");
    for projection in ["late", "meters"] {
        let count = format!(
            "SELECT (SELECT count(*) FROM applied WHERE projection = '{projection}')
                + (SELECT count(*) FROM lanes.parked_event WHERE projection = '{projection}')"
        );
        assert_eq!(cluster.psql("app", &count), plan.events().to_string(), "{projection}");
    }
}

/// Restores a dump into a new cluster, where neither ticks nor batches go before the rebase.
fn restore(dump: &str) -> Cluster {
    let cluster = Cluster::start();
    cluster.create_database_with("app", "TEMPLATE template0");
    cluster.psql("app", dump);
    let batch = "lanes.claim_batch('late', 'w') AS c, lanes.read_batch('late', c.lane)";
    for refused in ["lanes.tick('readings')", batch] {
        assert_refused(&cluster, refused, "%came from another database cluster");
    }
    cluster
}

/// Fails unless reading from `what` is refused with 55000 and a message like `message`.
fn assert_refused(cluster: &Cluster, what: &str, message: &str) {
    let sql = format!(
        "DO $$ BEGIN PERFORM * FROM {what}; RAISE 'not refused';
         EXCEPTION WHEN object_not_in_prerequisite_state THEN ASSERT SQLERRM LIKE '{message}', SQLERRM; END $$"
    );
    cluster.psql("app", &sql);
}

#[tokio::test(flavor = "multi_thread")]
async fn after_restore_and_rebase_every_lane_goes_on_where_it_stood() {
    let first = Cluster::start();
    set_up(&first, "app");
    first.psql("app", WORKER);
    let mut plan = Plan { random: Random::new(7), appended: BTreeMap::new() };
    for _ in 0..5 {
        plan.round(&first, &[("meters", 4)]).await;
    }
    // All lanes past the first ticks, which are deleted; what is defined now begins with one that holds all events before.
    drain(&first);
    plan.round(&first, &[("meters", 4)]).await;
    assert!(first.psql("app", "SELECT min(tick) FROM lanes.tick").parse::<u32>().unwrap() > 1);
    first.psql("app", LATE);
    for _ in 0..4 {
        plan.round(&first, &[("meters", 4), ("late", 2)]).await;
    }
    // One change waits. A lane of `late` was never claimed, others stand inside ticks.
    assert_eq!(first.psql("app", "SELECT lanes.merge('meters', 0, 1)"), "f");
    plan.advance(&first, "meters", 1);
    let inside = "SELECT count(*) > 0 FROM lanes.checkpoint AS c JOIN lanes.tick AS t USING (log_id, tick) WHERE c.position < t.last_position";
    assert_eq!(first.psql("app", inside), "t");
    assert_eq!(first.psql("app", "SELECT position FROM lanes.checkpoint WHERE projection = 'late' AND lane = 2"), "0");
    assert_eq!(first.psql("app", "SELECT count(*) FROM lanes.reshaping"), "1");
    assert_eq!(first.psql("app", "SELECT count(*) > 1 FROM lanes.parked_event WHERE projection = 'meters'"), "t");
    let log = "SELECT log_id FROM lanes.log";
    let (first_log, dump) = (first.psql("app", log), first.dump("app"));
    drop(first);

    // As the docs say it, before anybody appends; but somebody has, and the row does not tell: a savepoint has an id of its own.
    let second = restore(&dump);
    second.psql("app", &format!("BEGIN; SAVEPOINT s; {}; RELEASE s; COMMIT", plan.insert("nested")));
    let places = "SELECT projection, lane, position, stop_position FROM lanes.checkpoint ORDER BY projection, lane";
    let before = second.psql("app", places);
    let second_log = second.psql("app", block("rebase.sql"));
    assert_ne!(second_log, first_log);
    assert_eq!(second.psql("app", log), second_log);
    assert_eq!(second.psql("app", places), before);
    plan.round(&second, &[("meters", 4), ("late", 3)]).await;
    assert_eq!(second.psql("app", "SELECT count(*) FROM lanes.reshaping"), "1");
    drain(&second);
    assert_eq!(second.psql("app", "SELECT count(*) FROM lanes.reshaping"), "0");
    assert_eq!(second.psql("app", "SELECT count(*) FROM lanes.status WHERE projection = 'meters'"), "3");
    assert_ledger(&second, &plan);
    // One lane alone inside a tick, after which events with lesser positions come; all others before it.
    plan.round(&second, &[]).await;
    second.psql("app", "CALL advance('meters', 2, 2)");
    let passed = "SELECT count(*) > 0 FROM readings AS r, lanes.checkpoint AS c
        WHERE (c.projection, c.lane) = ('meters', 2) AND lanes.lane_for('meters', r.key) = c.lane
          AND lanes.tick_of(c.log_id, r.position) > c.tick AND r.position < c.position";
    assert_eq!(second.psql("app", &format!("SELECT ({inside}) AND ({passed})")), "t");
    let dump = second.dump("app");
    drop(second);

    // Again, and with events that were appended in between.
    let third = restore(&dump);
    let restored_to = third.psql("app", "SELECT max(position) FROM readings");
    third.psql("app", &plan.insert("early"));
    third.psql("app", &plan.insert("new"));
    assert_refused(&third, "lanes.rebase('readings')", "%was appended after the restore");
    third.psql("app", &format!("SELECT lanes.rebase('readings', {restored_to})"));
    plan.round(&third, &[("meters", 4), ("late", 3)]).await;
    drain(&third);
    assert_ledger(&third, &plan);
    // What was parked in the first cluster, with all that came behind it in the others.
    third.psql(
        "app",
        &format!(
            "INSERT INTO readings (type, key, payload) VALUES ('READ', 'early-3', '{{\"nr\": {}}}')",
            plan.next("early-3")
        ),
    );
    drain(&third);
    let parked = "SELECT min(tick) < 0, max(tick) > 0 FROM lanes.parked_event WHERE projection = 'meters'";
    assert_eq!(third.psql("app", parked), "t|t");
    third.psql("app", "SELECT lanes.retry('meters'), lanes.retry('late')");
    third.psql("app", "INSERT INTO readings (type, key, payload) VALUES ('OTHER', 'x', '{}')");
    for projection in ["meters", "late"] {
        for lane in 0..4 {
            third.psql("app", &format!("CALL advance('{projection}', {lane}, 100)"));
        }
    }
    assert_eq!(third.psql("app", "SELECT count(*) FROM lanes.parked_event"), "0");
    assert_ledger(&third, &plan);
}
