//! `shard`, `lane_of` and `checkpoint_name` for SQL. The rules are in `lanes_core::{key, hash, lane}`.
//!
//! A C symbol here keeps its meaning for ever: indexes and partitions are built on the answers (HASH-1).

use lanes_core::key;
use lanes_core::lane::{self, Strategy};
use pgrx::datum::Uuid;
use pgrx::pg_extern;
use pgrx::pg_sys::panic::ErrorReport;

use crate::encoding::{Bytes, Text};
use crate::error::lane_error;

/// The three hashing functions for one type of key, of whose value `$bytes` is the canonical form.
macro_rules! hashing {
    ($key:ident: $type:ty, $bytes:expr, $shard:ident, $lane_of:ident, $lane_of_strategy:ident) => {
        #[pg_extern(sql = false)]
        fn $shard($key: $type, n: i32) -> Result<i32, ErrorReport> {
            lane::shard($bytes, n).map_err(|error| lane_error(&error))
        }

        #[pg_extern(sql = false)]
        fn $lane_of($key: $type, lanes: i32) -> Result<i32, ErrorReport> {
            lane::lane_of($bytes, lanes, Strategy::Modulo).map_err(|error| lane_error(&error))
        }

        #[pg_extern(sql = false)]
        fn $lane_of_strategy($key: $type, lanes: i32, strategy: Text<'_>) -> Result<i32, ErrorReport> {
            let lane = strategy.as_str().parse().and_then(|strategy| lane::lane_of($bytes, lanes, strategy));
            lane.map_err(|error| lane_error(&error))
        }
    };
}

hashing!(key: Text<'_>, key.bytes(), shard_text, lane_of_text, lane_of_text_strategy);
hashing!(key: Bytes<'_>, key.bytes(), shard_bytea, lane_of_bytea, lane_of_bytea_strategy);
hashing!(key: Uuid, &key::uuid(*key.as_bytes()), shard_uuid, lane_of_uuid, lane_of_uuid_strategy);
hashing!(key: i64, key::integer(key).as_bytes(), shard_bigint, lane_of_bigint, lane_of_bigint_strategy);
hashing!(key: i32, key::integer(key.into()).as_bytes(), shard_int, lane_of_int, lane_of_int_strategy);
hashing!(key: i16, key::integer(key.into()).as_bytes(), shard_smallint, lane_of_smallint, lane_of_smallint_strategy);

#[pg_extern(sql = false)]
fn checkpoint_name(projection: Text<'_>, lane: i32) -> Result<String, ErrorReport> {
    // The answer is ASCII, so it is the same bytes in every encoding.
    lane::checkpoint_name(&projection.as_str(), lane).map_err(|error| lane_error(&error))
}
