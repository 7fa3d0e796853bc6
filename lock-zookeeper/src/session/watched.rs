//! Watches on nodes. All users of a node in this session share one watch, and the last of them
//! cancels it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use lock_core::backend::Fault;
use tokio::sync::{SetOnce, mpsc, oneshot};
use zookeeper_client::{Error as ZkError, EventType, OneshotWatcher, WatchedEvent};

use super::connection::Line;
use super::{Session, expired};
use crate::fault::fault;
use crate::place::Place;

/// The watched nodes, by path.
pub(super) type Watches = Mutex<HashMap<String, Weak<Watched>>>;

/// A watched node. When its last user drops it, the watch is cancelled.
#[derive(Debug)]
pub(crate) struct Watched {
    end: SetOnce<End>,
    /// True if it is a node of this session, and no node was before it.
    was_first: AtomicBool,
    /// The session that owns the node.
    owner: i64,
    /// The queue entry of the node, if it is one of this session.
    place: Mutex<Weak<Place>>,
    /// Queries whether the watch task has caught up. The task ends when this is dropped.
    asking: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

/// The queries to a watch task.
type Asked = mpsc::UnboundedReceiver<oneshot::Sender<()>>;

/// The end of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Gone,
    /// The end cannot be known any more.
    Untold,
}

impl Watched {
    /// Waits until the node is removed. Returns `None` if that cannot be known any more.
    pub(super) async fn left(&self) -> Option<()> {
        (*self.end.wait().await == End::Gone).then_some(())
    }

    /// Waits until the watch task has recorded all events that reached this process before the
    /// call.
    pub(crate) fn heard(&self) -> impl Future<Output = ()> + use<> {
        let (answer, heard) = oneshot::channel();
        let is_asked = self.asking.send(answer);
        async move {
            // A task that does not answer has ended, and has recorded its events before.
            if is_asked.is_ok() {
                drop(heard.await);
            }
        }
    }

    /// Records that no node is before this one.
    pub(crate) fn is_first(&self) {
        self.was_first.store(true, Ordering::Release);
    }

    /// Returns true if no node was before this one.
    pub(super) fn was_first(&self) -> bool {
        self.was_first.load(Ordering::Acquire)
    }

    fn place(&self) -> MutexGuard<'_, Weak<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Watches the entry's own node, so that its end is recorded. A node that belongs to another
    /// session shows that the server has replaced this one: the session ends.
    pub(crate) async fn watch_own(self: &Arc<Self>, place: &Arc<Place>) -> Result<(), Fault> {
        let Some(path) = place.path().filter(|_| place.state().watched.is_none()) else {
            return Ok(());
        };
        let Some(watched) = self.watched(&path).await? else {
            place.is_gone();
            return Ok(());
        };
        if watched.owner != self.id {
            self.end();
            return Err(expired());
        }
        *watched.place() = Arc::downgrade(place);
        // The node may have been removed before its entry was known.
        if let Some(end) = watched.end.get() {
            self.tell(place, *end);
        }
        place.state().watched = Some(watched);
        Ok(())
    }

    /// Watches a node. Returns `None` if it does not exist.
    pub(super) async fn watched(
        self: &Arc<Self>,
        path: &str,
    ) -> Result<Option<Arc<Watched>>, Fault> {
        if let Some(watched) = find(&self.watches(), path) {
            return Ok(Some(watched));
        }
        let Some((owner, watch)) = self.watch(path).await? else {
            return Ok(None);
        };
        let mut watches = self.watches();
        // Another task may have set a watch meanwhile. The server knows only one of two watches of
        // a session.
        if let Some(watched) = find(&watches, path) {
            return Ok(Some(watched));
        }
        let (asking, mut asked) = mpsc::unbounded_channel();
        let watched = Arc::new(Watched {
            end: SetOnce::new(),
            was_first: AtomicBool::new(false),
            owner,
            place: Mutex::default(),
            asking,
        });
        let known = Arc::downgrade(&watched);
        watches.insert(path.to_owned(), Weak::clone(&known));
        drop(watches);
        let (session, path) = (Arc::clone(self), path.to_owned());
        tokio::spawn(async move {
            let end = tokio::select! {
                end = session.end_of_node(&path, watch, &mut asked) => end,
                () = session.over() => None,
            };
            session.note(&path, &known, end);
            // The pending queries are answered by this.
            drop(asked);
        });
        Ok(Some(watched))
    }

    /// Waits for the end of a node. Returns `None` if the watch has no users left.
    async fn end_of_node(&self, path: &str, mut watch: Watch, asked: &mut Asked) -> Option<End> {
        loop {
            match changed(watch, asked).await?.map(|event| event.event_type) {
                Some(EventType::NodeDeleted) => return Some(End::Gone),
                Some(EventType::Session) => return Some(End::Untold),
                // The data has changed, or the connection is another one.
                _ => match self.insist(|| self.watch(path)).await {
                    Some(Some((_, again))) => watch = again,
                    Some(None) => return Some(End::Gone),
                    None => return Some(End::Untold),
                },
            }
        }
    }

    /// Records the end of a node in its queue entry, in this task: after a barrier all earlier
    /// events are recorded.
    fn note(&self, path: &str, known: &Weak<Watched>, end: Option<End>) {
        let mut watches = self.watches();
        // Another task may have set a new watch on the path.
        if watches.get(path).is_some_and(|now| now.ptr_eq(known)) {
            watches.remove(path);
        }
        drop(watches);
        let (Some(watched), Some(end)) = (known.upgrade(), end) else { return };
        let _ = watched.end.set(end);
        let place = watched.place().upgrade();
        if let Some(place) = place {
            self.tell(&place, end);
        }
    }

    /// Records the end of a node in its queue entry.
    fn tell(&self, place: &Place, end: End) {
        match end {
            End::Gone => place.is_gone(),
            End::Untold => self.let_go(place),
        }
    }

    /// Sets a watch on a node by reading it, and returns the session that owns the node. A watch on
    /// a node that does not exist would stay on the server.
    async fn watch(&self, path: &str) -> Result<Option<(i64, Watch)>, Fault> {
        let connection = self.connection();
        match connection.client.get_and_watch_data(path).await {
            Ok((_, stat, watcher)) => {
                let line = connection.line();
                Ok(Some((stat.ephemeral_owner, Watch { watcher, line })))
            }
            Err(ZkError::NoNode) => Ok(None),
            Err(error) => Err(fault("watching the line", &error)),
        }
    }

    fn watches(&self) -> MutexGuard<'_, HashMap<String, Weak<Watched>>> {
        self.watches.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A watch, and the state of its connection.
struct Watch {
    watcher: OneshotWatcher,
    line: Arc<Line>,
}

/// Waits for the event of a watch, or for the loss of its connection, and answers all queries until
/// then. Returns `None` if the watch has no users left.
async fn changed(watch: Watch, asked: &mut Asked) -> Option<Option<WatchedEvent>> {
    let Watch { watcher, line } = watch;
    let mut changed = std::pin::pin!(line.while_up(watcher.changed()));
    loop {
        tokio::select! {
            // Events that have arrived precede the answers to queries.
            biased;
            event = &mut changed => return Some(event),
            answer = asked.recv() => drop(answer?.send(())),
        }
    }
}

fn find(watches: &HashMap<String, Weak<Watched>>, path: &str) -> Option<Arc<Watched>> {
    watches.get(path)?.upgrade()
}
