//! The heartbeat writes of a session, and the reconnects between them.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::clock::{Moment, sleep, sleep_between, sleep_until};
use tokio::net::TcpStream;
use zookeeper_client::{Client, Error as ZkError};

use super::Session;
use super::connection::Connection;
use super::session_lease::HeartbeatWrite;
use crate::config::Config;
use crate::fault::fault;

/// The pause between two attempts to reconnect.
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

impl Session {
    /// Sends heartbeat writes until the session is over.
    pub(super) async fn send_heartbeats(&self) {
        let mut next = self.lease().next_heartbeat();
        loop {
            let connection = self.connection();
            let is_acknowledged = tokio::select! {
                biased;
                () = connection.lost() => {
                    if self.is_over() || !self.reconnect().await {
                        return;
                    }
                    true
                }
                () = self.next_heartbeat(next) => self.send_heartbeat(&connection).await,
            };
            let lease = self.lease();
            next = if is_acknowledged { lease.next_heartbeat() } else { lease.next_retry() };
        }
    }

    /// Waits until the next heartbeat write is due at `next`, or for an acquisition in an idle
    /// session.
    async fn next_heartbeat(&self, next: Moment) {
        sleep_until(next).await;
        loop {
            let mut used = pin!(self.used.notified());
            used.as_mut().enable();
            if !self.pauses() {
                return;
            }
            used.await;
        }
    }

    /// Returns true if heartbeat writes pause: there was no claim in this session for the time of
    /// its timeout. A majority logs each of them.
    fn pauses(&self) -> bool {
        let entries = self.entries();
        if !entries.is_empty() {
            *self.last_used() = Moment::now();
            return false;
        }
        let mut lease = self.lease();
        (*self.last_used() + lease.timeout()).has_passed() && lease.pause()
    }

    /// Ends a pause before an acquisition, by another connection: the leader touches the session
    /// when that is opened. A chain of writes on the old connection would take a good part of a
    /// timeout. Returns false if the session is over.
    pub(crate) async fn resume(&self) -> Result<bool, Fault> {
        *self.last_used() = Moment::now();
        // The connection is taken first, because another acquisition may end the pause meanwhile by
        // a connection that stays.
        let connection = self.connection();
        if self.lease().is_paused() {
            connection.disconnect().await;
        }
        self.ready_within(self.timeout() / 2).await
    }

    /// Opens another connection for the session. Returns false if the session is lost. A server
    /// that stalls costs little time at first, so that another one is asked early.
    pub(super) async fn reconnect(&self) -> bool {
        let servers: Vec<&str> = self.config.servers.split(',').collect();
        // The clients of a server that failed spread over the others.
        let first = self.id.unsigned_abs() as usize;
        let gives_up = Moment::now() + self.timeout() * 3 / 2;
        let mut stalled = 0;
        for attempt in 0.. {
            let server = servers[first.wrapping_add(attempt) % servers.len()];
            let bound = self.timeout() / 10 * (1 << (stalled / servers.len()).min(2));
            let ends = Moment::now() + bound;
            let reconnected = self.reconnect_to(server, bound).await;
            stalled += usize::from(ends.has_passed());
            match reconnected {
                Ok(Some(connection)) => {
                    self.connection.send_replace(Arc::new(connection));
                    return true;
                }
                Ok(None) if !gives_up.has_passed() && !self.is_outlived() => {
                    sleep_between(RECONNECT_PAUSE / 2, RECONNECT_PAUSE).await;
                }
                Ok(None) | Err(SessionLost) => break,
            }
        }
        false
    }

    /// Returns true if the session lives by unanswered requests at most, and a released lock with
    /// it. Each of them may prolong it.
    fn is_outlived(&self) -> bool {
        let proven_until = self.lease().proven_until();
        proven_until.has_passed() && self.entries().values().any(|entry| entry.state().releasing)
    }

