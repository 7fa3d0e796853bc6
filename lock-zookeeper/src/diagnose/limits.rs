//! The session timeouts that members grant, and their ticks.

use std::time::Duration;

use lock_core::clock::sleep;
use lock_core::diagnosis::Finding;

use super::member::Member;
use super::words::{BOUND, NoAnswer, millis};
use crate::config::{Config, LONGEST_TIMEOUT, SHORTEST_TIMEOUT};
use crate::session::Connection;

/// The least session timeout in ticks at which leases bear the usual faults.
const TICKS: u32 = 4;
/// The least session timeout in ticks for which the model finds no overlap.
const LEAST_TICKS: u32 = 2;

/// The pause between two attempts to open a short session.
const PAUSE: Duration = Duration::from_millis(20);

/// The limits of one member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    least: Duration,
    longest: Duration,
    /// `None` if it does not follow from the limits.
    tick: Option<Duration>,
}

/// Returns the findings about each member, and one that compares them.
pub(super) async fn check(config: &Config, serving: &[&Member]) -> Vec<Finding> {
    let (mut findings, mut all) = (Vec::new(), Vec::new());
    for member in serving {
        let Some(client) = member.client() else { continue };
        let granted = client.session_timeout();
        let limits = limits(config, member).await;
        let of_member = [timeout(config.session_timeout, granted), tick(member, granted, limits)];
        findings.extend(of_member.map(|finding| finding.of_server(&member.address)));
        all.push((granted, limits));
    }
    findings.push(compare(&all));
    findings
}

fn timeout(asked: Duration, granted: Duration) -> Finding {
    let text = format!("asked for {asked:?}, granted {granted:?}");
    if granted < asked {
        let text = format!("{text}, its maxSessionTimeout: locks are lost the sooner in an outage");
        Finding::warning("session timeout", text)
            .remedy("raise maxSessionTimeout, which is 20 ticks unless set, or ask for less")
    } else if granted > asked {
        let text = format!("{text}, its minSessionTimeout: a crashed holder blocks for that long");
        Finding::warning("session timeout", text)
            .remedy("ask for session_timeout of four ticks or longer, or lower tickTime")
    } else {
        Finding::ok("session timeout", text)
    }
}

fn tick(member: &Member, granted: Duration, limits: Option<Limits>) -> Finding {
    let Some(tick) = limits.and_then(|limits| limits.tick) else {
        return match &member.conf {
            Ok(_) => NoAnswer::new("conf names none").unseen("tick"),
            Err(no_answer) => no_answer.unseen("tick"),
        };
    };
    let text = format!("a tick is {tick:?}, and the session timeout {granted:?}");
    let remedy = format!(
        "ask for session_timeout of {:?} or longer, or lower tickTime (3000 unless set)",
        tick * TICKS
    );
    if tick * LEAST_TICKS > granted {
        let text = format!("{text}, less than {LEAST_TICKS} ticks: two clients may hold a lock");
        Finding::failure("tick", text).remedy(remedy)
    } else if tick * TICKS > granted {
        let text =
            format!("{text}, less than {TICKS} ticks: a leader that stalls may end locks early");
        Finding::warning("tick", text).remedy(remedy)
    } else {
        Finding::ok("tick", text)
    }
}

/// Compares the members. A session that moves to one with lower limits is shortened.
fn compare(all: &[(Duration, Option<Limits>)]) -> Finding {
    let (mut granted, mut limits): (Vec<_>, Vec<_>) = all.iter().copied().unzip();
    granted.dedup();
    let is_seen = limits.iter().all(Option::is_some);
    limits.dedup();
    if granted.len() > 1 || (is_seen && limits.len() > 1) {
        let text = "the members have different limits or ticks: a reconnect may shorten a session";
        return Finding::warning("session limits", text)
            .remedy("give all members the same tickTime, minSessionTimeout and maxSessionTimeout");
    }
    match limits.first() {
        Some(Some(Limits { least, longest, .. })) => {
            Finding::ok("session limits", format!("sessions of {least:?} to {longest:?}"))
        }
        _ => NoAnswer::new("not every member shows them").unseen("session limits"),
    }
}

/// Returns the limits as the member shows them, or else as it grants them.
async fn limits(config: &Config, member: &Member) -> Option<Limits> {
    if let Ok(conf) = &member.conf {
        return Some(Limits {
            least: millis(conf, "minSessionTimeout=")?,
            longest: millis(conf, "maxSessionTimeout=")?,
            tick: millis(conf, "tickTime="),
        });
    }
    let least = granted(config, member, SHORTEST_TIMEOUT).await?;
    let longest = granted(config, member, LONGEST_TIMEOUT).await?;
    inferred(least, longest)
}

/// Returns the limits that follow from what is granted to a client that asks for the shortest, and
/// for the longest. The tick follows if both limits are at their defaults, 2 and 20 ticks.
fn inferred(least: Duration, longest: Duration) -> Option<Limits> {
    let are_limits = least > SHORTEST_TIMEOUT && longest < LONGEST_TIMEOUT;
    let tick = (least * 10 == longest).then(|| least / 2);
    are_limits.then_some(Limits { least, longest, tick })
}

/// Returns the timeout that the member grants for `asked`. The client crate gives a connection up
/// within that time, which may be short, so it is tried for longer.
async fn granted(config: &Config, member: &Member, asked: Duration) -> Option<Duration> {
    let config = Config { session_timeout: asked, ..config.clone() };
    let opening = async {
        loop {
            match Connection::open(&config, &member.address, None).await {
                Ok(Ok(session)) => return Some(session),
                Ok(Err(_)) => sleep(PAUSE).await,
                Err(_) => return None,
            }
        }
    };
    let session = tokio::time::timeout(BOUND, opening).await.ok()??;
    let granted = session.client().session_timeout();
    session.close().await;
    Some(granted)
}

#[cfg(test)]
mod tests {
    use lock_core::diagnosis::Severity;

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_tick_follows_from_limits_at_their_defaults_only() {
        let tick = |least, longest| inferred(least, longest).and_then(|limits| limits.tick);
        assert_eq!(tick(SECOND * 6, SECOND * 60), Some(SECOND * 3));
        assert_eq!(tick(SECOND * 6, SECOND * 40), None);
        assert_eq!(inferred(SHORTEST_TIMEOUT, SECOND), None);
        assert_eq!(inferred(SECOND * 360, LONGEST_TIMEOUT), None);
    }

    #[test]
    fn members_that_differ_are_warned_of() {
        let limits = |longest| Limits { least: SECOND, longest, tick: None };
        let (low, high) = (limits(SECOND * 4), limits(SECOND * 20));
        let of = |all: &[(Duration, Option<Limits>)]| compare(all);
        assert_eq!(of(&[(SECOND, Some(low)), (SECOND, Some(low))]).severity, Severity::Ok);
        let differ = of(&[(SECOND, Some(low)), (SECOND, Some(high))]);
        assert!(differ.text.contains("different"), "{differ}");
        let differ = of(&[(SECOND, None), (SECOND * 2, None)]);
        assert!(differ.text.contains("different"), "{differ}");
        let unseen = of(&[(SECOND, None), (SECOND, Some(low))]);
        assert!(unseen.text.contains("could not be seen"), "{unseen}");
    }
}
