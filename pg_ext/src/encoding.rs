//! Text in the encoding of the database, and its way to UTF-8 and back.
//!
//! Keys are hashed in UTF-8 (HASH-2), so a LATIN1 database must give the answers of a UTF-8 one. In SQL_ASCII, where
//! Postgres knows no encoding, bytes are taken as UTF-8 and refused (22021) if they are not.

use std::borrow::Cow;
use std::ffi::{CStr, c_char};
use std::fmt::Write;
use std::sync::atomic::{AtomicI32, Ordering};

use pgrx::callconv::{Arg, ArgAbi, BoxRet, FcInfo};
use pgrx::datum::{Datum, FromDatum, IntoDatum, UnboxDatum};
use pgrx::fcinfo::direct_function_call_as_datum;
use pgrx::pg_sys::{self, pg_enc};
use pgrx::varlena::{varatt_is_1b, varatt_is_1b_e, varatt_is_4b_u, varlena_to_byte_slice};

use crate::error::without_backtrace;

const UTF8: i32 = pg_enc::PG_UTF8 as i32;

/// The encoding of the database, read once: it cannot change while a session lives, and asking costs as much as
/// hashing a short key.
#[inline]
fn database_encoding() -> i32 {
    const UNREAD: i32 = -1;
    static ENCODING: AtomicI32 = AtomicI32::new(UNREAD);
    match ENCODING.load(Ordering::Relaxed) {
        UNREAD => {
            // SAFETY: only reads the session's settings; SQL functions run in a session that has a database.
            let encoding = unsafe { pg_sys::GetDatabaseEncoding() };
            ENCODING.store(encoding, Ordering::Relaxed);
            encoding
        }
        encoding => encoding,
    }
}

/// `bytes` of the database's encoding in UTF-8. Raises 22021 for bytes that have no meaning in it.
#[inline]
fn to_utf8(bytes: &[u8]) -> Cow<'_, [u8]> {
    if database_encoding() == UTF8 {
        return Cow::Borrowed(bytes);
    }
    let length = i32::try_from(bytes.len()).expect("a Postgres value is smaller than 1 GiB");
    // SAFETY: pointer and length describe `bytes`.
    let converted =
        without_backtrace(|| unsafe { pg_sys::pg_server_to_any(bytes.as_ptr().cast::<c_char>(), length, UTF8) });
    // The same pointer says that there was nothing to convert.
    if converted.cast_const() == bytes.as_ptr().cast::<c_char>() {
        return Cow::Borrowed(bytes);
    }
    // SAFETY: otherwise it is a new null-terminated string in the current memory context, copied and freed here.
    unsafe {
        let copy = CStr::from_ptr(converted).to_bytes().to_vec();
        pg_sys::pfree(converted.cast());
        Cow::Owned(copy)
    }
}

/// `text` in a form that every database's encoding can hold, for error messages: what is not ASCII is escaped where
/// the database is not in UTF-8.
pub(crate) fn for_message(text: &str) -> String {
    if database_encoding() == UTF8 {
        return text.to_owned();
    }
    let mut escaped = String::with_capacity(text.len());
    for character in text.chars() {
        if character.is_ascii() {
            escaped.push(character);
        } else {
            write!(escaped, "\\u{:04x}", u32::from(character)).expect("a String takes everything");
        }
    }
    escaped
}

/// `text` in the database's encoding. Raises 22P05 for a character that it does not have.
pub(crate) fn from_utf8(text: &str) -> Cow<'_, [u8]> {
    if database_encoding() == UTF8 {
        return Cow::Borrowed(text.as_bytes());
    }
    let length = i32::try_from(text.len()).expect("a Postgres value is smaller than 1 GiB");
    // SAFETY: pointer and length describe `text`.
    let converted =
        without_backtrace(|| unsafe { pg_sys::pg_any_to_server(text.as_ptr().cast::<c_char>(), length, UTF8) });
    // The same pointer says that there was nothing to convert.
    if converted.cast_const() == text.as_ptr().cast::<c_char>() {
        return Cow::Borrowed(text.as_bytes());
    }
    // SAFETY: otherwise it is a new null-terminated string in the current memory context, copied and freed here.
    unsafe {
        let copy = CStr::from_ptr(converted).to_bytes().to_vec();
        pg_sys::pfree(converted.cast());
        Cow::Owned(copy)
    }
}

