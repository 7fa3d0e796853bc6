//! The memory backend, whose clients are threads of the campaign, each with its own runtime.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backend, LockName, Memory};
use lock_history::Assumption;
use tokio::runtime::Handle;

use super::site::{BackendSpec, NO_NETWORK, Removal, Site, SiteParams, connect};
use crate::kind::{FaultSupport, Kind};

pub(super) const SPEC: BackendSpec =
    BackendSpec { name: "memory", start: || Box::new(InMemory(Memory::new())), connect };

struct InMemory(Memory);

impl Site for InMemory {
    fn params(&self) -> SiteParams {
        let [ttl, timeout, delay] = [400, 300, 150].map(Duration::from_millis);
        SiteParams::new(ttl, timeout, delay)
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            Kind::ServerEmptied => FaultSupport::Breaks(Assumption::A2),
            Kind::Evicted | Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::ClientKilled | Kind::ClientStopped | Kind::ShortLeases => FaultSupport::Yes,
            Kind::ClientStarved => FaultSupport::No(
                "locks of a client are renewed on its own thread: see client-stopped",
            ),
            Kind::ClientClockStepped => {
                FaultSupport::No("one process has all clients, and reads no wall clock")
            }
            kind if kind.is_in_calls() || kind.is_aimed() => FaultSupport::Yes,
            kind if kind.is_in_network() => FaultSupport::No(NO_NETWORK),
            _ => FaultSupport::No("there is no server"),
        }
    }

    fn url(&self, _: &[SocketAddr]) -> String {
        "memory:".to_owned()
    }

    fn shared_backend(&self) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(self.0.clone()))
    }

    fn lose_data(&self) {
        self.0.lose_data();
    }

    fn evict(&self, name: &LockName) -> Removal {
        match Handle::current().block_on(self.0.inspect(name)) {
            Ok(seen) if !seen.holders.is_empty() => {
                self.0.evict(name);
                Removal::Removed
            }
            _ => Removal::NotFound,
        }
    }

    fn residue(&self) -> Option<Vec<String>> {
        Some(if self.0.is_empty() { Vec::new() } else { vec![format!("{} locks", self.0.len())] })
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        Some(Vec::new())
    }
}
