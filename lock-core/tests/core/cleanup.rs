//! Releases in the background: soon for those whose server answers, bounded for the others.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::backend::{FaultKind, Ticket};
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::{Backend, ErrorKind, FencingToken, LockName, Locker, Memory, OwnerId};

use crate::support::{Altered, millis, secs};

async fn owner(memory: &Memory, name: &LockName) -> Option<OwnerId> {
    memory.inspect(name).await.unwrap().holders.first().and_then(|holder| holder.owner)
}

/// Waits until the lock has another owner than now, or none. Returns how long that took.
async fn passes_on(memory: &Memory, name: &LockName) -> Duration {
    let (began, before) = (Moment::now(), owner(memory, name).await);
    while owner(memory, name).await == before {
        sleep(millis(1)).await;
    }
    Moment::now().saturating_since(began)
}

#[tokio::test(start_paused = true)]
async fn a_release_does_not_wait_for_those_that_hang() {
    let memory = Memory::new();
    // The first release of a healthy lock fails as well, so that it is repeated.
    let fails = AtomicBool::new(true);
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
        Verb::Release if call.claim.name.as_str().starts_with("bad") => Injection::Hang,
        Verb::Release
            if call.claim.name.as_str() == "late" && fails.swap(false, Ordering::SeqCst) =>
        {
            Injection::Refuse(FaultKind::Unavailable)
        }
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let mut bad = Vec::new();
    for i in 0..2000 {
        bad.push(locks.lock(format!("bad{i}")).unwrap().ttl(secs(600)).acquire().await.unwrap());
    }
    let [good, late] = ["good", "late"].map(|name| locks.lock(name).unwrap().ttl(secs(600)));
    let (good, late) = (good.acquire().await.unwrap(), late.acquire().await.unwrap());
    let names = [good.name().clone(), late.name().clone()];
    drop(bad);
    // Their first releases have hung for a whole timeout and are repeated.
    sleep(secs(6)).await;
    drop((good, late));
    let took = passes_on(&memory, &names[0]).await;
    assert!(took < millis(10), "the server of this one answers, and the release took {took:?}");
    let took = passes_on(&memory, &names[1]).await;
    assert!(took < secs(20), "repeated once, and it took {took:?}");
}

#[tokio::test(start_paused = true)]
async fn releases_that_hang_are_repeated_at_a_bounded_rate() {
    let under_way = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&under_way);
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        Verb::Release => {
            counted.fetch_add(1, Ordering::SeqCst);
            Injection::Hang
        }
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    for i in 0..5000 {
        drop(locks.lock(format!("n{i}")).unwrap().ttl(secs(600)).acquire().await.unwrap());
    }
    sleep(secs(30)).await;
    let before = under_way.load(Ordering::SeqCst);
    sleep(secs(60)).await;
    let rate = (under_way.load(Ordering::SeqCst) - before) / 60;
    assert!((50..300).contains(&rate), "{rate} releases a second at a backend that hangs");
}

#[tokio::test(start_paused = true)]
async fn locks_that_are_lost_together_are_released_in_turn() {
    let (down, most) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (asked, counted) = (Arc::clone(&down), Arc::clone(&most));
    let faulty = FaultInjector::new(Arc::new(Memory::new()), move |call| match call.verb {
        _ if !asked.load(Ordering::SeqCst) => Injection::None,
        Verb::Release => {
            counted.fetch_add(1, Ordering::SeqCst);
            Injection::Hang
        }
        _ => Injection::Hang,
    });
    let locks = Locker::new(faulty);
    let mut guards = Vec::new();
    for i in 0..2000 {
        guards.push(locks.lock(format!("n{i}")).unwrap().ttl(secs(30)).acquire().await.unwrap());
    }
    down.store(true, Ordering::SeqCst);
    guards[0].lost().await;
    // The margin, and a while.
    sleep(millis(300) + millis(100)).await;
    let releases = most.load(Ordering::SeqCst);
    assert!((1..=64).contains(&releases), "{releases} releases at once, after an outage");
}

#[tokio::test(start_paused = true)]
async fn a_failed_release_is_repeated_soon_however_many_wait() {
    for waiters in [10, 1000] {
        let memory = Memory::new();
        let releases = AtomicUsize::new(0);
        let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
            Verb::Release if releases.fetch_add(1, Ordering::SeqCst) < 3 => {
                Injection::Refuse(FaultKind::Unavailable)
            }
            _ => Injection::None,
        });
        let locks = Locker::new(faulty);
        let guard = locks.lock("n").unwrap().acquire().await.unwrap();
        for _ in 0..waiters {
            let lock = locks.lock("n").unwrap();
            tokio::spawn(async move { lock.acquire().await });
        }
        sleep(millis(10)).await;
        let name = guard.name().clone();
        drop(guard);
        let took = passes_on(&memory, &name).await;
        assert!(took < millis(200), "repeated three times after {took:?}, while {waiters} wait");
    }
}

#[tokio::test(start_paused = true)]
async fn a_grant_that_is_refused_is_released_with_its_ticket() {
    let released = Arc::new(Mutex::new(Vec::new()));
    let (shown, regresses) = (Arc::clone(&released), Arc::new(AtomicBool::new(false)));
    let asked = Arc::clone(&regresses);
    let backend = Altered::new(Memory::new(), |_| ())
        .grants(move |mut grant| {
            if asked.load(Ordering::SeqCst) {
                grant.token = FencingToken::from_backend(1);
            }
            grant.with_ticket(Ticket::new(7_u32))
        })
        .releases(move |claim, _| shown.lock().unwrap().push(claim.ticket.is_some()));
    let locks = Locker::new(backend);
    locks.lock("n").unwrap().acquire().await.unwrap().release().await.unwrap();
    regresses.store(true, Ordering::SeqCst);
    let error = locks.lock("n").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FenceRegressed);
    locks.close().await.unwrap();
    assert_eq!(*released.lock().unwrap(), [true, true], "without what the backend gave");
}
