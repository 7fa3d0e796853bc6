//! The catalogue of known bugs of lock libraries.

use lock_history::Rule;

/// A known bug of lock libraries.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// The name of the bug.
    pub name: &'static str,
    /// The mistake in words.
    pub description: &'static str,
    /// The check that must detect the bug.
    pub seen_by: Detector,
    /// The rules of which the campaign must find a violation.
    pub rules: &'static [Rule],
}

/// The check that must detect a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detector {
    /// A run of the campaign on this backend.
    Campaign(&'static str),
    /// The check of this law, on the memory backend.
    Law(&'static str),
    /// The check of this law about networks, on a real server.
    Network(&'static str),
    /// The test that fails with this mutant, `mutants/NAME.patch`.
    Mutant(&'static str),
}

use Detector::{Campaign, Law, Mutant, Network};

/// Lists all known bugs.
pub const ALL: &[Bug] = &[
    bug("GrantsEveryone", "a held lock is granted", Campaign("memory")).breaking(&[Rule::K1]),
    bug(
        "ExaggeratesItsLease",
        "the holder counts a longer lease than the server",
        Campaign("memory"),
    )
    .breaking(&[Rule::K1]),
    bug("ExpiresEarly", "the server ends a lease early", Campaign("memory"))
        .breaking(&[Rule::K1, Rule::K2]),
    bug("NeverExpires", "each poll of a waiter prolongs the lock", Campaign("memory"))
        .breaking(&[Rule::K5, Rule::K6]),
    bug("NeverRenews", "each renewal fails", Campaign("memory")).breaking(&[Rule::Unexplained]),
    bug("NeverReleases", "each release fails", Campaign("memory")).breaking(&[Rule::Unexplained]),
    bug("ServesLastFirst", "the last waiter is served first", Campaign("memory"))
        .breaking(&[Rule::Fifo]),
    bug("RepeatsTokens", "all grants have the same token", Campaign("memory"))
        .breaking(&[Rule::K4]),
    bug(
        "HandsOverOldTokens",
        "a handed-over lock has the token of the last grant",
        Campaign("redis"),
    )
    .breaking(&[Rule::K4]),
    bug("ReleasesAnyone", "a release deletes the lock of any holder", Campaign("redis"))
        .breaking(&[Rule::K1, Rule::K2, Rule::K7]),
    bug("RetriesReleasesBlindly", "a release is retried without the owner", Campaign("redis"))
        .breaking(&[Rule::K1, Rule::K2, Rule::K7]),
    bug(
        "RepeatsItsLastAnswer",
        "a desynchronized connection returns the previous answer",
        Campaign("redis"),
    )
    .breaking(&[Rule::K2, Rule::K7]),
    bug(
        "OnlyAcknowledgesRenewals",
        "a renewal is acknowledged and not applied",
        Campaign("memory"),
    )
    .breaking(&[Rule::K2]),
    bug("UsesLowBits", "tokens have low bits, which count hand-overs", Campaign("memory"))
        .breaking(&[Rule::K4]),
    bug("CountsFromTheReply", "the lease is counted from the reply", Campaign("memory"))
        .breaking(&[Rule::K1]),
    bug(
        "CountsFromThePush",
        "the lease of a handed-over lock is counted from its notification",
        Campaign("redis"),
    )
    .breaking(&[Rule::K1]),
    bug(
        "DependsOnOneRuntime",
        "locks are renewed by the runtime that connected, which the application blocks",
        Campaign("redis"),
    )
    .breaking(&[Rule::Unexplained]),
    bug("RenewAlwaysHeld", "a renewal of a lost lock succeeds", Law("3.1")),
    bug("GivesUpAtOnce", "one failed renewal is a loss", Campaign("redis")).breaking(&[Rule::K7]),
    bug("NeverReconnects", "a broken connection is never replaced", Campaign("redis"))
        .breaking(&[Rule::Unexplained]),
    bug(
        "SwallowsUnknownOutcomes",
        "a lock taken by an unanswered attempt is kept",
        Campaign("file"),
    )
    .breaking(&[Rule::K2]),
    bug("OnlyAcknowledgesReleases", "a release is acknowledged and not applied", Campaign("file"))
        .breaking(&[Rule::K2]),
    bug("CallsFaultsContention", "a fault is reported as contention", Law("8.2")),
    bug(
        "LeavesStaleQueueEntries",
        "a waiter that stops waiting keeps its queue entry",
        Campaign("zookeeper"),
    )
    .breaking(&[Rule::K2, Rule::K7]),
    bug("AdmitsLateAttempts", "an attempt that arrives after its release is granted", Law("4.5")),
    bug("AlwaysReleased", "a release of a lock that is not held succeeds", Law("4.3")),
    bug("RenewRecreates", "a renewal recreates an absent lock", Law("2.2")),
    bug("RenewAdopts", "a renewal prolongs the lock of any holder", Law("2.3")),
    bug("RenewShortens", "a late renewal shortens an extended lease", Law("2.4")),
    bug("IgnoresMinimumHolds", "a minimum hold is ignored", Law("4.6")),
    bug("BreaksAnyone", "an operator breaks a newer holder", Law("9.2")),
    bug("KeepsQueueEntries", "a waiter keeps its queue entry for ever", Law("6.7")),
    bug("NeverWakes", "no release wakes a waiter", Law("6.2")),
    bug("ForgetsFailedReleases", "a failed release is reported as done", Network("12.11")),
    // A run cannot show these. Its clients repeat no answered attempt, and use no min_token and no
    // unusual names. The checker does not judge the answers of inspect and list.
    bug("AttemptShortens", "a repeated attempt shortens the lease", Law("1.2")),
    bug("IgnoresMinimumTokens", "an attempt with a min_token gets a token below it", Law("5.2")),
    bug("InspectSeesNothing", "a held lock is shown as free", Law("9.1")),
    bug("InspectTakesTheLock", "inspecting a lock takes it", Law("9.1")),
    bug("HidesWhatItCan", "supported verbs are declared absent", Law("9.1")),
    bug("ListsInAnyOrder", "a list is not sorted", Law("9.3")),
    bug("ListsWithoutLimit", "a page has all locks", Law("9.3")),
    bug("ListsShortPages", "a page ends before the last lock", Law("9.3")),
    bug("FoldsCase", "names that differ in case are one lock", Law("10.1")),
    bug("CutsNames", "long names are cut", Law("10.1")),
    bug("ReadsLongLeasesAsDates", "a lease of a month ends at once", Law("10.2")),
    bug("RoundsShortLeasesToForever", "a lease below a second never ends", Law("10.2")),
    bug("ShowsOwners", "an error shows an owner id", Law("11.1")),
    bug("KeepsTheWholeLease", "a minimum hold lasts as long as the lease", Law("4.6")),
    bug("HoldsForLongerThanItSays", "a holder is told of half its lease", Law("4.8")),
    bug("GivesBackAnyGrant", "a claim that comes again loses its lock", Law("4.9")),
    // Some of these end a wait or a hold slightly late or early, within the allowance of a run for
    // the load of the machine. The others need a batch, a late packet or a removal at a precise
    // moment.
    bug("AnswersOutOfOrder", "a batch of renewals is answered in another order", Law("2.5")),
    bug("LeavesNextToNothing", "a grant leaves almost none of its lease", Law("2.6")),
    bug("NotifiesNoLoss", "no holder is notified of a removal", Law("3.3")),
    bug("ReleasesAtTheDeadline", "a lost lock is released at its deadline", Law("3.4")),
    bug("WatchesWithoutYielding", "a loss watch blocks its thread after a release", Law("3.5")),
    bug("ForgetsFormerHolders", "a late attempt is granted after a while", Law("4.5")),
    bug("CachesContention", "contention is answered from a cache", Law("6.1")),
    bug("QueuesTries", "a try without waiting is queued", Law("6.5")),
    bug("KeepsTheCancelled", "the lock of a cancelled acquisition is kept", Law("7.1")),
    bug("ForgetsItsOwner", "a claim contends with itself", Law("1.2")),
    bug("ReleasesOnlyWhatItRenewed", "a detached lock is released by its renewer only", Law("9.4")),
    bug("AssumesItsRenewals", "a renewal without an answer counts", Law("14.4")),
    // The declared capabilities are wrong, so the first grant of a run would fail.
    bug("HidesItsLeases", "leases are not declared", Law("2.1")),
    bug("LosesTokens", "some grants have no token", Law("5.1")),
    bug("RenewsWithoutToken", "a renewal has no token", Law("5.1")),
    bug("IssuesUndeclaredTokens", "tokens are not declared", Law("5.3")),
    // Their checks cut, hold and delay packets at a precise moment.
    bug("BlocksItsThread", "a call blocks the thread of its runtime", Network("12.10")),
    bug(
        "CountsFromTheNotification",
        "a delayed notification of a grant prolongs it",
        Network("12.13"),
    ),
    bug(
        "ServesFormerWaitersAgain",
        "each stale queue entry in older data costs a lease",
        Network("13.4"),
    ),
    bug(
        "LossUnhappens",
        "a holder that was notified of its loss holds again",
        Mutant("lock-core/loss-unhappens"),
    ),
    bug(
        "ReliesOnSignals",
        "a waiter whose wake-up was lost never polls",
        Mutant("lock-core/relies-on-signals"),
    ),
    bug(
        "ConfirmsNoPush",
        "a handed-over lock is not confirmed",
        Mutant("lock-core/confirms-no-push"),
    ),
    bug("ReleasesOnce", "a failed release is not retried", Mutant("lock-core/releases-once")),
    bug(
        "KeepsItsOwner",
        "the release of a late grant ends the next one",
        Mutant("lock-core/keeps-its-owner"),
    ),
    bug(
        "AcceptsStaleGrants",
        "a grant whose lease has expired is accepted",
        Mutant("lock-core/accepts-stale-grants"),
    ),
    bug(
        "RedisCountsByTheKeyAlone",
        "tokens by INCR alone decrease after a restart",
        Mutant("lock-redis/counts-by-the-key-alone"),
    ),
    bug(
        "RedisBumpsTheCounterLast",
        "the counter is incremented after the lock is set",
        Mutant("lock-redis/bumps-the-counter-last"),
    ),
    bug(
        "RedisRenewalsShorten",
        "PEXPIRE of a late renewal shortens a lease",
        Mutant("lock-redis/renewals-shorten"),
    ),
    bug(
        "RedisAdmitsLateAttempts",
        "late attempts meet no tombstone",
        Mutant("lock-redis/admits-late-attempts"),
    ),
    bug(
        "RedisSwallowsReadonly",
        "READONLY is swallowed in a release",
        Mutant("lock-redis/swallows-readonly"),
    ),
    bug(
        "RedisCountsNoClaimLease",
        "the claim lease of a hand-over is not counted",
        Mutant("lock-redis/counts-no-claim-lease"),
    ),
    bug(
        "RedisServesNobody",
        "a release wakes no waiter",
        Mutant("lock-redis/release-wakes-no-waiter"),
    ),
    bug("RedisKeepsQueueEntries", "a queue entry leaks", Mutant("lock-redis/keeps-queue-entries")),
    bug(
        "RedisIgnoresReplicas",
        "a grant counts although too few replicas know it",
        Mutant("lock-redis/ignores-replicas"),
    ),
    bug(
        "RedisKeepsLonelyGrants",
        "a grant that too few replicas know stays on the server",
        Mutant("lock-redis/keeps-unreplicated-grants"),
    ),
    bug(
        "RedisBreaksAnyone",
        "a break does not compare the owner",
        Mutant("lock-redis/breaks-any-holder"),
    ),
    bug(
        "ZooKeeperTakesReadsForProofs",
        "a read from a follower without leader counts as a heartbeat write",
        Mutant("lock-zookeeper/takes-reads-for-proofs"),
    ),
    bug(
        "ZooKeeperCountsFromTheLastProof",
        "one commit of a stalled leader counts as a live session",
        Mutant("lock-zookeeper/counts-from-the-last-proof"),
    ),
    bug("ZooKeeperDoesNotSync", "renewals do not sync", Mutant("lock-zookeeper/does-not-sync")),
    bug(
        "ZooKeeperLeaksWatches",
        "watches stay on the server",
        Mutant("lock-zookeeper/leaks-watches"),
    ),
    bug(
        "ZooKeeperAdoptsOldNodes",
        "a node of an older session is adopted",
        Mutant("lock-zookeeper/adopts-old-nodes"),
    ),
    bug(
        "ZooKeeperCountsBySequence",
        "tokens are derived from the sequence suffix",
        Mutant("lock-zookeeper/counts-by-sequence"),
    ),
    bug(
        "MemcacheCutsLeasesToSeconds",
        "leases are truncated to seconds",
        Mutant("lock-memcache/cuts-leases-to-seconds"),
    ),
    bug(
        "MemcacheDeletesAnyone",
        "a release deletes without comparing the owner",
        Mutant("lock-memcache/deletes-any-holder"),
    ),
    bug(
        "QuorumOfTheReachable",
        "a majority of the reachable members is enough",
        Mutant("lock-quorum/majority-of-the-reachable"),
    ),
    bug(
        "QuorumCountsTheYoung",
        "a restarted member votes at once",
        Mutant("lock-quorum/counts-restarted-members"),
    ),
    bug(
        "ClockStopsInSuspension",
        "the clock stands still while the machine is suspended",
        Mutant("lock-core/clock-stops-in-suspension"),
    ),
];

const fn bug(name: &'static str, description: &'static str, seen_by: Detector) -> Bug {
    Bug { name, description, seen_by, rules: &[] }
}

impl Bug {
    const fn breaking(mut self, rules: &'static [Rule]) -> Self {
        self.rules = rules;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bugs_of_the_campaign_break_rules() {
        for bug in ALL {
            let by_campaign = matches!(bug.seen_by, Campaign(_));
            assert_eq!(by_campaign, !bug.rules.is_empty(), "{}", bug.name);
        }
    }
}
