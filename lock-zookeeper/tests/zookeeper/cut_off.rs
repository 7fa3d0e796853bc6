//! Curator's mutex beside ours on one ensemble, when a follower is cut off from its leader: the
//! time at which the first holder stops, and at which the next one is granted the lock.
//!
//! `CUT_OFF_RUNS=8` repeats it and writes `docs/pictures/cut-off.jsonl`, from which a picture is
//! drawn. Each line is a run, in milliseconds since the cut.

use std::path::Path;
use std::time::Duration;

use lock_conformance::proxy::Fault;
use lock_core::clock::Moment;
use test_servers::peers::{Library, Peer};
use test_servers::{ZooKeeperEnsemble, ZooKeeperOptions};

use crate::ensemble::{HandOver, roles};
use crate::support::{operator, queue_of, until};

/// The tick and the limit of ZooKeeper's sample configuration: a follower that hears nothing of its
/// leader notices after 10 s, and closes its connections.
const TICK: Duration = Duration::from_secs(2);
const SYNC_LIMIT: &str = "5";
/// The shortest timeout that such servers grant.
const SESSION: Duration = Duration::from_secs(4);

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_that_is_cut_off_beside_curator() {
    let runs = std::env::var("CUT_OFF_RUNS").ok();
    let mut lines = String::new();
    for _ in 0..runs.as_ref().map_or(1, |runs| runs.parse().expect("a number of runs")) {
        let line = cut_off().await;
        println!("{line}");
        lines += &(line + "\n");
    }
    if runs.is_some() {
        let docs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs");
        std::fs::write(docs.join("pictures/cut-off.jsonl"), lines).expect("it can be written");
    }
}

/// Cuts a follower off while a client of each library holds a lock through it, and another client
/// waits at another member. Returns the times as JSON.
async fn cut_off() -> String {
    let options = ZooKeeperOptions::new().tick(TICK).setting("syncLimit", SYNC_LIMIT).links();
    let ensemble = ZooKeeperEnsemble::start(&options);
    let (leader, follower, other) = roles(&ensemble);
    let [first, second] = [follower, other].map(|member| ensemble.member(member).addr());

    let [mut holder, mut next] = [first, second].map(|member| {
        let mut peer = Library::Curator.start(&[]);
        peer.tell(&format!("{member} /theirs {}", SESSION.as_millis()));
        peer
    });
    assert_eq!(holder.ask("watch").await, "done");
    until_held(&mut holder, "acquire 10000").await;
    next.tell("acquire 60000");
    let operator = operator(second).await;
    until("Curator's second client is queued", async || {
        queue_of(&operator, "theirs").await.len() == 2
    })
    .await;
    let ours = HandOver::prepare(first, second, SESSION).await;

    ensemble.link(follower, leader).set(Fault::BlackHole);
    let cut = Moment::now();
    let since_cut = || Moment::now().saturating_since(cut);
    let (ours, stopped, granted) = tokio::join!(
        async {
            let lost = ours.lost().await;
            let stopped = lost.saturating_since(cut);
            (stopped, stopped + ours.granted_after(lost).await)
        },
        async {
            while !["SUSPENDED", "LOST"].contains(&&*holder.answer().await) {}
            since_cut()
        },
        async {
            until_held(&mut next, "").await;
            since_cut()
        },
    );
    let run = |name: &str, stopped: Duration, granted: Duration| {
        let [stopped, granted] = [stopped, granted].map(|time| time.as_millis());
        format!("\"{name}\":{{\"stopped\":{stopped},\"granted\":{granted}}}")
    };
    format!("{{{},{}}}", run("ours", ours.0, ours.1), run("curator", stopped, granted))
}

/// Waits until a client holds the lock, and tells it to acquire it unless it was told before.
/// Reports of its connection are skipped.
async fn until_held(peer: &mut Peer, told: &str) {
    if !told.is_empty() {
        peer.tell(told);
    }
    while peer.answer().await != "held" {}
}
