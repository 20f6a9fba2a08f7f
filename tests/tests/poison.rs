//! Poison in the middle of the week's flights: each kind of event that cannot be applied parks its aircraft and nothing
//! else, what passes parks nobody, and after mending every aircraft is what its flights in order make it (LANE-3, LANE-4),
//! also across a split of lanes and a merge.
//!
//! What is right is computed here, one flight after the other. The running delay has a floor and a ceiling, so that it
//! depends on the order of every single flight.

use std::collections::{BTreeMap, BTreeSet};

use e2e::cluster::{Cluster, wait_until};
use e2e::daemon::Daemon;
use e2e::flights::week;
use serde_json::{Value, json};

const PROJECTION: &str = "
projections:
  aircraft:
    source_events: [FLIGHT_DEPARTED]
    lanes: 4
    lane_key: event.tailnum
    target: { table: aircraft, primary_key: [tailnum] }
    fields: { tailnum: TEXT, carrier: TEXT, flights: BIGINT, miles: BIGINT, delay: BIGINT, longest: INT,
              first_flight: INT, last_flight: INT, note: TEXT }
    derive: { tailnum: event.tailnum, carrier: event.carrier, last_flight: event.flight, note: event.note }
    aggregates:
      FLIGHT_DEPARTED:
        flights:      { op: count }
        miles:        { op: add, by: event.distance }
        delay:        { op: add, by: event.arr_delay, floor: 0, ceiling: 90 }
        longest:      { op: max, value: event.dep_delay }
        first_flight: { op: set_once, value: event.flight }
    retry: { dead_letter: true, max_attempts: 1 }
";

/// An aircraft's row as its flights make it, one after the other.
#[derive(Default, Clone)]
struct Aircraft {
    carrier: Option<String>,
    flights: i64,
    miles: i64,
    delay: i64,
    longest: Option<i64>,
    first_flight: Option<i64>,
    last_flight: Option<i64>,
    note: Option<String>,
}

impl Aircraft {
    fn fly(&mut self, payload: &Value) {
        let text = |name: &str| payload[name].as_str().map(str::to_owned);
        let number = |name: &str| payload[name].as_i64();
        self.carrier = text("carrier");
        self.flights += 1;
        self.miles += number("distance").unwrap_or(0);
        if let Some(delay) = number("arr_delay") {
            self.delay = (self.delay + delay).clamp(0, 90);
        }
        self.longest = self.longest.max(number("dep_delay"));
        self.first_flight = self.first_flight.or(number("flight"));
        self.last_flight = number("flight");
        self.note = text("note");
    }

    fn line(&self, tailnum: &str) -> String {
        let number = |number: Option<i64>| number.map_or("-".to_owned(), |number| number.to_string());
        format!(
            "{tailnum} {} {} {} {} {} {} {} {}",
            self.carrier.as_deref().unwrap_or("-"),
            self.flights,
            self.miles,
            self.delay,
            number(self.longest),
            number(self.first_flight),
            number(self.last_flight),
            self.note.as_deref().unwrap_or("-")
        )
    }
}

/// The rows that these events make, as text.
fn right<'e>(events: impl Iterator<Item = &'e Value>) -> String {
    let mut fleet: BTreeMap<&str, Aircraft> = BTreeMap::new();
    for event in events {
        if let Some(tailnum) = tailnum(event) {
            fleet.entry(tailnum).or_default().fly(&event["payload"]);
        }
    }
    fleet.iter().map(|(tailnum, aircraft)| aircraft.line(tailnum)).collect::<Vec<_>>().join("\n")
}

/// Compares the table with the rows that it should have, and shows only those that differ.
fn assert_rows(cluster: &Cluster, right: String) {
    let number = |name: &str| format!("coalesce({name}::text, '-')");
    let columns =
        ["carrier", "flights", "miles", "delay", "longest", "first_flight", "last_flight", "note"].map(number);
    let select = format!("SELECT concat_ws(' ', tailnum, {}) FROM aircraft", columns.join(", "));
    let found = cluster.psql("app", &select);
    let (found, right): (BTreeSet<&str>, BTreeSet<&str>) = (found.lines().collect(), right.lines().collect());
    let difference: Vec<&&str> = found.symmetric_difference(&right).collect();
    assert!(difference.is_empty(), "{difference:#?}");
}

