//! The map of a projection: which lane owns which slot, and what it becomes when lanes are resized, split, merged,
//! moved or isolated.
//!
//! Invariants: each slot is on exactly one lane. Lane numbers are below [`MAXIMUM_LANES`] and need not be dense; a new
//! lane takes the lowest number that owns no slot. The answers depend on the arguments alone, so whoever asks gets the
//! same map. A map may be *refined*: slot s becomes s, s + S, s + 2S, …, all on the lane of s; since a key's slot is its
//! hash modulo the number of slots, no key moves.
//!
//! How a map may take effect while lanes work is what [`plan`] tells: a lane that hands slots to others is at some place
//! in the log, and whoever takes them must be at the same (LANE-3, LANE-4).

use std::collections::{BTreeMap, BTreeSet};

use crate::lane::{MAXIMUM_LANES, slots_for};

/// The most slots of a projection.
pub const MAXIMUM_SLOTS: u32 = 65_536;

/// What a caller asked of a map that has no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SlotMapError {
    /// A map without slots, or with too many.
    #[error("number of slots must be between 1 and {MAXIMUM_SLOTS}, not {0}")]
    Slots(u64),
    /// A number of lanes out of range.
    #[error("number of lanes must be between 1 and {MAXIMUM_LANES}, not {0}")]
    Lanes(i64),
    /// A number that no lane can have.
    #[error("lane number must be at least 0 and below {MAXIMUM_LANES}, not {0}")]
    LaneNumber(i64),
    /// A lane that owns no slot.
    #[error("lane {0} owns no slots")]
    NoSuchLane(u32),
    /// A slot that the map does not have.
    #[error("slot {slot} does not exist: there are {slots} slots")]
    NoSuchSlot {
        /// The number that was given.
        slot: i64,
        /// How many slots there are.
        slots: u32,
    },
    /// A lane merged with itself.
    #[error("lane {0} cannot be merged with itself")]
    SameLane(u32),
    /// Weights that are not one for each slot.
    #[error("there are {given} weights for {slots} slots")]
    WeightCount {
        /// How many weights were given.
        given: usize,
        /// How many slots there are.
        slots: u32,
    },
    /// A weight below 0.
    #[error("weight must be at least 0, not {0}")]
    Weight(i64),
    /// More lanes than there may be.
    #[error("there are {MAXIMUM_LANES} lanes already, and there cannot be more")]
    LanesFull,
    /// A finer map than there may be.
    #[error("{0} slots would be needed, more than {MAXIMUM_SLOTS}")]
    TooFine(u64),
    /// Two maps of which the second is no refinement of the first.
    #[error("a map of {before} slots cannot become one of {after}")]
    NotRefined {
        /// The number of slots of the first.
        before: u32,
        /// The number of slots of the second.
        after: u32,
    },
}

impl SlotMapError {
    /// What the caller can do about it: a full sentence.
    pub fn hint(&self) -> &'static str {
        match self {
            SlotMapError::Slots(_) => "Pass the slot_lanes of a projection: the lane of each slot.",
            SlotMapError::Lanes(_) => "One lane is the least; more lanes than busy workers bring nothing.",
            SlotMapError::LaneNumber(_) => "Lanes are numbered from 0.",
            SlotMapError::NoSuchLane(_) => "The view lanes.status lists the lanes there are.",
            SlotMapError::NoSuchSlot { .. } => "Slots are numbered from 0.",
            SlotMapError::SameLane(_) => "Name two lanes: the one that stays, and the one whose slots it takes over.",
            SlotMapError::WeightCount { .. } | SlotMapError::Weight(_) => "Pass one number for each slot, or null.",
            SlotMapError::LanesFull => "Merge two lanes first.",
            SlotMapError::TooFine(_) => {
                "Leave out the request for slot modulo lanes, or choose a number of lanes that is a power of two \
                 times the present one."
            }
            SlotMapError::NotRefined { .. } => "The number of slots may only be multiplied.",
        }
    }
}

/// Which lane owns which slot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotMap {
    lanes_of_slots: Vec<u32>,
}

