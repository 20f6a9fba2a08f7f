//! What the proofs share: a disk that fails on demand, a model of the log, and a watchdog.

pub mod disk;
pub mod watchdog;
pub mod world;
