//! Which store shards a drain thread writes to.
//!
//! Shard j belongs to drain j mod n. A drain left with none shares shard c mod shard_count. So with as many shards
//! as drains each has its own; with fewer they share; with more a drain takes turns over several, a stripe at a time.

/// The store shards of the drain with dense ordinal `drain` out of `drains`, in the order of its stripes; never
/// empty. `drains` and `shards` are at least 1, `drain` is below `drains`.
pub fn shards_of(drain: u32, drains: u32, shards: u32) -> Vec<u32> {
    debug_assert!(drain < drains && shards >= 1);
    let own: Vec<u32> = (0..shards).filter(|shard| shard % drains == drain).collect();
    if own.is_empty() { vec![drain % shards] } else { own }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_fewer_and_more_shards_than_drains() {
        let assignment = |drains, shards| (0..drains).map(|drain| shards_of(drain, drains, shards)).collect::<Vec<_>>();
        assert_eq!(assignment(3, 3), [[0], [1], [2]]);
        assert_eq!(assignment(4, 2), [[0], [1], [0], [1]]);
        assert_eq!(assignment(2, 5), [vec![0, 2, 4], vec![1, 3]]);
        assert_eq!(assignment(1, 1), [[0]]);
    }

    #[test]
    fn every_shard_has_a_drain() {
        for drains in 1..20 {
            for shards in 1..20 {
                let mut fed: Vec<u32> = (0..drains).flat_map(|drain| shards_of(drain, drains, shards)).collect();
                fed.sort_unstable();
                fed.dedup();
                assert_eq!(fed, (0..shards).collect::<Vec<_>>());
            }
        }
    }
}
