//! Where events come from: HTTP requests, and files that are imported over HTTP.

pub mod file;
pub mod http;
