//! Ensembles that fall apart while a lock is held. In each case the holder is told that its lock is
//! lost before anybody else is granted it, and the gap is shown.
//!
//! `ENSEMBLE_TIMEOUTS=4,5,6,8,10,15` says with which session timeouts, in seconds.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::clock::{Moment, sleep};
use lock_core::{LockGuard, LockName, Locker, Loss};
use lock_zookeeper::ZooKeeper;
use test_servers::{ZooKeeperEnsemble, ZooKeeperOptions};
use tokio::sync::watch;
use tokio::task::JoinHandle;

const NAME: &str = "orders";
/// Longer than any lease here, so that the session alone limits it.
const TTL: Duration = Duration::from_secs(60);
/// The time that a busy machine may add to a bound.
const SLACK: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_cut_from_its_leader_only() {
    for timeout in timeouts() {
        for tick in [timeout / 8, timeout / 2] {
            cut_a_follower_from_its_leader(timeout, tick).await;
        }
    }
}

async fn cut_a_follower_from_its_leader(timeout: Duration, tick: Duration) {
    let ensemble = ensemble_with_links(tick);
    let (leader, follower, other) = roles(&ensemble);
    let [holder, waiter] = [follower, other].map(|member| ensemble.member(member).addr());
    let hand_over = HandOver::prepare(holder, waiter, timeout).await;

    // From here on the follower hears nothing of the leader, and goes on answering pings.
    ensemble.link(follower, leader).set(Fault::BlackHole);
    let cut = Moment::now();
    let lost = hand_over.lost().await;
    assert_eq!(ensemble.member(follower).mode().as_deref(), Some("follower"), "it noticed");
    let gap = hand_over.granted_after(lost).await;
    let told = lost.saturating_since(cut);
    println!(
        "timeout {timeout:?}, tick {tick:?}: told {told:?} after the cut, next grant {gap:?} later"
    );
    assert!(told < timeout, "told {told:?} after the cut");
    assert!(gap > timeout / 4, "the gap is {gap:?}");
    let taken_over = told + gap;
    assert!(taken_over < timeout + tick + SLACK, "taken over {taken_over:?} after the cut");
}

/// Checks a stalled leader. The first heartbeat write after the stall commits, whether or not the
/// session lives.
#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_stood_still() {
    for timeout in timeouts() {
        let ensemble = ensemble(timeout / 8);
        let (leader, follower, other) = roles(&ensemble);
        let claims = Claims::default();
        let mut clients = Vec::new();
        for (who, member) in [follower, follower, other].into_iter().enumerate() {
            let locker = locker(ensemble.member(member).addr(), timeout).await;
            clients.push(tokio::spawn(claims.clone().make(who, locker, timeout / 3)));
        }
        claims.grow_to(3).await;
        for stall in [timeout * 9 / 10, timeout * 11 / 10, timeout * 13 / 10] {
            let before = claims.count();
            claims.keep_one().await;
            ensemble.member(leader).stop();
            sleep(stall).await;
            ensemble.member(leader).cont();
            claims.keep_none();
            claims.grow_to(before + 3).await;
        }
        clients.iter().for_each(JoinHandle::abort);
        claims.never_overlap();
    }
}

