//! The counter from which fencing tokens are drawn: one on each server, started with the server's
//! clock.
//!
//! A token is drawn in the request that takes the lock, so two tokens of one lock are drawn in the
//! order of their grants. Drawing never creates the counter. A client that finds none waits until
//! the server's clock has moved on to another second, and starts with that, so no token that was
//! drawn before comes again. A new counter lasts for three seconds of that clock unless a client
//! draws: a request that was delayed for longer starts nothing.

use std::sync::Arc;
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::{Moment, sleep_between};
use lock_core::dial::SingleFlight;

use crate::connection::wire::{Reply, Request};
use crate::connection::{Connection, Link, stat};
use crate::fault;

/// Time from its last draw for which a counter lasts. One second would be safe, but without a
/// counter the next lock waits for a new one.
pub(crate) const COUNTER_TTL: u64 = 30 * 24 * 3600;

/// Numbers of one second.
const MICROS: u64 = 1_000_000;

/// Time for which a new counter lasts without a draw.
const SEED_TTL: u64 = 3;

/// Limit of the wait for the next second of the server.
const NEXT_SECOND_TIMEOUT: Duration = Duration::from_secs(4);

const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// The counter of one server.
#[derive(Debug, Default)]
pub(crate) struct TokenCounter(SingleFlight<()>);

impl TokenCounter {
    /// Starts the counter, in one or two seconds. All callers share one request.
    pub(crate) async fn begin(&self, link: &Arc<Link>, key: &str) -> Result<(), Fault> {
        let (link, key) = (Arc::clone(link), key.to_owned());
        self.0.join(|| async move { begin(&link, &key).await }).await
    }
}

/// Returns the first number. Numbers are microseconds at first, of which each second has enough.
pub(crate) fn seed(second: u64) -> String {
    (second * MICROS).to_string()
}

async fn begin(link: &Link, key: &str) -> Result<(), Fault> {
    let connection = link.connection().await?;
    let missed_at = second(&connection).await?;
    let late = Moment::now() + NEXT_SECOND_TIMEOUT;
    let now = loop {
        sleep_between(POLL_INTERVAL / 2, POLL_INTERVAL).await;
        match second(&connection).await? {
            now if now > missed_at => break now,
            _ if late.has_passed() => {
                let why = "the server's clock stands still, so no fencing tokens can be given";
                return Err(Fault::not_applied(FaultKind::Unavailable, why));
            }
            _ => {}
        }
    };
    let request =
        Request::new().add(key, now + SEED_TTL, &seed(now)).increment(key, 1, COUNTER_TTL);
    let (_, replies) = connection.ask(&request).await?;
    for reply in replies {
        match reply {
            Reply::Stored | Reply::NotStored | Reply::Value(_) | Reply::Missing => {}
            other => return Err(other.unexpected("begin the counter of fencing tokens")),
        }
    }
    Ok(())
}

async fn second(connection: &Connection) -> Result<u64, Fault> {
    let time = time_of(&connection.stats("").await?);
    time.ok_or_else(|| fault::unexpected_reply("read the server's clock", "no time"))
}

/// Returns the server's clock, in seconds; `None` unless it gives tokens.
pub(crate) fn time_of(stats: &[(String, String)]) -> Option<u64> {
    let time = stat(stats, "time").and_then(|time| time.parse().ok());
    time.filter(|time| *time <= FencingToken::MAX_BACKEND_NUMBER / MICROS)
}

/// Refuses a number that the counter cannot have reached by itself: above all tokens, or far below
/// the server's clock, with which it started. The clock is read only for numbers that no present
/// server starts with.
pub(crate) async fn check(connection: &Connection, key: &str, number: u64) -> Result<(), Fault> {
    /// The year 2020, when the first memcached appeared that can be used for locks.
    const OLDEST: u64 = 1_577_836_800;
    /// No counter is drawn from for as long.
    const YEARS: u64 = 10 * 365 * 24 * 3600;

    let why = if FencingToken::from_backend(number).is_none() {
        "is above all fencing tokens"
    } else if number < OLDEST * 1_000_000
        && number / 1_000_000 + YEARS < Box::pin(second(connection)).await?
    {
        "is far below the server's clock"
    } else {
        return Ok(());
    };
    Err(fault::foreign_counter(key, number, why))
}

/// Returns the number that was drawn; `None` if there is no counter.
pub(crate) fn drawn(reply: Option<Reply>) -> Result<Option<u64>, Fault> {
    let action = "draw a fencing token";
    match reply {
        Some(Reply::Missing) => Ok(None),
        Some(Reply::Value(item)) => {
            let text = item.value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
            let number = text.and_then(|text| text.trim_end().parse().ok());
            number.map(Some).ok_or_else(|| fault::unexpected_reply(action, "no number"))
        }
        Some(other) => Err(other.unexpected(action)),
        None => Err(fault::unexpected_reply(action, "nothing")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_gives_no_token_is_not_read() {
        let time = |text: &str| time_of(&[("time".to_owned(), text.to_owned())]);
        assert_eq!(time("1764217000"), Some(1_764_217_000));
        for absurd in ["", "-1", "x", "36028797019", "18446744073709551615"] {
            assert_eq!(time(absurd), None, "{absurd}");
        }
        let last = time("36028797017").map(seed).and_then(|first| first.parse().ok());
        assert!(last.and_then(FencingToken::from_backend).is_some());
    }
}
