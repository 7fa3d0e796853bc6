//! The residue of core when answers are lost and futures are dropped.
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::*;
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{FaultInjector, Injection, Verb};
use lock_core::layer::{Layer, Layered};
use lock_core::*;

const fn secs(secs: u64) -> Duration {
    Duration::from_secs(secs)
}
const fn millis(millis: u64) -> Duration {
    Duration::from_millis(millis)
}
#[derive(Debug)]
struct Lineless;
#[async_trait]
impl Layer for Lineless {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut caps = inner.capabilities();
        caps.order = Order::PerProcess;
        caps.wakeup = Wakeup::Poll;
        caps
    }

    async fn wait(&self, _: &dyn Backend, _: &Claim) -> Result<Wake, Fault> {
        sleep(millis(5)).await;
        Ok(Wake::Retry)
    }
}

#[tokio::test(start_paused = true)]
async fn a_detached_lock_does_not_forget_that_an_attempt_may_still_land() {
    for adopts in [true, false] {
        release_after_a_late_attempt(adopts).await;
    }
}
async fn release_after_a_late_attempt(adopts: bool) {
    let attempts = AtomicU32::new(0);
    let memory = Memory::new();
    let faulty = FaultInjector::new(Arc::new(memory.clone()), move |call| match call.verb {
        Verb::Wait => Injection::Hang,
        Verb::TryAcquire if attempts.fetch_add(1, Ordering::SeqCst) == 1 => {
            Injection::LandLate(secs(20))
        }
        _ => Injection::None,
    });
    let locks = Locker::new(faulty);
    let holder = Locker::new(memory.clone()).lock("n").unwrap().acquire().await.unwrap();
    let lock = locks.lock("n").unwrap().ttl(secs(5)).detachable();
    let waiter = tokio::spawn(async move { lock.acquire().await });
    sleep(secs(1)).await;
    holder.release().await.unwrap();
    let detached = waiter.await.unwrap().unwrap().detach().await.unwrap();
    if adopts {
        locks.adopt(detached).await.unwrap().release().await.unwrap();
    } else {
        locks.release_detached(&detached).await.unwrap();
    }
    sleep(secs(21)).await;
    assert!(memory.is_empty(), "the late attempt took the lock for nobody");
}

fn rt(n: usize) -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread().worker_threads(n).enable_all().build().unwrap()
}
fn stress(locks: &Locker, memory: &Memory) {
    let rt = rt(3);
    let busy = Arc::new(AtomicBool::new(false));
    let served = Arc::new(AtomicU64::new(0));
    let end = Moment::now() + secs(2);
    let tasks: Vec<_> = (0..40_u64)
        .map(|i| {
            let (locks, busy, served) = (locks.clone(), busy.clone(), served.clone());
            rt.spawn(async move {
                let mut x = i * 7919 + 1;
                while !end.has_passed() {
                    x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    let r = (x >> 33) % 6;
                    let lock = locks.lock("n").unwrap().ttl(secs(30));
                    let guard = match r {
                        0 => lock.try_acquire().await.unwrap(),
                        1 => lock.try_acquire_for(Duration::from_micros(x >> 50)).await.unwrap(),
                        2 => tokio::time::timeout(Duration::from_micros(x >> 52), lock.acquire())
                            .await
                            .ok()
                            .map(|g| g.unwrap()),
                        _ => Some(lock.acquire().await.unwrap()),
                    };
                    let Some(guard) = guard else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    assert!(!busy.swap(true, Ordering::SeqCst), "two holders");
                    if r == 4 {
                        tokio::task::yield_now().await;
                    }
                    assert!(guard.is_held());
                    busy.store(false, Ordering::SeqCst);
                    served.fetch_add(1, Ordering::SeqCst);
                    match r {
                        3 => guard.release().await.unwrap(),
                        5 => {
                            let _ = tokio::time::timeout(Duration::ZERO, guard.release()).await;
                        }
                        _ => drop(guard),
                    }
                }
            })
        })
        .collect();
    rt.block_on(async {
        for task in tasks {
            tokio::time::timeout(secs(20), task).await.expect("stuck").unwrap();
        }
        sleep(millis(300)).await;
    });
    assert!(served.load(Ordering::SeqCst) > 100, "next to nobody was served");
    assert!(memory.is_empty());
}
#[test]
fn stress_fifo() {
    let memory = Memory::new();
    stress(&Locker::new(memory.clone()), &memory);
}
#[test]
fn stress_lineless() {
    let memory = Memory::new();
    stress(&Locker::new(Layered::new(Arc::new(memory.clone()), Lineless)), &memory);
}

