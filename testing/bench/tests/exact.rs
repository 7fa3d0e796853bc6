//! The exact figures of each backend meet its goals; and what is wrong with a run is found out.

mod support;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use support::{demand, others_are_measured, run};

fn own(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(file)
}

fn meets_its_goals(url: &str, goals: &str) {
    meets_goals_of(url, &[], goals);
}

fn meets_goals_of(url: &str, workloads: &[&str], goals: &str) {
    let goals = own(goals);
    // A longer way than the usual: what a busy machine adds is less of it.
    let goals = ["--exact", "--delay", "20", "--goals", goals.to_str().unwrap()];
    demand(&run(&[&[url], workloads, &goals].concat()), 0, "locks");
}

#[test]
fn memory_meets_its_goals() {
    meets_its_goals("memory:", "goals/memory.toml");
}

#[test]
fn file_meets_its_goals() {
    meets_its_goals("file:", "goals/file.toml");
}

#[test]
fn redis_meets_its_goals() {
    meets_its_goals("redis:", "goals/redis.toml");
}

#[test]
fn zookeeper_meets_its_goals() {
    meets_its_goals("zookeeper:", "goals/zookeeper.toml");
}

#[test]
fn other_projects_locks_on_zookeeper_are_measured_beside_ours() {
    others_are_measured("zookeeper:", "handoff", &["locks", "zookeeper-crate", "kazoo", "curator"]);
}

/// A program outside of the target directory finds nothing that was installed for it.
#[test]
fn others_that_are_not_installed_are_said_so() {
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
    demand(&output, 5, "no lock of another project is installed: testing/bench/peers/setup rust");
    demand(
        &run(&["memory:", "crowd", "--exact", "--others"]),
        5,
        "no locks of other projects are known",
    );
    let output = run(&["memcache:", "idle", "--exact", "--others"]);
    demand(
        &output,
        0,
        "not measured: Sherlock, which is not installed: testing/bench/peers/setup python",
    );
}

#[test]
fn memcached_meets_its_goals() {
    meets_its_goals("memcache:", "goals/memcache.toml");
}

#[test]
fn a_quorum_of_three_meets_its_goals() {
    meets_its_goals("quorum:3", "goals/quorum-3.toml");
}

#[test]
fn a_quorum_of_five_meets_its_goals() {
    meets_goals_of("quorum:5", &["pairs"], "goals/quorum-5.toml");
}

fn with_goal(goal: &str) -> Output {
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
        promise = "nobody can do that"
    "#;
    demand(
        &with_goal(goal),
        1,
        "share served out of order is 0.000, above -1 (nobody can do that)",
    );
    demand(&with_goal(&goal.replace("max = -1.0", "min = 1.0")), 1, "below 1 (nobody can do that)");
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
    demand(&with_goal(goal), 1, "was not measured");
}

#[test]
fn a_goals_file_that_says_nothing_is_an_error() {
    demand(&with_goal("[[goal]]\nworkload = 'crowd'"), 5, "goals.toml");
    let goal = "[[goal]]\nworkload='crowd'\nlib='l'\nfigure='f'\npromise='p'";
    demand(&with_goal(goal), 5, "no max and no min");
    demand(&with_goal(&format!("{goal}\nmax=nan")), 5, "no number");
    demand(&with_goal("goal = []"), 5, "no goal in it");
}

#[test]
fn a_goal_for_a_workload_that_is_none_is_an_error() {
    // Only one workload is run: it would never be looked at.
    let goal = "[[goal]]\nworkload='pears c=1'\nlib='l'\nfigure='f'\nmax=1.0\npromise='p'";
    demand(&with_goal(goal), 5, "no workload \"pears c=1\"");
}

#[test]
fn a_goal_for_what_was_not_asked_for_is_left_alone() {
    let goal = "[[goal]]\nworkload='pairs c=1'\nlib='l'\nfigure='f'\nmax=1.0\npromise='p'";
    demand(&with_goal(goal), 0, "goals met: 0 of 0");
}

#[test]
fn what_makes_no_sense_is_refused() {
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
    demand(&run(&["memory:", "--peer", "locks=true"]), 2, "locks is one of ours");
    demand(&run(&["memory:", "--peer", "a=true", "--peer", "a=true"]), 5, "are called a");
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

fn with_liar(kind: &str) -> Output {
    with_liar_in("memory:", "crowd", kind)
}

fn with_liar_in(url: &str, workload: &str, kind: &str) -> Output {
    let script = own("tests/liar.py");
    let peer = format!("liar=python3 {} {kind}", script.display());
    run(&[url, workload, "--exact", "--peer", &peer])
}

#[test]
fn two_holders_at_once_void_the_run() {
    demand(&with_liar("overlap"), 3, "two held");
}

#[test]
fn a_takeover_from_a_holder_that_lives_voids_the_run() {
    demand(&with_liar_in("file:", "killed", "overlap"), 3, "two held");
}

#[test]
fn claims_that_are_missing_are_found_out() {
    demand(&with_liar("silent"), 5, "claims came back");
}

#[test]
fn a_fence_that_does_not_grow_voids_the_run() {
    demand(&with_liar("fence"), 3, "did not grow");
}

#[test]
fn an_honest_worker_of_another_language_takes_part() {
    demand(&with_liar("honest"), 0, "liar");
}
