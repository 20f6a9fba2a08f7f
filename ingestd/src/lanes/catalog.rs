//! The projections of the daemon's log, as Postgres has them.

use std::sync::Arc;

use lanes_core::lane::slot_of;
use lanes_core::projection::{EventView, Projection, parse_document};
use lanes_core::slot_map::SlotMap;
use serde_json::json;
use tokio_postgres::Error;
use uuid::Uuid;

use super::session::Connection;
use super::source::PlacedEvent;

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
    /// The version of the map.
    pub map_version: i64,
    /// The lanes that own slots, ascending.
    lanes: Vec<u32>,
    map: SlotMap,
    definition: serde_json::Value,
    /// What its events do, or why this daemon cannot tell.
    pub rules: Result<Projection, String>,
}

impl Known {
    /// The lanes that there are, ascending.
    pub fn lanes(&self) -> &[u32] {
        &self.lanes
    }

    /// Whether there is such a lane.
    pub fn has_lane(&self, lane: u32) -> bool {
        self.lanes.binary_search(&lane).is_ok()
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        self.map.slots()
    }

    /// The lane that an event belongs to; none if the projection does not read its type.
    ///
    /// An event without a lane key belongs to the owner of slot 0, who counts it. So does one whose lane key cannot be
    /// text in Postgres: there it is parked, or its lane stops.
    pub fn lane_of(&self, placed: &PlacedEvent) -> Option<u32> {
        let rules = self.rules.as_ref().ok()?;
        rules.source_event(&placed.event.event_type)?;
        let view = EventView::new(placed.place.position, &placed.event);
        let slot = match rules.lane_key_of(&view) {
            Ok(Some(key)) => slot_of(key.as_bytes(), self.slots()),
            Ok(None) | Err(_) => 0,
        };
        self.map.lane_of_slot(slot)
    }
}

/// All projections of the daemon's log.
#[derive(Debug, Default)]
pub struct Catalog {
    /// They, by name.
    pub projections: Vec<Arc<Known>>,
}

impl Catalog {
    /// The projection of this name.
    pub fn find(&self, name: &str) -> Option<&Arc<Known>> {
        self.projections.iter().find(|known| *known.name == *name)
    }

    /// Reads the projections of log `log_id`, keeping what `before` knows already.
    ///
    /// # Errors
    /// What Postgres says.
    pub async fn read(client: &mut Connection, log_id: Uuid, before: &Catalog) -> Result<Catalog, Error> {
        let statement = client.prepared(include_str!("../../../sql/queries/projections.sql")).await?;
        let rows = client.query(&statement, &[&log_id]).await?;
        let mut projections = Vec::new();
        for row in rows {
            let name: &str = row.try_get("name")?;
            let definition: serde_json::Value = row.try_get("definition")?;
            let map_version: i64 = row.try_get("map_version")?;
            // Under its name and version only the policy of a definition changes; where an event goes is up to the map.
            let same = |known: &&Arc<Known>| {
                *known.name == *name && known.definition == definition && known.map_version == map_version
            };
            if let Some(known) = before.projections.iter().find(same) {
                projections.push(Arc::clone(known));
                continue;
            }
            let lanes: Vec<i32> = row.try_get("slot_lanes")?;
            let map = SlotMap::new(lanes.into_iter().map(|lane| lane.max(0) as u32).collect());
            let rules = parse_document(&json!({ "projections": { name: &definition } }))
                .map_err(|error| error.to_string())
                .and_then(|parsed| {
                    parsed.projections.into_iter().next().ok_or_else(|| "the definition is empty".to_owned())
                });
            // Without a map that this version knows there is no lane to work on.
            let (map, rules) = match map {
                Ok(map) => (map, rules),
                Err(error) => (SlotMap::one_lane(), Err(error.to_string())),
            };
            if let Err(reason) = &rules {
                tracing::error!(projection = name, "this version cannot work on the projection: {reason}");
            }
            let lanes = map.lanes();
            projections.push(Arc::new(Known { name: name.into(), map_version, lanes, map, definition, rules }));
        }
        Ok(Catalog { projections })
    }
}

/// A projection for tests, whose lane key is the event's.
#[cfg(test)]
pub(super) fn known(lanes: u32, map_version: i64) -> Arc<Known> {
    let definition = json!({
        "source_events": ["T"], "target": { "table": "t", "primary_key": ["k"] },
        "fields": { "k": "TEXT" }, "derive": { "k": "event.key" },
    });
    let parsed = parse_document(&json!({ "projections": { "p": &definition } })).map_err(|error| error.to_string());
    let rules = parsed.map(|mut document| document.projections.remove(0));
    let map = SlotMap::canonical(lanes).expect("a test asks for few lanes");
    Arc::new(Known { name: "p".into(), map_version, lanes: map.lanes(), map, definition, rules })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes_core::event::Event;
    use lanes_core::place::Place;

    /// The daemon puts a key where `lane_of` in SQL puts it: the frozen answers of `core/testdata` (HASH-1).
    #[test]
    fn an_event_goes_to_the_lane_that_the_frozen_answers_say() {
        let mut seen = 0;
        for line in include_str!("../../../core/testdata/lane_v1.tsv").lines() {
            let fields: Vec<&str> = line.split('\t').collect();
            let [kind, key, _, lanes, lane, ..] = fields[..] else { continue };
            let lanes: u32 = lanes.parse().unwrap_or(0);
            if kind != "text" || key.is_empty() || !(1..=1024).contains(&lanes) {
                continue;
            }
            let known = known(lanes, 1);
            let event = Event { event_type: "T".into(), key: key.into(), ts: 0, payload: "{}".into() };
            let placed = PlacedEvent { place: Place::at(1), event };
            assert_eq!(known.lane_of(&placed), Some(lane.parse().unwrap()), "{line}");
            seen += 1;
        }
        assert!(seen >= 60, "{seen}");
    }
}
