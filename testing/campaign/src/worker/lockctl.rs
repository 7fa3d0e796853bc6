//! Locks that a task takes with `lockctl`, as scripts do.
//!
//! A hold of `lockctl run` lasts while a command runs. The exit status says whether the lock was
//! held to the end, so the client claims no time before the exit. The leases that `lockctl acquire`
//! prints are counted from its start. So no claim is longer than the hold.

use std::io;
use std::process::{Output, Stdio};
use std::time::Duration;

use lock_core::clock::sleep;
use lock_core::{Detached, LockName};
use lock_history::{Clock, GrantId, Op, Pending, Why};
use serde::Deserialize;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use super::workload::{Workload, may_cancel};
use crate::lock_names::lock_name;

/// The exit status of lockctl if the lock is taken.
const CONTENDED: i32 = 75;

/// The exit status of lockctl if the lock was lost, or was not held.
const LOST: i32 = 76;

/// The command under `lockctl run`. It prints the token, and ends when its standard input ends.
const COMMAND: &str = r#"echo "$LOCK_FENCING_TOKEN"; read -r _; exit 0"#;

/// The output of `lockctl acquire`.
#[derive(Deserialize)]
struct Acquired {
    owner: String,
    fencing_token: Option<String>,
    expires_in_ms: u64,
}

impl Workload {
    /// Takes the lock with `lockctl run`, works under it, and ends the command.
    pub(super) async fn run_by_lockctl(&mut self, number: usize) {
        let name = lock_name(number);
        let (op, wait) = self.draw_wait(number);
        let mut run = self.lockctl("run");
        run.args(self.ttl()).args(wait).args([&name, "--", "sh", "-c", COMMAND]);
        run.stdin(Stdio::piped());
        self.client.next.overtakable = true;
        let pending = self.client.invoke(op, &name);
        let start = Clock::raw().now();
        let mut child = run.spawn().expect("lockctl is there");
        let mut token = String::new();
        let mut stdout = BufReader::new(child.stdout.take().expect("it is a pipe"));
        if !matches!(stdout.read_line(&mut token).await, Ok(1..)) {
            return record_no_grant(pending, child.wait_with_output().await);
        }
        let fence = token.trim().parse().ok();
        let id = pending.ok_grant(fence, Some(start));
        self.link.count_verb("lockctl-run");

        let read = self.read(&name, fence);
        sleep(self.draw_hold(false)).await;
        if let Some(read) = read {
            self.write(&name, &read);
        }
        let pending = self.client.invoke_on(Op::Release, &id);
        // The wait closes the standard input, which ends the command.
        record_release(pending, child.wait_with_output().await);
    }

    /// Takes the lock with `lockctl acquire`, which leaves the hold to the caller.
    pub(super) async fn acquire_by_lockctl(
        &mut self,
        number: usize,
    ) -> Option<(Detached, GrantId)> {
        let name = lock_name(number);
        let (op, wait) = self.draw_wait(number);
        let mut acquire = self.lockctl("acquire");
        acquire.args(self.ttl()).args(wait).arg(&name);
        (self.client.next.unrenewed, self.client.next.overtakable) = (true, true);
        let pending = self.client.invoke(op, &name);
        let start = Clock::raw().now();
        let ended = acquire.output().await;
        let output = ended.as_ref().ok().filter(|ended| ended.status.success());
        let acquired =
            output.and_then(|output| serde_json::from_slice::<Acquired>(&output.stdout).ok());
        let Some(Acquired { owner, fencing_token, expires_in_ms }) = acquired else {
            record_no_grant(pending, ended);
            return None;
        };
        let until = start + expires_in_ms * 1_000_000;
        let fence = fencing_token.and_then(|token| token.parse().ok());
        let id = pending.ok_grant(fence, Some(until));
        self.link.count_verb("lockctl-acquire");
        let name = LockName::new(name).expect("a good name");
        let owner = owner.parse().expect("lockctl prints an owner");
        Some((Detached::new(name, owner, self.config.ttl), id))
    }

    /// Releases a detached lock with `lockctl release`.
    pub(super) async fn release_by_lockctl(&mut self, (detached, id): (&Detached, &GrantId)) {
        let mut release = self.lockctl("release");
        release.env("LOCK_OWNER", detached.owner.expose()).arg(detached.name.as_str());
        let pending = self.client.invoke_on(Op::Release, id);
        record_release(pending, release.output().await);
        self.link.count_verb("lockctl-release");
    }

    /// Draws whether a call tries or waits. A wait has a bound on locks whose waiters may cancel.
    fn draw_wait(&mut self, number: usize) -> (Op, Vec<String>) {
        let wait = self.up_to(self.config.ttl).max(Duration::from_millis(1));
        match (self.rng.bool(), may_cancel(number)) {
            (true, _) => (Op::Try, vec!["--no-wait".to_owned()]),
            (false, true) => (Op::Acquire, vec![format!("--wait={}ms", wait.as_millis().max(1))]),
            (false, false) => (Op::Acquire, Vec::new()),
        }
    }

    fn ttl(&self) -> Vec<String> {
        vec![format!("--ttl={}ms", self.config.ttl.as_millis())]
    }

    fn lockctl(&self, verb: &str) -> Command {
        let here = std::env::current_exe().expect("this program has a path");
        let mut command = Command::new(here.with_file_name("campaign-lockctl"));
        command.args(["--backend", &self.config.url, verb]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }
}

/// Records why there is no grant.
fn record_no_grant(pending: Pending<'_>, ended: io::Result<Output>) {
    let ended = ended.expect("lockctl is there");
    match ended.status.code() {
        Some(CONTENDED) => pending.fail(Why::Busy),
        _ => pending.info(other(&ended)),
    }
}

/// Records the result of a release. A message beside the status leaves the result unknown.
fn record_release(pending: Pending<'_>, ended: io::Result<Output>) {
    let ended = ended.expect("lockctl is there");
    let message = String::from_utf8_lossy(&ended.stderr);
    match ended.status.code() {
        Some(0) if message.is_empty() => pending.ok(),
        Some(LOST) if message.contains("not held by us") => pending.fail(Why::NotHeld),
        _ => pending.info(other(&ended)),
    }
}

fn other(ended: &Output) -> Why {
    let message = String::from_utf8_lossy(&ended.stderr);
    Why::Other(format!("{}: {}", ended.status, message.trim()))
}
