//! A model of how the holder of a ZooKeeper lock knows how long its session lasts.
//!
//! A session lives while its member reports it to the leader, and the leader alone ends it. The
//! client sees neither. The rule (`rules.rs`) computes a deadline from the answers that it does
//! see. The model runs it among clocks, delays and stalls that are drawn from a seed, and through
//! every small schedule of them. The deadline must never be later than the end of the session, when
//! the lock can be granted again. A rule that counts a new connection as a heartbeat write is as
//! good (`REOPENED_COUNTS`). Rules that differ slightly (`NEAR_MISSES`) are found broken, each with
//! a counterexample.
//!
//! * `rules.rs`: the rule and the near misses, as data. `client.rs` follows them.
//! * `scenario.rs`: the inputs of a run, and how a seed draws them. `schedules.rs`: all small ones.
//! * `leader.rs`: the tracker of sessions. `world.rs`: members, links, stalls, and the verdict.
//!
//! A rule is judged at every check of a heartbeat write. Suppose that the member is partitioned
//! from the leader at that moment: does the session end before the deadline that the answer gives?
//! If so, the schedule runs again with that partition, and two holders must be seen.
//!
//! # What it contains
//!
//! The behaviour in ZooKeeper's sources (`org.apache.zookeeper.server`, and `quorum` in it), 3.9:
//!
//! * The leader ends a session at the end of the tick in which its timeout is over
//!   (`SessionTrackerImpl`, `ExpiryQueue`). Creating a session touches it there
//!   (`PrepRequestProcessor`, `createSession`), and so does opening it again at another member
//!   (`Leader.revalidateSession`).
//! * A follower answers pings by itself, and only records that the session was touched. It does the
//!   same for each request (`ZooKeeperServer.submitRequestNow`, `LearnerSessionTracker`). It sends
//!   and empties its records when it answers a ping of the leader (`Learner.ping`). That comes
//!   every half tick (`Leader.lead`), later if the loop runs later.
//! * A forwarded write is checked at the leader for a session that lives and has not moved
//!   (`PrepRequestProcessor.checkSession`), and not touched there (`LearnerHandler.run`). A write
//!   of the leader's own client touches the session.
//! * Commits, pings and other answers to a follower are one ordered stream, and so are its
//!   messages.
//!
//! These faults are disturbed, too:
//!
//! * Each direction of each connection is slow for a while or cut for good.
//! * The client, the follower or the leader stalls, and its threads wake one by one.
//! * The two clocks that matter differ by 1 %.
//! * A client that receives no answer, or whose connection breaks, connects to the next member and
//!   starts a new chain. Its predecessor leaves at some time, and its heartbeat writes run before
//!   and after.
//! * In one world (`Limited`) each member has its own limits, so a connection may be granted less
//!   than the one before. `GRANTS_COUNT` is the rule there, and the `GRANT_MISSES` are found
//!   broken.
//!
//! # What it omits
//!
//! * Elections: a new leader gives each session its whole timeout.
//! * Sessions that are local to a member, failed writes, and clocks that are stepped.
//! * A follower that drops its leader after `syncLimit`: a broken connection stands for it.
//! * Lost locks that stay lost: a deadline that comes too late is judged like one in time, which is
//!   stricter.
//!
//! No code of a client runs here: a change of the rule there has to be repeated here.
//!
//! # To run it
//!
//! `SESSION_LEASE_RUNS` is the number of seeds, and `SESSION_LEASE_TOGETHER` the number of faults
//! that meet in the schedules. To run one seed again, with its timeline:
//!
//! ```text
//! SESSION_LEASE_SEED=42 cargo test -p lock-models --test session_lease drawn -- --nocapture
//! ```

mod client;
mod leader;
mod rules;
mod scenario;
mod schedules;
mod world;

use std::ops::Range;

use rules::{
    AT_ANY_TIME, GRANT_MISSES, GRANTS_COUNT, NEAR_MISSES, ONE_HOLE, REOPENED_COUNTS, Rule, SPANNED,
};
use scenario::{Injection, Scenario, World};
use world::{Outcome, RunOptions, moment, run};

const RUNS: u64 = 50_000;
const TOGETHER: u64 = 2;
/// Each near miss is found within so many seeds.
const NEAR_ENOUGH: u64 = 100_000;

#[test]
fn drawn_schedules_leave_the_rule_unharmed() {
    let tally = never_breaks(&SPANNED, World::Punctual, RUNS, RunOptions::default());
    assert!(tally.runs == 1 || tally.expired * 100 > tally.runs, "{tally:?}");
}

