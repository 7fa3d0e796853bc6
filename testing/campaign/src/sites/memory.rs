//! The memory backend: clients are threads of the campaign, each with a runtime of its own.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use lock_core::{Backend, LockName, Memory};
use lock_history::Assumption;
use tokio::runtime::Handle;

use super::site::{Backing, NO_NETWORK, Removal, Site, Terms, connect};
use crate::kind::{Kind, Offer};

pub(super) const BACKING: Backing =
    Backing { name: "memory", start: || Box::new(InMemory(Memory::new())), connect };

struct InMemory(Memory);

impl Site for InMemory {
    fn terms(&self) -> Terms {
        Terms {
            ttl: Duration::from_millis(400),
            lease: None,
            beat: Duration::from_millis(1),
            timeout: Duration::from_millis(300),
            late: Duration::from_millis(150),
            locks: 16,
        }
    }

    fn offer(&self, kind: Kind) -> Offer {
        match kind {
            Kind::ServerEmptied => Offer::Breaks(Assumption::A2),
            Kind::Evicted | Kind::Broken => Offer::Breaks(Assumption::A3),
            Kind::ClientKilled | Kind::ClientStopped | Kind::ShortLeases => Offer::Yes,
            Kind::ClientStarved => {
                Offer::No("locks of a client are renewed on its own thread: see client-stopped")
            }
            Kind::ClientClockStepped => {
                Offer::No("one process has all clients, and asks no wall clock")
            }
            kind if kind.is_in_calls() || kind.is_aimed() => Offer::Yes,
            kind if kind.is_in_network() => Offer::No(NO_NETWORK),
            _ => Offer::No("there is no server"),
        }
    }

    fn url(&self, _: &[SocketAddr]) -> String {
        "memory:".to_owned()
    }

    fn shared(&self) -> Option<Arc<dyn Backend>> {
        Some(Arc::new(self.0.clone()))
    }

    fn lose_data(&self) {
        self.0.lose_data();
    }

    fn evict(&self, name: &LockName) -> Removal {
        match Handle::current().block_on(self.0.inspect(name)) {
            Ok(seen) if !seen.holders.is_empty() => {
                self.0.evict(name);
                Removal::Done
            }
            _ => Removal::Nothing,
        }
    }

    fn left(&self) -> Option<Vec<String>> {
        Some(if self.0.is_empty() { Vec::new() } else { vec![format!("{} locks", self.0.len())] })
    }

    /// Nothing.
    fn documented(&self) -> Option<Vec<&'static str>> {
        Some(Vec::new())
    }
}
