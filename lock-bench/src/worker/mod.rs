//! `lock-bench worker LIB URL`: one process that locks as it is told. `PROTOCOL.md` is what it speaks.

mod commands;
pub(crate) mod floors;
mod locks;
mod memcache_crate;
mod pairs;
mod session;
mod zookeeper_crate;

use std::io::BufRead;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use commands::Command;
use floors::{FileLock, Flock, Memcached, Mux, Raw, Redis, TokioMutex, ZooKeeper};
use memcache_crate::MemcacheCrate;
pub(crate) use pairs::histogram;
use session::Session;
use zookeeper_crate::ZooKeeperCrate;

/// What workers of this program can lock with.
pub(crate) const LIBS: &[&str] = &[
    "locks",
    "raw-redis",
    "mux-redis",
    "raw-memcached",
    "mux-memcached",
    "raw-zookeeper",
    "mux-zookeeper",
    "memcache-crate",
    "zookeeper-crate",
    "file-lock",
    "flock(1)",
    "tokio-mutex",
];

/// The version of the protocol.
const PROTOCOL: u32 = 1;

#[derive(Args, Debug)]
pub(crate) struct WorkerArgs {
    /// What it locks with
    #[arg(value_parser = clap::builder::PossibleValuesParser::new(LIBS))]
    lib: String,
    /// Where the locks are
    url: String,
    /// Worker threads of the runtime; 0: everything on one thread
    #[arg(long, default_value_t = 0)]
    threads: usize,
}

/// A way to lock that can be measured.
///
/// Errors are text: they end up in a report and end the run.
pub(crate) trait Lib: Send + Sync + 'static {
    /// A lock that was prepared as far as users of this library would.
    type Lock: Clone + Send + Sync + 'static;
    type Held: Send + Sync + 'static;

    fn lock(&self, name: &str) -> Result<Self::Lock, String>;

    /// Waits for the lock. Floors that cannot wait fail where somebody else has it.
    fn acquire(
        &self,
        lock: &Self::Lock,
        ttl: Duration,
    ) -> impl Future<Output = Result<Self::Held, String>> + Send;

    fn release(&self, held: Self::Held) -> impl Future<Output = Result<(), String>> + Send;

    /// The fencing token, if this library has any.
    fn token(_held: &Self::Held) -> Option<u64> {
        None
    }

    /// How long the lock lasts if it is not renewed any more; `Duration::MAX` where locks have no end,
    /// `None` if it was lost.
    fn valid_for(_held: &Self::Held) -> Option<Duration> {
        Some(Duration::MAX)
    }
}

pub(crate) fn run(args: &WorkerArgs) -> Result<(), String> {
    let mut builder = match args.threads {
        0 => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads);
            builder
        }
    };
    let runtime = builder.enable_all().build().map_err(|e| format!("no runtime: {e}"))?;
    runtime.block_on(async {
        match args.lib.as_str() {
            "locks" => serve(locks::Locks::connect(&args.url).await?).await,
            "raw-redis" => serve(Raw::<Redis>::connect(&args.url)?).await,
            "mux-redis" => serve(Mux::<Redis>::connect(&args.url).await?).await,
            "raw-memcached" => serve(Raw::<Memcached>::connect(&args.url)?).await,
            "mux-memcached" => serve(Mux::<Memcached>::connect(&args.url).await?).await,
            "raw-zookeeper" => serve(Raw::<ZooKeeper>::connect(&args.url)?).await,
            "mux-zookeeper" => serve(Mux::<ZooKeeper>::connect(&args.url).await?).await,
            "memcache-crate" => serve(MemcacheCrate::connect(&args.url).await?).await,
            "zookeeper-crate" => serve(ZooKeeperCrate::connect(&args.url).await?).await,
            "file-lock" => serve(FileLock::at(&args.url)?).await,
            "flock(1)" => serve(Flock::at(&args.url)?).await,
            "tokio-mutex" => serve(TokioMutex::default()).await,
            other => Err(format!("no library {other:?}; known are {}", LIBS.join(", "))),
        }
    })
}

/// Answers each line of stdin with one line, until stdin ends.
async fn serve<L: Lib>(lib: L) -> Result<(), String> {
    let mut session = Session::new(lib);
    let mut lines = lines();
    say(&json!({ "ready": PROTOCOL }));
    while let Some(line) = lines.recv().await {
        let answer = match Command::parse(&line) {
            Ok(command) => session.execute(command).await,
            Err(error) => Err(error),
        };
        say(&answer.unwrap_or_else(|error| json!({ "error": error })));
    }
    Ok(())
}

/// The lines of stdin. Its end ends the process, whatever it is doing: nobody wants the answer.
fn lines() -> mpsc::UnboundedReceiver<String> {
    let (sender, receiver) = mpsc::unbounded_channel();
    std::thread::spawn(move || {
        for line in std::io::stdin().lock().lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        std::process::exit(0);
    });
    receiver
}

fn say(answer: &Value) {
    println!("{answer}");
}
