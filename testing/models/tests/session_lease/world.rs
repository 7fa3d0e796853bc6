//! Client, members, leader and the links between them, event by event.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use fastrand::Rng;

use crate::client::{Client, Deadline};
use crate::leader::{Leader, SessionStatus};
use crate::rules::{HeartbeatKind, Rule};
use crate::scenario::{FOLLOWERS, Kind, LEADER, Link, MEMBERS, Party, Scenario, Time};

/// The number of a connection of the client: the first is 0.
pub(crate) type Connection = usize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Create,
    Reopen,
    /// Of a chain, if it has a number.
    Ping(Option<usize>),
    Heartbeat(usize),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Answer {
    Opened {
        new: bool,
    },
    Refused,
    Pong(Option<usize>),
    Committed(usize),
    Failed,
    /// The watch: the predecessor is gone.
    Gone,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    Send { connection: Connection, request: Request },
    CheckSilence { connection: Connection },
    AtMember { member: usize, connection: Connection, request: Request },
    Forward { member: usize, connection: Connection, request: Request },
    AtLeader { member: usize, connection: Connection, request: Request },
    TouchesAtLeader { member: usize, touched: bool },
    PingRound,
    Expire,
    Commit { member: usize, connection: Connection, answer: Answer },
    PingAtMember { member: usize },
    AnswerAtMember { member: usize, connection: Connection, answer: Answer },
    AtClient { connection: Connection, answer: Answer },
    PredecessorGoes,
    Disturb(usize),
}

/// A thread that a stall can stop by itself.
#[derive(Clone, Copy, Debug)]
enum Thread {
    Client,
    PingLoop,
    Expirer,
    Committer,
    /// The leader's reader of a follower, at `LEADER` of its own clients.
    Reader(usize),
    FollowerFromClient(usize),
    FollowerFromLeader(usize),
}

const THREADS: usize = 4 + MEMBERS + 2 * FOLLOWERS;
const LINKS: usize = 2 * MEMBERS + 2 * FOLLOWERS + 1;

/// The heartbeat write whose check left the session a shorter life than its answer will promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Suspect {
    pub(crate) connection: Connection,
    pub(crate) number: usize,
}

/// The claim goes on although the session is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Overlap {
    pub(crate) from: Time,
    pub(crate) until: Time,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) overlap: Option<Overlap>,
    pub(crate) suspect: Option<Suspect>,
    /// The writes by which the rule gave a deadline, and those of them that do not count because
    /// the ping loop sent no ping before them.
    pub(crate) judged: u64,
    pub(crate) excused: u64,
    pub(crate) expired: bool,
    /// The shortest time that the holder had left when the next write was answered.
    pub(crate) least_left: Option<Time>,
    pub(crate) trace: Vec<String>,
}

/// The options of a run.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct RunOptions {
    /// Right after this check the member is cut off from the leader, and the client from all
    /// others.
    pub(crate) cut_after: Option<Suspect>,
    /// True if a deadline does not count whose ping loop sent no ping.
    pub(crate) excuse: bool,
    pub(crate) trace: bool,
}

pub(crate) fn run(rule: &Rule, scenario: &Scenario, options: RunOptions) -> Outcome {
    let mut world = World::new(rule, scenario, options);
    world.prepare();
    while world.outcome.overlap.is_none() && world.step() {}
    world.outcome
}

/// Events at the same moment come in the order in which they were caused.
struct Entry {
    at: Time,
    sequence: u64,
    event: Event,
}

