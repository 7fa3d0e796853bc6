//! Values of options, as people write them.

use std::time::Duration;

use humantime::format_duration;

use crate::exit::Exit;

const SHORTEST_LEASE: Duration = Duration::from_millis(10);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);
const LONGEST_DURATION: Duration = Duration::from_secs(30 * 24 * 3600);

pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let range = SHORTEST_LEASE..=LONGEST_LEASE;
    duration(text).filter(|lease| range.contains(lease)).ok_or_else(|| {
        let (shortest, longest) = (format_duration(SHORTEST_LEASE), format_duration(LONGEST_LEASE));
        format!("write a duration from {shortest} to {longest}, such as 30 (seconds), 500ms or 2h")
    })
}

pub(crate) fn positive_duration(text: &str) -> Result<Duration, String> {
    let span = duration(text).and_then(bounded);
    span.filter(|span| !span.is_zero()).ok_or_else(|| {
        "write a positive duration of at most 30days, such as 10 (seconds), 500ms or 2h".to_owned()
    })
}

/// Parses the longest wait. Zero means not to wait, as in flock(1).
pub(crate) fn wait_time(text: &str) -> Result<Duration, String> {
    duration(text).and_then(bounded).ok_or_else(|| {
        "write a duration of at most 30days, such as 10 (seconds), 0.5, 10s or 2h, or leave the \
         option out to wait for ever"
            .to_owned()
    })
}

/// Parses a duration. A plain number is seconds, as in flock(1).
fn duration(text: &str) -> Option<Duration> {
    if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.') {
        return Duration::try_from_secs_f64(text.parse().ok()?).ok();
    }
    humantime::parse_duration(text).ok()
}

fn bounded(span: Duration) -> Option<Duration> {
    (span <= LONGEST_DURATION).then_some(span)
}

pub(crate) fn status(text: &str) -> Result<Exit, String> {
    match text.parse() {
        Ok(status) => Ok(Exit::with(status)),
        Err(_) => Err("write an exit status from 0 to 255".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_seconds_or_durations() {
        for (text, millis) in
            [("10", 10_000), ("0.5", 500), ("0", 0), ("1.", 1000), ("2m", 120_000)]
        {
            assert_eq!(wait_time(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", ".", "-1", "-0.5", "1e3", "inf", "NaN", "1year", "99999999999999999999", "x"]
        {
            assert!(wait_time(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_plain_number_is_seconds_in_every_option() {
        for value in [lease, positive_duration, wait_time] {
            assert_eq!(value("10"), Ok(Duration::from_secs(10)));
            assert_eq!(value("0.5"), Ok(Duration::from_millis(500)));
        }
    }

    /// Checks that the page about backends states the limits.
    #[test]
    fn the_docs_have_the_limits_of_a_lease() {
        let why = lease("0").unwrap_err();
        let range = why.split("duration ").nth(1).and_then(|text| text.split(',').next()).unwrap();
        let page = include_str!("../../docs/backends.md").replace('\n', " ");
        assert!(page.contains(&format!("`lockctl` takes a ttl {range}")), "{range}");
    }

    #[test]
    fn durations_are_positive_and_bounded() {
        assert_eq!(positive_duration("1m 30s"), Ok(Duration::from_secs(90)));
        for text in ["", "0", "0s", "-5s", "1e3", "1year", "99999999999999999999s", "s"] {
            assert!(positive_duration(text).is_err(), "{text}");
        }
        assert!(lease("25h").is_err() && lease("1ns").is_err() && lease("24h").is_ok());
    }
}
