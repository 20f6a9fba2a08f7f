//! Settings: one TOML file, environment variables over it, flags over these; checked before anything starts.
//!
//! An unknown key and a value out of range are refused with their line, or with the variable or flag that holds them.
//! Every setting has its default and its unit in its description here and in `docs/SETTINGS.md`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use crate::lanes::priority::Limits;
use crate::log::LogSettings;
use crate::log::retention::RetentionSettings;
use crate::log::writer::CommitLimits;

/// A whole number between `MINIMUM` and `MAXIMUM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Within<const MINIMUM: u64, const MAXIMUM: u64>(u64);

impl<const MINIMUM: u64, const MAXIMUM: u64> Within<MINIMUM, MAXIMUM> {
    /// A value known to be in range when the program is compiled.
    const fn default(value: u64) -> Self {
        assert!(MINIMUM <= value && value <= MAXIMUM, "a default is in range");
        Within(value)
    }

    /// The number.
    pub fn get(self) -> u64 {
        self.0
    }
}

impl<'de, const MINIMUM: u64, const MAXIMUM: u64> Deserialize<'de> for Within<MINIMUM, MAXIMUM> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = i64::deserialize(deserializer)?;
        let number = u64::try_from(value).ok().filter(|number| (MINIMUM..=MAXIMUM).contains(number));
        number.map(Within).ok_or_else(|| {
            de::Error::custom(format!("{value} is out of range, the value must be between {MINIMUM} and {MAXIMUM}"))
        })
    }
}