impl PartialEq for Entry {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl Eq for Entry {}

impl PartialOrd for Entry {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Entry {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl Entry {
    fn key(&self) -> (Time, u64) {
        (self.at, self.sequence)
    }
}

struct World<'a> {
    scenario: &'a Scenario,
    rule: &'a Rule,
    options: RunOptions,
    rng: Rng,
    now: Time,
    horizon: Time,
    queue: BinaryHeap<Reverse<Entry>>,
    sequence: u64,
    asleep: [Time; THREADS],
    /// When the last message on each link arrives: none overtakes another.
    arrivals: [Time; LINKS],
    cut: [Time; LINKS],
    client: Client<'a>,
    leader: Leader<'a>,
    /// True if the session is in the table of touches that a follower sends with its next answer.
    touched: [bool; FOLLOWERS],
    isolated: bool,
    outcome: Outcome,
}

impl<'a> World<'a> {
    fn new(rule: &'a Rule, scenario: &'a Scenario, options: RunOptions) -> Self {
        Self {
            scenario,
            rule,
            options,
            rng: Rng::with_seed(scenario.seed),
            now: 0,
            horizon: scenario.horizon,
            queue: BinaryHeap::with_capacity(64),
            sequence: 0,
            asleep: [0; THREADS],
            arrivals: [0; LINKS],
            cut: [Time::MAX; LINKS],
            client: Client::new(rule, scenario),
            leader: Leader::new(scenario),
            touched: [false; FOLLOWERS],
            isolated: false,
            outcome: Outcome::default(),
        }
    }

    fn prepare(&mut self) {
        let scenario = self.scenario;
        for (index, disturbance) in scenario.disturbances.iter().enumerate() {
            match disturbance.kind {
                Kind::Slow(..) => {}
                Kind::Cut(link) => self.cut[index_of_link(link)] = disturbance.from,
                _ => self.push(disturbance.from, Event::Disturb(index)),
            }
        }
        self.push(scenario.first_ping, Event::PingRound);
        if let Some(at) = scenario.event {
            self.push(at, Event::PredecessorGoes);
        }
        self.push(0, Event::Send { connection: 0, request: Request::Create });
        self.push(self.client.silence_limit(), Event::CheckSilence { connection: 0 });
    }

    fn push(&mut self, at: Time, event: Event) {
        self.sequence += 1;
        self.queue.push(Reverse(Entry { at, sequence: self.sequence, event }));
    }

    /// Handles the next event. Returns false if there is none.
    fn step(&mut self) -> bool {
        let Some(Reverse(mut entry)) = self.queue.pop() else { return false };
        if entry.at > self.horizon {
            return false;
        }
        let awake = thread_of(&entry.event).map_or(0, |thread| self.asleep[index_of(thread)]);
        if awake > entry.at {
            entry.at = awake;
            self.queue.push(Reverse(entry));
        } else {
            self.now = entry.at;
            self.handle(entry.event);
        }
        true
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Send { connection, request } => self.client_sends(connection, request),
            Event::CheckSilence { connection } => self.check_silence(connection),
            Event::AtMember { member, connection, request } => {
                if self.passes(Link::ClientTo(member)) {
                    self.member_reads(member, connection, request);
                }
            }
            Event::Forward { member, connection, request } => {
                let there = Event::AtLeader { member, connection, request };
                self.send(Link::ToLeader(member), there);
            }
            Event::AtLeader { member, connection, request } => {
                if self.passes(Link::ToLeader(member)) {
                    self.leader_reads(member, connection, request);
                }
            }
            Event::TouchesAtLeader { member, touched } => {
                if touched && self.passes(Link::ToLeader(member)) {
                    self.touch(member);
                }
            }
            Event::PingRound => self.ping_round(),
            Event::Expire => self.expire(),
            Event::Commit { member, connection, answer } => self.commit(member, connection, answer),
            Event::PingAtMember { member } => {
                if self.passes(Link::FromLeader(member)) {
                    self.answer_ping(member);
                }
            }
            Event::AnswerAtMember { member, connection, answer } => {
                if self.passes(Link::FromLeader(member)) {
                    self.touched[member] |= answer == Answer::Opened { new: true };
                    self.send(Link::ToClient(member), Event::AtClient { connection, answer });
                }
            }
            Event::AtClient { connection, answer } => {
                let member = self.client.member;
                if connection == self.client.connection && self.passes(Link::ToClient(member)) {
                    self.client_reads(answer);
                }
            }
            Event::PredecessorGoes => {
                let (member, connection) = (self.client.member, self.client.connection);
                self.note("leader", || "the predecessor's node is deleted".into());
                self.answer_from_leader(member, connection, Answer::Gone);
            }
            Event::Disturb(index) => self.disturb(index),
        }
    }

