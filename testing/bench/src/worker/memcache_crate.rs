//! The crate `memcache` with its tokio client, and only its basic operations: `ms` in mode `add`,
//! and `md` with the CAS value. It has no token, no owner check and no waiters.

use std::time::Duration;

use lock_bench_worker::Lib;
use memcache::exp::{AsyncMetaClient, MutationStatus};

pub(crate) struct MemcacheCrate(AsyncMetaClient);

impl MemcacheCrate {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let address = url.strip_prefix("memcache://").ok_or("it speaks to memcache://host:port")?;
        // As many connections as there are tasks, which is its best case.
        let client = AsyncMetaClient::builder().max_idle(2048);
        client.connect_async(address).await.map(Self).map_err(|e| e.to_string())
    }
}

impl Lib for MemcacheCrate {
    type Lock = String;
    type Held = (String, u64);

    const CANNOT_WAIT: Option<&str> = Some("a bare `add` cannot wait");
    const CANNOT_KEEP: Option<&str> = Some("it is not renewed");

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, key: &String, ttl: Duration) -> Result<Self::Held, String> {
        let owner = super::floors::random_owner();
        let set = self.0.set(key, owner).add().return_cas().ttl(ttl);
        let stored = set.send().await.map_err(|e| e.to_string())?;
        match (stored.status, stored.cas) {
            (MutationStatus::Applied, Some(cas)) => Ok((key.clone(), cas)),
            (status, _) => Err(format!("it is not stored: {status:?}")),
        }
    }

    async fn release(&self, (key, cas): Self::Held) -> Result<(), String> {
        let deleted =
            self.0.delete(&key).compare_cas(cas).send().await.map_err(|e| e.to_string())?;
        let kept = || format!("it is not deleted: {:?}", deleted.status);
        deleted.applied().then_some(()).ok_or_else(kept)
    }
}
