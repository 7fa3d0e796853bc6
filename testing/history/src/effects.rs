//! K3: the effects on the guarded resource. Its counter is recorded under the name of its lock; a
//! resource that checks no token has a name of its own.

use std::collections::HashSet;

use super::record::{Op, Why};
use super::report::{Report, Rule};
use super::timeline::{LockView, Operation, Outcome};

/// Checks a resource. One that checks tokens accepts none after a higher one, refuses none without
/// a reason, and counts the accepted writes. Of one that does not, lost updates are counted.
pub(super) fn effects(lock: LockView<'_>, report: &mut Report) {
    let writes: Vec<&Operation> = lock.calls.iter().filter(|call| call.op == Op::Write).collect();
    if writes.is_empty() {
        return;
    }
    let ok = |call: &&Operation| call.outcome == Outcome::Ok;
    let mut passed: Vec<&Operation> = writes.iter().copied().filter(ok).collect();
    if writes.iter().all(|call| call.fence.is_none()) {
        let mut values: Vec<u64> = passed.iter().filter_map(|call| call.value).collect();
        let counted = values.len();
        values.sort_unstable();
        values.dedup();
        report.lost_updates += (counted - values.len()) as u64;
        return;
    }
    let shown =
        |call: &&Operation| call.op == Op::Write || (call.op == Op::Read && call.fence.is_some());
    let shown: Vec<&Operation> = lock.calls.iter().filter(shown).collect();
    let page = ResourceEffects { lock, writes: &writes, shown: &shown };
    page.in_time(shown.iter().copied().filter(ok).collect(), report);
    page.in_value(&mut passed, report);
    page.refusals(report);
    page.unknown_tokens(report);
    page.counts(&passed, report);
}

struct ResourceEffects<'a> {
    lock: LockView<'a>,
    writes: &'a [&'a Operation],
    /// All operations that present a token: writes, and some reads.
    shown: &'a [&'a Operation],
}

impl ResourceEffects<'_> {
    /// Checks that no token was accepted after a higher one.
    fn in_time(&self, mut passed: Vec<&Operation>, report: &mut Report) {
        let mut ended = passed.clone();
        ended.sort_by_key(|call| call.ret);
        passed.sort_by_key(|call| call.invoke);
        let mut ended = ended.into_iter().peekable();
        let mut highest: Option<&Operation> = None;
        for call in passed {
            while let Some(before) = ended.next_if(|before| before.ret < call.invoke) {
                if highest.is_none_or(|highest| before.fence > highest.fence) {
                    highest = Some(before);
                }
            }
            if let Some(higher) = highest.filter(|highest| highest.fence > call.fence) {
                self.let_pass(higher, call, report);
            }
        }
    }

    /// Checks the exact order, which the counter shows: no token is lower than the one before.
    fn in_value(&self, passed: &mut [&Operation], report: &mut Report) {
        passed.sort_by_key(|call| call.value);
        let mut first_end: Option<&Operation> = None;
        for pair in passed.windows(2).rev() {
            let [one, other] = pair else { continue };
            if one.value.is_none() {
                break;
            }
            if first_end.is_none_or(|first| other.ret < first.ret) {
                first_end = Some(other);
            }
            if one.value == other.value {
                let lines = [one.lines[1], other.lines[1]];
                report.violation(Rule::K3, &self.lock.name, &lines, || {
                    format!("two writes were counted as one: both made {:?}", one.value)
                });
            } else if one.fence > other.fence {
                self.let_pass(one, other, report);
            } else if let Some(later) = first_end.filter(|later| later.ret < one.invoke) {
                let lines = [later.lines[1], one.lines[0]];
                report.violation(Rule::K3, &self.lock.name, &lines, || {
                    "the counter went back: a later write made a lower number".to_owned()
                });
            }
        }
    }

    fn let_pass(&self, higher: &Operation, lower: &Operation, report: &mut Report) {
        let lines = [higher.lines[1], lower.lines[1]];
        report.violation(Rule::K3, &self.lock.name, &lines, || {
            let (one, other) = (self.lock.name_of(higher), self.lock.name_of(lower));
            let [high, low] = [higher, lower].map(|call| call.fence.unwrap_or_default());
            format!(
                "the resource let fence {low} of {other} pass, although fence {high} of {one} had \
                 passed before"
            )
        });
    }

    /// Checks that each refusal has a higher token that can have been accepted before.
    fn refusals(&self, report: &mut Report) {
        let mut refused: Vec<&Operation> = self.shown.to_vec();
        refused.retain(|call| call.outcome == Outcome::Fail && call.err == Some(Why::Fenced));
        refused.sort_by_key(|call| call.ret);
        let mut begun: Vec<&Operation> = self.shown.to_vec();
        begun.retain(|call| call.outcome != Outcome::Fail);
        begun.sort_by_key(|call| call.invoke);
        let mut begun = begun.into_iter().peekable();
        let mut highest = None;
        for call in refused {
            while let Some(before) = begun.next_if(|before| before.invoke <= call.ret) {
                highest = highest.max(before.fence);
            }
            if highest <= call.fence {
                report.violation(Rule::K3, &self.lock.name, &call.lines, || {
                    let fence = call.fence.unwrap_or_default();
                    format!("the resource refused fence {fence}, but no higher one can have passed")
                });
            }
        }
    }

    /// Checks that each presented token was granted. Where no grants of the lock are recorded, that
    /// is unknown.
    fn unknown_tokens(&self, report: &mut Report) {
        let fences = self.lock.grants.iter().map(|grant| self.lock.acquire_of(grant).fence);
        let Some(granted) = fences.collect::<Option<HashSet<u64>>>().filter(|all| !all.is_empty())
        else {
            return;
        };
        for call in self.shown {
            if let Some(fence) = call.fence.filter(|fence| !granted.contains(fence)) {
                report.violation(Rule::K3, &self.lock.name, &call.lines, || {
                    let name = self.lock.name_of(call);
                    format!("{name} presented fence {fence}, which was never granted")
                });
            }
        }
    }

    /// Checks that a read counts all increments accepted before it, and none that was never made. A
    /// write also counts its own.
    fn counts(&self, passed: &[&Operation], report: &mut Report) {
        let mut ended: Vec<_> = passed.iter().map(|write| write.ret).collect();
        let may_count = self.writes.iter().filter(|write| write.outcome != Outcome::Fail);
        let mut begun: Vec<_> = may_count.map(|write| write.invoke).collect();
        ended.sort_unstable();
        begun.sort_unstable();
        let reads = self.lock.calls.iter().filter(|call| call.op == Op::Read);
        for seen in reads.chain(passed.iter().copied()) {
            let Some(value) = seen.value else { continue };
            let own = u64::from(seen.op == Op::Write);
            let least = ended.partition_point(|&ret| ret < seen.invoke) as u64 + own;
            let most = begun.partition_point(|&invoke| invoke <= seen.ret) as u64;
            if !(least..=most).contains(&value) {
                report.violation(Rule::K3, &self.lock.name, &seen.lines, || {
                    format!("the counter is {value} after {least} to {most} increments")
                });
            }
        }
    }
}