    // Links.

    fn send(&mut self, link: Link, event: Event) {
        let at = self.arrival(link);
        self.push(at, event);
    }

    fn arrival(&mut self, link: Link) -> Time {
        let mut at = self.now + self.scenario.delay + self.rng.u64(..=self.scenario.jitter);
        for disturbance in &self.scenario.disturbances {
            if let Kind::Slow(slow, extra) = disturbance.kind
                && slow == link
                && disturbance.during().contains(&self.now)
            {
                at += extra;
            }
        }
        let last = &mut self.arrivals[index_of_link(link)];
        *last = at.max(*last);
        *last
    }

    fn passes(&self, link: Link) -> bool {
        self.now < self.cut[index_of_link(link)]
    }

    // The client.

    fn client_sends(&mut self, connection: Connection, request: Request) {
        if connection != self.client.connection || self.client.over {
            return;
        }
        if request == Request::Ping(None) {
            let next = self.now + self.client.pings_every();
            self.push(next, Event::Send { connection, request });
        }
        self.client.sends(request, self.now);
        let member = self.client.member;
        self.note("client", || match request {
            Request::Create => format!("asks {} for a session", name(member)),
            Request::Reopen => format!("goes on to {}", name(member)),
            Request::Ping(None) => "pings".into(),
            Request::Ping(Some(number)) | Request::Heartbeat(number) => {
                format!("sends heartbeat write {number}")
            }
        });
        self.send(Link::ClientTo(member), Event::AtMember { member, connection, request });
    }

    fn client_reads(&mut self, answer: Answer) {
        self.client.heard = self.now;
        let connection = self.client.connection;
        match answer {
            Answer::Opened { new } => {
                self.note("client", || "has its session".into());
                let granted = self.scenario.grants_ms[self.client.member] * 1000;
                if new {
                    self.client.is_made(granted);
                    self.claim(self.client.deadline_by_creation(self.now), true);
                } else {
                    self.client.is_open_again(self.now, granted);
                    self.judge();
                }
                self.push(self.now, Event::Send { connection, request: self.client.first() });
                if self.scenario.pings {
                    let ping = Event::Send { connection, request: Request::Ping(None) };
                    self.push(self.now + self.client.pings_every(), ping);
                }
            }
            Answer::Refused => {
                self.note("client", || "is told that the session is over".into());
                self.client.over = true;
            }
            Answer::Pong(None) => {}
            Answer::Pong(Some(number)) | Answer::Committed(number) => {
                self.heartbeat_committed(number);
            }
            Answer::Failed => {
                self.note("client", || "is told that its heartbeat write failed".into());
                self.client.over = true;
            }
            Answer::Gone => {
                self.note("client", || "hears that its predecessor is gone".into());
                if self.rule.event_counts {
                    self.claim(self.client.lease_from(self.now), true);
                }
            }
        }
    }

    fn heartbeat_committed(&mut self, number: usize) {
        let connection = self.client.connection;
        self.note("client", || format!("has the answer to heartbeat write {number}"));
        if let Some(deadline) = self.client.current_deadline() {
            let left = deadline.at.saturating_sub(self.now);
            let least = self.outcome.least_left.get_or_insert(left);
            *least = left.min(*least);
        }
        self.client.record_answer(number, self.now);
        if let Some(until) = self.client.deadline_by(number) {
            let counts = self.loop_kept_up(number);
            self.claim(until, counts);
        }
        let (at, request) = self.client.next(number, self.now, &mut self.rng);
        self.push(at, Event::Send { connection, request });
    }

