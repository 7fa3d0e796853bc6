//! Reports: recorded runs as pages, tables and goals.

mod cli;
mod goals;
mod markdown;
mod page;
mod picture;
mod run;
mod summary;
mod table;

pub(crate) use cli::{ReportArgs, main};
pub(crate) use goals::{Goals, Scope};
pub(crate) use summary::Summary;
