//! Writes that a number of replicas have to acknowledge, by `WAIT`.
//!
//! It speaks of the writes of its own connection, and blocks that. So each of these writes has a connection to itself
//! meanwhile, out of a few.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::backend::Fault;
use lock_core::backend::FaultKind::Unavailable;
use lock_core::clock::Moment;
use redis::aio::{AsyncPushSender, MultiplexedConnection, SendError};
use redis::{FromRedisValue, PushInfo, RedisError};
use tokio::sync::Semaphore;

use crate::backend::millis;
use crate::fault;
use crate::link::{Connection, First, Link};
use crate::scripts::Call;

/// Connections to one server at most.
const MOST: usize = 8;

/// How many replicas have to know of a lock, and for how long they are waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wanted {
    pub(crate) count: u32,
    pub(crate) timeout: Duration,
}

/// The connections to one server for that.
#[derive(Debug)]
pub(crate) struct Replicas {
    wanted: Wanted,
    idle: Mutex<Vec<Own>>,
    turns: Semaphore,
}

/// What a script answered, from when its effects count at the earliest, and why they may be lost with the server.
pub(crate) struct Written<T> {
    pub(crate) since: Moment,
    pub(crate) answer: Result<T, RedisError>,
    pub(crate) missing: Option<Fault>,
}

/// A connection that nobody shares.
#[derive(Clone)]
pub(crate) struct Own {
    pub(crate) redis: MultiplexedConnection,
    /// The shared connection to the same server.
    pub(crate) beside: u64,
    pub(crate) gone: Gone,
}

/// Set when the connection's task ends.
#[derive(Clone, Debug, Default)]
pub(crate) struct Gone(Arc<AtomicBool>);

/// Hears of nothing but the end.
struct Witness(Gone);

impl Replicas {
    pub(crate) fn new(wanted: Wanted) -> Self {
        Self { wanted, idle: Mutex::default(), turns: Semaphore::new(MOST) }
    }

    /// Runs a script that writes, with what a cluster may want `first`, and waits for the replicas.
    pub(crate) async fn run<T: FromRedisValue>(
        &self,
        link: &Link,
        beside: &Connection,
        call: &Call,
        first: Option<First<'_>>,
    ) -> Result<Written<T>, Fault> {
        let _turn = self.turns.acquire().await;
        let asked = beside.asked_beside();
        let own = match self.take_idle(beside.id()) {
            Some(own) => own,
            None => link.another_connection(beside).await?,
        };
        let mut redis = own.redis.clone();
        let work = async {
            let answer = match first {
                None => call.run(&mut redis).await?,
                Some(first) => first.before(call, &mut redis).await?,
            };
            let mut wait = redis::cmd("WAIT");
            wait.arg(self.wanted.count).arg(millis(self.wanted.timeout));
            Ok((answer, wait.query_async(&mut redis).await?))
        };
        let since = Moment::now();
        let done = beside.while_there(work).await;
        // A connection that failed, or whose answer nobody waited for, is not used again.
        if !done.as_ref().is_err_and(fault::is_broken) {
            asked.answered();
            self.idle().push(own);
        }
        let missing = done.as_ref().ok().and_then(|(_, known_by)| self.wanted.missing(*known_by));
        Ok(Written { since, answer: done.map(|(answer, _)| answer), missing })
    }

    fn take_idle(&self, beside: u64) -> Option<Own> {
        let mut idle = self.idle();
        idle.retain(|own| own.beside == beside && !own.gone.is_set());
        idle.pop()
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Own>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Wanted {
    fn missing(self, known_by: u32) -> Option<Fault> {
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

impl Gone {
    /// For the settings of a connection.
    pub(crate) fn witness(&self) -> impl AsyncPushSender {
        Witness(self.clone())
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::Acquire)
    }
}

impl AsyncPushSender for Witness {
    fn send(&self, _: PushInfo) -> Result<(), SendError> {
        Ok(())
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        self.0.0.store(true, Ordering::Release);
    }
}

impl std::fmt::Debug for Own {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Own").field("gone", &self.gone).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use lock_conformance::helpers::eventually;
    use redis::Value;
    use test_servers::{Redis as Server, RedisOptions};

    use super::*;
    use crate::config::Config;
    use crate::link::Ours;

    #[tokio::test]
    async fn a_connection_that_hangs_casts_doubt_on_the_one_that_all_share() {
        let server = Server::start(RedisOptions::new());
        let url = format!("{}?min_replicas=1&min_replicas_timeout=1ms", server.url());
        let config = Config::new(&url).unwrap();
        let (keys, ours) = (config.keys.for_trial(0), Arc::new(Ours::new(&config)));
        let link = Arc::new(Link::new(config, Arc::clone(&ours)));
        let shared = link.first_connection().await.unwrap();
        let call = Call::new(&ours.scripts().inspect, &[keys.lock(), keys.queue()]);
        let ask_beside = || async {
            link.send_lasting::<Value>(&shared, &call, None).await.unwrap().answer.unwrap()
        };
        // From here on two are idle. One more would ask the shared one which server it has.
        tokio::join!(ask_beside(), ask_beside());
        assert!(!link.is_in_doubt());
        server.stop();
        let hanging = tokio::time::timeout(Duration::from_millis(10), ask_beside()).await;
        assert!(hanging.is_err(), "it was stopped");
        eventually(|| link.is_in_doubt()).await;
        server.cont();
        ask_beside().await;
        assert!(link.is_in_doubt(), "another connection says nothing of this one");
        link.send::<Value>(&shared, &call, None).await.1.unwrap();
        assert!(!link.is_in_doubt());
    }
}
