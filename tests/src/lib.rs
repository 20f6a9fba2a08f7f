//! What tests share: throw-away clusters and daemons, a pooler, real events, the worked example of
//! docs/LANES.md, a checker of log files, seeded random numbers.

pub mod cluster;
pub mod daemon;
pub mod flights;
pub mod log_files;
pub mod pooler;
pub mod random;
pub mod readings;
