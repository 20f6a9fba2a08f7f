//! `lanes.page` and `lanes.page_index` for SQL. The rules are in `lanes_core::page`.
//!
//! The page's statement runs with the caller's rights and snapshot. Only the signing key is read with another's: as the
//! owner of `lanes.secret`, for that one statement. No function returns the key or signs what a caller passes.

use std::ffi::{CStr, CString};
use std::panic::AssertUnwindSafe;

use lanes_core::page::check_page_size;
use lanes_core::page::cursor::{self, Fingerprint, Query};
use lanes_core::page::filter::{Condition, parse_filter};
use lanes_core::page::order::{Operators, SortColumn, SortKey, parse_order, total_order};
use lanes_core::page::statement::{Page, Parameter, Source, index_statement, page_statement};
use pgrx::callconv::{BoxRet, FcInfo};
use pgrx::datum::{AnyElement, FromDatum, IntoDatum, TimestampWithTimeZone};
use pgrx::iter::TableIterator;
use pgrx::pg_sys::panic::ErrorReport;
use pgrx::pg_sys::{self, Datum, FunctionCallInfo, Oid};
use pgrx::{name, pg_extern};

use crate::catalog::{self, Table, TableColumn};
use crate::encoding::{Bytes, Jsonb, Name, Text, TextAnswer, from_utf8};
use crate::error::{
    missing_page_column, missing_secret, no_collations, no_order_of_type, no_page_time, no_row_type, null_page_size,
    page_error, without_backtrace,
};
use crate::query::{self, Row};

/// A row of a page and its cursor.
type PageRow = (Item, Option<TextAnswer>);

/// A row of the table, in the function's memory.
struct Item(Datum);

impl IntoDatum for Item {
    fn into_datum(self) -> Option<Datum> {
        Some(self.0)
    }

    fn type_oid() -> Oid {
        pg_sys::ANYELEMENTOID
    }
}

// SAFETY: the datum is a row of the type that the function is called with.
unsafe impl BoxRet for Item {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> pgrx::datum::Datum<'fcx> {
        // SAFETY: as said for the impl.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

pgrx::impl_sql_translatable!(Item, "anyelement");

#[pg_extern(sql = false)]
#[expect(clippy::too_many_arguments, reason = "the function has so many in SQL, and pgrx takes one for each")]
fn page(
    _row_type: Option<AnyElement>,
    order_by: Option<Text<'_>>,
    page_size: Option<i32>,
    filter: Option<Jsonb>,
    cursor: Option<Text<'_>>,
    time_from: Option<TimestampWithTimeZone>,
    time_to: Option<TimestampWithTimeZone>,
    shard_column: Option<Name<'_>>,
    fcinfo: FunctionCallInfo,
) -> Result<TableIterator<'static, (name!(item, Item), name!(cursor, Option<TextAnswer>))>, ErrorReport> {
    // Postgres's own errors, such as one about a value or a right, are meant for the client.
    without_backtrace(AssertUnwindSafe(|| {
        let page_size = page_size.ok_or_else(null_page_size)?;
        let limit = check_page_size(page_size).map_err(|error| page_error(&error))?;
        let asked = Asked::read(fcinfo, order_by, filter, shard_column, true)?;
        let window = [time_from, time_to].map(|bound| bound.and_then(IntoDatum::into_datum));
        asked.check_window(&window)?;
        let fingerprint = asked.fingerprint(&window);
        let Some(cursor) = &cursor else {
            return Ok(TableIterator::new(asked.rows(limit, window, None, &fingerprint, None)?));
        };
        let key = secret()?;
        let place = cursor::open(cursor.bytes(), &fingerprint, &key).map_err(|error| page_error(&error))?;
        Ok(TableIterator::new(asked.rows(limit, window, Some(place), &fingerprint, Some(key))?))
    }))
}

