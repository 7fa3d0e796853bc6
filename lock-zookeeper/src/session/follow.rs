//! Watching: who stands before us in line, and whether our own node is still there.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::clock::sleep;
use zookeeper_client::{Error as ZkError, EventType, OneshotWatcher};

use super::Session;
use crate::fault::fault;
use crate::place::Place;

/// Resolves when a node has left the line; `None` if nobody will ever tell.
type Leaving<'a> = Pin<Box<dyn Future<Output = Option<()>> + Send + 'a>>;

impl Session {
    /// Sees to it that the end of our own node is noted, from before this returns.
    pub(crate) async fn watch_own(self: &Arc<Self>, place: &Arc<Place>) -> Result<(), Fault> {
        let Some(path) = place.path().filter(|_| !place.state().watched) else {
            return Ok(());
        };
        let Some(end) = self.watch(&path).await? else {
            place.is_gone();
            return Ok(());
        };
        place.state().watched = true;
        let (session, place) = (Arc::clone(self), Arc::clone(place));
        tokio::spawn(async move { session.note_end(&place, &path, end).await });
        Ok(())
    }

    /// Waits until our own node is gone, or is to go.
    pub(crate) async fn end_of(self: &Arc<Self>, place: &Arc<Place>) {
        if self.insist(|| self.watch_own(place)).await.is_some() {
            place.until(|state| (state.gone || state.leaving).then_some(())).await;
        }
    }

    async fn note_end(&self, place: &Place, path: &str, mut end: OneshotWatcher) {
        loop {
            let event = tokio::select! {
                event = end.changed() => event,
                () = self.over() => return,
            };
            match event.event_type {
                EventType::NodeDeleted | EventType::Session => break,
                // Somebody wrote to it.
                _ => match self.insist(|| self.watch(path)).await {
                    Some(Some(again)) => end = again,
                    Some(None) => break,
                    None => return self.let_go(place),
                },
            }
        }
        place.is_gone();
    }

    /// Follows the line until our node is the first one, and notes that and its end. `line` is what it was
    /// like when we stood in it. If it cannot be followed, our node must not stay there: everybody behind it
    /// would wait for it.
    pub(crate) async fn follow(self: Arc<Self>, place: Arc<Place>, line: Vec<String>) {
        let ours = async {
            self.insist(|| self.watch_own(&place)).await?;
            self.advance(&place, line).await
        };
        let gone = place.until(|state| state.gone.then_some(()));
        let is_first = tokio::select! {
            () = gone => return,
            () = self.over() => return,
            first = ours => first,
        };
        match is_first {
            Some(()) => place.is_first(),
            None => self.let_go(&place),
        }
    }

    /// Waits until all who came before have left; `None` if that cannot be told any more. Two of them are
    /// watched: when the nearer one leaves, and the farther one has left before, nobody is left, and
    /// nobody has to be asked.
    async fn advance(&self, place: &Place, line: Vec<String>) -> Option<()> {
        let node = place.state().node.clone()?;
        let mut watched: Option<(String, Leaving<'_>)> = None;
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
                match self.leaving(place, nearer).await? {
                    Some(leaving) => watched = Some((nearer.clone(), leaving)),
                    None => continue,
                }
            }
            let (_, nearer) = watched.as_mut()?;
            let farther = match at.checked_sub(2) {
                Some(at) => self.leaving(place, &line[at]).await?,
                None => None,
            };
            if let Some(farther) = farther {
                tokio::select! {
                    biased;
                    left = farther => left?,
                    left = nearer.as_mut() => {
                        left?;
                        watched = None;
                        continue;
                    }
                }
            }
            // Whoever stood before the farther one may be there still.
            if at <= 2 {
                return nearer.as_mut().await;
            }
        }
    }

    /// Resolves when a node that is in line now has left it; `None` if it has left already.
    async fn leaving(&self, place: &Place, node: &str) -> Option<Option<Leaving<'_>>> {
        let path = format!("{}/{node}", place.lock);
        let mut watch = self.insist(|| self.watch(&path)).await?;
        if watch.is_none() {
            return Some(None);
        }
        Some(Some(Box::pin(async move {
            while let Some(armed) = watch {
                match armed.changed().await.event_type {
                    EventType::NodeDeleted => break,
                    EventType::Session => return None,
                    // Somebody wrote to it.
                    _ => watch = self.insist(|| self.watch(&path)).await?,
                }
            }
            Some(())
        })))
    }

    /// A watch on a node that is there. By reading it: a watch on what is not there would stay behind.
    async fn watch(&self, path: &str) -> Result<Option<OneshotWatcher>, Fault> {
        match self.client.get_and_watch_data(path).await {
            Ok((_, _, watch)) => Ok(Some(watch)),
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(fault("watching the line", &error)),
        }
    }

    /// Asks until there is an answer; `None` if there will be none.
    async fn insist<T, F>(&self, mut ask: impl FnMut() -> F) -> Option<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        loop {
            if !self.connected().await {
                return None;
            }
            match ask().await {
                Ok(answer) => return Some(answer),
                Err(fault) if fault.is_transient() => sleep(Duration::from_millis(20)).await,
                Err(fault) => {
                    tracing::warn!(lock.error = %fault, "a place in line cannot be watched");
                    return None;
                }
            }
        }
    }
}
