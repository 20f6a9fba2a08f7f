//! Why a batch was not applied, which decides what is done about it.

use lanes_core::place::Place;
use tokio_postgres::Error;

use super::session::{Fault, classify, describe};

/// Why a batch was not applied.
pub(super) enum Failure {
    /// The connection is gone.
    Connection(String),
    /// The lane is somebody else's.
    LaneLost(String),
    /// It can be tried again.
    Transient(String),
    /// It cannot be applied as things are.
    Permanent(String),
    /// The checkpoint is not where this worker left it.
    Moved(Place),
    /// The events were gathered under another map than this version.
    MapChanged(i64),
    /// The batch goes past the place where the lane has to stop.
    PastStop(Place),
    /// The event at this position cannot be applied, and everything of the lane before it is.
    AtEvent(u64, String),
    /// Some event cannot be applied, for this reason: the batch is to be done in parts.
    InParts(String),
}

impl Failure {
    /// What a failure means to a batch that is done in parts already: no event of it is to blame.
    pub(super) fn of_parts(self) -> Failure {
        if let Failure::InParts(reason) = self { Failure::Permanent(reason) } else { self }
    }

    /// What went wrong, where it does not matter what is to be done about it.
    pub(super) fn into_reason(self) -> String {
        match self {
            Failure::Connection(reason)
            | Failure::Transient(reason)
            | Failure::Permanent(reason)
            | Failure::LaneLost(reason)
            | Failure::InParts(reason)
            | Failure::AtEvent(_, reason) => reason,
            Failure::Moved(place) => format!("the checkpoint moved to {place} meanwhile"),
            Failure::MapChanged(version) => format!("the map has version {version} meanwhile"),
            Failure::PastStop(stop) => format!("the lane has to stop at {stop}"),
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Failure {
        let reason = describe(&error);
        match classify(&error) {
            Fault::Connection => Failure::Connection(reason),
            Fault::LaneLost => Failure::LaneLost(reason),
            Fault::Transient | Fault::Canceled => Failure::Transient(reason),
            Fault::Definition => Failure::Permanent(reason),
            Fault::Data => Failure::InParts(reason),
        }
    }
}
