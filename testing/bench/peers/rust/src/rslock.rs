//! rslock: Redlock; one server is a quorum of one.

use std::time::Duration;

use lock_bench_worker::Lib;
use rslock::{LockGuard, LockManager};

pub(crate) struct RsLock(LockManager);

impl RsLock {
    /// `redis://host:port`, or `quorum:?member=redis://…&member=redis://…`. Those who wait look again after
    /// a random part of `delay`.
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
            // As often as by default; `acquire` begins again after that.
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
