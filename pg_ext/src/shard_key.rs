//! Sharded keys for SQL: `shard_key`, `random_shard_key`, `shard_keys`, `shard_of_key`, `suggest_shards`. The rules are in
//! `lanes_core::shard_key`.

use bigdecimal::BigDecimal;
use lanes_core::key;
use lanes_core::shard_key::{self, ShardKeyError};
use pgrx::datum::{AnyNumeric, Uuid};
use pgrx::fcinfo::direct_function_call;
use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::{name, pg_extern, pg_sys};

use crate::encoding::{Bytes, Text, TextAnswer};
use crate::error::shard_key_error;

/// `shard_key` for one type of id, of whose value `$bytes` is the canonical form.
macro_rules! shard_key {
    ($id:ident: $type:ty, $bytes:expr, $shard_key:ident) => {
        #[pg_extern(sql = false)]
        fn $shard_key(key: Text<'_>, $id: $type, n: i32) -> Result<TextAnswer, ErrorReport> {
            let sharded = shard_key::shard_key(&key.as_str(), $bytes, n);
            sharded.map(TextAnswer).map_err(|error| shard_key_error(&error))
        }
    };
}

shard_key!(id: Text<'_>, id.bytes(), shard_key_text);
shard_key!(id: Bytes<'_>, id.bytes(), shard_key_bytea);
shard_key!(id: Uuid, &key::uuid(*id.as_bytes()), shard_key_uuid);
shard_key!(id: i64, key::integer(id).as_bytes(), shard_key_bigint);
shard_key!(id: i32, key::integer(id.into()).as_bytes(), shard_key_int);
shard_key!(id: i16, key::integer(id.into()).as_bytes(), shard_key_smallint);

/// By the server's own random numbers, so that `setseed` makes a run repeatable.
#[pg_extern(sql = false)]
fn random_shard_key(key: Text<'_>, n: i32) -> Result<TextAnswer, ErrorReport> {
    // SAFETY: the C function behind random(), which takes no argument and returns a double precision.
    let at: Option<f64> = unsafe { direct_function_call(pg_sys::drandom, &[]) };
    let sharded = shard_key::random_shard_key(&key.as_str(), at.expect("random() is never null"), n);
    sharded.map(TextAnswer).map_err(|error| shard_key_error(&error))
}

#[pg_extern(sql = false)]
fn shard_keys(key: Text<'_>, n: i32) -> Result<Vec<TextAnswer>, ErrorReport> {
    let keys = shard_key::shard_keys(&key.as_str(), n).map_err(|error| shard_key_error(&error))?;
    Ok(keys.into_iter().map(TextAnswer).collect())
}

#[pg_extern(sql = false)]
#[expect(clippy::type_complexity, reason = "pgrx reads the columns from the signature")]
fn shard_of_key(
    sharded_key: Text<'_>,
) -> Result<TableIterator<'static, (name!(key, TextAnswer), name!(shard, i32))>, ErrorReport> {
    let text = sharded_key.as_str();
    let (key, shard) = shard_key::split(&text).map_err(|error| shard_key_error(&error))?;
    Ok(TableIterator::once((TextAnswer(key.to_owned()), shard)))
}

#[pg_extern(sql = false)]
#[expect(clippy::type_complexity, reason = "pgrx reads the columns from the signature")]
fn suggest_shards(
    writes_per_second: i64,
    per_shard_limit: i64,
    headroom: AnyNumeric,
) -> Result<
    TableIterator<
        'static,
        (
            name!(shards, i32),
            name!(power_of_two, i32),
            name!(counter_shards_from, Option<i32>),
            name!(counter_shards_to, Option<i32>),
            name!(reads_per_query, i32),
        ),
    >,
    ErrorReport,
> {
    let headroom = headroom.to_string();
    // NaN and Infinity are numeric, but no headroom.
    let suggestion = headroom
        .parse::<BigDecimal>()
        .map_err(|_| ShardKeyError::Range {
            what: "headroom",
            bound: "a number of at least 1",
            value: headroom.clone(),
        })
        .and_then(|headroom| shard_key::suggest_shards(writes_per_second, per_shard_limit, &headroom))
        .map_err(|error| shard_key_error(&error))?;
    Ok(TableIterator::once((
        suggestion.shards,
        suggestion.power_of_two,
        suggestion.counter_shards.map(|(from, _)| from),
        suggestion.counter_shards.map(|(_, to)| to),
        suggestion.reads_per_query,
    )))
}
