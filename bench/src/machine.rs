//! The machine that the figures come from.

use std::fs;
use std::path::Path;

use serde::Serialize;

/// What a reader must know of the machine.
#[derive(Debug, Serialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    sqlite: &'static str,
    file_system: String,
    /// Mean number of runnable processes over the minute before the run.
    load: f64,
}

impl Machine {
    /// This machine, with the file system of `directory`.
    pub fn describe(directory: &Path) -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        Machine {
            cpu: model.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            sqlite: rusqlite::version(),
            file_system: file_system(directory),
            load: load.split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default(),
        }
    }
}

/// The type of the file system at the longest mount point above `directory`.
fn file_system(directory: &Path) -> String {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
    let above = fields.filter(|fields| fields.len() > 2 && directory.starts_with(fields[1]));
    above.max_by_key(|fields| fields[1].len()).map_or("unknown", |fields| fields[2]).to_owned()
}

impl std::fmt::Display for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { cpu, cores, sqlite, file_system, load } = self;
        write!(formatter, "{cpu}, {cores} cores, SQLite {sqlite}, {file_system}, load before the run {load}")
    }
}
