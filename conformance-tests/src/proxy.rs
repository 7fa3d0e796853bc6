//! A TCP proxy that breaks connections on command, for tests of any backend.
//!
//! It understands no protocol. It can search the bytes of clients, also across several segments,
//! and act exactly at a match:
//!
//! ```no_run
//! # async fn example(server: std::net::SocketAddr) -> std::io::Result<()> {
//! use lock_conformance::proxy::{Fault, Match, Proxy};
//!
//! let proxy = Proxy::start(server)?;
//! // … clients connect to proxy.addr() …
//! proxy.set(Fault::BlackHole); // from here on no byte passes
//! proxy.heal(); // and everything that was held up arrives
//!
//! let hit = proxy.cut_after(Match::on("EVALSHA").nth(2));
//! hit.await?; // the server has answered the second one; its client was cut off
//!
//! let mut held = proxy.hold("PEXPIRE");
//! held.caught().await?; // the client may give up now, or close
//! held.deliver().await?; // and the server gets the request nevertheless
//! # Ok(())
//! # }
//! ```
//!
//! **Network, not bytes, is lost.** A real network that drops packets makes TCP send them again:
//! once it heals, delayed packets arrive late, unless a side has given up. So they do here. A black
//! hole keeps its input (up to a bound, then senders block) and delivers it after [`Proxy::heal`].
//!
//! **Limits.** The proxy's kernel completes handshakes and acknowledges bytes: a connect through a
//! black hole or a delay succeeds at once, and keep-alive probes are answered. Timers have
//! millisecond steps, so a delay may be up to two milliseconds longer than asked, never shorter.
//!
//! A proxy runs on a separate thread, on the real clock. It works while a test starves or pauses
//! its runtime, and needs none to be started.
//!
//! Waits here are unbounded: a test adds its deadline.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::future::{Future, IntoFuture, pending};
use std::hash::{BuildHasher as _, RandomState};
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use lock_core::clock::{Moment, sleep, sleep_until};
use tokio::io::AsyncWriteExt;
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::runtime::{self, Builder};
use tokio::sync::{oneshot, watch};

/// The bytes that a direction of a connection keeps before its sender has to wait. Memory stays
/// bounded, and a delay of 100 ms still carries 10 MB a second.
const ROOM: usize = 1 << 20;

/// The cost of a queued piece besides its bytes, which bounds many tiny pieces as well.
const OVERHEAD: usize = 64;

/// The number of ports to try.
const ATTEMPTS: usize = 100;

/// The most bytes of one read.
const CHUNK: usize = 16 * 1024;

/// A fault of the network on a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Fault {
    /// Passes everything on at once.
    #[default]
    None,
    /// No byte, no FIN and no RST passes in either direction. New connections are accepted, and
    /// then silence; the server does not see them before the hole is gone.
    BlackHole,
    /// As a black hole, but in one direction only.
    Lose(Direction),
    /// New connections are reset as soon as they are accepted; the connect itself may succeed or
    /// fail with the reset. Live ones go on.
    Refuse,
    /// A long line: bytes sent at `t` arrive at `t` plus the delay, however many are under way.
    Delay {
        /// The delay of bytes from clients.
        to_server: Duration,
        /// The delay of bytes from the server.
        to_client: Duration,
    },
    /// A narrow line: at most `bytes` in each interval, in each direction.
    Trickle {
        /// How many bytes are written at once.
        bytes: usize,
        /// How long nothing follows them.
        every: Duration,
    },
    /// Each byte is written by itself.
    Slice,
}

impl Fault {
    /// Makes a delay in both directions.
    #[must_use]
    pub fn delay(each_way: Duration) -> Self {
        Self::Delay { to_server: each_way, to_client: each_way }
    }

    fn passes(self, direction: Direction) -> bool {
        self != Self::BlackHole && self != Self::Lose(direction)
    }

    fn delay_of(self, towards: Direction) -> Duration {
        match (self, towards) {
            (Self::Delay { to_server, .. }, Direction::ToServer) => to_server,
            (Self::Delay { to_client, .. }, Direction::ToClient) => to_client,
            _ => Duration::ZERO,
        }
    }

    /// Returns the bytes of one write, and the pause after it.
    fn portion(self) -> (usize, Duration) {
        match self {
            Self::Trickle { bytes, every } => (bytes.max(1), every),
            Self::Slice => (1, Duration::ZERO),
            _ => (usize::MAX, Duration::ZERO),
        }
    }
}

/// One of the two ways through a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Direction {
    /// From the client to the server.
    ToServer,
    /// From the server to the client.
    ToClient,
}

/// A selection of requests, by bytes that clients send.
///
/// Only bytes that reach the proxy after it was told to look are compared. With no bytes to look
/// for, the next request matches.
#[derive(Clone, Debug)]
pub struct Match {
    needle: Vec<u8>,
    nth: u64,
    connection: Option<u64>,
}

impl Match {
    /// Selects the first request with these bytes, on any connection.
    #[must_use]
    pub fn on(needle: impl AsRef<[u8]>) -> Self {
        Self { needle: needle.as_ref().to_vec(), nth: 1, connection: None }
    }

