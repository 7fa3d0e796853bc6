//! The clients of a run: starts, stops, kills and replaces them.

use std::fmt;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ExitStatus, Stdio};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use lock_conformance::proxy::Proxy;
use lock_core::Backend;
use lock_core::clock::Moment;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use test_servers::{Clock, has_stopped, spawn_bound};

use crate::collector::Collector;
use crate::orders::{ClientConfig, Order};
use crate::sites::Site;
use crate::worker;

/// The time within which a client starts its work: its server may be down meanwhile.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// The time within which a client obeys an order.
const OBEYS_WITHIN: Duration = Duration::from_secs(30);

/// The time within which a client stops, unless a child delays it.
const STOPS_WITHIN: Duration = Duration::from_millis(100);

/// The time that a child takes from its fork to its exec.
const EXECS_WITHIN: Duration = Duration::from_millis(10);

/// A slot for one client at a time. A client that was killed is replaced by the next one.
pub(crate) struct ClientSlot {
    number: usize,
    /// The number of clients that the slot has had.
    generation: u64,
    config: ClientConfig,
    collector: Arc<Collector>,
    program: Program,
    /// The proxies between its clients and the servers.
    pub(crate) proxies: Vec<Proxy>,
    clock: Option<Clock>,
    client: Option<Client>,
}

/// The program that a client runs.
#[derive(Clone)]
pub(crate) enum Program {
    /// Another process of this program, with the name of the backend as an argument.
    Process { target: String },
    /// A thread with this backend.
    Thread(Arc<dyn Backend>),
}

struct Client {
    host: String,
    body: Body,
    orders: UnixStream,
    events: mpsc::Receiver<String>,
    connection: JoinHandle<io::Result<()>>,
}

enum Body {
    Process(Child),
    Thread(JoinHandle<()>),
}

impl fmt::Debug for ClientSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientSlot({}.{})", self.number, self.generation)
    }
}

impl ClientSlot {
    /// Creates an empty slot, with its own proxies to the servers of `site`.
    pub(crate) fn new(
        number: usize,
        config: ClientConfig,
        collector: &Arc<Collector>,
        site: &dyn Site,
        program: Program,
        with_clock: bool,
    ) -> io::Result<Self> {
        let proxies = site.client_proxies(number)?;
        let through: Vec<SocketAddr> = proxies.iter().map(Proxy::addr).collect();
        let config = ClientConfig { url: site.url(&through), ..config };
        let clock = with_clock.then(Clock::new).transpose().map_err(io::Error::other)?;
        let collector = Arc::clone(collector);
        let client = None;
        Ok(Self { number, generation: 0, config, collector, program, proxies, clock, client })
    }

    /// Returns the name of the slot, with which the names of its clients begin.
    pub(crate) fn name(&self) -> String {
        format!("p{}", self.number)
    }

    /// Returns the name of the current client in the history.
    pub(crate) fn host(&self) -> &str {
        self.client.as_ref().map_or("", |client| &client.host)
    }

