//! Wrong clocks: the server's, which ends the leases, and the client's, which must not matter.

use std::collections::HashMap;
use std::future::Future;
use std::io::{BufRead, BufReader, Lines, Write};
use std::process::{Child, ChildStderr, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use lock_conformance::proxy::{Fault, Proxy};
use lock_core::backend::Attempt;
use lock_core::clock::{Moment, sleep, wall};
use lock_core::{Backend, ErrorKind, FenceGate, FencingToken, LockGuard, Locker, Loss};
use lock_redis::Redis;
use metrics_util::debugging::{DebugValue, DebuggingRecorder};
use test_servers::{Clock, Step};

use crate::support::{SOON, Server, claim, contended, eventually, name, win};

const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns a holder that was partitioned right after its grant: none of its requests reaches the
/// server any more.
async fn hold_cut_off(server: &Server, lock: &str, ttl: Duration) -> (LockGuard, Proxy) {
    let (proxy, url) = server.proxied();
    let locks = Locker::new(Redis::connect(url).await.unwrap());
    let guard = locks.lock(lock).unwrap().ttl(ttl).acquire().await.unwrap();
    proxy.set(Fault::BlackHole);
    (guard, proxy)
}

async fn hold(locks: &Redis, ttl: Duration) -> LockGuard {
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(ttl);
    tokio::time::timeout(SOON, lock.acquire()).await.expect("it is free").unwrap()
}

#[tokio::test]
async fn a_step_forward_admits_others_and_notifies_the_holder() {
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    let guard = hold(&locks, MINUTE).await;
    let gate = FenceGate::new(Vec::new());
    gate.admit(guard.fencing_token().unwrap(), |log| log.push("first")).unwrap();
    server.step_clock(Step::Forward(Duration::from_secs(50)));
    let expires_in = contended(other.try_acquire(&claim("n", 1000)).await).unwrap();
    assert!(expires_in <= Duration::from_secs(10), "{expires_in:?}");
    // A renewal in time corrects it.
    guard.verify().await.unwrap();
    assert!(server.pttl("n") > 50_000);
    server.step_clock(Step::Forward(Duration::from_secs(70)));
    let next = hold(&other, MINUTE).await;
    assert!(guard.is_held(), "that the clock is right was assumed");
    gate.admit(next.fencing_token().unwrap(), |log| log.push("second")).unwrap();
    // Fencing still holds.
    let late = gate.admit(guard.fencing_token().unwrap(), |log| log.push("late"));
    assert_eq!(late.unwrap_err().kind(), ErrorKind::FenceRegressed);
    assert_eq!(guard.verify().await.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(guard.loss(), Some(Loss::NotHeld));
    next.verify().await.expect("the first one's end harms nobody");
    assert_eq!(
        gate.admit(next.fencing_token().unwrap(), |log| log.clone()).unwrap(),
        ["first", "second"]
    );
}

#[tokio::test]
async fn a_partitioned_holder_ends_by_its_own_deadline() {
    let server = Server::with_log_and_clock();
    let other = server.client().await;
    let ttl = Duration::from_secs(3);
    let began = Moment::now();
    let (guard, _proxy) = hold_cut_off(&server, "n", ttl).await;
    server.step_clock(Step::Forward(ttl + ttl));
    assert_eq!(server.get("n"), None, "it has lapsed there");
    let next = hold(&other, MINUTE).await;
    let loss = tokio::time::timeout(SOON, guard.lost()).await.expect("it is told");
    assert_eq!(loss, Loss::Expired);
    let took = Moment::now().saturating_since(began);
    assert!(took > ttl / 2 && took < ttl + SOON, "told after {took:?}");
    assert!(!guard.is_held());
    assert!(next.fencing_token() > guard.fencing_token());
    next.verify().await.unwrap();
}

#[tokio::test]
async fn a_step_back_delays_waiters_and_hangs_none() {
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    let ttl = Duration::from_millis(1000);
    let mut crashed = claim("n", 1000);
    let since = win(&locks, &mut crashed).await.since;
    server.step_clock(Step::Back(Duration::from_secs(100)));
    let expires_in = contended(other.try_acquire(&claim("n", 1000)).await).unwrap();
    assert!(expires_in > Duration::from_secs(90), "{expires_in:?}");
    let looks = server.calls("evalsha");
    let waiting = Locker::new(other).lock("n").unwrap().ttl(ttl);
    let waiter = tokio::spawn(async move { waiting.acquire().await });
    // It does not sleep for as long as the server reports.
    eventually(|| server.calls("evalsha") >= looks + 3).await;
    assert!((since + ttl).has_passed() && !waiter.is_finished(), "late, never early");
    // So it notices by itself that an operator corrects the clock, which sends no wake-up.
    server.step_clock(Step::Forward(Duration::from_secs(100)));
    let next = tokio::time::timeout(SOON, waiter).await.expect("served").unwrap().unwrap();
    assert!(next.is_held());
}

#[tokio::test]
async fn a_small_step_back_ends_by_itself() {
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    let mut crashed = claim("n", 1000);
    let since = win(&locks, &mut crashed).await.since;
    let step = Duration::from_secs(3);
    server.step_clock(Step::Back(step));
    let waiting = Locker::new(other).lock("n").unwrap().ttl(MINUTE);
    let waited = tokio::time::timeout(SOON, waiting.acquire()).await;
    let next = waited.expect("served").unwrap();
    let after = Moment::now().saturating_since(since);
    assert!(after > step, "the lease ended {after:?} after it was given, by the server's clock");
    assert!(next.is_held());
}

#[tokio::test]
async fn tokens_grow_though_the_clock_goes_back_while_the_data_are_kept() {
    let server = Server::with_log_and_clock();
    let locks = server.client().await;
    let mut last = None;
    for back in [Duration::ZERO, HOUR, HOUR, 24 * HOUR] {
        server.step_clock(Step::Back(back));
        for _ in 0..2 {
            let guard = hold(&locks, MINUTE).await;
            assert!(guard.fencing_token() > last);
            last = guard.fencing_token();
            guard.release().await.unwrap();
        }
        server.kill();
        server.start_with_data();
        let _ = locks.inspect(&name("n")).await;
    }
}

/// Takes the lock of a partitioned holder as soon as it expires. Returns the holder, and how much
/// of its time it had left.
async fn overtake(server: Arc<Server>, lock: String, ttl: Duration) -> Overtaken {
    let other = server.client().await;
    let (holder, _proxy) = hold_cut_off(&server, &lock, ttl).await;
    let deadline = Moment::now() + holder.valid_for().expect("it is held");
    let next = claim(&lock, 60_000);
    loop {
        match other.try_acquire(&next).await.unwrap() {
            Attempt::Acquired(grant) => {
                let early = deadline.saturating_since(Moment::now());
                let next = grant.token.unwrap();
                return Overtaken { early, holder: holder.fencing_token().unwrap(), next };
            }
            // More and more often, to poll at the moment when it ends.
            Attempt::Contended { expires_in } => sleep(expires_in.unwrap() / 2).await,
        }
    }
}

#[derive(Debug)]
struct Overtaken {
    early: Duration,
    holder: FencingToken,
    next: FencingToken,
}

async fn overtake_many(server: &Arc<Server>, ttl: Duration) -> Vec<Overtaken> {
    let one = |i| tokio::spawn(overtake(Arc::clone(server), format!("n{i}"), ttl));
    let all: Vec<_> = (0..8).map(one).collect();
    let mut done = Vec::new();
    for one in all {
        done.push(one.await.unwrap());
    }
    done
}

#[tokio::test]
async fn a_clock_one_per_cent_fast_overtakes_no_holder() {
    let server = Arc::new(Server::with_log_and_clock());
    server.run_clock_too_fast_by(10);
    for ttl in [2000, 500] {
        for one in overtake_many(&server, Duration::from_millis(ttl)).await {
            assert!(one.early.is_zero() && one.next > one.holder, "{one:?}");
        }
        let _: String = server.run("FLUSHALL");
    }
}

#[tokio::test]
async fn a_clock_five_per_cent_fast_leaves_fencing_alone() {
    let server = Arc::new(Server::with_log_and_clock());
    server.run_clock_too_fast_by(50);
    let end = Moment::now() + MINUTE;
    loop {
        let overtaken = overtake_many(&server, Duration::from_secs(2)).await;
        for one in &overtaken {
            let gate = FenceGate::new(());
            gate.admit(one.next, |()| ()).unwrap();
            assert!(gate.admit(one.holder, |()| ()).is_err(), "{one:?}");
        }
        if overtaken.iter().any(|one| !one.early.is_zero()) {
            return;
        }
        // A holder that is alive in those 80 ms needs it.
        assert!(!end.has_passed(), "is the clock fast at all?");
        let _: String = server.run("FLUSHALL");
    }
}

/// A process with a wrong wall clock, which follows orders.
struct Misled {
    process: Child,
    orders: ChildStdin,
    answers: Lines<BufReader<ChildStderr>>,
}

impl Misled {
    fn start(server: &Server, clock: &Clock) -> Self {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "clocks::helper_with_a_wrong_clock", "--nocapture"]);
        command.env("CLOCKS_HELPER", server.url());
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        clock.give_to(&mut command);
        let mut process = command.spawn().unwrap();
        let orders = process.stdin.take().unwrap();
        let answers = BufReader::new(process.stderr.take().unwrap()).lines();
        Self { process, orders, answers }
    }

    fn ask(&mut self, order: &str) -> String {
        writeln!(self.orders, "{order}").unwrap();
        // Other output is not an answer.
        let mut answers = self.answers.by_ref().map_while(Result::ok);
        let mut seen = Vec::new();
        loop {
            let line = answers.next().unwrap_or_else(|| panic!("it has ended: {seen:?}"));
            match line.strip_prefix("answer: ") {
                Some(answer) => return answer.to_owned(),
                None => seen.push(line),
            }
        }
    }
}

