//! `kill -9` of lockctl at every point of acquire, renew, release and run.
//!
//! There are never two holders, and no lock outlives its lease. The owner id still works, or
//! lockctl reports that it does not.

use std::time::Duration;

use lock_any::clock::Moment;
use lock_conformance::proxy::{Direction, Fault, Held, Match, Proxy};
use nix::sys::signal::Signal;

use crate::backends::TestBackend;
use crate::support::{Running, Scratch, until};
use crate::verbs::{acquire, status};

/// The lease of an acquired lock: longer than an inspection takes.
const TTL: Duration = Duration::from_secs(4);

/// The point at which lockctl dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// Its request never arrives.
    Unsent,
    /// Its request arrives after its death.
    InTheNetwork,
    /// Its request was applied, and the answer never arrives.
    Unanswered,
}

/// The key of the lock in a call of a script. No earlier request contains it.
const REQUEST: &str = "$7\r\nkill-me";

const POINTS: &[Point] = &[Point::Unsent, Point::InTheNetwork, Point::Unanswered];

struct Fixture {
    scratch: Scratch,
    backend: TestBackend,
    proxy: Proxy,
}

impl Fixture {
    fn new() -> Self {
        let (scratch, backend) = (Scratch::new(), TestBackend::redis());
        // Load the scripts into the server, so that each verb is one request.
        let owner = acquire(&scratch, &backend, &["n"]).owner;
        for verb in
            [&["renew", "--owner", &owner, "n"][..], &["inspect", "n"], &["break", "--force", "n"]]
        {
            assert_eq!(status(&scratch, &backend, verb), 0, "{verb:?}");
        }
        assert_eq!(status(&scratch, &backend, &["release", "--owner", &owner, "n"]), 76);
        let proxy = Proxy::start(backend.server.as_ref().unwrap().addr()).unwrap();
        Self { scratch, backend, proxy }
    }

    /// Starts lockctl behind the proxy, with a timeout that is longer than the test.
    fn start(&self, arguments: &[&str]) -> Running {
        let url = format!("redis://{}?timeout=60s", self.proxy.addr());
        let mut lockctl = self.scratch.lockctl(&["--backend", &url]);
        Running::start(lockctl.args(arguments))
    }

    fn status(&self, arguments: &[&str]) -> i32 {
        status(&self.scratch, &self.backend, arguments)
    }

    /// Starts lockctl, and kills it at that point. `is_applied` returns true once the server has
    /// applied the request.
    async fn kill_at(
        &self,
        point: Point,
        arguments: &[&str],
        mut is_applied: impl FnMut() -> bool,
    ) -> Option<Held> {
        let mut request = self.proxy.hold(REQUEST);
        let mut lockctl = self.start(arguments);
        request.caught().await.unwrap();
        if point == Point::Unanswered {
            self.proxy.set(Fault::Lose(Direction::ToClient));
            request.deliver().await.unwrap();
            until("the request is applied", &mut is_applied);
        }
        assert!(!lockctl.has_ended(), "{point:?} {arguments:?}");
        lockctl.signal(Signal::SIGKILL);
        assert_eq!(lockctl.end().0.code(), None);
        match point {
            Point::Unsent => drop(request),
            Point::InTheNetwork => {
                request.deliver().await.unwrap();
                request.answered().await.unwrap();
                return Some(request);
            }
            Point::Unanswered => {}
        }
        None
    }
}

#[tokio::test]
async fn a_lock_acquired_by_a_killed_lockctl_ends_with_its_lease() {
    for &point in POINTS {
        let fixture = Fixture::new();
        let started = Moment::now();
        let arguments = ["acquire", "--ttl", "4s", "kill-me"];
        let is_held = || fixture.status(&["inspect", "kill-me"]) == 0;
        let late = fixture.kill_at(point, &arguments, is_held).await;
        if point == Point::Unsent {
            assert_eq!(fixture.status(&["acquire", "-n", "kill-me"]), 0, "nothing was left");
            continue;
        }
        assert_eq!(fixture.status(&["acquire", "-n", "kill-me"]), 75, "{point:?}");
        acquire(&fixture.scratch, &fixture.backend, &["--wait", "20s", "kill-me"]);
        let passed = Moment::now().saturating_since(started);
        assert!(passed >= TTL, "{point:?}: not before the lease ended: {passed:?}");
        drop(late);
    }
}

