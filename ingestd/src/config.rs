//! Settings: one TOML file, checked before anything starts.
//!
//! An unknown key and a value out of range are refused with their line. Every setting has its default and its unit in
//! its description here and in `docs/SETTINGS.md`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Deserializer, de};

use crate::log::LogSettings;

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
}

impl Default for Config {
    fn default() -> Config {
        Config {
            data_directory: None,
            listen: SocketAddr::from(([127, 0, 0, 1], 7478)),
            postgres: None,
            postgres_connections: Within::default(4),
            drain_threads: Within::default(0),
            storage_shards: Within::default(0),
            max_batch_size: Within::default(10_000),
            max_batch_latency_ms: Within::default(100),
            max_event_bytes: Within::default(1 << 20),
            max_request_bytes: Within::default(16 << 20),
            max_in_flight_bytes: Within::default(256 << 20),
            max_streams: Within::default(1_000_000),
            lane_batch_size: Within::default(10_000),
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
    /// A setting that this command needs is absent.
    #[error("settings file {0}: {1} is not set")]
    Absent(PathBuf, &'static str),
}

impl Config {
    /// Reads and checks the settings file.
    ///
    /// # Errors
    /// [`ConfigError`].
    pub fn read(path: &Path) -> Result<Config, ConfigError> {
        let text = std::fs::read_to_string(path).map_err(|error| ConfigError::Read(path.to_owned(), error))?;
        Config::parse(&text).map_err(|reason| ConfigError::Parse(path.to_owned(), reason))
    }

    fn parse(text: &str) -> Result<Config, String> {
        let config: Config = toml::from_str(text).map_err(|error: toml::de::Error| {
            let line = error.span().map(|span| text[..span.start].matches('\n').count() + 1);
            match line {
                // One line for one fault: the parser's own text repeats the source over several lines.
                Some(line) => format!("line {line}: {}", error.message().replace('\n', ", ")),
                None => error.message().replace('\n', ", "),
            }
        })?;
        let (event, request) = (config.max_event_bytes.get(), config.max_request_bytes.get());
        if event > request {
            return Err(format!("max_event_bytes ({event}) must not be above max_request_bytes ({request})"));
        }
        let in_flight = config.max_in_flight_bytes.get();
        if request > in_flight {
            return Err(format!("max_request_bytes ({request}) must not be above max_in_flight_bytes ({in_flight})"));
        }
        Ok(config)
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
            max_batch_size: self.max_batch_size.get() as usize,
            max_batch_latency: Duration::from_millis(self.max_batch_latency_ms.get()),
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
        let mut seen = 0;
        for name in fields.lines().filter_map(|line| line.trim().strip_prefix("pub ")?.split(':').next()) {
            assert!(docs.contains(&format!("| `{name}` |")), "docs/SETTINGS.md does not describe {name}");
            seen += 1;
        }
        assert!(seen >= 13);
    }

    #[test]
    fn limits_that_exclude_each_other_are_refused() {
        let error = Config::parse("max_request_bytes = 2048").unwrap_err();
        assert!(error.contains("max_event_bytes (1048576) must not be above max_request_bytes (2048)"), "{error}");
        let error = Config::parse("max_in_flight_bytes = 1048576").unwrap_err();
        assert!(error.contains("must not be above max_in_flight_bytes (1048576)"), "{error}");
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