/// Takes locks as ordered, in a process of its own. It is no test by itself: the next test starts
/// it.
#[tokio::test(flavor = "multi_thread")]
async fn helper_with_a_wrong_clock() {
    let Ok(url) = std::env::var("CLOCKS_HELPER") else { return };
    let locks = Locker::new(Redis::connect(url).await.unwrap());
    let mut guards = HashMap::new();
    // Until the process that started it ends.
    while let Some(Ok(order)) = tokio::task::block_in_place(|| std::io::stdin().lines().next()) {
        let (verb, lock) = order.split_once(' ').unwrap();
        let answer = match verb {
            "take" => {
                let guard = locks.lock(lock).unwrap().ttl(TTL).acquire().await.unwrap();
                let token = guard.fencing_token().unwrap().backend_number();
                guards.insert(lock.to_owned(), guard);
                token.to_string()
            }
            "look" => {
                let guard = &guards[lock];
                let verified = guard.verify().await.is_ok();
                format!("{} {:?} {verified}", guard.is_held(), guard.loss())
            }
            "release" => format!("{:?}", guards.remove(lock).unwrap().release().await),
            "clock" => wall().as_secs().to_string(),
            other => panic!("{other}?"),
        };
        eprintln!("answer: {answer}");
    }
}

/// The lease of the locks of that process.
const TTL: Duration = Duration::from_secs(3);

