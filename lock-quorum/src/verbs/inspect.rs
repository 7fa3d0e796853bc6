//! Inspection, and breaking by force.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::{Backend, Effect, Fault, FaultKind, Holder, LockState, MemberState};
use lock_core::{LockName, OwnerId};

use crate::calls::Calls;
use crate::fault::{bounded, no_majority};
use crate::quorum::Inner;
use crate::server::duplicates;

const ENDED_IN_PART: &str =
    "most members do not know this holder; others ended its hold or may have: inspect the lock";

impl Inner {
    /// Returns the holder as a majority sees it, and the state at each member.
    pub(crate) async fn inspect(self: &Arc<Self>, name: &LockName) -> Result<LockState, Fault> {
        let name = name.clone();
        let verb = move |backend: Arc<dyn Backend>| {
            let name = name.clone();
            async move { backend.inspect(&name).await }
        };
        let seen = self.ask_all(self.settings.member_timeout, verb).await;
        let states: Vec<_> = seen.iter().filter_map(|seen| seen.as_ref().ok()).collect();
        let holders = states.iter().flat_map(|state| &state.holders);
        let mut found: Option<Vec<&Holder>> = None;
        for holder in holders {
            let of_the_same = states.iter().flat_map(|state| &state.holders);
            let same: Vec<_> = of_the_same.filter(|other| other.owner == holder.owner).collect();
            if same.len() >= found.as_ref().map_or(1, |most| most.len() + 1) {
                found = Some(same);
            }
        }
        let (most, away) = (found.as_ref().map_or(0, Vec::len), seen.len() - states.len());
        let holder = found
            .filter(|same| same.len() >= self.majority)
            .map(|same| merged(&same, self.majority));
        // Without a majority for a holder, the members that did not answer may decide.
        if holder.is_none() && (states.len() < self.majority || most + away >= self.majority) {
            let faults = seen.into_iter().enumerate();
            let faults = faults.filter_map(|(member, seen)| Some((member, seen.err()?)));
            return Err(no_majority(self, faults.collect(), true));
        }
        let mut state = LockState::new(holder.into_iter().collect(), None);
        state.members = self
            .members
            .iter()
            .zip(seen)
            .map(|(member, seen)| {
                let seen = seen.map(|state| state.holders);
                MemberState::new(
                    member.name.clone(),
                    seen.map_err(|fault| fault.into_source().to_string()),
                )
            })
            .collect();
        Ok(state)
    }

    /// Ends the hold of `expected` at each member. Returns true if a majority has ended it by this
    /// call, and false if no majority can have known it.
    ///
    /// # Errors
    ///
    /// The outcome is unknown if this call ended the hold at some members, or may have, and it was
    /// gone at others before: its holder may release it meanwhile.
    pub(crate) async fn break_lock(
        self: &Arc<Self>,
        name: &LockName,
        expected: &OwnerId,
    ) -> Result<bool, Fault> {
        let (name, expected) = (name.clone(), *expected);
        let end = move |backend: Arc<dyn Backend>| {
            let name = name.clone();
            async move { backend.break_lock(&name, &expected).await }
        };
        let answers = self.ask_all(self.settings.member_timeout, end).await;
        let ended = answers.iter().filter(|answer| matches!(answer, Ok(true))).count();
        let was_not_there = answers.iter().filter(|answer| matches!(answer, Ok(false))).count();
        if ended >= self.majority {
            return Ok(true);
        }
        if was_not_there >= self.majority {
            let may_have_ended = |answer: &Result<bool, Fault>| matches!(answer, Err(fault) if fault.effect() == Effect::Unknown);
            return match ended == 0 && !answers.iter().any(may_have_ended) {
                true => Ok(false),
                false => Err(Fault::unknown(FaultKind::Unavailable, ENDED_IN_PART)),
            };
        }
        let faults = answers.into_iter().enumerate();
        let faults = faults.filter_map(|(member, answer)| Some((member, answer.err()?)));
        Err(no_majority(self, faults.collect(), false))
    }

    /// Returns all answers within the limit, or faults, in the order of the members.
    pub(crate) async fn ask_all<T, F>(
        self: &Arc<Self>,
        limit: Duration,
        verb: impl Fn(Arc<dyn Backend>) -> F + Clone + Send + Sync + 'static,
    ) -> Vec<Result<T, Fault>>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Fault>> + Send,
    {
        let mut calls = Calls::new(Err);
        for member in 0..self.members.len() {
            let (inner, verb) = (Arc::clone(self), verb.clone());
            calls.begin(member, async move {
                let asked = async {
                    let connection = inner.connection(member, limit).await?;
                    let answer = verb(Arc::clone(&connection.backend)).await?;
                    Ok((answer, connection.origin().await?))
                };
                bounded(limit, asked).await
            });
        }
        let unanswered = || Err(Fault::unknown(FaultKind::TimedOut, "no answer"));
        let mut answers: Vec<_> = self.members.iter().map(|_| unanswered()).collect();
        while let Some((member, answer)) = calls.next().await {
            answers[member] = answer;
            let origins = answers.iter().map(|answer| Some((&answer.as_ref().ok()?.1, false)));
            for (duplicate, counted) in duplicates(member, origins) {
                answers[duplicate] = Err(self.duplicate_of(counted));
            }
        }
        answers.into_iter().map(|answer| answer.map(|(answer, _)| answer)).collect()
    }
}

/// Merges one holder as several members see it: it lasts until its leases have expired at too many
/// of them.
fn merged(same: &[&Holder], majority: usize) -> Holder {
    let mut holder = same[0].clone();
    let mut ends: Vec<_> = same.iter().map(|holder| holder.expires_in).collect();
    // Leases without an end last longest.
    ends.sort_unstable_by_key(|ends| (ends.is_some(), std::cmp::Reverse(*ends)));
    holder.expires_in = ends.get(majority - 1).copied().flatten();
    holder.held_for = same.iter().filter_map(|holder| holder.held_for).max();
    // A majority has stored the token of the grant. Other members may have a higher token, or know
    // none yet.
    let agree = |token| same.iter().filter(|holder| holder.token == Some(token)).count();
    let mut tokens = same.iter().filter_map(|holder| holder.token);
    holder.token = tokens.find(|&token| agree(token) >= majority);
    holder
}
