//! `shard`, `lane_of` and `checkpoint_name` for SQL. The rules are in `lanes_core::{key, hash, lane}`.
//!
//! A C symbol here keeps its meaning for ever: indexes and partitions are built on the answers (HASH-1).
//!
//! `shard` and `lane_of` are called once a row, so they are written against Postgres's own calling convention: pgrx's
//! unboxing of arguments costs a good part of what hashing a short key does.

use std::slice;

use lanes_core::key;
use lanes_core::lane::{self, LaneError, Strategy};
use pgrx::datum::{FromDatum, Uuid};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{Datum, FunctionCallInfo, NullableDatum, Pg_finfo_record};
use pgrx::{PgLogLevel, pg_extern, pg_guard};

use crate::encoding::{Bytes, Text};
use crate::error::lane_error;

/// The arguments of a call. The functions are STRICT, so none is null.
#[derive(Clone, Copy)]
struct Arguments<'fcx>(&'fcx [NullableDatum]);

impl<'fcx> Arguments<'fcx> {
    /// # Safety
    /// Called by Postgres, with a valid `fcinfo`.
    unsafe fn of(fcinfo: FunctionCallInfo) -> Arguments<'fcx> {
        // SAFETY: behind it Postgres holds as many arguments as it says.
        unsafe { Arguments(slice::from_raw_parts((*fcinfo).args.as_ptr(), (*fcinfo).nargs as usize)) }
    }

    /// # Safety
    /// The function is declared with an argument of this type there.
    unsafe fn get<T: FromDatum>(self, at: usize) -> T {
        // SAFETY: as the caller says.
        unsafe { T::from_datum(self.0[at].value, false) }.expect("functions with such an argument are STRICT")
    }
}

fn answer(answer: Result<i32, LaneError>) -> Datum {
    match answer {
        Ok(number) => Datum::from(number),
        Err(error) => {
            lane_error(&error).report(PgLogLevel::ERROR);
            unreachable!("an error of level ERROR unwinds")
        }
    }
}

fn lane_by_strategy(key: &[u8], lanes: i32, strategy: &Text<'_>) -> Result<i32, LaneError> {
    strategy.as_str().parse().and_then(|strategy| lane::lane_of(key, lanes, strategy))
}

/// A function for Postgres: `$answer` of its `$arguments`. It asks `$version` for the version of the calling convention.
macro_rules! function {
    ($name:ident, $version:ident, |$arguments:ident| $answer:expr) => {
        #[doc = "The version of the calling convention."]
        #[unsafe(no_mangle)]
        pub extern "C" fn $version() -> &'static Pg_finfo_record {
            const VERSION_1: Pg_finfo_record = Pg_finfo_record { api_version: 1 };
            &VERSION_1
        }

        #[doc = "For SQL."]
        #[doc = ""]
        #[doc = "# Safety"]
        #[doc = "Called by Postgres, with a valid `fcinfo`."]
        #[unsafe(no_mangle)]
        #[pg_guard]
        pub unsafe extern "C-unwind" fn $name(fcinfo: FunctionCallInfo) -> Datum {
            // SAFETY: sql/install declares the arguments with the types that are read here.
            unsafe {
                let $arguments = Arguments::of(fcinfo);
                answer($answer)
            }
        }
    };
}

/// The three hashing functions for one type of key, of whose value `$bytes` is the canonical form.
macro_rules! hashing {
    ($key:ident: $type:ty, $bytes:expr, $shard:ident $shard_version:ident, $lane_of:ident $lane_of_version:ident,
        $strategy:ident $strategy_version:ident) => {
        function!($shard, $shard_version, |arguments| {
            let $key: $type = arguments.get(0);
            lane::shard($bytes, arguments.get(1))
        });
        function!($lane_of, $lane_of_version, |arguments| {
            let $key: $type = arguments.get(0);
            lane::lane_of($bytes, arguments.get(1), Strategy::Modulo)
        });
        function!($strategy, $strategy_version, |arguments| {
            let $key: $type = arguments.get(0);
            lane_by_strategy($bytes, arguments.get(1), &arguments.get(2))
        });
    };
}

hashing!(key: Text<'_>, key.bytes(), shard_text_wrapper pg_finfo_shard_text_wrapper, lane_of_text_wrapper pg_finfo_lane_of_text_wrapper, lane_of_text_strategy_wrapper pg_finfo_lane_of_text_strategy_wrapper);
hashing!(key: Bytes<'_>, key.bytes(), shard_bytea_wrapper pg_finfo_shard_bytea_wrapper, lane_of_bytea_wrapper pg_finfo_lane_of_bytea_wrapper, lane_of_bytea_strategy_wrapper pg_finfo_lane_of_bytea_strategy_wrapper);
hashing!(key: Uuid, &key::uuid(*key.as_bytes()), shard_uuid_wrapper pg_finfo_shard_uuid_wrapper, lane_of_uuid_wrapper pg_finfo_lane_of_uuid_wrapper, lane_of_uuid_strategy_wrapper pg_finfo_lane_of_uuid_strategy_wrapper);
hashing!(key: i64, key::integer(key).as_bytes(), shard_bigint_wrapper pg_finfo_shard_bigint_wrapper, lane_of_bigint_wrapper pg_finfo_lane_of_bigint_wrapper, lane_of_bigint_strategy_wrapper pg_finfo_lane_of_bigint_strategy_wrapper);
hashing!(key: i32, key::integer(key.into()).as_bytes(), shard_int_wrapper pg_finfo_shard_int_wrapper, lane_of_int_wrapper pg_finfo_lane_of_int_wrapper, lane_of_int_strategy_wrapper pg_finfo_lane_of_int_strategy_wrapper);
hashing!(key: i16, key::integer(key.into()).as_bytes(), shard_smallint_wrapper pg_finfo_shard_smallint_wrapper, lane_of_smallint_wrapper pg_finfo_lane_of_smallint_wrapper, lane_of_smallint_strategy_wrapper pg_finfo_lane_of_smallint_strategy_wrapper);

#[pg_extern(sql = false)]
fn checkpoint_name(projection: Text<'_>, lane: i32) -> Result<String, ErrorReport> {
    // The answer is ASCII, so it is the same bytes in every encoding.
    lane::checkpoint_name(&projection.as_str(), lane).map_err(|error| lane_error(&error))
}
