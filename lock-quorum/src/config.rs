//! The builder of a quorum: its members and options, and their first connections.

use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::{Moment, sleep_until};
use lock_core::{Backend, Error, ErrorKind, Executor};

use crate::calls::Calls;
use crate::capabilities;
use crate::member::{Connect, Member};
use crate::quorum::{Inner, Quorum, Settings};

/// The default longest lease.
const LONGEST_LEASE: Duration = Duration::from_secs(60);

/// The default bound of one call of one member.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

/// How long a new quorum waits at least for the members beyond the first majority.
const GRACE: Duration = Duration::from_millis(100);

/// A builder of a [`Quorum`].
#[derive(Debug)]
pub struct QuorumBuilder {
    members: Vec<MemberConfig>,
    settings: Settings,
}

/// A backend to become a member, or the means to connect it.
struct MemberConfig {
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

    /// Connects the members that are not connected yet, and asks all for their identity. Once a
    /// majority has answered, the others have as long again, at least 100 ms. A member that has not
    /// answered by then is connected when it is first needed.
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

    async fn connect(self, executor: Executor) -> Result<Quorum, Error> {
        let size = self.members.len();
        let majority = size / 2 + 1;
        let timeout = self.settings.member_timeout.max(MEMBER_TIMEOUT) * 5;
        let members: Vec<_> =
            self.members.into_iter().enumerate().map(MemberConfig::build).collect();
        let answers = connect_all(&members, majority, timeout).await;
        let away: Vec<_> = (members.iter().zip(&answers))
            .filter_map(|(member, answer)| Some((&*member.name, answer.as_ref().err()?)))
            .collect();
        let is_wrong = |(_, error): &(_, &Error)| {
            matches!(error.kind(), ErrorKind::Invalid | ErrorKind::Unsupported)
        };
        if size - away.len() < majority || away.iter().any(is_wrong) {
            return Err(too_few(size, majority, &away));
        }
        let declared: Vec<_> =
            members.iter().filter_map(|member| Some(member.current()?.capabilities())).collect();
        let caps = capabilities::of_all(&declared)
            .map(|caps| capabilities::at_most(caps, self.settings.longest_lease))
            .filter(|caps| caps.ttl_min <= caps.ttl_max)
            .ok_or_else(|| {
                Error::new(ErrorKind::Invalid, "the members of the quorum have no lease in common")
            })?;
        refuse_duplicates(&members)?;
        let mut took: Vec<_> = answers.into_iter().filter_map(Result::ok).flatten().collect();
        let inner = Inner::new(members, caps, self.settings, executor);
        took.sort_unstable();
        took.get(majority - 1).into_iter().for_each(|took| inner.record_round_time(*took));
        Ok(Quorum { inner: Arc::new(inner) })
    }
}

impl MemberConfig {
    fn build((place, config): (usize, Self)) -> Arc<Member> {
        let name = config.name.unwrap_or_else(|| match &config.backend {
            Some(backend) => backend.capabilities().backend.to_owned(),
            None => String::new(),
        });
        let name = format!("member {} ({name})", place + 1);
        Arc::new(Member::new(name, config.backend, config.connect))
    }
}

/// Connects and identifies all members. Once a majority has answered, the others have as long
/// again, or [`GRACE`]: one that hangs is connected when it is first needed. Returns for each how
/// long its identity took, if it has answered.
async fn connect_all(
    members: &[Arc<Member>],
    majority: usize,
    timeout: Duration,
) -> Vec<Result<Option<Duration>, Error>> {
    let broken = |_| Err(Error::new(ErrorKind::BackendBroken, "connecting it panicked"));
    let (began, mut calls) = (Moment::now(), Calls::new(broken));
    for (place, member) in members.iter().enumerate() {
        let member = Arc::clone(member);
        calls.begin(place, async move { member.connect_first(timeout).await });
    }
    let late = || Err(Error::new(ErrorKind::Timeout, "it has not answered yet"));
    let mut answers: Vec<_> = members.iter().map(|_| late()).collect();
    let (mut answered, mut until) = (0, None);
    loop {
        let grace = async {
            match until {
                Some(until) => sleep_until(until).await,
                None => std::future::pending().await,
            }
        };
        let next = tokio::select! {
            biased;
            next = calls.next() => next,
            () = grace => None,
        };
        let Some((place, answer)) = next else { return answers };
        answered += usize::from(answer.is_ok());
        answers[place] = answer;
        if answered >= majority && until.is_none() {
            let now = Moment::now();
            until = Some(now + now.saturating_since(began).max(GRACE));
        }
    }
}

/// Returns the error of too few members. A permanent reason comes first: a client that is denied
/// today is denied tomorrow.
fn too_few(size: usize, majority: usize, away: &[(&str, &Error)]) -> Error {
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

/// Refuses one server under two addresses, which would have two votes. A member without an answer
/// is asked again with its first vote.
fn refuse_duplicates(members: &[Arc<Member>]) -> Result<(), Error> {
    for (place, member) in members.iter().enumerate() {
        let Some(server) = member.known_server() else { continue };
        for duplicate in &members[..place] {
            if let Some(other) = duplicate.known_server().filter(|other| server.may_be(other)) {
                let is_certain = other.is_identified() && server.is_identified();
                return Err(same_server(duplicate, member, is_certain));
            }
        }
    }
    Ok(())
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

impl fmt::Debug for MemberConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MemberConfig").field("name", &self.name).finish_non_exhaustive()
    }
}
