//! Connections to the servers: the link, the pipeline of requests, and the wire format.

mod link;
mod pipeline;
pub(crate) mod wire;

pub(crate) use link::{Endpoint, Link};
pub(crate) use pipeline::{Connection, stat};
