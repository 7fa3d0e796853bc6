//! Ours: what a program of any user does.

use std::time::Duration;

use lock_any::{LockGuard, Locker, LockerBuilder};
use lock_bench_worker::Lib;

pub(crate) struct Locks(Locker);

impl Locks {
    /// `local_handovers`: how often in a row a lock passes on inside the process; usually not at all.
    pub(crate) async fn connect(url: &str, local_handovers: u8) -> Result<Self, String> {
        let set = |builder: LockerBuilder| builder.local_handovers(local_handovers);
        let locker = lock_any::connect_with(url, set).await.map_err(|e| e.to_string())?;
        Ok(Self(locker))
    }
}

impl Lib for Locks {
    type Lock = String;
    type Held = LockGuard;

    fn lock(&self, name: &str) -> Result<Self::Lock, String> {
        // Naming the lock belongs to the pair: that is how it is used.
        Ok(name.to_owned())
    }

    async fn acquire(&self, name: &String, ttl: Duration) -> Result<LockGuard, String> {
        let lock = self.0.lock(name.as_str()).map_err(|e| e.to_string())?;
        lock.ttl(ttl).acquire().await.map_err(|e| e.to_string())
    }

    async fn release(&self, held: LockGuard) -> Result<(), String> {
        held.release().await.map_err(|e| e.to_string())
    }

    fn token(held: &LockGuard) -> Option<u64> {
        held.fencing_token().map(lock_any::FencingToken::as_u64)
    }

    fn valid_for(held: &LockGuard) -> Option<Duration> {
        // Without a lease there is no end.
        held.is_held().then(|| held.valid_for().unwrap_or(Duration::MAX))
    }
}
