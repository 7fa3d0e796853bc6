//! A client of a campaign: takes locks, works under them, and tells all of it.
//!
//! It is a process that the campaign can stop and kill or, where the locks are in memory, a thread
//! with a runtime of its own.

mod ambient_faults;
mod lockctl;
mod probe;
mod workload;

use std::io::Read;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::{Moment, sleep};
use lock_core::faults::FaultInjector;
use lock_core::{Backend, Error, Executor, Locker};
use lock_history::{Clock, Recorder};
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::bugs;
use crate::collector::{CollectorLink, orders};
use crate::kind::Kind;
use crate::sites::ConnectFuture;
use ambient_faults::AmbientFaults;
use probe::Cue;
use workload::Workload;
pub(crate) use workload::can_detach;

/// How long a client tries to reach its server before it gives up.
const CONNECTS_WITHIN: Duration = Duration::from_secs(60);

/// What a client is told at its start.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Duty {
    pub(crate) run: String,
    pub(crate) seed: u64,
    /// Its name in the history.
    pub(crate) host: String,
    pub(crate) url: String,
    pub(crate) ttl: Duration,
    pub(crate) beat: Duration,
    pub(crate) timeout: Duration,
    pub(crate) locks: usize,
    pub(crate) tasks: usize,
    /// What its choices are drawn from.
    pub(crate) draw: u64,
    /// Whether calls of the backend may be disturbed.
    pub(crate) calls: bool,
    pub(crate) bug: Option<String>,
    /// So often in a row locks are handed over inside of the client.
    #[serde(default)]
    pub(crate) handovers: u8,
    /// Whether it locks with `lockctl`, too.
    #[serde(default)]
    pub(crate) lockctl: bool,
}

/// What the campaign orders, as a line each.
#[derive(Clone, Debug)]
pub(crate) enum Order {
    /// Block the executor, until `Thaw`.
    Freeze,
    Thaw,
    /// Disturb so many in a thousand calls in this way, by so much time.
    Disturb(Kind, u32, Duration),
    /// Disturb no call any more.
    Calm,
    /// Leases are not renewed from now on, or they are again.
    Short(bool),
    /// Take this lock, renew it or not, say `holds`, and hold it until it is lost or until
    /// `ReleaseMode`. Then say `done`.
    Hold(usize, bool),
    ReleaseMode,
    /// End as a killed process does. For threads.
    Die,
    /// Begin nothing more, and end.
    Quit,
}

impl Order {
    pub(crate) fn to_line(&self) -> String {
        match self {
            Self::Freeze => "freeze".into(),
            Self::Thaw => "thaw".into(),
            Self::Disturb(kind, rate, by) => {
                format!("disturb {} {rate} {}", kind.name(), by.as_millis())
            }
            Self::Calm => "calm".into(),
            Self::Short(yes) => format!("short {yes}"),
            Self::Hold(lock, renewed) => format!("hold {lock} {renewed}"),
            Self::ReleaseMode => "let-go".into(),
            Self::Die => "die".into(),
            Self::Quit => "quit".into(),
        }
    }

    fn parse(line: &str) -> Option<Self> {
        Some(match line.split(' ').collect::<Vec<_>>()[..] {
            ["freeze"] => Self::Freeze,
            ["thaw"] => Self::Thaw,
            ["disturb", kind, rate, by] => {
                let kind = serde_json::from_value(kind.into()).ok()?;
                let by = Duration::from_millis(by.parse().ok()?);
                Self::Disturb(kind, rate.parse().ok()?, by)
            }
            ["calm"] => Self::Calm,
            ["short", yes] => Self::Short(yes.parse().ok()?),
            ["hold", lock, renewed] => Self::Hold(lock.parse().ok()?, renewed.parse().ok()?),
            ["let-go"] => Self::ReleaseMode,
            ["die"] => Self::Die,
            ["quit"] => Self::Quit,
            _ => return None,
        })
    }
}

/// What orders change.
#[derive(Debug)]
struct State {
    quits: AtomicBool,
    short: AtomicBool,
    ambient_faults: AmbientFaults,
}

/// The life of a process: its link is its standard output, its orders are its standard input.
pub(crate) fn process(duty: Duty, connect: for<'a> fn(&'a str) -> ConnectFuture<'a>) {
    use std::os::fd::AsFd;

    end_with_any_panic();
    let link = std::io::stdout().as_fd().try_clone_to_owned().expect("it has a standard output");
    let link = CollectorLink::new(UnixStream::from(link)).expect("its standard output is a socket");
    let runtime = runtime();
    let backend = runtime.block_on(reach(&duty.url, connect)).unwrap_or_else(|e| panic!("{e}"));
    runtime.block_on(live(duty, backend, None, link, std::io::stdin()));
    // Whatever is left of it, the campaign does not wait for.
    runtime.shutdown_background();
}

