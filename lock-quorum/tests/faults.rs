//! Real Redis nodes, each behind a network that can be broken.

use std::sync::Arc;
use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::backend::{Attempt, Backend, Claim};
use lock_core::clock::{Moment, sleep, sleep_until};
use lock_core::{Error, ErrorKind, LockName, Locker, Loss, OwnerId, RenewalPolicy};
use lock_quorum::{Quorum, QuorumBuilder};
use test_servers::{KeepData, Monitor, Redis, RedisOptions};

/// A lease whose end explains nothing that happens here.
const LONG: Duration = Duration::from_secs(60);

/// The time that a loaded machine may add to a bound.
const SLACK: Duration = Duration::from_secs(2);

struct Nodes(Vec<(Redis, Proxy)>);

impl Nodes {
    fn start(size: usize) -> Self {
        let node = |_| {
            let server = Redis::start(RedisOptions::new());
            let proxy = Proxy::start(server.addr()).expect("a proxy can be started");
            (server, proxy)
        };
        Self((0..size).map(node).collect())
    }

    /// Returns a builder with members that are connected when they are first reachable.
    fn builder(&self) -> QuorumBuilder {
        self.0.iter().enumerate().fold(Quorum::builder(), |builder, (nth, (_, proxy))| {
            let url = format!("redis://{}", proxy.addr());
            builder.member_by(format!("node {nth}"), move || {
                let url = url.clone();
                async move {
                    let node = lock_redis::Redis::connect(url).await?;
                    Ok(Arc::new(node) as Arc<dyn Backend>)
                }
            })
        })
    }

    async fn quorum(&self) -> Quorum {
        self.builder().members_remember().build().await.expect("a quorum can be made")
    }

    async fn locks(&self) -> Locker {
        Locker::builder(self.quorum().await).timeout(Duration::from_secs(2)).build()
    }

    fn set(&self, nodes: &[usize], fault: Fault) {
        nodes.iter().for_each(|&node| self.0[node].1.set(fault));
    }

    fn heal(&self) {
        self.0.iter().for_each(|(_, proxy)| proxy.heal());
    }

    fn value(&self, node: usize, key: &str) -> String {
        self.0[node].0.command(&["GET", key]).text()
    }

    fn has(&self, node: usize, key: &str) -> bool {
        !self.value(node, key).is_empty()
    }

    async fn until(&self, what: &str, bound: Duration, condition: impl Fn(&Self) -> bool) {
        let end = Moment::now() + bound;
        while !condition(self) {
            assert!(!end.has_passed(), "it did not happen within {bound:?}: {what}");
            sleep(Duration::from_millis(10)).await;
        }
    }
}

async fn pair(locks: &Locker) -> Result<(), Error> {
    locks.lock("n")?.ttl(LONG).acquire().await?.release().await
}

#[tokio::test]
async fn a_hung_member_of_five_delays_no_grant_and_is_cleared_later() {
    let nodes = Nodes::start(5);
    let locks = nodes.locks().await;
    pair(&locks).await.unwrap();
    nodes.set(&[3], Fault::BlackHole);
    let asked = nodes.0[3].1.count("lock-");
    let (mut names, mut took) = (Vec::new(), Vec::new());
    let end = Moment::now() + SLACK * 10;
    // The name decides which members are asked first. On a busy machine the one that hangs may have
    // been late for the pair before: then it is asked last for a second.
    while names.len() < 31 || asked.seen() == 0 {
        assert!(!end.has_passed(), "the one that hangs was asked for nothing");
        names.push(format!("lock-{}", names.len()));
        let began = Moment::now();
        let lock = locks.lock(names[names.len() - 1].as_str()).unwrap().ttl(LONG);
        lock.acquire().await.unwrap().release().await.unwrap();
        took.push(Moment::now().saturating_since(began));
    }
    took.sort_unstable();
    let median = took[took.len() / 2];
    // Far less than the bound of a call, which is a second.
    assert!(median < Duration::from_millis(300), "the median is {median:?}");
    nodes.heal();
    nodes
        .until("nothing is left on any node", LONG / 3, |nodes| {
            names.iter().all(|name| (0..5).all(|node| !nodes.has(node, name)))
        })
        .await;
}

