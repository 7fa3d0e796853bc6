//! Real servers for the tests, and short words for what is asked of them.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use conformance_tests::proxy::Proxy;
pub(crate) use conformance_tests::servers::{Memcached as Server, MemcachedOptions};
use lock_core::backend::{Attempt, Claim, Fault, Grant, Renewal};
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, LockName, OwnerId};
use lock_memcache::Memcached;
use tracing_subscriber::fmt::MakeWriter;

pub(crate) fn start() -> Server {
    Server::start(MemcachedOptions::new())
}

pub(crate) async fn client(server: &Server) -> Memcached {
    Memcached::connect(server.url()).await.expect("the server takes us")
}

/// A way to the server that can be disturbed, and its URL.
pub(crate) fn proxied(server: &Server) -> (Proxy, String) {
    let proxy = Proxy::start(server.addr()).expect("a proxy can be made");
    let url = format!("memcache://{}", proxy.addr());
    (proxy, url)
}

pub(crate) fn name(text: &str) -> LockName {
    LockName::new(text).expect("tests use good names")
}

pub(crate) fn claim(text: &str, ttl_ms: u64) -> Claim {
    Claim::new(name(text), OwnerId::mint(), Duration::from_millis(ttl_ms))
}

/// The grant, or a panic that says what there was instead.
#[track_caller]
pub(crate) fn granted(answer: Result<Attempt, Fault>) -> Grant {
    match answer {
        Ok(Attempt::Acquired(grant)) => grant,
        other => panic!("not granted: {other:?}"),
    }
}

/// What is left of the holder's lease.
#[track_caller]
pub(crate) fn contended(answer: Result<Attempt, Fault>) -> Option<Duration> {
    match answer {
        Ok(Attempt::Contended { lapses_in }) => lapses_in,
        other => panic!("not contended: {other:?}"),
    }
}

pub(crate) async fn win(backend: &Memcached, claim: &mut Claim) -> Grant {
    let grant = granted(backend.try_acquire(claim).await);
    claim.ticket.clone_from(&grant.ticket);
    grant
}

pub(crate) async fn renew(backend: &Memcached, claim: &Claim) -> Result<Renewal, Fault> {
    backend.renew(&[claim]).await.pop().expect("one answer for one claim")
}

/// What stands under a key, if there is something.
pub(crate) fn value(server: &Server, key: &str) -> Option<String> {
    let answer = server.command(&format!("mg {key} v"));
    answer.split_once("\r\n").map(|(_, value)| value.to_owned())
}

/// Waits for a condition, with a deadline.
#[track_caller]
pub(crate) fn eventually(mut condition: impl FnMut() -> bool) -> impl Future<Output = ()> {
    let caller = std::panic::Location::caller();
    async move {
        let end = Moment::now() + Duration::from_secs(20);
        while !condition() {
            assert!(!end.has_passed(), "it did not happen: {caller}");
            sleep(Duration::from_millis(5)).await;
        }
    }
}

/// A way to the server that writes down what clients say.
pub(crate) struct Recorder {
    addr: SocketAddr,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Recorder {
    pub(crate) fn start(server: &Server) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("there is a port");
        let addr = listener.local_addr().expect("it listens");
        let said = Arc::<Mutex<Vec<u8>>>::default();
        let (upstream, heard) = (server.addr(), Arc::clone(&said));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(upstream).expect("the server is there");
                let (from_server, to_client) = (server.try_clone(), client.try_clone());
                let heard = Arc::clone(&heard);
                std::thread::spawn(move || {
                    pass(client, server, |bytes| heard.lock().unwrap().extend(bytes));
                });
                std::thread::spawn(move || pass(from_server.unwrap(), to_client.unwrap(), |_| {}));
            }
        });
        Self { addr, said }
    }

    pub(crate) fn url(&self) -> String {
        format!("memcache://{}", self.addr)
    }

    /// What was said since this was asked last.
    pub(crate) fn said(&self) -> String {
        let said = std::mem::take(&mut *self.said.lock().unwrap());
        String::from_utf8(said).expect("nothing but text is said")
    }
}

fn pass(mut from: TcpStream, mut to: TcpStream, note: impl Fn(&[u8])) {
    let mut buffer = [0; 4096];
    while let Ok(read @ 1..) = from.read(&mut buffer) {
        note(&buffer[..read]);
        if to.write_all(&buffer[..read]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

/// Where traces go, to be looked through.
#[derive(Clone, Default)]
pub(crate) struct Output(pub(crate) Arc<Mutex<Vec<u8>>>);

impl Output {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }
}

impl Write for Output {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Output {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}
