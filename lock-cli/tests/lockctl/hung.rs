//! A server that hangs does not keep lockctl: it ends when its lock does, or its wait.

use std::time::Duration;

use lock_any::clock::Moment;

use crate::places::Place;
use crate::support::{Running, Scratch, TELL_PID, until};

/// How much longer than it has to lockctl may stay. Less than the timeout of one call (5 s) by far.
const LATE: Duration = Duration::from_millis(1500);

#[test]
fn lockctl_ends_with_its_lost_lock_although_the_server_hangs() {
    let (scratch, place) = (Scratch::new(), Place::redis());
    let server = place.server.as_ref().unwrap();
    for script in
        [format!("{TELL_PID} exec sleep 60"), format!("trap '' TERM; {TELL_PID} sleep 60")]
    {
        let arguments = ["--ttl", "3s", "n", "--", "sh", "-c", &script];
        let holder = Running::start(&mut scratch.run(&place.url, &arguments));
        let command = scratch.read_pid();
        server.stop();
        until("the command is stopped", || !command.lives());
        let stopped = Moment::now();
        let (status, said) = holder.end();
        let took = Moment::now().saturating_since(stopped);
        server.cont();
        assert_eq!(status.code(), Some(76), "{said}");
        assert!(took < LATE, "it stayed after the loss for {took:?}");
        std::fs::remove_file(scratch.path("pid")).unwrap();
    }
}

#[test]
fn a_wait_is_as_long_as_it_was_told_although_the_server_hangs() {
    let (scratch, place) = (Scratch::new(), Place::redis());
    let server = place.server.as_ref().unwrap();
    let script = format!("{TELL_PID} exec sleep 60");
    let _holder = Running::start(&mut scratch.run(&place.url, &["n", "--", "sh", "-c", &script]));
    scratch.read_pid();
    let started = Moment::now();
    let waiter = Running::start(&mut scratch.run(&place.url, &["-w", "2", "n", "--", "true"]));
    until("it waits", || {
        let waiting = place.lockctl(&scratch, &["inspect", "n"]).1;
        waiting.contains("waiting  1")
    });
    server.stop();
    let (status, said) = waiter.end();
    let took = Moment::now().saturating_since(started);
    server.cont();
    assert_eq!(status.code(), Some(75), "{said}");
    assert!(took < Duration::from_secs(2) + LATE, "-w 2 took {took:?}");
}
