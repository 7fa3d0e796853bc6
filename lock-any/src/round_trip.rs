//! The time that a free lock takes, measured on any backend.

use std::sync::Arc;
use std::time::Duration;

use lock_core::clock::Moment;
use lock_core::diagnosis::{Finding, percentile};
use lock_core::url::Url;
use lock_core::{Error, ErrorKind, LockName, Locker, OwnerId};

use crate::options::{CommonOptions, DEFAULT_TTL};
use crate::servers::Servers;

const CHECK: &str = "acquire and release";

/// The number of acquisitions that are measured, and the time after which no more of them begin.
const ROUNDS: usize = 50;
const LIMIT: Duration = Duration::from_secs(5);

/// A renewal is sent at each third of a lease. It may take that many times as long as the slowest
/// round trips that were measured: servers and networks have worse moments than this one.
const FACTOR: u32 = 10;

/// Measures acquisitions of a free lock, with their releases. Returns a second finding if something
/// is left behind.
pub(crate) async fn check(
    url: Url,
    common: CommonOptions,
    servers: &[Arc<Servers>],
    is_wanted: &impl Fn() -> bool,
) -> Vec<Finding> {
    let ttl = common.ttl();
    let failure = |error: Error| Finding::failure(CHECK, format!("{error:#}"));
    let name = match LockName::new(format!("lockctl-doctor/{}", OwnerId::mint().expose())) {
        Ok(name) => name,
        Err(error) => return vec![failure(error)],
    };
    let locks = match crate::open(url, common.max_ttl()).await {
        Ok(builder) => common.apply(builder).build(),
        Err(error) => return vec![failure(error)],
    };
    let measured = measure(&locks, &name, is_wanted).await;
    let mut findings = vec![match measured {
        Ok(took) => judge(&took, ttl_of(&locks, ttl)),
        Err(error) => failure(error),
    }];
    let _ = locks.close().await;
    drop(locks);
    for servers in servers {
        match servers.forget(&name).await {
            // There are findings about a member that is away.
            Err(error) if !error.is_retryable() => {
                let text = format!("some of lock {name} may be left until it expires: {error:#}");
                findings.push(Finding::warning("residue", text));
            }
            _ => {}
        }
    }
    findings
}

/// Returns how long each acquisition took together with its release, sorted.
async fn measure(
    locks: &Locker,
    name: &LockName,
    is_wanted: &impl Fn() -> bool,
) -> Result<Vec<Duration>, Error> {
    let lock = locks.lock(name)?;
    let (began, mut took) = (Moment::now(), Vec::with_capacity(ROUNDS));
    while took.len() < ROUNDS && !(began + LIMIT).has_passed() && is_wanted() {
        let started = Moment::now();
        let Some(guard) = lock.try_acquire().await? else {
            let message = "a lock with a random name is held by another client";
            return Err(Error::new(ErrorKind::BackendBroken, message));
        };
        guard.release().await?;
        took.push(Moment::now().saturating_since(started));
    }
    took.sort_unstable();
    Ok(took)
}

/// Returns the lease of a lock without a ttl of its own.
fn ttl_of(locks: &Locker, from_url: Option<Duration>) -> Duration {
    let range = locks.ttl_range();
    from_url.unwrap_or_else(|| DEFAULT_TTL.clamp(*range.start(), *range.end()))
}

/// Compares sorted round trips with a lease.
fn judge(took: &[Duration], ttl: Duration) -> Finding {
    let (p50, p99) = (percentile(took, 50), percentile(took, 99));
    let safe = p99 * FACTOR * 3;
    let text = format!(
        "{} times: p50 {p50:.1?}, p99 {p99:.1?}; safe for a ttl of {safe:.1?} or more, and the ttl \
         is {}",
        took.len(),
        humantime::format_duration(ttl)
    );
    match safe > ttl {
        false => Finding::ok(CHECK, text),
        true => Finding::warning(CHECK, format!("{text}: a renewal may come too late"))
            .remedy(format!("set the URL option ttl to {} or more", whole_seconds(safe))),
    }
}

fn whole_seconds(span: Duration) -> String {
    format!("{}s", span.as_millis().div_ceil(1000))
}

#[cfg(test)]
mod tests {
    use lock_core::diagnosis::Severity;

    use super::*;

    #[test]
    fn a_round_trip_that_is_slow_for_the_lease_is_a_warning() {
        let took = |millis| judge(&[Duration::from_millis(millis)], Duration::from_secs(30));
        assert_eq!(took(1000).severity, Severity::Ok);
        let slow = took(1001);
        assert_eq!(slow.severity, Severity::Warning);
        assert!(slow.remedy.unwrap().contains(" 31s "));
    }
}