impl SlotMap {
    /// The map in which slot s is on lane `lanes_of_slots[s]`.
    ///
    /// # Errors
    /// [`SlotMapError::Slots`] and [`SlotMapError::LaneNumber`] for numbers out of range.
    pub fn new(lanes_of_slots: Vec<u32>) -> Result<SlotMap, SlotMapError> {
        let slots = lanes_of_slots.len() as u64;
        if slots == 0 || slots > MAXIMUM_SLOTS.into() {
            return Err(SlotMapError::Slots(slots));
        }
        if let Some(lane) = lanes_of_slots.iter().find(|lane| **lane >= MAXIMUM_LANES) {
            return Err(SlotMapError::LaneNumber((*lane).into()));
        }
        Ok(SlotMap { lanes_of_slots })
    }

    /// The map that a projection with so many lanes begins with: slot modulo lanes.
    ///
    /// # Errors
    /// [`SlotMapError::Lanes`] for a number out of range.
    pub fn canonical(lanes: u32) -> Result<SlotMap, SlotMapError> {
        check_lane_count(lanes)?;
        Ok(SlotMap::modulo(slots_for(lanes), lanes))
    }

    /// The map of one lane, which owns all slots.
    pub fn one_lane() -> SlotMap {
        SlotMap::modulo(slots_for(1), 1)
    }

    fn modulo(slots: u32, lanes: u32) -> SlotMap {
        SlotMap { lanes_of_slots: (0..slots).map(|slot| slot % lanes).collect() }
    }

    /// The number of slots.
    pub fn slots(&self) -> u32 {
        self.lanes_of_slots.len() as u32
    }

    /// The lane of each slot.
    pub fn lanes_of_slots(&self) -> &[u32] {
        &self.lanes_of_slots
    }

    /// The lane of a slot; none if there is no such slot.
    pub fn lane_of_slot(&self, slot: u32) -> Option<u32> {
        self.lanes_of_slots.get(slot as usize).copied()
    }

    /// The lanes that own slots, ascending.
    pub fn lanes(&self) -> Vec<u32> {
        self.lanes_of_slots.iter().copied().collect::<BTreeSet<u32>>().into_iter().collect()
    }

    /// Whether the n lanes are numbered from 0 to n - 1 and `lane_of(key, n)` names the lane of every key.
    pub fn is_canonical(&self) -> bool {
        let lanes = self.lanes().len() as u32;
        self.slots().is_multiple_of(lanes) && *self == SlotMap::modulo(self.slots(), lanes)
    }

    /// The same map with `factor` times the slots; no key moves.
    ///
    /// # Errors
    /// [`SlotMapError::TooFine`] if there would be too many.
    pub fn refine(&self, factor: u32) -> Result<SlotMap, SlotMapError> {
        let factor = factor.max(1);
        let slots = u64::from(self.slots()) * u64::from(factor);
        if slots > MAXIMUM_SLOTS.into() {
            return Err(SlotMapError::TooFine(slots));
        }
        Ok(SlotMap { lanes_of_slots: self.lanes_of_slots.repeat(factor as usize) })
    }

    /// The map with `lanes` lanes.
    ///
    /// Where `lane_of` names the lanes now and they are multiplied or divided, it does so afterwards too, if there can be
    /// so many slots (and no fewer could move); so it does if `modulo` asks for it. Otherwise the fewest slots move that
    /// leave each lane with its share, to within one slot; the highest numbers go.
    ///
    /// # Errors
    /// [`SlotMapError::Lanes`] for a number out of range, [`SlotMapError::TooFine`] if `modulo` needs too many slots.
    pub fn resize(&self, lanes: u32, modulo: bool) -> Result<SlotMap, SlotMapError> {
        check_lane_count(lanes)?;
        let before = self.lanes().len() as u32;
        let follows = self.is_canonical() && (lanes.is_multiple_of(before) || before.is_multiple_of(lanes));
        if modulo || follows {
            // The least multiple of the number of slots that the number of lanes divides.
            let factor = lanes / greatest_common_divisor(self.slots(), lanes);
            match self.refine(factor) {
                Ok(refined) => return Ok(SlotMap::modulo(refined.slots(), lanes)),
                Err(error) if modulo => return Err(error),
                Err(_) => {}
            }
        }
        let mut map = self.clone();
        while map.slots() < lanes {
            map = map.refine(2)?;
        }
        map.spread(lanes);
        Ok(map)
    }