#[pg_extern(sql = false)]
fn page_index(
    _row_type: Option<AnyElement>,
    order_by: Option<Text<'_>>,
    filter: Option<Jsonb>,
    shard_column: Option<Name<'_>>,
    fcinfo: FunctionCallInfo,
) -> Result<TextAnswer, ErrorReport> {
    without_backtrace(AssertUnwindSafe(|| {
        let asked = Asked::read(fcinfo, order_by, filter, shard_column, false)?;
        // Postgres makes no index of a partitioned table CONCURRENTLY.
        Ok(TextAnswer(asked.with_page([false; 2], None, |page| index_statement(page, !asked.table.is_partitioned))))
    }))
}

/// What the arguments say, looked up in the catalog.
struct Asked {
    table: Table,
    order: Vec<SortKey>,
    filter: Vec<Condition>,
    /// Operators of the filter's columns; a column that is only asked for nulls may have none.
    operators: Vec<Option<Operators>>,
    shard: Option<lanes_core::page::order::Column>,
}

impl Asked {
    /// `to_read`: whether the shard column is to be read by, and not only to be indexed.
    fn read(
        fcinfo: FunctionCallInfo,
        order_by: Option<Text<'_>>,
        filter: Option<Jsonb>,
        shard_column: Option<Name<'_>>,
        to_read: bool,
    ) -> Result<Asked, ErrorReport> {
        let columns = match &order_by {
            Some(order_by) => parse_order(&order_by.as_str()).map_err(|error| page_error(&error))?,
            None => Vec::new(),
        };
        let filter = match &filter {
            Some(filter) => parse_filter(&filter.to_json()).map_err(|error| page_error(&error))?,
            None => Vec::new(),
        };
        // SAFETY: the call's own information; it holds the types of the arguments as they were written.
        let row_type = unsafe { pg_sys::get_fn_expr_argtype((*fcinfo).flinfo, 0) };
        let table = catalog::table_of_rows(row_type).ok_or_else(|| no_row_type(&catalog::type_name(row_type)))?;
        let table = Table::open(table);

        let order: Result<Vec<SortKey>, ErrorReport> =
            columns.into_iter().map(|column| sort_key(&table, column)).collect();
        let order = total_order(order?, table.key().map_err(no_order)?);
        let operators: Result<Vec<Option<Operators>>, ErrorReport> =
            filter.iter().map(|condition| filter_operators(&table, condition)).collect();
        let shard = match &shard_column {
            Some(name) => Some(find(&table, &name.as_str())?),
            None => table.shard_column(to_read),
        };
        let shard = match shard {
            Some(column) => Some(column.comparable().ok_or_else(|| no_order(column))?),
            None => None,
        };
        Ok(Asked { order, operators: operators?, filter, shard, table })
    }

    /// Only a column of times can have a time window.
    fn check_window(&self, window: &[Option<Datum>; 2]) -> Result<(), ErrorReport> {
        let first = &self.order[0].column;
        let times = [pg_sys::TIMESTAMPTZOID, pg_sys::TIMESTAMPOID, pg_sys::DATEOID];
        if window.iter().all(Option::is_none) || times.iter().any(|time| time.to_u32() == first.type_id) {
            return Ok(());
        }
        Err(no_page_time(&first.name, &catalog::type_name(Oid::from(first.type_id))))
    }

    fn fingerprint(&self, window: &[Option<Datum>; 2]) -> Fingerprint {
        cursor::fingerprint(&Query {
            // SAFETY: a session that runs SQL has a database.
            database_id: unsafe { pg_sys::MyDatabaseId }.to_u32(),
            table_id: self.table.id.to_u32(),
            order: &self.order,
            filter: &self.filter,
            window: window.map(|bound| bound.map(|bound| bound.value() as i64)),
        })
    }

