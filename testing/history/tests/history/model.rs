//! A server of locks with leases, and clients that use it in every way: the source of legal
//! histories. It shares only the format with the checker.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::time::Duration;

use lock_core::{Backend, Memory};
use lock_history::{Fault, Grade, Header, Kind, Line, Op, Record, Renewals, Trouble, Why};

pub(crate) const MS: u64 = 1_000_000;
pub(crate) const LEASE: u64 = 3000 * MS;
pub(crate) const MARGIN: u64 = 30 * MS;
/// The longest delay of a message.
pub(crate) const TRIP: u64 = 20 * MS;

/// A small seeded random generator of sufficient quality.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % below
    }

    fn one_in(&mut self, n: u64) -> bool {
        self.roll(n) == 0
    }

    fn trip(&mut self) -> u64 {
        1 + self.roll(TRIP)
    }
}

/// The settings of a model run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Play {
    pub(crate) seed: u64,
    pub(crate) clients: usize,
    pub(crate) locks: usize,
    pub(crate) calls: usize,
    pub(crate) fenced: bool,
    /// Whether answers get lost, clients are killed, and calls are cancelled.
    pub(crate) rough: bool,
}

pub(crate) fn header(play: &Play) -> Header {
    let (ms, caps) = (Duration::from_millis, Memory::new().capabilities());
    Header {
        fencing: if play.fenced { Grade::Seeded } else { Grade::None },
        fifo_after: Some(ms(20)),
        margin: ms(30),
        takeover: ms(150),
        hand_off: ms(100),
        told_within: ms(100),
        drain: ms(11_000),
        renewals: Renewals::Recorded,
        counts_hand_overs: false,
        ..Header::new(&format!("model {}", play.seed), play.seed, &caps, ms(3000))
    }
}

/// Runs until all calls are made and no message is in flight.
pub(crate) fn play(play: &Play) -> Vec<Line> {
    let mut world = World::new(play);
    for client in 0..play.clients {
        let start = world.dice.roll(500 * MS);
        world.at(start, Step::Next(client));
    }
    while let Some(Reverse((t, _, index))) = world.queue.pop() {
        world.now = t;
        let step = world.steps[index].clone();
        world.step(step);
    }
    world.lines
}

#[derive(Clone, Debug)]
enum Step {
    /// The next step of a client.
    Next(usize),
    /// A request arrives at the server.
    Arrive(Request),
    /// Its answer arrives at the client, if that still has this life.
    Answer(usize, u64, Reply),
    /// The lease of this grant may have ended.
    Lapse(usize, u64),
    /// The guard's deadline may have come.
    Deadline(usize, u64),
    /// A bounded wait is over.
    GiveUp(usize, u64),
}

#[derive(Clone, Debug)]
struct Request {
    client: usize,
    life: u64,
    lock: usize,
    ask: Ask,
    answered: bool,
}

#[derive(Clone, Debug)]
enum Ask {
    Acquire { id: u64, waits: bool },
    Renew { id: u64 },
    Release { id: u64 },
    Leave { id: u64 },
    Write { fence: u64 },
}

#[derive(Clone, Debug)]
enum Reply {
    Granted { id: u64, fence: u64, since: u64 },
    Busy,
    Renewed { id: u64, since: u64 },
    Released,
    NotHeld,
    Written(u64),
    Fenced,
}

#[derive(Default)]
struct Server {
    owner: Option<Owner>,
    fence: u64,
    line: VecDeque<Request>,
    highest: u64,
    counter: u64,
}

struct Owner {
    id: u64,
    until: u64,
}

#[derive(Default)]
struct Client {
    name: String,
    lives: u64,
    /// The number of the call, so that the answer to an earlier one is ignored.
    life: u64,
    under_way: Option<Record>,
    held: Option<Held>,
    dead: bool,
}

#[derive(Clone, Debug)]
struct Held {
    lock: usize,
    grant: String,
    id: u64,
    fence: u64,
    deadline: u64,
}

struct World {
    play: Play,
    dice: Dice,
    now: u64,
    queue: BinaryHeap<Reverse<(u64, u64, usize)>>,
    steps: Vec<Step>,
    servers: Vec<Server>,
    clients: Vec<Client>,
    calls_left: usize,
    next_id: u64,
    faults: u64,
    lines: Vec<Line>,
}

