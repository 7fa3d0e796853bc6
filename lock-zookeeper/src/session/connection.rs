//! One connection of a session. It never reconnects by itself: only the caller of a reconnect
//! learns which timeout it is granted.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::task::{Context, Poll};

use lock_core::Error;
use lock_core::clock::Moment;
use spawns_core::{Spawn, Task};
use tokio::sync::SetOnce;
use tokio::task::JoinHandle;
use zookeeper_client::{
    Client, Connector, Error as ZkError, SessionInfo, SessionState, StateWatcher,
};

use crate::config::Config;

/// The number of attempts for a connection with credentials, see [`Connection::open`].
const ATTEMPTS: u32 = 16;

/// A client of the client crate that ends with its connection.
pub(crate) struct Connection {
    pub(super) client: Client,
    liveness: Arc<Liveness>,
    task: JoinHandle<()>,
}

impl Connection {
    /// Opens a session at one of the servers, or takes over `session`.
    pub(crate) async fn open(
        config: &Config,
        servers: &str,
        session: Option<&SessionInfo>,
    ) -> Result<Result<Self, ZkError>, Error> {
        // Servers on Netty, as all that encrypt are, sometimes answer the credentials before the
        // connection request. The client crate takes that for garbage. It fails at once, unlike a
        // server that is down.
        let soon = Moment::now() + config.session_timeout / 10;
        let mut attempts = 0;
        loop {
            attempts += 1;
            match Self::open_once(config, servers, session).await? {
                Err(ZkError::NoHosts)
                    if config.credentials.is_some()
                        && attempts < ATTEMPTS
                        && !soon.has_passed() => {}
                opened => return Ok(opened),
            }
        }
    }

    /// Tries once to open a connection.
    async fn open_once(
        config: &Config,
        servers: &str,
        session: Option<&SessionInfo>,
    ) -> Result<Result<Self, ZkError>, Error> {
        let servers = format!("{servers}{}", config.chroot);
        let connector = connector(config, session);
        let capture = TaskCapture::default();
        #[cfg(feature = "tls")]
        if let Some(certificates) = &config.certificates {
            let options = certificates.read().await?;
            let connected = connector.with_tls(options).secure_connect(&servers);
            return Ok(capture
                .during(Box::pin(connected))
                .await
                .map(|client| Self::of(client, capture)));
        }
        let connected = capture.during(Box::pin(connector.connect(&servers))).await;
        Ok(connected.map(|client| Self::of(client, capture)))
    }

    fn of(client: Client, capture: TaskCapture) -> Self {
        let liveness = Arc::new(Liveness { is_up: RwLock::new(true), down: SetOnce::new() });
        let task = ConnectionTask {
            task: capture.task(),
            states: client.state_watcher(),
            liveness: Arc::clone(&liveness),
        };
        Self { client, liveness, task: tokio::spawn(task) }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    pub(super) fn liveness(&self) -> Arc<Liveness> {
        Arc::clone(&self.liveness)
    }

    /// Returns true if the connection is open.
    pub(super) fn is_up(&self) -> bool {
        self.liveness.down.get().is_none() && self.client.state() == SessionState::SyncConnected
    }

    /// Waits until the connection is lost.
    pub(super) async fn lost(&self) {
        self.liveness.down.wait().await;
    }

    /// Closes the session, and waits until the server has answered.
    pub(crate) async fn close(self) {
        let Self { client, task, .. } = self;
        let bound = client.session_timeout() / 2;
        drop(client);
        let _ = tokio::time::timeout(bound, task).await;
    }

    /// Closes the connection, and not the session, as dropping an open connection does. Only a task
    /// that has ended cannot close the session.
    pub(super) async fn disconnect(&self) {
        self.task.abort();
        self.lost().await;
    }
}

fn connector(config: &Config, session: Option<&SessionInfo>) -> Connector {
    let mut connector =
        Client::connector().with_session_timeout(config.session_timeout).with_fail_eagerly();
    if let Some(session) = session {
        connector = connector.with_session(session.clone());
    }
    match &config.credentials {
        Some(credentials) => connector.with_auth("digest", credentials.as_bytes()),
        None => connector,
    }
}

/// The state of a connection, for the watches on it.
#[derive(Debug)]
pub(super) struct Liveness {
    /// Locked while a watch is polled: the client crate panics in watches on a lost connection.
    is_up: RwLock<bool>,
    down: SetOnce<()>,
}

impl Liveness {
    /// Returns the result of a watch on this connection, or `None` once the connection is lost.
    pub(super) async fn while_up<T>(&self, watch: impl Future<Output = T>) -> Option<T> {
        let mut watch = pin!(watch);
        poll_fn(|context| {
            let is_up = self.is_up.read().unwrap_or_else(PoisonError::into_inner);
            match *is_up {
                true => watch.as_mut().poll(context).map(Some),
                false => Poll::Ready(None),
            }
        })
        .await
    }

    fn mark_ending(&self) {
        *self.is_up.write().unwrap_or_else(PoisonError::into_inner) = false;
    }
}

/// The task of a client that serves its connection, until that is lost. The client crate would then
/// reconnect in the same task. That needs another poll, which does not happen.
struct ConnectionTask {
    task: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    states: StateWatcher,
    liveness: Arc<Liveness>,
}

impl Future for ConnectionTask {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let has_ended = match &mut self.task {
            Some(task) => task.as_mut().poll(context).is_ready(),
            None => true,
        };
        if has_ended || self.states.peek_state() != SessionState::SyncConnected {
            self.end();
            return Poll::Ready(());
        }
        Poll::Pending
    }
}

impl ConnectionTask {
    fn end(&mut self) {
        self.liveness.mark_ending();
        self.task = None;
        let _ = self.liveness.down.set(());
    }
}

impl Drop for ConnectionTask {
    fn drop(&mut self) {
        self.end();
    }
}

/// Captures the task that the client crate spawns when it has connected.
#[derive(Default)]
struct TaskCapture(Mutex<Option<Task>>);

impl TaskCapture {
    async fn during<T>(&self, work: impl Future<Output = T>) -> T {
        let mut work = pin!(work);
        poll_fn(|context| {
            let _scope = spawns_core::enter(self);
            work.as_mut().poll(context)
        })
        .await
    }

    fn task(self) -> Option<Pin<Box<dyn Future<Output = ()> + Send>>> {
        let task = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        task.map(|task| Box::into_pin(task.future))
    }
}

impl Spawn for TaskCapture {
    fn spawn(&self, task: Task) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(task);
    }
}
