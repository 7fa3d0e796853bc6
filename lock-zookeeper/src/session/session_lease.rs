//! The time until which the session is known to live. It bounds the lease of every lock in it.
//!
//! Pings do not show that a session lives. A follower that is partitioned from its leader goes on
//! answering them while the leader expires the session. One committed write does not show it
//! either: the leader checks the session of a write that a follower forwards, and does not touch
//! it.
//!
//! A chain of committed writes does, each sent after the answer to the one before: the *heartbeat
//! writes*. The follower records that the session was used, and reports it to the leader in its
//! answer to each ping. A span is the time from the answer to one write to the sending of a later
//! one. If a span is a third of the timeout, the leader has sent a ping between the two commits.
//! The follower has answered that ping before it reads the next write. If that write commits too,
//! the session lives its timeout from the sending of the first one.
//!
//! The leader may stall between two commits. So a span, without the longest time between two of its
//! commits, must still be a sixth of the timeout. The times of the writes do not matter. They are
//! even, so that few writes make a long lease. Where a commit takes long, the next write follows at
//! once.
//!
//! A new connection makes the leader itself touch the session, as its creation does. If a write
//! commits on that connection, it commits through that leader. The session then lives a timeout
//! from any moment before the connection was requested.
//!
//! Each member has its own limits for timeouts, and the leader goes by the last touch, also if that
//! is a shorter one. So from the moment of a request for a connection, nothing counts beyond that
//! moment plus the timeout that it was granted. Earlier heartbeat writes do not change that. If the
//! answer is lost, the grant is taken to be a fifth of the first timeout.
//!
//! The request may also arrive late, and then takes the session away from the connection in use. A
//! write that commits shows that it had not arrived before, so the fifth counts from the last
//! write. A timeout that grows again does not count: a touch of the member before, with its
//! timeout, may still be under way.

use std::collections::VecDeque;
use std::time::Duration;

use lock_core::backend::LeaseLimit;
use lock_core::clock::Moment;

/// Heartbeat writes are sent at intervals of this part of the timeout.
const SPACING: u32 = 8;

/// A commit that takes longer than this part of the timeout is slow: the next write is sent at
/// once.
const SLOW: u32 = 16;

/// A commit that takes less than this part of the timeout is quick.
const QUICK: u32 = 40;

/// No member grants a session less than this part of its first timeout.
const LEAST: u32 = 5;

/// A heartbeat write that has committed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeartbeatWrite {
    pub(crate) sent: Moment,
    pub(crate) answered: Moment,
}

impl HeartbeatWrite {
    /// Returns how long the commit took, with the round trip of the client.
    pub(crate) fn took(&self) -> Duration {
        self.answered.saturating_since(self.sent)
    }
}

/// The lease of one session, which its heartbeat writes prolong.
#[derive(Debug)]
pub(crate) struct SessionLease {
    /// The shortest timeout that a connection of the session was granted.
    timeout: Duration,
    /// The timeout that counts for a connection whose answer was lost.
    least: Duration,
    /// The moment until which the session lives, by the answers.
    deadline: Moment,
    /// The last heartbeat writes, oldest first. All are on one connection, sent one after the
    /// other.
    heartbeats: VecDeque<HeartbeatWrite>,
    /// No heartbeat writes are sent: nothing depends on the session.
    paused: bool,
    /// A moment before the request for the current connection, until its first heartbeat write
    /// commits.
    connected_after: Option<Moment>,
    /// The request for a connection that has not been answered.
    pending: Option<Moment>,
    /// From this moment on a connection may have been granted whose answer is not known.
    unanswered: Option<Moment>,
    /// Until this moment a cancelled request for a connection may arrive.
    late_until: Option<Moment>,
    /// The deadline that the holders of leases see.
    limit: LeaseLimit,
}

impl SessionLease {
    /// Creates the lease of a session that was requested at `asked`.
    pub(crate) fn new(timeout: Duration, asked: Moment) -> Self {
        Self {
            timeout,
            least: timeout / LEAST,
            deadline: asked + share(timeout),
            heartbeats: VecDeque::new(),
            paused: false,
            connected_after: None,
            pending: None,
            unanswered: None,
            late_until: None,
            limit: LeaseLimit::new(asked + share(timeout)),
        }
    }