    /// Selects the `nth` occurrence, counted from 1 and over all connections that are meant.
    #[must_use]
    pub fn nth(mut self, nth: u64) -> Self {
        self.nth = nth;
        self
    }

    /// Limits the selection to one connection.
    ///
    /// Connections are numbered from 0 in the order of being accepted.
    #[must_use]
    pub fn connection(mut self, connection: u64) -> Self {
        self.connection = Some(connection);
        self
    }
}

impl<T: AsRef<[u8]>> From<T> for Match {
    fn from(needle: T) -> Self {
        Self::on(needle)
    }
}

/// The traffic so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Connections accepted, those that were then refused included.
    pub connections: u64,
    /// Connections refused.
    pub refused: u64,
    /// Connections that still exist.
    pub live: u64,
    /// Bytes from clients.
    pub to_server: Passed,
    /// Bytes from the server.
    pub to_client: Passed,
}

/// The traffic in one direction, over all connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes that the proxy has received.
    pub received: u64,
    /// Bytes that it has passed on.
    pub sent: u64,
    /// In how many writes.
    pub writes: u64,
}

impl Stats {
    fn of(&mut self, direction: Direction) -> &mut Passed {
        match direction {
            Direction::ToServer => &mut self.to_server,
            Direction::ToClient => &mut self.to_client,
        }
    }
}

/// A proxy in front of one server, or of [several](Self::also). Dropping it closes its ports and
/// its connections.
///
/// A process that another thread is spawning at that moment keeps them open until it executes its
/// program. The same holds for every socket that is closed or reset here.
#[derive(Debug)]
pub struct Proxy {
    addr: SocketAddr,
    shared: Arc<Shared>,
    runtime: runtime::Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Listens on a free port of the loopback interface and forwards to `upstream`, which need not
    /// be there yet.
    ///
    /// # Errors
    ///
    /// No port, no thread or no file descriptor is left.
    pub fn start(upstream: SocketAddr) -> io::Result<Self> {
        Self::start_with(free_socket()?, upstream)
    }

    /// Starts a proxy that listens at `addr`, such as another address with the server's port.
    ///
    /// # Errors
    ///
    /// The port is taken, or no thread or file descriptor is left.
    pub fn start_at(addr: SocketAddr, upstream: SocketAddr) -> io::Result<Self> {
        Self::start_with(socket_at(addr)?, upstream)
    }

