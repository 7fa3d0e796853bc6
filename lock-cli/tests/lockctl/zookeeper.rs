//! Waiting, listing and breaking on a ZooKeeper.

use std::time::Duration;

use serde_json::Value;
use test_servers::{ZooKeeper, ZooKeeperOptions};

use crate::support::{Running, Scratch, outcome, until};

const WAITERS: usize = 10;

/// Returns the number of ephemeral nodes on the server.
fn nodes(server: &ZooKeeper) -> usize {
    let answer = server.word("mntr").unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix("zk_ephemerals_count"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn ten_waiters_are_served_in_order() {
    let server = ZooKeeper::start(&ZooKeeperOptions::new());
    let url = format!("{}?session_timeout=10s", server.url());
    let scratch = Scratch::new();
    let holds = ["n", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done"];
    let holder = Running::start(&mut scratch.run(&url, &holds));
    until("the first lockctl holds the lock", || nodes(&server) == 1);
    let mut waiters = Vec::new();
    for i in 0..WAITERS {
        let script = format!("echo {i} >>order");
        waiters.push(Running::start(&mut scratch.run(&url, &["n", "--", "sh", "-c", &script])));
        until("the next lockctl waits", || nodes(&server) == i + 2);
    }
    std::fs::write(scratch.path("go"), "").unwrap();
    assert_eq!(holder.code(), 0);
    for waiter in waiters {
        assert_eq!(waiter.code(), 0);
    }
    let order: String = (0..WAITERS).map(|i| format!("{i}\n")).collect();
    assert_eq!(scratch.read("order"), order);
    until("the queue is empty", || nodes(&server) == 0);
}

#[test]
fn a_command_outlives_many_leases_of_a_session() {
    let server = ZooKeeper::start(&ZooKeeperOptions::new());
    let url = format!("{}?session_timeout=10s", server.url());
    let scratch = Scratch::new();
    // A ttl of 30 s, and a grace of 5 s: longer than any lease here.
    let (code, _, stderr) = outcome(&mut scratch.run(&url, &["n", "--", "sleep", "15"]));
    assert_eq!(code, 0, "{stderr}");
    let waits = ["-w", "60", "n", "--", "true"];
    let killed = Running::start(&mut scratch.run(&url, &["n", "--", "sleep", "600"]));
    until("lockctl holds the lock", || nodes(&server) == 1);
    killed.signal(nix::sys::signal::Signal::SIGKILL);
    let (outcome, took) = crate::support::timed(|| outcome(&mut scratch.run(&url, &waits)));
    assert_eq!(outcome.0, 0, "{}", outcome.2);
    let (bound, slack) = (Duration::from_millis(10_200), Duration::from_secs(3));
    assert!(took <= bound + slack, "replaced after {took:?}");
}

#[test]
fn held_locks_are_listed_inspected_and_broken() {
    let server = ZooKeeper::start(&ZooKeeperOptions::new());
    let url = format!("{}?session_timeout=10s", server.url());
    let scratch = Scratch::new();
    let names = ["jobs/a", "jobs/b", "other"];
    let mut holders =
        names.map(|name| Running::start(&mut scratch.run(&url, &[name, "--", "sleep", "600"])));
    until("all locks are held", || nodes(&server) == names.len());
    let lockctl =
        |arguments: &[&str]| outcome(scratch.lockctl(&["--backend", &url]).args(arguments));
    let listed = |arguments: &[&str]| -> Vec<String> {
        let (code, lines, stderr) = lockctl(arguments);
        assert_eq!(code, 0, "{stderr}");
        lines.lines().map(name_of).collect()
    };
    assert_eq!(listed(&["list", "--json"]), names);
    assert_eq!(listed(&["list", "--json", "--prefix", "jobs/"]), names[..2]);
    assert_eq!(listed(&["list", "--json", "--prefix", "none"]), [""; 0]);

    let (code, line, stderr) = lockctl(&["inspect", "--json", "jobs/a"]);
    assert_eq!(code, 0, "{stderr}");
    let seen: Value = serde_json::from_str(&line).unwrap();
    assert_eq!((&seen["held"], &seen["waiting"]), (&true.into(), &0.into()), "{line}");
    assert!(seen["holders"][0]["fencing_token"].is_string(), "{line}");

    assert_eq!(lockctl(&["break", "--force", "jobs/a"]).0, 0);
    let [broken, ..] = &mut holders;
    until("the holder is notified", || broken.has_ended());
    assert_eq!(listed(&["list", "--json"]), names[1..]);
    assert_eq!(lockctl(&["break", "--force", "jobs/a"]).0, 1, "it is free");
    let [broken, others @ ..] = holders;
    assert_eq!(broken.code(), 76);
    for other in others {
        other.signal(nix::sys::signal::Signal::SIGTERM);
        assert_eq!(other.code(), 143);
    }
}

fn name_of(line: &str) -> String {
    let line: Value = serde_json::from_str(line).unwrap();
    line["name"].as_str().unwrap().to_owned()
}
