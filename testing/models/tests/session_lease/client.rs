//! The client: its connection, its heartbeat writes, and the deadline that the rule makes of them.

use fastrand::Rng;

use crate::rules::{Grants, Reopened, Rule, Spacing, Span, Start};
use crate::scenario::{MEMBERS, Scenario, Time};
use crate::world::{Connection, Request};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Time,
    /// True if the assumption held while its heartbeat writes were made.
    pub(crate) counts: bool,
}

pub(crate) struct Client<'a> {
    rule: &'a Rule,
    scenario: &'a Scenario,
    pub(crate) connection: Connection,
    pub(crate) member: usize,
    pub(crate) heard: Time,
    /// The session is over, or its state cannot be known any more.
    pub(crate) over: bool,
    /// The deadline by the answers.
    pub(crate) deadline: Option<Deadline>,
    created: Time,
    /// The timeout that counts.
    timeout: Time,
    /// The connection that was asked for last has not been answered.
    asking: Option<Time>,
    /// From then on a connection may have been granted whose answer is not known.
    unanswered: Option<Time>,
    /// Until then a request for a connection may arrive that was given up.
    late_until: Option<Time>,
    /// The moment from which this connection counts by itself.
    reopened: Option<Time>,
    /// When each heartbeat write of this connection was sent: the `t0` of the rule.
    sent: Vec<Time>,
    answered: Vec<Time>,
}

impl<'a> Client<'a> {
    pub(crate) fn new(rule: &'a Rule, scenario: &'a Scenario) -> Self {
        Self {
            rule,
            scenario,
            connection: 0,
            member: scenario.member,
            heard: 0,
            over: false,
            deadline: None,
            created: 0,
            timeout: scenario.timeout(),
            asking: None,
            unanswered: None,
            late_until: None,
            reopened: None,
            sent: Vec::with_capacity(32),
            answered: Vec::with_capacity(32),
        }
    }

    pub(crate) fn sends(&mut self, request: Request, now: Time) {
        match request {
            Request::Create => self.created = now,
            Request::Heartbeat(_) | Request::Ping(Some(_)) => self.sent.push(now),
            Request::Reopen => self.asks_again(now),
            Request::Ping(None) => {}
        }
    }

    fn asks_again(&mut self, now: Time) {
        if self.rule.reopened == Reopened::FromAsking {
            self.reopened = Some(now);
        }
        if let Some(given_up) = self.asking.replace(now) {
            self.late_until = Some(given_up + self.by_its_clock(self.timeout * 3 / 2));
        }
        self.unanswered.get_or_insert(now);
    }

    /// Records that the session was created with `timeout`.
    pub(crate) fn is_made(&mut self, timeout: Time) {
        self.timeout = self.timeout.min(timeout);
    }

    /// Records that the member granted `timeout`.
    pub(crate) fn is_open_again(&mut self, now: Time, timeout: Time) {
        if self.rule.reopened == Reopened::FromAnswer {
            self.reopened = Some(now);
        }
        let asked = self.asking.take();
        if self.unanswered == asked {
            self.unanswered = None;
        }
        self.timeout = match self.rule.grants {
            Grants::FirstStands => return,
            Grants::GrowsAgain => timeout,
            _ => self.timeout.min(timeout),
        };
        let until = self.lease_from(asked.unwrap_or(now));
        if self.rule.grants != Grants::DeadlineStands
            && let Some(deadline) = &mut self.deadline
        {
            deadline.at = deadline.at.min(until);
        }
    }

    /// Records an answer: at the check of the write, no other connection had been granted.
    pub(crate) fn record_answer(&mut self, number: usize, now: Time) {
        self.answered.push(now);
        self.unanswered = self.may_come_after(number);
    }

    fn may_come_after(&self, number: usize) -> Option<Time> {
        let sent = *self.sent.get(number)?;
        if self.rule.grants == Grants::NothingLate {
            return None;
        }
        self.late_until.filter(|until| sent < *until).map(|_| sent)
    }

    /// Returns until when the client treats the lock as held.
    pub(crate) fn current_deadline(&self) -> Option<Deadline> {
        let deadline = self.deadline?;
        Some(Deadline { at: self.at_least(deadline.at, self.unanswered), ..deadline })
    }

