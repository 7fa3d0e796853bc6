//! The claims that holders recorded, and the promises that they must not break.

use serde_json::{Value, json};

use super::error::{Result, RunError};
use crate::model::Shape;

/// One hold of a lock, as its holder saw it, in nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// The index of the worker.
    pub(crate) peer: usize,
    pub(crate) asked: u64,
    pub(crate) acquired: u64,
    pub(crate) releasing: u64,
    pub(crate) token: Option<u64>,
}

/// All claims of one lock, in the order of their acquisition.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(Vec<Claim>);

impl Claims {
    /// Reads the answer to `collect` and adds its claims of the lock `name`.
    pub(crate) fn add(&mut self, peer: usize, name: &str, answer: &Value) -> Result<()> {
        let claims = answer["claims"].get(name).and_then(Value::as_array);
        for claim in claims.into_iter().flatten() {
            let claim = Claim::parse(peer, claim);
            let claim = claim.ok_or_else(|| RunError::Failed(format!("no claims: {answer}")))?;
            self.0.push(claim);
        }
        self.0.sort_by_key(|claim| claim.acquired);
        Ok(())
    }

    /// Adds a hold that ended at `killed` with its holder. `held` is the answer to `hold`.
    pub(crate) fn add_killed(&mut self, peer: usize, held: &Value, killed: u64) -> Result<()> {
        let claim = json!([held["asked"], held["acquired"], killed, killed, held["token"]]);
        let claim = Claim::parse(peer, &claim);
        self.0.push(claim.ok_or_else(|| RunError::Failed(format!("no answer to hold: {held}")))?);
        Ok(())
    }

    /// Checks exclusion and fencing, which no run may break.
    pub(crate) fn check(&self, name: &str) -> Result<()> {
        for (before, after) in self.pairs() {
            if before.releasing > after.acquired {
                return Err(RunError::Void(format!(
                    "two held {name} at once: one until {}, the next one from {}, {} ns earlier",
                    before.releasing,
                    after.acquired,
                    before.releasing - after.acquired
                )));
            }
            if let Some((older, newer)) = before.token.zip(after.token)
                && older >= newer
            {
                return Err(RunError::Void(format!(
                    "the fencing token of {name} did not grow: {older}, then {newer}"
                )));
            }
        }
        Ok(())
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Returns the time of the last release.
    pub(crate) fn last_release(&self) -> Option<u64> {
        self.0.last().map(|claim| claim.releasing)
    }

    /// Returns the time from the first release until all waiters were served, in nanoseconds.
    pub(crate) fn all_served(&self) -> u64 {
        let first = self.0.first().map_or(0, |claim| claim.releasing);
        self.last_release().map_or(0, |last| last.saturating_sub(first))
    }

    /// Returns when the second holder acquired the lock.
    pub(crate) fn taken_over(&self) -> Option<u64> {
        self.0.get(1).map(|claim| claim.acquired)
    }

    /// Returns the hand-offs to waiters that had waited for at least `settled` at the release.
    ///
    /// Each lasts from the release until the next holder knows. A later waiter did not wait for it.
    pub(crate) fn hand_offs(&self, settled: u64) -> Vec<HandOff> {
        self.pairs()
            .filter(|(before, after)| after.asked + settled <= before.releasing)
            .map(|(before, after)| HandOff {
                nanos: after.acquired - before.releasing,
                within_process: before.peer == after.peer,
            })
            .collect()
    }

    /// Returns the wait of each waiter; the first holder found the lock free.
    ///
    /// A wait counts from the first release on. No waiter could be served before, so the time until
    /// then does not show the order of service.
    pub(crate) fn waits(&self) -> Vec<u64> {
        let begun = self.0.first().map_or(0, |first| first.releasing);
        let waited = |claim: &Claim| claim.acquired - claim.asked.max(begun).min(claim.acquired);
        self.0.iter().skip(1).map(waited).collect()
    }

    /// Returns the share of all pairs of waiters in which the later one was served first.
    pub(crate) fn inversions(&self) -> f64 {
        let waiters = &self.0[1.min(self.0.len())..];
        let inverted: usize = waiters
            .iter()
            .enumerate()
            .map(|(i, first)| waiters[i..].iter().filter(|later| later.asked < first.asked).count())
            .sum();
        let pairs = waiters.len() * waiters.len().saturating_sub(1) / 2;
        inverted as f64 / pairs.max(1) as f64
    }

    /// Returns for each waiter its position by arrival and by service.
    pub(crate) fn order(&self) -> Shape {
        let waiters = &self.0[1.min(self.0.len())..];
        let came_before =
            |one: &Claim| waiters.iter().filter(|other| other.asked < one.asked).count();
        let places = waiters.iter().enumerate();
        places.map(|(served, one)| [came_before(one) as f64 + 1.0, served as f64 + 1.0]).collect()
    }

    fn pairs(&self) -> impl Iterator<Item = (&Claim, &Claim)> {
        self.0.iter().zip(self.0.iter().skip(1))
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct HandOff {
    pub(crate) nanos: u64,
    /// It never left the process.
    pub(crate) within_process: bool,
}

impl Claim {
    /// Parses `[asked, acquired, let_go, freed, token]`.
    fn parse(peer: usize, claim: &Value) -> Option<Self> {
        let time = |i: usize| claim.get(i)?.as_u64();
        let (asked, acquired, releasing) = (time(0)?, time(1)?, time(2)?);
        if !(asked <= acquired && acquired <= releasing) {
            return None;
        }
        let token = match claim.get(4)? {
            Value::Null => None,
            token => Some(token.as_str()?.parse().ok()?),
        };
        Some(Self { peer, asked, acquired, releasing, token })
    }
}
