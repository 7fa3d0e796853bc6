//! The clients and the network around the server: the possible actions and their effects.

use std::ops::Range;

use stateright::{Model, Property};

use crate::promises;
use crate::rules::{Budget, Rules, Sabotage};
use crate::server::{Answer, Number, Owner, Push, Request, Server, Store, Time};

/// The number of claims in a state.
const CLAIMS: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    pub(crate) server: Server,
    /// Those of the first client, then those of the second, and so on.
    pub(crate) claims: [Claim; CLAIMS],
    /// Requests whose callers have timed out. Each may arrive at any time, or never. Sorted.
    late: Vec<Request>,
    left: Budget,
    /// The holder that the operator has inspected and is about to break.
    inspected: Option<Owner>,
    snapshot: Option<Store>,
    /// The last token that a fenced resource has accepted.
    gate: Number,
}

/// The life of a claim, as the engine of `lock-core` runs it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(crate) phase: Phase,
    /// The verb in progress: one at most, see `Hold::claim_state`.
    call: Option<Call>,
    /// An attempt went unanswered: `Residue::late_attempt`.
    uncertain: bool,
    /// The application was notified, if it has checked: for the promises.
    pub(crate) lost: bool,
    /// For late writes.
    grant: Option<Number>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Phase {
    #[default]
    Unborn,
    /// `Acquisition::acquire_from_backend`: an attempt in progress, or about to be repeated.
    Seeking,
    /// `Acquisition::wait`, until `look_at` or a signal. The server's clock plus `zero` is the
    /// reading of the client's clock then, or earlier.
    Waiting { look_at: Time, zero: i8 },
    /// `Hold`.
    Holding { deadline: Time, grant: Number },
    /// `PendingRelease`.
    Leaving,
    /// The release was answered, or there was nothing to release.
    Gone,
    /// Without a release.
    Crashed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Call {
    /// Read from the client's clock before the request was sent.
    sent: Time,
    way: Way,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Way {
    There(Request),
    Back(Answer),
}

/// A claim, by its index in `State::claims`.
type Id = u8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Time passes.
    Tick,
    /// An attempt of an acquisition, the first or another one.
    Attempt(Id),
    /// The request reaches the server, which executes it and sends the answer.
    Land(Id),
    /// The answer is received.
    Hear(Id),
    /// `Engine::call` at its bound, or a lost connection: from now on the outcome is unknown.
    GiveUp(Id),
    /// A request that timed out reaches the server after all.
    LandLate(Request),
    /// `Wake::Granted`.
    HearPush(Push),
    /// A renewal, and `LockGuard::extend` with more than the lease.
    Renew(Id, Time),
    /// `LockGuard::release` or its drop, a dropped future, or a loss that was noticed.
    ReleaseMode(Id),
    Crash(Id),
    /// `inspect`, by an operator.
    Inspect,
    /// `break_lock`, by the same operator, later.
    Break,
    /// A snapshot of the server's data.
    Save,
    /// The server is back with the snapshot. It takes a tick.
    Restart,
    /// A write of a present or former holder, however late.
    Write(Id),
}

impl Model for Rules {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        assert!(usize::from(self.clients * self.claims) <= CLAIMS);
        vec![State {
            server: Server::default(),
            claims: [Claim::default(); CLAIMS],
            late: Vec::new(),
            left: self.budget,
            inspected: None,
            snapshot: None,
            gate: Number { token: 0, nth: 0 },
        }]
    }

    /// Returns the possible actions. In the fault phase all possible events may happen, or not yet:
    /// every client may be paused, and every message delayed. In the calm no client begins and no
    /// fault happens. Holders release, and time passes only when all clients have done their
    /// possible steps. Late requests and pushes still may arrive or not.
    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let calm = state.server.now >= self.storm && self.calm > 0;
        for id in ids(self) {
            state.keeper_may(self, id, calm, actions);
        }
        let idle = actions.is_empty();
        actions.extend(state.late.iter().map(|request| Action::LandLate(*request)));
        actions.extend(state.server.pushed.iter().map(|push| Action::HearPush(*push)));
        if state.server.now < self.storm {
            state.fate_may(self, actions);
        }
        if state.server.now < self.storm || (calm && idle && state.server.now < self.end()) {
            actions.push(Action::Tick);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        next.act(self, action);
        next.take_leave(self);
        next.forget_what_cannot_matter(self);
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        promises::of(self)
    }
}

pub(crate) fn ids(rules: &Rules) -> Range<Id> {
    0..rules.clients * rules.claims
}

