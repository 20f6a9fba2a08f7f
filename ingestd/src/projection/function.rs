//! Queries as SQL functions: `SELECT * FROM show_checkin_count(input_show_id => 'show-7')`.
//!
//! A function is in the schema of its projection's table, runs with the caller's rights and reads the table by its name,
//! so that it follows a rebuild. Arguments are called `input_NAME`, for a column of the answer may have the input's name.

use lanes_core::projection::definition::TOTAL_VIEW_SUFFIX;
use lanes_core::projection::query::{Operand, Output};
use lanes_core::projection::{ColumnType, Projection, Query, Value};

use super::table::quote;

/// Begins the comment of every such function: one without it is somebody else's.
pub const COMMENT: &str = "Query of pg_lanes";

/// Schema, name and argument types of the function, as SQL.
pub fn signature(query: &Query, schema: &str) -> String {
    let types: Vec<&str> = query.inputs.iter().map(|input| input.column_type.sql_name()).collect();
    format!("{}.{}({})", quote(schema), quote(&query.name), types.join(", "))
}

/// The statement that creates the function. `schema` is that of the projection's table.
pub fn create_function_sql(query: &Query, projection: &Projection, schema: &str) -> String {
    let arguments: Vec<String> = query
        .inputs
        .iter()
        .map(|input| {
            let default = if input.required { "" } else { " DEFAULT NULL" };
            format!("{} {}{default}", argument(&input.name), input.column_type.sql_name())
        })
        .collect();
    let columns: Vec<String> = query
        .columns
        .iter()
        .map(|column| format!("{} {}", quote(&column.name), column.column_type.sql_name()))
        .collect();
    // A required input that is null is no input: no row.
    let strict = !query.inputs.is_empty() && query.inputs.iter().all(|input| input.required);
    let body = body(query, projection, schema);
    let quote_mark = quote_mark(&body);
    format!(
        "CREATE OR REPLACE FUNCTION {}.{}({})\n    RETURNS TABLE ({})\n    STABLE{} PARALLEL SAFE LANGUAGE sql \
         SECURITY INVOKER SET search_path = pg_catalog, pg_temp\nAS {quote_mark}\n{body}\n{quote_mark}",
        quote(schema),
        quote(&query.name),
        arguments.join(", "),
        columns.join(", "),
        if strict { " STRICT" } else { "" }
    )
}

/// A dollar quote that does not occur in the text: literals and names of a definition may contain any.
fn quote_mark(text: &str) -> String {
    let mut mark = "$query$".to_owned();
    while text.contains(&mark) {
        mark.insert(mark.len() - 1, '_');
    }
    mark
}

fn argument(name: &str) -> String {
    quote(&format!("input_{name}"))
}

fn body(query: &Query, projection: &Projection, schema: &str) -> String {
    let suffix = if projection.is_bucketed() { TOTAL_VIEW_SUFFIX } else { "" };
    let relation = format!("{}.{}", quote(schema), quote(&format!("{}{suffix}", projection.target.name())));
    let value = |column: &Output| {
        let source = format!("t.{}", quote(&column.source));
        match column.function {
            // The sum of bigint is numeric; one that does not fit its column's type is an error.
            Some("sum") => format!("pg_catalog.sum({source})::{}", column.column_type.sql_name()),
            Some(function) => format!("pg_catalog.{function}({source})"),
            None => source,
        }
    };
    let selected: Vec<String> = query.columns.iter().map(value).collect();
    let mut text = format!("SELECT {}\nFROM {relation} AS t", selected.join(", "));
    let filters: Vec<String> = query
        .filters
        .iter()
        .filter_map(|filter| {
            let column = format!("t.{}", quote(&filter.column));
            Some(match &filter.operand {
                Operand::Literal(value) => format!("{column} {} {}", filter.operator, literal(value)),
                Operand::Input(at) => {
                    let input = query.inputs.get(*at)?;
                    let name = argument(&input.name);
                    let compared = format!("{column} {} {name}", filter.operator);
                    if input.required { compared } else { format!("({name} IS NULL OR {compared})") }
                }
            })
        })
        .collect();
    if !filters.is_empty() {
        text.push_str(&format!("\nWHERE {}", filters.join(" AND ")));
    }
    let keys: Vec<String> = query.columns.iter().filter(|column| column.function.is_none()).map(value).collect();
    if query.groups && !keys.is_empty() {
        text.push_str(&format!("\nGROUP BY {}", keys.join(", ")));
    }
    if !query.order_by.is_empty() {
        let order = |(at, descending): &(usize, bool)| {
            format!("{}{}", at + 1, if *descending { " DESC NULLS LAST" } else { "" })
        };
        text.push_str(&format!("\nORDER BY {}", query.order_by.iter().map(order).collect::<Vec<_>>().join(", ")));
    }
    if let Some(limit) = query.limit {
        text.push_str(&format!("\nLIMIT {limit}"));
    }
    text
}

