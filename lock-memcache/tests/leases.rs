//! Servers count seconds, and leases do not: the next grant never comes while a holder still trusts
//! in its lock, at whatever moment of the server's second it was taken, and however late the server
//! is with the ticks of its clock, within limits.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use lock_conformance::helpers::{claim, granted};
use lock_core::backend::Lease;
use lock_core::clock::{Moment, sleep_between};
use lock_core::{Backend, Takeover};

mod support;

use support::{Server, client, start};

const LEASES: [Duration; 3] =
    [Duration::from_millis(500), Duration::from_secs(1), Duration::from_millis(1900)];

/// Names that are locked at the same time.
const NAMES: usize = 100;

/// Time that a loaded machine may need.
const SLACK: Duration = Duration::from_secs(2);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_claim_outlasts_its_lease_on_the_server() {
    compete_for(Arc::new(start())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nor_if_the_server_is_late() {
    let server = Arc::new(start());
    let (stop, stopped) = channel();
    let unsteady = std::thread::spawn({
        let server = Arc::clone(&server);
        move || make_late(&server, &stopped)
    });
    compete_for(server).await;
    drop(stop);
    unsteady.join().unwrap();
}

/// Makes ticks late. A late tick makes all that follow late. So they wander through the second, and
/// where they pass its end, the server's clock jumps by two.
fn make_late(server: &Server, stopped: &Receiver<()>) {
    let pause = |until: Moment| {
        stopped.recv_timeout(until.remaining()) == Err(RecvTimeoutError::Disconnected)
    };
    let mut operator = server.connect().unwrap();
    let mut time = || {
        let stats = operator.command("stats").unwrap();
        stats.lines().find(|line| line.starts_with("STAT time ")).map(str::to_owned)
    };
    let mut last = time();
    loop {
        let now = time();
        let next_tick = Moment::now() + Duration::from_secs(1);
        if now != last {
            last = now;
            if pause(next_tick.saturating_sub(Duration::from_millis(50))) {
                return;
            }
            server.stop();
            let over = pause(next_tick + Duration::from_millis(150));
            server.cont();
            if over {
                return;
            }
        } else if pause(Moment::now() + Duration::from_millis(2)) {
            return;
        }
    }
}

/// Runs as many grants as the variable `GRANTS` says, a few by default.
async fn compete_for(server: Arc<Server>) {
    let grants: usize =
        std::env::var("GRANTS").map_or(0, |grants| grants.parse().expect("a number"));
    let rounds = grants.div_ceil(NAMES).max(LEASES.len());
    let locks = client(&server).await;
    let Takeover::LeasePlus(lingers) = locks.capabilities().takeover else { panic!("a lease") };
    let (mut least, mut most) = (Duration::MAX, Duration::ZERO);
    for round in 0..rounds {
        let lease = LEASES[round % LEASES.len()];
        let (claimed, claims) = channel();
        let competitor = compete(server.addr(), claims);
        let mut holders = tokio::task::JoinSet::new();
        for name in 0..NAMES {
            let (name, locks) = (format!("{round}/{name}"), locks.clone());
            holders.spawn(hold(locks, name, lease, claimed.clone()));
        }
        holders.join_all().await;
        let taken = tokio::task::spawn_blocking(|| competitor.join().unwrap()).await.unwrap();
        for (name, claimed_until, taken_at) in taken {
            let overlap = claimed_until.saturating_since(taken_at);
            assert!(
                overlap.is_zero(),
                "{name}: two holders for {overlap:?}, the lease is {lease:?}"
            );
            let free = taken_at.saturating_since(claimed_until);
            assert!(free <= lingers + SLACK, "{name}: free {free:?} after its lease of {lease:?}");
            (least, most) = (least.min(free), most.max(free));
        }
    }
    println!("{} grants: free {least:?} to {most:?} after the lease", rounds * NAMES);
}

/// Takes a lock at some moment, and forgets it.
async fn hold(
    locks: lock_memcache::Memcached,
    name: String,
    lease: Duration,
    claimed: Sender<(String, Moment)>,
) {
    sleep_between(Duration::ZERO, Duration::from_secs(1)).await;
    let ttl = u64::try_from(lease.as_millis()).expect("it is short");
    let grant = granted(locks.try_acquire(&claim(&name, ttl)).await);
    assert_eq!(grant.lease, Lease::For(lease));
    // Holders give up a little earlier still.
    claimed.send((name, grant.since + lease)).expect("the competitor waits");
}

/// Adds the key all the time, until it was stored; returns when.
fn compete(
    server: SocketAddr,
    claims: Receiver<(String, Moment)>,
) -> JoinHandle<Vec<(String, Moment, Moment)>> {
    std::thread::spawn(move || {
        let mut stream = BufReader::new(TcpStream::connect(server).unwrap());
        stream.get_mut().set_nodelay(true).unwrap();
        stream.get_mut().set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let (mut held, mut taken) = (Vec::new(), Vec::new());
        while taken.len() < NAMES {
            if held.is_empty() {
                held.push(claims.recv().expect("there is another one"));
            }
            held.extend(claims.try_iter());
            let adds: String =
                held.iter().map(|(name, _)| format!("add {name} 0 600 1\r\nx\r\n")).collect();
            stream.get_mut().write_all(adds.as_bytes()).unwrap();
            held.retain(|(name, until)| {
                let mut answer = String::new();
                stream.read_line(&mut answer).unwrap();
                let is_taken = answer == "STORED\r\n";
                if is_taken {
                    taken.push((name.clone(), *until, Moment::now()));
                }
                !is_taken
            });
        }
        taken
    })
}
