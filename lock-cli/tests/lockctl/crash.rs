//! `kill -9` of lockctl at every point of acquire, renew and release, and of a run: there are never two
//! holders, no lock outlives its lease, and the owner id still works, or is told that it does not.

use std::time::Duration;

use lock_any::clock::Moment;
use lock_conformance::proxy::{Direction, Fault, Held, Match, Proxy};
use nix::sys::signal::Signal;

use crate::places::Place;
use crate::support::{Running, Scratch, TELL_PID, until};
use crate::verbs::{acquire, status};

/// How long an acquired lock lasts here: longer than it takes to look.
const TTL: Duration = Duration::from_secs(4);

/// Where lockctl dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Point {
    /// Its request is on the way, and never arrives.
    Unsent,
    /// Its request is on the way, and arrives after its death.
    InTheNetwork,
    /// Its request has been carried out, and the answer is on the way.
    Unanswered,
}

/// The key of the lock, in a call of a script. Nothing before that holds it.
const REQUEST: &str = "$7\r\nkill-me";

const POINTS: &[Point] = &[Point::Unsent, Point::InTheNetwork, Point::Unanswered];

struct Stage {
    scratch: Scratch,
    place: Place,
    proxy: Proxy,
}

impl Stage {
    fn set() -> Self {
        let (scratch, place) = (Scratch::new(), Place::redis());
        // So that the server knows the scripts, and each verb is one request.
        let owner = acquire(&scratch, &place, &["n"]).owner;
        for verb in
            [&["renew", "--owner", &owner, "n"][..], &["inspect", "n"], &["break", "--force", "n"]]
        {
            assert_eq!(status(&scratch, &place, verb), 0, "{verb:?}");
        }
        assert_eq!(status(&scratch, &place, &["release", "--owner", &owner, "n"]), 76);
        let proxy = Proxy::start(place.server.as_ref().unwrap().addr()).unwrap();
        Self { scratch, place, proxy }
    }

    /// A lockctl that goes through the proxy, and does not give up while we look around.
    fn start(&self, arguments: &[&str]) -> Running {
        let url = format!("redis://{}?timeout=60s", self.proxy.addr());
        let mut lockctl = self.scratch.lockctl(&["--backend", &url]);
        Running::start(lockctl.args(arguments))
    }

    fn status(&self, arguments: &[&str]) -> i32 {
        status(&self.scratch, &self.place, arguments)
    }

