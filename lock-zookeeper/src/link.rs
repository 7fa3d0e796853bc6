//! The one session of a client, and the next one when it has ended.

use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::{Moment, sleep_between};
use lock_core::{Error, ErrorKind};
use tokio::sync::watch;
use tokio::task::{JoinHandle, JoinSet};
use zookeeper_client::Error as ZkError;
use zookeeper_client::{Acls, Client, CreateMode};

use crate::chain::Proof;
use crate::config::Config;
use crate::fault::{EPHEMERAL_ON_LOCAL_SESSION, error};
use crate::names::Layout;
use crate::session::{Connection, Session, commit_nothing, expired, warn_of_less};

/// From one try to open a session to the next: longer and longer.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Commits may take twice this part of the session timeout, see the crate's documentation.
const SLOW: u32 = 20;

/// Opens sessions, one after the other, as long as it lives.
pub(crate) struct Link {
    current: watch::Receiver<Weak<Session>>,
    /// As negotiated for the first session.
    timeout: Duration,
    keeper: JoinHandle<()>,
}

impl Link {
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
        let keeper = tokio::spawn(keep(config, first, sender));
        Ok(Self { current, timeout, keeper })
    }

    pub(crate) fn timeout(&self) -> Duration {
        self.timeout
    }

    /// The session, whether or not it is connected; it may be over. `None` while there is no other one yet.
    pub(crate) fn present(&self) -> Option<Arc<Session>> {
        self.current.borrow().upgrade()
    }

    /// A session with a connection; an error if there will be none soon.
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

impl Drop for Link {
    /// With the last user of its client the session is closed, and all that it had is gone at once.
    fn drop(&mut self) {
        self.keeper.abort();
        if let Some(session) = self.present() {
            session.end();
        }
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.present().fmt(f)
    }
}

/// Owns the session: what else uses it lets go when it is over, and with the last one its client goes.
async fn keep(config: Config, mut session: Arc<Session>, current: watch::Sender<Weak<Session>>) {
    let mut closing = JoinSet::new();
    loop {
        session.run().await;
        tracing::warn!(
            zookeeper.servers = %config.servers,
            "the session has ended, and all locks that it held are lost"
        );
        closing.spawn(session.close());
        session = reopen(&config).await;
        while closing.try_join_next().is_some() {}
        if current.send(Arc::downgrade(&session)).is_err() {
            return;
        }
    }
}

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

async fn open(config: &Config) -> Result<Arc<Session>, Error> {
    // Before the first byte: the session lives its timeout from some moment after this.
    let asked = Moment::now();
    let connection = Connection::open(config, &config.servers, None).await?;
    let connection = connection.map_err(|e| error(&e))?;
    let granted = connection.client().session_timeout();
    if granted.is_zero() {
        return Err(Error::new(ErrorKind::Unavailable, "the server grants no session timeout"));
    }
    if granted < config.session_timeout {
        warn_of_less(config, granted);
    }
    let client = connection.client();
    let (first, is_global) =
        tokio::join!(look_at_root(client, &config.chroot), must_be_global(client));
    let first = first?;
    is_global?;
    let mut proofs = vec![first];
    let is_slow = |proof: &Proof| proof.took() > granted / SLOW;
    // A server that has just started takes long for the first one.
    if is_slow(&first) {
        let second = look_at_root(client, &config.chroot).await?;
        proofs.push(second);
        if is_slow(&second) {
            tracing::warn!(
                took = ?second.took(),
                granted = ?granted,
                "a commit takes more than a twentieth of the session timeout, and locks are lost where it takes \
                 more than a tenth: ask for a longer session_timeout"
            );
        }
    }
    let acls = match config.credentials {
        Some(_) => Acls::creator_all(),
        None => Acls::anyone_all(),
    };
    Ok(Session::new(connection, asked, &proofs, config.clone(), acls))
}

/// Refuses a session that its member keeps to itself. The leader takes the nodes of such a one for
/// those of a session that has expired, at each acquisition, for as long as the setting stands.
/// Nothing is made: there is no such parent.
async fn must_be_global(client: &Client) -> Result<(), Error> {
    let path = format!("/{}/none", Layout::default().mint());
    let ephemeral = CreateMode::Ephemeral.with_acls(Acls::anyone_all());
    let created = client.create(&path, b"", &ephemeral);
    match tokio::time::timeout(client.session_timeout() / 2, created).await {
        Ok(Err(why @ ZkError::UnexpectedErrorCode(EPHEMERAL_ON_LOCAL_SESSION))) => Err(error(&why)),
        _ => Ok(()),
    }
}

/// By what proves the session later on. If that is refused, all its locks would be lost, and nobody told why.
async fn look_at_root(client: &Client, chroot: &str) -> Result<Proof, Error> {
    let bound = client.session_timeout() / 2;
    let why = match tokio::time::timeout(bound, commit_nothing(client)).await {
        Ok(Ok(proof)) => return Ok(proof),
        Ok(Err(ZkError::NoNode)) => {
            let why = format!("the chroot {chroot} does not exist: create it first");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        Ok(Err(ZkError::NoAuth)) => {
            let root = if chroot.is_empty() { "/" } else { chroot };
            let why = format!(
                "our user may not read {root}, and a look at it is what proves that a session lives: \
                 give it that right, or name a chroot that it may read"
            );
            return Err(Error::new(ErrorKind::Denied, why));
        }
        Ok(Err(other)) => other,
        Err(_) => ZkError::Timeout,
    };
    Err(error(&why))
}
