//! Nodes that are watched: each once, for all in this session who care for its end, and for as long as one
//! of them does.

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

/// Nodes that somebody cares for, by path.
pub(super) type Watches = Mutex<HashMap<String, Weak<Watched>>>;

/// A node that is watched. When the last one who cares drops it, the watch is taken back.
#[derive(Debug)]
pub(crate) struct Watched {
    end: SetOnce<End>,
    /// It is one of ours, and all who came before it have left.
    was_first: AtomicBool,
    /// The session that it belongs to.
    owner: i64,
    /// Whose node it is, if it is one of ours.
    place: Mutex<Weak<Place>>,
    /// Those who ask the task that watches whether it has heard something. It ends when this is dropped.
    asking: mpsc::UnboundedSender<oneshot::Sender<()>>,
}

/// Those who ask whether something was heard of a node.
type Asked = mpsc::UnboundedReceiver<oneshot::Sender<()>>;

/// What became of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Gone,
    /// Nobody will ever tell.
    Untold,
}

impl Watched {
    /// Resolves when the node has left the line; to `None` if nobody will ever tell.
    pub(super) async fn left(&self) -> Option<()> {
        (*self.end.wait().await == End::Gone).then_some(())
    }

    /// Resolves when the task that watches has noted what had reached this process before the call.
    pub(crate) fn heard(&self) -> impl Future<Output = ()> + use<> {
        let (answer, heard) = oneshot::channel();
        let is_asked = self.asking.send(answer);
        async move {
            // Whoever does not answer has ended, and has noted before what it had heard.
            if is_asked.is_ok() {
                drop(heard.await);
            }
        }
    }

    pub(crate) fn is_first(&self) {
        self.was_first.store(true, Ordering::Release);
    }

    pub(super) fn was_first(&self) -> bool {
        self.was_first.load(Ordering::Acquire)
    }

    fn place(&self) -> MutexGuard<'_, Weak<Place>> {
        self.place.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    /// Sees to it that the end of our own node is noted, from before this returns. One that belongs to another
    /// session is none of ours, and ours is not what we think: it ends.
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
        // It may have ended before it was known whose it is.
        if let Some(end) = watched.end.get() {
            self.tell(place, *end);
        }
        place.state().watched = Some(watched);
        Ok(())
    }

    /// A node that is watched from before this returns; `None` if it is not there.
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
        // Others may have asked meanwhile. Of two watches in one session only one is known to the server.
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
            // Those who ask now are answered by this.
            drop(asked);
        });
        Ok(Some(watched))
    }

    /// `None` if nobody cares any more.
    async fn end_of_node(&self, path: &str, mut watch: Watch, asked: &mut Asked) -> Option<End> {
        loop {
            match changed(watch, asked).await?.map(|event| event.event_type) {
                Some(EventType::NodeDeleted) => return Some(End::Gone),
                Some(EventType::Session) => return Some(End::Untold),
                // Somebody wrote to it, or the connection is another one.
                _ => match self.insist(|| self.watch(path)).await {
                    Some(Some((_, again))) => watch = again,
                    Some(None) => return Some(End::Gone),
                    None => return Some(End::Untold),
                },
            }
        }
    }

    /// Tells the place at once, and not by way of another task: what a barrier has shown to have happened is
    /// known after it.
    fn note(&self, path: &str, known: &Weak<Watched>, end: Option<End>) {
        let mut watches = self.watches();
        // Somebody else may have begun to care after the last one had ceased to.
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

    fn tell(&self, place: &Place, end: End) {
        match end {
            End::Gone => place.is_gone(),
            End::Untold => self.let_go(place),
        }
    }

    /// A watch on a node that is there, and the session that the node belongs to. By reading it: a watch on
    /// what is not there would stay behind.
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

/// A watch, and the connection that it is on.
struct Watch {
    watcher: OneshotWatcher,
    line: Arc<Line>,
}

/// What a watch tells, or that its connection is lost, and until then an answer to all who ask
/// whether it has; `None` if nobody cares any more.
async fn changed(watch: Watch, asked: &mut Asked) -> Option<Option<WatchedEvent>> {
    let Watch { watcher, line } = watch;
    let mut changed = std::pin::pin!(line.while_up(watcher.changed()));
    loop {
        tokio::select! {
            // What has come already is told before it is said that nothing has.
            biased;
            event = &mut changed => return Some(event),
            answer = asked.recv() => drop(answer?.send(())),
        }
    }
}

fn find(watches: &HashMap<String, Weak<Watched>>, path: &str) -> Option<Arc<Watched>> {
    watches.get(path)?.upgrade()
}
