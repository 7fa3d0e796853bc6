//! The servers of each backend, and the faults that they support.

mod cluster;
mod file;
mod memcached;
mod memory;
mod quorum;
mod redis;
mod remote;
mod sentinel;
mod site;
mod zookeeper;

use std::time::Duration;

use lock_core::backend::ReleaseMode;
use lock_core::{Backend, LockName};

pub use site::{BackendSpec, ConnectFuture, Removal, Site, SiteParams, Undo, connect};

use crate::kind::{FaultSupport, Kind};

/// Returns whether a site supports this kind of fault. It supports an aimed fault if it supports a
/// mechanism of it.
#[must_use]
pub fn support(site: &dyn Site, kind: Kind) -> FaultSupport {
    match (site.support(kind), mechanism(site, kind)) {
        (FaultSupport::No(reason), _) => FaultSupport::No(reason),
        (_, Some(mechanism)) => site.support(mechanism),
        (own, None) => kind.mechanisms().first().map_or(own, |&first| site.support(first)),
    }
}

/// Returns the mechanism of an aimed fault on this site.
pub(crate) fn mechanism(site: &dyn Site, kind: Kind) -> Option<Kind> {
    kind.mechanisms().iter().copied().find(|&one| site.support(one).is_supported())
}

/// Lists the backends of this project.
#[must_use]
pub fn all() -> &'static [BackendSpec] {
    &[
        memory::SPEC,
        file::SPEC,
        redis::SPEC,
        sentinel::SPEC,
        sentinel::WITH_REPLICAS,
        cluster::SPEC,
        memcached::SPEC,
        zookeeper::ALONE,
        zookeeper::ENSEMBLE,
        quorum::REDIS,
        quorum::MIXED,
    ]
}

/// Returns the site of servers that run already. Only their clients and the network have faults.
///
/// # Errors
///
/// The URL names no server.
pub fn remote(url: &str) -> Result<Box<dyn Site>, String> {
    remote::Remote::new(url).map(|remote| Box::new(remote) as Box<dyn Site>)
}

/// Checks that a lock is free by acquiring it with a new owner id.
///
/// # Errors
///
/// The lock is held, or the backend failed. The text names the lock and the reason.
pub(crate) async fn check_free(backend: &dyn Backend, name: &LockName) -> Result<(), String> {
    use lock_core::OwnerId;
    use lock_core::backend::{Attempt, Claim};

    let claim = Claim::new(name.clone(), OwnerId::mint(), Duration::from_secs(1));
    let answer = backend.try_acquire(&claim).await;
    let taken = match answer {
        Ok(Attempt::Acquired(grant)) => {
            let mut held = claim.clone();
            held.ticket = grant.ticket;
            let _ = backend.release(&held, ReleaseMode::now()).await;
            return Ok(());
        }
        Ok(Attempt::Contended { .. }) => "taken".to_owned(),
        Err(fault) => {
            let _ = backend.release(&claim, ReleaseMode::after_unknown_outcome()).await;
            format!("{fault:?}")
        }
    };
    Err(format!("{name}: {taken}"))
}
