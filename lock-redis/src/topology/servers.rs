//! Where the locks are: on one server, or in a cluster.

use std::future::Future;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::Error;
use lock_core::backend::{Fault, Identity};
use lock_core::clock::sleep_between;
use redis::FromRedisValue;

use crate::config::Config;
use crate::connection::client_state::ClientState;
use crate::connection::handle::Connection;
use crate::fault;
use crate::keys::LockKeys;
use crate::topology::cluster::Cluster;
use crate::topology::link::Link;
use crate::topology::replicas::Replicated;
use crate::topology::request::{Request, Response};

/// The longest pause before a server is looked for again.
const RETRY_PAUSE: Duration = Duration::from_millis(20);

/// The server or servers that hold the locks.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) client: Arc<ClientState>,
    pub(crate) topology: Topology,
}

#[derive(Debug)]
pub(crate) enum Topology {
    Single(Arc<Link>),
    Cluster(Arc<Cluster>),
}

impl Servers {
    /// Connects, checks that the server is fit for locks, and returns the connection. In a cluster
    /// one master gets all checks, and the others are connected to as far as they are up.
    pub(crate) async fn connect(config: Config) -> Result<(Self, Connection), Error> {
        config.check_files().await?;
        let waits_for_replicas = config.replicas.is_some();
        let client = Arc::new(ClientState::new(&config));
        let (topology, link, trial, connection) = if config.members.is_empty() {
            let trial = config.keys.for_trial(0);
            let link = Arc::new(Link::new(config, Arc::clone(&client)));
            let connection = link.first_connection().await.map_err(fault::error)?;
            (Topology::Single(Arc::clone(&link)), link, trial, connection)
        } else {
            let cluster = Arc::new(Cluster::new(config, Arc::clone(&client)));
            cluster.first_connection().await?;
            let reached = cluster.reach_for_trial().await;
            let (trial, member, connection) = reached.map_err(fault::error)?;
            (Topology::Cluster(cluster), member.link, trial, connection)
        };
        link.check_server().await?;
        link.check_rights(&trial).await?;
        if waits_for_replicas {
            link.check_wait().await?;
        }
        if let Topology::Cluster(cluster) = &topology {
            let others = cluster.masters().into_iter().filter(|other| !Arc::ptr_eq(other, &link));
            // A master that is down is reported when it is needed.
            all(others.map(|other| async move { other.check_server().await.ok() })).await;
        }
        Ok((Self { client, topology }, connection))
    }

    /// Runs a script where its keys are.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        request: &Request<'_>,
    ) -> Result<Response<T>, Fault> {
        match &self.topology {
            Topology::Single(link) => {
                let connection = link.connection().await?;
                if request.replicated {
                    return Box::pin(run_replicated(link, connection, request)).await;
                }
                let (asked, answer) =
                    link.run(&connection, request.action, &request.call_on(&connection)).await?;
                Ok(Response { asked, connection, answer, fallback: false, missing: None })
            }
            // Larger than the rest of a verb.
            Topology::Cluster(cluster) => Box::pin(cluster.run(request)).await,
        }
    }

    /// Returns the links to all servers that have locks.
    pub(crate) async fn primaries(&self) -> Result<Vec<Arc<Link>>, Fault> {
        match &self.topology {
            Topology::Single(link) => Ok(vec![Arc::clone(link)]),
            Topology::Cluster(cluster) => Box::pin(cluster.all_masters()).await,
        }
    }

    /// Returns the link and the connection to the server that has these keys.
    pub(crate) async fn reach(&self, keys: &LockKeys) -> Result<(Arc<Link>, Connection), Fault> {
        match &self.topology {
            Topology::Single(link) => Ok((Arc::clone(link), link.connection().await?)),
            Topology::Cluster(cluster) => {
                let (member, connection) = Box::pin(cluster.reach(keys.slot())).await?;
                Ok((member.link, connection))
            }
        }
    }

    /// Waits until that server can be reached, for callers that have nothing else to do.
    pub(crate) async fn reach_again(&self, keys: &LockKeys) -> (Arc<Link>, Connection) {
        loop {
            if let Ok(reached) = self.reach(keys).await {
                return reached;
            }
            // Connecting pauses by itself; a map of a cluster that knows no better fails at once.
            sleep_between(RETRY_PAUSE / 2, RETRY_PAUSE).await;
        }
    }

    /// Returns true if the locks may move to another server, and this client is notified of it.
    pub(crate) fn may_move(&self) -> bool {
        matches!(&self.topology, Topology::Single(link) if link.may_move())
    }

    /// Returns true if this client receives messages about the lock with these keys.
    pub(crate) fn is_listening(&self, keys: &LockKeys) -> bool {
        match &self.topology {
            Topology::Single(_) => true,
            Topology::Cluster(cluster) => cluster.is_listening_in(keys.slot()),
        }
    }

    /// Returns true if the server that has these keys, or the client, refused the certificate of
    /// the other.
    pub(crate) fn refuses_certificate(&self, keys: &LockKeys) -> bool {
        match &self.topology {
            Topology::Single(link) => link.refuses_certificate(),
            Topology::Cluster(cluster) => cluster.refuses_certificate_in(keys.slot()),
        }
    }

    /// Returns true if locks are on several servers, so that no script can access two of them.
    pub(crate) fn are_many(&self) -> bool {
        matches!(self.topology, Topology::Cluster(_))
    }

    /// Returns the identity of the server's process; several servers have none.
    pub(crate) async fn identity(&self) -> Result<Option<Identity>, Fault> {
        match &self.topology {
            Topology::Single(link) => link.identity().await,
            Topology::Cluster(_) => Ok(None),
        }
    }
}

async fn run_replicated<T: FromRedisValue>(
    link: &Link,
    connection: Connection,
    request: &Request<'_>,
) -> Result<Response<T>, Fault> {
    let Replicated { since, answer, missing } =
        link.send_replicated(&connection, request.call, None).await?;
    let answer = answer.map_err(|error| link.failed(&connection, request.action, &error))?;
    Ok(Response { asked: since, connection, answer, fallback: false, missing })
}

/// Waits for all of them at once. They are few, so each is looked at whenever one has moved on.
pub(crate) async fn all<T>(work: impl Iterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut work: Vec<_> = work.map(|one| (Box::pin(one), None)).collect();
    std::future::poll_fn(|cx| {
        for (one, done) in work.iter_mut().filter(|(_, done)| done.is_none()) {
            if let Poll::Ready(value) = one.as_mut().poll(cx) {
                *done = Some(value);
            }
        }
        if work.iter().any(|(_, done)| done.is_none()) { Poll::Pending } else { Poll::Ready(()) }
    })
    .await;
    work.into_iter().filter_map(|(_, done)| done).collect()
}
