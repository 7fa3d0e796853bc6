//! Locks of other projects that are written in Rust, as workers of lock-bench.
//!
//! Usage: `lock-bench-peers LIB [delay=MS] URL`
//!
//! Without a URL, the program prints the version of the library.

mod distributed_lock;
mod rslock;

use std::process::ExitCode;
use std::time::Duration;

use distributed_lock::{OnFiles, OnRedis};
use lock_bench_worker::{runtime, serve};
use rslock::RsLock;

const LOCKED: &str = include_str!("../Cargo.lock");

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match run(&words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("lock-bench-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(words: &[&str]) -> Result<(), String> {
    let (lib, rest) = words.split_first().ok_or("which library?")?;
    let Some((url, options)) = rest.split_last().filter(|(last, _)| last.contains(':')) else {
        println!("{}", version(lib)?);
        return Ok(());
    };
    let delay = options.first().map(|option| milliseconds(option)).transpose()?;
    runtime(0)?.block_on(async {
        match *lib {
            "rslock" => serve(RsLock::connect(url, delay)?).await,
            "distributed-lock-redis" => serve(OnRedis::connect(url).await?).await,
            "distributed-lock-file" => serve(OnFiles::at(url)?).await,
            other => return Err(format!("no library {other:?}")),
        }
        Ok(())
    })
}

fn milliseconds(option: &str) -> Result<Duration, String> {
    let number = option.strip_prefix("delay=").and_then(|number| number.parse().ok());
    number.map(Duration::from_millis).ok_or_else(|| format!("no option {option:?}"))
}

/// Reads the version from the lock file, which was compiled in.
fn version(lib: &str) -> Result<&'static str, String> {
    let entry = LOCKED.split_once(&format!("name = \"{lib}\"\nversion = \"")).map(|(_, rest)| rest);
    let version = entry.and_then(|entry| entry.split('"').next());
    version.ok_or_else(|| format!("no library {lib:?}"))
}
