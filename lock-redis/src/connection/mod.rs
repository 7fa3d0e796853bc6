//! One connection to one server.

pub(crate) mod address;
pub(crate) mod batcher;
pub(crate) mod client_state;
pub(crate) mod clients;
pub(crate) mod handle;
pub(crate) mod health;
pub(crate) mod prelude;
#[cfg(feature = "tls")]
pub(crate) mod tls;
