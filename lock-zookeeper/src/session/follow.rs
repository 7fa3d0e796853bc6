//! Following the line: who stands before us, and whether our own node is still there.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::clock::sleep;

use super::Session;
use super::watched::Watched;
use crate::place::{Following, Place};

impl Session {
    /// Waits until our own node is gone, or is to go.
    pub(crate) async fn end_of(self: &Arc<Self>, place: &Arc<Place>) {
        if self.insist(|| self.watch_own(place)).await.is_some() {
            place.until(|state| (state.gone || state.leaving).then_some(())).await;
        }
    }

    /// Follows the line until our node is the first one, and notes that and its end. `line` is what it was
    /// like when we stood in it. If it cannot be followed, our node must not stay there: everybody behind it
    /// would wait for it.
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

    /// Waits until all who came before have left; `None` if that cannot be told any more. Two of them are
    /// watched: when the nearer one leaves, and the farther one has left before, nobody is left, and
    /// nobody has to be asked.
    async fn advance(self: &Arc<Self>, place: &Place, line: Vec<String>) -> Option<()> {
        let node = place.state().node.clone()?;
        let mut watched: Option<(String, Arc<Watched>)> = None;
        // Before us it only ever gets shorter, so what is old does no harm.
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
            // Whoever stood before the farther one may be there still, unless we know better.
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

    /// A node that is in line now; `Some(None)` if it has left already.
    async fn in_line(self: &Arc<Self>, place: &Place, node: &str) -> Option<Option<Arc<Watched>>> {
        let path = format!("{}/{node}", place.lock);
        self.insist(|| self.watched(&path)).await
    }

    /// Asks until there is an answer; `None` if there will be none.
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
