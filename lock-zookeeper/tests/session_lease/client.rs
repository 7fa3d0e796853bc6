//! The client: its connection, its chain of proofs, and the deadline that the rule makes of them.

use crate::rules::{Reopened, Rule, Spacing};
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
    pub(crate) deadline: Option<Deadline>,
    created: Time,
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
            reopened: None,
            sent: Vec::with_capacity(32),
        }
    }

    pub(crate) fn sends(&mut self, request: Request, now: Time) {
        match request {
            Request::Create => self.created = now,
            Request::Proof(_) | Request::Ping(Some(_)) => self.sent.push(now),
            Request::Reopen if self.rule.reopened == Reopened::FromAsking => {
                self.reopened = Some(now);
            }
            Request::Reopen | Request::Ping(None) => {}
        }
    }

    pub(crate) fn is_open_again(&mut self, now: Time) {
        if self.rule.reopened == Reopened::FromAnswer {
            self.reopened = Some(now);
        }
    }

    /// A new connection starts a new chain, while the old deadline stands.
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
        Some(self.lease_from(from))
    }

    pub(crate) fn lease_from(&self, from: Time) -> Time {
        from + self.by_its_clock(self.scenario.timeout() * self.rule.share / 1000)
    }

    pub(crate) fn first(&self) -> Request {
        self.rule.request(0)
    }

    pub(crate) fn next(&self, answered: usize, now: Time) -> (Time, Request) {
        let pause = self.by_its_clock(self.scenario.timeout() / 6);
        let at = match self.rule.spacing {
            Spacing::FromAnswer => now + pause,
            Spacing::FromSending => now.max(self.sent[answered] + pause),
        };
        (at, self.rule.request(answered + 1))
    }

    pub(crate) fn pings_every(&self) -> Time {
        self.by_its_clock(self.scenario.timeout() / 3)
    }

    /// After so long a silence it goes on to the next member.
    pub(crate) fn patience(&self) -> Time {
        self.by_its_clock(self.scenario.timeout() * 2 / 3)
    }

    fn by_its_clock(&self, length: Time) -> Time {
        length * 10_000 / self.scenario.client_rate
    }
}
