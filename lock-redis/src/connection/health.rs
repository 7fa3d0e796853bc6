//! The health of a connection: whether it is usable, and which server it leads to.

use std::collections::HashSet;
use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::clock::Moment;
use redis::{ErrorKind as RedisKind, RedisError};
use tokio::sync::SetOnce;

use crate::clock::ServerTime;
use crate::connection::address::{SILENCE, ServerLocation};

/// The age from which a connection to a replica is closed.
const AGE: Duration = Duration::from_secs(1);

/// Whether a connection is of any use, and where it leads.
pub(crate) struct Health {
    /// No other connection has it; never 0.
    pub(crate) id: u64,
    /// Ends the name of the channel on which this connection listens. The next 998 connections of
    /// the client have others.
    pub(crate) number: u64,
    pub(crate) server: ServerLocation,
    pub(crate) since: Moment,
    pub(crate) broken: AtomicBool,
    /// The locks have moved to another server: requests do not wait for this one any more.
    pub(crate) superseded: SetOnce<()>,
    /// Its answers are those to other requests.
    pub(crate) desynchronized: AtomicBool,
    /// The server can delete a key that has some value without a script.
    pub(crate) deletes: AtomicBool,
    /// The same, and it has not refused us that.
    pub(crate) may_delete: AtomicBool,
    /// The server has refused us `INCRBY`.
    pub(crate) refuses_to_count: AtomicBool,
    /// In a cluster: the slots on whose channels it listens.
    pub(crate) slots: Mutex<HashSet<u16>>,
    /// The time of the oldest request whose caller has gone without an answer.
    pub(crate) unanswered: Mutex<Option<Moment>>,
    /// The last reading of the server's clock.
    pub(crate) clock: Mutex<Option<ServerTime>>,
}

impl Health {
    pub(crate) fn of(server: &ServerLocation, number: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);

        Self {
            id: NEXT.fetch_add(1, Ordering::Relaxed),
            number,
            server: server.clone(),
            since: Moment::now(),
            broken: AtomicBool::new(false),
            superseded: SetOnce::new(),
            desynchronized: AtomicBool::new(false),
            deletes: AtomicBool::new(false),
            may_delete: AtomicBool::new(false),
            refuses_to_count: AtomicBool::new(false),
            slots: Mutex::default(),
            unanswered: Mutex::default(),
            clock: Mutex::default(),
        }
    }

    /// Returns the part of `channel` on which this connection listens.
    pub(crate) fn channel(&self, channel: &str) -> String {
        format!("{channel}:{:03}", self.number)
    }

    /// Returns true if the address may lead to another server by now. Without this limit, each
    /// refusal by a replica would cause a new connection.
    pub(crate) fn is_old(&self) -> bool {
        (self.since + AGE).has_passed()
    }

    /// Says when `request` was sent, and its answer; and remembers it if it is dropped without one.
    pub(crate) async fn watch<T>(
        &self,
        request: impl Future<Output = Result<T, RedisError>>,
    ) -> (Moment, Result<T, RedisError>) {
        let asked = PendingRequest::on(self);
        let since = asked.since;
        // Pinned here: each function that it is moved to would have room for it twice.
        let request = pin!(asked.until(request));
        (since, self.while_current(request).await)
    }

    pub(crate) async fn while_current<T>(
        &self,
        work: impl Future<Output = Result<T, RedisError>>,
    ) -> Result<T, RedisError> {
        tokio::select! {
            biased;
            answer = work => match self.desynchronized.load(Ordering::Acquire) {
                false => answer,
                true => {
                    let why = "the answers on this connection are not told apart any more";
                    Err(RedisError::from((RedisKind::Io, why)))
                }
            },
            // No other servers are ever left.
            _ = self.superseded.wait(), if self.server.epoch.is_some() => {
                Err(io::Error::from(io::ErrorKind::ConnectionAborted).into())
            }
        }
    }

    pub(crate) fn is_good(&self) -> bool {
        !self.broken.load(Ordering::Acquire) && !self.is_silent_for(SILENCE)
    }

    pub(crate) fn is_silent_for(&self, time: Duration) -> bool {
        self.unanswered().is_some_and(|since| (since + time).has_passed())
    }

    pub(crate) fn slots(&self) -> MutexGuard<'_, HashSet<u16>> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn clock(&self) -> MutexGuard<'_, Option<ServerTime>> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn unanswered(&self) -> MutexGuard<'_, Option<Moment>> {
        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A request that was sent.
pub(crate) struct PendingRequest<'a> {
    pub(crate) health: &'a Health,
    pub(crate) since: Moment,
    pub(crate) answered: bool,
    /// By another connection to the same server.
    pub(crate) beside: bool,
}

impl<'a> PendingRequest<'a> {
    pub(crate) fn on(health: &'a Health) -> Self {
        Self { health, since: Moment::now(), answered: false, beside: false }
    }

    pub(crate) async fn until<T>(self, request: impl Future<Output = T>) -> T {
        let answer = request.await;
        self.answered();
        answer
    }

    pub(crate) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for PendingRequest<'_> {
    fn drop(&mut self) {
        let mut oldest = self.health.unanswered();
        if !self.answered {
            *oldest = Some(oldest.map_or(self.since, |oldest| oldest.min(self.since)));
        } else if !self.beside && oldest.is_some_and(|oldest| oldest <= self.since) {
            // The server answers, and nearly all requests in order: those that were due before.
            *oldest = None;
        }
    }
}
