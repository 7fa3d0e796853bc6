//! Tests of the checker: legal histories from a model must pass, and the same ones with one defect
//! must fail, under the right rule.
#![allow(
    clippy::ptr_arg,
    reason = "mutations have one type, whether they change the length or not"
)]

#[path = "history/brute.rs"]
mod brute;
#[path = "history/corruptions.rs"]
mod corruptions;
#[path = "history/model.rs"]
mod model;
#[path = "history/workload.rs"]
mod workload;

use brute::Small;
use std::sync::Arc;
use std::time::Duration;

use lock_conformance::{ClockMode, Harness, sabotage};
use lock_core::{Backend, Locker, Memory};
use lock_history::{
    Clock, Header, History, Kind, Line, Op, Record, Recorder, Report, Rule, Tally, Why, check,
};
use model::{Dice, LEASE, MS, Play, play};
use proptest::prelude::*;
use workload::Load;

fn judge(lines: &[Line]) -> Report {
    let history = History::new(lines.iter().cloned()).unwrap_or_else(|e| panic!("{e}"));
    check(&history)
}

fn text(lines: &[Line]) -> String {
    lines.iter().enumerate().map(|(n, line)| format!("{} {}", n + 1, line.to_json())).collect()
}

fn plays() -> impl Strategy<Value = Play> {
    (any::<u64>(), 1..6_usize, 1..3_usize, 1..60_usize, any::<bool>(), any::<bool>()).prop_map(
        |(seed, clients, locks, calls, fenced, rough)| Play {
            seed,
            clients,
            locks,
            calls,
            fenced,
            rough,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(500) })]

    #[test]
    fn legal_histories_pass(game in plays()) {
        let lines = play(&game);
        let report = judge(&lines);
        prop_assert!(report.is_legal(), "{report}\n{}", text(&lines));
    }

    #[test]
    fn a_history_survives_being_written_and_read(game in plays()) {
        let lines = play(&game);
        let written: String = lines.iter().map(Line::to_json).collect();
        for (line, text) in lines.iter().zip(written.lines()) {
            prop_assert_eq!(line, &Line::parse(text.as_bytes()).unwrap());
        }
        let read = History::read(written.as_bytes()).unwrap();
        prop_assert_eq!(check(&read).to_string(), judge(&lines).to_string());
    }
}

// ---- mutations ----

/// A grant in a history, with the positions of its lines.
#[derive(Clone, Debug)]
struct Hold {
    lock: String,
    op: Op,
    invoke: usize,
    ok: usize,
    fence: Option<u64>,
    /// The last recorded deadline.
    valid_until: u64,
    releases: Vec<(usize, usize, Kind)>,
    lost: Option<usize>,
    asked: bool,
}

fn record(line: &Line) -> Option<&Record> {
    match line {
        Line::Record(record) => Some(record),
        _ => None,
    }
}

fn record_mut(line: &mut Line) -> &mut Record {
    match line {
        Line::Record(record) => record,
        other => panic!("no record: {other:?}"),
    }
}

fn t(lines: &[Line], index: usize) -> u64 {
    lines[index].t().expect("it has a time")
}

/// Returns the grants in the order of their answers.
fn holds(lines: &[Line]) -> Vec<Hold> {
    let mut holds: Vec<Hold> = Vec::new();
    let find = |grant: &Option<String>, from: usize, op: Op| {
        lines[..from].iter().rposition(|line| {
            record(line).is_some_and(|r| r.kind == Kind::Invoke && r.op == op && r.grant == *grant)
        })
    };
    let mut names: Vec<Option<String>> = Vec::new();
    for (index, r) in lines.iter().enumerate().filter_map(|(n, line)| Some((n, record(line)?))) {
        let known = names.iter().position(|name| *name == r.grant && r.grant.is_some());
        match (r.op, r.kind) {
            (Op::Acquire | Op::Try, Kind::Ok) => {
                names.push(r.grant.clone());
                holds.push(Hold {
                    lock: r.lock.clone(),
                    op: r.op,
                    invoke: find(&r.grant, index, r.op).expect("it was invoked"),
                    ok: index,
                    fence: r.fence,
                    valid_until: r.valid_until.unwrap_or(u64::MAX),
                    releases: Vec::new(),
                    lost: None,
                    asked: false,
                });
            }
            (Op::Lost, _) => holds[known.expect("lost what was held")].lost = Some(index),
            (Op::Release, Kind::Ok | Kind::Fail | Kind::Info) => {
                let invoke = find(&r.grant, index, Op::Release).expect("it was invoked");
                let hold = &mut holds[known.expect("released what was held")];
                hold.releases.push((invoke, index, r.kind));
            }
            (Op::Renew | Op::Check, kind) => {
                let hold = &mut holds[known.expect("asked for what was held")];
                hold.asked |= matches!(kind, Kind::Fail | Kind::Info);
                hold.valid_until = hold.valid_until.max(r.valid_until.unwrap_or(0));
            }
            _ => {}
        }
    }
    holds
}

fn released(hold: &Hold) -> Option<(usize, usize)> {
    let [(invoke, ok, Kind::Ok)] = hold.releases[..] else { return None };
    Some((invoke, ok))
}

/// Adds a call of a new client, without an owner.
fn call(lines: &mut Vec<Line>, like: usize, from: u64, until: u64, op: Op, kind: Kind) -> usize {
    let mut invoke = record(&lines[like]).expect("like a record").clone();
    let process = format!("new/{}", lines.len());
    invoke.grant = op.acquires().then(|| process.clone()).or(invoke.grant);
    (invoke.process, invoke.op, invoke.kind, invoke.t) = (process, op, Kind::Invoke, from);
    (invoke.fence, invoke.valid_until, invoke.value, invoke.err) = (None, None, None, None);
    let mut answer = invoke.clone();
    (answer.kind, answer.t) = (kind, until);
    lines.push(Line::Record(invoke));
    lines.push(Line::Record(answer));
    lines.len() - 1
}

fn sort(lines: &mut [Line]) {
    lines.sort_by_key(|line| line.t().map_or(0, |t| t + 1));
}

/// Breaks a legal history in one way, if it has a suitable place.
type Mutation = fn(&mut Vec<Line>, &mut Dice) -> Option<()>;

/// Picks one of those that suit.
fn pick<T>(mut from: Vec<T>, dice: &mut Dice, suits: impl FnMut(&T) -> bool) -> Option<T> {
    from.retain(suits);
    (!from.is_empty()).then(|| from.swap_remove(dice.roll(from.len() as u64) as usize))
}

fn pairs(lines: &[Line]) -> Vec<(Hold, Hold)> {
    let holds = holds(lines);
    let mut pairs = Vec::new();
    for (index, one) in holds.iter().enumerate() {
        let next = holds[index + 1..].iter().find(|other| other.lock == one.lock);
        pairs.extend(next.map(|next| (one.clone(), next.clone())));
    }
    pairs
}

fn overlapping_claim(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let end = |hold: &Hold| {
        let over = hold.releases.iter().map(|&(invoke, ..)| t(lines, invoke));
        let over = over.chain(hold.lost.map(|index| t(lines, index))).min().unwrap_or(u64::MAX);
        over.min(hold.valid_until)
    };
    let hold = pick(holds(lines), dice, |hold| !hold.asked && end(hold) > t(lines, hold.ok) + 10)?;
    let at = t(lines, hold.ok);
    let highest = holds(lines).iter().filter_map(|hold| hold.fence).max();
    let answer = call(lines, hold.ok, at + 1, at + 2, Op::Try, Kind::Ok);
    let answer = record_mut(&mut lines[answer]);
    (answer.fence, answer.valid_until) = (highest.map(|high| high + 1), Some(at + 10 * MS));
    Some(())
}

fn swapped_fences(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let (one, other) = pick(pairs(lines), dice, |(one, other)| {
        t(lines, one.ok) < t(lines, other.invoke) && one.fence.is_some()
    })?;
    record_mut(&mut lines[one.ok]).fence = other.fence;
    record_mut(&mut lines[other.ok]).fence = one.fence;
    Some(())
}

fn repeated_fence(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let (one, other) = pick(pairs(lines), dice, |(one, _)| one.fence.is_some())?;
    record_mut(&mut lines[other.ok]).fence = one.fence;
    Some(())
}

fn missing_fence(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let hold = pick(holds(lines), dice, |hold| hold.fence.is_some())?;
    record_mut(&mut lines[hold.ok]).fence = None;
    Some(())
}

/// Removes the release of a lock that another client acquired at once.
fn lost_release(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let (one, _) = pick(pairs(lines), dice, |(one, other)| {
        released(one).is_some() && !one.asked && t(lines, other.ok) + 1 < one.valid_until
    })?;
    let (invoke, ok) = released(&one)?;
    lines.remove(ok);
    lines.remove(invoke);
    Some(())
}

/// Adds contention long after the end of all holds.
fn phantom_busy(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let hold = pick(holds(lines), dice, |_| true)?;
    let late = t(lines, lines.len() - 1) + 20 * LEASE;
    let answer = call(lines, hold.ok, late, late + MS, Op::Try, Kind::Fail);
    record_mut(&mut lines[answer]).err = Some(Why::Busy);
    Some(())
}

/// Adds contention to a try during a hand-over without faults, whose lock was free for longer than
/// the try took.
fn phantom_busy_in_between(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    if lines.iter().any(|line| record(line).is_some_and(|r| r.kind == Kind::Info)) {
        return None;
    }
    let open = |lock: &str, from: u64, until: u64| {
        // A client that waits, or leaves the queue, explains it.
        let mut calls = lines.iter().enumerate().filter_map(|(n, line)| Some((n, record(line)?)));
        calls.any(|(n, r)| {
            let acquires = r.kind == Kind::Invoke && r.op.acquires() && r.lock == lock;
            let end = lines[n..]
                .iter()
                .filter_map(record)
                .find(|a| a.kind != Kind::Invoke && a.op == r.op && a.grant == r.grant);
            let end =
                end.map_or(u64::MAX, |a| a.t + if a.kind == Kind::Fail { 150 * MS } else { 0 });
            acquires && r.t <= until && end >= from
        })
    };
    let (one, _) = pick(pairs(lines), dice, |(one, other)| {
        released(one).is_some_and(|(_, ok)| {
            let (from, until) = (t(lines, ok), t(lines, other.invoke));
            until > from + 10 && !open(&one.lock, from + 1, from + 2)
        })
    })?;
    let from = t(lines, released(&one)?.1);
    let answer = call(lines, one.ok, from + 1, from + 2, Op::Try, Kind::Fail);
    record_mut(&mut lines[answer]).err = Some(Why::Busy);
    Some(())
}

/// Confirms a release after the expiry, when another client held the lock.
fn released_by_another(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let (one, other) = pick(pairs(lines), dice, |(one, _)| {
        one.lost.is_some() && one.releases.is_empty() && !one.asked
    })?;
    let at = t(lines, other.ok) + 1;
    call(lines, one.ok, at, at + 1, Op::Release, Kind::Ok);
    let lost = one.lost?;
    if dice.roll(2) == 0 {
        lines.remove(lost);
    }
    Some(())
}

fn released_twice(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let hold = pick(holds(lines), dice, |hold| released(hold).is_some())?;
    let (invoke, ok) = released(&hold)?;
    let at = t(lines, ok);
    call(lines, invoke, at, at + 1, Op::Release, Kind::Ok);
    Some(())
}

fn not_held_without_a_reason(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let hold = pick(holds(lines), dice, |hold| {
        released(hold).is_some_and(|(_, ok)| t(lines, ok) < hold.valid_until) && !hold.asked
    })?;
    let (_, ok) = released(&hold)?;
    let answer = record_mut(&mut lines[ok]);
    (answer.kind, answer.err) = (Kind::Fail, Some(Why::NotHeld));
    Some(())
}