#[tokio::test]
async fn a_late_majority_is_refused_and_released() {
    let nodes = Nodes::start(5);
    let ttl = Duration::from_secs(6);
    let quorum = nodes.builder().members_remember().member_timeout(ttl * 2).build();
    let locks = Locker::builder(quorum.await.unwrap()).timeout(ttl * 2).build();
    // So that all know the scripts.
    let guard = locks.lock("n").unwrap().ttl(SLACK).acquire().await.unwrap();
    nodes.until("all have it", SLACK * 2, |nodes| (0..5).all(|node| nodes.has(node, "n"))).await;
    guard.release().await.unwrap();
    // The votes are given when most of the lease is over, and would be there for as long again; the
    // answers come too late.
    let (up, late) = (ttl * 3 / 4, [0, 2, 4]);
    nodes.set(&late, Fault::Delay { to_server: up, to_client: ttl });
    let began = Moment::now();
    let ended = locks.lock("late").unwrap().ttl(ttl).try_acquire().await;
    let error = ended.map(|guard| guard.is_some()).expect_err("the lease was over by then");
    assert!(error.is_retryable(), "{error}");
    assert!(late.iter().all(|&node| nodes.has(node, "late")), "no votes to let go");
    nodes.heal();
    nodes
        .until("it is let go everywhere", (began + up + ttl * 3 / 4).remaining(), |nodes| {
            (0..5).all(|node| !nodes.has(node, "late"))
        })
        .await;
    pair(&locks).await.unwrap();
}

#[tokio::test]
async fn a_member_that_forgets_is_won_back_and_two_are_a_loss() {
    let nodes = Nodes::start(3);
    let locks = nodes.locks().await;
    let guard = locks.lock("n").unwrap().ttl(Duration::from_secs(3)).acquire().await.unwrap();
    nodes.until("all have it", SLACK, |nodes| (0..3).all(|node| nodes.has(node, "n"))).await;
    let owner = guard.owner().expose();
    nodes.0[0].0.command(&["DEL", "n"]);
    nodes.until("it is won back", SLACK * 2, |nodes| nodes.value(0, "n").starts_with(&owner)).await;
    assert!(guard.is_held());
    // With one of them gone and another one empty, in every order of requests.
    nodes.0[1].0.command(&["DEL", "n"]);
    nodes.0[2].0.command(&["DEL", "n"]);
    let loss = tokio::time::timeout(SLACK * 2, guard.lost()).await;
    assert_eq!(loss, Ok(Loss::NotHeld));
    nodes.until("it is free", SLACK, |nodes| (0..3).all(|node| !nodes.has(node, "n"))).await;
}

#[tokio::test]
async fn a_lock_outlives_a_minority_that_dies() {
    let nodes = Nodes::start(3);
    let locks = nodes.locks().await;
    let ttl = Duration::from_secs(2);
    let guard = locks.lock("n").unwrap().ttl(ttl).acquire().await.unwrap();
    nodes.0[1].0.kill();
    sleep(ttl * 2).await;
    assert!(guard.is_held(), "lost with one of three");
    nodes.0[1].0.restart(KeepData::No);
    nodes.until("it is won back", SLACK * 2, |nodes| nodes.has(1, "n")).await;
    guard.release().await.unwrap();
}

