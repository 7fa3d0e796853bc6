//! rslock: Redlock. One server is a quorum of one.

use std::time::Duration;

use lock_bench_worker::Lib;
use rslock::{LockGuard, LockManager};

pub(crate) struct RsLock(LockManager);

impl RsLock {
    /// Connects to `redis://host:port`, or to `quorum:?member=redis://…&member=redis://…`. Waiters
    /// poll again after a random part of `delay`.
    pub(crate) fn connect(url: &str, delay: Option<Duration>) -> Result<Self, String> {
        let servers: Vec<String> = match url.strip_prefix("quorum:?") {
            Some(members) => members
                .split('&')
                .filter_map(|m| m.strip_prefix("member="))
                .map(Into::into)
                .collect(),
            None => vec![url.to_owned()],
        };
        let mut manager = LockManager::new(servers);
        if let Some(delay) = delay {
            // The default number of retries; `acquire` starts again after them.
            manager.set_retry(3, delay);
        }
        Ok(Self(manager))
    }
}

impl Lib for RsLock {
    type Lock = String;
    type Held = LockGuard;

    const CANNOT_KEEP: Option<&str> = Some("it renews nothing by itself");

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, name: &String, ttl: Duration) -> Result<LockGuard, String> {
        self.0.acquire(name.as_str(), ttl).await.map_err(|e| e.to_string())
    }

    async fn release(&self, held: LockGuard) -> Result<(), String> {
        held.release().await;
        Ok(())
    }
}
