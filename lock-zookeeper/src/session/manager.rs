//! The session of a client, and its replacement when it has ended.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::backend::{Claim, Fault, FaultKind};
use lock_core::clock::{Moment, sleep_between};
use lock_core::{Error, ErrorKind};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use zookeeper_client::Error as ZkError;
use zookeeper_client::{Acls, Client, CreateMode};

use super::connection::Connection;
use super::heartbeats::{commit_no_op, warn_short_timeout};
use super::queue_entry::QueueEntry;
use super::session_lease::HeartbeatWrite;
use super::{Session, acls_of, expired};
use crate::config::Config;
use crate::fault::{EPHEMERAL_ON_LOCAL_SESSION, error};
use crate::names::Layout;

/// The pause between two attempts to open a session, which doubles up to the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Locks are lost if commits take longer than this part of the session timeout.
pub(crate) const BEARABLE: u32 = 10;

/// A warning is traced if commits take longer than this part of the session timeout.
pub(crate) const SLOW: u32 = BEARABLE * 2;

/// Opens one session after the other, for as long as it lives.
pub(crate) struct SessionManager {
    current: watch::Receiver<Weak<Session>>,
    /// The timeout that was granted to the first session.
    timeout: Duration,
    task: JoinHandle<()>,
}

impl SessionManager {
    /// Opens the first session.
    pub(crate) async fn open(config: Config) -> Result<Self, Error> {
        let first = open(&config).await?;
        let timeout = first.timeout();
        if timeout > config.session_timeout {
            tracing::warn!(
                asked = ?config.session_timeout,
                granted = ?timeout,
                "the servers grant no shorter session than this: it is their minSessionTimeout, which is two \
                 ticks unless set; ask for four ticks or longer, or leases bear fewer faults of the ensemble"
            );
        }
        let (sender, current) = watch::channel(Arc::downgrade(&first));
        let task = tokio::spawn(run_sessions(config, first, sender));
        Ok(Self { current, timeout, task })
    }

    /// Returns the timeout of the first session.
    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// Returns the session, connected or not, ended or not. Returns `None` while there is none.
    pub(crate) fn current(&self) -> Option<Arc<Session>> {
        self.current.borrow().upgrade()
    }

    /// Returns the queue entry of a claim in the current session.
    pub(crate) fn entry_of(&self, claim: &Claim) -> Option<(Arc<Session>, Arc<QueueEntry>)> {
        let session = self.current()?;
        let entry = session.entry(&claim.owner)?;
        Some((session, entry))
    }

    /// Returns a session with a connection, or an error if there is none within a twentieth of the
    /// timeout.
    pub(crate) async fn session(&self) -> Result<Arc<Session>, Fault> {
        let mut current = self.current.clone();
        loop {
            let session = current.borrow_and_update().upgrade();
            if let Some(session) = session
                && session.ready().await?
            {
                return Ok(session);
            }
            let next = tokio::time::timeout(self.timeout / 20, current.changed()).await;
            match next {
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Err(expired()),
                Err(_) => {
                    let why = "the session has ended, and there is no other one yet";
                    return Err(Fault::not_applied(FaultKind::Unavailable, why));
                }
            }
        }
    }
}

impl Drop for SessionManager {
    /// Closes the session, and all its locks end at once.
    fn drop(&mut self) {
        self.task.abort();
        if let Some(session) = self.current() {
            session.end();
        }
    }
}

impl fmt::Debug for SessionManager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.current().fmt(f)
    }
}

/// Runs sessions. It owns the current one: all other users drop it when it is over, and its client
/// is dropped with the last of them.
async fn run_sessions(
    config: Config,
    mut session: Arc<Session>,
    current: watch::Sender<Weak<Session>>,
) {
    let mut closing = JoinSet::new();
    loop {
        let is_answered = session.run().await;
        tracing::warn!(
            zookeeper.servers = %config.servers,
            "the session has ended, and all locks that it held are lost"
        );
        // Another request that is not answered might prolong the session.
        if is_answered {
            closing.spawn(session.close());
        }
        session = reopen(&config).await;
        while closing.try_join_next().is_some() {}
        if current.send(Arc::downgrade(&session)).is_err() {
            return;
        }
    }
}

