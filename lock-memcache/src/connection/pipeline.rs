//! The pipeline of requests on one connection.
//!
//! Requests are written in the order of the calls, as many at once as have come together, and
//! replies are matched to them in that order. Callers that were answered together are likely to
//! send again together. The last of them writes for all, and a single one writes for itself, so
//! that no task has to be woken for it. A caller may be dropped: its reply is read all the same,
//! and discarded. A connection with malformed replies, or with none for long, fails, and so do all
//! its requests.

use std::collections::VecDeque;
use std::fmt;
use std::future::Future;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::{Moment, sleep};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, oneshot};

use super::wire::{ProtocolError, Reply, ReplyParser, Request};
use crate::config::Credentials;
use crate::fault;

/// Limit of the time for which the oldest request may have no reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(5);

/// Time between checks of the oldest request.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// Limit of requests without reply on one connection. A server that takes this many without a reply
/// is sent no more.
const MAX_UNANSWERED: usize = 1 << 16;

/// Limit of yields to other callers before a write.
const MAX_YIELDS: usize = 4;

/// Approximate size of one read, in bytes.
const CHUNK: usize = 16 * 1024;

/// A connection to one life of one server. Clones share it; with the last one it is closed.
#[derive(Clone)]
pub(crate) struct Connection {
    shared: Arc<Shared>,
    _close: Arc<CloseOnDrop>,
}

struct CloseOnDrop(Arc<Shared>);

struct Shared {
    id: u64,
    server: String,
    state: Mutex<PipelineState>,
    /// Notified of data to write, and of the close.
    changed: Notify,
}

#[derive(Default)]
struct PipelineState {
    /// Gone with the connection.
    stream: Option<Arc<OwnedWriteHalf>>,
    unsent: Vec<u8>,
    /// True while the unsent bytes are being sent.
    is_sending: bool,
    unanswered: VecDeque<PendingRequest>,
    /// Callers that were answered lately, and have not sent since.
    expected_askers: usize,
    broken: Option<String>,
    closed: bool,
}

struct PendingRequest {
    since: Moment,
    missing: usize,
    replies: Vec<Reply>,
    answer: oneshot::Sender<Vec<Reply>>,
}

impl Connection {
    pub(super) fn over(stream: TcpStream, server: &str) -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);

        let (from, to) = stream.into_split();
        let to = Arc::new(to);
        let shared = Arc::new(Shared {
            id: COUNT.fetch_add(1, Ordering::Relaxed),
            server: server.to_owned(),
            state: Mutex::new(PipelineState {
                stream: Some(Arc::clone(&to)),
                ..PipelineState::default()
            }),
            changed: Notify::new(),
        });
        tokio::spawn(drive(BreakOnDrop(Arc::clone(&shared)), from, to));
        Self { _close: Arc::new(CloseOnDrop(Arc::clone(&shared))), shared }
    }

    /// Returns whether the connection still works.
    pub(super) fn is_open(&self) -> bool {
        self.shared.state().broken.is_none()
    }

    /// Returns an id that no other connection of this process has. CAS numbers mean nothing on
    /// another life of the server, so they go with the id of their connection.
    pub(crate) fn id(&self) -> u64 {
        self.shared.id
    }

    /// Sends a request, and returns its replies, and the earliest moment of its effects.
    ///
    /// It is sent at once, in the order of the calls, and not when the future is polled.
    pub(crate) fn ask(
        &self,
        request: &Request,
    ) -> impl Future<Output = Result<(Moment, Vec<Reply>), Fault>> + Send + use<> {
        let (answer, answered) = oneshot::channel();
        let since = Moment::now();
        let sent = self.shared.send(since, request, answer);
        let connection = self.clone();
        async move {
            sent?;
            match answered.await {
                Ok(replies) => Ok((since, replies)),
                Err(_) => Err(connection.shared.fault()),
            }
        }
    }

    /// Sends a request with one reply, as [`ask`](Self::ask).
    pub(crate) async fn ask_one(&self, request: &Request) -> Result<Reply, Fault> {
        let (_, mut replies) = self.ask(request).await?;
        replies.pop().ok_or_else(|| fault::unexpected_reply("ask", "nothing"))
    }

    pub(super) async fn authenticate(
        &self,
        credentials: Option<&Credentials>,
    ) -> Result<(), Fault> {
        if let Some(Credentials { user, password }) = credentials {
            match self.ask_one(&Request::new().credentials(user, password)).await? {
                Reply::Stored => {}
                other => return Err(other.unexpected("give user and password")),
            }
        }
        let settings = self.stats("settings").await?;
        if stat(&settings, "cas_enabled") == Some("no") {
            let why = "the server was started with -C: without its CAS numbers no lock can be released \
                 without a chance of ending another holder's";
            return Err(Fault::not_applied(FaultKind::Unsupported, why));
        }
        Ok(())
    }

    pub(super) async fn warn_of_eviction(&self) -> Result<(), Fault> {
        let server = self.shared.server.as_str();
        if stat(&self.stats("settings").await?, "evictions") == Some("on") {
            tracing::warn!(
                memcache.server = server,
                "at its memory limit this server throws away what was not used for long, and locks \
                 with it; start it with -M, and give it nothing to do but locks"
            );
        }
        let stats = self.stats("").await?;
        let evicted = stat(&stats, "evictions").filter(|evicted| *evicted != "0");
        if let Some(evicted) = evicted {
            tracing::warn!(
                memcache.server = server,
                memcache.evictions = evicted,
                "this server has thrown things away for want of memory; it may be too small for locks"
            );
        }
        Ok(())
    }

    /// Returns statistics of the server.
    pub(crate) async fn stats(&self, about: &str) -> Result<Vec<(String, String)>, Fault> {
        match self.ask_one(&Request::new().stats(about)).await? {
            Reply::Stats(stats) => Ok(stats),
            other => Err(other.unexpected("ask for statistics")),
        }
    }
}

