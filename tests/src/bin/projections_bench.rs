//! Speed of projections as ratios within one run, on a throw-away cluster with fsync and the installed extension:
//! `make bench-projections`; `docs/BENCHMARKS.md` says what is compared. Each round measures both sides, one after the
//! other, because a machine that others use is fast and slow by turns; ratios are medians of the rounds' ratios.
//!
//! Arguments: rounds, events of the hot counter, rows of the read model.

use std::fmt::Write as _;
use std::io::Write as _;
use std::time::{Instant, SystemTime, UNIX_EPOCH};

use e2e::cluster::Cluster;
use e2e::daemon::Daemon;
use tokio_postgres::Client;

/// Connections of the daemon, and lanes of each projection; the hand-written loop has as many.
const CONNECTIONS: usize = 4;

/// Rows of a transaction of the hand-written loop: `lane_batch_size` of the daemon.
const BATCH: usize = 10_000;

/// Lines of a request with which a log is filled.
const REQUEST: usize = 10_000;

#[tokio::main]
async fn main() {
    let number = |at: usize, default: usize| {
        std::env::args().nth(at).map_or(default, |text| text.parse().expect("the arguments are numbers"))
    };
    let (rounds, events, rows) = (number(1, 5), number(2, 1_000_000), number(3, 400_000));
    let cluster = Cluster::start_durable();
    cluster.create_database("bench");
    hot_counter(&cluster, rounds, events);
    read_model(&cluster, rounds, rows).await;
}

fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn report(what: &str, ours: &[f64], theirs: &[f64]) {
    let ratios: Vec<f64> = ours.iter().zip(theirs).map(|(ours, theirs)| ours / theirs).collect();
    let (least, greatest) =
        ratios.iter().fold((f64::MAX, 0.0_f64), |(least, greatest), ratio| (least.min(*ratio), greatest.max(*ratio)));
    println!(
        "{what:<44} {:>8.2}  {least:.2} to {greatest:.2}  {:.0} against {:.0} a second",
        median(&ratios),
        median(ours),
        median(theirs)
    );
}

/// A daemon whose log holds `lines`, stopped, with one projection defined.
fn filled(cluster: &Cluster, lines: impl Iterator<Item = String>) -> Daemon {
    let settings = format!("postgres_connections = {CONNECTIONS}\nlane_batch_size = {BATCH}");
    let mut daemon = Daemon::new(Some(&cluster.connection_string("bench")), &settings);
    daemon.start();
    let (mut body, mut count) = (String::new(), 0);
    let post = |body: &mut String| {
        assert_eq!(daemon.post(body, &[]).expect("the daemon answers").status, 200);
        body.clear();
    };
    for line in lines {
        writeln!(body, "{line}").expect("memory");
        count += 1;
        if count % REQUEST == 0 {
            post(&mut body);
        }
    }
    if !body.is_empty() {
        post(&mut body);
    }
    assert!(daemon.stop().success());
    daemon
}

/// Events a second from the claim of the first lane to the moment when `visible` has answered `events`; the log holds them all
/// before. The projection is new, and so is its table.
fn from_log(cluster: &Cluster, daemon: &mut Daemon, name: &str, definition: &str, visible: &str, events: usize) -> f64 {
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, definition).expect("the directory is ours");
    daemon.run(&["apply", file.to_str().expect("the path is UTF-8")]);
    cluster.psql("bench", "CHECKPOINT");
    daemon.start();
    // Asking Postgres again and again would cost it as much as the work does.
    daemon.wait_until_applied(CONNECTIONS, events as u64);
    assert_eq!(cluster.psql("bench", visible), events.to_string());
    let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs_f64();
    let claimed = cluster.psql(
        "bench",
        &format!("SELECT extract(epoch FROM min(claimed_at)) FROM lanes.checkpoint WHERE projection = '{name}'"),
    );
    assert!(daemon.stop().success());
    cluster.psql("bench", &format!("DELETE FROM lanes.projection; DROP TABLE {name} CASCADE"));
    events as f64 / (now - claimed.parse::<f64>().expect("a time"))
}

