//! What can be said to lockctl, and what it answers to anything else.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::time::Duration;

use clap::builder::StyledStr;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Args, Parser, Subcommand};
use lock_any::LockName;

use crate::exit::{Exit, Failure};

/// The arguments, once read.
pub(crate) struct Cli {
    /// The option of that name; see [`backend`].
    pub(crate) backend: Option<String>,
    pub(crate) verb: Verb,
}

/// Hold a lock while a command runs.
#[derive(Parser)]
#[command(name = "lockctl", version, max_term_width = 100)]
struct Given {
    /// Where the locks live, as file:///dir or redis://host [default: $LOCK_BACKEND, else file:]
    #[arg(long, global = true, value_name = "URL")]
    backend: Option<String>,
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    Run(Run),
    #[command(hide = true, name = BOUND)]
    Bound(Bound),
    #[command(hide = true, name = DIE)]
    Die(Die),
}

/// A verb by which lockctl starts itself; see `bound.rs`.
pub(crate) const BOUND: &str = "__bound";
/// A verb that lockctl becomes; see `death.rs`.
pub(crate) const DIE: &str = "__die";

/// lockctl itself, with another verb.
pub(crate) fn again(verb: &str) -> Command {
    // Still this program if its file was replaced meanwhile.
    let mut lockctl = Command::new("/proc/self/exe");
    lockctl.arg0("lockctl").arg(verb);
    lockctl
}

/// Hold a lock while a command runs
#[derive(Args)]
#[command(
    override_usage = "lockctl [--backend URL] run [OPTIONS] NAME -- CMD [ARG]...",
    after_help = "Try --help for exit statuses, and for what is not promised.",
    after_long_help = AFTER_RUN
)]
pub(crate) struct Run {
    /// The lease: how long the lock stays shut after a crash of this host [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = lease, allow_hyphen_values = true)]
    pub(crate) ttl: Option<Duration>,

    /// Give up after that long; a plain number is seconds [default: wait for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = patience, allow_hyphen_values = true)]
    pub(crate) wait: Option<Duration>,

    /// Do not wait at all
    #[arg(short, long, conflicts_with = "wait")]
    pub(crate) no_wait: bool,

    /// Exit status if the lock is not acquired in time
    #[arg(short = 'E', long, value_name = "N", default_value = "75", value_parser = status)]
    #[arg(allow_hyphen_values = true)]
    pub(crate) conflict_exit_code: Exit,

    /// Keep others out for at least that long, even if the command ends earlier
    #[arg(long, value_name = "DURATION", value_parser = span, allow_hyphen_values = true)]
    pub(crate) at_least: Option<Duration>,

    /// How long before the end of a lease that cannot be renewed the command is asked to stop; must
    /// be less than a third of the ttl [default: a sixth of the ttl, at most 5s]
    #[arg(long, value_name = "DURATION", value_parser = span, allow_hyphen_values = true)]
    pub(crate) grace: Option<Duration>,

    /// The lock: any text up to 64 KiB. One that begins with '-' is written --name=NAME
    #[arg(required_unless_present = "dashed")]
    name: Option<LockName>,

    #[arg(long = "name", hide = true, conflicts_with = "name", allow_hyphen_values = true)]
    dashed: Option<LockName>,

    /// The command, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

impl Run {
    pub(crate) fn name(&self) -> &LockName {
        self.name.as_ref().or(self.dashed.as_ref()).expect("clap demands a name")
    }
}

#[derive(Args)]
pub(crate) struct Bound {
    /// The process that must be alive.
    #[arg(long)]
    pub(crate) parent: Option<i32>,
    #[arg(last = true, required = true)]
    pub(crate) command: Vec<OsString>,
}

#[derive(Args)]
pub(crate) struct Die {
    pub(crate) signal: i32,
}

const AFTER_RUN: &str = "\
The command runs in a process group of its own, with LOCK_NAME, LOCK_OWNER and, where the backend has \
fencing tokens, LOCK_FENCING_TOKEN in its environment. Signals are forwarded to the group. Give the \
token along with each write to a resource that checks it: no lock can undo a write that is on its way.

If the lease cannot be renewed, the group gets SIGTERM one grace before the lease ends and SIGKILL \
shortly before it does. If the lock is known to be lost, it gets SIGKILL at once.

If lockctl itself is killed, its command does not run on unlocked: with file: it keeps the lock until \
it ends, with other backends it is killed as well. Not covered: what the command has started (with \
other backends than file: it is not killed along with lockctl) or left behind, what moved to another \
process group, set-user-id commands, which cannot be killed, with file: a command that closes what it \
inherits (sudo does, and daemons), and a lockctl that is stopped (SIGSTOP) for longer than its lease \
while its command runs: it kills the command when it goes on.

With file:, a lock file that is deleted by hand lets others in for up to a third of the ttl, until \
that is noticed. And its locks go to whoever looks first: a process that takes one again and again \
without a pause can keep others waiting.

Exit status:
  the command's own, 128+n if signal n ended it, or lockctl
  64  wrong usage, name or URL, or not supported by the backend
  69  the backend is unavailable, or refuses
  70  internal error
  75  not acquired in time (see -E)
  76  the lock was lost
  77  credentials or rights are missing
  126 the command cannot be run
  127 there is no such command";

/// Reads the arguments. `None` if they only asked for help, which was given.
pub(crate) fn parse() -> Result<Option<Cli>, Failure> {
    let given = match Given::try_parse() {
        Ok(given) => given,
        Err(error)
            if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) =>
        {
            // A reader that went away has read enough.
            let _ = error.print();
            return Ok(None);
        }
        Err(error) => return Err(Failure::usage(advice(&error))),
    };
    Ok(Some(Cli { backend: given.backend, verb: given.verb }))
}

