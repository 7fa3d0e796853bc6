//! Watches the nodes before a queue entry, and the entry's own node.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::clock::sleep;

use super::Session;
use super::queue_entry::{NodeWatch, PredecessorWatch, QueueEntry};

impl Session {
    /// Waits until the node of the entry is removed or has to be.
    pub(crate) async fn wait_removed(self: &Arc<Self>, entry: &Arc<QueueEntry>) {
        if self.retry(|| self.watch_entry(entry)).await.is_some() {
            entry.until(|state| (state.removed || state.releasing).then_some(())).await;
        }
    }

    /// Watches the queue until the entry is first, and records that and its end. `queue` is the
    /// queue at its creation. If the queue cannot be watched, the entry is removed, because the
    /// entries behind it would wait for it.
    pub(crate) async fn watch_predecessor(
        self: Arc<Self>,
        following: PredecessorWatch,
        queue: Vec<String>,
    ) {
        let entry = &following.0;
        let ours = async {
            self.retry(|| self.watch_entry(entry)).await?;
            self.wait_first(entry, queue).await
        };
        let removed = entry.until(|state| state.removed.then_some(()));
        let is_first = tokio::select! {
            () = removed => return,
            () = self.over() => return,
            first = ours => first,
        };
        match is_first {
            Some(()) => entry.mark_first(),
            None => self.mark_released(entry),
        }
    }

    /// Waits until no node is before the entry. Returns `None` if that cannot be known any more.
    /// Two nodes are watched. When the nearer one is removed after the farther one, the entry is
    /// first without another request.
    async fn wait_first(self: &Arc<Self>, entry: &QueueEntry, queue: Vec<String>) -> Option<()> {
        let node = entry.state().node.clone()?;
        let mut watched: Option<(String, Arc<NodeWatch>)> = None;
        // The part of the queue before the entry only shrinks, so old data is safe.
        let mut known = Some(queue);
        loop {
            let queue = match known.take() {
                Some(queue) => queue,
                None => self.retry(|| self.queue(&entry.lock)).await?,
            };
            let at = queue.iter().position(|other| *other == node.name)?;
            let Some(nearer) = at.checked_sub(1).map(|at| &queue[at]) else {
                return Some(());
            };
            if watched.as_ref().is_none_or(|(name, _)| name != nearer) {
                match self.watch_queued(entry, nearer).await? {
                    Some(there) => watched = Some((nearer.clone(), there)),
                    None => continue,
                }
            }
            let (_, nearer) = watched.as_ref()?;
            let farther = match at.checked_sub(2) {
                Some(at) => self.watch_queued(entry, &queue[at]).await?,
                None => None,
            };
            // Nodes before the farther one may still be there, unless it is known to have been
            // first.
            let mut is_next = at <= 2;
            if let Some(farther) = farther {
                tokio::select! {
                    biased;
                    left = farther.removed() => left?,
                    left = nearer.removed() => {
                        left?;
                        watched = None;
                        continue;
                    }
                }
                is_next |= farther.was_first();
            }
            if is_next {
                return nearer.removed().await;
            }
        }
    }

    /// Watches a node of the queue. Returns `Some(None)` if it was removed already.
    async fn watch_queued(
        self: &Arc<Self>,
        entry: &QueueEntry,
        node: &str,
    ) -> Option<Option<Arc<NodeWatch>>> {
        let path = format!("{}/{node}", entry.lock);
        self.retry(|| self.watch_node(&path)).await
    }

    /// Repeats a request until it succeeds. Returns `None` if it cannot.
    pub(super) async fn retry<T, F>(&self, mut ask: impl FnMut() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        loop {
            if !self.connected().await {
                return None;
            }
            match self.until_over(ask()).await {
                Ok(answer) => return Some(answer),
                Err(fault) if fault.is_transient() => sleep(Duration::from_millis(20)).await,
                Err(fault) => {
                    let why = fault.into_source();
                    tracing::warn!(lock.error = %why, "a queue entry cannot be watched");
                    return None;
                }
            }
        }
    }
}
