//! Who gives way under pressure: lanes of p2 pause first, then those of p1, those of p0 never.
//!
//! There is pressure when a lane of p0 is far behind, or when commits take long. Behind is a time: how long ago the
//! horizon passed the lane's checkpoint. A lane that stands still for a reason of its own is not counted, for nobody who
//! gives way would help it; nor is one that waits for its schedule. The time that a batch may wait to be full, and that
//! a lane without events may stand before its checkpoint follows, is not counted as being behind.
//!
//! Invariants: who has the highest priority at work never pauses. Pressure that lasts takes one step after the other, and
//! each step is taken back only after a time of calm, which is less than half of what is pressure, so lanes do not flap.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use lanes_core::place::Place;
use lanes_core::projection::policy::{Mode, Priority};
use tokio::sync::watch;

use super::board::{Board, LaneReport, LaneState};
use super::catalog::Catalog;
use super::gathering::FLUSH_INTERVAL;
use super::source::Source;

/// Time between two looks.
const INTERVAL: Duration = Duration::from_millis(200);

/// How long pressure lasts before the next step, and calm before a step is taken back.
const STEP: Duration = Duration::from_secs(2);

/// Commits that ended longer ago than this say nothing any more.
const COMMITS_AGE: Duration = Duration::from_secs(5);

/// The most commits that are remembered.
const COMMITS: usize = 1000;

/// What counts as pressure.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// How far behind a lane of p0 may be.
    pub lag: Duration,
    /// How long the commits of batches may take, in the median.
    pub commit: Duration,
}

/// What there is at a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Load {
    /// Less than half of the limits.
    Calm,
    /// Neither.
    Between,
    /// At a limit or above it.
    High,
}

/// The load of one figure.
fn load(figure: Duration, limit: Duration) -> Load {
    if figure >= limit {
        Load::High
    } else if figure < limit / 2 {
        Load::Calm
    } else {
        Load::Between
    }
}

/// How many steps are taken: 1, lanes of p2 pause; 2, those of p1 too.
#[derive(Debug, Clone, Copy)]
struct Steps {
    taken: u8,
    /// When the last one was taken or taken back.
    changed_at: Instant,
    /// Since when it is calm.
    calm_since: Option<Instant>,
}

impl Steps {
    fn new(now: Instant) -> Steps {
        Steps { taken: 0, changed_at: now, calm_since: None }
    }

    /// The steps after a look at the load; at most `most` help anybody.
    fn next(self, now: Instant, load: Load, most: u8) -> Steps {
        let calm_since = (load == Load::Calm).then(|| self.calm_since.unwrap_or(now));
        let since_change = now.duration_since(self.changed_at);
        let calm = calm_since.map_or(Duration::ZERO, |since| now.duration_since(since.max(self.changed_at)));
        let taken = match load {
            Load::High if self.taken == 0 || since_change >= STEP => self.taken.saturating_add(1),
            Load::Calm if calm >= STEP => self.taken.saturating_sub(1),
            _ => self.taken,
        };
        let taken = taken.min(most);
        let changed_at = if taken == self.taken { self.changed_at } else { now };
        Steps { taken, changed_at, calm_since }
    }

    fn pauses(self, priority: Priority) -> bool {
        match priority {
            Priority::P0 => false,
            Priority::P1 => self.taken >= 2,
            Priority::P2 => self.taken >= 1,
        }
    }
}

/// When the horizon was where: how long ago it passed a place.
#[derive(Debug, Default)]
struct Passed(VecDeque<(Instant, Place)>);

impl Passed {
    /// Notes where the horizon is, and forgets what is older than `age`.
    fn note(&mut self, now: Instant, horizon: Place, age: Duration) {
        if self.0.back().is_none_or(|(_, last)| *last < horizon) {
            self.0.push_back((now, horizon));
        }
        // The first one stays where it is needed to tell that what lies behind it is older.
        while self.0.get(1).is_some_and(|(at, _)| now.duration_since(*at) > age) {
            self.0.pop_front();
        }
    }

