//! `lockctl`: locks for shells and scripts.
//!
//! A library, so that another program of this workspace can be `lockctl` as well: see [`main`].
//!
//! `lib.rs` runs a verb and turns its outcome into an exit status. `cli.rs` and `values.rs` define
//! the arguments, and `help.rs` has the long help. `parse.rs` reads the arguments and answers wrong
//! usage. `manual.rs` generates completions and manual pages from the definition.
//!
//! `run.rs` is the verb that holds a lock while a command runs. `job.rs` is the command as a
//! process group, `terminal.rs` its share of the terminal, `signals.rs` the signals forwarded to
//! it, and `group.rs` the script or pipeline around lockctl. Two verbs are internal: `exec.rs` runs
//! between lockctl and a command that must not outlive it, and `death.rs` makes lockctl die of a
//! signal.
//!
//! `detached.rs` has the verbs of a lock that outlives lockctl, `inspect.rs` those that only read,
//! `top.rs` the table of held locks on the screen of `screen.rs`, `break_lock.rs` the one that ends
//! a hold by force, and `doctor.rs` the one that checks the servers. `acquire.rs` waits for a lock,
//! `connect.rs` connects to a backend that supports a verb, `output.rs` writes to stdout, and
//! `progress.rs` shows a wait.

mod acquire;
mod break_lock;
mod cli;
mod connect;
mod death;
mod detached;
mod doctor;
mod exec;
mod exit;
mod group;
mod help;
mod inspect;
mod job;
mod manual;
mod output;
mod parse;
mod progress;
mod run;
mod screen;
mod signals;
mod terminal;
mod top;
mod values;

use std::future::Future;
use std::process::ExitCode;

use cli::{InternalVerb, Verb};
use exit::{Exit, Failure};

/// Runs `lockctl` with the arguments of this process.
#[must_use]
pub fn main() -> ExitCode {
    exit::end_on_panic(|| {
        job::kill_running();
        screen::restore();
    });
    let exit = perform().unwrap_or_else(death::end_with);
    exit.into()
}

fn perform() -> Result<Exit, Failure> {
    match parse::parse_internal()? {
        Some(InternalVerb::Exec(args)) => return Err(exec::exec_command(&args)),
        Some(InternalVerb::Die(args)) => return Ok(death::die(&args)),
        None => {}
    }
    let Some(cli) = parse::parse()? else {
        return Ok(Exit::SUCCESS);
    };
    let url = || cli::backend(cli.backend.clone());
    match cli.verb {
        Verb::Run(args) => block_on(run::run(&url()?, &args)),
        Verb::Acquire(args) => block_on(detached::acquire(&url()?, &args)),
        Verb::Renew(args) => block_on(detached::renew(&url()?, &args)),
        Verb::Release(args) => block_on(detached::release(&url()?, &args)),
        Verb::Inspect(args) => block_on(inspect::inspect(&url()?, &args)),
        Verb::List(args) => block_on(inspect::list(&url()?, &args)),
        Verb::Top(args) => block_on(top::top(&url()?, &args)),
        Verb::Break(args) => block_on(break_lock::break_lock(&url()?, &args)),
        Verb::Doctor(args) => {
            let url = cli::backend_or(args.url.clone(), cli.backend)?;
            block_on(doctor::doctor(&url, &args))
        }
        Verb::Completions(args) => manual::completions(&args),
        Verb::Man(args) => manual::man(&args),
    }
}

/// Runs a verb on this thread, the main one: a command that must die with lockctl is tied to the
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
