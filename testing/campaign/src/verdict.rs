//! The version of the rules that judge a run.

/// The version of the verdict: the rules that judge a run. A run that passed an older version may
/// fail a newer one:
///
/// * 1: results that name no version.
/// * 2: a fault of one primary of a cluster excuses that primary's locks only. A fault of one
///   member of a quorum excuses nothing. Errors without a fault are judged, and so is the duration
///   of undisturbed hand-offs. A holder is notified of its loss even if its server is unreachable.
///   A client that was hit by a fault must be granted locks before and after it.
/// * 3: failed releases, and lost holds that are renewed, need a fault that explains them. Waits
///   are judged on locks whose waiters do not cancel. The residue of a cancelled call excuses other
///   waiters for as long as is declared, and dead waiters excuse them only after a death. Order is
///   judged by the bound of a call. A token that a client refuses has decreased. A fault without an
///   effect does not count and excuses nothing. A step of a client's wall clock and leases that are
///   not renewed excuse nothing either.
/// * 4: a released lock is not held, even if a later renewal or check confirms it. A kill that did
///   not happen ends nothing.
/// * 5: a renewed lock is claimed up to its release. Grants count from the client's own stamp.
///   Deadlines beyond a lease, tokens without a grant and renewals after a removal are judged. The
///   standstill of contended locks is judged after failovers and restarts with older data.
/// * 6: a confirmation after a removal is judged even without a successor. A fault excuses an
///   overtaken waiter until it has recovered. A hand-off without a fault takes at most three leases
///   and a second. One failure in two hundred, at up to three moments that met a bound, is
///   attributed to the machine. All kinds of calls are also counted together. Each verb has a
///   minimum number of calls.
/// * 7: a lock stays held while its application is blocked. A detached lock is judged by its own
///   lease, even where other locks end with their process. The results of `lockctl` are judged.
pub const VERDICT: u32 = 7;

/// Returns the version of results that name none.
pub(crate) fn first_verdict() -> u32 {
    1
}
