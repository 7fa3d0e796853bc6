//! Residue of lost replies, of dropped futures, and of ended runtimes.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::{acquire, attempt, claim, is_free, locker, scratch, until};
use lock_core::backend::{Attempt, Backend, Release, ReleaseMode, Renewal};
use lock_core::clock::sleep;
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::{Effect, Executor, Locker, Loss, RenewalPolicy};
use lock_file::FileLocks;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, getpid, pidfd_getfd, pidfd_open};

/// Injects a fault into the first attempt.
fn injected(backend: &FileLocks, injection: Injection) -> FaultInjector {
    let done = AtomicBool::new(false);
    FaultInjector::new(Arc::new(backend.clone()), move |call| {
        if call.verb == Verb::TryAcquire && !done.swap(true, Ordering::SeqCst) {
            injection
        } else {
            Injection::None
        }
    })
}

#[tokio::test]
async fn a_grant_that_was_lost_is_cleaned_up() {
    for injection in
        [Injection::LoseReply, Injection::HangAfter, Injection::LandLate(Duration::from_millis(20))]
    {
        let dir = scratch();
        let backend = FileLocks::at(dir.path()).unwrap();
        let locks = Locker::builder(injected(&backend, injection))
            .timeout(Duration::from_millis(50))
            .build();
        let error = locks.lock("n").unwrap().acquire().await.unwrap_err();
        assert_eq!(error.effect(), Effect::Unknown);
        until("cleaned up", async || is_free(&locker(dir.path()), "n").await).await;
        locks.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_grant_that_was_lost_is_found_again() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let faulty = injected(&backend, Injection::LoseReply);
    let ours = claim("n");
    assert!(faulty.try_acquire(&ours).await.is_err());
    assert!(attempt(&backend, &claim("n")).await.is_none());
    let Ok(Attempt::Acquired(grant)) = faulty.try_acquire(&ours).await else {
        panic!("it is ours");
    };
    let same = attempt(&backend, &ours).await.unwrap();
    assert_eq!(same.token, grant.token);
    // Without a ticket, too: the owner is the right.
    let renewed = backend.renew(&[&ours]).await;
    assert!(matches!(&renewed[0], Ok(Renewal::Held(_))));
    drop((grant, same, renewed));
    assert!(attempt(&backend, &claim("n")).await.is_none());
    let release = backend.release(&ours, ReleaseMode::after_unknown_outcome()).await.unwrap();
    assert_eq!(release, Release::Released);
    assert!(attempt(&backend, &claim("n")).await.is_some());
}

#[tokio::test]
async fn a_lost_grant_without_a_retry_ends_with_its_ttl() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let mut ours = claim("n");
    ours.ttl = Duration::from_millis(50);
    drop(attempt(&backend, &ours).await.unwrap());
    until("gone by itself", async || is_free(&locker(dir.path()), "n").await).await;
    let renewed = backend.renew(&[&ours]).await;
    assert!(matches!(&renewed[0], Ok(Renewal::NotHeld)));
}

#[tokio::test]
async fn an_old_ticket_does_not_close_a_later_hold_of_its_owner() {
    const TTL: Duration = Duration::from_millis(50);
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let mut ours = claim("n");
    ours.ttl = TTL;
    // The grant is lost on its way, and the ticket with it.
    drop(attempt(&backend, &ours).await.unwrap());
    let release = backend.release(&ours, ReleaseMode::default()).await.unwrap();
    assert_eq!(release, Release::Released);
    ours.ticket = attempt(&backend, &ours).await.unwrap().ticket;
    sleep(TTL * 4).await;
    let renewed = backend.renew(&[&ours]).await;
    assert!(matches!(&renewed[0], Ok(Renewal::Held(_))), "{renewed:?}");
    assert!(!is_free(&locker(dir.path()), "n").await);
}

#[tokio::test]
async fn a_ticket_that_had_arrived_takes_the_lock_with_it() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let mut ours = claim("n");
    ours.ticket = attempt(&backend, &ours).await.unwrap().ticket;
    let renewed = backend.renew(&[&ours]).await;
    assert!(matches!(&renewed[0], Ok(Renewal::Held(_))));
    drop(ours);
    until("closed", async || is_free(&locker(dir.path()), "n").await).await;
}

