//! The arguments of lockctl. Help, completions and manual pages are generated from this definition.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use clap::{ArgGroup, Args, CommandFactory as _, Parser, Subcommand, ValueHint};
use clap_complete::Shell;
use lock_any::{LockName, OwnerId};

use crate::exit::{Exit, Failure};
use crate::help;
use crate::values::{lease, positive_duration, status, wait_time};

/// Locks for shells and scripts: hold one while a command runs, or from one command to the next.
#[derive(Parser)]
#[command(
    name = "lockctl",
    version,
    max_term_width = 100,
    override_usage = "lockctl [--backend URL] VERB ...",
    after_help = "Each verb has examples: lockctl VERB --help.",
    after_long_help = help::AFTER_ALL
)]
pub(crate) struct Cli {
    /// The URL of the backend, as file:///dir or redis://host [default: $LOCK_BACKEND, else file:]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) backend: Option<String>,
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Subcommand)]
#[command(subcommand_value_name = "VERB", subcommand_help_heading = "Verbs")]
pub(crate) enum Verb {
    Run(Run),
    Acquire(Acquire),
    Renew(Renew),
    Release(Release),
    Inspect(Inspect),
    List(List),
    Top(Top),
    Break(Break),
    Doctor(Doctor),
    Completions(Completions),
    Man(Man),
}

/// The names of the verbs.
pub(crate) const VERBS: &[&str] = &[
    "run",
    "acquire",
    "renew",
    "release",
    "inspect",
    "list",
    "top",
    "break",
    "doctor",
    "completions",
    "man",
];

/// The internal verbs, with which lockctl starts itself.
#[derive(Parser)]
#[command(name = "lockctl", disable_help_subcommand = true, disable_help_flag = true)]
pub(crate) enum InternalVerb {
    #[command(name = EXEC)]
    Exec(Exec),
    #[command(name = DIE)]
    Die(Die),
}

/// The verb that becomes the command; see `exec.rs`.
pub(crate) const EXEC: &str = "__exec";
/// The verb that dies of a signal; see `death.rs`.
pub(crate) const DIE: &str = "__die";

/// Returns a command that runs lockctl itself with another verb.
pub(crate) fn reexec(verb: &str) -> Command {
    // Not the path of the program, whose file may have been replaced meanwhile.
    let mut lockctl = Command::new("/proc/self/exe");
    lockctl.arg0("lockctl").arg(verb);
    lockctl
}

/// Hold a lock while a command runs
#[derive(Args)]
#[command(
    override_usage = "lockctl [--backend URL] run [OPTIONS] NAME -- CMD [ARG]...",
    after_help = "Try --help for examples, exit statuses and limits.",
    after_long_help = help::AFTER_RUN
)]
pub(crate) struct Run {
    /// The lease: how long the lock stays held after a crash of this host [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = lease, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) wait_options: WaitOptions,

    /// Hold the lock for at least that long, even if the command ends earlier
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, allow_hyphen_values = true)]
    pub(crate) min_hold: Option<Duration>,

    /// The time between SIGTERM to the command and the end of a lease that cannot be renewed. Less
    /// than a third of the ttl [default: a sixth of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = positive_duration, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// Show the holder on stderr while lockctl waits; a terminal shows it anyway
    #[arg(short, long, conflicts_with_all = ["json", "quiet"])]
    pub(crate) verbose: bool,

    /// Write events to stderr as lines of JSON: waiting, acquired, lost
    #[arg(long, conflicts_with = "quiet")]
    pub(crate) json: bool,

    #[command(flatten)]
    pub(crate) name: NameArg,

    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD", value_hint = ValueHint::CommandWithArguments)]
    pub(crate) command: Vec<OsString>,
}

/// Acquire a lock that outlives lockctl, until it is released or its lease ends
#[derive(Args)]
#[command(
    override_usage = "lockctl [--backend URL] acquire [OPTIONS] NAME",
    after_help = "Try --help for examples and exit statuses.",
    after_long_help = help::AFTER_ACQUIRE
)]
pub(crate) struct Acquire {
    /// The lease, which only lockctl renew prolongs [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = lease, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) wait_options: WaitOptions,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// Renew the lease of an acquired lock
#[derive(Args)]
#[command(
    override_usage = "lockctl [--backend URL] renew --owner OWNER [--ttl DURATION] NAME",
    after_help = "Try --help for examples and exit statuses.",
    after_long_help = help::AFTER_RENEW
)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) owner: OwnerArg,

    /// The least time for which the lease lasts from now on; it is never shortened [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = lease, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// Release an acquired lock
