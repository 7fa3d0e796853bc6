//! The verbs of the backend.

mod acquire;
pub(crate) mod held;
mod inspect;
mod release;
mod renew;
mod wait;
