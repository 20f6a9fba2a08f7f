//! The mutex and condition variable of [`super::budget`], which the model checker replaces by its own.

pub use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