    /// How long a lane with this checkpoint is behind: at least so long, if it is longer than what is remembered.
    fn behind(&self, now: Instant, place: Place) -> Duration {
        let passed = self.0.iter().find(|(_, horizon)| *horizon > place);
        passed.map_or(Duration::ZERO, |(at, _)| now.duration_since(*at))
    }
}

#[derive(Debug)]
struct State {
    steps: Steps,
    /// Which pressure there was when the last step was taken.
    reason: String,
    /// Commits that are running, by number.
    running: BTreeMap<u64, Instant>,
    next_number: u64,
    /// When commits ended and how long they took.
    ended: VecDeque<(Instant, Duration)>,
}

/// The pressure there is, shared by all workers.
#[derive(Debug)]
pub struct Pressure {
    limits: Limits,
    state: Mutex<State>,
}

impl Pressure {
    /// No pressure yet.
    pub fn new(limits: Limits) -> Pressure {
        let steps = Steps::new(Instant::now());
        let (running, ended) = (BTreeMap::new(), VecDeque::new());
        Pressure { limits, state: Mutex::new(State { steps, reason: String::new(), running, next_number: 0, ended }) }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Why a lane of this priority pauses; none if it does not.
    pub fn pauses(&self, priority: Priority) -> Option<String> {
        let state = self.state();
        state.steps.pauses(priority).then(|| state.reason.clone())
    }

    /// A commit begins; it ends when the answer is dropped.
    pub fn commit(&self) -> Commit<'_> {
        let mut state = self.state();
        let number = state.next_number;
        state.next_number += 1;
        state.running.insert(number, Instant::now());
        Commit { pressure: self, number }
    }

    /// Looks at the pressure again and again, until `stop` is true.
    pub async fn watch(
        self: Arc<Self>,
        board: Arc<Board>,
        source: Arc<Source>,
        catalog: watch::Receiver<Arc<Catalog>>,
        mut stop: watch::Receiver<bool>,
    ) {
        let mut passed = Passed::default();
        loop {
            tokio::select! {
                () = tokio::time::sleep(INTERVAL) => {}
                _ = stop.wait_for(|stop| *stop) => return,
            }
            let catalog = Arc::clone(&catalog.borrow());
            let now = Instant::now();
            passed.note(now, source.horizon(), self.limits.lag.saturating_add(longest_wait(&catalog)));
            self.look(now, &passed, &catalog, &board.report(&source));
        }
    }

    /// One look.
    fn look(&self, now: Instant, passed: &Passed, catalog: &Catalog, lanes: &[LaneReport]) {
        let behind = lanes.iter().filter_map(|lane| {
            let allowed = allowed_wait(catalog, lane)?;
            Some((passed.behind(now, lane.place()).saturating_sub(allowed), lane))
        });
        let behind = behind.max_by_key(|(behind, _)| *behind);
        let lag = behind.as_ref().map_or(Duration::ZERO, |(behind, _)| *behind);
        let highest = lanes.iter().filter_map(|lane| priority_at_work(catalog, lane)).min();
        let most = match highest {
            Some(Priority::P0) => 2,
            Some(Priority::P1) => 1,
            _ => 0,
        };
        let mut state = self.state();
        let commit = state.median_commit(now);
        let Limits { lag: lag_limit, commit: commit_limit } = self.limits;
        let by_lag = load(lag, lag_limit);
        let either = [by_lag, load(commit, commit_limit)];
        let load = if either.contains(&Load::High) {
            Load::High
        } else if either.contains(&Load::Between) {
            Load::Between
        } else {
            Load::Calm
        };
        let before = state.steps.taken;
        state.steps = state.steps.next(now, load, most);
        if load == Load::High {
            state.reason = match (by_lag, &behind) {
                (Load::High, Some((_, lane))) => format!(
                    "lane {} of projection \"{}\" (p0) is behind by more than {} ms",
                    lane.lane,
                    lane.projection,
                    lag_limit.as_millis()
                ),
                _ => format!("commits take longer than {} ms", commit_limit.as_millis()),
            };
        }
        match (before, state.steps.taken) {
            (before, taken) if before < taken => {
                let who = if taken == 1 { "p2" } else { "p1 and p2" };
                tracing::warn!("lanes of priority {who} pause: {}", state.reason);
            }
            (before, taken) if before > taken => {
                let who = if taken == 1 { "p1" } else { "p2" };
                tracing::info!("the pressure is over: lanes of priority {who} go on");
            }
            _ => {}
        }
    }
}

