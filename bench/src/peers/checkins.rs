//! The events that every peer gets, and the table that every peer fills.
//!
//! Check-ins of one show by 50 000 users, in the producer's memory as lines of NDJSON. What is asked for is one row a show:
//! how many, and when the last was. A measurement is over when this row, asked for over a connection of its own, tells all
//! events.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use e2e::cluster::Cluster;
use serde::Deserialize;
use tokio::task::JoinHandle;
use tokio_postgres::Client;

use super::Lines;
use crate::measurement::Failure;
use crate::sample::checkin_line;

/// Producers that hand over events at the same time.
pub const PRODUCERS: usize = 8;

/// Time between two looks at the total. A look costs Postgres some tens of microseconds.
const LOOK: Duration = Duration::from_millis(10);

/// How long a measurement may take.
const PATIENCE: Duration = Duration::from_secs(120);

/// What a consumer reads of a line.
#[derive(Debug, Deserialize)]
pub struct Checkin<'a> {
    /// When it was, in epoch milliseconds.
    pub ts: i64,
    #[serde(borrow)]
    payload: Payload<'a>,
}

#[derive(Debug, Deserialize)]
struct Payload<'a> {
    show: &'a str,
}

impl<'a> Checkin<'a> {
    /// Reads a line.
    pub fn read(line: &'a [u8]) -> Result<Checkin<'a>, Failure> {
        Ok(serde_json::from_slice(line)?)
    }

    /// The show that was checked in to.
    pub fn show(&self) -> &'a str {
        self.payload.show
    }
}

/// So many events, as lines.
pub fn lines(events: usize) -> Lines {
    Lines::new((0..events).map(checkin_line).collect())
}

/// Events a second from the first one that is produced until the total tells all. Then the consumer is stopped; if it has ended
/// by itself, that is the error.
pub async fn rate_to_total(
    reader: &Client,
    total: &str,
    events: usize,
    produced: impl Future<Output = Result<(), Failure>>,
    consumer: JoinHandle<Result<(), Failure>>,
) -> Result<f64, Failure> {
    let started = Instant::now();
    produced.await?;
    let waited = wait_for_total(reader, total, events).await;
    let seconds = started.elapsed().as_secs_f64();
    consumer.abort();
    if let Ok(ended) = consumer.await {
        ended?;
    }
    waited?;
    Ok(events as f64 / seconds)
}

/// Makes the table anew, with room for the versions of its one row.
pub fn create_table(cluster: &Cluster, database: &str) {
    cluster.psql(
        database,
        "DROP TABLE IF EXISTS total;
         CREATE TABLE total (show text PRIMARY KEY, n bigint NOT NULL, last bigint NOT NULL) WITH (fillfactor = 50);
         CHECKPOINT",
    );
}

/// Waits until `sql` gives `events`; it runs over and over.
pub async fn wait_for_total(client: &Client, sql: &str, events: usize) -> Result<(), Failure> {
    let statement = client.prepare(sql).await?;
    let deadline = Instant::now() + PATIENCE;
    loop {
        let row = client.query_opt(&statement, &[]).await?;
        let total: i64 = row.map(|row| row.try_get(0)).transpose()?.unwrap_or_default();
        if total == events as i64 {
            return Ok(());
        }
        if total > events as i64 || Instant::now() > deadline {
            return Err(format!("the total is {total} after {events} events").into());
        }
        tokio::time::sleep(LOOK).await;
    }
}

/// The question for [`wait_for_total`] where the table is [`create_table`]'s.
pub const TOTAL: &str = "SELECT n FROM total WHERE show = 'show-7'";

/// A batch, folded: the count and the last time of each show.
#[derive(Debug, Default)]
pub struct Folded(HashMap<String, (i64, i64)>);

impl Folded {
    /// Adds a line.
    pub fn add(&mut self, line: &[u8]) -> Result<(), Failure> {
        let checkin = Checkin::read(line)?;
        if let Some((count, last)) = self.0.get_mut(checkin.show()) {
            *count += 1;
            *last = (*last).max(checkin.ts);
        } else {
            self.0.insert(checkin.show().to_owned(), (1, checkin.ts));
        }
        Ok(())
    }

    /// Writes it in one transaction with the place up to which the source has been read, so that a batch that is delivered
    /// again after a crash can be told.
    pub async fn write(self, client: &mut Client, place: &str) -> Result<(), Failure> {
        let (mut shows, mut counts, mut lasts) = (Vec::new(), Vec::new(), Vec::new());
        for (show, (count, last)) in self.0 {
            shows.push(show);
            counts.push(count);
            lasts.push(last);
        }
        let transaction = client.transaction().await?;
        let upsert = "INSERT INTO total AS t SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[])
                      ON CONFLICT (show) DO UPDATE SET n = t.n + excluded.n, last = greatest(t.last, excluded.last)";
        transaction.execute(upsert, &[&shows, &counts, &lasts]).await?;
        transaction.execute("UPDATE place SET place = $1", &[&place]).await?;
        Ok(transaction.commit().await?)
    }
}

/// Makes the table of [`Folded::write`]'s place anew.
pub fn create_place(cluster: &Cluster, database: &str) {
    cluster.psql(
        database,
        "DROP TABLE IF EXISTS place; CREATE TABLE place (place text NOT NULL); INSERT INTO place VALUES ('')",
    );
}