/// The bytes of a `bytea` or `text` as they are stored, without a copy where Postgres holds them plainly.
///
/// # Safety
/// `datum` is a `bytea` or `text` that is not null and outlives `'fcx`.
#[inline]
unsafe fn stored_bytes<'fcx>(datum: pg_sys::Datum) -> &'fcx [u8] {
    let pointer = datum.cast_mut_ptr::<pg_sys::varlena>();
    // SAFETY: the caller promises a varlena. Only forms that Postgres itself reads in place are read in place; the
    // rest is detoasted into the memory context of the call, which outlives the call.
    unsafe {
        let plain = (varatt_is_1b(pointer) && !varatt_is_1b_e(pointer)) || varatt_is_4b_u(pointer);
        let pointer = if plain { pointer } else { pg_sys::pg_detoast_datum_packed(pointer) };
        varlena_to_byte_slice(pointer)
    }
}

/// A `text` argument in UTF-8.
pub(crate) struct Text<'fcx>(Cow<'fcx, [u8]>);

impl<'fcx> Text<'fcx> {
    /// A string of the server's, such as a name from the catalog.
    pub(crate) fn from_server(string: &'fcx CStr) -> Text<'fcx> {
        Text(to_utf8(string.to_bytes()))
    }

    /// The text in UTF-8.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.0
    }

    /// The text as Rust sees it. Postgres checked the bytes when it took or converted them; a replacement character
    /// would only show where it did not.
    pub(crate) fn as_str(&self) -> Cow<'_, str> {
        String::from_utf8_lossy(&self.0)
    }
}

/// A `bytea` argument.
pub(crate) struct Bytes<'fcx>(&'fcx [u8]);

impl Bytes<'_> {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0
    }
}

/// A `name` argument.
pub(crate) struct Name<'fcx>(Text<'fcx>);

impl Name<'_> {
    /// The name as Rust sees it.
    pub(crate) fn as_str(&self) -> Cow<'_, str> {
        self.0.as_str()
    }
}

impl FromDatum for Name<'_> {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _type: pg_sys::Oid) -> Option<Self> {
        // SAFETY: the declaration in sql/install gives this argument the type name, a string with a zero byte at its end.
        (!is_null).then(|| Name(Text::from_server(unsafe { CStr::from_ptr(datum.cast_mut_ptr()) })))
    }
}

impl FromDatum for Text<'_> {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _type: pg_sys::Oid) -> Option<Self> {
        // SAFETY: the declaration in sql/install gives this argument the type text.
        (!is_null).then(|| Text(to_utf8(unsafe { stored_bytes(datum) })))
    }
}

// SAFETY: an element of a text[] is a text; the answer borrows it no longer than the array lives.
unsafe impl UnboxDatum for Text<'_> {
    type As<'src>
        = Text<'src>
    where
        Self: 'src;

    unsafe fn unbox<'src>(datum: Datum<'src>) -> Text<'src>
    where
        Self: 'src,
    {
        // SAFETY: the declaration in sql/install gives the array the type text[], and pgrx passes no null here.
        Text(to_utf8(unsafe { stored_bytes(datum.sans_lifetime()) }))
    }
}

impl FromDatum for Bytes<'_> {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _type: pg_sys::Oid) -> Option<Self> {
        // SAFETY: the declaration in sql/install gives this argument the type bytea.
        (!is_null).then(|| Bytes(unsafe { stored_bytes(datum) }))
    }
}

