//! What tests share: throw-away clusters and daemons, a pooler, real events, the worked example of
//! docs/LANES.md, a checker of log files, a small disk, seeded random numbers; and the soak.

pub mod cluster;
pub mod daemon;
pub mod flights;
pub mod log_files;
pub mod pooler;
pub mod random;
pub mod readings;
pub mod small_disk;
pub mod soak;
