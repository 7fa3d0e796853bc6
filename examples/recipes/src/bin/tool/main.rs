//! A command that runs the scripts of a directory in order, each once, in one process at a time.
//!
//! `cargo run --bin tool -- --locks redis://localhost ./migrations`

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use clap::Parser;
use lock_any::Locker;
use tokio::{fs, process::Command};

/// Runs the scripts of a directory in order, each once.
#[derive(Parser)]
struct Options {
    /// The locks, as redis://host
    #[arg(long, env, default_value = "file:")]
    locks: String,
    /// How long to wait for another process
    #[arg(long, default_value = "1m", value_parser = humantime::parse_duration)]
    wait: Duration,
    /// The directory of the scripts, as 01-orders.sh and 02-prices.sh
    directory: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    let Options { locks, wait, directory } = Options::parse();
    let locks = lock_any::connect(&locks).await?;
    let done = run_scripts(&locks, wait, &directory).await;
    let closed = locks.close().await; // also after a failure: an attempt may still be on its way
    done?;
    Ok(closed?)
}

/// Waits for the lock, and runs the scripts that have not run yet.
async fn run_scripts(locks: &Locker, wait: Duration, directory: &Path) -> anyhow::Result<()> {
    let lock = locks.lock("migrations")?;
    if !locks.inspect(lock.name()).await?.holders.is_empty() {
        eprintln!("waiting for another process");
    }
    let done = lock.try_run_for(wait, async |_| {
        let mut scripts = Vec::new();
        let mut entries = fs::read_dir(directory).await?;
        while let Some(entry) = entries.next_entry().await? {
            scripts.push(entry.path());
        }
        scripts.retain(|path| path.extension().is_some_and(|extension| extension == "sh"));
        scripts.sort();
        for script in scripts {
            run_once(&script).await?;
        }
        io::Result::Ok(())
    });
    done.await?.context("another process has not ended in time")
}

/// Runs a script, unless it ran before.
async fn run_once(script: &Path) -> io::Result<()> {
    let done = script.with_extension("done");
    if fs::try_exists(&done).await? {
        return Ok(());
    }
    // If the lock is lost, this future is dropped, and the shell is killed. Programs that it
    // started go on; `lockctl run` ends its whole process group.
    let status = Command::new("sh").arg(script).kill_on_drop(true).status().await?;
    if !status.success() {
        return Err(io::Error::other(format!("{}: {status}", script.display())));
    }
    fs::write(done, "").await
}

#[cfg(test)]
mod tests;