    /// Returns `until`, or less if a connection without an answer may have been granted less.
    fn at_least(&self, until: Time, unanswered: Option<Time>) -> Time {
        let counts = !matches!(self.rule.grants, Grants::FirstStands | Grants::LostIsNone);
        match unanswered.filter(|_| counts) {
            Some(asked) => until.min(asked + self.share(self.scenario.timeout() / 5)),
            None => until,
        }
    }

    /// Starts a new chain of writes on a new connection.
    pub(crate) fn reconnect(&mut self, now: Time) {
        self.connection += 1;
        self.member = (self.member + 1) % MEMBERS;
        self.heard = now;
        self.reopened = None;
        self.sent.clear();
        self.answered.clear();
    }

    /// Returns the deadline of a session that was created.
    pub(crate) fn deadline_by_creation(&self, now: Time) -> Time {
        self.lease_from(if self.rule.created_at_answer { now } else { self.created })
    }

    /// Returns the deadline by the answer to a write, if the chain is long enough.
    pub(crate) fn deadline_by(&self, number: usize) -> Option<Time> {
        let chain = self.start_of(number).map(|first| self.sent[first]);
        let from = chain.max(self.reopened)?;
        Some(self.at_least(self.lease_from(from), self.may_come_after(number)))
    }

    /// Returns the write that the lease counts from once this one is answered.
    pub(crate) fn start_of(&self, number: usize) -> Option<usize> {
        match self.rule.start {
            Start::Back(back) => number.checked_sub(back),
            Start::Span(span) => (0..number).rev().find(|&first| self.spans(span, first, number)),
        }
        .filter(|&first| first < self.sent.len())
    }

    fn spans(&self, span: Span, first: usize, number: usize) -> bool {
        let last = if span.to_one_before { number - 1 } else { number };
        let from = if span.from_answer { self.answered[first] } else { self.sent[first] };
        let until = self.sent[last];
        let hole = (first..last).map(|before| {
            let answered = self.answered.get(before + 1).map_or(until, |&at| at.min(until));
            answered.saturating_sub(self.sent[before].max(from))
        });
        let length = until.saturating_sub(from);
        let rest = length - hole.max().unwrap_or(0).min(length);
        length >= self.part(span.length) && rest >= self.part(span.rest)
    }

    /// Returns so many thousandths of the timeout.
    fn part(&self, thousandths: Time) -> Time {
        self.by_its_clock(self.timeout * thousandths / 1000)
    }

    pub(crate) fn lease_from(&self, from: Time) -> Time {
        from + self.share(self.timeout)
    }

    fn share(&self, timeout: Time) -> Time {
        self.by_its_clock(timeout * self.rule.share / 1000)
    }

    pub(crate) fn first(&self) -> Request {
        self.rule.request(0)
    }

    pub(crate) fn next(&self, answered: usize, now: Time, rng: &mut Rng) -> (Time, Request) {
        let at = match self.rule.spacing {
            Spacing::Even if now - self.sent[answered] > self.by_its_clock(self.timeout / 16) => {
                now
            }
            Spacing::Even => now.max(self.sent[answered] + self.by_its_clock(self.timeout / 8)),
            Spacing::Drawn if rng.bool() => now,
            // A pause: nothing depends on the session.
            Spacing::Drawn if rng.u8(..8) == 0 => now + rng.u64(..=self.timeout),
            Spacing::Drawn => now + rng.u64(..=self.by_its_clock(self.timeout / 3)),
        };
        // Before the deadline that a lost answer leaves.
        let soon = now + self.by_its_clock(self.scenario.timeout() / 15);
        let at = if self.unanswered.is_some() { at.min(soon) } else { at };
        (at, self.rule.request(answered + 1))
    }

    pub(crate) fn pings_every(&self) -> Time {
        self.by_its_clock(self.timeout / 3)
    }

    /// Returns the silence after which the client connects to the next member.
    pub(crate) fn silence_limit(&self) -> Time {
        self.by_its_clock(self.timeout * 2 / 3)
    }

    fn by_its_clock(&self, length: Time) -> Time {
        length * 10_000 / self.scenario.client_rate
    }
}
