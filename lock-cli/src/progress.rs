//! The progress of `lockctl run` on stderr: wait, acquisition, loss.

use std::cell::RefCell;
use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _, stderr};
use std::time::{Duration, UNIX_EPOCH};

use lock_any::backend::{Holder, LockState};
use lock_any::clock::{Moment, sleep, wall};
use lock_any::{LockGuard, LockName, Locker, Support};
use nix::unistd::{getpgrp, tcgetpgrp};
use serde::Serialize;

use crate::cli::Run;
use crate::exit::{chain, print_message};
use crate::inspect::{self, HolderReport};
use crate::output::{json, millis, rounded};

/// The shortest wait that is shown.
const FIRST_REPORT: Duration = Duration::from_millis(200);
/// The period in which the line on a terminal is rewritten.
const TERMINAL_PERIOD: Duration = Duration::from_secs(1);
/// The longest pause between reports elsewhere. Each pause is twice as long as the one before.
const LONGEST_PAUSE: Duration = Duration::from_secs(60);
/// The longest wait for a server to name the holder.
const INSPECT_TIMEOUT: Duration = Duration::from_millis(500);

/// The form of the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Silent,
    /// One line, which is rewritten, and erased at the end.
    Terminal,
    Lines,
    Json,
}

/// The reporter of one lock.
pub(crate) struct Progress<'a> {
    format: Format,
    name: &'a LockName,
    began: Moment,
    /// The error of a backend that will be ready by itself, and when it was made.
    not_ready: RefCell<Option<(lock_any::Error, Moment)>>,
}

/// An event as a line of JSON.
#[derive(Serialize)]
struct Event<'a> {
    event: &'a str,
    time: String,
    name: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    waited_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holders: Option<Vec<HolderReport<'a>>>,
    /// A string, because readers of JSON round numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    fencing_token: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    why: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    retry_after_ms: Option<u64>,
}

impl<'a> Progress<'a> {
    pub(crate) fn of(args: &'a Run) -> Self {
        let format = match (args.json, args.verbose) {
            (true, _) => Format::Json,
            _ if args.wait_options.quiet => Format::Silent,
            (_, true) if !stderr().is_terminal() => Format::Lines,
            _ if stderr().is_terminal() => Format::Terminal,
            _ => Format::Silent,
        };
        Self::new(format, args.name.get())
    }

    pub(crate) fn silent(name: &'a LockName) -> Self {
        Self::new(Format::Silent, name)
    }

    fn new(format: Format, name: &'a LockName) -> Self {
        Self { format, name, began: Moment::now(), not_ready: RefCell::new(None) }
    }

    /// Shows the wait until the future is dropped.
    pub(crate) async fn show_wait(&self, locks: &Locker) -> Infallible {
        if self.format == Format::Silent {
            std::future::pending::<()>().await;
        }
        let _erased = EraseOnDrop(self.format);
        let mut pause = FIRST_REPORT;
        loop {
            sleep(pause).await;
            match self.still_not_ready() {
                Some((error, left)) => self.show_not_ready(&error, left),
                None => self.show_holders(&inspect_briefly(locks, self.name).await),
            }
            pause = match self.format {
                Format::Terminal => TERMINAL_PERIOD,
                _ => (pause * 2).min(LONGEST_PAUSE),
            };
        }
    }

    fn show_holders(&self, seen: &LockState) {
        let (name, waited, holders) = (self.name, self.waited(), &seen.holders);
        let text = || {
            let key = seen.key.as_deref().filter(|key| !key.ends_with(name.as_str()));
            let key = key.map(|key| format!(", key {}", inspect::describe_key(name, key)));
            let by = held_by(holders).map(|by| format!(", {by}")).unwrap_or_default();
            let waited = rounded(waited);
            format!("waiting for lock {name}{}{by}, waited for {waited}", key.unwrap_or_default())
        };
        match self.format {
            Format::Silent => {}
            Format::Terminal => Self::rewrite(&text()),
            Format::Lines => print_message(&text()),
            Format::Json => {
                let seen = holders.iter().map(|holder| HolderReport::of(holder, false)).collect();
                Self::write_event(&Event {
                    waited_ms: Some(millis(waited)),
                    holders: Some(seen),
                    ..self.event("waiting")
                });
            }
        }
    }

