//! The machine that the figures come from.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What a reader must know of the machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    cpu: String,
    cores: usize,
    memory_gib: f64,
    kernel: String,
    file_system: String,
    postgres: String,
    sqlite: String,
    /// Mean number of runnable processes over the minute before the run.
    load: f64,
}

impl Machine {
    /// This machine, with the file system of `directory`.
    pub fn describe(directory: &Path) -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model = cpuinfo.lines().find(|line| line.starts_with("model name")).and_then(|line| line.split_once(": "));
        Machine {
            cpu: model.map_or("unknown", |(_, model)| model).to_owned(),
            cores: std::thread::available_parallelism().map_or(1, Into::into),
            memory_gib: memory_kib(&read("/proc/meminfo")).unwrap_or_default() as f64 / f64::from(1 << 20),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_owned(),
            file_system: file_system(&read("/proc/mounts"), directory),
            postgres: e2e::cluster::server_version(),
            sqlite: rusqlite::version().to_owned(),
            load: read("/proc/loadavg").split(' ').next().and_then(|text| text.parse().ok()).unwrap_or_default(),
        }
    }
}

fn memory_kib(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    line.trim().strip_suffix(" kB")?.parse().ok()
}

/// The type of the file system at the longest mount point above `directory`.
fn file_system(mounts: &str, directory: &Path) -> String {
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<&str>>());
    let above = fields.filter(|fields| fields.len() > 2 && directory.starts_with(fields[1]));
    above.max_by_key(|fields| fields[1].len()).map_or("unknown", |fields| fields[2]).to_owned()
}

impl std::fmt::Display for Machine {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Machine { cpu, cores, memory_gib, kernel, file_system, postgres, sqlite, load } = self;
        write!(
            formatter,
            "{cpu}, {cores} cores, {memory_gib:.0} GiB, Linux {kernel}, {file_system}, {postgres}, SQLite {sqlite}; \
             load before the run {load}"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_on_the_file_system_of_the_longest_mount_point_above_it() {
        let mounts = "/dev/vda / ext4 rw 0 0\ntmpfs /tmp tmpfs rw 0 0\ntmpfs /tmpfs xfs rw 0 0\n";
        let on = |directory: &str| file_system(mounts, Path::new(directory));
        assert_eq!([on("/tmp/a"), on("/var/tmp"), on("/tmpf")], ["tmpfs", "ext4", "ext4"]);
    }

    #[test]
    fn memory_is_told_in_kib() {
        assert_eq!(memory_kib("MemTotal:       24689764 kB\nMemFree: 1 kB\n"), Some(24_689_764));
    }
}
