//! Requests: scripts, with the circumstances under which they run.

use std::borrow::Cow;
use std::sync::Arc;

use lock_core::backend::Fault;
use lock_core::clock::Moment;

use crate::connection::handle::Connection;
use crate::keys::LockKeys;
use crate::scripts::Call;

/// A script, and the circumstances under which it runs.
pub(crate) struct Request<'a> {
    pub(crate) action: &'static str,
    pub(crate) keys: &'a LockKeys,
    pub(crate) call: &'a Call,
    /// The script to run while a cluster moves the keys one after the other: it has one key.
    pub(crate) fallback: Option<&'a Call>,
    /// The channel of a queued claim. The script gets the part of the connection as its last
    /// argument, and the connection listens on it.
    pub(crate) channel: Option<Arc<str>>,
    /// Replicas have to acknowledge its writes.
    pub(crate) replicated: bool,
}

/// The response to a request.
pub(crate) struct Response<T> {
    /// Its effects count from then on at the earliest.
    pub(crate) asked: Moment,
    pub(crate) connection: Connection,
    pub(crate) answer: T,
    /// It was the other script that ran.
    pub(crate) fallback: bool,
    /// The reason why the write [may be lost](Request::replicated).
    pub(crate) missing: Option<Fault>,
}

impl<'a> Request<'a> {
    pub(crate) fn new(action: &'static str, keys: &'a LockKeys, call: &'a Call) -> Self {
        Self { action, keys, call, fallback: None, channel: None, replicated: false }
    }

    pub(crate) fn with_fallback(self, call: &'a Call) -> Self {
        Self { fallback: Some(call), ..self }
    }

    pub(crate) fn replicated(self, replicated: bool) -> Self {
        Self { replicated, ..self }
    }

    /// Returns the script's call on this connection.
    pub(crate) fn call_on(&self, connection: &Connection) -> Cow<'a, Call> {
        let Some(channel) = &self.channel else { return Cow::Borrowed(self.call) };
        let mut call = self.call.clone();
        call.arg(connection.channel(channel));
        Cow::Owned(call)
    }
}
