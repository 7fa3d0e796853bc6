//! One lock abstraction, many backends. Programs use `lock-any`, which re-exports this crate.
//!
//! A lock is a **lease on a name**, held by one grant and guarded by a **fencing token**. Three
//! promises:
//!
//! 1. The holder stops treating the lock as held before another client can acquire it.
//! 2. The holder is always notified of a loss, at its deadline at the latest.
//! 3. Retries, dropped futures and lost replies never harm a newer holder.
//!
//! # What is not promised
//!
//! No lock can stop a paused holder's write that is already past its last check. A resource that
//! checks the [`FencingToken`] can. The grades that a backend declares are its [`Capabilities`];
//! demand them with [`Locker::require`].
//!
//! ```
//! # #[tokio::main(flavor = "current_thread")] async fn main() -> Result<(), lock_core::Error> {
//! use lock_core::{FenceGate, Locker, Memory};
//!
//! let locks = Locker::new(Memory::new());
//! let store = FenceGate::new(Vec::new()); // stands for a resource that checks tokens
//!
//! let guard = locks.lock("orders/42")?.acquire().await?;
//! let token = guard.fencing_token().expect("this backend has tokens");
//! guard.run(async { store.admit(token, |rows| rows.push("paid")) }).await??;
//! guard.release().await?; // Ok exactly if we still held it
//! # Ok(()) }
//! ```
//!
//! # Parts
//!
//! Users need [`Locker`], [`Lock`] and [`LockGuard`]. Authors of backends read [`backend`]. The
//! laws are in `LAWS.md` of the repository, each with a check; `docs/architecture.md` shows where
//! each decision is made.
//!
//! # Errors
//!
//! Contention is `None` and never an error. [`Error::kind`] says what failed, [`Error::effect`]
//! whether the request may have been applied, and [`Error::is_retryable`] whether the same call may
//! succeed later.
//!
//! # Tracing
//!
//! | name | kind | fields |
//! |---|---|---|
//! | `acquire` | span, debug | `lock.name`, `lock.backend`, `lock.owner`, then `lock.token`, `lock.outcome`, `error.type`, `otel.status_code` |
//! | `wait` | span, debug | `lock.name`, `lock.backend`, `lock.owner` |
//! | `renew` | span, debug | `lock.backend`, `lock.count`; `lock.name` and `lock.owner` of the first one; then `lock.failed`, `otel.status_code` |
//! | `release` | span, debug | `lock.name`, `lock.backend`, `lock.owner`, then `lock.outcome`, `otel.status_code` |
//! | `acquired`, `contended` | event, debug | those of the span around it |
//! | `released` | event, debug | `lock.name`, `lock.backend`, `lock.owner` |
//! | `waiting through an outage` | event, debug | `lock.name`, `lock.backend`, `lock.error` |
//! | `still waiting after 10 s` | event, info | `lock.name`, `lock.backend`, `lock.holder` (its label), `lock.waiting` |
//! | `lost` | event, warn | `lock.name`, `lock.backend`, `lock.owner`, `lock.token`, `lock.cause`, `lock.reason` (its text), `lock.lease_left` |
//! | `renewal failed` | event, warn | `lock.name`, `lock.backend`, `lock.owner`, `lock.error`, `lock.error_source`, `lock.lease_left` |
//! | `release not confirmed` | event, warn | `lock.name`, `lock.backend`, `lock.owner`, `lock.error`, `lock.error_source` |
//! | `released after a loss` | event, warn | `lock.name`, `lock.backend`, `lock.owner` |
//!
//! A lock that is [handed over](LockerBuilder::local_handovers) inside its process has no
//! `release`: its claim goes on, under the owner that acquired it. `lock.owner` is the first eight
//! hex digits. No span or event contains an owner id or credentials. `lock.lease_left` is in
//! seconds. The feature `metrics` records [`metrics`]; `docs/observability.md` has their table, the
//! values of the fields, and programs that export both.

pub mod backend;
pub mod clock;
pub mod diagnosis;
pub mod dial;
mod encoding;
mod engine;
mod entropy;
mod error;
mod executor;
mod guard;
mod locker;
mod loss;
pub mod metrics;
mod name;
mod owner;
mod policy;
mod runtime_probe;
mod testing;
mod token;
pub mod url;
mod work;

pub use backend::{
    Backend, Capabilities, Durability, Effect, Fencing, Order, Reach, Requirements, Support,
    Takeover, Wakeup,
};
pub use encoding::{ENCODING_VERSION, Encoding};
pub use error::{Error, ErrorKind};
pub use executor::Executor;
pub use guard::{Detached, LockGuard, LossSignal};
pub use locker::{Lock, Locker, LockerBuilder};
pub use loss::Loss;
pub use name::LockName;
pub use owner::{Label, OwnerId};
pub use policy::RenewalPolicy;
pub use testing::{Memory, faults, layer};
pub use token::{FenceGate, FencingToken};
pub use work::RunError;
