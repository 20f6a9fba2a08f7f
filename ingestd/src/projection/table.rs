//! The table of a projection: its CREATE TABLE with partitions and indexes, whether one that exists will do, and the
//! view of a bucketed one.
//!
//! Invariants: identifiers are quoted always. Columns stand in the order of the definition's `fields`, the primary key
//! in the order of `target.primary_key`. What the UPSERT relies on is what [`columns_match`] asks for.

use lanes_core::projection::definition::TOTAL_VIEW_SUFFIX;
use lanes_core::projection::{ColumnType, Expression, Field, Index, Number, Projection, ValueColumn, ValueKind};
use serde_json::Value as Json;

/// An identifier in double quotes.
pub fn quote(identifier: &str) -> String {
    format!("\"{}\"", identifier.replace('"', "\"\""))
}

/// Schema and name of the table, quoted. `schema` is where a table goes whose definition names none.
pub fn qualified_name(projection: &Projection, schema: &str) -> String {
    let target = &projection.target;
    format!("{}.{}", quote(target.schema().unwrap_or(schema)), quote(target.name()))
}

/// What a column of the table is for.
enum Role<'a> {
    Key,
    Value(&'a ValueColumn),
    /// Written by the statements of `sql` alone.
    Free,
    /// Keeps what orders other columns.
    Hidden,
}

/// A column that the table must have.
struct Wanted<'a> {
    field: Field,
    role: Role<'a>,
}

/// The columns in the order of `fields`, the hidden ones last.
fn wanted(projection: &Projection) -> impl Iterator<Item = Wanted<'_>> {
    let role = |name: &str| match projection.value_columns.iter().find(|column| column.name == name) {
        Some(column) => Role::Value(column),
        None if projection.key_columns.iter().any(|column| column.name == name) => Role::Key,
        None => Role::Free,
    };
    let fields = projection.fields.iter().map(move |field| Wanted { field: field.clone(), role: role(&field.name) });
    fields.chain(projection.hidden_columns().into_iter().map(|field| Wanted { field, role: Role::Hidden }))
}

impl Wanted<'_> {
    /// Columns of the key and counters are never null.
    fn is_not_null(&self) -> bool {
        match self.role {
            Role::Key => true,
            Role::Value(column) => column.kind.starts_at_zero(),
            Role::Free | Role::Hidden => false,
        }
    }

    /// Columns that start at null. One that every event sets may forbid it: then such an event fails, as it should.
    fn must_allow_null(&self) -> bool {
        match self.role {
            Role::Value(column) => match column.kind {
                ValueKind::Min | ValueKind::Max | ValueKind::SetOnce => true,
                ValueKind::Set | ValueKind::Fixed => column.operations.iter().any(Option::is_none),
                ValueKind::Add { .. } => false,
            },
            Role::Hidden => true,
            Role::Key | Role::Free => false,
        }
    }
}