#[tokio::test]
async fn a_fork_that_is_alive_keeps_a_lock_that_was_not_released() {
    let dir = scratch();
    let backend = FileLocks::at(dir.path()).unwrap();
    let mut ours = claim("n");
    ours.ticket = attempt(&backend, &ours).await.unwrap().ticket;
    let renewed = backend.renew(&[&ours]).await;
    assert!(matches!(&renewed[0], Ok(Renewal::Held(_))));
    // As fork(2) copies it: another descriptor of the same open file.
    let file = dir.path().join("n.lock");
    let mut open = std::fs::read_dir("/proc/self/fd").unwrap().map(|fd| fd.unwrap());
    let number = open.find(|fd| std::fs::read_link(fd.path()).is_ok_and(|it| it == file));
    let number = number.unwrap().file_name().into_string().unwrap().parse().unwrap();
    let this = pidfd_open(getpid(), PidfdFlags::empty()).unwrap();
    let copied = pidfd_getfd(&this, number, PidfdGetfdFlags::empty()).unwrap();
    drop(ours);
    assert!(
        !is_free(&locker(dir.path()), "n").await,
        "whichever of the two comes to its end first"
    );
    drop(copied);
    until("closed", async || is_free(&locker(dir.path()), "n").await).await;
}

#[test]
fn a_lock_is_free_when_the_runtime_that_was_given_to_its_locker_is_gone() {
    for renewed in [false, true] {
        let dir = scratch();
        let doomed = tokio::runtime::Runtime::new().unwrap();
        let executor = Executor::of(doomed.handle().clone());
        let backend = FileLocks::at(dir.path()).unwrap();
        let locks = Locker::builder(backend).executor(executor).build();
        let guard = doomed.block_on(acquire(&locks, "n"));
        if renewed {
            doomed.block_on(guard.verify()).unwrap();
        }
        drop(doomed);
        assert_eq!(guard.loss(), Some(Loss::RuntimeGone));

        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(until("freed", async || is_free(&locker(dir.path()), "n").await));
        drop(guard);
    }
}

#[test]
fn a_guard_dropped_outside_of_any_runtime_frees_the_lock() {
    let dir = scratch();
    let locks = locker(dir.path());
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let guard = runtime.block_on(acquire(&locks, "n"));
    drop(runtime);
    drop(guard);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(until("freed", async || is_free(&locker(dir.path()), "n").await));
}

#[tokio::test]
async fn waiters_that_give_up_leave_no_descriptor() {
    let dir = scratch();
    let locks = locker(dir.path());
    let guard = acquire(&locks, "n").await;
    let open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        files
            .filter_map(|fd| std::fs::read_link(fd.ok()?.path()).ok())
            .filter(|file| file.starts_with(dir.path()))
            .count()
    };
    for _ in 0..20 {
        let lock = locker(dir.path()).lock("n").unwrap();
        let wait = Duration::from_millis(3);
        assert!(lock.try_acquire_for(wait).await.unwrap().is_none());
    }
    until("only ours is open", async || open() == 1).await;
    guard.release().await.unwrap();
    until("none is open", async || open() == 0).await;
}

#[test]
fn a_signal_that_outlives_guard_and_runtime_does_not_keep_the_lock() {
    for renewal in [RenewalPolicy::default(), RenewalPolicy::off()] {
        let dir = scratch();
        let locks = locker(dir.path());
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let lock = locks.lock("n").unwrap().renewal(renewal);
        let guard = runtime.block_on(lock.acquire()).unwrap();
        let signal = guard.loss_signal();
        runtime.shutdown_timeout(Duration::from_secs(5));
        drop(guard);

        let runtime = tokio::runtime::Runtime::new().unwrap();
        runtime.block_on(until("freed", async || is_free(&locker(dir.path()), "n").await));
        drop(signal);
    }
}

#[test]
fn a_lock_outlives_the_runtimes_of_its_callers() {
    let dir = scratch();
    let [connects, wins] = [(); 2].map(|()| tokio::runtime::Runtime::new().unwrap());
    let locks = connects.block_on(async { locker(dir.path()) });
    let lock = locks.lock("n").unwrap().ttl(Duration::from_millis(500));
    let guard = wins.block_on(lock.acquire()).unwrap();
    drop(connects);
    wins.shutdown_background();
    let here = tokio::runtime::Runtime::new().unwrap();
    here.block_on(async {
        // Ten times the ttl, at which the backend looks.
        let lost = tokio::time::timeout(Duration::from_secs(5), guard.lost()).await;
        assert!(lost.is_err(), "{lost:?}");
        assert!(!is_free(&locker(dir.path()), "n").await);
        guard.release().await.unwrap();
        assert!(is_free(&locker(dir.path()), "n").await);
    });
}
