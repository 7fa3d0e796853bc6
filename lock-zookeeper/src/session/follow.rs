//! Watches the nodes before a queue entry, and the entry's own node.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::clock::sleep;

use super::Session;
use super::watched::Watched;
use crate::place::{Following, Place};

impl Session {
    /// Waits until the node of the entry is removed or has to be.
    pub(crate) async fn end_of(self: &Arc<Self>, place: &Arc<Place>) {
        if self.insist(|| self.watch_own(place)).await.is_some() {
            place.until(|state| (state.gone || state.leaving).then_some(())).await;
        }
    }

    /// Watches the queue until the entry is first, and records that and its end. `line` is the
    /// queue at its creation. If the queue cannot be watched, the entry is removed, because the
    /// entries behind it would wait for it.
    pub(crate) async fn follow(self: Arc<Self>, following: Following, line: Vec<String>) {
        let place = &following.0;
        let ours = async {
            self.insist(|| self.watch_own(place)).await?;
            self.advance(place, line).await
        };
        let gone = place.until(|state| state.gone.then_some(()));
        let is_first = tokio::select! {
            () = gone => return,
            () = self.over() => return,
            first = ours => first,
        };
        match is_first {
            Some(()) => place.is_first(),
            None => self.let_go(place),
        }
    }

    /// Waits until no node is before the entry. Returns `None` if that cannot be known any more.
    /// Two nodes are watched. When the nearer one is removed after the farther one, the entry is
    /// first without another request.
    async fn advance(self: &Arc<Self>, place: &Place, line: Vec<String>) -> Option<()> {
        let node = place.state().node.clone()?;
        let mut watched: Option<(String, Arc<Watched>)> = None;
        // The part of the queue before the entry only shrinks, so old data is safe.
        let mut known = Some(line);
        loop {
            let line = match known.take() {
                Some(line) => line,
                None => self.insist(|| self.line(&place.lock)).await?,
            };
            let at = line.iter().position(|other| *other == node.name)?;
            let Some(nearer) = at.checked_sub(1).map(|at| &line[at]) else {
                return Some(());
            };
            if watched.as_ref().is_none_or(|(name, _)| name != nearer) {
                match self.in_line(place, nearer).await? {
                    Some(there) => watched = Some((nearer.clone(), there)),
                    None => continue,
                }
            }
            let (_, nearer) = watched.as_ref()?;
            let farther = match at.checked_sub(2) {
                Some(at) => self.in_line(place, &line[at]).await?,
                None => None,
            };
            // Nodes before the farther one may still be there, unless it is known to have been
            // first.
            let mut is_next = at <= 2;
            if let Some(farther) = farther {
                tokio::select! {
                    biased;
                    left = farther.left() => left?,
                    left = nearer.left() => {
                        left?;
                        watched = None;
                        continue;
                    }
                }
                is_next |= farther.was_first();
            }
            if is_next {
                return nearer.left().await;
            }
        }
    }

    /// Watches a node of the queue. Returns `Some(None)` if it was removed already.
    async fn in_line(self: &Arc<Self>, place: &Place, node: &str) -> Option<Option<Arc<Watched>>> {
        let path = format!("{}/{node}", place.lock);
        self.insist(|| self.watched(&path)).await
    }

    /// Repeats a request until it succeeds. Returns `None` if it cannot.
    pub(super) async fn insist<T, F>(&self, mut ask: impl FnMut() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        loop {
            if !self.connected().await {
                return None;
            }
            match self.meanwhile(ask()).await {
                Ok(answer) => return Some(answer),
                Err(fault) if fault.is_transient() => sleep(Duration::from_millis(20)).await,
                Err(fault) => {
                    let why = fault.into_source();
                    tracing::warn!(lock.error = %why, "a place in line cannot be watched");
                    return None;
                }
            }
        }
    }
}
