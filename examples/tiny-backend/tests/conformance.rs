//! The laws on it.

use std::process::ExitCode;
use std::sync::Arc;

use lock_conformance::{Harness, Pace, Suite};
use lock_core::Backend;
use tiny_backend::Table;

struct Shared(Table);

#[async_trait::async_trait]
impl Harness for Shared {
    fn pace(&self) -> Pace {
        Pace::Paused
    }

    async fn client(&self) -> Arc<dyn Backend> {
        Arc::new(self.0.clone())
    }
}

fn main() -> ExitCode {
    lock_conformance::run(&[Suite::new("table", || Box::new(Shared(Table::default())))])
}
