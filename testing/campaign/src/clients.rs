//! The clients of a run: started, stopped, killed, replaced.

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
use crate::sites::Site;
use crate::worker::{self, Duty, Order};

/// How long a client may take to come up: its server may be away meanwhile.
const READY_WITHIN: Duration = Duration::from_secs(90);

/// How long it may take to do what it is told.
const OBEYS_WITHIN: Duration = Duration::from_secs(30);

/// How long a client takes to stop, unless a child holds it up.
const STOPS_WITHIN: Duration = Duration::from_millis(100);

/// How long a child may take from its fork to its exec.
const EXECS_WITHIN: Duration = Duration::from_millis(10);

/// One place in the clients: who has it may be killed, and the next one takes it.
pub(crate) struct ClientSlot {
    number: usize,
    /// How many have had this place.
    turn: u64,
    duty: Duty,
    collector: Arc<Collector>,
    program: Program,
    /// Its ways to the servers.
    pub(crate) lines: Vec<Proxy>,
    clock: Option<Clock>,
    client: Option<Client>,
}

/// What a client is.
#[derive(Clone)]
pub(crate) enum Program {
    /// The program that runs now, as a process that is told which backend it is for.
    Process { target: String },
    /// A thread with this backend.
    Thread(Arc<dyn Backend>),
}

struct Client {
    host: String,
    body: Body,
    orders: UnixStream,
    said: mpsc::Receiver<String>,
    served: JoinHandle<io::Result<()>>,
}

enum Body {
    Process(Child),
    Thread(JoinHandle<()>),
}

impl fmt::Debug for ClientSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ClientSlot({}.{})", self.number, self.turn)
    }
}

impl ClientSlot {
    /// A place with ways of its own to the servers of `site`, and nobody there yet.
    pub(crate) fn new(
        number: usize,
        duty: Duty,
        collector: &Arc<Collector>,
        site: &dyn Site,
        program: Program,
        with_clock: bool,
    ) -> io::Result<Self> {
        let lines = site.client_proxies(number)?;
        let through: Vec<SocketAddr> = lines.iter().map(Proxy::addr).collect();
        let duty = Duty { url: site.url(&through), ..duty };
        let clock = with_clock.then(Clock::new).transpose().map_err(io::Error::other)?;
        let collector = Arc::clone(collector);
        Ok(Self { number, turn: 0, duty, collector, program, lines, clock, client: None })
    }

    /// The name of the place: that of each who has it begins with it.
    pub(crate) fn name(&self) -> String {
        format!("p{}", self.number)
    }

    /// The name of who has the place, in the history.
    pub(crate) fn host(&self) -> &str {
        self.client.as_ref().map_or("", |client| &client.host)
    }

    pub(crate) fn clock(&self) -> Option<&Clock> {
        self.clock.as_ref()
    }

    /// Puts a new client there; [`ready`](Self::ready) waits for it.
    pub(crate) fn start(&mut self) -> io::Result<()> {
        self.turn += 1;
        let host = format!("p{}.{}", self.number, self.turn);
        let draw = self.duty.draw.wrapping_add(self.turn.wrapping_mul(0x9e37_79b9_7f4a_7c15));
        let duty = Duty { host: host.clone(), draw, ..self.duty.clone() };
        let (link, its_desk) = UnixStream::pair()?;
        let (orders, its_orders) = UnixStream::pair()?;
        let (say, said) = mpsc::channel();
        let body = match &self.program {
            Program::Thread(backend) => {
                let backend = Arc::clone(backend);
                let live = move || worker::thread(duty, backend, its_desk, its_orders);
                Body::Thread(std::thread::Builder::new().name(host.clone()).spawn(live)?)
            }
            Program::Process { target } => {
                let duty = serde_json::to_string(&duty)?;
                let child = spawn_bound(std::env::current_exe()?, |command| {
                    command.args(["client", target, &duty]);
                    // With its own children, which are stopped and killed with it.
                    command.process_group(0);
                    command.stdin(Stdio::from(OwnedFd::from(its_orders)));
                    command.stdout(Stdio::from(OwnedFd::from(its_desk)));
                    if let Some(clock) = &self.clock {
                        clock.give_to(command);
                    }
                });
                Body::Process(child.map_err(io::Error::other)?)
            }
        };
        let served = self.collector.serve(link, say);
        self.client = Some(Client { host, body, orders, said, served });
        Ok(())
    }

