//! What tests share: throw-away clusters and daemons, real events, a checker of log files, seeded random numbers.

pub mod cluster;
pub mod daemon;
pub mod flights;
pub mod log_files;
pub mod random;
