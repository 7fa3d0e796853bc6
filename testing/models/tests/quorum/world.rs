//! Members, clients, and the messages between them.

use lock_models::deep;
use stateright::{Model, Property};

pub(crate) const NO_OVERLAP: &str = "claims never overlap";
pub(crate) const TOKENS_GROW: &str = "tokens grow in the order of the grants";
pub(crate) const TOKENS_FOLLOW: &str =
    "who begins when another one has been granted has the higher token";
pub(crate) const FENCED: &str =
    "a resource that checks tokens accepts nothing older after something newer";
pub(crate) const UNFENCED: &str =
    "a resource that checks nothing accepts nothing older after something newer";
pub(crate) const RENEWED: &str = "nobody is renewed who was without a majority for a moment";

const MEMBERS: usize = 3;
const LEASE: Time = 2;
/// How much earlier than the lease the holder stops.
const MARGIN: Time = 1;
/// How much a client's clock falls behind from one reading to a later one. The model assumes the
/// worst case.
const LAG: Time = 1;
/// How much tokens that are taken from the clock grow in a tick.
const NUMBERS_A_TICK: Number = 2;
/// How far ahead of their clocks clients ask for tokens.
const HEADROOM: Number = 1;

type Time = u8;
type Number = u8;
type Id = usize;

/// The bounds of a run. Events within them may happen in any order and at any time.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    claims: usize,
    end: Time,
    /// How often a member's clock may step forward by a lease.
    steps: u8,
    /// How often a member may restart without its data.
    restarts: u8,
    /// The tokens that members begin with.
    fences: [Number; MEMBERS],
    writes: u8,
    /// How many members the first claim holds the lock at from the beginning; 0: it is not held.
    held_by: usize,
    /// How often the first claim may be renewed.
    renewals: u8,
    /// How often a member may forget a lock without a sign.
    forgets: u8,
    /// A member forgets only a vote whose token it is asked to raise: one that is not counted yet.
    forgets_what_is_raised: bool,
    /// How often an address of the first claim may move to another member.
    moves: u8,
    /// An attempt of the first claim at a member without its vote was abandoned, and may still
    /// land.
    has_stray: bool,
    /// Whether answers may be late as well. The deadline counts from before the requests, so they
    /// only postpone a grant.
    late_answers: bool,
    mistake: Option<Mistake>,
    promises: Vec<&'static str>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mistake {
    CountsFromTheReply,
    NoMargin,
    /// Takes one vote for a majority.
    TwoOfThreeIsOne,
    /// Counts a member although it may have forgotten.
    CountsTheYoung,
    /// Counts it as soon as the claim of a holder that reads its clock without delay would be over.
    CountsTheYoungTooSoon,
    /// Takes the highest token, which no other member stores.
    NeverRaises,
    TakesTheLowest,
    /// Takes the highest token of the first majority, whichever members vote when it is stored.
    KeepsTheFirstToken,
    /// Counts two votes of a member that answers by two addresses.
    CountsAddresses,
    /// Counts two renewals of such a member.
    RenewsByAddresses,
    /// Counts votes that were won back at once.
    CountsTheNew,
    /// Confirms every vote that a renewal finds, also one that was not there when the renewal
    /// began.
    ConfirmsWhatLandsMeanwhile,
    /// Renews with one member that still holds.
    RenewsByOne,
    /// Counts the renewed lease from the answer.
    RenewsFromTheReply,
    /// Makes a lost lock anew when a renewal asks for it, instead of granting no time.
    RenewsWhatIsGone,
}

impl Rules {
    pub(crate) fn sound() -> Self {
        Self {
            claims: 2,
            end: if deep() { 4 } else { 2 },
            steps: 0,
            restarts: 0,
            fences: [0; MEMBERS],
            writes: 0,
            held_by: 0,
            renewals: 0,
            forgets: 0,
            forgets_what_is_raised: false,
            moves: 0,
            has_stray: false,
            late_answers: deep(),
            mistake: None,
            promises: Vec::new(),
        }
    }

