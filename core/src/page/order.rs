//! What a page is sorted by: the columns that the caller names, made total by the table's key.
//!
//! Format of `order_by`, as in SQL's own ORDER BY: columns parted by commas, each with an optional `COLLATE name`, `ASC` or
//! `DESC`, `NULLS FIRST` or `NULLS LAST`. Names are folded to lower case unless quoted. As in Postgres, nulls come last
//! ascending and first descending unless told otherwise. Expressions are refused.

use std::iter::Peekable;
use std::str::CharIndices;

use super::{MAXIMUM_SORT_COLUMNS, PageError};

/// A sort column as the caller named it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortColumn {
    /// Name of the column.
    pub column: String,
    /// Name of the collation asked for, with its schema if one was named.
    pub collation: Option<Vec<String>>,
    /// Whether great values come first.
    pub is_descending: bool,
    /// Whether nulls come before every value.
    pub nulls_first: bool,
}

/// How SQL compares values of a type, each as `OPERATOR(schema.name)`: the order of the type's B-tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Operators {
    /// Less than.
    pub less: String,
    /// Less than or equal.
    pub less_or_equal: String,
    /// Equal.
    pub equal: String,
    /// Greater than or equal.
    pub greater_or_equal: String,
    /// Greater than.
    pub greater: String,
}

/// A column of the table, with what comparing it needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Column {
    /// Its name.
    pub name: String,
    /// Number of its type in the catalog; of a domain, that of the type below.
    pub type_id: u32,
    /// Number of its collation; 0 if it has none.
    pub collation_id: u32,
    /// Whether it can be null.
    pub is_nullable: bool,
    /// How it is compared.
    pub operators: Operators,
}

/// A column that rows are sorted by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SortKey {
    /// The column. Its `collation_id` is the one that sorts.
    pub column: Column,
    /// The collation as SQL names it, if it is not the column's own.
    pub collation: Option<String>,
    /// Whether great values come first.
    pub is_descending: bool,
    /// Whether nulls come before every value.
    pub nulls_first: bool,
}

impl SortKey {
    /// The operator that tells a value that comes later from one that comes earlier.
    pub fn beyond(&self) -> &str {
        let operators = &self.column.operators;
        if self.is_descending { &operators.less } else { &operators.greater }
    }
}

/// Reads `order_by`. An empty one names no column.
///
/// # Errors
/// [`PageError::Order`] and [`PageError::SortColumns`].
pub fn parse_order(order_by: &str) -> Result<Vec<SortColumn>, PageError> {
    let mut words = Words { text: order_by, characters: order_by.char_indices().peekable() };
    let mut columns = Vec::new();
    words.skip_space();
    if words.is_at_end() {
        return Ok(columns);
    }
    loop {
        columns.push(words.sort_column()?);
        if words.is_at_end() {
            break;
        }
        words.expect(',')?;
    }
    if columns.len() > MAXIMUM_SORT_COLUMNS {
        return Err(PageError::SortColumns(columns.len()));
    }
    Ok(columns)
}

/// The order made total: after the sort keys come the columns of the table's key that are not among them, in the
/// direction of the last, so that an index on all of them serves the order and its reverse.
///
/// Of a column that cannot be null the place of nulls is the direction's usual one, whatever was asked for, because the
/// index of a usual order is then as good.
pub fn total_order(named: Vec<SortKey>, key: Vec<SortKey>) -> Vec<SortKey> {
    let is_descending = named.last().is_some_and(|last| last.is_descending);
    let key = key.into_iter().map(|term| SortKey { is_descending, ..term });
    let mut order: Vec<SortKey> = Vec::new();
    for mut term in named.into_iter().chain(key) {
        let is_same = |other: &SortKey| {
            other.column.name == term.column.name && other.column.collation_id == term.column.collation_id
        };
        if order.iter().any(is_same) {
            continue;
        }
        if !term.column.is_nullable {
            term.nulls_first = term.is_descending;
        }
        order.push(term);
    }
    order
}

/// The words of `order_by`.
struct Words<'a> {
    text: &'a str,
    characters: Peekable<CharIndices<'a>>,
}

