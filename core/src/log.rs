//! The rules of the log: which positions are committed, what was stored of a stream, which drain feeds which store
//! shard, and where a log is cut after a crash.

pub mod assignment;
pub mod blocks;
pub mod interval;
pub mod recovery;
pub mod retention;
