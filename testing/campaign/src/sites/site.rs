//! A site: what is started for a run, and the faults that it can have.

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

/// A backend that a campaign can be run on. A further one is one more of these.
#[derive(Clone, Copy)]
pub struct Target {
    /// Its name on the command line.
    pub name: &'static str,
    /// Starts its servers. Panics, with a hint what to install, if there are none.
    pub start: fn() -> Box<dyn Site>,
    /// Connects a client, in a process of its own, to what [`Site::url`] says.
    pub connect: for<'a> fn(&'a str) -> ConnectFuture<'a>,
}

impl fmt::Debug for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Target({})", self.name)
    }
}

/// Heals a cut, or undoes something else.
pub type Undo<'a> = Box<dyn FnOnce() + Send + 'a>;

/// What is fixed for a site's runs.
#[derive(Clone, Copy, Debug)]
pub struct SiteParams {
    /// The lease that clients ask for.
    pub ttl: Duration,
    /// How long the server keeps a lock that is not renewed, if that is not the lease asked for.
    pub lease: Option<Duration>,
    /// How long an ordinary hold takes, about.
    pub typical_hold: Duration,
    /// The bound on one call of the backend.
    pub timeout: Duration,
    /// How late an answer may come while locks can still be had.
    pub late: Duration,
    /// How many locks there are.
    pub locks: usize,
}

/// What became of the removal of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// It was there, and is gone.
    Done,
    /// It was not there: certainly nothing has changed.
    Nothing,
    /// Perhaps it is gone, or goes a little later, or some of it is.
    Unknown,
}

/// One lock space with its servers, started for one run and gone with it.
///
/// All calls may block for milliseconds, those to a server for seconds.
pub trait Site: Send + Sync {
    /// What is fixed for its runs.
    fn params(&self) -> SiteParams;

    /// Whether it can have this kind of fault.
    fn support(&self, kind: Kind) -> FaultSupport;

    /// Whom a kind of fault hits here.
    fn scope(&self, kind: Kind) -> Scope {
        kind.scope()
    }

    /// Whether a majority of its servers decides who has a lock.
    fn decides_by_majority(&self) -> bool {
        false
    }

    /// Where a client connects that reaches each of [`upstreams`](Self::upstreams) by the address
    /// in the same place.
    fn url(&self, through: &[SocketAddr]) -> String;

    /// A backend that all clients share: then they are threads of the campaign, and no processes.
    fn shared_backend(&self) -> Option<Arc<dyn Backend>> {
        None
    }

    /// The addresses of its servers. Each client gets a way of its own to each of them, which
    /// faults of the network hit.
    fn upstreams(&self) -> Vec<SocketAddr> {
        Vec::new()
    }

    /// The ways to its servers for the client of this number.
    ///
    /// # Errors
    ///
    /// No port is free.
    fn client_proxies(&self, client: usize) -> io::Result<Vec<Proxy>> {
        let _ = client;
        self.upstreams().into_iter().map(Proxy::start).collect()
    }

    /// The processes of its servers.
    fn servers(&self) -> Vec<&dyn ServerProcess> {
        Vec::new()
    }

    /// Those of the [`servers`](Self::servers) that can be hit by themselves in this way, while the
    /// others make a majority.
    fn members(&self, kind: Kind) -> Vec<&dyn ServerProcess> {
        let _ = kind;
        Vec::new()
    }

    /// The ways on which all clients reach the members. Where there are several, networks are
    /// broken on some of a client's ways as well as on all of them.
    fn member_proxies(&self) -> &[Proxy] {
        &[]
    }

    /// Which of the [`servers`](Self::servers) leads now.
    fn leader(&self) -> Option<usize> {
        None
    }

    /// The locks that this kind of fault hits when this one of the [`servers`](Self::servers)
    /// leads. `None`: all of them.
    fn affected_locks(&self, kind: Kind, leader: usize) -> Option<Vec<String>> {
        let _ = (kind, leader);
        None
    }

    /// Cuts one that follows off from its leader, until the cut is called.
    fn cut_follower(&self) -> Option<Undo<'_>> {
        None
    }

    /// Begins to make another server the leader instead of `leader`, unless that is under way.
    fn replace_leader(&self, leader: usize) {
        let _ = leader;
    }

    /// Keeps the data of now: they are put back under a killed server when the cut is called.
    fn snapshot_data(&self) -> Option<Undo<'_>> {
        None
    }

    /// True if another server leads instead of `lost`, which is stopped or dead.
    fn has_replaced(&self, _lost: usize) -> bool {
        true
    }

    /// A leader that is to be stopped or killed goes on for a moment [without who
    /// follows](Self::cut_follower): what it gives then is lost with it.
    fn isolates_leaders_first(&self) -> bool {
        false
    }

    /// Moves one of the locks to another server. False if it cannot be done now.
    fn move_slot(&self) -> bool {
        false
    }

    /// Steps the clock by which leases are counted.
    fn step_clock(&self, step: Step) {
        let _ = step;
    }

    /// Loses all data. For sites without a server that could be restarted.
    fn lose_data(&self) {}

    /// Puts the server to its memory limit, or takes it off again.
    fn set_full(&self, full: bool) {
        let _ = full;
    }

    /// For how long a server still counts wrongly that was disturbed so that exclusion did not
    /// hold.
    fn recovery_time(&self) -> Duration {
        Duration::ZERO
    }

    /// Removes a held lock behind everybody's back.
    fn evict(&self, name: &LockName) -> Removal {
        let _ = name;
        Removal::NotFound
    }

    /// What is left when all clients have gone. `None` if it cannot tell now.
    fn residue(&self) -> Option<Vec<String>> {
        None
    }

    /// What may be left, with `*` for anything. `None` if nobody can look: then nothing is
    /// promised.
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

/// Why a backend without a network has none of its faults.
pub(super) const NO_NETWORK: &str = "there is no network";

/// Calls are disturbed inside of clients only where nothing else can disturb them.
pub(super) const BY_NETWORK: &str = "the network is disturbed instead";
