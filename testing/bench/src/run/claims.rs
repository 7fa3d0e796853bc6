//! What holders wrote down, and what must not be in it.

use serde_json::{Value, json};

use super::error::{Result, RunError};
use crate::model::Shape;

/// One hold of a lock, as its holder saw it; nanoseconds of `CLOCK_MONOTONIC`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim {
    /// Which worker.
    pub(crate) peer: usize,
    pub(crate) asked: u64,
    pub(crate) acquired: u64,
    pub(crate) releasing: u64,
    pub(crate) token: Option<u64>,
}

/// All claims of one lock, in the order in which it was acquired.
#[derive(Clone, Debug, Default)]
pub(crate) struct Claims(Vec<Claim>);

impl Claims {
    /// Reads the answer to `collect` and adds what it says of the lock `name`.
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

    /// Adds a hold that ended at `killed` with its holder, who was told so when it was acquired: it is the
    /// answer to `hold`.
    pub(crate) fn add_killed(&mut self, peer: usize, held: &Value, killed: u64) -> Result<()> {
        let claim = json!([held["asked"], held["acquired"], killed, killed, held["token"]]);
        let claim = Claim::parse(peer, &claim);
        self.0.push(claim.ok_or_else(|| RunError::Failed(format!("no answer to hold: {held}")))?);
        Ok(())
    }

    /// Exclusion and fencing: what no run may break.
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

    /// When the last holder let go.
    pub(crate) fn last_release(&self) -> Option<u64> {
        self.0.last().map(|claim| claim.releasing)
    }

    /// How long it took until all were served, from when the first one let go.
    pub(crate) fn all_served(&self) -> u64 {
        let first = self.0.first().map_or(0, |claim| claim.releasing);
        self.last_release().map_or(0, |last| last.saturating_sub(first))
    }

    /// When the second owner knew.
    pub(crate) fn taken_over(&self) -> Option<u64> {
        self.0.get(1).map(|claim| claim.acquired)
    }

    /// Hand-offs to somebody who had waited for at least `settled` when the lock was let go: from
    /// there until the next owner knew. Who came later did not wait for it.
    pub(crate) fn hand_offs(&self, settled: u64) -> Vec<HandOff> {
        self.pairs()
            .filter(|(before, after)| after.asked + settled <= before.releasing)
            .map(|(before, after)| HandOff {
                nanos: after.acquired - before.releasing,
                within_process: before.peer == after.peer,
            })
            .collect()
    }

    /// How long each one waited, but for the first one, who found the lock free. Before that one let go for the
    /// first time nobody could be served: what was waited until then says nothing of who is served when.
    pub(crate) fn waits(&self) -> Vec<u64> {
        let begun = self.0.first().map_or(0, |first| first.releasing);
        let waited = |claim: &Claim| claim.acquired - claim.asked.max(begun).min(claim.acquired);
        self.0.iter().skip(1).map(waited).collect()
    }

    /// The share of all pairs of waiters in which the one who asked later was served first.
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

    /// For each waiter, in which place it came, and in which it was served.
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
    /// `[asked, acquired, releasing, freed, token]`
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