#[test]
fn a_lock_acquired_but_not_printed_ends_with_its_lease() {
    let fixture = Fixture::new();
    let started = Moment::now();
    // The reader does not read, and the line is longer than the rest of the pipe.
    let name = "k".repeat(60_000);
    let (_reader, writer) = std::io::pipe().unwrap();
    let fill = vec![b' '; 60_000];
    std::io::Write::write_all(&mut &writer, &fill).unwrap();
    let mut lockctl = fixture.backend.command(&fixture.scratch, &["acquire", "--ttl", "4s", &name]);
    let mut lockctl = lockctl.stdout(writer).spawn().unwrap();
    until("lockctl has the lock", || fixture.status(&["inspect", &name]) == 0);
    lockctl.kill().unwrap();
    lockctl.wait().unwrap();
    assert_eq!(fixture.status(&["acquire", "-n", &name]), 75);
    assert_eq!(fixture.status(&["acquire", "--wait", "20s", &name]), 0);
    let passed = Moment::now().saturating_since(started);
    assert!(passed >= TTL, "not before the lease ended: {passed:?}");
}

#[tokio::test]
async fn a_killed_renew_leaves_the_owner_its_lock() {
    for &point in POINTS {
        let fixture = Fixture::new();
        let held = acquire(&fixture.scratch, &fixture.backend, &["--ttl", "1m", "kill-me"]);
        let server = fixture.backend.server.as_ref().unwrap();
        let remaining = || server.command(&["PTTL", "kill-me"]).text().parse::<u64>().unwrap();
        let arguments = ["renew", "--owner", &held.owner, "--ttl", "1h", "kill-me"];
        let is_renewed = || remaining() > 60_000;
        let late = fixture.kill_at(point, &arguments, is_renewed).await;
        assert_eq!(is_renewed(), point != Point::Unsent, "{point:?}");
        assert_eq!(fixture.status(&["acquire", "-n", "kill-me"]), 75, "{point:?}");
        assert_eq!(fixture.status(&["renew", "--owner", &held.owner, "kill-me"]), 0, "{point:?}");
        assert_eq!(fixture.status(&["release", "--owner", &held.owner, "kill-me"]), 0, "{point:?}");
        assert_eq!(fixture.status(&["acquire", "-n", "kill-me"]), 0, "{point:?}");
        drop(late);
    }
}

#[tokio::test]
async fn a_killed_release_can_be_repeated() {
    for &point in POINTS {
        let fixture = Fixture::new();
        let held = acquire(&fixture.scratch, &fixture.backend, &["--ttl", "1m", "kill-me"]);
        let arguments = ["release", "--owner", &held.owner, "kill-me"];
        let is_free = || fixture.status(&["inspect", "kill-me"]) == 1;
        let late = fixture.kill_at(point, &arguments, is_free).await;
        let repeated = if point == Point::Unsent { 0 } else { 76 };
        assert_eq!(fixture.status(&arguments), repeated, "{point:?}");
        assert_eq!(fixture.status(&["acquire", "-n", "kill-me"]), 0, "{point:?}");
        drop(late);
    }
}

/// Delivers the release of a dead lockctl while another client holds the lock.
#[tokio::test]
async fn a_late_release_does_not_affect_a_newer_holder() {
    let fixture = Fixture::new();
    let held = acquire(&fixture.scratch, &fixture.backend, &["--ttl", "1m", "kill-me"]);
    let mut request = fixture.proxy.hold(REQUEST);
    let lockctl = fixture.start(&["release", "--owner", &held.owner, "kill-me"]);
    request.caught().await.unwrap();
    lockctl.signal(Signal::SIGKILL);
    assert_eq!(lockctl.end().0.code(), None);
    assert_eq!(fixture.status(&["break", "--owner", &held.owner, "kill-me"]), 0);
    let newer = acquire(&fixture.scratch, &fixture.backend, &["-n", "kill-me"]);
    request.deliver().await.unwrap();
    request.answered().await.unwrap();
    assert_eq!(fixture.status(&["renew", "--owner", &newer.owner, "kill-me"]), 0);
    assert!(newer.expires_in > Duration::ZERO);
}

#[tokio::test]
async fn a_run_killed_while_acquiring_runs_nothing() {
    for &point in POINTS {
        let fixture = Fixture::new();
        let started = Moment::now();
        let arguments = ["run", "--ttl", "4s", "kill-me", "--", "touch", "ran"];
        let is_held = || fixture.status(&["inspect", "kill-me"]) == 0;
        let late = fixture.kill_at(point, &arguments, is_held).await;
        let next = ["run", "--wait", "20s", "kill-me", "--", "test", "!", "-e", "ran"];
        assert_eq!(fixture.status(&next), 0, "{point:?}");
        let passed = Moment::now().saturating_since(started);
        assert!(point == Point::Unsent || passed >= TTL, "{point:?}: {passed:?}");
        drop(late);
    }
}

