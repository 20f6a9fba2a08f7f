//! Canonical forms of keys (HASH-2): the bytes that are hashed.
//!
//! The same id must give the same lane whether a caller holds it as uuid, as integer, or as text in that type's
//! canonical spelling. So uuids are hashed as lower-case hyphenated text and integers as plain decimal text. Text is
//! hashed as it stands, in UTF-8; bytes are hashed as they are.

/// Bytes of an integer key: its plain decimal text.
pub fn integer(value: i64) -> String {
    value.to_string()
}

/// Bytes of a uuid key: its 36 characters in lower case with hyphens. `bytes` in the order of the text.
pub fn uuid(bytes: [u8; 16]) -> [u8; 36] {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let mut text = [b'-'; 36];
    let mut at = 0;
    for (index, byte) in bytes.iter().enumerate() {
        if matches!(index, 4 | 6 | 8 | 10) {
            at += 1;
        }
        text[at] = DIGITS[usize::from(byte >> 4)];
        text[at + 1] = DIGITS[usize::from(byte & 15)];
        at += 2;
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uuid_is_spelled_in_lower_case_with_hyphens() {
        let bytes = [0x12, 0x3e, 0x45, 0x67, 0xe8, 0x9b, 0x12, 0xd3, 0xa4, 0x56, 0x42, 0x66, 0x14, 0x17, 0x40, 0x00];
        assert_eq!(&uuid(bytes), b"123e4567-e89b-12d3-a456-426614174000");
    }

    #[test]
    fn integers_are_plain_decimal() {
        assert_eq!(integer(i64::MIN), "-9223372036854775808");
        assert_eq!(integer(0), "0");
        assert_eq!(integer(42), "42");
    }
}