impl Rules {
    pub(crate) fn end(&self) -> Time {
        self.storm + self.calm
    }

    pub(crate) fn client(&self, id: Id) -> u8 {
        id / self.claims
    }

    /// Returns the owner id of a claim, which is unique.
    pub(crate) fn owner(&self, id: Id) -> Owner {
        if self.has(Sabotage::ReusesItsOwner) { self.client(id) * self.claims } else { id }
    }
}

impl State {
    /// Adds the possible actions of the engine of one claim and of its network.
    fn keeper_may(&self, rules: &Rules, id: Id, calm: bool, actions: &mut Vec<Action>) {
        let claim = self.claim(id);
        match claim.call {
            Some(Call { way: Way::There(_), .. }) => {
                actions.push(Action::Land(id));
                if !calm && self.left.unanswered > 0 {
                    actions.push(Action::GiveUp(id));
                }
            }
            Some(Call { way: Way::Back(_), .. }) => actions.push(Action::Hear(id)),
            None => {}
        }
        let free = claim.call.is_none();
        match claim.phase {
            Phase::Unborn if !calm && self.is_next(rules, id) => actions.push(Action::Attempt(id)),
            Phase::Seeking if free => {
                actions.push(Action::Attempt(id));
                if !calm {
                    actions.push(Action::ReleaseMode(id));
                }
            }
            Phase::Waiting { look_at, .. } => {
                let due = look_at <= self.later(rules) && !rules.has(Sabotage::NeverLooks);
                // Before it is due, by a signal: `Wake::Retry`. It is not guaranteed.
                if due || !calm {
                    actions.push(Action::Attempt(id));
                }
                if !calm {
                    actions.push(Action::ReleaseMode(id));
                }
            }
            Phase::Holding { deadline, .. } => {
                actions.push(Action::ReleaseMode(id));
                if free && !calm && self.left.renewals > 0 && self.later(rules) < deadline {
                    actions.push(Action::Renew(id, rules.lease));
                    if rules.extension > 0 {
                        actions.push(Action::Renew(id, rules.lease + rules.extension));
                    }
                }
            }
            _ => {}
        }
        let alive = !matches!(claim.phase, Phase::Unborn | Phase::Gone | Phase::Crashed);
        if alive && !calm && self.left.crashes > 0 {
            actions.push(Action::Crash(id));
        }
    }

    /// Adds the possible actions of the environment.
    fn fate_may(&self, rules: &Rules, actions: &mut Vec<Action>) {
        if self.left.breaks > 0 {
            actions.push(if self.inspected.is_some() { Action::Break } else { Action::Inspect });
        }
        if self.left.restarts > 0 {
            actions.push(if self.snapshot.is_some() { Action::Restart } else { Action::Save });
        }
        if self.left.writes > 0 {
            let granted = |id: &Id| self.claim(*id).grant.is_some();
            actions.extend(ids(rules).filter(granted).map(Action::Write));
        }
    }

    fn act(&mut self, rules: &Rules, action: Action) {
        match action {
            Action::Tick => self.server.now += 1,
            Action::Attempt(id) => {
                self.claim_mut(id).phase = Phase::Seeking;
                self.send(id, Request::Attempt { owner: rules.owner(id) });
            }
            Action::Land(id) => self.land(rules, id),
            Action::Hear(id) => self.hear(rules, id),
            Action::GiveUp(id) => self.give_up(rules, id),
            Action::LandLate(request) => {
                let at = self.late.iter().position(|late| *late == request).expect("it is late");
                self.late.remove(at);
                self.server.handle(rules, request);
            }
            Action::HearPush(push) => self.hear_push(rules, push),
            Action::Renew(id, ttl) => self.renew(rules, id, ttl),
            Action::ReleaseMode(id) => self.claim_mut(id).phase = Phase::Leaving,
            Action::Crash(id) => {
                self.left.crashes -= 1;
                self.abandon(id);
                self.claim_mut(id).phase = Phase::Crashed;
            }
            Action::Inspect => self.inspected = self.server.holder().map(|held| held.owner),
            Action::Break => {
                self.left.breaks -= 1;
                let expected = self.inspected.take().expect("an owner was inspected");
                self.server.break_lock(rules, expected);
            }
            Action::Save => self.snapshot = Some(self.server.store.clone()),
            Action::Restart => {
                self.left.restarts -= 1;
                self.server.store = self.snapshot.take().expect("there is a snapshot");
                self.server.now += 1;
            }
            Action::Write(id) => self.write(id),
        }
    }

