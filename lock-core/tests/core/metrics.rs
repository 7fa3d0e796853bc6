//! The metrics: the value of each after each kind of event, and gauges that go back to zero.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lock_core::backend::FaultKind;
use lock_core::clock::{Moment, sleep};
use lock_core::faults::{Call, FaultInjector, Injection, Verb};
use lock_core::{
    Backend, Error, Executor, Lock, LockGuard, LockName, Locker, LockerBuilder, Memory,
    RenewalPolicy, metrics,
};
use metrics_util::debugging::{DebugValue, DebuggingRecorder, Snapshotter};

use crate::support::{Altered, millis, runtime, secs};

const TTL: Duration = secs(30);

/// The metrics of the locks that a test makes on its own thread.
struct Recorded {
    snapshotter: Snapshotter,
    seen: Mutex<BTreeMap<(String, Labels), Value>>,
}

type Labels = BTreeMap<String, String>;

#[derive(Debug)]
enum Value {
    Number(f64),
    Times(Vec<f64>),
}

impl Recorded {
    /// Runs `test` with a recorder.
    async fn during(test: impl AsyncFnOnce(&Self)) {
        let recorder = DebuggingRecorder::new();
        let recorded = Self { snapshotter: recorder.snapshotter(), seen: Mutex::default() };
        let _installed = ::metrics::set_default_local_recorder(&recorder);
        test(&recorded).await;
    }

    /// Adds what was recorded since the last call: a snapshot sets everything to zero.
    fn update(&self) {
        for (key, _, _, value) in self.snapshotter.snapshot().into_vec() {
            let key = key.key();
            let labels = key.labels().map(|it| (it.key().to_owned(), it.value().to_owned()));
            let key = (key.name().to_owned(), labels.collect());
            let mut seen = self.seen.lock().unwrap();
            match value {
                DebugValue::Histogram(new) => {
                    let Value::Times(times) = seen.entry(key).or_insert(Value::Times(Vec::new()))
                    else {
                        panic!("a histogram became a number")
                    };
                    times.extend(new.into_iter().map(|time| *time));
                }
                DebugValue::Counter(_) | DebugValue::Gauge(_) => {
                    let more = match value {
                        DebugValue::Counter(more) => more as f64,
                        DebugValue::Gauge(more) => *more,
                        DebugValue::Histogram(_) => unreachable!("matched before"),
                    };
                    let Value::Number(number) = seen.entry(key).or_insert(Value::Number(0.0))
                    else {
                        panic!("a number became a histogram")
                    };
                    *number += more;
                }
            }
        }
    }

    /// Returns the sum of the series of `name` that have these labels.
    fn number(&self, name: &str, labels: &[(&str, &str)]) -> f64 {
        self.with(name, labels, |value| match value {
            Value::Number(number) => *number,
            Value::Times(_) => panic!("{name} is a histogram"),
        })
        .into_iter()
        .sum()
    }

    fn times(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        self.with(name, labels, |value| match value {
            Value::Number(_) => panic!("{name} is a number"),
            Value::Times(times) => times.clone(),
        })
        .concat()
    }

    fn with<T>(&self, name: &str, labels: &[(&str, &str)], get: impl Fn(&Value) -> T) -> Vec<T> {
        self.update();
        let seen = self.seen.lock().unwrap();
        let is_asked = |(it, its): &(String, Labels)| {
            it == name
                && labels.iter().all(|&(key, value)| its.get(key).is_some_and(|v| v == value))
        };
        let found: Vec<T> =
            seen.iter().filter(|(key, _)| is_asked(key)).map(|(_, value)| get(value)).collect();
        assert!(!found.is_empty(), "no {name} with {labels:?}");
        found
    }

    /// Returns the counts of `name` that are not zero, by the value of `label`.
    fn counts(&self, name: &str, label: &str) -> BTreeMap<String, f64> {
        self.update();
        let mut counts = BTreeMap::new();
        for ((it, labels), value) in &*self.seen.lock().unwrap() {
            if let (true, Value::Number(number)) = (it == name && *value != 0.0, value) {
                *counts.entry(labels[label].clone()).or_default() += number;
            }
        }
        counts
    }

    fn waiters(&self) -> f64 {
        self.number("lock_waiters", &[])
    }

    fn held(&self) -> f64 {
        self.number("lock_held", &[])
    }
}

