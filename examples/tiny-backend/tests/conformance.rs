//! The laws on it.

use std::process::ExitCode;
use std::sync::Arc;

use lock_conformance::{ClockMode, Harness, Suite};
use lock_core::Backend;
use tiny_backend::Table;

struct Shared(Table);

#[async_trait::async_trait]
impl Harness for Shared {
    fn clock_mode(&self) -> ClockMode {
        ClockMode::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }
}

fn main() -> ExitCode {
    lock_conformance::run(&[Suite::new("table", || Box::new(Shared(Table::default())))])
}