/// Grants nothing to a rival on the third member while the first two were held and one of them
/// restarted without its data.
#[tokio::test]
async fn a_member_that_restarted_empty_is_not_counted() {
    let nodes = Nodes::start(3);
    let longest = Duration::from_secs(4);
    let quorum = || nodes.builder().longest_lease(longest).build();
    // Just started, no member counts; for waiters this is an outage.
    let began = Moment::now();
    let locks = Locker::builder(quorum().await.unwrap()).build();
    let error = locks.lock("n").unwrap().try_acquire().await.expect_err("nobody counts yet");
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let text = std::error::Error::source(&error).expect("the members say why").to_string();
    assert!(text.contains("may have forgotten locks"), "{text}");
    let locks = Locker::builder(quorum().await.unwrap()).build();
    sleep_until(began + longest + SLACK).await;

    nodes.set(&[2], Fault::Refuse);
    nodes.0[2].1.reset_connections().await;
    // Renewals would find out, and give up.
    let lock = locks.lock("n").unwrap().ttl(longest).renewal(RenewalPolicy::off());
    let guard = lock.acquire().await.unwrap();
    nodes.heal();
    nodes.0[0].0.restart(KeepData::No);
    let rival = quorum().await.unwrap();
    let mut refused = 0;
    loop {
        let claim = Claim::new(LockName::new("n").unwrap(), OwnerId::mint(), longest);
        let answer = rival.try_acquire(&claim).await;
        if !guard.is_held() {
            break;
        }
        assert!(!matches!(answer, Ok(Attempt::Acquired(_))), "a second holder: {answer:?}");
        refused += 1;
        sleep(Duration::from_millis(100)).await;
    }
    assert!(refused > 3, "the rival was refused {refused} times only");
}

#[tokio::test]
async fn a_late_attempt_at_one_member_takes_no_vote() {
    let nodes = Nodes::start(3);
    let locks = nodes.locks().await;
    pair(&locks).await.unwrap();
    // By the name of the lock, which no other request has.
    let mut held = nodes.0[1].1.hold("stray");
    let guard = locks.lock("stray").unwrap().ttl(LONG).acquire().await.unwrap();
    // At once or, if its vote is not needed, in a moment.
    let caught = tokio::time::timeout(SLACK, held.caught()).await;
    caught.expect("it is asked").expect("the line is there");
    guard.release().await.unwrap();
    // Longer than the attempt's bound. The next request on the connection is a release, or a new
    // connection is made.
    sleep(Duration::from_millis(1500)).await;
    drop(held);
    nodes.heal();
    nodes.until("it is let go there as well", LONG / 3, |nodes| !nodes.has(1, "stray")).await;
    sleep(Duration::from_millis(500)).await;
    assert!(!nodes.has(1, "stray"), "it was taken after it was let go");
    pair(&locks).await.unwrap();
}

#[tokio::test]
async fn two_of_five_are_too_few() {
    let nodes = Nodes::start(5);
    nodes.set(&[0, 1, 2], Fault::Refuse);
    let error = nodes.builder().members_remember().build().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("2 of the quorum's 5 members"), "{error}");

    nodes.set(&[2], Fault::None);
    let locks = nodes.locks().await;
    pair(&locks).await.unwrap();
    nodes.heal();
    // Members that were away come back by themselves, with the next renewal if they are a little
    // late.
    let guard = locks.lock("n").unwrap().ttl(SLACK).acquire().await.unwrap();
    nodes.until("all have it", SLACK * 2, |nodes| (0..5).all(|node| nodes.has(node, "n"))).await;
    guard.release().await.unwrap();
}

/// Notifies the waiters.
#[tokio::test]
async fn a_waiter_sends_no_request_while_the_lock_is_held() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = (nodes.locks().await, nodes.locks().await);
    let guard = ours.lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    nodes.until("all have it", SLACK, |nodes| (0..3).all(|node| nodes.has(node, "n"))).await;
    let waiting = tokio::spawn(async move { pair(&theirs).await });
    let asked = async |interval| {
        let monitors: Vec<_> =
            nodes.0.iter().map(|(node, _)| Monitor::start(node.addr())).collect();
        sleep(interval).await;
        let lines = monitors.into_iter().map(|monitor| monitor.unwrap().finish().unwrap().len());
        lines.sum::<usize>()
    };
    let end = Moment::now() + SLACK * 2;
    while asked(Duration::from_millis(300)).await > 0 {
        assert!(!end.has_passed(), "it does not come to rest");
    }
    assert_eq!(asked(Duration::from_secs(1)).await, 0, "it looks although nobody has told it to");
    guard.release().await.unwrap();
    let served = tokio::time::timeout(SLACK, waiting).await;
    served.expect("it is told at once, and not when the lease ends").unwrap().unwrap();
}

