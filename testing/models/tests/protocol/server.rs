//! The server: the verbs of `memory.rs` and of the scripts of `lock-redis`. Each verb is one atomic
//! step.

use std::collections::BTreeSet;

use crate::promises as broken;
use crate::rules::{Rules, Sabotage};

/// A moment on the server's clock, or on a client's.
pub(crate) type Time = u8;

/// An owner id: the number of the claim that it was minted for.
pub(crate) type Owner = u8;

/// The state that a restart from a snapshot loses or restores.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Store {
    pub(crate) held: Option<Held>,
    /// The last stored token.
    fence: u8,
    pub(crate) line: Vec<Owner>,
    pub(crate) tombstones: BTreeSet<Owner>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Held {
    pub(crate) owner: Owner,
    pub(crate) until: Time,
    pub(crate) number: u8,
    /// The number of earlier grants. It is unknown to the protocol, and known to the promises.
    pub(crate) nth: u8,
}

/// A request on its way to the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Request {
    Attempt { owner: Owner },
    Renew { owner: Owner, ttl: Time },
    Release { owner: Owner, uncertain: bool },
}

/// An answer on its way back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Acquired {
        lease: Time,
        grant: Number,
    },
    Contended {
        expires_in: Time,
        at: Time,
    },
    Refused,
    Held {
        lease: Time,
        grant: Number,
    },
    NotHeld,
    /// `Released` or `NotHeld`: the engine ends the claim on either.
    ReleaseMode,
}

/// A token, and the index of its grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Number {
    pub(crate) token: u8,
    pub(crate) nth: u8,
}

/// The notification of a hand-off, sent from inside the verb that freed the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Push {
    pub(crate) owner: Owner,
    /// On the server's clock.
    pub(crate) since: Time,
    pub(crate) token: u8,
    pub(crate) nth: u8,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Server {
    pub(crate) store: Store,
    pub(crate) now: Time,
    /// Sorted. Not received yet, in any order; a lost one stays here.
    pub(crate) pushed: Vec<Push>,
    grants: u8,
    highest: u8,
    /// The promises that were violated.
    pub(crate) broke: BTreeSet<&'static str>,
}

impl Server {
    pub(crate) fn handle(&mut self, rules: &Rules, request: Request) -> Answer {
        match request {
            Request::Attempt { owner } => self.attempt(rules, owner),
            Request::Renew { owner, ttl } => self.renew(rules, owner, ttl),
            Request::Release { owner, uncertain } => self.release(rules, owner, uncertain),
        }
    }

    fn attempt(&mut self, rules: &Rules, owner: Owner) -> Answer {
        let dead = self.store.tombstones.contains(&owner);
        if dead && !rules.has(Sabotage::AdmitsLateAttempts) {
            return Answer::Refused;
        }
        self.settle(rules);
        match &mut self.store.held {
            Some(held) if held.owner == owner => {
                held.until = held.until.max(self.now + rules.lease);
                Answer::Acquired { lease: held.until - self.now, grant: held.number() }
            }
            Some(held) => {
                if rules.line && !self.store.line.contains(&owner) {
                    self.store.line.push(owner);
                }
                Answer::Contended { expires_in: held.until - self.now, at: self.now }
            }
            None => {
                let grant = self.grant(rules, owner, rules.lease);
                Answer::Acquired { lease: rules.lease, grant }
            }
        }
    }

    fn renew(&mut self, rules: &Rules, owner: Owner, ttl: Time) -> Answer {
        self.settle(rules);
        let adopts = rules.has(Sabotage::RenewAdopts);
        if adopts && self.store.held.is_some_and(|held| held.owner != owner) {
            self.breaks(broken::TOUCHES_NO_OTHER);
        }
        match &mut self.store.held {
            Some(held) if held.owner == owner || adopts => {
                let end = self.now + ttl;
                held.until = match rules.sabotage {
                    Some(Sabotage::RenewShortens) => end,
                    Some(Sabotage::RenewAddsUp) => held.until + ttl,
                    _ => held.until.max(end),
                };
                Answer::Held { lease: held.until - self.now, grant: held.number() }
            }
            None if rules.has(Sabotage::RenewRecreates) => {
                let grant = self.grant(rules, owner, ttl);
                Answer::Held { lease: ttl, grant }
            }
            _ => Answer::NotHeld,
        }
    }

    fn release(&mut self, rules: &Rules, owner: Owner, uncertain: bool) -> Answer {
        if uncertain && !rules.has(Sabotage::ForgetsFormerHolders) {
            self.store.tombstones.insert(owner);
        }
        self.settle(rules);
        let before = self.store.held;
        let anyone = rules.has(Sabotage::ReleasesAnyone);
        self.store.held.take_if(|held| held.owner == owner || anyone);
        if !rules.has(Sabotage::LeavesStaleQueueEntries) {
            self.store.line.retain(|waiter| *waiter != owner);
        }
        // The answer, and the effect of the call.
        let says_released = match before {
            Some(held) => held.owner == owner || rules.has(Sabotage::AlwaysReleased),
            None => rules.has(Sabotage::AlwaysReleased),
        };
        let removed = self.store.held.is_none().then_some(before).flatten();
        if removed.is_some_and(|held| held.owner != owner) {
            self.breaks(broken::TOUCHES_NO_OTHER);
        }
        if says_released && removed.is_none_or(|held| held.owner != owner) {
            self.breaks(broken::RELEASED_IS_TRUE);
        }
        self.settle(rules);
        Answer::ReleaseMode
    }

    /// Breaks the hold of the inspected owner, as `break_lock` does.
    pub(crate) fn break_lock(&mut self, rules: &Rules, expected: Owner) {
        self.settle(rules);
        let anyone = rules.has(Sabotage::BreaksAnyone);
        let ended = self.store.held.take_if(|held| held.owner == expected || anyone);
        if ended.is_some_and(|held| held.owner != expected) {
            self.breaks(broken::BREAKS_THE_EXPECTED);
        }
        self.settle(rules);
    }

    /// Ends an expired lease, and hands a free lock to the head of the queue.
    fn settle(&mut self, rules: &Rules) {
        self.store.held.take_if(|held| held.until <= self.now);
        if self.store.held.is_none() && !self.store.line.is_empty() {
            let owner = self.store.line.remove(0);
            let number = self.grant(rules, owner, rules.claim_lease);
            let push = Push { owner, since: self.now, token: number.token, nth: number.nth };
            self.pushed.push(push);
            self.pushed.sort_unstable();
        }
    }

    fn grant(&mut self, rules: &Rules, owner: Owner, lease: Time) -> Number {
        // `Fencing::Seeded`: some tokens fit into each tick of the clock.
        let clock =
            if rules.has(Sabotage::CountsOnly) { 0 } else { self.now * rules.numbers_a_tick };
        let token = (self.store.fence + 1).max(clock);
        self.store.fence = token;
        if token <= self.highest {
            self.breaks(broken::TOKENS_GROW);
        }
        self.highest = self.highest.max(token);
        let held = Held { owner, until: self.now + lease, number: token, nth: self.grants };
        self.grants += 1;
        self.store.held = Some(held);
        held.number()
    }

    /// Returns the holder, unless its lease is over.
    pub(crate) fn holder(&self) -> Option<Held> {
        self.store.held.filter(|held| held.until > self.now)
    }

    pub(crate) fn breaks(&mut self, promise: &'static str) {
        self.broke.insert(promise);
    }
}

impl Held {
    pub(crate) fn number(&self) -> Number {
        Number { token: self.number, nth: self.nth }
    }
}
