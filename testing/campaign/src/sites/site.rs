//! A site: the servers of one run, and the faults that they support.

use std::fmt;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_conformance::proxy::Proxy;
use lock_core::{Backend, Error, LockName, LockerBuilder};
use test_servers::Step;

use crate::kind::{FaultSupport, Kind, Scope};

/// A future that connects a client.
pub type ConnectFuture<'a> =
    Pin<Box<dyn Future<Output = Result<Arc<dyn Backend>, Error>> + Send + 'a>>;

/// A backend that a campaign can test.
#[derive(Clone, Copy)]
pub struct BackendSpec {
    /// The name of the backend on the command line.
    pub name: &'static str,
    /// Starts the servers. Panics if they are not installed, with a hint what to install.
    pub start: fn() -> Box<dyn Site>,
    /// Connects a client, in a process of its own, to a URL from [`Site::url`].
    pub connect: for<'a> fn(&'a str) -> ConnectFuture<'a>,
}

impl fmt::Debug for BackendSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "BackendSpec({})", self.name)
    }
}

/// A closure that ends a fault.
pub type Undo<'a> = Box<dyn FnOnce() + Send + 'a>;

/// The parameters that are fixed for all runs on a site.
#[derive(Clone, Copy, Debug)]
pub struct SiteParams {
    /// The lease that clients ask for.
    pub ttl: Duration,
    /// The time for which the server keeps a lock that is not renewed, if it differs from `ttl`.
    pub lease: Option<Duration>,
    /// The approximate duration of an ordinary hold.
    pub typical_hold: Duration,
    /// The bound on one call of the backend.
    pub timeout: Duration,
    /// The longest delay of an answer with which clients can still acquire locks.
    pub max_delay: Duration,
    /// The number of locks.
    pub locks: usize,
}

impl SiteParams {
    /// Returns the parameters of a site with 16 locks and short holds.
    #[must_use]
    pub const fn new(ttl: Duration, timeout: Duration, max_delay: Duration) -> Self {
        let typical_hold = Duration::from_millis(1);
        Self { ttl, lease: None, typical_hold, timeout, max_delay, locks: 16 }
    }
}

/// The result of removing a lock by force.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The lock existed and is gone.
    Removed,
    /// The lock did not exist, so certainly nothing has changed.
    NotFound,
    /// The lock may be gone in whole or in part, or may disappear a little later.
    Unknown,
}

/// One lock space with its servers, which are started for one run and end with it.
///
/// All calls may block: for milliseconds, or for seconds if they contact a server.
pub trait Site: Send + Sync {
    /// Returns the parameters of the site's runs.
    fn params(&self) -> SiteParams;

    /// Returns whether the site supports this kind of fault.
    fn support(&self, kind: Kind) -> FaultSupport;

    /// Returns which part of the traffic a kind of fault interrupts on this site.
    fn scope(&self, kind: Kind) -> Scope {
        kind.scope()
    }

    /// Returns true if a majority of the servers grants locks.
    fn decides_by_majority(&self) -> bool {
        false
    }

    /// Returns the URL for a client that reaches each of [`upstreams`](Self::upstreams) by the
    /// address at the same index of `through`.
    fn url(&self, through: &[SocketAddr]) -> String;

    /// Returns the backend that all clients share. Clients are then threads of the campaign
    /// instead of processes.
    fn shared_backend(&self) -> Option<Arc<dyn Backend>> {
        None
    }

    /// Returns the addresses of the servers. Each client has its own proxy to each of them, where
    /// faults of the network are injected.
    fn upstreams(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// Starts the proxies between the client of this number and the servers.
    ///
    /// # Errors
    ///
    /// No port is free.
    fn client_proxies(&self, client: usize) -> io::Result<Vec<Proxy>> {
        let _ = client;
        self.upstreams().into_iter().map(Proxy::start).collect()
    }

    /// Returns the processes of the servers.
    fn servers(&self) -> Vec<&dyn ServerProcess> {
        Vec::new()
    }

    /// Returns those of the [`servers`](Self::servers) that this kind of fault can hit one at a
    /// time, while the others form a majority.
    fn members(&self, kind: Kind) -> Vec<&dyn ServerProcess> {
        let _ = kind;
        Vec::new()
    }

    /// Returns the proxies that all clients share on their way to the members. If there are
    /// several, faults of the network hit some of a client's connections as well as all of them.
    fn member_proxies(&self) -> &[Proxy] {
        &[]
    }

    /// Returns the index in [`servers`](Self::servers) of the current leader.
    fn leader(&self) -> Option<usize> {
        None
    }

    /// Returns the locks that this kind of fault affects while the server with the index `leader`
    /// leads. `None` stands for all locks.
    fn affected_locks(&self, kind: Kind, leader: usize) -> Option<Vec<String>> {
        let _ = (kind, leader);
        None
    }

    /// Cuts one follower off from its leader until the returned closure is called.
    fn cut_follower(&self) -> Option<Undo<'_>> {
        None
    }

    /// Starts to replace `leader` by another server, unless a replacement is in progress.
    fn replace_leader(&self, leader: usize) {
        let _ = leader;
    }

    /// Takes a snapshot of the data. The returned closure restores it under a killed server.
    fn snapshot_data(&self) -> Option<Undo<'_>> {
        None
    }

    /// Returns true if another server leads instead of `lost`, which is stopped or dead.
    fn has_replaced(&self, _lost: usize) -> bool {
        true
    }

    /// Returns true if the campaign [cuts off the follower](Self::cut_follower) for a moment before
    /// it stops or kills a leader. Locks that the leader grants in this time are lost with it.
    fn isolates_leaders_first(&self) -> bool {
        false
    }

    /// Moves one of the locks to another server. Returns false if that is impossible now.
    fn move_slot(&self) -> bool {
        false
    }

    /// Steps the clock by which the server counts leases.
    fn step_clock(&self, step: Step) {
        let _ = step;
    }

    /// Loses all data, on a site without a server that could be restarted.
    fn lose_data(&self) {}

    /// Sets the server's memory limit below its usage, or removes the limit.
    fn set_full(&self, full: bool) {
        let _ = full;
    }

    /// Returns how long exclusion remains broken after a fault of a server that broke it.
    fn recovery_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Removes a held lock directly on the server, without its holder.
    fn evict(&self, name: &LockName) -> Removal {
        let _ = name;
        Removal::NotFound
    }

    /// Lists the residue after all clients have ended. `None` if it cannot be listed now.
    fn residue(&self) -> Option<Vec<String>> {
        None
    }

    /// Lists patterns of the permitted residue, with `*` for any text. `None` if the residue of
    /// the site cannot be listed, so it promises nothing.
    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        None
    }
}

/// Connects to any URL of this project's backends.
#[must_use]
pub fn connect(url: &str) -> ConnectFuture<'_> {
    Box::pin(async move {
        let mut backend = None;
        let keep = |builder: LockerBuilder| {
            backend = Some(Arc::clone(builder.backend()));
            builder
        };
        lock_any::connect_with(url, keep).await?;
        Ok(backend.expect("a locker is built on a backend"))
    })
}

/// The reason for which a backend without a network has no faults of the network.
pub(super) const NO_NETWORK: &str = "there is no network";

/// The reason for which a backend with a network has no faults of calls. These are injected inside
/// the client, and only where no other mechanism can.
pub(super) const BY_NETWORK: &str = "the network is disturbed instead";
