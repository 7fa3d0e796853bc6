//! The version of a member and its mode.

use lock_core::diagnosis::Finding;

use super::member::Member;
use super::words::{NoAnswer, value};

/// The least version, and the newest that the tests have run on.
const LEAST: (u32, u32) = (3, 5);
const TESTED: (u32, u32) = (3, 9);

/// Returns the findings about one member.
pub(super) fn check(member: &Member, is_serving: bool) -> Vec<Finding> {
    let mut findings = Vec::new();
    match &member.srvr {
        Ok(answer) => {
            findings.push(version(answer));
            findings.extend(check_mode(member, is_serving));
        }
        // Its connection is a finding.
        Err(_) if member.session.is_err() => {}
        Err(no_answer) => findings.extend(["version", "mode"].map(|it| no_answer.unseen(it))),
    }
    findings.into_iter().map(|finding| finding.of_server(&member.address)).collect()
}

fn version(answer: &str) -> Finding {
    let Some(text) = value(answer, "Zookeeper version: ") else {
        return NoAnswer::new("the server does not serve, and then names none").unseen("version");
    };
    let text = text.split([',', '-', ' ']).next().unwrap_or_default();
    let mut numbers = text.split('.').map_while(|number| number.parse().ok());
    let (Some(major), Some(minor)) = (numbers.next(), numbers.next()) else {
        return NoAnswer::new("the server names one in an unknown form").unseen("version");
    };
    let (least, tested) =
        (format!("{}.{}", LEAST.0, LEAST.1), format!("{}.{}", TESTED.0, TESTED.1));
    match (major, minor) {
        version if version < LEAST => Finding::failure(
            "version",
            format!("{text} is older than {least}, the first version with containers"),
        )
        .remedy(format!("upgrade the server to ZooKeeper {least} or newer")),
        version if version > TESTED => Finding::ok(
            "version",
            format!("{text}, newer than {tested}, the newest that the tests have run on"),
        ),
        _ => Finding::ok("version", format!("{text}; the tests run on {least} to {tested}")),
    }
}

/// Returns the finding about the mode of a member that answers `srvr`.
fn check_mode(member: &Member, is_serving: bool) -> Option<Finding> {
    let mode = match member.mode() {
        Some(mode) if mode != "read-only" => return Some(Finding::ok("mode", mode)),
        Some(_) => "it is cut off from its quorum and answers reads only (readonlymode.enabled)",
        None if member.session.is_ok() => {
            return Some(NoAnswer::new("srvr names none").unseen("mode"));
        }
        None => "it does not serve: it is without a quorum, or still starting",
    };
    let finding = if is_serving { Finding::warning } else { Finding::failure };
    Some(finding("mode", mode.to_owned()).remedy("mend the links between the members"))
}

#[cfg(test)]
mod tests {
    use lock_core::diagnosis::Severity;

    use super::*;

    #[test]
    fn versions_are_compared_by_their_numbers() {
        let of = |text: &str| version(&format!("Zookeeper version: {text}\n")).severity;
        assert_eq!(of("3.8.0-5a02a05e, built on 2022-02-25 08:49 UTC"), Severity::Ok);
        assert_eq!(of("3.5.10--1, built on x"), Severity::Ok);
        assert_eq!(of("3.10.0"), Severity::Ok);
        assert_eq!(of("3.4.14-4c25d480, built on x"), Severity::Failure);
        assert_eq!(of("x"), Severity::Warning);
        assert_eq!(version("This instance is not serving").severity, Severity::Warning);
    }
}