    fn with_page<T>(&self, window: [bool; 2], after: Option<&[bool]>, use_page: impl FnOnce(&Page<'_>) -> T) -> T {
        let filter: Vec<_> = self.filter.iter().cloned().zip(self.operators.iter().cloned()).collect();
        let source = Source { table: &self.table.name, shard: self.shard.as_ref() };
        use_page(&Page { source, order: &self.order, filter: &filter, window, after })
    }

    /// The rows of the page that begins after `place`, and their cursors. `key` signs them, if it has been read.
    fn rows(
        &self,
        limit: i64,
        window: [Option<Datum>; 2],
        place: Option<Vec<Option<Vec<u8>>>>,
        fingerprint: &Fingerprint,
        key: Option<Vec<u8>>,
    ) -> Result<Vec<PageRow>, ErrorReport> {
        let types: Vec<Oid> = self.order.iter().map(|key| Oid::from(key.column.type_id)).collect();
        // Its fingerprint says that it has a value for each sort key.
        let place: Option<Vec<Option<Datum>>> = place.map(|values| {
            let values = types.iter().zip(values);
            with_plain_settings(|| values.map(|(of, value)| value.map(|value| input(*of, &value))).collect())
        });
        let after: Option<Vec<bool>> = place.as_ref().map(|values| values.iter().map(Option::is_none).collect());
        let statement = self.with_page(window.map(|bound| bound.is_some()), after.as_deref(), page_statement);

        let mut parameters = Vec::new();
        for parameter in statement.parameters {
            parameters.push(match parameter {
                // One more than the page, to know whether it is the last.
                Parameter::Limit => (pg_sys::INT8OID, Datum::from(limit + 1)),
                Parameter::Condition { condition, value } => {
                    let condition = &self.filter[condition];
                    let column = find(&self.table, &condition.column)?;
                    (column.type_id, input(column.type_id, &from_utf8(&condition.values[value])))
                }
                Parameter::Window(at) => (pg_sys::TIMESTAMPTZOID, window[at].expect("a bound that was given")),
                Parameter::Place(at) => {
                    let value = place.as_ref().and_then(|values| values[at]);
                    (types[at], value.expect("the statement asks for values that are not null"))
                }
            });
        }

        let page_size = limit as usize;
        type Place = Vec<Option<Vec<u8>>>;
        let (rows, has_more): (Vec<(Datum, Place)>, bool) = query::select(&statement.sql, &parameters, |rows| {
            let place = |row: &Row| -> Place {
                types.iter().enumerate().map(|(at, of)| Some(output(*of, row.value(at as i32 + 2)?))).collect()
            };
            let kept = |row: &Row| (row.kept_value(1).expect("a row of a table is not null"), place(row));
            (with_plain_settings(|| rows.iter().take(page_size).map(kept).collect()), rows.len() > page_size)
        });
        // The last row of all has no cursor: nothing comes after it.
        let with_cursor = if has_more { rows.len() } else { rows.len().saturating_sub(1) };
        let key = match key {
            Some(key) => key,
            None if with_cursor > 0 => secret()?,
            None => Vec::new(),
        };
        let rows = rows.into_iter().enumerate().map(|(at, (item, place))| {
            let cursor = (at < with_cursor).then(|| {
                let place: Vec<Option<&[u8]>> = place.iter().map(Option::as_deref).collect();
                TextAnswer(cursor::seal(&place, fingerprint, &key))
            });
            (Item(item), cursor)
        });
        Ok(rows.collect())
    }
}

fn find<'a>(table: &'a Table, name: &str) -> Result<&'a TableColumn, ErrorReport> {
    table.column(name).ok_or_else(|| missing_page_column(name, &table.name))
}

fn no_order(column: &TableColumn) -> ErrorReport {
    no_order_of_type(&column.name, &catalog::type_name(column.type_id))
}

fn sort_key(table: &Table, named: SortColumn) -> Result<SortKey, ErrorReport> {
    let found = find(table, &named.column)?;
    let mut collation = found.collation_id;
    if let Some(name) = &named.collation {
        if !catalog::is_collatable(found.type_id) {
            return Err(no_collations(&found.name, &catalog::type_name(found.type_id)));
        }
        collation = catalog::find_collation(name);
    }
    let SortColumn { is_descending, nulls_first, .. } = named;
    let key = found.sort_key(collation).ok_or_else(|| no_order(found))?;
    Ok(SortKey { is_descending, nulls_first, ..key })
}

