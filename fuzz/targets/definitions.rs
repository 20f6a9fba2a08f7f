//! Files of definitions, as `ingestd apply` reads them (YAML) and as `lanes.check_definition` does (jsonb).
//!
//! What is accepted is accepted again, with the same meaning, after it was written out; what is refused has a message, and
//! finding its line is harmless.

#![no_main]

use ingestd::projection::lines::Lines;
use lanes_core::projection::parse_document;
use libfuzzer_sys::fuzz_target;
use serde_json::Value;

fuzz_target!(|text: &str| {
    if let Ok(json) = serde_json::from_str::<Value>(text) {
        check(&json, text);
    }
    match serde_saphyr::from_str::<Value>(text) {
        Ok(json) => check(&json, text),
        Err(_) => drop(Lines::of(text)),
    }
});

fn check(json: &Value, text: &str) {
    match parse_document(json) {
        Ok(document) => {
            let again: Value = serde_json::from_str(&json.to_string()).expect("it was written as JSON");
            assert_eq!(parse_document(&again).as_ref(), Ok(&document));
        }
        Err(error) => {
            assert!(!error.message().is_empty());
            let _ = (error.to_string(), error.hint(), Lines::of(text).line(error.path()));
        }
    }
}