#[tokio::test]
async fn a_run_killed_while_releasing_frees_the_lock_within_its_lease() {
    for &point in POINTS {
        let fixture = Fixture::new();
        let started = Moment::now();
        let script = "touch runs; while [ ! -e go ]; do sleep 0.01; done";
        // No renewal is due before the release.
        let arguments = ["run", "--ttl", "20s", "kill-me", "--", "sh", "-c", script];
        let lockctl = fixture.start(&arguments);
        until("the command runs", || fixture.scratch.exists("runs"));
        // The attempt that acquired the lock is past.
        let mut request = fixture.proxy.hold(REQUEST);
        std::fs::write(fixture.scratch.path("go"), "").unwrap();
        request.caught().await.unwrap();
        if point == Point::Unanswered {
            fixture.proxy.set(Fault::Lose(Direction::ToClient));
            request.deliver().await.unwrap();
            until("the lock is released", || fixture.status(&["inspect", "kill-me"]) == 1);
        }
        lockctl.signal(Signal::SIGKILL);
        assert_eq!(lockctl.end().0.code(), None, "{point:?}");
        if point == Point::InTheNetwork {
            request.deliver().await.unwrap();
            request.answered().await.unwrap();
        } else {
            drop(request);
        }
        if point == Point::Unsent {
            assert_eq!(fixture.status(&["acquire", "-n", "kill-me"]), 75);
            assert_eq!(fixture.status(&["acquire", "--wait", "60s", "kill-me"]), 0);
            let passed = Moment::now().saturating_since(started);
            assert!(passed >= Duration::from_secs(20), "{passed:?}");
        } else {
            assert_eq!(fixture.status(&["acquire", "-n", "kill-me"]), 0, "{point:?}");
        }
    }
}

/// Kills lockctl. The command dies at once, long before the lease ends.
#[test]
fn a_killed_run_takes_its_command_along_before_the_lock_is_free() {
    let (scratch, backend) = (Scratch::new(), TestBackend::redis());
    let script = "trap '' TERM; write_pid; while :; do sleep 0.01; done";
    let (holder, command) = scratch.start(&backend.url, &["--ttl", "6s", "n"], script);
    assert!(command.lives());
    holder.signal(Signal::SIGKILL);
    until("the command is gone", || !command.lives());
    assert_eq!(status(&scratch, &backend, &["acquire", "-n", "n"]), 75, "the lease has not ended");
    assert_eq!(status(&scratch, &backend, &["acquire", "--wait", "30s", "n"]), 0);
}

/// Changes the holder between the two requests of a break: the inspection and the end of the hold.
#[tokio::test]
async fn a_forced_break_leaves_a_newer_holder_alone() {
    let fixture = Fixture::new();
    let old = acquire(&fixture.scratch, &fixture.backend, &["kill-me"]);
    let mut second_request = fixture.proxy.hold(Match::on(REQUEST).nth(2));
    let operator = fixture.start(&["break", "--force", "kill-me"]);
    second_request.caught().await.unwrap();
    assert_eq!(fixture.status(&["release", "--owner", &old.owner, "kill-me"]), 0);
    let new = acquire(&fixture.scratch, &fixture.backend, &["-n", "kill-me"]);
    second_request.deliver().await.unwrap();
    let (status, stderr) = operator.end();
    assert_eq!((status.code(), stderr.lines().count()), (Some(1), 1), "{stderr}");
    assert_eq!(fixture.status(&["renew", "--owner", &new.owner, "kill-me"]), 0);
}

/// Loses the answer, so that lockctl repeats the release. The lock is free by then, and lockctl
/// cannot know which request released it.
#[tokio::test]
async fn a_release_without_an_answer_reports_an_unknown_outcome() {
    let fixture = Fixture::new();
    let held = acquire(&fixture.scratch, &fixture.backend, &["kill-me"]);
    let cut = fixture.proxy.cut_after(REQUEST);
    let (status, stderr) = fixture.start(&["release", "--owner", &held.owner, "kill-me"]).end();
    cut.await.unwrap();
    assert_eq!((status.code(), stderr.lines().count()), (Some(76), 1), "{stderr}");
    assert!(stderr.contains("unknown") && fixture.status(&["inspect", "kill-me"]) == 1, "{stderr}");
}

/// Loses the answer to an attempt. lockctl reports that, and releases a lock that it may hold.
#[tokio::test]
async fn an_acquire_without_an_answer_is_an_outage_and_leaves_nothing() {
    let fixture = Fixture::new();
    let cut = fixture.proxy.cut_after(REQUEST);
    let (status, stderr) = fixture.start(&["acquire", "--ttl", "1h", "kill-me"]).end();
    cut.await.unwrap();
    assert_eq!((status.code(), stderr.lines().count()), (Some(69), 1), "{stderr}");
    assert_eq!(fixture.status(&["inspect", "kill-me"]), 1);
}
