//! A client ends when any of its tasks panics, even one that is never awaited. Traffic that
//! continued without the task would prove nothing.

use std::io::Read;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::json;

const ABORTED: i32 = 6;

#[test]
fn client_aborts_when_a_task_panics() {
    let directory = tempfile::tempdir().unwrap();
    let second = json!({"secs": 1, "nanos": 0});
    let duty = json!({
        "run": "r", "seed": 1, "host": "p0.1", "url": format!("file:{}", directory.path().display()),
        "ttl": second, "beat": {"secs": 0, "nanos": 1_000_000}, "timeout": second,
        // Without locks, the choice of one panics.
        "locks": 0,
        "tasks": 1, "draw": 1, "calls": false, "bug": null,
    });
    let (mut link, collector_end) = UnixStream::pair().unwrap();
    let (_orders, order_end) = UnixStream::pair().unwrap();
    let mut client = Command::new(env!("CARGO_BIN_EXE_lock-campaign"));
    client.args(["client", "file", &duty.to_string()]);
    client
        .stdin(OwnedFd::from(order_end))
        .stdout(OwnedFd::from(collector_end))
        .stderr(Stdio::piped());
    let mut child = client.spawn().expect("the client starts");
    drop(client);
    link.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    let ended = link.read_to_end(&mut Vec::new());
    if ended.is_err() {
        child.kill().unwrap();
    }
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.signal(), Some(ABORTED), "{stderr}");
    assert!(stderr.contains("panicked"), "{stderr}");
}
