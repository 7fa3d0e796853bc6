//! Locks on a quorum of Redis servers, as on other backends with leases, with their members shown.

use lock_any::clock::Moment;
use test_servers::{KeepData, Redis, RedisOptions};

use crate::support::{Running, Scratch, outcome, timed, until};

#[test]
fn locks_pass_from_one_lockctl_to_the_next_and_outlive_a_server() {
    let nodes: Vec<_> = (0..3).map(|_| Redis::start(RedisOptions::new())).collect();
    let members: Vec<_> = nodes.iter().map(|node| format!("member={}", node.url())).collect();
    let url = format!("quorum:?{}&restarts=remember", members.join("&"));
    let scratch = Scratch::new();
    let lockctl =
        |arguments: &[&str]| outcome(scratch.lockctl(&["--backend", &url]).args(arguments));

    let (status, grant, stderr) = lockctl(&["acquire", "--ttl", "1m", "nightly"]);
    assert_eq!(status, 0, "{stderr}");
    let owner = grant.split("\"owner\":\"").nth(1).and_then(|rest| rest.split('"').next());
    let owner = owner.expect("the line contains the owner").to_owned();
    assert_eq!(lockctl(&["run", "--no-wait", "nightly", "--", "true"]).0, 75);

    nodes[1].kill();
    let (status, seen, _) = lockctl(&["inspect", "nightly"]);
    assert_eq!(status, 0, "{seen}");
    assert!(seen.contains(" is held\n"), "{seen}");
    assert!(seen.contains(&format!("member 1 (redis://{}): ", nodes[0].addr())), "{seen}");
    // Once as the holder, and once for each of two members.
    assert_eq!(seen.matches(&owner[..8]).count(), 3, "{seen}");
    let unavailable = format!("member 2 (redis://{}): no answer", nodes[1].addr());
    assert!(seen.contains(&unavailable), "{seen}");
    let (_, seen, _) = lockctl(&["inspect", "--json", "nightly"]);
    assert!(seen.contains("\"members\":[{\"member\":\"member 1"), "{seen}");
    assert!(seen.contains("\"fault\":"), "{seen}");

    assert_eq!(lockctl(&["renew", "--owner", &owner, "nightly"]).0, 0);
    nodes[1].restart(KeepData::No);
    assert_eq!(lockctl(&["release", "--owner", &owner, "nightly"]).0, 0);
    assert_eq!(lockctl(&["release", "--owner", &owner, "nightly"]).0, 76);
    assert_eq!(lockctl(&["run", "--no-wait", "nightly", "--", "true"]).0, 0);
    let (status, seen, _) = lockctl(&["inspect", "nightly"]);
    assert_eq!(status, 1, "{seen}");
    assert_eq!(seen.matches(": free\n").count(), 3, "{seen}");
}

/// Returns the URL of a quorum of three new servers, and the servers.
fn fresh(options: &str) -> (Vec<Redis>, String) {
    let nodes: Vec<_> = (0..3).map(|_| Redis::start(RedisOptions::new())).collect();
    let members: Vec<_> = nodes.iter().map(|node| format!("member={}", node.url())).collect();
    (nodes, format!("quorum:?{}&{options}", members.join("&")))
}

#[test]
fn run_waits_until_restarted_members_count() {
    let scratch = Scratch::new();
    let started = Moment::now();
    let (_nodes, url) = fresh("max_ttl=3s");
    let run = scratch.run(&url, &["--json", "n", "--", "true"]).output().unwrap();
    let events = String::from_utf8(run.stderr).unwrap();
    assert_eq!(run.status.code(), Some(0), "{events}");
    // A server reports its uptime in whole seconds, so the members may count a second late.
    let waited = Moment::now().saturating_since(started);
    assert!(waited.as_secs() >= 3, "{waited:?}");
    let first = events.lines().next().unwrap();
    assert!(first.contains("\"event\":\"waiting\""), "{events}");
    assert!(first.contains("it is counted in "), "{events}");
    assert!(first.contains("\"retry_after_ms\":"), "{events}");
    assert!(events.lines().last().unwrap().contains("\"event\":\"acquired\""), "{events}");
}

#[test]
fn a_wait_for_restarted_members_is_bounded_and_shown() {
    let scratch = Scratch::new();
    let (_nodes, url) = fresh("max_ttl=1h");
    let (status, stdout, stderr) =
        outcome(&mut scratch.run(&url, &["-n", "n", "--", "echo", "run"]));
    assert_eq!((status, stdout.as_str()), (69, ""), "{stderr}");
    assert!(stderr.contains("it is counted in 36"), "{stderr}");

    let bounded = ["--wait", "1", "n", "--", "echo", "run"];
    let ((status, stdout, stderr), took) = timed(|| outcome(&mut scratch.run(&url, &bounded)));
    assert_eq!((status, stdout.as_str()), (69, ""), "{stderr}");
    assert!(stderr.contains("it is counted in 36") && took.as_secs() >= 1, "{stderr}");

    let waiter = Running::start(&mut scratch.run(&url, &["-v", "n", "--", "true"]));
    until("the wait is shown", || {
        waiter.stderr().contains("waiting for lock \"n\", not ready for ")
    });
    assert!(waiter.stderr().contains("it is counted in "), "{}", waiter.stderr());
}
