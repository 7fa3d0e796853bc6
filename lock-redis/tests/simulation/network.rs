//! The stand-in's network: messages take time, and connections are held up, cut and forgotten. All
//! of it is drawn from the seed, and happens on the paused clock of one thread.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::{Moment, sleep, sleep_until};
use lock_redis::{Connector, ServerAddress};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::AbortHandle;

use super::keyspace::Peer;
use super::server::{KeyspaceGuard, Server};
use super::wire::{Reply, Request, take_request};

/// A server, and the ways to it. Clones share both.
#[derive(Clone)]
pub(crate) struct World(Arc<Inner>);

struct Inner {
    server: Mutex<Server>,
    state: Mutex<State>,
    /// When the server's clock began to run.
    began: OnceLock<Moment>,
    sweeps: AtomicBool,
    /// A client wants to know of changes.
    is_tracked: Notify,
    /// The data may be others than before.
    has_changed: Notify,
}

struct State {
    rng: Rng,
    clock: ServerClock,
    conditions: BTreeMap<usize, Conditions>,
    connections: BTreeMap<Peer, Connection>,
    next_peer: Peer,
    /// No server listens at its address.
    is_down: bool,
    /// It runs, and does nothing until then.
    stopped_until: Option<Moment>,
    trace: Option<Vec<Event>>,
}

/// The clock of the server, in µs since 1970.
#[derive(Debug)]
struct ServerClock {
    /// The time that it showed when it was last set, and when that was after its beginning.
    set: (u64, Duration),
    /// By how many in ten thousand it is too fast.
    drift: u64,
    last: u64,
}

/// The network of one process.
#[derive(Clone, Copy, Debug, Default)]
struct Conditions {
    /// A message takes up to that long.
    slow: Duration,
    /// To the server, and from it: nothing passes until then.
    held: [Option<Moment>; 2],
    /// The process was killed: it says and hears nothing any more.
    is_dead: bool,
}

struct Connection {
    process: usize,
    down: Way,
    inbox: Arc<Mutex<Inbox>>,
    couriers: [AbortHandle; 2],
    /// Nothing passes to the server until then.
    late: Option<Moment>,
}

/// One direction of a connection: nothing overtakes anything.
struct Way {
    to: UnboundedSender<(Moment, Segment)>,
    last: Moment,
}

enum Segment {
    Bytes(Vec<u8>),
    End,
}

/// The bytes that have arrived at a client.
#[derive(Default)]
struct Inbox {
    bytes: Vec<u8>,
    is_over: bool,
    is_reset: bool,
    waker: Option<Waker>,
}

/// An event at the server, for a comparison with another one.
#[derive(Clone, Debug)]
pub(crate) enum Event {
    Connected(Peer),
    Disconnected(Peer),
    /// A request at this time of the server, and the messages that it caused.
    Asked {
        at: u64,
        by: Peer,
        request: Request,
        sent: Vec<(Peer, Vec<u8>)>,
    },
    /// Keys were found to have expired, and the clients that were notified.
    Swept {
        at: u64,
        sent: Vec<(Peer, Vec<u8>)>,
    },
    /// The process was killed: its scripts are gone, and its data may be others.
    Killed,
}

/// How a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    /// Messages under way are lost.
    Before,
    /// Requests that were sent arrive, and no answer does.
    After,
    /// The server has forgotten it, and the client does not hear of that for so long.
    Forgotten(Duration),
}

/// The operator's own connection: it is not on the network.
pub(crate) const OPERATOR: Peer = 0;

impl World {
    /// Every other one is a server that knows more commands.
    pub(crate) fn is_newer(seed: u64) -> bool {
        seed % 2 == 1
    }

    pub(crate) fn new(seed: u64) -> Self {
        let state = State {
            rng: Rng::with_seed(seed),
            clock: ServerClock { set: (1_790_000_000_000_000, Duration::ZERO), drift: 0, last: 0 },
            conditions: BTreeMap::new(),
            connections: BTreeMap::new(),
            next_peer: OPERATOR + 1,
            is_down: false,
            stopped_until: None,
            trace: None,
        };
        let server = Server::new();
        server.keys().is_newer = Self::is_newer(seed);
        let (server, state) = (Mutex::new(server), Mutex::new(state));
        Self(Arc::new(Inner {
            server,
            state,
            began: OnceLock::new(),
            sweeps: AtomicBool::new(false),
            is_tracked: Notify::new(),
            has_changed: Notify::new(),
        }))
    }

    /// Returns the network between a process and the server.
    pub(crate) fn network_of(&self, process: usize) -> impl Connector {
        NetworkOf { world: self.clone(), process }
    }

    pub(crate) fn keep_trace(&self) {
        self.state().trace = Some(Vec::new());
    }

    pub(crate) fn take_trace(&self) -> Vec<Event> {
        self.state().trace.take().unwrap_or_default()
    }

