//! The table of capabilities, as clients of real servers declare them.

use std::ops::RangeInclusive;
use std::time::Duration;

use lock_core::{Backend, Capabilities, Locker, Memory, Support, Takeover};
use test_servers::{Memcached, MemcachedOptions, Redis, RedisOptions, ZooKeeper, ZooKeeperOptions};

use crate::generated;

#[test]
fn backends_and_comparison_hold_the_capabilities() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut columns = runtime.block_on(declared());
    generated("docs/comparison.md", "capabilities", &table(&columns));
    // A quorum declares the capabilities of its members, and its own chapter explains it.
    columns.retain(|caps| caps.backend != "quorum");
    generated("docs/backends.md", "capabilities", &table(&columns));
}

/// Returns the declarations of each backend, on real servers.
async fn declared() -> Vec<Capabilities> {
    // Not on tmpfs, which survives no restart.
    let file = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let servers = [(); 3].map(|()| Redis::start(RedisOptions::new()));
    let redis = lock_redis::Redis::connect(&*servers[0].url()).await.unwrap();
    let ensemble = ZooKeeper::start(&ZooKeeperOptions::new());
    let zookeeper = lock_zookeeper::ZooKeeper::connect(ensemble.url()).await.unwrap();
    let server = Memcached::start(MemcachedOptions::new());
    let memcached = lock_memcache::Memcached::connect(server.url()).await.unwrap();
    let mut quorum = lock_quorum::Quorum::builder();
    for server in &servers {
        quorum = quorum.member(lock_redis::Redis::connect(&*server.url()).await.unwrap());
    }
    // These servers have not been running for as long as a quorum waits for otherwise.
    let quorum = quorum.members_remember().build().await.unwrap();
    vec![
        Memory::new().capabilities(),
        lock_file::FileLocks::at(file.path()).unwrap().capabilities(),
        redis.capabilities(),
        zookeeper.capabilities(),
        memcached.capabilities(),
        quorum.capabilities(),
    ]
}

/// Returns a table with a column for each of them.
fn table(columns: &[Capabilities]) -> String {
    let row = |what: &str, cell: &dyn Fn(&Capabilities) -> String| {
        let cells: Vec<String> = columns.iter().map(cell).collect();
        format!("| {what} | {} |\n", cells.join(" | "))
    };
    let mut text = row("", &|caps| format!("**{}**", caps.backend));
    text += &format!("|---{}|\n", "|---".repeat(columns.len()));
    text += &row("excludes", &|caps| format!("{:?}", caps.reach).to_lowercase());
    text += &row("fencing tokens", &|caps| format!("{:?}", caps.fencing).to_lowercase());
    text += &row("order of waiters", &|caps| match caps.order {
        lock_core::Order::PerProcess => "first come, first served in one process".into(),
        lock_core::Order::Fifo => "first come, first served".into(),
    });
    text += &row("a held lock outlasts", &|caps| match caps.durability {
        lock_core::Durability::Advisory => "nothing: advisory".into(),
        lock_core::Durability::UntilRestart => "all but a restart".into(),
        lock_core::Durability::Durable => "a crash".into(),
    });
    text += &row("wake-up", &|caps| format!("{:?}", caps.wakeup).to_lowercase());
    text += &row("takeover after a crash", &|caps| match caps.takeover {
        Takeover::AtOnce => "at once".into(),
        Takeover::LeasePlus(slack) => format!("lease + {slack:?}"),
    });
    text += &row("ttl", &|caps| span(&default_ttl_range(caps)));
    text += &row("ttl, if `max_ttl` is raised", &|caps| span(&(caps.ttl_min..=caps.ttl_max)));
    for (what, support) in [
        ("detached holds", (|caps| caps.detached) as fn(&Capabilities) -> Support),
        ("minimum hold that outlives the process", |caps| caps.minimum_hold),
        ("late attempts refused", |caps| caps.late_attempts_refused),
        ("a holder is told at once of a removal", |caps| caps.loss_push),
        ("inspect", |caps| caps.inspecting),
        ("list", |caps| caps.listing),
        ("break", |caps| caps.breaking),
    ] {
        text += &row(what, &|caps| match support(caps) {
            Support::Present => "yes".into(),
            Support::Absent => "no".into(),
        });
    }
    text
}

/// Returns the leases that a locker with default settings accepts.
fn default_ttl_range(caps: &Capabilities) -> RangeInclusive<Duration> {
    let usual = Locker::new(Memory::new()).ttl_range();
    caps.ttl_min..=caps.ttl_max.min(*usual.end())
}

fn span(range: &RangeInclusive<Duration>) -> String {
    let hours = range.end().as_secs() / 3600;
    match hours {
        ..=24 => format!("{:?} to {hours} h", range.start()),
        _ => format!("{:?} to {} days", range.start(), hours / 24),
    }
}