/// A waiter whose connection was lost asks for its place again. It has one entry, not two.
#[tokio::test]
async fn a_waiter_has_one_queue_entry() {
    let nodes = Nodes::start(3);
    let (ours, theirs) = (nodes.locks().await, nodes.locks().await);
    let guard = ours.lock("n").unwrap().ttl(LONG).acquire().await.unwrap();
    nodes.until("all have it", SLACK, |nodes| (0..3).all(|node| nodes.has(node, "n"))).await;
    let waiting = tokio::spawn(async move { pair(&theirs).await });
    let all = |nodes: &Nodes, command: &[&str]| -> Vec<String> {
        nodes.0.iter().map(|(node, _)| node.command(command).text()).collect()
    };
    let queued = |nodes: &Nodes| -> Vec<String> {
        let entries = all(nodes, &["ZRANGE", "{n}%queue", "0", "-1"]);
        // The owner and its process. A waiter that has left returns with another minimum token.
        let whose = |entry: &str| entry.split(' ').take(2).collect::<Vec<_>>().join(" ");
        entries.iter().flat_map(|entries| entries.lines().map(whose)).collect()
    };
    // Its score has digits of the process's connection.
    let processes =
        |nodes: &Nodes| all(nodes, &["ZRANGE", "{n}%procs", "0", "-1", "WITHSCORES"]).concat();
    // A waiter that knows that it is queued listens at another member as well.
    let listens = |nodes: &Nodes| all(nodes, &["EXISTS", "{n}%wake"]).concat().contains('1');
    // One that finds its queue's member slow leaves it, and attempts again when it is notified.
    let notify = |nodes: &Nodes| drop(all(nodes, &["DEL", "{n}%wake"]));
    let is_queued = |nodes: &Nodes| {
        let is_queued = !queued(nodes).is_empty();
        if !is_queued {
            notify(nodes);
        }
        is_queued && listens(nodes)
    };
    nodes.until("it is queued", SLACK * 10, is_queued).await;
    let entry = queued(&nodes);
    assert_eq!(entry.len(), 1, "{entry:?}");
    for _ in 0..3 {
        let before = processes(&nodes);
        all(&nodes, &["CLIENT", "KILL", "TYPE", "pubsub"]);
        notify(&nodes);
        // An attempt removes the entry of a process that has lost its connection, and the next one
        // adds it again.
        nodes
            .until("it is queued again", SLACK * 10, |nodes| {
                let now = queued(nodes);
                assert!(now.is_empty() || now == entry, "{now:?}, {entry:?}");
                is_queued(nodes) && processes(nodes) != before
            })
            .await;
    }
    guard.release().await.unwrap();
    let served = tokio::time::timeout(SLACK, waiting).await;
    served.expect("it is served at once").unwrap().unwrap();
    nodes.until("nothing is left", SLACK, |nodes| queued(nodes).is_empty()).await;
}

/// Runs as many clients as there are processes, all at once.
#[tokio::test]
async fn many_contenders_are_all_served() {
    const CONTENDERS: usize = 16;
    let nodes = Nodes::start(5);
    let mut racing = tokio::task::JoinSet::new();
    for _ in 0..CONTENDERS {
        let locks = nodes.locks().await;
        racing.spawn(async move {
            for _ in 0..4 {
                pair(&locks).await?;
            }
            Ok::<_, Error>(())
        });
    }
    let served = tokio::time::timeout(LONG / 2, racing.join_all()).await;
    let stuck = || (0..5).map(|node| nodes.value(node, "n")).collect::<Vec<_>>();
    let served = served.unwrap_or_else(|_| panic!("not served in time; held by {:?}", stuck()));
    assert!(served.iter().all(Result::is_ok), "{served:?}");
}
