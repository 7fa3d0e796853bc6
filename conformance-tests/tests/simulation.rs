//! Simulated runs of the memory backend. `SIMULATION_SEED` replays one run, `SIMULATION_RUNS` says how
//! many there are.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};

use conformance_tests::history::{Line, Op};
use conformance_tests::simulation::{Run, Tally, run};
use conformance_tests::{Harness, sabotage};

mod common;

use common::InMemory;

const RUNS: u64 = 300;

fn simulate(seed: u64) -> Run {
    run(seed, Box::new(InMemory::new())).expect("a simulation records a history")
}

#[test]
fn no_run_breaks_a_promise() {
    let seeds = match variable("SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SIMULATION_RUNS").unwrap_or(RUNS),
    };
    let mut tally = Tally::default();
    let (mut operations, mut handed_over) = (0, 0);
    let runs = seeds.end - seeds.start;
    for seed in seeds {
        let run = simulate(seed);
        operations += run.report.operations;
        handed_over += run.lines.iter().filter(|line| was_handed_over(line)).count();
        tally.add(&run.tally);
        assert!(
            run.report.is_legal(),
            "{run}\nrecorded in {}\nreplay it with:\n  SIMULATION_SEED={seed} cargo test -p conformance-tests --test simulation no_run\n",
            kept(&run).display()
        );
    }
    println!(
        "{runs} runs, {operations} operations, {} calls of verbs, {handed_over} hand-overs",
        tally.calls()
    );
    assert!(runs < RUNS || handed_over > 100, "locks were handed over {handed_over} times only");
    for (what, verb, count) in tally.pairs() {
        println!("{what:>20} {verb:<11} {count}");
    }
}

/// The answer to an acquisition that got its lock from the holder before in its process.
fn was_handed_over(line: &Line) -> bool {
    let Line::Record(record) = line else { return false };
    record.fence.is_some_and(|fence| fence & 0xff != 0 && record.op == Op::Acquire)
}

/// The whole history, for check-history and for eyes.
fn kept(run: &Run) -> PathBuf {
    let path = std::env::temp_dir().join(format!("simulation-{}.jsonl", run.seed));
    let text: String = run.lines.iter().map(Line::to_json).collect();
    std::fs::write(&path, text).expect("the history can be written");
    path
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
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

/// What happened, without the numbers that come from the wall clock.
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

/// The rules have to find what is broken by themselves, in some run.
#[test]
fn broken_backends_break_promises_in_some_run() {
    const RUNS: u64 = 1000;

    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(name) = FOUND.get(next.fetch_add(1, Ordering::SeqCst)) {
            let saboteur = sabotage::all().iter().find(|saboteur| saboteur.name == *name);
            let saboteur = saboteur.expect("it is among the saboteurs");
            let broken = (0..RUNS).find_map(|seed| {
                let memory: Box<dyn Harness> = Box::new(InMemory::new());
                let run = run(seed, saboteur.infiltrate(memory)).expect("a history is recorded");
                (!run.report.is_legal()).then_some(run)
            });
            let broken = broken.unwrap_or_else(|| panic!("{name} got through {RUNS} runs"));
            println!("{name}: seed {}, {}", broken.seed, broken.report.violations[0]);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
}

/// Saboteurs that a simulation meets. The others break what it does not use (lists, names at their
/// limits, minimum holds, floors), do no more than a storm does as well, or are seen through by core: a renewal
/// that re-creates a lock shows another token.
const FOUND: [&str; 23] = [
    "GrantsEveryone",
    "ForgetsItsOwner",
    "AttemptShortens",
    "CountsFromTheReply",
    "CountsFromThePush",
    "LapsesEarly",
    "RenewsInName",
    "RenewAlwaysHeld",
    "ExaggeratesItsLease",
    "ReleasesInName",
    "ReleasesAnyone",
    "LeavesGhostsInLine",
    "RepeatsTokens",
    "LosesTokens",
    "HandsOverOldTokens",
    "NeverWakes",
    "ServesLastFirst",
    "QueuesTries",
    "NeverLapses",
    "SwallowsUncertainReleases",
    "CallsFaultsContention",
    "AssumesItsRenewals",
    "GivesUpAtOnce",
];
