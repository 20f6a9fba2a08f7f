//! What the proofs share: a disk that fails on demand, a model of the log, and a watchdog.

pub mod disk;
mod image;
mod layer;
pub mod watchdog;
pub mod world;
