//! The traffic around the faults of one kind.

use serde::{Deserialize, Serialize};

/// Counts of grants and calls before, during and after the faults of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultTraffic {
    /// The number of faults.
    pub faults: u64,
    /// Grants between each of these faults and the previous one of the same target.
    pub before: u64,
    /// Grants during the faults.
    pub during: u64,
    /// Grants after each fault, at least up to the next one.
    pub after: u64,
    /// The fewest grants before or after one fault.
    pub least: u64,
    /// Calls that were made or pending during the faults.
    pub calls: u64,
    /// The fewest grants, before or after one fault, to the client that it hit or of the locks that
    /// it hit. `None` if each fault hit all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_of_hit: Option<u64>,
}

impl FaultTraffic {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &Self) {
        self.least = if self.faults == 0 { other.least } else { self.least.min(other.least) };
        self.faults += other.faults;
        self.before += other.before;
        self.during += other.during;
        self.after += other.after;
        self.calls += other.calls;
        self.lower_least_of_hit(other.least_of_hit);
    }

    /// Lowers [`least_of_hit`](Self::least_of_hit) to a smaller number.
    pub(crate) fn lower_least_of_hit(&mut self, grants: Option<u64>) {
        self.least_of_hit = self.least_of_hit.into_iter().chain(grants).min();
    }
}
