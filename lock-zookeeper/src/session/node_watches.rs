//! Watches on nodes. All users of a node in this session share one watch, and the last of them
//! cancels it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lock_core::backend::Fault;
use tokio::sync::{SetOnce, mpsc};
use zookeeper_client::{Error as ZkError, EventType, OneshotWatcher, WatchedEvent};

use super::connection::Liveness;
use super::queue_entry::{NodeEnd, NodeWatch, Queries, QueueEntry};
use super::{Session, expired};
use crate::fault::fault;
use crate::value::NodeData;

impl Session {
    /// Watches the entry's own node, so that its end is recorded. A node that belongs to another
    /// session shows that the server has replaced this one: the session ends.
    pub(crate) async fn watch_entry(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
    ) -> Result<(), Fault> {
        let Some(path) = entry.path().filter(|_| entry.state().watched.is_none()) else {
            return Ok(());
        };
        let Some(watched) = self.watch_node(&path).await? else {
            entry.mark_removed();
            return Ok(());
        };
        if watched.owner != self.id {
            self.end();
            return Err(expired());
        }
        *watched.entry() = Arc::downgrade(entry);
        if watched.was_overwritten.load(Ordering::Acquire) {
            self.restore_data(&path, entry).await;
        }
        // The node may have been removed before its entry was known.
        if let Some(end) = watched.end.get() {
            self.report_end(entry, *end);
        }
        entry.state().watched = Some(watched);
        Ok(())
    }

    /// Watches a node. Returns `None` if it does not exist.
    pub(super) async fn watch_node(
        self: &Arc<Self>,
        path: &str,
    ) -> Result<Option<Arc<NodeWatch>>, Fault> {
        if let Some(watched) = live_watch(&self.watches(), path) {
            return Ok(Some(watched));
        }
        let Some(SeenNode { owner, was_overwritten, watch }) = self.set_watch(path).await? else {
            return Ok(None);
        };
        let mut watches = self.watches();
        // Another task may have set a watch meanwhile. The server knows only one of two watches of
        // a session.
        if let Some(watched) = live_watch(&watches, path) {
            return Ok(Some(watched));
        }
        let (query, mut queries) = mpsc::unbounded_channel();
        let watched = Arc::new(NodeWatch {
            end: SetOnce::new(),
            was_first: AtomicBool::new(false),
            owner,
            was_overwritten: AtomicBool::new(was_overwritten),
            entry: Mutex::default(),
            query,
        });
        let known = Arc::downgrade(&watched);
        watches.insert(path.to_owned(), Weak::clone(&known));
        drop(watches);
        let (session, path) = (Arc::clone(self), path.to_owned());
        tokio::spawn(async move {
            let end = tokio::select! {
                end = session.wait_node_end(&path, &known, watch, &mut queries) => end,
                () = session.over() => None,
            };
            session.record_end(&path, &known, end);
            // The pending queries are answered by this.
            drop(queries);
        });
        Ok(Some(watched))
    }

    /// Waits for the end of a node. Returns `None` if the watch has no users left.
    async fn wait_node_end(
        &self,
        path: &str,
        known: &Weak<NodeWatch>,
        mut watch: ServerWatch,
        queries: &mut Queries,
    ) -> Option<NodeEnd> {
        loop {
            match changed(watch, queries).await?.map(|event| event.event_type) {
                Some(EventType::NodeDeleted) => return Some(NodeEnd::Removed),
                Some(EventType::Session) => return Some(NodeEnd::Unknown),
                // The data has changed, or the connection is another one.
                _ => match self.retry(|| self.set_watch(path)).await {
                    Some(Some(seen)) => {
                        watch = seen.watch;
                        let watched = known.upgrade()?;
                        // Its entry may become known later.
                        watched.was_overwritten.store(seen.was_overwritten, Ordering::Release);
                        let entry = watched.entry().upgrade().filter(|_| seen.was_overwritten);
                        drop(watched);
                        if let Some(entry) = entry {
                            self.restore_data(path, &entry).await;
                        }
                    }
                    Some(None) => return Some(NodeEnd::Removed),
                    None => return Some(NodeEnd::Unknown),
                },
            }
        }
    }

    /// Writes the data of an entry's node again. Curator's `Revoker` replaces them, and then they
    /// name no owner for operators to inspect and to break.
    async fn restore_data(&self, path: &str, entry: &QueueEntry) {
        let Some(data) = entry.state().data.clone() else { return };
        match self.client().set_data(path, data.as_bytes(), None).await {
            Ok(_) => tracing::warn!(
                zookeeper.node = path,
                "another client has replaced the data of a queue entry, perhaps to ask for a release: they are restored"
            ),
            // It is gone, or the connection is. The next watch reads the data again.
            Err(error) => {
                tracing::debug!(lock.error = %error, "the data of a node are not restored");
            }
        }
    }

    /// Records the end of a node in its queue entry, in this task: after a barrier all earlier
    /// events are recorded.
    fn record_end(&self, path: &str, known: &Weak<NodeWatch>, end: Option<NodeEnd>) {
        let mut watches = self.watches();
        // Another task may have set a new watch on the path.
        if watches.get(path).is_some_and(|now| now.ptr_eq(known)) {
            watches.remove(path);
        }
        drop(watches);
        let (Some(watched), Some(end)) = (known.upgrade(), end) else { return };
        let _ = watched.end.set(end);
        let entry = watched.entry().upgrade();
        if let Some(entry) = entry {
            self.report_end(&entry, end);
        }
    }

    /// Records the end of a node in its queue entry.
    fn report_end(&self, entry: &QueueEntry, end: NodeEnd) {
        match end {
            NodeEnd::Removed => entry.mark_removed(),
            NodeEnd::Unknown => self.mark_released(entry),
        }
    }

    /// Sets a watch on a node by reading it. A watch on a node that does not exist would stay on
    /// the server.
    async fn set_watch(&self, path: &str) -> Result<Option<SeenNode>, Fault> {
        let connection = self.connection();
        match connection.client.get_and_watch_data(path).await {
            Ok((data, stat, watcher)) => {
                let watch = ServerWatch { watcher, liveness: connection.liveness() };
                let was_overwritten = NodeData::parse(&data).is_none();
                Ok(Some(SeenNode { owner: stat.ephemeral_owner, was_overwritten, watch }))
            }
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(fault("watching the queue", &error)),
        }
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<String, Weak<NodeWatch>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A node, when its watch was set.
struct SeenNode {
    /// The session that owns it.
    owner: i64,
    /// Its data name no owner id. Those of other libraries never do.
    was_overwritten: bool,
    watch: ServerWatch,
}

/// A watch, and the state of its connection.
struct ServerWatch {
    watcher: OneshotWatcher,
    liveness: Arc<Liveness>,
}

/// Waits for the event of a watch, or for the loss of its connection, and answers all queries until
/// then. Returns `None` if the watch has no users left.
async fn changed(watch: ServerWatch, queries: &mut Queries) -> Option<Option<WatchedEvent>> {
    let ServerWatch { watcher, liveness } = watch;
    let mut changed = std::pin::pin!(liveness.while_up(watcher.changed()));
    loop {
        tokio::select! {
            // Events that have arrived precede the answers to queries.
            biased;
            event = &mut changed => return Some(event),
            answer = queries.recv() => drop(answer?.send(())),
        }
    }
}

fn live_watch(watches: &HashMap<String, Weak<NodeWatch>>, path: &str) -> Option<Arc<NodeWatch>> {
    watches.get(path)?.upgrade()
}