pub(crate) fn stat<'a>(stats: &'a [(String, String)], name: &str) -> Option<&'a str> {
    stats.iter().find_map(|(known, value)| (known == name).then_some(value.as_str()))
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection").field("server", &self.shared.server).finish_non_exhaustive()
    }
}

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.state().closed = true;
        self.0.changed.notify_one();
    }
}

impl Shared {
    fn send(
        &self,
        since: Moment,
        request: &Request,
        answer: oneshot::Sender<Vec<Reply>>,
    ) -> Result<(), Fault> {
        let mut state = self.state();
        let refusal = match &state.broken {
            Some(why) => why.as_str(),
            None if state.unanswered.len() >= MAX_UNANSWERED => "too many requests without answer",
            None => {
                let is_first = state.unsent.is_empty();
                state.unsent.extend_from_slice(request.text.as_bytes());
                let replies = Vec::with_capacity(request.replies);
                let missing = request.replies;
                state.unanswered.push_back(PendingRequest { since, missing, replies, answer });
                state.send_if_last();
                // Else the first one has done so.
                let is_left = is_first && !state.unsent.is_empty();
                drop(state);
                if is_left {
                    self.changed.notify_one();
                }
                return Ok(());
            }
        };
        let why = format!("nothing can be asked of {}: {refusal}", self.server);
        Err(Fault::not_applied(FaultKind::Unavailable, why))
    }

    /// Delivers all complete replies to their requests.
    fn dispatch(
        &self,
        parser: &mut ReplyParser,
        answered: &mut Vec<PendingRequest>,
    ) -> Result<(), String> {
        let mut state = self.state();
        loop {
            let reply = match parser.next() {
                Ok(Some(reply)) => reply,
                Ok(None) => return Ok(()),
                Err(ProtocolError) => {
                    return Err("the server sent bytes that no memcached sends".into());
                }
            };
            let desynchronized = reply.desynchronizes();
            let Some(asked) = state.unanswered.front_mut() else {
                return Err("the server sent a reply without a request".into());
            };
            asked.replies.push(reply);
            asked.missing -= 1;
            if asked.missing == 0 || desynchronized {
                answered.extend(state.unanswered.pop_front());
                state.expected_askers += 1;
            }
            if desynchronized {
                return Err("the server did not understand a request".into());
            }
        }
    }

