//! Room in a channel, counted in slots and in bytes (LOG-6).
//!
//! Whoever waits sleeps on a condition variable under the mutex that guards the numbers, so no wake-up is lost and no
//! time-out is needed. The tests run this very file under a model checker, with its mutex and condition variable.

use super::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Nobody takes from the channel any more.
#[derive(Debug, PartialEq, Eq)]
pub struct Closed;

#[derive(Debug)]
struct Used {
    slots: usize,
    bytes: usize,
    closed: bool,
}

/// The room of one channel.
#[derive(Debug)]
pub struct Budget {
    slots: usize,
    bytes: usize,
    used: Mutex<Used>,
    freed: Condvar,
}

impl Budget {
    /// Room for `slots` blocks and `bytes` bytes.
    pub fn new(slots: usize, bytes: usize) -> Budget {
        let used = Mutex::new(Used { slots: 0, bytes: 0, closed: false });
        Budget { slots, bytes, used, freed: Condvar::new() }
    }

    fn used(&self) -> MutexGuard<'_, Used> {
        // A panic elsewhere ends the process; the numbers themselves are never half written.
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `bytes` and a slot are free, and takes them. A block bigger than the whole budget is admitted when
    /// nothing else is in the channel.
    ///
    /// # Errors
    /// [`Closed`] if nobody takes from the channel any more, also while waiting.
    pub fn reserve(&self, bytes: usize) -> Result<(), Closed> {
        let mut used = self.used();
        loop {
            if used.closed {
                return Err(Closed);
            }
            let fits = used.slots < self.slots && used.bytes + bytes <= self.bytes;
            if fits || used.slots == 0 {
                used.slots += 1;
                used.bytes += bytes;
                return Ok(());
            }
            used = self.freed.wait(used).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Gives back what one [`Budget::reserve`] took.
    pub fn free(&self, bytes: usize) {
        let mut used = self.used();
        used.slots -= 1;
        used.bytes -= bytes;
        // All of them: who waits longest may need more room than was freed, and another less.
        self.freed.notify_all();
    }

    /// Lets everybody who waits, and who comes later, go away.
    pub fn close(&self) {
        self.used().closed = true;
        self.freed.notify_all();
    }
}