/// Opens a session, again and again until that succeeds.
async fn reopen(config: &Config) -> Arc<Session> {
    let mut pause = FIRST_PAUSE;
    loop {
        match open(config).await {
            Ok(session) => return session,
            Err(error) if error.is_retryable() => {
                tracing::debug!(lock.error = %error, "no session yet");
            }
            Err(error) => tracing::warn!(lock.error = %error, "there cannot be another session"),
        }
        sleep_between(pause / 2, pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

/// Opens a session and sends its first heartbeat writes.
async fn open(config: &Config) -> Result<Arc<Session>, Error> {
    // The request has not been sent yet: the session lives its timeout from a later moment.
    let asked = Moment::now();
    let connection = Connection::open(config, &config.servers, None).await?;
    let connection = connection.map_err(|e| error(&e))?;
    let granted = connection.client().session_timeout();
    if granted.is_zero() {
        return Err(Error::new(ErrorKind::Unavailable, "the server grants no session timeout"));
    }
    if granted < config.session_timeout {
        warn_short_timeout(config, granted);
    }
    let client = connection.client();
    let (first, is_global) =
        tokio::join!(first_heartbeat(client, &config.chroot), check_is_global(client));
    let first = first?;
    is_global?;
    let mut heartbeats = vec![first];
    let is_slow = |heartbeat: &HeartbeatWrite| heartbeat.took() > granted / SLOW;
    // The first commit of a server that has just started takes long.
    if is_slow(&first) {
        let second = first_heartbeat(client, &config.chroot).await?;
        heartbeats.push(second);
        if is_slow(&second) {
            tracing::warn!(
                took = ?second.took(),
                granted = ?granted,
                "a commit takes more than a twentieth of the session timeout, and locks are lost where it takes \
                 more than a tenth: ask for a longer session_timeout"
            );
        }
    }
    Ok(Session::new(connection, asked, &heartbeats, config.clone(), acls_of(config)))
}

/// Refuses a session that is local to its member. The leader takes its ephemeral nodes for nodes of
/// an expired session, at each acquisition, for as long as the setting stands. The request creates
/// nothing, because the parent does not exist.
pub(crate) async fn check_is_global(client: &Client) -> Result<(), Error> {
    let path = format!("/{}/none", Layout::default().new_node_name());
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    let created = client.create(&path, b"", &ephemeral);
    match tokio::time::timeout(client.session_timeout() / 2, created).await {
        Ok(Err(why @ ZkError::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION))) => Err(error(&why)),
        _ => Ok(()),
    }
}

/// Sends the first heartbeat write. If later ones were refused, all locks would be lost, and no
/// error would say why.
pub(crate) async fn first_heartbeat(
    client: &Client,
    chroot: &str,
) -> Result<HeartbeatWrite, Error> {
    let bound = client.session_timeout() / 2;
    let why = match tokio::time::timeout(bound, commit_no_op(client)).await {
        Ok(Ok(heartbeat)) => return Ok(heartbeat),
        Ok(Err(ZkError::NoNode)) => {
            let why = format!("the chroot {chroot} does not exist: create it first");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(Err(ZkError::NoAuth)) => {
            let root = if chroot.is_empty() { "/" } else { chroot };
            let why = format!(
                "the client's user may not read {root}, which heartbeat writes check: \
                 give it that right, or name a chroot that it may read"
            );
            return Err(Error::new(ErrorKind::Denied, why));
        }
        Ok(Err(other)) => other,
        Err(_) => ZkError::Timeout,
    };
    Err(error(&why))
}
