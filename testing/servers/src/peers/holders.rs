//! Holders in processes of their own, which are stopped, killed, or end in other ways. The waiter
//! is the test's process, and the server is real.

use std::io::{self, Write};
use std::process::{Command, ExitCode, Stdio};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use lock_core::clock::{Moment, sleep};
use lock_core::{FenceGate, FencingToken, LockGuard, Locker, Takeover};
use tokio::runtime::Runtime;

use super::Peer;

/// The environment variable with the URL of a holder's server.
const URL: &str = "LOCK_TEST_HOLDER";

/// The allowance for a loaded machine.
const SLACK: Duration = Duration::from_secs(3);

/// Runs the main function of a test with `harness = false`, for backends with leases and fencing
/// tokens. `start` starts a server and returns its URL, and `connect` makes a client for it. `more`
/// holds the trials of one backend only.
///
/// The same program is the holders as well: with a URL in its environment it is one of them.
pub fn run<S, F>(
    start: fn() -> (S, String),
    connect: fn(String) -> F,
    more: impl IntoIterator<Item = Trial>,
) -> ExitCode
where
    S: 'static,
    F: Future<Output = Locker> + 'static,
{
    if let Ok(url) = std::env::var(URL) {
        live(connect(url));
        return ExitCode::SUCCESS;
    }
    macro_rules! trial {
        ($check:ident) => {
            Trial::test(stringify!($check), move || {
                let (_server, url) = start();
                runtime().block_on(async {
                    let locks = connect(url.clone()).await;
                    $check(&Scene { url, locks }).await
                })
            })
        };
    }
    let mut trials = vec![
        trial!(a_stopped_holder_finds_the_loss_at_its_first_look),
        trial!(killed_holders_are_replaced_within_their_bound),
        trial!(holders_that_end_in_odd_ways_leave_nothing_beyond_their_lease),
    ];
    trials.extend(more);
    libtest_mimic::run(&Arguments::from_args(), trials).exit_code()
}

/// Starts another process of a program whose main function is [`run`], as a client of the server at
/// `url`. It obeys these commands:
///
/// * `acquire NAME MS`: answers `held TOKEN`; then `look`, `run` and `release`;
///
/// * `queue NAME MS COUNT`: that many of its tasks acquire the lock and release it, without an
///   answer;
///
/// * `churn NAME MS`: acquires and releases the lock repeatedly;
///
/// * `panic`, `task-panic`, `exit`, `abort`, `return`: ends in that way.
///
/// # Panics
///
/// It cannot be started.
#[must_use]
pub fn start(url: &str) -> Peer {
    let mut command = Command::new(std::env::current_exe().expect("there is a program"));
    // The panics are intended.
    command.env(URL, url).stderr(Stdio::null());
    Peer::start("a holder", command)
}

/// A server, and its waiting client.
struct Scene {
    url: String,
    locks: Locker,
}

impl Scene {
    fn holder(&self) -> Peer {
        start(&self.url)
    }

    /// Returns the time within which a lock is free after its last renewal.
    fn takeover_bound(&self, lease: Duration) -> Duration {
        match self.locks.capabilities().takeover {
            Takeover::AtOnce => SLACK,
            Takeover::LeasePlus(lingers) => lease + lingers + SLACK,
        }
    }
}

async fn a_stopped_holder_finds_the_loss_at_its_first_look(scene: &Scene) -> Result<(), Failed> {
    const LEASE: Duration = Duration::from_secs(1);

    let mut holder = scene.holder();
    let old = acquire(&mut holder, "n", LEASE).await?;
    let waiting = scene.locks.lock("n")?.ttl(Duration::from_secs(60));
    let waiting = tokio::spawn(async move { waiting.acquire().await });
    holder.stop();
    let guard = within(scene.takeover_bound(LEASE), waiting).await???;
    sleep(LEASE).await;
    holder.cont();
    assert_eq!(holder.ask("look").await, "lost", "before anything else ran in it");
    assert_eq!(holder.ask("run").await, "refused", "no work starts under a lost lock");

    let gate = FenceGate::new(());
    let new = guard.fencing_token().expect("this backend has tokens");
    assert!(gate.admit(new, |()| ()).is_ok());
    assert!(gate.admit(old, |()| ()).is_err(), "the write of the old holder passed");
    assert_eq!(holder.ask("release").await, "Lost");
    guard.verify().await?;
    guard.release().await?;
    Ok(())
}