impl PartialEq<f64> for Value {
    fn eq(&self, other: &f64) -> bool {
        matches!(self, Self::Number(number) if number == other)
    }
}

fn counts(expected: &[(&str, f64)]) -> BTreeMap<String, f64> {
    expected.iter().map(|&(value, count)| (value.to_owned(), count)).collect()
}

fn locks() -> Locker {
    Locker::new(Memory::new())
}

fn lock(locks: &Locker) -> Lock {
    locks.lock("n").unwrap().ttl(TTL)
}

async fn acquire(locks: &Locker) -> Result<LockGuard, Error> {
    lock(locks).acquire().await
}

/// A locker whose calls fail as `script` says.
fn failing(
    memory: &Memory,
    script: impl Fn(&Call<'_>) -> Injection + Send + Sync + 'static,
) -> LockerBuilder {
    Locker::builder(FaultInjector::new(Arc::new(memory.clone()), script))
}

fn fails(failing: Verb, injection: Injection) -> impl Fn(&Call<'_>) -> Injection {
    move |call| if call.verb == failing { injection } else { Injection::None }
}

/// Polls a future until it waits, for a second, and drops it.
async fn cancel<T>(future: impl Future<Output = T>) {
    tokio::select! {
        biased;
        _ = future => panic!("it does not wait"),
        () = sleep(secs(1)) => {}
    }
    settle().await;
}

/// Lets work in the background end.
async fn settle() {
    sleep(millis(1)).await;
}

#[tokio::test(start_paused = true)]
async fn acquisitions_are_counted_by_outcome_with_their_durations() {
    Recorded::during(async |seen| {
        let locks = locks();
        let guard = acquire(&locks).await.unwrap();
        assert!(lock(&locks).try_acquire().await.unwrap().is_none());
        assert!(lock(&locks).try_acquire_for(secs(3)).await.unwrap().is_none());
        cancel(acquire(&locks)).await;
        let too_long = lock(&locks).ttl(secs(1_000_000));
        too_long.try_acquire().await.unwrap_err();
        let (served, ()) = tokio::join!(async { acquire(&locks).await.unwrap() }, async {
            sleep(secs(4)).await;
            guard.release().await.unwrap();
        });
        drop(served);
        locks.close().await.unwrap();
        acquire(&locks).await.unwrap_err();

        let acquisitions = seen.counts("lock_acquisitions_total", "outcome");
        let expected = [("acquired", 2.0), ("contended", 2.0), ("cancelled", 1.0), ("failed", 2.0)];
        assert_eq!(acquisitions, counts(&expected));
        let errors = seen.counts("lock_acquisitions_total", "error");
        assert_eq!(errors, counts(&[("", 5.0), ("invalid", 1.0), ("closed", 1.0)]));
        let times = |outcome| seen.times("lock_acquire_duration_seconds", &[("outcome", outcome)]);
        assert_eq!(times("acquired"), [0.0, 4.0]);
        assert_eq!(times("contended"), [0.0, 3.0]);
        assert!(times("failed").is_empty(), "nothing was sent");
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn an_acquisition_counts_its_time_in_the_local_queue() {
    Recorded::during(async |seen| {
        let locks = Locker::new(Altered::polled(Memory::new()));
        let guard = acquire(&locks).await.unwrap();
        let (served, ()) = tokio::join!(async { acquire(&locks).await.unwrap() }, async {
            sleep(secs(5)).await;
            assert_eq!(seen.waiters(), 1.0);
            guard.release().await.unwrap();
        });
        drop(served);
        let times = seen.times("lock_acquire_duration_seconds", &[("outcome", "acquired")]);
        assert!(times[0] == 0.0 && (5.0..5.1).contains(&times[1]), "{times:?}");
        let contended = acquire(&locks).await.unwrap();
        assert!(lock(&locks).try_acquire_for(secs(2)).await.unwrap().is_none());
        drop(contended);
        let times = seen.times("lock_acquire_duration_seconds", &[("outcome", "contended")]);
        assert_eq!(times, [2.0]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_hold_counts_once_for_each_guard_also_if_it_was_handed_over() {
    Recorded::during(async |seen| {
        let locks = Locker::builder(Memory::new()).local_handovers(8).build();
        let hold = async |time| {
            let guard = acquire(&locks).await.unwrap();
            sleep(time).await;
            guard.release().await.unwrap();
        };
        tokio::join!(hold(secs(1)), hold(secs(2)), hold(secs(3)));
        assert_eq!(seen.times("lock_hold_duration_seconds", &[]), [1.0, 2.0, 3.0]);
        assert_eq!(seen.number("lock_handovers_total", &[]), 2.0);
        let outcomes = seen.counts("lock_releases_total", "outcome");
        assert_eq!(outcomes, counts(&[("released", 1.0)]));
        assert_eq!(seen.number("lock_acquisitions_total", &[("outcome", "acquired")]), 3.0);
        assert_eq!((seen.held(), seen.waiters()), (0.0, 0.0));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn losses_are_counted_by_cause() {
    Recorded::during(async |seen| {
        let memory = Memory::new();
        let script = fails(Verb::Renew, Injection::Refuse(FaultKind::Unavailable));
        let locks = failing(&memory, script).build();
        let expired = acquire(&locks).await.unwrap();
        expired.lost().await;

        let locks = Locker::new(memory.clone());
        let limited = RenewalPolicy::default().max_hold(secs(40));
        let limited = locks.lock("limited").unwrap().ttl(TTL).renewal(limited);
        limited.acquire().await.unwrap().lost().await;
        let evicted = locks.lock("evicted").unwrap().ttl(TTL).acquire().await.unwrap();
        memory.evict(&LockName::new("evicted").unwrap());
        evicted.lost().await;
        let losses = seen.counts("lock_losses_total", "cause");
        let expected = [("expired", 1.0), ("hold_limit", 1.0), ("not_held", 1.0)];
        assert_eq!(losses, counts(&expected));
        let times = seen.times("lock_hold_duration_seconds", &[]);
        assert!(times.len() == 3 && times.contains(&40.0), "{times:?}");
        drop((expired, evicted));
        settle().await;
        assert!(seen.counts("lock_releases_total", "outcome").is_empty(), "they are lost");
        assert_eq!(seen.held(), 0.0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn renewals_are_counted_by_outcome_with_the_lease_that_was_left() {
    Recorded::during(async |seen| {
        let memory = Memory::new();
        let guard = lock(&Locker::new(memory.clone())).acquire().await.unwrap();
        sleep(secs(12)).await;
        // Of the lease of 30 s, its margin is 1 %, and a third has passed.
        let left = seen.times("lock_renewal_lease_left_seconds", &[]);
        assert!(left.len() == 1 && (19.6..22.0).contains(&left[0]), "{left:?}");
        guard.verify().await.unwrap();
        memory.evict(guard.name());
        guard.verify().await.unwrap_err();
        let renewals = || seen.counts("lock_renewals_total", "outcome");
        assert_eq!(renewals(), counts(&[("renewed", 2.0), ("not_held", 1.0)]));
        assert_eq!(seen.times("lock_renewal_lease_left_seconds", &[]).len(), 2);

        for (injection, outcome) in [
            (Injection::Refuse(FaultKind::Unavailable), "failed"),
            (Injection::LoseReply, "unknown"),
        ] {
            let locks = failing(&Memory::new(), fails(Verb::Renew, injection)).build();
            let guard = acquire(&locks).await.unwrap();
            guard.verify().await.unwrap_err();
            assert_eq!(renewals()[outcome], 1.0);
        }
        let unknown = seen.counts("lock_unknown_outcomes_total", "operation");
        assert_eq!(unknown, counts(&[("renew", 1.0)]));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn releases_are_counted_by_outcome() {
    Recorded::during(async |seen| {
        let memory = Memory::new();
        let locks = Locker::new(memory.clone());
        acquire(&locks).await.unwrap().release().await.unwrap();
        let evicted = acquire(&locks).await.unwrap();
        memory.evict(evicted.name());
        evicted.release().await.unwrap_err();
        let releases = || seen.counts("lock_releases_total", "outcome");
        assert_eq!(releases(), counts(&[("released", 1.0), ("not_held", 1.0)]));

        // The first reply is lost, and the release repeated.
        let first = AtomicBool::new(true);
        let once = move |call: &Call<'_>| match call.verb {
            Verb::Release if first.swap(false, Ordering::Relaxed) => Injection::LoseReply,
            _ => Injection::None,
        };
        let locks = failing(&memory, once).build();
        acquire(&locks).await.unwrap().release().await.unwrap_err();
        assert_eq!((releases()["unknown"], releases()["gone"]), (1.0, 1.0));
        let unknown = seen.counts("lock_unknown_outcomes_total", "operation");
        assert_eq!(unknown, counts(&[("release", 1.0)]));

        let refuses = fails(Verb::Release, Injection::Refuse(FaultKind::Unavailable));
        let locks = failing(&Memory::new(), refuses).build();
        drop(acquire(&locks).await.unwrap());
        sleep(secs(120)).await;
        assert!(releases()["failed"] >= 2.0);
        assert_eq!(releases()["unconfirmed"], 1.0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn the_residue_of_an_acquisition_is_no_release() {
    Recorded::during(async |seen| {
        let locks = failing(&Memory::new(), fails(Verb::TryAcquire, Injection::LoseReply)).build();
        acquire(&locks).await.unwrap_err();
        settle().await;
        assert!(seen.counts("lock_releases_total", "outcome").is_empty());
        let unknown = seen.counts("lock_unknown_outcomes_total", "operation");
        assert_eq!(unknown, counts(&[("acquire", 1.0)]));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn held_locks_are_counted_until_their_end_whatever_it_is() {
    Recorded::during(async |seen| {
        let memory = Memory::new();
        let locks = Locker::new(memory.clone());
        let acquired = async || {
            let guard = acquire(&locks).await.unwrap();
            assert_eq!(seen.held(), 1.0);
            guard
        };
        acquired().await.release().await.unwrap();
        assert_eq!(seen.held(), 0.0, "released");
        drop(acquired().await);
        assert_eq!(seen.held(), 0.0, "dropped");
        settle().await;
        let guard = acquired().await;
        let panicked = tokio::task::LocalSet::new();
        let panicked = panicked.run_until(async {
            tokio::task::spawn_local(async move {
                let _guard = guard;
                panic!("the work panics");
            })
            .await
        });
        assert!(panicked.await.is_err());
        assert_eq!(seen.held(), 0.0, "its work panicked");
        settle().await;
        let guard = acquired().await;
        memory.evict(guard.name());
        guard.lost().await;
        assert_eq!(seen.held(), 0.0, "lost");
        drop(guard);
        settle().await;
        let guard = acquired().await;
        locks.close().await.unwrap();
        assert_eq!(seen.held(), 1.0, "its guard stays valid");
        drop(guard);
        assert_eq!(seen.held(), 0.0, "dropped after the end of its locker");

        let locks = Locker::new(memory);
        let detached =
            locks.lock("d").unwrap().detachable().acquire().await.unwrap().detach().await.unwrap();
        assert_eq!(seen.held(), 0.0, "detached");
        let adopted = locks.adopt(detached).await.unwrap();
        assert_eq!(seen.held(), 1.0, "adopted");
        adopted.release().await.unwrap();
        assert_eq!(seen.held(), 0.0, "released");
    })
    .await;
}

#[test]
fn the_end_of_the_runtime_ends_the_gauges() {
    let (here, background) = (runtime(), runtime());
    here.block_on(Recorded::during(async |seen| {
        let executor = Executor::of(background.handle().clone());
        let locks = Locker::builder(Memory::new()).executor(executor).build();
        let guard = acquire(&locks).await.unwrap();
        let mut waiting = Box::pin(acquire(&locks));
        let begun = Moment::now();
        while seen.waiters() == 0.0 {
            assert!(Moment::now() < begun + secs(20), "it does not wait");
            tokio::select! {
                _ = &mut waiting => panic!("it does not wait"),
                () = sleep(millis(1)) => {}
            }
        }
        let shutdown = std::thread::spawn(move || background.shutdown_timeout(secs(10)));
        shutdown.join().unwrap();
        waiting.await.unwrap_err();
        guard.lost().await;
        assert_eq!((seen.held(), seen.waiters()), (0.0, 0.0));
        let losses = seen.counts("lock_losses_total", "cause");
        assert_eq!(losses, counts(&[("runtime_gone", 1.0)]));
    }));
}

/// Checks the gauge of waiters in every way in which a wait ends, with one holder.
async fn waits_end(backend: impl Backend, memory: Memory) {
    Recorded::during(async |seen| {
        let fails = Arc::new(AtomicBool::new(false));
        let failing = Arc::clone(&fails);
        let script = move |call: &Call<'_>| match call.verb {
            Verb::TryAcquire if failing.load(Ordering::Relaxed) => {
                Injection::Refuse(FaultKind::Denied)
            }
            _ => Injection::None,
        };
        let backend = FaultInjector::new(Arc::new(backend), script);
        let locks = Locker::new(backend);
        // The holder is another client.
        let others = Locker::new(memory.clone());
        let holder = lock(&others).acquire().await.unwrap();

        assert!(lock(&locks).try_acquire().await.unwrap().is_none());
        assert_eq!(seen.waiters(), 0.0, "a try does not wait");
        for _ in 0..2 {
            let together = async { tokio::join!(acquire(&locks), acquire(&locks)) };
            tokio::select! {
                _ = together => panic!("it is held"),
                () = sleep(secs(1)) => assert_eq!(seen.waiters(), 2.0),
            }
            settle().await;
            assert_eq!(seen.waiters(), 0.0, "cancelled");
        }
        assert!(lock(&locks).try_acquire_for(secs(2)).await.unwrap().is_none());
        settle().await;
        assert_eq!(seen.waiters(), 0.0, "out of time");

        let panics = tokio::spawn({
            let locks = locks.clone();
            async move {
                let waiting = acquire(&locks);
                tokio::select! {
                    _ = waiting => {}
                    () = sleep(secs(1)) => panic!("the caller panics"),
                }
            }
        });
        assert!(panics.await.unwrap_err().is_panic());
        settle().await;
        assert_eq!(seen.waiters(), 0.0, "its caller has panicked");

        let (failed, ()) = tokio::join!(acquire(&locks), async {
            sleep(secs(1)).await;
            assert_eq!(seen.waiters(), 1.0);
            fails.store(true, Ordering::Relaxed);
        });
        failed.unwrap_err();
        settle().await;
        assert_eq!(seen.waiters(), 0.0, "failed");
        fails.store(false, Ordering::Relaxed);

        let (served, ()) = tokio::join!(acquire(&locks), async {
            sleep(secs(1)).await;
            holder.release().await.unwrap();
        });
        let served = served.unwrap();
        assert_eq!(seen.waiters(), 0.0, "served");
        served.release().await.unwrap();

        let holder = lock(&others).acquire().await.unwrap();
        let (closed, ()) = tokio::join!(acquire(&locks), async {
            sleep(secs(1)).await;
            assert_eq!(seen.waiters(), 1.0);
            locks.close().await.unwrap();
        });
        closed.unwrap_err();
        assert_eq!(seen.waiters(), 0.0, "closed");
        drop(holder);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn waiters_are_counted_until_their_end_in_a_queue_of_the_backend() {
    let memory = Memory::new();
    waits_end(memory.clone(), memory).await;
}

#[tokio::test(start_paused = true)]
async fn waiters_are_counted_until_their_end_in_the_local_queue() {
    let memory = Memory::new();
    waits_end(Altered::polled(memory.clone()), memory).await;
}

#[tokio::test(start_paused = true)]
async fn labels_are_the_backend_and_the_class_and_never_a_name() {
    Recorded::during(async |seen| {
        let class = |name: &LockName| match name.as_str().split_once('/') {
            Some(("orders", _)) => "orders",
            _ => "others",
        };
        let locks = Locker::builder(Memory::new()).metrics_class(class).build();
        for name in ["orders/1", "orders/2", "secret"] {
            locks.lock(name).unwrap().acquire().await.unwrap().release().await.unwrap();
        }
        let acquired = seen.counts("lock_acquisitions_total", "class");
        assert_eq!(acquired, counts(&[("orders", 2.0), ("others", 1.0)]));
        let released = seen.counts("lock_releases_total", "class");
        assert_eq!(released, counts(&[("orders", 2.0), ("others", 1.0)]));
        for (name, labels) in seen.seen.lock().unwrap().keys() {
            assert_eq!(labels["backend"], "memory", "{name}");
            let values = ["memory", "orders", "others", ""];
            let known = |key: &str, value: &str| {
                values.contains(&value) || ["outcome", "error", "cause", "operation"].contains(&key)
            };
            assert!(labels.iter().all(|(key, value)| known(key, value)), "{name} {labels:?}");
        }
    })
    .await;
}

#[tokio::test]
async fn the_clock_of_a_server_is_compared_at_the_middle_of_its_round_trip() {
    Recorded::during(async |seen| {
        let asked = Moment::now();
        let server = lock_core::clock::wall() + secs(5);
        metrics::record_server_clock("redis", asked, server);
        let offset = seen.number("lock_server_clock_offset_seconds", &[("backend", "redis")]);
        assert!((4.9..5.1).contains(&offset), "{offset}");
    })
    .await;
}
