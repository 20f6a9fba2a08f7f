//! Maps of slots for SQL: `lanes.plan_resize` and its like give a map after a change, `lanes.plan_change` what it takes
//! that one map becomes another, `lanes.event_slots` the slots of events. The rules are in `lanes_core::slot_map` and
//! `lanes_core::projection`.
//!
//! A map is `slot_lanes` of a projection: element s + 1 is the lane of slot s.

use lanes_core::event::Event;
use lanes_core::projection::{EventView, parse_document};
use lanes_core::slot_map::{self, MAXIMUM_SLOTS, SlotMap, SlotMapError};
use pgrx::datum::{Array, UnboxDatum};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{name, pg_extern};
use serde_json::json;

use crate::encoding::{Jsonb, Text, TextAnswer};
use crate::error::{definition_error, null_element, slot_map_error, unequal_arrays, unreadable_document};

/// A map as Postgres holds it.
type SlotLanes<'fcx> = Array<'fcx, i32>;

/// The elements of an array that has no null.
fn elements<'fcx, T: UnboxDatum>(name: &str, array: &'fcx Array<'_, T>) -> Result<Vec<T::As<'fcx>>, ErrorReport> {
    array.iter().map(|element| element.ok_or_else(|| null_element(name))).collect()
}

fn lane_number(lane: i32) -> Result<u32, SlotMapError> {
    u32::try_from(lane).map_err(|_| SlotMapError::LaneNumber(lane.into()))
}

fn slot_number(slot: i32, map: &SlotMap) -> Result<u32, SlotMapError> {
    u32::try_from(slot).map_err(|_| SlotMapError::NoSuchSlot { slot: slot.into(), slots: map.slots() })
}

fn map_of(slot_lanes: &SlotLanes<'_>) -> Result<SlotMap, ErrorReport> {
    let lanes = elements("slot_lanes", slot_lanes)?.into_iter().map(lane_number).collect::<Result<_, _>>();
    lanes.and_then(SlotMap::new).map_err(|error| slot_map_error(&error))
}

/// The map after a change, as Postgres takes it.
fn answer(map: Result<SlotMap, SlotMapError>) -> Result<Vec<i32>, ErrorReport> {
    let map = map.map_err(|error| slot_map_error(&error))?;
    Ok(map.lanes_of_slots().iter().map(|lane| *lane as i32).collect())
}

#[pg_extern(sql = false)]
fn plan_resize(slot_lanes: SlotLanes<'_>, lanes: i32, modulo: bool) -> Result<Vec<i32>, ErrorReport> {
    let map = map_of(&slot_lanes)?;
    let count = u32::try_from(lanes).map_err(|_| SlotMapError::Lanes(lanes.into()));
    answer(count.and_then(|count| map.resize(count, modulo)))
}

/// `weights` may be null, so the function is not STRICT; a null map or lane gives null.
#[pg_extern(sql = false)]
fn plan_split(
    slot_lanes: Option<SlotLanes<'_>>,
    lane: Option<i32>,
    weights: Option<Array<'_, i64>>,
) -> Result<Option<Vec<i32>>, ErrorReport> {
    let (Some(slot_lanes), Some(lane)) = (slot_lanes, lane) else { return Ok(None) };
    let map = map_of(&slot_lanes)?;
    let weight = |weight: i64| u64::try_from(weight).map_err(|_| slot_map_error(&SlotMapError::Weight(weight)));
    let weights = match &weights {
        Some(weights) => Some(elements("weights", weights)?.into_iter().map(weight).collect::<Result<Vec<u64>, _>>()?),
        None => None,
    };
    answer(lane_number(lane).and_then(|lane| map.split(lane, weights.as_deref()))).map(Some)
}

#[pg_extern(sql = false)]
fn plan_merge(slot_lanes: SlotLanes<'_>, keep: i32, gone: i32) -> Result<Vec<i32>, ErrorReport> {
    let map = map_of(&slot_lanes)?;
    answer(lane_number(keep).and_then(|keep| map.merge(keep, lane_number(gone)?)))
}

#[pg_extern(sql = false)]
fn plan_move(slot_lanes: SlotLanes<'_>, slots: Array<'_, i32>, lane: i32) -> Result<Vec<i32>, ErrorReport> {
    let map = map_of(&slot_lanes)?;
    let slots = elements("slots", &slots)?.into_iter().map(|slot| slot_number(slot, &map)).collect();
    answer(lane_number(lane).and_then(|lane| {
        let slots: Result<Vec<u32>, SlotMapError> = slots;
        map.move_slots(&slots?, lane)
    }))
}

