//! tokio's own mutex: first come, first served among the tasks of one process, and nothing else.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as Table, PoisonError};
use std::time::Duration;

use tokio::sync::{Mutex, OwnedMutexGuard};

use lock_bench_worker::Lib;

#[derive(Default)]
pub(crate) struct TokioMutex(Table<HashMap<String, Arc<Mutex<()>>>>);

impl Lib for TokioMutex {
    type Lock = Arc<Mutex<()>>;
    type Held = OwnedMutexGuard<()>;

    fn lock(&self, name: &str) -> Result<Self::Lock, String> {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(table.entry(name.to_owned()).or_default()))
    }

    async fn acquire(&self, lock: &Self::Lock, _ttl: Duration) -> Result<Self::Held, String> {
        Ok(Arc::clone(lock).lock_owned().await)
    }

    async fn release(&self, held: Self::Held) -> Result<(), String> {
        drop(held);
        Ok(())
    }
}
