//! Projections in Postgres: definitions applied, tables and query functions created, folded batches as statements.

pub mod apply;
pub mod forget;
pub mod function;
pub mod lines;
pub mod table;
pub mod upsert;
