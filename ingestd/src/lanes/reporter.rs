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
        if let Some(reason) = self.other_log(&client, own).await.map_err(|error| describe(&error))? {
            self.catalog.send_replace(Arc::default());
            self.hold.lost_sight();
            return Ok((client, Some(reason)));
        }
        self.report(&client, own).await.map_err(|error| describe(&error))?;
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
        let checkpoints = client
            .query(include_str!("../../../sql/queries/checkpoints.sql"), &[&self.log_id])
            .await
            .map_err(|error| describe(&error))?;
        self.board.set_foreign_positions(checkpoints.iter().map(|row| {
            let (lane, position): (i32, i64) = (row.get(1), row.get(2));
            (row.get(0), lane.max(0) as u32, position.max(0) as u64)
        }));
        if catalog.projections.len() != before.projections.len()
            || catalog.projections.iter().zip(&before.projections).any(|(new, old)| !Arc::ptr_eq(new, old))
        {
            self.catalog.send_replace(Arc::new(catalog));
        }
        Ok((client, None))
    }

    /// Why the log is not the one that was reported to Postgres before; none if it is. Once it was restored from an older
    /// copy it is so for ever, also when it has grown past the horizon that was reported: another event stands there then,
    /// stored at another time. The report is left as it was, because it is what tells.
    async fn other_log(&self, client: &Client, own: u64) -> Result<Option<String>, Error> {
        let statement = include_str!("../../../sql/queries/reported_log.sql");
        let Some(row) = client.query_opt(statement, &[&self.log_id]).await? else { return Ok(None) };
        let (standing, time, applied): (i64, Option<i64>, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let standing = standing.max(0) as u64;
        let found = if !applied {
            // Nobody has read what stood there.
            return Ok(None);
        } else if standing > own {
            format!("the log's horizon is {own}, but {standing} was reported to Postgres before")
        } else {
            match (self.stored_at(standing), time) {
                (Some(stored), Some(reported)) if stored != reported => {
                    format!("at position {standing}, which was reported to Postgres before, another event stands now")
                }
                _ => return Ok(None),
            }
        };
        Ok(Some(format!(
            "{found}: the log was restored from an older copy, so lanes cannot go on; put the newer one back, or let go of \
             the log's projections (ingestd forget) and apply them again"
        )))
    }

    /// Time of storing of the event at `position`. None for an empty log, and for one that cannot be read, which the
    /// lanes will say; the report goes out all the same.
    fn stored_at(&self, position: u64) -> Option<i64> {
        let reader = self.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let chunk = reader.read(position.checked_sub(1)?, position, 1, usize::MAX).ok()?;
        chunk.events.first().map(|stored| stored.stored_at)
    }

    async fn report(&self, client: &Client, horizon: u64) -> Result<(), Error> {
        let time = self.stored_at(horizon);
        let statement = include_str!("../../../sql/queries/report_log.sql");
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 4] =
            [&self.log_id, &(horizon as i64), &time, &((self.floor)() as i64)];
        client.execute(statement, &values).await.map(drop)
    }
}