#[derive(Args)]
#[command(
    override_usage = "lockctl [--backend URL] release --owner OWNER NAME",
    after_help = "Try --help for examples and exit statuses.",
    after_long_help = help::AFTER_RELEASE
)]
pub(crate) struct Release {
    #[command(flatten)]
    pub(crate) owner: OwnerArg,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// Show the holder of a lock
#[derive(Args)]
#[command(
    override_usage = "lockctl [--backend URL] inspect [--json] [--show-owner] NAME",
    after_help = "Try --help for examples and exit statuses.",
    after_long_help = help::AFTER_INSPECT
)]
pub(crate) struct Inspect {
    /// Print one line of JSON
    #[arg(long)]
    pub(crate) json: bool,

    /// Show the whole owner id, which is the right to renew, release and break the lock
    #[arg(long)]
    pub(crate) show_owner: bool,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// List the locks that are held
#[derive(Args)]
#[command(
    override_usage = "lockctl [--backend URL] list [--json] [--prefix PREFIX]",
    after_help = "Try --help for examples and exit statuses.",
    after_long_help = help::AFTER_LIST
)]
pub(crate) struct List {
    /// Print a line of JSON for each lock
    #[arg(long)]
    pub(crate) json: bool,

    /// List only names that begin with this
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) prefix: String,
}

/// Show the locks that are held, again and again
#[derive(Args)]
#[command(
    override_usage = "lockctl [--backend URL] top [--once] [--interval DURATION] [--prefix PREFIX]",
    after_help = "Try --help for examples and exit statuses.",
    after_long_help = help::AFTER_TOP
)]
pub(crate) struct Top {
    /// Print one table, as text without terminal control, and end
    #[arg(long)]
    pub(crate) once: bool,

    /// The time between two lists; one that takes long is repeated less often [default: 2s]
    #[arg(short, long, value_name = "DURATION", value_parser = positive_duration, allow_hyphen_values = true)]
    #[arg(default_value = "2s", hide_default_value = true, conflicts_with = "once")]
    pub(crate) interval: Duration,

    /// Show only names that begin with this
    #[arg(long, value_name = "PREFIX", default_value = "", hide_default_value = true)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) prefix: String,
}

/// End another client's hold of a lock
#[derive(Args)]
#[command(
    group = ArgGroup::new("holder").required(true).args(["owner", "force"]),
    override_usage = "lockctl [--backend URL] break (--owner OWNER | --force) NAME",
    after_help = "Try --help for examples and exit statuses.",
    after_long_help = help::AFTER_BREAK
)]
pub(crate) struct Break {
    /// End the hold of this owner, and no later hold
    #[arg(long, value_name = "OWNER", allow_hyphen_values = true)]
    pub(crate) owner: Option<OwnerId>,

    /// End the hold of the current holder
    #[arg(long)]
    pub(crate) force: bool,

    #[command(flatten)]
    pub(crate) name: NameArg,
}

/// Check what the servers of a backend guarantee
#[derive(Args)]
#[command(
    override_usage = "lockctl doctor [--json] [URL]",
    after_help = "Try --help for examples and exit statuses.",
    after_long_help = help::AFTER_DOCTOR
)]
pub(crate) struct Doctor {
    /// Print a line of JSON for each finding
    #[arg(long)]
    pub(crate) json: bool,

    /// The URL of the backend, as after --backend
    #[arg(value_name = "URL")]
    pub(crate) url: Option<String>,
}

/// Print completions for a shell
#[derive(Args)]
#[command(
    override_usage = "lockctl completions SHELL",
    after_long_help = help::AFTER_COMPLETIONS
)]
pub(crate) struct Completions {
    /// bash, elvish, fish, powershell or zsh
    #[arg(value_name = "SHELL", hide_possible_values = true)]
    pub(crate) shell: Shell,
}

/// Print the manual page of lockctl, or of a verb, for man(1)
#[derive(Args)]
#[command(override_usage = "lockctl man [VERB]", after_long_help = help::AFTER_MAN)]
pub(crate) struct Man {
    /// The verb
    #[arg(value_name = "VERB", hide_possible_values = true, value_parser = clap::builder::PossibleValuesParser::new(VERBS))]
    pub(crate) verb: Option<String>,
}

// Arguments of several verbs. (No doc comments: clap would show them as those of the verb.)

#[derive(Args)]
pub(crate) struct WaitOptions {
    /// Wait for at most that long [default: wait for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = wait_time, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait at all
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Exit status if the lock is not acquired in time
    #[arg(short = 'E', long, value_name = "N", default_value = "75", value_parser = status)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) conflict_exit_code: Exit,

