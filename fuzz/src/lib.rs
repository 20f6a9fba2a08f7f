//! What the targets share.

/// What stands before `mark` and what stands behind it; nothing behind it if it is not there.
pub fn split<'i>(input: &'i [u8], mark: &[u8]) -> (&'i [u8], &'i [u8]) {
    match input.windows(mark.len()).position(|part| part == mark) {
        Some(at) => (&input[..at], &input[at + mark.len()..]),
        None => (input, &[]),
    }
}
