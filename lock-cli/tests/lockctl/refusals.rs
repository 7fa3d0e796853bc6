//! What a backend cannot do is refused with status 64, and with the name of one that can.

use crate::places::Place;
use crate::support::{Scratch, outcome};

const OWNER: &str = "6f1ed002ab5595859014ebf0951522d9";

/// A verb, what it needs, and what it ends with on a free lock where that is there.
type Case = (&'static [&'static str], fn(&Place) -> bool, i32);

const CASES: &[Case] = &[
    (&["acquire", "--ttl", "1s", "n"], |place| place.detached, 0),
    (&["renew", "--owner", OWNER, "m"], |place| place.detached, 76),
    (&["release", "--owner", OWNER, "m"], |place| place.detached, 76),
    (&["inspect", "m"], |place| place.inspecting, 1),
    (&["list"], |place| place.listing, 0),
    (&["break", "--owner", OWNER, "m"], |place| place.breaking, 1),
    (&["break", "--force", "m"], |place| place.breaking && place.inspecting, 1),
];

#[test]
fn what_is_not_declared_is_refused_and_what_is_declared_works() {
    let scratch = Scratch::new();
    let places = Place::all(&scratch);
    let all_are_here = cfg!(all(feature = "redis", feature = "zookeeper", feature = "memcache"));
    for place in &places {
        for (arguments, can, status) in CASES {
            let (code, stdout, stderr) = place.lockctl(&scratch, arguments);
            let of = format!("{} {arguments:?}: {stderr}", place.scheme);
            if can(place) {
                assert_eq!(code, *status, "{of}");
                continue;
            }
            assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{of}");
            let (_, able) = stderr.trim_end().split_once("backends that can: ").unwrap_or_default();
            let advised: Vec<&str> = able.split(", ").filter(|scheme| !scheme.is_empty()).collect();
            let able = places.iter().filter(|place| can(place)).map(|place| place.scheme);
            assert!(!all_are_here || able.eq(advised.iter().copied()), "{of}");
        }
    }
}

/// It would be free again before the line is read.
#[test]
fn a_lock_that_ends_with_lockctl_is_not_given_out() {
    let scratch = Scratch::new();
    for (arguments, _, _) in CASES {
        let mut command = scratch.lockctl(&["--backend", "memory:"]);
        let (code, stdout, stderr) = outcome(command.args(*arguments));
        assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{stderr}");
    }
}

#[cfg(feature = "redis")]
#[test]
fn every_verb_tells_an_outage_and_missing_rights() {
    use test_servers::{Redis, RedisOptions};

    let scratch = Scratch::new();
    let run: Case = (&["run", "n", "--", "true"], |_| true, 0);
    let locked = Redis::start(RedisOptions::new().password("sesame"));
    let gone = Redis::start(RedisOptions::new());
    gone.kill();
    let without_password = format!("redis://{}", locked.addr());
    let wrong_password = format!("redis://:wrong@{}", locked.addr());
    for (url, status) in [(&gone.url(), 69), (&without_password, 77), (&wrong_password, 77)] {
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
    let place = Place::redis();
    let server = place.server.as_ref().unwrap();
    let url = format!("{}?timeout=300ms", place.url);
    server.stop();
    for (arguments, can, _) in CASES.iter().filter(|(_, can, _)| can(&place)) {
        assert!(can(&place));
        let mut command = scratch.lockctl(&["--backend", &url]);
        let (outcome, took) = crate::support::timed(|| outcome(command.args(*arguments)));
        assert_eq!((outcome.0, outcome.2.lines().count()), (69, 1), "{arguments:?}: {outcome:?}");
        assert!(took < std::time::Duration::from_secs(10), "{arguments:?}: {took:?}");
    }
    server.cont();
}
