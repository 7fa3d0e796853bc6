//! The exact figures of each backend meet its goals, and a faulty run is detected.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{demand, run};

fn own(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

#[track_caller]
fn meets_goals(url: &str, workloads: &[&str], goals: &str) {
    let goals = own(&format!("goals/{goals}.toml"));
    // A longer delay than the default, which lowers the share of a busy machine.
    let goals = ["--exact", "--delay", "20", "--goals", goals.to_str().unwrap()];
    demand(&run(&[&[url], workloads, &goals].concat()), 0, "locks");
}

#[test]
fn memory_meets_its_goals() {
    meets_goals("memory:", &[], "memory");
}

#[test]
fn file_meets_its_goals() {
    meets_goals("file:", &[], "file");
}

#[test]
fn redis_meets_its_goals() {
    meets_goals("redis:", &[], "redis");
}

#[test]
fn zookeeper_meets_its_goals() {
    meets_goals("zookeeper:", &[], "zookeeper");
}

/// A copy of the program outside of the target directory finds no installed libraries.
#[test]
fn missing_libraries_are_reported() {
    let directory = tempfile::tempdir().unwrap();
    let alone = directory.path().join("lock-bench");
    std::fs::copy(env!("CARGO_BIN_EXE_lock-bench"), &alone).unwrap();
    let run = |arguments: &[&str]| {
        Command::new(&alone)
            .current_dir(directory.path())
            .arg("run")
            .args(arguments)
            .output()
            .unwrap()
    };
    let output = run(&["file:", "crowd", "--exact", "--others"]);
    demand(&output, 5, "no lock of another project is installed: testing/fleet/setup rust");
    demand(
        &run(&["memory:", "crowd", "--exact", "--others"]),
        5,
        "no locks of other projects are known",
    );
    let output = run(&["memcache:", "idle", "--exact", "--others"]);
    demand(
        &output,
        0,
        "not measured: Sherlock, which is not installed: testing/fleet/setup python",
    );
}

#[test]
fn memcached_meets_its_goals() {
    meets_goals("memcache:", &[], "memcache");
}

#[test]
fn a_quorum_of_three_meets_its_goals() {
    meets_goals("quorum:3", &[], "quorum-3");
}

#[test]
fn a_quorum_of_five_meets_its_goals() {
    meets_goals("quorum:5", &["pairs"], "quorum-5");
}

fn run_with_goal(goal: &str) -> Output {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("goals.toml");
    std::fs::write(&file, goal).unwrap();
    run(&["memory:", "crowd", "--exact", "--goals", file.to_str().unwrap()])
}

#[test]
fn a_goal_that_is_not_met_fails_and_is_named() {
    let goal = r#"
        [[goal]]
        workload = "crowd w=64 p=1"
        lib = "locks"
        figure = "share served out of order"
        max = -1.0
        promise = "impossible"
    "#;
    demand(&run_with_goal(goal), 1, "share served out of order is 0.000, above -1 (impossible)");
    demand(&run_with_goal(&goal.replace("max = -1.0", "min = 1.0")), 1, "below 1 (impossible)");
}

#[test]
fn a_goal_that_was_not_measured_fails() {
    let goal = r#"
        [[goal]]
        workload = "crowd w=64 p=1"
        lib = "locks"
        figure = "requests a waiter"
        max = 100.0
        promise = "there is no server that counts"
    "#;
    demand(&run_with_goal(goal), 1, "was not measured");
}

#[test]
fn an_invalid_goals_file_is_an_error() {
    demand(&run_with_goal("[[goal]]\nworkload = 'crowd'"), 5, "goals.toml");
    let goal = "[[goal]]\nworkload='crowd'\nlib='l'\nfigure='f'\npromise='p'";
    demand(&run_with_goal(goal), 5, "no max and no min");
    demand(&run_with_goal(&format!("{goal}\nmax=nan")), 5, "no number");
    demand(&run_with_goal("goal = []"), 5, "no goal in it");
}

#[test]
fn a_goal_for_an_unknown_workload_is_an_error() {
    // Only one workload is run: the goal would never be checked.
    let goal = "[[goal]]\nworkload='pears c=1'\nlib='l'\nfigure='f'\nmax=1.0\npromise='p'";
    demand(&run_with_goal(goal), 5, "no workload \"pears c=1\"");
}

#[test]
fn a_goal_for_another_workload_is_ignored() {
    let goal = "[[goal]]\nworkload='pairs c=1'\nlib='l'\nfigure='f'\nmax=1.0\npromise='p'";
    demand(&run_with_goal(goal), 0, "goals met: 0 of 0");
}

#[test]
fn invalid_options_are_refused() {
    for (option, value) in [
        ("--rounds", "0"),
        ("--seconds", "0"),
        ("--seconds", "-1"),
        ("--seconds", "NaN"),
        ("--delay", "0"),
        ("--delay", "-5"),
        ("--foreign", "101"),
    ] {
        demand(&run(&["memory:", option, value]), 2, option);
    }
    demand(&run(&["memory:", "--no-pin", "--one-core"]), 2, "--one-core");
    demand(&run(&["memory:", "--peer", "locks=true"]), 2, "locks is one of ours");
    demand(&run(&["memory:", "--peer", "a=true", "--peer", "a=true"]), 5, "are called a");
}

/// A workload without a measurement: the first line tells where the server and the workers run.
#[test]
fn one_core_is_shared_by_the_server_and_the_workers() {
    let output = run(&["redis:", "hung", "--exact", "--one-core"]);
    demand(&output, 0, "server_cpus");
    let environment: serde_json::Value =
        serde_json::from_slice(output.stdout.split(|&byte| byte == b'\n').next().unwrap()).unwrap();
    let cpus = |key: &str| environment["environment"][key].as_array().unwrap().clone();
    assert_eq!(cpus("server_cpus").len(), 1);
    assert_eq!(cpus("server_cpus"), cpus("worker_cpus"));
}

#[test]
fn a_password_is_never_printed() {
    for url in ["redis://:hunter2@127.0.0.1:1", "redis://me:hunter2@127.0.0.1:1/0"] {
        let output = run(&[url]);
        demand(&output, 5, "redis://host:port");
        let text = [output.stdout, output.stderr].concat();
        assert!(!String::from_utf8_lossy(&text).contains("hunter2"));
    }
}

fn with_faulty_worker(kind: &str) -> Output {
    with_faulty_worker_on("memory:", "crowd", kind)
}

fn with_faulty_worker_on(url: &str, workload: &str, kind: &str) -> Output {
    let script = own("tests/faulty_worker.py");
    let peer = format!("faulty=python3 {} {kind}", script.display());
    run(&[url, workload, "--exact", "--peer", &peer])
}

#[test]
fn two_holders_at_once_void_the_run() {
    demand(&with_faulty_worker("overlap"), 3, "two held");
}

#[test]
fn a_takeover_from_a_live_holder_voids_the_run() {
    demand(&with_faulty_worker_on("file:", "killed", "overlap"), 3, "two held");
}

#[test]
fn missing_claims_fail_the_run() {
    demand(&with_faulty_worker("silent"), 5, "claims came back");
}

#[test]
fn a_token_that_does_not_grow_voids_the_run() {
    demand(&with_faulty_worker("fence"), 3, "did not grow");
}

#[test]
fn an_honest_worker_of_another_language_takes_part() {
    demand(&with_faulty_worker("honest"), 0, "faulty");
}
