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

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::clock::Moment;

/// How many proofs it takes: the last, and three before it.
const LINKS: usize = 4;

/// The proofs of one session.
#[derive(Debug)]
pub(crate) struct Chain {
    timeout: Duration,
    /// From then on the session lives its timeout, at least.
    alive_at: Moment,
    /// When the last proofs were sent, oldest first; all on one connection.
    sent: VecDeque<Moment>,
    /// The connection was not asked for before then; until its first proof.
    connected_after: Option<Moment>,
}

impl Chain {
    /// Of a session whose creation was asked for at `asked`.
    pub(crate) fn new(timeout: Duration, asked: Moment) -> Self {
        Self { timeout, alive_at: asked, sent: VecDeque::new(), connected_after: None }
    }

    /// From the acknowledgement of one proof to the sending of the next.
    pub(crate) fn spacing(&self) -> Duration {
        self.timeout / 6
    }

    /// A proof that was sent at `sent` was acknowledged.
    pub(crate) fn proven(&mut self, sent: Moment) {
        if let Some(connected_after) = self.connected_after.take() {
            self.alive_at = self.alive_at.max(connected_after);
        }
        self.sent.push_back(sent);
        if self.sent.len() == LINKS {
            let first = self.sent.pop_front().expect("there are several");
            self.alive_at = self.alive_at.max(first);
        }
    }

    /// There is another connection, which was not asked for before `after`.
    pub(crate) fn reconnected(&mut self, after: Moment) {
        self.sent.clear();
        self.connected_after = Some(after);
    }

    /// When holders give up unless there are more proofs: two hundredths early, for clocks that run at
    /// different rates.
    pub(crate) fn deadline(&self) -> Moment {
        self.alive_at + self.timeout * 98 / 100
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(6);

    fn at(start: Moment, secs: u64) -> Moment {
        start + Duration::from_secs(secs)
    }

    fn age(chain: &Chain, start: Moment) -> u64 {
        chain.alive_at.saturating_since(start).as_secs()
    }

    #[test]
    fn the_last_proof_but_three_counts() {
        let start = Moment::now();
        let mut chain = Chain::new(T, start);
        for (sent, alive_at) in [(1, 0), (2, 0), (3, 0), (4, 1), (5, 2), (9, 3)] {
            chain.proven(at(start, sent));
            assert_eq!(age(&chain, start), alive_at, "after the proof sent at {sent}");
        }
    }

    #[test]
    fn a_new_connection_counts_once_something_has_committed_on_it() {
        let start = Moment::now();
        let mut chain = Chain::new(T, start);
        (1..=4).for_each(|sent| chain.proven(at(start, sent)));
        chain.reconnected(at(start, 5));
        assert_eq!(age(&chain, start), 1, "the old deadline stands");
        for (sent, alive_at) in [(7, 5), (8, 5), (9, 5), (10, 7)] {
            chain.proven(at(start, sent));
            assert_eq!(age(&chain, start), alive_at, "after the proof sent at {sent}");
        }
        chain.reconnected(at(start, 2));
        chain.proven(at(start, 11));
        assert_eq!(age(&chain, start), 7, "never earlier than before");
    }

    #[test]
    fn holders_give_up_before_the_session_ends() {
        let start = Moment::now();
        let chain = Chain::new(T, start);
        let left = chain.deadline().saturating_since(start);
        assert_eq!(left, T - T / 50);
    }
}
