//! The budget under a model checker: many interleavings of drains and a writer, none of which may deadlock, pass the
//! bounds, or lose a block.

/// What `budget.rs` finds as `super::sync` here.
mod sync {
    pub use shuttle::sync::{Condvar, Mutex, MutexGuard};
    pub use std::sync::PoisonError;
}

#[path = "budget.rs"]
mod budget;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use budget::{Budget, Closed};
use shuttle::sync::mpsc;
use shuttle::thread;

const SLOTS: usize = 2;
const BYTES: usize = 10;

/// Sizes of the blocks that each drain sends; 25 is bigger than the whole budget.
const DRAINS: [&[usize]; 3] = [&[4, 25, 1], &[6, 6], &[10, 1, 1]];

/// What is in the channel, counted beside the budget.
#[derive(Default)]
struct Inside {
    blocks: AtomicUsize,
    bytes: AtomicUsize,
}

impl Inside {
    fn enter(&self, bytes: usize) {
        let blocks = self.blocks.fetch_add(1, Ordering::SeqCst) + 1;
        let total = self.bytes.fetch_add(bytes, Ordering::SeqCst) + bytes;
        assert!(blocks <= SLOTS, "{blocks} blocks");
        assert!(total <= BYTES || blocks == 1, "{total} bytes in {blocks} blocks");
    }

    fn leave(&self, bytes: usize) {
        self.blocks.fetch_sub(1, Ordering::SeqCst);
        self.bytes.fetch_sub(bytes, Ordering::SeqCst);
    }
}

/// Every block goes through, whatever the order; a lost wake-up would be a deadlock, which the checker reports.
fn all_pass() {
    let budget = Arc::new(Budget::new(SLOTS, BYTES));
    let inside = Arc::new(Inside::default());
    let (sender, receiver) = mpsc::channel();
    for sizes in DRAINS {
        let (budget, inside, sender) = (Arc::clone(&budget), Arc::clone(&inside), sender.clone());
        thread::spawn(move || {
            for bytes in sizes {
                budget.reserve(*bytes).unwrap();
                inside.enter(*bytes);
                sender.send(*bytes).unwrap();
            }
        });
    }
    drop(sender);
    let mut taken = Vec::new();
    while let Ok(bytes) = receiver.recv() {
        inside.leave(bytes);
        budget.free(bytes);
        taken.push(bytes);
    }
    taken.sort_unstable();
    assert_eq!(taken, [1, 1, 1, 4, 6, 6, 10, 25]);
}

/// The writer goes away in the middle: every drain comes to its end.
fn closing_frees_everybody() {
    let budget = Arc::new(Budget::new(SLOTS, BYTES));
    let drains = DRAINS.map(|sizes| {
        let budget = Arc::clone(&budget);
        thread::spawn(move || sizes.iter().try_for_each(|bytes| budget.reserve(*bytes)))
    });
    let writer = Arc::clone(&budget);
    thread::spawn(move || writer.close()).join().unwrap();
    for drain in drains {
        let _: Result<(), Closed> = drain.join().unwrap();
    }
    assert_eq!(budget.reserve(1), Err(Closed));
}

#[test]
fn no_interleaving_deadlocks_passes_the_bounds_or_loses_a_block() {
    shuttle::check_random(all_pass, 3000);
    shuttle::check_pct(all_pass, 2000, 3);
}

#[test]
fn no_interleaving_leaves_a_drain_waiting_when_the_writer_is_gone() {
    shuttle::check_random(closing_frees_everybody, 2000);
    shuttle::check_pct(closing_frees_everybody, 1000, 3);
}
