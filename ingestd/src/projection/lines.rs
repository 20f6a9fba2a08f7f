//! Where in a YAML file a place of the document is, so that a refusal can name its line.

use std::collections::HashMap;
use std::fmt;

use serde::de::{DeserializeSeed, MapAccess, SeqAccess, Visitor};
use serde_saphyr::Spanned;

/// The lines of a document's names, by their place.
#[derive(Debug, Default)]
pub struct Lines(HashMap<String, u64>);

impl Lines {
    /// The lines of `text`; none are known if it cannot be read.
    pub fn of(text: &str) -> Lines {
        let mut lines = HashMap::new();
        let read = serde_saphyr::with_deserializer_from_str(text, |deserializer| {
            Walk { path: String::new(), lines: &mut lines }.deserialize(deserializer)
        });
        if read.is_err() {
            lines.clear();
        }
        Lines(lines)
    }

    /// The line of a place such as `projections.orders.fields.total`, or of the nearest place around it that has one.
    pub fn line(&self, path: &str) -> Option<u64> {
        let mut path = path;
        loop {
            if let Some(line) = self.0.get(path) {
                return Some(*line);
            }
            path = &path[..path.rfind(['.', '['])?];
        }
    }
}

/// Walks through a document below the place `path`.
struct Walk<'l> {
    path: String,
    lines: &'l mut HashMap<String, u64>,
}

impl<'de> DeserializeSeed<'de> for Walk<'_> {
    type Value = ();

    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Walk<'_> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("anything")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Spanned<String>>()? {
            let dot = if self.path.is_empty() { "" } else { "." };
            let path = format!("{}{dot}{}", self.path, name.value);
            self.lines.insert(path.clone(), name.referenced.line());
            map.next_value_seed(Walk { path, lines: &mut *self.lines })?;
        }
        Ok(())
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<(), A::Error> {
        let mut index = 0;
        loop {
            let path = format!("{}[{index}]", self.path);
            if list.next_element_seed(Walk { path, lines: &mut *self.lines })?.is_none() {
                return Ok(());
            }
            index += 1;
        }
    }

    fn visit_bool<E>(self, _: bool) -> Result<(), E> {
        Ok(())
    }

    fn visit_i64<E>(self, _: i64) -> Result<(), E> {
        Ok(())
    }

    fn visit_u64<E>(self, _: u64) -> Result<(), E> {
        Ok(())
    }

    fn visit_i128<E>(self, _: i128) -> Result<(), E> {
        Ok(())
    }

    fn visit_u128<E>(self, _: u128) -> Result<(), E> {
        Ok(())
    }

    fn visit_f64<E>(self, _: f64) -> Result<(), E> {
        Ok(())
    }

    fn visit_str<E>(self, _: &str) -> Result<(), E> {
        Ok(())
    }

    fn visit_unit<E>(self) -> Result<(), E> {
        Ok(())
    }

    fn visit_none<E>(self) -> Result<(), E> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_have_lines() {
        let lines = Lines::of("a:\n  b: { c: 1,\n       d: [x, y] }\n  e: 5\n\nf: null\ng:\n  - h: true\n    i: 0.5\n");
        for (path, line) in [
            ("a", 1),
            ("a.b", 2),
            ("a.b.c", 2),
            ("a.b.d", 3),
            ("a.b.d[1]", 3),
            ("a.b.x", 2),
            ("a.e", 4),
            ("f", 6),
            ("g[0]", 7),
            ("g[0].i", 9),
        ] {
            assert_eq!(lines.line(path), Some(line), "{path}");
        }
        assert_eq!(lines.line("document"), None);
        assert_eq!(Lines::of("a: [").line("a"), None);
    }
}