    fn start_with(socket: TcpSocket, upstream: SocketAddr) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, shared) = (runtime.handle().clone(), Arc::new(Shared::default()));
        let addr = open(&handle, socket, upstream, &shared)?;
        let (stop, stopped) = oneshot::channel::<()>();
        let work = move || {
            // Nothing is ever sent: it ends with the sender.
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name("fault-proxy".into()).spawn(work)?;
        Ok(Self { addr, shared, runtime: handle, stop: Some(stop), thread: Some(thread) })
    }

    /// Opens another way through the same network, to another server, and returns its address.
    ///
    /// It listens on a free port. Faults, matches and counts apply to all ways together.
    ///
    /// # Errors
    ///
    /// No port or file descriptor is left.
    pub fn also(&self, upstream: SocketAddr) -> io::Result<SocketAddr> {
        open(&self.runtime, free_socket()?, upstream, &self.shared)
    }

    /// Opens another way that listens at `addr`.
    ///
    /// # Errors
    ///
    /// The port is taken, or no file descriptor is left.
    pub fn also_at(&self, addr: SocketAddr, upstream: SocketAddr) -> io::Result<()> {
        open(&self.runtime, socket_at(addr)?, upstream, &self.shared).map(drop)
    }

    /// Returns the address for clients of the first way, not of [another](Self::also).
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Sets `fault` on all connections, live and future, that have none of their own. When this
    /// returns, no byte passes any more that `fault` does not let pass.
    pub fn set(&self, fault: Fault) {
        self.order(|state| state.fault = fault);
    }

    /// Sets `fault` on one connection, live or future; see [`Match::connection`] for the number.
    pub fn set_for(&self, connection: u64, fault: Fault) {
        self.order(|state| _ = state.own.insert(connection, fault));
    }

    /// Sets the fault of all connections, live and future, of clients at this address.
    ///
    /// Connections with their own fault keep it. [`Fault::None`] restores the common fault.
    pub fn set_from(&self, client: IpAddr, fault: Fault) {
        self.order(|state| match fault {
            Fault::None => drop(state.from.remove(&client)),
            fault => drop(state.from.insert(client, fault)),
        });
    }

    /// Exempts all connections of clients at this address from faults, but not from counts.
    pub fn spare(&self, client: IpAddr) {
        self.order(|state| _ = state.spared.insert(client));
    }

    /// Leads all addresses of this proxy to `upstream` from now on, as after a change of a DNS
    /// entry or of a virtual IP. Live connections stay where they are.
    pub fn repoint(&self, upstream: SocketAddr) {
        self.order(|state| state.moved_to = Some(upstream));
    }

    /// Replaces `old` by `new` in all that servers send, as an address that clients reach under
    /// another one. Both have the same length, so that a length in front of them stays right. An
    /// `old` that is spread over two reads is not found.
    ///
    /// # Panics
    ///
    /// The lengths differ.
    pub fn rewrite(&self, old: &str, new: &str) {
        assert_eq!(old.len(), new.len(), "{old} and {new}");
        self.order(|state| state.rewrites.push([old, new].map(|text| text.as_bytes().to_vec())));
    }

    /// Ends all faults; delayed bytes arrive now. Armed cuts, holds and counts stay armed.
    pub fn heal(&self) {
        self.order(|state| {
            state.fault = Fault::None;
            state.own.clear();
            state.from.clear();
        });
    }

    /// Resets the client's connection when the server has answered a matching request: the request
    /// took effect, and no client learns of it. Not a byte of the answer gets through.
    ///
    /// With several requests in flight on the connection, the first bytes from the server count as
    /// the answer.
    pub fn cut_after(&self, request: impl Into<Match>) -> Hit {
        Hit(self.arm(Purpose::Cut, request.into()))
    }

    /// Sends the client `answer` instead of the server's answer to a matching request.
    ///
    /// The request takes effect nevertheless: the peer is broken, or it lies. Later bytes of the
    /// server pass again.
    ///
    /// With several requests in flight on the connection, the first bytes from the server count as
    /// the answer.
    pub fn forge(&self, request: impl Into<Match>, answer: impl Into<Vec<u8>>) -> Hit {
        Hit(self.arm(Purpose::Forge(answer.into()), request.into()))
    }

    /// Stops a matching request on its way, and the later bytes on its connection, until
    /// [`Held::deliver`]. The server may have got the beginning of the request, up to the last byte
    /// of the match.
    pub fn hold(&self, request: impl Into<Match>) -> Held {
        Held(self.arm(Purpose::Hold, request.into()))
    }

    /// Counts matching requests.
    pub fn count(&self, request: impl Into<Match>) -> Count {
        Count(self.arm(Purpose::Count, request.into()))
    }

    /// Resets all live connections on both sides, with no FIN before; returns when it is done.
    ///
    /// # Cancel safety
    ///
    /// The connections are reset even if the future is dropped.
    pub async fn reset_connections(&self) {
        let mut last = None;
        self.order(|state| {
            last = state.live.keys().next_back().copied();
            state.affected().for_each(|orders| orders.reset = true);
        });
        let Some(last) = last else { return };
        self.until_state(|state| !state.live.range(..=last).any(|(_, orders)| orders.reset)).await;
    }

    /// Resets one live connection on both sides, with no FIN before; returns when it is done.
    ///
    /// # Cancel safety
    ///
    /// The connection is reset even if the future is dropped.
    pub async fn reset_connection(&self, connection: u64) {
        self.order(|state| {
            state.live.entry(connection).and_modify(|orders| orders.reset = true);
        });
        self.until_state(|state| !state.live.contains_key(&connection)).await;
    }

    /// Ends one direction of all live connections. The receiver gets a FIN. The sender is not
    /// notified, and its later bytes are thrown away. The other direction goes on.
    pub fn half_close(&self, direction: Direction) {
        self.order(|state| {
            state.affected().for_each(|orders| orders.close(direction));
        });
    }

    /// Returns the traffic so far.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.state().stats()
    }

    /// Waits until `condition` holds.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn until(&self, mut condition: impl FnMut(&Stats) -> bool) {
        self.until_state(|state| condition(&state.stats())).await;
    }

    async fn until_state(&self, mut condition: impl FnMut(&State) -> bool) {
        let mut news = self.shared.news.subscribe();
        while !condition(&self.shared.state()) {
            // The sender lives as long as this proxy.
            let _ = news.changed().await;
        }
    }

    fn order(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.shared.state());
        self.shared.orders.send_replace(());
    }

    fn arm(&self, purpose: Purpose, on: Match) -> Handle {
        let mut state = self.shared.state();
        state.armed += 1;
        let trap = Arc::new(Trap::new(state.armed, purpose, on));
        state.traps.push(Arc::clone(&trap));
        Handle { shared: Arc::clone(&self.shared), trap }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // Its panics were its own; a second one in a drop would abort the test.
            let _ = thread.join();
        }
        for trap in self.shared.state().traps.drain(..) {
            trap.lost();
        }
    }
}

/// A cut or a forgery that is going to happen; see [`Proxy::cut_after`] and [`Proxy::forge`].
/// Resolves when it has happened, and fails if the connection ended before the server had answered.
/// Dropped before a match, it calls it off.
#[derive(Debug)]
#[must_use = "dropped, it calls the fault off"]
pub struct Hit(Handle);

impl Hit {
    /// Waits until it has happened.
    ///
    /// # Errors
    ///
    /// The connection ended before the server had answered, or the proxy is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn happened(&mut self) -> io::Result<()> {
        self.0.reached(Step::Answered).await
    }

    /// Disarms the fault. Returns false if a request has matched: then the fault happens.
    #[must_use]
    pub fn call_off(self) -> bool {
        self.0.call_off()
    }
}

impl IntoFuture for Hit {
    type Output = io::Result<()>;
    type IntoFuture = Pin<Box<dyn Future<Output = io::Result<()>> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move { { self }.happened().await })
    }
}

/// A request that is going to be held; see [`Proxy::hold`]. Dropped before a match, it holds
/// nothing; dropped before the delivery, it resets the connection on both sides.
#[derive(Debug)]
#[must_use = "dropped, it holds nothing"]
pub struct Held(Handle);

