//! `lock-bench worker LIB URL`: one process that executes the commands of `PROTOCOL.md`.

mod bare_redis;
pub(crate) mod floors;
mod locks;
mod memcache_crate;
mod slowest_member;
mod zookeeper_crate;

use bare_redis::BareRedis;
use clap::Args;
use floors::{FileLock, Flock, Floor, Memcached, Mux, Raw, Redis, TokioMutex, ZooKeeper};
use lock_bench_worker::{runtime, serve};
use memcache_crate::MemcacheCrate;
use zookeeper_crate::ZooKeeperCrate;

/// Our locks with up to 16 hand-overs in a row inside a process.
pub(crate) const WITH_HANDOVERS: &str = "locks-16";

/// The libraries of this program's workers.
pub(crate) const LIBS: &[&str] = &[
    "locks",
    WITH_HANDOVERS,
    "raw-redis",
    "mux-redis",
    "bare-redis",
    "raw-memcached",
    "mux-memcached",
    "raw-zookeeper",
    "mux-zookeeper",
    "memcache-crate",
    "zookeeper-crate",
    "file-lock",
    "flock(1)",
    "tokio-mutex",
    "slowest-member",
];

#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// The library
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(LIBS))]
    lib: String,
    /// The URL of the locks
    url: String,
    /// Worker threads of the runtime; 0: everything on one thread
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

pub(crate) fn run(args: &WorkerArgs) -> Result<(), String> {
    runtime(args.threads)?.block_on(async {
        match args.lib.as_str() {
            "locks" => serve(locks::Locks::connect(&args.url, 0).await?).await,
            WITH_HANDOVERS => serve(locks::Locks::connect(&args.url, 16).await?).await,
            "raw-redis" => serve(Floor::<Raw, Redis>::connect(&args.url).await?).await,
            "mux-redis" => serve(Floor::<Mux, Redis>::connect(&args.url).await?).await,
            "bare-redis" => serve(BareRedis::connect(&args.url).await?).await,
            "raw-memcached" => serve(Floor::<Raw, Memcached>::connect(&args.url).await?).await,
            "mux-memcached" => serve(Floor::<Mux, Memcached>::connect(&args.url).await?).await,
            "raw-zookeeper" => serve(Floor::<Raw, ZooKeeper>::connect(&args.url).await?).await,
            "mux-zookeeper" => serve(Floor::<Mux, ZooKeeper>::connect(&args.url).await?).await,
            "memcache-crate" => serve(MemcacheCrate::connect(&args.url).await?).await,
            "zookeeper-crate" => serve(ZooKeeperCrate::connect(&args.url).await?).await,
            "file-lock" => serve(FileLock::at(&args.url)?).await,
            "flock(1)" => serve(Flock::at(&args.url)?).await,
            "slowest-member" => serve(slowest_member::connect(&args.url).await?).await,
            "tokio-mutex" => serve(TokioMutex::default()).await,
            other => return Err(format!("no library {other:?}; known are {}", LIBS.join(", "))),
        }
        Ok(())
    })
}
