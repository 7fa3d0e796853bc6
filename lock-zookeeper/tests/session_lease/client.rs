//! The client: its connection, its chain of proofs, and the deadline that the rule makes of them.

use crate::rules::{Grants, Reopened, Rule, Spacing};
use crate::scenario::{MEMBERS, Scenario, Time};
use crate::world::{Connection, Request};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Deadline {
    pub(crate) at: Time,
    /// Whether the assumption held while its proofs were made.
    pub(crate) counts: bool,
}

pub(crate) struct Client<'a> {
    rule: &'a Rule,
    scenario: &'a Scenario,
    pub(crate) connection: Connection,
    pub(crate) member: usize,
    pub(crate) heard: Time,
    /// It knows that its session is over, or that nothing can be known any more.
    pub(crate) over: bool,
    /// By what was answered.
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
    /// What this connection counts from by itself.
    reopened: Option<Time>,
    /// When each proof of this connection was sent: the `t0` of the rule.
    sent: Vec<Time>,
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
        }
    }

    pub(crate) fn sends(&mut self, request: Request, now: Time) {
        match request {
            Request::Create => self.created = now,
            Request::Proof(_) | Request::Ping(Some(_)) => self.sent.push(now),
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

    /// The session was made with `timeout`.
    pub(crate) fn is_made(&mut self, timeout: Time) {
        self.timeout = self.timeout.min(timeout);
    }

    /// The member granted `timeout`.
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

    /// A proof was answered: at its check, no other connection had been granted.
    pub(crate) fn is_proven(&mut self, number: usize) {
        self.unanswered = self.may_come_after(number);
    }

    fn may_come_after(&self, number: usize) -> Option<Time> {
        let sent = *self.sent.get(number)?;
        if self.rule.grants == Grants::NothingLate {
            return None;
        }
        self.late_until.filter(|until| sent < *until).map(|_| sent)
    }

    /// Until when the client takes the lock for held.
    pub(crate) fn believes(&self) -> Option<Deadline> {
        let deadline = self.deadline?;
        Some(Deadline { at: self.at_least(deadline.at, self.unanswered), ..deadline })
    }

    /// `until`, unless a connection without an answer was granted less.
    fn at_least(&self, until: Time, unanswered: Option<Time>) -> Time {
        let counts = !matches!(self.rule.grants, Grants::FirstStands | Grants::LostIsNone);
        match unanswered.filter(|_| counts) {
            Some(asked) => until.min(asked + self.share(self.scenario.timeout() / 5)),
            None => until,
        }
    }

    /// A new connection starts a new chain.
    pub(crate) fn reconnect(&mut self, now: Time) {
        self.connection += 1;
        self.member = (self.member + 1) % MEMBERS;
        self.heard = now;
        self.reopened = None;
        self.sent.clear();
    }

    /// Of a session that is told to be made.
    pub(crate) fn deadline_by_creation(&self, now: Time) -> Time {
        self.lease_from(if self.rule.created_at_answer { now } else { self.created })
    }

    /// What the answer to a proof says, if the chain is long enough.
    pub(crate) fn deadline_by(&self, number: usize) -> Option<Time> {
        let chain = number.checked_sub(self.rule.back).and_then(|first| self.sent.get(first));
        let from = chain.copied().max(self.reopened)?;
        Some(self.at_least(self.lease_from(from), self.may_come_after(number)))
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

    pub(crate) fn next(&self, answered: usize, now: Time) -> (Time, Request) {
        let pause = self.by_its_clock(self.timeout / 6);
        let at = match self.rule.spacing {
            Spacing::FromAnswer => now + pause,
            Spacing::FromSending => now.max(self.sent[answered] + pause),
        };
        (at, self.rule.request(answered + 1))
    }

    pub(crate) fn pings_every(&self) -> Time {
        self.by_its_clock(self.timeout / 3)
    }

    /// After so long a silence it goes on to the next member.
    pub(crate) fn patience(&self) -> Time {
        self.by_its_clock(self.timeout * 2 / 3)
    }

    fn by_its_clock(&self, length: Time) -> Time {
        length * 10_000 / self.scenario.client_rate
    }
}