    /// Starts lockctl, and kills it at that point. `carried_out` tells that the server has done what it
    /// was asked for.
    async fn kill_at(
        &self,
        point: Point,
        arguments: &[&str],
        mut carried_out: impl FnMut() -> bool,
    ) -> Option<Held> {
        let mut request = self.proxy.hold(REQUEST);
        let mut lockctl = self.start(arguments);
        request.caught().await.unwrap();
        if point == Point::Unanswered {
            self.proxy.set(Fault::Lose(Direction::ToClient));
            request.deliver().await.unwrap();
            until("it is carried out", &mut carried_out);
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
async fn a_lock_that_a_dead_acquire_took_ends_with_its_lease() {
    for &point in POINTS {
        let stage = Stage::set();
        let started = Moment::now();
        let arguments = ["acquire", "--ttl", "4s", "kill-me"];
        let is_held = || stage.status(&["inspect", "kill-me"]) == 0;
        let late = stage.kill_at(point, &arguments, is_held).await;
        if point == Point::Unsent {
            assert_eq!(stage.status(&["acquire", "-n", "kill-me"]), 0, "nothing was left");
            continue;
        }
        assert_eq!(stage.status(&["acquire", "-n", "kill-me"]), 75, "{point:?}");
        acquire(&stage.scratch, &stage.place, &["--wait", "20s", "kill-me"]);
        let passed = Moment::now().saturating_since(started);
        assert!(passed >= TTL, "{point:?}: not before the lease ended: {passed:?}");
        drop(late);
    }
}

#[test]
fn a_lock_that_a_dead_acquire_had_not_told_of_ends_with_its_lease() {
    let stage = Stage::set();
    let started = Moment::now();
    // It stands for a reader that does not read: the line is longer than a pipe holds.
    let name = "k".repeat(60_000);
    let (_reader, writer) = std::io::pipe().unwrap();
    let fill = vec![b' '; 60_000];
    std::io::Write::write_all(&mut &writer, &fill).unwrap();
    let mut lockctl = stage.place.command(&stage.scratch, &["acquire", "--ttl", "4s", &name]);
    let mut lockctl = lockctl.stdout(writer).spawn().unwrap();
    until("it has the lock", || stage.status(&["inspect", &name]) == 0);
    lockctl.kill().unwrap();
    lockctl.wait().unwrap();
    assert_eq!(stage.status(&["acquire", "-n", &name]), 75);
    assert_eq!(stage.status(&["acquire", "--wait", "20s", &name]), 0);
    let passed = Moment::now().saturating_since(started);
    assert!(passed >= TTL, "not before the lease ended: {passed:?}");
}

#[tokio::test]
async fn the_owner_of_a_dead_renewal_still_has_its_lock() {
    for &point in POINTS {
        let stage = Stage::set();
        let held = acquire(&stage.scratch, &stage.place, &["--ttl", "1m", "kill-me"]);
        let server = stage.place.server.as_ref().unwrap();
        let remaining = || server.command(&["PTTL", "kill-me"]).text().parse::<u64>().unwrap();
        let arguments = ["renew", "--owner", &held.owner, "--ttl", "1h", "kill-me"];
        let is_renewed = || remaining() > 60_000;
        let late = stage.kill_at(point, &arguments, is_renewed).await;
        assert_eq!(is_renewed(), point != Point::Unsent, "{point:?}");
        assert_eq!(stage.status(&["acquire", "-n", "kill-me"]), 75, "{point:?}");
        assert_eq!(stage.status(&["renew", "--owner", &held.owner, "kill-me"]), 0, "{point:?}");
        assert_eq!(stage.status(&["release", "--owner", &held.owner, "kill-me"]), 0, "{point:?}");
        assert_eq!(stage.status(&["acquire", "-n", "kill-me"]), 0, "{point:?}");
        drop(late);
    }
}

#[tokio::test]
async fn a_dead_release_can_be_repeated() {
    for &point in POINTS {
        let stage = Stage::set();
        let held = acquire(&stage.scratch, &stage.place, &["--ttl", "1m", "kill-me"]);
        let arguments = ["release", "--owner", &held.owner, "kill-me"];
        let is_free = || stage.status(&["inspect", "kill-me"]) == 1;
        let late = stage.kill_at(point, &arguments, is_free).await;
        let repeated = if point == Point::Unsent { 0 } else { 76 };
        assert_eq!(stage.status(&arguments), repeated, "{point:?}");
        assert_eq!(stage.status(&["acquire", "-n", "kill-me"]), 0, "{point:?}");
        drop(late);
    }
}

/// The release of a lockctl that is dead, delivered when another client has the lock.
#[tokio::test]
async fn a_dead_release_that_arrives_late_frees_nobody_else() {
    let stage = Stage::set();
    let held = acquire(&stage.scratch, &stage.place, &["--ttl", "1m", "kill-me"]);
    let mut request = stage.proxy.hold(REQUEST);
    let lockctl = stage.start(&["release", "--owner", &held.owner, "kill-me"]);
    request.caught().await.unwrap();
    lockctl.signal(Signal::SIGKILL);
    assert_eq!(lockctl.end().0.code(), None);
    assert_eq!(stage.status(&["break", "--owner", &held.owner, "kill-me"]), 0);
    let newer = acquire(&stage.scratch, &stage.place, &["-n", "kill-me"]);
    request.deliver().await.unwrap();
    request.answered().await.unwrap();
    assert_eq!(stage.status(&["renew", "--owner", &newer.owner, "kill-me"]), 0);
    assert!(newer.expires_in > Duration::ZERO);
}

#[tokio::test]
async fn a_run_that_dies_while_it_gets_its_lock_runs_nothing() {
    for &point in POINTS {
        let stage = Stage::set();
        let started = Moment::now();
        let arguments = ["run", "--ttl", "4s", "kill-me", "--", "touch", "ran"];
        let is_held = || stage.status(&["inspect", "kill-me"]) == 0;
        let late = stage.kill_at(point, &arguments, is_held).await;
        let next = ["run", "--wait", "20s", "kill-me", "--", "test", "!", "-e", "ran"];
        assert_eq!(stage.status(&next), 0, "{point:?}");
        let passed = Moment::now().saturating_since(started);
        assert!(point == Point::Unsent || passed >= TTL, "{point:?}: {passed:?}");
        drop(late);
    }
}

#[tokio::test]
async fn a_run_that_dies_while_it_lets_go_frees_the_lock_with_its_lease_at_the_latest() {
    for &point in POINTS {
        let stage = Stage::set();
        let started = Moment::now();
        let script = "touch runs; while [ ! -e go ]; do sleep 0.01; done";
        // No renewal is due before the release.
        let arguments = ["run", "--ttl", "20s", "kill-me", "--", "sh", "-c", script];
        let lockctl = stage.start(&arguments);
        until("the command runs", || stage.scratch.exists("runs"));
        // What won the lock went by before.
        let mut request = stage.proxy.hold(REQUEST);
        std::fs::write(stage.scratch.path("go"), "").unwrap();
        request.caught().await.unwrap();
        if point == Point::Unanswered {
            stage.proxy.set(Fault::Lose(Direction::ToClient));
            request.deliver().await.unwrap();
            until("it is let go", || stage.status(&["inspect", "kill-me"]) == 1);
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
            assert_eq!(stage.status(&["acquire", "-n", "kill-me"]), 75);
            assert_eq!(stage.status(&["acquire", "--wait", "60s", "kill-me"]), 0);
            let passed = Moment::now().saturating_since(started);
            assert!(passed >= Duration::from_secs(20), "{passed:?}");
        } else {
            assert_eq!(stage.status(&["acquire", "-n", "kill-me"]), 0, "{point:?}");
        }
    }
}

/// The command dies at once, long before the lock can pass on.
#[test]
fn a_run_that_dies_takes_its_command_with_it_before_the_lock_passes_on() {
    let (scratch, place) = (Scratch::new(), Place::redis());
    let stays = format!("trap '' TERM; {TELL_PID} while :; do sleep 0.01; done");
    let arguments = ["run", "--ttl", "6s", "n", "--", "sh", "-c", &stays];
    let holder = Running::start(&mut place.command(&scratch, &arguments));
    let command = scratch.read_pid();
    assert!(command.lives());
    holder.signal(Signal::SIGKILL);
    until("the command is gone", || !command.lives());
    assert_eq!(status(&scratch, &place, &["acquire", "-n", "n"]), 75, "it is still shut");
    assert_eq!(status(&scratch, &place, &["acquire", "--wait", "30s", "n"]), 0);
}

/// Between the look and the break, the lock passes on.
#[tokio::test]
async fn a_break_by_force_leaves_a_newer_holder_alone() {
    let stage = Stage::set();
    let old = acquire(&stage.scratch, &stage.place, &["kill-me"]);
    let mut second_request = stage.proxy.hold(Match::on(REQUEST).nth(2));
    let operator = stage.start(&["break", "--force", "kill-me"]);
    second_request.caught().await.unwrap();
    assert_eq!(stage.status(&["release", "--owner", &old.owner, "kill-me"]), 0);
    let new = acquire(&stage.scratch, &stage.place, &["-n", "kill-me"]);
    second_request.deliver().await.unwrap();
    let (status, said) = operator.end();
    assert_eq!((status.code(), said.lines().count()), (Some(1), 1), "{said}");
    assert_eq!(stage.status(&["renew", "--owner", &new.owner, "kill-me"]), 0);
}

/// The answer is lost, so lockctl asks again: the lock is gone, but by whom it cannot know.
#[tokio::test]
async fn a_release_whose_answer_is_lost_does_not_say_that_it_released() {
    let stage = Stage::set();
    let held = acquire(&stage.scratch, &stage.place, &["kill-me"]);
    let cut = stage.proxy.cut_after(REQUEST);
    let (status, said) = stage.start(&["release", "--owner", &held.owner, "kill-me"]).end();
    cut.await.unwrap();
    assert_eq!((status.code(), said.lines().count()), (Some(76), 1), "{said}");
    assert!(said.contains("unknown") && stage.status(&["inspect", "kill-me"]) == 1, "{said}");
}

/// The answer to an attempt is lost: lockctl says so, and what it may have won is let go.
#[tokio::test]
async fn an_acquire_whose_answer_is_lost_is_an_outage_and_leaves_nothing() {
    let stage = Stage::set();
    let cut = stage.proxy.cut_after(REQUEST);
    let (status, said) = stage.start(&["acquire", "--ttl", "1h", "kill-me"]).end();
    cut.await.unwrap();
    assert_eq!((status.code(), said.lines().count()), (Some(69), 1), "{said}");
    assert_eq!(stage.status(&["inspect", "kill-me"]), 1);
}
