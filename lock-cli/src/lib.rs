//! `lockctl`: locks for shells and scripts.
//!
//! A library, so that another program of this workspace can be `lockctl`, too: see [`main`].
//!
//! `lib.rs` reads the arguments and turns the outcome into an exit status. `cli.rs` and `values.rs`
//! define the arguments, `help.rs` the long help, `advice.rs` the answer to wrong usage.
//! `manual.rs` generates completions and manual pages from that.
//!
//! `run.rs` is the verb that holds a lock while a command runs. `job.rs` is the command as a
//! process group, `terminal.rs` its share of the terminal, `signals.rs` the signals forwarded to
//! it, and `group.rs` the script or pipeline around lockctl. Two verbs are internal: `exec.rs` runs
//! between lockctl and a command that must not outlive it, and `death.rs` makes lockctl die of a
//! signal.
//!
//! `detached.rs` has the verbs of a lock that outlives lockctl, `inspect.rs` those that only read,
//! and `break_lock.rs` the one that ends a hold by force. `acquire.rs` waits for a lock, `reach.rs`
//! finds a backend that supports a verb, `output.rs` is stdout, and `progress.rs` shows a wait.

mod acquire;
mod advice;
mod break_lock;
mod cli;
mod death;
mod detached;
mod exec;
mod exit;
mod group;
mod help;
mod inspect;
mod job;
mod manual;
mod output;
mod progress;
mod reach;
mod run;
mod signals;
mod terminal;
mod values;

use std::future::Future;
use std::process::ExitCode;

use cli::{InternalVerb, Verb};
use exit::{Exit, Failure};

/// Runs `lockctl` with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    exit::end_panics_in_one_line();
    let exit = perform().unwrap_or_else(Failure::end);
    exit.into()
}

fn perform() -> Result<Exit, Failure> {
    match cli::parse_internal()? {
        Some(InternalVerb::Exec(order)) => return Err(exec::exec_command(&order)),
        Some(InternalVerb::Die(order)) => return Ok(death::die(&order)),
        None => {}
    }
    let Some(cli) = cli::parse()? else {
        return Ok(Exit::SUCCESS);
    };
    let url = || cli::backend(cli.backend);
    match cli.verb {
        Verb::Run(order) => block_on(run::run(&url()?, &order)),
        Verb::Acquire(order) => block_on(detached::acquire(&url()?, &order)),
        Verb::Renew(order) => block_on(detached::renew(&url()?, &order)),
        Verb::Release(order) => block_on(detached::release(&url()?, &order)),
        Verb::Inspect(order) => block_on(inspect::inspect(&url()?, &order)),
        Verb::List(order) => block_on(inspect::list(&url()?, &order)),
        Verb::Break(order) => block_on(break_lock::break_lock(&url()?, &order)),
        Verb::Completions(order) => manual::completions(&order),
        Verb::Man(order) => manual::man(&order),
    }
}

/// Runs a verb on this thread, the main one: a command that is to die with lockctl is tied to the
/// thread that started it.
fn block_on(verb: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    signals::unblock();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("cannot start", &error))?;
    let outcome = runtime.block_on(verb);
    // Not a plain drop, which waits for blocking calls: they may hang in a file system.
    runtime.shutdown_background();
    outcome
}
