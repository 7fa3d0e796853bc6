//! Every saboteur is caught by the laws that it breaks, by name. Those of chapters 12 and 13 are
//! caught where there is a network to break: see the tests of `lock-redis`.

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use lock_conformance::{ClockMode, Harness, Suite};
use lock_core::{Backend, Memory};

struct InMemory(Memory);

#[async_trait]
impl Harness for InMemory {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }
}

fn main() -> ExitCode {
    let memory = Suite::new("memory", || Box::new(InMemory(Memory::new().with_loss_push())));
    lock_conformance::run_saboteurs(&[memory.only(|law| !law.is_about_networks())])
}