/// Check-ins of one show by many users, against one UPSERT of one row per event by 16 clients.
fn hot_counter(cluster: &Cluster, rounds: usize, events: usize) {
    let definition = format!(
        "projections:\n  checkins:\n    type: hot\n    source_events: [CHECKED_IN]\n    lanes: {CONNECTIONS}\n    target: {{ table: checkins, primary_key: [show, lane] }}\n    fields: {{ show: TEXT, lane: INT, n: BIGINT, last: BIGINT }}\n    derive: {{ show: event.show, lane: lane(), last: event.ts }}\n    aggregates: {{ CHECKED_IN: {{ n: {{ op: count }} }} }}\n"
    );
    cluster.psql(
        "bench",
        "CREATE TABLE one_row (show text PRIMARY KEY, n bigint NOT NULL, last bigint) WITH (fillfactor = 50)",
    );
    let upsert = "INSERT INTO one_row AS c VALUES ('show-7', 1, 1357017300000) ON CONFLICT (show)
                  DO UPDATE SET n = c.n + EXCLUDED.n, last = EXCLUDED.last;";
    let line = |number: usize| {
        format!(
            r#"{{"type":"CHECKED_IN","key":"user-{}","ts":{},"payload":{{"show":"show-7","venue":"venue-2","gate":{}}}}}"#,
            number % 50_021,
            1_357_017_300_000 + number,
            number % 9
        )
    };
    let mut daemon = filled(cluster, (0..events).map(line));
    let visible = "SELECT coalesce(sum(n), 0) FROM checkins_total WHERE show = 'show-7'";
    let (mut ours, mut theirs) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        theirs.push(transactions_per_second(cluster, upsert));
        ours.push(from_log(cluster, &mut daemon, "checkins", &definition, visible, events));
    }
    report("hot counter / one UPSERT per event", &ours, &theirs);
}

