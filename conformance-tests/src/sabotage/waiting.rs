//! Saboteurs of chapter 6.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault, OnContention, Release, ReleaseMode, Wake};
use lock_core::clock::sleep;
use lock_core::layer::Layer;
use lock_core::{Backend, LockName, OwnerId};

use super::saboteur::{Saboteur, saboteur};

pub(super) static SABOTEURS: &[Saboteur] = &[
    saboteur!(CachesContention, "6.1"),
    saboteur!(NeverWakes, "6.2", "12.8"),
    saboteur!(ServesLastFirst, "6.3", "6.4"),
    saboteur!(QueuesTries, "6.5"),
    saboteur!(NeverExpires, "6.6"),
    saboteur!(KeepsQueueEntries, "6.7"),
];

#[derive(Debug, Default)]
struct CachesContention(Mutex<HashSet<OwnerId>>);
#[async_trait]
impl Layer for CachesContention {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        if self.0.lock().unwrap().contains(&claim.owner) {
            return Ok(Attempt::Contended { expires_in: None });
        }
        let answer = inner.try_acquire(claim).await?;
        if matches!(answer, Attempt::Contended { .. }) {
            self.0.lock().unwrap().insert(claim.owner);
        }
        Ok(answer)
    }
}

#[derive(Debug, Default)]
struct NeverWakes;
#[async_trait]
impl Layer for NeverWakes {
    async fn wait(&self, _: &dyn Backend, _: &Claim) -> Result<Wake, Fault> {
        std::future::pending().await
    }
}

#[derive(Debug, Default)]
struct ServesLastFirst(Mutex<Vec<OwnerId>>);
#[async_trait]
impl Layer for ServesLastFirst {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        {
            let mut queue = self.0.lock().unwrap();
            if claim.queues() && !queue.contains(&claim.owner) {
                queue.push(claim.owner);
            }
            if queue.last().is_some_and(|last| *last != claim.owner) {
                return Ok(Attempt::Contended { expires_in: None });
            }
        }
        let mut claim = claim.clone();
        claim.on_contention = OnContention::Return;
        inner.try_acquire(&claim).await
    }
    async fn wait(&self, _: &dyn Backend, _: &Claim) -> Result<Wake, Fault> {
        sleep(Duration::from_millis(10)).await;
        Ok(Wake::Retry)
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        self.0.lock().unwrap().retain(|owner| *owner != claim.owner);
        inner.release(claim, how).await
    }
}

#[derive(Debug, Default)]
struct QueuesTries;
#[async_trait]
impl Layer for QueuesTries {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let mut claim = claim.clone();
        claim.on_contention = OnContention::Queue;
        inner.try_acquire(&claim).await
    }
}

/// Keeps each claim that has waited once in the queue for ever.
#[derive(Debug, Default)]
struct KeepsQueueEntries(Mutex<Vec<Claim>>);
#[async_trait]
impl Layer for KeepsQueueEntries {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        if claim.queues() {
            self.0.lock().unwrap().push(claim.clone());
        }
        inner.try_acquire(claim).await
    }
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        how: ReleaseMode,
    ) -> Result<Release, Fault> {
        let waiting = std::mem::take(&mut *self.0.lock().unwrap());
        for waiting in &waiting {
            inner.try_acquire(waiting).await?;
        }
        inner.release(claim, how).await
    }
}

/// Prolongs a lock at each poll of another claim, as a TTL that reads refresh.
#[derive(Debug, Default)]
struct NeverExpires(Mutex<HashMap<LockName, Claim>>);
#[async_trait]
impl Layer for NeverExpires {
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        let held = self.0.lock().unwrap().get(&claim.name).cloned();
        if let Some(mut held) = held {
            held.ttl = Duration::from_secs(3600);
            let _ = inner.renew(&[&held]).await;
        }
        let answer = inner.try_acquire(claim).await?;
        if matches!(answer, Attempt::Acquired(_)) {
            let mut held = claim.clone();
            held.ttl = Duration::from_secs(3600);
            let _ = inner.renew(&[&held]).await;
            self.0.lock().unwrap().insert(claim.name.clone(), held);
        }
        Ok(answer)
    }
}
