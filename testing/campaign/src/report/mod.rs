//! Reports of results.

mod figures;
mod markdown;
mod totals;

use std::fmt::Write as _;

pub use markdown::markdown;

use crate::draws;
use crate::outcome::Outcome;
use figures::prompt;

/// Returns a line about a run.
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
        "; lost updates: {} of {} without tokens, {} of {} with; {} losses notified; excused: {} overlaps",
        effects.unfenced_lost,
        effects.unfenced_writes,
        effects.fenced_lost,
        effects.fenced_writes,
        outcome.losses.notified,
        outcome.excused_overlaps,
    );
    if let Some(all) = &outcome.prompt {
        let count = all.took.count;
        let few = if all.judged { "" } else { ", too few to judge" };
        let _ = write!(text, "; hand-offs without a fault: {} of {count}{few}", prompt(all));
    }
    for (index, (verb, count)) in outcome.draws.iter().enumerate() {
        let rate = draws::rate(*count, outcome.grants as u64);
        let before = if index == 0 { "; per 1000 grants: " } else { ", " };
        let _ = write!(text, "{before}{verb} {rate}");
    }
    text
}

/// Returns the rules that caught a planted bug, and the first failure of the run. `None` if the
/// run is clean.
#[must_use]
pub fn caught_by(outcome: &Outcome) -> Option<String> {
    if outcome.is_clean() {
        return None;
    }
    let rules = outcome.broken.iter().map(|(rule, count)| format!("{rule} ×{count}"));
    Some(rules.chain(outcome.failures.first().cloned()).collect::<Vec<_>>().join(", "))
}