#[test]
fn drawn_schedules_leave_the_rule_unharmed_whenever_heartbeats_are_sent() {
    never_breaks(&AT_ANY_TIME, World::Punctual, RUNS, RunOptions::default());
}

#[test]
fn drawn_schedules_leave_the_rule_unharmed_if_a_new_connection_counts() {
    never_breaks(&REOPENED_COUNTS, World::Punctual, RUNS / 5, RunOptions::default());
}

/// Checks a ping loop that is late after a stall. Evenly spaced heartbeat writes need no excuse for
/// that, however long the tick.
#[test]
fn drawn_schedules_with_a_late_ping_loop_leave_the_rule_unharmed() {
    never_breaks(&SPANNED, World::Late, RUNS, RunOptions::default());
}

/// A loop that sends no ping for a span while the leader goes on committing is against the
/// assumption; any other lateness is not.
#[test]
fn drawn_schedules_without_a_ping_loop_leave_the_rule_unharmed() {
    let options = RunOptions { excuse: true, ..RunOptions::default() };
    let tally = never_breaks(&SPANNED, World::Muted, RUNS / 5, options);
    assert!(tally.runs == 1 || tally.excused * 5 < tally.judged, "most is judged: {tally:?}");
}

/// With a tick of at most 0.3 timeouts, it does not matter when heartbeat writes are sent. There is
/// a ping in a span without the longest time between two commits.
#[test]
fn drawn_schedules_with_short_ticks_need_no_excuse() {
    never_breaks(&AT_ANY_TIME, World::LateWithShortTicks, RUNS / 5, RunOptions::default());
    println!("{}\n", find(&ONE_HOLE, World::LateWithShortTicks, 0..NEAR_ENOUGH));
}

#[test]
fn drawn_schedules_with_different_limits_leave_the_rule_unharmed() {
    let tally = never_breaks(&GRANTS_COUNT, World::Limited, RUNS, RunOptions::default());
    assert!(tally.runs == 1 || tally.expired * 100 > tally.runs, "{tally:?}");
}

#[test]
fn rules_that_ignore_shorter_grants_are_broken() {
    for rule in &GRANT_MISSES {
        println!("{}\n", find(rule, World::Limited, 0..NEAR_ENOUGH));
    }
}

#[test]
fn small_schedules_leave_the_rule_unharmed() {
    let together = variable("SESSION_LEASE_TOGETHER").unwrap_or(TOGETHER);
    let mut tally = Tally::default();
    for scenario in schedules::all(together) {
        let outcome = run(&SPANNED, &scenario, RunOptions::default());
        assert!(!is_broken(&outcome), "{}", Counterexample::new(&SPANNED, &scenario));
        tally.add(&outcome);
    }
    println!("schedules of up to {together}: {tally:?}");
}

#[test]
fn near_misses_are_broken() {
    for rule in &NEAR_MISSES {
        let found = find(rule, World::Punctual, 0..NEAR_ENOUGH);
        let outcome = run(&SPANNED, &found.scenario, RunOptions::default());
        assert!(!is_broken(&outcome), "the rule itself fails as well: {found}");
        println!("{found}\n");
    }
}

#[test]
fn without_an_assumption_the_rule_breaks() {
    for world in [World::LongTicks, World::Muted] {
        println!("{world:?}: {}\n", find(&SPANNED, world, 0..NEAR_ENOUGH));
    }
}

/// Checks that without faults a deadline never comes, where a commit takes up to a tenth of the
/// timeout.
#[test]
fn slow_commits_leave_the_lock_held() {
    let least_left = [(1, 350), (20, 330), (40, 310), (60, 170), (80, 260), (100, 180), (110, 100)];
    for (commit, least_left) in least_left {
        for scenario in schedules::without_faults(commit) {
            let outcome = run(&SPANNED, &scenario, RunOptions::default());
            let timeout = scenario.timeout();
            let left = outcome.least_left.expect("heartbeat writes are answered") * 1000 / timeout;
            assert!(left >= least_left, "{left} of 1000 left, commits take {commit}");
            let timeouts = scenario.horizon / timeout;
            let rarely = commit > 60 || outcome.judged <= 8 * timeouts;
            assert!(rarely, "{} heartbeat writes in {timeouts} timeouts", outcome.judged);
        }
    }
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..100 {
        let [one, again] = [0, 1].map(|_| {
            let options = RunOptions { trace: true, ..RunOptions::default() };
            run(&SPANNED, &Scenario::draw(seed, World::Late), options).trace
        });
        assert!(one.len() > 10, "seed {seed} is a short story: {one:?}");
        assert_eq!(one, again, "seed {seed}");
    }
}

