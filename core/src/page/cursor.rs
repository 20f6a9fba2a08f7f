//! A cursor: the place of a row in an order, for the call that asks for the rows after it.
//!
//! Format: base64url without padding of
//!
//! | bytes | what |
//! |---|---|
//! | 1 | version: 1 |
//! | 16 | fingerprint of the query, see [`fingerprint`] |
//! | 4 + n each | the value of each sort key: its length (little-endian; all bits set for null), then its text |
//! | 32 | HMAC-SHA-256 of all before it |
//!
//! Values are the text of the type's own output function; who asks for it fixes the settings that change it. They are
//! signed, not hidden: they are values of a row that the caller has seen. The signature keeps a caller from handing values
//! of its own to input functions, and tells a cursor of another database or of an older key.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};

use super::PageError;
use super::filter::Condition;
use super::order::SortKey;

const VERSION: u8 = 1;
const FINGERPRINT_BYTES: usize = 16;
const SIGNATURE_BYTES: usize = 32;
const NULL_LENGTH: u32 = u32::MAX;

/// What a cursor is tied to.
#[derive(Debug, Clone, Copy)]
pub struct Query<'a> {
    /// Number of the database in its cluster: one made from a template has the template's key.
    pub database_id: u32,
    /// Number of the table in the catalog.
    pub table_id: u32,
    /// What the page is sorted by.
    pub order: &'a [SortKey],
    /// Which rows it is of.
    pub filter: &'a [Condition],
    /// Its time window, in microseconds.
    pub window: [Option<i64>; 2],
}

/// A query's fingerprint.
pub type Fingerprint = [u8; FINGERPRINT_BYTES];

/// What tells a query from every other. (The size of its pages does not matter to a place.)
pub fn fingerprint(query: &Query<'_>) -> Fingerprint {
    let mut hash = Sha256::new();
    // Each part with its length or as a fixed number of bytes, so that no two queries are written alike.
    let mut number = |number: u64| hash.update(number.to_le_bytes());
    number(query.database_id.into());
    number(query.table_id.into());
    for bound in query.window {
        number(bound.is_some().into());
        number(bound.unwrap_or_default() as u64);
    }
    number(query.order.len() as u64);
    number(query.filter.len() as u64);
    let mut text = |text: &str| {
        hash.update((text.len() as u64).to_le_bytes());
        hash.update(text.as_bytes());
    };
    for key in query.order {
        text(&key.column.name);
        text(&format!("{} {} {} {}", key.column.type_id, key.column.collation_id, key.is_descending, key.nulls_first));
    }
    for condition in query.filter {
        text(&condition.column);
        text(&format!("{:?} {}", condition.comparison, condition.values.len()));
        condition.values.iter().for_each(|value| text(value));
    }
    let mut fingerprint = [0; FINGERPRINT_BYTES];
    fingerprint.copy_from_slice(&hash.finalize()[..FINGERPRINT_BYTES]);
    fingerprint
}

/// The cursor of a place: the values of the sort keys, null or text.
pub fn seal(place: &[Option<&[u8]>], query: &Fingerprint, key: &[u8]) -> String {
    let mut bytes = vec![VERSION];
    bytes.extend_from_slice(query);
    for value in place {
        let length = value.map_or(NULL_LENGTH, |value| value.len() as u32);
        bytes.extend_from_slice(&length.to_le_bytes());
        bytes.extend_from_slice(value.unwrap_or_default());
    }
    let signature = signer(key).chain_update(&bytes).finalize().into_bytes();
    bytes.extend_from_slice(&signature);
    URL_SAFE_NO_PAD.encode(bytes)
}

/// The place of a cursor that [`seal`] made for the same query with the same key.
///
/// # Errors
/// [`PageError::Cursor`] if it was altered or made with another key, [`PageError::OtherQuery`] if only the query differs.
pub fn open(cursor: &[u8], query: &Fingerprint, key: &[u8]) -> Result<Vec<Option<Vec<u8>>>, PageError> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| PageError::Cursor)?;
    let (signed, signature) = bytes.split_last_chunk::<SIGNATURE_BYTES>().ok_or(PageError::Cursor)?;
    // In constant time. Nothing of the cursor is looked at before.
    signer(key).chain_update(signed).verify_slice(signature).map_err(|_| PageError::Cursor)?;
    let (version, rest) = signed.split_first().ok_or(PageError::Cursor)?;
    let (made_for, mut rest) = rest.split_first_chunk::<FINGERPRINT_BYTES>().ok_or(PageError::Cursor)?;
    if *version != VERSION {
        return Err(PageError::Cursor);
    }
    if made_for != query {
        return Err(PageError::OtherQuery);
    }
    let mut place = Vec::new();
    while !rest.is_empty() {
        let (length, values) = rest.split_first_chunk::<4>().ok_or(PageError::Cursor)?;
        rest = values;
        place.push(match u32::from_le_bytes(*length) {
            NULL_LENGTH => None,
            length => {
                let (value, later) = rest.split_at_checked(length as usize).ok_or(PageError::Cursor)?;
                rest = later;
                Some(value.to_vec())
            }
        });
    }
    Ok(place)
}

fn signer(key: &[u8]) -> Hmac<Sha256> {
    Hmac::new_from_slice(key).expect("HMAC takes a key of any length")
}