/// Kills each holder at some point of its cycle; the next one holds within the declared bound.
async fn killed_holders_are_replaced_within_their_bound(scene: &Scene) -> Result<(), Failed> {
    const HOLDERS: u64 = 24;
    const LEASE: Duration = Duration::from_millis(900);

    let mut all = tokio::task::JoinSet::new();
    for number in 0..HOLDERS {
        let name = format!("n{number}");
        let mut holder = scene.holder();
        // It acquires, renews and releases repeatedly, and is killed at some point.
        holder.tell(&format!("churn {name} {}", LEASE.as_millis()));
        let lock = scene.locks.lock(&*name)?.ttl(LEASE);
        all.spawn(async move {
            assert_eq!(holder.answer().await, "churning");
            sleep(Duration::from_millis(150 + number * 37)).await;
            holder.kill();
            let killed = Moment::now();
            let guard = lock.acquire().await?;
            let took = Moment::now().saturating_since(killed);
            guard.release().await?;
            Ok::<_, lock_core::Error>(took)
        });
    }
    let mut takeovers = Vec::new();
    while let Some(took) = all.join_next().await {
        takeovers.push(took??);
    }
    takeovers.sort_unstable();
    let (shortest, longest) = (takeovers[0], takeovers[takeovers.len() - 1]);
    let median = takeovers[takeovers.len() / 2];
    println!("takeover after a kill: {shortest:?}, median {median:?}, {longest:?} at most");
    let bound = scene.takeover_bound(LEASE);
    assert!(longest <= bound, "{longest:?} after the kill, and the bound is {bound:?}");
    Ok(())
}

async fn holders_that_end_in_odd_ways_leave_nothing_beyond_their_lease(
    scene: &Scene,
) -> Result<(), Failed> {
    const LEASE: Duration = Duration::from_secs(2);

    for how in ["panic", "task-panic", "exit", "abort", "return"] {
        let mut holder = scene.holder();
        let token = acquire(&mut holder, how, LEASE).await?;
        holder.tell(how);
        let next = scene.locks.lock(how)?;
        let guard = within(scene.takeover_bound(LEASE), next.acquire()).await??;
        assert!(guard.fencing_token() > Some(token), "{how}");
        guard.release().await?;
    }
    Ok(())
}

/// Makes the holder acquire a lock, and returns the token.
async fn acquire(holder: &mut Peer, name: &str, lease: Duration) -> Result<FencingToken, Failed> {
    let answer = holder.ask(&format!("acquire {name} {}", lease.as_millis())).await;
    let token = answer.strip_prefix("held ").ok_or(format!("the holder says: {answer}"))?;
    Ok(token.parse()?)
}

async fn within<T>(bound: Duration, work: impl Future<Output = T>) -> Result<T, Failed> {
    let late = |_| Failed::from(format!("it did not happen within {bound:?}"));
    tokio::time::timeout(bound, work).await.map_err(late)
}

fn runtime() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().expect("a runtime can be made")
}

/// Runs a holder. Reading blocks its only thread, except for renewals, which have their own.
fn live(connecting: impl Future<Output = Locker>) {
    let runtime = runtime();
    let locks = runtime.block_on(connecting);
    let mut guard: Option<LockGuard> = None;
    for line in io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<_> = line.split(' ').collect();
        match words[..] {
            ["acquire", name, ms] => {
                let lock = locks.lock(name).unwrap().ttl(millis(ms));
                let won = runtime.block_on(lock.acquire()).unwrap();
                say(&format!("held {}", won.fencing_token().unwrap()));
                guard = Some(won);
            }
            ["look"] => say(if held(&guard).is_held() { "held" } else { "lost" }),
            ["run"] => {
                let ran = runtime.block_on(held(&guard).run(async {}));
                say(if ran.is_ok() { "ran" } else { "refused" });
            }
            ["release"] => {
                let ended = runtime.block_on(guard.take().expect("it holds").release());
                say(&ended.map_or_else(|e| format!("{:?}", e.kind()), |()| "Ok".into()));
            }
            ["queue", name, ms, count] => {
                for _ in 0..count.parse().unwrap() {
                    let lock = locks.lock(name).unwrap().ttl(millis(ms));
                    runtime.spawn(async move { lock.acquire().await.unwrap().release().await });
                }
            }
            ["churn", name, ms] => runtime.block_on(churn(&locks, name, millis(ms))),
            ["panic"] => panic!("in the critical section"),
            ["task-panic"] => {
                let guard = guard.take();
                let task = runtime.spawn(async move {
                    let _guard = guard;
                    panic!("in the critical section");
                });
                assert!(runtime.block_on(task).is_err());
            }
            ["exit"] => std::process::exit(3),
            ["abort"] => std::process::abort(),
            ["return"] => return,
            _ => panic!("{line}"),
        }
    }
}

/// Acquires the lock, waits for two renewals, and releases it, repeatedly.
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
