//! A place in a log.
//!
//! In a log of the daemon's, on SQLite, a position says it all, and the tick is 0. A table of events in Postgres is
//! ordered by ticks first, then by positions: an event belongs to the first tick that shows it. Everything at or below a
//! checkpoint's place is accounted for.

use std::fmt;

/// A tick and a position, in the order of the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The tick; 0 in a log without ticks.
    pub tick: u64,
    /// The position.
    pub position: u64,
}

impl Place {
    /// A place in a log without ticks.
    pub fn at(position: u64) -> Place {
        Place { tick: 0, position }
    }

    /// The place right before an event that stands here.
    pub fn before(self) -> Place {
        Place { position: self.position.saturating_sub(1), ..self }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.tick {
            0 => write!(formatter, "{}", self.position),
            tick => write!(formatter, "{} of tick {tick}", self.position),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_come_before_positions() {
        let place = |tick, position| Place { tick, position };
        assert!(place(1, 900) < place(2, 3) && place(2, 3) < place(2, 4) && Place::at(5) < place(1, 0));
        assert_eq!((place(2, 4).before(), Place::at(0).before()), (place(2, 3), Place::at(0)));
        assert_eq!((place(2, 4).to_string(), Place::at(7).to_string()), ("4 of tick 2".into(), "7".into()));
    }
}
