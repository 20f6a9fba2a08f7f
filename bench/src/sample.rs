//! The events that are written: a week of real flights, repeated.

use std::io::Read;
use std::path::Path;

use flate2::read::GzDecoder;
use lanes_core::event::{Event, parse_line};

use crate::{Failure, REQUEST_EVENTS};

/// A week of flights.
#[derive(Debug)]
pub struct Sample {
    events: Vec<Event>,
    bodies: Vec<String>,
}

impl Sample {
    /// Reads the sample that is in the project.
    pub fn load() -> Result<Sample, Failure> {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../testdata/flights-week.ndjson.gz");
        let mut text = String::new();
        GzDecoder::new(std::fs::File::open(path)?).read_to_string(&mut text)?;
        let events = text.lines().map(|line| parse_line(line, 0)).collect::<Result<Vec<Event>, _>>()?;
        let lines: Vec<&str> = text.lines().collect();
        let bodies = lines.chunks_exact(REQUEST_EVENTS).map(|lines| lines.join("\n")).collect();
        Ok(Sample { events, bodies })
    }

    /// `count` events from the `first`-th on, each with memory of its own, as a source would hand them over.
    pub fn events(&self, first: usize, count: usize) -> Vec<Event> {
        self.events.iter().cycle().skip(first % self.events.len()).take(count).cloned().collect()
    }

    /// The body of the `number`-th request: [`REQUEST_EVENTS`] lines.
    pub fn body(&self, number: usize) -> &str {
        &self.bodies[number % self.bodies.len()]
    }
}
