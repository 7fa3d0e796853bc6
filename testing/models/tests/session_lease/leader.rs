//! The leader's record of the session: its end (`SessionTrackerImpl`, `ExpiryQueue`), its owner,
//! and how its ping loop kept up with the heartbeat writes.

use crate::scenario::{FOLLOWERS, LEADER, Scenario, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SessionStatus {
    Alive,
    /// The session lives, but at another member: `SessionMovedException`.
    Moved,
    Over,
}

pub(crate) struct Leader<'a> {
    scenario: &'a Scenario,
    /// The end of the tick in which the session ends, on the leader's clock, in milliseconds.
    bucket: Option<u64>,
    watched: bool,
    pub(crate) expired: Option<Time>,
    pub(crate) owner: usize,
    pings: [Vec<Time>; FOLLOWERS],
    /// The times at which the writes of this connection were checked and committed.
    checks: Vec<Time>,
    commits: Vec<Time>,
}

impl<'a> Leader<'a> {
    pub(crate) fn new(scenario: &'a Scenario) -> Self {
        Self {
            scenario,
            bucket: None,
            watched: false,
            expired: None,
            owner: scenario.member,
            pings: [const { Vec::new() }; FOLLOWERS],
            checks: Vec::with_capacity(32),
            commits: Vec::with_capacity(32),
        }
    }

    pub(crate) fn open(&mut self, member: usize, now: Time) {
        self.owner = member;
        self.bucket = Some(self.bucket_of(now, member));
    }

    fn known(&self) -> bool {
        self.bucket.is_some()
    }

    pub(crate) fn status(&self, member: usize) -> SessionStatus {
        match (self.bucket, self.expired) {
            (None, _) | (_, Some(_)) => SessionStatus::Over,
            _ if self.owner != member => SessionStatus::Moved,
            _ => SessionStatus::Alive,
        }
    }

    /// Touches the session with the timeout of the member that reports it. Returns true if it
    /// lives.
    pub(crate) fn touch(&mut self, now: Time, by: usize) -> bool {
        let lives = self.known() && self.expired.is_none();
        if lives {
            self.bucket = Some(self.bucket_of(now, by));
        }
        lives
    }

    /// Returns when the session ends, in real time, if nothing touches it.
    pub(crate) fn ends(&self) -> Time {
        let shows = self.bucket.map_or(0, |bucket| bucket * 1000);
        let passes = shows.saturating_sub(self.scenario.leader_clock);
        (passes * 10_000).div_ceil(self.scenario.leader_rate)
    }

    /// Returns true if the end of the session has to be scheduled.
    pub(crate) fn watch_expiry(&mut self) -> bool {
        !std::mem::replace(&mut self.watched, true)
    }

    pub(crate) fn expire(&mut self, now: Time) -> bool {
        let over = now >= self.ends();
        if over {
            self.expired = Some(now);
        }
        over
    }

    pub(crate) fn pings_every(&self) -> Time {
        self.scenario.tick() / 2 * 10_000 / self.scenario.leader_rate
    }

    pub(crate) fn pinged(&mut self, member: usize, now: Time) {
        self.pings[member].push(now);
    }

    /// Records that a write was checked. The writes of a connection are checked in order, from 0.
    pub(crate) fn checked(&mut self, number: usize, now: Time) {
        self.checks.truncate(number);
        self.commits.truncate(number);
        self.checks.push(now);
    }

    pub(crate) fn committed(&mut self, number: usize, now: Time) {
        if number == self.commits.len() {
            self.commits.push(now);
        }
    }

    /// Returns true if the assumption holds for a write. It fails if the ping loop sent no ping
    /// between the check of the write that the lease counts from and the commit before the last.
    pub(crate) fn loop_kept_up(&self, member: usize, first: Option<usize>, number: usize) -> bool {
        let (Some(from), Some(until)) = (
            first.and_then(|first| self.checks.get(first)),
            self.commits.get(number.wrapping_sub(1)),
        ) else {
            return true;
        };
        member == LEADER
            || self.pings[member].iter().rev().any(|ping| (from..=until).contains(&ping))
    }

    /// Returns the end of a session, as `roundToNextInterval` of Java's clock and the timeout.
    fn bucket_of(&self, now: Time, member: usize) -> u64 {
        let shows = self.scenario.leader_clock + now * self.scenario.leader_rate / 10_000;
        let tick = self.scenario.tick_ms;
        ((shows / 1000 + self.scenario.grants_ms[member]) / tick + 1) * tick
    }
}
