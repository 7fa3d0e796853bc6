//! The end of lockctl: exit statuses, and one line on stderr.

use std::error::Error as StdError;
use std::io::Write as _;
use std::os::unix::process::ExitStatusExt as _;
use std::process::{ExitCode, ExitStatus};

use lock_any::ErrorKind;
use nix::sys::signal::Signal;

/// An exit status of lockctl.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Exit(u8);

impl Exit {
    pub(crate) const SUCCESS: Self = Self(0);
    /// The lock is free, the hold does not exist, or the servers guarantee less than usual.
    pub(crate) const NOTHING: Self = Self(1);
    /// Wrong usage, name or URL, or not supported by the backend.
    pub(crate) const USAGE: Self = Self(64);
    /// The backend is unavailable, or refuses.
    pub(crate) const UNAVAILABLE: Self = Self(69);
    /// A defect of lockctl or of a backend.
    pub(crate) const INTERNAL: Self = Self(70);
    /// The lock was lost.
    pub(crate) const LOST: Self = Self(76);
    /// Credentials or rights are missing.
    pub(crate) const DENIED: Self = Self(77);
    /// The command exists, but cannot be run, as in a shell.
    pub(crate) const CANNOT_RUN: Self = Self(126);
    /// The command does not exist, as in a shell.
    pub(crate) const NOT_FOUND: Self = Self(127);

    pub(crate) fn with(status: u8) -> Self {
        Self(status)
    }

    /// Returns the command's own status, as a shell shows it.
    pub(crate) fn of_command(status: ExitStatus) -> Self {
        match (status.code(), status.signal()) {
            (Some(code), _) => Self(code.to_le_bytes()[0]),
            (None, Some(signal)) => Self::by_signal(signal),
            (None, None) => Self::INTERNAL,
        }
    }

    pub(crate) fn by_signal(signal: i32) -> Self {
        Self(u8::try_from(128 + signal).unwrap_or(u8::MAX))
    }

    pub(crate) fn of_error(kind: ErrorKind) -> Self {
        match kind {
            ErrorKind::Invalid | ErrorKind::Unsupported => Self::USAGE,
            ErrorKind::Unavailable | ErrorKind::Timeout | ErrorKind::Exhausted => Self::UNAVAILABLE,
            ErrorKind::Denied => Self::DENIED,
            ErrorKind::Lost | ErrorKind::NotHeld | ErrorKind::Gone => Self::LOST,
            _ => Self::INTERNAL,
        }
    }

    /// Returns the status for a command that could not be started.
    pub(crate) fn of_start(error: &std::io::Error) -> Self {
        match error.kind() {
            std::io::ErrorKind::NotFound => Self::NOT_FOUND,
            _ => Self::CANNOT_RUN,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        exit.0.into()
    }
}

/// The reason for an end other than that of the command.
#[derive(Debug)]
pub(crate) struct Failure {
    exit: Exit,
    message: Option<String>,
    /// The signal of which lockctl dies.
    signal: Option<Signal>,
}

impl Failure {
    pub(crate) fn new(exit: Exit, message: impl Into<String>) -> Self {
        Self { exit, message: Some(message.into()), signal: None }
    }

    pub(crate) fn silent(exit: Exit) -> Self {
        Self { exit, message: None, signal: None }
    }

    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(Exit::USAGE, message)
    }

    /// Returns an end by a signal, without a message, because its sender knows.
    pub(crate) fn signalled(signal: Signal) -> Self {
        Self { exit: Exit::by_signal(signal as i32), message: None, signal: Some(signal) }
    }

    pub(crate) fn internal(problem: &str, cause: &dyn StdError) -> Self {
        Self::new(Exit::INTERNAL, format!("{problem}: {}", chain(cause)))
    }

    /// Returns the reason for the loss of the lock, if it was lost.
    pub(crate) fn loss_message(&self) -> Option<&str> {
        self.message.as_deref().filter(|_| self.exit == Exit::LOST)
    }

    /// Returns the signal of which lockctl is to die.
    pub(crate) fn signal(&self) -> Option<Signal> {
        self.signal
    }

    /// Writes the message to stderr. Returns the exit status.
    pub(crate) fn report(self) -> Exit {
        if let Some(message) = &self.message {
            print_message(message);
        }
        self.exit
    }
}

impl From<lock_any::Error> for Failure {
    fn from(error: lock_any::Error) -> Self {
        Self::new(Exit::of_error(error.kind()), chain(&error))
    }
}

/// Returns an error and its causes on one line. A refusal shows its cause already.
pub(crate) fn chain(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let shown = format!(": {error}");
        if !text.ends_with(&shown) {
            text.push_str(&shown);
        }
        cause = error.source();
    }
    text
}

/// Writes one line to stderr in one write, because other processes may write there too. Ignores
/// failures.
pub(crate) fn print_message(message: &str) {
    let line = format!("lockctl: {}\n", one_line(message));
    let _ = std::io::stderr().write_all(line.as_bytes());
}

/// Returns untrusted text on one line, without control characters, and of limited length.
pub(crate) fn one_line(text: &str) -> String {
    const LONGEST: usize = 600;
    let words: Vec<&str> = text.split_whitespace().collect();
    let mut line = words.join(" ");
    line = line.chars().map(|c| if c.is_control() { '?' } else { c }).collect();
    if let Some((end, _)) = line.char_indices().nth(LONGEST) {
        line.truncate(end);
        line.push('…');
    }
    line
}

/// Makes a panic in any thread end lockctl with one line and [`Exit::INTERNAL`], after `clean_up`.
/// That kills the command, because the renewal of the lock may be dead, and restores the terminal.
pub(crate) fn end_on_panic(clean_up: fn()) {
    std::panic::set_hook(Box::new(move |panic| {
        clean_up();
        let payload = panic.payload();
        let text = payload.downcast_ref::<&str>().copied();
        let text = text.or_else(|| payload.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("no reason given");
        let place = panic.location().map(ToString::to_string);
        print_message(&format!(
            "internal error, please report it: {text} ({})",
            place.as_deref().unwrap_or("unknown place")
        ));
        std::process::exit(i32::from(Exit::INTERNAL.0));
    }));
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn messages_are_one_line_of_limited_length() {
        assert_eq!(one_line("a\n  b\u{1b}[2J\tc"), "a b?[2J c");
        assert_eq!(one_line(&"é".repeat(10_000)).chars().count(), 601);
    }

    #[test]
    fn causes_follow_the_error() {
        let why = std::io::Error::other("disk on fire");
        let error = lock_any::Error::new(ErrorKind::Unavailable, "cannot lock").with_source(why);
        assert_eq!(chain(&error), "cannot lock: disk on fire");
    }

    /// Panics in a process of its own: this test, started again.
    #[test]
    fn a_panic_is_status_70_and_one_line() {
        const AGAIN: &str = "LOCKCTL_TEST_PANICS";
        if std::env::var_os(AGAIN).is_some() {
            end_on_panic(|| {});
            let _ = std::thread::spawn(|| panic!("two\nlines")).join();
            unreachable!("the process ended with the panic");
        }
        let me = std::env::current_exe().unwrap();
        let output = Command::new(me)
            .args(["--exact", "exit::tests::a_panic_is_status_70_and_one_line"])
            .env(AGAIN, "yes")
            .env("RUST_BACKTRACE", "1")
            .output()
            .unwrap();
        assert_eq!(output.status.code(), Some(70));
        let said = String::from_utf8(output.stderr).unwrap();
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(said.starts_with("lockctl: internal error"), "{said}");
        assert!(said.contains("two lines"), "{said}");
    }
}