fn revived(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let hold = pick(holds(lines), dice, |hold| hold.lost.is_some())?;
    let at = t(lines, hold.lost?) + 1;
    call(lines, hold.ok, at, at + 1, Op::Check, Kind::Ok);
    Some(())
}

fn killed(lines: &[Line], index: usize) -> bool {
    let host = record(&lines[index]).and_then(|r| r.process.split('/').next());
    lines.iter().any(|line| matches!(line, Line::Fault(f) if f.process.as_deref() == host))
}

fn dropped_loss(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let end = t(lines, lines.len() - 1);
    let told_otherwise = |hold: &Hold| hold.asked || !hold.releases.is_empty();
    let hold = pick(holds(lines), dice, |hold| {
        let is_late = !told_otherwise(hold) && hold.valid_until + 200 * MS < end;
        is_late && hold.lost.is_some() && !killed(lines, hold.ok)
    })?;
    lines.remove(hold.lost?);
    Some(())
}

/// Delays all but one waiter: its answer and its later records come ten minutes later.
fn starved_waiter(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let (_, waiter) = pick(pairs(lines), dice, |(_, other)| other.op == Op::Acquire)?;
    for line in &mut lines[waiter.ok..] {
        if let Line::Record(record) = line {
            record.t += 600_000 * MS;
            record.valid_until = record.valid_until.map(|until| until + 600_000 * MS);
        } else {
            return None;
        }
    }
    Some(())
}

fn never_answered(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let all = lines.iter().enumerate().filter_map(|(n, line)| Some((n, record(line)?)));
    let mut last: std::collections::BTreeMap<&str, usize> = Default::default();
    last.extend(all.filter(|(_, r)| r.kind != Kind::Event).map(|(n, r)| (&*r.process, n)));
    let answer = pick(last.into_values().collect(), dice, |&n| {
        // An unanswered acquisition has no grant for later records.
        let suits = |r: &Record| r.kind != Kind::Info && !r.op.acquires();
        record(&lines[n]).is_some_and(suits) && !killed(lines, n)
    })?;
    lines.remove(answer);
    Some(())
}

/// Swaps two waiters of a queue.
fn overtaken(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let (one, other) = pick(pairs(lines), dice, |(one, other)| {
        one.op == Op::Acquire
            && other.op == Op::Acquire
            && t(lines, other.invoke) > t(lines, one.invoke) + 25 * MS
            && t(lines, other.invoke) < t(lines, one.ok)
    })?;
    // The records of each call become those of the other: the names change, up to the grants.
    let name = |index: usize| record(&lines[index]).map(|r| (r.process.clone(), r.grant.clone()));
    let (first, second) = (name(one.invoke)?, name(other.invoke)?);
    for (index, name) in [(one.invoke, second), (other.invoke, first)] {
        let record = record_mut(&mut lines[index]);
        (record.process, record.grant) = name;
    }
    History::new(lines.iter().cloned()).ok().map(|_| ())
}

fn writes(lines: &[Line]) -> Vec<(usize, Record)> {
    let all = lines.iter().enumerate().filter_map(|(n, line)| Some((n, record(line)?.clone())));
    all.filter(|(_, r)| r.op == Op::Write).collect()
}

/// Lets a write of an earlier holder pass after one of a later holder.
fn late_write(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let (index, write) =
        pick(writes(lines), dice, |(_, r)| r.kind == Kind::Ok && r.fence > Some(1))?;
    let later = call(lines, index, write.t + 1, write.t + 2, Op::Write, Kind::Ok);
    for line in [later - 1, later] {
        record_mut(&mut lines[line]).fence = write.fence.map(|fence| fence - 1);
    }
    Some(())
}

fn miscounted(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut passed = writes(lines);
    passed.retain(|(_, r)| r.value.is_some());
    let (index, _) = pick(passed.clone(), dice, |(_, r)| {
        passed.iter().any(|(_, b)| b.lock == r.lock && b.value.map(|v| v + 1) == r.value)
    })?;
    let value = &mut record_mut(&mut lines[index]).value;
    *value = value.map(|value| value - 1);
    Some(())
}

fn refused_without_a_reason(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let all = writes(lines);
    let (index, write) = pick(all.clone(), dice, |(_, r)| {
        let of_lock = all.iter().filter(|(_, w)| w.lock == r.lock);
        r.kind == Kind::Ok && r.fence == of_lock.filter_map(|(_, w)| w.fence).max()
    })?;
    let late = t(lines, lines.len() - 1) + 1;
    let last = call(lines, index, late, late + 1, Op::Write, Kind::Fail);
    record_mut(&mut lines[last - 1]).fence = write.fence;
    record_mut(&mut lines[last]).err = Some(Why::Fenced);
    Some(())
}

/// Each mutation with the rule that must catch it, and the share of histories that have a suitable
/// place.
const MUTATIONS: &[(&str, Mutation, Rule)] = &[
    ("overlapping claim", overlapping_claim, Rule::K1),
    ("swapped fences", swapped_fences, Rule::K4),
    ("repeated fence", repeated_fence, Rule::K4),
    ("missing fence", missing_fence, Rule::K4),
    ("lost release", lost_release, Rule::K2),
    ("phantom busy", phantom_busy, Rule::K2),
    ("phantom busy in between", phantom_busy_in_between, Rule::K2),
    ("released by another", released_by_another, Rule::K7),
    ("released twice", released_twice, Rule::K7),
    ("not held without a reason", not_held_without_a_reason, Rule::K7),
    ("revived", revived, Rule::K7),
    ("dropped loss", dropped_loss, Rule::Told),
    ("starved waiter", starved_waiter, Rule::K5),
    ("never answered", never_answered, Rule::K5),
    ("overtaken", overtaken, Rule::Fifo),
    ("late write", late_write, Rule::K3),
    ("miscounted", miscounted, Rule::K3),
    ("refused without a reason", refused_without_a_reason, Rule::K3),
];

#[test]
fn mutations_fail_under_the_right_rule() {
    for (name, mutation, rule) in MUTATIONS {
        let mut applied = 0;
        for seed in 0..400 {
            let mut dice = Dice(seed);
            let game = Play {
                seed,
                clients: 2 + dice.roll(4) as usize,
                locks: 1 + dice.roll(2) as usize,
                calls: 5 + dice.roll(30) as usize,
                fenced: dice.roll(4) > 0,
                rough: dice.roll(2) == 0,
            };
            let mut lines = play(&game);
            if mutation(&mut lines, &mut dice).is_none() {
                continue;
            }
            applied += 1;
            sort(&mut lines);
            let report = judge(&lines);
            assert!(report.breaks(*rule), "{name}: {report}\n{}", text(&lines));
        }
        assert!(applied >= 20, "{name} found a place in {applied} histories only");
    }
}

// ---- against a checker that tries every order ----

fn is_in_order(report: &Report) -> bool {
    assert!(!report.breaks(Rule::Undecided), "{report}");
    ![Rule::K1, Rule::K2, Rule::K4, Rule::K7].into_iter().any(|rule| report.breaks(rule))
}

#[test]
fn small_histories_are_judged_as_by_trying_every_order() {
    let (mut legal, mut illegal, mut missed) = (0_u32, 0_u32, 0_u32);
    for seed in 0..40_000 {
        let fenced = seed % 2 == 0;
        let small = Small::draw(seed, fenced);
        let report = judge(&small.lines);
        let truth = small.is_legal();
        legal += u32::from(truth);
        illegal += u32::from(!truth);
        if truth == is_in_order(&report) {
            continue;
        }
        // With tokens, calls with unknown outcome explain contention one by one, not all together.
        assert!(
            !truth && fenced && small.has_unknown,
            "legal: {truth}\n{report}\n{}",
            text(&small.lines)
        );
        missed += 1;
    }
    println!("{legal} legal, {illegal} illegal, {missed} missed");
    assert!(legal > 5000 && illegal > 5000, "{legal} legal, {illegal} illegal");
    assert!(missed * 200 < illegal, "{missed} of {illegal} were missed");
}

// ---- real locks, recorded ----

struct InMemory(Memory);

#[async_trait::async_trait]
impl Harness for InMemory {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }
}

fn on_a_paused_clock<T>(future: impl Future<Output = T>) -> T {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime starts");
    runtime.block_on(future)
}

/// Returns the report of a load on a paused clock.
fn judged(harness: &dyn Harness, load: Load) -> (Report, String) {
    let lines = on_a_paused_clock(workload::run(harness, load));
    (judge(&lines), text(&lines))
}

#[test]
fn the_memory_backend_is_legal() {
    for seed in 0..20 {
        let disturbed = seed % 2 == 1;
        let load = Load { seed, clients: 12, rounds: 30, disturbed };
        let (report, lines) = judged(&InMemory(Memory::new()), load);
        assert!(report.is_legal(), "{load:?} {report}\n{lines}");
        assert!(report.grants > 100 && report.hand_offs.count > 50, "{report}");
        assert!(report.unknown > 10, "{report}");
    }
}

/// Backends with a defect that a history shows, each with a rule that must catch it.
const SABOTEURS: &[(&str, Rule)] = &[
    ("GrantsEveryone", Rule::K1),
    ("ExpiresEarly", Rule::K1),
    ("ExaggeratesItsLease", Rule::K1),
    ("CountsFromTheReply", Rule::K1),
    ("ReleasesAnyone", Rule::K1),
    ("RepeatsTokens", Rule::K4),
    ("HandsOverOldTokens", Rule::K4),
    ("LeavesStaleQueueEntries", Rule::K5),
    ("NeverWakes", Rule::K5),
    ("ServesLastFirst", Rule::Fifo),
    ("QueuesTries", Rule::K5),
];

#[test]
fn saboteurs_are_caught_by_their_history() {
    for (name, rule) in SABOTEURS {
        let saboteur = sabotage::all().iter().find(|saboteur| saboteur.name == *name);
        let saboteur = saboteur.expect("it is one of the saboteurs");
        // Some need a situation that one run in ten has.
        let caught = (0..100).any(|seed| {
            let load = Load { seed, clients: 12, rounds: 25, disturbed: seed % 2 == 1 };
            let harness = saboteur.infiltrate(Box::new(InMemory(Memory::new())));
            judged(&*harness, load).0.breaks(*rule)
        });
        assert!(caught, "{name} got past {rule:?}");
    }
}

// ---- histories written by hand ----

