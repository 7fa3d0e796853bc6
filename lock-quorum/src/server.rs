//! Which server has answered. A vote belongs to a server and not to an address, which may lead to
//! another server after each connection.
//!
//! A server is asked for its identity once for each connection. A verb that began and ended on that
//! connection was answered by that server. If the connection was replaced meanwhile, the answer
//! came from one of two servers: it is counted only where neither has been counted already.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Identity;
use lock_core::clock::Moment;
use lock_core::dial::Epoch;

/// How long a server counts as one without an identity. No event ends that: it has no epoch, and
/// its connection may be replaced by one to a server with an identity.
const UNIDENTIFIED_FOR: Duration = Duration::from_secs(1);

/// A server, as it identified itself on one connection.
#[derive(Debug)]
pub(crate) struct Server {
    kind: &'static str,
    /// `None` if it has no identity.
    id: Option<String>,
    up_for: Option<Duration>,
    reported_at: Moment,
    pub(crate) epoch: Epoch,
}

impl Server {
    pub(crate) fn new(kind: &'static str, identity: Option<Identity>) -> Self {
        let reported_at = Moment::now();
        match identity {
            Some(Identity { id, up_for, epoch, .. }) => {
                Self { kind, id: Some(id), up_for, reported_at, epoch }
            }
            None => Self { kind, id: None, up_for: None, reported_at, epoch: Epoch::unknown() },
        }
    }

    pub(crate) fn is_current(&self) -> bool {
        match self.is_identified() {
            true => self.epoch.is_current(),
            false => !(self.reported_at + UNIDENTIFIED_FOR).has_passed(),
        }
    }

    /// Returns true unless both are certainly different servers. A server without an identity may
    /// be any server of its kind.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        match (&self.id, &other.id) {
            (Some(id), Some(other)) => id == other,
            _ => self.kind == other.kind,
        }
    }

    pub(crate) fn is_identified(&self) -> bool {
        self.id.is_some()
    }

    /// Returns how long the server had been running at `moment`, at least.
    pub(crate) fn up_for_at(&self, moment: Moment) -> Option<Duration> {
        let up_for = self.up_for? + moment.saturating_since(self.reported_at);
        Some(up_for.saturating_sub(self.reported_at.saturating_since(moment)))
    }
}

/// The server that gave an answer; one of two, if the connection was replaced meanwhile.
#[derive(Clone, Debug)]
pub(crate) struct Origin {
    pub(crate) server: Arc<Server>,
    pub(crate) or: Option<Arc<Server>>,
}

impl Origin {
    /// Returns true unless both are certainly different servers.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        self.servers().any(|server| other.servers().any(|other| server.may_be(other)))
    }

    /// Returns true if only one server can have answered, and its identity is known.
    fn is_certain(&self) -> bool {
        let id = &self.server.id;
        id.is_some() && self.servers().all(|server| server.id == *id)
    }

    /// Returns how long the server had been running at `moment`, at least; `None` if it does not
    /// report it.
    pub(crate) fn up_for_at(&self, moment: Moment) -> Option<Duration> {
        self.servers().filter_map(|server| server.up_for_at(moment)).min()
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        [Some(&self.server), self.or.as_ref()].into_iter().flatten().map(|server| &**server)
    }
}

/// Returns how long a server that has been running for `up_for` is not counted yet, because it may
/// have forgotten locks with a lease of up to `longest`; zero if it is counted.
pub(crate) fn not_counted_for(longest: Duration, up_for: Duration) -> Duration {
    // Clocks may differ by one per cent.
    (longest + longest / 100).saturating_sub(up_for)
}

/// Returns the members whose answers no longer count now that `member` has answered, each with the
/// member as which it is counted. Two answers that may be of one server never both count. Of such
/// two, the preferred one counts, then the one whose server is certain, then the earlier one.
pub(crate) fn duplicates<'o>(
    member: usize,
    answers: impl Iterator<Item = Option<(&'o Origin, bool)>> + Clone,
) -> Vec<(usize, usize)> {
    let weight = |(origin, preferred): (&Origin, bool)| (preferred, origin.is_certain());
    let mut less = Vec::new();
    let Some(last) = answers.clone().nth(member).flatten() else { return less };
    for (other, answer) in answers.enumerate() {
        let is_twin = |&(origin, _): &(&Origin, bool)| other != member && origin.may_be(last.0);
        match answer.filter(is_twin) {
            Some(duplicate) if weight(duplicate) >= weight(last) => return vec![(member, other)],
            Some(_) => less.push((other, member)),
            None => {}
        }
    }
    less
}
