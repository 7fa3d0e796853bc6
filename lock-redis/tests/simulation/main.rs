//! Simulated runs of Redis' line: the scripts and the backend as they are, on a stand-in for the server, on a paused
//! clock. `SIMULATION_SEED` replays one run, `SIMULATION_RUNS` says how many there are.

use std::fmt;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use conformance_tests::history::Line;
use conformance_tests::simulation::{Run, Tally, run};

mod comparison;
mod keyspace;
mod network;
mod order;
mod saboteurs;
mod server;
mod site;
mod wire;

use comparison::Original;
use saboteurs::{SABOTEURS, Saboteur};
use server::Sabotage;
use site::OnStandIn;

const RUNS: u64 = 60;

/// So many runs that went wrong are told of.
const ENOUGH: usize = 5;

fn simulate(seed: u64, sabotage: Option<Sabotage>) -> Run {
    let harness = OnStandIn::new(seed, sabotage);
    run(seed, Box::new(harness)).expect("a simulation records a history")
}

#[test]
fn no_run_breaks_a_promise() {
    let seeds = match variable("SIMULATION_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..variable("SIMULATION_RUNS").unwrap_or(RUNS),
    };
    let next = AtomicU64::new(seeds.start);
    let sum = Mutex::<Sum>::default();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if !seeds.contains(&seed) || sum.lock().unwrap().illegal.len() > ENOUGH {
                return;
            }
            let run = simulate(seed, None);
            sum.lock().unwrap().add(&run);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    let sum = sum.into_inner().unwrap();
    println!("{sum}");
    assert!(sum.illegal.is_empty(), "{}", sum.illegal.join("\n"));
}

/// Of all runs.
#[derive(Default)]
struct Sum {
    runs: u64,
    operations: usize,
    grants: usize,
    hand_offs: usize,
    tally: Tally,
    illegal: Vec<String>,
}

impl Sum {
    fn add(&mut self, run: &Run) {
        self.runs += 1;
        self.operations += run.report.operations;
        self.grants += run.report.grants;
        self.hand_offs += run.report.hand_offs.count;
        self.tally.add(&run.tally);
        if !run.report.is_legal() {
            let (path, seed) = (kept(run), run.seed);
            self.illegal.push(format!(
                "{run}\nrecorded in {}\nreplay it with:\n  SIMULATION_SEED={seed} cargo test \
                 -p lock-redis --features simulation --test simulation no_run\n",
                path.display()
            ));
        }
    }
}

impl fmt::Display for Sum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { runs, operations, grants, hand_offs, .. } = self;
        writeln!(
            f,
            "{runs} runs, {operations} operations, {grants} grants, {hand_offs} hand-offs"
        )?;
        for (what, verb, count) in self.tally.pairs() {
            writeln!(f, "{what:>35} {verb:<11} {count}")?;
        }
        Ok(())
    }
}

/// The whole history, for check-history and for eyes.
fn kept(run: &Run) -> PathBuf {
    let path = std::env::temp_dir().join(format!("redis-simulation-{}.jsonl", run.seed));
    let text: String = run.lines.iter().map(Line::to_json).collect();
    std::fs::write(&path, text).expect("the history can be written");
    path
}

fn variable(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|value| value.parse().expect("a number"))
}

/// What is wrong in the scripts shows in some run.
#[test]
fn mistakes_break_promises_in_some_run() {
    const RUNS: u64 = 100;

    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(saboteur) = SABOTEURS.get(next.fetch_add(1, Ordering::Relaxed)) {
            let broken = (0..RUNS).find_map(|seed| broken_by(saboteur, seed));
            let broken = broken.unwrap_or_else(|| panic!("{} got through", saboteur.name));
            println!("{}: seed {}, {}", saboteur.name, broken.seed, broken.report.violations[0]);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
}

fn broken_by(saboteur: &Saboteur, seed: u64) -> Option<Run> {
    let harness = OnStandIn::new(seed, Some(saboteur.sabotage));
    let world = harness.world.clone();
    let run = run(seed, Box::new(harness)).expect("a history is recorded");
    assert!(world.was_sabotaged(), "{}: the scripts do not read like that", saboteur.name);
    (!run.report.is_legal()).then_some(run)
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..20 {
        let [one, again] = [0, 1].map(|_| {
            let run = simulate(seed, None);
            run.lines.iter().map(Line::to_json).collect::<Vec<_>>()
        });
        for (number, (one, again)) in one.iter().zip(&again).enumerate() {
            assert_eq!(one, again, "seed {seed} parts at step {number}");
        }
        assert_eq!(one.len(), again.len(), "seed {seed}");
    }
}

/// The stand-in is one: whatever it was asked in some runs, a server is asked as well, at the same times of its clock.
#[test]
fn the_stand_in_answers_as_a_server_does() {
    let mut original = Original::start();
    for seed in 0..16 {
        let mut harness = OnStandIn::new(seed, None);
        if seed % 4 == 0 {
            harness = harness.with_others();
        }
        let world = harness.world.clone();
        world.keep_trace();
        run(seed, Box::new(harness)).expect("a simulation records a history");
        original.follow(&world.take_trace());
    }
    println!("{:?}", original.compared);
    for command in ["CLIENT", "DEL", "EVALSHA", "EXISTS", "GETRANGE", "SCRIPT", "SET", "SUBSCRIBE"]
    {
        assert!(original.compared.contains_key(command), "{command} was not compared");
    }
}
