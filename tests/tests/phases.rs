//! `kill -9` of the daemon and the end of its session in every phase of a batch, of a bisection and of a retry: every event
//! once, in the order of its key, and parked what is to be parked (LANE-2, LANE-3, LANE-4).
//!
//! A phase is reached by a lock that the test holds, and seen in `pg_stat_activity` before anything is ended. In a part of a
//! bisection the session is in a subtransaction, so it holds two transaction ids.
//!
//! `PHASE_ROUNDS=…` runs so many rounds with fresh seeds, which are printed; `PHASE_SEED=…` repeats one.

use std::collections::BTreeMap;

use e2e::cluster::{Cluster, wait_until};
use e2e::daemon::Daemon;
use e2e::random::{Random, seeds_of};

const PROJECTION: &str = "
projections:
  ledger:
    source_events: [PAID]
    lanes: 3
    target: { table: ledger, primary_key: [account] }
    fields: { account: TEXT, payments: BIGINT, level: BIGINT, last: INT }
    derive: { account: event.key, last: event.number }
    aggregates:
      PAID:
        payments: { op: count }
        level:    { op: add, by: event.amount, floor: 0, ceiling: 20 }
    retry: { dead_letter: true, max_attempts: 1 }
";

/// The lock that a batch waits for where deferred constraints are checked.
const GATE: i64 = 4711;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Before the lane's row is locked.
    Begin,
    /// Rows are being written.
    Write,
    /// Rows and checkpoint are written, and the deferred constraints are checked.
    Commit,
    /// The whole batch was rolled back, a part of it is written under its savepoint, and its constraints are checked.
    Bisect,
    /// The good parts are written, and what is parked is not.
    Park,
    /// The events of a parked key are being written.
    Retry,
    /// They are written, and still parked.
    Unpark,
}

const PHASES: [Phase; 7] =
    [Phase::Begin, Phase::Write, Phase::Commit, Phase::Bisect, Phase::Park, Phase::Retry, Phase::Unpark];

impl Phase {
    fn poisons(self) -> bool {
        matches!(self, Phase::Bisect | Phase::Park)
    }

    fn retries(self) -> bool {
        matches!(self, Phase::Retry | Phase::Unpark)
    }

    /// What the test holds, so that the batch gets here and no further.
    fn lock(self, account: &str) -> String {
        match self {
            Phase::Begin => "SELECT FROM lanes.checkpoint FOR UPDATE".to_owned(),
            Phase::Write | Phase::Retry => {
                format!("SELECT FROM ledger WHERE account = '{account}' FOR UPDATE")
            }
            Phase::Commit | Phase::Bisect => format!("SELECT pg_advisory_xact_lock({GATE})"),
            Phase::Park | Phase::Unpark => "LOCK TABLE lanes.parked_event IN SHARE MODE".to_owned(),
        }
    }

    /// Whether a session `a` of the daemon is here.
    fn seen(self) -> String {
        let (query, transactions) = match self {
            Phase::Begin => ("%lanes.begin_batch(%", "0"),
            // The first batch of a lane that was claimed goes in parts.
            Phase::Write => ("%UPDATE public.ledger%", "1, 2"),
            Phase::Commit => ("COMMIT", "1"),
            Phase::Bisect => ("SET CONSTRAINTS ALL IMMEDIATE;%", "2"),
            Phase::Retry => ("%UPDATE public.ledger%", "2"),
            Phase::Park => ("%lanes.park(%", "1"),
            Phase::Unpark => ("%lanes.unpark(%", "1"),
        };
        let held = "SELECT count(*) FROM pg_locks AS l WHERE l.pid = a.pid AND l.locktype = 'transactionid'
                    AND l.mode = 'ExclusiveLock' AND l.granted";
        format!(
            "a.application_name LIKE 'ingestd worker%' AND a.wait_event_type = 'Lock' AND a.query LIKE '{query}'
             AND ({held}) IN ({transactions})"
        )
    }
}

/// An account as its payments make it, one after the other.
#[derive(Default, Clone)]
struct Account {
    payments: i64,
    level: i64,
    last: i64,
}

#[derive(Clone, Copy)]
struct Payment {
    amount: i64,
    number: i64,
}

/// What there must be.
#[derive(Default)]
struct Model {
    accounts: BTreeMap<String, Account>,
    parked: BTreeMap<String, Vec<Payment>>,
}

impl Model {
    fn pay(&mut self, account: &str, payment: Payment) {
        if let Some(waiting) = self.parked.get_mut(account) {
            waiting.push(payment);
        } else if payment.number < 0 {
            self.parked.insert(account.to_owned(), vec![payment]);
        } else {
            self.apply(account, payment);
        }
    }

    fn apply(&mut self, account: &str, payment: Payment) {
        let account = self.accounts.entry(account.to_owned()).or_default();
        account.payments += 1;
        account.level = (account.level + payment.amount).clamp(0, 20);
        account.last = payment.number;
    }

    fn retry(&mut self, account: &str) {
        for payment in self.parked.remove(account).unwrap() {
            self.apply(account, payment);
        }
    }

    fn rows(&self) -> String {
        let line = |(name, account): (&String, &Account)| {
            format!("{name}|{}|{}|{}", account.payments, account.level, account.last)
        };
        self.accounts.iter().map(line).collect::<Vec<_>>().join("\n")
    }

    fn waiting(&self) -> String {
        let line = |(name, waiting): (&String, &Vec<Payment>)| {
            let numbers: Vec<String> = waiting.iter().map(|payment| payment.number.to_string()).collect();
            format!("{name}|{}", numbers.join(","))
        };
        self.parked.iter().map(line).collect::<Vec<_>>().join("\n")
    }
}

