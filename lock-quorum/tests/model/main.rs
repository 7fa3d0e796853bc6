//! The quorum's algorithm as a model, and every state that it can get into within small bounds.
//!
//! `stateright` goes through all orders in which requests and answers arrive late or never, clients pause and
//! leases end, for three members and two or three claims. It has to find what is published about Redlock
//! without fencing tokens (Martin Kleppmann, "How to do distributed locking", 2016): a client that pauses
//! between its check and its write, and members whose clocks step or that restart without their data. With
//! tokens that a majority has stored, it must find nothing of that at the resource; and while the assumptions
//! hold, no two claims that overlap at all. One mistake at a time (`Mistake`) must be found as well: a mistake
//! that is not found out is a hole in the model.
//!
//! A pass proves nothing about larger bounds or about the code: change both together.
//!
//! The model has no retries, no waiting and no tombstones. A late request takes no vote, except one
//! that wins a vote back: its caller may give up, and it may land later, also during a renewal. Votes
//! that arrive after the grant do not count here. In the code they do; `docs/design/quorum.md` names
//! the gap.

mod world;

use std::collections::BTreeSet;

use lock_core::clock::Moment;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use world::{FENCED, Mistake, NO_OVERLAP, RENEWED, Rules, TOKENS_FOLLOW, TOKENS_GROW, UNFENCED};

#[test]
fn claims_do_not_overlap_and_tokens_grow_while_the_assumptions_hold() {
    keeps("two claims", &Rules::sound(), &[NO_OVERLAP, TOKENS_GROW]);
    keeps("renewals", &Rules::renewals(), &[NO_OVERLAP, TOKENS_GROW, RENEWED]);
    if !world::deep() {
        return;
    }
    keeps("two claims that write", &Rules::writing(), &[NO_OVERLAP, TOKENS_GROW, FENCED]);
    keeps("three claims", &Rules::three_claims(), &[NO_OVERLAP, TOKENS_GROW]);
}

#[test]
fn a_member_that_restarts_empty_does_no_harm_while_it_is_not_counted() {
    keeps("restarts", &Rules::restarts(), &[NO_OVERLAP, TOKENS_GROW]);
    keeps("rejoining", &Rules::rejoining(), &[NO_OVERLAP, TOKENS_GROW]);
}

/// Two members that forget are more than a majority of three bears: two may hold it then, until the next renewal.
#[test]
fn failures_never_add_up_to_a_majority_that_nobody_has_had() {
    keeps("members that forget", &Rules::forgetting(), &[RENEWED]);
    keeps("attempts that land late", &Rules::straying(), &[RENEWED]);
    finds("two members that forget", &Rules::forgetting(), NO_OVERLAP);
}

/// A client whose addresses come to lead to members that it has asked already.
#[test]
fn a_member_is_counted_once_whatever_leads_to_it() {
    keeps("an address that moves", &Rules::moving(), &[NO_OVERLAP, TOKENS_GROW]);
    keeps("while the lock is held", &Rules::moving_while_held(), &[NO_OVERLAP, RENEWED]);
}

/// Two may hold it then, and the one that was granted later may have the lower token. It is refused.
#[test]
fn clocks_that_step_do_no_harm_to_a_resource_that_checks_tokens() {
    keeps("steps", &Rules::steps(), &[TOKENS_FOLLOW, FENCED]);
}

/// The published counter-examples.
#[test]
fn without_tokens_a_pause_is_enough() {
    finds("a paused client", &Rules::writing(), UNFENCED);
}

#[test]
fn a_clock_that_steps_makes_two_holders() {
    finds("a clock that steps", &Rules::steps(), NO_OVERLAP);
}

type MakeRules = fn() -> Rules;

#[test]
fn every_mistake_is_found_out() {
    let mistakes: &[(Mistake, &'static str, MakeRules)] = &[
        (Mistake::CountsFromTheReply, NO_OVERLAP, Rules::sound),
        (Mistake::NoMargin, NO_OVERLAP, Rules::sound),
        (Mistake::TwoOfThreeIsOne, NO_OVERLAP, Rules::sound),
        (Mistake::CountsTheYoung, NO_OVERLAP, Rules::restarts),
        (Mistake::CountsTheYoungTooSoon, NO_OVERLAP, Rules::rejoining),
        (Mistake::NeverRaises, TOKENS_GROW, Rules::uneven),
        (Mistake::TakesTheLowest, TOKENS_GROW, Rules::uneven),
        (Mistake::KeepsTheFirstToken, TOKENS_GROW, Rules::raising),
        (Mistake::CountsAddresses, NO_OVERLAP, Rules::moving),
        (Mistake::RenewsByAddresses, NO_OVERLAP, Rules::moving_while_held),
        (Mistake::CountsTheNew, RENEWED, Rules::forgetting),
        (Mistake::ConfirmsWhatLandsMeanwhile, RENEWED, Rules::straying),
        (Mistake::RenewsByOne, NO_OVERLAP, Rules::renewals),
        (Mistake::RenewsFromTheReply, NO_OVERLAP, Rules::renewals),
        (Mistake::RenewsWhatIsGone, RENEWED, Rules::forgetting),
    ];
    for (mistake, property, rules) in mistakes {
        let rules = rules().with(*mistake);
        finds(&format!("{mistake:?}"), &rules, property);
    }
}

/// Where members disagree about the number, a second round makes them agree.
#[test]
fn members_that_disagree_are_raised() {
    keeps("uneven", &Rules::uneven(), &[NO_OVERLAP, TOKENS_GROW]);
    keeps("votes that fall away", &Rules::raising(), &[NO_OVERLAP, TOKENS_GROW]);
}

fn keeps(run: &str, rules: &Rules, promises: &[&'static str]) {
    let rules = rules.clone().promising(promises);
    let began = Moment::now();
    let checker = rules.checker().threads(2).spawn_dfs().join();
    let took = Moment::now().saturating_since(began);
    let (states, depth) = (checker.unique_state_count(), checker.max_depth());
    eprintln!("{run}: {states} states, at most {depth} steps, {took:.1?}");
    for property in checker.model().properties() {
        let found = checker.discovery(property.name);
        match property.expectation {
            Expectation::Always => {
                let path = found.map(stateright::Path::into_actions);
                assert!(path.is_none(), "{run}: not so that {}: {path:?}", property.name);
            }
            // Otherwise the model is right about nothing.
            _ => assert!(found.is_some(), "{run}: it never happens that {}", property.name),
        }
    }
}

fn finds(run: &str, rules: &Rules, property: &'static str) {
    let rules = rules.clone().promising(&[property]);
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    // Breadth first, for the shortest way to it.
    let checker = rules.checker().finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{run} is not found out by: {property}"));
    eprintln!("{run}, {states} states: not so that {property}: {:?}", path.into_actions());
}
