//! A verb that the backend does not support is refused with status 64 and the names of backends
//! that support it.

use crate::backends::TestBackend;
use crate::support::{Scratch, outcome};

const OWNER: &str = "6f1ed002ab5595859014ebf0951522d9";

/// A verb, the capability that it needs, and its exit status for a free lock.
type Case = (&'static [&'static str], fn(&TestBackend) -> bool, i32);

const CASES: &[Case] = &[
    (&["acquire", "--ttl", "1s", "n"], |backend| backend.detached, 0),
    (&["renew", "--owner", OWNER, "m"], |backend| backend.detached, 76),
    (&["release", "--owner", OWNER, "m"], |backend| backend.detached, 76),
    (&["inspect", "m"], |backend| backend.inspecting, 1),
    (&["list"], |backend| backend.listing, 0),
    (&["top", "--once"], |backend| backend.listing, 0),
    (&["break", "--owner", OWNER, "m"], |backend| backend.breaking, 1),
    (&["break", "--force", "m"], |backend| backend.breaking && backend.inspecting, 1),
];

#[test]
fn undeclared_capabilities_are_refused_and_declared_ones_work() {
    let scratch = Scratch::new();
    let backends = TestBackend::all(&scratch);
    let every_backend_is_built =
        cfg!(all(feature = "redis", feature = "zookeeper", feature = "memcache"));
    for backend in &backends {
        for (arguments, can, status) in CASES {
            let (code, stdout, stderr) = backend.lockctl(&scratch, arguments);
            let of = format!("{} {arguments:?}: {stderr}", backend.scheme);
            if can(backend) {
                assert_eq!(code, *status, "{of}");
                continue;
            }
            assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{of}");
            let (_, able) = stderr.trim_end().split_once("backends that can: ").unwrap_or_default();
            let advised: Vec<&str> = able.split(", ").filter(|scheme| !scheme.is_empty()).collect();
            let able = backends.iter().filter(|backend| can(backend)).map(|backend| backend.scheme);
            assert!(!every_backend_is_built || able.eq(advised.iter().copied()), "{of}");
        }
    }
}

/// Refuses a lock that would be free again before the caller reads the line.
#[test]
fn a_lock_that_ends_with_lockctl_is_refused() {
    let scratch = Scratch::new();
    for (arguments, _, _) in CASES {
        let mut command = scratch.lockctl(&["--backend", "memory:"]);
        let (code, stdout, stderr) = outcome(command.args(*arguments));
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{stderr}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn every_verb_reports_an_outage_and_missing_rights() {
    use test_servers::{Redis, RedisOptions};

    let scratch = Scratch::new();
    let run: Case = (&["run", "n", "--", "true"], |_| true, 0);
    let locked = Redis::start(RedisOptions::new().password("sesame"));
    let unavailable = Redis::start(RedisOptions::new());
    unavailable.kill();
    let without_password = format!("redis://{}", locked.addr());
    let wrong_password = format!("redis://:wrong@{}", locked.addr());
    for (url, status) in [(&unavailable.url(), 69), (&without_password, 77), (&wrong_password, 77)]
    {
        for (arguments, _, _) in CASES.iter().chain([&run]) {
            let mut command = scratch.lockctl(&["--backend", url]);
            let (code, stdout, stderr) = outcome(command.args(*arguments));
            let of = format!("{arguments:?}: {stderr}");
            assert_eq!((code, stdout.as_str(), stderr.lines().count()), (status, "", 1), "{of}");
            assert!(!stderr.contains("wrong") && !stderr.contains(&OWNER[..9]), "{of}");
        }
    }
}

#[cfg(feature = "redis")]
#[test]
fn a_server_that_does_not_answer_is_an_outage_within_the_timeout() {
    let scratch = Scratch::new();
    let backend = TestBackend::redis();
    let server = backend.server.as_ref().unwrap();
    let url = format!("{}?timeout=300ms", backend.url);
    server.stop();
    for (arguments, can, _) in CASES.iter().filter(|(_, can, _)| can(&backend)) {
        assert!(can(&backend));
        let mut command = scratch.lockctl(&["--backend", &url]);
        let (outcome, took) = crate::support::timed(|| outcome(command.args(*arguments)));
        assert_eq!((outcome.0, outcome.2.lines().count()), (69, 1), "{arguments:?}: {outcome:?}");
        assert!(took < std::time::Duration::from_secs(10), "{arguments:?}: {took:?}");
    }
    server.cont();
}
