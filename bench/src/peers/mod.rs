//! Other ways to the same total, each as durable as ours. One file a peer.

pub mod unnest;
pub mod upsert;

use crate::measurement::Measurement;

/// What is measured.
pub const MEASUREMENTS: &[Measurement] = &[];
