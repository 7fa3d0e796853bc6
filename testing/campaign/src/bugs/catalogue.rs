//! The catalogue of bugs.

use lock_history::Rule;

/// An old bug, and who has to see it.
#[derive(Clone, Copy, Debug)]
pub struct Bug {
    /// What it is called here.
    pub name: &'static str,
    /// What it does, in words.
    pub what: &'static str,
    /// Who has to see it.
    pub seen_by: Detector,
    /// The campaign has to see it as a violation of one of these.
    pub rules: &'static [Rule],
}

/// Who has to see a bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Detector {
    /// The campaign, on this backend.
    Campaign(&'static str),
    /// The check of this law, on the memory backend.
    Law(&'static str),
    /// The check of this law about networks, on a real server.
    Network(&'static str),
    /// The test that sees this mutant, `mutants/NAME.patch`.
    Mutant(&'static str),
}

use Detector::{Campaign, Law, Mutant, Network};

/// All of them.
pub const ALL: &[Bug] = &[
    bug("GrantsEveryone", "a lock that is taken is granted", Campaign("memory"))
        .breaking(&[Rule::K1]),
    bug(
        "ExaggeratesItsLease",
        "the holder counts a longer lease than the server",
        Campaign("memory"),
    )
    .breaking(&[Rule::K1]),
    bug("ExpiresEarly", "the server ends a lease before its end", Campaign("memory"))
        .breaking(&[Rule::K1, Rule::K2]),
    bug("NeverExpires", "each look at a lock prolongs it", Campaign("memory"))
        .breaking(&[Rule::K5, Rule::K6]),
    bug("NeverRenews", "each renewal fails", Campaign("memory")).breaking(&[Rule::Unexplained]),
    bug("NeverReleases", "each release fails", Campaign("memory")).breaking(&[Rule::Unexplained]),
    bug("ServesLastFirst", "who came last is served first", Campaign("memory"))
        .breaking(&[Rule::Fifo]),
    bug("RepeatsTokens", "all grants have the same token", Campaign("memory"))
        .breaking(&[Rule::K4]),
    bug(
        "HandsOverOldTokens",
        "a lock that is handed over has the last one's token",
        Campaign("redis"),
    )
    .breaking(&[Rule::K4]),
    bug("ReleasesAnyone", "a release deletes the lock, whoever has it", Campaign("redis"))
        .breaking(&[Rule::K1, Rule::K2, Rule::K7]),
    bug("RetriesReleasesBlindly", "a release is tried again without the owner", Campaign("redis"))
        .breaking(&[Rule::K1, Rule::K2, Rule::K7]),
    bug(
        "RepeatsItsLastAnswer",
        "a connection out of step gives the last answer",
        Campaign("redis"),
    )
    .breaking(&[Rule::K2, Rule::K7]),
    bug("OnlyAcknowledgesRenewals", "a renewal is acknowledged and not done", Campaign("memory"))
        .breaking(&[Rule::K2]),
    bug("UsesLowBits", "tokens have low bits, which count hand-overs", Campaign("memory"))
        .breaking(&[Rule::K4]),
    bug("CountsFromTheReply", "the lease is counted from the reply", Campaign("memory"))
        .breaking(&[Rule::K1]),
    bug(
        "CountsFromThePush",
        "a lock that is handed over counts from the word of it",
        Campaign("redis"),
    )
    .breaking(&[Rule::K1]),
    bug(
        "DependsOnOneRuntime",
        "locks are renewed by the runtime that connected, which the application blocks",
        Campaign("redis"),
    )
    .breaking(&[Rule::Unexplained]),
    bug("RenewAlwaysHeld", "a renewal of what was taken away says held", Law("3.1")),
    bug("GivesUpAtOnce", "one renewal that fails is a loss", Campaign("redis"))
        .breaking(&[Rule::K7]),
    bug("NeverReconnects", "a connection that broke is never made anew", Campaign("redis"))
        .breaking(&[Rule::Unexplained]),
    bug("SwallowsUnknownOutcomes", "what an unanswered attempt took is kept", Campaign("file"))
        .breaking(&[Rule::K2]),
    bug("OnlyAcknowledgesReleases", "a release does nothing", Campaign("file"))
        .breaking(&[Rule::K2]),
    bug("CallsFaultsContention", "a fault is told as contention", Law("8.2")),
    bug("LeavesStaleQueueEntries", "who gives up keeps its place in line", Campaign("zookeeper"))
        .breaking(&[Rule::K2, Rule::K7]),
    bug("AdmitsLateAttempts", "an attempt that lands after its release is let in", Law("4.5")),
    bug("AlwaysReleased", "a release of what is not held says released", Law("4.3")),
    bug("RenewRecreates", "a renewal takes a lock again that is gone", Law("2.2")),
    bug("RenewAdopts", "a renewal prolongs whatever lock it finds", Law("2.3")),
    bug("RenewShortens", "a late renewal shortens an extended lease", Law("2.4")),
    bug("IgnoresMinimumHolds", "a minimum hold is ignored", Law("4.6")),
    bug("BreaksAnyone", "an operator breaks a newer holder", Law("9.2")),
    bug("KeepsQueueEntries", "who waited once stands in line for ever", Law("6.7")),
    bug("NeverWakes", "no release wakes a waiter", Law("6.2")),
    bug("ForgetsFailedReleases", "a release that fails is told as done", Network("12.11")),
    // Clients of a run do not do what shows these, or no answer tells of it: they repeat no attempt
    // that was answered, ask for no min_token and no other names, and nothing judges what they see
    // when they inspect and list.
    bug("AttemptShortens", "a repeated attempt shortens the lease", Law("1.2")),
    bug("IgnoresMinimumTokens", "an attempt with a min_token gets a token below it", Law("5.2")),
    bug("InspectSeesNothing", "a held lock is shown as free", Law("9.1")),
    bug("InspectTakesTheLock", "inspecting a lock takes it", Law("9.1")),
    bug("HidesWhatItCan", "what works is declared absent", Law("9.1")),
    bug("ListsInAnyOrder", "a list is not sorted", Law("9.3")),
    bug("ListsWithoutLimit", "a page has all locks", Law("9.3")),
    bug("FoldsCase", "names that differ in case are one lock", Law("10.1")),
    bug("CutsNames", "long names are cut", Law("10.1")),
    bug("ReadsLongLeasesAsDates", "a lease of a month is over at once", Law("10.2")),
    bug("RoundsShortLeasesToForever", "a lease below a second has no end", Law("10.2")),
    bug("ShowsOwners", "an error shows an owner id", Law("11.1")),
    bug("KeepsTheWholeLease", "a minimum hold lasts as long as the lease", Law("4.6")),
    // These end a wait or a hold a little late or early, within what a run allows for the load of
    // the machine, or need a batch, a late packet or a removal at one certain moment.
    bug("AnswersOutOfOrder", "a batch of renewals is answered in another order", Law("2.5")),
    bug("LeavesNextToNothing", "a grant leaves next to nothing of its lease", Law("2.6")),
    bug("NotifiesNoLoss", "no holder is notified of a removal", Law("3.3")),
    bug("ReleasesAtTheDeadline", "a lost lock is released at its deadline", Law("3.4")),
    bug("ForgetsFormerHolders", "a late attempt is let in after a while", Law("4.5")),
    bug("CachesContention", "contention is answered from a cache", Law("6.1")),
    bug("QueuesTries", "a try stands in line", Law("6.5")),
    bug("KeepsTheCancelled", "what a cancelled acquisition won is kept", Law("7.1")),
    bug("ForgetsItsOwner", "a claim is contended by itself", Law("1.2")),
    bug("ReleasesOnlyWhatItRenewed", "a detached lock is released by its renewer only", Law("9.4")),
    bug("AssumesItsRenewals", "a renewal without an answer counts", Law("14.4")),
    // The declaration is wrong, so the first grant of a run would fail.
    bug("HidesItsLeases", "leases are not declared", Law("2.1")),
    bug("LosesTokens", "some grants have no token", Law("5.1")),
    bug("RenewsWithoutToken", "a renewal has no token", Law("5.1")),
    bug("IssuesUndeclaredTokens", "tokens are not declared", Law("5.3")),
    // Their checks cut, hold and delay what is on the wire at one certain moment.
    bug("BlocksItsThread", "a call blocks the thread of its runtime", Network("12.10")),
    bug("CountsFromTheNotification", "a late word of a grant prolongs it", Network("12.13")),
    bug(
        "ServesFormerWaitersAgain",
        "older data cost a lease for each stale entry",
        Network("13.4"),
    ),
    bug(
        "LossUnhappens",
        "a holder that was told of its loss holds again",
        Mutant("lock-core/loss-unhappens"),
    ),
    bug(
        "ReliesOnSignals",
        "a waiter whose signal was lost never looks",
        Mutant("lock-core/relies-on-signals"),
    ),
    bug(
        "ConfirmsNoPush",
        "a lock that was handed over is not confirmed",
        Mutant("lock-core/confirms-no-push"),
    ),
    bug(
        "ReleasesOnce",
        "a release that fails is not tried again",
        Mutant("lock-core/releases-once"),
    ),
    bug(
        "KeepsItsOwner",
        "the release of a late grant ends the next one",
        Mutant("lock-core/keeps-its-owner"),
    ),
    bug(
        "AcceptsStaleGrants",
        "a grant whose lease is over is taken",
        Mutant("lock-core/accepts-stale-grants"),
    ),
    bug(
        "RedisCountsByTheKeyAlone",
        "tokens by INCR alone go back after a restart",
        Mutant("lock-redis/counts-by-the-key-alone"),
    ),
    bug(
        "RedisBumpsTheCounterLast",
        "the counter is bumped after the lock is set",
        Mutant("lock-redis/bumps-the-counter-last"),
    ),
    bug(
        "RedisRenewalsShorten",
        "PEXPIRE of a late renewal shortens a lease",
        Mutant("lock-redis/renewals-shorten"),
    ),
    bug(
        "RedisAdmitsLateAttempts",
        "no tombstone for an attempt that lands late",
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
        Mutant("lock-redis/quick-release-counts-no-claim-lease"),
    ),
    bug(
        "RedisServesNobody",
        "a release serves nobody in line",
        Mutant("lock-redis/quick-release-wakes-no-waiter"),
    ),
    bug(
        "RedisKeepsQueueEntries",
        "an entry of the queue leaks",
        Mutant("lock-redis/keeps-queue-entries"),
    ),
    bug(
        "RedisIgnoresReplicas",
        "a grant counts though too few replicas know of it",
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
        "what a cut-off follower answers is a proof",
        Mutant("lock-zookeeper/takes-reads-for-proofs"),
    ),
    bug(
        "ZooKeeperCountsFromTheLastProof",
        "one commit is a proof of the session",
        Mutant("lock-zookeeper/counts-from-the-last-proof"),
    ),
    bug("ZooKeeperDoesNotSync", "renewals do without sync", Mutant("lock-zookeeper/does-not-sync")),
    bug(
        "ZooKeeperLeaksWatches",
        "watches stay on the server",
        Mutant("lock-zookeeper/leaks-watches"),
    ),
    bug(
        "ZooKeeperAdoptsOldNodes",
        "the node of an old session is taken for ours",
        Mutant("lock-zookeeper/adopts-old-nodes"),
    ),
    bug(
        "ZooKeeperCountsBySequence",
        "tokens are made of the sequence suffix",
        Mutant("lock-zookeeper/counts-by-sequence"),
    ),
    bug(
        "MemcacheCutsLeasesToSeconds",
        "leases are truncated to seconds",
        Mutant("lock-memcache/cuts-leases-to-seconds"),
    ),
    bug(
        "MemcacheDeletesAnyone",
        "a release deletes without comparing",
        Mutant("lock-memcache/deletes-any-holder"),
    ),
    bug(
        "QuorumOfTheReachable",
        "a majority of the members that answer is enough",
        Mutant("lock-quorum/majority-of-the-reachable"),
    ),
    bug(
        "QuorumCountsTheYoung",
        "a member that was restarted counts at once",
        Mutant("lock-quorum/counts-restarted-members"),
    ),
    bug(
        "ClockStopsInSuspension",
        "the clock stands still while the machine is suspended",
        Mutant("lock-core/clock-stops-in-suspension"),
    ),
];

const fn bug(name: &'static str, what: &'static str, seen_by: Detector) -> Bug {
    Bug { name, what, seen_by, rules: &[] }
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
    fn the_campaign_sees_a_bug_by_a_rule_that_it_breaks() {
        for bug in ALL {
            let by_campaign = matches!(bug.seen_by, Campaign(_));
            assert_eq!(by_campaign, !bug.rules.is_empty(), "{}", bug.name);
        }
    }
}
