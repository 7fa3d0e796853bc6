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

fn pick<T: Clone>(from: &[T], dice: &mut Dice) -> Option<T> {
    (!from.is_empty()).then(|| from[dice.roll(from.len() as u64) as usize].clone())
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
    let mut long = holds(lines);
    long.retain(|hold| !hold.asked && end(hold) > t(lines, hold.ok) + 10);
    let hold = pick(&long, dice)?;
    let at = t(lines, hold.ok);
    let highest = holds(lines).iter().filter_map(|hold| hold.fence).max();
    let answer = call(lines, hold.ok, at + 1, at + 2, Op::Try, Kind::Ok);
    let answer = record_mut(&mut lines[answer]);
    (answer.fence, answer.valid_until) = (highest.map(|high| high + 1), Some(at + 10 * MS));
    Some(())
}

fn swapped_fences(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut pairs = pairs(lines);
    pairs.retain(|(one, other)| t(lines, one.ok) < t(lines, other.invoke) && one.fence.is_some());
    let (one, other) = pick(&pairs, dice)?;
    record_mut(&mut lines[one.ok]).fence = other.fence;
    record_mut(&mut lines[other.ok]).fence = one.fence;
    Some(())
}

fn repeated_fence(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut pairs = pairs(lines);
    pairs.retain(|(one, _)| one.fence.is_some());
    let (one, other) = pick(&pairs, dice)?;
    record_mut(&mut lines[other.ok]).fence = one.fence;
    Some(())
}

fn missing_fence(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut holds = holds(lines);
    holds.retain(|hold| hold.fence.is_some());
    record_mut(&mut lines[pick(&holds, dice)?.ok]).fence = None;
    Some(())
}

/// Removes the release of a lock that another client acquired at once.
fn lost_release(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut pairs = pairs(lines);
    pairs.retain(|(one, other)| {
        released(one).is_some() && !one.asked && t(lines, other.ok) + 1 < one.valid_until
    });
    let (invoke, ok) = released(&pick(&pairs, dice)?.0)?;
    lines.remove(ok);
    lines.remove(invoke);
    Some(())
}

/// Adds contention long after the end of all holds.
fn phantom_busy(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let hold = pick(&holds(lines), dice)?;
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
    let mut pairs = pairs(lines);
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
    pairs.retain(|(one, other)| {
        released(one).is_some_and(|(_, ok)| {
            let from = t(lines, ok);
            let until = t(lines, other.invoke);
            until > from + 10 && !open(&one.lock, from + 1, from + 2)
        })
    });
    let (one, _) = pick(&pairs, dice)?;
    let from = t(lines, released(&one)?.1);
    let answer = call(lines, one.ok, from + 1, from + 2, Op::Try, Kind::Fail);
    record_mut(&mut lines[answer]).err = Some(Why::Busy);
    Some(())
}

/// Confirms a release after the expiry, when another client held the lock.
fn released_by_another(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut pairs = pairs(lines);
    pairs.retain(|(one, _)| one.lost.is_some() && one.releases.is_empty() && !one.asked);
    let (one, other) = pick(&pairs, dice)?;
    let at = t(lines, other.ok) + 1;
    call(lines, one.ok, at, at + 1, Op::Release, Kind::Ok);
    let lost = one.lost?;
    if dice.roll(2) == 0 {
        lines.remove(lost);
    }
    Some(())
}

fn released_twice(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut holds = holds(lines);
    holds.retain(|hold| released(hold).is_some());
    let (invoke, ok) = released(&pick(&holds, dice)?)?;
    let at = t(lines, ok);
    call(lines, invoke, at, at + 1, Op::Release, Kind::Ok);
    Some(())
}

fn not_held_without_a_reason(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut holds = holds(lines);
    holds.retain(|hold| {
        released(hold).is_some_and(|(_, ok)| t(lines, ok) < hold.valid_until) && !hold.asked
    });
    let (_, ok) = released(&pick(&holds, dice)?)?;
    let answer = record_mut(&mut lines[ok]);
    (answer.kind, answer.err) = (Kind::Fail, Some(Why::NotHeld));
    Some(())
}

fn revived(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut holds = holds(lines);
    holds.retain(|hold| hold.lost.is_some());
    let hold = pick(&holds, dice)?;
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
    let mut holds = holds(lines);
    let told_otherwise = |hold: &Hold| hold.asked || !hold.releases.is_empty();
    holds.retain(|hold| !told_otherwise(hold) && hold.valid_until + 200 * MS < end);
    holds.retain(|hold| hold.lost.is_some() && !killed(lines, hold.ok));
    lines.remove(pick(&holds, dice)?.lost?);
    Some(())
}

/// Delays all but one waiter: its answer and its later records come ten minutes later.
fn starved_waiter(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut pairs = pairs(lines);
    pairs.retain(|(_, other)| other.op == Op::Acquire);
    let (_, waiter) = pick(&pairs, dice)?;
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
    let answers: Vec<usize> = last.into_values().collect();
    let mut answers = answers;
    answers
        .retain(|&n| record(&lines[n]).is_some_and(|r| r.kind != Kind::Info) && !killed(lines, n));
    // An unanswered acquisition has no grant for later records.
    answers.retain(|&n| record(&lines[n]).is_some_and(|r| !r.op.acquires()));
    lines.remove(pick(&answers, dice)?);
    Some(())
}

/// Swaps two waiters of a queue.
fn overtaken(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut pairs = pairs(lines);
    pairs.retain(|(one, other)| {
        one.op == Op::Acquire
            && other.op == Op::Acquire
            && t(lines, other.invoke) > t(lines, one.invoke) + 25 * MS
            && t(lines, other.invoke) < t(lines, one.ok)
    });
    let (one, other) = pick(&pairs, dice)?;
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
    let mut passed = writes(lines);
    passed.retain(|(_, r)| r.kind == Kind::Ok && r.fence > Some(1));
    let (index, write) = pick(&passed, dice)?;
    let later = call(lines, index, write.t + 1, write.t + 2, Op::Write, Kind::Ok);
    for line in [later - 1, later] {
        record_mut(&mut lines[line]).fence = write.fence.map(|fence| fence - 1);
    }
    Some(())
}

fn miscounted(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let mut passed = writes(lines);
    passed.retain(|(_, r)| r.value.is_some());
    let before = passed.clone();
    passed.retain(|(_, r)| {
        before.iter().any(|(_, b)| b.lock == r.lock && b.value.map(|v| v + 1) == r.value)
    });
    let (index, _) = pick(&passed, dice)?;
    let value = &mut record_mut(&mut lines[index]).value;
    *value = value.map(|value| value - 1);
    Some(())
}

fn refused_without_a_reason(lines: &mut Vec<Line>, dice: &mut Dice) -> Option<()> {
    let all = writes(lines);
    let mut passed = all.clone();
    passed.retain(|(_, r)| {
        let highest =
            all.iter().filter(|(_, w)| w.lock == r.lock).filter_map(|(_, w)| w.fence).max();
        r.kind == Kind::Ok && r.fence == highest
    });
    let (index, write) = pick(&passed, dice)?;
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
            assert!(report.broken.contains_key(rule), "{name}: {report}\n{}", text(&lines));
        }
        assert!(applied >= 20, "{name} found a place in {applied} histories only");
    }
}

// ---- against a checker that tries every order ----

fn is_in_order(report: &Report) -> bool {
    assert!(!report.broken.contains_key(&Rule::Undecided), "{report}");
    ![Rule::K1, Rule::K2, Rule::K4, Rule::K7].iter().any(|rule| report.broken.contains_key(rule))
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

/// Returns the report of a load on a paused clock.
fn judged(harness: &dyn Harness, load: Load) -> (Report, String) {
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().expect("a runtime starts");
    let lines = runtime.block_on(workload::run(harness, load));
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
            judged(&*harness, load).0.broken.contains_key(rule)
        });
        assert!(caught, "{name} got past {rule:?}");
    }
}

// ---- the contents of files ----

