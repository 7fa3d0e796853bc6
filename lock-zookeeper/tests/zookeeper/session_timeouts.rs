//! Sessions that a reconnect gives a shorter timeout than before, as when members are restarted one
//! by one with a lower `maxSessionTimeout`. The holder gives up before the lock is granted again.

use std::time::Duration;

use lock_conformance::helpers::Output;
use lock_conformance::proxy::{Direction, Fault, Proxy};
use lock_core::clock::{Moment, sleep};
use test_servers::ZooKeeperEnsemble;

use crate::ensemble::{HandOver, connect, ensemble_with_links, eventually, locker, roles};
use crate::support::until;

/// The requested timeout, which one member grants. The other member grants [`SHORT`].
const TIMEOUT: Duration = Duration::from_secs(20);
const SHORT: Duration = Duration::from_secs(4);
const TICK: Duration = Duration::from_millis(500);

/// Two members with their own limits, and a client that has one line to each.
struct Limits {
    ensemble: ZooKeeperEnsemble,
    leader: usize,
    /// A follower that grants no more than [`SHORT`].
    low: usize,
    /// To the other follower, and to that one.
    lines: [Proxy; 2],
}

impl Limits {
    fn new() -> Self {
        let ensemble = ensemble_with_links(TICK);
        let (leader, low, high) = roles(&ensemble);
        ensemble.member(low).restart_with("maxSessionTimeout", &SHORT.as_millis().to_string());
        let lines = [high, low].map(|member| {
            Proxy::start(ensemble.member(member).addr()).expect("a proxy can be started")
        });
        Self { ensemble, leader, low, lines }
    }

    /// Returns a holder with a session of the whole timeout, and a waiter connected to the leader.
    async fn hand_over(&self) -> HandOver {
        self.lines[1].set(Fault::Refuse);
        let url = format!("{},{}", self.lines[0].addr(), self.lines[1].addr());
        let holder = connect(&url, TIMEOUT).await;
        let waiter = locker(self.ensemble.member(self.leader).addr(), TIMEOUT).await;
        HandOver::between(holder, waiter, Duration::ZERO).await
    }

    /// Makes the client reconnect on the other one of its two proxies.
    async fn move_to(&self, line: usize, hand_over: &HandOver) {
        self.lines[1 - line].set(Fault::Refuse);
        self.lines[line].heal();
        self.lines[1 - line].reset_connections().await;
        until("it has moved", async || hand_over.holder.verify().await.is_ok()).await;
        assert!(hand_over.holder.is_held(), "the lock survives the reconnect");
    }

    /// Cuts the client off from the leader.
    fn cut(&self, how: Cut) {
        match how {
            Cut::Link => self.lines[1].set(Fault::BlackHole),
            Cut::Member => self.ensemble.link(self.low, self.leader).set(Fault::BlackHole),
        }
        self.lines[0].set(Fault::Refuse);
    }
}

#[derive(Clone, Copy, Debug)]
enum Cut {
    Link,
    Member,
}

async fn the_holder_gives_up_first(hand_over: HandOver, what: &str) {
    let cut = Moment::now();
    let lost = hand_over.lost().await;
    let gap = hand_over.granted_after(lost).await;
    println!(
        "{what}: told {:?} after the cut, next grant {gap:?} later",
        lost.saturating_since(cut)
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn long_after_a_reconnect_its_timeout_counts() {
    for how in [Cut::Link, Cut::Member] {
        let limits = Limits::new();
        let hand_over = limits.hand_over().await;
        limits.move_to(1, &hand_over).await;
        // Until only proofs of that connection count.
        sleep(SHORT * 3 / 2).await;
        assert!(hand_over.holder.is_held(), "the lock survives the shorter timeout");
        limits.cut(how);
        the_holder_gives_up_first(hand_over, &format!("{how:?}, long after")).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn directly_after_a_reconnect_its_timeout_counts() {
    for how in [Cut::Link, Cut::Member] {
        let limits = Limits::new();
        let hand_over = limits.hand_over().await;
        limits.move_to(1, &hand_over).await;
        // Until the last touch of the member before has reached the leader: it is one of the whole
        // timeout.
        sleep(TICK).await;
        limits.cut(how);
        the_holder_gives_up_first(hand_over, &format!("{how:?}, directly after")).await;
    }
}

/// The server has taken the session over, with a shorter timeout, and the client is not told.
#[tokio::test(flavor = "multi_thread")]
async fn a_reconnect_whose_answer_is_lost_may_have_shortened_the_session() {
    let limits = Limits::new();
    let hand_over = limits.hand_over().await;
    limits.lines[1].set(Fault::Lose(Direction::ToClient));
    limits.lines[0].set(Fault::Refuse);
    limits.lines[0].reset_connections().await;
    let low = limits.ensemble.member(limits.low);
    let has_it = || low.word("cons").is_ok_and(|clients| clients.contains("sid=0x"));
    eventually("it has the session", has_it).await;
    // The member before has told the leader of its last touch by the second time.
    eventually("the client has given that up", || !has_it()).await;
    eventually("it has the session again", has_it).await;
    // Further ones would prolong the session.
    limits.cut(Cut::Link);
    the_holder_gives_up_first(hand_over, "answer lost").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_that_grows_again_is_not_relied_on() {
    let limits = Limits::new();
    let hand_over = limits.hand_over().await;
    limits.move_to(1, &hand_over).await;
    limits.move_to(0, &hand_over).await;
    limits.move_to(1, &hand_over).await;
    limits.cut(Cut::Link);
    the_holder_gives_up_first(hand_over, "grown and shrunk again").await;
}

#[tokio::test]
async fn less_than_asked_for_is_warned_about() {
    let output = Output::default();
    let _tracing = output.listen();
    let ensemble = ensemble_with_links(TICK);
    let member = ensemble.member(ensemble.follower());
    let _client = locker(member.addr(), TIMEOUT).await;
    assert!(!output.text().contains("WARN"), "{}", output.text());
    member.restart_with("maxSessionTimeout", "4000");
    let _other = locker(member.addr(), TIMEOUT).await;
    let warned = || output.text().matches("asked=20s granted=4s").count();
    eventually("both are warned about", || warned() >= 2).await;
}
