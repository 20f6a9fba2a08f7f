//! Sharing lanes out among workers that see the same figures and ask nobody: what one of them releases and claims.
//!
//! Fair is by number and by load. By number: each worker has as many lanes as there are for each worker, to within one.
//! By load, within that: a worker that has more than its share of the load by at least a lane releases its lightest one,
//! if another can take it and stay within its share.
//!
//! Invariants: who would take a lane is decided by [`receiver`] alone, for releasing and for claiming, so nobody releases
//! a lane to take it again. A release for the sake of number is made only where the numbers are out of bounds, one for
//! the sake of load only within the bounds and only by the most loaded of the workers that may have fewer lanes, and each
//! makes the loads more even. So with loads that do not change lanes come to rest.

use std::cmp::Reverse;
use std::time::Duration;

/// The weight of a lane without any load.
const BASE: u64 = 1000;

/// A lane as workers see it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lane {
    /// Its share of the work, see [`weights`].
    pub weight: u64,
    /// Its owner's place among the live workers; none if no live worker owns it.
    pub owner: Option<usize>,
    /// How long it has been owned, or without an owner.
    pub since: Duration,
}

/// How hasty workers are.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Who has claimed a lane less than this ago releases none.
    pub cool_down: Duration,
    /// A lane that has been without an owner for this long is for anybody: who should have claimed it cannot.
    pub patience: Duration,
}

/// What a worker does now; lanes by their place in the list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Decision {
    /// The lane to release after its running batch.
    pub release: Option<usize>,
    /// The lanes to claim, the one first that has been without an owner for longest.
    pub claim: Vec<usize>,
}

/// The weights of lanes with these loads: 1000 for being a lane, and another 1000 for the mean load.
pub fn weights(events_per_second: &[f64]) -> Vec<u64> {
    let busy = |rate: &f64| if rate.is_finite() { rate.max(0.0) } else { 0.0 };
    let total: f64 = events_per_second.iter().map(busy).sum();
    let mean = total / events_per_second.len().max(1) as f64;
    let weight = |rate| BASE + if mean > 0.0 { (busy(rate) / mean * BASE as f64) as u64 } else { 0 };
    events_per_second.iter().map(weight).collect()
}

/// What the lanes of a worker amount to.
#[derive(Debug, Clone, Copy, Default)]
struct Share {
    lanes: usize,
    load: u64,
}

/// The numbers of lanes that are within one of the even share.
#[derive(Debug, Clone, Copy)]
struct Bounds {
    least: usize,
    most: usize,
}

impl Bounds {
    fn new(lanes: usize, workers: usize) -> Bounds {
        Bounds { least: lanes.div_ceil(workers).saturating_sub(1), most: lanes / workers + 1 }
    }
}

/// Who takes a lane: those below the least number first, then the one with the least load that has room.
fn receiver(shares: &[Share], bounds: Bounds) -> Option<usize> {
    let key = |worker: &usize| {
        let share = shares.get(*worker).copied().unwrap_or_default();
        (share.lanes >= bounds.most, share.lanes >= bounds.least, share.load, share.lanes, *worker)
    };
    (0..shares.len()).min_by_key(key)
}

/// What worker `me` of `workers` live ones does.
pub fn decide(lanes: &[Lane], workers: usize, me: usize, limits: Limits) -> Decision {
    let workers = workers.max(me + 1);
    let bounds = Bounds::new(lanes.len(), workers);
    let mut shares = vec![Share::default(); workers];
    for lane in lanes {
        if let Some(share) = lane.owner.and_then(|owner| shares.get_mut(owner)) {
            *share = Share { lanes: share.lanes + 1, load: share.load + lane.weight };
        }
    }

    let mut unowned: Vec<usize> = (0..lanes.len()).filter(|lane| lanes[*lane].owner.is_none()).collect();
    unowned.sort_by_key(|lane| (Reverse(lanes[*lane].since), *lane));
    let is_waiting = unowned.iter().any(|lane| lanes[*lane].since < limits.patience);
    let mut claim = Vec::new();
    for lane in unowned {
        let Lane { weight, since, .. } = lanes[lane];
        let taker = receiver(&shares, bounds);
        if let Some(share) = taker.and_then(|taker| shares.get_mut(taker)) {
            *share = Share { lanes: share.lanes + 1, load: share.load + weight };
        }
        if taker == Some(me) || since >= limits.patience {
            claim.push(lane);
        }
    }
    // While lanes are on their way, nobody can tell what is fair.
    let release = if is_waiting || !claim.is_empty() { None } else { release(lanes, shares, bounds, me, limits) };
    Decision { release, claim }
}

