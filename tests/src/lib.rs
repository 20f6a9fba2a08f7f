//! What the end-to-end tests share. They speak to extension and daemon only through SQL, sockets and files.

pub mod cluster;
