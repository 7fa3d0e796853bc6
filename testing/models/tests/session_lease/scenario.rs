//! The inputs of a run besides the rule: clocks, phases, delays, and faults.

use std::ops::Range;

use fastrand::Rng;

/// Microseconds of real time, or as many of a length.
pub(crate) type Time = u64;

/// Two followers, and the leader as the member that a client may be connected to as well.
pub(crate) const FOLLOWERS: usize = 2;
pub(crate) const LEADER: usize = 2;
pub(crate) const MEMBERS: usize = 3;

/// One direction of one connection: messages on it stay in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Link {
    ClientTo(usize),
    ToClient(usize),
    ToLeader(usize),
    FromLeader(usize),
    /// From the leader's check of a write to its commit: its disk, and the way to a quorum and
    /// back.
    Quorum,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Party {
    Client,
    /// All threads of the leader, so it commits nothing meanwhile.
    Leader,
    Follower(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Messages that are sent meanwhile arrive that much later. Later ones do not overtake them.
    Slow(Link, Time),
    /// Messages that arrive from then on are dropped for good.
    Cut(Link),
    Stall(Party),
    /// The leader's ping loop alone stands still: against the assumption.
    Mute,
    /// The client's connection breaks, and it goes to the next member.
    Reset,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Injection {
    pub(crate) kind: Kind,
    pub(crate) from: Time,
    pub(crate) length: Time,
}

impl Injection {
    pub(crate) fn during(&self) -> Range<Time> {
        self.from..self.from + self.length
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Scenario {
    pub(crate) seed: u64,
    /// The negotiated session timeout, in milliseconds: `T`.
    pub(crate) timeout_ms: u64,
    /// The timeout that each member grants.
    pub(crate) grants_ms: [u64; MEMBERS],
    /// The server's `tickTime`.
    pub(crate) tick_ms: u64,
    /// Ticks of a clock in 10 000 of real time.
    pub(crate) client_rate: u64,
    pub(crate) leader_rate: u64,
    /// The reading of the leader's clock at the start.
    pub(crate) leader_clock: Time,
    pub(crate) first_ping: Time,
    /// The member that the session is made at.
    pub(crate) member: usize,
    /// Whether the client pings as well, each third of the timeout.
    pub(crate) pings: bool,
    /// How long a message takes on a link at least, and by how much more at random.
    pub(crate) delay: Time,
    pub(crate) jitter: Time,
    /// How long a thread takes at most to run again after a stall. A punctual ping loop is among
    /// the first.
    pub(crate) wake: Time,
    pub(crate) punctual: bool,
    /// When the predecessor's node is deleted.
    pub(crate) event: Option<Time>,
    pub(crate) disturbances: Vec<Injection>,
    pub(crate) horizon: Time,
}

/// Within the assumptions, or without one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum World {
    /// Ticks up to half the timeout, a ping loop that is as prompt as the rest of the leader.
    Punctual,
    /// The same, but a ping loop that may get to run after the rest.
    Late,
    /// The same, with ticks up to 0.3 of the timeout.
    LateWithShortTicks,
    /// Ticks between half the timeout and all of it.
    LongTicks,
    /// The ping loop stands still while all else goes on.
    Muted,
    /// As the first one, with members that grant different timeouts, and connections that break.
    Limited,
}

impl Scenario {
    pub(crate) fn timeout(&self) -> Time {
        self.timeout_ms * 1000
    }

    pub(crate) fn tick(&self) -> Time {
        self.tick_ms * 1000
    }

    pub(crate) fn draw(seed: u64, world: World) -> Self {
        let mut rng = Rng::with_seed(seed);
        let timeout_ms = *of(&mut rng, &[1000, 2000, 4000, 5000, 10_000, 15_000]);
        let member = if rng.u8(..10) == 0 { LEADER } else { rng.usize(..FOLLOWERS) };
        let narrow = rng.bool();
        let mut draw = Draw { world, member, timeout: timeout_ms * 1000, narrow, rng };
        let scenario = draw.scenario(seed);
        if world == World::Limited { draw.limited(scenario) } else { scenario }
    }
}

/// The state of drawing a scenario.
struct Draw {
    rng: Rng,
    world: World,
    member: usize,
    timeout: Time,
    /// True if only schedules near the rule's limits are drawn: long ticks, no touches but those of
    /// heartbeat writes, delays of about their interval.
    narrow: bool,
}

impl Draw {
    fn scenario(&mut self, seed: u64) -> Scenario {
        let timeout_ms = self.timeout / 1000;
        let tick_ms = self.tick_ms(timeout_ms);
        let horizon = self.timeout * self.rng.u64(10..30) / 10;
        let disturbances = self.disturbances(horizon);
        let rng = &mut self.rng;
        Scenario {
            seed,
            timeout_ms,
            grants_ms: [timeout_ms; MEMBERS],
            tick_ms,
            client_rate: *of(rng, &[9900, 9900, 10_000, 10_100]),
            leader_rate: *of(rng, &[9900, 10_000, 10_100, 10_100]),
            leader_clock: rng.u64(self.timeout..2 * self.timeout),
            first_ping: rng.u64(..=tick_ms * 500),
            member: self.member,
            pings: !self.narrow && rng.bool(),
            delay: *of(rng, &[100, 300, 1000, 5000, self.timeout / 100, self.timeout / 50]),
            jitter: *of(rng, &[100, 1000, 5000]),
            wake: *of(rng, &[0, 2000, 20_000]).min(&(self.timeout / 50)),
            punctual: !matches!(self.world, World::Late | World::LateWithShortTicks),
            event: rng.bool().then(|| rng.u64(..horizon)),
            disturbances,
            horizon,
        }
    }

    /// The same, with members that grant less than the one on which the session is made.
    fn limited(&mut self, mut scenario: Scenario) -> Scenario {
        let timeout_ms = scenario.timeout_ms;
        for member in 0..MEMBERS {
            if member != self.member {
                scenario.grants_ms[member] = timeout_ms / *of(&mut self.rng, &[1, 2, 4, 5, 5]);
            }
        }
        let least_ms = scenario.grants_ms.into_iter().min().expect("there are members");
        scenario.tick_ms = scenario.tick_ms.min(least_ms / 2);
        scenario.first_ping = scenario.first_ping.min(scenario.tick_ms * 500);
        scenario.wake = scenario.wake.min(least_ms * 1000 / 50);
        for _ in 0..self.rng.usize(1..4) {
            let from = self.rng.u64(..scenario.horizon);
            scenario.disturbances.push(Injection { kind: Kind::Reset, from, length: 0 });
        }
        if self.rng.bool() {
            let (member, from) = (self.rng.usize(..MEMBERS), self.rng.u64(..scenario.horizon));
            let link = *of(&mut self.rng, &[Link::ClientTo(member), Link::ToClient(member)]);
            let length = Time::MAX / 2;
            scenario.disturbances.push(Injection { kind: Kind::Cut(link), from, length });
        }
        scenario
    }

    fn tick_ms(&mut self, timeout_ms: u64) -> u64 {
        let rng = &mut self.rng;
        match self.world {
            World::LongTicks => rng.u64(timeout_ms / 2 + 1..=timeout_ms),
            World::LateWithShortTicks => rng.u64(timeout_ms / 10..=timeout_ms * 3 / 10),
            _ if self.narrow => timeout_ms / 2,
            _ => match rng.u8(..6) {
                0 => timeout_ms / 2,
                1 => rng.u64(timeout_ms / 10..=timeout_ms / 2),
                divisor => timeout_ms / u64::from(divisor + 1),
            },
        }
    }

    fn disturbances(&mut self, horizon: Time) -> Vec<Injection> {
        let mut all: Vec<_> = (0..self.rng.usize(..6)).map(|_| self.disturbance(horizon)).collect();
        if self.rng.u8(..4) == 0 {
            let link = match self.member {
                LEADER => Link::ClientTo(LEADER),
                follower => Link::ToLeader(follower),
            };
            let from = self.rng.u64(..horizon);
            all.push(Injection { kind: Kind::Cut(link), from, length: Time::MAX / 2 });
        }
        if self.world == World::Muted {
            let length = self.rng.u64(self.timeout / 4..self.timeout);
            let from = self.rng.u64(..horizon);
            all.push(Injection { kind: Kind::Mute, from, length });
        }
        all
    }

    fn disturbance(&mut self, horizon: Time) -> Injection {
        let elsewhere = !self.narrow && self.rng.u8(..8) == 0;
        let member = if elsewhere { self.rng.usize(..MEMBERS) } else { self.member };
        let follower = member.min(FOLLOWERS - 1);
        let extra = self.length();
        let kinds = if self.narrow { 11 } else { 17 };
        let kind = match self.rng.u8(..kinds) {
            0..2 => Kind::Slow(Link::ClientTo(member), extra),
            2..4 => Kind::Slow(Link::ToClient(member), extra),
            4..7 => Kind::Slow(Link::ToLeader(follower), extra),
            7..10 => Kind::Slow(Link::FromLeader(follower), extra),
            10..13 => Kind::Stall(Party::Leader),
            13 => Kind::Slow(Link::Quorum, extra),
            14 => Kind::Stall(Party::Client),
            15 => Kind::Stall(Party::Follower(follower)),
            _ => Kind::Reset,
        };
        let latest = if self.narrow { self.timeout } else { horizon };
        Injection { kind, from: self.rng.u64(..latest), length: self.length() }
    }

    fn length(&mut self) -> Time {
        let Self { timeout, narrow, .. } = *self;
        let rng = &mut self.rng;
        match rng.u8(..8) {
            0..2 if narrow => timeout / 8 + rng.u64(..timeout / 20),
            2..4 if narrow => timeout / 6 + rng.u64(..timeout / 20),
            0 => timeout / 12,
            1 => timeout / 4,
            2..4 => timeout / 3 + rng.u64(..timeout / 50),
            4 => timeout / 2,
            _ => rng.u64(..timeout * 6 / 5),
        }
    }
}

fn of<'a, T>(rng: &mut Rng, items: &'a [T]) -> &'a T {
    &items[rng.usize(..items.len())]
}
