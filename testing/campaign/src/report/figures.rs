//! Formats of numbers and durations in reports.

use std::time::Duration;

use crate::outcome::{Bound, Prompt};

/// Formats a duration with at most three digits.
pub(super) fn short(duration: Duration) -> String {
    let nanos = duration.as_secs_f64() * 1e9;
    let (value, unit) = match nanos {
        n if n < 1e3 => (n, "ns"),
        n if n < 1e6 => (n / 1e3, "µs"),
        n if n < 1e9 => (n / 1e6, "ms"),
        n => (n / 1e9, "s"),
    };
    let digits = if value < 10.0 { 2 } else { usize::from(value < 100.0) };
    format!("{value:.digits$} {unit}")
}

pub(super) fn nanos(nanos: u64) -> String {
    short(Duration::from_nanos(nanos))
}

/// Returns the bound on the time from a crash to the next grant, and its text.
pub(super) fn bound(takeover: Bound, lease: Option<Duration>) -> (Duration, String) {
    match takeover {
        Bound::AtOnce => (Duration::ZERO, "at once".to_owned()),
        Bound::LeasePlus(more) => {
            let lease = lease.unwrap_or_default();
            (lease + more, format!("lease {} + {}", short(lease), short(more)))
        }
    }
}

/// Formats the median and the 90th percentile of undisturbed hand-offs, with their bounds.
pub(super) fn prompt(all: &Prompt) -> String {
    let [half, most] = [50, 90].map(|percent| short(all.took.percentile(percent)));
    format!("{half} ≤ {}, {most} ≤ {}", short(all.half), short(all.most))
}

/// Formats ascending seeds as ranges, such as `1–5, 7`.
pub(super) fn ranges(seeds: &[u64]) -> String {
    let mut parts: Vec<(u64, u64)> = Vec::new();
    for &seed in seeds {
        match parts.last_mut() {
            Some((_, last)) if *last + 1 == seed => *last = seed,
            _ => parts.push((seed, seed)),
        }
    }
    let text = |&(from, to): &(u64, u64)| match to - from {
        0 => from.to_string(),
        _ => format!("{from}–{to}"),
    };
    parts.iter().map(text).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::times::Spread;

    #[test]
    fn undisturbed_hand_offs_have_their_bounds() {
        let all = Prompt {
            took: Spread::of(&[1_000_000; 10]),
            half: Duration::from_millis(50),
            most: Duration::from_millis(200),
            judged: false,
        };
        assert_eq!(prompt(&all), "1.00 ms ≤ 50.0 ms, 1.00 ms ≤ 200 ms");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(short(Duration::from_micros(1234)), "1.23 ms");
        assert_eq!(short(Duration::from_millis(56_780)), "56.8 s");
        assert_eq!(ranges(&[1, 2, 3, 7]), "1–3, 7");
    }
}
