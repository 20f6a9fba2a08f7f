//! How a projection is worked on: when a batch is begun, what becomes of an event that fails, and who gives way under
//! pressure. Nothing here changes the rows; so it may change without a rebuild.

use super::document::{DefinitionError, Names, Place};
use crate::lane;

/// How a projection is worked on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// When a batch is begun.
    pub mode: Mode,
    /// The most lanes that one process works on at once; none is no limit.
    pub max_concurrency: Option<u32>,
    /// What becomes of an event that cannot be applied.
    pub on_error: OnError,
    /// How often a parked key is tried in all before it waits to be told; also how often a canceled statement is
    /// tried before it counts as a fault of its data.
    pub max_attempts: u32,
    /// The time between two tries.
    pub backoff: Backoff,
    /// The most parked events of the projection before its lanes stop.
    pub parked_limit: u32,
    /// Who gives way under pressure: the greater number first.
    pub priority: Priority,
}

/// When a batch is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// As soon as there is an event.
    Realtime,
    /// When so many events wait, or the first has waited so long.
    Batch {
        /// Events.
        size: u32,
        /// Milliseconds.
        flush_interval_ms: u32,
    },
    /// At fixed times, everything there is.
    Scheduled {
        /// Milliseconds between two times.
        every_ms: u64,
    },
}

/// What becomes of an event that cannot be applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OnError {
    /// Its key is parked: it and every later event of the key wait, in order; other keys go on.
    Park,
    /// It alone is set aside for good, and the order of its key is given up.
    Skip,
    /// Its lane stops before it.
    Block,
}

/// The time between two tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backoff {
    /// At once.
    None,
    /// Always the same.
    Fixed,
    /// Twice as long after each.
    Exponential,
}

/// Who gives way under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Priority {
    /// Never.
    P0,
    /// Second.
    P1,
    /// First.
    P2,
}

impl Priority {
    /// The name in a definition.
    pub fn name(self) -> &'static str {
        match self {
            Priority::P0 => "p0",
            Priority::P1 => "p1",
            Priority::P2 => "p2",
        }
    }
}

const DEFAULT_FLUSH_MS: u32 = 500;
const DEFAULT_EVERY_MS: u64 = 5 * 60_000;
const DEFAULT_BATCH: u32 = 100;
const MAXIMUM_BATCH: u32 = 100_000;
const MAXIMUM_FLUSH_MS: u32 = 3_600_000;
const MAXIMUM_EVERY_MS: u64 = 7 * 86_400_000;

const TYPES: Names = Names { known: &["hot", "read_model", "analytics", "search"], later: &[] };
const PROCESSING: Names =
    Names { known: &["mode", "batch_size", "flush_interval_ms", "max_concurrency", "every"], later: &[] };
const MODES: Names = Names { known: &["realtime", "batch", "scheduled"], later: &[] };
const CHECKPOINTING: Names = Names { known: &["enabled", "strategy"], later: &[] };
const STRATEGIES: Names = Names { known: &["per_projection_partition"], later: &["per_tenant_partition"] };
const RETRY: Names =
    Names { known: &["max_attempts", "backoff", "dead_letter", "on_error", "parked_limit"], later: &[] };
const BACKOFFS: Names = Names { known: &["none", "fixed", "exponential"], later: &[] };
const ON_ERROR: Names = Names { known: &["park", "skip", "block"], later: &[] };
const PRIORITIES: Names = Names { known: &["p0", "p1", "p2"], later: &[] };

