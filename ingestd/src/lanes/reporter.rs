//! Once a second, and when a worker asks: tells Postgres how far the log is, and reads which projections there are, how
//! their lanes stand, and what they still need.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_postgres::{Config, Error};
use uuid::Uuid;

use super::board::Board;
use super::catalog::Catalog;
use super::hold::HoldHistory;
use super::session::{Connection, connect, describe};
use super::source::Source;
use super::standing::{Overview, Watch};
use crate::log::reader::LogReader;

/// Time between two reports.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// What the reporter needs.
pub struct Reporter {
    /// How to reach Postgres.
    pub config: Config,
    /// The log.
    pub source: Arc<Source>,
    /// What is told of a log of the daemon's own; none for a table, whose ticks tell it.
    pub own: Option<OwnLog>,
    /// Where the status is.
    pub board: Arc<Board>,
    /// Gets the projections.
    pub catalog: watch::Sender<Arc<Catalog>>,
    /// Gets how the lanes stand.
    pub overview: watch::Sender<Arc<Overview>>,
    /// Notified when a worker wants to know anew.
    pub refresh: Arc<Notify>,
}

/// What the reporter needs of a log of the daemon's own.
pub struct OwnLog {
    /// Reads the event at the horizon.
    pub reader: Mutex<LogReader>,
    /// What retention must leave.
    pub hold: Arc<HoldHistory>,
    /// How long events stay after they were applied; may change.
    pub keep_applied: Arc<Mutex<Duration>>,
}

impl Reporter {
    /// Reports until `stop` is true.
    pub async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut client = None;
        let mut watch = Watch::default();
        loop {
            // The ticker says why there is no log yet.
            if let Some(log_id) = self.source.log_id() {
                let outcome = match client.take() {
                    Some(connected) => self.round(connected, log_id, &mut watch).await,
                    None => match connect(&self.config, "ingestd reporter").await {
                        Ok(connected) => self.round(connected, log_id, &mut watch).await,
                        Err(error) => Err(describe(&error)),
                    },
                };
                match outcome {
                    Ok((connected, trouble)) => {
                        self.note(trouble);
                        client = Some(connected);
                    }
                    Err(reason) => {
                        self.lose_sight();
                        self.note(Some(reason));
                    }
                }
            }
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                () = self.refresh.notified() => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        if let (Some(mut client), Some(own), Some(log_id)) = (client, &self.own, self.source.log_id())
            && let Err(error) = self.last_report(&mut client, log_id, own).await
        {
            tracing::debug!("the last report did not go out: {}", describe(&error));
        }
    }

    /// Reports where the log is when the daemon stops, so that a copy from before this moment is known for what it is;
    /// not of a log that is such a copy itself.
    async fn last_report(&self, client: &mut Connection, log_id: Uuid, own: &OwnLog) -> Result<(), Error> {
        let horizon = self.source.horizon().position;
        match Reporter::other_log(client, log_id, own, horizon).await? {
            Some(_) => Ok(()),
            None => self.report(client, log_id, own, horizon).await,
        }
    }

    fn lose_sight(&self) {
        if let Some(own) = &self.own {
            own.hold.lost_sight();
        }
        // Nobody claims or releases a lane by what was so before.
        self.overview.send_replace(Arc::default());
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
    async fn round(
        &self,
        mut client: Connection,
        log_id: Uuid,
        watch: &mut Watch,
    ) -> Result<(Connection, Option<String>), String> {
        if let Some(own) = &self.own {
            let horizon = self.source.horizon().position;
            let other =
                Reporter::other_log(&mut client, log_id, own, horizon).await.map_err(|error| describe(&error))?;
            if let Some(reason) = other {
                self.catalog.send_replace(Arc::default());
                self.lose_sight();
                return Ok((client, Some(reason)));
            }
            self.report(&mut client, log_id, own, horizon).await.map_err(|error| describe(&error))?;
            let least = Reporter::least_checkpoint(&mut client, log_id).await.map_err(|error| describe(&error))?;
            let keep = *own.keep_applied.lock().unwrap_or_else(PoisonError::into_inner);
            own.hold.note(Instant::now(), horizon, least, keep);
        }
        let before = Arc::clone(&self.catalog.borrow());
        let catalog = Catalog::read(&mut client, log_id, &before).await.map_err(|error| describe(&error))?;
        self.board.set_catalog(&catalog);
        let overview = watch.read(&mut client, log_id, &catalog).await.map_err(|error| describe(&error))?;
        self.board.set_foreign_places(overview.lanes.iter().map(|standing| (&standing.id, standing.place)));
        if catalog.projections.len() != before.projections.len()
            || catalog.projections.iter().zip(&before.projections).any(|(new, old)| !Arc::ptr_eq(new, old))
        {
            self.catalog.send_replace(Arc::new(catalog));
        }
        self.overview.send_replace(Arc::new(overview));
        Ok((client, None))
    }

    /// Why the log is not the one that was reported to Postgres before; none if it is. Once it was restored from an older
    /// copy it is so for ever, also when it has grown past the horizon that was reported: another event stands there then,
    /// stored at another time. The report is left as it was, because it is what tells.
    async fn other_log(
        client: &mut Connection,
        log_id: Uuid,
        own: &OwnLog,
        horizon: u64,
    ) -> Result<Option<String>, Error> {
        let statement = include_str!("../../../sql/queries/reported_log.sql");
        let statement = client.prepared(statement).await?;
        let Some(row) = client.query_opt(&statement, &[&log_id]).await? else { return Ok(None) };
        let (standing, time, applied): (i64, Option<i64>, bool) = (row.try_get(0)?, row.try_get(1)?, row.try_get(2)?);
        let standing = standing.max(0) as u64;
        let found = if !applied {
            // Nobody has read what stood there.
            return Ok(None);
        } else if standing > horizon {
            format!("the log's horizon is {horizon}, but {standing} was reported to Postgres before")
        } else {
            match (Reporter::times_at(own, standing), time) {
                (Some((stored, _)), Some(reported)) if stored != reported => {
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

    /// The least checkpoint of the projections that read the log, and whose it is.
    async fn least_checkpoint(client: &mut Connection, log_id: Uuid) -> Result<Option<(u64, String)>, Error> {
        let statement = client.prepared(include_str!("../../../sql/queries/least_checkpoint.sql")).await?;
        let row = client.query_opt(&statement, &[&log_id]).await?;
        row.map(|row| Ok((row.try_get::<_, i64>(0)?.max(0) as u64, row.try_get(1)?))).transpose()
    }

    /// Times of the event at `position`: of storing, and its own. None for an empty log, and for one that cannot be read,
    /// which the lanes will say; the report goes out all the same.
    fn times_at(own: &OwnLog, position: u64) -> Option<(i64, i64)> {
        let reader = own.reader.lock().unwrap_or_else(PoisonError::into_inner);
        let chunk = reader.read(position.checked_sub(1)?, position, 1, usize::MAX).ok()?;
        chunk.events.first().map(|stored| (stored.stored_at, stored.event.ts))
    }

    async fn report(&self, client: &mut Connection, log_id: Uuid, own: &OwnLog, horizon: u64) -> Result<(), Error> {
        let (stored_at, event_time) = Reporter::times_at(own, horizon).unzip();
        let statement = include_str!("../../../sql/queries/report_log.sql");
        let values: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
            [&log_id, &(horizon as i64), &stored_at, &(self.source.floor() as i64), &event_time];
        let statement = client.prepared(statement).await?;
        client.execute(&statement, &values).await.map(drop)
    }
}
