//! What an operator sees of a running daemon.

pub mod check;
pub mod status;