#[tokio::test(flavor = "multi_thread")]
async fn the_wall_clock_of_a_client_does_not_matter() {
    let server = Server::start();
    let other = server.client().await;
    let clock = Clock::new().unwrap();
    let mut misled = Misled::start(&server, &clock);
    let mut last: u64 = misled.ask("take n").parse().unwrap();
    let mut offset: i64 = 0;
    for (step, by) in
        [(Step::Forward(HOUR), 3600), (Step::Back(2 * HOUR), -7200), (Step::Forward(HOUR), 3600)]
    {
        clock.step(step);
        offset += by;
        let shown: i64 = misled.ask("clock x").parse().unwrap();
        let true_time = i64::try_from(wall().as_secs()).unwrap();
        assert!((shown - true_time - offset).abs() < 30, "it believes in {shown}");
        assert_eq!(misled.ask("look n"), "true None true");
        // It renews neither late nor too often.
        let (began, renewals) = (Moment::now(), server.calls("pexpire"));
        eventually(|| server.calls("pexpire") >= renewals + 2).await;
        assert!(Moment::now().saturating_since(began) > TTL / 4);
        assert!(server.pttl("n") > 0 && server.pttl("n") <= 3000);
        contended(other.try_acquire(&claim("n", 1000)).await);
        assert_eq!(misled.ask("look n"), "true None true");
        // Waiting for a crashed holder: neither too long nor too short.
        let mut crashed = claim("crashed", 1000);
        let since = win(&other, &mut crashed).await.since;
        let token: u64 = misled.ask("take crashed").parse().unwrap();
        let waited = Moment::now().saturating_since(since);
        assert!(waited >= Duration::from_millis(1000) && waited < SOON, "{waited:?}");
        assert!(token > last, "numbers are not of its making");
        last = token;
        let micros = u64::try_from(wall().as_micros()).unwrap();
        assert!(token.abs_diff(micros) < 600_000_000, "{token} at {micros}");
        assert_eq!(misled.ask("release crashed"), "Ok(())");
    }
    assert_eq!(misled.ask("release n"), "Ok(())");
    assert_eq!(server.get("n"), None);
    drop(misled.orders);
    assert!(misled.process.wait().unwrap().success());
}

/// Returns the offset of the server's clock that one attempt shows, in seconds.
async fn offset_seen(attempt: impl Future) -> f64 {
    let recorder = DebuggingRecorder::new();
    let seen = recorder.snapshotter();
    let installed = metrics::set_default_local_recorder(&recorder);
    attempt.await;
    drop(installed);
    let seen = seen.snapshot().into_vec();
    let [(key, _, _, DebugValue::Gauge(offset))] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!(key.key().name(), "lock_server_clock_offset_seconds");
    assert!(key.key().labels().any(|it| (it.key(), it.value()) == ("backend", "redis")));
    offset.into_inner()
}

#[tokio::test]
async fn the_metrics_show_the_offset_of_the_servers_clock() {
    let server = Server::with_log_and_clock();
    let (locks, other) = (server.client().await, server.client().await);
    for ahead in [0.0, 50.0] {
        let name = format!("ahead-{ahead}");
        let granted = offset_seen(locks.try_acquire(&claim(&name, 60_000))).await;
        assert!((granted - ahead).abs() < 5.0, "{granted} at a grant, not {ahead}");
        let refused = offset_seen(other.try_acquire(&claim(&name, 60_000))).await;
        assert!((refused - ahead).abs() < 5.0, "{refused} at a refusal, not {ahead}");
        server.step_clock(Step::Forward(Duration::from_secs(50)));
    }
}
