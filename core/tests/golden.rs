//! The frozen answers (HASH-1), which an independent implementation in Python wrote (`core/testdata/generate.py`).

use lanes_core::lane::{Strategy, checkpoint_name, lane_of, lock_key, shard};

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn canonical(kind: &str, key: &str) -> Vec<u8> {
    match kind {
        "text" => key.as_bytes().to_vec(),
        "bytea" => unhex(key),
        "uuid" => {
            let digits: String = key.chars().filter(char::is_ascii_hexdigit).collect();
            lanes_core::key::uuid(unhex(&digits).try_into().unwrap()).to_vec()
        }
        _ => lanes_core::key::integer(key.parse().unwrap()).into_bytes(),
    }
}

#[test]
fn lanes_and_shards_are_what_they_always_were() {
    let mut seen = 0;
    for line in include_str!("../testdata/lane_v1.tsv").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let key = canonical(fields[0], fields[1]);
        assert_eq!(key, unhex(fields[2]), "canonical form of {line}");
        let n: i32 = fields[3].parse().unwrap();
        assert_eq!(lane_of(&key, n, Strategy::Modulo).unwrap(), fields[4].parse::<i32>().unwrap(), "{line}");
        assert_eq!(lane_of(&key, n, Strategy::Consistent).unwrap(), fields[5].parse::<i32>().unwrap(), "{line}");
        assert_eq!(shard(&key, n).unwrap(), fields[6].parse::<i32>().unwrap(), "{line}");
        seen += 1;
    }
    assert!(seen > 200);
}

#[test]
fn lock_keys_are_what_they_always_were() {
    for line in include_str!("../testdata/lock_key_v1.tsv").lines().filter(|line| !line.starts_with('#')) {
        let fields: Vec<&str> = line.split('\t').collect();
        let lane = fields[1].parse::<i32>().unwrap();
        assert_eq!(checkpoint_name(fields[0], lane).unwrap(), fields[2]);
        assert_eq!(lock_key(fields[0], lane).unwrap(), fields[3].parse::<i64>().unwrap());
    }
}