    /// Messages take up to so long from now on.
    pub(crate) fn slow_down(&self, process: usize, slow: Duration) {
        self.conditions(process, |conditions| conditions.slow = slow);
    }

    /// Nothing passes to the server, from it, or both, until then.
    pub(crate) fn hold(&self, process: usize, directions: [bool; 2], until: Moment) {
        self.conditions(process, |conditions| {
            for (held, _) in conditions.held.iter_mut().zip(directions).filter(|(_, is)| *is) {
                *held = (*held).max(Some(until));
            }
        });
    }

    /// Delays the messages on the connections that a process has now, also if it has others by that
    /// time.
    pub(crate) fn delay_requests(&self, process: usize, until: Moment) {
        let mut state = self.state();
        let connections = state.connections.values_mut();
        let of_process = connections.filter(|connection| connection.process == process);
        of_process.for_each(|connection| connection.late = connection.late.max(Some(until)));
    }

    pub(crate) fn kill(&self, process: usize) {
        self.conditions(process, |conditions| conditions.is_dead = true);
        for peer in self.peers_of(Some(process)) {
            self.state().connections.get(&peer).into_iter().for_each(Connection::stop);
            self.disconnect(peer);
        }
    }

    /// Ends the connections of a process, or all.
    pub(crate) fn cut(&self, process: Option<usize>, cut: Cut) {
        for peer in self.peers_of(process) {
            let mut state = self.state();
            let State { rng, conditions, connections, .. } = &mut *state;
            let Some(connection) = connections.get_mut(&peer) else { continue };
            let conditions = conditions.get(&connection.process).copied().unwrap_or_default();
            match cut {
                Cut::Before => connection.stop(),
                Cut::After => connection.couriers[1].abort(),
                Cut::Forgotten(lasts) => {
                    connection.couriers[0].abort();
                    connection.down.last = Moment::now() + lasts;
                    connection.down.send(Segment::End, conditions.slow, rng);
                }
            }
            let inbox = Arc::clone(&connection.inbox);
            drop(state);
            if !matches!(cut, Cut::Forgotten(_)) {
                lock(&inbox).reset();
            }
            if cut != Cut::After {
                self.disconnect(peer);
            }
        }
    }

    /// Kills the server's process.
    pub(crate) fn shut_down(&self) {
        self.state().is_down = true;
        self.cut(None, Cut::Before);
        lock(&self.0.server).begin_anew();
        self.state().trace.iter_mut().for_each(|trace| trace.push(Event::Killed));
    }

    pub(crate) fn start(&self) {
        self.0.has_changed.notify_waiters();
        self.state().is_down = false;
    }

    /// Stops the server until then.
    pub(crate) fn stop_until(&self, until: Moment) {
        self.state().stopped_until = Some(until);
    }

    pub(crate) fn step_clock(&self, by: i64) {
        let elapsed = self.elapsed();
        self.state().clock.step(by, elapsed);
    }

    pub(crate) fn let_clock_drift(&self, drift: u64) {
        let elapsed = self.elapsed();
        let mut state = self.state();
        state.clock.step(0, elapsed);
        state.clock.drift = drift;
    }

    /// Sends a command of an operator or a foreign client, unseen by the clients.
    pub(crate) fn command(&self, words: &[&[u8]]) -> Reply {
        let request: Request = words.iter().map(|word| word.to_vec()).collect();
        self.serve(&request, OPERATOR)
    }

