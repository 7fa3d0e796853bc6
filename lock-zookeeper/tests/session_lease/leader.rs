//! The leader's books on the one session: when it ends (`SessionTrackerImpl`, `ExpiryQueue`), who owns it,
//! and how its ping loop kept up with the proofs.

use crate::scenario::{FOLLOWERS, LEADER, Scenario, Time};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    Alive,
    /// It lives, but at another member: `SessionMovedException`.
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
    /// Of the proofs of this connection: checked when, committed when.
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

    pub(crate) fn standing(&self, member: usize) -> Standing {
        match (self.bucket, self.expired) {
            (None, _) | (_, Some(_)) => Standing::Over,
            _ if self.owner != member => Standing::Moved,
            _ => Standing::Alive,
        }
    }

    /// Whether there is a session to be touched, with the timeout of the member that reports it.
    pub(crate) fn touch(&mut self, now: Time, by: usize) -> bool {
        let lives = self.known() && self.expired.is_none();
        if lives {
            self.bucket = Some(self.bucket_of(now, by));
        }
        lives
    }

    /// When the session ends, in real time, if nothing touches it.
    pub(crate) fn ends(&self) -> Time {
        let shows = self.bucket.map_or(0, |bucket| bucket * 1000);
        let passes = shows.saturating_sub(self.scenario.leader_clock);
        (passes * 10_000).div_ceil(self.scenario.leader_rate)
    }

    /// Whether somebody has to begin to watch the session's end.
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

    /// The proofs of a connection are checked in order, from 0.
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

    /// The assumption: it does not hold for a proof if the ping loop sent no ping between the check
    /// of the proof that the lease counts from and the commit of the last one before.
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

    /// `roundToNextInterval` of Java's clock and the timeout.
    fn bucket_of(&self, now: Time, member: usize) -> u64 {
        let shows = self.scenario.leader_clock + now * self.scenario.leader_rate / 10_000;
        let tick = self.scenario.tick_ms;
        ((shows / 1000 + self.scenario.grants_ms[member]) / tick + 1) * tick
    }
}