impl World {
    fn new(play: &Play) -> Self {
        let client = |index| Client { name: format!("p{index}/c"), ..Client::default() };
        Self {
            play: *play,
            dice: Dice(play.seed),
            now: 0,
            queue: BinaryHeap::new(),
            steps: Vec::new(),
            servers: (0..play.locks).map(|_| Server::default()).collect(),
            clients: (0..play.clients).map(client).collect(),
            calls_left: play.calls,
            next_id: 0,
            faults: 0,
            lines: vec![Line::Header(header(play))],
        }
    }

    fn at(&mut self, t: u64, step: Step) {
        self.steps.push(step);
        self.queue.push(Reverse((t, self.steps.len() as u64, self.steps.len() - 1)));
    }

    fn later(&mut self, by: u64, step: Step) {
        self.at(self.now + by, step);
    }

    fn step(&mut self, step: Step) {
        match step {
            Step::Next(client) if !self.clients[client].dead => self.next(client),
            Step::Next(_) => {}
            Step::Arrive(request) => self.arrive(request),
            Step::Answer(client, life, reply) => self.answer(client, life, &reply),
            Step::Lapse(lock, id) => {
                let now = self.now;
                if self.servers[lock].owner.as_ref().is_some_and(|o| o.id == id && o.until <= now) {
                    self.pass_on(lock);
                }
            }
            Step::Deadline(client, id) => self.deadline(client, id),
            Step::GiveUp(client, life) => self.give_up(client, life),
        }
    }

    // ---- clients ----

    fn next(&mut self, client: usize) {
        if self.clients[client].under_way.is_some() {
            return;
        }
        if let Some(held) = self.clients[client].held.clone() {
            return self.use_lock(client, &held);
        }
        if self.calls_left == 0 {
            return;
        }
        self.calls_left -= 1;
        let lock = self.dice.roll(self.play.locks as u64) as usize;
        let waits = !self.dice.one_in(3);
        self.next_id += 1;
        let id = self.next_id;
        let op = if waits { Op::Acquire } else { Op::Try };
        let mut record = self.record(client, op, lock);
        record.grant = Some(format!("g{id}"));
        self.call(client, record, lock, Ask::Acquire { id, waits });
        let life = self.clients[client].life;
        if waits && self.dice.one_in(4) {
            let bound = 100 * MS + self.dice.roll(1500 * MS);
            self.later(bound, Step::GiveUp(client, life));
        } else if self.play.rough && self.dice.one_in(12) {
            // The call is cancelled, with the request in flight or queued.
            let patience = self.dice.roll(200 * MS);
            self.later(patience, Step::GiveUp(client, life + (1 << 32)));
        }
    }

    fn use_lock(&mut self, client: usize, held: &Held) {
        match self.dice.roll(if self.play.rough { 12 } else { 9 }) {
            0..=3 => self.release(client),
            4 | 5 => {
                let mut record = self.record(client, Op::Renew, held.lock);
                record.grant = Some(held.grant.clone());
                self.call(client, record, held.lock, Ask::Renew { id: held.id });
            }
            6 if self.play.fenced => {
                let mut record = self.record(client, Op::Write, held.lock);
                record.fence = Some(held.fence);
                self.call(client, record, held.lock, Ask::Write { fence: held.fence });
            }
            6 | 7 => self.check(client, held),
            8 => {} // holds on, and loses it
            9 => {
                self.faults += 1;
                let process = Some(format!("p{client}"));
                let (id, t) = (self.faults, self.now);
                let (what, locks, breaks, hidden) = (Trouble::Kill, None, Vec::new(), false);
                let fault = Fault { t, id, what, process, locks, breaks, hidden };
                self.lines.push(Line::Fault(fault));
                self.clients[client].dead = true;
            }
            _ => {
                let pause = self.dice.roll(1000 * MS);
                self.later(pause, Step::Next(client));
            }
        }
    }

    fn check(&mut self, client: usize, held: &Held) {
        let mut record = self.record(client, Op::Check, held.lock);
        record.grant = Some(held.grant.clone());
        self.push(Kind::Invoke, record.clone());
        record.valid_until = Some(held.deadline);
        self.push(Kind::Ok, record);
        let pause = 1 + self.dice.roll(300 * MS);
        self.later(pause, Step::Next(client));
    }