    async fn write(&self, stream: &OwnedWriteHalf) -> String {
        let mut batch = Vec::new();
        loop {
            let is_closed = self.state().take_unsent(&mut batch);
            if batch.is_empty() {
                if is_closed {
                    return "it was closed".into();
                }
                self.changed.notified().await;
                self.gather().await;
                continue;
            }
            if let Err(error) = write_all(stream, &batch).await {
                return error.to_string();
            }
            batch.clear();
        }
    }

    /// Yields so that callers that are about to send share the write.
    async fn gather(&self) {
        let mut before = 0;
        for _ in 0..MAX_YIELDS {
            let unsent = self.state().unsent.len();
            if unsent == before {
                return;
            }
            before = unsent;
            tokio::task::yield_now().await;
        }
    }

    async fn read(&self, mut stream: OwnedReadHalf) -> String {
        let (mut parser, mut answered) = (ReplyParser::default(), Vec::new());
        loop {
            let buffer = parser.buffer();
            buffer.reserve(CHUNK);
            match stream.read_buf(buffer).await {
                Ok(0) => return "the server closed it".into(),
                Ok(_) => {}
                Err(error) => return error.to_string(),
            }
            let given = self.dispatch(&mut parser, &mut answered);
            for asked in answered.drain(..) {
                // The caller may be gone.
                let _ = asked.answer.send(asked.replies);
            }
            if let Err(why) = given {
                return why;
            }
        }
    }

    /// Returns when one request has had no reply for too long, at two checks: a process that was
    /// stopped finds old requests with replies that it has not read yet.
    async fn watch_for_timeout(&self) -> String {
        let mut suspect = None;
        loop {
            sleep(CHECK_INTERVAL).await;
            let oldest = self.state().unanswered.front().map(|asked| asked.since);
            let is_late = oldest.is_some_and(|since| (since + REPLY_TIMEOUT).has_passed());
            if is_late && suspect == oldest {
                return format!("no answer for {REPLY_TIMEOUT:?}");
            }
            suspect = oldest.filter(|_| is_late);
        }
    }

    fn fail(&self, why: String) {
        let left = {
            let mut state = self.state();
            state.broken.get_or_insert(why);
            state.stream = None;
            std::mem::take(&mut state.unanswered)
        };
        // This wakes the callers.
        drop(left);
    }

    fn fault(&self) -> Fault {
        let why = self.state().broken.clone().unwrap_or_default();
        fault::broken(&self.server, &why)
    }

    fn state(&self) -> MutexGuard<'_, PipelineState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PipelineState {
    /// Sends for all, if this is the last of the callers that were answered together.
    fn send_if_last(&mut self) {
        let is_last = self.expected_askers == 1;
        self.expected_askers = self.expected_askers.saturating_sub(1);
        let Some(stream) = self.stream.as_ref().filter(|_| is_last && !self.is_sending) else {
            return;
        };
        // The next write reports the error.
        let sent = stream.try_write(&self.unsent).unwrap_or(0);
        self.unsent.drain(..sent);
    }

    /// Takes all unsent bytes. Returns true if there will be no more.
    fn take_unsent(&mut self, batch: &mut Vec<u8>) -> bool {
        std::mem::swap(batch, &mut self.unsent);
        self.is_sending = !batch.is_empty();
        if self.is_sending {
            // Callers that have not sent by now do something else.
            self.expected_askers = 0;
        }
        self.closed
    }
}

async fn write_all(stream: &OwnedWriteHalf, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        stream.writable().await?;
        match stream.try_write(bytes) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => bytes = &bytes[written..],
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Fails the connection when its task ends, also with its runtime.
struct BreakOnDrop(Arc<Shared>);

impl Drop for BreakOnDrop {
    fn drop(&mut self) {
        self.0.fail("its runtime has ended".into());
    }
}

async fn drive(on_drop: BreakOnDrop, from: OwnedReadHalf, to: Arc<OwnedWriteHalf>) {
    let shared = &on_drop.0;
    let why = tokio::select! {
        biased;
        why = shared.read(from) => why,
        why = shared.write(&to) => why,
        why = shared.watch_for_timeout() => why,
    };
    shared.fail(why);
}