    fn claim(&mut self, until: Time, counts: bool) {
        if self.client.deadline.is_some_and(|old| old.at >= until) {
            return;
        }
        self.note("client", || format!("may hold until {}", moment(until)));
        self.client.deadline = Some(Deadline { at: until, counts });
        self.judge();
    }

    fn check_silence(&mut self, connection: Connection) {
        if connection != self.client.connection || self.client.over || self.isolated {
            return;
        }
        let limit = self.client.heard + self.client.silence_limit();
        if self.now < limit {
            self.push(limit, Event::CheckSilence { connection });
        } else {
            self.note("client", || "has heard nothing for too long".into());
            self.reconnect();
        }
    }

    fn reconnect(&mut self) {
        if self.client.over || self.isolated {
            return;
        }
        self.client.reconnect(self.now);
        let member = self.client.member;
        for link in [Link::ClientTo(member), Link::ToClient(member)] {
            self.arrivals[index_of_link(link)] = self.now;
        }
        let connection = self.client.connection;
        // Without an answer it has no session to take up, and asks for another one.
        self.client.over = self.client.deadline.is_none();
        self.push(self.now, Event::Send { connection, request: Request::Reopen });
        self.push(self.now + self.client.silence_limit(), Event::CheckSilence { connection });
    }

    // A member, which may be the leader.

    fn member_reads(&mut self, member: usize, connection: Connection, request: Request) {
        if member == LEADER {
            return self.leader_reads(member, connection, request);
        }
        if let Request::Ping(number) = request {
            self.touched[member] = true;
            let answer = Answer::Pong(number);
            return self.send(Link::ToClient(member), Event::AtClient { connection, answer });
        }
        // A session is not touched by being opened: the leader is asked.
        self.touched[member] |= matches!(request, Request::Heartbeat(_));
        let at = self.now + self.rng.u64(..=self.scenario.jitter);
        self.push(at, Event::Forward { member, connection, request });
    }

    fn answer_ping(&mut self, member: usize) {
        let touched = std::mem::take(&mut self.touched[member]);
        if member == self.client.member {
            let with = if touched { " with a touch" } else { ", with nothing" };
            self.note(name(member), || format!("answers the leader's ping{with}"));
        }
        self.send(Link::ToLeader(member), Event::TouchesAtLeader { member, touched });
    }

    // The leader.

    fn leader_reads(&mut self, member: usize, connection: Connection, request: Request) {
        match request {
            Request::Create => {
                self.leader.open(member, self.now);
                self.schedule_expiry();
                self.note("leader", || "makes the session".into());
                self.commit_later(member, connection, Answer::Opened { new: true });
            }
            Request::Reopen => {
                let valid = self.leader.status(member) != SessionStatus::Over;
                let answer = if valid { Answer::Opened { new: false } } else { Answer::Refused };
                if valid {
                    self.leader.owner = member;
                    self.touch(member);
                }
                self.answer_from_leader(member, connection, answer);
            }
            Request::Ping(number) => {
                self.touch(member);
                self.answer_from_leader(member, connection, Answer::Pong(number));
            }
            Request::Heartbeat(number) => {
                // Only requests of its own clients touch a session at the leader.
                if member == LEADER {
                    self.touch(member);
                }
                self.check(member, connection, number);
            }
        }
    }

    fn touch(&mut self, by: usize) {
        if self.leader.touch(self.now, by) {
            let ends = self.leader.ends();
            self.note("leader", || {
                format!("has a touch from {}: the session lasts until {}", name(by), moment(ends))
            });
            self.schedule_expiry();
        }
    }

