//! The projections of a run, and the queries that show their rows. Each daemon's log has four: a ledger that depends on the
//! order of a key's events and can be poisoned, numbers that are checked at every batch, a hot counter in rows of lanes,
//! and a summary of mode scheduled whose rows the lanes share. The events table has `meters`, of `docs/LANES.md`.

use crate::cluster::Cluster;
use crate::soak::event::LIMIT;
use crate::soak::plan::DAEMONS;

/// The database of a run.
pub const DATABASE: &str = "soak";

/// Projections of a daemon's log.
pub const PER_DAEMON: usize = 4;

/// The names of all projections, by number.
pub fn names() -> Vec<String> {
    let of_daemon = |daemon| -> [String; PER_DAEMON] {
        ["ledger", "numbers", "counter", "summary"].map(|name| format!("{name}_{daemon}"))
    };
    (0..DAEMONS).flat_map(of_daemon).chain(["meters".to_owned()]).collect()
}

/// The definitions for a daemon's log.
pub fn definitions(daemon: usize) -> String {
    format!(
        "
projections:
  ledger_{daemon}:
    source_events: [PAID, REFUNDED, CLOSED]
    lanes: 4
    target: {{ table: public.ledger_{daemon}, primary_key: [account] }}
    fields: {{ account: TEXT, payments: BIGINT, level: BIGINT, last_amount: INT, first_nr: BIGINT, last_nr: BIGINT }}
    derive: {{ account: event.key, last_nr: event.nr }}
    aggregates:
      PAID:
        payments:    {{ op: count }}
        level:       {{ op: add, by: event.amount, floor: 0, ceiling: 2000 }}
        last_amount: {{ op: set, value: event.amount }}
        first_nr:    {{ op: set_once, value: event.nr }}
      REFUNDED:
        level:       {{ op: add, by: event.refund, floor: 0, ceiling: 2000 }}
      CLOSED:
        account:     {{ op: delete }}
    retry: {{ dead_letter: true, max_attempts: 2 }}
  numbers_{daemon}:
    source_events: [PAID, REFUNDED, CLOSED]
    lanes: 3
    target: {{ table: public.numbers_{daemon}, primary_key: [account] }}
    fields: {{ account: TEXT, n: BIGINT, last: BIGINT }}
    derive: {{ account: event.key, last: event.nr }}
    aggregates:
      PAID:     {{ n: {{ op: count }} }}
      REFUNDED: {{ n: {{ op: count }} }}
      CLOSED:   {{ n: {{ op: count }} }}
  counter_{daemon}:
    type: hot
    source_events: [PAID, REFUNDED]
    lanes: 4
    target: {{ table: public.counter_{daemon}, primary_key: [kind, lane] }}
    fields: {{ kind: TEXT, lane: INT, events: BIGINT, cents: NUMERIC, largest: BIGINT }}
    derive: {{ kind: event.kind, lane: lane() }}
    aggregates:
      PAID:
        events:  {{ op: count }}
        cents:   {{ op: add, by: event.cents }}
        largest: {{ op: max, value: event.cents }}
      REFUNDED:
        events:  {{ op: count }}
        cents:   {{ op: add, by: event.cents }}
        largest: {{ op: max, value: event.cents }}
  summary_{daemon}:
    type: analytics
    source_events: [PAID, CLOSED]
    lanes: 2
    target: {{ table: public.summary_{daemon}, primary_key: [kind] }}
    fields: {{ kind: TEXT, events: BIGINT, cents: BIGINT, least: BIGINT, latest: BIGINT }}
    derive: {{ kind: event.kind }}
    aggregates:
      PAID:
        events: {{ op: count }}
        cents:  {{ op: add, by: event.cents }}
        least:  {{ op: min, value: event.cents }}
        latest: {{ op: max, value: event.ts }}
      CLOSED:
        events: {{ op: count }}
    processing: {{ every: 700ms }}
"
    )
}

/// Sets up what watches the tables of a daemon's log: the constraint that poison violates, and the trigger that lets no
/// batch leave a key with another number of events than its last one says.
pub fn watch(cluster: &Cluster, daemon: usize) {
    cluster.psql(
        DATABASE,
        &format!(
            "{};
             CREATE FUNCTION in_order_{daemon}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
                 IF NEW.n <> NEW.last THEN
                     RAISE EXCEPTION 'key % has % events, and the last one is number %', NEW.account, NEW.n, NEW.last;
                 END IF;
                 RETURN NULL; END $$;
             CREATE TRIGGER in_order AFTER INSERT OR UPDATE ON numbers_{daemon}
                 FOR EACH ROW EXECUTE FUNCTION in_order_{daemon}();",
            guard(daemon)
        ),
    );
}

/// SQL that has the ledger refuse great amounts; what it has already stays.
pub fn guard(daemon: usize) -> String {
    format!("ALTER TABLE ledger_{daemon} ADD CONSTRAINT small CHECK (last_amount <= {LIMIT}) NOT VALID")
}

/// SQL that lets everything through.
pub fn mend(daemon: usize) -> String {
    format!("ALTER TABLE ledger_{daemon} DROP CONSTRAINT IF EXISTS small")
}

/// SQL that skips the parked events that can never be applied: their amounts are no numbers, or too great for the column.
/// The second of a key may come to light when the first is out of the way.
pub fn skip(daemon: usize) -> String {
    format!(
        "SELECT lanes.skip('ledger_{daemon}', position, 'soak') FROM lanes.parked_event
         WHERE projection = 'ledger_{daemon}' AND payload::jsonb ->> 'amount' IN ('much', '3000000000')"
    )
}

/// Queries that show the rows of a daemon's projections, in the order of [`super::fold::Folded`].
pub fn queries(daemon: usize) -> [String; 6] {
    let by = |column: &str| format!("ORDER BY {column} COLLATE \"C\"");
    [
        format!(
            "SELECT account, payments, level, last_amount, first_nr, last_nr FROM ledger_{daemon} {}",
            by("account")
        ),
        format!("SELECT account, n, last FROM numbers_{daemon} {}", by("account")),
        format!("SELECT kind, events, cents, largest FROM counter_{daemon}_total {}", by("kind")),
        format!("SELECT kind, events, cents, least, latest FROM summary_{daemon} {}", by("kind")),
        format!("SELECT position FROM lanes.skipped_event WHERE projection = 'ledger_{daemon}' ORDER BY position"),
        format!(
            "SELECT p.name, COALESCE(sum(c.skipped_null_key), 0)
             FROM (VALUES ('counter_{daemon}'), ('summary_{daemon}')) AS p (name)
             JOIN lanes.checkpoint AS c ON c.projection = p.name GROUP BY 1 ORDER BY 1"
        ),
    ]
}