    fn send(&mut self, id: Id, request: Request) {
        let sent = self.server.now;
        self.claim_mut(id).call = Some(Call { sent, way: Way::There(request) });
    }

    fn land(&mut self, rules: &Rules, id: Id) {
        let call = self.claim(id).call.expect("a verb is under way");
        let Way::There(request) = call.way else { unreachable!("it has landed") };
        let answer = self.server.handle(rules, request);
        self.claim_mut(id).call = Some(Call { way: Way::Back(answer), ..call });
        // A late answer makes no difference: the engine may take its next step later anyway. A lost
        // answer is the same as a request that timed out and arrived late.
        if matches!(answer, Answer::Contended { .. } | Answer::Refused | Answer::ReleaseMode) {
            self.hear(rules, id);
        }
    }

    fn hear(&mut self, rules: &Rules, id: Id) {
        let Call { sent, way } = self.claim_mut(id).call.take().expect("a verb is under way");
        let Way::Back(answer) = way else { unreachable!("it is still on its way there") };
        let clock = self.later(rules);
        let from_reply = rules.has(Sabotage::CountsFromTheReply);
        let since = if from_reply { self.server.now } else { sent };
        let phase = self.claim(id).phase;
        self.claim_mut(id).phase = match (phase, answer) {
            (Phase::Seeking, Answer::Acquired { lease, grant }) => {
                self.won(rules, id, since + lease - rules.margin, grant)
            }
            (Phase::Seeking, Answer::Contended { expires_in, at }) => {
                let look_at = self.server.now + expires_in.min(rules.lease).max(1);
                Phase::Waiting { look_at, zero: sent.cast_signed() - at.cast_signed() }
            }
            // `Hold::renewed`.
            (Phase::Holding { deadline, grant }, Answer::Held { lease, grant: renewed }) => {
                if clock >= deadline && !rules.has(Sabotage::RevivedByALateAnswer) {
                    phase
                } else if renewed != grant && !rules.has(Sabotage::KeepsAnotherGrant) {
                    // Taken away, and acquired again by a late attempt of the same claim.
                    Phase::Leaving
                } else {
                    if renewed != grant {
                        self.server.breaks(promises::KEEPS_ITS_GRANT);
                    }
                    let deadline = deadline.max(since + lease - rules.margin);
                    Phase::Holding { deadline, grant }
                }
            }
            (Phase::Leaving, Answer::ReleaseMode) => Phase::Gone,
            // Lost, or refused; during a release, the answer to a renewal that was still in
            // progress.
            _ => Phase::Leaving,
        };
    }

    /// Receives a push, `Wake::Granted`. The age of the grant comes from the server's time `at` in
    /// it, and from the reading of the client's clock before its request at that server time.
    fn hear_push(&mut self, rules: &Rules, push: Push) {
        self.server.pushed.retain(|other| *other != push);
        for id in ids(rules).filter(|id| rules.owner(*id) == push.owner) {
            if let Phase::Waiting { zero, .. } = self.claim(id).phase {
                let since = match rules.sabotage {
                    Some(Sabotage::CountsFromThePush) => self.server.now,
                    _ => (push.since.cast_signed() + zero).max(0).cast_unsigned(),
                };
                let grant = Number { token: push.token, nth: push.nth };
                let deadline = since + rules.claim_lease - rules.margin;
                self.claim_mut(id).phase = self.won(rules, id, deadline, grant);
            }
        }
    }

    /// Accepts a grant in time. A late grant is released, and the acquisition starts afresh.
    fn won(&mut self, rules: &Rules, id: Id, deadline: Time, grant: Number) -> Phase {
        if rules.budget.writes > 0 {
            self.claim_mut(id).grant = Some(grant);
        }
        let in_time = self.later(rules) < deadline;
        if in_time { Phase::Holding { deadline, grant } } else { Phase::Leaving }
    }

    fn renew(&mut self, rules: &Rules, id: Id, ttl: Time) {
        self.left.renewals -= 1;
        self.send(id, Request::Renew { owner: rules.owner(id), ttl });
        if rules.has(Sabotage::AssumesItsRenewals) {
            let end = self.server.now + ttl - rules.margin;
            if let Phase::Holding { deadline, .. } = &mut self.claim_mut(id).phase {
                *deadline = end.max(*deadline);
            }
        }
    }