fn tailnum(event: &Value) -> Option<&str> {
    event["payload"]["tailnum"].as_str()
}

/// Where an event stands that was sent after the restart: the daemon's two starts have a row each, and positions begin
/// at 1.
fn position(index: usize) -> u64 {
    index as u64 + 3
}

/// Everything that was sent, in order.
struct Sent<'d> {
    daemon: &'d Daemon,
    events: Vec<Value>,
}

impl Sent<'_> {
    fn post(&mut self, events: &[Value]) {
        let lines: Vec<String> = events.iter().map(Value::to_string).collect();
        assert_eq!(self.daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
        self.events.extend_from_slice(events);
    }
}

#[test]
fn poison_in_the_middle_of_the_week_is_parked_mended_and_applied_in_order() {
    let cluster = Cluster::start();
    cluster.create_database("app");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("app")), "");
    daemon.expect_errors();
    // Longer than a test needs to be seen waiting, and shorter than the daemon waits for a lock.
    cluster.psql("postgres", "ALTER DATABASE app SET deadlock_timeout = '4s'");
    daemon.start();
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, PROJECTION).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    cluster.psql(
        "app",
        "ALTER TABLE aircraft ALTER carrier SET NOT NULL, ADD CONSTRAINT one_note UNIQUE (note);
         CREATE TABLE allowed (note text PRIMARY KEY);
         INSERT INTO allowed VALUES ('taken'), ('slow');
         ALTER TABLE aircraft ADD FOREIGN KEY (note) REFERENCES allowed DEFERRABLE INITIALLY DEFERRED;
         CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
             IF NEW.last_flight = 666 THEN RAISE EXCEPTION 'the number of the beast'; END IF;
             IF NEW.note = 'slow' THEN PERFORM pg_sleep(60); END IF;
             RETURN NEW; END $$;
         CREATE TRIGGER refuse BEFORE INSERT OR UPDATE ON aircraft FOR EACH ROW EXECUTE FUNCTION refuse();",
    );

    let flights: Vec<Value> = week().iter().map(|line| serde_json::from_str(line).unwrap()).collect();
    let departed: Vec<Value> = flights.into_iter().filter(|event| event["type"] == "FLIGHT_DEPARTED").collect();
    // The aircraft that fly most have flights before the poison and after it.
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    departed.iter().filter_map(tailnum).for_each(|tailnum| *counts.entry(tailnum).or_default() += 1);
    let mut busiest: Vec<(usize, &str)> = counts.into_iter().map(|(tailnum, count)| (count, tailnum)).collect();
    busiest.sort_unstable();
    let poisoned: Vec<&str> = busiest.iter().rev().take(8).map(|(_, tailnum)| *tailnum).collect();
    let [no_carrier, long_delay, far, same_note, unknown_note, beast, zero, slow] = poisoned[..] else { panic!() };
    let with = |tailnum: &str, change: Value| {
        let mut event = json!({"type": "FLIGHT_DEPARTED", "key": tailnum, "ts": 1_357_300_000_000_u64, "payload": {
            "carrier": "XX", "flight": 1, "tailnum": tailnum, "dep_delay": 1, "arr_delay": 50, "distance": 100}});
        for (name, value) in change.as_object().unwrap() {
            event["payload"][name] = value.clone();
        }
        event
    };

    let mut sent = Sent { daemon: &daemon, events: Vec::new() };
    sent.post(&departed[..2000]);
    sent.post(&[with("parked for good", json!({"note": "taken"}))]);
    daemon.wait_until_applied(4, 2002);

    // A deadlock: it holds a row that the batch wants, and wants the lane's row, which the batch holds.
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let mut rival = cluster.connect("app").await;
        let watcher = cluster.connect("app").await;
        rival.batch_execute("SET deadlock_timeout = '10min'").await.unwrap();
        let transaction = rival.transaction().await.unwrap();
        transaction.execute("UPDATE aircraft SET note = note WHERE tailnum = $1", &[&slow]).await.unwrap();
        sent.post(&[with(slow, json!({}))]);
        let waits = "EXISTS (SELECT FROM pg_stat_activity WHERE application_name LIKE 'ingestd worker%'
                     AND wait_event_type = 'Lock')";
        while !daemon.log().contains("40P01: deadlock detected") {
            wait_until(&watcher, waits).await;
            // Returns when the daemon's batch has ended: by the deadlock, or, if this came late, by its lock_timeout.
            let want_the_lane = "SAVEPOINT s; UPDATE lanes.checkpoint SET lane = lane; ROLLBACK TO s";
            transaction.batch_execute(want_the_lane).await.unwrap();
        }
        transaction.rollback().await.unwrap();
    });
    sent.post(&departed[2000..2500]);
    daemon.wait_until_applied(4, 2503);
    assert_rows(&cluster, right(sent.events.iter()));

    // The table is away for a while.
    cluster.psql("app", "ALTER TABLE aircraft RENAME TO elsewhere");
    sent.post(&departed[2500..3000]);
    daemon.wait_for("all lanes stand still and say why", |status| {
        let stopped = |lane: &Value| {
            lane["state"] == "stopped" && lane["reason"].as_str().is_some_and(|reason| reason.starts_with("42P01"))
        };
        status["lanes"].as_array().unwrap().iter().all(stopped)
    });
    cluster.psql("app", "ALTER TABLE elsewhere RENAME TO aircraft");
    daemon.wait_until_applied(4, 3003);
    assert_rows(&cluster, right(sent.events.iter()));
    assert_eq!(cluster.psql("app", "SELECT count(*) FROM lanes.parked_key"), "0");

    let events = sent.events;
    // For the daemon alone: what the test itself asks may take longer.
    let settings = std::fs::read_to_string(daemon.settings_path()).unwrap();
    let limited = "application_name=e2e options='-c statement_timeout=1s'";
    std::fs::write(daemon.settings_path(), settings.replace("application_name=e2e", limited)).unwrap();
    daemon.kill();
    daemon.start();
    let mut sent = Sent { daemon: &daemon, events };

    // The poison, among flights of other aircraft: a constraint sees what a batch leaves of a row.
    let is_poisoned = |event: &&Value| tailnum(event).is_some_and(|tailnum| poisoned.contains(&tailnum));
    let (of_them, of_others): (Vec<&Value>, Vec<&Value>) = departed[3000..3500].iter().partition(is_poisoned);
    let poison = [
        (no_carrier, json!({"carrier": null}), "23502"),
        (long_delay, json!({"dep_delay": 3_000_000_000_u64}), "22000"),
        (far, json!({"distance": 5_000_000_000_000_000_000_u64}), ""),
        (far, json!({"distance": 5_000_000_000_000_000_000_u64}), "22003"),
        (same_note, json!({"note": "taken"}), "23505"),
        (unknown_note, json!({"note": "unknown"}), "23503"),
        (beast, json!({"flight": 666}), "P0001"),
        (zero, json!({"note": "a\0b"}), "22000"),
        (slow, json!({"note": "slow"}), "57014"),
    ];
    let mut middle: Vec<Value> = of_others.into_iter().cloned().collect();
    let mut first_waiting: BTreeMap<&str, (usize, &str)> = BTreeMap::new();
    for (index, (tailnum, change, _)) in poison.iter().enumerate() {
        let at = index * middle.len() / poison.len();
        middle.insert(at, with(tailnum, change.clone()));
    }
    for (index, event) in middle.iter().enumerate() {
        let Some(tailnum) = tailnum(event).filter(|tailnum| poisoned.contains(tailnum)) else { continue };
        let (_, _, state) = poison.iter().rev().find(|(other, ..)| *other == tailnum).unwrap();
        first_waiting
            .insert(poisoned.iter().find(|other| **other == tailnum).unwrap(), (sent.events.len() + index, state));
    }
    sent.post(&middle);
    let stored = sent.events.len() as u64;
    daemon.wait_until_applied(4, stored + 2);
    // The lanes are split while keys are parked, so what comes behind the poison is for other lanes to put there.
    assert_eq!(cluster.psql("app", "SELECT lanes.resize('aircraft', 8)"), "t");
    let after: Vec<Value> = of_them.into_iter().chain(&departed[3500..]).cloned().collect();
    sent.post(&after);
    daemon.wait_until_applied(8, sent.events.len() as u64 + 2);

    // Eight aircraft wait with everything since the poison, in order; everything else is applied.
    let waits = |index: usize, event: &Value| {
        tailnum(event).is_some_and(|tailnum| first_waiting.get(tailnum).is_some_and(|(first, _)| index >= *first))
    };
    let applied = sent.events.iter().enumerate().filter(|(index, event)| !waits(*index, event));
    assert_rows(&cluster, right(applied.map(|(_, event)| event)));
    let expected: Vec<String> = first_waiting
        .iter()
        .map(|(key, (first, state))| {
            let waiting = sent
                .events
                .iter()
                .enumerate()
                .filter(|(index, event)| tailnum(event) == Some(key) && waits(*index, event));
            let places: Vec<u64> = waiting.map(|(index, _)| position(index)).collect();
            assert!(places.len() > 1 && places[0] == position(*first), "{key} has flights behind its poison");
            format!("{key}|{state}|{}", places.iter().map(u64::to_string).collect::<Vec<_>>().join(","))
        })
        .collect();
    let parked =
        "SELECT k.key, k.sqlstate, string_agg(position::text, ',' ORDER BY position) FROM lanes.parked_key AS k
                  JOIN lanes.parked_event USING (projection, version, slot, key_hash)
                  GROUP BY 1, 2 ORDER BY k.key COLLATE \"C\"";
    assert_eq!(cluster.psql("app", parked), expected.join("\n"));
    let listed = daemon.run(&["dead-letters", "list"]);
    for (key, (_, state)) in &first_waiting {
        assert!(listed.lines().any(|line| line.contains(key) && line.contains(state)), "{key}: {listed}");
    }

    // And merged before they are retried, by lanes that neither parked the first nor put the later ones behind it.
    cluster.psql("app", "SELECT lanes.resize('aircraft', 3)");
    daemon.wait_until_applied(3, sent.events.len() as u64 + 2);
    assert_eq!(cluster.psql("app", parked), expected.join("\n"));

    // Mended where it can be, skipped where not.
    cluster.psql(
        "app",
        "ALTER TABLE aircraft ALTER carrier DROP NOT NULL, DROP CONSTRAINT one_note;
         INSERT INTO allowed VALUES ('unknown'); DROP TRIGGER refuse ON aircraft",
    );
    let mut skipped = BTreeSet::new();
    for (key, (first, _)) in &first_waiting {
        if [long_delay, far, zero].contains(key) {
            skipped.insert(*first);
            daemon.run(&["dead-letters", "skip", "aircraft", &position(*first).to_string(), "--reason", "test"]);
        } else {
            daemon.run(&["dead-letters", "retry", "aircraft", key]);
        }
    }
    daemon.wait_for("nothing waits", |_| cluster.psql("app", "SELECT count(*) FROM lanes.parked_key") == "0");
    let applied = sent.events.iter().enumerate().filter(|(index, _)| !skipped.contains(index));
    assert_rows(&cluster, right(applied.map(|(_, event)| event)));
    let audit = "SELECT string_agg(position::text, ',' ORDER BY position) FROM lanes.skipped_event";
    let skipped: Vec<String> = skipped.into_iter().map(|index| position(index).to_string()).collect();
    assert_eq!(cluster.psql("app", audit), skipped.join(","));
}
