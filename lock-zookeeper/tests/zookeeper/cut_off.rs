//! Locks of other libraries beside ours, when a holder is cut off: the time at which it stops, and
//! at which the next one is granted the lock. And such a lock when its holder's process is stopped.
//!
//! `CUT_OFF_RUNS=8` repeats the runs and prints a line for each. With it, a follower that is cut
//! off writes `docs/pictures/cut-off.jsonl`, from which a picture is drawn. Each line is a run, in
//! milliseconds since the cut. `CUT_OFF_SYNC_LIMIT=15` makes followers wait for so many ticks, and
//! writes nothing. `ZOOKEEPER_CLIENTS=DIR` runs other versions of the libraries, and writes
//! nothing.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::clock::Moment;
use test_servers::peers::{Library, Peer};
use test_servers::{ZooKeeper as Server, ZooKeeperEnsemble, ZooKeeperOptions};

use crate::ensemble::{HandOver, roles};
use crate::support::{operator, queue_of, until};

/// The tick and the limit of ZooKeeper's sample configuration: a follower that hears nothing of its
/// leader notices after 10 s, and closes its connections.
const TICK: Duration = Duration::from_secs(2);
const SYNC_LIMIT: &str = "5";
/// The shortest timeout that such servers grant.
const SESSION: Duration = Duration::from_secs(4);

/// The cut link.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Link {
    /// Between the holders' member and the leader.
    ToLeader,
    /// Between the holders and their member.
    ToMember,
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_cut_off_beside_other_libraries() {
    let limit = std::env::var("CUT_OFF_SYNC_LIMIT").ok();
    let sync_limit = limit.as_deref().unwrap_or(SYNC_LIMIT);
    let (is_repeated, lines) = repeat(async || cut_off(Link::ToLeader, sync_limit).await).await;
    let are_debians = !Library::for_zookeeper().contains(&Library::GoZookeeper);
    if is_repeated && limit.is_none() && are_debians {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        std::fs::write(docs.join("pictures/cut-off.jsonl"), lines).expect("it can be written");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_is_cut_off_beside_other_libraries() {
    repeat(async || cut_off(Link::ToMember, SYNC_LIMIT).await).await;
}

/// Ours is not among them: it is in the test's process.
#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_client_of_another_library() {
    repeat(stop).await;
}

/// Returns whether the runs are to be repeated, and their lines.
async fn repeat(run: impl AsyncFn() -> String) -> (bool, String) {
    let runs = std::env::var("CUT_OFF_RUNS").ok();
    let mut lines = String::new();
    for _ in 0..runs.as_ref().map_or(1, |runs| runs.parse().expect("a number of runs")) {
        let line = run().await;
        println!("{line}");
        lines += &(line + "\n");
    }
    (runs.is_some(), lines)
}

/// Cuts a link while a client of each library holds a lock through it, and another client waits at
/// another member. Returns the times as JSON.
async fn cut_off(link: Link, sync_limit: &str) -> String {
    let options = ZooKeeperOptions::new().tick(TICK).setting("syncLimit", sync_limit).links();
    let ensemble = ZooKeeperEnsemble::start(&options);
    let (leader, follower, other) = roles(&ensemble);
    let [first, second] = [follower, other].map(|member| ensemble.member(member).addr());
    let network = Proxy::start(first).expect("a proxy can be started");
    let first = network.addr();

    let others = Others::prepare_all([first, second]).await;
    let ours = HandOver::prepare(first, second, SESSION).await;

    match link {
        Link::ToLeader => ensemble.link(follower, leader).set(Fault::BlackHole),
        Link::ToMember => network.set(Fault::BlackHole),
    }
    let cut = Moment::now();
    let others: Vec<_> = others.into_iter().map(|others| tokio::spawn(others.run(cut))).collect();
    let lost = ours.lost().await;
    let stopped = lost.saturating_since(cut);
    let mut runs = vec![run("ours", stopped, stopped + ours.granted_after(lost).await)];
    for (library, others) in Library::for_zookeeper().iter().zip(others) {
        let (stopped, granted) = others.await.expect("both are notified");
        runs.push(run(&name_of(*library), stopped, granted));
    }
    format!("{{{}}}", runs.join(","))
}

/// Stops the holders until the next ones hold their locks. Returns as JSON for how long the first
/// ones go on after that.
async fn stop() -> String {
    let server = Server::start(&ZooKeeperOptions::new().tick(TICK));
    let others = Others::prepare_all([server.addr(); 2]).await;
    let others: Vec<_> = others.into_iter().map(|others| tokio::spawn(others.stop())).collect();
    let mut runs = Vec::new();
    for (library, others) in Library::for_zookeeper().iter().zip(others) {
        let overlap = others.await.expect("both are notified").as_millis();
        runs.push(format!("\"{}\":{{\"overlap\":{overlap}}}", name_of(*library)));
    }
    format!("{{{}}}", runs.join(","))
}

fn run(name: &str, stopped: Duration, granted: Duration) -> String {
    let [stopped, granted] = [stopped, granted].map(|time| time.as_millis());
    format!("\"{name}\":{{\"stopped\":{stopped},\"granted\":{granted}}}")
}

fn name_of(library: Library) -> String {
    format!("{library:?}").to_lowercase()
}

/// The two clients of another library.
struct Others {
    holder: Peer,
    next: Peer,
}

impl Others {
    async fn prepare_all(members: [SocketAddr; 2]) -> Vec<Self> {
        let mut all = Vec::new();
        for &library in Library::for_zookeeper() {
            all.push(Self::prepare(library, members).await);
        }
        all
    }

    /// Starts a holder and a waiter, and returns when the waiter is queued.
    async fn prepare(library: Library, members: [SocketAddr; 2]) -> Self {
        let lock = name_of(library);
        let kind = if library == Library::Kazoo { "Lock " } else { "" };
        let [mut holder, mut next] = members.map(|member| {
            let mut peer = library.start(&[]);
            peer.tell(&format!("{member} /{lock} {kind}{}", SESSION.as_millis()));
            peer
        });
        for (command, answer) in [("watch", "done"), ("acquire 10000", "held")] {
            holder.tell(command);
            until_answered(&mut holder, answer).await;
        }
        next.tell("acquire 60000");
        let operator = operator(members[1]).await;
        until("the second client is queued", async || queue_of(&operator, &lock).await.len() == 2)
            .await;
        Self { holder, next }
    }

    /// Returns when the holder is notified that its lock is in doubt, and when the next one is
    /// granted it, since the cut.
    async fn run(mut self, cut: Moment) -> (Duration, Duration) {
        let since_cut = || Moment::now().saturating_since(cut);
        tokio::join!(
            async {
                until_doubtful(&mut self.holder).await;
                since_cut()
            },
            async {
                until_answered(&mut self.next, "held").await;
                since_cut()
            },
        )
    }

    /// Stops the holder until the next one holds the lock. Returns for how long both hold it then.
    async fn stop(mut self) -> Duration {
        self.holder.stop();
        until_answered(&mut self.next, "held").await;
        self.holder.cont();
        let resumed = Moment::now();
        until_doubtful(&mut self.holder).await;
        Moment::now().saturating_since(resumed)
    }
}

/// Waits until the client is notified that its lock is in doubt.
async fn until_doubtful(peer: &mut Peer) {
    while !["SUSPENDED", "LOST"].contains(&&*peer.answer().await) {}
}

/// Waits for this answer. Reports of a connection are skipped.
async fn until_answered(peer: &mut Peer, answer: &str) {
    while peer.answer().await != answer {}
}