    /// Sets the error of a backend that will be ready by itself.
    pub(crate) fn set_not_ready(&self, error: Option<lock_any::Error>) {
        *self.not_ready.borrow_mut() = error.map(|error| (error, Moment::now()));
    }

    /// Returns that error, and how long the backend is not ready yet.
    fn still_not_ready(&self) -> Option<(lock_any::Error, Duration)> {
        let (error, since) = self.not_ready.borrow().clone()?;
        let left = error.retry_after()?.saturating_sub(Moment::now().saturating_since(since));
        Some((error, left))
    }

    fn show_not_ready(&self, error: &lock_any::Error, left: Duration) {
        let (waited, why) = (self.waited(), chain(error));
        let text = || {
            let (name, left, waited) = (self.name, rounded(left), rounded(waited));
            format!("waiting for lock {name}, not ready for {left} yet, waited for {waited}")
        };
        match self.format {
            Format::Silent => {}
            Format::Terminal => Self::rewrite(&text()),
            Format::Lines => print_message(&format!("{}: {why}", text())),
            Format::Json => Self::write_event(&Event {
                waited_ms: Some(millis(waited)),
                why: Some(&why),
                retry_after_ms: Some(millis(left)),
                ..self.event("waiting")
            }),
        }
    }

    pub(crate) fn acquired(&self, guard: &LockGuard) {
        let waited = self.waited();
        match self.format {
            Format::Silent | Format::Terminal => {}
            Format::Lines => {
                print_message(&format!("acquired lock {} after {}", self.name, rounded(waited)));
            }
            Format::Json => Self::write_event(&Event {
                waited_ms: Some(millis(waited)),
                fencing_token: guard.fencing_token().map(|token| token.to_string()),
                ..self.event("acquired")
            }),
        }
    }

    pub(crate) fn lost(&self, why: &str) {
        if self.format == Format::Json {
            Self::write_event(&Event { why: Some(why), ..self.event("lost") });
        }
    }

    fn event<'e>(&self, event: &'e str) -> Event<'e>
    where
        'a: 'e,
    {
        Event {
            event,
            time: humantime::format_rfc3339_millis(UNIX_EPOCH + wall()).to_string(),
            name: self.name.as_str(),
            waited_ms: None,
            holders: None,
            fencing_token: None,
            why: None,
            retry_after_ms: None,
        }
    }

    /// Rewrites the line on a terminal.
    fn rewrite(text: &str) {
        if is_in_foreground() {
            write(&format!("\r\x1b[K{text}"));
        }
    }

    fn write_event(event: &Event<'_>) {
        if let Ok(line) = json(event) {
            write(&line);
        }
    }

    fn waited(&self) -> Duration {
        Moment::now().saturating_since(self.began)
    }
}

/// A guard that erases the line on a terminal.
struct EraseOnDrop(Format);

impl Drop for EraseOnDrop {
    fn drop(&mut self) {
        if self.0 == Format::Terminal && is_in_foreground() {
            write("\r\x1b[K");
        }
    }
}

/// Inspects the lock, if the backend can do that and answers soon.
pub(crate) async fn inspect_briefly(locks: &Locker, name: &LockName) -> LockState {
    if locks.capabilities().inspecting == Support::Absent {
        return LockState::default();
    }
    tokio::select! {
        state = locks.inspect(name) => state.unwrap_or_default(),
        () = sleep(INSPECT_TIMEOUT) => LockState::default(),
    }
}

/// Returns "held by …" if the holder is known.
pub(crate) fn held_by(holders: &[Holder]) -> Option<String> {
    let each = holders.iter().map(|holder| {
        let since = holder.held_for.map(|span| format!(", for {}", rounded(span)));
        inspect::describe(holder, false) + &since.unwrap_or_default()
    });
    let all = each.collect::<Vec<_>>().join("; ");
    (!all.is_empty()).then(|| format!("held by {all}"))
}

/// Writes in one write, because other processes may write there too. Ignores failures.
fn write(text: &str) {
    let _ = stderr().write_all(text.as_bytes());
}

/// Returns false if a shell has put lockctl into the background, and uses the terminal itself.
fn is_in_foreground() -> bool {
    tcgetpgrp(stderr()) == Ok(getpgrp())
}