#[pg_extern(sql = false)]
fn plan_isolate(slot_lanes: SlotLanes<'_>, slot: i32) -> Result<Vec<i32>, ErrorReport> {
    let map = map_of(&slot_lanes)?;
    answer(slot_number(slot, &map).and_then(|slot| map.isolate(slot)))
}

#[pg_extern(sql = false)]
#[expect(clippy::type_complexity, reason = "pgrx reads the columns from the signature")]
fn plan_change(
    before: SlotLanes<'_>,
    after: SlotLanes<'_>,
) -> Result<
    TableIterator<
        'static,
        (
            name!(moved, i32),
            name!(involved, Vec<i32>),
            name!(new_lanes, Vec<i32>),
            name!(parents, Vec<i32>),
            name!(retired, Vec<i32>),
        ),
    >,
    ErrorReport,
> {
    let plan = slot_map::plan(&map_of(&before)?, &map_of(&after)?).map_err(|error| slot_map_error(&error))?;
    let (new_lanes, parents): (Vec<u32>, Vec<u32>) = plan.new_lanes.into_iter().unzip();
    let signed = |numbers: Vec<u32>| numbers.into_iter().map(|number| number as i32).collect::<Vec<i32>>();
    let moved = plan.moved_slots as i32;
    Ok(TableIterator::once((moved, signed(plan.involved), signed(new_lanes), signed(parents), signed(plan.retired))))
}

#[pg_extern(sql = false)]
fn is_canonical(slot_lanes: SlotLanes<'_>) -> Result<bool, ErrorReport> {
    Ok(map_of(&slot_lanes)?.is_canonical())
}

/// `definition` is a projection's own part of a document, as `lanes.projection` holds it. A key that is null counts as
/// empty, a time as 0 and a payload as an object without fields, as they do for the daemon.
#[pg_extern(sql = false)]
#[expect(clippy::type_complexity, reason = "pgrx reads the columns from the signature")]
fn event_slots(
    definition: Jsonb,
    slots: i32,
    types: Array<'_, Text<'_>>,
    keys: Array<'_, Text<'_>>,
    times: Array<'_, i64>,
    positions: Array<'_, i64>,
    payloads: Array<'_, Text<'_>>,
) -> Result<TableIterator<'static, (name!(slot, Option<i32>), name!(lane_key, Option<TextAnswer>))>, ErrorReport> {
    let slots = u32::try_from(slots)
        .ok()
        .filter(|slots| (1..=MAXIMUM_SLOTS).contains(slots))
        .ok_or_else(|| slot_map_error(&SlotMapError::Slots(slots.max(0) as u64)))?;
    let lengths = [types.len(), keys.len(), times.len(), positions.len(), payloads.len()];
    if lengths.iter().any(|length| *length != types.len()) {
        return Err(unequal_arrays(&lengths));
    }
    let definition: serde_json::Value =
        serde_json::from_slice(&definition.to_json()).map_err(|error| unreadable_document(&error))?;
    let document = parse_document(&json!({ "projections": { "definition": definition } }))
        .map_err(|error| definition_error(&error))?;
    let [projection] = &document.projections[..] else { unreachable!("a document of one projection has one") };

    let mut rows = Vec::with_capacity(types.len());
    let envelopes = types.iter().zip(keys.iter()).zip(payloads.iter());
    for (((event_type, key), payload), (ts, position)) in envelopes.zip(times.iter().zip(positions.iter())) {
        let text = |text: Option<Text<'_>>| text.map(|text| text.as_str().into_owned());
        let Some(event_type) = text(event_type).filter(|name| projection.source_event(name).is_some()) else {
            rows.push((None, None));
            continue;
        };
        let event = Event {
            event_type,
            key: text(key).unwrap_or_default(),
            ts: ts.unwrap_or(0),
            payload: text(payload).unwrap_or_else(|| "{}".to_owned()),
        };
        let position = position.ok_or_else(|| null_element("positions"))?;
        let view = EventView::new(position.max(0) as u64, &event);
        let (slot, lane_key) = projection.slot_and_key(&view, slots);
        rows.push((Some(slot as i32), lane_key.map(TextAnswer)));
    }
    Ok(TableIterator::new(rows))
}
