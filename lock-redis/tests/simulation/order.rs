//! Whether waiters were served in the order in which the server has put them into line.

use std::collections::BTreeMap;

use lock_simulation::Workload;

use super::keyspace::{Bytes, Keyspace, Note};

/// The waiters of one queue, by their numbers.
#[derive(Default)]
struct Line {
    standing: BTreeMap<Bytes, f64>,
    /// All former entries. A claim that has lost its position may have it again.
    numbers: BTreeMap<Bytes, f64>,
}

/// Returns violations of the order, and scripts that failed.
pub(crate) fn violations(workload: &Workload, keys: &Keyspace) -> Vec<String> {
    let mut found = keys.failures.clone();
    let mut lines: BTreeMap<Bytes, Line> = BTreeMap::new();
    let queue_of = |lock: &[u8]| {
        let is_lock = workload.locks.iter().any(|name| name.as_bytes() == lock);
        is_lock.then(|| [b"{", lock, b"}%queue"].concat())
    };
    for note in &keys.notes {
        match note {
            Note::Lost => lines.values_mut().for_each(|line| line.standing.clear()),
            Note::Left { queue, member } => {
                lines.get_mut(queue).map(|line| line.standing.remove(member));
            }
            Note::Stood { queue, member, arrival } if queue.ends_with(b"%queue") => {
                let line = lines.entry(queue.clone()).or_default();
                found.extend(line.enter(member, *arrival));
            }
            Note::Stood { .. } => {}
            Note::Written { key, value } => {
                let line = queue_of(key).and_then(|queue| lines.get(&queue));
                found.extend(line.and_then(|line| line.gets(value)));
            }
        }
    }
    found
}

impl Line {
    fn enter(&mut self, member: &Bytes, arrival: f64) -> Option<String> {
        let last = self.standing.values().copied().fold(0.0, f64::max);
        let was_here = self.numbers.insert(member.clone(), arrival).is_some();
        self.standing.insert(member.clone(), arrival);
        (!was_here && arrival <= last)
            .then(|| format!("{} came last and stands before another one", shown(member)))
    }

    /// Records that the lock is granted to the owner that `value` begins with.
    fn gets(&self, value: &[u8]) -> Option<String> {
        let owner = value.get(..32)?;
        let (_, number) = self.numbers.iter().find(|(member, _)| member.starts_with(owner))?;
        let (before, _) = self
            .standing
            .iter()
            .find(|(member, other)| *other < number && !member.starts_with(owner))?;
        Some(format!("{} was served before {}", shown(value), shown(before)))
    }
}

/// So much of it that it can be told apart.
pub(crate) fn shown(owner: &[u8]) -> String {
    String::from_utf8_lossy(&owner[..owner.len().min(8)]).into_owned()
}
