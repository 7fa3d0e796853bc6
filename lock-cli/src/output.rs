//! Output on stdout.

use std::io::{ErrorKind, Write as _, stdout};
use std::ops::ControlFlow;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::exit::Failure;

/// Writes to stdout. A reader that closed the pipe has read enough.
pub(crate) fn print(text: &str) -> Result<(), Failure> {
    print_more(text).map(drop)
}

/// Writes to stdout where more follows. Returns a break if the reader closed the pipe.
pub(crate) fn print_more(text: &str) -> Result<ControlFlow<()>, Failure> {
    match write(text) {
        Ok(()) => Ok(ControlFlow::Continue(())),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(ControlFlow::Break(())),
        Err(error) => Err(unwritable(&error)),
    }
}

/// Writes to stdout, and fails if the reader closed the pipe.
pub(crate) fn write(text: &str) -> std::io::Result<()> {
    let mut stdout = stdout().lock();
    stdout.write_all(text.as_bytes())?;
    stdout.flush()
}

/// Writes like [`write()`], on another thread, because the reader may block it. Not on a thread of
/// the runtime, which panics if it cannot start one.
pub(crate) async fn write_on_thread(text: String) -> std::io::Result<()> {
    let (done, written) = oneshot::channel();
    std::thread::Builder::new().spawn(move || done.send(write(&text)))?;
    written.await.unwrap_or_else(|gone| Err(std::io::Error::other(gone)))
}

pub(crate) fn unwritable(error: &std::io::Error) -> Failure {
    Failure::internal("cannot write to stdout", error)
}

/// Returns one line of JSON.
pub(crate) fn json(value: &impl serde::Serialize) -> Result<String, Failure> {
    let line = serde_json::to_string(value);
    line.map(|line| line + "\n").map_err(|error| Failure::internal("cannot write JSON", &error))
}

/// Returns a duration for people, without nanoseconds.
pub(crate) fn rounded(span: Duration) -> humantime::FormattedDuration {
    let exact = span < Duration::from_secs(10);
    humantime::format_duration(match exact {
        true => Duration::from_millis(millis(span)),
        false => Duration::from_secs(span.as_secs()),
    })
}

pub(crate) fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