    /// Returns the shortest timeout that was granted.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns when to send the next heartbeat write.
    pub(crate) fn next_heartbeat(&self) -> Moment {
        let Some(last) = self.heartbeats.back() else { return Moment::now() };
        let next = match last.took() > self.timeout / SLOW {
            true => last.answered,
            false => last.sent + self.timeout / SPACING,
        };
        match self.unanswered {
            // A lost answer leaves a short deadline. The write precedes it.
            Some(_) => next.min(last.answered + self.least / 3),
            None => next,
        }
    }

    /// Returns when to send the next heartbeat write after one that failed.
    pub(crate) fn next_retry(&self) -> Moment {
        Moment::now() + self.timeout / SPACING / 4
    }

    /// Stops heartbeat writes until the next connection. Returns false if another connection may
    /// take long; they go on then.
    pub(crate) fn pause(&mut self) -> bool {
        self.paused = self.heartbeats.back().is_some_and(|last| last.took() < self.timeout / QUICK);
        self.paused
    }

    /// Returns true if no heartbeat writes keep up the deadline. Only another connection gives a
    /// new one soon.
    pub(crate) fn is_paused(&self) -> bool {
        self.paused
    }

    /// Records a heartbeat write. The request whose answer is lost had not arrived when the leader
    /// checked it.
    pub(crate) fn record(&mut self, heartbeat: HeartbeatWrite) {
        self.unanswered =
            self.late_until.filter(|until| heartbeat.sent < *until).map(|_| heartbeat.sent);
        let alive_at = self.connected_after.take().max(self.span_start());
        if let Some(alive_at) = alive_at {
            self.deadline = self.deadline.max(alive_at + share(self.timeout));
        }
        self.heartbeats.push_back(heartbeat);
        self.paused = false;
        self.move_limit();
    }

    /// Returns when the last write was sent from which there is a span. Drops the writes before it.
    fn span_start(&mut self) -> Option<Moment> {
        let start = (0..self.heartbeats.len()).rev().find(|&first| self.spans(first))?;
        self.heartbeats.drain(..start);
        self.heartbeats.front().map(|first| first.sent)
    }

    /// Returns true if the leader has sent a ping between the commits of this write and the last
    /// one.
    fn spans(&self, first: usize) -> bool {
        let heartbeats = || self.heartbeats.range(first..);
        let (Some(first), Some(last)) = (heartbeats().next(), heartbeats().next_back()) else {
            return false;
        };
        let length = last.sent.saturating_since(first.answered);
        let between_commits = heartbeats().zip(heartbeats().skip(1)).map(|(one, next)| {
            next.answered.min(last.sent).saturating_since(one.sent.max(first.answered))
        });
        let rest = length.saturating_sub(between_commits.max().unwrap_or_default());
        length >= self.timeout / 3 && rest >= self.timeout / 6
    }

    /// Records a request for a connection: from `at` on a server may have taken the session over.
    pub(crate) fn connecting(&mut self, at: Moment) {
        self.heartbeats.clear();
        self.connected_after = None;
        if let Some(given_up) = self.pending.replace(at) {
            // A stalled server reads it later, until it closes the connection for its silence.
            self.late_until = Some(given_up + self.timeout * 3 / 2);
        }
        self.unanswered.get_or_insert(at);
        self.move_limit();
    }

    /// Records that the connection requested at `asked` was granted `timeout`.
    pub(crate) fn connected(&mut self, asked: Moment, timeout: Duration) {
        self.timeout = self.timeout.min(timeout);
        self.deadline = self.deadline.min(asked + share(self.timeout));
        self.connected_after = Some(asked);
        self.pending = None;
        if self.unanswered == Some(asked) {
            self.unanswered = None;
        }
        self.move_limit();
    }