    fn give_up(&mut self, rules: &Rules, id: Id) {
        self.left.unanswered -= 1;
        self.abandon(id);
        let claim = self.claim_mut(id);
        claim.uncertain |= claim.phase == Phase::Seeking;
        if claim.phase == Phase::Leaving && rules.has(Sabotage::ForgetsFailedReleases) {
            claim.phase = Phase::Gone;
        }
    }

    /// Releases after the verb in progress, and again if it was not answered.
    fn take_leave(&mut self, rules: &Rules) {
        for id in ids(rules) {
            let claim = self.claim_mut(id);
            if claim.phase == Phase::Leaving && claim.call.is_none() {
                let uncertain = claim.uncertain;
                self.send(id, Request::Release { owner: rules.owner(id), uncertain });
            }
        }
    }

    /// Stops waiting for the answer; the request may still be in flight.
    fn abandon(&mut self, id: Id) {
        if let Some(Call { way: Way::There(request), .. }) = self.claim_mut(id).call.take() {
            self.late.push(request);
            self.late.sort_unstable();
        }
    }

    /// Writes with `FenceGate`, which accepts a token that is not lower than the last one.
    fn write(&mut self, id: Id) {
        self.left.writes -= 1;
        let grant = self.claim(id).grant.expect("it was granted once");
        if grant.token >= self.gate.token {
            if grant.nth < self.gate.nth {
                self.server.breaks(promises::FENCE_HOLDS);
            }
            self.gate = grant;
        }
    }

    /// Merges states that differ only in the time of past events.
    fn forget_what_cannot_matter(&mut self, rules: &Rules) {
        let later = self.later(rules);
        for claim in &mut self.claims {
            claim.forget_what_cannot_matter(rules, later);
        }
        // With a queue, the next verb ends the lease, and hands the lock off.
        if self.server.store.line.is_empty() {
            self.server.store.held = self.server.holder();
        }
        let mut pushed = std::mem::take(&mut self.server.pushed);
        pushed.retain(|push| {
            let mut own = ids(rules).filter(|id| rules.owner(*id) == push.owner);
            own.any(|id| matches!(self.claim(id).phase, Phase::Seeking | Phase::Waiting { .. }))
        });
        self.server.pushed = pushed;
    }

    /// Returns whether a claim may begin. A client makes its claims one after the other, and
    /// releases the old one in the background. By symmetry, the first client begins.
    fn is_next(&self, rules: &Rules, id: Id) -> bool {
        let over = |id: Id| matches!(self.claim(id).phase, Phase::Leaving | Phase::Gone);
        if id.is_multiple_of(rules.claims) {
            id == 0 || self.claim(id - rules.claims).phase != Phase::Unborn
        } else {
            over(id - 1)
        }
    }

    /// Returns the application's view. It is computed from the client's clock, without any message,
    /// and however long the client was stopped. See `Hold::loss`.
    pub(crate) fn is_held(&self, rules: &Rules, id: Id) -> Option<Number> {
        match self.claim(id).phase {
            Phase::Holding { deadline, grant } => (self.later(rules) < deadline).then_some(grant),
            _ => None,
        }
    }

    /// Returns the worst reading of a client's clock: the server's time at the first reading, and
    /// less by `Rules::lag` at each later one.
    fn later(&self, rules: &Rules) -> Time {
        let too_much = Time::from(rules.has(Sabotage::ClockTooSlow));
        self.server.now.saturating_sub(rules.lag + too_much)
    }

    pub(crate) fn claim(&self, id: Id) -> &Claim {
        &self.claims[usize::from(id)]
    }

    fn claim_mut(&mut self, id: Id) -> &mut Claim {
        &mut self.claims[usize::from(id)]
    }
}

impl Claim {
    fn forget_what_cannot_matter(&mut self, rules: &Rules, later: Time) {
        match &mut self.phase {
            Phase::Holding { deadline, .. } if *deadline <= later => {
                *deadline = 0;
                self.lost = true;
            }
            Phase::Waiting { look_at, zero } => {
                if rules.calm == 0 || *look_at <= later {
                    *look_at = 0;
                }
                if !rules.line {
                    *zero = 0;
                }
            }
            Phase::Leaving => self.lost = false,
            Phase::Gone | Phase::Crashed => {
                *self = Self { phase: self.phase, grant: self.grant, ..Self::default() };
            }
            _ => {}
        }
        if let Some(Call { sent, .. }) = &mut self.call {
            // The answer will come too late.
            let over = *sent + rules.lease + rules.extension - rules.margin <= later;
            if over || self.phase == Phase::Leaving {
                *sent = 0;
            }
        }
    }
}
