//! The lock protocol as a model, and every state that it can reach within small bounds.
//!
//! The tests that run code meet some of the orders in which messages arrive, clients pause and
//! leases end. `stateright` explores all of them, for a few claims and a few ticks. First it
//! explores the correct protocol, which must keep every promise in `promises.rs`. Then it explores
//! one mistake at a time (`Sabotage`), which must break its promise. A mistake that is not found is
//! a hole in the model.
//!
//! * `server.rs`: the verbs, each one atomic, as in `memory.rs` and the scripts of `lock-redis`.
//!
//! * `world.rs`: the engine of each claim (`acquire.rs`, `hold.rs`, `renewer.rs` of `lock-core`),
//!   its clock, and the network, which delays requests, answers and pushes for any time and loses
//!   them.
//!
//! * `rules.rs`: the bounds of each run.
//!
//! The limits of a pass:
//!
//! * It says nothing about bigger bounds than those in `rules.rs`. States are distinguished by a
//!   hash of 64 bits.
//!
//! * It says nothing about the code, only about the protocol: a change of the one requires a change
//!   of the other.
//!
//! * Liveness is bounded, and checked in single states: after the fault phase there is a calm of
//!   some ticks, at whose end no client may be waiting. `stateright`'s own `eventually` is not
//!   used, because it overlooks paths that join or form a cycle.
//!
//! The model leaves out: more than one lock; quorums, and minimum tokens with them; minimum holds,
//! detached holds, the local queue, batches; the order in a queue; that core remembers tokens
//! (`FenceRegressed`) and distinguishes `Gone` from `NotHeld`.
//!
//! It also simplifies. An engine repeats a release without end: the real one stops when the lease
//! is over (a crash stands for that). Tombstones stay for ever: a request that travels for longer
//! than a real one lasts can hold the lock without an owner, for a lease. Clocks are slow, not
//! fast, and never stepped: a fast one gives up too early, which is safe. The network does not
//! duplicate.

mod promises;
mod rules;
mod server;
mod world;

use std::collections::BTreeSet;

use lock_core::clock::Moment;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use promises::{
    BACKED, BREAKS_THE_EXPECTED, FENCE_HOLDS, KEEPS_ITS_GRANT, NO_GHOST, NO_OVERLAP, ONE_LEASE,
    RELEASED_IS_TRUE, SERVED, STAYS_DEAD, STAYS_LOST, TOKENS_GROW, TOUCHES_NO_OTHER,
};
use rules::{Rules, Sabotage};

#[test]
fn a_race() {
    keeps_every_promise("a race", Rules::race());
}

#[test]
fn a_race_of_two_rounds() {
    keeps_every_promise("a race of two rounds", Rules::two_rounds());
}

#[test]
fn a_line() {
    keeps_every_promise("a line", Rules::line());
}

#[test]
fn a_line_of_two_rounds() {
    keeps_every_promise("a line of two rounds", Rules::line_of_two_rounds());
}

#[test]
fn a_line_of_three() {
    keeps_every_promise("a line of three", Rules::line_of_three());
}

#[test]
fn extensions() {
    keeps_every_promise("extensions", Rules::extended());
}

#[test]
fn a_storm_and_a_calm() {
    keeps_every_promise("a storm and a calm", Rules::calming());
}

#[test]
fn locks_broken_by_hand() {
    keeps_every_promise("locks broken by hand", Rules::meddled());
}

#[test]
fn a_server_with_stale_data() {
    keeps_every_promise("a server with stale data", Rules::fenced());
}

/// A mistake, the promise that detects it, and the rules of its run.
type Mistake = (Sabotage, &'static str, fn() -> Rules);

const MISTAKES_OF_A_SERVER: &[Mistake] = &[
    (Sabotage::RenewRecreates, NO_GHOST, Rules::race),
    (Sabotage::RenewAdopts, TOUCHES_NO_OTHER, Rules::race),
    (Sabotage::RenewShortens, NO_OVERLAP, Rules::extended),
    (Sabotage::RenewAddsUp, ONE_LEASE, Rules::race),
    (Sabotage::ReleasesAnyone, TOUCHES_NO_OTHER, Rules::race),
    (Sabotage::AlwaysReleased, RELEASED_IS_TRUE, Rules::race),
    (Sabotage::ForgetsFormerHolders, NO_GHOST, Rules::race),
    (Sabotage::AdmitsLateAttempts, STAYS_DEAD, Rules::race),
    (Sabotage::LeavesStaleQueueEntries, NO_GHOST, Rules::line),
    (Sabotage::BreaksAnyone, BREAKS_THE_EXPECTED, Rules::meddled),
    (Sabotage::CountsOnly, TOKENS_GROW, Rules::fenced),
    (Sabotage::CountsOnly, FENCE_HOLDS, Rules::fenced),
];

const MISTAKES_OF_A_KEEPER: &[Mistake] = &[
    (Sabotage::CountsFromTheReply, NO_OVERLAP, Rules::race),
    (Sabotage::CountsFromThePush, NO_OVERLAP, Rules::line_of_three),
    (Sabotage::ClockTooSlow, NO_OVERLAP, Rules::race),
    (Sabotage::AssumesItsRenewals, BACKED, Rules::race),
    (Sabotage::RevivedByALateAnswer, STAYS_LOST, Rules::race),
    (Sabotage::ReusesItsOwner, NO_OVERLAP, Rules::two_rounds),
    (Sabotage::ForgetsFailedReleases, NO_GHOST, Rules::race),
    (Sabotage::NeverLooks, SERVED, Rules::calming),
    (Sabotage::KeepsAnotherGrant, KEEPS_ITS_GRANT, Rules::meddled),
];

#[test]
fn mistakes_of_a_server_are_found_out() {
    MISTAKES_OF_A_SERVER.iter().for_each(is_found_out);
}

#[test]
fn mistakes_of_a_keeper_are_found_out() {
    MISTAKES_OF_A_KEEPER.iter().for_each(is_found_out);
}

/// A promise that no mistake can break is vacuous.
#[test]
fn every_promise_can_be_broken() {
    let mistakes = || MISTAKES_OF_A_SERVER.iter().chain(MISTAKES_OF_A_KEEPER);
    let broken: BTreeSet<_> = mistakes().map(|(_, promise, _)| *promise).collect();
    let made: BTreeSet<_> = mistakes()
        .flat_map(|(_, _, rules)| rules().properties())
        .filter(|property| property.expectation == Expectation::Always)
        .map(|property| property.name)
        .collect();
    assert_eq!(broken, made);
}

fn keeps_every_promise(run: &str, rules: Rules) {
    let began = Moment::now();
    let checker = rules.checker().spawn_dfs().join();
    let took = Moment::now().saturating_since(began);
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    eprintln!("{run}: {states} states, at most {depth} steps, {took:.1?}");
    checker.assert_properties();
}

fn is_found_out((sabotage, promise, rules): &Mistake) {
    let found = HasDiscoveries::AnyOf(BTreeSet::from([*promise]));
    // Breadth first, for the shortest path to it.
    let checker = rules().with(*sabotage).checker().finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(promise);
    let path = path.unwrap_or_else(|| panic!("{sabotage:?} is not found out by: {promise}"));
    eprintln!("{sabotage:?}, {states} states: not so that {promise}: {:?}", path.into_actions());
}