    /// Moves the fewest slots that leave `lanes` lanes with the same number of them, to within one.
    fn spread(&mut self, lanes: u32) {
        let mut held: BTreeMap<u32, u32> = BTreeMap::new();
        for lane in &self.lanes_of_slots {
            *held.entry(*lane).or_default() += 1;
        }
        while held.len() as u32 > lanes {
            held.pop_last();
        }
        while (held.len() as u32) < lanes {
            held.insert(lowest_free(|lane| held.contains_key(&lane)), 0);
        }
        // Those with the most slots keep one more, where the shares are not even.
        let (share, mut uneven) = (self.slots() / lanes, self.slots() % lanes);
        let mut fullest: Vec<(u32, u32)> = held.iter().map(|(lane, count)| (*lane, *count)).collect();
        fullest.sort_by_key(|(lane, count)| (u32::MAX - count, *lane));
        let mut room: BTreeMap<u32, u32> = BTreeMap::new();
        for (lane, _) in fullest {
            room.insert(lane, share + u32::from(uneven > 0));
            uneven = uneven.saturating_sub(1);
        }
        let mut moving = Vec::new();
        for (slot, lane) in self.lanes_of_slots.iter().enumerate() {
            match room.get_mut(lane) {
                Some(left) if *left > 0 => *left -= 1,
                _ => moving.push(slot),
            }
        }
        let mut places = room.into_iter().flat_map(|(lane, left)| std::iter::repeat_n(lane, left as usize));
        for slot in moving {
            if let (Some(lane), Some(owner)) = (places.next(), self.lanes_of_slots.get_mut(slot)) {
                *owner = lane;
            }
        }
    }

    /// The map in which half of the slots of `lane` are on a new lane: every other one, or, by the weights of all slots,
    /// those that are about half of the weight.
    ///
    /// # Errors
    /// [`SlotMapError`] if the lane or the weights do not fit the map, or there is no room for another lane.
    pub fn split(&self, lane: u32, weights: Option<&[u64]>) -> Result<SlotMap, SlotMapError> {
        let mut own = self.slots_of(lane)?;
        if let Some(weights) = weights {
            if weights.len() != self.lanes_of_slots.len() {
                return Err(SlotMapError::WeightCount { given: weights.len(), slots: self.slots() });
            }
            own.sort_by_key(|slot| (u64::MAX - weights.get(*slot).copied().unwrap_or(0), *slot));
        }
        let child = self.new_lane()?;
        if own.len() == 1 {
            let mut map = self.refine(2)?;
            map.set(own.iter().map(|slot| slot + self.lanes_of_slots.len()), child);
            return Ok(map);
        }
        // The heaviest first, each to the lighter half; of halves that weigh the same, to that with fewer slots.
        let (mut staying, mut leaving) = ((0u128, 0usize), (0u128, 0usize));
        let mut moving = Vec::new();
        for slot in own {
            let weight = weights.and_then(|weights| weights.get(slot)).copied().map_or(1, u128::from);
            if staying <= leaving {
                staying = (staying.0 + weight, staying.1 + 1);
            } else {
                leaving = (leaving.0 + weight, leaving.1 + 1);
                moving.push(slot);
            }
        }
        let mut map = self.clone();
        map.set(moving.into_iter(), child);
        Ok(map)
    }

    /// The map in which lane `keep` owns the slots of lane `gone` too.
    ///
    /// # Errors
    /// [`SlotMapError::NoSuchLane`] and [`SlotMapError::SameLane`] for lanes that cannot be merged.
    pub fn merge(&self, keep: u32, gone: u32) -> Result<SlotMap, SlotMapError> {
        self.slots_of(keep)?;
        let moving = self.slots_of(gone)?;
        if keep == gone {
            return Err(SlotMapError::SameLane(keep));
        }
        let mut map = self.clone();
        map.set(moving.into_iter(), keep);
        Ok(map)
    }

    /// The map in which these slots are on `lane`, which may be a new one.
    ///
    /// # Errors
    /// [`SlotMapError::NoSuchSlot`] and [`SlotMapError::LaneNumber`] for numbers out of range.
    pub fn move_slots(&self, slots: &[u32], lane: u32) -> Result<SlotMap, SlotMapError> {
        if lane >= MAXIMUM_LANES {
            return Err(SlotMapError::LaneNumber(lane.into()));
        }
        if let Some(slot) = slots.iter().find(|slot| **slot >= self.slots()) {
            return Err(SlotMapError::NoSuchSlot { slot: (*slot).into(), slots: self.slots() });
        }
        let mut map = self.clone();
        map.set(slots.iter().map(|slot| *slot as usize), lane);
        Ok(map)
    }

