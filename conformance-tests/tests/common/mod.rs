//! The memory backend as the laws and the simulation want it.

use std::sync::Arc;

use async_trait::async_trait;
use lock_conformance::{ClockMode, Harness};
use lock_core::{Backend, LockName, Memory};

/// A lock space of its own.
pub(crate) struct InMemory(Memory);

impl InMemory {
    pub(crate) fn new() -> Self {
        Self(Memory::new().with_loss_push())
    }
}

#[async_trait]
impl Harness for InMemory {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }

    async fn evict(&self, name: &LockName) -> bool {
        self.0.evict(name);
        true
    }

    fn can_evict(&self) -> bool {
        true
    }

    async fn lose_data(&self) -> bool {
        self.0.lose_data();
        true
    }
}
