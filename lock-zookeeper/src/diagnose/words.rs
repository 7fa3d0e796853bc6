//! The four letter words: the version and the mode of a member.

use std::time::Duration;

use lock_core::diagnosis::Finding;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::member::{BOUND, Member};
use crate::config::Config;

/// The longest answer that is read.
const MAX_ANSWER: u64 = 1 << 16;

/// The reason why a word has no answer, and how to get one.
pub(super) struct NoAnswer {
    why: String,
    remedy: &'static str,
}

impl NoAnswer {
    pub(super) fn new(why: impl Into<String>) -> Self {
        Self { why: why.into(), remedy: "add 4lw.commands.whitelist=srvr,conf to zoo.cfg" }
    }

    /// Returns the finding of a check that needs the answer.
    pub(super) fn unseen(&self, check: &'static str) -> Finding {
        Finding::unseen(check, &self.why).remedy(self.remedy)
    }
}

/// The least version, and the newest that the tests have run on.
const LEAST: (u32, u32) = (3, 5);
const TESTED: (u32, u32) = (3, 9);

/// Returns the answer to a four letter word, or the reason why there is none.
pub(super) async fn ask(config: &Config, address: &str, word: &str) -> Result<String, NoAnswer> {
    #[cfg(feature = "tls")]
    if config.certificates.is_some() {
        return Err(NoAnswer {
            why: "four letter words are not asked over TLS".to_owned(),
            remedy: "check the plain client port as well, where there is one, or read zoo.cfg",
        });
    }
    let _ = config;
    let asking = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(word.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER).read_to_end(&mut answer).await?;
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    match tokio::time::timeout(BOUND, asking).await {
        Ok(Ok(answer)) if answer.contains("is not in the whitelist") => {
            Err(NoAnswer::new(format!("the server does not answer the word {word}")))
        }
        Ok(Ok(answer)) if !answer.is_empty() => Ok(answer),
        Ok(Ok(_)) => Err(NoAnswer::new(format!("the answer to the word {word} is empty"))),
        Ok(Err(error)) => Err(NoAnswer::new(format!("the word {word} failed: {error}"))),
        Err(_) => Err(NoAnswer::new(format!("the word {word} has no answer within {BOUND:?}"))),
    }
}

/// Returns the value after `key`, which ends in a separator, in an answer.
pub(super) fn value<'a>(answer: &'a str, key: &str) -> Option<&'a str> {
    answer.lines().find_map(|line| line.strip_prefix(key)).map(str::trim)
}

/// Returns the value of a setting in milliseconds.
pub(super) fn millis(answer: &str, key: &str) -> Option<Duration> {
    let millis = value(answer, key)?.parse().ok()?;
    Some(Duration::from_millis(millis)).filter(|time| !time.is_zero())
}

/// Returns the mode of a member, if it says so.
pub(super) fn mode(member: &Member) -> Option<&str> {
    value(member.srvr.as_ref().ok()?, "Mode: ")
}

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
    let mode = match mode(member) {
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