fn transactions_per_second(cluster: &Cluster, script: &str) -> f64 {
    let mut file = tempfile::NamedTempFile::new().expect("a file");
    file.write_all(script.as_bytes()).expect("written");
    let mut command = cluster.program("pgbench", "bench");
    let output = command
        .args(["-n", "-M", "prepared", "-c", "16", "-j", "2", "-T", "4", "-f"])
        .arg(file.path())
        .output()
        .expect("pgbench");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let line = text.lines().find(|line| line.starts_with("tps = ")).unwrap_or_else(|| panic!("{output:?}"));
    line["tps = ".len()..].split(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

fn order_payload(number: usize) -> String {
    format!(
        r#"{{"customer":"customer-{}","status":"placed","cents":{},"note":"left at the door"}}"#,
        number % 7919,
        number % 10_007
    )
}

/// A row for each event, against a loop that somebody would write by hand: payloads in memory are parsed, and batches of
/// the same size are sent as arrays, on as many connections.
async fn read_model(cluster: &Cluster, rounds: usize, rows: usize) {
    let definition = format!(
        "projections:\n  orders:\n    source_events: [PLACED]\n    lanes: {CONNECTIONS}\n    target: {{ table: orders, primary_key: [id] }}\n    fields: {{ id: TEXT, customer: TEXT, status: TEXT, cents: BIGINT, changed: BIGINT }}\n    derive: {{ id: event.key, customer: event.customer, status: event.status, changed: event.ts }}\n    aggregates: {{ PLACED: {{ cents: {{ op: add, by: event.cents }} }} }}\n"
    );
    let line = |number: usize| {
        format!(
            r#"{{"type":"PLACED","key":"order-{number}","ts":{},"payload":{}}}"#,
            1_357_017_300_000 + number,
            order_payload(number)
        )
    };
    let mut daemon = filled(cluster, (0..rows).map(line));
    let visible = "SELECT count(*) FROM orders";
    let events: Vec<(String, i64, String)> = (0..rows)
        .map(|number| (format!("order-{number}"), 1_357_017_300_000 + number as i64, order_payload(number)))
        .collect();
    let (mut ours, mut theirs, mut least) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        theirs.push(by_hand(cluster, &events, true).await);
        ours.push(from_log(cluster, &mut daemon, "orders", &definition, visible, rows));
        least.push(by_hand(cluster, &events, false).await);
    }
    report("read model / unnest loop by hand", &ours, &theirs);
    report("read model / the same without parsing", &ours, &least);
}

/// Rows a second of the hand-written loop. Without `parses` its values are ready before the clock starts.
async fn by_hand(cluster: &Cluster, events: &[(String, i64, String)], parses: bool) -> f64 {
    cluster.psql(
        "bench",
        "DROP TABLE IF EXISTS by_hand, done; CREATE TABLE done (worker int PRIMARY KEY, rows bigint);
         CREATE TABLE by_hand (id text PRIMARY KEY, customer text, status text, cents bigint NOT NULL DEFAULT 0, changed bigint);
         CHECKPOINT",
    );
    let share = events.len().div_ceil(CONNECTIONS);
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        clients.push(cluster.connect("bench").await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    let ready: Vec<Vec<Columns>> = events
        .chunks(share)
        .map(|part| if parses { Vec::new() } else { part.chunks(BATCH).map(Columns::read).collect() })
        .collect();
    let parts: Vec<Vec<(String, i64, String)>> = events.chunks(share).map(<[_]>::to_vec).collect();
    let start = Instant::now();
    for (worker, ((client, part), ready)) in clients.into_iter().zip(parts).zip(ready).enumerate() {
        tasks.spawn(async move {
            if parses {
                for batch in part.chunks(BATCH) {
                    send(&client, worker as i32, &Columns::read(batch)).await;
                }
            } else {
                for columns in &ready {
                    send(&client, worker as i32, columns).await;
                }
            }
        });
    }
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics");
    }
    let seconds = start.elapsed().as_secs_f64();
    assert_eq!(cluster.psql("bench", "SELECT count(*) FROM by_hand"), events.len().to_string());
    events.len() as f64 / seconds
}

/// The arrays of a batch, sorted by key.
#[derive(Default)]
struct Columns {
    ids: Vec<String>,
    customers: Vec<Option<String>>,
    states: Vec<Option<String>>,
    cents: Vec<Option<i64>>,
    changed: Vec<i64>,
}

impl Columns {
    fn read(batch: &[(String, i64, String)]) -> Columns {
        let mut sorted: Vec<&(String, i64, String)> = batch.iter().collect();
        sorted.sort_unstable_by(|left, right| left.0.cmp(&right.0));
        let mut columns = Columns::default();
        for (id, ts, payload) in sorted {
            let payload: serde_json::Value = serde_json::from_str(payload).expect("it is JSON");
            columns.ids.push(id.clone());
            columns.customers.push(payload["customer"].as_str().map(str::to_owned));
            columns.states.push(payload["status"].as_str().map(str::to_owned));
            columns.cents.push(payload["cents"].as_i64());
            columns.changed.push(*ts);
        }
        columns
    }
}

async fn send(client: &Client, worker: i32, columns: &Columns) {
    const UPSERT: &str = "INSERT INTO by_hand AS t (id, customer, status, cents, changed)
        SELECT * FROM unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
        ON CONFLICT (id) DO UPDATE SET customer = excluded.customer, status = excluded.status,
            cents = t.cents + excluded.cents, changed = excluded.changed";
    let Columns { ids, customers, states, cents, changed } = columns;
    client.batch_execute("BEGIN").await.expect("a transaction");
    client.execute(UPSERT, &[ids, customers, states, cents, changed]).await.expect("rows are written");
    let done = "INSERT INTO done AS d VALUES ($1, $2) ON CONFLICT (worker) DO UPDATE SET rows = d.rows + excluded.rows";
    client.execute(done, &[&worker, &(ids.len() as i64)]).await.expect("progress is written");
    client.batch_execute("COMMIT").await.expect("committed");
}