/// The settings file, checked.
#[derive(Debug, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Directory of the log; it must exist and belong to the daemon's user. No default.
    pub data_directory: Option<PathBuf>,
    /// The log that lanes read: `postgres:schema.table` for a table of events, registered with `lanes.register_log` in the
    /// database that `postgres` names. Absent: the daemon's own log in `data_directory`. Default: absent. (The environment
    /// variable `INGESTD_LOG` is another thing: what is logged.)
    pub log: Option<String>,
    /// Address and port of the HTTP source and the status. Default `127.0.0.1:7478`.
    pub listen: SocketAddr,
    /// How to reach Postgres, as a libpq connection string or URL. Absent: the log alone, no lanes.
    pub postgres: Option<String>,
    /// Connections on which the lanes work. 1 to 64, default 4.
    pub postgres_connections: Within<1, 64>,
    /// Drain threads. 0 to 1024, default 0: one for each CPU that the process may use.
    pub drain_threads: Within<0, 1024>,
    /// Store shards, that is SQLite files. 0 to 256, default 0: as many as drain threads.
    pub storage_shards: Within<0, 256>,
    /// The most events of a SQLite transaction. 100 to 100000, default 10000.
    pub max_batch_size: Within<100, 100_000>,
    /// The longest time from a batch's first event to its commit, in milliseconds. 10 to 5000, default 100.
    pub max_batch_latency_ms: Within<10, 5000>,
    /// Pages of a shard's WAL after which it is copied into the database. 100 to 100000, default 1000. Live.
    pub wal_checkpoint_pages: Within<100, 100_000>,
    /// The longest line of a request, in bytes. 1024 to 67108864, default 1048576.
    pub max_event_bytes: Within<1024, 67_108_864>,
    /// The longest body of a request, in bytes. 1024 to 268435456, default 16777216.
    pub max_request_bytes: Within<1024, 268_435_456>,
    /// Bytes of requests that are being worked on; more wait. 1048576 to 68719476736, default 268435456.
    pub max_in_flight_bytes: Within<1_048_576, 68_719_476_736>,
    /// The most producers that the log knows. 1 to 100000000, default 1000000.
    pub max_streams: Within<1, 100_000_000>,
    /// The most events of one Postgres transaction of a lane. 1 to 100000, default 10000.
    pub lane_batch_size: Within<1, 100_000>,
    /// How far a lane of priority p0 may be behind before those of lower priority pause, in milliseconds. 100 to 3600000,
    /// default 5000.
    pub pressure_lag_ms: Within<100, 3_600_000>,
    /// How long the commits of batches may take, in the median, before lanes of lower priority pause, in milliseconds.
    /// 10 to 60000, default 500.
    pub pressure_commit_ms: Within<10, 60_000>,
    /// Free bytes on the log's disk below which nothing is stored any more, so that deletes and checkpoints stay
    /// possible. 0 to 1125899906842624, default 67108864. Live.
    pub disk_reserve_bytes: Within<0, 1_125_899_906_842_624>,
    /// Days after which events are deleted from the log. 1 to 3650, default 30. Live.
    pub retention_days: Within<1, 3650>,
    /// Bytes of all store shards above which the oldest events are deleted. 0 = no limit, default 0. Live.
    pub retention_max_bytes: Within<0, { i64::MAX as u64 }>,
    /// Time between two rounds of retention, in seconds. 1 to 86400, default 600. Live.
    pub retention_interval_s: Within<1, 86_400>,
    /// The most rows that retention deletes in one transaction. 100 to 100000, default 10000. Live.
    pub retention_delete_rows: Within<100, 100_000>,
    /// Days after which a producer that sends nothing, and of which no event is left, is forgotten. 1 to 3650, default 30.
    /// Live.
    pub producer_retention_days: Within<1, 3650>,
    /// How long events stay after all projections have applied them, for a failover of Postgres to an older copy, in
    /// seconds. 0 to 604800, default 3600. Live.
    pub keep_applied_s: Within<0, 604_800>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            data_directory: None,
            log: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 7478)),
            postgres: None,
            postgres_connections: Within::default(4),
            drain_threads: Within::default(0),
            storage_shards: Within::default(0),
            max_batch_size: Within::default(10_000),
            max_batch_latency_ms: Within::default(100),
            wal_checkpoint_pages: Within::default(1000),
            max_event_bytes: Within::default(1 << 20),
            max_request_bytes: Within::default(16 << 20),
            max_in_flight_bytes: Within::default(256 << 20),
            max_streams: Within::default(1_000_000),
            lane_batch_size: Within::default(10_000),
            pressure_lag_ms: Within::default(5000),
            pressure_commit_ms: Within::default(500),
            disk_reserve_bytes: Within::default(64 << 20),
            retention_days: Within::default(30),
            retention_max_bytes: Within::default(0),
            retention_interval_s: Within::default(600),
            retention_delete_rows: Within::default(10_000),
            producer_retention_days: Within::default(30),
            keep_applied_s: Within::default(3600),
        }
    }
}

/// Why the settings cannot be used. The text names the file, and the line where there is one.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read the settings file {0}: {1}")]
    Read(PathBuf, std::io::Error),
    /// The file says something that is not a setting.
    #[error("settings file {0}: {1}")]
    Parse(PathBuf, String),
    /// An environment variable or a flag says something that is not a setting.
    #[error("{0}: {1}")]
    Overlay(String, String),
    /// A setting that this command needs is absent.
    #[error("settings file {0}: {1} is not set")]
    Absent(PathBuf, &'static str),
}

/// The prefix of the environment variables that are settings: `INGESTD_MAX_BATCH_SIZE`.
pub const ENVIRONMENT_PREFIX: &str = "INGESTD_";

/// The environment variable that is no setting: what is logged.
pub const LOG_VARIABLE: &str = "INGESTD_LOG";

/// What the setting `log` begins with.
const TABLE_PREFIX: &str = "postgres:";

/// Where settings come from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// The file; an absent default file counts as empty.
    pub file: PathBuf,
    /// Whether the file was named, and so must exist.
    pub file_was_named: bool,
    /// `NAME=VALUE` of the flags `--set`.
    pub flags: Vec<String>,
}

/// A setting that is not in the file.
struct Overlay {
    /// What to name in an error.
    origin: String,
    name: String,
    value: String,
}