/// Reads `type`, which sets the defaults, and `processing`, `checkpointing`, `retry` and `priority`.
pub(super) fn parse_policy(place: &Place<'_>) -> Result<Policy, DefinitionError> {
    let kind = place.optional("type")?.map(|place| place.choice("type", &TYPES)).transpose()?;
    let batch = |size| Mode::Batch { size, flush_interval_ms: DEFAULT_FLUSH_MS };
    let (mode, priority, dead_letter) = match kind {
        Some("hot") => (batch(DEFAULT_BATCH), Priority::P0, true),
        Some("analytics") => (Mode::Scheduled { every_ms: DEFAULT_EVERY_MS }, Priority::P2, false),
        Some("search") => (batch(250), Priority::P2, false),
        _ => (Mode::Realtime, Priority::P1, false),
    };
    let priority = match place.optional("priority")? {
        None => priority,
        Some(place) => match place.choice("priority", &PRIORITIES)? {
            "p0" => Priority::P0,
            "p1" => Priority::P1,
            _ => Priority::P2,
        },
    };
    if let Some(place) = place.optional("checkpointing")? {
        check_checkpointing(&place)?;
    }
    let (mode, max_concurrency) = match place.optional("processing")? {
        None => (mode, None),
        Some(place) => parse_processing(&place, mode)?,
    };
    let mut policy = Policy {
        mode,
        max_concurrency,
        on_error: if dead_letter { OnError::Park } else { OnError::Block },
        max_attempts: 3,
        backoff: Backoff::Exponential,
        parked_limit: 100_000,
        priority,
    };
    if let Some(place) = place.optional("retry")? {
        parse_retry(&place, &mut policy)?;
    }
    Ok(policy)
}

fn parse_processing(place: &Place<'_>, default: Mode) -> Result<(Mode, Option<u32>), DefinitionError> {
    place.check_names(&PROCESSING)?;
    let size = place.optional("batch_size")?.map(|place| place.whole(1, MAXIMUM_BATCH)).transpose()?;
    let flush = place.optional("flush_interval_ms")?;
    let flush_ms = flush.as_ref().map(|place| place.whole(0, MAXIMUM_FLUSH_MS)).transpose()?;
    let every = place.optional("every")?;
    let every_ms = every.as_ref().map(parse_duration).transpose()?;
    let concurrency =
        place.optional("max_concurrency")?.map(|place| place.whole(1, lane::MAXIMUM_LANES)).transpose()?;
    let given = place.optional("mode")?.map(|place| place.choice("mode", &MODES)).transpose()?;
    // Without `mode` the other keys say what is meant.
    let name = match (given, default) {
        (Some(name), _) => name,
        (None, _) if every_ms.is_some() => "scheduled",
        (None, Mode::Scheduled { .. }) if size.is_none() && flush_ms.is_none() => "scheduled",
        (None, Mode::Realtime) if size.is_none_or(|size| size == 1) && flush_ms.is_none() => "realtime",
        (None, _) => "batch",
    };
    let stray = |place: &Option<Place<'_>>, mode: &str| match place {
        None => Ok(()),
        Some(place) => Err(place
            .error(format!("has no meaning in mode {name}"))
            .with_hint(format!("Remove it, or set mode: {mode}."))),
    };
    let mode = match name {
        "realtime" => {
            stray(&flush, "batch")?;
            stray(&every, "scheduled")?;
            if size.is_some_and(|size| size > 1) {
                stray(&place.optional("batch_size")?, "batch")?;
            }
            Mode::Realtime
        }
        "scheduled" => {
            stray(&flush, "batch")?;
            stray(&place.optional("batch_size")?, "batch")?;
            let default = if let Mode::Scheduled { every_ms } = default { every_ms } else { DEFAULT_EVERY_MS };
            Mode::Scheduled { every_ms: every_ms.unwrap_or(default) }
        }
        _ => {
            stray(&every, "scheduled")?;
            let (default_size, default_flush) = match default {
                Mode::Batch { size, flush_interval_ms } => (size, flush_interval_ms),
                _ => (DEFAULT_BATCH, DEFAULT_FLUSH_MS),
            };
            Mode::Batch { size: size.unwrap_or(default_size), flush_interval_ms: flush_ms.unwrap_or(default_flush) }
        }
    };
    Ok((mode, concurrency))
}

/// A duration: a whole number and ms, s, m or h.
fn parse_duration(place: &Place<'_>) -> Result<u64, DefinitionError> {
    let text = place.text()?.trim();
    let unit_at = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(unit_at);
    let unit = match unit {
        "ms" => Some(1),
        "s" => Some(1000),
        "m" => Some(60_000),
        "h" => Some(3_600_000),
        _ => None,
    };
    let duration = unit.and_then(|unit: u64| unit.checked_mul(number.parse().ok()?));
    duration.filter(|duration| (100..=MAXIMUM_EVERY_MS).contains(duration)).ok_or_else(|| {
        place
            .error(format!("\"{text}\" is not a time between 100ms and 168h"))
            .with_hint("Write a whole number and its unit: 500ms, 30s, 5m or 1h.")
    })
}