impl Held {
    /// Returns whether the request is held.
    #[must_use]
    pub fn is_caught(&self) -> bool {
        self.0.trap.progress.borrow().step >= Step::Caught
    }

    /// Disarms the hold. Returns false if a request has matched: then both sides are reset.
    #[must_use]
    pub fn call_off(self) -> bool {
        self.0.call_off()
    }

    /// Waits until the request is here.
    ///
    /// # Errors
    ///
    /// The proxy is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn caught(&mut self) -> io::Result<()> {
        self.0.reached(Step::Caught).await
    }

    /// Delivers the request and the bytes after it, as soon as faults let it pass, even if its
    /// client is long gone. Waits until it is written to the server's socket.
    ///
    /// # Errors
    ///
    /// The server has closed the connection, or it was reset.
    ///
    /// # Cancel safety
    ///
    /// The request is delivered even if the future is dropped.
    pub async fn deliver(&mut self) -> io::Result<()> {
        self.0.trap.advance(Step::Released);
        self.0.shared.orders.send_replace(());
        self.0.reached(Step::Written).await
    }

    /// Waits until the server has sent something after the delivery: then it has seen the request,
    /// if no other was in flight on that connection.
    ///
    /// # Errors
    ///
    /// The connection ended without an answer.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn answered(&mut self) -> io::Result<()> {
        self.0.reached(Step::Answered).await
    }
}

/// A count of requests; see [`Proxy::count`]. Dropped, it counts no more.
#[derive(Debug)]
#[must_use = "dropped, it counts no more"]
pub struct Count(Handle);

impl Count {
    /// Returns the number of matches so far. The requests may still be under way.
    #[must_use]
    pub fn seen(&self) -> u64 {
        self.0.trap.progress.borrow().seen
    }

    /// Waits until `many` requests have matched.
    ///
    /// # Errors
    ///
    /// The proxy is gone.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future has no effect.
    pub async fn reaches(&mut self, many: u64) -> io::Result<()> {
        self.0.until(|progress| progress.seen >= many).await
    }
}

/// Ends the trap with its owner.
#[derive(Debug)]
struct Handle {
    shared: Arc<Shared>,
    trap: Arc<Trap>,
}

impl Handle {
    /// Disarms the trap. Returns true if no request has matched.
    fn call_off(&self) -> bool {
        let mut state = self.shared.state();
        state.traps.retain(|trap| trap.id != self.trap.id);
        self.trap.progress.borrow().step == Step::Armed
    }

    async fn reached(&self, step: Step) -> io::Result<()> {
        self.until(|progress| progress.step >= step).await
    }

    async fn until(&self, reached: impl Fn(&Progress) -> bool) -> io::Result<()> {
        let mut news = self.trap.progress.subscribe();
        // The sender lives as long as this handle.
        let seen = news.wait_for(|progress| reached(progress) || progress.lost).await;
        if seen.is_ok_and(|progress| reached(&progress)) {
            return Ok(());
        }
        Err(io::Error::new(io::ErrorKind::BrokenPipe, "the connection or the proxy has ended"))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.state().traps.retain(|trap| trap.id != self.trap.id);
        self.trap.progress.send_modify(|progress| progress.abandoned = true);
        self.shared.orders.send_replace(());
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Purpose {
    Cut,
    /// With the forged answer.
    Forge(Vec<u8>),
    Hold,
    Count,
}

/// How far a trap has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    #[default]
    Armed,
    /// The request is here.
    Caught,
    /// Its owner wants it delivered.
    Released,
    /// It is in the server's socket.
    Written,
    /// The server has sent something since; for a cut: and the client is cut off; for a forgery:
    /// and the client is going to get something else.
    Answered,
}

#[derive(Debug, Default)]
struct Progress {
    seen: u64,
    step: Step,
    /// It will come no further.
    lost: bool,
    /// The owner of the trap has dropped it.
    abandoned: bool,
}

#[derive(Debug)]
struct Trap {
    id: u64,
    purpose: Purpose,
    on: Match,
    /// For each length of a partial match: the longest shorter one that ends at the same byte.
    fallback: Vec<usize>,
    progress: watch::Sender<Progress>,
}

impl Trap {
    fn new(id: u64, purpose: Purpose, on: Match) -> Self {
        let fallback = fallbacks(&on.needle);
        Self { id, purpose, on, fallback, progress: watch::Sender::default() }
    }

    /// Goes through `bytes` with `matched` bytes of the needle seen before them. Returns the
    /// position of the byte that completed the awaited match.
    fn scan(&self, matched: &mut usize, bytes: &[u8]) -> Option<usize> {
        if self.on.needle.is_empty() {
            return self.count_match().then_some(0);
        }
        for (position, &byte) in bytes.iter().enumerate() {
            while *matched > 0 && self.on.needle[*matched] != byte {
                *matched = self.fallback[*matched];
            }
            *matched += usize::from(self.on.needle[*matched] == byte);
            if *matched == self.on.needle.len() {
                *matched = 0;
                if self.count_match() {
                    return Some(position);
                }
            }
        }
        None
    }

