//! What an operator sees of a running daemon.

pub mod dead_letters;
pub mod status;
