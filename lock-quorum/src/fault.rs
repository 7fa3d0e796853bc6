//! The classification of members' faults.

use std::future::Future;
use std::time::Duration;

use lock_core::backend::{Fault, FaultKind};

use crate::quorum::Inner;

/// Runs a verb of a member within a time limit.
pub(crate) async fn bounded<T>(
    limit: Duration,
    verb: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    tokio::time::timeout(limit, verb).await.unwrap_or_else(|_| {
        Err(Fault::unknown(FaultKind::TimedOut, format!("no answer within {limit:?}")))
    })
}

/// Returns the fault of too few answers.
pub(crate) fn no_majority(inner: &Inner, faults: Vec<(usize, Fault)>, is_clean: bool) -> Fault {
    let size = inner.members.len();
    let kind = worst(faults.iter().map(|(_, fault)| fault.kind()));
    let reasons: Vec<_> = faults
        .into_iter()
        .map(|(member, fault)| format!("{}: {}", inner.members[member].name, fault.into_source()))
        .collect();
    let why = format!(
        "{} of {size} members cannot be counted on, and of the others fewer than {} agree: {}",
        reasons.len(),
        inner.majority,
        reasons.join("; ")
    );
    match is_clean {
        true => Fault::not_applied(kind, why),
        false => Fault::unknown(kind, why),
    }
}

/// Returns the most useful kind: one that a retry may cure comes first.
fn worst(kinds: impl Iterator<Item = FaultKind>) -> FaultKind {
    let rank = |kind: &FaultKind| match kind {
        FaultKind::Unavailable => 5,
        FaultKind::TimedOut => 4,
        FaultKind::Denied => 3,
        FaultKind::Unsupported => 2,
        FaultKind::Invalid => 1,
        _ => 0,
    };
    kinds.max_by_key(rank).unwrap_or(FaultKind::Unavailable)
}
