//! The cost of a quorum of Redis servers, beside one of its members and beside rslock on the same
//! ones.
//!
//! `cargo run --release -p lock-quorum --example redlock_cost` starts its own servers. Times are
//! ratios within one run. Rounds take turns, and medians are shown.

use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::Locker;
use lock_core::clock::Moment;
use lock_quorum::Quorum;
use rslock::LockManager;
use test_servers::{Redis, RedisOptions};

const TTL: Duration = Duration::from_secs(30);
const PAIRS: usize = 100;
const ROUNDS: usize = 5;

#[tokio::main]
async fn main() {
    let nodes: Vec<_> = (0..5).map(|_| Redis::start(RedisOptions::new())).collect();
    let urls: Vec<_> = nodes.iter().map(Redis::url).collect();
    pairs(&urls).await;
    hung(&nodes).await;
    for contenders in [8, 64] {
        crowd(&nodes[..3], contenders).await;
    }
}

async fn pairs(urls: &[String]) {
    let mut one = Vec::new();
    for url in urls {
        one.push(Locker::new(lock_redis::Redis::connect(url.as_str()).await.unwrap()));
    }
    let (three, five) = (quorum(&urls[..3]).await, quorum(urls).await);
    let (theirs, theirs_of_five) = (rslock(&urls[..3]), rslock(urls));
    let mut times = [const { Vec::new() }; 5];
    for _ in 0..ROUNDS {
        let mut slowest = Duration::ZERO;
        for member in &one {
            slowest = slowest.max(median_pair(member).await);
        }
        times[0].push(slowest);
        times[1].push(median_pair(&three).await);
        times[2].push(median_pair(&five).await);
        times[3].push(median_rslock(&theirs).await);
        times[4].push(median_rslock(&theirs_of_five).await);
    }
    let [slowest, three, five, theirs, theirs_of_five] = times.map(median);
    let ratio = |time: Duration| time.as_secs_f64() / slowest.as_secs_f64();
    println!("a pair on the slowest member alone: {slowest:.0?}");
    println!(
        "a quorum of 3: {three:.0?}, {:.2} of that; rslock: {:.2}",
        ratio(three),
        ratio(theirs)
    );
    println!(
        "a quorum of 5: {five:.0?}, {:.2} of that; rslock: {:.2}",
        ratio(five),
        ratio(theirs_of_five)
    );
}

/// Measures with one of five members hung, each in turn, since the name of the lock decides which
/// ones are needed.
async fn hung(nodes: &[Redis]) {
    let proxies: Vec<_> = nodes.iter().map(|node| Proxy::start(node.addr()).unwrap()).collect();
    let urls: Vec<_> = proxies.iter().map(|proxy| format!("redis://{}", proxy.addr())).collect();
    let locks = quorum(&urls).await;
    for (nth, proxy) in proxies.iter().enumerate() {
        let well = median_pair(&locks).await;
        proxy.set(Fault::BlackHole);
        let hung = median_pair(&locks).await;
        proxy.heal();
        let ratio = hung.as_secs_f64() / well.as_secs_f64();
        println!("with member {} of 5 hung: {ratio:.2} of without", nth + 1);
    }
}

/// Measures with as many processes as contenders, each with clients of its own.
async fn crowd(nodes: &[Redis], contenders: usize) {
    let urls: Vec<_> = nodes.iter().map(Redis::url).collect();
    let mut ours = Vec::new();
    for _ in 0..contenders {
        ours.push(quorum(&urls).await);
    }
    reset(nodes);
    let began = Moment::now();
    let mut racing = tokio::task::JoinSet::new();
    for locks in ours {
        racing.spawn(async move { pair(&locks).await });
    }
    racing.join_all().await;
    let took = Moment::now().saturating_since(began);
    let commands = asked(nodes, &["evalsha", "client|caching", "getrange_alone"]);

    let theirs: Vec<_> = (0..contenders).map(|_| rslock(&urls)).collect();
    reset(nodes);
    let began = Moment::now();
    let mut racing = tokio::task::JoinSet::new();
    for manager in theirs {
        racing.spawn(async move { rslock_pair(&manager).await });
    }
    racing.join_all().await;
    let theirs_took = Moment::now().saturating_since(began);
    let theirs_commands = asked(nodes, &["set", "evalsha", "eval"]);
    println!(
        "{contenders} contenders on 3: all served in {took:.0?}, rslock in {theirs_took:.0?}; \
         {:.1} commands a grant, rslock {:.1}",
        commands / contenders as f64,
        theirs_commands / contenders as f64
    );
}

fn reset(nodes: &[Redis]) {
    nodes.iter().for_each(|node| drop(node.command(&["CONFIG", "RESETSTAT"])));
}

/// Returns the number of commands from clients, without those that scripts called.
fn asked(nodes: &[Redis], commands: &[&str]) -> f64 {
    let of = |node: &Redis| {
        let stats = node.command(&["INFO", "commandstats"]).text();
        let calls = commands.iter().filter_map(|command| {
            let line =
                stats.lines().find_map(|l| l.strip_prefix(&format!("cmdstat_{command}:calls=")))?;
            line.split(',').next()?.parse::<f64>().ok()
        });
        calls.sum::<f64>()
    };
    nodes.iter().map(of).sum()
}

async fn quorum(urls: &[String]) -> Locker {
    let mut builder = Quorum::builder();
    for url in urls {
        builder = builder.member(lock_redis::Redis::connect(url.as_str()).await.unwrap());
    }
    Locker::new(builder.members_remember().build().await.unwrap())
}

fn rslock(urls: &[String]) -> LockManager {
    let clients = urls.iter().map(|url| redis::Client::open(url.as_str()).unwrap());
    LockManager::from_clients(clients.collect())
}

async fn pair(locks: &Locker) {
    locks.lock("n").unwrap().ttl(TTL).acquire().await.unwrap().release().await.unwrap();
}

/// Acquires as rslock's users do: in a loop until it has the lock.
async fn rslock_pair(manager: &LockManager) {
    let lock = loop {
        if let Ok(lock) = manager.lock("n", TTL).await {
            break lock;
        }
    };
    manager.unlock(&lock).await;
}

async fn median_pair(locks: &Locker) -> Duration {
    let mut times = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let began = Moment::now();
        pair(locks).await;
        times.push(Moment::now().saturating_since(began));
    }
    median(times)
}

async fn median_rslock(manager: &LockManager) -> Duration {
    let mut times = Vec::with_capacity(PAIRS);
    for _ in 0..PAIRS {
        let began = Moment::now();
        rslock_pair(manager).await;
        times.push(Moment::now().saturating_since(began));
    }
    median(times)
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times[times.len() / 2]
}