    /// Counts a match. Returns true if it was the awaited one.
    fn count_match(&self) -> bool {
        let mut caught = false;
        self.progress.send_modify(|progress| {
            progress.seen += 1;
            caught = self.purpose != Purpose::Count && progress.seen == self.on.nth.max(1);
            if caught {
                progress.step = Step::Caught;
            }
        });
        caught
    }

    fn is_released(&self) -> bool {
        self.progress.borrow().step >= Step::Released
    }

    fn advance(&self, step: Step) {
        self.progress.send_modify(|progress| progress.step = progress.step.max(step));
    }

    fn lost(&self) {
        self.progress.send_modify(|progress| progress.lost = true);
    }
}

/// Returns the fallbacks of Knuth, Morris and Pratt: the match that remains at a mismatch.
fn fallbacks(needle: &[u8]) -> Vec<usize> {
    let mut fallback = vec![0; needle.len() + 1];
    let mut matched = 0;
    for end in 1..needle.len() {
        while matched > 0 && needle[matched] != needle[end] {
            matched = fallback[matched];
        }
        matched += usize::from(needle[matched] == needle[end]);
        fallback[end + 1] = matched;
    }
    fallback
}

/// The state that the proxy's owner and its connections share.
#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// From the owner to the connections: look at the state again.
    orders: watch::Sender<()>,
    /// From the connections to the owner: the state has changed.
    news: watch::Sender<()>,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Debug, Default)]
struct State {
    fault: Fault,
    own: HashMap<u64, Fault>,
    from: HashMap<IpAddr, Fault>,
    spared: HashSet<IpAddr>,
    live: BTreeMap<u64, Orders>,
    armed: u64,
    traps: Vec<Arc<Trap>>,
    counted: Stats,
    /// Where new connections lead, if no longer to the server that the proxy was started for.
    moved_to: Option<SocketAddr>,
    /// Text of servers, each with its replacement.
    rewrites: Vec<[Vec<u8>; 2]>,
}

impl State {
    fn rewritten(&self, mut bytes: Vec<u8>) -> Vec<u8> {
        for [old, new] in &self.rewrites {
            for from in 0..(bytes.len() + 1).saturating_sub(old.len()) {
                if bytes[from..].starts_with(old) {
                    bytes[from..from + old.len()].copy_from_slice(new);
                }
            }
        }
        bytes
    }

    fn fault_of(&self, connection: u64) -> Fault {
        let client = || self.live.get(&connection).and_then(|orders| orders.client);
        if !self.spared.is_empty() && client().is_some_and(|client| self.spared.contains(&client)) {
            return Fault::None;
        }
        let own = self.own.get(&connection).or_else(|| self.from.get(&client()?));
        own.copied().unwrap_or(self.fault)
    }

    /// Returns all live connections that faults may affect.
    fn affected(&mut self) -> impl Iterator<Item = &mut Orders> {
        let Self { live, spared, .. } = self;
        live.values_mut().filter(|orders| !orders.client.is_some_and(|it| spared.contains(&it)))
    }

    fn is_reset(&self, connection: u64) -> bool {
        self.live.get(&connection).is_none_or(|orders| orders.reset)
    }

    fn stats(&self) -> Stats {
        Stats { live: self.live.len() as u64, ..self.counted }
    }
}

/// The orders of a connection, and the traps that await an answer on it.
#[derive(Debug, Default)]
struct Orders {
    /// The address of the client.
    client: Option<IpAddr>,
    reset: bool,
    close_to_server: bool,
    close_to_client: bool,
    /// The traps that cut off or forge an answer.
    answers: Vec<Arc<Trap>>,
    delivered: Vec<Arc<Trap>>,
}

impl Orders {
    fn close(&mut self, direction: Direction) {
        match direction {
            Direction::ToServer => self.close_to_server = true,
            Direction::ToClient => self.close_to_client = true,
        }
    }

    fn closes(&self, direction: Direction) -> bool {
        match direction {
            Direction::ToServer => self.close_to_server,
            Direction::ToClient => self.close_to_client,
        }
    }

    /// Fails all traps that await an answer.
    fn lose_answers(&mut self) {
        self.answers.drain(..).chain(self.delivered.drain(..)).for_each(|trap| trap.lost());
    }
}

fn free_socket() -> io::Result<TcpSocket> {
    let bound = low_ports().take(ATTEMPTS).find_map(|port| {
        let socket = TcpSocket::new_v4().ok()?;
        socket.bind((Ipv4Addr::LOCALHOST, port).into()).ok()?;
        Some(socket)
    });
    Ok(bound.ok_or(io::ErrorKind::AddrInUse)?)
}

fn socket_at(addr: SocketAddr) -> io::Result<TcpSocket> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(addr)?;
    Ok(socket)
}

/// Opens a listener that forwards to `upstream` from now on. Returns its address, if the port was
/// left open.
fn open(
    runtime: &runtime::Handle,
    socket: TcpSocket,
    upstream: SocketAddr,
    shared: &Arc<Shared>,
) -> io::Result<SocketAddr> {
    let _context = runtime.enter();
    // Crowds of a thousand clients connect at once.
    let listener = socket.listen(1024)?;
    let addr = listener.local_addr()?;
    runtime.spawn(accept_all(listener, upstream, Arc::clone(shared)));
    Ok(addr)
}