/// Late heartbeat writes, then late pings and touches. No ping fits between the writes of a client
/// that goes by its own clock alone.
#[tokio::test(flavor = "multi_thread")]
async fn slow_links_around_a_follower() {
    let timeout = Duration::from_secs(5);
    let ensemble = ensemble_with_links(Duration::from_secs(1));
    let (leader, follower, other) = roles(&ensemble);
    let proxy = Proxy::start(ensemble.member(follower).addr()).expect("a proxy can be started");
    let link = ensemble.link(follower, leader);
    let hand_over = HandOver::prepare(proxy.addr(), ensemble.member(other).addr(), timeout).await;

    let slow = timeout / 4;
    let (to_server, to_client) = (slow, Duration::ZERO);
    proxy.set(Fault::Delay { to_server, to_client });
    sleep(slow).await;
    proxy.heal();
    link.set(Fault::Delay { to_server: Duration::ZERO, to_client: slow });
    sleep(slow).await;
    link.set(Fault::Delay { to_server: slow, to_client: Duration::ZERO });
    sleep(slow).await;
    link.set(Fault::BlackHole);
    let lost = hand_over.lost().await;
    let gap = hand_over.granted_after(lost).await;
    println!("slow links: next grant {gap:?} after the loss");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_leader_that_is_killed() {
    let timeout = Duration::from_secs(30);
    let ensemble = ensemble(Duration::from_millis(500));
    let (leader, follower, other) = roles(&ensemble);
    let [holder, waiter] = [follower, other].map(|member| ensemble.member(member).addr());
    let hand_over = HandOver::prepare(holder, waiter, timeout).await;

    ensemble.member(leader).kill();
    eventually("another one leads", || ensemble.find("leader").is_some()).await;
    assert!(hand_over.holder.is_held(), "an election is shorter than the lease");
    // The connection is made anew before the lease ends, or the lock is lost.
    let HandOver { holder, waiter, .. } = hand_over;
    let released = Moment::now();
    holder.release().await.expect("the lock was held through the election");
    let (granted, _guard) = waiter.await.expect("the waiter lives on");
    assert!(granted > released, "granted before the release");
    println!(
        "leader killed: next grant {:?} after the release",
        granted.saturating_since(released)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_member_that_dies_with_the_watch() {
    let timeout = Duration::from_secs(20);
    let ensemble = ensemble(Duration::from_millis(500));
    let (leader, follower, other) = roles(&ensemble);
    // It has nowhere to go but to the other of its two lines.
    let lines = [follower, other].map(|member| {
        Proxy::start(ensemble.member(member).addr()).expect("a proxy can be started")
    });
    let url = |lines: &[Proxy; 2]| format!("{},{}", lines[0].addr(), lines[1].addr());
    let holder = locker(ensemble.member(leader).addr(), timeout).await;
    let waiter = connect(&url(&lines), timeout).await;
    let hand_over = HandOver::between(holder, waiter, timeout).await;

    let busy = |line: &Proxy| line.stats().to_client.received;
    let watching = usize::from(busy(&lines[1]) > busy(&lines[0]));
    ensemble.member([follower, other][watching]).kill();
    let HandOver { holder, waiter, .. } = hand_over;
    let released = Moment::now();
    holder.release().await.expect("the holder's member lives");
    let (granted, _guard) = waiter.await.expect("the waiter lives on");
    let gap = granted.saturating_since(released);
    println!("member with the watch killed: next grant {gap:?} after the release");
    assert!(gap < timeout + SLACK, "the event is noticed after {gap:?}");
}

/// The holder and a waiter are connected to one member, the next waiter to the majority. Elections
/// are not cut off: the minority knows its leader, and cannot follow.
#[tokio::test(flavor = "multi_thread")]
async fn a_minority_with_the_holder_in_it() {
    let timeout = Duration::from_secs(6);
    let ensemble = ensemble_with_links(Duration::from_millis(500));
    let (leader, follower, other) = roles(&ensemble);
    let [minority, majority] = [follower, other].map(|member| ensemble.member(member).addr());
    let hand_over = HandOver::prepare(minority, majority, timeout).await;
    let left_out = locker(minority, timeout).await;
    let behind = left_out.lock(NAME).expect("a name").ttl(TTL);
    let behind = tokio::spawn(async move {
        loop {
            if let Ok(guard) = behind.acquire().await {
                return guard;
            }
        }
    });
    wait_until_there_wait(2, &left_out).await;

    for member in [leader, other] {
        ensemble.link(follower, member).set(Fault::BlackHole);
        ensemble.link(member, follower).set(Fault::BlackHole);
    }
    let cut = Moment::now();
    let lost = hand_over.lost().await;
    let gap = hand_over.granted_after(lost).await;
    let told = lost.saturating_since(cut);
    println!("minority: told {told:?} after the cut, next grant {gap:?} later");
    assert!(told < timeout, "told {told:?} after the cut");
    // The majority's holder has let go, so the lock is free, but not for the minority.
    sleep(timeout / 2).await;
    assert!(!behind.is_finished(), "a grant in the minority");
    for member in [leader, other] {
        ensemble.link(follower, member).heal();
        ensemble.link(member, follower).heal();
    }
    let granted = tokio::time::timeout(timeout * 3 + SLACK * 2, behind).await;
    drop(granted.expect("it is served when the members are together again"));
}

/// A holder in the steady state of its heartbeat writes, and a waiter.
pub(crate) struct HandOver {
    pub(crate) holder: LockGuard,
    waiter: JoinHandle<(Moment, LockGuard)>,
    granted: Arc<OnceLock<Moment>>,
    /// As long as they live, so do their sessions.
    _lockers: [Locker; 2],
}

impl HandOver {
    pub(crate) async fn prepare(holder: SocketAddr, waiter: SocketAddr, timeout: Duration) -> Self {
        let (holder, waiter) = (locker(holder, timeout).await, locker(waiter, timeout).await);
        Self::between(holder, waiter, timeout).await
    }

    pub(crate) async fn between(first: Locker, second: Locker, steady: Duration) -> Self {
        let lock = |locker: &Locker| locker.lock(NAME).expect("a name").ttl(TTL);
        let holder = lock(&first).acquire().await.expect("the lock is free");
        let next = lock(&second);
        let granted = Arc::new(OnceLock::new());
        let noted = Arc::clone(&granted);
        let waiter = tokio::spawn(async move {
            let guard = next.acquire().await.expect("the waiter's members live");
            (*noted.get_or_init(Moment::now), guard)
        });
        wait_until_there_wait(1, &first).await;
        // By then the chain of heartbeat writes alone gives the lease.
        sleep(steady).await;
        assert!(holder.is_held());
        Self { holder, waiter, granted, _lockers: [first, second] }
    }

    /// Waits until the holder is notified, which comes before anyone else is granted the lock.
    pub(crate) async fn lost(&self) -> Moment {
        let loss = self.holder.lost().await;
        let lost = Moment::now();
        if let Some(granted) = self.granted.get() {
            let deadline = self.holder.deadline();
            panic!(
                "two holders: granted at {granted:?}, {loss:?} notified at {lost:?}, deadline {deadline:?}"
            );
        }
        lost
    }

    pub(crate) async fn granted_after(self, lost: Moment) -> Duration {
        let (granted, _guard) = self.waiter.await.expect("the waiter's members live");
        assert!(
            granted > lost,
            "two holders: granted {:?} before the loss",
            lost.saturating_since(granted)
        );
        granted.saturating_since(lost)
    }
}

/// When each client held the lock, by its own knowledge.
#[derive(Clone, Debug, Default)]
struct Claims {
    ended: Arc<Mutex<Vec<Claim>>>,
    held: Arc<watch::Sender<bool>>,
    /// The holder does not release the lock.
    kept: Arc<watch::Sender<bool>>,
}

#[derive(Clone, Copy, Debug)]
struct Claim {
    who: usize,
    from: Moment,
    until: Moment,
    lost: Option<Loss>,
}

impl Claims {
    /// Acquires the lock again and again, and keeps it for a while or until it is lost.
    async fn make(self, who: usize, locker: Locker, keep: Duration) {
        let lock = locker.lock(NAME).expect("a name").ttl(TTL);
        let is_over = async || {
            sleep(keep).await;
            let _ = self.kept.subscribe().wait_for(|kept| !kept).await;
        };
        loop {
            let Ok(guard) = lock.acquire().await else { continue };
            let from = Moment::now();
            self.held.send_replace(true);
            let lost = tokio::select! {
                loss = guard.lost() => Some(loss),
                () = is_over() => guard.loss(),
            };
            self.held.send_replace(false);
            let until = Moment::now();
            self.ended.lock().expect("nobody panics").push(Claim { who, from, until, lost });
            let _ = guard.release().await;
        }
    }

    /// Waits for a holder, which keeps the lock from now on.
    async fn keep_one(&self) {
        self.kept.send_replace(true);
        let mut held = self.held.subscribe();
        held.wait_for(|held| *held).await.expect("the claims have the sender");
    }

    fn keep_none(&self) {
        self.kept.send_replace(false);
    }

    fn count(&self) -> usize {
        self.ended.lock().expect("nobody panics").len()
    }

    async fn grow_to(&self, count: usize) {
        eventually(&format!("there are {count} claims"), || self.count() >= count).await;
    }

    fn never_overlap(&self) {
        let mut claims = self.ended.lock().expect("nobody panics").clone();
        claims.sort_by_key(|claim| claim.from);
        for pair in claims.windows(2) {
            let [one, next] = pair else { unreachable!("windows of two") };
            assert!(one.until <= next.from, "two holders: {one:?} and {next:?}");
            if let Some(loss) = one.lost {
                let gap = next.from.saturating_since(one.until);
                let held = one.until.saturating_since(one.from);
                println!(
                    "{loss:?} after {held:?}, client {} to {}: {gap:?} later",
                    one.who, next.who
                );
            }
        }
        assert!(
            claims.iter().any(|claim| claim.lost.is_some()),
            "no stall cost anybody the lock: {claims:?}"
        );
    }
}

fn timeouts() -> Vec<Duration> {
    let told = std::env::var("ENSEMBLE_TIMEOUTS").unwrap_or_else(|_| "4".to_owned());
    told.split(',').map(|secs| Duration::from_secs(secs.parse().expect("seconds"))).collect()
}

/// Returns the options of an ensemble whose followers take a while to notice that their leader is
/// gone.
fn options(tick: Duration) -> ZooKeeperOptions {
    ZooKeeperOptions::new().tick(tick).setting("syncLimit", "20")
}

fn ensemble(tick: Duration) -> ZooKeeperEnsemble {
    ZooKeeperEnsemble::start(&options(tick))
}

/// Starts an ensemble with a proxy from each member to each other one. The proxies listen before
/// there is a leader, so elections take longer: a connection to a leader that is not ready is
/// closed, not refused.
pub(crate) fn ensemble_with_links(tick: Duration) -> ZooKeeperEnsemble {
    ZooKeeperEnsemble::start(&options(tick).links())
}

/// Returns the leader, a follower, and the other follower.
pub(crate) fn roles(ensemble: &ZooKeeperEnsemble) -> (usize, usize, usize) {
    let (leader, follower) = (ensemble.leader(), ensemble.follower());
    (leader, follower, 3 - leader - follower)
}

pub(crate) async fn locker(member: SocketAddr, timeout: Duration) -> Locker {
    connect(&member.to_string(), timeout).await
}

pub(crate) async fn connect(members: &str, timeout: Duration) -> Locker {
    let url = format!("zookeeper://{members}?session_timeout={}ms", timeout.as_millis());
    let backend = ZooKeeper::connect(&*url).await.expect("the ensemble takes us");
    Locker::builder(backend).outage_timeout(TTL * 2).build()
}

async fn wait_until_there_wait(count: u64, locker: &Locker) {
    let name = LockName::new(NAME).expect("a name");
    let deadline = Moment::now() + SLACK;
    while locker.inspect(&name).await.expect("all is well yet").waiting != Some(count) {
        assert!(!deadline.has_passed(), "{count} stand in line");
        sleep(Duration::from_millis(20)).await;
    }
}

pub(crate) async fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Moment::now() + Duration::from_secs(90);
    while !holds() {
        assert!(!deadline.has_passed(), "in time: {what}");
        sleep(Duration::from_millis(20)).await;
    }
}
