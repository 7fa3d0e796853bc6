//! Requests: the round trip, the clock, and the counter of fencing tokens.

use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::clock::{Moment, wall};
use lock_core::diagnosis::{Finding, percentile};
use lock_core::{Error, LockName, OwnerId};

use crate::config::Config;
use crate::connection::Connection;
use crate::connection::wire::{Reply, Request};
use crate::lease::TTL_MIN;
use crate::token_counter::{self, drawn, time_of};

/// The number of measured requests, and the bound on the time for them.
const REQUESTS: usize = 50;
const BOUND: Duration = Duration::from_secs(5);

/// A request without an answer for ten times as long ends the connection.
const SLOW: Duration = Duration::from_millis(500);

/// The ttl in round trips: up to three for a renewal, which is due after a third of the ttl.
const ROUND_TRIPS: u32 = 9;

/// The difference of the clocks from which on it is a warning.
const MAX_OFFSET: Duration = Duration::from_secs(60);

pub(super) async fn check(config: &Config, connection: &Connection) -> Vec<Finding> {
    let unseen = |check| {
        move |fault: Fault| {
            Finding::unseen(check, fault.into_source()).remedy("see the log of the server")
        }
    };
    vec![
        round_trip(config, connection).await.unwrap_or_else(unseen("round trip")),
        clock(connection).await.unwrap_or_else(unseen("clock")),
        counter(config, connection).await.unwrap_or_else(unseen("token counter")),
    ]
}

async fn round_trip(config: &Config, connection: &Connection) -> Result<Finding, Fault> {
    let key = match own_key(config) {
        Ok(key) => key,
        Err(error) => return Ok(Finding::unseen("round trip", error)),
    };
    let (until, mut times) = (Moment::now() + BOUND, Vec::with_capacity(REQUESTS));
    while times.len() < REQUESTS && !until.has_passed() {
        let sent = Moment::now();
        match connection.ask_one(&Request::new().exists(&key)).await? {
            Reply::Missing => times.push(Moment::now().saturating_since(sent)),
            other => return Err(other.unexpected("read a key that does not exist")),
        }
    }
    times.sort_unstable();
    Ok(measured(times.len(), percentile(&times, 50), percentile(&times, 99)))
}

/// Returns the key of a lock that no client has.
fn own_key(config: &Config) -> Result<String, Error> {
    let name = LockName::new(format!("lockctl-doctor-{}", OwnerId::mint().expose()))?;
    Ok(config.keys.of(&name))
}

fn measured(count: usize, p50: Duration, p99: Duration) -> Finding {
    let ttl = (p99 * ROUND_TRIPS).max(TTL_MIN);
    let text =
        format!("{count} reads: p50 {p50:.1?}, p99 {p99:.1?}; use a ttl of {ttl:.0?} or longer");
    match p99 > SLOW {
        true => Finding::warning("round trip", format!("{text}: answers are slow"))
            .remedy("use a server that is closer or less busy, and longer leases"),
        false => Finding::ok("round trip", text),
    }
}

async fn clock(connection: &Connection) -> Result<Finding, Fault> {
    let before = wall();
    let stats = connection.stats("").await?;
    let after = wall();
    Ok(match time_of(&stats) {
        Some(seconds) => compared(Duration::from_secs(seconds), before, after),
        None => Finding::failure("clock", "it gives no fencing tokens: it is missing or absurd")
            .remedy("set the clock of the server's host, and restart the server"),
    })
}

/// Compares the server's clock with ours before and after the request.
fn compared(server: Duration, before: Duration, after: Duration) -> Finding {
    let (behind, ahead) = (before.saturating_sub(server), server.saturating_sub(after));
    let offset = behind.max(ahead);
    let side = if behind > ahead { "behind" } else { "ahead of" };
    if offset > MAX_OFFSET {
        let text = format!(
            "{offset:.0?} {side} ours: a counter of fencing tokens starts with it, and after a \
             restart with another time tokens may repeat"
        );
        Finding::warning("clock", text)
            .remedy("keep the clocks of all hosts with NTP; the server reads its own at its start")
    } else {
        Finding::ok("clock", format!("within {MAX_OFFSET:?} of ours"))
    }
}

/// Reads the counter, and draws nothing.
async fn counter(config: &Config, connection: &Connection) -> Result<Finding, Fault> {
    let key = config.keys.counter();
    let reply = connection.ask_one(&Request::new().get(&key)).await?;
    let checked = match drawn(Some(reply)) {
        Ok(None) => {
            let text = "there is none yet: the first client starts it, within two seconds";
            return Ok(Finding::ok("token counter", text));
        }
        Ok(Some(number)) => token_counter::check(connection, &key, number).await,
        Err(fault) => Err(fault),
    };
    Ok(match checked {
        Ok(()) => Finding::ok("token counter", format!("{key} holds a plausible number")),
        Err(fault) => Finding::failure("token counter", fault.into_source().to_string())
            .remedy(format!("delete the key {key}: the next lock starts it anew")),
    })
}

#[cfg(test)]
mod tests {
    use lock_core::diagnosis::Severity;

    use super::*;

    #[test]
    fn clocks_differ_by_more_than_a_request_takes() {
        let seconds = Duration::from_secs;
        let of = |server| compared(seconds(server), seconds(1000), seconds(1010));
        assert_eq!([940, 1000, 1070].map(of).map(|found| found.severity), [Severity::Ok; 3]);
        for (server, text) in [(939, "61s behind"), (1071, "61s ahead of")] {
            let found = of(server);
            assert!(found.severity == Severity::Warning && found.text.starts_with(text), "{found}");
        }
    }

    #[test]
    fn slow_answers_are_warned_of() {
        let of = |millis| measured(50, TTL_MIN, Duration::from_millis(millis)).severity;
        assert_eq!([500, 501].map(of), [Severity::Ok, Severity::Warning]);
    }
}
