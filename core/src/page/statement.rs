//! The SQL of a page: the first rows of each row shard in the page's order, and of these the first.
//!
//! Invariants:
//! - No row shard is forgotten: which there are is read from the table in the same statement, hence the same snapshot, and
//!   rows without one are a part of their own. So the shard column decides what is fast, never what is in the page.
//! - Each part asks for one run of an index on (shard column, sort keys) and no more rows than the page has, so a page
//!   costs the same wherever it begins.
//! - Values come as parameters, names are quoted, operators and collations are named with their schema: the caller's
//!   `search_path` has no say.

use std::fmt::Write;

use super::filter::{Comparison, Condition};
use super::order::{Column, Operators, SortKey};
use super::place::{Difference, Range, ranges_after};
use super::quote;

/// What the rows are read from.
#[derive(Debug, Clone, Copy)]
pub struct Source<'a> {
    /// The table as SQL names it, with its schema.
    pub table: &'a str,
    /// The column with the row shard, if the table has one.
    pub shard: Option<&'a Column>,
}

/// A page: everything about it but the values.
#[derive(Debug, Clone, Copy)]
pub struct Page<'a> {
    /// What the rows are read from.
    pub source: Source<'a>,
    /// The total order of its rows.
    pub order: &'a [SortKey],
    /// Conditions on them, each with the operators of its column; it needs none to ask for nulls.
    pub filter: &'a [(Condition, Option<Operators>)],
    /// Whether its time window has a beginning and an end.
    pub window: [bool; 2],
    /// The place after which it begins: whether the value of each sort key is null.
    pub after: Option<&'a [bool]>,
}

/// What a parameter of the statement stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Parameter {
    /// The most rows, as bigint.
    Limit,
    /// A value of a condition, in the type of its column.
    Condition {
        /// Number of the condition in the filter.
        condition: usize,
        /// Number of the value in the condition.
        value: usize,
    },
    /// The beginning (0) or end (1) of the time window, as timestamp with time zone.
    Window(usize),
    /// The place's value of a sort key, in the type of its column.
    Place(usize),
}

/// A statement. It returns the row, then the values of the sort keys.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Statement {
    /// Its SQL.
    pub sql: String,
    /// What its parameters `$1`, `$2`, … stand for.
    pub parameters: Vec<Parameter>,
}

/// The statement of a page.
pub fn page_statement(page: &Page<'_>) -> Statement {
    let mut writer = Writer { page, parameters: vec![Parameter::Limit] };
    let common = writer.common_conditions();
    let ranges = page.after.map_or_else(|| vec![Vec::new()], |is_null| writer.ranges(is_null));
    let part = |shard: Option<String>| writer.part(shard, &common, &ranges);
    let Source { table, shard } = page.source;
    let (prefix, parts) = match shard {
        None => (String::new(), part(None)),
        Some(column) => {
            let name = format!("t.{}", quote(&column.name));
            let Operators { equal, greater, .. } = &column.operators;
            // Steps from one shard to the next by the index. Its last row is null and no shard.
            let shards = format!(
                "WITH RECURSIVE shards (shard) AS (\
                 (SELECT {name} FROM {table} AS t WHERE {name} IS NOT NULL ORDER BY {name} LIMIT 1) UNION ALL \
                 SELECT (SELECT {name} FROM {table} AS t WHERE {name} {greater} s.shard ORDER BY {name} LIMIT 1) \
                 FROM shards AS s WHERE s.shard IS NOT NULL) "
            );
            let mut parts = format!(
                "SELECT l.* FROM shards AS s CROSS JOIN LATERAL ({}) AS l WHERE s.shard IS NOT NULL",
                part(Some(format!("{name} {equal} s.shard")))
            );
            if column.is_nullable {
                write!(parts, " UNION ALL ({})", part(Some(format!("{name} IS NULL")))).expect("a String takes all");
            }
            (shards, parts)
        }
    };
    let sql = format!("{prefix}SELECT p.* FROM ({parts}) AS p ORDER BY {} LIMIT $1", writer.outer_order("p"));
    Statement { sql, parameters: writer.parameters }
}

/// The statement that makes the index that pages in this order want. Columns that the filter fixes come before the sort
/// keys.
pub fn index_statement(page: &Page<'_>, is_concurrent: bool) -> String {
    let mut columns = Vec::new();
    let mut add = |column: String| {
        if !columns.contains(&column) {
            columns.push(column);
        }
    };
    page.source.shard.iter().for_each(|shard| add(quote(&shard.name)));
    let fixed = page.filter.iter().filter(|(condition, _)| condition.comparison == Comparison::Equal);
    fixed.for_each(|(condition, _)| add(quote(&condition.column)));
    for key in page.order {
        let mut column = quote(&key.column.name);
        if let Some(collation) = &key.collation {
            write!(column, " COLLATE {collation}").expect("a String takes all");
        }
        column.push_str(match (key.is_descending, key.nulls_first) {
            (false, false) => "",
            (false, true) => " NULLS FIRST",
            (true, true) => " DESC",
            (true, false) => " DESC NULLS LAST",
        });
        add(column);
    }
    let concurrently = if is_concurrent { "CONCURRENTLY " } else { "" };
    format!("CREATE INDEX {concurrently}ON {} ({})", page.source.table, columns.join(", "))
}

/// A statement that is being written.
struct Writer<'a> {
    page: &'a Page<'a>,
    parameters: Vec<Parameter>,
}