    pub(crate) fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }

    /// Starts a new client in the slot. [`ready`](Self::ready) waits for it.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.generation += 1;
        let host = format!("p{}.{}", self.number, self.generation);
        let step = self.generation.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let draw = self.config.draw.wrapping_add(step);
        let config = ClientConfig { host: host.clone(), draw, ..self.config.clone() };
        let (connection, client_connection) = UnixStream::pair()?;
        let (orders, client_orders) = UnixStream::pair()?;
        let (event_sender, events) = mpsc::channel();
        let body = match &self.program {
            Program::Thread(backend) => {
                let backend = Arc::clone(backend);
                let run = move || worker::thread(config, backend, client_connection, client_orders);
                Body::Thread(std::thread::Builder::new().name(host.clone()).spawn(run)?)
            }
            Program::Process { target } => {
                let config = serde_json::to_string(&config)?;
                let child = spawn_bound(std::env::current_exe()?, |command| {
                    command.args(["client", target, &config]);
                    // A group for the client and its children, so that signals reach all of them.
                    command.process_group(0);
                    command.stdin(Stdio::from(OwnedFd::from(client_orders)));
                    command.stdout(Stdio::from(OwnedFd::from(client_connection)));
                    if let Some(clock) = &self.clock {
                        clock.give_to(command);
                    }
                });
                Body::Process(child.map_err(io::Error::other)?)
            }
        };
        let connection = self.collector.serve(connection, event_sender);
        self.client = Some(Client { host, body, orders, events, connection });
        Ok(())
    }

    /// Waits until the client has started its work.
    pub(crate) fn ready(&self) -> io::Result<()> {
        self.wait_for("ready", READY_WITHIN)
    }

    /// Waits until the client reports `event`. Fails if it reports another one, or none in time.
    pub(crate) fn wait_for(&self, event: &str, within: Duration) -> io::Result<()> {
        let client = self.client()?;
        let host = &client.host;
        let failure = match client.events.recv_timeout(within) {
            Ok(reported) if reported == event => return Ok(()),
            Ok(other) => format!("{host} reported {other:?} instead of {event:?}"),
            Err(error) => format!("{host} has not reported {event:?}: {error}"),
        };
        Err(io::Error::other(failure))
    }

    /// Sends an order to the client.
    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        writeln!(&self.client()?.orders, "{}", order.to_line())
    }

    /// Blocks the client's executor, and waits until it is blocked.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        self.order(&Order::Freeze)?;
        self.wait_for("frozen", OBEYS_WITHIN)
    }

    /// Unblocks the client's executor.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.order(&Order::Thaw)?;
        self.wait_for("thawed", OBEYS_WITHIN)
    }

    /// Returns true if clients are threads. A thread runs all of its client on one runtime, so
    /// blocking that runtime stops the client.
    fn is_thread(&self) -> bool {
        matches!(self.program, Program::Thread(_))
    }

    /// Stops the client and its children with SIGSTOP, and waits until the client has stopped.
    pub(crate) fn stop(&self) -> io::Result<()> {
        if self.is_thread() {
            return self.freeze();
        }
        let pid = self.signal(Signal::SIGSTOP)?;
        let deadline = Moment::now() + OBEYS_WITHIN;
        while !has_stopped(pid, STOPS_WITHIN) {
            if deadline.has_passed() {
                return Err(io::Error::other(format!("{} does not stop", self.host())));
            }
            // The signal may have stopped a child between its fork and its exec. The client waits
            // for that exec and cannot stop before it.
            self.signal(Signal::SIGCONT)?;
            let _ = has_stopped(pid, EXECS_WITHIN);
            self.signal(Signal::SIGSTOP)?;
        }
        Ok(())
    }

    /// Continues a client that was stopped.
    pub(crate) fn cont(&self) -> io::Result<()> {
        if self.is_thread() {
            return self.thaw();
        }
        self.signal(Signal::SIGCONT).map(drop)
    }

    fn signal(&self, signal: Signal) -> io::Result<Pid> {
        let client = self.client()?;
        let Body::Process(child) = &client.body else {
            return Err(io::Error::other("a thread gets no signals"));
        };
        // The child is not reaped yet, so no other process has its id.
        let pid = Pid::from_raw(child.id().cast_signed());
        killpg(pid, signal)?;
        Ok(pid)
    }

    /// Kills the client with SIGKILL, and waits until the collector has handled all its lines.
    /// Fails if the client had ended before.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        match self.client.as_ref().map(|client| &client.body) {
            Some(Body::Process(_)) => drop(self.signal(Signal::SIGKILL)?),
            Some(Body::Thread(_)) => self.order(&Order::Die)?,
            None => {}
        }
        let Some(client) = self.client.take() else { return Ok(()) };
        let host = client.host.clone();
        let ended = client.join(|status| status.signal() == Some(Signal::SIGKILL as i32));
        self.collector.traffic.remove_client(&host);
        ended
    }

    /// Waits until the client, which was ordered to quit, has ended.
    pub(crate) fn wait_for_exit(&mut self, within: Duration) -> io::Result<()> {
        let Some(client) = self.client.take() else { return Ok(()) };
        match client.events.recv_timeout(within) {
            // The client has closed its link.
            Err(mpsc::RecvTimeoutError::Disconnected) => client.join(ExitStatus::success),
            _ => {
                let late = io::Error::other(format!("{} does not end", client.host));
                self.client = Some(client);
                Err(late)
            }
        }
    }

    fn client(&self) -> io::Result<&Client> {
        self.client.as_ref().ok_or_else(|| io::Error::other(format!("{self:?} is empty")))
    }
}

impl Client {
    /// Waits until the client and its connection have ended. Fails if the process has another exit
    /// status than `is_expected` accepts, or if a thread has panicked.
    fn join(self, is_expected: impl Fn(&ExitStatus) -> bool) -> io::Result<()> {
        let unexpected = match self.body {
            Body::Process(mut child) => {
                let status = child.wait()?;
                (!is_expected(&status)).then(|| status.to_string())
            }
            Body::Thread(thread) => thread.join().is_err().then(|| "it has panicked".to_owned()),
        };
        self.connection.join().map_err(|_| io::Error::other("a connection has panicked"))??;
        match unexpected {
            Some(how) => Err(io::Error::other(format!("{} has ended by itself: {how}", self.host))),
            None => Ok(()),
        }
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        // Clients are left only if the run failed.
        let _ = self.kill();
    }
}
