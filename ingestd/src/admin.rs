//! What an operator sees of a running daemon.

pub mod status;