#[test]
fn nothing_is_kept_when_all_is_dropped() {
    #[derive(Debug)]
    struct Flag(Arc<AtomicBool>);
    impl Drop for Flag {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let gone = Arc::new(AtomicBool::new(false));
    impl Layer for Flag {}
    let rt = rt(1);
    rt.block_on(async {
        let locks = Locker::new(Layered::new(
            Arc::new(Layered::new(Arc::new(Memory::new()), Lineless)),
            Flag(gone.clone()),
        ));
        let a = locks.lock("a").unwrap().ttl(millis(50)).acquire().await.unwrap();
        let b = locks.lock("b").unwrap().acquire().await.unwrap();
        let w = locks.lock("b").unwrap();
        let _ = tokio::time::timeout(millis(10), w.acquire()).await;
        drop((a, b, w, locks));
        sleep(millis(500)).await;
    });
    assert!(gone.load(Ordering::SeqCst), "the backend is still alive");
}

/// An executor that polls where it is woken, as some user interfaces do.
#[test]
fn a_waker_that_polls_at_once_does_not_deadlock_the_memory_backend() {
    struct Inline {
        future: Mutex<Option<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>>,
    }
    impl std::task::Wake for Inline {
        fn wake(self: Arc<Self>) {
            let Ok(mut slot) = self.future.try_lock() else { return };
            let waker = std::task::Waker::from(self.clone());
            let mut cx = std::task::Context::from_waker(&waker);
            if let Some(future) = slot.as_mut()
                && future.as_mut().poll(&mut cx).is_ready()
            {
                *slot = None;
            }
        }
    }
    let (done, is_done) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let memory = Memory::new();
        let rt = rt(1);
        let _in = rt.enter();
        let name = LockName::new("n").unwrap();
        let holder = Claim::new(name.clone(), OwnerId::mint(), secs(30));
        let mut waiter = Claim::new(name, OwnerId::mint(), secs(30));
        waiter.on_contention = OnContention::Queue;
        rt.block_on(memory.try_acquire(&holder)).unwrap();
        rt.block_on(memory.try_acquire(&waiter)).unwrap();
        let m = memory.clone();
        let inline = Arc::new(Inline {
            future: Mutex::new(Some(Box::pin(async move {
                let _ = m.wait(&waiter).await;
            }))),
        });
        std::task::Wake::wake(inline);
        let _ = rt.block_on(memory.release(&holder, ReleaseMode::now()));
        done.send(()).unwrap();
    });
    assert!(
        is_done.recv_timeout(secs(3)).is_ok(),
        "deadlock: the waker ran under the backend's mutex"
    );
}

#[test]
fn shutdown_storm() {
    for round in 0..20 {
        let memory = Memory::new();
        let locks = Locker::new(Layered::new(Arc::new(memory.clone()), Lineless));
        let a = rt(2);
        let guards: Vec<_> = (0..20)
            .map(|i| {
                a.block_on(locks.lock(&*format!("n{i}")).unwrap().ttl(millis(200)).acquire())
                    .unwrap()
            })
            .collect();
        for i in 0..20 {
            let lock = locks.lock(&*format!("n{i}")).unwrap().ttl(millis(200));
            a.spawn(async move {
                let _ = lock.acquire().await;
            });
        }
        let dropper = std::thread::spawn(move || {
            for (i, guard) in guards.into_iter().enumerate() {
                if i % 3 == 0 {
                    nap(Duration::from_micros(50));
                }
                drop(guard);
            }
        });
        nap(Duration::from_micros(round * 20));
        a.shutdown_timeout(secs(5));
        dropper.join().unwrap();
        let b = rt(1);
        b.block_on(async {
            sleep(millis(420)).await;
            for i in 0..20 {
                let lock = locks.lock(&*format!("n{i}")).unwrap().ttl(secs(5));
                // Ghosts in the memory line are handed the lock for a claim lease each; that is
                // all.
                let got = lock.try_acquire_for(secs(8)).await.unwrap();
                assert!(got.is_some(), "round {round}: n{i} is stuck");
            }
        });
    }
}

/// Lets other threads work.
fn nap(duration: Duration) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    runtime.block_on(sleep(duration));
}