fn check_checkpointing(place: &Place<'_>) -> Result<(), DefinitionError> {
    place.check_names(&CHECKPOINTING)?;
    if let Some(place) = place.optional("enabled")?
        && !place.boolean()?
    {
        return Err(place
            .error("checkpoints cannot be turned off: without them a restart would repeat or lose events")
            .with_hint("Set it to true, or remove it."));
    }
    place.optional("strategy")?.map(|place| place.choice("strategy", &STRATEGIES)).transpose()?;
    Ok(())
}

fn parse_retry(place: &Place<'_>, policy: &mut Policy) -> Result<(), DefinitionError> {
    place.check_names(&RETRY)?;
    if let Some(place) = place.optional("max_attempts")? {
        policy.max_attempts = place.whole(1, 1000)?;
    }
    if let Some(place) = place.optional("backoff")? {
        policy.backoff = match place.choice("backoff", &BACKOFFS)? {
            "none" => Backoff::None,
            "fixed" => Backoff::Fixed,
            _ => Backoff::Exponential,
        };
    }
    if let Some(place) = place.optional("parked_limit")? {
        policy.parked_limit = place.whole(1, 10_000_000)?;
    }
    let dead_letter = place.optional("dead_letter")?.map(|place| place.boolean()).transpose()?;
    match dead_letter {
        Some(true) => policy.on_error = OnError::Park,
        Some(false) => policy.on_error = OnError::Block,
        None => {}
    }
    if let Some(place) = place.optional("on_error")? {
        let name = place.choice("on_error", &ON_ERROR)?;
        policy.on_error = match name {
            "park" => OnError::Park,
            "skip" => OnError::Skip,
            _ => OnError::Block,
        };
        if dead_letter.is_some_and(|dead_letter| dead_letter == (policy.on_error == OnError::Block)) {
            return Err(place
                .error(format!("\"{name}\" contradicts dead_letter: {}", policy.on_error == OnError::Block))
                .with_hint(
                    "dead_letter: false is on_error: block; park and skip keep dead letters. Remove one of both.",
                ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value as Json, json};

    fn parse(json: &Json) -> Result<Policy, String> {
        let error = |error: DefinitionError| format!("{error} {}", error.hint().unwrap_or_default());
        parse_policy(&Place { path: "p".to_owned(), json }).map_err(error)
    }

    #[test]
    fn types_set_the_defaults() {
        let batch = |size, flush_interval_ms| Mode::Batch { size, flush_interval_ms };
        for (document, mode, priority, on_error) in [
            (json!({}), Mode::Realtime, Priority::P1, OnError::Block),
            (json!({"type": "hot"}), batch(100, 500), Priority::P0, OnError::Park),
            (json!({"type": "read_model"}), Mode::Realtime, Priority::P1, OnError::Block),
            (json!({"type": "analytics"}), Mode::Scheduled { every_ms: 300_000 }, Priority::P2, OnError::Block),
            (json!({"type": "search"}), batch(250, 500), Priority::P2, OnError::Block),
            (
                json!({"type": "hot", "processing": {"flush_interval_ms": 250}}),
                batch(100, 250),
                Priority::P0,
                OnError::Park,
            ),
            (json!({"type": "hot", "processing": {"mode": "realtime"}}), Mode::Realtime, Priority::P0, OnError::Park),
            (json!({"type": "hot", "retry": {"dead_letter": false}}), batch(100, 500), Priority::P0, OnError::Block),
            (json!({"processing": {"batch_size": 7}}), batch(7, 500), Priority::P1, OnError::Block),
            (json!({"processing": {"batch_size": 1}}), Mode::Realtime, Priority::P1, OnError::Block),
            (json!({"processing": {"mode": "batch"}}), batch(100, 500), Priority::P1, OnError::Block),
            (
                json!({"processing": {"mode": "scheduled"}}),
                Mode::Scheduled { every_ms: 300_000 },
                Priority::P1,
                OnError::Block,
            ),
            (
                json!({"processing": {"every": "30s"}, "priority": "p2"}),
                Mode::Scheduled { every_ms: 30_000 },
                Priority::P2,
                OnError::Block,
            ),
            (
                json!({"type": "analytics", "processing": {"batch_size": 5}}),
                batch(5, 500),
                Priority::P2,
                OnError::Block,
            ),
            (json!({"retry": {"dead_letter": true}}), Mode::Realtime, Priority::P1, OnError::Park),
            (json!({"retry": {"on_error": "skip"}}), Mode::Realtime, Priority::P1, OnError::Skip),
            (json!({"type": "hot", "retry": {"on_error": "block"}}), batch(100, 500), Priority::P0, OnError::Block),
        ] {
            let policy = parse(&document).unwrap();
            assert_eq!((policy.mode, policy.priority, policy.on_error), (mode, priority, on_error), "{document}");
            assert_eq!((policy.max_attempts, policy.backoff, policy.parked_limit), (3, Backoff::Exponential, 100_000));
        }
        let policy = parse(&json!({"retry": {"max_attempts": 10, "backoff": "fixed", "parked_limit": 5},
                                   "processing": {"max_concurrency": 8},
                                   "checkpointing": {"enabled": true, "strategy": "per_projection_partition"}}));
        let policy = policy.unwrap();
        assert_eq!((policy.max_attempts, policy.backoff, policy.parked_limit), (10, Backoff::Fixed, 5));
        assert_eq!(policy.max_concurrency, Some(8));
    }

    #[test]
    fn others_are_refused() {
        for (document, reason) in [
            (json!({"type": "warm"}), "p.type: type \"warm\" is not known Known here: hot, read_model"),
            (json!({"type": "read-model"}), "Did you mean \"read_model\"?"),
            (json!({"priority": "p3"}), "p.priority: priority \"p3\" is not known Did you mean \"p0\"?"),
            (json!({"priority": 0}), "p.priority: must be text, not a number"),
            (
                json!({"processing": {"batchsize": 1}}),
                "p.processing.batchsize: key \"batchsize\" is not known Did you mean \"batch_size\"",
            ),
            (json!({"processing": {"batch_size": 0}}), "must be a whole number between 1 and 100000, not 0"),
            (json!({"processing": {"mode": "stream"}}), "mode \"stream\" is not known"),
            (
                json!({"processing": {"mode": "realtime", "batch_size": 5}}),
                "p.processing.batch_size: has no meaning in mode realtime",
            ),
            (json!({"processing": {"mode": "realtime", "flush_interval_ms": 5}}), "has no meaning in mode realtime"),
            (
                json!({"processing": {"mode": "batch", "every": "5m"}}),
                "p.processing.every: has no meaning in mode batch",
            ),
            (json!({"processing": {"mode": "scheduled", "batch_size": 5}}), "has no meaning in mode scheduled"),
            (json!({"processing": {"every": "5 minutes"}}), "is not a time between 100ms and 168h"),
            (json!({"processing": {"every": "99999999999999999999h"}}), "is not a time between"),
            (json!({"processing": {"every": 5}}), "must be text, not a number"),
            (json!({"checkpointing": {"enabled": false}}), "checkpoints cannot be turned off"),
            (
                json!({"checkpointing": {"strategy": "per_tenant_partition"}}),
                "\"per_tenant_partition\" comes in a later version",
            ),
            (json!({"retry": {"max_attempts": 0}}), "between 1 and 1000"),
            (json!({"retry": {"backoff": "linear"}}), "backoff \"linear\" is not known"),
            (json!({"retry": {"on_error": "ignore"}}), "on_error \"ignore\" is not known"),
            (json!({"retry": {"dead_letter": "yes"}}), "must be true or false, not text"),
            (json!({"retry": {"dead_letter": false, "on_error": "park"}}), "\"park\" contradicts dead_letter: false"),
            (json!({"retry": {"dead_letter": true, "on_error": "block"}}), "\"block\" contradicts dead_letter: true"),
        ] {
            let error = parse(&document).unwrap_err();
            assert!(error.contains(reason), "{document}: {error}");
        }
    }
}