/// Makes a [`FromDatum`] type an argument of a `#[pg_extern]` function.
macro_rules! argument {
    ($name:ident, $sql:literal) => {
        // SAFETY: unboxing goes through FromDatum, as for pgrx's own types.
        unsafe impl<'fcx> ArgAbi<'fcx> for $name<'fcx> {
            unsafe fn unbox_arg_unchecked(argument: Arg<'_, 'fcx>) -> Self {
                // SAFETY: the function is declared with this type.
                unsafe { argument.unbox_arg_using_from_datum() }.expect("functions with such an argument are STRICT")
            }
        }

        pgrx::impl_sql_translatable!($name<'_>, $sql);
    };
}

argument!(Text, "text");
argument!(Bytes, "bytea");
argument!(Name, "name");

/// A `text` answer: UTF-8 here, in the database's encoding once it is handed over.
pub(crate) struct TextAnswer(pub(crate) String);

impl IntoDatum for TextAnswer {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        let bytes = from_utf8(&self.0);
        let length = i32::try_from(bytes.len()).expect("a Postgres value is smaller than 1 GiB");
        // SAFETY: pointer and length describe `bytes`, which are copied into the current memory context.
        Some(unsafe { pg_sys::cstring_to_text_with_len(bytes.as_ptr().cast::<c_char>(), length) }.into())
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::TEXTOID
    }
}

// SAFETY: the datum is a text, where the function is declared to return one.
unsafe impl BoxRet for TextAnswer {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        let datum = self.into_datum().expect("a text is never null");
        // SAFETY: as said for the impl.
        unsafe { fcinfo.return_raw_datum(datum) }
    }
}

pgrx::impl_sql_translatable!(TextAnswer, "text");

/// A `jsonb` value, as argument or answer.
pub(crate) struct Jsonb(pg_sys::Datum);

impl Jsonb {
    /// The value as JSON text in UTF-8.
    pub(crate) fn to_json(&self) -> Vec<u8> {
        // SAFETY: the datum is a jsonb (declared so); jsonb_out reads it and gives a null-terminated string in the
        // current memory context.
        let text = unsafe {
            let text = direct_function_call_as_datum(pg_sys::jsonb_out, &[Some(self.0)]);
            CStr::from_ptr(text.expect("jsonb_out returns no null").cast_mut_ptr::<c_char>())
        };
        to_utf8(text.to_bytes()).into_owned()
    }

    /// The field of an object, as `->` gives it. `name` is ASCII.
    pub(crate) fn field(&self, name: &str) -> Option<Jsonb> {
        debug_assert!(name.is_ascii(), "other text would need the database's encoding");
        // SAFETY: a jsonb and a text, as the function is declared.
        unsafe { direct_function_call_as_datum(pg_sys::jsonb_object_field, &[Some(self.0), name.into_datum()]) }
            .map(Jsonb)
    }
}

impl FromDatum for Jsonb {
    unsafe fn from_polymorphic_datum(datum: pg_sys::Datum, is_null: bool, _type: pg_sys::Oid) -> Option<Self> {
        (!is_null).then_some(Jsonb(datum))
    }
}

impl IntoDatum for Jsonb {
    fn into_datum(self) -> Option<pg_sys::Datum> {
        Some(self.0)
    }

    fn type_oid() -> pg_sys::Oid {
        pg_sys::JSONBOID
    }
}

// SAFETY: unboxing goes through FromDatum, as for pgrx's own types.
unsafe impl<'fcx> ArgAbi<'fcx> for Jsonb {
    unsafe fn unbox_arg_unchecked(argument: Arg<'_, 'fcx>) -> Self {
        // SAFETY: the function is declared with this type.
        unsafe { argument.unbox_arg_using_from_datum() }.expect("functions with such an argument are STRICT")
    }
}

// SAFETY: the datum is what Postgres takes as it is.
unsafe impl BoxRet for Jsonb {
    unsafe fn box_into<'fcx>(self, fcinfo: &mut FcInfo<'fcx>) -> Datum<'fcx> {
        // SAFETY: a jsonb, where the function is declared to return one.
        unsafe { fcinfo.return_raw_datum(self.0) }
    }
}

pgrx::impl_sql_translatable!(Jsonb, "jsonb");
