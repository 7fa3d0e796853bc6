//! Simulated runs of Redis' line: the scripts and the backend as they are, on a stand-in for the
//! server, on a paused clock. How many runs there are, and which, says the environment: see
//! `Seeds`.

use std::sync::Arc;

use lock_history::Line;
use lock_simulation::{Run, Seeds, Site, run};

mod audit;
mod comparison;
mod keyspace;
mod network;
mod order;
mod server;
mod site;
mod wire;

use comparison::Original;
use network::World;
use site::OnStandIn;

const RUNS: u64 = 80;

fn simulation(seed: u64, harness: OnStandIn) -> Run {
    let harness = Arc::new(harness);
    let site = Arc::clone(&harness) as Arc<dyn Site>;
    run(seed, harness, Some(site)).expect("a simulation records a history")
}

fn simulate(seed: u64) -> Run {
    simulation(seed, OnStandIn::new(seed))
}

#[test]
fn no_run_violates_a_guarantee() {
    let test = "-p lock-redis --test simulation no_run";
    let sum = Seeds::of_test(test, RUNS).run(simulate);
    println!("{sum}");
    sum.assert_legal();
}

#[test]
fn a_seed_is_one_run() {
    for seed in 0..10 {
        let [one, again] = [0, 1].map(|_| {
            let run = simulate(seed);
            run.lines.iter().map(Line::to_json).collect::<Vec<_>>()
        });
        for (number, (one, again)) in one.iter().zip(&again).enumerate() {
            assert_eq!(one, again, "seed {seed} parts at step {number}");
        }
        assert_eq!(one.len(), again.len(), "seed {seed}");
    }
}

/// Compares the stand-in with a server: the requests of some runs are sent to both, at the same
/// times of their clocks.
#[test]
fn the_simulated_server_answers_as_a_real_one() {
    let mut original = Original::start();
    // A server as it is found most often.
    for seed in (0..24).filter(|seed| !World::is_newer(*seed)) {
        let mut harness = OnStandIn::new(seed);
        if seed % 8 == 0 {
            harness = harness.with_others();
        }
        let world = harness.world.clone();
        world.keep_trace();
        simulation(seed, harness);
        original.follow(&world.take_trace());
    }
    println!("{:?}", original.compared);
    for command in
        ["CLIENT", "DEL", "EVALSHA", "EXISTS", "GETRANGE", "INCRBY", "SCRIPT", "SET", "SUBSCRIBE"]
    {
        assert!(original.compared.contains_key(command), "{command} was not compared");
    }
}
