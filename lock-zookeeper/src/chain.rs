//! How long the session is proven to live: the lease of every lock in it.
//!
//! Pings prove nothing: a follower that is cut off from its leader goes on answering them while the
//! leader expires the session. Nor does one committed write: the leader checks the session of a write that
//! a follower forwards, and does not touch it. What proves is a chain of committed writes, each sent a
//! sixth of the session timeout after the *acknowledgement* of the one before. Between two commits so
//! far apart the leader has pinged our follower, the answer carried a touch of our session no older than
//! the earlier proof, and the check of the next proof came after it. So the session lives at least its
//! timeout from the sending of the last proof but three; one ping cycle may be lost.
//!
//! A new connection has the leader itself touch the session, as its creation does. If a write commits on
//! that connection, then through that leader, and the session lives a timeout from any moment at which the
//! connection had not yet been asked for.
//!
//! Each member has its own limits for timeouts, and the leader goes by the last touch, also if that
//! is a shorter one. So from the moment a connection was asked for, nothing counts beyond that
//! moment plus what it was granted, no matter what was proven before. If the answer is lost, that
//! is taken to be a fifth of the first timeout. The request may also arrive late, and then takes
//! the session away from the connection that is used by then. A proof that commits shows that it
//! had not arrived before, so the fifth counts from the last proof. A timeout that grows again is
//! not counted on: a touch of the member before, with its timeout, may still be under way.

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::backend::LeaseLimit;
use lock_core::clock::Moment;

/// How many proofs it takes: the last, and three before it.
const LINKS: usize = 4;

/// No member grants a session less than this part of its first timeout.
const LEAST: u32 = 5;

/// The proofs of one session.
#[derive(Debug)]
pub(crate) struct Chain {
    /// The least that a connection of the session was granted.
    timeout: Duration,
    /// What a connection may have been granted whose answer was lost.
    least: Duration,
    /// The session lives until then, by what was answered.
    deadline: Moment,
    /// When the last proofs were sent, oldest first; all on one connection.
    sent: VecDeque<Moment>,
    /// The connection was not asked for before then; until its first proof.
    connected_after: Option<Moment>,
    /// The last connection that was asked for has not been answered.
    asking: Option<Moment>,
    /// From then on a connection may have been granted whose answer is not known.
    unanswered: Option<Moment>,
    /// Until then a request for a connection may arrive that has been given up.
    late_until: Option<Moment>,
    /// The deadline, as the holders of leases see it.
    limit: LeaseLimit,
}

