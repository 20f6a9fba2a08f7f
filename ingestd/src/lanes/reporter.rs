//! Once a second: tells Postgres how far the log is, and reads which projections there are and what they still need.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::watch;
use tokio_postgres::{Client, Config, Error};
use uuid::Uuid;

use super::board::Board;
use super::catalog::Catalog;
use super::hold::HoldHistory;
use super::session::{connect, describe};
use crate::log::horizon::Horizon;
use crate::log::reader::LogReader;

/// Time between two reports.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// What the reporter needs.
pub struct Reporter {
    /// How to reach Postgres.
    pub config: Config,
    /// The log's id.
    pub log_id: Uuid,
    /// The log's horizon.
    pub horizon: Arc<Horizon>,
    /// Reads the time of storing at the horizon.
    pub reader: Mutex<LogReader>,
    /// The position up to which retention has deleted.
    pub floor: Box<dyn Fn() -> u64 + Send + Sync>,
    /// What retention must leave.
    pub hold: Arc<HoldHistory>,
    /// How long events stay after they were applied; may change.
    pub keep_applied: Arc<Mutex<Duration>>,
    /// Where the status is.
    pub board: Arc<Board>,
    /// Gets the projections.
    pub catalog: watch::Sender<Arc<Catalog>>,
}

impl Reporter {
    /// Reports until `stop` is true.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut client = None;
        loop {
            let outcome = match client.take() {
                Some(connected) => self.round(connected).await,
                None => match connect(&self.config, "ingestd reporter").await {
                    Ok(connected) => self.round(connected).await,
                    Err(error) => Err(describe(&error)),
                },
            };
            match outcome {
                Ok((connected, trouble)) => {
                    self.note(trouble);
                    client = Some(connected);
                }
                Err(reason) => {
                    self.hold.lost_sight();
                    self.note(Some(reason));
                }
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
        }
    }

    fn note(&self, trouble: Option<String>) {
        let before = self.board.postgres();
        if before != trouble {
            match &trouble {
                Some(reason) => tracing::warn!("lanes wait for Postgres: {reason}"),
                None => tracing::info!("Postgres is ready for the lanes"),
            }
            self.board.set_postgres(trouble);
        }
    }

    /// One report and one look at the projections. Gives the client back, and why lanes must not work.
    async fn round(&self, client: Client) -> Result<(Client, Option<String>), String> {
        let own = self.horizon.position();
        let standing = self.report(&client, own).await.map_err(|error| describe(&error))?;
        if standing > own {
            let reason = format!(
                "the log's horizon is {own}, but {standing} was reported to Postgres before: the log was restored from \
                 an older copy, so lanes cannot go on"
            );
            self.catalog.send_replace(Arc::default());
            self.hold.lost_sight();
            return Ok((client, Some(reason)));
        }
        let least = client
            .query_opt(include_str!("../../../sql/queries/least_checkpoint.sql"), &[&self.log_id])
            .await
            .and_then(|row| row.map(|row| Ok((row.try_get::<_, i64>(0)?.max(0) as u64, row.try_get(1)?))).transpose())
            .map_err(|error| describe(&error))?;
        let keep = *self.keep_applied.lock().unwrap_or_else(PoisonError::into_inner);
        self.hold.note(Instant::now(), own, least, keep);
        let before = Arc::clone(&self.catalog.borrow());
        let catalog = Catalog::read(&client, self.log_id, &before).await.map_err(|error| describe(&error))?;
        self.board.set_catalog(&catalog);
        if catalog.projections.len() != before.projections.len()
            || catalog.projections.iter().zip(&before.projections).any(|(new, old)| !Arc::ptr_eq(new, old))
        {
            self.catalog.send_replace(Arc::new(catalog));
        }
        Ok((client, None))
    }

    /// Time of storing of the event at `position`. None for an empty log, and for one that cannot be read, which the
    /// lanes will say; the report goes out all the same.
    fn stored_at(&self, position: u64) -> Option<i64> {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let chunk = reader.read(position.checked_sub(1)?, position, 1, usize::MAX).ok()?;
        chunk.events.first().map(|stored| stored.stored_at)
    }

    async fn report(&self, client: &Client, horizon: u64) -> Result<u64, Error> {
        let time = self.stored_at(horizon);
        let row = client
            .query_one(
                include_str!("../../../sql/queries/report_log.sql"),
                &[&self.log_id, &(horizon as i64), &time, &((self.floor)() as i64)],
            )
            .await?;
        Ok(row.try_get::<_, i64>(0)?.max(0) as u64)
    }
}
