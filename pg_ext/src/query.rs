//! Statements that run with the rights, the snapshot and the settings of whoever called the function.

use std::borrow::Cow;
use std::ffi::{CStr, CString};

use pgrx::pg_sys::{self, Datum, HeapTuple, Oid, TupleDesc};

use crate::encoding::from_utf8;

/// A row of an answer, as long as the answer is read.
pub(crate) struct Row {
    tuple: HeapTuple,
    description: TupleDesc,
}

impl Row {
    /// The value of a column, from 1, or `None` if it is null. It lives as long as the answer.
    pub(crate) fn value(&self, column: i32) -> Option<Datum> {
        let mut is_null = false;
        // SAFETY: the tuple is of the description; a number that is no column gives null.
        let datum = unsafe { pg_sys::SPI_getbinval(self.tuple, self.description, column, &mut is_null) };
        (!is_null).then_some(datum)
    }

    /// As [`Row::value`] for a value of variable length, copied to where it outlives the answer.
    pub(crate) fn kept_value(&self, column: i32) -> Option<Datum> {
        // SAFETY: a datum of variable length, as the caller says; it goes to the memory context that was current before
        // the statement.
        self.value(column).map(|datum| unsafe { pg_sys::SPI_datumTransfer(datum, false, -1) })
    }

    /// The value of a column of type name.
    pub(crate) fn name(&self, column: i32) -> Option<&CStr> {
        // SAFETY: a name is a string with a zero byte at its end.
        self.value(column).map(|datum| unsafe { CStr::from_ptr(datum.cast_mut_ptr()) })
    }
}

/// Runs a SELECT with parameters of these types and reads its rows.
pub(crate) fn select<T>(sql: &str, parameters: &[(Oid, Datum)], read: impl FnOnce(&[Row]) -> T) -> T {
    let sql: Cow<'_, [u8]> = from_utf8(sql);
    let sql = CString::new(sql).expect("names and numbers from Postgres have no zero byte");
    let (mut types, mut values): (Vec<Oid>, Vec<Datum>) = parameters.iter().copied().unzip();
    let count = i32::try_from(parameters.len()).expect("SQL has fewer parameters than that");
    // SAFETY: the arrays have `count` elements, none of them null. An error leaves by unwinding, and Postgres then closes
    // the connection with the transaction. What `read` keeps of a row it copies.
    unsafe {
        pg_sys::SPI_connect();
        let code = pg_sys::SPI_execute_with_args(
            sql.as_ptr(),
            count,
            types.as_mut_ptr(),
            values.as_mut_ptr(),
            std::ptr::null(),
            true,
            0,
        );
        assert_eq!(code, pg_sys::SPI_OK_SELECT as i32, "a SELECT that does not fail gives rows");
        let table = &*pg_sys::SPI_tuptable;
        let tuples = (0..pg_sys::SPI_processed as usize).map(|at| *table.vals.add(at));
        let rows: Vec<Row> = tuples.map(|tuple| Row { tuple, description: table.tupdesc }).collect();
        let answer = read(&rows);
        pg_sys::SPI_finish();
        answer
    }
}
