//! The watch for a loss, on a memory backend that pushes losses, with a paused clock.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::*;
use lock_core::clock::{Moment, sleep};
use lock_core::layer::{Layer, Layered};
use lock_core::*;
use tokio::sync::Notify;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}

/// How its waits of held claims end.
#[derive(Clone, Copy, Debug)]
enum Manner {
    AsInMemory,
    Never,
    AtOnce,
    AtAPush,
    InErrors,
    InPanics,
}

/// Memory, with a count of the waits for held claims.
#[derive(Clone, Debug)]
struct Counted {
    memory: Memory,
    loss_push: Support,
    manner: Manner,
    waits: Arc<AtomicUsize>,
    /// Waits that have neither ended nor been dropped.
    waiting: Arc<AtomicUsize>,
    renewals: Arc<AtomicUsize>,
    pushes: Arc<Notify>,
}

impl Counted {
    fn new(loss_push: Support, manner: Manner) -> Self {
        let (waits, waiting, renewals) = (Arc::default(), Arc::default(), Arc::default());
        let (memory, pushes) = (Memory::new(), Arc::default());
        Self { memory, loss_push, manner, waits, waiting, renewals, pushes }
    }

    /// Ends a wait, and waits until the next one has begun.
    async fn push(&self) {
        let (waits, ..) = self.counts();
        self.pushes.notify_one();
        while self.counts().0 == waits {
            sleep(Duration::from_millis(1)).await;
        }
    }

    fn counts(&self) -> (usize, usize, usize) {
        let count = |counter: &AtomicUsize| counter.load(Ordering::SeqCst);
        (count(&self.waits), count(&self.waiting), count(&self.renewals))
    }
}

struct Waiting(Arc<AtomicUsize>);

impl Waiting {
    fn new(waiting: &Arc<AtomicUsize>) -> Self {
        waiting.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(waiting))
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[async_trait]
impl Layer for Counted {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities().loss_push(self.loss_push)
    }

    async fn wait_lost(&self, inner: &dyn Backend, claim: &Claim) -> Result<(), Fault> {
        self.waits.fetch_add(1, Ordering::SeqCst);
        let _waiting = Waiting::new(&self.waiting);
        match self.manner {
            Manner::AsInMemory => inner.wait_lost(claim).await,
            Manner::Never => std::future::pending().await,
            Manner::AtOnce => Ok(()),
            Manner::AtAPush => {
                self.pushes.notified().await;
                Ok(())
            }
            Manner::InErrors => Err(Fault::unknown(FaultKind::Unavailable, "no luck")),
            Manner::InPanics => panic!("no luck"),
        }
    }

    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.renewals.fetch_add(1, Ordering::SeqCst);
        inner.renew(claims).await
    }
}

async fn hold(backend: &Counted, ttl: Duration) -> LockGuard {
    Locker::new(Layered::new(Arc::new(backend.memory.clone()), backend.clone()))
        .lock("n")
        .unwrap()
        .ttl(ttl)
        .acquire()
        .await
        .unwrap()
}

#[tokio::test(start_paused = true)]
async fn a_lock_that_is_removed_by_hand_is_lost_at_once() {
    for wait_before in [Duration::ZERO, secs(1), secs(3000)] {
        let backend = Counted::new(Support::Present, Manner::AsInMemory);
        let guard = hold(&backend, secs(3600)).await;
        sleep(wait_before).await;
        backend.memory.evict(guard.name());
        let removed = Moment::now();
        assert_eq!(guard.lost().await, Loss::NotHeld);
        let told = Moment::now().saturating_since(removed);
        assert!(
            told < Duration::from_millis(150),
            "removed after {wait_before:?}, told after {told:?}"
        );
    }
}

/// An operator removes one node after the other, in the order of the queue.
#[tokio::test(start_paused = true)]
async fn a_waiter_that_was_just_granted_hears_of_a_removal_at_once() {
    let backend = Counted::new(Support::Present, Manner::AsInMemory);
    let first = hold(&backend, secs(3600)).await;
    let next = tokio::spawn({
        let backend = backend.clone();
        async move { hold(&backend, secs(3600)).await }
    });
    sleep(secs(1)).await;
    backend.memory.evict(first.name());
    let guard = next.await.unwrap();
    backend.memory.evict(guard.name());
    let removed = Moment::now();
    assert_eq!(guard.lost().await, Loss::NotHeld);
    let told = Moment::now().saturating_since(removed);
    assert!(told < Duration::from_millis(20), "told after {told:?}");
}

