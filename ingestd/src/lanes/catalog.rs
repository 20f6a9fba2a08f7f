//! The projections of the daemon's log, as Postgres has them.

use std::sync::Arc;

use lanes_core::lane::slot_of;
use lanes_core::projection::{EventView, Projection, parse_document};
use serde_json::json;
use tokio_postgres::{Client, Error};
use uuid::Uuid;

use crate::log::reader::StoredEvent;

/// A lane of a projection.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LaneId {
    /// The projection's name.
    pub projection: Arc<str>,
    /// The lane's number.
    pub lane: u32,
}

/// A projection that Postgres knows.
#[derive(Debug)]
pub struct Known {
    /// Its name.
    pub name: Arc<str>,
    lanes: u32,
    slots: u32,
    definition: serde_json::Value,
    /// What its events do, or why this daemon cannot tell.
    pub rules: Result<Projection, String>,
}

impl Known {
    /// The number of lanes.
    pub fn lanes(&self) -> u32 {
        self.lanes
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        self.slots
    }

    /// The lane that an event belongs to; none if the projection does not read its type.
    ///
    /// An event without a lane key belongs to the owner of slot 0, who counts it. So does one whose lane key cannot be
    /// text in Postgres: there it is parked, or its lane stops.
    pub fn lane_of(&self, stored: &StoredEvent) -> Option<u32> {
        let rules = self.rules.as_ref().ok()?;
        rules.source_event(&stored.event.event_type)?;
        let view = EventView::new(stored.position, &stored.event);
        let slot = match rules.lane_key_of(&view) {
            Ok(Some(key)) => slot_of(key.as_bytes(), self.slots),
            Ok(None) | Err(_) => 0,
        };
        Some(slot % self.lanes)
    }
}

/// All projections of the daemon's log.
#[derive(Debug, Default)]
pub struct Catalog {
    /// They, by name.
    pub projections: Vec<Arc<Known>>,
}

impl Catalog {
    /// The number of lanes of all projections that this daemon can work on.
    pub fn lane_count(&self) -> u32 {
        self.projections.iter().filter(|known| known.rules.is_ok()).map(|known| known.lanes).sum()
    }

    /// Reads the projections of log `log_id`, keeping what `before` knows already.
    ///
    /// # Errors
    /// What Postgres says.
    pub async fn read(client: &Client, log_id: Uuid, before: &Catalog) -> Result<Catalog, Error> {
        let rows = client.query(include_str!("../../../sql/queries/projections.sql"), &[&log_id]).await?;
        let mut projections = Vec::new();
        for row in rows {
            let name: &str = row.try_get("name")?;
            let definition: serde_json::Value = row.try_get("definition")?;
            // Under its name and version only the policy of a definition changes, never where an event goes.
            let same = |known: &&Arc<Known>| *known.name == *name && known.definition == definition;
            if let Some(known) = before.projections.iter().find(same) {
                projections.push(Arc::clone(known));
                continue;
            }
            let rules = parse_document(&json!({ "projections": { name: &definition } }))
                .map_err(|error| error.to_string())
                .and_then(|parsed| {
                    parsed.projections.into_iter().next().ok_or_else(|| "the definition is empty".to_owned())
                });
            if let Err(reason) = &rules {
                tracing::error!(projection = name, "this version cannot work on the projection: {reason}");
            }
            let number = |column: &str| row.try_get::<_, i32>(column).map(|number| number.max(1) as u32);
            projections.push(Arc::new(Known {
                name: name.into(),
                lanes: number("lanes")?,
                slots: number("slots")?,
                definition,
                rules,
            }));
        }
        Ok(Catalog { projections })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes_core::event::Event;
    use lanes_core::lane::slots_for;

    /// The daemon puts a key where `lane_of` in SQL puts it: the frozen answers of `core/testdata` (HASH-1).
    #[test]
    fn an_event_goes_to_the_lane_that_the_frozen_answers_say() {
        let document = json!({ "projections": { "p": {
            "source_events": ["T"], "target": { "table": "t", "primary_key": ["k"] },
            "fields": { "k": "TEXT" }, "derive": { "k": "event.key" },
        } } });
        let rules = parse_document(&document).unwrap().projections.remove(0);
        let mut seen = 0;
        for line in include_str!("../../../core/testdata/lane_v1.tsv").lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [kind, key, _, lanes, lane, ..] = fields[..] else { continue };
            let lanes: u32 = lanes.parse().unwrap_or(0);
            if kind != "text" || key.is_empty() || !(1..=1024).contains(&lanes) {
                continue;
            }
            let known = Known {
                name: "p".into(),
                definition: serde_json::Value::Null,
                lanes,
                slots: slots_for(lanes),
                rules: Ok(rules.clone()),
            };
            let event = Event { event_type: "T".into(), key: key.into(), ts: 0, payload: "{}".into() };
            let stored = StoredEvent { position: 1, stored_at: 0, event };
            assert_eq!(known.lane_of(&stored), Some(lane.parse().unwrap()), "{line}");
            seen += 1;
        }
        assert!(seen >= 60, "{seen}");
    }
}