fn filter_operators(table: &Table, condition: &Condition) -> Result<Option<Operators>, ErrorReport> {
    let column = find(table, &condition.column)?;
    let operators = column.comparable().map(|column| column.operators);
    if operators.is_none() && condition.comparison.needs_operators() {
        return Err(no_order(column));
    }
    Ok(operators)
}

/// The key that signs cursors.
fn secret() -> Result<Vec<u8>, ErrorReport> {
    let (_, owner) = catalog::own_table(c"secret").ok_or_else(missing_secret)?;
    let (mut user, mut context) = (Oid::INVALID, 0);
    let restricted = (pg_sys::SECURITY_LOCAL_USERID_CHANGE | pg_sys::SECURITY_RESTRICTED_OPERATION) as i32;
    // SAFETY: as Postgres itself does for maintenance commands. An error in between ends the (sub)transaction, which sets
    // the user back.
    unsafe {
        pg_sys::GetUserIdAndSecContext(&mut user, &mut context);
        pg_sys::SetUserIdAndSecContext(owner, context | restricted);
    }
    let key = query::select("SELECT s.key FROM lanes.secret AS s", &[], |rows| {
        // SAFETY: the column is a bytea.
        let key: Option<Bytes<'_>> = rows.first().and_then(|row| unsafe { Bytes::from_datum(row.value(1)?, false) });
        key.map(|key| key.bytes().to_vec())
    });
    // SAFETY: what was read above.
    unsafe { pg_sys::SetUserIdAndSecContext(user, context) };
    key.ok_or_else(missing_secret)
}

/// Settings under which the text of every type's values can be read back exactly, whatever the session's are.
const PLAIN_SETTINGS: [(&CStr, &CStr); 7] = [
    (c"bytea_output", c"hex"),
    (c"DateStyle", c"ISO, YMD"),
    (c"extra_float_digits", c"3"),
    (c"IntervalStyle", c"postgres"),
    (c"lc_monetary", c"C"),
    (c"search_path", c"pg_catalog, pg_temp"),
    (c"TimeZone", c"UTC"),
];

/// Calls `function` under [`PLAIN_SETTINGS`].
fn with_plain_settings<T>(function: impl FnOnce() -> T) -> T {
    // SAFETY: as for a function with SET clauses. An error in between ends the (sub)transaction, which sets them back.
    let level = unsafe { pg_sys::NewGUCNestLevel() };
    for (name, value) in PLAIN_SETTINGS {
        // SAFETY: two strings that outlive the call.
        unsafe {
            pg_sys::set_config_option(
                name.as_ptr(),
                value.as_ptr(),
                pg_sys::GucContext::PGC_USERSET,
                pg_sys::GucSource::PGC_S_SESSION,
                pg_sys::GucAction::GUC_ACTION_SAVE,
                true,
                0,
                false,
            );
        }
    }
    let value = function();
    // SAFETY: the level that was begun above.
    unsafe { pg_sys::AtEOXact_GUC(true, level) };
    value
}

/// A value from its text in the database's encoding. Raises what the type has against it.
fn input(type_id: Oid, text: &[u8]) -> Datum {
    let text = CString::new(text).expect("a text has no zero byte");
    let (mut function, mut parameter) = (Oid::INVALID, Oid::INVALID);
    // SAFETY: the type's own input function; a type modifier of -1 changes nothing of the value.
    unsafe {
        pg_sys::getTypeInputInfo(type_id, &mut function, &mut parameter);
        pg_sys::OidInputFunctionCall(function, text.as_ptr().cast_mut(), parameter, -1)
    }
}

/// The text of a value in the database's encoding.
fn output(type_id: Oid, value: Datum) -> Vec<u8> {
    let (mut function, mut is_varlena) = (Oid::INVALID, false);
    // SAFETY: the type's own output function, for a value of the type.
    unsafe {
        pg_sys::getTypeOutputInfo(type_id, &mut function, &mut is_varlena);
        let text = pg_sys::OidOutputFunctionCall(function, value);
        let bytes = CStr::from_ptr(text).to_bytes().to_vec();
        pg_sys::pfree(text.cast());
        bytes
    }
}