/// The statements that create the table and its partitions. `schema` is where a table goes whose definition names none.
pub fn create_table_sql(projection: &Projection, schema: &str) -> Vec<String> {
    let counts = |column: &ValueColumn| column.kind.starts_at_zero();
    let mut lines: Vec<String> = wanted(projection)
        .map(|column| {
            let mut line = format!("    {} {}", quote(&column.field.name), column.field.column_type.sql_name());
            let compared = match column.role {
                Role::Value(value) => matches!(value.kind, ValueKind::Min | ValueKind::Max),
                Role::Hidden => true,
                Role::Key | Role::Free => false,
            };
            // So that the view of a bucketed table, too, compares text as the fold does.
            if column.field.column_type == ColumnType::Text && compared {
                line.push_str(" COLLATE pg_catalog.\"C\"");
            }
            if column.is_not_null() {
                line.push_str(" NOT NULL");
            }
            if matches!(column.role, Role::Value(value) if counts(value)) {
                line.push_str(" DEFAULT 0");
            }
            line
        })
        .collect();
    let key: Vec<String> = projection.key_columns.iter().map(|column| quote(&column.name)).collect();
    lines.push(format!("    PRIMARY KEY ({})", key.join(", ")));
    // A counter's row is written again and again: each new version of it should find room in its own page (HOT).
    let storage = if projection.value_columns.iter().any(counts) { " WITH (fillfactor = 70)" } else { "" };
    let table = qualified_name(projection, schema);
    let create = format!("CREATE TABLE {table} (\n{}\n)", lines.join(",\n"));
    let native = projection.partitioning.as_ref().filter(|partitioning| partitioning.native);
    let Some(partitioning) = native else { return vec![create + storage] };
    let mut statements = vec![format!("{create} PARTITION BY HASH ({})", quote(&partitioning.key))];
    let target = &projection.target;
    for number in 0..partitioning.partitions {
        let name = format!("{}_p{number}", target.name());
        statements.push(format!(
            "CREATE TABLE {}.{} PARTITION OF {table} FOR VALUES WITH (MODULUS {}, REMAINDER {number}){storage}",
            quote(target.schema().unwrap_or(schema)),
            quote(&name),
            partitioning.partitions
        ));
    }
    statements
}

/// The statement that creates an index of the table; Postgres gives it a name. `table` is the table's name as SQL.
pub fn create_index_sql(index: &Index, table: &str) -> String {
    let direction = if index.descending { " DESC" } else { "" };
    let columns: Vec<String> = index.columns.iter().map(|name| quote(name) + direction).collect();
    format!("CREATE INDEX ON {table} ({})", columns.join(", "))
}

/// Why a table that exists cannot be the projection's. The text is one clause that can follow the table's name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TableMismatch {
    /// The table lacks a column.
    #[error("has no column \"{column}\" of type {expected}")]
    Missing {
        /// The column.
        column: String,
        /// The type it should have.
        expected: &'static str,
    },
    /// A column has another type.
    #[error("has column \"{column}\" of type {found}, not {expected}")]
    Type {
        /// The column.
        column: String,
        /// The type it should have.
        expected: &'static str,
        /// The type it has.
        found: String,
    },
    /// A column of the key or a counter that may be null.
    #[error("has column \"{0}\" without NOT NULL")]
    Nullable(String),
    /// A column that starts at null but may not be.
    #[error("has column \"{0}\" with NOT NULL, but a new row has no value for it")]
    NotNull(String),
}

/// Whether a table that exists has the columns of the projection; others do no harm. `existing` holds name, type as
/// `format_type` gives it with the type modifier, and whether it is NOT NULL.
///
/// # Errors
/// [`TableMismatch`] for the first column that is missing or different, in the order of `fields`.
pub fn columns_match(projection: &Projection, existing: &[(String, String, bool)]) -> Result<(), TableMismatch> {
    for column in wanted(projection) {
        let name = &column.field.name;
        let expected = column.field.column_type.sql_name();
        let Some((_, found, not_null)) = existing.iter().find(|(existing, _, _)| existing == name) else {
            return Err(TableMismatch::Missing { column: name.clone(), expected });
        };
        if found != expected {
            return Err(TableMismatch::Type { column: name.clone(), expected, found: found.clone() });
        }
        if column.is_not_null() && !not_null {
            return Err(TableMismatch::Nullable(name.clone()));
        }
        if column.must_allow_null() && *not_null {
            return Err(TableMismatch::NotNull(name.clone()));
        }
    }
    Ok(())
}

/// The arguments of `lanes.create_sum_view` for a bucketed table.
#[derive(Debug, Clone, PartialEq)]
pub struct SumView {
    /// The view's name, without a schema: it goes into that of the table.
    pub view: String,
    /// The key without the bucket, and what follows from it.
    pub group_by: Vec<String>,
    /// Columns that are added up.
    pub sums: Vec<String>,
    /// Columns of which the least value counts.
    pub mins: Vec<String>,
    /// Columns of which the greatest value counts.
    pub maxs: Vec<String>,
    /// Floors of totals, by column.
    pub floors: Json,
    /// Ceilings of totals, by column.
    pub ceilings: Json,
    /// Columns of which the last value counts, with the columns that order them.
    pub lasts: Json,
    /// Columns of which the first value counts, with the columns that order them.
    pub firsts: Json,
}

