//! A server that hangs does not delay lockctl after a loss or a wait.

use std::time::Duration;

use lock_any::clock::Moment;

use crate::backends::TestBackend;
use crate::support::{Running, Scratch, until};

/// The time by which lockctl may be late. It is much less than the timeout of one call (5 s).
const LATE: Duration = Duration::from_millis(1500);

#[test]
fn lockctl_ends_with_its_lost_lock_although_the_server_hangs() {
    let (scratch, backend) = (Scratch::new(), TestBackend::redis());
    let server = backend.server.as_ref().unwrap();
    for script in ["write_pid; exec sleep 60", "trap '' TERM; write_pid; sleep 60"] {
        let (holder, command) = scratch.start(&backend.url, &["--ttl", "3s", "n"], script);
        server.stop();
        until("the command is stopped", || !command.lives());
        let stopped = Moment::now();
        let (status, stderr) = holder.end();
        let took = Moment::now().saturating_since(stopped);
        server.cont();
        assert_eq!(status.code(), Some(76), "{stderr}");
        assert!(took < LATE, "lockctl ended {took:?} after the loss");
    }
}

#[test]
fn a_wait_ends_in_time_although_the_server_hangs() {
    let (scratch, backend) = (Scratch::new(), TestBackend::redis());
    let server = backend.server.as_ref().unwrap();
    let (_holder, _) = scratch.start(&backend.url, &["n"], "write_pid; exec sleep 60");
    let started = Moment::now();
    let waiter = Running::start(&mut scratch.run(&backend.url, &["-w", "2", "n", "--", "true"]));
    until("lockctl waits", || {
        let waiting = backend.lockctl(&scratch, &["inspect", "n"]).1;
        waiting.contains("waiting  1")
    });
    server.stop();
    let (status, stderr) = waiter.end();
    let took = Moment::now().saturating_since(started);
    server.cont();
    assert_eq!(status.code(), Some(75), "{stderr}");
    assert!(took < Duration::from_secs(2) + LATE, "-w 2 took {took:?}");
}
