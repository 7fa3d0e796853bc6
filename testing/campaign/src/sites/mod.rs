//! Where the locks are: what is started for a run, and which faults it can have.

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

pub use site::{ConnectFuture, Removal, Site, SiteParams, Target, Undo, connect};

use crate::kind::{FaultSupport, Kind};

/// Whether a site can have this kind of fault: one that is aimed, if it can have what that is done
/// by.
#[must_use]
pub fn support(site: &dyn Site, kind: Kind) -> FaultSupport {
    match (site.support(kind), mechanism(site, kind)) {
        (FaultSupport::No(why), _) => FaultSupport::No(why),
        (_, Some(way)) => site.support(way),
        (own, None) => kind.mechanisms().first().map_or(own, |&way| site.support(way)),
    }
}

/// What a fault that is aimed is done by.
pub(crate) fn mechanism(site: &dyn Site, kind: Kind) -> Option<Kind> {
    kind.mechanisms().iter().copied().find(|&way| site.support(way).is_supported())
}

/// All backends of this project.
#[must_use]
pub fn all() -> &'static [Target] {
    &[
        memory::TARGET,
        file::TARGET,
        redis::TARGET,
        sentinel::TARGET,
        sentinel::WITH_REPLICAS,
        cluster::TARGET,
        memcached::TARGET,
        zookeeper::ALONE,
        zookeeper::ENSEMBLE,
        quorum::REDIS,
        quorum::MIXED,
    ]
}

/// Servers that run already: their clients and the ways to them are disturbed, and nothing else.
///
/// # Errors
///
/// The URL names no server.
pub fn remote(url: &str) -> Result<Box<dyn Site>, String> {
    remote::Remote::new(url).map(|remote| Box::new(remote) as Box<dyn Site>)
}

/// Whether a lock is free, as a stranger finds it; why not, otherwise.
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
