//! The verbs of the backend, one module each, as methods of the client.

mod acquire;
mod inspect;
mod release;
mod renew;
mod wait;
