//! The trigger that keeps a table's row shard: `lanes.set_shard_id('key column', 'shard column', 'n')`.
//!
//! Invariant: a row that was written while the trigger is there holds shard(key, n), whatever the statement said. It is
//! written against Postgres's own trigger interface, because that is how it costs little more than the hash: nothing is
//! copied unless the shard changes, and the names stay in the database's encoding.

use std::ffi::CStr;

use lanes_core::{key, lane};
use pgrx::datum::{FromDatum, IntoDatum, Uuid};
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Datum, FunctionCallInfo, HeapTuple, Oid, TriggerData, TupleDesc};
use pgrx::trigger_support::called_as_trigger;
use pgrx::{PgLogLevel, pg_guard};

use crate::encoding::{Bytes, Text};
use crate::error::{bad_shard_trigger, lane_error, missing_shard_trigger_column};

/// Postgres asks for the version of the calling convention.
#[unsafe(no_mangle)]
pub extern "C" fn pg_finfo_set_shard_id_wrapper() -> &'static pg_sys::Pg_finfo_record {
    const VERSION_1: pg_sys::Pg_finfo_record = pg_sys::Pg_finfo_record { api_version: 1 };
    &VERSION_1
}

/// The trigger function.
///
/// # Safety
/// Called by Postgres, with a valid `fcinfo`.
#[unsafe(no_mangle)]
#[pg_guard]
pub unsafe extern "C-unwind" fn set_shard_id_wrapper(fcinfo: FunctionCallInfo) -> Datum {
    // SAFETY: Postgres passes what a trigger function gets, or something else, which called_as_trigger tells apart.
    match unsafe { triggered(fcinfo) } {
        Ok(tuple) => Datum::from(tuple),
        Err(report) => {
            report.report(PgLogLevel::ERROR);
            unreachable!("an error of level ERROR unwinds")
        }
    }
}

unsafe fn triggered(fcinfo: FunctionCallInfo) -> Result<HeapTuple, ErrorReport> {
    // SAFETY: the caller promises a valid fcinfo; as a trigger its context is a TriggerData.
    let data = unsafe {
        if !called_as_trigger(fcinfo) {
            return Err(bad_shard_trigger());
        }
        &*(*fcinfo).context.cast::<TriggerData>()
    };
    let (insert, update) = (pg_sys::TRIGGER_EVENT_INSERT, pg_sys::TRIGGER_EVENT_UPDATE);
    let operation = data.tg_event & pg_sys::TRIGGER_EVENT_OPMASK;
    let is_row = data.tg_event & pg_sys::TRIGGER_EVENT_ROW != 0;
    let is_before = data.tg_event & pg_sys::TRIGGER_EVENT_TIMINGMASK == pg_sys::TRIGGER_EVENT_BEFORE;
    if !is_row || !is_before || (operation != insert && operation != update) {
        return Err(bad_shard_trigger());
    }
    let tuple = if operation == update { data.tg_newtuple } else { data.tg_trigtuple };

    // SAFETY: Postgres keeps trigger and relation alive during the call; tgargs holds tgnargs strings.
    let (description, arguments) = unsafe {
        let trigger = &*data.tg_trigger;
        let Ok(3) = usize::try_from(trigger.tgnargs) else { return Err(bad_shard_trigger()) };
        let arguments = std::slice::from_raw_parts(trigger.tgargs, 3);
        ((*data.tg_relation).rd_att, [0, 1, 2].map(|at: usize| CStr::from_ptr(arguments[at])))
    };
    let shards = arguments[2].to_str().ok().and_then(|n| n.parse::<i32>().ok()).ok_or_else(bad_shard_trigger)?;
    let (key_column, key_type) = column(description, arguments[0])?;
    let (mut shard_column, shard_type) = column(description, arguments[1])?;
    if shard_type != pg_sys::INT4OID {
        return Err(bad_shard_trigger());
    }

    let shard = match value(tuple, description, key_column) {
        None => None,
        Some(datum) => Some(shard_of(datum, key_type, shards)?),
    };
    let present = value(tuple, description, shard_column).map(|datum| datum.value() as i32);
    if present == shard {
        return Ok(tuple);
    }
    let mut is_null = shard.is_none();
    let mut datum = shard.into_datum().unwrap_or(Datum::from(0));
    // SAFETY: one column, one value; the tuple is of the description. The copy lives as long as the call's context.
    Ok(unsafe { pg_sys::heap_modify_tuple_by_cols(tuple, description, 1, &mut shard_column, &mut datum, &mut is_null) })
}

/// Number and base type of a column.
fn column(description: TupleDesc, name: &CStr) -> Result<(i32, Oid), ErrorReport> {
    // SAFETY: reads the description and the catalog.
    let number = unsafe { pg_sys::SPI_fnumber(description, name.as_ptr()) };
    // Zero is not a column, and negative numbers are columns of the system's.
    if number <= 0 {
        return Err(missing_shard_trigger_column(&Text::from_server(name).as_str()));
    }
    // SAFETY: as before, for a column that exists.
    let base_type = unsafe {
        let type_oid = pg_sys::SPI_gettypeid(description, number);
        // The types that are handled need no look-up; a domain does.
        if is_key_type(type_oid) { type_oid } else { pg_sys::getBaseType(type_oid) }
    };
    Ok((number, base_type))
}

fn is_key_type(type_oid: Oid) -> bool {
    matches!(
        type_oid,
        pg_sys::TEXTOID
            | pg_sys::VARCHAROID
            | pg_sys::BYTEAOID
            | pg_sys::UUIDOID
            | pg_sys::INT8OID
            | pg_sys::INT4OID
            | pg_sys::INT2OID
    )
}

fn value(tuple: HeapTuple, description: TupleDesc, column: i32) -> Option<Datum> {
    let mut is_null = false;
    // SAFETY: the tuple is of the description, which has the column.
    let datum = unsafe { pg_sys::SPI_getbinval(tuple, description, column, &mut is_null) };
    (!is_null).then_some(datum)
}

fn shard_of(datum: Datum, type_oid: Oid, shards: i32) -> Result<i32, ErrorReport> {
    /// The value of a datum that is not null.
    fn of<T: FromDatum>(datum: Datum) -> T {
        // SAFETY: each use below names the type that the column has.
        unsafe { T::from_datum(datum, false) }.expect("it is not null")
    }
    let integer = |value: i64| lane::shard(key::integer(value).as_bytes(), shards);
    let shard = match type_oid {
        pg_sys::TEXTOID | pg_sys::VARCHAROID => lane::shard(of::<Text<'_>>(datum).bytes(), shards),
        pg_sys::BYTEAOID => lane::shard(of::<Bytes<'_>>(datum).bytes(), shards),
        pg_sys::UUIDOID => lane::shard(&key::uuid(*of::<Uuid>(datum).as_bytes()), shards),
        pg_sys::INT8OID => integer(of::<i64>(datum)),
        pg_sys::INT4OID => integer(of::<i32>(datum).into()),
        pg_sys::INT2OID => integer(of::<i16>(datum).into()),
        _ => return Err(bad_shard_trigger()),
    };
    shard.map_err(|error| lane_error(&error))
}