/// The view that a bucketed table needs; none for other tables.
pub fn sum_view(projection: &Projection) -> Option<SumView> {
    if !projection.is_bucketed() {
        return None;
    }
    let columns = &projection.value_columns;
    let named = |is_kind: fn(ValueKind) -> bool| {
        let columns = columns.iter().filter(|column| is_kind(column.kind));
        columns.map(|column| column.name.clone()).collect::<Vec<_>>()
    };
    let bounds = |bound: fn(&ValueColumn) -> Option<&Number>| {
        let bound = |column: &ValueColumn| {
            let digits = serde_json::from_str(&bound(column)?.to_text()).ok()?;
            Some((column.name.clone(), digits))
        };
        Json::Object(columns.iter().filter_map(bound).collect())
    };
    let ordered = |kind: ValueKind| {
        let ordered = |column: &ValueColumn| {
            let ordering = projection.orderings.get(column.ordering.filter(|_| column.kind == kind)?)?;
            Some((column.name.clone(), ordering.hidden().map(|field| Json::from(field.name)).collect()))
        };
        Json::Object(columns.iter().filter_map(ordered).collect())
    };
    let key = projection.key_columns.iter().filter(|column| column.expression != Expression::Lane);
    let mut group_by: Vec<String> = key.map(|column| column.name.clone()).collect();
    group_by.extend(named(|kind| kind == ValueKind::Fixed));
    Some(SumView {
        view: format!("{}{TOTAL_VIEW_SUFFIX}", projection.target.name()),
        group_by,
        sums: named(ValueKind::starts_at_zero),
        mins: named(|kind| kind == ValueKind::Min),
        maxs: named(|kind| kind == ValueKind::Max),
        floors: bounds(|column| column.total_bounds.0.as_ref()),
        ceilings: bounds(|column| column.total_bounds.1.as_ref()),
        lasts: ordered(ValueKind::Set),
        firsts: ordered(ValueKind::SetOnce),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lanes_core::projection::parse_document;

    fn projections() -> Vec<Projection> {
        let text = include_str!("../../../testdata/projections.yaml");
        parse_document(&serde_saphyr::from_str(text).unwrap()).unwrap().projections
    }

    fn named(name: &str) -> Projection {
        projections().into_iter().find(|projection| projection.name == name).unwrap()
    }

    #[test]
    fn tables_are_created_in_the_order_of_the_fields() {
        assert_eq!(
            create_table_sql(&named("airport_departures"), "public"),
            ["CREATE TABLE \"public\".\"airport_departures\" (\n    \"origin\" text NOT NULL,\n    \
             \"lane\" integer NOT NULL,\n    \"departures\" bigint NOT NULL DEFAULT 0,\n    \
             \"cancellations\" bigint NOT NULL DEFAULT 0,\n    \"miles\" bigint NOT NULL DEFAULT 0,\n    \
             \"longest_delay\" integer,\n    PRIMARY KEY (\"origin\", \"lane\")\n) WITH (fillfactor = 70)"]
        );
        let mut first_name = named("aircraft_last_seen");
        first_name.target.table = "other.seen".to_owned();
        first_name.value_columns[1].kind = ValueKind::Min;
        let sql = create_table_sql(&first_name, "we\"ird").remove(0);
        assert!(sql.starts_with("CREATE TABLE \"other\".\"seen\" ("), "{sql}");
        assert!(sql.contains("    \"origin\" text COLLATE pg_catalog.\"C\",\n    \"dest\" text,\n"), "{sql}");
        assert!(qualified_name(&named("route_delay"), "we\"ird").starts_with("\"we\"\"ird\".\"route_delay\""));
    }

    #[test]
    fn a_table_that_exists_must_have_the_columns() {
        let projection = named("airport_departures");
        let column = |name: &str, column_type: &str, not_null| (name.to_owned(), column_type.to_owned(), not_null);
        let good = vec![
            column("extra", "jsonb", false),
            column("origin", "text", true),
            column("lane", "integer", true),
            column("departures", "bigint", true),
            column("cancellations", "bigint", true),
            column("longest_delay", "integer", false),
            column("miles", "bigint", true),
        ];
        assert_eq!(columns_match(&projection, &good), Ok(()));
        let with = |at: usize, change: &dyn Fn(&mut (String, String, bool))| {
            let mut columns = good.clone();
            change(&mut columns[at]);
            columns_match(&projection, &columns).unwrap_err().to_string()
        };
        assert_eq!(with(3, &|column| column.0.clear()), "has no column \"departures\" of type bigint");
        assert_eq!(
            with(2, &|column| column.1 = "bigint".to_owned()),
            "has column \"lane\" of type bigint, not integer"
        );
        assert_eq!(with(6, &|column| column.2 = false), "has column \"miles\" without NOT NULL");
        assert_eq!(
            with(5, &|column| column.2 = true),
            "has column \"longest_delay\" with NOT NULL, but a new row has no value for it"
        );
    }

    #[test]
    fn tables_have_hidden_columns_partitions_and_indexes() {
        let text = include_str!("../../../testdata/projections-example.yaml");
        let mut document: Json = serde_saphyr::from_str(text).unwrap();
        document["projections"].as_object_mut().unwrap().remove("show_attendance_sharded");
        document["projections"]["show_attendance"]["target"]["partitioning"]["mode"] = "postgres_native".into();
        document["projections"]["show_attendance"]["target"]["partitioning"]["partitions"] = 2.into();
        let read = parse_document(&document).unwrap().projections;
        let [counts, attendance] = read.as_slice() else { panic!("{read:?}") };
        let sql = create_table_sql(counts, "public");
        assert!(sql[0].contains("    \"last_checkin_at__position\" bigint,\n    PRIMARY KEY"), "{sql:?}");
        assert_eq!(
            create_index_sql(&counts.indexes[1], "t"),
            "CREATE INDEX ON t (\"venue_id\" DESC, \"last_checkin_at\" DESC)"
        );
        let view = sum_view(counts).unwrap();
        assert_eq!(view.floors, serde_json::json!({"checkin_count": 0}));
        let ordered_by = serde_json::json!(["last_checkin_at__position"]);
        assert_eq!(view.lasts, serde_json::json!({"venue_id": ordered_by, "last_checkin_at": ordered_by}));
        let sql = create_table_sql(attendance, "public");
        assert!(sql[0].ends_with("PRIMARY KEY (\"show_id\")\n) PARTITION BY HASH (\"show_id\")"), "{sql:?}");
        assert_eq!(
            sql[2],
            "CREATE TABLE \"public\".\"show_attendance_p1\" PARTITION OF \"public\".\"show_attendance\" \
             FOR VALUES WITH (MODULUS 2, REMAINDER 1) WITH (fillfactor = 70)"
        );
    }

    #[test]
    fn a_bucketed_table_has_a_view() {
        let strings = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        let view = sum_view(&named("airport_departures")).unwrap();
        assert_eq!(view.view, "airport_departures_total");
        assert_eq!(view.group_by, strings(&["origin"]));
        assert_eq!(view.sums, strings(&["departures", "cancellations", "miles"]));
        assert_eq!((view.mins, view.maxs), (vec![], strings(&["longest_delay"])));
        assert_eq!((view.floors, view.lasts), (serde_json::json!({}), serde_json::json!({})));
        assert_eq!(sum_view(&named("route_delay")), None);
        assert_eq!(sum_view(&named("aircraft_last_seen")), None);
    }
}