    /// Looks at the data at the time of now.
    pub(crate) fn look<T>(&self, look: impl FnOnce(&mut KeyspaceGuard<'_>) -> T) -> T {
        let now = self.server_time();
        let server = lock(&self.0.server);
        let mut keys = server.keys();
        keys.now = now;
        look(&mut keys)
    }

    /// Draws the value of a lock of another library.
    pub(crate) fn draw_token(&self) -> Vec<u8> {
        format!("token {}", self.state().rng.u64(..)).into_bytes()
    }

    /// Returns when the key holds something other than this value, or nothing.
    pub(crate) async fn until_gone(&self, key: &[u8], value: &[u8]) {
        loop {
            let has_changed = self.0.has_changed.notified();
            let Some(left) = self.look(|keys| keys.stands(key, value)) else { return };
            // The server's clock may be faster than ours.
            let _ = tokio::time::timeout(left / 2 + Duration::from_millis(1), has_changed).await;
        }
    }

    /// Has the requests answered that are complete by these bytes.
    fn receive(&self, peer: Peer, received: &mut Vec<u8>, bytes: &[u8]) {
        received.extend_from_slice(bytes);
        while let Some(request) = take_request(received) {
            self.serve(&request, peer);
        }
    }

    fn serve(&self, request: &Request, by: Peer) -> Reply {
        let now = self.server_time();
        let mut server = lock(&self.0.server);
        {
            let mut keys = server.keys();
            (keys.now, keys.current) = (now, Some(by));
        }
        let reply = server.serve(request, by);
        let mut keys = server.keys();
        keys.current = None;
        let afterwards = std::mem::take(&mut keys.afterwards);
        if let Some(listener) = keys.peers.get_mut(&by) {
            reply.write_to(&mut listener.out);
            listener.out.extend(afterwards);
        }
        let sent = take_sent(&mut keys);
        if keys.is_tracked() {
            self.0.is_tracked.notify_one();
        }
        self.0.has_changed.notify_waiters();
        drop(keys);
        drop(server);
        let mut state = self.state();
        if let Some(trace) = &mut state.trace {
            let (request, mut sent) = (request.clone(), sent.clone());
            if by == OPERATOR {
                sent.push((OPERATOR, reply.bytes()));
            }
            trace.push(Event::Asked { at: now, by, request, sent });
        }
        state.deliver(sent);
        reply
    }

    /// Expired keys end now and then without anybody asking for them.
    fn sweep(&self) {
        let sent = self.look(|keys| {
            keys.sweep();
            take_sent(keys)
        });
        let now = self.server_time();
        let mut state = self.state();
        if let Some(trace) = state.trace.as_mut().filter(|_| !sent.is_empty()) {
            trace.push(Event::Swept { at: now, sent: sent.clone() });
        }
        state.deliver(sent);
    }

    fn disconnect(&self, peer: Peer) {
        lock(&self.0.server).keys().disconnect(peer);
        let mut state = self.state();
        // Earlier messages to it are still under way.
        if state.connections.remove(&peer).is_some()
            && let Some(trace) = &mut state.trace
        {
            trace.push(Event::Disconnected(peer));
        }
    }

    fn server_time(&self) -> u64 {
        let elapsed = self.elapsed();
        self.state().clock.read(elapsed)
    }

    fn elapsed(&self) -> Duration {
        Moment::now().saturating_since(*self.0.began.get_or_init(Moment::now))
    }

    fn peers_of(&self, process: Option<usize>) -> Vec<Peer> {
        let state = self.state();
        let of = |c: &Connection| process.is_none_or(|process| c.process == process);
        state.connections.iter().filter(|(_, c)| of(c)).map(|(peer, _)| *peer).collect()
    }

    fn conditions(&self, process: usize, change: impl FnOnce(&mut Conditions)) {
        change(self.state().conditions.entry(process).or_default());
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.0.state)
    }

    /// Returns when a message of this process may pass in this direction, on that connection if
    /// there is one.
    async fn may_pass(&self, process: usize, direction: usize, peer: Option<Peer>) {
        loop {
            let (is_dead, until) = {
                let state = self.state();
                let conditions = state.conditions.get(&process).copied().unwrap_or_default();
                let late = peer.and_then(|peer| state.connections.get(&peer)?.late);
                let until = state.stopped_until.max(late).filter(|_| direction == UP);
                (conditions.is_dead, conditions.held[direction].max(until))
            };
            match until.filter(|until| !until.has_passed()) {
                _ if is_dead => std::future::pending().await,
                Some(until) => sleep_until(until).await,
                None => return,
            }
        }
    }

    async fn carry_up(
        self,
        process: usize,
        peer: Peer,
        mut way: UnboundedReceiver<(Moment, Segment)>,
    ) {
        let mut received = Vec::new();
        while let Some((at, segment)) = way.recv().await {
            sleep_until(at).await;
            self.may_pass(process, UP, Some(peer)).await;
            match segment {
                Segment::Bytes(bytes) => self.receive(peer, &mut received, &bytes),
                Segment::End => break,
            }
        }
        self.disconnect(peer);
    }

    async fn carry_down(
        self,
        process: usize,
        inbox: Arc<Mutex<Inbox>>,
        mut way: UnboundedReceiver<(Moment, Segment)>,
    ) {
        while let Some((at, segment)) = way.recv().await {
            sleep_until(at).await;
            self.may_pass(process, DOWN, None).await;
            lock(&inbox).take(segment);
        }
    }

    async fn connect(&self, process: usize) -> io::Result<Client> {
        if !self.0.sweeps.swap(true, Ordering::Relaxed) {
            tokio::spawn(self.clone().sweep_now_and_then());
        }
        let slow = self.state().draw_delay(process);
        sleep(slow).await;
        self.may_pass(process, UP, None).await;
        self.may_pass(process, DOWN, None).await;
        if self.state().is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let (up, to_server) = unbounded_channel();
        let (down, to_client) = unbounded_channel();
        let inbox = Arc::<Mutex<Inbox>>::default();
        let mut state = self.state();
        let peer = state.next_peer;
        state.next_peer += 1;
        let couriers = [
            tokio::spawn(self.clone().carry_up(process, peer, to_server)).abort_handle(),
            tokio::spawn(self.clone().carry_down(process, Arc::clone(&inbox), to_client))
                .abort_handle(),
        ];
        let last = Moment::now();
        let connection = Connection {
            process,
            down: Way { to: down, last },
            inbox: Arc::clone(&inbox),
            couriers,
            late: None,
        };
        state.connections.insert(peer, connection);
        if let Some(trace) = &mut state.trace {
            trace.push(Event::Connected(peer));
        }
        drop(state);
        lock(&self.0.server).keys().peers.insert(peer, Default::default());
        Ok(Client { world: self.clone(), process, up: Way { to: up, last }, inbox })
    }

