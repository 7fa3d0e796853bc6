//! The laws about networks and servers catch their saboteurs: on a real server, behind Sentinels,
//! and in a cluster. But for the first one, all of them only with `REDIS_LAWS=all`, and otherwise
//! some.

use std::process::ExitCode;

use lock_conformance::Law;

#[path = "harness/cluster.rs"]
mod cluster;
mod harness;

fn main() -> ExitCode {
    let suites = harness::suites().into_iter().chain(cluster::suites());
    let mut suites: Vec<_> = suites.map(|suite| suite.only(Law::is_about_networks)).collect();
    if std::env::var("REDIS_LAWS").as_deref() != Ok("all") {
        let others = suites.split_off(1).into_iter();
        suites.extend(others.map(|suite| suite.only(|law| SOME.contains(&law.number))));
    }
    lock_conformance::run_saboteurs(&suites)
}

/// About one connection that is lost, all of them, and servers that come back.
const SOME: [&str; 4] = ["12.1", "12.9", "12.11", "13.3"];
