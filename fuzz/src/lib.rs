//! What the targets share.

use std::path::Path;

use tempfile::TempDir;

/// A new folder, in memory where the machine has that: a sync costs nothing there.
pub fn directory() -> TempDir {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() };
    TempDir::with_prefix_in("pg_lanes-fuzz-", parent).expect("temporary files can be written")
}

/// What stands before `mark` and what stands behind it; nothing behind it if it is not there.
pub fn split<'i>(input: &'i [u8], mark: &[u8]) -> (&'i [u8], &'i [u8]) {
    match input.windows(mark.len()).position(|part| part == mark) {
        Some(at) => (&input[..at], &input[at + mark.len()..]),
        None => (input, &[]),
    }
}
