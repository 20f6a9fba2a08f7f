//! What the end-to-end tests share: throw-away clusters and daemons, and real events.

pub mod cluster;
pub mod daemon;
pub mod flights;
