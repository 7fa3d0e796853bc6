//! One lock abstraction, many backends.
//!
//! A lock here is a **lease on a name**, held by one grant and guarded by a **fencing token**.
//! Three promises that most lock libraries break: the holder gives up before anyone else can get
//! in; the holder is always told; and what a retry, a drop or a lost reply leaves behind never
//! harms a newer holder.
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
//! # What is not promised
//!
//! No lock can stop a paused holder's write that is already past its last check. A resource that
//! checks the [`FencingToken`] can. The grades that a backend declares are its [`Capabilities`];
//! demand the grades that you need with [`Locker::require`].
//!
//! # Where things are
//!
//! Users need [`Locker`], [`Lock`] and [`LockGuard`]. Backend authors read [`backend`]. The
//! repository's `LAWS.md` states each promise in detail, with a check.
//!
//! # Tracing
//!
//! | name | kind | fields |
//! |---|---|---|
//! | `acquire` | span, debug | `lock.name`, `lock.backend`, `lock.owner`, then `lock.token`, `lock.outcome` |
//! | `wait` | span, debug | `lock.name`, `lock.backend`, `lock.owner` |
//! | `renew` | span, debug | `lock.backend`, `lock.count`; `lock.name` and `lock.owner` of the first one |
//! | `release` | span, debug | `lock.name`, `lock.backend`, `lock.owner`, then `lock.outcome` |
//! | `lost` | event, warn | `lock.name`, `lock.backend`, `lock.owner`, `lock.token`, `lock.reason` |
//!
//! A lock that is [handed over](LockerBuilder::local_handovers) inside its process has no
//! `release`: its claim goes on, under the owner that won it.
//!
//! `lock.owner` is the first eight hex digits. No span or event holds an owner id or credentials.

pub mod backend;
pub mod clock;
pub mod dial;
mod encoding;
mod engine;
mod entropy;
mod error;
mod executor;
mod guard;
mod locker;
mod loss;
mod name;
mod owner;
mod policy;
mod runtime_probe;
mod testing;
mod token;
pub mod url;

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