    fn check(&mut self, member: usize, connection: Connection, number: usize) {
        if self.leader.status(member) != SessionStatus::Alive {
            self.note("leader", || format!("refuses heartbeat write {number}"));
            return self.commit_later(member, connection, Answer::Failed);
        }
        let ends = self.leader.ends();
        self.note("leader", || {
            format!("checks heartbeat write {number}; the session lasts until {}", moment(ends))
        });
        self.leader.checked(number, self.now);
        if connection == self.client.connection && !self.client.over {
            self.suspect(Suspect { connection, number }, ends);
        }
        self.commit_later(member, connection, Answer::Committed(number));
        if self.options.cut_after == Some(Suspect { connection, number }) {
            self.cut_off(member, ends);
        }
    }

    /// Judges whether the answer to this write would promise more than is left, should nothing
    /// touch the session any more.
    fn suspect(&mut self, suspect: Suspect, ends: Time) {
        let Some(until) = self.client.deadline_by(suspect.number) else { return };
        self.outcome.judged += 1;
        if self.options.excuse && !self.loop_kept_up(suspect.number) {
            self.outcome.excused += 1;
        } else if until > ends && self.outcome.suspect.is_none() {
            self.outcome.suspect = Some(suspect);
        }
    }

    fn loop_kept_up(&self, number: usize) -> bool {
        let first = self.client.start_of(number);
        self.leader.loop_kept_up(self.client.member, first, number)
    }

    fn cut_off(&mut self, member: usize, ends: Time) {
        self.note("fault", || {
            format!("from here on, nothing of {} reaches the leader", name(member))
        });
        let link = if member == LEADER { Link::ClientTo(LEADER) } else { Link::ToLeader(member) };
        self.cut[index_of_link(link)] = self.now;
        self.isolated = true;
        self.horizon = self.horizon.max(ends + self.scenario.timeout());
    }

    fn commit_later(&mut self, member: usize, connection: Connection, answer: Answer) {
        let at = self.arrival(Link::Quorum);
        self.push(at, Event::Commit { member, connection, answer });
    }

    fn commit(&mut self, member: usize, connection: Connection, answer: Answer) {
        if let Answer::Committed(number) = answer {
            self.note("leader", || format!("commits heartbeat write {number}"));
            self.leader.committed(number, self.now);
        }
        self.answer_from_leader(member, connection, answer);
    }

    fn answer_from_leader(&mut self, member: usize, connection: Connection, answer: Answer) {
        if member == LEADER {
            self.send(Link::ToClient(member), Event::AtClient { connection, answer });
        } else {
            let there = Event::AnswerAtMember { member, connection, answer };
            self.send(Link::FromLeader(member), there);
        }
    }

    fn ping_round(&mut self) {
        for member in 0..FOLLOWERS {
            self.leader.pinged(member, self.now);
            self.send(Link::FromLeader(member), Event::PingAtMember { member });
        }
        let member = self.client.member;
        if member != LEADER {
            self.note("leader", || format!("pings {}", name(member)));
        }
        self.push(self.now + self.leader.pings_every(), Event::PingRound);
    }

    fn schedule_expiry(&mut self) {
        if self.leader.watch_expiry() {
            let at = self.leader.ends();
            self.push(at, Event::Expire);
        }
    }

    fn expire(&mut self) {
        if !self.leader.expire(self.now) {
            let at = self.leader.ends();
            return self.push(at, Event::Expire);
        }
        self.outcome.expired = true;
        self.note("leader", || "ends the session: the lock is free".into());
        self.judge();
    }

    // Verdict and faults.

    fn judge(&mut self) {
        let (Some(expired), Some(deadline)) = (self.leader.expired, self.client.current_deadline())
        else {
            return;
        };
        let from = expired.max(self.now);
        if deadline.at > from && (deadline.counts || !self.options.excuse) {
            self.note("BROKEN", || format!("two holders until {}", moment(deadline.at)));
            self.outcome.overlap = Some(Overlap { from, until: deadline.at });
        }
    }