#[tokio::test(start_paused = true)]
async fn without_a_push_no_request_is_sent() {
    let backend = Counted::new(Support::Present, Manner::Never);
    let guard = hold(&backend, secs(3600)).await;
    sleep(secs(1000)).await;
    assert_eq!(backend.counts(), (1, 1, 0), "waits, waiting, renewals");
    drop(guard);
    sleep(Duration::from_millis(1)).await;
    assert_eq!(backend.counts(), (1, 0, 0), "a hold that has ended drops its wait");
}

#[tokio::test(start_paused = true)]
async fn short_holds_and_backends_without_loss_push_do_not_wait_for_a_push() {
    let backend = Counted::new(Support::Present, Manner::AsInMemory);
    for _ in 0..1000 {
        let guard = hold(&backend, secs(30)).await;
        sleep(Duration::from_millis(90)).await;
        guard.release().await.unwrap();
    }
    sleep(secs(60)).await;
    assert_eq!(backend.counts(), (0, 0, 0));
    let backend = Counted::new(Support::Absent, Manner::AsInMemory);
    let guard = hold(&backend, secs(3600)).await;
    sleep(secs(900)).await;
    assert_eq!(backend.counts(), (0, 0, 0));
    backend.memory.evict(guard.name());
    sleep(secs(100)).await;
    assert!(guard.is_held(), "it is told by its next renewal");
    sleep(secs(300)).await;
    assert_eq!(guard.loss(), Some(Loss::NotHeld));
}

#[tokio::test(start_paused = true)]
async fn a_push_renews_no_hold_that_is_not_to_be_renewed() {
    let backend = Counted::new(Support::Present, Manner::AtOnce);
    let lock = Locker::new(Layered::new(Arc::new(backend.memory.clone()), backend.clone()))
        .lock("n")
        .unwrap()
        .ttl(secs(3600));
    let guard = lock.renewal(RenewalPolicy::off()).acquire().await.unwrap();
    sleep(secs(1000)).await;
    assert!(guard.is_held());
    assert_eq!(backend.counts().2, 0, "it was renewed against its policy");
}

#[tokio::test(start_paused = true)]
async fn a_backend_that_wakes_for_nothing_costs_little() {
    for (manner, most) in [(Manner::AtOnce, 800), (Manner::InErrors, 400), (Manner::InPanics, 400)]
    {
        let backend = Counted::new(Support::Present, manner);
        let guard = hold(&backend, secs(30)).await;
        sleep(secs(3600)).await;
        let (waits, _, renewals) = backend.counts();
        // Once in ten seconds without notices.
        assert!((360..=most).contains(&renewals), "{manner:?}: {renewals} renewals in an hour");
        assert!(waits <= 800, "{manner:?}: {waits} waits in an hour");
        guard.release().await.unwrap();
    }
}

/// Each of many pushes makes the pause before the next wait longer.
#[tokio::test(start_paused = true)]
async fn after_a_quiet_time_waits_follow_each_other_soon_again() {
    let backend = Counted::new(Support::Present, Manner::AtAPush);
    let _guard = hold(&backend, secs(30)).await;
    sleep(secs(1)).await;
    for _ in 0..12 {
        backend.push().await;
    }
    let began = Moment::now();
    backend.push().await;
    assert!(Moment::now().saturating_since(began) > secs(4), "pauses do not grow");
    sleep(secs(60)).await;
    let began = Moment::now();
    backend.push().await;
    let paused = Moment::now().saturating_since(began);
    assert!(paused < Duration::from_millis(25), "a pause of {paused:?} after a quiet time");
}

#[tokio::test(start_paused = true)]
async fn a_push_does_not_overrule_the_policy() {
    let backend = Counted::new(Support::Present, Manner::AtOnce);
    let lock = Locker::new(Layered::new(Arc::new(backend.memory.clone()), backend.clone()))
        .lock("n")
        .unwrap()
        .ttl(secs(100));
    let guard = lock.renewal(RenewalPolicy::off()).acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    let (_, _, renewals) = backend.counts();
    assert_eq!(renewals, 0);
    let probed = Locker::new(Layered::new(Arc::new(backend.memory.clone()), backend.clone()))
        .lock("n")
        .unwrap()
        .ttl(secs(100));
    let probed = probed.renewal(RenewalPolicy::default().only_while(|| false));
    let guard = probed.acquire().await.unwrap();
    assert_eq!(guard.lost().await, Loss::Expired);
    assert_eq!(backend.counts().2, renewals);
}
