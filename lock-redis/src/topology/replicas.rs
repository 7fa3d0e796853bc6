//! Writes that a number of replicas have to acknowledge, by `WAIT`.
//!
//! It speaks of the writes of its own connection, and blocks that. So each of these writes has a
//! connection to itself meanwhile, out of a few.

use std::future::Future;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use lock_core::backend::Fault;
use lock_core::backend::FaultKind::Unavailable;
use lock_core::clock::Moment;
use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{FromRedisValue, PushInfo, RedisError};
use tokio::sync::Semaphore;

use crate::config::MinReplicas;
use crate::connection::clients::Driver;
use crate::connection::handle::Connection;
use crate::connection::prelude::ClusterPrelude;
use crate::fault;
use crate::limits::millis;
use crate::scripts::Call;

/// Connections to one server at most.
const MAX_CONNECTIONS: usize = 8;

/// The connections to one server for that.
#[derive(Debug)]
pub(crate) struct Replicas {
    pub(crate) min_replicas: MinReplicas,
    pub(crate) idle: Mutex<Vec<ExclusiveConnection>>,
    pub(crate) turns: Semaphore,
}

/// The answer of a script, the earliest moment of its effects, and the reason why they may be lost
/// with the server.
pub(crate) struct Replicated<T> {
    pub(crate) since: Moment,
    pub(crate) answer: Result<T, RedisError>,
    pub(crate) missing: Option<Fault>,
}

/// A connection that is not shared.
#[derive(Clone)]
pub(crate) struct ExclusiveConnection {
    pub(crate) redis: MultiplexedConnection,
    pub(crate) _driver: Driver,
    /// The shared connection to the same server.
    pub(crate) shared: u64,
    pub(crate) gone: ConnectionEnd,
}

/// Set when the connection's task ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConnectionEnd(Arc<AtomicBool>);

/// Hears of nothing but the end.
pub(crate) struct EndWitness(ConnectionEnd);

impl Replicas {
    pub(crate) fn new(min_replicas: MinReplicas) -> Self {
        Self { min_replicas, idle: Mutex::default(), turns: Semaphore::new(MAX_CONNECTIONS) }
    }

    /// Runs a writing script after the `prelude` that a cluster may need, and waits for the
    /// replicas.
    pub(crate) async fn run<T, C>(
        &self,
        connect: impl FnOnce() -> C,
        shared: &Connection,
        call: &Call,
        prelude: Option<ClusterPrelude<'_>>,
    ) -> Result<Replicated<T>, Fault>
    where
        T: FromRedisValue,
        C: Future<Output = Result<ExclusiveConnection, Fault>>,
    {
        let _turn = self.turns.acquire().await;
        let asked = shared.track_exclusive();
        let own = match self.take_idle(shared.id()) {
            Some(own) => own,
            None => connect().await?,
        };
        let mut redis = own.redis.clone();
        let work = async {
            let answer = match prelude {
                None => call.run_alone(&redis).await?,
                Some(prelude) => prelude.before(call, &redis).await?,
            };
            let mut wait = redis::cmd("WAIT");
            wait.arg(self.min_replicas.count).arg(millis(self.min_replicas.timeout));
            Ok((answer, wait.query_async(&mut redis).await?))
        };
        let since = Moment::now();
        let done = shared.while_current(work).await;
        // A connection that failed, or whose request was dropped, is not used again.
        if !done.as_ref().is_err_and(fault::is_broken) {
            asked.answered();
            self.idle().push(own);
        }
        let missing =
            done.as_ref().ok().and_then(|(_, known_by)| self.min_replicas.missing(*known_by));
        Ok(Replicated { since, answer: done.map(|(answer, _)| answer), missing })
    }

    fn take_idle(&self, shared: u64) -> Option<ExclusiveConnection> {
        let mut idle = self.idle();
        idle.retain(|own| own.shared == shared && !own.gone.is_set());
        idle.pop()
    }

    pub(crate) fn idle(&self) -> MutexGuard<'_, Vec<ExclusiveConnection>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl MinReplicas {
    pub(crate) fn missing(self, known_by: u32) -> Option<Fault> {
        let Self { count, timeout } = self;
        (known_by < count).then(|| {
            let why = format!(
                "{known_by} replicas have acknowledged the write within {timeout:?}, and min_replicas \
                 is {count}; look at the replicas"
            );
            Fault::unknown(Unavailable, why)
        })
    }
}

impl ConnectionEnd {
    /// Returns the push receiver that reports the end of a connection, for its settings.
    pub(crate) fn witness(&self) -> impl AsyncPushSender {
        EndWitness(self.clone())
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl AsyncPushSender for EndWitness {
    fn send(&self, _: PushInfo) -> Result<(), SendError> {
        Ok(())
    }
}

impl Drop for EndWitness {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for ExclusiveConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("gone", &self.gone).finish_non_exhaustive()
    }
}