async fn accept_all(listener: TcpListener, upstream: SocketAddr, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((client, from)) => admit(client, from.ip(), upstream, &shared),
            // Out of descriptors, or the client is gone already: the next one may fare better.
            Err(_) => sleep(Duration::from_millis(10)).await,
        }
    }
}

fn admit(client: TcpStream, from: IpAddr, upstream: SocketAddr, shared: &Arc<Shared>) {
    let mut state = shared.state();
    let connection = state.counted.connections;
    state.counted.connections += 1;
    state.live.insert(connection, Orders { client: Some(from), ..Orders::default() });
    if state.fault_of(connection) == Fault::Refuse {
        state.live.remove(&connection);
        state.counted.refused += 1;
        drop(state);
        reset(client);
    } else {
        let upstream = state.moved_to.unwrap_or(upstream);
        drop(state);
        tokio::spawn(serve(client, upstream, Live { connection, shared: Arc::clone(shared) }));
    }
    shared.news.send_replace(());
}

/// Closes with a RST. Nothing may have shut the stream down before: that would send a FIN.
fn reset(stream: TcpStream) {
    // It fails on a socket that is dead already, which needs no RST.
    let _ = stream.set_zero_linger();
    drop(stream);
}

/// A live connection; removes its entry when it ends, however it ends.
struct Live {
    connection: u64,
    shared: Arc<Shared>,
}

impl Live {
    /// Waits for orders that make `condition` hold.
    async fn until(&self, condition: impl Fn(&State) -> bool) {
        let mut orders = self.shared.orders.subscribe();
        while !condition(&self.shared.state()) {
            // The sender lives as long as this connection.
            let _ = orders.changed().await;
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        if let Some(mut orders) = self.shared.state().live.remove(&self.connection) {
            orders.lose_answers();
        }
        self.shared.news.send_replace(());
    }
}

/// How a connection ends before both sides have closed it.
enum Ending {
    Reset,
    Cut(Vec<Arc<Trap>>),
}

async fn serve(mut client: TcpStream, upstream: SocketAddr, live: Live) {
    let Some(mut server) = connect(upstream, &live).await else {
        reset(client);
        return drop(live);
    };
    // Pieces go out as they are: Nagle would put them together again.
    let _ = client.set_nodelay(true).and_then(|()| server.set_nodelay(true));
    match forward(&mut client, &mut server, &live).await {
        Ok(_) => drop((client, server)),
        Err(Ending::Reset) => {
            reset(client);
            reset(server);
        }
        Err(Ending::Cut(traps)) => {
            reset(client);
            drop(server);
            traps.iter().for_each(|trap| trap.advance(Step::Answered));
        }
    }
    // Only now: the end of a connection includes the close of its sockets.
    drop(live);
}

/// Connects to the server as soon as faults allow it. `None`: the client shall be reset.
async fn connect(upstream: SocketAddr, live: &Live) -> Option<TcpStream> {
    let id = live.connection;
    loop {
        live.until(|s| s.is_reset(id) || s.fault_of(id).passes(Direction::ToServer)).await;
        // No other order may end an attempt: the server would see a connection that comes and goes.
        let connected = tokio::select! {
            connected = TcpStream::connect(upstream) => connected,
            () = live.until(|s| s.is_reset(id)) => return None,
        };
        if let Ok(server) = connected {
            return Some(server);
        }
        // The refusal may be lost, like everything else; then the next attempt is made after it.
        if live.shared.state().fault_of(id).passes(Direction::ToClient) {
            return None;
        }
        live.until(|s| s.is_reset(id) || s.fault_of(id).passes(Direction::ToClient)).await;
    }
}

async fn forward(
    client: &mut TcpStream,
    server: &mut TcpStream,
    live: &Live,
) -> Result<((), ()), Ending> {
    let (from_client, to_client) = client.split();
    let (from_server, to_server) = server.split();
    tokio::try_join!(
        Lane::new(Direction::ToServer, from_client, to_server, live).run(),
        Lane::new(Direction::ToClient, from_server, to_client, live).run(),
    )
}

/// One direction of a connection: a queue with a reader at its end and a writer at its front.
struct Lane<'a> {
    direction: Direction,
    live: &'a Live,
    orders: watch::Receiver<()>,
    from: ReadHalf<'a>,
    to: WriteHalf<'a>,
    queue: VecDeque<Item>,
    /// The cost of the queue.
    load: usize,
    /// When the next piece may be written.
    paced: Moment,
    /// For each trap: how much of its needle the last bytes match.
    matched: HashMap<u64, usize>,
    /// The sender has ended.
    ended: bool,
    /// The receiver takes no more bytes; later ones are thrown away.
    deaf: bool,
}

struct Item {
    due: Moment,
    what: What,
}

enum What {
    Bytes {
        bytes: Vec<u8>,
        sent: usize,
    },
    /// The next bytes of the server answer the request of this trap.
    Answer(Arc<Trap>),
    /// No byte passes before this trap is released.
    Barrier(Arc<Trap>),
    /// The bytes behind the barrier are written.
    Written(Arc<Trap>),
    /// A FIN.
    End,
    /// A RST.
    Reset,
}