impl Sources {
    /// Reads and checks all sources.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(&self) -> Result<Config, ConfigError> {
        let text = match std::fs::read_to_string(&self.file) {
            Ok(text) => text,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !self.file_was_named => String::new(),
            Err(error) => return Err(ConfigError::Read(self.file.clone(), error)),
        };
        let mut config = Config::parse(&text).map_err(|reason| ConfigError::Parse(self.file.clone(), reason))?;
        let mut origins = Vec::new();
        let mut table: toml::Table =
            text.parse().map_err(|error: toml::de::Error| ConfigError::Parse(self.file.clone(), error.to_string()))?;
        for Overlay { origin, name, value } in self.overlays()? {
            // A number or a boolean as TOML reads it, anything else as text.
            let value = match format!("value = {value}").parse::<toml::Table>() {
                Ok(mut parsed) if parsed.len() == 1 => parsed.remove("value").unwrap_or(toml::Value::String(value)),
                _ => toml::Value::String(value),
            };
            table.insert(name, value);
            config = match Config::deserialize(table.clone()) {
                Ok(config) => config,
                Err(error) => return Err(ConfigError::Overlay(origin, error.message().replace('\n', ", "))),
            };
            origins.push(origin);
        }
        // Of all together: which of two that go together comes first does not matter.
        config.checked().map_err(|reason| {
            if origins.is_empty() {
                ConfigError::Parse(self.file.clone(), reason)
            } else {
                ConfigError::Overlay(origins.join(", "), reason)
            }
        })
    }

    fn overlays(&self) -> Result<Vec<Overlay>, ConfigError> {
        let mut overlays = Vec::new();
        for (variable, value) in std::env::vars_os() {
            // Others' variables may hold anything.
            let variable = variable.to_string_lossy();
            let name = variable.strip_prefix(ENVIRONMENT_PREFIX).filter(|_| variable != LOG_VARIABLE);
            if let Some(name) = name.map(str::to_ascii_lowercase) {
                let origin = format!("environment variable {variable}");
                match value.into_string() {
                    Ok(value) => overlays.push(Overlay { origin, name, value }),
                    Err(_) => return Err(ConfigError::Overlay(origin, "must be UTF-8".to_owned())),
                }
            }
        }
        for flag in &self.flags {
            let Some((name, value)) = flag.split_once('=') else {
                return Err(ConfigError::Overlay(format!("flag --set {flag}"), "must be NAME=VALUE".to_owned()));
            };
            let origin = format!("flag --set {name}");
            overlays.push(Overlay { origin, name: name.trim().to_owned(), value: value.trim().to_owned() });
        }
        Ok(overlays)
    }
}

