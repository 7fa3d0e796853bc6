//! What is checked in one run: how much may happen, and what is done wrong on purpose.

use crate::server::Time;

/// The bounds of a run. What may happen at all, may happen in any order and at any time.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) clients: u8,
    /// Of each client, one after the other.
    pub(crate) claims: u8,
    pub(crate) lease: Time,
    /// Of a lock that was handed to a waiter.
    pub(crate) claim_lease: Time,
    pub(crate) margin: Time,
    /// By how much a client's clock may fall behind the server's from one reading to a later one. At
    /// worst it always does, so it does.
    pub(crate) lag: Time,
    /// Whether the server keeps a line and hands the lock over.
    pub(crate) line: bool,
    /// How much longer than `lease` a renewal may ask for (`LockGuard::extend`).
    pub(crate) extension: Time,
    pub(crate) numbers_a_tick: u8,
    /// Until then everything may be delayed for as long as it likes.
    pub(crate) storm: Time,
    /// And after that for so long nothing is, but for what the network kept: see `World::actions`.
    pub(crate) calm: Time,
    pub(crate) budget: Budget,
    pub(crate) sabotage: Option<Sabotage>,
}

/// What may happen that often, and is used up by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Budget {
    /// Calls given up without an answer.
    pub(crate) unanswered: u8,
    pub(crate) renewals: u8,
    /// Clients that vanish.
    pub(crate) crashes: u8,
    /// Locks broken by hand: against assumption A3.
    pub(crate) breaks: u8,
    /// Restarts of the server from an older snapshot: against assumption A2.
    pub(crate) restarts: u8,
    /// Writes to a resource that checks tokens.
    pub(crate) writes: u8,
}

/// One mistake. Each has to be found out by the promise that it breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    // Of a server.
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
    // Of a keeper.
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
    /// Two clients, one claim each, on a server without a line.
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

    /// Two claims each. The leases are shorter, and the time with them.
    pub(crate) fn two_rounds() -> Self {
        let budget = Budget { unanswered: 1, renewals: deep().into(), ..Budget::default() };
        Self { claims: 2, lease: 2, storm: 3, budget, ..Self::race() }
    }

    /// A server that hands the lock over.
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

    /// Renewals that ask for more than the lease, and others that do not.
    pub(crate) fn extended() -> Self {
        let budget = Budget { unanswered: deep().into(), renewals: 2, ..Budget::default() };
        Self { extension: 2, budget, ..Self::race() }
    }

    /// Clients vanish, then the network calms down. Two leases and the lag are enough for everybody, and
    /// one tick less is not.
    pub(crate) fn calming() -> Self {
        let budget = Budget { unanswered: 1, crashes: 1, ..Budget::default() };
        let storm = if deep() { 4 } else { 3 };
        Self { storm, calm: 7, budget, ..Self::line() }
    }

    /// An operator breaks a lock.
    pub(crate) fn meddled() -> Self {
        let budget = Budget { unanswered: 1, renewals: 1, breaks: 1, ..Budget::default() };
        Self { storm: if deep() { 5 } else { 3 }, budget, ..Self::race() }
    }

    /// The server restarts from a snapshot, and a resource checks tokens.
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

    /// Assumptions A2 and A3 hold, so the claims exclude each other.
    pub(crate) fn excludes(&self) -> bool {
        self.budget.breaks == 0 && self.budget.restarts == 0
    }
}

/// More of everything, for minutes: `MODEL_DEPTH=deep`.
fn deep() -> bool {
    std::env::var("MODEL_DEPTH").is_ok_and(|depth| depth == "deep")
}
