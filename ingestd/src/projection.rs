//! Projections in Postgres: definitions applied, tables created, folded batches as statements.

pub mod apply;
pub mod forget;
pub mod table;
pub mod upsert;
