//! The verbs of the backend.

pub(crate) mod acquire;
pub(crate) mod held;
mod inspect;
mod list;
mod release;
pub(crate) mod renew;
pub(crate) mod uncontended;
mod wait;
