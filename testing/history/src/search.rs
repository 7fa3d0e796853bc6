//! K2 without fencing tokens: is there an order of the operations that a lock with leases can have
//! answered so?
//!
//! The search is that of Wing and Gong, with Lowe's just-in-time rule: an operation is linearized
//! no earlier than the next completion needs it. All states that are possible after a completion
//! are kept, each once. When no operation is in progress and no effect is outstanding, that is one
//! state, so that quiet moments split a history. (Lowe, "Testing for linearizability", 2017.)

use std::collections::{BTreeMap, HashSet};

use super::holds::{IntervalIndex, earliest_end, latest_end, unknown_effect_until};
use super::order::is_busy;
use super::record::{Op, Why};
use super::report::{Report, Rule};
use super::timeline::{LockView, Outcome, Time};

/// The states that may be explored for each step of a lock, and the allowance for the whole.
const BUDGET: [usize; 2] = [100, 500_000];

/// The effect of an operation on the lock, or its statement about it. Grants are named by the index
/// of their acquisition in `LockHistory::calls`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    /// The lock is free; then this grant has it.
    Take(usize),
    /// This grant has the lock; then it is free.
    Give(usize),
    /// The same, or this grant does not have it already.
    GiveIfHeld(usize),
    /// A client has it.
    Busy,
    /// This grant has it.
    Held(usize),
    /// This grant does not have it.
    Gone(usize),
}

impl What {
    /// Returns true if it may take effect without changing the state.
    fn looks(self) -> bool {
        !matches!(self, Self::Take(_) | Self::Give(_))
    }

    /// Returns the grant to which it gives the lock, or from which it takes it.
    fn changes(self) -> Option<usize> {
        match self {
            Self::Take(grant) | Self::Give(grant) | Self::GiveIfHeld(grant) => Some(grant),
            Self::Busy | Self::Held(_) | Self::Gone(_) => None,
        }
    }
}

/// An operation that takes effect at one point in `from..=until`.
#[derive(Clone, Copy, Debug)]
struct Step {
    what: What,
    from: Time,
    until: Time,
    /// False if it may never take effect.
    must: bool,
    /// The index of the operation, for the message.
    call: usize,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct SearchState {
    owner: Option<usize>,
    /// Steps that were linearized before their end, in order.
    done: Vec<usize>,
}

/// Searches an order for all operations of a lock.
pub(super) fn search(lock: LockView<'_>, line: &IntervalIndex, report: &mut Report) {
    if lock.exposed(Time::START..=Time::NEVER).next().is_some() {
        return; // then nothing can be said about the order
    }
    let steps = steps(lock, line);
    let budget = BUDGET[0] * steps.len() + BUDGET[1];
    let mut search =
        Search { steps: &steps, open: BTreeMap::new(), looking: Vec::new(), left: budget };
    match search.run() {
        Ok(()) => {}
        Err(Stuck::At(step)) => {
            let call = &lock.calls[steps[step].call];
            report.violation(Rule::K2, &lock.name, &call.lines, || {
                let name = lock.name_of(call);
                let (op, outcome) = (call.op, call.outcome);
                format!("no order of the calls explains that {op:?} of {name} came out {outcome:?}")
            });
        }
        Err(Stuck::Budget) => {
            report.violation(Rule::Undecided, &lock.name, &[], || {
                format!("no order found in {budget} states: make the run shorter or quieter")
            });
        }
    }
}

fn steps(lock: LockView<'_>, line: &IntervalIndex) -> Vec<Step> {
    let mut steps = Vec::with_capacity(2 * lock.calls.len());
    for (index, call) in lock.calls.iter().enumerate() {
        let step =
            |what, must| Step { what, from: call.invoke, until: call.ret, must, call: index };
        if call.op.acquires() && call.outcome == Outcome::Ok {
            steps.push(step(What::Take(index), true));
        } else if is_busy(call) {
            // A queued client explains it as well.
            let last = line.last_until(call.ret, index);
            if last.is_none_or(|span| span.until < call.invoke) {
                steps.push(step(What::Busy, true));
            }
        } else if call.op.acquires() && call.outcome != Outcome::Fail {
            let until = unknown_effect_until(lock, call).unwrap_or(Time::NEVER);
            steps.push(Step { until, ..step(What::Take(index), false) });
            steps.push(Step { until, ..step(What::Give(index), false) });
        }
    }
    for grant in &lock.grants {
        let (id, acquire) = (grant.acquire, lock.acquire_of(grant));
        let (until, _) = latest_end(lock, grant);
        let from = earliest_end(lock, grant).max(acquire.invoke).min(until);
        steps.push(Step { what: What::Give(id), from, until, must: false, call: id });
        for &index in grant.releases.iter().chain(&grant.asked) {
            let call = &lock.calls[index];
            let what = match (call.op, call.outcome, &call.err) {
                (Op::Release, Outcome::Ok, _) => What::Give(id),
                (Op::Release, _, Some(Why::Gone)) => What::GiveIfHeld(id),
                (Op::Renew, Outcome::Ok, _) => What::Held(id),
                (Op::Release | Op::Renew, Outcome::Fail, Some(Why::NotHeld)) => What::Gone(id),
                _ => continue,
            };
            steps.push(Step { what, from: call.invoke, until: call.ret, must: true, call: index });
        }
        if let Some((at, Why::NotHeld, _)) = grant.lost {
            let what = What::Gone(id);
            steps.push(Step { what, from: acquire.ret, until: at, must: true, call: id });
        }
    }
    steps
}

enum Stuck {
    At(usize),
    Budget,
}

struct Search<'a> {
    steps: &'a [Step],
    /// The open steps that change the lock, by their grant.
    open: BTreeMap<usize, Vec<usize>>,
    /// The open steps that do not change it.
    looking: Vec<usize>,
    left: usize,
}

