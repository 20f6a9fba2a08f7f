//! The map of slots: what each change gives, and that changes made while lanes work neither lose, repeat nor reorder an
//! event of any key (LANE-3, LANE-4).
//!
//! The model here knows lanes, places and events; of the code under test it uses the maps and the plans alone. Whether
//! all is well it sees from what was applied: of every key each event, in order.

use std::collections::{BTreeMap, BTreeSet};

use lanes_core::lane::{MAXIMUM_LANES, Strategy as LaneStrategy, lane_of, slot_of, slots_for};
use lanes_core::slot_map::{MAXIMUM_SLOTS, Plan, SlotMap, SlotMapError, plan};
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};
use proptest::strategy::ValueTree;
use proptest::test_runner::TestRunner;

/// A change that somebody asks for; numbers are taken modulo what there is.
#[derive(Debug, Clone)]
enum Change {
    Refine(u32),
    Split(usize, Option<u64>),
    Merge(usize, usize),
    Move(Vec<u32>, u32),
    Isolate(u32),
    Resize(u32, bool),
}

fn changes() -> impl Strategy<Value = Change> {
    prop_oneof![
        (1u32..4).prop_map(Change::Refine),
        (any::<usize>(), proptest::option::of(any::<u64>())).prop_map(|(lane, seed)| Change::Split(lane, seed)),
        (any::<usize>(), any::<usize>()).prop_map(|(keep, gone)| Change::Merge(keep, gone)),
        (proptest::collection::vec(any::<u32>(), 0..9), 0u32..12).prop_map(|(slots, lane)| Change::Move(slots, lane)),
        any::<u32>().prop_map(Change::Isolate),
        (1u32..12, any::<bool>()).prop_map(|(lanes, modulo)| Change::Resize(lanes, modulo)),
    ]
}

/// The map after the change; none where it is refused.
fn changed(map: &SlotMap, change: &Change) -> Option<SlotMap> {
    let lanes = map.lanes();
    let lane = |index: usize| lanes[index % lanes.len()];
    let answer = match change {
        Change::Refine(factor) => map.refine(*factor),
        Change::Split(index, seed) => {
            let weights = seed.map(|seed| (0..map.slots()).map(|slot| seed.rotate_left(slot) % 50).collect::<Vec<_>>());
            map.split(lane(*index), weights.as_deref())
        }
        Change::Merge(keep, gone) => map.merge(lane(*keep), lane(*gone)),
        Change::Move(slots, to) => {
            map.move_slots(&slots.iter().map(|slot| slot % map.slots()).collect::<Vec<_>>(), *to)
        }
        Change::Isolate(slot) => map.isolate(slot % map.slots()),
        Change::Resize(lanes, modulo) => map.resize(*lanes, *modulo),
    };
    match answer {
        Ok(map) => Some(map),
        Err(SlotMapError::SameLane(_) | SlotMapError::TooFine(_)) => None,
        Err(error) => panic!("{change:?}: {error}"),
    }
}

/// What happens in a run of the model.
#[derive(Debug, Clone)]
enum Step {
    /// Events of these keys are stored.
    Store(Vec<u8>),
    /// A lane works on so many positions.
    Work(usize, u64),
    /// Somebody asks for a change of the map; refused while another one waits.
    Change(Change),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        3 => proptest::collection::vec(0u8..40, 1..20).prop_map(Step::Store),
        8 => (any::<usize>(), 1u64..30).prop_map(|(lane, positions)| Step::Work(lane, positions)),
        1 => changes().prop_map(Step::Change),
    ];
    proptest::collection::vec(step, 1..200)
}

/// How the model changes maps: as it must be, or with a part left out, which the check then has to see.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rules {
    AsPlanned,
    WithoutAlignment,
}

/// Lanes at work on a log.
struct Model {
    rules: Rules,
    /// The key of the event at each position, from 1.
    log: Vec<u8>,
    map: SlotMap,
    /// How far each lane is.
    places: BTreeMap<u32, u64>,
    /// The change that waits: its map, its plan, and where its lanes stop.
    waiting: Option<(SlotMap, Plan, u64)>,
    applied: BTreeMap<u8, Vec<u64>>,
    changed: usize,
}

impl Model {
    fn new(rules: Rules, lanes: u32) -> Model {
        let map = SlotMap::new((0..64).map(|slot| slot % lanes).collect()).unwrap();
        let places = map.lanes().into_iter().map(|lane| (lane, 0)).collect();
        Model { rules, log: Vec::new(), map, places, waiting: None, applied: BTreeMap::new(), changed: 0 }
    }