impl State {
    /// The median time of the commits of late, the running ones with their time so far; 0 if there are none.
    fn median_commit(&mut self, now: Instant) -> Duration {
        while self.ended.front().is_some_and(|(at, _)| now.duration_since(*at) > COMMITS_AGE) {
            self.ended.pop_front();
        }
        let running = self.running.values().map(|since| now.duration_since(*since));
        let mut times: Vec<Duration> = self.ended.iter().map(|(_, time)| *time).chain(running).collect();
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or_default()
    }
}

/// A commit that is running.
#[derive(Debug)]
pub struct Commit<'p> {
    pressure: &'p Pressure,
    number: u64,
}

impl Drop for Commit<'_> {
    fn drop(&mut self) {
        let now = Instant::now();
        let mut state = self.pressure.state();
        let Some(since) = state.running.remove(&self.number) else { return };
        if state.ended.len() == COMMITS {
            state.ended.pop_front();
        }
        state.ended.push_back((now, now.duration_since(since)));
    }
}

/// The priority of a lane that is at work here, or would be if it did not pause.
fn priority_at_work(catalog: &Catalog, lane: &LaneReport) -> Option<Priority> {
    match lane.state {
        LaneState::CatchingUp | LaneState::Running | LaneState::BackingOff | LaneState::Paused => {}
        LaneState::Unowned | LaneState::Stopped | LaneState::Scheduled | LaneState::WaitingAtStop => return None,
    }
    let known = catalog.projections.iter().find(|known| *known.name == *lane.projection)?;
    known.rules.as_ref().ok().map(|rules| rules.policy.priority)
}

/// How long a lane may wait before it is behind, if it is one of p0 whose lag counts.
fn allowed_wait(catalog: &Catalog, lane: &LaneReport) -> Option<Duration> {
    if priority_at_work(catalog, lane)? != Priority::P0 {
        return None;
    }
    let known = catalog.projections.iter().find(|known| *known.name == *lane.projection)?;
    wait_of(known.rules.as_ref().ok()?.policy.mode)
}

fn wait_of(mode: Mode) -> Option<Duration> {
    match mode {
        Mode::Realtime => Some(FLUSH_INTERVAL),
        Mode::Batch { flush_interval_ms, .. } => Some(FLUSH_INTERVAL + Duration::from_millis(flush_interval_ms.into())),
        Mode::Scheduled { .. } => None,
    }
}

