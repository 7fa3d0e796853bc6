//! A client of a campaign: takes locks, works under them, and reports each operation.
//!
//! A client is a process, which the campaign can stop and kill. Where the locks are in memory, it
//! is a thread with its own runtime.

mod ambient_faults;
mod lockctl;
mod probe;
mod state;
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
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use crate::bugs;
use crate::collector::CollectorLink;
use crate::orders::{ClientConfig, Order, read_orders};
use crate::sites::ConnectFuture;
use ambient_faults::AmbientFaults;
use state::ClientState;
use workload::Workload;
pub(crate) use workload::can_detach;

/// The time for which a client tries to connect to its server.
const CONNECTS_WITHIN: Duration = Duration::from_secs(60);

/// Runs a client as a process: standard output is its link to the collector, and standard input
/// brings its orders.
pub(crate) fn process(config: ClientConfig, connect: for<'a> fn(&'a str) -> ConnectFuture<'a>) {
    use std::os::fd::AsFd;

    abort_on_panic();
    let link = std::io::stdout().as_fd().try_clone_to_owned().expect("it has a standard output");
    let link = CollectorLink::new(UnixStream::from(link)).expect("its standard output is a socket");
    let runtime = runtime();
    let backend = runtime.block_on(reach(&config.url, connect)).unwrap_or_else(|e| panic!("{e}"));
    runtime.block_on(run_client(config, backend, None, link, std::io::stdin()));
    // The campaign does not wait for tasks that are left.
    runtime.shutdown_background();
}

/// Runs a client as a thread.
pub(crate) fn thread(
    config: ClientConfig,
    backend: Arc<dyn Backend>,
    link: UnixStream,
    orders: UnixStream,
) {
    let link = CollectorLink::new(link).expect("a socket can be cloned");
    let runtime = runtime();
    // A thread of the locker's own would release the locks of a client that was killed.
    let executor = Executor::of(runtime.handle().clone());
    runtime.block_on(run_client(config, backend, Some(executor), link.clone(), orders));
    link.close();
    runtime.shutdown_background();
}

/// Connects to a server. Tries again while the server is down or the network broken.
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

/// Aborts the process when a task panics: nothing else would notice that the task is gone.
fn abort_on_panic() {
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print(panic);
        std::process::abort();
    }));
}

fn runtime() -> tokio::runtime::Runtime {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_all().build().expect("a runtime can be made")
}

/// Runs the tasks and the probe of a client until all have ended, or until the client must die.
async fn run_client(
    config: ClientConfig,
    mut backend: Arc<dyn Backend>,
    executor: Option<Executor>,
    link: CollectorLink,
    orders: impl Read + Send + 'static,
) {
    let mut rng = Rng::with_seed(config.draw);
    let (quits, unrenewed) = (AtomicBool::new(false), AtomicBool::new(false));
    let ambient_faults = AmbientFaults::new(rng.fork());
    let state = Arc::new(ClientState { quits, unrenewed, ambient_faults });
    if config.calls {
        let state = Arc::clone(&state);
        backend =
            Arc::new(FaultInjector::new(backend, move |call| state.ambient_faults.draw(call)));
    }
    if let Some(bug) = &config.bug {
        backend = bugs::plant(bug, backend).await.unwrap_or_else(|error| panic!("{error}"));
    }
    let locks = Locker::builder_from(backend)
        .timeout(config.timeout)
        .default_ttl(config.ttl)
        .outage_timeout(Duration::from_secs(120))
        .local_handovers(config.handovers);
    let locks = match executor {
        Some(executor) => locks.executor(executor).build(),
        None => locks.build(),
    };
    let recorder = Recorder::joining(Clock::raw(), &config.run, config.seed, link.clone());
    let mut tasks = JoinSet::new();
    for task in 0..config.tasks {
        let client = recorder.client(format!("{}/t{task}", config.host));
        let (state, link) = (Arc::clone(&state), link.clone());
        let workload = Workload::new(client, rng.fork(), link, state, config.clone());
        tasks.spawn(workload.run(locks.clone()));
    }
    let client = recorder.client(format!("{}/solo", config.host));
    let probe = Workload::new(client, rng.fork(), link.clone(), Arc::clone(&state), config);
    let (to_probe, probe_orders) = unbounded_channel();
    tasks.spawn(probe.run_probe(locks.clone(), probe_orders));
    link.report("ready");
    let ended = async {
        while let Some(task) = tasks.join_next().await {
            task.expect("a workload does not panic");
        }
        // A lock that cannot be released now ends with its lease.
        let _ = locks.close().await;
    };
    tokio::select! {
        () = ended => {}
        () = obey(&state, &link, orders, to_probe) => {}
    }
}

/// Obeys orders until one of them is to die, or until the campaign closes the connection. Then
/// closes the link, because a killed client sends nothing more.
async fn obey(
    state: &ClientState,
    link: &CollectorLink,
    orders: impl Read + Send + 'static,
    probe: UnboundedSender<Order>,
) {
    let mut probe = Some(probe);
    let (thaw, thawed) = mpsc::channel();
    let mut orders = read_orders(orders, move |line| {
        let order = Order::parse(line);
        if matches!(order, Some(Order::Thaw)) {
            // A frozen client waits for this channel and reads no orders.
            let _ = thaw.send(());
        }
        order
    });
    while let Some(order) = orders.recv().await {
        match order {
            Order::Freeze => {
                link.report("frozen");
                let _ = thawed.recv();
                link.report("thawed");
            }
            Order::Thaw => {}
            Order::Disturb(kind, rate, by) => state.ambient_faults.set(Some((kind, rate, by))),
            Order::Calm => state.ambient_faults.set(None),
            Order::Unrenewed(yes) => state.unrenewed.store(yes, Ordering::SeqCst),
            Order::Hold(..) | Order::Release => {
                // After the order to quit, there is no probe.
                let _ = probe.as_ref().map(|probe| probe.send(order));
            }
            Order::Quit => {
                state.quits.store(true, Ordering::SeqCst);
                probe = None;
            }
            Order::Die => break,
        }
        if !link.is_open() {
            break;
        }
    }
    link.close();
}
