//! The builder of a quorum: its members and options, and their first connections.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::Moment;
use lock_core::{Backend, Capabilities, Error, ErrorKind, Executor};

use crate::capabilities::{self, LEAVES_FREE};
use crate::member::{Connect, Member};
use crate::quorum::{Inner, Quorum, Settings};

/// The default longest lease.
const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// The default bound of one call of one member.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

/// A builder of a [`Quorum`].
#[derive(Debug)]
pub struct QuorumBuilder {
    pub(crate) members: Vec<MemberConfig>,
    pub(crate) settings: Settings,
}

/// A backend to become a member, or the means to connect it.
pub(crate) struct MemberConfig {
    name: Option<String>,
    backend: Option<Arc<dyn Backend>>,
    connect: Option<Connect>,
}

impl Quorum {
    /// Returns a builder without members, with the default settings.
    #[must_use]
    pub fn builder() -> QuorumBuilder {
        let longest_lease = Some(LONGEST_LEASE);
        let settings = Settings { longest_lease, member_timeout: MEMBER_TIMEOUT };
        QuorumBuilder { members: Vec::new(), settings }
    }
}

impl QuorumBuilder {
    /// Adds a member that is connected already. All clients list the same members in the same
    /// order.
    #[must_use]
    pub fn member(self, backend: impl Backend) -> Self {
        self.member_from(Arc::new(backend))
    }

    /// Adds a member, like [`member`](Self::member), for a backend that is shared already.
    #[must_use]
    pub fn member_from(mut self, backend: Arc<dyn Backend>) -> Self {
        self.members.push(MemberConfig { name: None, backend: Some(backend), connect: None });
        self
    }

    /// Adds a member that may be unreachable. `connect` connects it now, or when it is first
    /// reachable. Its capabilities must be no weaker than those of the members that are connected
    /// now. `name` identifies it in messages and holds no credentials.
    #[must_use]
    pub fn member_by<F, C>(mut self, name: impl Into<String>, connect: C) -> Self
    where
        F: Future<Output = Result<Arc<dyn Backend>, Error>> + Send + 'static,
        C: Fn() -> F + Send + Sync + 'static,
    {
        let connect: Connect = Box::new(move || Box::pin(connect()));
        let (name, connect) = (Some(name.into()), Some(connect));
        self.members.push(MemberConfig { name, backend: None, connect });
        self
    }

    /// Sets the longest lease that any client of these members asks for. A longer one is refused. A
    /// member that was started more recently than this is not counted, because it may have
    /// forgotten locks. All clients set the same value. Default: one minute.
    ///
    /// A [minimum hold](lock_core::Lock::min_hold) may be longer: the holder renews its lease until
    /// it is over. Only members that [remember](Self::members_remember) enforce it after the holder
    /// has exited.
    ///
    /// A member that does not report how long it has been running is counted: see the crate's
    /// documentation.
    #[must_use]
    pub fn longest_lease(mut self, longest: Duration) -> Self {
        self.settings.longest_lease = Some(longest);
        self
    }

    /// Declares that the members retain all their locks across a restart. They count at once, and
    /// leases are as long as they allow. On Redis that is `appendfsync always`; nothing checks it.
    #[must_use]
    pub fn members_remember(mut self) -> Self {
        self.settings.longest_lease = None;
        self
    }

    /// Sets the bound of one call of one member. No verb waits for a minority that does not answer;
    /// this bounds the calls that continue in the background. Default: one second.
    #[must_use]
    pub fn member_timeout(mut self, timeout: Duration) -> Self {
        self.settings.member_timeout = timeout;
        self
    }

    /// Connects the members that are not connected yet, and asks all for their identity.
    ///
    /// # Errors
    ///
    /// * [`ErrorKind::Invalid`]: an even number of members, or none; two of them are the same
    ///   server, or of a kind without identities; they have no lease in common. Numbers are checked
    ///   before anything is sent.
    /// * [`ErrorKind::Invalid`] or [`ErrorKind::Unsupported`]: the connection of a member fails so.
    /// * Otherwise, if a majority cannot be connected, the reason of one of the others.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future abandons the attempt.
    pub async fn build(self) -> Result<Quorum, Error> {
        let size = self.members.len();
        if size.is_multiple_of(2) {
            let message = format!(
                "a quorum has an odd number of members, and this one has {size}: \
                 one more than an even number tolerates no further failure, and votes split"
            );
            return Err(Error::new(ErrorKind::Invalid, message));
        }
        // The members that it connects share it.
        let executor = Executor::current_or_new()?;
        executor.within(self.connect(executor.clone())).await
    }

    /// Returns the time limit of the first connection of a member.
    pub(crate) fn connect_timeout(&self) -> Duration {
        self.settings.member_timeout.max(MEMBER_TIMEOUT) * 5
    }

    /// Returns the names of the members in messages.
    pub(crate) fn names(&self) -> Vec<String> {
        self.members.iter().enumerate().map(|(place, member)| member.name_at(place)).collect()
    }

