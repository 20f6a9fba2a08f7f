//! How the lanes stand, as Postgres has it: their places, who owns them, which workers live. Read once a second by the
//! reporter, for all workers of the process; each of them draws its share from it (`lanes_core::balance`).

use std::collections::HashMap;
use std::time::{Duration, Instant};

use lanes_core::balance::{self, Decision, Lane, Limits};
use lanes_core::place::Place;
use tokio_postgres::Error;
use uuid::Uuid;

use super::catalog::{Catalog, LaneId};
use super::session::Connection;

/// How hasty workers are to release lanes, and to claim what others do not.
const LIMITS: Limits = Limits { cool_down: Duration::from_secs(10), patience: Duration::from_secs(15) };

/// How fast a measured load follows: the share of the newest second.
const SMOOTHING: f64 = 0.1;

/// A lane in Postgres.
#[derive(Debug, Clone)]
pub struct Standing {
    /// Which one.
    pub id: LaneId,
    /// Its checkpoint.
    pub place: Place,
    /// Where it has to stop, if it has to.
    pub stop: Option<Place>,
    /// Who owns it, if somebody does.
    pub owner: Option<String>,
    /// How long that has been so.
    since: Duration,
    /// Its share of the work.
    weight: u64,
}

/// All lanes of a log, and the workers that live.
#[derive(Debug, Default)]
pub struct Overview {
    /// The lanes, by projection and number.
    pub lanes: Vec<Standing>,
    /// Names of the workers, in order.
    workers: Vec<String>,
}

impl Overview {
    /// The lane, if there is one.
    pub fn find(&self, id: &LaneId) -> Option<&Standing> {
        self.lanes.iter().find(|standing| standing.id == *id)
    }

    /// What a worker has to release and to claim; nothing as long as others do not see that it lives. `can_work` says
    /// which projections it can work on.
    pub fn decide(&self, worker: &str, can_work: impl Fn(&str) -> bool) -> (Option<&LaneId>, Vec<&LaneId>) {
        let place = |name: &str| self.workers.iter().position(|other| other == name);
        let Some(me) = place(worker) else { return (None, Vec::new()) };
        // A lane whose owner is none of these is not theirs to share: somebody works on it by SQL.
        let is_shared = |standing: &&Standing| {
            can_work(&standing.id.projection) && standing.owner.as_deref().is_none_or(|owner| place(owner).is_some())
        };
        let shared: Vec<&Standing> = self.lanes.iter().filter(is_shared).collect();
        let lanes: Vec<Lane> = shared
            .iter()
            .map(|standing| Lane {
                weight: standing.weight,
                owner: standing.owner.as_deref().and_then(place),
                since: standing.since,
            })
            .collect();
        let Decision { release, claim } = balance::decide(&lanes, self.workers.len(), me, LIMITS);
        let id = |lane: usize| shared.get(lane).map(|standing| &standing.id);
        (release.and_then(id), claim.into_iter().filter_map(id).collect())
    }
}

/// What has to be remembered from one reading to the next.
#[derive(Debug, Default)]
pub struct Watch {
    lanes: HashMap<LaneId, Seen>,
    read_at: Option<Instant>,
}

#[derive(Debug)]
struct Seen {
    events: u64,
    events_per_second: f64,
    owner: Option<String>,
    since: Instant,
}

impl Watch {
    /// Reads how the lanes of the catalog's projections stand.
    ///
    /// # Errors
    /// What Postgres says.
    pub async fn read(&mut self, client: &mut Connection, log_id: Uuid, catalog: &Catalog) -> Result<Overview, Error> {
        let standing = client.prepared(include_str!("../../../sql/queries/standing.sql")).await?;
        let rows = client.query(&standing, &[&log_id]).await?;
        let living = client.prepared(include_str!("../../../sql/queries/workers.sql")).await?;
        let workers = client.query(&living, &[&log_id]).await?;
        let workers = workers.iter().map(|row| row.try_get(0)).collect::<Result<Vec<String>, Error>>()?;
        let now = Instant::now();
        let elapsed = self.read_at.replace(now).map(|before| now.duration_since(before).as_secs_f64());
        let mut before = std::mem::take(&mut self.lanes);
        let mut lanes = Vec::with_capacity(rows.len());
        let mut rates = Vec::with_capacity(rows.len());
        for row in &rows {
            let projection: &str = row.try_get("projection")?;
            // One that is new and not in the catalog yet is shared out the next time.
            let Some(known) = catalog.find(projection) else { continue };
            let place = |tick: Option<i64>, position: Option<i64>| {
                Some(Place { tick: tick?.max(0) as u64, position: position?.max(0) as u64 })
            };
            let id = LaneId {
                projection: std::sync::Arc::clone(&known.name),
                lane: row.try_get::<_, i32>("lane")?.max(0) as u32,
            };
            let owner: Option<String> = row.try_get("owner")?;
            let events = row.try_get::<_, i64>("events")?.max(0) as u64;
            let seen = match before.remove(&id) {
                None => Seen { events, events_per_second: 0.0, owner: owner.clone(), since: now },
                Some(seen) => {
                    let grown = events.saturating_sub(seen.events) as f64;
                    let rate = elapsed.filter(|elapsed| *elapsed > 0.0).map_or(0.0, |elapsed| grown / elapsed);
                    let since = if seen.owner == owner { seen.since } else { now };
                    let events_per_second = seen.events_per_second + SMOOTHING * (rate - seen.events_per_second);
                    Seen { events, events_per_second, owner: owner.clone(), since }
                }
            };
            rates.push(seen.events_per_second);
            lanes.push(Standing {
                place: place(row.try_get("tick")?, row.try_get("position")?).unwrap_or_default(),
                stop: place(row.try_get("stop_tick")?, row.try_get("stop_position")?),
                owner,
                since: now.duration_since(seen.since),
                weight: 0,
                id: id.clone(),
            });
            self.lanes.insert(id, seen);
        }
        for (standing, weight) in lanes.iter_mut().zip(balance::weights(&rates)) {
            standing.weight = weight;
        }
        Ok(Overview { lanes, workers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing(lane: u32, owner: Option<&str>) -> Standing {
        Standing {
            id: LaneId { projection: "p".into(), lane },
            place: Place::default(),
            stop: None,
            owner: owner.map(str::to_owned),
            since: Duration::from_secs(60),
            weight: 1000,
        }
    }

    #[test]
    fn only_workers_that_are_seen_to_live_share_what_nobody_else_works_on() {
        let lanes = vec![standing(0, Some("by hand")), standing(1, None), standing(2, None), standing(3, Some("a"))];
        let overview = Overview { lanes, workers: vec!["a".into(), "b".into()] };
        let claimed = |worker: &str| {
            let (release, claim) = overview.decide(worker, |_| true);
            assert_eq!(release, None);
            claim.into_iter().map(|id| id.lane).collect::<Vec<_>>()
        };
        assert_eq!((claimed("a"), claimed("b"), claimed("c")), (vec![1, 2], vec![1, 2], vec![]));
        assert!(overview.decide("a", |_| false).1.is_empty());
    }
}