/// A task that panics is gone, and nobody else would know.
fn end_with_any_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// The life of a thread.
pub(crate) fn thread(duty: Duty, backend: Arc<dyn Backend>, link: UnixStream, orders: UnixStream) {
    let link = CollectorLink::new(link).expect("a socket can be cloned");
    let runtime = runtime();
    // A thread of the locker's own would let go what the dead held.
    let executor = Executor::of(runtime.handle().clone());
    runtime.block_on(live(duty, backend, Some(executor), link.clone(), orders));
    link.shut();
    runtime.shutdown_background();
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime can be made")
}

/// Its server may just be away, or its network broken.
pub(crate) async fn reach(
    url: &str,
    connect: for<'a> fn(&'a str) -> ConnectFuture<'a>,
) -> Result<Arc<dyn Backend>, Error> {
    let deadline = Moment::now() + CONNECTS_WITHIN;
    loop {
        match connect(url).await {
            Ok(backend) => return Ok(backend),
            Err(error) if deadline.has_passed() => return Err(error),
            Err(_) => sleep(Duration::from_millis(50)).await,
        }
    }
}

async fn live(
    duty: Duty,
    mut backend: Arc<dyn Backend>,
    executor: Option<Executor>,
    link: CollectorLink,
    told: impl Read + Send + 'static,
) {
    let mut rng = Rng::with_seed(duty.draw);
    let (quits, short) = (AtomicBool::new(false), AtomicBool::new(false));
    let ambient_faults = AmbientFaults::new(rng.fork());
    let state = Arc::new(State { quits, short, ambient_faults });
    if duty.calls {
        let state = Arc::clone(&state);
        backend =
            Arc::new(FaultInjector::new(backend, move |call| state.ambient_faults.over(call)));
    }
    if let Some(bug) = &duty.bug {
        backend = bugs::plant(bug, backend).await.unwrap_or_else(|error| panic!("{error}"));
    }
    let locks = Locker::builder_from(backend)
        .timeout(duty.timeout)
        .default_ttl(duty.ttl)
        .outage_timeout(Duration::from_secs(120))
        .local_handovers(duty.handovers);
    let locks = match executor {
        Some(executor) => locks.executor(executor).build(),
        None => locks.build(),
    };
    let recorder = Recorder::joining(Clock::raw(), &duty.run, duty.seed, link.clone());
    let mut players = JoinSet::new();
    for task in 0..duty.tasks {
        let client = recorder.client(format!("{}/t{task}", duty.host));
        let (state, link) = (Arc::clone(&state), link.clone());
        let workload = Workload::new(client, rng.fork(), link, state, duty.clone());
        players.spawn(workload.play(locks.clone()));
    }
    let client = recorder.client(format!("{}/solo", duty.host));
    let probe = Workload::new(client, rng.fork(), link.clone(), Arc::clone(&state), duty);
    let (cue, cues) = unbounded_channel();
    players.spawn(probe.run_probe(locks.clone(), cues));
    link.says("ready");
    let ended = async {
        while let Some(workload) = players.join_next().await {
            workload.expect("a workload does not panic");
        }
        // What cannot be let go now ends with its lease.
        let _ = locks.close().await;
    };
    tokio::select! {
        () = ended => {}
        () = obey(&state, &link, told, cue) => {}
    }
}

/// Returns when it has been told to die, or nobody is there any more who could tell it anything.
/// From then on it says nothing, as the dead do.
async fn obey(
    state: &State,
    link: &CollectorLink,
    told: impl Read + Send + 'static,
    cue: UnboundedSender<Cue>,
) {
    let mut cue = Some(cue);
    let (thaw, thawed) = mpsc::channel();
    let mut orders = orders(told, move |line| {
        let order = Order::parse(line);
        if matches!(order, Some(Order::Thaw)) {
            // Who is frozen hears nothing else.
            let _ = thaw.send(());
        }
        order
    });
    while let Some(order) = orders.recv().await {
        match order {
            Order::Freeze => {
                link.says("frozen");
                let _ = thawed.recv();
                link.says("thawed");
            }
            Order::Thaw => {}
            Order::Disturb(kind, rate, by) => state.ambient_faults.set(Some((kind, rate, by))),
            Order::Calm => state.ambient_faults.set(None),
            Order::Short(yes) => state.short.store(yes, Ordering::SeqCst),
            Order::Hold(lock, renewed) => pass_on(cue.as_ref(), Cue::Hold { lock, renewed }),
            Order::ReleaseMode => pass_on(cue.as_ref(), Cue::ReleaseMode),
            Order::Quit => {
                state.quits.store(true, Ordering::SeqCst);
                cue = None;
            }
            Order::Die => break,
        }
        if !link.is_open() {
            break;
        }
    }
    link.shut();
}

fn pass_on(to: Option<&UnboundedSender<Cue>>, cue: Cue) {
    // Who has quit plays no solo.
    let _ = to.map(|to| to.send(cue));
}