impl Words<'_> {
    fn sort_column(&mut self) -> Result<SortColumn, PageError> {
        let column = self.name()?;
        let collation = if self.takes("collate") {
            let mut name = vec![self.name()?];
            if self.peek() == Some('.') {
                self.expect('.')?;
                name.push(self.name()?);
            }
            Some(name)
        } else {
            None
        };
        let is_descending = self.takes("desc");
        if !is_descending {
            self.takes("asc");
        }
        let mut nulls_first = is_descending;
        if self.takes("nulls") {
            nulls_first = self.takes("first");
            if !nulls_first && !self.takes("last") {
                return Err(self.refusal());
            }
        }
        Ok(SortColumn { column, collation, is_descending, nulls_first })
    }

    fn skip_space(&mut self) {
        while self.characters.next_if(|(_, character)| character.is_ascii_whitespace()).is_some() {}
    }

    fn peek(&mut self) -> Option<char> {
        self.characters.peek().map(|(_, character)| *character)
    }

    fn is_at_end(&mut self) -> bool {
        self.peek().is_none()
    }

    fn refusal(&mut self) -> PageError {
        let at = self.characters.peek().map_or(self.text.len(), |(at, _)| *at);
        PageError::Order(self.text[at..].to_owned())
    }

    fn expect(&mut self, wanted: char) -> Result<(), PageError> {
        if self.characters.next_if(|(_, character)| *character == wanted).is_none() {
            return Err(self.refusal());
        }
        self.skip_space();
        Ok(())
    }

    /// Takes a word that is not quoted, if it comes next.
    fn takes(&mut self, keyword: &str) -> bool {
        let before = self.characters.clone();
        match self.word() {
            Some(word) if word == keyword => true,
            _ => {
                self.characters = before;
                false
            }
        }
    }

    /// A word that is not quoted, in lower case as Postgres folds it.
    fn word(&mut self) -> Option<String> {
        let is_first = |character: char| character.is_ascii_alphabetic() || character == '_' || !character.is_ascii();
        let mut word = String::from(self.characters.next_if(|(_, character)| is_first(*character))?.1);
        let is_later = |character: char| is_first(character) || character.is_ascii_digit() || character == '$';
        while let Some((_, character)) = self.characters.next_if(|(_, character)| is_later(*character)) {
            word.push(character);
        }
        self.skip_space();
        word.make_ascii_lowercase();
        Some(word)
    }

    fn name(&mut self) -> Result<String, PageError> {
        let start = self.characters.clone();
        let name = if self.peek() == Some('"') { self.quoted() } else { self.word() };
        name.ok_or_else(|| {
            self.characters = start;
            self.refusal()
        })
    }

    /// A quoted name that is closed and not empty.
    fn quoted(&mut self) -> Option<String> {
        let mut name = String::new();
        self.characters.next();
        loop {
            match self.characters.next()?.1 {
                '"' if self.characters.next_if(|(_, next)| *next == '"').is_some() => name.push('"'),
                '"' => break,
                character => name.push(character),
            }
        }
        self.skip_space();
        (!name.is_empty()).then_some(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn column(name: &str, is_descending: bool, nulls_first: bool) -> SortColumn {
        SortColumn { column: name.to_owned(), collation: None, is_descending, nulls_first }
    }

    #[test]
    fn columns_are_read_as_postgres_reads_them() {
        assert_eq!(parse_order(" \n "), Ok(Vec::new()));
        assert_eq!(
            parse_order("Started aSc NULLS first,id desc, \"Größe \"\"x\"\"\" DESC NULLS LAST , größe$1"),
            Ok(vec![
                column("started", false, true),
                column("id", true, true),
                column("Größe \"x\"", true, false),
                column("größe$1", false, false),
            ])
        );
        let collated = |names: &[&str]| SortColumn {
            collation: Some(names.iter().map(|name| (*name).to_owned()).collect()),
            ..column("name", true, true)
        };
        assert_eq!(parse_order("name COLLATE \"C\" desc"), Ok(vec![collated(&["C"])]));
        assert_eq!(parse_order("name collate shop . ci desc"), Ok(vec![collated(&["shop", "ci"])]));
        // A quoted word is a name, also where a keyword could stand.
        assert_eq!(parse_order("\"desc\""), Ok(vec![column("desc", false, false)]));
    }

    #[test]
    fn everything_else_is_refused_where_it_begins() {
        for (order_by, rest) in [
            ("lower(name), id", "(name), id"),
            ("id desc asc", "asc"),
            ("id nulls", ""),
            ("id nulls between", "between"),
            ("id,", ""),
            (", id", ", id"),
            ("id; DROP TABLE orders", "; DROP TABLE orders"),
            ("orders.id", ".id"),
            ("\"id", "\"id"),
            ("\"\"", "\"\""),
            ("1", "1"),
            ("id \"desc\"", "\"desc\""),
            ("name collate", ""),
            ("name collate 'C'", "'C'"),
            ("id -- comment", "-- comment"),
        ] {
            assert_eq!(parse_order(order_by), Err(PageError::Order(rest.to_owned())), "{order_by}");
        }
        let many = vec!["a"; 33].join(",");
        assert_eq!(parse_order(&many), Err(PageError::SortColumns(33)));
    }

    fn sort_key(name: &str, collation_id: u32, is_nullable: bool, is_descending: bool, nulls_first: bool) -> SortKey {
        let operators = Operators {
            less: "<".to_owned(),
            less_or_equal: "<=".to_owned(),
            equal: "=".to_owned(),
            greater_or_equal: ">=".to_owned(),
            greater: ">".to_owned(),
        };
        let column = Column { name: name.to_owned(), type_id: 25, collation_id, is_nullable, operators };
        SortKey { column, collation: None, is_descending, nulls_first }
    }

    #[test]
    fn the_key_makes_an_order_total_in_the_direction_of_its_last_column() {
        let key = || vec![sort_key("a", 1, false, false, false), sort_key("b", 1, false, false, false)];
        let described = |order: Vec<SortKey>| -> Vec<(String, u32, bool, bool)> {
            order
                .into_iter()
                .map(|term| (term.column.name, term.column.collation_id, term.is_descending, term.nulls_first))
                .collect()
        };
        let name = |name: &str| name.to_owned();
        assert_eq!(described(total_order(vec![], key())), [(name("a"), 1, false, false), (name("b"), 1, false, false)]);
        assert_eq!(
            described(total_order(vec![sort_key("n", 0, true, true, false)], key())),
            [(name("n"), 0, true, false), (name("a"), 1, true, true), (name("b"), 1, true, true)]
        );
        // Sorted in another collation, equal values may differ, so the key's own comparison is needed as well.
        assert_eq!(
            described(total_order(
                vec![sort_key("a", 2, false, false, true), sort_key("b", 1, false, true, false)],
                key()
            )),
            [(name("a"), 2, false, false), (name("b"), 1, true, true), (name("a"), 1, true, true)]
        );
        // Naming a column twice says nothing new.
        let twice = vec![sort_key("b", 1, false, false, false), sort_key("b", 1, false, true, true)];
        assert_eq!(described(total_order(twice, key())), [(name("b"), 1, false, false), (name("a"), 1, true, true)]);
    }
}