    /// Adds a resource that is written to.
    pub(crate) fn writing() -> Self {
        Self { writes: 1, end: if deep() { 3 } else { 2 }, ..Self::sound() }
    }

    /// Returns the bounds for three claims, in which no time passes: more states than that are too
    /// many.
    pub(crate) fn three_claims() -> Self {
        Self { claims: 3, end: 0, ..Self::sound() }
    }

    pub(crate) fn steps() -> Self {
        Self { steps: 1, end: if deep() { 2 } else { 1 }, ..Self::writing() }
    }

    pub(crate) fn restarts() -> Self {
        Self { restarts: 1, end: if deep() { 2 } else { 1 }, ..Self::sound() }
    }

    /// Returns the bounds for a lock at a bare majority, of which one member restarts, with enough
    /// time for that one to count again.
    pub(crate) fn rejoining() -> Self {
        let end = LEASE + MARGIN + if deep() { 2 } else { 1 };
        Self { held_by: MEMBERS / 2 + 1, restarts: 1, end, late_answers: false, ..Self::sound() }
    }

    /// Returns the bounds for a first claim that holds the lock for longer than a lease.
    pub(crate) fn renewals() -> Self {
        let end = if deep() { 3 } else { 2 };
        Self { held_by: MEMBERS, renewals: 2, end, late_answers: false, ..Self::sound() }
    }

    /// Returns the bounds for members that forget the lock while it is renewed.
    pub(crate) fn forgetting() -> Self {
        let end = if deep() { 1 } else { 0 };
        Self {
            held_by: MEMBERS,
            renewals: 2,
            forgets: 2,
            end,
            late_answers: false,
            ..Self::sound()
        }
    }

    /// Returns the bounds for one member held by an attempt that lands late, or not at all, and
    /// another one that forgets.
    pub(crate) fn straying() -> Self {
        let forgets = if deep() { 2 } else { 1 };
        Self { has_stray: true, forgets, end: 0, ..Self::forgetting() }
    }

    /// Returns the bounds for members whose tokens are ahead of each other and of the clock.
    pub(crate) fn uneven() -> Self {
        let end = if deep() { 3 } else { 0 };
        Self { fences: [0, 20, 40], end, ..Self::sound() }
    }

    /// Returns the bounds for votes that are lost while they are raised, with late answers.
    pub(crate) fn raising() -> Self {
        let forgets = if deep() { 2 } else { 1 };
        Self { forgets, forgets_what_is_raised: true, late_answers: true, end: 0, ..Self::uneven() }
    }

    /// Returns the bounds for an address that moves while the lock is acquired.
    pub(crate) fn moving() -> Self {
        let moves = if deep() { 2 } else { 1 };
        Self { moves, end: 0, ..Self::sound() }
    }

    /// Returns the bounds for an address that moves while the lock is held at a bare majority.
    pub(crate) fn moving_while_held() -> Self {
        let moves = if deep() { 2 } else { 1 };
        let renewals = if deep() { 2 } else { 1 };
        Self { held_by: MEMBERS / 2 + 1, moves, renewals, ..Self::renewals() }
    }

    pub(crate) fn with(self, mistake: Mistake) -> Self {
        Self { mistake: Some(mistake), ..self }
    }

