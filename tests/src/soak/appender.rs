//! A writer of the events table: readings of meters of its own, in transactions of which some are rolled back, and some
//! stay open for a while, so that they commit in another order than they draw positions in.
//!
//! What became of a COMMIT without an answer it asks of the table, once the session that sent it is gone.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio_postgres::{Client, Error, NoTls};

use crate::random::Random;

const METERS: u64 = 8;

/// How many readings all appenders of a run know to be committed.
pub type Committed = AtomicU64;

/// The last number of each meter whose commit was answered.
pub type Last = BTreeMap<String, i64>;

/// Appends until `over`. `writer` is its number; no other writes its meters.
pub fn append(connection: &str, writer: u64, mut random: Random, committed: &Committed, over: &AtomicBool) -> Last {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime can be made");
    let mut last = Last::new();
    runtime.block_on(async {
        while !over.load(Ordering::Relaxed) {
            if let Ok((mut client, driver)) = tokio_postgres::connect(connection, NoTls).await {
                let driver = tokio::spawn(driver);
                // Errors are told by the server's log, which the audit reads.
                let _ = append_until_trouble(&mut client, writer, &mut random, &mut last, committed, over).await;
                drop(client);
                let _ = driver.await;
            }
            pause(&mut random, 10..=100).await;
        }
    });
    last
}

async fn pause(random: &mut Random, milliseconds: std::ops::RangeInclusive<u64>) {
    tokio::time::sleep(Duration::from_millis(random.within(milliseconds))).await;
}

async fn append_until_trouble(
    client: &mut Client,
    writer: u64,
    random: &mut Random,
    last: &mut Last,
    committed: &Committed,
    over: &AtomicBool,
) -> Result<(), Error> {
    // This process may stand still at any line, and is not what the database watches.
    client.batch_execute("SET idle_in_transaction_session_timeout = 0").await?;
    // Held by the session before until it has ended, and with it its last COMMIT.
    client.query("SELECT pg_advisory_lock(4711, $1)", &[&(writer as i32)]).await?;
    let prefix = format!("meter-{writer}-");
    let known = "SELECT key, max((payload ->> 'nr')::bigint) FROM readings WHERE key LIKE $1 || '%' GROUP BY key";
    let rows = client.query(known, &[&prefix]).await?;
    let mut next: Last = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
    while !over.load(Ordering::Relaxed) {
        let mut then = next.clone();
        let transaction = client.transaction().await?;
        let mut events = 0;
        for _ in 0..random.within(1..=20) {
            let meter = format!("{prefix}{}", random.within(0..=METERS - 1));
            let nr = then.entry(meter.clone()).or_default();
            *nr += 1;
            let payload = serde_json::json!({ "nr": nr, "wh": random.within(0..=999) });
            let insert = "INSERT INTO readings (type, key, payload) VALUES ('READ', $1, $2)";
            transaction.execute(insert, &[&meter, &payload]).await?;
            events += 1;
        }
        if random.chance(1, 20) {
            pause(random, 20..=500).await;
        }
        if random.chance(1, 10) {
            transaction.rollback().await?;
        } else {
            transaction.commit().await?;
            committed.fetch_add(events, Ordering::Relaxed);
            next.clone_from(&then);
            last.extend(then);
        }
        pause(random, 0..=150).await;
    }
    Ok(())
}
