//! pg_lanes itself: numbered producers send NDJSON over HTTP to a daemon, whose lanes count into a row of their own each;
//! the view over them is the total.

use std::sync::Arc;
use std::time::Instant;

use e2e::cluster::Cluster;
use e2e::daemon::{Daemon, post};
use tokio::task::JoinSet;

use super::checkins::{self, PRODUCERS};
use super::unnest::BATCH;
use super::{DATABASE, Lines, joined};
use crate::measurement::Failure;
use crate::sample::REQUEST_EVENTS;

const LANES: usize = 4;
const CONNECTIONS: usize = 4;

const DEFINITION: &str = "\
projections:
  checkins:
    type: hot
    source_events: [CHECKED_IN]
    lanes: 4
    target: { table: checkins, primary_key: [show, lane] }
    fields: { show: TEXT, lane: INT, n: BIGINT, last: BIGINT }
    derive: { show: event.show, lane: lane() }
    aggregates: { CHECKED_IN: { n: { op: count }, last: { op: max, value: event.ts } } }
";

const TOTAL: &str = "SELECT coalesce(sum(n), 0)::bigint FROM checkins_total WHERE show = 'show-7'";

/// Events a second until all were in the total.
pub async fn to_total(cluster: &Cluster, events: &Lines) -> Result<f64, Failure> {
    cluster.psql(DATABASE, "DELETE FROM lanes.projection; DROP TABLE IF EXISTS checkins CASCADE; CHECKPOINT");
    let settings = format!("postgres_connections = {CONNECTIONS}\nlane_batch_size = {BATCH}");
    let mut daemon = Daemon::new(Some(&cluster.connection_string(DATABASE)), &settings);
    let file = daemon.settings_path().with_file_name("projections.yaml");
    std::fs::write(&file, DEFINITION)?;
    // A log must be there before a projection can read it.
    daemon.start();
    daemon.run(&["apply", file.to_str().ok_or("a path that is not UTF-8")?]);
    daemon.wait_until_applied(LANES, 0);
    let reader = cluster.connect(DATABASE).await;
    let started = Instant::now();
    produce(&daemon, events).await?;
    checkins::wait_for_total(&reader, TOTAL, events.len()).await?;
    let seconds = started.elapsed().as_secs_f64();
    daemon.stop();
    Ok(events.len() as f64 / seconds)
}

/// Events a second until all were acknowledged, by a daemon without Postgres.
pub async fn to_acknowledgement(_: &Cluster, events: &Lines) -> Result<f64, Failure> {
    let mut daemon = Daemon::new(None, "");
    daemon.start();
    let started = Instant::now();
    produce(&daemon, events).await?;
    let seconds = started.elapsed().as_secs_f64();
    daemon.stop();
    let stored = daemon.stored_events();
    if stored != events.len() as u64 {
        return Err(format!("{stored} of {} events are in the log", events.len()).into());
    }
    Ok(events.len() as f64 / seconds)
}

async fn produce(daemon: &Daemon, events: &Lines) -> Result<(), Failure> {
    let mut tasks = JoinSet::new();
    for number in 0..PRODUCERS {
        let (events, address) = (Arc::clone(events), daemon.address());
        tasks.spawn_blocking(move || {
            let mut sequence = 1;
            for request in events.chunks(REQUEST_EVENTS).skip(number).step_by(PRODUCERS) {
                let headers =
                    [("ingest-producer", &*format!("producer-{number}")), ("ingest-sequence", &*sequence.to_string())];
                let answer = post(&address, &request.join("\n"), &headers)?;
                if answer.body["stored"].as_u64() != Some(request.len() as u64) {
                    return Err(format!("the daemon answered {}: {}", answer.status, answer.body).into());
                }
                sequence += request.len();
            }
            Ok(())
        });
    }
    joined(tasks).await
}