/// The sums over the runs of a rule.
#[derive(Clone, Copy, Debug, Default)]
struct Tally {
    runs: u64,
    judged: u64,
    excused: u64,
    expired: u64,
}

impl Tally {
    fn add(&mut self, outcome: &Outcome) {
        self.runs += 1;
        self.judged += outcome.judged;
        self.excused += outcome.excused;
        self.expired += u64::from(outcome.expired);
    }
}

fn never_breaks(rule: &'static Rule, world: World, runs: u64, options: RunOptions) -> Tally {
    let mut tally = Tally::default();
    let seeds = seeds(runs);
    let told = seeds.end - seeds.start == 1;
    for seed in seeds {
        let scenario = Scenario::draw(seed, world);
        let outcome = run(rule, &scenario, options);
        if told {
            let traced = run(rule, &scenario, RunOptions { trace: true, ..options });
            println!("{world:?}: {scenario:#?}\n{}", traced.trace.join("\n"));
        }
        assert!(
            !is_broken(&outcome),
            "{world:?}: {}\nwith its timeline:\n  SESSION_LEASE_SEED={seed} cargo test -p {} --test session_lease drawn -- --nocapture\n",
            Counterexample::new(rule, &scenario),
            env!("CARGO_PKG_NAME"),
        );
        tally.add(&outcome);
    }
    println!("{}, {world:?}: {tally:?}", rule.name);
    tally
}

fn seeds(runs: u64) -> Range<u64> {
    match variable("SESSION_LEASE_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SESSION_LEASE_RUNS").unwrap_or(runs),
    }
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

fn is_broken(outcome: &Outcome) -> bool {
    outcome.overlap.is_some() || outcome.suspect.is_some()
}

fn find(rule: &Rule, world: World, seeds: Range<u64>) -> Counterexample {
    let mut all = seeds.map(|seed| Scenario::draw(seed, world));
    let found = all.find(|scenario| two_holders(rule, scenario, false).is_some());
    let found = found.and_then(|scenario| Counterexample::find(rule, &scenario));
    found.unwrap_or_else(|| panic!("{} got through in {world:?}", rule.name)).shrunk(rule)
}

/// A schedule by which a rule lets two clients hold at once, and its timeline.
struct Counterexample {
    rule: &'static str,
    scenario: Scenario,
    outcome: Outcome,
}

impl Counterexample {
    fn find(rule: &Rule, scenario: &Scenario) -> Option<Self> {
        let outcome = two_holders(rule, scenario, true)?;
        Some(Self { rule: rule.name, scenario: scenario.clone(), outcome })
    }

    /// Removes the faults that it does not need.
    fn shrunk(mut self, rule: &Rule) -> Self {
        let mut index = 0;
        while index < self.scenario.disturbances.len() {
            let mut less = self.scenario.clone();
            less.disturbances.remove(index);
            match Self::find(rule, &less) {
                Some(less) => self = less,
                None => index += 1,
            }
        }
        self
    }

    /// Creates the counterexample of a rule that would break, if two holders are not seen.
    fn new(rule: &'static Rule, scenario: &Scenario) -> Self {
        Self::find(rule, scenario).map_or_else(
            || Self {
                rule: rule.name,
                scenario: scenario.clone(),
                outcome: run(rule, scenario, RunOptions { trace: true, ..RunOptions::default() }),
            },
            |found| found.shrunk(rule),
        )
    }
}

fn two_holders(rule: &Rule, scenario: &Scenario, trace: bool) -> Option<Outcome> {
    let options = RunOptions { trace, ..RunOptions::default() };
    let first = run(rule, scenario, options);
    if first.overlap.is_some() {
        return Some(first);
    }
    let cut_after = Some(first.suspect?);
    let played = run(rule, scenario, RunOptions { cut_after, ..options });
    played.overlap.is_some().then_some(played)
}

impl std::fmt::Display for Counterexample {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { rule, scenario, outcome } = self;
        let Scenario { seed, timeout_ms, tick_ms, .. } = scenario;
        writeln!(f, "rule `{rule}`, seed {seed}: timeout {timeout_ms} ms, tick {tick_ms} ms")?;
        for Injection { kind, from, length } in &scenario.disturbances {
            let until = moment(from.saturating_add(*length));
            writeln!(f, "  {kind:?} from {} until {}", moment(*from).trim(), until.trim())?;
        }
        write!(f, "{}", outcome.trace.join("\n"))
    }
}
