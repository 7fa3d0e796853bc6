//! A saboteur, and the harness whose clients it breaks.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lock_core::layer::{Layer, Layered};
use lock_core::{Backend, LockName};

use crate::harness::{ClockMode, Harness, Script, ServerProcess};
use crate::network::Network;

/// A way in which a backend can be broken.
#[derive(Clone, Copy)]
pub struct Saboteur {
    /// The defect, which is also the name of its type.
    pub name: &'static str,
    /// The laws whose checks must catch it.
    pub caught_by: &'static [&'static str],
    pub(super) make: fn() -> Arc<dyn Layer>,
}

impl Saboteur {
    /// Breaks every client of `harness` in this way.
    #[must_use]
    pub fn infiltrate(&self, harness: Box<dyn Harness>) -> Box<dyn Harness> {
        Box::new(Infiltrated { harness, layer: (self.make)() })
    }
}

impl fmt::Debug for Saboteur {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Saboteur({})", self.name)
    }
}

/// Makes a [`Saboteur`] of a type, under the type's name: `saboteur!(Type, laws)`.
macro_rules! saboteur {
    ($how:ident $(, $law:literal)*) => {
        $crate::sabotage::saboteur::Saboteur {
            name: stringify!($how),
            caught_by: &[$($law),*],
            make: || std::sync::Arc::new($how::default()),
        }
    };
}
pub(super) use saboteur;

struct Infiltrated {
    harness: Box<dyn Harness>,
    layer: Arc<dyn Layer>,
}

impl Infiltrated {
    fn sabotaged(&self, inner: Arc<dyn Backend>) -> Arc<dyn Backend> {
        Arc::new(Layered::<dyn Layer>::new(inner, Arc::clone(&self.layer)))
    }
}

#[async_trait]
impl Harness for Infiltrated {
    fn clock_mode(&self) -> ClockMode {
        self.harness.clock_mode()
    }
    async fn client(&self) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.client().await)
    }
    async fn client_with_faults(&self, script: Script) -> Arc<dyn Backend> {
        // Outside of the faults: a broken client library on a faulty network.
        self.sabotaged(self.harness.client_with_faults(script).await)
    }
    async fn client_of(&self, process: usize, script: Script) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.client_of(process, script).await)
    }
    async fn evict(&self, name: &LockName) -> bool {
        self.harness.evict(name).await
    }
    fn can_evict(&self) -> bool {
        self.harness.can_evict()
    }
    async fn lose_data(&self) -> bool {
        self.harness.lose_data().await
    }
    fn network(&self) -> Option<&Network> {
        self.harness.network()
    }
    async fn proxied_client(&self) -> Arc<dyn Backend> {
        self.sabotaged(self.harness.proxied_client().await)
    }
    fn server(&self) -> Option<&dyn ServerProcess> {
        self.harness.server()
    }
}
