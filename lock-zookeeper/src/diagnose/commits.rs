//! The time that a commit takes, against the session timeout.

use std::time::Duration;

use lock_core::clock::Moment;
use lock_core::diagnosis::{Finding, percentile};

use super::member::Member;
use crate::fault::fault;
use crate::session::commit_no_op;
use crate::session::manager::{BEARABLE, SLOW};

/// The number of measured commits of each member, and the bound on the time for them.
const COMMITS: usize = 30;
const BOUND: Duration = Duration::from_secs(5);

/// Measures the members one after the other.
pub(super) async fn check(serving: &[&Member]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for member in serving {
        findings.extend(measure(member).await.map(|finding| finding.of_server(&member.address)));
    }
    findings
}

async fn measure(member: &Member) -> Option<Finding> {
    let client = member.client()?;
    let timeout = client.session_timeout();
    let (until, mut times) = (Moment::now() + BOUND, Vec::with_capacity(COMMITS));
    while times.len() < COMMITS && !until.has_passed() {
        match tokio::time::timeout(timeout / 2, commit_no_op(client)).await {
            Ok(Ok(commit)) => times.push(commit.took()),
            Ok(Err(error)) => {
                let why = fault("committing a write", &error).into_source();
                return Some(
                    Finding::unseen("round trip", why).remedy("see the log of the server"),
                );
            }
            Err(_) => times.push(timeout / 2),
        }
    }
    times.sort_unstable();
    Some(finding(times.len(), percentile(&times, 50), percentile(&times, 99), timeout))
}

/// Returns the finding for these times. Locks are lost where commits take more than a tenth of the
/// timeout, and half of that is a warning, as when a client connects.
fn finding(count: usize, p50: Duration, p99: Duration, timeout: Duration) -> Finding {
    let bound = timeout / BEARABLE;
    let text = format!(
        "{count} commits: p50 {p50:.1?}, p99 {p99:.1?}; locks bear {bound:.1?} of {timeout:?}"
    );
    let remedy = "ask for a longer session_timeout, or give the servers a faster disk and network";
    if p50 > bound {
        Finding::failure("round trip", format!("{text}: they are lost at once")).remedy(remedy)
    } else if p99 > timeout / SLOW {
        Finding::warning("round trip", format!("{text}: warned of from half of that on"))
            .remedy(remedy)
    } else {
        Finding::ok("round trip", text)
    }
}

#[cfg(test)]
mod tests {
    use lock_core::diagnosis::Severity;

    use super::*;

    #[test]
    fn a_twentieth_of_the_timeout_is_warned_of_and_a_tenth_is_a_failure() {
        let millis = Duration::from_millis;
        let of = |p50, p99| finding(30, millis(p50), millis(p99), millis(10_000)).severity;
        assert_eq!(of(1, 500), Severity::Ok);
        assert_eq!(of(1, 501), Severity::Warning);
        assert_eq!(of(1000, 5000), Severity::Warning);
        assert_eq!(of(1001, 5000), Severity::Failure);
    }
}