#[test]
fn crashes_in_every_phase_repeat_and_lose_nothing() {
    for seed in seeds_of("PHASE", 1) {
        println!("PHASE_SEED={seed}");
        run(&mut Random::new(seed));
    }
}

fn run(random: &mut Random) {
    let cluster = Cluster::start();
    cluster.create_database("app");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("app")), "postgres_connections = 2");
    daemon.expect_errors();
    daemon.start();
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, PROJECTION).unwrap();
    daemon.run(&["apply", file.to_str().unwrap()]);
    cluster.psql(
        "app",
        &format!(
            "ALTER TABLE ledger ADD CONSTRAINT good CHECK (last >= 0);
             CREATE FUNCTION gate() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 PERFORM pg_advisory_xact_lock_shared({GATE}); RETURN NULL; END $$;
             CREATE CONSTRAINT TRIGGER gate AFTER INSERT OR UPDATE ON ledger DEFERRABLE INITIALLY DEFERRED
                 FOR EACH ROW EXECUTE FUNCTION gate();"
        ),
    );
    let all: Vec<String> = (10..50).map(|number| format!("a{number}")).collect();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let rival = runtime.block_on(cluster.connect("app"));
    let watcher = runtime.block_on(cluster.connect("app"));

    let mut model = Model::default();
    let mut number = 0;
    let mut events = 0;
    let mut pay = |random: &mut Random, model: &mut Model, daemon: &Daemon, poisoned: Option<&str>| -> u64 {
        let mut lines = Vec::new();
        let mut send = |model: &mut Model, account: &str, payment: Payment| {
            model.pay(account, payment);
            let Payment { amount, number } = payment;
            lines.push(format!(
                r#"{{"type":"PAID","key":"{account}","payload":{{"amount":{amount},"number":{number}}}}}"#
            ));
        };
        // Every account at least once, so that its row is there and a batch meets it.
        for account in all.iter().chain(&all) {
            number += 1;
            send(model, account, Payment { amount: random.within(0..=30) as i64 - 15, number });
        }
        if let Some(account) = poisoned {
            number += 1;
            send(model, account, Payment { amount: 1, number: -number });
        }
        events += lines.len() as u64;
        assert_eq!(daemon.post(&lines.join("\n"), &[]).unwrap().status, 200);
        events
    };
    let events = pay(random, &mut model, &daemon, None);
    daemon.wait_until_applied(3, events);

    // Each phase with each end of it, in random order. A lane with parked keys works in parts alone, so those that park come
    // later; those that retry need somebody who is parked.
    let mut plan: Vec<(Phase, bool)> = PHASES.iter().flat_map(|phase| [(*phase, true), (*phase, false)]).collect();
    random.shuffle(&mut plan);
    plan.sort_by_key(|(phase, _)| (phase.retries(), phase.poisons()));
    for (phase, kills) in plan {
        println!("{phase:?}, {}", if kills { "kill -9" } else { "the session ends" });
        let free: Vec<&String> = all.iter().filter(|account| !model.parked.contains_key(*account)).collect();
        let any = (*random.pick(&free)).clone();
        let poisoned = phase.poisons().then(|| any.clone());
        let retried = phase.retries().then(|| model.parked.keys().next().unwrap().clone());
        let locked = retried.clone().unwrap_or(any);

        if phase.retries() {
            cluster.psql("app", "ALTER TABLE ledger DROP CONSTRAINT good");
        }
        let lock = format!("BEGIN; {}", phase.lock(&locked));
        runtime.block_on(rival.batch_execute(&lock)).unwrap();
        let mut applied = None;
        match &retried {
            Some(account) => {
                model.retry(account);
                cluster.psql("app", &format!("SELECT lanes.retry('ledger', '{account}')"));
            }
            None => applied = Some(pay(random, &mut model, &daemon, poisoned.as_deref())),
        }
        let sessions = format!("FROM pg_stat_activity AS a WHERE {}", phase.seen());
        runtime.block_on(wait_until(&watcher, &format!("EXISTS (SELECT {sessions})")));
        if kills {
            daemon.kill();
        } else {
            runtime.block_on(watcher.batch_execute(&format!("SELECT pg_terminate_backend(a.pid) {sessions}"))).unwrap();
        }
        // What is left of a killed daemon's session goes on when the lock is gone, before the next daemon or beside it.
        let starts_first = random.chance(1, 2);
        if kills && starts_first {
            daemon.start();
        }
        runtime.block_on(rival.batch_execute("ROLLBACK")).unwrap();
        if kills && !starts_first {
            daemon.start();
        }
        if let Some(events) = applied {
            daemon.wait_until_applied(3, events);
        }
        let parked = model.parked.len().to_string();
        daemon.wait_for("the parked keys are as they must be", |_| {
            cluster.psql("app", "SELECT count(*) FROM lanes.parked_key") == parked
        });
        if phase.retries() {
            // What was let through stays.
            cluster.psql("app", "ALTER TABLE ledger ADD CONSTRAINT good CHECK (last >= 0) NOT VALID");
        }
        let rows = "SELECT account, payments, level, last FROM ledger ORDER BY account COLLATE \"C\"";
        assert_eq!(cluster.psql("app", rows), model.rows(), "{phase:?}");
        let waiting = "SELECT k.key, string_agg(e.payload::jsonb ->> 'number', ',' ORDER BY e.position)
                       FROM lanes.parked_key AS k JOIN lanes.parked_event AS e USING (projection, version, slot, key_hash)
                       GROUP BY 1 ORDER BY k.key COLLATE \"C\"";
        assert_eq!(cluster.psql("app", waiting), model.waiting(), "{phase:?}");
    }
    assert!(model.parked.is_empty(), "the last retry freed the last key");
}