/// The state of the receiver's side after a write.
#[derive(PartialEq, Eq)]
enum Front {
    Open,
    /// It is to get a FIN now.
    Closed,
    /// It takes no more bytes.
    Broken,
}

impl<'a> Lane<'a> {
    fn new(direction: Direction, from: ReadHalf<'a>, to: WriteHalf<'a>, live: &'a Live) -> Self {
        Self {
            direction,
            live,
            orders: live.shared.orders.subscribe(),
            from,
            to,
            queue: VecDeque::new(),
            load: 0,
            paced: Moment::now(),
            matched: HashMap::new(),
            ended: false,
            deaf: false,
        }
    }

    /// Ends when both the sender and the receiver have ended.
    async fn run(mut self) -> Result<(), Ending> {
        while !(self.ended && self.deaf) {
            let write_at = self.next_write()?;
            let has_room = !self.ended && self.load < ROOM;
            tokio::select! {
                biased;
                _ = self.orders.changed() => {}
                () = writable(&self.to, write_at) => {
                    let front = self.write()?;
                    if front == Front::Closed {
                        // It fails if the receiver is gone: then it needs no FIN.
                        let _ = self.to.shutdown().await;
                    }
                    if front != Front::Open {
                        self.fall_deaf();
                    }
                    self.live.shared.news.send_replace(());
                }
                _ = self.from.readable(), if has_room => self.read()?,
            }
        }
        Ok(())
    }

    /// Returns the moment of the next write, if no order changes it.
    fn next_write(&self) -> Result<Option<Moment>, Ending> {
        let state = self.live.shared.state();
        if state.is_reset(self.live.connection) {
            return Err(Ending::Reset);
        }
        if self.deaf {
            return Ok(None);
        }
        if state.live.get(&self.live.connection).is_some_and(|o| o.closes(self.direction)) {
            return Ok(Some(Moment::now()));
        }
        let Some(front) = self.queue.front() else { return Ok(None) };
        if let What::Barrier(trap) = &front.what
            && !trap.is_released()
        {
            let is_abandoned = trap.progress.borrow().abandoned;
            return if is_abandoned { Err(Ending::Reset) } else { Ok(None) };
        }
        let passes = state.fault_of(self.live.connection).passes(self.direction);
        Ok(passes.then(|| front.due.max(self.paced)))
    }

    /// Writes the due items at the front of the queue.
    fn write(&mut self) -> Result<Front, Ending> {
        // The lock is held while writing: once `Proxy::set` has returned, nothing passes any more.
        let mut guard = self.live.shared.state();
        let state = &mut *guard;
        let fault = state.fault_of(self.live.connection);
        let Some(orders) = state.live.get_mut(&self.live.connection) else {
            return Err(Ending::Reset);
        };
        if orders.closes(self.direction) {
            return Ok(Front::Closed);
        }
        while let Some(front) = self.queue.front_mut() {
            if !fault.passes(self.direction) || !front.due.max(self.paced).has_passed() {
                break;
            }
            match &mut front.what {
                What::Bytes { bytes, sent } => {
                    let (most, pause) = fault.portion();
                    let portion = &bytes[*sent..bytes.len().min(sent.saturating_add(most))];
                    let passed = state.counted.of(self.direction);
                    match put(&self.to, portion, passed) {
                        Ok(written) => *sent += written,
                        Err(_) => return Ok(Front::Broken),
                    }
                    self.paced = Moment::now() + pause;
                    if *sent < bytes.len() {
                        break;
                    }
                }
                What::Answer(trap) => orders.answers.push(Arc::clone(trap)),
                What::Barrier(trap) if !trap.is_released() => break,
                What::Barrier(trap) => orders.delivered.push(Arc::clone(trap)),
                What::Written(trap) => trap.advance(Step::Written),
                What::End => return Ok(Front::Closed),
                What::Reset => return Err(Ending::Reset),
            }
            self.load -= front.what.cost();
            self.queue.pop_front();
        }
        Ok(Front::Open)
    }

    /// Reads once.
    fn read(&mut self) -> Result<(), Ending> {
        let mut chunk = [0; CHUNK];
        match self.from.try_read(&mut chunk) {
            Ok(0) => self.sender_ended(What::End),
            Ok(length) => self.received(&chunk[..length])?,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // A server that dies tells its clients. A client that dies only sends a FIN: a RST
            // could overtake bytes that are still to be delivered.
            Err(_) => match self.direction {
                Direction::ToServer => self.sender_ended(What::End),
                Direction::ToClient => self.sender_ended(What::Reset),
            },
        }
        self.live.shared.news.send_replace(());
        Ok(())
    }

    fn received(&mut self, bytes: &[u8]) -> Result<(), Ending> {
        let shared = &self.live.shared;
        let mut state = shared.state();
        state.counted.of(self.direction).received += bytes.len() as u64;
        let due = Moment::now() + state.fault_of(self.live.connection).delay_of(self.direction);
        let (caught, forged) = match self.direction {
            Direction::ToServer => (self.scan(&mut state, bytes), None),
            Direction::ToClient => {
                let forged = answer(state.live.get_mut(&self.live.connection))?;
                let is_changed = !state.rewrites.is_empty();
                let rewritten = || is_changed.then(|| state.rewritten(bytes.to_vec()));
                (Vec::new(), forged.or_else(rewritten))
            }
        };
        drop(state);
        self.enqueue(due, forged.as_deref().unwrap_or(bytes), caught);
        Ok(())
    }