impl Chain {
    /// Of a session whose creation was asked for at `asked`.
    pub(crate) fn new(timeout: Duration, asked: Moment) -> Self {
        Self {
            timeout,
            least: timeout / LEAST,
            deadline: asked + share(timeout),
            sent: VecDeque::new(),
            connected_after: None,
            asking: None,
            unanswered: None,
            late_until: None,
            limit: LeaseLimit::new(asked + share(timeout)),
        }
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// From the acknowledgement of one proof to the sending of the next.
    pub(crate) fn spacing(&self) -> Duration {
        self.timeout / 6
    }

    /// Returns how soon to prove again: before the deadline that a lost answer leaves.
    pub(crate) fn pace(&self) -> Duration {
        if self.unanswered.is_some() { self.least / 3 } else { self.spacing() }
    }

    /// A write that was sent at `sent` has committed: the request whose answer is lost had not
    /// arrived when it was checked.
    pub(crate) fn committed(&mut self, sent: Moment) {
        self.unanswered = self.late_until.filter(|until| sent < *until).map(|_| sent);
        self.move_limit();
    }

    /// A proof that was sent at `sent` was acknowledged.
    pub(crate) fn proven(&mut self, sent: Moment) {
        self.committed(sent);
        let mut alive_at = self.connected_after.take();
        self.sent.push_back(sent);
        if self.sent.len() == LINKS {
            alive_at = alive_at.max(self.sent.pop_front());
        }
        if let Some(alive_at) = alive_at {
            self.deadline = self.deadline.max(alive_at + share(self.timeout));
        }
        self.move_limit();
    }

    /// Another connection is asked for: from `at` on a server may have taken the session over.
    pub(crate) fn asked(&mut self, at: Moment) {
        self.sent.clear();
        self.connected_after = None;
        if let Some(given_up) = self.asking.replace(at) {
            // A server that stood still meanwhile reads it, until it closes the connection for its
            // silence.
            self.late_until = Some(given_up + self.timeout * 3 / 2);
        }
        self.unanswered.get_or_insert(at);
        self.move_limit();
    }

    /// The connection that was asked for at `asked` was granted that timeout.
    pub(crate) fn granted(&mut self, asked: Moment, timeout: Duration) {
        self.timeout = self.timeout.min(timeout);
        self.deadline = self.deadline.min(asked + share(self.timeout));
        self.connected_after = Some(asked);
        self.asking = None;
        if self.unanswered == Some(asked) {
            self.unanswered = None;
        }
        self.move_limit();
    }

    /// When holders give up unless there are more proofs.
    pub(crate) fn deadline(&self) -> Moment {
        match self.unanswered {
            Some(asked) => self.deadline.min(asked + share(self.least)),
            None => self.deadline,
        }
    }

    /// Returns what a lease that is granted now has to keep to.
    pub(crate) fn limit(&self) -> LeaseLimit {
        self.limit.clone()
    }

    /// Holders whose deadline has passed have given up. What is proven later is for other leases.
    fn move_limit(&mut self) {
        let deadline = self.deadline();
        if !self.limit.move_to(deadline) {
            self.limit = LeaseLimit::new(deadline);
        }
    }
}

/// How much of a timeout counts: two hundredths less, for clocks that run at different rates.
fn share(timeout: Duration) -> Duration {
    timeout * 98 / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(50);
    /// What counts of it.
    const SHARE: u64 = 49;

    fn at(start: Moment, secs: u64) -> Moment {
        start + Duration::from_secs(secs)
    }

    fn until(chain: &Chain, start: Moment) -> u64 {
        chain.deadline().saturating_since(start).as_secs()
    }

    #[test]
    fn the_last_proof_but_three_counts() {
        let start = Moment::now();
        let mut chain = Chain::new(T, start);
        for (sent, alive_at) in [(1, 0), (2, 0), (3, 0), (4, 1), (5, 2), (9, 3)] {
            chain.proven(at(start, sent));
            assert_eq!(until(&chain, start), alive_at + SHARE, "after the proof sent at {sent}");
        }
    }

    #[test]
    fn a_new_connection_counts_once_something_has_committed_on_it() {
        let start = Moment::now();
        let mut chain = Chain::new(T, start);
        (1..=4).for_each(|sent| chain.proven(at(start, sent)));
        chain.asked(at(start, 5));
        chain.granted(at(start, 5), T);
        assert_eq!(until(&chain, start), 1 + SHARE, "nothing is proven on it yet");
        for (sent, alive_at) in [(7, 5), (8, 5), (9, 5), (10, 7)] {
            chain.proven(at(start, sent));
            assert_eq!(until(&chain, start), alive_at + SHARE, "after the proof sent at {sent}");
        }
    }

    #[test]
    fn from_when_a_connection_was_asked_for_its_timeout_counts() {
        let start = Moment::now();
        let mut chain = Chain::new(T, start);
        chain.asked(at(start, 5));
        chain.granted(at(start, 5), T / 2);
        assert_eq!(until(&chain, start), 5 + 24);
        chain.proven(at(start, 6));
        assert_eq!(until(&chain, start), 5 + 24);
        chain.asked(at(start, 10));
        chain.granted(at(start, 10), T);
        chain.proven(at(start, 11));
        assert_eq!(until(&chain, start), 10 + 24, "a touch of before may be under way");
    }

    #[test]
    fn without_an_answer_the_least_counts() {
        let start = Moment::now();
        let mut chain = Chain::new(T, start);
        chain.asked(at(start, 5));
        chain.asked(at(start, 7));
        assert_eq!(until(&chain, start), 5 + 9);
        chain.granted(at(start, 7), T);
        assert_eq!(until(&chain, start), 5 + 9, "the first one may have been granted less");
        chain.proven(at(start, 8));
        assert_eq!(until(&chain, start), 8 + 9, "the first one may come late");
        chain.proven(at(start, 20));
        assert_eq!(until(&chain, start), 20 + 9);
        chain.proven(at(start, 80));
        assert_eq!(until(&chain, start), 7 + SHARE, "and has not come");
    }

    #[test]
    fn holders_see_the_deadline_move() {
        let start = Moment::now();
        let mut chain = Chain::new(T, start);
        let limit = chain.limit();
        assert_eq!(limit.at(), at(start, SHARE));
        chain.asked(at(start, 5));
        assert_eq!(limit.at(), at(start, 5) + Duration::from_millis(9800));
        chain.granted(at(start, 5), T);
        chain.proven(at(start, 6));
        assert_eq!(limit.at(), at(start, 5 + SHARE));
    }

    #[test]
    fn a_deadline_that_has_passed_stays() {
        let start = Moment::now();
        let long_ago = start.saturating_sub(T * 2);
        let mut chain = Chain::new(T, long_ago);
        let limit = chain.limit();
        chain.asked(start);
        chain.granted(start, T);
        chain.proven(start);
        assert_eq!(limit.at(), at(long_ago, SHARE));
        assert_eq!(chain.limit().at(), at(start, SHARE));
    }
}