/// The URL to use: the option's, else that of the environment, else the default. For verbs that have
/// use for one; the hidden ones have not, and do not look.
pub(crate) fn backend(option: Option<String>) -> Result<String, Failure> {
    choose(option, std::env::var_os("LOCK_BACKEND"))
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

/// One line that says what to do.
fn advice(error: &clap::Error) -> String {
    const USAGE: &str = "write: lockctl run NAME -- CMD [ARG]...";
    let argument = text(error, ContextKind::InvalidArg);
    let option = argument.split(' ').next().unwrap_or_default();
    let value = text(error, ContextKind::InvalidValue);
    match error.kind() {
        ErrorKind::ValueValidation => {
            let why = std::error::Error::source(error);
            let why = why.map_or_else(|| "it is not valid".to_owned(), ToString::to_string);
            match argument.as_str() {
                "<NAME>" | "[NAME]" => why,
                _ => format!("{option}: {why}"),
            }
        }
        ErrorKind::InvalidValue if value.is_empty() => format!("{option} needs a value"),
        ErrorKind::InvalidUtf8 => "names and options must be UTF-8".to_owned(),
        ErrorKind::UnknownArgument if argument.starts_with('-') => {
            format!("there is no option {}; see lockctl run --help", shown(&argument))
        }
        ErrorKind::UnknownArgument => {
            format!("put -- before the command, not {}; {USAGE}", shown(&argument))
        }
        ErrorKind::MissingRequiredArgument => {
            let missing =
                if argument.contains("NAME") { "a lock name" } else { "a command after --" };
            format!("{missing} is missing; {USAGE}")
        }
        ErrorKind::ArgumentConflict => {
            let other = text(error, ContextKind::PriorArg);
            if other.is_empty() || other == argument {
                format!("{option} was given twice; give it once")
            } else {
                format!("{option} and {other} exclude each other; give one of them")
            }
        }
        ErrorKind::InvalidSubcommand => {
            let verb = text(error, ContextKind::InvalidSubcommand);
            format!("there is no verb {}; {USAGE}", shown(&verb))
        }
        ErrorKind::MissingSubcommand | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            format!("a verb is missing; {USAGE}")
        }
        _ => format!("wrong usage; {USAGE}, and see lockctl run --help"),
    }
}

fn text(error: &clap::Error, kind: ContextKind) -> String {
    match error.get(kind) {
        Some(ContextValue::String(text)) => text.clone(),
        Some(ContextValue::Strings(texts)) => texts.join(" "),
        Some(ContextValue::StyledStr(text)) => StyledStr::to_string(text),
        _ => String::new(),
    }
}

/// An argument as it may be repeated: short, and not a URL, which may hold a password.
fn shown(argument: &str) -> String {
    const LONGEST: usize = 60;
    if argument.contains("://") {
        return "the URL".to_owned();
    }
    match argument.char_indices().nth(LONGEST) {
        None => format!("{argument:?}"),
        Some((end, _)) => format!("{:?}…", &argument[..end]),
    }
}

const SHORTEST_LEASE: Duration = Duration::from_millis(10);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);
const LONGEST_SPAN: Duration = Duration::from_secs(30 * 24 * 3600);

fn lease(text: &str) -> Result<Duration, String> {
    let lease = humantime::parse_duration(text).unwrap_or_default();
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) {
        return Ok(lease);
    }
    Err("write a duration from 10ms to 24h, such as 500ms, 30s or 2h".to_owned())
}

fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).unwrap_or_default();
    bounded(span).filter(|span| !span.is_zero()).ok_or_else(|| {
        "write a positive duration of at most 30days, such as 500ms or 2h".to_owned()
    })
}

/// As in flock(1), a plain number is seconds, and zero means not to wait.
fn patience(text: &str) -> Result<Duration, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let wait = if is_plain {
        let seconds = text.parse().ok();
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        humantime::parse_duration(text).ok()
    };
    wait.and_then(bounded).ok_or_else(|| {
        "write a duration of at most 30days, such as 10 (seconds), 0.5, 10s or 2h, or leave it out \
         to wait for ever"
            .to_owned()
    })
}

fn bounded(span: Duration) -> Option<Duration> {
    (span <= LONGEST_SPAN).then_some(span)
}

fn status(text: &str) -> Result<Exit, String> {
    match text.parse() {
        Ok(status) => Ok(Exit::with(status)),
        Err(_) => Err("write an exit status from 0 to 255".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        <Given as clap::CommandFactory>::command().debug_assert();
    }

    #[test]
    fn the_backend_is_that_of_the_option_then_of_the_environment_then_the_default() {
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

    #[test]
    fn waits_are_seconds_or_durations() {
        for (text, millis) in
            [("10", 10_000), ("0.5", 500), ("0", 0), ("1.", 1000), ("2m", 120_000)]
        {
            assert_eq!(patience(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", ".", "-1", "-0.5", "1e3", "inf", "NaN", "1year", "99999999999999999999", "x"]
        {
            assert!(patience(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_positive_and_not_absurd() {
        assert_eq!(span("1m 30s"), Ok(Duration::from_secs(90)));
        for text in ["", "0", "0s", "-5s", "30", "1year", "99999999999999999999s", "s"] {
            assert!(span(text).is_err(), "{text}");
        }
        assert!(lease("25h").is_err() && lease("1ns").is_err() && lease("24h").is_ok());
    }

    #[test]
    fn a_url_is_not_repeated() {
        assert!(!shown("redis://u:secret@h").contains("secret"));
        assert!(shown(&"x".repeat(100_000)).len() < 100);
    }
}
