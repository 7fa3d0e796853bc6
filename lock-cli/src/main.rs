//! `lockctl`: hold a lock while a command runs.
//!
//! `main.rs` reads the arguments and turns the outcome into an exit status; each verb has a file of
//! its own, `run.rs` is the first. `job.rs` is the command as a process group, `terminal.rs` its
//! share of the terminal, `signals.rs` what is forwarded to it, `group.rs` what has to be done to the
//! script or pipeline around lockctl. Two hidden verbs: `bound.rs` is the few lines that run between
//! lockctl and a command that must not outlive it, `death.rs` how lockctl dies of a signal.

mod bound;
mod cli;
mod death;
mod exit;
mod group;
mod job;
mod run;
mod signals;
mod terminal;

use std::future::Future;
use std::process::ExitCode;

use cli::Verb;
use exit::{Exit, Failure};

fn main() -> ExitCode {
    exit::end_panics_in_one_line();
    let exit = perform().unwrap_or_else(Failure::end);
    exit.into()
}

fn perform() -> Result<Exit, Failure> {
    let Some(cli) = cli::parse()? else {
        return Ok(Exit::SUCCESS);
    };
    match cli.verb {
        Verb::Run(order) => {
            let backend = cli::backend(cli.backend)?;
            on_this_thread(run::run(&backend, &order))
        }
        Verb::Bound(order) => Err(bound::become_command(&order)),
        Verb::Die(order) => Ok(death::die(&order)),
    }
}

/// One thread, and it is the main one: a command that is to die with lockctl is tied to the thread
/// that started it.
fn on_this_thread(verb: impl Future<Output = Result<Exit, Failure>>) -> Result<Exit, Failure> {
    signals::unblock();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::internal("cannot start", &error))?;
    let outcome = runtime.block_on(verb);
    // Not a plain drop, which waits for blocking calls: they may be stuck in a file system.
    runtime.shutdown_background();
    outcome
}
