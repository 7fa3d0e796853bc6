//! `lockctl acquire`, `renew` and `release`: a lock that outlives lockctl.

use lock_any::{Detached, Label, Lock, LockGuard, Locker, RenewalPolicy};
use nix::unistd::{gethostname, getppid};
use serde::Serialize;

use crate::acquire::{self, close_after};
use crate::cli::{Acquire, Release, Renew};
use crate::connect::{self, Capability};
use crate::exit::{Exit, Failure};
use crate::output::{self, json, millis, unwritable};
use crate::progress::Progress;
use crate::signals::{ENDING, Signals};

/// The output of acquire.
#[derive(Serialize)]
struct Acquired<'a> {
    name: &'a str,
    owner: String,
    /// A string, because readers of JSON round numbers.
    fencing_token: Option<String>,
    expires_in_ms: u64,
}

/// The output of renew.
#[derive(Serialize)]
struct Renewed<'a> {
    name: &'a str,
    expires_in_ms: u64,
}

pub(crate) async fn acquire(url: &str, args: &Acquire) -> Result<Exit, Failure> {
    let mut signals = Signals::catch(ENDING)?;
    let locks = tokio::select! {
        locks = connect::connect_as(label(), url) => locks?,
        signal = signals.next() => return Err(Failure::signalled(signal)),
    };
    connect::require(&locks, "acquire", &[Capability::Detached])?;
    let lock = configured_lock(&locks, args)?;
    let progress = Progress::silent(args.name.get());
    let result = match acquire::acquire_within(
        url,
        &locks,
        &lock,
        &args.wait_options,
        &progress,
        &mut signals,
    )
    .await
    {
        Ok(guard) => print_and_detach(guard, &mut signals).await,
        Err(failure) => Err(failure),
    };
    match result {
        Ok(()) => Ok(Exit::SUCCESS),
        Err(failure) => close_after(&locks, failure).await,
    }
}

/// Returns the label: the process that started lockctl, because lockctl ends before the hold.
fn label() -> Label {
    let host = gethostname().unwrap_or_default();
    Label::new(&format!("{}:{}", host.to_string_lossy(), getppid()))
}

fn configured_lock(locks: &Locker, args: &Acquire) -> Result<Lock, Failure> {
    let lock = locks.lock(args.name.get())?.detachable();
    // A renewal in the background would make the printed lease wrong.
    let lock = lock.renewal(RenewalPolicy::off());
    Ok(match args.ttl {
        Some(ttl) => lock.ttl(ttl),
        None => lock,
    })
}

/// Prints the hold, and leaves the lock to the user. If the output fails, dropping the guard
/// releases the lock.
async fn print_and_detach(guard: LockGuard, signals: &mut Signals) -> Result<(), Failure> {
    let acquired = Acquired {
        name: guard.name().as_str(),
        owner: guard.owner().expose(),
        fencing_token: guard.fencing_token().map(|token| token.to_string()),
        expires_in_ms: millis(guard.valid_for().unwrap_or_default()),
    };
    tokio::select! {
        biased;
        printed = output::write_on_thread(json(&acquired)?) => {
            printed.map_err(|error| unwritable(&error))?;
        }
        signal = signals.next() => return Err(Failure::signalled(signal)),
    }
    // Fails if the lease expired before the line was read.
    guard.detach().await?;
    Ok(())
}

pub(crate) async fn renew(url: &str, args: &Renew) -> Result<Exit, Failure> {
    let detached =
        Detached::new(args.name.get().clone(), args.owner.get()?, connect::ttl(url, args.ttl)?);
    let locks = connect::connect_for("renew", &[Capability::Detached], url).await?;
    let left = locks.renew_detached(&detached).await?;
    let renewed = Renewed { name: detached.name.as_str(), expires_in_ms: millis(left) };
    output::print(&json(&renewed)?)?;
    Ok(Exit::SUCCESS)
}

pub(crate) async fn release(url: &str, args: &Release) -> Result<Exit, Failure> {
    let detached =
        Detached::new(args.name.get().clone(), args.owner.get()?, connect::ttl(url, None)?);
    let locks = connect::connect_for("release", &[Capability::Detached], url).await?;
    locks.release_detached(&detached).await?;
    Ok(Exit::SUCCESS)
}
