//! A holder in a process of its own: told what to do line by line, answers line by line.

use std::io::{self, BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;

use libtest_mimic::Failed;
use lock_core::clock::sleep;
use lock_core::{FencingToken, LockGuard, Locker};
use lock_memcache::Memcached;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// In this variable a holder finds its server.
pub(crate) const URL: &str = "LOCK_TEST_HOLDER";

/// A process that holds locks. It ends with this handle.
pub(crate) struct Holder {
    child: Child,
    tell: ChildStdin,
    heard: Lines<BufReader<ChildStdout>>,
}

impl Holder {
    pub(crate) fn start(url: &str) -> Self {
        let mut child = Command::new(std::env::current_exe().expect("there is a program"))
            .env(URL, url)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("a holder can be started");
        let tell = child.stdin.take().expect("it was piped");
        let heard = BufReader::new(child.stdout.take().expect("it was piped")).lines();
        Self { child, tell, heard }
    }

    pub(crate) fn tell(&mut self, what: &str) -> io::Result<()> {
        writeln!(self.tell, "{what}")
    }

    pub(crate) fn ask(&mut self, what: &str) -> Result<String, Failed> {
        self.tell(what)?;
        self.line()
    }

    pub(crate) fn acquire(
        &mut self,
        name: &str,
        lease: Duration,
    ) -> Result<(FencingToken, Duration), Failed> {
        let answer = self.ask(&format!("acquire {name} {}", lease.as_millis()))?;
        let words: Vec<_> = answer.split(' ').collect();
        let ["held", token, valid_ms] = words[..] else {
            return Err(format!("the holder says: {answer}").into());
        };
        Ok((
            token.parse().expect("a holder tells its token"),
            Duration::from_millis(valid_ms.parse()?),
        ))
    }

    fn line(&mut self) -> Result<String, Failed> {
        Ok(self.heard.next().ok_or("the holder has ended")??)
    }

    /// Waits for a line.
    pub(crate) async fn heard(&mut self, what: &str) {
        tokio::task::block_in_place(|| assert_eq!(self.line().expect("it lives"), what));
    }

    pub(crate) fn stop(&self) {
        self.signal(Signal::SIGSTOP);
    }

    pub(crate) fn cont(&self) {
        self.signal(Signal::SIGCONT);
    }

    pub(crate) fn kill(&mut self) {
        self.child.kill().expect("it is ours to kill");
        self.child.wait().expect("it has ended");
    }

    fn signal(&self, signal: Signal) {
        let pid = Pid::from_raw(self.child.id().try_into().expect("a process id"));
        kill(pid, signal).expect("it is ours to signal");
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The life of a holder. Reading blocks its only thread but for renewals, which have their own.
pub(crate) fn live(url: &str) {
    let runtime = crate::runtime();
    let locks = runtime.block_on(async { Locker::new(Memcached::connect(url).await.unwrap()) });
    let mut guard: Option<LockGuard> = None;
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["acquire", name, ms] => {
                let lock = locks.lock(name).unwrap().ttl(millis(ms));
                let won = runtime.block_on(lock.acquire()).unwrap();
                let valid = won.valid_for().unwrap().as_millis();
                say(&format!("held {} {valid}", won.fencing_token().unwrap()));
                guard = Some(won);
            }
            ["look"] => say(if held(&guard).is_held() { "held" } else { "lost" }),
            ["release"] => {
                let ended = runtime.block_on(guard.take().expect("it holds").release());
                say(&ended.map_or_else(|e| format!("{:?}", e.kind()), |()| "Ok".into()));
            }
            ["churn", name, ms] => runtime.block_on(churn(&locks, name, millis(ms))),
            _ => panic!("{line}"),
        }
    }
}

/// Acquires, has it renewed twice, releases; on and on.
async fn churn(locks: &Locker, name: &str, lease: Duration) {
    let lock = locks.lock(name).unwrap().ttl(lease);
    say("churning");
    loop {
        let guard = lock.acquire().await.unwrap();
        sleep(lease * 7 / 10).await;
        guard.release().await.unwrap();
    }
}

fn held(guard: &Option<LockGuard>) -> &LockGuard {
    guard.as_ref().expect("it holds")
}

fn millis(text: &str) -> Duration {
    Duration::from_millis(text.parse().unwrap())
}

fn say(line: &str) {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}").unwrap();
    out.flush().unwrap();
}
