//! Locks on memcached, as on other backends with leases.

use test_servers::{Memcached, MemcachedOptions};

use crate::support::{Scratch, outcome, until};

#[test]
fn a_command_holds_its_lock_and_ends_with_it() {
    let server = Memcached::start(MemcachedOptions::new());
    let url = format!("{}?ttl=3s", server.url());
    let scratch = Scratch::new();
    let (holder, command) = scratch.start(
        &url,
        &["nightly"],
        "write_pid; echo $LOCK_FENCING_TOKEN >token; exec sleep 60",
    );
    until("there is a token", || scratch.exists("token"));
    assert!(scratch.read("token").trim().parse::<u64>().is_ok_and(|token| token > 0));
    let at_once = ["--no-wait", "nightly", "--", "true"];
    assert_eq!(outcome(&mut scratch.run(&url, &at_once)).0, 75);

    assert_eq!(server.command("delete nightly"), "DELETED");
    let (status, stderr) = holder.end();
    assert_eq!(status.code(), Some(76), "{stderr}");
    assert!(!command.lives(), "the command died with the lock");
    assert_eq!(outcome(&mut scratch.run(&url, &["-w", "10", "nightly", "--", "true"])).0, 0);
    assert_eq!(server.command("mg nightly"), "EN", "no residue is left");
}

#[test]
fn a_killed_lockctl_takes_its_command_along_and_its_lock_expires() {
    let server = Memcached::start(MemcachedOptions::new());
    let url = format!("{}?ttl=1s", server.url());
    let scratch = Scratch::new();
    let (holder, command) = scratch.start(&url, &["nightly"], "write_pid; exec sleep 60");
    holder.signal(nix::sys::signal::Signal::SIGKILL);
    until("the command is gone", || !command.lives());
    assert_eq!(holder.end().0.code(), None);
    assert_eq!(outcome(&mut scratch.run(&url, &["-w", "20", "nightly", "--", "true"])).0, 0);
}
