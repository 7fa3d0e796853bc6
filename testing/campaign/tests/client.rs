//! A client ends with any task of it that panics, even one for which nobody waits: traffic that
//! goes on without it would prove nothing.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

const ABORTED: i32 = 6;

#[test]
fn a_client_in_which_a_task_panics_is_gone_at_once() {
    let directory = tempfile::tempdir().unwrap();
    let second = json!({"secs": 1, "nanos": 0});
    let duty = json!({
        "run": "r", "seed": 1, "host": "p0.1", "url": format!("file:{}", directory.path().display()),
        "ttl": second, "beat": {"secs": 0, "nanos": 1_000_000}, "timeout": second,
        // There is none to be drawn.
        "locks": 0,
        "tasks": 1, "draw": 1, "calls": false, "bug": null,
    });
    let (mut link, its_desk) = UnixStream::pair().unwrap();
    let (_orders, its_orders) = UnixStream::pair().unwrap();
    let mut client = Command::new(env!("CARGO_BIN_EXE_lock-campaign"));
    client.args(["client", "file", &duty.to_string()]);
    client.stdin(OwnedFd::from(its_orders)).stdout(OwnedFd::from(its_desk)).stderr(Stdio::piped());
    let mut child = client.spawn().expect("a client can be started");
    drop(client);
    link.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ended = link.read_to_end(&mut Vec::new());
    if ended.is_err() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(ABORTED), "{said}");
    assert!(said.contains("panicked"), "{said}");
}