/// A setting's name, its value as text, and whether a change takes effect while the daemon runs.
pub type Described = (&'static str, String, bool);

impl Config {
    fn parse(text: &str) -> Result<Config, String> {
        toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            match line {
                // One line for one fault: the parser's own text repeats the source over several lines.
                Some(line) => format!("line {line}: {}", error.message().replace('\n', ", ")),
                None => error.message().replace('\n', ", "),
            }
        })
    }

    /// Settings that exclude each other are refused.
    fn checked(self) -> Result<Config, String> {
        let (event, request) = (self.max_event_bytes.get(), self.max_request_bytes.get());
        if event > request {
            return Err(format!("max_event_bytes ({event}) must not be above max_request_bytes ({request})"));
        }
        let in_flight = self.max_in_flight_bytes.get();
        if request > in_flight {
            return Err(format!("max_request_bytes ({request}) must not be above max_in_flight_bytes ({in_flight})"));
        }
        if let Some(log) = &self.log {
            let table = log.strip_prefix(TABLE_PREFIX).and_then(|name| name.split_once('.'));
            if table.is_none_or(|(schema, table)| schema.is_empty() || table.is_empty()) {
                return Err(format!("log must be {TABLE_PREFIX}schema.table, not \"{log}\""));
            }
            if self.data_directory.is_some() {
                return Err("log and data_directory exclude each other: lanes read one log".to_owned());
            }
        }
        Ok(self)
    }

    /// All settings. The connection string is not shown, because it may hold a password.
    pub fn describe(&self) -> Vec<Described> {
        let text = |path: &Option<PathBuf>| path.as_ref().map_or_else(String::new, |path| path.display().to_string());
        vec![
            ("data_directory", text(&self.data_directory), false),
            ("log", self.log.clone().unwrap_or_default(), false),
            ("listen", self.listen.to_string(), false),
            ("postgres", format!("{} bytes, hidden", self.postgres.as_ref().map_or(0, String::len)), false),
            ("postgres_connections", self.postgres_connections.get().to_string(), false),
            ("drain_threads", self.drain_threads.get().to_string(), false),
            ("storage_shards", self.storage_shards.get().to_string(), false),
            ("max_batch_size", self.max_batch_size.get().to_string(), true),
            ("max_batch_latency_ms", self.max_batch_latency_ms.get().to_string(), true),
            ("wal_checkpoint_pages", self.wal_checkpoint_pages.get().to_string(), true),
            ("max_event_bytes", self.max_event_bytes.get().to_string(), false),
            ("max_request_bytes", self.max_request_bytes.get().to_string(), false),
            ("max_in_flight_bytes", self.max_in_flight_bytes.get().to_string(), false),
            ("max_streams", self.max_streams.get().to_string(), false),
            ("lane_batch_size", self.lane_batch_size.get().to_string(), false),
            ("pressure_lag_ms", self.pressure_lag_ms.get().to_string(), false),
            ("pressure_commit_ms", self.pressure_commit_ms.get().to_string(), false),
            ("disk_reserve_bytes", self.disk_reserve_bytes.get().to_string(), true),
            ("retention_days", self.retention_days.get().to_string(), true),
            ("retention_max_bytes", self.retention_max_bytes.get().to_string(), true),
            ("retention_interval_s", self.retention_interval_s.get().to_string(), true),
            ("retention_delete_rows", self.retention_delete_rows.get().to_string(), true),
            ("producer_retention_days", self.producer_retention_days.get().to_string(), true),
            ("keep_applied_s", self.keep_applied_s.get().to_string(), true),
        ]
    }

    /// Takes over the settings that may change while the daemon runs.
    pub fn take_live(&mut self, new: &Config) {
        self.max_batch_size = new.max_batch_size;
        self.max_batch_latency_ms = new.max_batch_latency_ms;
        self.wal_checkpoint_pages = new.wal_checkpoint_pages;
        self.disk_reserve_bytes = new.disk_reserve_bytes;
        self.retention_days = new.retention_days;
        self.retention_max_bytes = new.retention_max_bytes;
        self.retention_interval_s = new.retention_interval_s;
        self.retention_delete_rows = new.retention_delete_rows;
        self.producer_retention_days = new.producer_retention_days;
        self.keep_applied_s = new.keep_applied_s;
    }

    /// When writers commit. Live.
    pub fn commit_limits(&self) -> CommitLimits {
        CommitLimits {
            events: self.max_batch_size.get() as usize,
            latency: Duration::from_millis(self.max_batch_latency_ms.get()),
            disk_reserve_bytes: self.disk_reserve_bytes.get(),
            checkpoint_pages: self.wal_checkpoint_pages.get(),
        }
    }

    /// What retention deletes. Live.
    pub fn retention(&self) -> RetentionSettings {
        let maximum = self.retention_max_bytes.get();
        RetentionSettings {
            age: Duration::from_secs(self.retention_days.get() * 24 * 3600),
            maximum_bytes: (maximum > 0).then_some(maximum),
            interval: Duration::from_secs(self.retention_interval_s.get()),
            delete_rows: self.retention_delete_rows.get(),
            producer_age: Duration::from_secs(self.producer_retention_days.get() * 24 * 3600),
        }
    }

    /// What makes lanes of lower priority pause.
    pub fn pressure(&self) -> Limits {
        Limits {
            lag: Duration::from_millis(self.pressure_lag_ms.get()),
            commit: Duration::from_millis(self.pressure_commit_ms.get()),
        }
    }

    /// How long events stay after they were applied. Live.
    pub fn keep_applied(&self) -> Duration {
        Duration::from_secs(self.keep_applied_s.get())
    }

    /// The table of events that is the log; none if the daemon has a log of its own.
    pub fn events_table(&self) -> Option<&str> {
        self.log.as_deref()?.strip_prefix(TABLE_PREFIX)
    }

    /// The settings of the log.
    ///
    /// # Errors
    /// [`ConfigError::Absent`] if there is no data directory. `path` is the file to name.
    pub fn log_settings(&self, path: &Path) -> Result<LogSettings, ConfigError> {
        Ok(LogSettings {
            data_directory: self
                .data_directory
                .clone()
                .ok_or_else(|| ConfigError::Absent(path.to_owned(), "data_directory"))?,
            drain_threads: self.drain_threads.get() as u32,
            storage_shards: self.storage_shards.get() as u32,
            limits: self.commit_limits(),
            max_streams: self.max_streams.get() as usize,
            accept_loss: false,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_file_gives_the_defaults_and_listens_on_loopback() {
        let config = Config::parse("").unwrap();
        assert!(config.listen.ip().is_loopback());
        assert_eq!(config.max_batch_size.get(), 10_000);
        assert!(config.postgres.is_none());
    }

    #[test]
    fn every_setting_is_described_in_the_docs_with_its_default() {
        let docs = include_str!("../../docs/SETTINGS.md");
        let source = include_str!("config.rs");
        let fields = source.split("pub struct Config {").nth(1).unwrap().split("\n}").next().unwrap();
        let described = Config::parse("").unwrap().describe();
        let names: Vec<&str> =
            fields.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split(':').next()).collect();
        assert_eq!(names, described.iter().map(|(name, _, _)| *name).collect::<Vec<_>>());
        for (name, value, live) in described {
            let row = docs.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).expect(name);
            assert_eq!(row.contains("| live |"), live, "{row}");
            let has_default = value.parse::<u64>().is_err() || row.contains(&format!("| {value} |"));
            assert!(has_default, "the default of {name} is {value}: {row}");
        }
    }

    #[test]
    fn flags_go_over_the_file_and_faults_name_the_flag() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ingestd.toml");
        std::fs::write(&file, "max_batch_size = 500\nstorage_shards = 3").unwrap();
        let sources = |flags: &[&str]| Sources {
            file: file.clone(),
            file_was_named: true,
            flags: flags.iter().map(|flag| (*flag).to_owned()).collect(),
        };
        let config = sources(&["max_batch_size=700", "listen=127.0.0.1:9", "data_directory=/x y"]).read().unwrap();
        assert_eq!((config.max_batch_size.get(), config.storage_shards.get()), (700, 3));
        assert_eq!((config.listen.port(), config.data_directory), (9, Some(PathBuf::from("/x y"))));
        for (flag, reason) in [
            ("max_batch_size=7", "flag --set max_batch_size: 7 is out of range"),
            ("max_batch=7", "flag --set max_batch: unknown field"),
            ("listen", "flag --set listen: must be NAME=VALUE"),
            ("max_request_bytes=2048", "flag --set max_request_bytes: max_event_bytes (1048576) must not be above"),
        ] {
            let error = sources(&[flag]).read().unwrap_err().to_string();
            assert!(error.starts_with(reason), "{error}");
        }
        let absent = Sources { file: directory.path().join("none"), file_was_named: false, flags: Vec::new() };
        assert!(absent.read().is_ok());
        assert!(Sources { file_was_named: true, ..absent }.read().is_err());
    }

    #[test]
    fn limits_that_exclude_each_other_are_refused() {
        let checked = |text: &str| Config::parse(text).and_then(Config::checked);
        let error = checked("max_request_bytes = 2048").unwrap_err();
        assert!(error.contains("max_event_bytes (1048576) must not be above max_request_bytes (2048)"), "{error}");
        let error = checked("data_directory = \"x\"\nlog = \"postgres:shop.events\"").unwrap_err();
        assert!(error.contains("exclude each other"), "{error}");
        for log in ["events", "postgres:events", "postgres:.events", "sqlite:shop.events"] {
            let error = checked(&format!("log = \"{log}\"")).unwrap_err();
            assert!(error.contains("postgres:schema.table") && error.contains(log), "{error}");
        }
        let config = checked("log = \"postgres:shop.events\"").unwrap();
        assert_eq!(config.events_table(), Some("shop.events"));
        let error = checked("max_in_flight_bytes = 1048576").unwrap_err();
        assert!(error.contains("must not be above max_in_flight_bytes (1048576)"), "{error}");
    }

    #[test]
    fn limits_that_go_together_are_accepted_in_any_order_from_any_source() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("ingestd.toml");
        // Each of these alone is refused, beside the defaults of the others.
        let smaller = ["max_request_bytes=2048", "max_event_bytes=1024"];
        let larger = ["max_event_bytes=33554432", "max_request_bytes=67108864", "max_in_flight_bytes=134217728"];
        for settings in [&smaller[..], &larger[..]] {
            for in_file in 0..=settings.len() {
                for turned in 0..settings.len() {
                    let mut settings = settings.to_vec();
                    settings.rotate_left(turned);
                    let (filed, flags) = settings.split_at(in_file);
                    std::fs::write(&file, filed.join("\n")).unwrap();
                    let flags = flags.iter().map(|flag| (*flag).to_owned()).collect();
                    let config = Sources { file: file.clone(), file_was_named: true, flags }.read().unwrap();
                    let described = config.describe();
                    for setting in settings {
                        let (name, value) = setting.split_once('=').unwrap();
                        assert!(
                            described.iter().any(|(other, text, _)| (*other, text.as_str()) == (name, value)),
                            "{setting}"
                        );
                    }
                }
            }
        }
    }

    #[test]
    fn a_flag_sets_one_setting_and_not_a_part_of_what_it_says() {
        let file = PathBuf::from("ingestd.toml");
        let read =
            |flag: &str| Sources { file: file.clone(), file_was_named: false, flags: vec![flag.to_owned()] }.read();
        let error = read("max_batch_size=1000\nstorage_shards = 3").unwrap_err().to_string();
        assert!(error.contains("--set max_batch_size") && error.contains("invalid type: string"), "{error}");
        assert_eq!(read("postgres=host=a\nuser = b").unwrap().postgres.as_deref(), Some("host=a\nuser = b"));
    }

    #[test]
    fn bad_settings_are_refused_with_their_line() {
        for (text, reason) in [
            ("listen = \"127.0.0.1:1\"\nlisten_on = 3", "line 2: unknown field `listen_on`"),
            ("\n\nmax_batch_size = 99", "line 3: 99 is out of range, the value must be between 100 and 100000"),
            ("storage_shards = -1", "line 1: -1 is out of range"),
            ("storage_shards = 257", "line 1: 257 is out of range"),
            ("max_batch_size = \"many\"", "line 1: invalid type"),
            ("listen = \"everywhere\"", "line 1: invalid socket address"),
            ("drain_threads = 1\ndrain_threads = 2", "line 2: duplicate key"),
            ("data_directory = ", "line 1: "),
        ] {
            let error = Config::parse(text).unwrap_err();
            assert!(error.starts_with(reason), "{text}: {error}");
            assert!(!error.contains('\n'), "{error}");
        }
    }
}
