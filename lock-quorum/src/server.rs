//! Which server has given an answer. A vote belongs to a server, and not to an address, which may
//! lead to another one any time that a connection is made.
//!
//! A server is asked who it is once for each connection. A verb that began and ended while that
//! connection was used was answered by it. If the connection was replaced meanwhile, the answer
//! came from one of two servers: it is counted only where neither has been counted already.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Identity;
use lock_core::clock::Moment;
use lock_core::dial::Epoch;

/// For how long a server is taken for one that cannot tell which it is. Nothing says when that
/// ends: it has no epoch, and its connection may be replaced by one to a server that can.
const UNIDENTIFIED_FOR: Duration = Duration::from_secs(1);

/// A server, as it was told on one connection.
#[derive(Debug)]
pub(crate) struct Server {
    kind: &'static str,
    /// `None` if it cannot tell.
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

    /// Returns true unless both are certainly different servers. Those that cannot tell may be any
    /// of their kind.
    pub(crate) fn may_be(&self, other: &Self) -> bool {
        match (&self.id, &other.id) {
            (Some(id), Some(other)) => id == other,
            _ => self.kind == other.kind,
        }
    }

    pub(crate) fn is_identified(&self) -> bool {
        self.id.is_some()
    }

    /// Returns for how long it had been running at `moment`, at least.
    fn up_for_at(&self, moment: Moment) -> Option<Duration> {
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

    /// Returns true if only one server can have answered, and it is known which.
    fn is_certain(&self) -> bool {
        let id = &self.server.id;
        id.is_some() && self.servers().all(|server| server.id == *id)
    }

    /// Returns for how long the server had been running at `moment`, at least; `None` if it cannot
    /// tell.
    pub(crate) fn up_for_at(&self, moment: Moment) -> Option<Duration> {
        self.servers().filter_map(|server| server.up_for_at(moment)).min()
    }

    fn servers(&self) -> impl Iterator<Item = &Server> {
        [Some(&self.server), self.or.as_ref()].into_iter().flatten().map(|server| &**server)
    }
}

/// Finds the answers that no longer count now that `member` has answered: two that may be of one
/// server never count both. Of such two, the preferred one counts, then the one whose server is
/// certain, then the earlier one. Returns the members whose answers do not count, each with the
/// member as which it is counted.
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