    /// Returns when holders stop unless more heartbeat writes commit.
    pub(crate) fn deadline(&self) -> Moment {
        match self.unanswered {
            Some(asked) => self.deadline.min(asked + share(self.least)),
            None => self.deadline,
        }
    }

    /// Returns the moment until which the answers prove that the session lives. Unanswered requests
    /// may prolong it.
    pub(crate) fn proven_until(&self) -> Moment {
        self.deadline
    }

    /// Returns true if more time is left than one commit takes.
    pub(crate) fn allows_grant(&self) -> bool {
        let commit = self.heartbeats.back().map(HeartbeatWrite::took).unwrap_or_default();
        self.deadline().remaining() > commit
    }

    /// Returns the limit of the leases that are granted now.
    pub(crate) fn limit(&self) -> LeaseLimit {
        self.limit.clone()
    }

    /// Moves the limit of the holders. A holder whose deadline has passed has stopped: later writes
    /// count for other leases.
    fn move_limit(&mut self) {
        let deadline = self.deadline();
        if !self.limit.move_to(deadline) {
            self.limit = LeaseLimit::new(deadline);
        }
    }
}

/// Returns the part of a timeout that counts: two hundredths less, for clocks at different rates.
fn share(timeout: Duration) -> Duration {
    timeout * 98 / 100
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Duration = Duration::from_secs(50);
    /// The seconds of it that count.
    const SHARE: u64 = 49;

    fn at(start: Moment, secs: u64) -> Moment {
        start + Duration::from_secs(secs)
    }

    fn until(lease: &SessionLease, start: Moment) -> u64 {
        lease.deadline().saturating_since(start).as_secs()
    }

    /// Records a write that was sent at `sent` and answered `took` seconds later.
    fn send_heartbeats(lease: &mut SessionLease, start: Moment, sent: u64, took: u64) {
        lease.record(HeartbeatWrite { sent: at(start, sent), answered: at(start, sent + took) });
    }

    /// A third of the timeout is 17 s, rounded up, and a sixth is 9 s.
    #[test]
    fn the_last_heartbeat_that_has_a_span_before_the_last_two_counts() {
        let start = Moment::now();
        let mut lease = SessionLease::new(T, start);
        for (sent, alive_at) in
            [(1, 0), (10, 0), (19, 0), (28, 1), (29, 10), (36, 10), (44, 10), (60, 19)]
        {
            send_heartbeats(&mut lease, start, sent, 0);
            assert_eq!(until(&lease, start), alive_at + SHARE, "after the proof sent at {sent}");
        }
    }

    #[test]
    fn a_span_begins_with_an_answer() {
        let start = Moment::now();
        let mut lease = SessionLease::new(T, start);
        for (sent, took, alive_at) in [(1, 2, 0), (11, 0, 0), (19, 0, 0), (20, 0, 0), (21, 0, 1)] {
            send_heartbeats(&mut lease, start, sent, took);
            assert_eq!(until(&lease, start), alive_at + SHARE, "after the proof sent at {sent}");
        }
    }

    #[test]
    fn a_stall_between_two_commits_is_no_part_of_a_span() {
        let start = Moment::now();
        let mut lease = SessionLease::new(T, start);
        for (sent, alive_at) in [(1, 0), (5, 0), (20, 0), (21, 0), (30, 0), (31, 5)] {
            send_heartbeats(&mut lease, start, sent, 0);
            assert_eq!(until(&lease, start), alive_at + SHARE, "after the proof sent at {sent}");
        }
    }

    #[test]
    fn heartbeats_are_evenly_sent_and_at_once_where_a_commit_is_slow() {
        let start = Moment::now();
        let mut lease = SessionLease::new(T, start);
        let next = |lease: &SessionLease| lease.next_heartbeat().saturating_since(start);
        send_heartbeats(&mut lease, start, 1, 3);
        assert_eq!(next(&lease), Duration::from_millis(1000 + 6250));
        send_heartbeats(&mut lease, start, 8, 4);
        assert_eq!(next(&lease), Duration::from_secs(12));
        lease.connecting(at(start, 13));
        lease.connected(at(start, 13), T);
        lease.connecting(at(start, 14));
        lease.connecting(at(start, 15));
        send_heartbeats(&mut lease, start, 16, 1);
        assert!(next(&lease) < Duration::from_secs(21), "before the deadline of a lost answer");
    }

    #[test]
    fn a_grant_needs_more_time_than_a_commit_takes() {
        let now = Moment::now();
        let mut lease = SessionLease::new(T, now.saturating_sub(Duration::from_secs(SHARE - 2)));
        for (took, is_good) in [(1, true), (3, false)] {
            let sent = now.saturating_sub(Duration::from_secs(took));
            lease.record(HeartbeatWrite { sent, answered: now });
            assert_eq!(lease.allows_grant(), is_good, "took {took} s");
        }
    }

    #[test]
    fn a_new_connection_counts_once_something_has_committed_on_it() {
        let start = Moment::now();
        let mut lease = SessionLease::new(T, start);
        (1..=4).for_each(|turn| send_heartbeats(&mut lease, start, 9 * turn, 0));
        lease.connecting(at(start, 37));
        lease.connected(at(start, 37), T);
        assert_eq!(until(&lease, start), 9 + SHARE, "nothing is proven on it yet");
        for (sent, alive_at) in [(39, 37), (48, 37), (57, 37), (58, 39)] {
            send_heartbeats(&mut lease, start, sent, 0);
            assert_eq!(until(&lease, start), alive_at + SHARE, "after the proof sent at {sent}");
        }
    }

    #[test]
    fn from_when_a_connection_was_asked_for_its_timeout_counts() {
        let start = Moment::now();
        let mut lease = SessionLease::new(T, start);
        lease.connecting(at(start, 5));
        lease.connected(at(start, 5), T / 2);
        assert_eq!(until(&lease, start), 5 + 24);
        send_heartbeats(&mut lease, start, 6, 0);
        assert_eq!(until(&lease, start), 5 + 24);
        lease.connecting(at(start, 10));
        lease.connected(at(start, 10), T);
        send_heartbeats(&mut lease, start, 11, 0);
        assert_eq!(until(&lease, start), 10 + 24, "a touch of before may be under way");
    }

    #[test]
    fn without_an_answer_the_least_counts() {
        let start = Moment::now();
        let mut lease = SessionLease::new(T, start);
        lease.connecting(at(start, 5));
        lease.connecting(at(start, 7));
        assert_eq!(until(&lease, start), 5 + 9);
        lease.connected(at(start, 7), T);
        assert_eq!(until(&lease, start), 5 + 9, "the first one may have been granted less");
        send_heartbeats(&mut lease, start, 8, 0);
        assert_eq!(until(&lease, start), 8 + 9, "the first one may come late");
        send_heartbeats(&mut lease, start, 20, 0);
        assert_eq!(until(&lease, start), 20 + 9);
        send_heartbeats(&mut lease, start, 80, 0);
        assert_eq!(until(&lease, start), 7 + SHARE, "and has not come");
    }

    #[test]
    fn holders_see_the_deadline_move() {
        let start = Moment::now();
        let mut lease = SessionLease::new(T, start);
        let limit = lease.limit();
        assert_eq!(limit.at(), at(start, SHARE));
        lease.connecting(at(start, 5));
        assert_eq!(limit.at(), at(start, 5) + Duration::from_millis(9800));
        lease.connected(at(start, 5), T);
        send_heartbeats(&mut lease, start, 6, 0);
        assert_eq!(limit.at(), at(start, 5 + SHARE));
    }

    #[test]
    fn a_deadline_that_has_passed_stays() {
        let start = Moment::now();
        let long_ago = start.saturating_sub(T * 2);
        let mut lease = SessionLease::new(T, long_ago);
        let limit = lease.limit();
        lease.connecting(start);
        lease.connected(start, T);
        send_heartbeats(&mut lease, start, 0, 0);
        assert_eq!(limit.at(), at(long_ago, SHARE));
        assert_eq!(lease.limit().at(), at(start, SHARE));
    }
}