    fn release(&mut self, client: usize) {
        let held = self.clients[client].held.clone().expect("it is held");
        let mut record = self.record(client, Op::Release, held.lock);
        record.grant = Some(held.grant);
        self.call(client, record, held.lock, Ask::Release { id: held.id });
    }

    fn call(&mut self, client: usize, record: Record, lock: usize, ask: Ask) {
        self.push(Kind::Invoke, record.clone());
        let c = &mut self.clients[client];
        c.life += 1;
        c.under_way = Some(record);
        let life = c.life;
        let answered = !(self.play.rough && self.dice.one_in(15));
        let request = Request { client, life, lock, ask, answered };
        let trip = self.dice.trip();
        if answered || self.dice.one_in(2) {
            self.later(trip, Step::Arrive(request));
        }
        if !answered {
            self.later(TRIP * 4, Step::GiveUp(client, life + (1 << 32)));
        }
    }

    /// Ends a bounded wait with contention if it is queued, and a cancelled call without a result.
    fn give_up(&mut self, client: usize, life: u64) {
        let (life, broken_off) = (life & 0xffff_ffff, life >> 32 > 0);
        let c = &self.clients[client];
        if c.dead || c.life != life || c.under_way.is_none() {
            return;
        }
        let mut record = c.under_way.clone().expect("checked above");
        let lock = lock_number(&record.lock);
        let standing =
            self.servers[lock].line.iter().find(|r| (r.client, r.life) == (client, life));
        if standing.is_none() && !broken_off {
            return; // won just now, or not asked yet
        }
        if record.op.acquires() {
            let id = record.grant.as_deref().and_then(|grant| grant[1..].parse().ok());
            let id = id.expect("acquisitions are named");
            let leave = Request { client, life, lock, ask: Ask::Leave { id }, answered: false };
            if broken_off {
                let trip = TRIP + self.dice.trip();
                self.later(trip, Step::Arrive(leave));
            } else {
                self.arrive(leave);
            }
        }
        self.clients[client].life += 1;
        self.clients[client].under_way = None;
        if broken_off {
            record.err = Some(Why::Dropped);
            if record.op == Op::Release {
                self.clients[client].held = None;
            }
            self.push(Kind::Info, record);
            self.clients[client].lives += 1;
            self.clients[client].name = format!("p{client}/c+{}", self.clients[client].lives);
        } else {
            record.err = Some(Why::Busy);
            self.push(Kind::Fail, record);
        }
        let pause = 1 + self.dice.roll(300 * MS);
        self.later(pause, Step::Next(client));
    }

    fn answer(&mut self, client: usize, life: u64, reply: &Reply) {
        if self.clients[client].dead || self.clients[client].life != life {
            return;
        }
        let mut record = self.clients[client].under_way.take().expect("a call is under way");
        match *reply {
            Reply::Granted { id, fence, since } => {
                let deadline = since + LEASE - MARGIN;
                let lock = lock_number(&record.lock);
                let grant = record.grant.clone().expect("acquisitions are named");
                self.clients[client].held = Some(Held { lock, grant, id, fence, deadline });
                record.fence = self.play.fenced.then_some(fence);
                record.valid_until = Some(deadline);
                self.push(Kind::Ok, record);
                self.at(deadline.max(self.now), Step::Deadline(client, id));
            }
            Reply::Renewed { id, since } => {
                let held = self.clients[client].held.as_mut().filter(|held| held.id == id);
                let Some(held) = held else {
                    record.err = Some(Why::Lost);
                    self.push(Kind::Fail, record);
                    return self.later(1, Step::Next(client));
                };
                held.deadline = held.deadline.max(since + LEASE - MARGIN);
                let deadline = held.deadline;
                record.valid_until = Some(deadline);
                self.push(Kind::Ok, record);
                self.at(deadline.max(self.now), Step::Deadline(client, id));
            }
            Reply::Busy => self.fail(record, Why::Busy),
            Reply::NotHeld => {
                self.clients[client].held = None;
                self.fail(record, Why::NotHeld);
            }
            Reply::Fenced => self.fail(record, Why::Fenced),
            Reply::Released => {
                self.clients[client].held = None;
                self.push(Kind::Ok, record);
            }
            Reply::Written(value) => {
                record.value = Some(value);
                self.push(Kind::Ok, record);
            }
        }
        let pause = 1 + self.dice.roll(400 * MS);
        self.later(pause, Step::Next(client));
    }

    fn fail(&mut self, mut record: Record, why: Why) {
        record.err = Some(why);
        self.push(Kind::Fail, record);
    }