    /// The map in which `slot` is alone on its lane: the same map, if it is.
    ///
    /// # Errors
    /// [`SlotMapError::NoSuchSlot`], and [`SlotMapError::LanesFull`] if there is no room for another lane.
    pub fn isolate(&self, slot: u32) -> Result<SlotMap, SlotMapError> {
        let missing = SlotMapError::NoSuchSlot { slot: slot.into(), slots: self.slots() };
        let lane = self.lane_of_slot(slot).ok_or(missing)?;
        if self.slots_of(lane)?.len() == 1 {
            return Ok(self.clone());
        }
        self.move_slots(&[slot], self.new_lane()?)
    }

    /// The slots of a lane, ascending; never none.
    fn slots_of(&self, lane: u32) -> Result<Vec<usize>, SlotMapError> {
        let own = self.lanes_of_slots.iter().enumerate().filter(|(_, owner)| **owner == lane);
        let own: Vec<usize> = own.map(|(slot, _)| slot).collect();
        if own.is_empty() { Err(SlotMapError::NoSuchLane(lane)) } else { Ok(own) }
    }

    fn new_lane(&self) -> Result<u32, SlotMapError> {
        let used = self.lanes();
        let lane = lowest_free(|lane| used.binary_search(&lane).is_ok());
        if lane < MAXIMUM_LANES { Ok(lane) } else { Err(SlotMapError::LanesFull) }
    }

    fn set(&mut self, slots: impl Iterator<Item = usize>, lane: u32) {
        for slot in slots {
            if let Some(owner) = self.lanes_of_slots.get_mut(slot) {
                *owner = lane;
            }
        }
    }
}

fn check_lane_count(lanes: u32) -> Result<(), SlotMapError> {
    if (1..=MAXIMUM_LANES).contains(&lanes) { Ok(()) } else { Err(SlotMapError::Lanes(lanes.into())) }
}

fn lowest_free(used: impl Fn(u32) -> bool) -> u32 {
    let mut lane = 0;
    while used(lane) {
        lane += 1;
    }
    lane
}

fn greatest_common_divisor(mut a: u32, mut b: u32) -> u32 {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a
}

/// How one map becomes another while lanes work.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// How many of the new map's slots change their lane.
    pub moved_slots: u32,
    /// The lanes that must stand at one common place before the map may change: all that give or take slots, and all
    /// there are if the slots get other numbers. None if the change only splits lanes, each new lane taking slots of one
    /// other: it begins where that one is.
    pub involved: Vec<u32>,
    /// Lanes that owned no slot before, each with a lane that it takes slots of, at whose place it begins.
    pub new_lanes: Vec<(u32, u32)>,
    /// Lanes that own no slot any more.
    pub retired: Vec<u32>,
}

/// What it takes that `before` becomes `after`.
///
/// # Errors
/// [`SlotMapError::NotRefined`] if the number of slots of `after` is no multiple of that of `before`.
pub fn plan(before: &SlotMap, after: &SlotMap) -> Result<Plan, SlotMapError> {
    if !after.slots().is_multiple_of(before.slots()) {
        return Err(SlotMapError::NotRefined { before: before.slots(), after: after.slots() });
    }
    let (old, new) = (before.lanes(), after.lanes());
    // For each lane that takes slots, the lanes that it takes them of.
    let mut givers: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    let mut moved_slots = 0;
    for (from, to) in before.lanes_of_slots.iter().cycle().zip(&after.lanes_of_slots) {
        if from != to {
            moved_slots += 1;
            givers.entry(*to).or_default().insert(*from);
        }
    }
    let is_new = |lane: &u32| old.binary_search(lane).is_err();
    let only_splits = givers.iter().all(|(lane, of)| is_new(lane) && of.len() == 1);
    let mut involved = BTreeSet::new();
    if !only_splits {
        involved.extend(givers.values().flatten());
        involved.extend(givers.keys().filter(|lane| !is_new(lane)));
        if after.slots() > before.slots() {
            involved.extend(&old);
        }
    }
    let parent = |(lane, of): (&u32, &BTreeSet<u32>)| Some((*lane, *of.first()?));
    Ok(Plan {
        moved_slots,
        involved: involved.into_iter().collect(),
        new_lanes: givers.iter().filter(|(lane, _)| is_new(lane)).filter_map(parent).collect(),
        retired: old.iter().copied().filter(|lane| new.binary_search(lane).is_err()).collect(),
    })
}
