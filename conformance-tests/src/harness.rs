//! What a backend brings along to be checked.

use std::sync::Arc;

use async_trait::async_trait;
use lock_core::faults::{Call, Disturbance, Faulty};
use lock_core::{Backend, LockName};

/// Asked before each call of a disturbed client.
pub type Script = Box<dyn Fn(&Call<'_>) -> Disturbance + Send + Sync>;

/// Which clock the checks run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// A paused one that jumps: for backends without sockets, files and threads.
    Paused,
    /// The real one.
    Real,
}

/// One lock space of a backend, made afresh for each trial and thrown away after it.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Which clock the checks run on.
    fn pace(&self) -> Pace;

    /// A client of the lock space with a connection of its own.
    async fn client(&self) -> Arc<dyn Backend>;

    /// A client whose calls are disturbed as `script` says.
    async fn disturbed_client(&self, script: Script) -> Arc<dyn Backend> {
        Arc::new(Faulty::new(self.client().await, script))
    }

    /// Removes a held lock behind everybody's back, as an operator or an eviction would. False if
    /// this harness cannot; the laws about it are then checked by breaking the lock, if the backend
    /// can do that, and otherwise shown as ignored.
    async fn evict(&self, name: &LockName) -> bool {
        let _ = name;
        false
    }

    /// Whether [`evict`](Self::evict) works.
    fn can_evict(&self) -> bool {
        false
    }
}
