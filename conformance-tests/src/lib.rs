//! The laws of locks, checked on any backend: ours or yours.
//!
//! `LAWS.md` lists the promises, law by law. Here is a check for each law, and for each check at
//! least one [saboteur](sabotage): a backend broken in exactly that way, which the check must
//! catch.
//!
//! To check a backend, implement [`Harness`] for it and give its suite to [`run`], in a test with
//! `harness = false`:
//!
//! ```no_run
//! # use std::sync::Arc;
//! # use lock_conformance::{Harness, ClockMode, Suite};
//! # use lock_core::{Backend, Memory};
//! struct MyHarness(Memory);
//!
//! #[async_trait::async_trait]
//! impl Harness for MyHarness {
//!     fn clock_mode(&self) -> ClockMode {
//!         ClockMode::Paused
//!     }
//!     async fn client(&self) -> Arc<dyn Backend> {
//!         Arc::new(self.0.clone())
//!     }
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     lock_conformance::run(&[Suite::new("mine", || Box::new(MyHarness(Memory::new())))])
//! }
//! ```
//!
//! Each law becomes one trial per backend, named after both. A law about a capability that the
//! backend does not declare becomes a check that the capability is absent. A law that is merely not
//! promised is shown as ignored. Nothing is skipped silently.
//!

mod context;
mod harness;
pub mod helpers;
pub mod laws;
pub mod network;
pub mod proxy;
pub mod sabotage;
mod trials;

pub use context::{Ctx, Verdict, Violation};
pub use harness::{ClockMode, CrashableClient, Harness, KeepData, Script, ServerProcess, TestEnv};
pub use laws::{Applies, Law, Level};
pub use trials::{Suite, catch, check, run, run_saboteurs};