fn hand_written(fields: &str, lines: &[&str]) -> Result<Report, String> {
    let fencing = if fields.contains("fencing") { "" } else { r#","fencing":"seeded""# };
    let header = r#"{"kind":"header","version":1,"run":"r","seed":7,"backend":"b","clock":"moment","sequential":true,
        "margin":30,"takeover":200,"hand_off":100,"told_within":100,"drain":10000"#;
    let header = header.replace('\n', " ");
    let lease = if fields.contains(r#""lease""#) { "" } else { r#","lease":3000"# };
    let text = format!("{header}{fencing}{lease}{fields}}}\n{}\n", lines.join("\n"));
    let history = History::read(text.as_bytes()).map_err(|error| error.to_string())?;
    Ok(check(&history))
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
    let mut builder = tokio::runtime::Builder::new_current_thread();
    let runtime = builder.enable_time().start_paused(true).build().unwrap();
    let (ttl, locks) = (Duration::from_secs(3), Locker::new(Memory::new()));
    let recorder =
        Recorder::in_memory(Clock::core(), Header::new("renewed", 1, locks.capabilities(), ttl));
    let mut client = recorder.client("p1/a");
    runtime.block_on(async {
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
            seen.push(judge(&lines).broken.contains_key(&Rule::K1));
        }
    }
    assert!(seen.iter().all(|&seen| seen), "{seen:?}");
}

/// Checks that the guard's deadline at the release shows how long the lock was held.
#[test]
fn a_release_tells_how_long_the_lock_was_held() {
    let call = written;
    let judge = |event: &str, told: &str| {
        let lines = [
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", r#","fence":1,"valid_until":2980"#),
            call(2000, "event", "p1/a", "renew", event),
            call(4000, "invoke", "p2/b", "acquire", ""),
            call(4010, "ok", "p2/b", "acquire", r#","fence":2,"valid_until":6980"#),
            call(4500, "invoke", "p1/a", "release", told),
            call(4510, "info", "p1/a", "release", ""),
        ];
        hand_written("", &lines.each_ref().map(String::as_str)).unwrap()
    };
    let later = r#","valid_until":4900"#;
    for (event, told) in [(later, ""), ("", later)] {
        let report = judge(event, told);
        assert!(report.broken.contains_key(&Rule::K1), "{event} {told}: {report}");
    }
    // According to the records, it was over by then.
    assert!(!judge("", "").broken.contains_key(&Rule::K1));
}

/// Returns a line about the grant that bears the name of its client.
fn written(t: u64, kind: &str, who: &str, op: &str, more: &str) -> String {
    let grant = who.replace('/', "");
    format!(
        r#"{{"kind":"{kind}","t":{t},"proc":"{who}","lock":"l","op":"{op}","grant":"{grant}"{more}}}"#
    )
}

const TAKEN: [&str; 2] = [
    r#"{"kind":"invoke","t":10,"proc":"p1/a","lock":"l","op":"acquire","grant":"a"}"#,
    r#"{"kind":"ok","t":20,"proc":"p1/a","lock":"l","op":"acquire","grant":"a","fence":1,"valid_until":2980,"new":1}"#,
];

const TAKEN_TOO: [&str; 2] = [
    r#"{"kind":"invoke","t":500,"proc":"p2/b","lock":"l","op":"acquire","grant":"b"}"#,
    r#"{"kind":"ok","t":600,"proc":"p2/b","lock":"l","op":"acquire","grant":"b","fence":2,"valid_until":3500}"#,
];

#[test]
fn overlaps_are_counted_while_an_assumption_is_broken_on_purpose() {
    let report = hand_written("", &[TAKEN, TAKEN_TOO].concat()).unwrap();
    assert!(report.broken.contains_key(&Rule::K1), "{report}");
    assert_eq!(report.violations[0].lines, [3, 5], "{report}");

    let flush = r#"{"kind":"fault","t":300,"id":1,"what":"flush","breaks":["A2"]}"#;
    let over = r#"{"kind":"heal","t":310,"id":1}"#;
    let lines = [&TAKEN[..], &[flush, over], &TAKEN_TOO].concat();
    let report = hand_written(r#","breaks":["A2"]"#, &lines).unwrap();
    assert!(report.is_legal(), "{report}");
    assert_eq!((report.excused_overlaps, report.claims_at_risk), (1, 1));

    let undeclared = hand_written("", &lines).unwrap_err();
    assert!(undeclared.starts_with("line 4: ") && undeclared.contains("A2"), "{undeclared}");

    // Of some locks, of others, or of none.
    for (locks, is_excused) in
        [(r#"["m","l"]"#, true), (r#""m""#, false), (r#"["m","n"]"#, false), ("[]", false)]
    {
        let some = r#"{"kind":"fault","t":300,"id":1,"what":"flush","lock":LOCKS,"breaks":["A2"]}"#;
        let some = some.replace("LOCKS", locks);
        let lines = [&TAKEN[..], &[&some, over], &TAKEN_TOO].concat();
        let report = hand_written(r#","breaks":["A2"]"#, &lines).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::K1), is_excused, "{locks}: {report}");
    }

    // Tokens must hold nevertheless.
    let lines = [&TAKEN[..], &[flush, over], &TAKEN_TOO].concat().join("\n");
    let lines = lines.replace(r#""fence":2"#, r#""fence":1"#);
    let report = hand_written(r#","breaks":["A2"]"#, &lines.lines().collect::<Vec<_>>()).unwrap();
    assert!(report.broken.contains_key(&Rule::K4), "{report}");
}

#[test]
fn a_removal_excuses_only_its_holder() {
    let removal = |at: u64, lock: &str| {
        [
            format!(
                r#"{{"kind":"fault","t":{at},"id":1,"what":"break","lock":"{lock}","breaks":["A3"]}}"#
            ),
            format!(r#"{{"kind":"heal","t":{},"id":1}}"#, at + 2),
        ]
    };
    let judge = |at: u64| {
        let [removed, over] = removal(at, "l");
        let mut lines = [TAKEN, TAKEN_TOO].concat();
        let before = usize::from(at > 20) * 2;
        lines.splice(before..before, [&removed[..], &over]);
        hand_written(r#","breaks":["A3"]"#, &lines).unwrap()
    };
    let report = judge(300);
    assert!(report.is_legal() && report.excused_overlaps == 1, "{report}");
    // Both came after it.
    let report = judge(5);
    assert!(report.broken.contains_key(&Rule::K1), "{report}");
    assert!(report.broken.contains_key(&Rule::K2), "{report}");
}

/// Checks a broken lock of A that B has had since. A process with a holder that believes in its
/// lock does not ask.
#[test]
fn a_holder_unaware_of_a_break_blocks_its_process() {
    let held = |fence: u64, until: u64| format!(r#","fence":{fence},"valid_until":{until}"#);
    let judge = |who: &str, is_told: bool| {
        let mut lines = vec![
            written(10, "invoke", "p1/a", "acquire", ""),
            written(20, "ok", "p1/a", "acquire", &held(1, 2920)),
            r#"{"kind":"fault","t":100,"id":1,"what":"break","lock":"l","breaks":["A3"]}"#
                .to_owned(),
            r#"{"kind":"heal","t":102,"id":1}"#.to_owned(),
            written(110, "invoke", "p2/b", "acquire", ""),
            written(111, "ok", "p2/b", "acquire", &held(2, 3003)),
            written(150, "event", "p1/a", "lost", r#","err":"not_held""#),
            written(200, "invoke", "p2/b", "release", ""),
            written(201, "ok", "p2/b", "release", ""),
            written(400, "invoke", who, "try", ""),
            written(401, "fail", who, "try", r#","err":"busy""#),
        ];
        if !is_told {
            lines.remove(6);
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        hand_written(r#","breaks":["A3"]"#, &lines).unwrap()
    };
    for (who, is_told, is_explained) in
        [("p1/d", false, true), ("p1/d", true, false), ("p3/d", false, false)]
    {
        let report = judge(who, is_told);
        assert_eq!(!report.broken.contains_key(&Rule::K2), is_explained, "{who}: {report}");
    }
}

/// Checks a broken lock of A: B and C were queued, and D gets it while C holds it.
#[test]
fn a_waiter_at_a_break_did_not_hold_the_lock() {
    let call = written;
    let held = |fence: u64, until: u64| format!(r#","fence":{fence},"valid_until":{until}"#);
    let judge = |d: u64| {
        let mut lines = vec![
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", &held(1, 2920)),
            call(50, "invoke", "p2/b", "acquire", ""),
            call(60, "invoke", "p3/c", "acquire", ""),
            r#"{"kind":"fault","t":100,"id":1,"what":"break","lock":"l","breaks":["A3"]}"#
                .to_owned(),
            r#"{"kind":"heal","t":102,"id":1}"#.to_owned(),
            call(103, "ok", "p2/b", "acquire", &held(2, 3003)),
            call(150, "event", "p1/a", "lost", r#","err":"not_held""#),
            call(200, "invoke", "p2/b", "release", ""),
            call(201, "ok", "p2/b", "release", ""),
            call(202, "ok", "p3/c", "acquire", &held(3, 3102)),
        ];
        let released =
            [call(900, "invoke", "p3/c", "release", ""), call(901, "ok", "p3/c", "release", "")];
        let taken = [
            call(d - 50, "invoke", "p4/d", "acquire", ""),
            call(d, "ok", "p4/d", "acquire", &held(4, d + 2900)),
        ];
        let both = if d > 901 { [released, taken] } else { [taken, released] };
        lines.extend(both.concat());
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        hand_written(r#","breaks":["A3"]"#, &lines).unwrap()
    };
    let legal = judge(1000);
    assert!(legal.is_legal() && legal.excused_overlaps == 1, "{legal}");
    let report = judge(300);
    assert!(report.broken.contains_key(&Rule::K1), "{report}");
    assert!(report.broken.contains_key(&Rule::K2), "{report}");
}

#[test]
fn a_removal_that_removed_nothing_excuses_nothing() {
    let removal = r#"{"kind":"fault","t":300,"id":1,"what":"break","lock":"l","breaks":["A3"]}"#;
    for (over, is_legal) in [
        (r#"{"kind":"heal","t":302,"id":1}"#, true),
        (r#"{"kind":"heal","t":302,"id":1,"happened":false}"#, false),
    ] {
        let lines = [&TAKEN[..], &[removal, over], &TAKEN_TOO].concat();
        let report = hand_written(r#","breaks":["A3"]"#, &lines).unwrap();
        assert_eq!(report.is_legal(), is_legal, "{report}");

        // Nor a waiter that comes late, nor an error.
        let fields = r#","breaks":["A3"],"recovers":900"#;
        let removal = removal.replace("300", "550");
        let over = over.replace("302", "551");
        let late = TAKEN_TOO[1].replace("600", "700");
        let report = hand_written(fields, &[TAKEN_TOO[0], &removal, &over, &late]).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::K5), is_legal, "{report}");
        let failed = r#"{"kind":"fail","t":700,"proc":"p2/b","lock":"l","op":"acquire","grant":"b","err":"Unavailable"}"#;
        let report = hand_written(fields, &[TAKEN_TOO[0], &removal, &over, failed]).unwrap();
        assert_eq!(report.acquisitions.failed, u64::from(!is_legal), "{report}");
    }
}

#[test]
fn a_released_lock_is_not_held() {
    let line = |t: u64, kind: &str, op: &str, more: &str| {
        format!(
            r#"{{"kind":"{kind}","t":{t},"proc":"p1/a","lock":"l","op":"{op}","grant":"a"{more}}}"#
        )
    };
    for (op, more) in [("renew", r#","valid_until":3990"#), ("check", "")] {
        let lines = [
            TAKEN[0].to_owned(),
            TAKEN[1].to_owned(),
            line(30, "invoke", "release", ""),
            line(31, "ok", "release", ""),
            line(700, "invoke", op, ""),
            line(710, "ok", op, more),
        ];
        let report = hand_written("", &lines.each_ref().map(String::as_str)).unwrap();
        assert!(report.broken.contains_key(&Rule::K7), "{op}: {report}");
    }
}

/// Checks a broken lock of A that B has had since: A's next check still confirms it.
#[test]
fn a_renewal_beside_a_newer_holder_is_a_lie_unless_the_newer_one_was_lost() {
    let judge = |lost_again: bool| {
        let broken = |t: u64, id: u64| {
            [
                format!(r#"{{"kind":"fault","t":{t},"id":{id},"what":"break","breaks":["A3"]}}"#),
                format!(r#"{{"kind":"heal","t":{},"id":{id}}}"#, t + 2),
            ]
        };
        let renewal = |t: u64, kind: &str, more: &str| {
            format!(
                r#"{{"kind":"{kind}","t":{t},"proc":"p1/a","lock":"l","op":"renew","grant":"a"{more}}}"#
            )
        };
        let mut lines = TAKEN.map(str::to_owned).to_vec();
        lines.extend(broken(300, 1));
        lines.extend(TAKEN_TOO.map(str::to_owned));
        if lost_again {
            lines.extend(broken(610, 2));
        }
        lines.push(renewal(620, "invoke", ""));
        lines.push(renewal(630, "ok", r#","valid_until":3600"#));
        hand_written(r#","breaks":["A3"]"#, &lines.iter().map(String::as_str).collect::<Vec<_>>())
            .unwrap()
    };
    let report = judge(false);
    assert!(report.broken.contains_key(&Rule::K7), "{report}");
    assert_eq!(report.violations[0].lines, [7, 8, 9], "{report}");
    let report = judge(true);
    assert!(!report.broken.contains_key(&Rule::K7), "{report}");
}

/// Checks a late notification: B has the lock from 600 on. A may have given up shortly before its
/// notification, and not long before.
#[test]
fn a_late_notification_is_no_early_release() {
    for (told, is_legal) in [(691, true), (791, false)] {
        for stopped in [false, true] {
            let check = |t: u64, kind: &str, more: &str| {
                format!(
                    r#"{{"kind":"{kind}","t":{t},"proc":"p1/a","lock":"l","op":"check","grant":"a"{more}}}"#
                )
            };
            let stop = [
                r#"{"kind":"fault","t":590,"id":1,"what":"stop","proc":"p1"}"#.to_owned(),
                r#"{"kind":"heal","t":595,"id":1}"#.to_owned(),
            ];
            let mut lines = TAKEN.map(str::to_owned).to_vec();
            lines.push(TAKEN_TOO[0].to_owned());
            lines.extend(stop.into_iter().filter(|_| stopped));
            lines.push(TAKEN_TOO[1].to_owned());
            lines.push(check(told - 1, "invoke", ""));
            lines.push(check(told, "fail", r#","err":"lost""#));
            let report = hand_written("", &lines.iter().map(String::as_str).collect::<Vec<_>>());
            let report = report.unwrap();
            let overlaps = report.broken.contains_key(&Rule::K1);
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
        let report = hand_written("", &lines.each_ref().map(String::as_str)).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::K5), is_legal, "{until} {err}: {report}");
    }
}

#[test]
fn a_contended_lock_stands_still_after_a_failover_for_the_declared_bound_at_most() {
    let failover = r#"{"kind":"fault","t":100,"id":1,"what":"failover"}"#;
    let resumes = [
        r#"{"kind":"fault","t":400,"id":2,"what":"resumes"}"#,
        r#"{"kind":"heal","t":400,"id":2}"#,
        r#"{"kind":"heal","t":450,"id":1}"#,
    ];
    for (until, is_legal) in [(1400, true), (1401, false)] {
        let lines = [
            written(10, "invoke", "p1/a", "acquire", ""),
            written(20, "ok", "p1/a", "acquire", r#","fence":1,"valid_until":2980"#),
            written(30, "invoke", "p2/b", "acquire", ""),
            written(110, "invoke", "p1/a", "release", ""),
            written(120, "ok", "p1/a", "release", ""),
            written(until, "ok", "p2/b", "acquire", r#","fence":2,"valid_until":4300"#),
        ];
        let mut lines = lines.each_ref().map(String::as_str).to_vec();
        lines.insert(3, failover);
        lines.splice(6..6, resumes);
        let declared = r#","recovers":2000,"resumes":1000"#;
        let report = hand_written(declared, &lines).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::K5), is_legal, "{until}: {report}");
        assert_eq!(report.standstills["failover"].max, until - 400, "{report}");
    }
}

#[test]
fn a_kill_that_did_not_happen_ends_nothing() {
    for (happened, is_legal) in [("", true), (r#","happened":false"#, false)] {
        let killed = r#"{"kind":"fault","t":100,"id":1,"what":"kill","proc":"p1"}"#;
        let over = format!(r#"{{"kind":"heal","t":101,"id":1{happened}}}"#);
        let lines = [&TAKEN[..], &[killed, &over], &TAKEN_TOO].concat();
        let report = hand_written("", &lines).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::K1), is_legal, "{report}");
    }
}

#[test]
fn a_holder_unaware_of_a_clock_step_blocks_its_process() {
    let told = r#"{"kind":"event","t":690,"proc":"p1/a","lock":"l","op":"lost","grant":"a","err":"not_held"}"#;
    let stepped = r#"{"kind":"fault","t":100,"id":1,"what":"clock","breaks":["A1"]}"#;
    let over = r#"{"kind":"heal","t":102,"id":1}"#;
    for (who, is_legal) in [("p1/d", true), ("p3/d", false)] {
        let released =
            [(610, "invoke"), (611, "ok")].map(|(t, kind)| written(t, kind, "p2/b", "release", ""));
        let tried = [(680, "invoke", ""), (681, "fail", r#","err":"busy""#)];
        let tried = tried.map(|(t, kind, more)| written(t, kind, who, "try", more));
        let released = released.map(|line| line.replace("p2b", "b"));
        let lines = [
            &TAKEN[..],
            &[stepped, over],
            &TAKEN_TOO,
            &released.each_ref().map(String::as_str),
            &tried.each_ref().map(String::as_str),
            &[told],
        ]
        .concat();
        let report = hand_written(r#","breaks":["A1"]"#, &lines).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::K2), is_legal, "{who}: {report}");
    }
}

#[test]
fn tokens_that_may_go_back_give_no_order() {
    let taken = TAKEN[1].replace(r#""fence":1"#, r#""fence":100"#);
    let lines = [
        r#"{"kind":"fault","t":5,"id":1,"what":"clock","breaks":["A1"]}"#,
        TAKEN[0],
        &taken,
        r#"{"kind":"heal","t":100,"id":1}"#,
        r#"{"kind":"fault","t":200,"id":2,"what":"emptied","breaks":["A2"]}"#,
        r#"{"kind":"heal","t":210,"id":2}"#,
        TAKEN_TOO[0],
        TAKEN_TOO[1],
    ];
    let report = hand_written(r#","breaks":["A1","A2"]"#, &lines).unwrap();
    assert!(report.is_legal(), "{report}");
    assert_eq!((report.excused_fences, report.excused_overlaps), (1, 1), "{report}");

    // Nor that the holder of the lower token had lost the lock by the time it got it.
    let [begun, got] = TAKEN_TOO.map(|line| line.replace("3500", "3600"));
    let let_go = [(3550, "invoke"), (3560, "ok")];
    let [asks, is_told] = let_go.map(|(t, kind)| {
        format!(
            r#"{{"kind":"{kind}","t":{t},"proc":"p2/b","lock":"l","op":"release","grant":"b"}}"#
        )
    });
    let lines = [&lines[..6], &[&begun, &got, &asks, &is_told]].concat();
    let report = hand_written(r#","breaks":["A1","A2"]"#, &lines).unwrap();
    assert!(report.is_legal(), "{report}");
    let orderly: Vec<_> = lines
        .iter()
        .map(|line| {
            line.replace(r#""id":1,"what":"clock","breaks":["A1"]"#, r#""id":1,"what":"clock""#)
        })
        .collect();
    let report = hand_written(
        r#","breaks":["A1","A2"]"#,
        &orderly.iter().map(String::as_str).collect::<Vec<_>>(),
    )
    .unwrap();
    assert!(report.broken.contains_key(&Rule::Told), "{report}");
}

#[test]
fn a_member_that_lost_its_data_ends_holds_and_does_not_double_them() {
    let emptied = r#"{"kind":"fault","t":100,"id":1,"what":"member","breaks":["Minority"]}"#;
    let over = r#"{"kind":"heal","t":110,"id":1}"#;
    let told = r#"{"kind":"event","t":200,"proc":"p1/a","lock":"l","op":"lost","grant":"a","err":"not_held"}"#;
    let fields = r#","breaks":["Minority"]"#;
    let lost = [&TAKEN[..], &[emptied, over, told], &TAKEN_TOO].concat();
    let report = hand_written(fields, &lost).unwrap();
    assert!(report.is_legal(), "{report}");
    let without: Vec<&str> = [&TAKEN[..], &[told], &TAKEN_TOO].concat();
    let report = hand_written(fields, &without).unwrap();
    assert!(report.broken.contains_key(&Rule::K7), "{report}");
    let untold = [&TAKEN[..], &[emptied, over], &TAKEN_TOO].concat();
    let report = hand_written(fields, &untold).unwrap();
    assert!(report.broken.contains_key(&Rule::K1), "{report}");
    assert_eq!((report.excused_overlaps, report.claims_at_risk), (0, 0), "{report}");
}

#[test]
fn hidden_faults_excuse_nothing_and_unexplained_failures_are_counted() {
    let wait = r#"{"kind":"invoke","t":500,"proc":"p2/b","lock":"l","op":"acquire","grant":"b"}"#;
    let over = r#"{"kind":"heal","t":560,"id":1}"#;
    let got = TAKEN_TOO[1].replace("600", "700");
    let failed = r#"{"kind":"fail","t":700,"proc":"p2/b","lock":"l","op":"acquire","grant":"b","err":"Unavailable"}"#;
    for (hidden, is_excused) in [("", true), (r#","hidden":true"#, false)] {
        let away = format!(r#"{{"kind":"fault","t":550,"id":1,"what":"member"{hidden}}}"#);
        let report = hand_written(r#","recovers":300"#, &[wait, &away, over, &got]).unwrap();
        assert_eq!(report.is_legal(), is_excused, "{report}");
        let report = hand_written(r#","recovers":300"#, &[wait, &away, over, failed]).unwrap();
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

/// Returns eight holds in sequence, each 1000 after the previous one, with their records.
fn holds_of(fields: &str, each: impl Fn(u64, u64) -> Vec<String>) -> Report {
    let lines: Vec<String> = (0..8).flat_map(|n| each(n, 100 + 1000 * n)).collect();
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    hand_written(&format!(r#","recovers":30{fields}"#), &lines).unwrap()
}

/// Returns a grant of 500.
fn taken(n: u64, t: u64, more: &str) -> [String; 2] {
    let who = format!("p1/t{n}");
    let held = format!(r#","fence":{},"valid_until":{}{more}"#, n + 1, t + 500);
    [written(t, "invoke", &who, "acquire", more), written(t, "ok", &who, "acquire", &held)]
}

#[test]
fn releases_that_fail_without_a_fault_are_seen() {
    let judge = |fields: &str, err: &str, fault: &str| {
        holds_of(fields, |n, t| {
            let who = format!("p1/t{n}");
            let mut lines = taken(n, t, "").to_vec();
            lines.extend((n == 0 && !fault.is_empty()).then(|| fault.to_owned()));
            lines.push(written(t + 100, "invoke", &who, "release", ""));
            let told = format!(r#","err":{err}"#);
            lines.push(written(t + 101, "info", &who, "release", &told));
            lines
        })
    };
    let report = judge("", r#""Unavailable""#, "");
    assert!(report.broken.contains_key(&Rule::Unexplained), "{report}");
    assert_eq!((report.returns.count, report.returns.failed, report.returns.moments), (8, 8, 8));
    let at_once = judge(r#","timeout":7000"#, r#""Unavailable""#, "");
    assert!(at_once.broken.contains_key(&Rule::Unexplained), "it met no bound: {at_once}");
    // All of them in one moment, or under a fault; or only a loss, which is judged by itself.
    let slow = r#"{"kind":"fault","t":150,"id":1,"what":"slow","proc":"p1"}"#;
    for (fields, err, fault) in [
        (r#","timeout":7000"#, r#""Timeout""#, ""),
        ("", r#""Unavailable""#, slow),
        ("", r#""lost""#, ""),
    ] {
        let report = judge(fields, err, fault);
        assert!(!report.broken.contains_key(&Rule::Unexplained), "{fields} {err}: {report}");
    }
    assert_eq!(judge(r#","timeout":3500"#, r#""Timeout""#, "").returns.moments, 2);
}

#[test]
fn one_failure_is_too_many_where_the_machine_takes_no_time() {
    for (fields, is_legal) in [("", true), (r#","exact":true"#, false)] {
        let report = holds_of(fields, |n, t| {
            let who = format!("p1/t{n}");
            let mut lines = taken(n, t, "").to_vec();
            lines.push(written(t + 600, "invoke", &who, "release", ""));
            let failed = r#","err":"Unavailable""#;
            let (kind, why) = if n == 0 { ("info", failed) } else { ("ok", "") };
            lines.push(written(t + 601, kind, &who, "release", why));
            lines
        });
        assert_eq!(report.returns.failed, 1);
        assert_eq!(!report.broken.contains_key(&Rule::Unexplained), is_legal, "{report}");
    }
}

#[test]
fn holds_that_are_renewed_are_lost_for_a_reason_only() {
    let judge = |more: &str, fault: &str| {
        holds_of("", |n, t| {
            let who = format!("p1/t{n}");
            let mut lines = taken(n, t, more).to_vec();
            lines.extend((n == 0 && !fault.is_empty()).then(|| fault.to_owned()));
            lines.push(written(t + 501, "event", &who, "lost", r#","err":"expired""#));
            lines
        })
    };
    let report = judge("", "");
    assert!(report.broken.contains_key(&Rule::Unexplained), "{report}");
    assert_eq!((report.holds.count, report.holds.failed), (8, 8), "{report}");
    let slow = r#"{"kind":"fault","t":150,"id":1,"what":"slow","proc":"p1"}"#;
    for (more, fault) in [(r#","unrenewed":true"#, ""), ("", slow)] {
        let report = judge(more, fault);
        assert!(report.is_legal() && report.holds.count == 0, "{more} {fault}: {report}");
    }
    // A hold beyond its first lease was renewed.
    let kept = holds_of("", |n, t| {
        let who = format!("p1/t{n}");
        let mut lines = taken(n, t, "").to_vec();
        lines.push(written(t + 600, "invoke", &who, "release", ""));
        lines.push(written(t + 601, "ok", &who, "release", ""));
        lines
    });
    assert!(kept.is_legal() && kept.holds.count == 8 && kept.holds.failed == 0, "{kept}");
}

#[test]
fn a_token_that_its_client_refused_has_gone_back() {
    let call = written;
    let judge = |faults: [&str; 2], granted: &str| {
        let lines = [
            r#"{"kind":"fault","t":5,"id":1,"what":"clock","breaks":["A1"]}"#.to_owned(),
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", r#","fence":100,"valid_until":900"#),
            r#"{"kind":"heal","t":30,"id":1}"#.to_owned(),
            call(40, "invoke", "p1/a", "release", ""),
            call(50, "ok", "p1/a", "release", ""),
            r#"{"kind":"fault","t":60,"id":2,"what":"emptied","breaks":["A2"]}"#.to_owned(),
            r#"{"kind":"heal","t":70,"id":2}"#.to_owned(),
            call(80, "invoke", granted, "acquire", ""),
            call(90, "info", granted, "acquire", r#","err":"fenced""#),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let lines: Vec<&str> = lines
            .into_iter()
            .filter(|line| !faults.iter().any(|id| !id.is_empty() && line.contains(id)))
            .collect();
        hand_written(r#","breaks":["A1","A2"]"#, &lines).unwrap()
    };
    let report = judge(["", ""], "p1/b");
    assert!(report.is_legal() && report.excused_fences == 1, "{report}");
    for id in [r#""id":1"#, r#""id":2"#] {
        let report = judge([id, ""], "p1/b");
        assert!(report.broken.contains_key(&Rule::K4), "{report}");
    }
    // By another process, which has seen no recorded token.
    assert!(judge(["", ""], "p2/b").is_legal());
    let report = judge([r#""id":1"#, r#""id":2"#], "p2/b");
    assert!(report.broken.contains_key(&Rule::K4), "{report}");
}

/// Checks that a refused token may precede the other one: the server may have granted it before,
/// with a late answer.
#[test]
fn a_token_that_was_refused_while_another_one_came_need_not_have_gone_back() {
    let call = written;
    let granted = r#","fence":100,"valid_until":900"#;
    for (asked, is_legal) in [(8, true), (80, false)] {
        let mut lines = [
            (10, call(10, "invoke", "p1/a", "acquire", "")),
            (20, call(20, "ok", "p1/a", "acquire", granted)),
            (40, call(40, "invoke", "p1/a", "release", "")),
            (50, call(50, "ok", "p1/a", "release", "")),
            (asked, call(asked, "invoke", "p1/b", "acquire", "")),
            (90, call(90, "info", "p1/b", "acquire", r#","err":"fenced""#)),
        ];
        lines.sort_by_key(|(t, _)| *t);
        let lines: Vec<&str> = lines.iter().map(|(_, line)| line.as_str()).collect();
        let report = hand_written("", &lines).unwrap();
        assert_eq!(report.is_legal(), is_legal, "{report}");
    }
}

/// Checks a call that is cancelled at 20, and another one that waits from 30 until `t`.
#[test]
fn residue_of_a_cancelled_call_explains_contention_until_it_fades() {
    let judge = |fields: &str, t: u64, fault: &str| {
        let held = format!(r#","fence":1,"valid_until":{}"#, t + 900);
        let mut lines = vec![
            written(10, "invoke", "p1/a", "acquire", ""),
            written(20, "info", "p1/a", "acquire", r#","err":"dropped""#),
            written(30, "invoke", "p2/b", "acquire", ""),
            written(t, "ok", "p2/b", "acquire", &held),
        ];
        lines.splice(3..3, (!fault.is_empty()).then(|| fault.to_owned()));
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        hand_written(fields, &lines).unwrap()
    };
    // A lease, the header's bound, and the bound on a takeover.
    let fades = r#","fades":50"#;
    for (fields, t, legal) in
        [(fades, 3269, true), (fades, 3271, false), ("", 3419, true), ("", 3421, false)]
    {
        let report = judge(fields, t, "");
        assert_eq!(!report.broken.contains_key(&Rule::K5), legal, "{fields} {t}: {report}");
    }
    // A background release meets a fault.
    let cut = r#"{"kind":"fault","t":40,"id":1,"what":"partition","proc":"p1"}"#;
    assert!(judge(fades, 3271, cut).is_legal());
    // A longer wait would not have shown it.
    let report = judge(fades, 3000, "");
    assert_eq!((report.waits, report.judged_waits), (1, 0), "{report}");
    let report = judge(fades, 3100, "");
    assert_eq!((report.waits, report.judged_waits), (1, 1), "{report}");
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
        let lines = [
            written(10, "invoke", "p1/a", "acquire", ""),
            r#"{"kind":"fault","t":100,"id":1,"what":"kill","proc":"p1"}"#.to_owned(),
            written(t, "invoke", "p2/b", "try", ""),
            written(t + 1, "fail", "p2/b", "try", r#","err":"busy""#),
        ];
        let report = hand_written(fields, &lines.each_ref().map(String::as_str)).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::K2), legal, "{fields} {t}: {report}");
    }
}

#[test]
fn faults_excuse_waits_that_met_them_and_no_more() {
    let fault = |id: u64, t: u64, what: &str| {
        [
            format!(r#"{{"kind":"fault","t":{t},"id":{id},"what":{what}}}"#),
            format!(r#"{{"kind":"heal","t":{},"id":{id}}}"#, t + 10),
        ]
    };
    // It waits from 500 to `t` for a free lock, and should be served within 100.
    let judge = |faults: &[[String; 2]], t: u64| {
        let wait =
            r#"{"kind":"invoke","t":500,"proc":"p2/b","lock":"l","op":"acquire","grant":"b"}"#;
        let got =
            TAKEN_TOO[1].replace("600", &t.to_string()).replace("3500", &(t + 2900).to_string());
        let mut lines: Vec<&str> = vec![wait];
        lines.extend(faults.iter().flatten().map(String::as_str));
        lines.push(&got);
        let report = hand_written(r#","recovers":300"#, &lines).unwrap();
        !report.broken.contains_key(&Rule::K5)
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
    let judge = |count: u64, late: u64, fault: &str| {
        let call = |t: u64, kind: &str, n: u64, op: &str, more: &str| {
            format!(
                r#"{{"kind":"{kind}","t":{t},"proc":"p{}/t{n}","lock":"l","op":"{op}","grant":"g{n}"{more}}}"#,
                n % 2
            )
        };
        let mut lines = vec![call(10, "invoke", 0, "acquire", "")];
        lines.splice(0..0, (!fault.is_empty()).then(|| fault.to_owned()));
        let mut at = 20;
        for n in 0..=count {
            let more = format!(r#","fence":{},"valid_until":{}"#, n + 1, at + 2900);
            lines.push(call(at, "ok", n, "acquire", &more));
            lines.push(call(at + 1, "invoke", n + 1, "acquire", ""));
            lines.push(call(at + 2, "invoke", n, "release", ""));
            lines.push(call(at + 3, "ok", n, "release", ""));
            at += if n < late { 92 } else { 12 };
        }
        // The last client keeps it.
        lines.truncate(lines.len() - 3);
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        hand_written(r#","half":10,"most":50"#, &lines).unwrap()
    };
    for (count, late, broken) in
        [(100, 10, 0), (100, 11, 1), (100, 50, 1), (100, 51, 2), (99, 99, 0)]
    {
        let report = judge(count, late, "");
        let found = report.violations.iter().filter(|violation| violation.rule == Rule::K5).count();
        assert_eq!((found, report.calm.count as u64), (broken, count), "{late}: {report}");
        assert_eq!(report.has_been_calm(), count >= 100);
    }
    let slow = r#"{"kind":"fault","t":5,"id":1,"what":"slow","proc":"p1"}"#;
    let report = judge(200, 200, slow);
    assert!(report.is_legal() && report.calm.count == 0, "{report}");
}

/// Checks that renewals do not depend on the application, so that its starvation explains no loss.
/// A stopped process renews nothing.
#[test]
fn a_lock_whose_application_does_not_run_stays_held() {
    let judge = |what: &str, more: &str| {
        holds_of("", |n, t| {
            let who = format!("p1/t{n}");
            let [begins, ends] = [("fault", t + 10), ("heal", t + 700)].map(|(kind, t)| {
                let more = format!(r#","what":"{what}","proc":"p1""#);
                let more = if kind == "fault" { more } else { String::new() };
                format!(r#"{{"kind":"{kind}","t":{t},"id":{n}{more}}}"#)
            });
            let lost = written(t + 701, "event", &who, "lost", r#","err":"expired""#);
            taken(n, t, more).into_iter().chain([begins, ends, lost]).collect()
        })
    };
    let report = judge("starve", "");
    assert!(report.broken.contains_key(&Rule::Unexplained), "{report}");
    assert_eq!((report.starved.count, report.starved.failed), (8, 8), "{report}");
    assert_eq!(report.holds.count, 0, "{report}");
    for (what, more) in [("stop", ""), ("starve", r#","unrenewed":true"#)] {
        let report = judge(what, more);
        assert!(!report.broken.contains_key(&Rule::Unexplained), "{what} {more}: {report}");
        assert_eq!(report.starved.count, 0, "{report}");
    }
    // The server keeps it for as long as the application may rely on it: a waiter waits no longer
    // than that.
    let starve = r#"{"kind":"fault","t":100,"id":1,"what":"starve","proc":"p1"}"#;
    let heal = r#"{"kind":"heal","t":9000,"id":1}"#;
    let wait = r#"{"kind":"invoke","t":500,"proc":"p2/b","lock":"l","op":"acquire","grant":"b"}"#;
    let release = [
        r#"{"kind":"invoke","t":9001,"proc":"p1/a","lock":"l","op":"release","grant":"a","valid_until":11000}"#,
        r#"{"kind":"ok","t":9002,"proc":"p1/a","lock":"l","op":"release","grant":"a"}"#,
    ];
    let taken = r#"{"kind":"ok","t":9003,"proc":"p2/b","lock":"l","op":"acquire","grant":"b","fence":2,"valid_until":11900}"#;
    let lines = [TAKEN[0], TAKEN[1], starve, wait, heal, release[0], release[1], taken];
    let report = hand_written("", &lines).unwrap();
    assert!(report.is_legal(), "{report}");
    let stop = starve.replace("starve", "stop");
    let lines = [TAKEN[0], TAKEN[1], &stop, wait, heal, release[0], release[1], taken];
    assert!(!hand_written("", &lines).unwrap().is_legal(), "it is not renewed while it is stopped");
}

/// Checks that a detached lock ends with its lease, where others end with their process.
#[test]
fn a_detached_lock_outlives_its_process_for_its_lease() {
    let kill = r#"{"kind":"fault","t":100,"id":1,"what":"kill","proc":"p1"}"#;
    let judge = |lease: &str, t: u64| {
        let begun = TAKEN[0].replace('}', &format!("{lease}}}"));
        let wait =
            r#"{"kind":"invoke","t":500,"proc":"p2/b","lock":"l","op":"acquire","grant":"b"}"#;
        let taken = format!(
            r#"{{"kind":"ok","t":{t},"proc":"p2/b","lock":"l","op":"acquire","grant":"b","fence":2}}"#
        );
        let lines = [&begun, TAKEN[1], kill, wait, &taken];
        hand_written(r#","lease":null"#, &lines).unwrap()
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
    let stop = r#"{"kind":"fault","t":100,"id":1,"what":"stop","proc":"p1"}"#;
    let wait = r#"{"kind":"invoke","t":500,"proc":"p2/b","lock":"l","op":"acquire","grant":"b"}"#;
    let taken = |t: u64| {
        format!(
            r#"{{"kind":"ok","t":{t},"proc":"p2/b","lock":"l","op":"acquire","grant":"b","fence":2,"valid_until":{}}}"#,
            t + 2900
        )
    };
    // The lease after its last renewal, at most when it was stopped, and the bound.
    for (t, legal) in [(3100, true), (3299, true), (3301, false)] {
        let report = hand_written("", &[TAKEN[0], TAKEN[1], stop, wait, &taken(t)]).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::K5), legal, "{t}: {report}");
        assert_eq!(report.takeovers.count, 0, "it waited only after the stop");
    }
    // It is not notified while it is stopped, but soon after. While its server is down, it counts
    // its lease by itself.
    let away = r#"{"kind":"fault","t":100,"id":1,"what":"server"}"#;
    let go_on = |t: u64| format!(r#"{{"kind":"heal","t":{t},"id":1}}"#);
    let lost = |t: u64| {
        format!(
            r#"{{"kind":"event","t":{t},"proc":"p1/a","lock":"l","op":"lost","grant":"a","err":"expired"}}"#
        )
    };
    for (fault, t, legal) in
        [(stop, 9050, true), (stop, 9150, false), (away, 6150, true), (away, 6250, false)]
    {
        let end = r#"{"kind":"residue","t":20000,"left":[]}"#;
        let mut then = [(9000, go_on(9000)), (t, lost(t))];
        then.sort();
        let [(_, one), (_, other)] = &then;
        let lines = [TAKEN[0], TAKEN[1], fault, wait, &taken(3100), one, other, end];
        let report = hand_written("", &lines).unwrap();
        assert_eq!(!report.broken.contains_key(&Rule::Told), legal, "{t}: {report}");
    }
}

/// Checks a hand-over of a lock that was removed before: the next holder is notified by its next
/// renewal.
#[test]
fn a_loss_after_a_hand_over_of_a_removed_lock_has_a_reason() {
    let held = |fence: u64| format!(r#","fence":{fence},"valid_until":2000"#);
    let broken = r#"{"kind":"fault","t":100,"id":1,"what":"break","lock":"l","breaks":["A3"]}"#;
    let lines = [
        written(10, "invoke", "p1/a", "acquire", ""),
        written(20, "ok", "p1/a", "acquire", &held(0x100)),
        broken.to_owned(),
        r#"{"kind":"heal","t":101,"id":1,"removed":true}"#.to_owned(),
        written(120, "invoke", "p1/b", "acquire", ""),
        written(130, "invoke", "p1/a", "release", ""),
        written(130, "ok", "p1/a", "release", ""),
        written(131, "ok", "p1/b", "acquire", &held(0x101)),
        written(140, "event", "p1/b", "lost", r#","err":"not_held""#),
    ];
    let judge = |lines: &[String]| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        hand_written(r#","breaks":["A3"],"passes_on":true"#, &lines).unwrap()
    };
    let report = judge(&lines);
    assert!(report.is_legal(), "{report}");
    let unbroken: Vec<String> =
        lines.iter().filter(|line| !line.contains(r#""id":1"#)).cloned().collect();
    assert!(judge(&unbroken).broken.contains_key(&Rule::K7));
}

#[test]
fn a_minimum_hold_keeps_others_out_after_the_release_and_no_longer() {
    let held = |kept: &str| {
        written(101, "ok", "p1/a", "acquire", &format!(r#","fence":1,"valid_until":3000{kept}"#))
    };
    for (kept, at, is_legal) in [
        ("", 150, false),
        (r#","kept_until":300"#, 150, true),
        (r#","kept_until":300"#, 500, false),
    ] {
        let lines = [
            written(100, "invoke", "p1/a", "acquire", ""),
            held(kept),
            written(110, "invoke", "p1/a", "release", ""),
            written(111, "ok", "p1/a", "release", ""),
            written(at, "invoke", "p2/b", "try", ""),
            written(at + 1, "fail", "p2/b", "try", r#","err":"busy""#),
        ];
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let report = hand_written("", &lines).unwrap();
        assert_eq!(report.is_legal(), is_legal, "{kept} {at}: {report}");
    }
}

#[test]
fn a_minimum_hold_lasts_longer_if_the_clock_goes_back() {
    let held = r#","fence":1,"valid_until":3000,"kept_until":150"#;
    let refused = r#","err":"busy""#;
    let lines = [
        r#"{"kind":"fault","t":50,"id":1,"what":"server-clock-stepped","breaks":["A1"]}"#.into(),
        written(100, "invoke", "p1/a", "acquire", ""),
        written(101, "ok", "p1/a", "acquire", held),
        written(110, "invoke", "p1/a", "release", ""),
        written(111, "ok", "p1/a", "release", ""),
        written(300, "invoke", "p2/b", "try", ""),
        written(301, "fail", "p2/b", "try", refused),
        r#"{"kind":"heal","t":400,"id":1}"#.into(),
        written(500, "invoke", "p3/c", "try", ""),
        written(501, "fail", "p3/c", "try", refused),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let judge = |lines| hand_written(r#","breaks":["A1"]"#, lines).unwrap();
    let before = judge(&lines[..8]);
    assert!(before.is_legal(), "the clock may have gone back: {before}");
    let after = judge(&lines);
    assert!(!after.is_legal(), "the step was over: {after}");
}

/// Checks that an unrenewed lock without a lease ends with the deadline of its holder.
#[test]
fn a_killed_holder_without_a_lease_is_followed_at_once() {
    let held = r#","fence":1,"valid_until":900,"unrenewed":true"#;
    let killed = r#"{"kind":"fault","t":200,"id":1,"what":"kill","proc":"p1"}"#;
    let lines = [
        written(100, "invoke", "p1/a", "acquire", ""),
        written(101, "ok", "p1/a", "acquire", held),
        killed.to_owned(),
        written(210, "invoke", "p2/b", "acquire", ""),
        written(220, "ok", "p2/b", "acquire", r#","fence":2,"valid_until":900"#),
        written(230, "invoke", "p2/b", "release", ""),
        written(231, "ok", "p2/b", "release", ""),
    ];
    for (lease, is_legal) in [("null", true), ("1000", false)] {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let report = hand_written(&format!(r#","lease":{lease}"#), &lines).unwrap();
        assert_eq!(report.is_legal(), is_legal, "{lease}: {report}");
    }
}

#[test]
fn a_handed_over_hold_dates_from_its_first_request() {
    let call = written;
    let held = |fence: u64| format!(r#","fence":{fence},"valid_until":2000"#);
    let lines = [
        call(10, "invoke", "p1/a", "acquire", ""),
        call(20, "ok", "p1/a", "acquire", &held(0x100)),
        call(30, "invoke", "p2/c", "acquire", ""),
        r#"{"kind":"fault","t":100,"id":1,"what":"break","lock":"l","breaks":["A3"]}"#.to_owned(),
        call(110, "ok", "p2/c", "acquire", &held(0x200)),
        call(120, "invoke", "p1/b", "acquire", ""),
        call(130, "invoke", "p1/a", "release", ""),
        call(130, "ok", "p1/a", "release", ""),
        call(130, "ok", "p1/b", "acquire", &held(0x101)),
        call(140, "fail", "p1/b", "lost", "").replace("fail", "event"),
    ];
    let judge = |fields: &str, lines: &[String]| {
        hand_written(fields, &lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
    };
    // The process cannot know that its lock was broken; the server has granted it once.
    let broken = r#","breaks":["A3"]"#;
    let report = judge(&format!(r#"{broken},"passes_on":true"#), &lines);
    assert!(report.is_legal() && report.excused_overlaps > 0, "{report}");
    // But where all tokens come from the server, it has granted a lower one later.
    let report = judge(broken, &lines);
    assert!(report.broken.contains_key(&Rule::K4), "{report}");
    // And where no assumption was broken, there were two holders.
    let unbroken: Vec<String> =
        lines.iter().filter(|line| !line.contains("fault")).cloned().collect();
    let report = judge(r#","passes_on":true"#, &unbroken);
    assert!(report.broken.contains_key(&Rule::K1), "{report}");
    assert!(
        report.broken.contains_key(&Rule::K2) || report.broken.contains_key(&Rule::K7),
        "{report}"
    );
}

#[test]
fn a_waiter_beside_an_expired_holder_may_be_passed_over() {
    let call = written;
    let held = |fence: u64, until: u64| format!(r#","fence":{fence},"valid_until":{until}"#);
    let judge = |fields: &str, holder: &str, queued: &str| {
        let lines = [
            call(10, "invoke", holder, "acquire", ""),
            call(20, "ok", holder, "acquire", &held(1, 900)),
            call(30, "invoke", "p1/b", "acquire", queued),
            call(300, "invoke", "p2/c", "acquire", ""),
            call(900, "event", holder, "lost", r#","err":"expired""#),
            call(1000, "ok", "p2/c", "acquire", &held(2, 3900)),
            call(1100, "invoke", "p2/c", "release", ""),
            call(1100, "ok", "p2/c", "release", ""),
            call(1110, "ok", "p1/b", "acquire", &held(3, 3900)),
        ];
        let fields = format!(r#"{fields},"fifo_after":100"#);
        hand_written(&fields, &lines.each_ref().map(String::as_str)).unwrap()
    };
    let pushed = r#","passes_over":true"#;
    assert!(judge(pushed, "p1/a", "").is_legal());
    // Or one whose program has to start before it is queued.
    assert!(judge("", "p3/a", r#","overtakable":true"#).is_legal());
    // Not where the header does not declare it, nor beside others.
    for (fields, holder) in [("", "p1/a"), (pushed, "p3/a")] {
        let report = judge(fields, holder, "");
        assert!(report.broken.contains_key(&Rule::Fifo), "{fields} {holder}: {report}");
    }
}

/// Checks a client that gives its session up before its deadline, after a fault of its link.
#[test]
fn a_session_that_is_given_up_ends_its_locks_where_that_is_said() {
    let cut = r#"{"kind":"fault","t":120,"id":1,"what":"held-and-delivered","proc":"p1"}"#;
    let lines = [
        written(100, "invoke", "p1/a", "acquire", ""),
        written(101, "ok", "p1/a", "acquire", r#","fence":256,"valid_until":3000"#),
        cut.into(),
        written(900, "event", "p1/a", "lost", r#","err":"not_held""#),
    ];
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let calm = [lines[0], lines[1], lines[3]];
    let judge = |fields, lines: &[&str]| hand_written(fields, lines).unwrap();
    let given_up = judge(r#","moves_back":true"#, &lines);
    assert!(given_up.is_legal(), "{given_up}");
    for (fields, lines) in [("", &lines[..]), (r#","moves_back":true"#, &calm)] {
        let report = judge(fields, lines);
        assert!(report.broken.contains_key(&Rule::K7), "{fields}: {report}");
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
    let call = written;
    let held = |fence: u64, until: u64| format!(r#","fence":{fence},"valid_until":{until}"#);
    let judge = |fields: &str, sampled: bool, next: u64| {
        let mut lines = vec![
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", &held(1, 2900)),
            call(30, "invoke", "p2/b", "acquire", ""),
        ];
        if sampled {
            lines.push(call(500, "event", "p1/a", "renew", r#","valid_until":1000"#));
        }
        lines.extend([
            call(1050, "event", "p1/a", "lost", r#","err":"expired","valid_until":1000"#),
            call(next, "ok", "p2/b", "acquire", &held(2, 3900)),
        ]);
        lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        hand_written(fields, &lines).unwrap()
    };
    let moves_back = r#","moves_back":true"#;
    for sampled in [true, false] {
        // The task that is notified of the loss may run a little later than it.
        for next in [1001, 1100] {
            let report = judge(moves_back, sampled, next);
            assert!(report.is_legal(), "{sampled} {next}: {report}");
        }
        let early = judge(moves_back, sampled, 900);
        assert!(early.broken.contains_key(&Rule::K1), "{sampled}: {early}");
        assert!(early.broken.contains_key(&Rule::K2), "{sampled}: {early}");
        let report = judge("", sampled, 1100);
        assert!(report.broken.contains_key(&Rule::K2), "{sampled}: {report}");
        assert_eq!(report.broken.contains_key(&Rule::K1), sampled, "it goes back: {report}");
    }
}

/// Checks a late answer to a release: meanwhile another client had the lock, and has released it.
#[test]
fn a_release_in_progress_blocks_its_process() {
    let call = written;
    let held = |fence: u64| format!(r#","fence":{fence},"valid_until":2980"#);
    let judge = |who: &str, asks: u64| {
        let mut lines = vec![
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", &held(1)),
            call(30, "invoke", "p1/a", "release", ""),
            call(200, "ok", "p1/a", "release", ""),
            call(40, "invoke", "p2/b", "acquire", ""),
            call(50, "ok", "p2/b", "acquire", &held(2)),
            call(60, "invoke", "p2/b", "release", ""),
            call(70, "ok", "p2/b", "release", ""),
            call(asks, "invoke", who, "try", ""),
            call(asks + 1, "fail", who, "try", r#","err":"busy""#),
        ];
        lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
        let lines: Vec<_> = lines.iter().map(String::as_str).collect();
        !hand_written("", &lines).unwrap().broken.contains_key(&Rule::K2)
    };
    assert!(judge("p1/c", 100));
    assert!(!judge("p2/c", 100) && !judge("p3/c", 100));
    assert!(!judge("p1/c", 201));
}

#[test]
fn a_holder_notified_of_its_loss_blocks_no_client() {
    let judge = |told: [String; 2], lets_go: u64, until: u64| {
        let lines = [
            written(10, "invoke", "p1/a", "acquire", ""),
            written(20, "ok", "p1/a", "acquire", r#","fence":1,"valid_until":2980,"new":1"#),
            told[0].clone(),
            told[1].clone(),
            written(lets_go, "invoke", "p1/a", "release", ""),
            written(50_100, "invoke", "p1/c", "try", ""),
            written(50_101, "fail", "p1/c", "try", r#","err":"busy""#),
            written(until, "fail", "p1/a", "release", r#","err":"not_held""#),
        ];
        let mut lines: Vec<&str> =
            lines.iter().map(String::as_str).filter(|line| !line.is_empty()).collect();
        lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
        !hand_written("", &lines).unwrap().broken.contains_key(&Rule::K2)
    };
    let lost = written(3000, "event", "p1/a", "lost", r#","err":"expired""#);
    assert!(!judge([lost, String::new()], 50_000, 50_500));
    let first = ["invoke", "ok"]
        .map(|kind| written(if kind == "ok" { 110 } else { 100 }, kind, "p1/a", "release", ""));
    assert!(!judge(first, 50_000, 50_500), "it was released before");
    assert!(!judge([String::new(), String::new()], 30, 90_000), "no release takes as long");
}

#[test]
fn a_release_lost_with_its_server_blocks_others_for_its_lease() {
    let ends = [
        written(110, "ok", "p1/a", "release", ""),
        written(110, "info", "p1/a", "release", r#","err":"gone""#),
    ];
    let judge_one = |end: &str, fault: &str, from: u64, asks: u64| {
        let heal = r#"{"kind":"heal","t":400,"id":1}"#.to_owned();
        let mut lines = [
            written(10, "invoke", "p1/a", "acquire", ""),
            written(20, "ok", "p1/a", "acquire", r#","fence":1,"valid_until":2980,"new":1"#),
            written(100, "invoke", "p1/a", "release", ""),
            end.to_owned(),
            format!(r#"{{"kind":"fault","t":{from},"id":1,"what":"leader-killed"{fault}}}"#),
            heal,
            written(asks, "invoke", "p2/b", "try", ""),
            written(asks + 10, "fail", "p2/b", "try", r#","err":"busy""#),
        ];
        lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        let fields = r#","breaks":["Releases"],"recovers":50,"fades":100"#;
        !hand_written(fields, &lines).unwrap().broken.contains_key(&Rule::K2)
    };
    let judge = |fault: &str, from: u64, asks: u64| {
        let [confirmed, unanswered] = ends.each_ref().map(|end| judge_one(end, fault, from, asks));
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
    let died = r#"{"kind":"fault","t":100,"id":1,"what":"leader-killed","breaks":["Releases"]}"#;
    let over = r#"{"kind":"heal","t":110,"id":1}"#;
    let told = r#"{"kind":"event","t":200,"proc":"p1/a","lock":"l","op":"lost","grant":"a","err":"not_held"}"#;
    let lost = [&TAKEN[..], &[died, over, told], &TAKEN_TOO].concat();
    let report = hand_written(r#","breaks":["Releases"]"#, &lost).unwrap();
    assert!(report.broken.contains_key(&Rule::K7), "{report}");
}

#[test]
fn a_vote_that_could_not_be_given_back_keeps_others_out_beside_a_second_fault() {
    let call = written;
    let fault = |at: u64, until: u64, id: u64, who: &str| {
        [
            format!(r#"{{"kind":"fault","t":{at},"id":{id},"what":"delay","proc":"{who}"}}"#),
            format!(r#"{{"kind":"heal","t":{until},"id":{id}}}"#),
        ]
    };
    let judge = |fields: &str, faults: &[(u64, u64, &str)], asks: u64| {
        let mut lines = vec![
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", r#","fence":1,"valid_until":2980,"new":1"#),
            call(100, "invoke", "p1/a", "release", ""),
            call(110, "ok", "p1/a", "release", ""),
            call(asks, "invoke", "p2/b", "try", ""),
            call(asks + 10, "fail", "p2/b", "try", r#","err":"busy""#),
        ];
        for (id, (at, until, who)) in faults.iter().enumerate() {
            lines.extend(fault(*at, *until, id as u64 + 1, who));
        }
        lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
        let fields = format!(r#"{fields},"recovers":50,"fades":100"#);
        let report =
            hand_written(&fields, &lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap();
        !report.broken.contains_key(&Rule::K2)
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
    // A fault of one member may be the second one, and one fault for all is still one.
    let member = |at: u64, until: u64| {
        let fault = format!(r#"{{"kind":"fault","t":{at},"id":9,"what":"member","hidden":true}}"#);
        [fault, format!(r#"{{"kind":"heal","t":{until},"id":9}}"#)]
    };
    let beside = |faults: &[(u64, u64, &str)], more: [String; 2]| {
        let call = written;
        let mut lines = vec![
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", r#","fence":1,"valid_until":2980,"new":1"#),
            call(100, "invoke", "p1/a", "release", ""),
            call(110, "ok", "p1/a", "release", ""),
            call(350, "invoke", "p2/b", "try", ""),
            call(360, "fail", "p2/b", "try", r#","err":"busy""#),
        ];
        for (at, until, who) in faults {
            lines.extend(fault(*at, *until, 1, who));
        }
        lines.extend(more);
        lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
        let lines = lines.iter().map(String::as_str).collect::<Vec<_>>();
        let fields = format!(r#"{votes},"recovers":50,"fades":100,"breaks":["A3"]"#);
        !hand_written(&fields, &lines).unwrap().broken.contains_key(&Rule::K2)
    };
    assert!(beside(&[holder], member(300, 400)));
    assert!(beside(&[caller], member(90, 130)));
    assert!(!beside(&[], member(90, 400)));
    // Nor a fault that did not happen, or affects no server.
    let delay = r#""what":"delay","proc":"p1""#;
    for (fault, end, is_one) in [
        (delay, "", true),
        (delay, r#","happened":false"#, false),
        (r#""what":"evicted","lock":"l","breaks":["A3"]"#, r#","happened":false"#, false),
        (r#""what":"client-clock-stepped","proc":"p1","hidden":true"#, "", false),
        (r#""what":"short-leases","proc":"p1","hidden":true"#, "", false),
    ] {
        let fault = format!(r#"{{"kind":"fault","t":90,"id":9,{fault}}}"#);
        let heal = format!(r#"{{"kind":"heal","t":130,"id":9{end}}}"#);
        assert_eq!(beside(&[caller], [fault.clone(), heal]), is_one, "{fault}{end}");
    }
    let evicted = [
        r#"{"kind":"fault","t":105,"id":9,"what":"evicted","lock":"l","breaks":["A3"]}"#,
        r#"{"kind":"heal","t":108,"id":9}"#,
    ];
    assert!(!beside(&[caller], evicted.map(str::to_owned)), "by force nothing is left");
}

#[test]
fn a_holder_of_another_library_counts_exactly_while_it_is_there() {
    let there = |lock: &str, from: u64, until: u64| {
        [
            format!(r#"{{"kind":"fault","t":{from},"id":1,"what":"foreign","lock":"{lock}"}}"#),
            format!(r#"{{"kind":"heal","t":{until},"id":1}}"#),
        ]
    };
    let call = |t: u64, kind: &str, op: &str, more: &str| {
        format!(
            r#"{{"kind":"{kind}","t":{t},"proc":"p2/b","lock":"l","op":"{op}","grant":"b"{more}}}"#
        )
    };
    let judge = |mut lines: Vec<String>| {
        lines.sort_by_key(|line| Line::parse(line.as_bytes()).unwrap().t());
        hand_written("", &lines.iter().map(String::as_str).collect::<Vec<_>>()).unwrap()
    };
    // It keeps other clients out, and only then.
    for (lock, from, until, legal) in
        [("l", 1150, 1160, true), ("l", 900, 1001, true), ("l", 1999, 2010, true)]
            .into_iter()
            .chain([("l", 900, 999, false), ("l", 2001, 2010, false), ("m", 1150, 1160, false)])
    {
        let busy =
            [call(from, "invoke", "try", ""), call(until, "fail", "try", r#","err":"busy""#)];
        let report = judge([there(lock, 1000, 2000), busy].concat());
        assert_eq!(!report.broken.contains_key(&Rule::K2), legal, "{lock} {from}: {report}");
    }
    // No other client may rely on the lock meanwhile.
    for (lock, from, legal) in [("l", 2000, false), ("m", 2000, true), ("l", 2980, true)] {
        let report = judge([TAKEN.map(str::to_owned), there(lock, from, 5000)].concat());
        assert_eq!(!report.broken.contains_key(&Rule::K1), legal, "{lock} {from}: {report}");
    }
    // A waiter gets the lock when the lease of the holder has ended, within the bound.
    for (t, legal) in [(2199, true), (2201, false)] {
        let waited = [
            call(900, "invoke", "acquire", ""),
            call(t, "ok", "acquire", r#","fence":1,"valid_until":4900"#),
        ];
        let report = judge([there("l", 850, 2000), waited].concat());
        assert_eq!(report.is_legal(), legal, "{t}: {report}");
    }
}

#[test]
fn a_counter_that_lost_an_update_is_seen() {
    let counted = |fence: &str, values: [u64; 2], read: u64| {
        let call = |t: u64, kind: &str, op: &str, value: String| {
            format!(
                r#"{{"kind":"{kind}","t":{t},"proc":"p","lock":"l","op":"{op}"{value}{fence}}}"#
            )
        };
        let value = |value: u64| format!(r#","value":{value}"#);
        let lines = [
            call(1, "invoke", "write", String::new()),
            call(2, "ok", "write", value(values[0])),
            call(3, "invoke", "write", String::new()),
            call(4, "ok", "write", value(values[1])),
            call(5, "invoke", "read", String::new()),
            call(6, "ok", "read", value(read)),
        ];
        hand_written("", &lines.each_ref().map(String::as_str)).unwrap()
    };
    let fence = r#","fence":7"#;
    assert!(counted(fence, [1, 2], 2).is_legal());
    for (values, read) in
        [([1, 2], 1), ([1, 2], 3), ([1, 1], 2), ([2, 1], 2), ([1, 7], 2), ([2, 3], 2)]
    {
        let report = counted(fence, values, read);
        assert!(report.broken.contains_key(&Rule::K3), "{values:?} {read}: {report}");
    }
    // Without a token, lost updates are counted, and no client is to blame.
    let report = counted("", [1, 1], 1);
    assert!(report.is_legal() && report.lost_updates == 1, "{report}");
}

#[test]
fn a_read_that_shows_a_fence_shuts_out_lower_ones() {
    let judge = |reader: u64, kind: &str, err: &str| {
        let call = |t: u64, kind: &str, op: &str, fence: u64, more: &str| {
            format!(
                r#"{{"kind":"{kind}","t":{t},"proc":"p","lock":"l","op":"{op}","fence":{fence}{more}}}"#
            )
        };
        let lines = [
            call(1, "invoke", "read", reader, ""),
            call(2, "ok", "read", reader, r#","value":0"#),
            call(3, "invoke", "write", 7, ""),
            call(4, kind, "write", 7, err),
        ];
        hand_written("", &lines.each_ref().map(String::as_str)).unwrap()
    };
    let (passed, refused) = (("ok", r#","value":1"#), ("fail", r#","err":"fenced""#));
    for (reader, (kind, more), legal) in
        [(7, passed, true), (8, passed, false), (8, refused, true), (7, refused, false)]
    {
        let report = judge(reader, kind, more);
        assert_eq!(!report.broken.contains_key(&Rule::K3), legal, "{reader} {kind}: {report}");
    }
}

#[test]
fn only_documented_residue_may_be_left() {
    let left = |names: &str| format!(r#"{{"kind":"residue","t":9000,"left":[{names}]}}"#);
    let judge = |line: &str| hand_written(r#","residue":["fence:*"]"#, &[line]).unwrap();
    assert!(judge(&left(r#""fence:a","fence:b""#)).is_legal());
    assert!(judge(&left(r#""fence:a","lock:a""#)).broken.contains_key(&Rule::K6));
    assert!(judge(TAKEN[0]).broken.contains_key(&Rule::K6), "somebody has to look");
}

#[test]
fn an_invalid_history_is_refused_with_its_line() {
    let cases: &[(&[&str], &str)] = &[
        (&["{"], "line 2: EOF"),
        (&[TAKEN[0], r#"{"kind":"ok","t":20}"#], "line 3: missing field"),
        (&[r#"{"kind":"done","t":20}"#], "line 2: "),
        (&[TAKEN[1]], "line 2: an answer to p1/a, which has called nothing"),
        (&[TAKEN[0], TAKEN[0]], "line 3: p1/a has a call under way since line 2"),
        (&[TAKEN_TOO[0], TAKEN[0]], "line 3: time runs backwards"),
        (&[r#"{"kind":"heal","t":1,"id":4}"#], "line 2: no fault 4"),
        (
            &[r#"{"kind":"invoke","t":1,"proc":"p","lock":"l","op":"release","grant":"x"}"#],
            "line 2: no grant x",
        ),
        (
            &[
                TAKEN[0],
                r#"{"kind":"info","t":11,"proc":"p1/a","lock":"l","op":"acquire","grant":"a"}"#,
                r#"{"kind":"invoke","t":12,"proc":"p1/a","lock":"l","op":"try","grant":"b"}"#,
            ],
            "line 4: p1/a goes on after `info`",
        ),
        (
            &[
                r#"{"kind":"invoke","t":1,"proc":"p","lock":"l","op":"try","grant":"x","run":"other"}"#,
            ],
            "line 2: it belongs to run",
        ),
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
    let call = |t: u64, kind: &str, name: &str, op: &str, more: &str| {
        format!(
            r#"{{"kind":"{kind}","t":{t},"proc":"{name}","lock":"l","op":"{op}","grant":"{name}"{more}}}"#
        )
    };
    let mut lines = Vec::new();
    for ghost in 0..30 {
        lines.push(call(1, "invoke", &format!("ghost{ghost}"), "try", ""));
    }
    for ghost in 0..30 {
        lines.push(call(2, "info", &format!("ghost{ghost}"), "try", ""));
    }
    for round in 0..12 {
        let (t, name) = (10 + 10 * round, format!("refused{round}"));
        lines.push(call(t, "invoke", &name, "try", ""));
        lines.push(call(t + 1, "fail", &name, "try", r#","err":"busy""#));
        let name = format!("holder{round}");
        lines.push(call(t + 2, "invoke", &name, "try", ""));
        lines.push(call(t + 3, "ok", &name, "try", r#","valid_until":2000"#));
        lines.push(call(t + 4, "invoke", &name, "release", ""));
        lines.push(call(t + 5, "ok", &name, "release", ""));
    }
    let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
    let report = hand_written(r#","fencing":"none""#, &lines).unwrap();
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
    let call = written;
    let judge = |removal: &str, release: &str| {
        let lines = [
            call(10, "invoke", "p1/a", "acquire", ""),
            call(20, "ok", "p1/a", "acquire", r#","fence":1,"valid_until":900"#),
            removal.to_owned(),
            call(200, "invoke", "p1/a", "renew", ""),
            call(210, "fail", "p1/a", "renew", r#","err":"not_held""#),
            call(220, "invoke", "p1/a", "release", release),
            call(230, "ok", "p1/a", "release", ""),
        ];
        hand_written(r#","breaks":["A3"]"#, &lines.each_ref().map(String::as_str)).unwrap()
    };
    let removal = r#"{"kind":"fault","t":100,"id":1,"what":"break","lock":"l","breaks":["A3"]}"#;
    assert!(judge(removal, "").is_legal());
    let elsewhere = removal.replace(r#""lock":"l""#, r#""lock":"m""#);
    for (removal, release) in [(removal, r#","valid_until":900"#), (elsewhere.as_str(), "")] {
        let report = judge(removal, release);
        assert!(report.broken.contains_key(&Rule::K7), "{release}: {report}");
    }
}
