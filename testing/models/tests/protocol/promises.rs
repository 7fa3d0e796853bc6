//! The properties of every state, and the events that must be reachable, so that the model is not
//! vacuous.

use stateright::Property;

use crate::rules::Rules;
use crate::world::{Claim, Phase, State, ids};

pub(crate) const NO_OVERLAP: &str = "claims never overlap";
pub(crate) const BACKED: &str = "a client that believes to hold the lock does";
pub(crate) const TOKENS_GROW: &str = "tokens grow in the order of the grants";
pub(crate) const FENCE_HOLDS: &str =
    "a fenced resource accepts nothing older after something newer";
pub(crate) const TOUCHES_NO_OTHER: &str = "a renewal or release touches no other hold";
pub(crate) const RELEASED_IS_TRUE: &str = "a call that answers Released has removed the hold";
pub(crate) const STAYS_DEAD: &str = "an owner with a tombstone neither holds nor waits";
pub(crate) const NO_GHOST: &str = "once everybody is gone and answered, the lock is free at once";
pub(crate) const ONE_LEASE: &str = "no claim holds the lock for longer than a lease from now";
pub(crate) const SERVED: &str = "in the calm every waiter is served";
pub(crate) const STAYS_LOST: &str = "a lost lock stays lost";
pub(crate) const BREAKS_THE_EXPECTED: &str = "a break ends the hold of the expected owner only";
pub(crate) const KEEPS_ITS_GRANT: &str = "a hold is prolonged under its own grant only";

type Condition = fn(&Rules, &State) -> bool;

pub(crate) fn of(rules: &Rules) -> Vec<Property<Rules>> {
    let verbs: [(&'static str, Condition); 6] = [
        (TOKENS_GROW, |_, state| !state.server.broke.contains(TOKENS_GROW)),
        (FENCE_HOLDS, |_, state| !state.server.broke.contains(FENCE_HOLDS)),
        (TOUCHES_NO_OTHER, |_, state| !state.server.broke.contains(TOUCHES_NO_OTHER)),
        (RELEASED_IS_TRUE, |_, state| !state.server.broke.contains(RELEASED_IS_TRUE)),
        (BREAKS_THE_EXPECTED, |_, state| !state.server.broke.contains(BREAKS_THE_EXPECTED)),
        (KEEPS_ITS_GRANT, |_, state| !state.server.broke.contains(KEEPS_ITS_GRANT)),
    ];
    let mut all = Vec::from(verbs.map(|(name, condition)| Property::always(name, condition)));
    all.push(Property::always(ONE_LEASE, one_lease));
    all.push(Property::always(STAYS_LOST, stays_lost));
    if rules.excludes() {
        all.push(Property::always(NO_OVERLAP, no_overlap));
        all.push(Property::always(BACKED, backed));
    }
    if rules.budget.restarts == 0 {
        all.push(Property::always(STAYS_DEAD, stays_dead));
        all.push(Property::always(NO_GHOST, no_ghost));
    }
    if rules.calm > 0 {
        all.push(Property::always(SERVED, served));
    }
    all.extend(not_vacuous(rules));
    all
}

fn no_overlap(rules: &Rules, state: &State) -> bool {
    ids(rules).filter(|id| state.is_held(rules, *id).is_some()).count() <= 1
}

fn backed(rules: &Rules, state: &State) -> bool {
    let holder = state.server.holder();
    ids(rules).all(|id| match state.is_held(rules, id) {
        Some(grant) => {
            holder.is_some_and(|held| held.owner == rules.owner(id) && held.number() == grant)
        }
        None => true,
    })
}

fn stays_lost(rules: &Rules, state: &State) -> bool {
    !ids(rules).any(|id| state.claim(id).lost && state.is_held(rules, id).is_some())
}

fn stays_dead(_: &Rules, state: &State) -> bool {
    let store = &state.server.store;
    let holder = store.held.map(|held| held.owner);
    !holder.iter().chain(&store.line).any(|owner| store.tombstones.contains(owner))
}

/// Checks that no residue is left, whether the messages in flight arrive or not.
fn no_ghost(_: &Rules, state: &State) -> bool {
    let over = |claim: &Claim| matches!(claim.phase, Phase::Unborn | Phase::Gone);
    !state.claims.iter().all(over)
        || (state.server.holder().is_none() && state.server.store.line.is_empty())
}

fn one_lease(rules: &Rules, state: &State) -> bool {
    let longest = state.server.now + rules.lease + rules.extension;
    state.server.store.held.is_none_or(|held| held.until <= longest)
}

/// Checks bounded liveness in single states. No client gives up waiting in the calm, so a client
/// that is gone at its end was served.
fn served(rules: &Rules, state: &State) -> bool {
    let done = |claim: &Claim| matches!(claim.phase, Phase::Unborn | Phase::Gone | Phase::Crashed);
    state.server.now < rules.end() || state.claims.iter().all(done)
}

fn not_vacuous(rules: &Rules) -> Vec<Property<Rules>> {
    let mut all = vec![
        Property::sometimes("the last claim of all holds the lock", |rules: &Rules, state| {
            state.is_held(rules, rules.clients * rules.claims - 1).is_some()
        }),
        Property::sometimes(
            "a holder was stopped beyond its deadline, and the lock passed on",
            passed_on,
        ),
    ];
    if rules.line {
        all.push(Property::sometimes("a waiter was handed the lock and does not know it", handed));
    }
    all
}

fn passed_on(rules: &Rules, state: &State) -> bool {
    let stopped = |id| {
        let holds = matches!(state.claim(id).phase, Phase::Holding { .. });
        holds && state.is_held(rules, id).is_none()
    };
    ids(rules).any(stopped) && ids(rules).any(|id| state.is_held(rules, id).is_some())
}

fn handed(rules: &Rules, state: &State) -> bool {
    ids(rules).any(|id| {
        matches!(state.claim(id).phase, Phase::Waiting { .. })
            && state.server.holder().is_some_and(|held| held.owner == rules.owner(id))
    })
}