    async fn sweep_now_and_then(self) {
        loop {
            self.0.is_tracked.notified().await;
            while self.look(|keys| keys.is_tracked()) {
                sleep(Duration::from_millis(100)).await;
                self.sweep();
            }
        }
    }
}

const UP: usize = 0;
const DOWN: usize = 1;

fn take_sent(keys: &mut KeyspaceGuard<'_>) -> Vec<(Peer, Vec<u8>)> {
    let sent = keys.peers.iter_mut().map(|(peer, to)| (*peer, std::mem::take(&mut to.out)));
    sent.filter(|(_, bytes)| !bytes.is_empty()).collect()
}

impl State {
    fn deliver(&mut self, sent: Vec<(Peer, Vec<u8>)>) {
        let Self { rng, conditions, connections, .. } = self;
        for (peer, bytes) in sent {
            if let Some(connection) = connections.get_mut(&peer) {
                let slow = conditions.get(&connection.process).map_or(Duration::ZERO, |c| c.slow);
                connection.down.send(Segment::Bytes(bytes), slow, rng);
            }
        }
    }

    fn draw_delay(&mut self, process: usize) -> Duration {
        let slow = self.conditions.get(&process).map_or(Duration::ZERO, |c| c.slow);
        draw(&mut self.rng, slow)
    }
}

fn draw(rng: &mut Rng, longest: Duration) -> Duration {
    Duration::from_nanos(rng.u64(..=u64::try_from(longest.as_nanos()).unwrap_or(u64::MAX)))
}

impl ServerClock {
    fn read(&mut self, elapsed: Duration) -> u64 {
        // Nothing takes time here, but a server needs some for each request.
        const REQUEST: u64 = 20;
        let (shown, at) = self.set;
        let passed = u64::try_from((elapsed - at).as_micros()).unwrap_or(u64::MAX);
        self.last = (shown + passed + passed * self.drift / 10_000).max(self.last + REQUEST);
        self.last
    }

    fn step(&mut self, by: i64, elapsed: Duration) {
        let now = self.read(elapsed);
        self.set = (now.saturating_add_signed(by), elapsed);
        self.last = self.set.0;
    }
}

impl Connection {
    fn stop(&self) {
        self.couriers.iter().for_each(AbortHandle::abort);
    }
}

impl Way {
    fn send(&mut self, segment: Segment, slow: Duration, rng: &mut Rng) {
        self.last = self.last.max(Moment::now() + draw(rng, slow));
        // The other end may be gone.
        let _ = self.to.send((self.last, segment));
    }
}

impl Inbox {
    fn take(&mut self, segment: Segment) {
        match segment {
            Segment::Bytes(bytes) => self.bytes.extend(bytes),
            Segment::End => self.is_over = true,
        }
        self.wake();
    }

    fn reset(&mut self) {
        self.is_reset = true;
        self.wake();
    }

    fn wake(&mut self) {
        self.waker.take().into_iter().for_each(Waker::wake);
    }
}

struct NetworkOf {
    world: World,
    process: usize,
}

impl Connector for NetworkOf {
    type Stream = Client;

    async fn connect(&self, _: &ServerAddress) -> io::Result<Client> {
        self.world.connect(self.process).await
    }
}

/// A client's end of a connection.
struct Client {
    world: World,
    process: usize,
    up: Way,
    inbox: Arc<Mutex<Inbox>>,
}

impl Client {
    fn send(&mut self, segment: Segment) {
        let mut state = self.world.state();
        let slow = state.conditions.get(&self.process).map_or(Duration::ZERO, |c| c.slow);
        self.up.send(segment, slow, &mut state.rng);
    }
}

impl AsyncRead for Client {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut inbox = lock(&self.inbox);
        if inbox.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let length = inbox.bytes.len().min(buffer.remaining());
        if length == 0 && !inbox.is_over {
            inbox.waker = Some(cx.waker().clone());
            return Poll::Pending;
        }
        buffer.put_slice(&inbox.bytes[..length]);
        inbox.bytes.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Client {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if lock(&self.inbox).is_reset {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        self.send(Segment::Bytes(bytes.to_vec()));
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.send(Segment::End);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
