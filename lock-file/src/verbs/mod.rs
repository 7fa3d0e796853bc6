//! The verbs of the backend, one module each, as methods of [`FileLocks`](crate::FileLocks).

mod acquire;
mod break_lock;
mod inspect;
mod lease;
mod list;
mod release;
mod renew;
mod wait;