    /// Waits until the client is at work.
    pub(crate) fn ready(&self) -> io::Result<()> {
        self.hears("ready", READY_WITHIN)
    }

    /// Waits until the client has said `word`.
    pub(crate) fn hears(&self, word: &str, within: Duration) -> io::Result<()> {
        let client = self.client()?;
        let said = client.said.recv_timeout(within);
        match said {
            Ok(said) if said == word => Ok(()),
            Ok(other) => Err(io::Error::other(format!("{} said {other:?}", client.host))),
            Err(error) => {
                Err(io::Error::other(format!("{} has not said {word:?}: {error}", client.host)))
            }
        }
    }

    pub(crate) fn order(&self, order: &Order) -> io::Result<()> {
        writeln!(&self.client()?.orders, "{}", order.to_line())
    }

    /// Blocks its application; returns when it is blocked.
    pub(crate) fn freeze(&self) -> io::Result<()> {
        self.order(&Order::Freeze)?;
        self.hears("frozen", OBEYS_WITHIN)
    }

    /// Lets its application run again.
    pub(crate) fn thaw(&self) -> io::Result<()> {
        self.order(&Order::Thaw)?;
        self.hears("thawed", OBEYS_WITHIN)
    }

    /// True for a thread, all of which runs on one runtime: to block that stops it.
    fn is_thread(&self) -> bool {
        matches!(self.program, Program::Thread(_))
    }

    /// SIGSTOP, to its children as well; returns when it has stopped.
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
            // A child between its fork and its exec was stopped as well, and the client, which
            // waits for that exec, cannot stop before.
            self.signal(Signal::SIGCONT)?;
            let _ = has_stopped(pid, EXECS_WITHIN);
            self.signal(Signal::SIGSTOP)?;
        }
        Ok(())
    }

    /// SIGCONT.
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
        // Not waited for yet, so that the id is still its own.
        let pid = Pid::from_raw(child.id().cast_signed());
        killpg(pid, signal)?;
        Ok(pid)
    }

    /// SIGKILL; returns when all that it said has been taken down. Fails if it was dead already.
    pub(crate) fn kill(&mut self) -> io::Result<()> {
        match self.client.as_ref().map(|client| &client.body) {
            Some(Body::Process(_)) => drop(self.signal(Signal::SIGKILL)?),
            Some(Body::Thread(_)) => self.order(&Order::Die)?,
            None => {}
        }
        let Some(client) = self.client.take() else { return Ok(()) };
        let host = client.host.clone();
        let ended = client.has_ended(|status| status.signal() == Some(Signal::SIGKILL as i32));
        self.collector.traffic.is_gone(&host);
        ended
    }

    /// Waits for the end of a client that was told to quit.
    pub(crate) fn quit(&mut self, within: Duration) -> io::Result<()> {
        let Some(client) = self.client.take() else { return Ok(()) };
        let late = || io::Error::other(format!("{} does not end", client.host));
        match client.said.recv_timeout(within) {
            // Its link has been left: nobody can say anything there any more.
            Err(mpsc::RecvTimeoutError::Disconnected) => client.has_ended(ExitStatus::success),
            _ => {
                let late = late();
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
    /// Waits for its end, which has to be as it should.
    fn has_ended(self, is_right: impl Fn(&ExitStatus) -> bool) -> io::Result<()> {
        let wrong = match self.body {
            Body::Process(mut child) => {
                let status = child.wait()?;
                (!is_right(&status)).then(|| status.to_string())
            }
            Body::Thread(thread) => thread.join().is_err().then(|| "it has panicked".to_owned()),
        };
        self.served.join().map_err(|_| io::Error::other("a link has panicked"))??;
        match wrong {
            Some(how) => Err(io::Error::other(format!("{} has ended by itself: {how}", self.host))),
            None => Ok(()),
        }
    }
}

impl Drop for ClientSlot {
    fn drop(&mut self) {
        // What is left of a run that failed.
        let _ = self.kill();
    }
}