fn literal(value: &Value) -> String {
    let text = value.to_string().replace('\'', "''");
    let kind = match value {
        Value::Text(_) => ColumnType::Text,
        Value::Integer(_) | Value::Numeric(_) => return text,
        Value::Boolean(_) => ColumnType::Boolean,
        Value::Double(_) => ColumnType::Double,
        Value::Time(_) => ColumnType::Timestamptz,
        Value::Date(_) => ColumnType::Date,
        Value::Uuid(_) => ColumnType::Uuid,
        Value::Json(_) => ColumnType::Jsonb,
        Value::Texts(_) => ColumnType::TextArray,
    };
    // With E and doubled backslashes a quoted text means the same whatever standard_conforming_strings says.
    format!("E'{}'::{}", text.replace('\\', "\\\\"), kind.sql_name())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes_core::projection::parse_document;

    fn example() -> serde_json::Value {
        let text = include_str!("../../../testdata/projections-example.yaml");
        let mut document: serde_json::Value = serde_saphyr::from_str(text).unwrap();
        document["projections"].as_object_mut().unwrap().remove("show_attendance_sharded");
        document
    }

    #[test]
    fn the_example_gives_functions() {
        let mut document = example();
        let filters = &mut document["queries"]["venue_leaderboard"]["where"];
        filters["show_id"] = serde_json::json!({"ne": "'it''s'"});
        document["queries"]["venue_leaderboard"]["input"]["venue_id"]["required"] = false.into();
        let read = parse_document(&document).unwrap();
        let counts = &read.projections[0];
        assert_eq!(signature(&read.queries[0], "public"), "\"public\".\"show_checkin_count\"(text)");
        assert_eq!(
            create_function_sql(&read.queries[0], counts, "public"),
            "CREATE OR REPLACE FUNCTION \"public\".\"show_checkin_count\"(\"input_show_id\" text)\n    \
             RETURNS TABLE (\"show_id\" text, \"total_checkins\" bigint)\n    \
             STABLE STRICT PARALLEL SAFE LANGUAGE sql SECURITY INVOKER SET search_path = pg_catalog, pg_temp\n\
             AS $query$\nSELECT t.\"show_id\", pg_catalog.sum(t.\"checkin_count\")::bigint\n\
             FROM \"public\".\"show_checkin_counts_total\" AS t\nWHERE t.\"show_id\" = \"input_show_id\"\n\
             GROUP BY t.\"show_id\"\nLIMIT 1\n$query$"
        );
        let leaderboard = create_function_sql(&read.queries[1], counts, "public");
        assert!(
            leaderboard.contains(
                "WHERE (\"input_venue_id\" IS NULL OR t.\"venue_id\" = \"input_venue_id\") AND t.\"show_id\" <> \
                 E'it''s'::text\n"
            ),
            "{leaderboard}"
        );
        assert!(leaderboard.contains("(\"input_venue_id\" text DEFAULT NULL)"), "{leaderboard}");
        assert!(leaderboard.contains("\nORDER BY 3 DESC NULLS LAST\nLIMIT 20\n"), "{leaderboard}");
    }

    #[test]
    fn no_literal_ends_the_function() {
        for (literal, mark) in [("a$query$b", "$query_$"), ("$query_$query$; $query__$", "$query___$")] {
            let mut document = example();
            document["queries"]["venue_leaderboard"]["where"]["show_id"] =
                serde_json::json!({"ne": format!("'{literal}'")});
            let read = parse_document(&document).unwrap();
            let statement = create_function_sql(&read.queries[1], &read.projections[0], "public");
            assert!(statement.contains(&format!("E'{literal}'::text")), "{statement}");
            assert!(statement.ends_with(&format!("\n{mark}")), "{statement}");
            assert_eq!(statement.matches(mark).count(), 2, "{statement}");
        }
    }
}
