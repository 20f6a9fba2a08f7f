//! Cursors of `lanes.page`, as a client sends them back.
//!
//! As they come they are refused. Signed with the right key, and with the fingerprint of the query where there is room for
//! it, their contents are read: what is accepted is the cursor of that place and of no other.

#![no_main]

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use lanes_core::page::cursor::{Query, fingerprint, open, seal};
use libfuzzer_sys::fuzz_target;
use sha2::Sha256;

const KEY: &[u8] = b"the key of this database";

/// Where the fingerprint stands.
const FINGERPRINT: std::ops::Range<usize> = 1..17;

fuzz_target!(|input: &[u8]| {
    let query = Query { database_id: 5, table_id: 16_384, order: &[], filter: &[], window: [None, Some(7)] };
    let query = fingerprint(&query);
    assert!(open(input, &query, KEY).is_err(), "nobody signed it");

    let mut contents = input.to_vec();
    if let Some(place) = contents.get_mut(FINGERPRINT) {
        place.copy_from_slice(&query);
    }
    let signature = Hmac::<Sha256>::new_from_slice(KEY).expect("any length").chain_update(&contents).finalize();
    contents.extend_from_slice(&signature.into_bytes());
    let cursor = URL_SAFE_NO_PAD.encode(contents);
    if let Ok(place) = open(cursor.as_bytes(), &query, KEY) {
        let place: Vec<Option<&[u8]>> = place.iter().map(Option::as_deref).collect();
        assert_eq!(seal(&place, &query, KEY), cursor);
    }
});