fn hand_written(fields: &str, lines: &[impl AsRef<str>]) -> Result<Report, String> {
    let fencing = if fields.contains("fencing") { "" } else { r#","fencing":"seeded""# };
    let header = r#"{"kind":"header","version":1,"run":"r","seed":7,"backend":"b","clock":"moment","sequential":true,
        "margin":30,"takeover":200,"hand_off":100,"told_within":100,"drain":10000"#;
    let header = header.replace('\n', " ");
    let lease = if fields.contains(r#""lease""#) { "" } else { r#","lease":3000"# };
    let lines: Vec<&str> = lines.iter().map(AsRef::as_ref).collect();
    let text = format!("{header}{fencing}{lease}{fields}}}\n{}\n", lines.join("\n"));
    let history = History::read(text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(check(&history))
}

/// Judges lines in the order of their time.
fn report_on(fields: &str, lines: &[impl AsRef<str>]) -> Report {
    let mut lines: Vec<&str> = lines.iter().map(AsRef::as_ref).collect();
    lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
    hand_written(fields, &lines).unwrap()
}

/// Returns a line about the grant that bears the name of its client.
fn written(t: u64, kind: &str, who: &str, op: &str, more: &str) -> String {
    let grant = who.rsplit('/').next().unwrap();
    format!(
        r#"{{"kind":"{kind}","t":{t},"proc":"{who}","lock":"l","op":"{op}","grant":"{grant}"{more}}}"#
    )
}

/// Returns an acquisition, and a field that a reader has to skip.
fn grant(who: &str, [asked, got]: [u64; 2], fence: u64, until: u64) -> [String; 2] {
    let held = format!(r#","fence":{fence},"valid_until":{until},"new":1"#);
    [written(asked, "invoke", who, "acquire", ""), written(got, "ok", who, "acquire", &held)]
}

fn release(who: &str, [asked, ended]: [u64; 2]) -> [String; 2] {
    [written(asked, "invoke", who, "release", ""), written(ended, "ok", who, "release", "")]
}

/// Returns a try that meets contention.
fn busy(who: &str, [asked, ended]: [u64; 2]) -> [String; 2] {
    let err = r#","err":"busy""#;
    [written(asked, "invoke", who, "try", ""), written(ended, "fail", who, "try", err)]
}

/// Returns a confirmed renewal.
fn renewal(who: &str, [asked, ended]: [u64; 2], more: &str) -> [String; 2] {
    [written(asked, "invoke", who, "renew", ""), written(ended, "ok", who, "renew", more)]
}

fn lost(t: u64, who: &str, err: &str) -> String {
    written(t, "event", who, "lost", &format!(r#","err":"{err}""#))
}

/// Returns the start and the end of a fault, which is described by its `what` and further fields.
fn fault(id: u64, times: [u64; 2], what: &str) -> [String; 2] {
    fault_ending(id, times, what, "")
}

/// Returns a fault whose end has further fields.
fn fault_ending(id: u64, [from, until]: [u64; 2], what: &str, end: &str) -> [String; 2] {
    [begun(id, from, what), format!(r#"{{"kind":"heal","t":{until},"id":{id}{end}}}"#)]
}

fn begun(id: u64, t: u64, what: &str) -> String {
    format!(r#"{{"kind":"fault","t":{t},"id":{id},"what":{what}}}"#)
}

/// The removal of the lock by an operator, and the field of a header that allows it.
const BREAK: &str = r#""break","lock":"l","breaks":["A3"]"#;
const BREAKS_A3: &str = r#","breaks":["A3"]"#;

/// Returns the grant of a lock to A.
fn to_a() -> [String; 2] {
    grant("p1/a", [10, 20], 1, 2980)
}

/// Returns a grant to B, before the lease of A has ended.
fn to_b() -> [String; 2] {
    grant("p2/b", [500, 600], 2, 3500)
}

/// Returns the invocation of B's acquisition.
fn b_waits() -> String {
    let [waits, _] = to_b();
    waits
}

/// Grants the lock to another client at `at`, with the next token.
fn second_holder(lines: &mut Vec<Line>, at: u64) {
    let given = holds(lines).pop().expect("a lock was granted");
    let answer = call(lines, given.ok, at, at + 1, Op::Try, Kind::Ok);
    let record = record_mut(&mut lines[answer]);
    (record.fence, record.valid_until) = (given.fence.map(|fence| fence + 256), Some(at + MS));
    sort(lines);
}

/// Checks a lock that is renewed in the background, without checks of its holder. A second holder
/// is found at any time.
#[test]
fn a_second_holder_is_seen_beside_one_that_is_renewed() {
    let (ttl, locks) = (Duration::from_secs(3), Locker::new(Memory::new()));
    let recorder =
        Recorder::in_memory(Clock::core(), Header::new("renewed", 1, locks.capabilities(), ttl));
    let mut client = recorder.client("p1/a");
    on_a_paused_clock(async {
        let lock = locks.lock("one").unwrap().ttl(ttl);
        // The first is released, and the second is partitioned while it holds the lock.
        let held = client.acquire(&lock).await.unwrap();
        held.sleep(ttl * 4).await;
        client.release(held).await.unwrap();
        let held = client.acquire(&lock).await.unwrap();
        held.sleep(ttl * 4).await;
        std::mem::forget(held);
    });
    assert!(judge(&recorder.lines()).is_legal());
    let mut seen = Vec::new();
    for at in (0..12).map(|n| 500 * MS + n * 1000 * MS) {
        for from in [0, 12_000 * MS] {
            let mut lines = recorder.lines();
            second_holder(&mut lines, from + at);
            seen.push(judge(&lines).breaks(Rule::K1));
        }
    }
    assert!(seen.iter().all(|&seen| seen), "{seen:?}");
}

/// Checks that the guard's deadline at the release shows how long the lock was held.
#[test]
fn a_release_tells_how_long_the_lock_was_held() {
    let judge = |event: &str, told: &str| {
        let next = grant("p2/b", [4000, 4010], 2, 6980);
        let renewed = written(2000, "event", "p1/a", "renew", event);
        let released = written(4500, "invoke", "p1/a", "release", told);
        let unknown = written(4510, "info", "p1/a", "release", "");
        report_on("", &[&to_a()[..], &next, &[renewed, released, unknown]].concat())
    };
    let later = r#","valid_until":4900"#;
    for (event, told) in [(later, ""), ("", later)] {
        let report = judge(event, told);
        assert!(report.breaks(Rule::K1), "{event} {told}: {report}");
    }
    // According to the records, it was over by then.
    assert!(!judge("", "").breaks(Rule::K1));
}

#[test]
fn overlaps_are_counted_while_an_assumption_is_broken_on_purpose() {
    let report = report_on("", &[to_a(), to_b()].concat());
    assert!(report.breaks(Rule::K1), "{report}");
    assert_eq!(report.violations[0].lines, [3, 5], "{report}");

    let (fields, flush) = (r#","breaks":["A2"]"#, r#""flush","breaks":["A2"]"#);
    let lines = [to_a(), fault(1, [300, 310], flush), to_b()].concat();
    let report = report_on(fields, &lines);
    assert!(report.is_legal(), "{report}");
    assert_eq!((report.excused_overlaps, report.claims_at_risk), (1, 1));

    let undeclared = hand_written("", &lines).unwrap_err();
    assert!(undeclared.starts_with("line 4: ") && undeclared.contains("A2"), "{undeclared}");

    // Of some locks, of others, or of none.
    for (locks, is_excused) in
        [(r#"["m","l"]"#, true), (r#""m""#, false), (r#"["m","n"]"#, false), ("[]", false)]
    {
        let some = fault(1, [300, 310], &format!(r#"{flush},"lock":{locks}"#));
        let report = report_on(fields, &[to_a(), some, to_b()].concat());
        assert_eq!(!report.breaks(Rule::K1), is_excused, "{locks}: {report}");
    }

    // Tokens must hold nevertheless.
    let same = grant("p2/b", [500, 600], 1, 3500);
    let report = report_on(fields, &[to_a(), fault(1, [300, 310], flush), same].concat());
    assert!(report.breaks(Rule::K4), "{report}");
}

#[test]
fn a_removal_excuses_only_its_holder() {
    let judge =
        |at: u64| report_on(BREAKS_A3, &[fault(1, [at, at + 2], BREAK), to_a(), to_b()].concat());
    let report = judge(300);
    assert!(report.is_legal() && report.excused_overlaps == 1, "{report}");
    // Both came after it.
    let report = judge(5);
    assert!(report.breaks(Rule::K1) && report.breaks(Rule::K2), "{report}");
}

/// Checks a broken lock of A that B has had since. A process with a holder that believes in its
/// lock does not ask.
#[test]
fn a_holder_unaware_of_a_break_blocks_its_process() {
    for (who, is_told, is_explained) in
        [("p1/d", false, true), ("p1/d", true, false), ("p3/d", false, false)]
    {
        let of_b = [grant("p2/b", [110, 111], 2, 3003), release("p2/b", [200, 201])];
        let others = [to_a(), fault(1, [100, 102], BREAK), busy(who, [400, 401])];
        let mut lines = [of_b.concat(), others.concat()].concat();
        lines.extend(is_told.then(|| lost(150, "p1/a", "not_held")));
        let report = report_on(BREAKS_A3, &lines);
        assert_eq!(!report.breaks(Rule::K2), is_explained, "{who}: {report}");
    }
}

/// Checks a broken lock of A: B and C were queued, and D gets it while C holds it.
#[test]
fn a_waiter_at_a_break_did_not_hold_the_lock() {
    let judge = |d: u64| {
        let of_a = [to_a(), fault(1, [100, 102], BREAK)];
        let of_b = [grant("p2/b", [50, 103], 2, 3003), release("p2/b", [200, 201])];
        let of_c = [grant("p3/c", [60, 202], 3, 3102), release("p3/c", [900, 901])];
        let of_d = grant("p4/d", [d - 50, d], 4, d + 2900);
        let mut lines = [of_a, of_b, of_c].concat().concat();
        lines.extend(of_d);
        lines.push(lost(150, "p1/a", "not_held"));
        report_on(BREAKS_A3, &lines)
    };
    let legal = judge(1000);
    assert!(legal.is_legal() && legal.excused_overlaps == 1, "{legal}");
    let report = judge(300);
    assert!(report.breaks(Rule::K1) && report.breaks(Rule::K2), "{report}");
}

#[test]
fn a_removal_that_removed_nothing_excuses_nothing() {
    for (happened, is_legal) in [("", true), (r#","happened":false"#, false)] {
        let removal = |times: [u64; 2]| fault_ending(1, times, BREAK, happened);
        let report = report_on(BREAKS_A3, &[to_a(), removal([300, 302]), to_b()].concat());
        assert_eq!(report.is_legal(), is_legal, "{report}");

        // Nor a waiter that comes late, nor an error.
        let fields = r#","breaks":["A3"],"recovers":900"#;
        let late = grant("p2/b", [500, 700], 2, 3500);
        let report = report_on(fields, &[removal([550, 551]), late].concat());
        assert_eq!(!report.breaks(Rule::K5), is_legal, "{report}");
        let failed = written(700, "fail", "p2/b", "acquire", r#","err":"Unavailable""#);
        let report = report_on(fields, &[removal([550, 551]), [b_waits(), failed]].concat());
        assert_eq!(report.acquisitions.failed, u64::from(!is_legal), "{report}");
    }
}

#[test]
fn a_released_lock_is_not_held() {
    for (op, more) in [("renew", r#","valid_until":3990"#), ("check", "")] {
        let asked = [written(700, "invoke", "p1/a", op, ""), written(710, "ok", "p1/a", op, more)];
        let report = report_on("", &[to_a(), release("p1/a", [30, 31]), asked].concat());
        assert!(report.breaks(Rule::K7), "{op}: {report}");
    }
}

/// Checks a broken lock of A that B has had since: A's next check still confirms it.
#[test]
fn a_renewal_beside_a_newer_holder_is_a_lie_unless_the_newer_one_was_lost() {
    let any_lock = r#""break","breaks":["A3"]"#;
    let renewed = renewal("p1/a", [620, 630], r#","valid_until":3600"#);
    let mut lines = [to_a(), fault(1, [300, 302], any_lock), to_b(), renewed].concat();
    let report = report_on(BREAKS_A3, &lines);
    assert!(report.breaks(Rule::K7), "{report}");
    assert_eq!(report.violations[0].lines, [7, 8, 9], "{report}");
    lines.extend(fault(2, [610, 612], any_lock));
    let report = report_on(BREAKS_A3, &lines);
    assert!(!report.breaks(Rule::K7), "{report}");
}

/// Checks a late notification: B has the lock from 600 on. A may have given up shortly before its
/// notification, and not long before.
#[test]
fn a_late_notification_is_no_early_release() {
    for (told, is_legal) in [(691, true), (791, false)] {
        for stopped in [false, true] {
            let asked = written(told - 1, "invoke", "p1/a", "check", "");
            let answered = written(told, "fail", "p1/a", "check", r#","err":"lost""#);
            let mut lines = [to_a(), to_b(), [asked, answered]].concat();
            let stop = fault(1, [590, 595], r#""stop","proc":"p1""#);
            lines.extend(stop.into_iter().filter(|_| stopped));
            let report = report_on("", &lines);
            let overlaps = report.breaks(Rule::K1);
            assert_eq!(!overlaps, is_legal || stopped, "{told}, stopped {stopped}: {report}");
        }
    }
}

#[test]
fn a_wait_with_unknown_outcome_is_judged() {
    for (until, err, is_legal) in
        [(90, "dropped", true), (500, "dropped", false), (500, "timeout", false)]
    {
        let lines = [
            written(10, "invoke", "p1/a", "acquire", ""),
            written(until, "info", "p1/a", "acquire", &format!(r#","err":"{err}""#)),
        ];
        let report = report_on("", &lines);
        assert_eq!(!report.breaks(Rule::K5), is_legal, "{until} {err}: {report}");
    }
}

#[test]
fn a_contended_lock_stands_still_after_a_failover_for_the_declared_bound_at_most() {
    let faults =
        [fault(1, [100, 450], r#""failover""#), fault(2, [400, 400], r#""resumes""#)].concat();
    for (until, is_legal) in [(1400, true), (1401, false)] {
        let next = grant("p2/b", [30, until], 2, 4300);
        let calls = [to_a(), release("p1/a", [110, 120]), next].concat();
        let declared = r#","recovers":2000,"resumes":1000"#;
        let report = report_on(declared, &[&faults[..], &calls].concat());
        assert_eq!(!report.breaks(Rule::K5), is_legal, "{until}: {report}");
        assert_eq!(report.standstills["failover"].max, until - 400, "{report}");
    }
}

#[test]
fn a_kill_that_did_not_happen_ends_nothing() {
    for (happened, is_legal) in [("", true), (r#","happened":false"#, false)] {
        let killed = fault_ending(1, [100, 101], r#""kill","proc":"p1""#, happened);
        let report = report_on("", &[to_a(), killed, to_b()].concat());
        assert_eq!(!report.breaks(Rule::K1), is_legal, "{report}");
    }
}

#[test]
fn a_holder_unaware_of_a_clock_step_blocks_its_process() {
    let stepped = fault(1, [100, 102], r#""clock","breaks":["A1"]"#);
    for (who, is_legal) in [("p1/d", true), ("p3/d", false)] {
        let calls = [release("p2/b", [610, 611]), busy(who, [680, 681])];
        let mut lines = [to_a(), stepped.clone(), to_b()].concat();
        lines.extend(calls.concat());
        lines.push(lost(690, "p1/a", "not_held"));
        let report = report_on(r#","breaks":["A1"]"#, &lines);
        assert_eq!(!report.breaks(Rule::K2), is_legal, "{who}: {report}");
    }
}

/// Checks a release whose call was dropped: it goes on in the background. A fault keeps its answer
/// from the process, whose local queue stays shut until then, and B has had the lock meanwhile.
#[test]
fn a_release_without_an_answer_yet_blocks_its_process() {
    let (cut, guarded) = (r#""slow","proc":"p1""#, r#","valid_until":2980"#);
    let judge = |fields: &str, what: &str, call: &str, dropped: &str, more: &[String]| {
        let of_b = [grant("p2/b", [200, 201], 2, 3003), release("p2/b", [300, 301])];
        let mut lines = [to_a(), fault(1, [90, 350], what)].concat();
        lines.extend(of_b.concat());
        lines.extend([
            written(100, "invoke", "p1/a", "release", call),
            written(101, "info", "p1/a", "release", dropped),
        ]);
        lines.extend_from_slice(more);
        report_on(fields, &lines)
    };
    let dropped = r#","err":"dropped""#;
    let later = |who: &str, at: u64| busy(who, [at, at + 1]).to_vec();
    let report = judge("", cut, guarded, dropped, &later("p1/d", 700));
    assert!(!report.breaks(Rule::K2), "{report}");
    // Its local queue has gone on to the next one.
    let next = [grant("p1/c", [305, 310], 3, 3003), release("p1/c", [320, 321])].concat();
    let elsewhere = r#""slow","proc":"p2""#;
    for (fields, what, call, dropped, more) in [
        ("", cut, guarded, dropped, later("p3/d", 700)),
        ("", cut, guarded, dropped, later("p1/d", 10_200)),
        ("", cut, guarded, dropped, [next, later("p1/d", 700)].concat()),
        ("", cut, guarded, r#","err":"Timeout""#, later("p1/d", 700)),
        ("", cut, "", dropped, later("p1/d", 700)),
        ("", elsewhere, guarded, dropped, later("p1/d", 700)),
        (r#","fifo_after":1000"#, cut, guarded, dropped, later("p1/d", 700)),
    ] {
        let report = judge(fields, what, call, dropped, &more);
        assert!(report.breaks(Rule::K2), "{fields} {what} {call} {dropped} {more:?}: {report}");
    }
}

#[test]
fn tokens_that_may_go_back_give_no_order() {
    let fields = r#","breaks":["A1","A2"]"#;
    let emptied = fault(2, [200, 210], r#""emptied","breaks":["A2"]"#);
    let stepped = |breaks: &str| fault(1, [5, 100], &format!(r#""clock"{breaks}"#));
    let judge = |breaks: &str, next: &[[String; 2]]| {
        let first = [stepped(breaks), grant("p1/a", [10, 20], 100, 2980), emptied.clone()];
        report_on(fields, &[&first[..], next].concat().concat())
    };
    let a1 = r#","breaks":["A1"]"#;
    let report = judge(a1, &[to_b()]);
    assert!(report.is_legal(), "{report}");
    assert_eq!((report.excused_fences, report.excused_overlaps), (1, 1), "{report}");

    // Nor that the holder of the lower token had lost the lock by the time it got it.
    let next = [grant("p2/b", [500, 600], 2, 3600), release("p2/b", [3550, 3560])];
    let report = judge(a1, &next);
    assert!(report.is_legal(), "{report}");
    let report = judge("", &next);
    assert!(report.breaks(Rule::Told), "{report}");
}

#[test]
fn a_member_that_lost_its_data_ends_holds_and_does_not_double_them() {
    let emptied = fault(1, [100, 110], r#""member","breaks":["Minority"]"#).to_vec();
    let told = vec![lost(200, "p1/a", "not_held")];
    let judge = |between: &[Vec<String>]| {
        let lines = [[to_a(), to_b()].concat(), between.concat()].concat();
        report_on(r#","breaks":["Minority"]"#, &lines)
    };
    let report = judge(&[emptied.clone(), told.clone()]);
    assert!(report.is_legal(), "{report}");
    let report = judge(&[told]);
    assert!(report.breaks(Rule::K7), "{report}");
    let report = judge(&[emptied]);
    assert!(report.breaks(Rule::K1), "{report}");
    assert_eq!((report.excused_overlaps, report.claims_at_risk), (0, 0), "{report}");
}

#[test]
fn hidden_faults_excuse_nothing_and_unexplained_failures_are_counted() {
    let failed = written(700, "fail", "p2/b", "acquire", r#","err":"Unavailable""#);
    for (hidden, is_excused) in [("", true), (r#","hidden":true"#, false)] {
        let away = fault(1, [550, 560], &format!(r#""member"{hidden}"#));
        let late = grant("p2/b", [500, 700], 2, 3500);
        let report = report_on(r#","recovers":300"#, &[away.clone(), late].concat());
        assert_eq!(report.is_legal(), is_excused, "{report}");
        let lines = [away, [b_waits(), failed.clone()]].concat();
        let report = report_on(r#","recovers":300"#, &lines);
        assert!(report.is_legal(), "{report}");
        let counted = u64::from(!is_excused);
        let tally = &report.acquisitions;
        assert_eq!((tally.count, tally.failed, tally.moments), (counted, counted, counted));
    }
}

#[test]
fn one_failure_in_two_hundred_is_the_machine_and_more_are_not() {
    for (count, failed, moments, too_often) in [
        (10, 3, 3, false),
        (10, 4, 4, true),
        (1000, 5, 5, false),
        (1000, 6, 6, true),
        (1000, 500, 3, false),
        (1000, 500, 4, true),
    ] {
        let tally = Tally { count, failed, moments, failures: Vec::new() };
        assert_eq!(tally.fails_too_often(), too_often, "{tally}");
    }
}

/// Judges eight grants of 500 in sequence, each 1000 after the previous one, with the lines that
/// follow them. `more` are fields of the acquisitions, and the fault begins after the first one.
fn holds_of(
    fields: &str,
    more: &str,
    fault: Option<&str>,
    follow: impl Fn(&str, u64, u64) -> Vec<String>,
) -> Report {
    let mut lines: Vec<String> = fault.map(str::to_owned).into_iter().collect();
    for (n, t) in (0..8).map(|n| (n, 100 + 1000 * n)) {
        let who = format!("p1/t{n}");
        let held = format!(r#","fence":{},"valid_until":{}{more}"#, n + 1, t + 500);
        lines.push(written(t, "invoke", &who, "acquire", more));
        lines.push(written(t, "ok", &who, "acquire", &held));
        lines.extend(follow(&who, n, t));
    }
    report_on(&format!(r#","recovers":30{fields}"#), &lines)
}

/// Returns a fault of the holders' process that never ends.
fn slow(t: u64) -> String {
    begun(1, t, r#""slow","proc":"p1""#)
}

#[test]
fn releases_that_fail_without_a_fault_are_seen() {
    let judge = |fields: &str, err: &str, fault: Option<&str>| {
        holds_of(fields, "", fault, |who, _, t| {
            let told = format!(r#","err":{err}"#);
            let asked = written(t + 100, "invoke", who, "release", "");
            vec![asked, written(t + 101, "info", who, "release", &told)]
        })
    };
    let report = judge("", r#""Unavailable""#, None);
    assert!(report.breaks(Rule::Unexplained), "{report}");
    assert_eq!((report.returns.count, report.returns.failed, report.returns.moments), (8, 8, 8));
    let at_once = judge(r#","timeout":7000"#, r#""Unavailable""#, None);
    assert!(at_once.breaks(Rule::Unexplained), "it met no bound: {at_once}");
    // All of them in one moment, or under a fault; or only a loss, which is judged by itself.
    for (fields, err, fault) in [
        (r#","timeout":7000"#, r#""Timeout""#, None),
        ("", r#""Unavailable""#, Some(&*slow(150))),
        ("", r#""lost""#, None),
    ] {
        let report = judge(fields, err, fault);
        assert!(!report.breaks(Rule::Unexplained), "{fields} {err}: {report}");
    }
    assert_eq!(judge(r#","timeout":3500"#, r#""Timeout""#, None).returns.moments, 2);
}

#[test]
fn one_failure_is_too_many_where_the_machine_takes_no_time() {
    for (fields, is_legal) in [("", true), (r#","exact":true"#, false)] {
        let report = holds_of(fields, "", None, |who, n, t| {
            let failed = r#","err":"Unavailable""#;
            let (kind, why) = if n == 0 { ("info", failed) } else { ("ok", "") };
            let asked = written(t + 600, "invoke", who, "release", "");
            vec![asked, written(t + 601, kind, who, "release", why)]
        });
        assert_eq!(report.returns.failed, 1);
        assert_eq!(!report.breaks(Rule::Unexplained), is_legal, "{report}");
    }
}

#[test]
fn holds_that_are_renewed_are_lost_for_a_reason_only() {
    let judge = |more: &str, fault: Option<&str>| {
        holds_of("", more, fault, |who, _, t| vec![lost(t + 501, who, "expired")])
    };
    let report = judge("", None);
    assert!(report.breaks(Rule::Unexplained), "{report}");
    assert_eq!((report.holds.count, report.holds.failed), (8, 8), "{report}");
    for (more, fault) in [(r#","unrenewed":true"#, None), ("", Some(&*slow(150)))] {
        let report = judge(more, fault);
        assert!(report.is_legal() && report.holds.count == 0, "{more} {fault:?}: {report}");
    }
    // A hold beyond its first lease was renewed.
    let kept = holds_of("", "", None, |who, _, t| release(who, [t + 600, t + 601]).to_vec());
    assert!(kept.is_legal() && kept.holds.count == 8 && kept.holds.failed == 0, "{kept}");
}

#[test]
fn a_token_that_its_client_refused_has_gone_back() {
    let judge = |[steps, empties]: [bool; 2], granted: &str| {
        let mut lines = [grant("p1/a", [10, 20], 100, 900), release("p1/a", [40, 50])].concat();
        let stepped = fault(1, [5, 30], r#""clock","breaks":["A1"]"#);
        let emptied = fault(2, [60, 70], r#""emptied","breaks":["A2"]"#);
        lines.extend(stepped.into_iter().filter(|_| steps));
        lines.extend(emptied.into_iter().filter(|_| empties));
        lines.push(written(80, "invoke", granted, "acquire", ""));
        lines.push(written(90, "info", granted, "acquire", r#","err":"fenced""#));
        report_on(r#","breaks":["A1","A2"]"#, &lines)
    };
    let report = judge([true, true], "p1/b");
    assert!(report.is_legal() && report.excused_fences == 1, "{report}");
    for faults in [[false, true], [true, false]] {
        let report = judge(faults, "p1/b");
        assert!(report.breaks(Rule::K4), "{report}");
    }
    // By another process, which has seen no recorded token.
    assert!(judge([true, true], "p2/b").is_legal());
    let report = judge([false, false], "p2/b");
    assert!(report.breaks(Rule::K4), "{report}");
}

/// Checks that a refused token may precede the other one: the server may have granted it before,
/// with a late answer.
#[test]
fn a_token_that_was_refused_while_another_one_came_need_not_have_gone_back() {
    for (asked, is_legal) in [(8, true), (80, false)] {
        let invoked = written(asked, "invoke", "p1/b", "acquire", "");
        let refused = written(90, "info", "p1/b", "acquire", r#","err":"fenced""#);
        let of_a = [grant("p1/a", [10, 20], 100, 900), release("p1/a", [40, 50])];
        let report = report_on("", &[of_a.concat(), vec![invoked, refused]].concat());
        assert_eq!(report.is_legal(), is_legal, "{report}");
    }
}

/// Checks a call that is cancelled at 20, and another one that waits from 30 until `t`.
#[test]
fn residue_of_a_cancelled_call_explains_contention_until_it_fades() {
    let judge = |fields: &str, t: u64, fault: Option<String>| {
        let mut lines = grant("p2/b", [30, t], 1, t + 900).to_vec();
        lines.push(written(10, "invoke", "p1/a", "acquire", ""));
        lines.push(written(20, "info", "p1/a", "acquire", r#","err":"dropped""#));
        lines.extend(fault);
        report_on(fields, &lines)
    };
    // A lease, the header's bound, and the bound on a takeover.
    let fades = r#","fades":50"#;
    for (fields, t, legal) in
        [(fades, 3269, true), (fades, 3271, false), ("", 3419, true), ("", 3421, false)]
    {
        let report = judge(fields, t, None);
        assert_eq!(!report.breaks(Rule::K5), legal, "{fields} {t}: {report}");
    }
    // A background release meets a fault.
    let cut = begun(1, 40, r#""partition","proc":"p1""#);
    assert!(judge(fades, 3271, Some(cut)).is_legal());
    // A longer wait would not have shown it.
    for (t, judged) in [(3000, 0), (3100, 1)] {
        let report = judge(fades, t, None);
        assert_eq!((report.waits, report.judged_waits), (1, judged), "{report}");
    }
}

/// Checks a killed waiter, and contention of another client at `t`. It is legal up to a lease and
/// the bound on a takeover later. That counts twice, since the exact end of a lease is unknown.
#[test]
fn killed_waiters_stay_queued_up_to_the_declared_bound() {
    for (fields, t, legal) in [
        ("", 3490, true),
        ("", 3510, false),
        (r#","absent":500"#, 3990, true),
        (r#","absent":500"#, 4010, false),
    ] {
        let waits = written(10, "invoke", "p1/a", "acquire", "");
        let killed = begun(1, 100, r#""kill","proc":"p1""#);
        let report = report_on(fields, &[[waits, killed], busy("p2/b", [t, t + 1])].concat());
        assert_eq!(!report.breaks(Rule::K2), legal, "{fields} {t}: {report}");
    }
}

#[test]
fn faults_excuse_waits_that_met_them_and_no_more() {
    let fault = |id: u64, t: u64, what: &str| fault(id, [t, t + 10], what);
    // It waits from 500 to `t` for a free lock, and should be served within 100.
    let judge = |faults: &[[String; 2]], t: u64| {
        let wait = [grant("p2/b", [500, t], 2, t + 2900)];
        let report = report_on(r#","recovers":300"#, &[faults, &wait].concat().concat());
        !report.breaks(Rule::K5)
    };
    assert!(judge(&[], 599) && !judge(&[], 601));
    // Not served for 300 after it.
    let one = [fault(1, 550, r#""slow","proc":"p2""#)];
    assert!(judge(&one, 859) && !judge(&one, 861));
    // Of another process, of another lock, or when it should have been served already.
    for other in [r#""slow","proc":"p1""#, r#""slow","lock":"m""#, r#""slow","lock":["m","n"]"#] {
        assert!(!judge(&[fault(1, 550, other)], 620));
    }
    assert!(judge(&[fault(1, 550, r#""slow","lock":["l","m"]"#)], 620));
    assert!(!judge(&[fault(1, 610, r#""slow","proc":"p2""#)], 640));
    // In sequence: the time between them counts.
    let many: Vec<_> = (0..20).map(|n| fault(n, 550 + 50 * n, r#""slow","proc":"p2""#)).collect();
    assert!(judge(&many[..9], 980) && !judge(&many, 1540));
}

#[test]
fn half_of_the_hand_offs_without_a_fault_are_prompt_and_nine_in_ten() {
    // Returns a number of hand-offs in sequence, some of which are late.
    let judge = |count: u64, late: u64, fault: Option<String>| {
        let who = |n: u64| format!("p{}/t{n}", n % 2);
        let mut lines = vec![written(10, "invoke", &who(0), "acquire", "")];
        lines.extend(fault);
        let mut at = 20;
        for n in 0..=count {
            let more = format!(r#","fence":{},"valid_until":{}"#, n + 1, at + 2900);
            lines.push(written(at, "ok", &who(n), "acquire", &more));
            lines.push(written(at + 1, "invoke", &who(n + 1), "acquire", ""));
            lines.extend(release(&who(n), [at + 2, at + 3]));
            at += if n < late { 92 } else { 12 };
        }
        // The last client keeps it.
        lines.truncate(lines.len() - 3);
        report_on(r#","half":10,"most":50"#, &lines)
    };
    for (count, late, broken) in
        [(100, 10, 0), (100, 11, 1), (100, 50, 1), (100, 51, 2), (99, 99, 0)]
    {
        let report = judge(count, late, None);
        let found = report.violations.iter().filter(|violation| violation.rule == Rule::K5).count();
        assert_eq!((found, report.calm.count as u64), (broken, count), "{late}: {report}");
        assert_eq!(report.has_been_calm(), count >= 100);
    }
    let report = judge(200, 200, Some(slow(5)));
    assert!(report.is_legal() && report.calm.count == 0, "{report}");
}

/// Checks that renewals do not depend on the application, so that its starvation explains no loss.
/// A stopped process renews nothing.
#[test]
fn a_lock_whose_application_does_not_run_stays_held() {
    let judge = |what: &str, more: &str| {
        holds_of("", more, None, |who, n, t| {
            let around = fault(n, [t + 10, t + 700], &format!(r#""{what}","proc":"p1""#));
            around.into_iter().chain([lost(t + 701, who, "expired")]).collect()
        })
    };
    let report = judge("starve", "");
    assert!(report.breaks(Rule::Unexplained), "{report}");
    assert_eq!((report.starved.count, report.starved.failed), (8, 8), "{report}");
    assert_eq!(report.holds.count, 0, "{report}");
    for (what, more) in [("stop", ""), ("starve", r#","unrenewed":true"#)] {
        let report = judge(what, more);
        assert!(!report.breaks(Rule::Unexplained), "{what} {more}: {report}");
        assert_eq!(report.starved.count, 0, "{report}");
    }
    // The server keeps it for as long as the application may rely on it: a waiter waits no longer
    // than that.
    for (what, is_legal) in [("starve", true), ("stop", false)] {
        let around = fault(1, [100, 9000], &format!(r#""{what}","proc":"p1""#));
        let asked = written(9001, "invoke", "p1/a", "release", r#","valid_until":11000"#);
        let released = [asked, written(9002, "ok", "p1/a", "release", "")];
        let next = grant("p2/b", [500, 9003], 2, 11_900);
        let report = report_on("", &[to_a(), around, released, next].concat());
        assert_eq!(report.is_legal(), is_legal, "only a stopped one is not renewed: {report}");
    }
}

/// Checks that a detached lock ends with its lease, where others end with their process.
#[test]
fn a_detached_lock_outlives_its_process_for_its_lease() {
    let judge = |lease: &str, t: u64| {
        let [asked, got] = to_a();
        let asked = asked.replace('}', &format!("{lease}}}"));
        let killed = begun(1, 100, r#""kill","proc":"p1""#);
        let taken = written(t, "ok", "p2/b", "acquire", r#","fence":2"#);
        report_on(r#","lease":null"#, &[asked, got, killed, b_waits(), taken])
    };
    let detached = r#","lease":3000"#;
    for (lease, t, rule) in [
        (detached, 2990, None),
        (detached, 3299, None),
        (detached, 650, Some(Rule::K2)),
        (detached, 3400, Some(Rule::K5)),
        ("", 590, None),
        ("", 800, Some(Rule::K5)),
    ] {
        let report = judge(lease, t);
        let broken: Vec<Rule> = report.broken.keys().copied().collect();
        assert_eq!(broken, rule.into_iter().collect::<Vec<_>>(), "{lease} {t}: {report}");
    }
}

#[test]
fn a_stopped_holder_is_taken_over_from_within_the_bound() {
    let (stop, away) = (r#""stop","proc":"p1""#, r#""server""#);
    let taken = |t: u64| grant("p2/b", [500, t], 2, t + 2900);
    // The lease after its last renewal, at most when it was stopped, and the bound.
    for (t, legal) in [(3100, true), (3299, true), (3301, false)] {
        let mut lines = [to_a(), taken(t)].concat();
        lines.push(begun(1, 100, stop));
        let report = report_on("", &lines);
        assert_eq!(!report.breaks(Rule::K5), legal, "{t}: {report}");
        assert_eq!(report.takeovers.count, 0, "it waited only after the stop");
    }
    // It is not notified while it is stopped, but soon after. While its server is down, it counts
    // its lease by itself.
    for (what, t, legal) in
        [(stop, 9050, true), (stop, 9150, false), (away, 6150, true), (away, 6250, false)]
    {
        let end = r#"{"kind":"residue","t":20000,"left":[]}"#.to_owned();
        let mut lines = [to_a(), fault(1, [100, 9000], what), taken(3100)].concat();
        lines.extend([lost(t, "p1/a", "expired"), end]);
        let report = report_on("", &lines);
        assert_eq!(!report.breaks(Rule::Told), legal, "{t}: {report}");
    }
}

/// Checks a hand-over of a lock that was removed before: the next holder is notified by its next
/// renewal.
#[test]
fn a_loss_after_a_hand_over_of_a_removed_lock_has_a_reason() {
    let removed = fault_ending(1, [100, 101], BREAK, r#","removed":true"#);
    let of_a = [grant("p1/a", [10, 20], 0x100, 2000), release("p1/a", [130, 130])];
    let mut lines = [of_a.concat(), grant("p1/b", [120, 131], 0x101, 2000).to_vec()].concat();
    lines.push(lost(140, "p1/b", "not_held"));
    let fields = r#","breaks":["A3"],"passes_on":true"#;
    assert!(report_on(fields, &lines).breaks(Rule::K7));
    lines.extend(removed);
    let report = report_on(fields, &lines);
    assert!(report.is_legal(), "{report}");
}

#[test]
fn a_minimum_hold_keeps_others_out_after_the_release_and_no_longer() {
    let kept = r#","kept_until":300"#;
    for (kept, at, is_legal) in [("", 150, false), (kept, 150, true), (kept, 500, false)] {
        let held = format!(r#","fence":1,"valid_until":3000{kept}"#);
        let lines = [
            [
                written(100, "invoke", "p1/a", "acquire", ""),
                written(101, "ok", "p1/a", "acquire", &held),
            ],
            release("p1/a", [110, 111]),
            busy("p2/b", [at, at + 1]),
        ];
        let report = report_on("", &lines.concat());
        assert_eq!(report.is_legal(), is_legal, "{kept} {at}: {report}");
    }
}

#[test]
fn a_minimum_hold_lasts_longer_if_the_clock_goes_back() {
    let held = r#","fence":1,"valid_until":3000,"kept_until":150"#;
    let lines = [
        fault(1, [50, 400], r#""server-clock-stepped","breaks":["A1"]"#),
        [
            written(100, "invoke", "p1/a", "acquire", ""),
            written(101, "ok", "p1/a", "acquire", held),
        ],
        release("p1/a", [110, 111]),
        busy("p2/b", [300, 301]),
        busy("p3/c", [500, 501]),
    ];
    let judge = |lines: &[[String; 2]]| report_on(r#","breaks":["A1"]"#, &lines.concat());
    let before = judge(&lines[..4]);
    assert!(before.is_legal(), "the clock may have gone back: {before}");
    let after = judge(&lines);
    assert!(!after.is_legal(), "the step was over: {after}");
}

/// Checks that an unrenewed lock without a lease ends with the deadline of its holder.
#[test]
fn a_killed_holder_without_a_lease_is_followed_at_once() {
    let held = r#","fence":1,"valid_until":900,"unrenewed":true"#;
    let mut lines = [grant("p2/b", [210, 220], 2, 900), release("p2/b", [230, 231])].concat();
    lines.push(written(100, "invoke", "p1/a", "acquire", ""));
    lines.push(written(101, "ok", "p1/a", "acquire", held));
    lines.push(begun(1, 200, r#""kill","proc":"p1""#));
    for (lease, is_legal) in [("null", true), ("1000", false)] {
        let report = report_on(&format!(r#","lease":{lease}"#), &lines);
        assert_eq!(report.is_legal(), is_legal, "{lease}: {report}");
    }
}

#[test]
fn a_handed_over_hold_dates_from_its_first_request() {
    let of_a = [grant("p1/a", [10, 20], 0x100, 2000), release("p1/a", [130, 130])];
    let others = [grant("p2/c", [30, 110], 0x200, 2000), grant("p1/b", [120, 130], 0x101, 2000)];
    let mut unbroken = [of_a, others].concat().concat();
    unbroken.push(written(140, "event", "p1/b", "lost", ""));
    let lines = [&unbroken[..], &[begun(1, 100, BREAK)]].concat();
    // The process cannot know that its lock was broken; the server has granted it once.
    let report = report_on(r#","breaks":["A3"],"passes_on":true"#, &lines);
    assert!(report.is_legal() && report.excused_overlaps > 0, "{report}");
    // But where all tokens come from the server, it has granted a lower one later.
    let report = report_on(BREAKS_A3, &lines);
    assert!(report.breaks(Rule::K4), "{report}");
    // And where no assumption was broken, there were two holders.
    let report = report_on(r#","passes_on":true"#, &unbroken);
    assert!(report.breaks(Rule::K1), "{report}");
    assert!(report.breaks(Rule::K2) || report.breaks(Rule::K7), "{report}");
}

#[test]
fn a_waiter_beside_an_expired_holder_may_be_passed_over() {
    let judge = |fields: &str, holder: &str, queued: &str| {
        let [asked, got] = grant("p1/b", [30, 1110], 3, 3900);
        let asked = asked.replace('}', &format!("{queued}}}"));
        let of_c = [grant("p2/c", [300, 1000], 2, 3900), release("p2/c", [1100, 1100])];
        let mut lines = [&grant(holder, [10, 20], 1, 900)[..], &of_c.concat()].concat();
        lines.extend([asked, got, lost(900, holder, "expired")]);
        report_on(&format!(r#"{fields},"fifo_after":100"#), &lines)
    };
    let pushed = r#","passes_over":true"#;
    assert!(judge(pushed, "p1/a", "").is_legal());
    // Or one whose program has to start before it is queued.
    assert!(judge("", "p3/a", r#","overtakable":true"#).is_legal());
    // Not where the header does not declare it, nor beside others.
    for (fields, holder) in [("", "p1/a"), (pushed, "p3/a")] {
        let report = judge(fields, holder, "");
        assert!(report.breaks(Rule::Fifo), "{fields} {holder}: {report}");
    }
}

/// Checks a client that gives its session up before its deadline, after a fault of its link.
#[test]
fn a_session_that_is_given_up_ends_its_locks_where_that_is_said() {
    let mut calm = grant("p1/a", [100, 101], 256, 3000).to_vec();
    calm.push(lost(900, "p1/a", "not_held"));
    let cut = begun(1, 120, r#""held-and-delivered","proc":"p1""#);
    let lines = [&calm[..], &[cut]].concat();
    let given_up = report_on(r#","moves_back":true"#, &lines);
    assert!(given_up.is_legal(), "{given_up}");
    for (fields, lines) in [("", &lines), (r#","moves_back":true"#, &calm)] {
        let report = report_on(fields, lines);
        assert!(report.breaks(Rule::K7), "{fields}: {report}");
    }
}

/// Checks that a lock whose session was given up stays taken until the server ends that session,
/// and not for longer.
#[test]
fn a_session_that_is_given_up_keeps_its_locks_for_a_while() {
    let cut = fault(1, [120, 700], r#""held-and-delivered","proc":"p1""#);
    let ended = [
        vec![lost(900, "p1/a", "not_held")],
        [("invoke", 800, ""), ("fail", 900, r#","err":"not_held""#)]
            .map(|(kind, t, err)| written(t, kind, "p1/a", "release", err))
            .to_vec(),
    ];
    for end in ended {
        let held = [&grant("p1/a", [100, 101], 256, 3000)[..], &end].concat();
        let judge = |fields: &str, cut: &[String], at: u64| {
            report_on(fields, &[&held[..], cut, &busy("p2/b", [at, at + 10])].concat())
        };
        let soon = judge(r#","moves_back":true"#, &cut, 2000);
        assert!(soon.is_legal(), "{soon}");
        for (fields, cut, at) in [
            (r#","moves_back":true"#, &cut[..], 20_000),
            (r#","moves_back":true"#, &[], 2000),
            ("", &cut, 2000),
        ] {
            let report = judge(fields, cut, at);
            assert!(report.breaks(Rule::K2), "{fields} {at}: {report}");
        }
    }
}

/// Checks that a try may be refused during a removal by an operator, and not after it.
#[test]
fn a_try_yields_to_a_removal() {
    let judge = |asked: u64| {
        let removal = fault(1, [100, 200], r#""broken","lock":"l","breaks":["A3"]"#);
        let lines = [removal, busy("p1/a", [asked, asked + 10])].concat();
        report_on(r#","breaks":["A3"]"#, &lines)
    };
    assert!(judge(150).is_legal(), "{}", judge(150));
    for asked in [80, 201] {
        assert!(judge(asked).breaks(Rule::K2), "{asked}: {}", judge(asked));
    }
}

/// Checks that three concurrent tries of a quorum may all be refused, since each may get one vote,
/// and two tries where a member is away.
#[test]
fn a_quorum_may_refuse_all_of_three_tries() {
    let judge = |fields: &str, third: [String; 2]| {
        let tries = [busy("p1/a", [100, 110]), busy("p2/b", [105, 120]), third];
        report_on(fields, &tries.concat())
    };
    let votes = r#","votes":true"#;
    let report = judge(votes, busy("p3/c", [108, 115]));
    assert!(report.is_legal(), "{report}");
    let wait = busy("p3/c", [108, 115]).map(|line| line.replace("try", "acquire"));
    for (fields, third, unexplained) in [
        ("", busy("p3/c", [108, 115]), 3),
        (votes, busy("p3/c", [111, 115]), 2),
        (votes, busy("p3/c", [121, 130]), 3),
        // A client that waits is an explanation, and needs one.
        (votes, wait, 1),
    ] {
        let report = judge(fields, third);
        assert_eq!(report.broken.get(&Rule::K2), Some(&unexplained), "{fields}: {report}");
    }
    let two = [busy("p1/a", [100, 110]), busy("p2/b", [105, 120])].concat();
    assert!(report_on(votes, &two).breaks(Rule::K2), "one of them wins");
    let stopped = fault(1, [90, 104], r#""member-stopped","hidden":true"#);
    let report = report_on(votes, &[&two[..], &stopped].concat());
    assert!(report.is_legal(), "{report}");
}

/// Checks that a quorum may lose votes after two faults: one kept an answer from its client, and
/// most members were restarted later.
#[test]
fn a_quorum_doubts_votes_only_after_two_faults() {
    let cut = fault(1, [90, 110], r#""delay","proc":"p1""#);
    let restarted = fault(2, [200, 250], r#""server-restarted""#);
    let member = fault(2, [200, 250], r#""member-restarted","hidden":true"#);
    let early = fault(2, [50, 80], r#""server-restarted""#);
    let judge = |fields: &str, faults: &[&[String; 2]]| {
        let mut lines = grant("p1/a", [100, 101], 256, 3000).to_vec();
        lines.push(lost(300, "p1/a", "not_held"));
        lines.extend(faults.iter().flat_map(|fault| fault.to_vec()));
        report_on(fields, &lines)
    };
    let votes = r#","votes":true"#;
    let report = judge(votes, &[&cut, &restarted]);
    assert!(report.is_legal(), "{report}");
    // A hand-over inside the process asks no member.
    let handed_over = |faults: &[&[String; 2]]| {
        let mut lines = grant("p1/a", [100, 101], 256, 3000).to_vec();
        lines.extend(release("p1/a", [260, 262]));
        lines.extend(grant("p1/b", [120, 261], 257, 3000));
        lines.push(lost(300, "p1/b", "not_held"));
        lines.extend(faults.iter().flat_map(|fault| fault.to_vec()));
        report_on(r#","votes":true,"passes_on":true"#, &lines)
    };
    let report = handed_over(&[&cut, &restarted]);
    assert!(report.is_legal(), "{report}");
    assert!(handed_over(&[&restarted]).breaks(Rule::K7), "no answer was missed");
    for (fields, faults) in [
        ("", vec![&cut, &restarted]),
        (votes, vec![&cut]),
        (votes, vec![&restarted]),
        (votes, vec![&cut, &member]),
        (votes, vec![&cut, &early]),
    ] {
        let report = judge(fields, &faults);
        assert!(report.breaks(Rule::K7), "{fields} {faults:?}: {report}");
    }
}

/// Checks that a deadline that moves back excuses no second holder beside one that was told since
/// that it holds the lock.
#[test]
fn a_deadline_moves_back_behind_no_answer() {
    let call = written;
    let held = |fence: u64, until: u64| format!(r#","fence":{fence},"valid_until":{until}"#);
    let judge = |checked: u64| {
        let lines = [
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", &held(1, 2900)),
            call(30, "invoke", "p2/b", "acquire", ""),
            call(checked, "invoke", "p1/a", "check", ""),
            call(checked, "ok", "p1/a", "check", r#","valid_until":2900"#),
            call(950, "ok", "p2/b", "acquire", &held(2, 3900)),
            call(1050, "event", "p1/a", "lost", r#","err":"expired","valid_until":900"#),
        ];
        let mut lines = lines.to_vec();
        lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        hand_written(r#","moves_back":true"#, &lines).unwrap()
    };
    let report = judge(800);
    assert!(report.is_legal(), "{report}");
    let report = judge(1000);
    assert!(report.broken.contains_key(&Rule::K1), "{report}");
}

/// Checks that a session that ends takes all its locks with it, soon after the fault.
#[test]
fn a_session_that_lives_on_ends_no_lock() {
    let held = r#","fence":256,"valid_until":90000"#;
    let judge = |what: &str, heals: u64, other: &str, confirmed: &[String]| {
        let fault = format!(r#"{{"kind":"fault","t":120,"id":1,"what":"{what}","proc":"p1"}}"#);
        let of_m = |line: String| line.replace(r#""lock":"l""#, r#""lock":"m""#);
        let mut lines = vec![
            written(100, "invoke", "p1/a", "acquire", ""),
            written(101, "ok", "p1/a", "acquire", held),
            of_m(written(102, "invoke", other, "acquire", "")),
            of_m(written(103, "ok", other, "acquire", held)),
            fault,
            format!(r#"{{"kind":"heal","t":{heals},"id":1}}"#),
            written(60_000, "event", "p1/a", "lost", r#","err":"not_held""#),
        ];
        lines.extend(confirmed.iter().cloned().map(of_m));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let fields = r#","moves_back":true,"lease":90000"#;
        let report = hand_written(fields, &lines).unwrap();
        !report.broken.contains_key(&Rule::K7)
    };
    let released = |process: &str, guarded: &str| {
        [
            written(60_100, "invoke", process, "release", guarded),
            written(60_101, "ok", process, "release", ""),
        ]
    };
    let guarded = r#","valid_until":90000"#;
    assert!(judge("delay", 55_000, "p1/b", &[]));
    assert!(!judge("delay", 55_000, "p1/b", &released("p1/b", guarded)), "it lives on");
    let verified = [
        written(60_100, "invoke", "p1/b", "renew", ""),
        written(60_101, "ok", "p1/b", "renew", guarded),
    ];
    assert!(!judge("delay", 55_000, "p1/b", &verified), "it lives on");
    // The session of another client, or of a program that this one runs.
    assert!(judge("delay", 55_000, "p2/b", &released("p2/b", guarded)));
    assert!(judge("delay", 55_000, "p1/b", &released("p1/b", "")));
    assert!(!judge("delay", 30_000, "p1/b", &[]), "the fault has no more effects");
    assert!(!judge("starve", 55_000, "p1/b", &[]), "the session is kept meanwhile");
}

/// Checks that a session with a shorter timeout shortens its leases.
#[test]
fn a_deadline_that_moves_back_ends_the_claim_where_that_is_said() {
    let judge = |fields: &str, sampled: bool, next: u64| {
        let told = r#","err":"expired","valid_until":1000"#;
        let grants = [grant("p1/a", [10, 20], 1, 2900), grant("p2/b", [30, next], 2, 3900)];
        let mut lines = grants.concat();
        lines.push(written(1050, "event", "p1/a", "lost", told));
        if sampled {
            lines.push(written(500, "event", "p1/a", "renew", r#","valid_until":1000"#));
        }
        report_on(fields, &lines)
    };
    let moves_back = r#","moves_back":true"#;
    for sampled in [true, false] {
        // The task that is notified of the loss may run a little later than it.
        for next in [1001, 1100] {
            let report = judge(moves_back, sampled, next);
            assert!(report.is_legal(), "{sampled} {next}: {report}");
        }
        let early = judge(moves_back, sampled, 900);
        assert!(early.breaks(Rule::K1) && early.breaks(Rule::K2), "{sampled}: {early}");
        let report = judge("", sampled, 1100);
        assert!(report.breaks(Rule::K2), "{sampled}: {report}");
        assert_eq!(report.breaks(Rule::K1), sampled, "it goes back: {report}");
    }
}

/// Checks a late answer to a release: meanwhile another client had the lock, and has released it.
#[test]
fn a_release_in_progress_blocks_its_process() {
    let judge = |who: &str, asks: u64| {
        let of_a = [to_a(), release("p1/a", [30, 200])];
        let of_b = [grant("p2/b", [40, 50], 2, 2980), release("p2/b", [60, 70])];
        let lines = [of_a.concat(), of_b.concat(), busy(who, [asks, asks + 1]).to_vec()];
        !report_on("", &lines.concat()).breaks(Rule::K2)
    };
    assert!(judge("p1/c", 100));
    assert!(!judge("p2/c", 100) && !judge("p3/c", 100));
    assert!(!judge("p1/c", 201));
}

#[test]
fn a_holder_notified_of_its_loss_blocks_no_client() {
    let judge = |told: &[String], [asks, ends]: [u64; 2]| {
        let asked = written(asks, "invoke", "p1/a", "release", "");
        let answered = written(ends, "fail", "p1/a", "release", r#","err":"not_held""#);
        let calls = [to_a(), [asked, answered], busy("p1/c", [50_100, 50_101])].concat();
        !report_on("", &[&calls, told].concat()).breaks(Rule::K2)
    };
    assert!(!judge(&[lost(3000, "p1/a", "expired")], [50_000, 50_500]));
    let first = release("p1/a", [100, 110]);
    assert!(!judge(&first, [50_000, 50_500]), "it was released before");
    assert!(!judge(&[], [30, 90_000]), "no release takes as long");
}

#[test]
fn a_release_lost_with_its_server_blocks_others_for_its_lease() {
    let ends = [
        written(110, "ok", "p1/a", "release", ""),
        written(110, "info", "p1/a", "release", r#","err":"gone""#),
    ];
    let judge = |breaks: &str, from: u64, asks: u64| {
        let [confirmed, unanswered] = ends.each_ref().map(|end| {
            let [asked, _] = release("p1/a", [100, 110]);
            let killed = fault(1, [from, 400], &format!(r#""leader-killed"{breaks}"#));
            let refused = busy("p2/b", [asks, asks + 10]);
            let lines = [to_a(), [asked, end.clone()], killed, refused].concat();
            let fields = r#","breaks":["Releases"],"recovers":50,"fades":100"#;
            !report_on(fields, &lines).breaks(Rule::K2)
        });
        assert_eq!(confirmed, unanswered, "whether it was answered makes no difference");
        confirmed
    };
    let releases = r#","breaks":["Releases"]"#;
    assert!(judge(releases, 90, 250));
    assert!(judge(releases, 200, 250), "a release may have been on its way to the next one");
    assert!(judge(releases, 90, 3000));
    // Not after its lease, not because of later events, and not because of any fault.
    assert!(!judge(releases, 90, 3200));
    assert!(!judge(releases, 230, 300));
    assert!(!judge("", 90, 250));
}

#[test]
fn a_server_that_forgets_releases_is_no_reason_to_lose_a_lock() {
    let died = fault(1, [100, 110], r#""leader-killed","breaks":["Releases"]"#);
    let mut lines = [to_a(), died, to_b()].concat();
    lines.push(lost(200, "p1/a", "not_held"));
    let report = report_on(r#","breaks":["Releases"]"#, &lines);
    assert!(report.breaks(Rule::K7), "{report}");
}

#[test]
fn a_vote_that_could_not_be_given_back_keeps_others_out_beside_a_second_fault() {
    let excused = |fields: &str, faults: &[[String; 2]], asks: u64| {
        let calls = [to_a(), release("p1/a", [100, 110]), busy("p2/b", [asks, asks + 10])];
        let fields = format!(r#"{fields},"recovers":50,"fades":100,"breaks":["A3"]"#);
        !report_on(&fields, &[&calls, faults].concat().concat()).breaks(Rule::K2)
    };
    let delay = |id: u64, (from, until, who): (u64, u64, &str)| {
        fault(id, [from, until], &format!(r#""delay","proc":"{who}""#))
    };
    let judge = |fields: &str, faults: &[(u64, u64, &str)], asks: u64| {
        let faults: Vec<_> = (1..).zip(faults).map(|(id, &one)| delay(id, one)).collect();
        excused(fields, &faults, asks)
    };
    let votes = r#","votes":true"#;
    let (holder, caller) = ((90, 130, "p1"), (300, 400, "p2"));
    assert!(judge(votes, &[holder, caller], 350));
    // Until the lease is over, and not longer.
    let later = |at: u64| (at - 1, at + 1, "p2");
    assert!(judge(votes, &[holder, later(3000)], 3000));
    assert!(!judge(votes, &[holder, later(3500)], 3500));
    // One alone is too few, or too late, or of another client; and only quorums have votes.
    assert!(!judge(votes, &[holder], 350));
    assert!(!judge(votes, &[caller], 350));
    assert!(!judge(votes, &[holder, (200, 290, "p2")], 350));
    assert!(!judge(votes, &[(250, 260, "p1"), caller], 350));
    assert!(!judge(votes, &[(90, 130, "p3"), caller], 350));
    assert!(!judge("", &[holder, caller], 350));
    // Nor a later fault, nor one that never ends.
    assert!(!judge(votes, &[(140, 145, "p2"), (205, 206, "p1")], 150));
    assert!(!judge(votes, &[(105, 1_000_000, "p1"), later(900_000)], 900_000));
    // A fault of one member may be the second one, and one fault of one member is still one.
    let member = |from: u64, until: u64| fault(9, [from, until], r#""member","hidden":true"#);
    assert!(excused(votes, &[delay(1, holder), member(300, 400)], 350));
    assert!(excused(votes, &[delay(1, caller), member(90, 130)], 350));
    assert!(!excused(votes, &[member(90, 400)], 350));
    // One of two members at once leaves a vote at one, and keeps the caller from the other.
    let most = |from: u64| fault(9, [from, 400], r#""two-restarted""#);
    assert!(excused(votes, &[most(90)], 350));
    assert!(!excused(votes, &[most(215)], 350));
    // Nor a fault that did not happen, or affects no server.
    let of_p1 = r#""delay","proc":"p1""#;
    for (what, end, is_one) in [
        (of_p1, "", true),
        (of_p1, r#","happened":false"#, false),
        (r#""evicted","lock":"l","breaks":["A3"]"#, r#","happened":false"#, false),
        (r#""client-clock-stepped","proc":"p1","hidden":true"#, "", false),
        (r#""short-leases","proc":"p1","hidden":true"#, "", false),
    ] {
        let one = fault_ending(9, [90, 130], what, end);
        assert_eq!(excused(votes, &[delay(1, caller), one], 350), is_one, "{what}{end}");
    }
    let evicted = fault(9, [105, 108], r#""evicted","lock":"l","breaks":["A3"]"#);
    assert!(!excused(votes, &[delay(1, caller), evicted], 350), "by force nothing is left");
}

#[test]
fn a_holder_of_another_library_counts_exactly_while_it_is_there() {
    let there = |lock: &str, from: u64, until: u64| {
        fault(1, [from, until], &format!(r#""foreign","lock":"{lock}""#))
    };
    // It keeps other clients out, and only then.
    for (lock, from, until, legal) in [
        ("l", 1150, 1160, true),
        ("l", 900, 1001, true),
        ("l", 1999, 2010, true),
        ("l", 900, 999, false),
        ("l", 2001, 2010, false),
        ("m", 1150, 1160, false),
    ] {
        let lines = [there(lock, 1000, 2000), busy("p2/b", [from, until])].concat();
        let report = report_on("", &lines);
        assert_eq!(!report.breaks(Rule::K2), legal, "{lock} {from}: {report}");
    }
    // No other client may rely on the lock meanwhile.
    for (lock, from, legal) in [("l", 2000, false), ("m", 2000, true), ("l", 2980, true)] {
        let report = report_on("", &[to_a(), there(lock, from, 5000)].concat());
        assert_eq!(!report.breaks(Rule::K1), legal, "{lock} {from}: {report}");
    }
    // A waiter gets the lock when the lease of the holder has ended, within the bound.
    for (t, legal) in [(2199, true), (2201, false)] {
        let waited = grant("p2/b", [900, t], 1, 4900);
        let report = report_on("", &[there("l", 850, 2000), waited].concat());
        assert_eq!(report.is_legal(), legal, "{t}: {report}");
    }
}

#[test]
fn a_counter_that_lost_an_update_is_seen() {
    let counted = |fence: &str, values: [u64; 2], read: u64| {
        let called = |t: u64, op: &str, value: u64| {
            let more = format!(r#","value":{value}{fence}"#);
            [written(t, "invoke", "p", op, fence), written(t + 1, "ok", "p", op, &more)]
        };
        let [first, second] = values;
        let calls =
            [called(1, "write", first), called(3, "write", second), called(5, "read", read)];
        report_on("", &calls.concat())
    };
    let fence = r#","fence":7"#;
    assert!(counted(fence, [1, 2], 2).is_legal());
    for (values, read) in
        [([1, 2], 1), ([1, 2], 3), ([1, 1], 2), ([2, 1], 2), ([1, 7], 2), ([2, 3], 2)]
    {
        let report = counted(fence, values, read);
        assert!(report.breaks(Rule::K3), "{values:?} {read}: {report}");
    }
    // Without a token, lost updates are counted, and no client is to blame.
    let report = counted("", [1, 1], 1);
    assert!(report.is_legal() && report.lost_updates == 1, "{report}");
}

#[test]
fn a_read_that_shows_a_fence_shuts_out_lower_ones() {
    let (passed, refused) = (("ok", r#","value":1"#), ("fail", r#","err":"fenced""#));
    for (reader, (kind, more), legal) in
        [(7, passed, true), (8, passed, false), (8, refused, true), (7, refused, false)]
    {
        let fence = |fence: u64, more: &str| format!(r#","fence":{fence}{more}"#);
        let report = report_on(
            "",
            &[
                written(1, "invoke", "p", "read", &fence(reader, "")),
                written(2, "ok", "p", "read", &fence(reader, r#","value":0"#)),
                written(3, "invoke", "p", "write", &fence(7, "")),
                written(4, kind, "p", "write", &fence(7, more)),
            ],
        );
        assert_eq!(!report.breaks(Rule::K3), legal, "{reader} {kind}: {report}");
    }
}

#[test]
fn only_documented_residue_may_be_left() {
    let left = |names: &str| format!(r#"{{"kind":"residue","t":9000,"left":[{names}]}}"#);
    let judge = |line: String| report_on(r#","residue":["fence:*"]"#, &[line]);
    assert!(judge(left(r#""fence:a","fence:b""#)).is_legal());
    assert!(judge(left(r#""fence:a","lock:a""#)).breaks(Rule::K6));
    assert!(judge(b_waits()).breaks(Rule::K6), "somebody has to look");
}

#[test]
fn an_invalid_history_is_refused_with_its_line() {
    let ([asked, got], later) = (to_a(), b_waits());
    let other_run = asked.replace('}', r#","run":"other"}"#);
    let unnamed = written(1, "invoke", "p/x", "release", "");
    let retired = [
        asked.clone(),
        written(11, "info", "p1/a", "acquire", ""),
        written(12, "invoke", "p1/a", "try", ""),
    ];
    let cases: &[(&[&str], &str)] = &[
        (&["{"], "line 2: EOF"),
        (&[&asked, r#"{"kind":"ok","t":20}"#], "line 3: missing field"),
        (&[r#"{"kind":"done","t":20}"#], "line 2: "),
        (&[&got], "line 2: an answer to p1/a, which has called nothing"),
        (&[&asked, &asked], "line 3: p1/a has a call under way since line 2"),
        (&[&later, &asked], "line 3: time runs backwards"),
        (&[r#"{"kind":"heal","t":1,"id":4}"#], "line 2: no fault 4"),
        (&[&unnamed], "line 2: no grant x"),
        (&retired.each_ref().map(String::as_str), "line 4: p1/a goes on after `info`"),
        (&[&other_run], "line 2: it belongs to run"),
    ];
    for (lines, expected) in cases {
        let error = hand_written("", lines).unwrap_err();
        assert!(error.starts_with(expected), "{error}\nnot: {expected}");
    }
    let endless = vec![b' '; 1 << 21];
    let error = History::read(&endless[..]).unwrap_err().to_string();
    assert_eq!(error, "line 1: it is longer than 1048576 bytes");
    assert!(History::read(&b""[..]).is_err());
}

/// Checks the budget: each of thirty unknown calls may explain each of twelve refusals, but none of
/// them two.
#[test]
fn a_search_without_end_is_no_pass() {
    let mut lines = Vec::new();
    for ghost in (0..30).map(|ghost| format!("ghost{ghost}")) {
        lines.push(written(1, "invoke", &ghost, "try", ""));
        lines.push(written(2, "info", &ghost, "try", ""));
    }
    for round in 0..12 {
        let (t, holder) = (10 + 10 * round, format!("holder{round}"));
        lines.extend(busy(&format!("refused{round}"), [t, t + 1]));
        lines.push(written(t + 2, "invoke", &holder, "try", ""));
        lines.push(written(t + 3, "ok", &holder, "try", r#","valid_until":2000"#));
        lines.extend(release(&holder, [t + 4, t + 5]));
    }
    let report = report_on(r#","fencing":"none""#, &lines);
    assert!(report.broken.keys().eq([&Rule::Undecided]), "{report}");
}

#[test]
fn check_history_tells_by_its_exit_status() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str, lines: &[Line]| {
        let path = directory.path().join(name);
        let text: String = lines.iter().map(Line::to_json).collect();
        std::fs::write(&path, text).unwrap();
        path
    };
    let run = |arguments: &[&std::ffi::OsStr]| {
        let program = env!("CARGO_BIN_EXE_check-history");
        let output = std::process::Command::new(program).args(arguments).output().unwrap();
        (output.status.code().unwrap(), String::from_utf8(output.stdout).unwrap())
    };
    let game = Play { seed: 3, clients: 4, locks: 2, calls: 40, fenced: true, rough: true };
    let legal = file("legal", &play(&game));
    let mut lines = play(&game);
    repeated_fence(&mut lines, &mut Dice(1)).unwrap();
    let illegal = file("illegal", &lines);
    let torn = file("torn", &lines[1..]);

    let (status, told) = run(&[legal.as_ref()]);
    assert!(status == 0 && told.contains("62 operations") && told.ends_with("legal\n\n"), "{told}");
    let (status, told) = run(&[legal.as_ref(), illegal.as_ref()]);
    assert!(status == 1 && told.contains("K4 lock \"lock"), "{told}");
    assert_eq!(run(&[torn.as_ref(), legal.as_ref()]).0, 2);
    assert_eq!(run(&[directory.path().join("nowhere").as_ref()]).0, 2);
    let (status, told) = run(&["--json".as_ref(), illegal.as_ref()]);
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert!(status == 1 && told["legal"] == false && told["report"]["broken"]["K4"] == 1, "{told}");
}

/// Checks threads on the real clock, with a file that is written during the run.
#[test]
fn many_threads_share_a_recorder() {
    let file = tempfile::NamedTempFile::new().unwrap();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
    let locks = Locker::new(Memory::new());
    let ttl = Duration::from_secs(30);
    let header = Header::new("threads", 1, locks.capabilities(), ttl);
    let recorder = Recorder::to(Clock::raw(), header, file.reopen().unwrap());
    runtime.block_on(async {
        let tasks = (0..100).map(|index| {
            let (locks, mut client) = (locks.clone(), recorder.client(format!("p/{index}")));
            tokio::spawn(async move {
                for _ in 0..20 {
                    let lock = locks.lock("one").unwrap().ttl(ttl);
                    let held = client.acquire(&lock).await.unwrap();
                    assert!(client.check(&held));
                    client.release(held).await.unwrap();
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            task.await.unwrap();
        }
    });
    recorder.finish().unwrap();
    let read = std::io::BufReader::new(std::fs::File::open(file.path()).unwrap());
    let report = check(&History::read(read).unwrap());
    assert!(report.is_legal(), "{report}");
    assert_eq!((report.operations, report.grants, report.unknown), (6000, 2000, 0));
}

/// Checks a detached lock, whose loss no guard remembers: after a removal, a late attempt grants
/// the lock to its claim again.
#[test]
fn a_detached_lock_may_come_back_after_a_removal() {
    let judge = |removal: &str, release: &str| {
        let mut lines = grant("p1/a", [10, 20], 1, 900).to_vec();
        lines.extend([
            begun(1, 100, removal),
            written(200, "invoke", "p1/a", "renew", ""),
            written(210, "fail", "p1/a", "renew", r#","err":"not_held""#),
            written(220, "invoke", "p1/a", "release", release),
            written(230, "ok", "p1/a", "release", ""),
        ]);
        report_on(BREAKS_A3, &lines)
    };
    assert!(judge(BREAK, "").is_legal());
    let elsewhere = r#""break","lock":"m","breaks":["A3"]"#;
    for (removal, release) in [(BREAK, r#","valid_until":900"#), (elsewhere, "")] {
        let report = judge(removal, release);
        assert!(report.breaks(Rule::K7), "{release}: {report}");
    }
}

/// Checks the same without a removal: the lease has expired, and an attempt was without an answer.
#[test]
fn a_detached_lock_may_come_back_after_its_lease() {
    let judge = |cut: [u64; 2], told: u64, release: &str| {
        let lines = [
            grant("p1/a", [10, 20], 1, 900).to_vec(),
            fault(1, cut, r#""lands late","proc":"p1""#).to_vec(),
            vec![
                written(told, "invoke", "p1/a", "renew", ""),
                written(told + 10, "fail", "p1/a", "renew", r#","err":"lost""#),
                written(told + 20, "invoke", "p1/a", "release", release),
                written(told + 30, "ok", "p1/a", "release", ""),
            ],
        ];
        report_on("", &lines.concat())
    };
    let meanwhile = [12, 18];
    let report = judge(meanwhile, 1000, "");
    assert!(!report.breaks(Rule::K7), "{report}");
    let guarded = r#","valid_until":900"#;
    // A guard; before the end of the lease; and no attempt can have been late.
    for (cut, told, release) in
        [(meanwhile, 1000, guarded), (meanwhile, 200, ""), ([30, 40], 1000, "")]
    {
        let report = judge(cut, told, release);
        assert!(report.breaks(Rule::K7), "{cut:?} {told} {release}: {report}");
    }
}