    fn work(&mut self, lane: u32, positions: u64) {
        let from = self.places[&lane];
        let mut to = (from + positions).min(self.log.len() as u64);
        if let Some((_, plan, stop)) = &self.waiting
            && plan.involved.contains(&lane)
        {
            to = to.min(*stop);
        }
        for position in from + 1..=to.max(from) {
            let key = self.log[position as usize - 1];
            if self.map.lanes_of_slots()[slot_of(&[key], self.map.slots()) as usize] == lane {
                self.applied.entry(key).or_default().push(position);
            }
        }
        self.places.insert(lane, to.max(from));
        self.finish();
    }

    fn ask(&mut self, change: &Change) {
        if self.waiting.is_some() {
            return;
        }
        // Finer maps bring nothing new and take long.
        let Some(map) = changed(&self.map, change).filter(|map| map.slots() <= 1024) else { return };
        let plan = plan(&self.map, &map).unwrap();
        let stop = plan.involved.iter().map(|lane| self.places[lane]).max().unwrap_or(0);
        self.waiting = Some((map, plan, stop));
        self.finish();
    }

    /// Lets the waiting change take effect, if all lanes that it needs stand at the stop.
    fn finish(&mut self) {
        let Some((map, plan, stop)) = self.waiting.take() else { return };
        let stands = |lane: &u32| self.rules == Rules::WithoutAlignment || self.places[lane] == stop;
        if !plan.involved.iter().all(stands) {
            self.waiting = Some((map, plan, stop));
            return;
        }
        for (lane, parent) in &plan.new_lanes {
            self.places.insert(*lane, self.places[parent]);
        }
        for lane in &plan.retired {
            self.places.remove(lane);
        }
        assert_eq!(self.places.keys().copied().collect::<Vec<_>>(), map.lanes(), "a place for each lane");
        self.map = map;
        self.changed += 1;
    }

    fn run(&mut self, steps: &[Step]) {
        for step in steps {
            match step {
                Step::Store(keys) => self.log.extend(keys),
                Step::Work(index, positions) => {
                    let lanes = self.map.lanes();
                    self.work(lanes[index % lanes.len()], *positions);
                }
                Step::Change(change) => self.ask(change),
            }
        }
        // All lanes come to the end; a waiting change must let them.
        for _ in 0..2 {
            for lane in self.map.lanes() {
                if self.places.contains_key(&lane) {
                    self.work(lane, u64::MAX >> 1);
                }
            }
        }
    }

    /// What is wrong, if anything: each key's events as they are in the log, and as they were applied.
    fn fault(&self) -> Option<String> {
        let mut stored: BTreeMap<u8, Vec<u64>> = BTreeMap::new();
        for (key, position) in self.log.iter().zip(1..) {
            stored.entry(*key).or_default().push(position);
        }
        if self.waiting.is_some() {
            return Some("the change never took effect".to_owned());
        }
        (stored != self.applied).then(|| format!("stored {stored:?}, applied {:?}", self.applied))
    }
}

