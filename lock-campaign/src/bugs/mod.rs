//! Bugs on purpose: the backend of each client is broken in one way, and the campaign has to see it.
//!
//! They stand around a backend that is right, in this crate and in the suite's saboteurs, and nowhere in
//! a backend's own code.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::{Harness, Pace, sabotage};
use lock_core::Backend;

/// The names of all bugs that there are.
pub fn names() -> impl Iterator<Item = &'static str> {
    sabotage::all().iter().map(|saboteur| saboteur.name)
}

/// `backend` with the bug of that name.
///
/// # Errors
///
/// There is no such bug.
pub async fn plant(name: &str, backend: Arc<dyn Backend>) -> Result<Arc<dyn Backend>, String> {
    let known = sabotage::all().iter().find(|saboteur| saboteur.name == name);
    let saboteur = known.ok_or_else(|| {
        let names: Vec<_> = names().collect();
        format!("no bug {name:?}; there are {}", names.join(", "))
    })?;
    Ok(saboteur.infiltrate(Box::new(Only(backend))).client().await)
}

/// The campaign proves itself by these, each on the backend where it shows. For all others there is a law
/// whose check catches them.
pub const SEEN: &[(&str, &str)] = &[
    ("memory", "GrantsEveryone"),
    ("memory", "ExaggeratesItsLease"),
    ("memory", "LapsesEarly"),
    ("memory", "RepeatsTokens"),
    ("memory", "ServesLastFirst"),
    ("memory", "NeverLapses"),
    ("redis", "ReleasesAnyone"),
    ("redis", "RepeatsItsLastAnswer"),
];

struct Only(Arc<dyn Backend>);

impl fmt::Debug for Only {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[async_trait]
impl Harness for Only {
    fn pace(&self) -> Pace {
        Pace::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::clone(&self.0)
    }
}
