//! Checks the shape and the prose of this workspace.
//!
//! Each check returns findings: a file, a line, and the remedy. A known list (`cycles.toml`,
//! `names.toml`, `backends.toml`, `prose.toml`) holds the exceptions of today, each with a reason
//! or a figure. It may only shrink: an entry that is not needed any more is a finding, too.
//! `BLESS=1 cargo test -p style` writes the lists anew, as after a rename. It keeps reasons and
//! never raises a figure: delete the entry first if that has to be.

mod backends;
mod links;
mod modules;
mod names;
mod project;
mod prose;
mod structure;
mod text;

pub use backends::backends;
pub use links::links;
pub use names::names;
pub use project::{Finding, Project};
pub use prose::{prose, report};
pub use structure::structure;
