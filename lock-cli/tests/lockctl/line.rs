//! Terminals that wait on a ZooKeeper.

use std::time::Duration;

use conformance_tests::servers::{ZooKeeper, ZooKeeperOptions};

use crate::support::{Running, Scratch, outcome, until};

const WAITERS: usize = 10;

/// How many nodes the server has, of its own and of locks.
fn nodes(server: &ZooKeeper) -> usize {
    let answer = server.word("mntr").unwrap();
    let line = answer.lines().find_map(|line| line.strip_prefix("zk_ephemerals_count"));
    line.unwrap().trim().parse().unwrap()
}

#[test]
fn ten_terminals_are_served_in_the_order_in_which_they_came() {
    let server = ZooKeeper::start(&ZooKeeperOptions::new());
    let url = format!("{}?session_timeout=10s", server.url());
    let scratch = Scratch::new();
    let holds = ["n", "--", "sh", "-c", "while [ ! -e go ]; do sleep 0.01; done"];
    let holder = Running::start(&mut scratch.run(&url, &holds));
    until("the first one holds", || nodes(&server) == 1);
    let mut waiters = Vec::new();
    for i in 0..WAITERS {
        let script = format!("echo {i} >>order");
        waiters.push(Running::start(&mut scratch.run(&url, &["n", "--", "sh", "-c", &script])));
        until("the next one waits", || nodes(&server) == i + 2);
    }
    std::fs::write(scratch.path("go"), "").unwrap();
    assert_eq!(holder.code(), 0);
    for waiter in waiters {
        assert_eq!(waiter.code(), 0);
    }
    let order: String = (0..WAITERS).map(|i| format!("{i}\n")).collect();
    assert_eq!(scratch.read("order"), order);
    until("nothing is left in line", || nodes(&server) == 0);
}

#[test]
fn a_command_outlives_many_leases_of_a_session() {
    let server = ZooKeeper::start(&ZooKeeperOptions::new());
    let url = format!("{}?session_timeout=10s", server.url());
    let scratch = Scratch::new();
    // A ttl of 30 s, and a grace of 5 s: longer than any lease here.
    let (code, _, said) = outcome(&mut scratch.run(&url, &["n", "--", "sleep", "15"]));
    assert_eq!(code, 0, "{said}");
    let waits = ["-w", "60", "n", "--", "true"];
    let killed = Running::start(&mut scratch.run(&url, &["n", "--", "sleep", "600"]));
    until("it holds", || nodes(&server) == 1);
    killed.signal(nix::sys::signal::Signal::SIGKILL);
    let (outcome, took) = crate::support::timed(|| outcome(&mut scratch.run(&url, &waits)));
    assert_eq!(outcome.0, 0, "{}", outcome.2);
    let (bound, slack) = (Duration::from_millis(10_200), Duration::from_secs(3));
    assert!(took <= bound + slack, "replaced after {took:?}");
}
