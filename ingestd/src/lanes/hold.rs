//! What projections still need of the log, so that retention leaves it.
//!
//! Never past the least checkpoint of a registered projection, and not past what was applied less than `keep_applied`
//! ago: Postgres may fail over to a copy that is a little older. So the least checkpoint is remembered with its time, and
//! what is given free is what it was that long ago.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::log::retention::Hold;

/// Time between two samples that are kept: memory is bounded by `keep_applied` divided by it.
const RESOLUTION: Duration = Duration::from_secs(10);

/// The least checkpoint, now and before.
#[derive(Debug, Default)]
pub struct HoldHistory(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// When, and what was needed then. Ascending.
    samples: VecDeque<(Instant, u64)>,
    /// What was needed when the checkpoints were read last; none while they cannot be read.
    latest: Option<u64>,
    /// Who has the least checkpoint.
    holder: Option<String>,
}

impl HoldHistory {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes the least checkpoint and whose it is. If there is no projection, one that is defined from now on needs what is
    /// stored from now on: everything above `horizon`, which was read before the checkpoints were.
    pub fn note(&self, now: Instant, horizon: u64, least: Option<(u64, String)>, keep: Duration) {
        let mut state = self.state();
        let (position, holder) = least.unzip();
        let needed = position.unwrap_or(horizon);
        state.holder = holder;
        state.latest = Some(needed);
        if state.samples.back().is_none_or(|(at, _)| now.duration_since(*at) >= RESOLUTION.min(keep)) {
            state.samples.push_back((now, needed));
        }
        // One sample that is old enough must stay: it says what is free.
        while state.samples.get(1).is_some_and(|(at, _)| now.duration_since(*at) >= keep) {
            state.samples.pop_front();
        }
    }

    /// Notes that the checkpoints cannot be read.
    pub fn lost_sight(&self) {
        self.state().latest = None;
    }

    /// What must stay now, if what was applied within `keep` must.
    pub fn hold(&self, now: Instant, keep: Duration) -> Hold {
        let state = self.state();
        match (state.latest, state.samples.front()) {
            // The lesser of then and now: a projection that is new begins below what was free before.
            (Some(latest), Some((at, then))) if now.duration_since(*at) >= keep => Hold::Above(latest.min(*then)),
            _ => Hold::Unknown,
        }
    }

    /// The projection with the least checkpoint.
    pub fn holder(&self) -> Option<String> {
        self.state().holder.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(3600);

    fn least(position: u64) -> Option<(u64, String)> {
        Some((position, "orders".to_owned()))
    }

    #[test]
    fn free_is_what_was_applied_long_enough_ago() {
        let (history, start) = (HoldHistory::default(), Instant::now());
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(history.hold(start, KEEP), Hold::Unknown);
        for second in 0..10_000 {
            history.note(after(second), 1 << 40, least(second * 10), KEEP);
            let hold = history.hold(after(second), KEEP);
            if second < 3600 {
                assert_eq!(hold, Hold::Unknown, "nothing is known of an hour ago");
            } else {
                let Hold::Above(position) = hold else { panic!("{hold:?}") };
                let exact = (second - 3600) * 10;
                assert!(position <= exact && exact - position <= 100, "{position} at {second}");
            }
        }
        assert!(history.state().samples.len() <= 362);
        assert_eq!(history.holder().as_deref(), Some("orders"));
        history.lost_sight();
        assert_eq!(history.hold(after(10_000), KEEP), Hold::Unknown);
    }

    /// What was stored after the checkpoints were read may be needed by a projection that was defined since.
    #[test]
    fn without_projections_what_was_stored_before_is_free_and_what_comes_is_not() {
        for keep in [Duration::ZERO, KEEP] {
            let (history, start) = (HoldHistory::default(), Instant::now());
            history.note(start, 500, None, keep);
            let later = start + keep;
            history.note(later, 900, None, keep);
            assert_eq!(history.hold(later, keep), Hold::Above(if keep.is_zero() { 900 } else { 500 }));
            history.note(later, 950, least(0), keep);
            assert_eq!(history.hold(later, keep), Hold::Above(0), "a new projection begins at the floor");
        }
    }
}