/// The longest time that a lane of some projection may wait.
fn longest_wait(catalog: &Catalog) -> Duration {
    let modes = catalog.projections.iter().filter_map(|known| Some(known.rules.as_ref().ok()?.policy.mode));
    modes.filter_map(wait_of).max().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TICK: Duration = INTERVAL;

    /// Looks again and again at the same load; gives the steps at each change, with the time of it.
    fn run(steps: &mut Steps, now: &mut Instant, load: Load, most: u8, time: Duration) -> Vec<u8> {
        let mut changes = Vec::new();
        let end = *now + time;
        while *now < end {
            *now += TICK;
            let next = steps.next(*now, load, most);
            if next.taken != steps.taken {
                changes.push(next.taken);
            }
            *steps = next;
        }
        changes
    }

    #[test]
    fn p2_pauses_first_then_p1_and_they_come_back_the_other_way() {
        let mut now = Instant::now();
        let mut steps = Steps::new(now);
        let pauses = |steps: &Steps| [Priority::P0, Priority::P1, Priority::P2].map(|priority| steps.pauses(priority));
        assert_eq!(run(&mut steps, &mut now, Load::High, 2, TICK), [1]);
        assert_eq!(pauses(&steps), [false, false, true]);
        assert_eq!(run(&mut steps, &mut now, Load::High, 2, STEP - TICK), [0; 0]);
        assert_eq!(run(&mut steps, &mut now, Load::High, 2, 100 * STEP), [2]);
        assert_eq!(pauses(&steps), [false, true, true]);
        // Less pressure is no calm.
        assert_eq!(run(&mut steps, &mut now, Load::Between, 2, 100 * STEP), [0; 0]);
        assert_eq!(run(&mut steps, &mut now, Load::Calm, 2, STEP), [0; 0]);
        assert_eq!(run(&mut steps, &mut now, Load::Calm, 2, TICK), [1]);
        assert_eq!(pauses(&steps), [false, false, true]);
        assert_eq!(run(&mut steps, &mut now, Load::Calm, 2, 100 * STEP), [0]);
        assert_eq!(pauses(&steps), [false, false, false]);
    }

    #[test]
    fn a_short_calm_brings_nobody_back() {
        let mut now = Instant::now();
        let mut steps = Steps::new(now);
        run(&mut steps, &mut now, Load::High, 2, TICK);
        for _ in 0..100 {
            assert_eq!(run(&mut steps, &mut now, Load::Calm, 2, STEP - TICK), [0; 0]);
            assert_eq!(run(&mut steps, &mut now, Load::Between, 2, TICK), [0; 0]);
        }
    }

    #[test]
    fn nobody_pauses_for_those_who_are_not_there() {
        let mut now = Instant::now();
        let mut steps = Steps::new(now);
        assert_eq!(run(&mut steps, &mut now, Load::High, 0, 10 * STEP), [0; 0]);
        assert_eq!(run(&mut steps, &mut now, Load::High, 1, 10 * STEP), [1]);
        assert_eq!(run(&mut steps, &mut now, Load::High, 2, 10 * STEP), [2]);
        // The last projection of p0 is gone.
        assert_eq!(run(&mut steps, &mut now, Load::High, 1, TICK), [1]);
    }

    #[test]
    fn behind_is_the_time_since_the_horizon_passed() {
        let start = Instant::now();
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let seconds = Duration::from_secs;
        let mut passed = Passed::default();
        assert_eq!(passed.behind(start, Place::at(0)), seconds(0));
        for (second, horizon) in [(0, 10), (1, 10), (2, 30), (3, 40)] {
            passed.note(at(second), Place::at(horizon), seconds(5));
        }
        for (position, behind) in [(9, 3), (10, 1), (29, 1), (30, 0), (40, 0)] {
            assert_eq!(passed.behind(at(3), Place::at(position)), seconds(behind), "{position}");
        }
        assert_eq!(passed.behind(at(4), Place::at(30)), seconds(1));
        // What is forgotten is at least as old as what is asked for.
        passed.note(at(8), Place::at(40), seconds(5));
        assert!(passed.0.len() <= 3);
        assert!(passed.behind(at(8), Place::at(9)) >= seconds(5));
        assert_eq!(passed.behind(at(8), Place::at(40)), seconds(0));
    }

    #[test]
    fn commits_count_in_the_median_while_they_run_too_and_for_a_while_after() {
        let pressure = Pressure::new(Limits { lag: STEP, commit: STEP });
        let now = Instant::now();
        assert_eq!(pressure.state().median_commit(now), Duration::ZERO);
        let running = pressure.commit();
        let later = Instant::now() + Duration::from_secs(60);
        assert!(pressure.state().median_commit(later) >= Duration::from_secs(60));
        drop(running);
        assert!(pressure.state().running.is_empty());
        assert!(pressure.state().median_commit(Instant::now()) < Duration::from_secs(60));
        {
            let mut state = pressure.state();
            state.ended.clear();
            state.ended.extend([3, 900, 1, 2, 5].map(|ms| (now, Duration::from_millis(ms))));
        }
        assert_eq!(pressure.state().median_commit(now), Duration::from_millis(3));
        assert_eq!(pressure.state().median_commit(later), Duration::ZERO);
        for _ in 0..COMMITS + 10 {
            drop(pressure.commit());
        }
        assert_eq!(pressure.state().ended.len(), COMMITS);
    }
}
