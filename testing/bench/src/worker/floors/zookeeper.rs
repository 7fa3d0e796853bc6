//! `create` of an ephemeral node, and `delete`. The session has no heartbeats: it lasts for its
//! timeout after the last request, which is longer than a measurement.

use std::sync::atomic::{AtomicI32, Ordering};
use std::time::Duration;

use super::Dialect;

const SESSION_TIMEOUT_MS: i32 = 30_000;
const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EPHEMERAL: i32 = 1;
const ALL_RIGHTS: i32 = 31;
const ANY_VERSION: i32 = -1;

pub(crate) struct ZooKeeper {
    /// The number of the last request.
    xid: AtomicI32,
}

impl Dialect for ZooKeeper {
    /// The path of the node.
    type Held = String;

    const SCHEME: &str = "zookeeper";

    fn greeting() -> Vec<u8> {
        // Version, last transaction seen, timeout; no session yet, and no password; not read-only.
        Request::default()
            .int(0)
            .bytes(&[0; 8])
            .int(SESSION_TIMEOUT_MS)
            .bytes(&[0; 8])
            .buffer(&[0; 16])
            .bytes(&[0])
            .framed()
    }

    fn greeted(reply: &[u8]) -> Option<Self> {
        // Length, version, and a timeout that is zero if there is no session.
        let timeout = int(reply, 8)?;
        (timeout > 0).then(|| Self { xid: AtomicI32::new(0) })
    }

    fn length(bytes: &[u8]) -> Option<usize> {
        let length = 4 + usize::try_from(int(bytes, 0)?).ok()?;
        (bytes.len() >= length).then_some(length)
    }

    fn acquire(&self, key: &str, _ttl: Duration) -> (Vec<u8>, String) {
        let path = format!("/{key}");
        let request = self
            .header(CREATE)
            .buffer(path.as_bytes())
            .buffer(b"")
            .int(1)
            .int(ALL_RIGHTS)
            .buffer(b"world")
            .buffer(b"anyone")
            .int(EPHEMERAL)
            .framed();
        (request, path)
    }

    fn acquired(&self, _key: &str, path: String, reply: &[u8]) -> Option<String> {
        is_ok(reply).then_some(path)
    }

    fn release(&self, path: &String) -> Vec<u8> {
        self.header(DELETE).buffer(path.as_bytes()).int(ANY_VERSION).framed()
    }

    fn released(&self, reply: &[u8]) -> bool {
        is_ok(reply)
    }
}

impl ZooKeeper {
    fn header(&self, kind: i32) -> Request {
        Request::default().int(self.xid.fetch_add(1, Ordering::Relaxed) + 1).int(kind)
    }
}

/// Returns whether a reply has no error: length, number of the request, transaction, error.
fn is_ok(reply: &[u8]) -> bool {
    int(reply, 16) == Some(0)
}

fn int(bytes: &[u8], at: usize) -> Option<i32> {
    bytes.get(at..at + 4)?.try_into().ok().map(i32::from_be_bytes)
}

/// A request in Jute, as far as it is needed.
#[derive(Default)]
struct Request(Vec<u8>);

impl Request {
    fn int(mut self, value: i32) -> Self {
        self.0.extend_from_slice(&value.to_be_bytes());
        self
    }

    fn bytes(mut self, bytes: &[u8]) -> Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn buffer(self, bytes: &[u8]) -> Self {
        let length = i32::try_from(bytes.len()).expect("names are short");
        self.int(length).bytes(bytes)
    }

    fn framed(self) -> Vec<u8> {
        Self::default().buffer(&self.0).0
    }
}
