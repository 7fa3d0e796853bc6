//! Acquisitions whose result is not delivered: they leave nothing behind.

use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Claim;
use lock_core::clock::sleep;
use lock_core::faults::{Call, FaultInjector, Injection, Verb};
use lock_core::{Backend, Locker, Memory, OwnerId, Support};
use tokio::time::timeout;

use crate::support::{Altered, millis, secs};

/// Answers attempts with a delay, and never wakes a waiter.
fn slow(memory: &Memory, delay: Duration) -> FaultInjector {
    FaultInjector::new(Arc::new(memory.clone()), move |call: &Call<'_>| match call.verb {
        Verb::TryAcquire => Injection::DelayReply(delay),
        Verb::Wait => Injection::Hang,
        _ => Injection::None,
    })
}

async fn is_free(memory: &Memory) -> bool {
    Locker::new(memory.clone()).lock("cron").unwrap().try_acquire().await.unwrap().is_some()
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_was_dropped_keeps_no_minimum_hold() {
    let memory = Memory::new();
    let locks = Locker::new(slow(&memory, millis(100)));
    let lock = locks.lock("cron").unwrap().ttl(secs(5)).min_hold(secs(3600));
    assert!(timeout(millis(50), lock.acquire()).await.is_err());
    locks.close().await.unwrap();
    assert!(is_free(&memory).await, "no caller had a guard, and the lock is unavailable");
}

#[tokio::test(start_paused = true)]
async fn a_bounded_wait_that_ended_without_the_lock_keeps_no_minimum_hold() {
    let memory = Memory::new();
    // The lease of a crashed holder ends while the wait does: the second attempt is under way then.
    let crashed = Claim::new("cron".try_into().unwrap(), OwnerId::mint(), millis(1600));
    memory.try_acquire(&crashed).await.unwrap();
    let locks = Locker::new(slow(&memory, millis(200)));
    let lock = locks.lock("cron").unwrap().ttl(secs(5)).min_hold(secs(3600));
    assert!(lock.try_acquire_for(secs(2)).await.unwrap().is_none());
    locks.close().await.unwrap();
    assert!(is_free(&memory).await, "the wait ended with None, and the lock is unavailable");
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_that_was_dropped_keeps_no_minimum_hold_in_this_process() {
    let memory = Memory::new();
    let absent = |caps: &mut lock_core::Capabilities| caps.minimum_hold = Support::Absent;
    let locks = Locker::new(Altered::new(slow(&memory, millis(100)), absent));
    let lock = locks.lock("cron").unwrap().ttl(secs(5)).min_hold(secs(3600));
    assert!(timeout(millis(50), lock.acquire()).await.is_err());
    sleep(secs(1)).await;
    assert!(is_free(&memory).await, "no caller had a guard, and the lock is renewed");
}

#[tokio::test(start_paused = true)]
async fn a_successor_that_was_dropped_keeps_no_minimum_hold() {
    let memory = Memory::new();
    let locks = Locker::builder(memory.clone()).local_handovers(9).build();
    let holder = locks.lock("cron").unwrap().ttl(secs(30)).acquire().await.unwrap();
    let lock = locks.lock("cron").unwrap().ttl(secs(30)).min_hold(secs(3600));
    let mut successor = Box::pin(lock.acquire());
    assert!(timeout(millis(10), &mut successor).await.is_err());
    holder.release().await.unwrap();
    assert!(!is_free(&memory).await, "the lock is handed over, and not released");
    drop(successor);
    sleep(millis(50)).await;
    assert!(is_free(&memory).await, "no caller had a guard, and the lock is unavailable");
}

#[tokio::test(start_paused = true)]
async fn a_guard_that_was_delivered_keeps_its_minimum_hold() {
    let memory = Memory::new();
    let locks = Locker::new(slow(&memory, millis(100)));
    let lock = locks.lock("cron").unwrap().ttl(secs(5)).min_hold(secs(60));
    drop(timeout(millis(150), lock.acquire()).await.unwrap().unwrap());
    locks.close().await.unwrap();
    sleep(secs(59)).await;
    assert!(!is_free(&memory).await, "free before the minimum hold was over");
}