proptest! {
    #[test]
    fn changes_while_lanes_work_keep_every_event_once_and_in_order(lanes in 1u32..7, steps in steps()) {
        let mut model = Model::new(Rules::AsPlanned, lanes);
        model.run(&steps);
        prop_assert_eq!(model.fault(), None);
    }

    /// Every slot is on one lane by the type of a map; what a change must leave alone is alone.
    #[test]
    fn a_change_moves_what_it_says(lanes in 1u32..9, before in proptest::collection::vec(changes(), 0..6), change in changes()) {
        let mut map = SlotMap::new((0..48).map(|slot| slot % lanes).collect()).unwrap();
        for earlier in &before {
            map = changed(&map, earlier).unwrap_or(map);
        }
        let Some(after) = changed(&map, &change) else { return Ok(()) };
        prop_assert_eq!(&after, &changed(&map, &change).unwrap(), "the same answer each time");
        prop_assert_eq!(after.slots() % map.slots(), 0);
        let refined: Vec<u32> = (0..after.slots()).map(|slot| map.lanes_of_slots()[(slot % map.slots()) as usize]).collect();
        let moved: Vec<usize> = (0..refined.len()).filter(|slot| refined[*slot] != after.lanes_of_slots()[*slot]).collect();
        let plan = plan(&map, &after).unwrap();
        prop_assert_eq!(plan.moved_slots as usize, moved.len());
        let (old, new): (BTreeSet<u32>, BTreeSet<u32>) =
            (map.lanes().into_iter().collect(), after.lanes().into_iter().collect());
        prop_assert_eq!(plan.retired, old.difference(&new).copied().collect::<Vec<_>>());
        prop_assert_eq!(
            plan.new_lanes.iter().map(|(lane, _)| *lane).collect::<Vec<_>>(),
            new.difference(&old).copied().collect::<Vec<_>>()
        );
        for (lane, parent) in &plan.new_lanes {
            prop_assert!(moved.iter().any(|slot| refined[*slot] == *parent && after.lanes_of_slots()[*slot] == *lane));
        }
        match &change {
            Change::Refine(_) => prop_assert!(moved.is_empty()),
            Change::Split(index, _) => {
                let parent = map.lanes()[index % map.lanes().len()];
                prop_assert!(plan.involved.is_empty() && plan.new_lanes.len() == 1);
                prop_assert!(moved.iter().all(|slot| refined[*slot] == parent));
            }
            Change::Merge(..) => prop_assert_eq!(plan.involved.len(), 2),
            Change::Move(..) => {}
            Change::Isolate(slot) => {
                let lane = after.lane_of_slot(slot % map.slots()).unwrap();
                prop_assert_eq!(after.lanes_of_slots().iter().filter(|other| **other == lane).count(), 1);
                prop_assert!(moved.len() <= 1 && plan.involved.is_empty());
            }
            Change::Resize(lanes, modulo) => {
                prop_assert_eq!(new.len() as u32, *lanes);
                prop_assert!(!modulo || after.is_canonical());
                let counts: Vec<usize> =
                    new.iter().map(|lane| after.lanes_of_slots().iter().filter(|other| *other == lane).count()).collect();
                prop_assert!(counts.iter().max().unwrap() - counts.iter().min().unwrap() <= 1);
                if !modulo {
                    prop_assert_eq!(moved.len(), fewest_moves(&refined, *lanes as usize));
                    // The highest numbers go, the lowest free ones come.
                    let kept: BTreeSet<u32> = old.iter().copied().take(*lanes as usize).collect();
                    prop_assert!(kept.is_subset(&new));
                    let free = (0..MAXIMUM_LANES).filter(|lane| !kept.contains(lane)).take(new.len() - kept.len());
                    prop_assert_eq!(new, kept.iter().copied().chain(free).collect());
                }
            }
        }
    }

    /// `lane_of` names the lane after a definition, and after a resize to a multiple or a divisor.
    #[test]
    fn lane_of_names_the_lanes_of_a_canonical_map(lanes in 1u32..=20, times in 1u32..5, key in ".{0,20}") {
        let map = SlotMap::canonical(lanes).unwrap();
        prop_assert_eq!(map.slots(), slots_for(lanes));
        let more = map.resize(lanes * times, false).unwrap();
        for (map, lanes) in [(map, lanes), (more.clone(), lanes * times), (more.resize(lanes, false).unwrap(), lanes)] {
            prop_assert!(map.is_canonical());
            let lane = map.lane_of_slot(slot_of(key.as_bytes(), map.slots())).unwrap();
            prop_assert_eq!(lane as i32, lane_of(key.as_bytes(), lanes as i32, LaneStrategy::Modulo).unwrap());
        }
    }

    /// The two halves differ by no more than the heaviest slot.
    #[test]
    fn a_split_by_weight_halves_the_weight(weights in proptest::collection::vec(0u64..1000, 2..64)) {
        let map = SlotMap::new(vec![3; weights.len()]).unwrap();
        let after = map.split(3, Some(&weights)).unwrap();
        let weight_of = |lane: u32| -> u64 {
            (0..).zip(&weights).filter(|(slot, _)| after.lane_of_slot(*slot) == Some(lane)).map(|(_, weight)| weight).sum()
        };
        prop_assert_eq!(after.lanes(), [0, 3]);
        prop_assert!(weight_of(0).abs_diff(weight_of(3)) <= *weights.iter().max().unwrap());
    }
}

/// The number of slots that no spreading over `lanes` lanes can leave in place, by trying every set of shares: the kept
/// lanes may have S / lanes slots, and S % lanes of all lanes one more.
fn fewest_moves(lanes_of_slots: &[u32], lanes: usize) -> usize {
    let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
    for lane in lanes_of_slots {
        *counts.entry(*lane).or_default() += 1;
    }
    let mut counts: Vec<usize> = counts.into_values().take(lanes).collect();
    counts.resize(lanes, 0);
    let (share, uneven) = (lanes_of_slots.len() / lanes, lanes_of_slots.len() % lanes);
    let staying = (0u32..1 << lanes).filter(|chosen| chosen.count_ones() as usize == uneven).map(|chosen| {
        let shares = (0..lanes).map(|lane| share + (chosen >> lane & 1) as usize);
        counts.iter().zip(shares).map(|(count, share)| *count.min(&share)).sum::<usize>()
    });
    lanes_of_slots.len() - staying.max().unwrap_or(0)
}