    /// Notifies the holder of its loss, a little later.
    fn deadline(&mut self, client: usize, id: u64) {
        let c = &self.clients[client];
        let Some(held) = c.held.clone().filter(|held| held.id == id && !c.dead) else { return };
        // A release in progress has ended the claim.
        let releasing = c.under_way.as_ref().is_some_and(|record| record.op == Op::Release);
        if releasing || held.deadline > self.now {
            return;
        }
        let mut record = self.record(client, Op::Lost, held.lock);
        record.grant = Some(held.grant);
        record.err = Some(Why::Expired);
        self.push(Kind::Event, record);
        self.clients[client].held = None;
        if self.dice.one_in(2) {
            let ask = Ask::Release { id };
            let request = Request { client, life: 0, lock: held.lock, ask, answered: false };
            let trip = self.dice.trip();
            self.later(trip, Step::Arrive(request));
        }
        if self.clients[client].under_way.is_none() {
            self.later(1, Step::Next(client));
        }
    }

    fn record(&self, client: usize, op: Op, lock: usize) -> Record {
        Record::new(Kind::Invoke, op, &self.clients[client].name, &format!("lock {lock}"))
    }

    fn push(&mut self, kind: Kind, mut record: Record) {
        (record.kind, record.t) = (kind, self.now);
        self.lines.push(Line::Record(record));
    }

    // ---- the server ----

    fn arrive(&mut self, request: Request) {
        let lock = request.lock;
        let now = self.now;
        if self.servers[lock].owner.as_ref().is_some_and(|owner| owner.until <= now) {
            self.pass_on(lock);
        }
        let server = &mut self.servers[lock];
        let holds = |server: &Server, id| server.owner.as_ref().is_some_and(|o| o.id == id);
        match request.ask {
            Ask::Acquire { waits, .. } => {
                if server.owner.is_none() && server.line.is_empty() {
                    self.grant(&request);
                } else if waits {
                    server.line.push_back(request);
                } else {
                    self.reply(&request, Reply::Busy);
                }
            }
            Ask::Renew { id } => {
                if holds(server, id) {
                    let until = now + LEASE;
                    server.owner = Some(Owner { id, until });
                    self.at(until, Step::Lapse(lock, id));
                    // The client counts from its request: at most the delay of a message before.
                    let since = now.saturating_sub(TRIP);
                    self.reply(&request, Reply::Renewed { id, since });
                } else {
                    self.reply(&request, Reply::NotHeld);
                }
            }
            Ask::Release { id } => {
                if holds(server, id) {
                    self.pass_on(lock);
                    self.reply(&request, Reply::Released);
                } else {
                    self.reply(&request, Reply::NotHeld);
                }
            }
            Ask::Leave { id } => {
                let is_it = |r: &Request| matches!(r.ask, Ask::Acquire { id: of, .. } if of == id);
                server.line.retain(|r| !is_it(r));
                if holds(server, id) {
                    self.pass_on(lock);
                }
            }
            Ask::Write { fence } => {
                if fence < server.highest {
                    return self.reply(&request, Reply::Fenced);
                }
                server.highest = fence;
                server.counter += 1;
                let value = server.counter;
                self.reply(&request, Reply::Written(value));
            }
        }
    }

    /// Grants the free lock to the head of the queue, if there is one.
    fn pass_on(&mut self, lock: usize) {
        self.servers[lock].owner = None;
        if let Some(next) = self.servers[lock].line.pop_front() {
            self.grant(&next);
        }
    }

    fn grant(&mut self, request: &Request) {
        let Ask::Acquire { id, .. } = request.ask else { unreachable!("only acquisitions wait") };
        let (now, server) = (self.now, &mut self.servers[request.lock]);
        server.fence += 1;
        let fence = server.fence;
        server.owner = Some(Owner { id, until: now + LEASE });
        self.at(now + LEASE, Step::Lapse(request.lock, id));
        self.reply(request, Reply::Granted { id, fence, since: now });
    }

    fn reply(&mut self, request: &Request, reply: Reply) {
        if request.answered {
            let trip = self.dice.trip();
            self.later(trip, Step::Answer(request.client, request.life, reply));
        }
    }
}

pub(crate) fn lock_number(name: &str) -> usize {
    name.trim_start_matches("lock ").parse().expect("locks of the model are numbered")
}
