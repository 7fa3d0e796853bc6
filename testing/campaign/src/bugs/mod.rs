//! Bugs on purpose: old bugs of lock libraries, each of which something has to see.
//!
//! Those that can stand around a backend that is right are planted in the clients of a run, and the
//! campaign has to see them, or they are shown to the check of a law. Those inside of core or of a
//! backend's own protocol are mutants: `scripts/mutants` plants them in a copy of the code, and a
//! test has to fail.

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

/// The saboteur of that name.
///
/// # Errors
///
/// There is none.
fn saboteur(name: &str) -> Result<&'static Saboteur, String> {
    let all = || sabotage::all().iter().chain(sabotage::of_runs());
    all().find(|saboteur| saboteur.name == name).ok_or_else(|| {
        let names: Vec<_> = all().map(|saboteur| saboteur.name).collect();
        format!("no bug {name:?} can be planted in clients; there are {}", names.join(", "))
    })
}

/// `backend` with the bug of that name.
///
/// # Errors
///
/// There is no such bug, or it is none that stands around a backend.
pub async fn plant(name: &str, backend: Arc<dyn Backend>) -> Result<Arc<dyn Backend>, String> {
    let only = Only { backend, clock_mode: ClockMode::Real };
    Ok(saboteur(name)?.infiltrate(Box::new(only)).client().await)
}

struct Only {
    backend: Arc<dyn Backend>,
    clock_mode: ClockMode,
}

impl fmt::Debug for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.backend.fmt(f)
    }
}

#[async_trait]
impl Harness for Only {
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
    fn every_saboteur_is_in_the_catalogue_with_a_law_that_sees_it() {
        for saboteur in sabotage::all() {
            let bug = ALL.iter().find(|bug| bug.name == saboteur.name);
            let bug = bug.unwrap_or_else(|| panic!("{} is not in the catalogue", saboteur.name));
            if let Law(number) | Network(number) = bug.seen_by {
                assert!(saboteur.caught_by.contains(&number), "{}: {number}", bug.name);
            }
        }
    }
}
