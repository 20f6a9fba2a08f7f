//! What an operator sees of a running daemon.

pub mod check;
pub mod dead_letters;
pub mod status;
