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

pub use site::{Backing, Connecting, Cut, Removal, Site, Terms, connect};

use crate::kind::{Kind, Offer};

/// Whether a site can have this kind of fault: one that is aimed, if it can have what that is done
/// by.
#[must_use]
pub fn offer(site: &dyn Site, kind: Kind) -> Offer {
    match (site.offer(kind), way(site, kind)) {
        (Offer::No(why), _) => Offer::No(why),
        (_, Some(way)) => site.offer(way),
        (own, None) => kind.ways().first().map_or(own, |&way| site.offer(way)),
    }
}

/// What a fault that is aimed is done by.
pub(crate) fn way(site: &dyn Site, kind: Kind) -> Option<Kind> {
    kind.ways().iter().copied().find(|&way| site.offer(way).is_there())
}

/// All backends of this project.
#[must_use]
pub fn all() -> &'static [Backing] {
    &[
        memory::BACKING,
        file::BACKING,
        redis::BACKING,
        sentinel::BACKING,
        sentinel::WITH_REPLICAS,
        cluster::BACKING,
        memcached::BACKING,
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
pub(crate) async fn probe(backend: &dyn Backend, name: &LockName) -> Result<(), String> {
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
