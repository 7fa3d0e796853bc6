//! The verbs of the backend, one module each.

pub(crate) mod acquire;
pub(crate) mod inspect;
pub(crate) mod release;
pub(crate) mod renew;
pub(crate) mod wait;
