//! `lanes.check_definition` for SQL: what a document of projections defines, or why it is refused. The rules are in
//! `lanes_core::projection`.

use lanes_core::projection::parse_document;
use pgrx::iter::TableIterator;
use pgrx::name;
use pgrx::pg_extern;
use pgrx::pg_sys::panic::ErrorReport;

use crate::encoding::Jsonb;
use crate::error::{definition_error, unreadable_document};

/// The answers are ASCII (names of projections, tables and columns are plain identifiers), so they are the same
/// bytes in every encoding; `definition` is cut out of the document as Postgres holds it, with every digit.
#[pg_extern(sql = false)]
#[expect(clippy::type_complexity, reason = "pgrx reads the columns from the signature")]
fn check_definition(
    definition: Jsonb,
) -> Result<
    TableIterator<
        'static,
        (
            name!(name, String),
            name!(lanes, i32),
            name!(slots, i32),
            name!(target_table, String),
            name!(primary_key, Vec<String>),
            name!(bucketed, bool),
            name!(definition, Option<Jsonb>),
        ),
    >,
    ErrorReport,
> {
    let document = serde_json::from_slice(&definition.to_json()).map_err(|error| unreadable_document(&error))?;
    let projections = parse_document(&document).map_err(|error| definition_error(&error))?.projections;
    let rows: Vec<_> = projections
        .into_iter()
        .map(|projection| {
            let part = definition.field("projections").and_then(|all| all.field(&projection.name));
            let (lanes, slots) = (projection.lanes as i32, projection.slots() as i32);
            let bucketed = projection.is_bucketed();
            let target = projection.target;
            (projection.name, lanes, slots, target.table, target.primary_key, bucketed, part)
        })
        .collect();
    Ok(TableIterator::new(rows))
}
