//! The process: its version, its age, its flushes and its connections.

use std::time::Duration;

use lock_core::diagnosis::Finding;

use super::stats::{Stats, number, unseen};
use crate::connection::stat;

/// The least version.
const LEAST: (u32, u32) = (1, 6);

/// The part of the allowed connections, in percent, from which on it is a warning.
const CROWDED: u64 = 80;

pub(super) fn check(stats: &Stats) -> Vec<Finding> {
    vec![version(stats), uptime(stats), flush(stats), connections(stats)]
}

fn version(stats: &Stats) -> Finding {
    let Some(text) = stat(stats, "version") else { return unseen("version") };
    let mut numbers = text.split('.').map_while(|number| number.parse().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return unseen("version");
    };
    let least = format!("{}.{}", LEAST.0, LEAST.1);
    if (major, minor) < LEAST {
        Finding::failure("version", format!("{text} lacks the meta commands of {least}"))
            .remedy(format!("upgrade the server to memcached {least} or newer"))
    } else {
        Finding::ok("version", format!("{text}; the tests run on 1.6.18"))
    }
}

fn uptime(stats: &Stats) -> Finding {
    let Some(seconds) = number(stats, "uptime") else { return unseen("uptime") };
    let up_for = Duration::from_secs(seconds);
    Finding::ok("uptime", format!("it runs for {up_for:?}; a restart drops all locks"))
}

fn flush(stats: &Stats) -> Finding {
    match number(stats, "cmd_flush") {
        None => unseen("flush"),
        Some(0) => Finding::ok("flush", "never flushed since its start"),
        Some(count) => Finding::warning(
            "flush",
            format!("flushed {count} times since its start: each flush drops all locks"),
        )
        .remedy("start it with -F, which refuses flushes, and give it nothing but locks"),
    }
}

fn connections(stats: &Stats) -> Finding {
    let (Some(open), Some(limit)) =
        (number(stats, "curr_connections"), number(stats, "settings maxconns"))
    else {
        return unseen("connections");
    };
    let waited = number(stats, "listen_disabled_num").unwrap_or(0);
    let rejected = number(stats, "rejected_connections").unwrap_or(0);
    let text = format!("{open} of {limit} are open");
    let remedy = "raise -c; each client process needs one connection";
    if waited + rejected > 0 {
        let text = format!("{text}; at the limit, it kept new clients waiting or refused them");
        Finding::warning("connections", text).remedy(remedy)
    } else if open * 100 >= limit * CROWDED {
        Finding::warning("connections", format!("{text}, over {CROWDED} %")).remedy(remedy)
    } else {
        Finding::ok("connections", text)
    }
}

#[cfg(test)]
mod tests {
    use lock_core::diagnosis::Severity;

    use super::*;

    fn stats(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
        pairs.iter().map(|&(name, value)| (name.to_owned(), value.to_owned())).collect()
    }

    #[test]
    fn versions_before_the_meta_commands_are_failures() {
        let of = |text: &str| version(&stats(&[("version", text)])).severity;
        assert_eq!(["1.6.18", "1.10.0", "2.0"].map(of), [Severity::Ok; 3]);
        assert_eq!(of("1.5.22"), Severity::Failure);
        assert_eq!(["", "x"].map(of), [Severity::Warning; 2]);
    }

    #[test]
    fn a_crowded_server_is_warned_of() {
        let of = |open, rejected| {
            let pairs = [
                ("curr_connections", open),
                ("settings maxconns", "100"),
                ("rejected_connections", rejected),
            ];
            connections(&stats(&pairs)).severity
        };
        assert_eq!(of("79", "0"), Severity::Ok);
        assert_eq!(of("80", "0"), Severity::Warning);
        assert_eq!(of("2", "1"), Severity::Warning);
    }

    #[test]
    fn silence_is_no_health() {
        for finding in check(&[]) {
            assert!(finding.text.contains("could not be seen"), "{finding}");
        }
    }
}
