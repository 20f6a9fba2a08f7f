//! The hash functions, frozen for ever (HASH-1): a change of one bit here would send keys to other lanes and rows.
//!
//! Vectors in `core/testdata/` come from the functions' own publications and are checked here, in SQL and in the
//! daemon's tests.

use std::hash::Hasher;

/// FNV-1a with 64 bits over `bytes`.
///
/// Source: Fowler, Noll, Vo, <http://www.isthe.com/chongo/tech/comp/fnv/>.
pub fn fnv1a_64(bytes: &[u8]) -> u64 {
    let mut hasher = fnv::FnvHasher::default();
    hasher.write(bytes);
    hasher.finish()
}

/// MurmurHash3 x86 32 of `bytes` with `seed`.
///
/// Source: Austin Appleby, SMHasher, `MurmurHash3.cpp` (public domain). Blocks are read little-endian on every
/// machine.
pub fn murmur3_x86_32(bytes: &[u8], seed: u32) -> u32 {
    const C1: u32 = 0xcc9e_2d51;
    const C2: u32 = 0x1b87_3593;
    let scramble = |block: u32| block.wrapping_mul(C1).rotate_left(15).wrapping_mul(C2);

    let (blocks, tail) = bytes.as_chunks::<4>();
    let mut hash = seed;
    for block in blocks {
        hash ^= scramble(u32::from_le_bytes(*block));
        hash = hash.rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    if !tail.is_empty() {
        let last = tail.iter().rev().fold(0u32, |value, byte| (value << 8) | u32::from(*byte));
        hash ^= scramble(last);
    }
    // The reference implementation keeps the length in 32 bits as well.
    hash ^= bytes.len() as u32;
    hash ^= hash >> 16;
    hash = hash.wrapping_mul(0x85eb_ca6b);
    hash ^= hash >> 13;
    hash = hash.wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// The 64-bit finaliser of MurmurHash3: a bijection that spreads every input bit over all output bits.
///
/// Source: Austin Appleby, SMHasher, `MurmurHash3.cpp`, `fmix64` (public domain).
pub fn fmix64(value: u64) -> u64 {
    let mut hash = value;
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xff51_afd7_ed55_8ccd);
    hash ^= hash >> 33;
    hash = hash.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    hash ^ (hash >> 33)
}

/// Jump consistent hash: a bucket in `0..buckets`. When `buckets` grows by one, a key stays or moves to the new
/// bucket.
///
/// `buckets` must be at least 1 and at most `i32::MAX`; callers check it (see [`crate::lane`]).
///
/// Source: Lamping, Veach, "A Fast, Minimal Memory, Consistent Hash Algorithm", <https://arxiv.org/abs/1406.2294>.
pub fn jump_consistent(key: u64, buckets: u32) -> u32 {
    debug_assert!(buckets >= 1, "a key needs a bucket");
    let mut key = key;
    let mut bucket: i64 = 0;
    let mut next: i64 = 0;
    while next < i64::from(buckets) {
        bucket = next;
        key = key.wrapping_mul(2_862_933_555_777_941_757).wrapping_add(1);
        // The paper's own arithmetic in double precision; IEEE 754 makes it the same everywhere.
        next = ((bucket + 1) as f64 * ((1u64 << 31) as f64 / ((key >> 33) + 1) as f64)) as i64;
    }
    bucket as u32
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines of a file in `core/testdata/` without comments, split at tabs.
    fn vectors(text: &str) -> impl Iterator<Item = Vec<&str>> {
        text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).map(|line| line.split('\t').collect())
    }

    fn unhex(text: &str) -> Vec<u8> {
        (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn fnv_gives_its_published_vectors() {
        let mut seen = 0;
        for fields in vectors(include_str!("../testdata/fnv1a_64.tsv")) {
            assert_eq!(fnv1a_64(&unhex(fields[0])), u64::from_str_radix(fields[1], 16).unwrap(), "{fields:?}");
            seen += 1;
        }
        assert!(seen >= 12);
    }

    #[test]
    fn murmur_gives_its_published_vectors() {
        let mut seen = 0;
        for fields in vectors(include_str!("../testdata/murmur3_x86_32.tsv")) {
            let seed = u32::from_str_radix(fields[1], 16).unwrap();
            assert_eq!(
                murmur3_x86_32(&unhex(fields[0]), seed),
                u32::from_str_radix(fields[2], 16).unwrap(),
                "{fields:?}"
            );
            seen += 1;
        }
        assert!(seen >= 10);
    }

    /// SMHasher's own acceptance test ("VerificationTest" in `KeysetTest.cpp`): hash the keys {}, {0}, {0,1}, … with
    /// seed 256 - length, hash the concatenated results with seed 0, compare with the published value.
    #[test]
    fn murmur_gives_the_verification_value_of_smhasher() {
        let key: Vec<u8> = (0..=255).collect();
        let mut hashes = Vec::new();
        for length in 0..256usize {
            hashes.extend_from_slice(&murmur3_x86_32(&key[..length], 256 - length as u32).to_le_bytes());
        }
        assert_eq!(murmur3_x86_32(&hashes, 0), 0xB0F5_7EE3);
    }

    #[test]
    fn fmix64_is_a_bijection_on_its_published_fixed_point_and_a_sample() {
        assert_eq!(fmix64(0), 0);
        let images: std::collections::HashSet<u64> = (0..100_000u64).map(fmix64).collect();
        assert_eq!(images.len(), 100_000);
    }

    /// The properties that the paper states: a growing bucket count moves a key only into the newest bucket, and
    /// about 1/n of the keys move.
    #[test]
    fn jump_moves_keys_only_into_the_new_bucket() {
        for key in (0..2_000u64).map(fmix64) {
            let mut before = jump_consistent(key, 1);
            assert_eq!(before, 0);
            for buckets in 2..64 {
                let after = jump_consistent(key, buckets);
                assert!(after == before || after == buckets - 1, "key {key} went from {before} to {after}");
                before = after;
            }
        }
        let keys = 100_000u64;
        let moved = (0..keys).map(fmix64).filter(|key| jump_consistent(*key, 8) != jump_consistent(*key, 9)).count();
        let expected = keys as f64 / 9.0;
        assert!((moved as f64 - expected).abs() < 5.0 * expected.sqrt(), "{moved} moved, about {expected} should");
    }

    #[test]
    fn jump_spreads_evenly() {
        let mut counts = [0u32; 16];
        for key in (0..160_000u64).map(fmix64) {
            counts[jump_consistent(key, 16) as usize] += 1;
        }
        assert!(counts.iter().all(|count| (9_500..10_500).contains(count)), "{counts:?}");
    }
}
