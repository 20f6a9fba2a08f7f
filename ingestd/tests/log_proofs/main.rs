//! Proofs of the log: a model with random actions, faults of the disk, power cuts, flipped bits.
//!
//! Every round prints its seed when it fails. `LOG_SEED=…` repeats one seed's plan; `LOG_ROUNDS=…` asks for so many fresh
//! seeds (`make soak SOAK_PARTS=log`).

mod faults;
mod flips;
mod model;
mod power;
mod support;