/// The lane that `me` had better release.
fn release(lanes: &[Lane], mut shares: Vec<Share>, bounds: Bounds, me: usize, limits: Limits) -> Option<usize> {
    let own = || (0..lanes.len()).filter(|lane| lanes[*lane].owner == Some(me));
    if own().any(|lane| lanes[lane].since < limits.cool_down) {
        return None;
    }
    let lightest = own().min_by_key(|lane| (lanes[*lane].weight, *lane))?;
    let weight = lanes[lightest].weight;
    let mine = *shares.get(me)?;
    let rank_by = |key: &dyn Fn(&Share) -> u64| {
        let ahead = |(worker, share): (usize, &Share)| (key(share), Reverse(worker)) > (key(&mine), Reverse(me));
        shares.iter().enumerate().filter(|other| ahead(*other)).count()
    };
    let missing: usize = shares.iter().map(|share| bounds.least.saturating_sub(share.lanes)).sum();
    let gives_number = rank_by(&|share| share.lanes as u64) < missing || mine.lanes > bounds.most;
    // Who has the least number already, and the heaviest lanes, does not keep the others from giving.
    let gives_load = rank_by(&|share| if share.lanes > bounds.least { share.load } else { 0 }) == 0;
    let fair = shares.iter().map(|share| share.load).sum::<u64>().div_ceil(shares.len() as u64);

    *shares.get_mut(me)? = Share { lanes: mine.lanes - 1, load: mine.load - weight };
    let taker = receiver(&shares, bounds).filter(|taker| *taker != me)?;
    let other = shares[taker];
    let evens_number = gives_number && mine.lanes >= other.lanes + 2;
    let evens_load = gives_load
        && mine.load - weight >= fair
        && other.load + weight <= fair
        && mine.lanes > bounds.least
        && other.lanes < bounds.most;
    (evens_number || evens_load).then_some(lightest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, prop_assert, prop_assert_eq, proptest};

    const LIMITS: Limits = Limits { cool_down: Duration::from_secs(10), patience: Duration::from_secs(15) };

    /// Lanes and workers in steps of a second. Each worker decides on what was so at the beginning of a step.
    struct World {
        lanes: Vec<Lane>,
        alive: Vec<bool>,
        /// A worker that lives and claims nothing: whatever it tries to start fails.
        broken: Option<usize>,
        moves: usize,
    }

    impl World {
        fn new(weights: Vec<u64>, workers: usize) -> World {
            let lane = |weight| Lane { weight, owner: None, since: Duration::ZERO };
            World { lanes: weights.into_iter().map(lane).collect(), alive: vec![true; workers], broken: None, moves: 0 }
        }

        fn kill(&mut self, worker: usize) {
            self.alive[worker] = false;
            for lane in self.lanes.iter_mut().filter(|lane| lane.owner == Some(worker)) {
                (lane.owner, lane.since) = (None, Duration::ZERO);
            }
        }

        fn step(&mut self) {
            let live: Vec<usize> = (0..self.alive.len()).filter(|worker| self.alive[*worker]).collect();
            let place = |worker: usize| live.iter().position(|other| *other == worker);
            let seen: Vec<Lane> =
                self.lanes.iter().map(|lane| Lane { owner: lane.owner.and_then(place), ..*lane }).collect();
            let mut changed = vec![false; self.lanes.len()];
            for (me, worker) in live.iter().enumerate() {
                let Decision { release, claim } = decide(&seen, live.len(), me, LIMITS);
                if let Some(lane) = release {
                    assert_eq!(self.lanes[lane].owner, Some(*worker), "one's own");
                    assert!(self.lanes[lane].since >= LIMITS.cool_down);
                    (self.lanes[lane].owner, changed[lane]) = (None, true);
                    self.moves += 1;
                }
                // What another was faster with stays.
                for lane in claim.into_iter().filter(|_| self.broken != Some(*worker)) {
                    assert_eq!(seen[lane].owner, None);
                    if self.lanes[lane].owner.is_none() {
                        (self.lanes[lane].owner, changed[lane]) = (Some(*worker), true);
                        self.moves += 1;
                    }
                }
            }
            for (lane, changed) in self.lanes.iter_mut().zip(changed) {
                lane.since = if changed { Duration::ZERO } else { lane.since + Duration::from_secs(1) };
            }
        }

        /// Steps until nothing has moved for long enough that it never will.
        fn settle(&mut self) -> usize {
            let mut quiet = 0;
            let mut steps = 0;
            while quiet < 60 {
                let before = self.moves;
                self.step();
                quiet = if self.moves == before { quiet + 1 } else { 0 };
                steps += 1;
                assert!(steps < 2000, "lanes flap: {:?}", self.counts());
            }
            steps - quiet
        }

        fn counts(&self) -> Vec<usize> {
            let count = |worker| self.lanes.iter().filter(|lane| lane.owner == Some(worker)).count();
            (0..self.alive.len()).filter(|worker| self.alive[*worker]).map(count).collect()
        }

        fn loads(&self) -> Vec<u64> {
            let load =
                |worker| self.lanes.iter().filter(|lane| lane.owner == Some(worker)).map(|lane| lane.weight).sum();
            (0..self.alive.len()).filter(|worker| self.alive[*worker]).map(load).collect()
        }

        fn assert_fair(&self) {
            assert!(self.lanes.iter().all(|lane| lane.owner.is_some_and(|owner| self.alive[owner])), "all are owned");
            let even = self.lanes.len() as f64 / self.counts().len() as f64;
            for count in self.counts() {
                assert!((count as f64 - even).abs() <= 1.0, "{:?}, even would be {even}", self.counts());
            }
        }
    }

    #[test]
    fn after_a_start_a_kill_and_a_join_all_are_owned_and_shares_are_even() {
        let mut world = World::new(weights(&[0.0; 64]), 4);
        assert!(world.settle() <= 2, "nobody waits for anybody at the start");
        assert_eq!((world.counts(), world.moves), (vec![16; 4], 64));
        world.kill(1);
        world.settle();
        world.assert_fair();
        assert_eq!(world.moves, 64 + 16, "no lane moves whose owner lives");
        world.alive.push(true);
        let steps = world.settle();
        world.assert_fair();
        assert!(steps <= 30 && world.moves <= 64 + 16 + 2 * 18, "{steps} steps, {} moves", world.moves);
    }

    #[test]
    fn a_worker_that_cannot_start_lanes_leaves_them_to_others() {
        let mut world = World::new(weights(&[0.0; 8]), 2);
        world.broken = Some(0);
        for _ in 0..LIMITS.patience.as_secs() + 2 {
            world.step();
        }
        assert_eq!(world.counts(), [0, 8]);
        for _ in 0..200 {
            world.step();
            assert!(world.counts()[1] >= 7, "no more than one lane at a time is offered in vain");
        }
    }

    #[test]
    fn the_worker_of_a_hot_lane_has_one_lane_less() {
        let mut rates = [1.0; 12];
        rates[7] = 500.0;
        let mut world = World::new(weights(&rates), 3);
        world.settle();
        world.assert_fair();
        let owner = world.lanes[7].owner.unwrap();
        assert_eq!(world.counts()[owner], 3, "{:?}", world.loads());
    }

    #[test]
    fn the_worker_of_the_heaviest_lanes_does_not_keep_others_from_giving() {
        let owned = [(0, 6000), (0, 4000), (1, 4000), (1, 4000), (1, 1000), (2, 1000), (2, 1000)];
        let lane = |(owner, weight)| Lane { weight, owner: Some(owner), since: Duration::from_secs(60) };
        let lanes = owned.map(lane);
        let release = |me| decide(&lanes, 3, me, LIMITS).release;
        // Worker 0 has the least number of lanes. With the same load as another it has no lane to give, either.
        assert_eq!([release(0), release(1), release(2)], [None, Some(4), None]);
        let mut even = lanes;
        even[0].weight = 5000;
        assert_eq!(decide(&even, 3, 1, LIMITS).release, Some(4));
    }

    proptest! {
        #[test]
        fn lanes_come_to_rest_evenly(
            rates in proptest::collection::vec(0u32..1000, 1..80),
            workers in 1usize..9,
            killed in any::<usize>(),
            joining in 0usize..3,
            power in 1u32..4,
        ) {
            let rates: Vec<f64> = rates.into_iter().map(|rate| f64::from(rate).powi(power as i32)).collect();
            let mut world = World::new(weights(&rates), workers);
            world.settle();
            world.assert_fair();
            if workers > 1 {
                world.kill(killed % workers);
                world.settle();
                world.assert_fair();
            }
            world.alive.extend(vec![true; joining]);
            world.settle();
            world.assert_fair();
            // Nobody could give its lightest lane to the least loaded worker so that both are within their share.
            let (loads, counts) = (world.loads(), world.counts());
            let fair = loads.iter().sum::<u64>() / loads.len() as u64 + 1;
            let even = world.lanes.len() as f64 / counts.len() as f64;
            let live: Vec<usize> = (0..world.alive.len()).filter(|worker| world.alive[*worker]).collect();
            let may_give = |worker: &usize| counts[*worker] as f64 - 1.0 >= even - 1.0;
            let most = (0..live.len()).filter(may_give).max_by_key(|worker| (loads[*worker], Reverse(*worker))).unwrap();
            let own = world.lanes.iter().filter(|lane| lane.owner == Some(live[most]));
            let lightest = own.map(|lane| lane.weight).min().unwrap_or(0);
            let room = |worker: &usize| counts[*worker] as f64 + 1.0 <= even + 1.0;
            let least = (0..live.len()).filter(room).map(|worker| loads[worker]).min().unwrap();
            prop_assert!(!(loads[most] > fair + lightest && least + lightest < fair - 1), "{loads:?} {counts:?}");
        }

        #[test]
        fn weights_are_relative_to_the_mean(rates in proptest::collection::vec(0.0f64..1e9, 1..50)) {
            let weights = weights(&rates);
            let expected = 2000 * weights.len() as u64;
            let sum: u64 = weights.iter().sum();
            let idle = rates.iter().all(|rate| *rate == 0.0);
            prop_assert_eq!(idle, sum == 1000 * weights.len() as u64);
            prop_assert!(idle || (sum <= expected && sum + weights.len() as u64 >= expected), "{sum} of {expected}");
        }
    }
}
