//! What a reader sees of results.

mod markdown;
mod totals;

use std::fmt::Write as _;
use std::time::Duration;

pub use markdown::markdown;

use crate::draws;
use crate::outcome::{Bound, Outcome, Prompt};
use totals::Origin;

/// A run in one line.
#[must_use]
pub fn line(outcome: &Outcome) -> String {
    let mut text = format!(
        "{} seed {}: {}, {} operations, {} grants, {} faults in {:.1} s",
        outcome.backend,
        outcome.seed,
        if outcome.is_clean() { "clean" } else { "NOT CLEAN" },
        outcome.operations,
        outcome.grants,
        outcome.faults(),
        outcome.played.as_secs_f64(),
    );
    let effects = &outcome.effects;
    let _ = write!(
        text,
        "; lost updates: {} of {} without fences, {} of {} with; {} losses told; excused: {} overlaps",
        effects.unfenced_lost,
        effects.unfenced_writes,
        effects.fenced_lost,
        effects.fenced_writes,
        outcome.losses.told,
        outcome.excused_overlaps,
    );
    if let Some(all) = &outcome.prompt {
        let count = all.took.count;
        let few = if all.judged { "" } else { ", too few to judge" };
        let _ = write!(text, "; hand-offs without a fault: {} of {count}{few}", prompt(all));
    }
    for (index, (what, count)) in outcome.draws.iter().enumerate() {
        let rate = draws::rate(*count, outcome.grants as u64);
        let before = if index == 0 { "; per 1000 grants: " } else { ", " };
        let _ = write!(text, "{before}{what} {rate}");
    }
    text
}

/// What half of the hand-offs took that no fault disturbed, and nine in ten, with their bounds.
fn prompt(all: &Prompt) -> String {
    let [half, most] = [50, 90].map(|percent| short(all.took.percentile(percent)));
    format!("{half} ≤ {}, {most} ≤ {}", short(all.half), short(all.most))
}

/// By what a planted bug was caught, if it was.
#[must_use]
pub fn caught_by(outcome: &Outcome) -> Option<String> {
    if outcome.is_clean() {
        return None;
    }
    let rules = outcome.broken.iter().map(|(rule, count)| format!("{rule} ×{count}"));
    Some(rules.chain(outcome.failures.first().cloned()).collect::<Vec<_>>().join(", "))
}

/// A duration with three digits at most.
fn short(duration: Duration) -> String {
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

fn nanos(nanos: u64) -> String {
    short(Duration::from_nanos(nanos))
}

/// The bound from a crash on.
fn bound(takeover: Bound, lease: Option<Duration>) -> (Duration, String) {
    match takeover {
        Bound::AtOnce => (Duration::ZERO, "at once".to_owned()),
        Bound::LeasePlus(more) => {
            let lease = lease.unwrap_or_default();
            (lease + more, format!("lease {} + {}", short(lease), short(more)))
        }
    }
}

/// Which code it was, after the seeds.
fn of_code(origin: Origin<'_>) -> String {
    origin.code.map_or_else(String::new, |code| format!(", of {code}"))
}

/// `1–5, 7`
fn ranges(seeds: &[u64]) -> String {
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
    fn hand_offs_without_a_fault_are_told_with_their_bounds() {
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
