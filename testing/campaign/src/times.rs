//! Distributions of durations, in a form that allows runs to be added up.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use lock_history::{Kind, Line, Op};
use serde::{Deserialize, Serialize};

/// The number of histogram steps for each power of ten.
const STEPS: f64 = 10.0;

/// A distribution of durations: a histogram with ten steps for each power of ten, and the exact
/// ends.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spread {
    /// The number of durations.
    pub count: u64,
    /// The shortest duration, in nanoseconds.
    pub least: u64,
    /// The longest duration, in nanoseconds.
    pub most: u64,
    /// The number of durations in each step, which begins at 10^(step/10) ns.
    pub steps: BTreeMap<u32, u64>,
}

impl Spread {
    /// Returns the distribution of durations in nanoseconds.
    #[must_use]
    pub fn of(nanos: &[u64]) -> Self {
        let mut spread = Self::default();
        for &one in nanos {
            spread.insert(one);
        }
        spread
    }

    fn insert(&mut self, nanos: u64) {
        self.least = if self.count == 0 { nanos } else { self.least.min(nanos) };
        self.most = self.most.max(nanos);
        self.count += 1;
        *self.steps.entry(step_of(nanos)).or_default() += 1;
    }

    /// Adds another distribution.
    pub fn add(&mut self, other: &Self) {
        if other.count == 0 {
            return;
        }
        self.least = if self.count == 0 { other.least } else { self.least.min(other.least) };
        self.most = self.most.max(other.most);
        self.count += other.count;
        for (step, count) in &other.steps {
            *self.steps.entry(*step).or_default() += count;
        }
    }

    /// Returns a duration that this percentage does not exceed, at most one step too long.
    #[must_use]
    pub fn percentile(&self, percent: u64) -> Duration {
        let wanted = (self.count * percent).div_ceil(100);
        let mut seen = 0;
        for (step, count) in &self.steps {
            seen += count;
            if seen >= wanted {
                return Duration::from_nanos(start_of(step + 1).min(self.most));
            }
        }
        Duration::from_nanos(self.most)
    }
}

#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
fn step_of(nanos: u64) -> u32 {
    ((nanos.max(1) as f64).log10() * STEPS).floor() as u32
}

/// Returns the start of a step, in nanoseconds.
#[must_use]
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
pub fn start_of(step: u32) -> u64 {
    10_f64.powf(f64::from(step) / STEPS) as u64
}

/// The losses of which holders were notified.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Losses {
    /// The number of losses.
    #[serde(rename = "told")]
    pub notified: u64,
    /// The times from a notification to a later next grant.
    pub before_next: Spread,
    /// The times from the next grant to a later notification.
    pub after_next: Spread,
}

impl Losses {
    /// Adds other losses.
    pub fn add(&mut self, other: &Self) {
        self.notified += other.notified;
        self.before_next.add(&other.before_next);
        self.after_next.add(&other.after_next);
    }
}

/// Measures the time from the notification of each loss to the next grant of the lock.
pub(crate) fn losses(lines: &[Line]) -> Losses {
    let mut grants: HashMap<&str, (&str, u64)> = HashMap::new();
    let mut by_lock: HashMap<&str, Vec<(u64, u64)>> = HashMap::new();
    let mut notified: Vec<(&str, u64, u64)> = Vec::new();
    for line in lines {
        let Line::Record(record) = line else { continue };
        if record.kind == Kind::Ok && record.op.acquires() {
            if let (Some(grant), Some(fence)) = (&record.grant, record.fence) {
                grants.insert(grant, (&record.lock, fence));
                by_lock.entry(&record.lock).or_default().push((fence, record.t));
            }
        } else if record.op == Op::Lost
            && let Some((lock, fence)) = record.grant.as_deref().and_then(|grant| grants.get(grant))
        {
            notified.push((lock, *fence, record.t));
        }
    }
    by_lock.values_mut().for_each(|grants| grants.sort_unstable());
    let mut losses = Losses { notified: notified.len() as u64, ..Losses::default() };
    for (lock, fence, at) in notified {
        let grants = &by_lock[lock];
        let next = grants.partition_point(|&(other, _)| other <= fence);
        match grants.get(next) {
            Some(&(_, held)) if held >= at => losses.before_next.insert(held - at),
            Some(&(_, held)) => losses.after_next.insert(at - held),
            None => {}
        }
    }
    losses
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spreads_add_up() {
        let mut one = Spread::of(&[1_000, 2_000_000]);
        one.add(&Spread::of(&[500]));
        assert_eq!((one.count, one.least, one.most), (3, 500, 2_000_000));
        assert_eq!(one.steps.values().sum::<u64>(), 3);
        assert!(one.percentile(50) >= Duration::from_nanos(1_000));
        assert!(one.percentile(50) <= Duration::from_nanos(1_300));
        assert_eq!(one.percentile(100), Duration::from_nanos(2_000_000));
    }
}
