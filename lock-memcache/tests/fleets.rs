//! Mixed fleets: a client in another language that locks the same key with `add`, in both directions.

use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use lock_core::backend::{LetGo, Release, Renewal};
use lock_core::clock::sleep;
use lock_core::{Backend, Locker};

mod support;

use support::{Server, claim, client, contended, name, renew, start, value, win};

const SCRIPT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fleets/pymemcache_lock.py");

/// A Python process that locks one name with pymemcache. It ends with its handle.
struct Pymemcache {
    child: Child,
    stdin: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
}

impl Pymemcache {
    fn start(server: &Server, name: &str) -> Self {
        let mut child = Command::new(interpreter())
            .args([SCRIPT, &server.addr().port().to_string(), name])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("an interpreter that was found can be started");
        let stdin = child.stdin.take().expect("it is a pipe");
        let answers = BufReader::new(child.stdout.take().expect("it is a pipe")).lines();
        Self { child, stdin, answers }
    }

    fn ask(&mut self, line: &str) -> String {
        writeln!(self.stdin, "{line}").expect("it reads what it is told");
        self.answers.next().expect("it has not ended").expect("it answers in lines")
    }
}

impl Drop for Pymemcache {
    fn drop(&mut self) {
        // It fails only if it has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Debian's own first: another one in the PATH does not find Debian's packages.
fn interpreter() -> &'static str {
    let loads = |python: &&str| {
        let mut command = Command::new(python);
        command.arg(SCRIPT).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.status().is_ok_and(|status| status.success())
    };
    let found = ["/usr/bin/python3", "python3"].into_iter().find(loads);
    found.expect("pymemcache is missing: run ./test, or apt-get install python3-pymemcache")
}

#[tokio::test]
async fn what_they_hold_is_not_ours_and_never_touched() {
    let server = start();
    let locks = client(&server).await;
    let mut theirs = Pymemcache::start(&server, "n");
    for release in ["release", "careless-release"] {
        assert_eq!(theirs.ask("try 300"), "held");
        let held = value(&server, "n");
        let ours = claim("n", 1000);
        let left = contended(locks.try_acquire(&ours).await).expect("it has an end");
        assert!(left > Duration::from_secs(200), "{left:?}");
        let state = locks.inspect(&name("n")).await.unwrap();
        assert_eq!((state.holders[0].owner, state.holders[0].token), (None, None));
        assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::NotHeld)));
        assert_eq!(locks.release(&ours, LetGo::uncertain()).await.unwrap(), Release::NotHeld);
        assert!(!locks.break_lock(&name("n"), &ours.owner).await.unwrap());
        assert_eq!(value(&server, "n"), held);
        assert_eq!(theirs.ask(release), "done");
        let mut ours = claim("n", 1000);
        win(&locks, &mut ours).await;
        assert_eq!(theirs.ask("try 300"), "contended");
        assert_eq!(theirs.ask(release), "not owned");
        assert_eq!(locks.release(&ours, LetGo::now()).await.unwrap(), Release::Released);
    }
}

#[tokio::test]
async fn our_waiter_comes_after_them() {
    let server = start();
    let locks = Locker::new(client(&server).await);
    let mut theirs = Pymemcache::start(&server, "n");
    for (lease, ends) in [("300", "by release"), ("2", "by itself")] {
        assert_eq!(theirs.ask(&format!("try {lease}")), "held");
        let lock = locks.lock("n").unwrap();
        let waiter = tokio::spawn(async move { lock.acquire().await });
        sleep(Duration::from_millis(500)).await;
        assert!(!waiter.is_finished());
        if ends == "by release" {
            assert_eq!(theirs.ask("release"), "done");
        }
        let served = tokio::time::timeout(Duration::from_secs(10), waiter).await;
        let guard = served.expect("it is served").unwrap().unwrap();
        assert_eq!(theirs.ask("try 300"), "contended");
        guard.release().await.unwrap();
    }
}

#[tokio::test]
async fn their_touch_of_our_lock_harms_nobody() {
    let server = start();
    let locks = client(&server).await;
    let mut theirs = Pymemcache::start(&server, "n");
    let mut ours = claim("n", 3000);
    win(&locks, &mut ours).await;
    assert_eq!(theirs.ask("touch 100"), "done");
    assert!(matches!(renew(&locks, &ours).await, Ok(Renewal::Held(_))));
    assert_eq!(theirs.ask("touch 100"), "done");
    assert_eq!(locks.release(&ours, LetGo::now()).await.unwrap(), Release::Released);
    assert_eq!(theirs.ask("try 300"), "held");
}
