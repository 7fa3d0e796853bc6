//! Simulated runs of the memory backend. Environment variables choose the runs: see `Seeds`.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use lock_conformance::{Harness, sabotage};
use lock_history::{Line, Op, Rule};
use lock_simulation::{Run, Seeds, run, search};

#[path = "../../../conformance-tests/tests/common/mod.rs"]
mod common;

use common::InMemory;

const RUNS: u64 = 300;

fn simulate(seed: u64) -> Run {
    run(seed, Arc::new(InMemory::new()), None).expect("a simulation records a history")
}

#[test]
fn no_run_breaks_a_promise() {
    let handed_over = AtomicUsize::new(0);
    let seeds = Seeds::of_test("-p lock-simulation --test simulation no_run", RUNS);
    let sum = seeds.run(|seed| {
        let run = simulate(seed);
        let count = run.lines.iter().filter(|line| was_handed_over(line)).count();
        handed_over.fetch_add(count, Ordering::Relaxed);
        run
    });
    let handed_over = handed_over.into_inner();
    println!("{sum}{handed_over} times a process handed a lock over to itself");
    sum.assert_legal();
    assert!(seeds.are_chosen() || handed_over > 100, "{handed_over} hand-overs only");
    for drawn in DRAWN {
        let count = sum.count(drawn);
        assert!(seeds.are_chosen() || count > 20, "{drawn}: {count} times only");
    }
}

/// Events that happen in many runs.
const DRAWN: [&str; 10] = [
    "client without a queue",
    "held, not renewed",
    "held, with a longest hold",
    "held, with a probe",
    "held, with a minimum hold",
    "held, detachable",
    "adopted",
    "verified",
    "extended",
    "runtime ended",
];

/// Returns whether an acquisition got its lock by a hand-over inside its process.
fn was_handed_over(line: &Line) -> bool {
    let Line::Record(record) = line else { return false };
    record.fence.is_some_and(|fence| fence & 0xff != 0 && record.op == Op::Acquire)
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..40 {
        let [one, again] = [simulate(seed), simulate(seed)].map(|run| steps(&run));
        for (number, (one, again)) in one.iter().zip(&again).enumerate() {
            assert_eq!(one, again, "seed {seed} parts at step {number}");
        }
        assert_eq!(one.len(), again.len(), "seed {seed}");
    }
}

/// Returns the events of a run, without the numbers that come from the wall clock.
fn steps(run: &Run) -> Vec<String> {
    let lines = run.lines.iter().map(|line| {
        let mut line = line.clone();
        if let Line::Record(record) = &mut line {
            record.fence = None;
        }
        line.to_json()
    });
    lines.collect()
}

/// The rules have to find each defect by themselves, in some run.
#[test]
fn broken_backends_break_promises_in_some_run() {
    const RUNS: u64 = 1000;

    for name in FOUND {
        let broken = broken_by(name, RUNS);
        let broken = broken.unwrap_or_else(|| panic!("{name} got through {RUNS} runs"));
        println!("{name}: seed {}, {}", broken.seed, broken.report.violations[0]);
    }
}

#[test]
fn renewals_that_fail_show_in_the_first_runs() {
    let broken = broken_by("NeverRenews", 20).expect("locks are lost in 20 runs");
    println!("seed {}, {}", broken.seed, broken.report.violations[0]);
    assert!(broken.report.broken.contains_key(&Rule::Unexplained), "{broken}");
}

/// Returns the first run that a saboteur breaks, if it breaks one.
fn broken_by(name: &str, runs: u64) -> Option<Run> {
    let mut saboteurs = sabotage::all().iter().chain(sabotage::of_runs());
    let saboteur = saboteurs.find(|saboteur| saboteur.name == name);
    let saboteur = saboteur.expect("it is among the saboteurs");
    search(0..runs, |seed| {
        let memory: Box<dyn Harness> = Box::new(InMemory::new());
        let run =
            run(seed, Arc::from(saboteur.infiltrate(memory)), None).expect("a history is recorded");
        (!run.report.is_legal()).then_some(run)
    })
}

/// Saboteurs that a simulation meets. The others break features that it does not use: lists, names
/// at their limits, minimum holds, minimum tokens. Or they do no more than the fault phase does as
/// well. Or core detects them: a renewal that re-creates a lock shows another token.
const FOUND: [&str; 23] = [
    "GrantsEveryone",
    "ForgetsItsOwner",
    "AttemptShortens",
    "CountsFromTheReply",
    "CountsFromThePush",
    "ExpiresEarly",
    "OnlyAcknowledgesRenewals",
    "RenewAlwaysHeld",
    "ExaggeratesItsLease",
    "OnlyAcknowledgesReleases",
    "ReleasesAnyone",
    "LeavesStaleQueueEntries",
    "RepeatsTokens",
    "LosesTokens",
    "HandsOverOldTokens",
    "NeverWakes",
    "ServesLastFirst",
    "QueuesTries",
    "NeverExpires",
    "SwallowsUnknownOutcomes",
    "CallsFaultsContention",
    "AssumesItsRenewals",
    "GivesUpAtOnce",
];