    /// Finds where traps have caught their request, in the order of the bytes.
    fn scan(&mut self, state: &mut State, bytes: &[u8]) -> Vec<(usize, Arc<Trap>)> {
        let mut caught = Vec::new();
        for trap in &state.traps {
            if trap.on.connection.is_none_or(|only| only == self.live.connection) {
                let matched = self.matched.entry(trap.id).or_default();
                let position = trap.scan(matched, bytes);
                caught.extend(position.map(|position| (position, Arc::clone(trap))));
            }
        }
        state.traps.retain(|trap| !caught.iter().any(|(_, other)| other.id == trap.id));
        caught.sort_by_key(|(position, _)| *position);
        caught
    }

    /// Queues `bytes`, split before the last byte of each match: without it no request is complete.
    fn enqueue(&mut self, due: Moment, bytes: &[u8], caught: Vec<(usize, Arc<Trap>)>) {
        let mut done = 0;
        let mut held = Vec::new();
        for (position, trap) in caught {
            self.push_bytes(due, &bytes[done..position]);
            done = position;
            if matches!(trap.purpose, Purpose::Cut | Purpose::Forge(_)) {
                self.push(due, What::Answer(trap));
            } else {
                held.push(Arc::clone(&trap));
                self.push(due, What::Barrier(trap));
            }
        }
        self.push_bytes(due, &bytes[done..]);
        for trap in held {
            self.push(due, What::Written(trap));
        }
    }

    fn push_bytes(&mut self, due: Moment, bytes: &[u8]) {
        if !bytes.is_empty() {
            self.push(due, What::Bytes { bytes: bytes.to_vec(), sent: 0 });
        }
    }

    fn push(&mut self, due: Moment, what: What) {
        if self.deaf {
            return what.lost();
        }
        self.load += what.cost();
        self.queue.push_back(Item { due, what });
    }

    fn sender_ended(&mut self, how: What) {
        let connection = self.live.connection;
        let delay = {
            let mut state = self.live.shared.state();
            if self.direction == Direction::ToClient
                && let Some(orders) = state.live.get_mut(&connection)
            {
                orders.lose_answers();
            }
            state.fault_of(connection).delay_of(self.direction)
        };
        self.ended = true;
        self.push(Moment::now() + delay, how);
    }

    /// Discards the queue, as the receiver takes no more bytes. The lane goes on reading, so that
    /// the sender is not blocked, and the other direction still works.
    fn fall_deaf(&mut self) {
        self.deaf = true;
        self.load = 0;
        self.queue.drain(..).for_each(|item| item.what.lost());
    }
}

impl Drop for Lane<'_> {
    fn drop(&mut self) {
        self.queue.drain(..).for_each(|item| item.what.lost());
    }
}

impl What {
    fn cost(&self) -> usize {
        match self {
            Self::Bytes { bytes, .. } => bytes.len() + OVERHEAD,
            _ => OVERHEAD,
        }
    }

    /// Fails the traps of an item that will never reach the front of its queue.
    fn lost(self) {
        if let Self::Answer(trap) | Self::Barrier(trap) | Self::Written(trap) = self {
            trap.lost();
        }
    }
}

/// Settles the traps that await an answer. Returns the forged answer, if there is one.
fn answer(orders: Option<&mut Orders>) -> Result<Option<Vec<u8>>, Ending> {
    let Some(orders) = orders else { return Err(Ending::Reset) };
    orders.delivered.drain(..).for_each(|trap| trap.advance(Step::Answered));
    let mut forged = None;
    let mut cuts = Vec::new();
    for trap in orders.answers.drain(..) {
        if let Purpose::Forge(bytes) = &trap.purpose {
            forged = Some(bytes.clone());
            trap.advance(Step::Answered);
        } else {
            cuts.push(trap);
        }
    }
    if cuts.is_empty() { Ok(forged) } else { Err(Ending::Cut(cuts)) }
}

/// Writes as much as the socket takes; returns how much.
fn put(to: &WriteHalf<'_>, bytes: &[u8], passed: &mut Passed) -> io::Result<usize> {
    match to.try_write(bytes) {
        Ok(written) => {
            passed.sent += written as u64;
            passed.writes += 1;
            Ok(written)
        }
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
        Err(error) => Err(error),
    }
}

/// Waits until `at` has come and `stream` takes bytes.
async fn writable(stream: &WriteHalf<'_>, at: Option<Moment>) {
    match at {
        None => pending().await,
        Some(at) => sleep_until(at).await,
    }
    // A broken stream counts: the write then reports the error.
    let _ = stream.writable().await;
}
/// Returns random ports below the system's range of ephemeral ports, where many connections come
/// and go.
#[doc(hidden)]
pub fn low_ports() -> impl Iterator<Item = u16> {
    const FIRST: u64 = 15_000;
    const COUNT: u64 = 17_000;
    let hasher = RandomState::new();
    (0_u64..).filter_map(move |i| u16::try_from(FIRST + hasher.hash_one(i) % COUNT).ok())
}
