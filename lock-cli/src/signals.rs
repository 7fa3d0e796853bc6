//! Signals as asynchronous events.

use std::future::poll_fn;
use std::task::Poll;

use nix::sys::signal::{SigSet, Signal};
use tokio::signal::unix::{Signal as Stream, SignalKind, signal};

use crate::exit::Failure;

/// The signals that end lockctl while there is no command.
pub(crate) const ENDING: &[Signal] =
    &[Signal::SIGTERM, Signal::SIGINT, Signal::SIGHUP, Signal::SIGQUIT];

/// The signals that are forwarded to the command besides the ending ones. Not SIGTTIN and SIGTTOU:
/// they concern lockctl's own use of the terminal, and it has none.
pub(crate) const FORWARDED: &[Signal] = &[
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGALRM,
    Signal::SIGWINCH,
    Signal::SIGTSTP,
    Signal::SIGCONT,
];

/// Unblocks signals that lockctl inherited as blocked: without SIGCHLD, the end of the command
/// would go unnoticed. Call it before there are other threads.
pub(crate) fn unblock() {
    let mut needed = SigSet::from(Signal::SIGCHLD);
    needed.extend(ENDING.iter().chain(FORWARDED).copied());
    let _ = needed.thread_unblock();
}

/// The caught signals.
pub(crate) struct Signals {
    streams: Vec<(Signal, Stream)>,
    /// The signals that were ignored when lockctl was started, by `nohup` or a shell without job
    /// control. They stay ignored, for the command as well.
    ignored: u64,
}

impl Signals {
    pub(crate) fn catch(wanted: &[Signal]) -> Result<Self, Failure> {
        let mut signals = Self { streams: Vec::new(), ignored: ignored_at_start() };
        signals.catch_more(wanted)?;
        // Then a file that exceeds `ulimit -f` is an error of the write, and does not kill lockctl.
        if !signals.are_ignored(Signal::SIGXFSZ) {
            drop(catch(Signal::SIGXFSZ)?);
        }
        Ok(signals)
    }

    pub(crate) fn catch_more(&mut self, wanted: &[Signal]) -> Result<(), Failure> {
        for &wanted in wanted {
            if !self.are_ignored(wanted) {
                self.streams.push((wanted, catch(wanted)?));
            }
        }
        Ok(())
    }

    pub(crate) fn are_ignored(&self, signal: Signal) -> bool {
        self.ignored & (1 << (signal as i32 - 1)) != 0
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses no signal.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|cx| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(cx) == Poll::Ready(Some(())) {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}

/// Catches a signal from now on, even after the stream is dropped.
fn catch(wanted: Signal) -> Result<Stream, Failure> {
    signal(SignalKind::from_raw(wanted as i32))
        .map_err(|error| Failure::internal("cannot catch signals", &error))
}

/// A stream that wakes when a child has ended or stopped.
pub(crate) struct Children(Stream);

impl Children {
    pub(crate) fn watch() -> Result<Self, Failure> {
        signal(SignalKind::child())
            .map(Self)
            .map_err(|error| Failure::internal("cannot watch the command", &error))
    }

    pub(crate) async fn next(&mut self) {
        self.0.recv().await;
    }
}

/// Returns the ignored signals. Bit n − 1 stands for signal n.
fn ignored_at_start() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
