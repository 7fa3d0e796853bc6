//! The bounds of one run, and its deliberate mistake.

use lock_models::deep;

use crate::server::Time;

/// The bounds of a run. Possible events may happen in any order and at any time.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) clients: u8,
    /// The number of consecutive claims of each client.
    pub(crate) claims: u8,
    pub(crate) lease: Time,
    /// The lease of a lock that was handed to a waiter.
    pub(crate) claim_lease: Time,
    pub(crate) margin: Time,
    /// The time by which a client's clock may fall behind the server's between two readings. The
    /// worst case is that it always does, so it does.
    pub(crate) lag: Time,
    /// Whether the server keeps a queue and hands the lock off.
    pub(crate) line: bool,
    /// The time by which a renewal may exceed `lease` (`LockGuard::extend`).
    pub(crate) extension: Time,
    pub(crate) numbers_a_tick: u8,
    /// The length of the fault phase, in which everything may be delayed for any time.
    pub(crate) storm: Time,
    /// The length of the calm after it, in which nothing is delayed except by the network: see
    /// `World::actions`.
    pub(crate) calm: Time,
    pub(crate) budget: Budget,
    pub(crate) sabotage: Option<Sabotage>,
}

/// The number of faults of each kind that are left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Calls that time out without an answer.
    pub(crate) unanswered: u8,
    pub(crate) renewals: u8,
    /// Crashes of clients.
    pub(crate) crashes: u8,
    /// Locks broken by an operator: against assumption A3.
    pub(crate) breaks: u8,
    /// Restarts of the server from an older snapshot: against assumption A2.
    pub(crate) restarts: u8,
    /// Writes to a resource that checks tokens.
    pub(crate) writes: u8,
}

/// A deliberate mistake, which has to violate its promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    // Mistakes of a server.
    RenewRecreates,
    RenewAdopts,
    RenewShortens,
    RenewAddsUp,
    ReleasesAnyone,
    AlwaysReleased,
    ForgetsFormerHolders,
    AdmitsLateAttempts,
    LeavesStaleQueueEntries,
    BreaksAnyone,
    CountsOnly,
    // Mistakes of an engine.
    CountsFromTheReply,
    CountsFromThePush,
    RevivedByALateAnswer,
    AssumesItsRenewals,
    ReusesItsOwner,
    NeverLooks,
    ForgetsFailedReleases,
    KeepsAnotherGrant,
    ClockTooSlow,
}

impl Rules {
    /// Returns two clients with one claim each, on a server without a queue.
    pub(crate) fn race() -> Self {
        Self {
            clients: 2,
            claims: 1,
            lease: 3,
            claim_lease: 2,
            margin: 1,
            lag: 1,
            line: false,
            extension: 0,
            numbers_a_tick: 0,
            storm: 5,
            calm: 0,
            budget: Budget {
                unanswered: if deep() { 2 } else { 1 },
                renewals: 1,
                ..Budget::default()
            },
            sabotage: None,
        }
    }

    /// Returns two claims for each client, with shorter leases and a shorter run.
    pub(crate) fn two_rounds() -> Self {
        let budget = Budget { unanswered: 1, renewals: deep().into(), ..Budget::default() };
        Self { claims: 2, lease: 2, storm: 3, budget, ..Self::race() }
    }

    /// Returns a server that hands the lock off.
    pub(crate) fn line() -> Self {
        Self { line: true, ..Self::race() }
    }

    pub(crate) fn line_of_two_rounds() -> Self {
        let storm = if deep() { 3 } else { 2 };
        Self { lease: 3, storm, line: true, ..Self::two_rounds() }
    }

    pub(crate) fn line_of_three() -> Self {
        let budget = Budget { unanswered: 1, ..Budget::default() };
        let storm = if deep() { 4 } else { 2 };
        Self { clients: 3, storm, budget, ..Self::line() }
    }

    /// Returns renewals that ask for more than the lease, and others that do not.
    pub(crate) fn extended() -> Self {
        let budget = Budget { unanswered: deep().into(), renewals: 2, ..Budget::default() };
        Self { extension: 2, budget, ..Self::race() }
    }

    /// Returns crashes of clients, followed by a calm. Two leases and the lag are enough to serve
    /// all clients, and one tick less is not.
    pub(crate) fn calming() -> Self {
        let budget = Budget { unanswered: 1, crashes: 1, ..Budget::default() };
        let storm = if deep() { 4 } else { 3 };
        Self { storm, calm: 7, budget, ..Self::line() }
    }

    /// Returns an operator that breaks a lock.
    pub(crate) fn meddled() -> Self {
        let budget = Budget { unanswered: 1, renewals: 1, breaks: 1, ..Budget::default() };
        Self { storm: if deep() { 5 } else { 3 }, budget, ..Self::race() }
    }

    /// Returns a server that restarts from a snapshot, and a resource that checks tokens.
    pub(crate) fn fenced() -> Self {
        let budget = Budget { restarts: 1, writes: 2, ..Budget::default() };
        let claims = if deep() { 2 } else { 1 };
        Self { claims, lease: 2, numbers_a_tick: 8, storm: 4, budget, ..Self::race() }
    }

    pub(crate) fn with(self, sabotage: Sabotage) -> Self {
        Self { sabotage: Some(sabotage), ..self }
    }

    pub(crate) fn has(&self, sabotage: Sabotage) -> bool {
        self.sabotage == Some(sabotage)
    }

    /// Returns true if assumptions A2 and A3 hold, so that the claims exclude each other.
    pub(crate) fn excludes(&self) -> bool {
        self.budget.breaks == 0 && self.budget.restarts == 0
    }
}
