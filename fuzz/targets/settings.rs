//! The settings file and what is laid over it.
//!
//! Input: TOML, a line `--`, then settings `NAME=VALUE` a line. What is accepted can be described, and the settings so
//! described are accepted and say the same again.

#![no_main]

use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use ingestd::config::Sources;
use libfuzzer_sys::fuzz_target;
use tempfile::TempDir;

static DIRECTORY: LazyLock<TempDir> = LazyLock::new(|| tempfile::tempdir().expect("temporary files can be written"));

fn sources(file: &Path, flags: Vec<String>) -> Sources {
    Sources { file: PathBuf::from(file), file_was_named: true, flags }
}

fuzz_target!(|input: &[u8]| {
    let (text, flags) = pg_lanes_fuzz::split(input, b"\n--\n");
    let file = DIRECTORY.path().join("ingestd.toml");
    std::fs::write(&file, text).expect("the folder is ours");
    let flags = String::from_utf8_lossy(flags);
    match sources(&file, flags.lines().map(str::to_owned).collect()).read() {
        Ok(config) => {
            let described = config.describe();
            // The connection string is hidden. The names of a folder and of a table need quotes, as a file has them.
            let hidden = ["postgres", "log", "data_directory"];
            let shown = described.iter().filter(|(name, _, _)| !hidden.contains(name));
            let flags = shown.map(|(name, value, _)| format!("{name}={value}")).collect();
            std::fs::write(&file, "").expect("the folder is ours");
            let again = sources(&file, flags).read().expect("it was accepted before");
            let visible = |all: Vec<(&'static str, String, bool)>| {
                all.into_iter().filter(|(name, _, _)| !hidden.contains(name)).collect::<Vec<_>>()
            };
            assert_eq!(visible(again.describe()), visible(described));
        }
        Err(error) => assert!(!error.to_string().is_empty()),
    }
});