    fn disturb(&mut self, index: usize) {
        let disturbance = self.scenario.disturbances[index];
        let end = disturbance.during().end;
        match disturbance.kind {
            Kind::Slow(..) | Kind::Cut(_) => {}
            Kind::Mute => {
                self.note("fault", || format!("the ping loop stands still until {}", moment(end)));
                self.sleep(Thread::PingLoop, end);
            }
            Kind::Reset => {
                self.note("fault", || "the client's connection breaks".into());
                self.reconnect();
            }
            Kind::Stall(party) => {
                self.note("fault", || format!("{party:?} stands still until {}", moment(end)));
                self.stall(party, end);
            }
        }
    }

    fn stall(&mut self, party: Party, end: Time) {
        let follower = |f| vec![Thread::FollowerFromClient(f), Thread::FollowerFromLeader(f)];
        let threads = match party {
            Party::Client => vec![Thread::Client],
            Party::Follower(number) => follower(number),
            Party::Leader => (0..MEMBERS)
                .map(Thread::Reader)
                .chain([Thread::PingLoop, Thread::Expirer, Thread::Committer])
                .collect(),
        };
        for thread in threads {
            let first = self.scenario.punctual && matches!(thread, Thread::PingLoop);
            let late = if first { 0 } else { self.rng.u64(..=self.scenario.wake) };
            self.sleep(thread, end + late);
        }
    }

    fn sleep(&mut self, thread: Thread, until: Time) {
        let asleep = &mut self.asleep[index_of(thread)];
        *asleep = until.max(*asleep);
    }

    fn note(&mut self, who: &str, what: impl FnOnce() -> String) {
        if self.options.trace {
            let line = format!("{}  {who:<10} {}", moment(self.now), what());
            self.outcome.trace.push(line);
        }
    }
}

/// Returns a moment in milliseconds.
pub(crate) fn moment(at: Time) -> String {
    format!("{:>6}.{}", at / 1000, at % 1000 / 100)
}

fn name(member: usize) -> &'static str {
    ["follower A", "follower B", "the leader"][member]
}

fn thread_of(event: &Event) -> Option<Thread> {
    let thread = match *event {
        Event::Send { .. } | Event::CheckSilence { .. } | Event::AtClient { .. } => Thread::Client,
        Event::AtMember { member: LEADER, .. } => Thread::Reader(LEADER),
        Event::AtMember { member, .. } | Event::Forward { member, .. } => {
            Thread::FollowerFromClient(member)
        }
        Event::AtLeader { member, .. } | Event::TouchesAtLeader { member, .. } => {
            Thread::Reader(member)
        }
        Event::PingRound => Thread::PingLoop,
        Event::Expire => Thread::Expirer,
        Event::Commit { .. } | Event::PredecessorGoes => Thread::Committer,
        Event::PingAtMember { member } | Event::AnswerAtMember { member, .. } => {
            Thread::FollowerFromLeader(member)
        }
        Event::Disturb(_) => return None,
    };
    Some(thread)
}

fn index_of(thread: Thread) -> usize {
    match thread {
        Thread::Client => 0,
        Thread::PingLoop => 1,
        Thread::Expirer => 2,
        Thread::Committer => 3,
        Thread::Reader(member) => 4 + member,
        Thread::FollowerFromClient(follower) => 4 + MEMBERS + follower,
        Thread::FollowerFromLeader(follower) => 4 + MEMBERS + FOLLOWERS + follower,
    }
}

fn index_of_link(link: Link) -> usize {
    match link {
        Link::ClientTo(member) => member,
        Link::ToClient(member) => MEMBERS + member,
        Link::ToLeader(follower) => 2 * MEMBERS + follower,
        Link::FromLeader(follower) => 2 * MEMBERS + FOLLOWERS + follower,
        Link::Quorum => LINKS - 1,
    }
}

impl Rule {
    pub(crate) fn request(&self, number: usize) -> Request {
        match self.heartbeat {
            HeartbeatKind::Commit => Request::Heartbeat(number),
            HeartbeatKind::Ping => Request::Ping(Some(number)),
        }
    }
}
