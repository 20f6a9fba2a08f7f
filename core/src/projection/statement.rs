//! The statements of `sql`: for what operations cannot say.
//!
//! A statement sees a batch as the row set `batch (position bigint, type text, key text, ts bigint, lane int,
//! payload jsonb)`, with the events of its type, and names its table as `{table}`, so that a rebuild can have it write to
//! another. It may begin with a WITH of its own.

use super::document::{DefinitionError, Names, Place};

/// How a statement names its table.
pub const TABLE: &str = "{table}";

/// The name of the row set.
pub const BATCH: &str = "batch";

const STATEMENT: Names = Names { known: &["statement", "row_key"], later: &[] };

/// What events of one type do by SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BatchStatement {
    /// The statement as it was given.
    pub text: String,
    /// The columns of the primary key by which each event's statement chooses the rows it writes; none if it may write
    /// any row.
    pub row_key: Option<Vec<String>>,
}

impl BatchStatement {
    /// The statement with its table, and with the row set `batch` made from `rows`, a SELECT.
    pub fn sql(&self, table: &str, rows: &str) -> String {
        let text = self.text.trim().trim_end_matches(';').replace(TABLE, table);
        let columns = "position, type, key, ts, lane, payload";
        match strip_word(&text, "with") {
            None => format!("WITH {BATCH} ({columns}) AS ({rows}) {text}"),
            Some(rest) => match strip_word(rest, "recursive") {
                None => format!("WITH {BATCH} ({columns}) AS ({rows}), {rest}"),
                Some(rest) => format!("WITH RECURSIVE {BATCH} ({columns}) AS ({rows}), {rest}"),
            },
        }
    }
}

/// What follows `word` at the beginning of `text`, whatever its case.
fn strip_word<'t>(text: &'t str, word: &str) -> Option<&'t str> {
    let (first, rest) = text.split_at_checked(word.len())?;
    let ends = rest.starts_with(|letter: char| letter.is_whitespace() || letter == '/' || letter == '-');
    (first.eq_ignore_ascii_case(word) && ends).then(|| rest.trim_start())
}

pub(super) fn parse_statement(place: &Place<'_>, primary_key: &[String]) -> Result<BatchStatement, DefinitionError> {
    place.check_names(&STATEMENT)?;
    let text_place = place.required("statement")?;
    let text = text_place.text()?;
    if text.contains('\0') {
        return Err(text_place.error("contains U+0000"));
    }
    if !text.contains(TABLE) {
        return Err(text_place.error(format!("the statement does not name its table as {TABLE}")).with_hint(
            "Write {table} where the table's name belongs, as in INSERT INTO {table} … SELECT … FROM batch: a rebuild \
             has the statement write to another table.",
        ));
    }
    // A statement that begins with a comment would hide its WITH.
    if text.trim_start().starts_with("--") || text.trim_start().starts_with("/*") {
        return Err(text_place
            .error("the statement begins with a comment")
            .with_hint("Move the comment behind the first word, or into the YAML."));
    }
    let mut row_key = None;
    if let Some(place) = place.optional("row_key")? {
        let mut columns = Vec::new();
        for (name, place) in place.texts()? {
            if !primary_key.iter().any(|column| column == name) {
                return Err(place
                    .error(format!("column \"{name}\" is not part of the primary key"))
                    .with_hint(format!("row_key names columns of the primary key: {}.", primary_key.join(", "))));
            }
            columns.push(name.to_owned());
        }
        row_key = Some(columns);
    }
    Ok(BatchStatement { text: text.to_owned(), row_key })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_row_set_comes_first() {
        let sql = |text: &str| BatchStatement { text: text.to_owned(), row_key: None }.sql("\"s\".\"t\"", "SELECT 1");
        let columns = "(position, type, key, ts, lane, payload)";
        assert_eq!(
            sql(" DELETE FROM {table} USING batch; "),
            format!("WITH batch {columns} AS (SELECT 1) DELETE FROM \"s\".\"t\" USING batch")
        );
        assert_eq!(
            sql("with\n a AS (SELECT 2) INSERT INTO {table} TABLE a"),
            format!("WITH batch {columns} AS (SELECT 1), a AS (SELECT 2) INSERT INTO \"s\".\"t\" TABLE a")
        );
        assert_eq!(
            sql("WITH Recursive a AS (SELECT 2) TABLE a"),
            format!("WITH RECURSIVE batch {columns} AS (SELECT 1), a AS (SELECT 2) TABLE a")
        );
        assert!(sql("withdraw {table}").starts_with("WITH batch"));
    }
}
