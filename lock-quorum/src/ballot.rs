//! The answer of one member to an attempt, and the grant that several votes make.

use std::time::Duration;

use lock_core::FencingToken;
use lock_core::backend::{Fault, Grant, Lease};
use lock_core::clock::Moment;

use crate::claim::Vote;
use crate::server::Origin;

/// The answer of one member.
#[derive(Debug)]
pub(crate) enum Ballot {
    /// A vote, and why it does not count, if it does not.
    For(Vote, Option<Fault>),
    Against {
        expires_in: Option<Duration>,
        origin: Origin,
    },
    Failed(Fault),
}

impl Ballot {
    pub(crate) fn token(&self) -> Option<FencingToken> {
        self.vote().filter(|_| counts(self))?.token
    }

    pub(crate) fn vote(&self) -> Option<&Vote> {
        match self {
            Self::For(vote, _) => Some(vote),
            _ => None,
        }
    }

    pub(crate) fn origin(&self) -> Option<&Origin> {
        match self {
            Self::For(vote, _) => Some(&vote.origin),
            Self::Against { origin, .. } => Some(origin),
            Self::Failed(_) => None,
        }
    }
}

pub(crate) fn counts(ballot: &Ballot) -> bool {
    matches!(ballot, Ballot::For(_, None))
}

pub(crate) fn is_against(ballot: &Ballot) -> bool {
    matches!(ballot, Ballot::Against { .. })
}

pub(crate) fn is_no_vote(ballot: &Ballot) -> bool {
    !counts(ballot)
}

pub(crate) fn has_answered(ballot: &Ballot) -> bool {
    !matches!(ballot, Ballot::Failed(_))
}

/// Returns the grant that the votes make together. It lasts until too few votes for a majority are
/// left, and counts from before the first attempt.
pub(crate) fn combined_grant<'v>(votes: impl Iterator<Item = &'v Vote>, majority: usize) -> Grant {
    let mut votes: Vec<_> = votes.map(|vote| (vote.ends, vote.since)).collect();
    // Votes without an end last longest.
    votes.sort_unstable_by_key(|&(ends, _)| (ends.is_some(), std::cmp::Reverse(ends)));
    votes.truncate(majority);
    let since = votes.iter().map(|&(_, since)| since).min().unwrap_or_else(Moment::now);
    let lease = match votes.last().and_then(|&(ends, _)| ends) {
        Some(ends) => Lease::For(ends.saturating_since(since)),
        None => Lease::WhileProcessLives,
    };
    Grant::new(lease, since)
}

pub(crate) fn just_below(token: FencingToken) -> Option<FencingToken> {
    FencingToken::from_backend(token.backend_number().checked_sub(1)?)
}
