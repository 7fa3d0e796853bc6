//! Planted bugs: known bugs of lock libraries, each of which a check must detect.
//!
//! A wrapper around a correct backend imitates a bug if it can. The bug is then planted in the
//! clients of a run, where the campaign must detect it, or is given to the check of a law. A bug
//! inside core or a backend's protocol is a mutant: `scripts/mutants` plants it in a copy of the
//! code, and a test must fail.

mod catalogue;
mod finding;
mod hunt;

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lock_conformance::sabotage::{self, Saboteur};
use lock_conformance::{ClockMode, Harness};
use lock_core::Backend;

pub use catalogue::{ALL, Bug, Detector};
pub use finding::Finding;
pub(crate) use hunt::{Hunt, hunt};

/// Returns the saboteur of that name.
///
/// # Errors
///
/// There is no such saboteur. The text lists the names.
fn saboteur(name: &str) -> Result<&'static Saboteur, String> {
    let all = || sabotage::all().iter().chain(sabotage::of_runs());
    all().find(|saboteur| saboteur.name == name).ok_or_else(|| {
        let names: Vec<_> = all().map(|saboteur| saboteur.name).collect();
        format!("no bug {name:?} can be planted in clients; the names are {}", names.join(", "))
    })
}

/// Returns `backend` with the bug of that name.
///
/// # Errors
///
/// There is no such bug, or no wrapper around a backend can imitate it.
pub async fn plant(name: &str, backend: Arc<dyn Backend>) -> Result<Arc<dyn Backend>, String> {
    let harness = PlainHarness { backend, clock_mode: ClockMode::Real };
    Ok(saboteur(name)?.infiltrate(Box::new(harness)).client().await)
}

/// A harness whose clients all use one backend.
struct PlainHarness {
    backend: Arc<dyn Backend>,
    clock_mode: ClockMode,
}

impl fmt::Debug for PlainHarness {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

#[async_trait]
impl Harness for PlainHarness {
    fn clock_mode(&self) -> ClockMode {
        self.clock_mode
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.backend)
    }
}

#[cfg(test)]
mod tests {
    use super::catalogue::Detector::{Law, Network};
    use super::*;

    #[test]
    fn catalogue_has_every_saboteur_with_its_law() {
        for saboteur in sabotage::all() {
            let bug = ALL.iter().find(|bug| bug.name == saboteur.name);
            let bug = bug.unwrap_or_else(|| panic!("{} is not in the catalogue", saboteur.name));
            if let Law(number) | Network(number) = bug.seen_by {
                assert!(saboteur.caught_by.contains(&number), "{}: {number}", bug.name);
            }
        }
    }
}
