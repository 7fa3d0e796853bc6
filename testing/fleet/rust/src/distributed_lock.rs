//! distributed-lock: on one Redis server, and on files.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use distributed_lock_core::error::LockError;
use distributed_lock_core::traits::{DistributedLock, LockHandle, LockProvider};
use distributed_lock_file::FileLockProvider;
use distributed_lock_redis::RedisLockProvider;
use fred::prelude::{ClientLike, RedisClient, RedisConfig};
use lock_bench_worker::Lib;

type HeldOf<P> = <<P as LockProvider>::Lock as DistributedLock>::Handle;

pub(crate) struct OnRedis {
    client: RedisClient,
    /// The provider in use, with its lease.
    provider: Mutex<Option<(Duration, Arc<RedisLockProvider>)>>,
}

impl OnRedis {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let config = RedisConfig::from_url(url).map_err(|e| e.to_string())?;
        let client = RedisClient::new(config, None, None, None);
        client.connect();
        client.wait_for_connect().await.map_err(|e| e.to_string())?;
        Ok(Self { client, provider: Mutex::default() })
    }

    /// Returns the provider for a lease.
    ///
    /// The lease belongs to the provider, so each lease has one; users have one for all their
    /// locks. The minimum validity and the renewal interval are the default shares of the lease.
    async fn provider(&self, ttl: Duration) -> Result<Arc<RedisLockProvider>, String> {
        let known = || self.provider.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, provider)) = known().as_ref().filter(|(lease, _)| *lease == ttl) {
            return Ok(Arc::clone(provider));
        }
        let builder = RedisLockProvider::builder().client(self.client.clone()).expiry(ttl);
        let builder = builder.min_validity(ttl / 10 * 9).extension_cadence(ttl / 3);
        let provider = Arc::new(builder.build().await.map_err(in_words)?);
        *known() = Some((ttl, Arc::clone(&provider)));
        Ok(provider)
    }
}

impl Lib for OnRedis {
    type Lock = String;
    type Held = HeldOf<RedisLockProvider>;

    const CANNOT_WAIT: Option<&str> = Some("its acquire fails if the lock is held");

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, name: &String, ttl: Duration) -> Result<Self::Held, String> {
        let provider = self.provider(ttl).await?;
        provider.create_lock(name).acquire(None).await.map_err(in_words)
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        held.release().await.map_err(in_words)
    }

    /// Reports only whether the lock was lost: the library does not know its remaining time.
    fn valid_for(held: &Self::Held) -> Option<Duration> {
        (!*held.lost_token().borrow()).then_some(Duration::MAX)
    }
}

pub(crate) struct OnFiles(FileLockProvider);

impl OnFiles {
    pub(crate) fn at(url: &str) -> Result<Self, String> {
        let directory = url.strip_prefix("file://").ok_or("it takes file:///directory")?;
        FileLockProvider::new(directory).map(Self).map_err(in_words)
    }
}

impl Lib for OnFiles {
    type Lock = String;
    type Held = HeldOf<FileLockProvider>;

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, name: &String, _ttl: Duration) -> Result<Self::Held, String> {
        self.0.create_lock(name).acquire(None).await.map_err(in_words)
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        held.release().await.map_err(in_words)
    }
}

fn in_words(error: LockError) -> String {
    error.to_string()
}