impl Writer<'_> {
    /// Notes a parameter and returns how SQL calls it.
    fn bind(&mut self, parameter: Parameter) -> String {
        self.parameters.push(parameter);
        format!("${}", self.parameters.len())
    }

    /// What every row of the page fulfils.
    fn common_conditions(&mut self) -> Vec<String> {
        let page = self.page;
        let mut conditions = Vec::new();
        for (number, (condition, operators)) in page.filter.iter().enumerate() {
            let values: Vec<String> = (0..condition.values.len())
                .map(|value| self.bind(Parameter::Condition { condition: number, value }))
                .collect();
            conditions.push(compare(condition, operators.as_ref(), &values));
        }
        for (at, operator) in ["OPERATOR(pg_catalog.>=)", "OPERATOR(pg_catalog.<)"].into_iter().enumerate() {
            if page.window[at] {
                let bound = self.bind(Parameter::Window(at));
                conditions.push(format!("{} {operator} {bound}", column_of(&page.order[0])));
            }
        }
        conditions
    }

    /// The conditions of each range after the page's place.
    fn ranges(&mut self, is_null: &[bool]) -> Vec<Vec<String>> {
        let order = self.page.order;
        let values: Vec<Option<String>> = is_null
            .iter()
            .enumerate()
            .map(|(at, is_null)| (!is_null).then(|| self.bind(Parameter::Place(at))))
            .collect();
        let same = |at: usize| match &values[at] {
            Some(value) => format!("{} {} {value}", column_of(&order[at]), order[at].column.operators.equal),
            None => format!("{} IS NULL", column_of(&order[at])),
        };
        let differs = |Range { at, difference }: Range| match difference {
            Difference::Beyond { end } => {
                let columns: Vec<String> = order[at..end].iter().map(column_of).collect();
                let values: Vec<&str> = values[at..end].iter().flatten().map(String::as_str).collect();
                match (columns.as_slice(), values.as_slice()) {
                    ([column], [value]) => format!("{column} {} {value}", order[at].beyond()),
                    _ => format!("ROW({}) {} ROW({})", columns.join(", "), order[at].beyond(), values.join(", ")),
                }
            }
            Difference::Null => format!("{} IS NULL", column_of(&order[at])),
            Difference::NotNull => format!("{} IS NOT NULL", column_of(&order[at])),
        };
        let ranges = ranges_after(order, is_null).into_iter();
        ranges.map(|range| (0..range.at).map(same).chain([differs(range)]).collect()).collect()
    }

    /// The first rows of one shard, or of the table.
    fn part(&self, shard: Option<String>, common: &[String], ranges: &[Vec<String>]) -> String {
        let table = self.page.source.table;
        let order = self.page.order;
        let keys: Vec<String> =
            order.iter().enumerate().map(|(at, key)| format!("{} AS k{at}", column_of(key))).collect();
        let sorted: Vec<String> = order.iter().map(|key| format!("{}{}", column_of(key), direction(key))).collect();
        let (keys, sorted) = (keys.join(", "), sorted.join(", "));
        let range = |range: &Vec<String>| {
            let conditions: Vec<&str> =
                shard.iter().chain(common).chain(range).map(|condition| condition.as_str()).collect();
            let conditions =
                if conditions.is_empty() { String::new() } else { format!(" WHERE {}", conditions.join(" AND ")) };
            // The cast is one to its own type: it makes t.* the row, also where a column is called like the alias.
            format!("SELECT t.*::{table} AS item, {keys} FROM {table} AS t{conditions} ORDER BY {sorted} LIMIT $1")
        };
        match ranges {
            [only] => range(only),
            ranges => {
                let ranges: Vec<String> = ranges.iter().map(|conditions| format!("({})", range(conditions))).collect();
                let union = ranges.join(" UNION ALL ");
                format!("SELECT r.* FROM ({union}) AS r ORDER BY {} LIMIT $1", self.outer_order("r"))
            }
        }
    }

    /// The order of rows that have been selected with their sort keys.
    fn outer_order(&self, alias: &str) -> String {
        let keys = self.page.order.iter().enumerate();
        keys.map(|(at, key)| format!("{alias}.k{at}{}", direction(key))).collect::<Vec<_>>().join(", ")
    }
}

/// The column of a sort key, compared in the collation that sorts it.
fn column_of(key: &SortKey) -> String {
    let column = format!("t.{}", quote(&key.column.name));
    match &key.collation {
        Some(collation) => format!("({column} COLLATE {collation})"),
        None => column,
    }
}

fn direction(key: &SortKey) -> String {
    let direction = if key.is_descending { " DESC" } else { " ASC" };
    let nulls = if key.nulls_first { " NULLS FIRST" } else { " NULLS LAST" };
    format!("{direction}{nulls}")
}

fn compare(condition: &Condition, operators: Option<&Operators>, values: &[String]) -> String {
    let column = format!("t.{}", quote(&condition.column));
    let compared = |operator: fn(&Operators) -> &String| {
        let operators = operators.expect("a condition that compares comes with the operators of its column");
        format!("{column} {} {}", operator(operators), values[0])
    };
    match condition.comparison {
        Comparison::Equal => compared(|operators| &operators.equal),
        Comparison::NotEqual => format!("NOT ({})", compared(|operators| &operators.equal)),
        Comparison::Less => compared(|operators| &operators.less),
        Comparison::LessOrEqual => compared(|operators| &operators.less_or_equal),
        Comparison::Greater => compared(|operators| &operators.greater),
        Comparison::GreaterOrEqual => compared(|operators| &operators.greater_or_equal),
        Comparison::In if values.is_empty() => "false".to_owned(),
        Comparison::In => {
            let operators = operators.expect("a condition that compares comes with the operators of its column");
            format!("{column} {} ANY (ARRAY[{}])", operators.equal, values.join(", "))
        }
        Comparison::IsNull => format!("{column} IS NULL"),
        Comparison::IsNotNull => format!("{column} IS NOT NULL"),
    }
}
