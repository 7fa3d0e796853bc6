//! The quorum's algorithm as a model, and every state that it can reach within small bounds.
//!
//! `stateright` visits all orders in which requests and answers arrive late or never, clients pause
//! and leases end, for three members and two or three claims. It has to find the published
//! counter-examples to Redlock without fencing tokens (Martin Kleppmann, "How to do distributed
//! locking", 2016). There, a client pauses between its check and its write, or members' clocks
//! step, or members restart without their data. With tokens that a majority has stored, none of
//! these may reach the resource. While the assumptions hold, no two claims may overlap at all. Each
//! planted mistake (`Mistake`) must be found as well: a mistake that stays hidden is a hole in the
//! model.
//!
//! A pass proves nothing about larger bounds or about the code: change both together.
//!
//! The model has no retries, no waiting and no tombstones. A late request takes no vote, except one
//! that wins a vote back: its caller may give up, and it may land later, also during a renewal.
//! Votes that arrive after the grant do not count here. In the code they do;
//! `docs/design/quorum.md` names the gap.

mod world;

use std::collections::BTreeSet;

use lock_core::clock::Moment;
use stateright::{Checker, Expectation, HasDiscoveries, Model};

use world::{FENCED, Mistake, NO_OVERLAP, RENEWED, Rules, TOKENS_FOLLOW, TOKENS_GROW, UNFENCED};

#[test]
fn claims_do_not_overlap_and_tokens_grow_while_the_assumptions_hold() {
    keeps("two claims", &Rules::sound(), &[NO_OVERLAP, TOKENS_GROW]);
    keeps("renewals", &Rules::renewals(), &[NO_OVERLAP, TOKENS_GROW, RENEWED]);
    if !lock_models::deep() {
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

/// Finds two holders when two members forget, which is more than a majority of three bears. That
/// lasts until the next renewal.
#[test]
fn failures_never_add_up_to_a_majority_that_never_was() {
    keeps("members that forget", &Rules::forgetting(), &[RENEWED]);
    keeps("attempts that land late", &Rules::straying(), &[RENEWED]);
    finds("two members that forget", &Rules::forgetting(), NO_OVERLAP);
}

/// Covers a client whose addresses move to members that it has asked already.
#[test]
fn a_member_is_counted_once_for_all_its_addresses() {
    keeps("an address that moves", &Rules::moving(), &[NO_OVERLAP, TOKENS_GROW]);
    keeps("while the lock is held", &Rules::moving_while_held(), &[NO_OVERLAP, RENEWED]);
}

/// Finds two holders, of which the later one may have the lower token. The resource refuses it.
#[test]
fn clocks_that_step_do_no_harm_to_a_resource_that_checks_tokens() {
    keeps("steps", &Rules::steps(), &[TOKENS_FOLLOW, FENCED]);
}

/// Finds the published counter-examples.
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

/// Covers a second round, in which members that disagree about the token come to agree.
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
            // Otherwise the model checks nothing.
            _ => assert!(found.is_some(), "{run}: it never happens that {}", property.name),
        }
    }
}

fn finds(run: &str, rules: &Rules, property: &'static str) {
    let rules = rules.clone().promising(&[property]);
    let found = HasDiscoveries::AnyOf(BTreeSet::from([property]));
    // Breadth first, for the shortest counter-example.
    let checker = rules.checker().finish_when(found).spawn_bfs().join();
    let states = checker.unique_state_count();
    let path = checker.discovery(property);
    let path = path.unwrap_or_else(|| panic!("{run} is not found out by: {property}"));
    eprintln!("{run}, {states} states: not so that {property}: {:?}", path.into_actions());
}
