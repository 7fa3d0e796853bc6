//! Locks on a quorum of Redis servers, as on other backends with leases, with their members shown.

use test_servers::{KeepData, Redis, RedisOptions};

use crate::support::{Scratch, outcome};

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
