//! Where the locks are: on one server, or in a cluster.

use std::borrow::Cow;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use lock_core::Error;
use lock_core::backend::{Fault, Identity};
use lock_core::clock::{Moment, sleep_between};
use redis::FromRedisValue;

use crate::cluster::Cluster;
use crate::config::Config;
use crate::fault;
use crate::keys::LockKeys;
use crate::link::{Connection, Link, Ours};
use crate::replicas::Written;
use crate::scripts::Call;

/// The longest pause before a server is looked for again.
const PAUSE: Duration = Duration::from_millis(20);

/// The way to whoever has a lock.
#[derive(Debug)]
pub(crate) struct Servers {
    pub(crate) ours: Arc<Ours>,
    way: Way,
}

#[derive(Debug)]
enum Way {
    ToOne(Arc<Link>),
    ToMembers(Arc<Cluster>),
}

/// A script, and what has to be known to run it where its keys are.
pub(crate) struct Errand<'a> {
    pub(crate) doing: &'static str,
    pub(crate) keys: &'a LockKeys,
    pub(crate) call: &'a Call,
    /// What to run if a cluster is just moving the keys, one after the other: something with one key.
    pub(crate) instead: Option<&'a Call>,
    /// The channel of a claim in line. The script gets the part of the connection as its last
    /// argument, and the connection listens on it.
    pub(crate) channel: Option<Arc<str>>,
    /// Replicas have to know of what it writes.
    pub(crate) lasting: bool,
}

/// An errand that was done.
pub(crate) struct Done<T> {
    /// Its effects count from then on at the earliest.
    pub(crate) asked: Moment,
    pub(crate) connection: Connection,
    pub(crate) answer: T,
    /// It was [the other script](Errand::instead) that ran.
    pub(crate) instead: bool,
    /// Why what was written [may not last](Errand::lasting).
    pub(crate) missing: Option<Fault>,
}

impl<'a> Errand<'a> {
    pub(crate) fn new(doing: &'static str, keys: &'a LockKeys, call: &'a Call) -> Self {
        Self { doing, keys, call, instead: None, channel: None, lasting: false }
    }

    pub(crate) fn or_instead(self, call: &'a Call) -> Self {
        Self { instead: Some(call), ..self }
    }

    pub(crate) fn lasting(self, lasting: bool) -> Self {
        Self { lasting, ..self }
    }

    /// Returns the script's call on this connection.
    pub(crate) fn call_on(&self, connection: &Connection) -> Cow<'a, Call> {
        let Some(channel) = &self.channel else { return Cow::Borrowed(self.call) };
        let mut call = self.call.clone();
        call.arg(connection.channel(channel));
        Cow::Owned(call)
    }
}

impl Servers {
    /// Connects, and looks whether the server is fit for locks. Says what the connection to it can do. In a cluster
    /// one master is asked all of that, and the others are connected to, as far as they are there.
    pub(crate) async fn connect(config: Config) -> Result<(Self, Connection), Error> {
        config.check_files().await?;
        let waits_for_replicas = config.replicas.is_some();
        let ours = Arc::new(Ours::new(&config));
        let (way, link, trial, connection) = if config.members.is_empty() {
            let trial = config.keys.for_trial(0);
            let link = Arc::new(Link::new(config, Arc::clone(&ours)));
            let connection = link.first_connection().await.map_err(fault::error)?;
            (Way::ToOne(Arc::clone(&link)), link, trial, connection)
        } else {
            let cluster = Arc::new(Cluster::new(config, Arc::clone(&ours)));
            cluster.first_connection().await?;
            let reached = cluster.reach_for_trial().await;
            let (trial, member, connection) = reached.map_err(fault::error)?;
            (Way::ToMembers(cluster), member.link, trial, connection)
        };
        link.check_server().await?;
        link.check_rights(&trial).await?;
        if waits_for_replicas {
            link.check_wait().await?;
        }
        if let Way::ToMembers(cluster) = &way {
            let others = cluster.masters().into_iter().filter(|other| !Arc::ptr_eq(other, &link));
            // Whose master is not there is told when it is needed.
            all(others.map(|other| async move { other.check_server().await.ok() })).await;
        }
        Ok((Self { ours, way }, connection))
    }

    /// Runs a script where its keys are.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        errand: &Errand<'_>,
    ) -> Result<Done<T>, Fault> {
        match &self.way {
            Way::ToOne(link) => {
                let connection = link.connection().await?;
                if errand.lasting {
                    return Box::pin(run_lasting(link, connection, errand)).await;
                }
                let (asked, answer) =
                    link.run(&connection, errand.doing, &errand.call_on(&connection)).await?;
                Ok(Done { asked, connection, answer, instead: false, missing: None })
            }
            // Larger than the rest of a verb.
            Way::ToMembers(cluster) => Box::pin(cluster.run(errand)).await,
        }
    }

    /// The connection to the server that has these keys.
    pub(crate) async fn reach(&self, keys: &LockKeys) -> Result<(Arc<Link>, Connection), Fault> {
        match &self.way {
            Way::ToOne(link) => Ok((Arc::clone(link), link.connection().await?)),
            Way::ToMembers(cluster) => {
                let (member, connection) = Box::pin(cluster.reach(keys.slot())).await?;
                Ok((member.link, connection))
            }
        }
    }

    /// The same, whenever there is one again: for who has nothing to do meanwhile.
    pub(crate) async fn reach_again(&self, keys: &LockKeys) -> (Arc<Link>, Connection) {
        loop {
            if let Ok(reached) = self.reach(keys).await {
                return reached;
            }
            // Connecting pauses by itself; a map of a cluster that knows no better fails at once.
            sleep_between(PAUSE / 2, PAUSE).await;
        }
    }

    /// True if the locks may be on another server one day, of which we are told.
    pub(crate) fn may_move(&self) -> bool {
        matches!(&self.way, Way::ToOne(link) if link.may_move())
    }

    /// True if we hear what is said to us of the lock with these keys.
    pub(crate) fn is_listening(&self, keys: &LockKeys) -> bool {
        match &self.way {
            Way::ToOne(_) => true,
            Way::ToMembers(cluster) => cluster.is_listening_in(keys.slot()),
        }
    }

    /// Returns true if the server that has these keys, or the client, refused the certificate of
    /// the other.
    pub(crate) fn distrusts(&self, keys: &LockKeys) -> bool {
        match &self.way {
            Way::ToOne(link) => link.distrusts(),
            Way::ToMembers(cluster) => cluster.distrusts_in(keys.slot()),
        }
    }

    /// True if locks are on several servers, so that no script can be about two of them.
    pub(crate) fn are_many(&self) -> bool {
        matches!(self.way, Way::ToMembers(_))
    }

    /// Which process the server is; many are none.
    pub(crate) async fn identity(&self) -> Result<Option<Identity>, Fault> {
        match &self.way {
            Way::ToOne(link) => link.identity().await,
            Way::ToMembers(_) => Ok(None),
        }
    }
}

async fn run_lasting<T: FromRedisValue>(
    link: &Link,
    connection: Connection,
    errand: &Errand<'_>,
) -> Result<Done<T>, Fault> {
    let Written { since, answer, missing } =
        link.send_lasting(&connection, errand.call, None).await?;
    let answer = answer.map_err(|error| link.failed(&connection, errand.doing, &error))?;
    Ok(Done { asked: since, connection, answer, instead: false, missing })
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