impl Search<'_> {
    fn run(&mut self) -> Result<(), Stuck> {
        // At the same point, invocations come first, and optional steps end last.
        let rank = |step: &Step| if step.must { 1 } else { 2 };
        let steps = || self.steps.iter().enumerate();
        let begins = steps().map(|(index, step)| (step.from, 0, index));
        let ends = steps().map(|(index, step)| (step.until, rank(step), index));
        let mut events: Vec<(Time, u8, usize)> = begins.chain(ends).collect();
        events.sort_unstable();
        let mut states = HashSet::from([SearchState { owner: None, done: Vec::new() }]);
        for (_, rank, index) in events {
            if rank == 0 {
                self.begin(index);
                if self.steps[index].what.looks() {
                    states = states.into_iter().map(|state| self.look(state)).collect();
                }
                continue;
            }
            states = self.end(&states, index)?;
            if states.is_empty() {
                return Err(Stuck::At(index));
            }
            self.forget(index);
        }
        Ok(())
    }

    fn begin(&mut self, index: usize) {
        let what = self.steps[index].what;
        if what.looks() {
            self.looking.push(index);
        }
        if let Some(grant) = what.changes() {
            self.open.entry(grant).or_default().push(index);
        }
    }

    fn forget(&mut self, index: usize) {
        let what = self.steps[index].what;
        if what.looks() {
            self.looking.retain(|&other| other != index);
        }
        if let Some(grant) = what.changes()
            && let Some(open) = self.open.get_mut(&grant)
        {
            open.retain(|&other| other != index);
            if open.is_empty() {
                self.open.remove(&grant);
            }
        }
    }

    /// Returns the states after the last moment of a step.
    fn end(
        &mut self,
        states: &HashSet<SearchState>,
        index: usize,
    ) -> Result<HashSet<SearchState>, Stuck> {
        let step = self.steps[index];
        let mut after = HashSet::new();
        for state in states {
            if state.done.binary_search(&index).is_ok() {
                after.insert(state.without(index));
            } else if step.must {
                self.reach(state, index, &mut after)?;
            } else if matches!(step.what, What::Take(_)) {
                // It may never have happened, or only have reported contention to another client.
                after.insert(state.clone());
                self.reach(state, index, &mut after)?;
            } else if step.what == (What::Give(state.owner.unwrap_or(usize::MAX))) {
                after.insert(self.look(SearchState { owner: None, done: state.done.clone() }));
            } else {
                after.insert(state.clone());
            }
        }
        Ok(after)
    }

    /// Collects all states in which the step has just been linearized, after any others that it
    /// needs.
    fn reach(
        &mut self,
        from: &SearchState,
        index: usize,
        after: &mut HashSet<SearchState>,
    ) -> Result<(), Stuck> {
        let mut seen = HashSet::from([from.clone()]);
        let mut next = vec![from.clone()];
        while let Some(state) = next.pop() {
            self.left = self.left.checked_sub(1).ok_or(Stuck::Budget)?;
            for state in self.followers(&state, index) {
                if state.done.binary_search(&index).is_ok() {
                    after.insert(state.without(index));
                } else if seen.insert(state.clone()) {
                    next.push(state);
                }
            }
        }
        Ok(())
    }

    /// Returns the states that one more step leads to, except dead ends.
    fn followers(&self, state: &SearchState, target: usize) -> Vec<SearchState> {
        let mut followers = Vec::new();
        let Some(owner) = state.owner else {
            let wanted = self.steps[target].what;
            for (&grant, open) in &self.open {
                let takes = open.iter().copied().filter(|&index| {
                    self.steps[index].what == What::Take(grant)
                        && state.done.binary_search(&index).is_err()
                });
                // A grant that cannot release the lock blocks any other.
                let bars = matches!(wanted, What::Take(other) if other != grant) && open.len() == 1;
                followers.extend(takes.filter(|_| !bars).map(|index| {
                    self.look(SearchState { owner: Some(grant), ..state.with(index) })
                }));
            }
            return followers;
        };
        for &index in self.open.get(&owner).into_iter().flatten() {
            if !matches!(self.steps[index].what, What::Give(_) | What::GiveIfHeld(_)) {
                continue;
            }
            let mut after = if self.steps[index].must { state.with(index) } else { state.clone() };
            after.owner = None;
            followers.push(self.look(after));
        }
        followers
    }

    /// Linearizes all steps that change nothing, if they fit: they never block another step.
    fn look(&self, mut state: SearchState) -> SearchState {
        let owner = state.owner;
        let fits = |what| match what {
            What::Busy => owner.is_some(),
            What::Held(grant) => owner == Some(grant),
            What::Gone(grant) | What::GiveIfHeld(grant) => owner != Some(grant),
            What::Take(_) | What::Give(_) => false,
        };
        for &index in &self.looking {
            if fits(self.steps[index].what)
                && let Err(place) = state.done.binary_search(&index)
            {
                state.done.insert(place, index);
            }
        }
        state
    }
}

impl SearchState {
    fn with(&self, index: usize) -> Self {
        let mut more = self.clone();
        if let Err(place) = more.done.binary_search(&index) {
            more.done.insert(place, index);
        }
        more
    }

    fn without(&self, index: usize) -> Self {
        let mut less = self.clone();
        less.done.retain(|&other| other != index);
        less
    }
}