    pub(crate) fn promising(self, promises: &[&'static str]) -> Self {
        Self { promises: promises.to_vec(), ..self }
    }

    fn has(&self, mistake: Mistake) -> bool {
        self.mistake == Some(mistake)
    }

    fn majority(&self) -> usize {
        if self.has(Mistake::TwoOfThreeIsOne) { 1 } else { MEMBERS / 2 + 1 }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct World {
    now: Time,
    members: [Member; MEMBERS],
    clients: Vec<Client>,
    resource: Resource,
    steps: u8,
    restarts: u8,
    forgets: u8,
    moves: u8,
    /// Grants so far, and the highest token of one.
    grants: u8,
    top: Number,
    broke: Vec<&'static str>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Member {
    held: Option<Held>,
    fence: Number,
    /// How far its clock is ahead.
    ahead: Time,
    started: Option<Time>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
struct Held {
    owner: Id,
    /// On its own clock.
    until: Time,
    number: Number,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Client {
    phase: Phase,
    began: Time,
    min_token: Number,
    /// The token that a majority is to store.
    token: Option<Number>,
    deadline: Time,
    grant: u8,
    votes: [Vote; MEMBERS],
    /// The member to which each address leads.
    leads_to: [usize; MEMBERS],
    /// The member that answered there last.
    origins: [usize; MEMBERS],
    attempts: [Call; MEMBERS],
    /// Abandoned attempts.
    strays: [Stray; MEMBERS],
    releases: [bool; MEMBERS],
    writes: u8,
    /// How many grants there were when it began, and the highest token.
    after: u8,
    above: Number,
    /// It has checked its clock, and is going to write.
    checked: bool,
    renewals: u8,
    renewal: Option<Renewal>,
    /// Fewer than a majority of the members had its lock, while it was held.
    interrupted: bool,
    /// Votes that were won back, and are not confirmed.
    new: [bool; MEMBERS],
}

/// A renewal that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Renewal {
    began: Time,
    /// Before it began, another client could have had the lock.
    too_late: bool,
    /// The members that have confirmed the hold.
    held: [bool; MEMBERS],
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
enum Phase {
    #[default]
    Unborn,
    Asking,
    Holding,
    Gone,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Vote {
    #[default]
    None,
    For(Number),
    Against,
}

/// An attempt on its way to a member, or its answer on its way back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Call {
    #[default]
    None,
    Asked(Number),
    Answered(Vote),
    /// To win a vote back.
    AskedAgain(Number),
    AnsweredAgain(Vote),
    Renew,
    /// The token of the lock, if it is still held.
    Renewed(Option<Number>),
}

/// An abandoned attempt. From then on the member may or may not have a vote, and it is asked to
/// renew.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Stray {
    #[default]
    None,
    UnderWay(Number),
    Landed,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct Resource {
    highest: Number,
    /// Up to this one, grants are older than one that has written: it began after them.
    fenced: u8,
    unfenced: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Action {
    Tick,
    Begin(Id),
    Arrive(Id, usize),
    Hear(Id, usize),
    GiveUp(Id),
    /// An attempt to win a vote back takes too long.
    TimeOut(Id, usize),
    LandLate(Id, usize),
    Renew(Id),
    Release(Id),
    Released(Id, usize),
    Forget(usize),
    Check(Id),
    Write(Id),
    Step(usize),
    Restart(usize),
    /// An address of the first claim moves to this member.
    Move(usize, usize),
}

impl Model for Rules {
    type State = World;
    type Action = Action;

    fn init_states(&self) -> Vec<World> {
        let member = |fence| Member { fence, ..Member::default() };
        let mut world = World {
            now: 0,
            members: self.fences.map(member),
            clients: vec![Client::new(); self.claims],
            resource: Resource::default(),
            steps: self.steps,
            restarts: self.restarts,
            forgets: self.forgets,
            moves: self.moves,
            grants: 0,
            top: 0,
            broke: Vec::new(),
        };
        if self.held_by > 0 {
            world.be_held(self);
        }
        if self.has_stray {
            world.lose_one_to_a_stray();
        }
        vec![world]
    }

    fn actions(&self, world: &World, actions: &mut Vec<Action>) {
        if world.now < self.end {
            actions.push(Action::Tick);
        }
        for (id, client) in world.clients.iter().enumerate() {
            match client.phase {
                // The order of the clients does not matter.
                Phase::Unborn if id == 0 || world.clients[id - 1].phase != Phase::Unborn => {
                    actions.push(Action::Begin(id));
                }
                Phase::Asking => actions.push(Action::GiveUp(id)),
                // A client that is about to write does not release.
                Phase::Holding if client.checked => {}
                Phase::Holding => {
                    actions.push(Action::Release(id));
                    if client.renewals > 0 && client.renewal.is_none() && world.is_held(id) {
                        actions.push(Action::Renew(id));
                    }
                    if client.writes > 0 && world.is_held(id) {
                        actions.push(Action::Check(id));
                    }
                }
                _ => {}
            }
            if client.checked {
                actions.push(Action::Write(id));
            }
            for member in 0..MEMBERS {
                match client.attempts[member] {
                    Call::Asked(_) | Call::AskedAgain(_) | Call::Renew => {
                        actions.push(Action::Arrive(id, member));
                    }
                    Call::Answered(_) | Call::AnsweredAgain(_) | Call::Renewed(_) => {
                        actions.push(Action::Hear(id, member));
                    }
                    Call::None => {}
                }
                if matches!(client.attempts[member], Call::AskedAgain(_))
                    && client.strays[member] == Stray::None
                {
                    actions.push(Action::TimeOut(id, member));
                }
                if matches!(client.strays[member], Stray::UnderWay(_)) {
                    actions.push(Action::LandLate(id, member));
                }
                if client.releases[member] {
                    actions.push(Action::Released(id, member));
                }
            }
        }
        for member in 0..MEMBERS {
            if world.steps > 0 {
                actions.push(Action::Step(member));
            }
            if world.restarts > 0 {
                actions.push(Action::Restart(member));
            }
            let is_live = matches!(world.clients[0].phase, Phase::Asking | Phase::Holding);
            if world.moves > 0 && is_live {
                // Until then members are alike, so it does not matter which one it is.
                let last = if deep() { MEMBERS } else { 1 };
                let others = (0..last).filter(|to| *to != world.clients[0].leads_to[member]);
                actions.extend(others.map(|to| Action::Move(member, to)));
            }
            if world.forgets > 0 && world.may_forget(self, member) {
                actions.push(Action::Forget(member));
            }
        }
    }

    fn next_state(&self, world: &World, action: Action) -> Option<World> {
        let mut next = world.clone();
        match action {
            Action::Tick => next.now += 1,
            Action::Begin(id) => next.begin(self, id),
            Action::Arrive(id, member) => {
                next.arrive(self, id, member);
                if !self.late_answers {
                    next.hear(self, id, member);
                }
            }
            Action::Hear(id, member) => next.hear(self, id, member),
            Action::GiveUp(id) | Action::Release(id) => next.leave(id),
            Action::TimeOut(id, member) => next.time_out(id, member),
            Action::LandLate(id, member) => next.land_late(self, id, member),
            Action::Renew(id) => next.renew(id),
            Action::Released(id, member) => next.release(id, member),
            Action::Forget(member) => {
                next.members[member].held = None;
                next.forgets -= 1;
            }
            Action::Check(id) => {
                next.clients[id].checked = true;
                next.clients[id].writes -= 1;
            }
            Action::Write(id) => next.write(id),
            Action::Step(member) => {
                next.members[member].ahead += LEASE;
                next.steps -= 1;
            }
            Action::Restart(member) => {
                let member = &mut next.members[member];
                (member.held, member.fence, member.started) = (None, 0, Some(world.now));
                next.restarts -= 1;
            }
            Action::Move(address, member) => {
                next.clients[0].leads_to[address] = member;
                next.moves -= 1;
            }
        }
        next.forget_what_cannot_matter(self);
        next.note_interruptions();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut all = vec![
            Property::sometimes("the last claim holds the lock", |rules: &Self, world: &World| {
                world.is_held(rules.claims - 1)
            }),
            Property::sometimes("the lock has been had twice", |_, world: &World| world.grants > 1),
        ];
        let stays = |name: &'static str| match name {
            NO_OVERLAP => Property::always(NO_OVERLAP, |rules: &Self, world: &World| {
                (0..rules.claims).filter(|id| world.is_held(*id)).count() <= 1
            }),
            TOKENS_GROW => Property::always(TOKENS_GROW, |_, world: &World| {
                !world.broke.contains(&TOKENS_GROW)
            }),
            TOKENS_FOLLOW => {
                let follow = |_: &Self, world: &World| !world.broke.contains(&TOKENS_FOLLOW);
                Property::always(TOKENS_FOLLOW, follow)
            }
            RENEWED => {
                Property::always(RENEWED, |_, world: &World| !world.broke.contains(&RENEWED))
            }
            FENCED => Property::always(FENCED, |_, world: &World| !world.broke.contains(&FENCED)),
            _ => Property::always(UNFENCED, |_, world: &World| !world.broke.contains(&UNFENCED)),
        };
        all.extend(self.promises.iter().map(|name| stays(name)));
        all
    }
}

impl World {
    fn may_forget(&self, rules: &Rules, member: usize) -> bool {
        let Some(held) = &self.members[member].held else { return false };
        let is_raised = || matches!(self.clients[held.owner].attempts[member], Call::Asked(_));
        !rules.forgets_what_is_raised || is_raised()
    }

    /// Lets the first claim hold the lock: the interesting events come after that.
    fn be_held(&mut self, rules: &Rules) {
        self.begin(rules, 0);
        for member in 0..rules.held_by {
            self.arrive(rules, 0, member);
            self.hear(rules, 0, member);
        }
        let token = self.clients[0].token.unwrap_or(0);
        self.clients[0].votes[..rules.held_by].fill(Vote::For(token));
        self.clients[0].attempts = [Call::None; MEMBERS];
    }

    /// Lets a member of the majority forget the lock, after it was asked to grant it again.
    fn lose_one_to_a_stray(&mut self) {
        let client = &mut self.clients[0];
        self.members[0].held = None;
        client.votes[0] = Vote::None;
        client.strays[0] = Stray::UnderWay(client.token.unwrap_or(1) - 1);
    }

    fn begin(&mut self, rules: &Rules, id: Id) {
        let client = &mut self.clients[id];
        client.phase = Phase::Asking;
        (client.began, client.writes) = (self.now, rules.writes);
        client.renewals = if id == 0 { rules.renewals } else { 0 };
        (client.after, client.above) = (self.grants, self.top);
        client.min_token = self.now * NUMBERS_A_TICK + HEADROOM;
        client.attempts = [Call::Asked(client.min_token); MEMBERS];
    }

    /// Runs the member's side of a call, also of a late one.
    fn arrive(&mut self, rules: &Rules, id: Id, nth: usize) {
        let answer = match self.clients[id].attempts[nth] {
            Call::Asked(min_token) => Call::Answered(self.vote(rules, id, nth, min_token)),
            Call::AskedAgain(min_token) => {
                Call::AnsweredAgain(self.vote(rules, id, nth, min_token))
            }
            Call::Renew => Call::Renewed(self.prolong(rules, id, nth)),
            other => other,
        };
        self.clients[id].attempts[nth] = answer;
    }

    /// Returns the member to which an address leads now, which is the one that answers.
    fn reached(&mut self, id: Id, address: usize) -> &mut Member {
        let client = &mut self.clients[id];
        let member = client.leads_to[address];
        client.origins[address] = member;
        &mut self.members[member]
    }

    fn vote(&mut self, rules: &Rules, id: Id, nth: usize, min_token: Number) -> Vote {
        let this_moment = self.now;
        let member = self.reached(id, nth);
        let now = this_moment + member.ahead;
        member.held.take_if(|held| held.until <= now);
        // A restarted one stays out until every lease of before is over; the margin of a clock is
        // added.
        let stays_out = match rules.has(Mistake::CountsTheYoungTooSoon) {
            true => LEASE - MARGIN,
            false => LEASE + MARGIN,
        };
        let is_young = member.started.is_some_and(|started| this_moment < started + stays_out);
        match &mut member.held {
            Some(held) if held.owner != id => Vote::Against,
            held => {
                let before =
                    held.as_ref().map(|held| held.number).filter(|number| *number > min_token);
                let drawn = (member.fence + 1).max(now * NUMBERS_A_TICK).max(min_token + 1);
                let number = before.unwrap_or(drawn);
                member.fence = member.fence.max(number);
                *held = Some(Held { owner: id, until: now + LEASE, number });
                match is_young && !rules.has(Mistake::CountsTheYoung) {
                    true => Vote::None,
                    false => Vote::For(number),
                }
            }
        }
    }

    fn time_out(&mut self, id: Id, member: usize) {
        let client = &mut self.clients[id];
        if let Call::AskedAgain(min_token) = std::mem::take(&mut client.attempts[member]) {
            client.strays[member] = Stray::UnderWay(min_token);
        }
    }

    fn land_late(&mut self, rules: &Rules, id: Id, member: usize) {
        let stray = &mut self.clients[id].strays[member];
        if let Stray::UnderWay(min_token) = std::mem::replace(stray, Stray::Landed) {
            self.vote(rules, id, member, min_token);
        }
    }

    /// Returns the token of the lock of `id`, and prolongs it by a lease from now, if the member
    /// still has it.
    fn prolong(&mut self, rules: &Rules, id: Id, nth: usize) -> Option<Number> {
        let (this_moment, token) = (self.now, self.clients[id].token.unwrap_or(0));
        let member = self.reached(id, nth);
        let now = this_moment + member.ahead;
        member.held.take_if(|held| held.until <= now);
        if member.held.is_none() && rules.has(Mistake::RenewsWhatIsGone) {
            member.held = Some(Held { owner: id, until: now, number: token });
        }
        let ours = member.held.as_mut().filter(|held| held.owner == id);
        ours.map(|held| {
            held.until = held.until.max(now + LEASE);
            held.number
        })
    }

    fn hear(&mut self, rules: &Rules, id: Id, member: usize) {
        let client = &mut self.clients[id];
        let call = std::mem::take(&mut client.attempts[member]);
        match (call, client.phase) {
            (Call::Answered(vote), Phase::Asking) => self.hear_vote(rules, id, member, vote),
            (Call::AnsweredAgain(vote @ Vote::For(_)), Phase::Holding) => {
                (client.votes[member], client.new[member]) = (vote, true);
            }
            (Call::Renewed(number), Phase::Holding) => self.hear_renewal(rules, id, member, number),
            _ => {}
        }
    }

    /// Sends a renewal to all members that have a vote, or may have one, unless another call is
    /// under way.
    fn renew(&mut self, id: Id) {
        let (began, client) = (self.now, &mut self.clients[id]);
        client.renewals -= 1;
        let too_late = client.interrupted;
        client.renewal = Some(Renewal { began, too_late, held: [false; MEMBERS] });
        for member in 0..MEMBERS {
            let may_have =
                client.votes[member].number().is_some() || client.strays[member] != Stray::None;
            if may_have && client.attempts[member] == Call::None {
                client.attempts[member] = Call::Renew;
            }
        }
    }

    fn hear_renewal(&mut self, rules: &Rules, id: Id, member: usize, number: Option<Number>) {
        let (now, client) = (self.now, &mut self.clients[id]);
        let found = number.map_or(Vote::None, Vote::For);
        // No other call was under way there, so the state from before it was sent is still known.
        let is_the_same = client.votes[member] == found;
        client.votes[member] = found;
        client.new[member] = number.is_some() && (client.new[member] || !is_the_same);
        let confirms = is_the_same || rules.has(Mistake::ConfirmsWhatLandsMeanwhile);
        let Some(renewal) = &mut client.renewal else {
            // The majority was there before, so its other votes are confirmed.
            client.new[member] &= !confirms;
            return;
        };
        renewal.held[member] = number.is_some() && confirms;
        let counts = |m: &usize| !client.new[*m] || rules.has(Mistake::CountsTheNew);
        let counted: Vec<_> = (0..MEMBERS).filter(|&m| renewal.held[m]).filter(counts).collect();
        let held = match rules.has(Mistake::RenewsByAddresses) {
            true => counted.len(),
            false => once_each(&counted, &client.origins).count(),
        };
        // The members without a vote have none to count.
        let is_open =
            |m: &usize| client.attempts[*m] == Call::Renew && client.votes[*m].number().is_some();
        let open = (0..MEMBERS).filter(is_open).filter(counts).count();
        let majority = if rules.has(Mistake::RenewsByOne) { 1 } else { rules.majority() };
        if held + open < majority {
            return self.leave(id);
        } else if held < majority {
            return;
        }
        let Renewal { began, too_late, held } = *renewal;
        let from = if rules.has(Mistake::RenewsFromTheReply) { now } else { began };
        client.deadline = client.deadline.max(from + LEASE - MARGIN);
        client.renewal = None;
        for (nth, still_held) in held.into_iter().enumerate() {
            client.new[nth] &= !still_held;
            if client.votes[nth].number().is_none() && client.attempts[nth] == Call::None {
                client.attempts[nth] = Call::AskedAgain(client.token.unwrap_or(1) - 1);
            }
        }
        if too_late {
            self.broke.push(RENEWED);
        }
    }

    fn hear_vote(&mut self, rules: &Rules, id: Id, member: usize, vote: Vote) {
        let now = self.now;
        let client = &mut self.clients[id];
        client.votes[member] = vote;
        let given: Vec<_> = (0..MEMBERS).filter(|&m| client.votes[m].number().is_some()).collect();
        let once: Vec<_> = once_each(&given, &client.origins).collect();
        let counted = if rules.has(Mistake::CountsAddresses) { &given } else { &once };
        let mut numbers: Vec<_> =
            counted.iter().filter_map(|&m| client.votes[m].number()).collect();
        if numbers.len() < rules.majority() {
            return;
        }
        numbers.sort_unstable();
        let (lowest, middle) = (numbers[0], numbers[rules.majority() - 1]);
        let highest = numbers.iter().copied().max().unwrap_or(lowest);
        let agree = numbers.iter().filter(|number| **number == middle).count();
        let token = match rules.mistake {
            Some(Mistake::TakesTheLowest) => lowest,
            Some(Mistake::KeepsTheFirstToken) => *client.token.get_or_insert(highest),
            _ if agree >= rules.majority() => middle,
            _ => highest,
        };
        client.token = Some(token);
        let stored = numbers.iter().filter(|number| **number >= token).count();
        if stored < rules.majority() && !rules.has(Mistake::NeverRaises) {
            for nth in 0..MEMBERS {
                if client.votes[nth].number().is_some_and(|number| number < token) {
                    client.votes[nth] = Vote::None;
                    client.attempts[nth] = Call::Asked(token - 1);
                }
            }
            return;
        }
        let from = if rules.has(Mistake::CountsFromTheReply) { now } else { client.began };
        let margin = if rules.has(Mistake::NoMargin) { 0 } else { MARGIN };
        client.deadline = from + LEASE - margin;
        if now.saturating_sub(LAG) >= client.deadline {
            return self.leave(id);
        }
        client.phase = Phase::Holding;
        self.grants += 1;
        client.grant = self.grants;
        if token <= self.top {
            self.broke.push(TOKENS_GROW);
        }
        if token <= client.above {
            self.broke.push(TOKENS_FOLLOW);
        }
        self.top = self.top.max(token);
    }

    fn leave(&mut self, id: Id) {
        let client = &mut self.clients[id];
        client.phase = Phase::Gone;
        client.releases = [true; MEMBERS];
    }

    fn release(&mut self, id: Id, member: usize) {
        self.clients[id].releases[member] = false;
        self.reached(id, member).held.take_if(|held| held.owner == id);
    }

    fn write(&mut self, id: Id) {
        let client = &mut self.clients[id];
        client.checked = false;
        let (grant, after, token) = (client.grant, client.after, client.token.unwrap_or(0));
        if grant <= self.resource.unfenced {
            self.broke.push(UNFENCED);
        }
        self.resource.unfenced = self.resource.unfenced.max(after);
        if token < self.resource.highest {
            return;
        }
        self.resource.highest = token;
        if grant <= self.resource.fenced {
            self.broke.push(FENCED);
        }
        self.resource.fenced = self.resource.fenced.max(after);
    }

    /// Returns the answer that the application gets, computed from a clock that lags.
    fn is_held(&self, id: Id) -> bool {
        let client = &self.clients[id];
        client.phase == Phase::Holding && self.now.saturating_sub(LAG) < client.deadline
    }

    fn note_interruptions(&mut self) {
        for (id, client) in self.clients.iter_mut().enumerate() {
            let has = |member: &&Member| member.held.as_ref().is_some_and(|held| held.owner == id);
            let had_by = self.members.iter().filter(has).count();
            let may_renew =
                client.phase == Phase::Holding && (client.renewals > 0 || client.renewal.is_some());
            client.interrupted = may_renew && (client.interrupted || had_by <= MEMBERS / 2);
        }
    }

    fn forget_what_cannot_matter(&mut self, rules: &Rules) {
        for client in &mut self.clients {
            if client.phase == Phase::Gone {
                client.origins = [0; MEMBERS];
                client.votes = [Vote::None; MEMBERS];
                (client.began, client.min_token, client.deadline) = (0, 0, 0);
                (client.renewals, client.renewal, client.new) = (0, None, [false; MEMBERS]);
                for stray in &mut client.strays {
                    if *stray == Stray::Landed {
                        *stray = Stray::None;
                    }
                }
                if !client.checked {
                    (client.token, client.grant) = (None, 0);
                    (client.after, client.above) = (0, 0);
                }
                for call in &mut client.attempts {
                    if matches!(call, Call::Answered(_) | Call::AnsweredAgain(_) | Call::Renewed(_))
                    {
                        *call = Call::None;
                    }
                }
            }
        }
        for member in &mut self.members {
            let now = self.now + member.ahead;
            member.held.take_if(|held| held.until <= now);
            member.started.take_if(|started| self.now >= *started + LEASE + MARGIN);
        }
        self.broke.sort_unstable();
        self.broke.dedup();
        // Addresses tell them apart.
        if rules.moves == 0 {
            self.sort_members();
        }
    }

    /// Sorts the members: states that differ by their order only are one state.
    fn sort_members(&mut self) {
        let mut order: Vec<usize> = (0..MEMBERS).collect();
        let column = |&m: &usize| {
            let of = |client: &Client| {
                let held = client.renewal.map(|renewal| renewal.held[m]);
                let (votes, calls) = (client.votes[m], (client.attempts[m], client.strays[m]));
                (votes, calls, client.releases[m], client.new[m], held)
            };
            (self.members[m].clone(), self.clients.iter().map(of).collect::<Vec<_>>())
        };
        order.sort_by_cached_key(column);
        self.members = std::array::from_fn(|m| self.members[order[m]].clone());
        for client in &mut self.clients {
            client.votes = std::array::from_fn(|m| client.votes[order[m]]);
            client.attempts = std::array::from_fn(|m| client.attempts[order[m]]);
            client.strays = std::array::from_fn(|m| client.strays[order[m]]);
            client.releases = std::array::from_fn(|m| client.releases[order[m]]);
            client.new = std::array::from_fn(|m| client.new[order[m]]);
            if let Some(renewal) = &mut client.renewal {
                renewal.held = std::array::from_fn(|m| renewal.held[order[m]]);
            }
        }
    }
}

impl Client {
    fn new() -> Self {
        let each = std::array::from_fn(|member| member);
        Self { leads_to: each, origins: each, ..Self::default() }
    }
}

/// Returns the first of these addresses for each member that has answered there.
fn once_each(addresses: &[usize], origins: &[usize; MEMBERS]) -> impl Iterator<Item = usize> {
    let is_first = |&(at, address): &(usize, &usize)| {
        !addresses[..at].iter().any(|before| origins[*before] == origins[*address])
    };
    addresses.iter().enumerate().filter(is_first).map(|(_, address)| *address)
}

impl Vote {
    fn number(&self) -> Option<Number> {
        match self {
            Self::For(number) => Some(*number),
            _ => None,
        }
    }
}
