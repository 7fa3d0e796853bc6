//! Our locks, as any program uses them.

use std::time::Duration;

use lock_any::{LockGuard, Locker, LockerBuilder};
use lock_bench_worker::Lib;

pub(crate) struct Locks(Locker);

impl Locks {
    /// Connects to the backend. `local_handovers` is the number of hand-overs in a row inside the
    /// process, usually zero.
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
        // Creating the handle belongs to the pair, as in a user's program.
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