/// The check bites: with lanes that do not first stand at one place it finds faults.
#[test]
fn without_the_alignment_events_are_lost_or_repeated() {
    let mut runner = TestRunner::deterministic();
    let (mut faults, mut changed) = (0, 0);
    for _ in 0..256 {
        let steps = steps().new_tree(&mut runner).unwrap().current();
        let mut model = Model::new(Rules::WithoutAlignment, 4);
        model.run(&steps);
        faults += usize::from(model.fault().is_some());
        let mut model = Model::new(Rules::AsPlanned, 4);
        model.run(&steps);
        assert_eq!(model.fault(), None);
        changed += model.changed;
    }
    assert!(faults >= 50 && changed >= 500, "{faults} faults, {changed} changes");
}

#[test]
fn changes_out_of_range_are_refused_with_their_value() {
    let map = SlotMap::canonical(8).unwrap();
    let refused = |answer: Result<SlotMap, SlotMapError>, shown: &str| {
        let error = answer.unwrap_err();
        assert!(error.to_string().contains(shown), "{error}");
        assert!(error.hint().ends_with('.'), "{error}");
    };
    refused(SlotMap::new(Vec::new()), "not 0");
    refused(SlotMap::new(vec![0; MAXIMUM_SLOTS as usize + 1]), "65537");
    refused(SlotMap::new(vec![0, MAXIMUM_LANES]), "1024");
    for lanes in [0, MAXIMUM_LANES + 1] {
        refused(SlotMap::canonical(lanes), &lanes.to_string());
        refused(map.resize(lanes, false), &lanes.to_string());
    }
    refused(map.resize(1000, true), "128000");
    refused(map.refine(65), "66560");
    refused(map.split(8, None), "lane 8");
    refused(map.split(0, Some(&[1])), "1 weights for 1024");
    refused(map.merge(0, 9), "lane 9");
    refused(map.merge(9, 0), "lane 9");
    refused(map.merge(2, 2), "lane 2");
    refused(map.move_slots(&[0, 1024], 0), "slot 1024");
    refused(map.move_slots(&[0], MAXIMUM_LANES), "1024");
    refused(map.isolate(1024), "slot 1024");
    let full = SlotMap::canonical(MAXIMUM_LANES).unwrap();
    refused(full.split(0, None), "1024 lanes");
    refused(plan(&full, &SlotMap::new(vec![0; 1536]).unwrap()).map(|_| full.clone()), "1536");
    // Too fine for lane_of, so the fewest slots move.
    let uneven = SlotMap::canonical(1).unwrap().resize(1023, false).unwrap();
    assert!(!uneven.is_canonical() && uneven.lanes().len() == 1023 && uneven.slots() == 1024);
}

#[test]
fn doubling_splits_each_lane_and_needs_no_alignment() {
    let before = SlotMap::canonical(8).unwrap();
    let after = before.resize(16, false).unwrap();
    let plan = plan(&before, &after).unwrap();
    let new_lanes: Vec<(u32, u32)> = (8..16).map(|lane| (lane, lane - 8)).collect();
    assert_eq!(plan, Plan { moved_slots: 512, involved: vec![], new_lanes, retired: vec![] });
    let back = lanes_core::slot_map::plan(&after, &before).unwrap();
    let (involved, retired) = ((0..16).collect(), (8..16).collect());
    assert_eq!(back, Plan { moved_slots: 512, involved, new_lanes: vec![], retired });
    // A slot that goes to a lane that there is: both stand still, the third does not. If the slots get other numbers, all do.
    let map = |lanes_of_slots: &[u32]| SlotMap::new(lanes_of_slots.to_vec()).unwrap();
    let involved = |before, after| lanes_core::slot_map::plan(&map(before), &map(after)).unwrap().involved;
    assert_eq!(involved(&[0, 0, 1, 2], &[0, 1, 1, 2]), [0, 1]);
    assert_eq!(involved(&[0, 1, 2], &[0, 1, 2, 1, 1, 2]), [0, 1, 2]);
    assert_eq!(involved(&[0, 1, 2], &[0, 1, 2, 3, 1, 2]), [0; 0]);
    // One slot alone on its lane is cut in two.
    let one = SlotMap::new(vec![0, 1]).unwrap().split(1, None).unwrap();
    assert_eq!(one.lanes_of_slots(), [0, 1, 0, 2]);
    assert_eq!(SlotMap::new(vec![5, 5, 5, 5]).unwrap().split(5, None).unwrap().lanes_of_slots(), [5, 0, 5, 0]);
}