    /// Opens a connection to this server and sends a heartbeat write on it. Returns `None` if that
    /// fails.
    async fn reconnect_to(
        &self,
        server: &str,
        bound: Duration,
    ) -> Result<Option<Connection>, SessionLost> {
        // A server that refuses the connection has not taken the session over, so the leases stay.
        if !self.lease().is_paused() {
            let is_there = tokio::time::timeout(bound, TcpStream::connect(server)).await;
            if !matches!(is_there, Ok(Ok(_))) {
                return Ok(None);
            }
        }
        let asked = Moment::now();
        self.lease().connecting(asked);
        self.lease_changed.notify_waiters();
        let info = self.connection().client.session().clone();
        let opened = Connection::open(&self.config, server, Some(&info));
        let connection = match tokio::time::timeout(bound, opened).await {
            Ok(Ok(Ok(connection))) => connection,
            Ok(Ok(Err(ZkError::SessionExpired))) => return Err(SessionLost),
            Ok(Ok(Err(error))) => {
                tracing::debug!(lock.error = %error, "no connection yet");
                return Ok(None);
            }
            Ok(Err(error)) => {
                tracing::warn!(lock.error = %error, "there cannot be another connection");
                return Ok(None);
            }
            Err(_) => return Ok(None),
        };
        if connection.client.session_id().0 != self.id {
            // The server has replaced the session without an error.
            return Err(SessionLost);
        }
        let granted = connection.client.session_timeout();
        if granted < self.timeout() {
            warn_short_timeout(&self.config, granted);
        }
        self.lease().connected(asked, granted);
        // The member may lag behind. After a commit it has caught up.
        let heartbeat = tokio::time::timeout(self.timeout() / 2, commit_no_op(&connection.client));
        let Ok(Ok(heartbeat)) = heartbeat.await else {
            connection.disconnect().await;
            return Ok(None);
        };
        self.lease().record(heartbeat);
        self.lease_changed.notify_waiters();
        Ok(Some(connection))
    }

    /// Sends one heartbeat write. Returns false unless it is acknowledged on the connection that it
    /// was sent on.
    async fn send_heartbeat(&self, connection: &Connection) -> bool {
        let answer = tokio::select! {
            biased;
            () = connection.lost() => return false,
            answer = commit_no_op(&connection.client) => answer,
            () = sleep(self.timeout() / 2) => {
                // A silent server is noticed sooner, and then the connection changes. This server
                // sends data and no answer: the connection is out of step for good.
                tracing::warn!("the connection to ZooKeeper is out of step, and its session given up");
                self.end();
                return false;
            }
        };
        match answer {
            Ok(heartbeat) => {
                self.lease().record(heartbeat);
                self.lease_changed.notify_waiters();
                true
            }
            Err(error) => {
                let fault = fault("sending a heartbeat write", &error);
                let is_refused = !fault.is_transient();
                let why = fault.into_source();
                if is_refused {
                    tracing::warn!(lock.error = %why, "no lock of this session can be held for long");
                } else {
                    tracing::debug!(lock.error = %why, "a heartbeat write failed");
                }
                false
            }
        }
    }
}

/// The session has ended, or the server has replaced it.
struct SessionLost;

/// Traces a warning that a server granted less than the requested timeout.
pub(super) fn warn_short_timeout(config: &Config, granted: Duration) {
    tracing::warn!(
        asked = ?config.session_timeout,
        granted = ?granted,
        "the server grants no longer session than this: it is its maxSessionTimeout, which is twenty ticks unless set; \
         its locks are lost the sooner when its connection breaks"
    );
}

/// Commits a write that changes nothing.
pub(crate) async fn commit_no_op(client: &Client) -> Result<HeartbeatWrite, ZkError> {
    let sent = Moment::now();
    let mut write = client.new_multi_writer();
    write.add_check_version("/", -1)?;
    write.commit().await?;
    Ok(HeartbeatWrite { sent, answered: Moment::now() })
}
