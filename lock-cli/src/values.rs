//! Values of options, as people write them.

use std::time::Duration;

use crate::exit::Exit;

const SHORTEST_LEASE: Duration = Duration::from_millis(10);
const LONGEST_LEASE: Duration = Duration::from_secs(24 * 3600);
const LONGEST_SPAN: Duration = Duration::from_secs(30 * 24 * 3600);

pub(crate) fn lease(text: &str) -> Result<Duration, String> {
    let lease = humantime::parse_duration(text).unwrap_or_default();
    if (SHORTEST_LEASE..=LONGEST_LEASE).contains(&lease) {
        return Ok(lease);
    }
    Err("write a duration from 10ms to 24h, such as 500ms, 30s or 2h".to_owned())
}

pub(crate) fn span(text: &str) -> Result<Duration, String> {
    let span = humantime::parse_duration(text).unwrap_or_default();
    bounded(span).filter(|span| !span.is_zero()).ok_or_else(|| {
        "write a positive duration of at most 30days, such as 500ms or 2h".to_owned()
    })
}

/// As in flock(1), a plain number is seconds, and zero means not to wait.
pub(crate) fn patience(text: &str) -> Result<Duration, String> {
    let is_plain = text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'.');
    let wait = if is_plain {
        let seconds = text.parse().ok();
        seconds.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok())
    } else {
        humantime::parse_duration(text).ok()
    };
    wait.and_then(bounded).ok_or_else(|| {
        "write a duration of at most 30days, such as 10 (seconds), 0.5, 10s or 2h, or leave it out \
         to wait for ever"
            .to_owned()
    })
}

fn bounded(span: Duration) -> Option<Duration> {
    (span <= LONGEST_SPAN).then_some(span)
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
            assert_eq!(patience(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in
            ["", ".", "-1", "-0.5", "1e3", "inf", "NaN", "1year", "99999999999999999999", "x"]
        {
            assert!(patience(text).is_err(), "{text}");
        }
    }

    #[test]
    fn spans_are_positive_and_not_absurd() {
        assert_eq!(span("1m 30s"), Ok(Duration::from_secs(90)));
        for text in ["", "0", "0s", "-5s", "30", "1year", "99999999999999999999s", "s"] {
            assert!(span(text).is_err(), "{text}");
        }
        assert!(lease("25h").is_err() && lease("1ns").is_err() && lease("24h").is_ok());
    }
}