    /// Print nothing while lockctl waits, nor if the lock is not acquired in time
    #[arg(short, long)]
    pub(crate) quiet: bool,
}

#[derive(Args)]
pub(crate) struct NameArg {
    /// The lock: any text up to 64 KiB. One that begins with '-' is written --name=NAME
    #[arg(required_unless_present = "dashed")]
    name: Option<LockName>,

    #[arg(long = "name", hide = true, conflicts_with = "name", allow_hyphen_values = true)]
    dashed: Option<LockName>,
}

impl NameArg {
    pub(crate) fn get(&self) -> &LockName {
        self.name.as_ref().or(self.dashed.as_ref()).expect("clap demands a name")
    }
}

#[derive(Args)]
pub(crate) struct OwnerArg {
    /// The owner id that acquire printed [default: $LOCK_OWNER]
    #[arg(long, value_name = "OWNER", allow_hyphen_values = true)]
    owner: Option<OwnerId>,
}

impl OwnerArg {
    pub(crate) fn get(&self) -> Result<OwnerId, Failure> {
        if let Some(owner) = self.owner {
            return Ok(owner);
        }
        match std::env::var_os("LOCK_OWNER") {
            Some(owner) if !owner.is_empty() => {
                let owner = owner.to_str().unwrap_or_default().parse();
                owner.map_err(|why| Failure::usage(format!("$LOCK_OWNER: {why}")))
            }
            _ => Err(Failure::usage("write --owner OWNER, or put the owner id into $LOCK_OWNER")),
        }
    }
}

#[derive(Args)]
pub(crate) struct Exec {
    /// The process with which the command dies.
    #[arg(long)]
    pub(crate) parent: Option<i32>,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct Die {
    pub(crate) signal: i32,
}

/// Returns the definition with clap's additions.
pub(crate) fn definition() -> clap::Command {
    let mut definition = Cli::command().disable_help_subcommand(true);
    definition.build();
    definition
}

/// Returns the usage of a verb, or of `run` without one.
pub(crate) fn usage(verb: Option<&str>) -> String {
    let mut definition = definition();
    let verb = definition.find_subcommand_mut(verb.unwrap_or("run"));
    let usage = verb.map(|verb| verb.render_usage().to_string()).unwrap_or_default();
    usage.trim_start_matches("Usage: ").trim().to_owned()
}

/// Returns the URL of the option, else of the environment, else the default. Not called for a verb
/// that uses no URL: a wrong one must not stop it.
pub(crate) fn backend(option: Option<String>) -> Result<String, Failure> {
    choose(option, std::env::var_os("LOCK_BACKEND"))
}

/// Returns the URL for a verb that takes it as an argument as well.
pub(crate) fn backend_or(
    argument: Option<String>,
    option: Option<String>,
) -> Result<String, Failure> {
    match (&argument, &option) {
        (Some(_), Some(_)) => {
            Err(Failure::usage("--backend and the URL exclude each other; give one of them"))
        }
        _ => backend(argument.or(option)),
    }
}

fn choose(option: Option<String>, environment: Option<OsString>) -> Result<String, Failure> {
    match (option, environment) {
        (Some(url), _) => Ok(url),
        (None, Some(url)) if !url.is_empty() => {
            url.into_string().map_err(|_| Failure::usage("$LOCK_BACKEND must be UTF-8"))
        }
        (None, _) => Ok("file:".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
        InternalVerb::command().debug_assert();
    }

    #[test]
    fn every_verb_has_its_name_and_its_usage() {
        let definition = Cli::command();
        let names: Vec<&str> = definition.get_subcommands().map(clap::Command::get_name).collect();
        assert_eq!(names, VERBS);
        for verb in VERBS {
            let usage = usage(Some(verb));
            assert!(usage.starts_with("lockctl ") && usage.contains(verb), "{usage}");
            assert_eq!(usage.lines().count(), 1, "{usage}");
        }
    }

    #[test]
    fn the_option_precedes_the_environment_and_the_default() {
        for (option, environment, chosen) in [
            (None, None, "file:"),
            (None, Some(""), "file:"),
            (None, Some("memory:"), "memory:"),
            (Some("memory:"), Some("gopher:"), "memory:"),
            (Some("memory:"), None, "memory:"),
        ] {
            let (option, environment) = (option.map(Into::into), environment.map(Into::into));
            assert_eq!(choose(option, environment).unwrap(), chosen);
        }
    }
}