    async fn connect(self, executor: Executor) -> Result<Quorum, Error> {
        let size = self.members.len();
        let timeout = self.connect_timeout();
        let connected = connect_all(self.members, timeout).await;
        let majority = size / 2 + 1;
        let mut members = Vec::with_capacity(size);
        let mut away = Vec::new();
        for (member, error) in connected {
            away.extend(error.map(|error| (member.name.clone(), error)));
            members.push(Arc::new(member));
        }
        let is_wrong = |(_, error): &(_, Error)| {
            matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported)
        };
        if size - away.len() < majority || away.iter().any(is_wrong) {
            return Err(too_few(size, majority, &away));
        }
        let leaves_free = |member: &&Arc<Member>| {
            let caps = member.current().map(|it| it.capabilities());
            caps.is_some_and(|caps| caps.polling_share.is_some())
        };
        if let Some(member) = members.iter().find(leaves_free) {
            let why = format!("{} cannot be a member: {LEAVES_FREE}", member.name);
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let declared: Vec<_> =
            members.iter().filter_map(|member| Some(member.current()?.capabilities())).collect();
        let caps = common_capabilities(&declared, &self.settings).ok_or_else(|| {
            Error::new(ErrorKind::Invalid, "the members of the quorum have no lease in common")
        })?;
        let mut took = identify_all(&members, timeout).await?;
        let inner = Inner::new(members, caps, self.settings, executor);
        took.sort_unstable();
        took.get(majority - 1).into_iter().for_each(|took| inner.record_round_time(*took));
        Ok(Quorum { inner: Arc::new(inner) })
    }
}

pub(crate) async fn connect_all(
    members: Vec<MemberConfig>,
    timeout: Duration,
) -> Vec<(Member, Option<Error>)> {
    let connecting = members.into_iter().enumerate().map(|(place, candidate)| {
        tokio::spawn(async move {
            let name = candidate.name_at(place);
            let MemberConfig { backend, connect, .. } = candidate;
            match (backend, connect) {
                (None, Some(connect)) => match tokio::time::timeout(timeout, connect()).await {
                    Ok(Ok(backend)) => (Member::new(name, Some(backend), Some(connect)), None),
                    Ok(Err(error)) => (Member::new(name, None, Some(connect)), Some(error)),
                    Err(_) => {
                        let message = format!("it could not be connected within {timeout:?}");
                        let error = Error::new(ErrorKind::Timeout, message);
                        (Member::new(name, None, Some(connect)), Some(error))
                    }
                },
                (backend, connect) => (Member::new(name, backend, connect), None),
            }
        })
    });
    let connecting: Vec<_> = connecting.collect();
    let mut connected = Vec::new();
    for (place, member) in connecting.into_iter().enumerate() {
        connected.push(member.await.unwrap_or_else(|_| {
            let error = Error::new(ErrorKind::BackendBroken, "connecting it panicked");
            (Member::new(format!("member {}", place + 1), None, None), Some(error))
        }));
    }
    connected
}

/// Returns the capabilities that all members have; `None` if they have no lease in common.
pub(crate) fn common_capabilities(
    members: &[Capabilities],
    settings: &Settings,
) -> Option<Capabilities> {
    capabilities::of_all(members)
        .map(|caps| capabilities::at_most(caps, settings.longest_lease))
        .filter(|caps| caps.ttl_min <= caps.ttl_max)
}

/// Returns the error of too few members. A permanent reason comes first: a client that is denied
/// today is denied tomorrow.
fn too_few(size: usize, majority: usize, away: &[(String, Error)]) -> Error {
    let there = size - away.len();
    let reasons: Vec<_> = away.iter().map(|(name, error)| format!("{name}: {error}")).collect();
    let kinds = || away.iter().map(|(_, error)| error.kind());
    let kind = kinds().find(|kind| matches!(kind, ErrorKind::Invalid | ErrorKind::Unsupported));
    let kind = kind.or_else(|| kinds().find(|kind| *kind == ErrorKind::Denied));
    let message = format!(
        "{there} of the quorum's {size} members can be connected, {majority} are needed: {}",
        reasons.join("; ")
    );
    Error::new(kind.unwrap_or(ErrorKind::Unavailable), message)
}

/// Identifies all members, and refuses one server under two addresses, which would have two votes.
/// Returns how long each answer took.
async fn identify_all(members: &[Arc<Member>], timeout: Duration) -> Result<Vec<Duration>, Error> {
    let asking = members.iter().map(|member| {
        let (member, backend) = (Arc::clone(member), member.current());
        tokio::spawn(async move {
            let (backend, began) = (backend?, Moment::now());
            let server =
                tokio::time::timeout(timeout, member.server(&*backend)).await.ok()?.ok()?;
            Some((server, Moment::now().saturating_since(began)))
        })
    });
    let asking: Vec<_> = asking.collect();
    let mut all_took = Vec::new();
    for (place, answer) in asking.into_iter().enumerate() {
        // A member without an answer is asked again with its first vote.
        let Ok(Some((server, took))) = answer.await else { continue };
        for duplicate in &members[..place] {
            if let Some(other) = duplicate.known_server().filter(|other| server.may_be(other)) {
                return Err(same_server(
                    duplicate,
                    &members[place],
                    other.is_identified() && server.is_identified(),
                ));
            }
        }
        all_took.push(took);
    }
    Ok(all_took)
}

fn same_server(one: &Member, other: &Member, is_certain: bool) -> Error {
    let (one, other) = (&one.name, &other.name);
    let message = match is_certain {
        true => format!("{one} and {other} of the quorum are the same server"),
        false => format!(
            "{one} and {other} of the quorum may be the same server: a quorum takes no two members of a kind of which \
             one cannot tell which server it is"
        ),
    };
    Error::new(ErrorKind::Invalid, message)
}

impl MemberConfig {
    /// Returns the name of the member at `place` in messages.
    fn name_at(&self, place: usize) -> String {
        let name = match (&self.name, &self.backend) {
            (Some(name), _) => name,
            (None, Some(backend)) => backend.capabilities().backend,
            (None, None) => "",
        };
        format!("member {} ({name})", place + 1)
    }
}

impl fmt::Debug for MemberConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberConfig").field("name", &self.name).finish_non_exhaustive()
    }
}
