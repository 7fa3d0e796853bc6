//! Connections through a connector of the program.

use std::collections::HashMap;
use std::error::Error as _;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use lock_core::backend::{Effect, FaultKind, ReleaseMode};
use lock_core::{Backend, Error, ErrorKind, Locker, Wakeup};
use lock_redis::{Config, Connector, Redis, ServerAddress};
use test_servers::{RedisCluster, RedisOptions, SentinelGroup};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::support::{LONG, SOON, Server, acquired, claim, eventually, granted, release, until};

#[path = "../../examples/redis_connector.rs"]
#[expect(dead_code, reason = "its main function is not called")]
mod example;

/// What a connector does instead of connecting.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Trouble {
    Refuses,
    Panics,
    /// The stream that it opens does, when it is read.
    OpensAPanic,
    Hangs,
}

/// A connector that knows where some hosts are, and remembers its calls. Clones share all of it.
#[derive(Clone, Default)]
struct Routes(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    hosts: HashMap<String, SocketAddr>,
    trouble: Option<Trouble>,
    asked: Vec<ServerAddress>,
    /// How many calls hang, or have opened a stream, and nothing has dropped them or it.
    open: usize,
    /// Streams take no bytes, until another one is opened.
    is_stuck: bool,
}

impl Routes {
    fn to(host: &str, server: SocketAddr) -> Self {
        Self::default().and(host, server)
    }

    fn and(self, host: &str, server: SocketAddr) -> Self {
        self.with(|state| state.hosts.insert(host.to_owned(), server));
        self
    }

    fn with<T>(&self, what: impl FnOnce(&mut State) -> T) -> T {
        what(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn set(&self, trouble: Option<Trouble>) {
        self.with(|state| state.trouble = trouble);
    }

    fn count(&self) -> usize {
        self.with(|state| state.asked.len())
    }

    fn open(&self) -> usize {
        self.with(|state| state.open)
    }

    fn has_asked_for(&self, port: u16) -> bool {
        let is_it = |asked: &ServerAddress| matches!(asked, ServerAddress::Tcp { port: p, .. } if *p == port);
        self.with(|state| state.asked.iter().any(is_it))
    }
}

impl Connector for Routes {
    type Stream = Counted<TcpStream>;

    async fn connect(&self, address: &ServerAddress) -> io::Result<Self::Stream> {
        let (server, trouble) = self.with(|state| {
            state.asked.push(address.clone());
            state.is_stuck = false;
            let ServerAddress::Tcp { host, port } = address else { panic!("{address}") };
            let named = host.parse().ok().map(|ip| SocketAddr::new(ip, *port));
            (state.hosts.get(host).copied().or(named), state.trouble)
        });
        match trouble {
            None | Some(Trouble::OpensAPanic) => {
                let stream = TcpStream::connect(server.expect("a known host")).await?;
                Ok(Counted::new(stream, self))
            }
            Some(Trouble::Refuses) => Err(io::Error::other("no tunnel today")),
            Some(Trouble::Panics) => panic!("of a test"),
            Some(Trouble::Hangs) => {
                let _hanging = Counted::new((), self);
                pending().await
            }
        }
    }
}

/// A stream, or a call, which is counted until it is dropped.
struct Counted<T>(T, Routes);

impl<T> Counted<T> {
    fn new(it: T, routes: &Routes) -> Self {
        routes.with(|state| state.open += 1);
        Self(it, routes.clone())
    }
}

impl<T> Drop for Counted<T> {
    fn drop(&mut self) {
        self.1.with(|state| state.open -= 1);
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for Counted<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let trouble = self.1.with(|state| state.trouble);
        assert_ne!(trouble, Some(Trouble::OpensAPanic), "a stream of a test panics");
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Counted<T> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.1.with(|state| state.is_stuck) {
            // Nothing ever wakes it.
            true => Poll::Pending,
            false => Pin::new(&mut self.0).poll_write(cx, bytes),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

async fn connect(url: &str, routes: &Routes) -> Result<Redis, Error> {
    Redis::connect(Config::new(url).unwrap().connector(routes.clone())).await
}

fn whole(error: &Error) -> String {
    format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default())
}

/// Its host name leads nowhere without the connector.
const URL: &str = "redis://redis.invalid:7";

#[tokio::test]
async fn locks_work_through_a_connector_and_so_do_hand_offs() {
    let server = Server::start();
    let routes = Routes::to("redis.invalid", server.addr());
    let locks = connect(URL, &routes).await.unwrap();
    assert_eq!(locks.capabilities().wakeup, Wakeup::HandOff);
    let address = ServerAddress::Tcp { host: "redis.invalid".into(), port: 7 };
    assert_eq!(routes.with(|state| state.asked.clone()), [address], "one connection for all");
    let lock = Locker::new(locks).lock("n").unwrap().ttl(LONG);
    let guard = lock.acquire().await.unwrap();
    let other = Locker::new(connect(URL, &routes).await.unwrap()).lock("n").unwrap().ttl(LONG);
    let waiter = tokio::spawn(async move { other.acquire().await });
    eventually(|| server.waiting("n") == 1).await;
    guard.release().await.unwrap();
    let next = tokio::time::timeout(SOON, waiter).await.expect("it is woken").unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn a_lost_stream_is_opened_again_by_the_connector() {
    let (first, second) = (Server::start(), Server::start());
    let routes = Routes::to("redis.invalid", first.addr());
    let locks = connect(URL, &routes).await.unwrap();
    let lock = Locker::new(locks).lock("n").unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    let before = routes.count();
    routes.with(|state| state.hosts.insert("redis.invalid".into(), second.addr()));
    first.kill();
    let _guard = acquired(&lock).await;
    assert!(second.get("n").is_some() && routes.count() > before);
}

/// Though requests wait to be written to it.
#[tokio::test]
async fn a_stream_that_takes_nothing_is_replaced_and_dropped() {
    let server = Server::start();
    let routes = Routes::to("redis.invalid", server.addr());
    let locks = connect(URL, &routes).await.unwrap();
    routes.with(|state| state.is_stuck = true);
    let ours = claim("n", 60_000);
    until("there is another one", async || {
        let asking = locks.try_acquire(&ours);
        matches!(tokio::time::timeout(Duration::from_millis(100), asking).await, Ok(Ok(_)))
    })
    .await;
    assert_eq!(routes.count(), 2);
    eventually(|| routes.open() == 1).await;
}

#[tokio::test]
async fn errors_and_panics_of_a_connector_are_outages() {
    let server = Server::start();
    let routes = Routes::to("redis.invalid", server.addr());
    for (trouble, said) in [
        (Trouble::Refuses, "no tunnel today"),
        (Trouble::Panics, "the connector panicked"),
        (Trouble::OpensAPanic, "or its stream"),
    ] {
        routes.set(Some(trouble));
        let error = connect(URL, &routes).await.unwrap_err();
        assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
        assert!(whole(&error).contains(said), "{}", whole(&error));

        routes.set(None);
        let locks = connect(URL, &routes).await.unwrap();
        routes.set(Some(trouble));
        let _: i64 = server.run("CLIENT KILL SKIPME yes");
        // The first verb may still fail by the old connection.
        until("it fails by the connector", async || {
            let Err(fault) = locks.try_acquire(&claim("n", 60_000)).await else { return false };
            assert_eq!(fault.kind(), FaultKind::Unavailable);
            fault.into_source().to_string().contains(said)
        })
        .await;
        routes.set(None);
        let ours = claim("another", 60_000);
        until("it is connected again", async || locks.try_acquire(&ours).await.is_ok()).await;
        release(&locks, &ours).await;
    }
}

#[tokio::test]
async fn a_connector_that_hangs_is_dropped_at_the_time_limit() {
    let server = Server::start();
    let routes = Routes::to("redis.invalid", server.addr());
    routes.set(Some(Trouble::Hangs));
    let error = tokio::time::timeout(SOON, connect(URL, &routes)).await.expect("a limit");
    let error = error.unwrap_err();
    assert_eq!((error.kind(), error.effect()), (ErrorKind::Unavailable, Effect::NotApplied));
    assert!(whole(&error).contains("does not answer"), "{}", whole(&error));
    eventually(|| routes.open() == 0).await;

    let connecting = tokio::spawn({
        let routes = routes.clone();
        async move { connect(URL, &routes).await }
    });
    eventually(|| routes.open() == 1).await;
    connecting.abort();
    eventually(|| routes.open() == 0).await;
}

#[tokio::test]
async fn sentinels_and_the_primary_that_they_name_are_reached_through_it() {
    let starting = tokio::task::spawn_blocking(|| SentinelGroup::start(RedisOptions::new()));
    let group = Arc::new(starting.await.unwrap());
    let routes = Routes::to("s0.invalid", group.sentinel(0).addr())
        .and("s1.invalid", group.sentinel(1).addr())
        .and("s2.invalid", group.sentinel(2).addr());
    let url = format!("redis+sentinel://s0.invalid,s1.invalid,s2.invalid/{}", group.service());
    let locks = connect(&url, &routes).await.unwrap();
    let lock = Locker::new(locks).lock("n").unwrap();
    lock.acquire().await.unwrap().release().await.unwrap();
    assert!(routes.has_asked_for(26379) && routes.has_asked_for(group.server(0).addr().port()));
    assert!(!routes.has_asked_for(group.server(1).addr().port()));

    group.server(0).kill();
    let waiting = Arc::clone(&group);
    tokio::task::spawn_blocking(move || waiting.wait_until_named(1)).await.unwrap();
    let _guard = acquired(&lock).await;
    assert!(routes.has_asked_for(group.server(1).addr().port()));
}

/// A stream that panics is a failed attempt for the listener, too. It listens again after that.
#[tokio::test]
async fn listeners_to_sentinels_survive_a_stream_that_panics() {
    let starting = tokio::task::spawn_blocking(|| SentinelGroup::start(RedisOptions::new()));
    let group = starting.await.unwrap();
    let routes = Routes::to("s0.invalid", group.sentinel(0).addr())
        .and("s1.invalid", group.sentinel(1).addr())
        .and("s2.invalid", group.sentinel(2).addr());
    let url = format!("redis+sentinel://s0.invalid,s1.invalid,s2.invalid/{}", group.service());
    let _locks = connect(&url, &routes).await.unwrap();
    let are_listening = || {
        (0..3).all(|at| {
            let listeners = group.sentinel(at).command(&["CLIENT", "LIST", "TYPE", "pubsub"]);
            !listeners.text().trim().is_empty()
        })
    };
    eventually(are_listening).await;

    routes.set(Some(Trouble::OpensAPanic));
    let before = routes.count();
    for at in 0..3 {
        group.sentinel(at).command(&["CLIENT", "KILL", "TYPE", "pubsub"]);
    }
    eventually(|| routes.count() >= before + 6 && !are_listening()).await;
    routes.set(None);
    eventually(are_listening).await;
}

#[tokio::test]
async fn members_of_a_cluster_are_reached_through_it() {
    let cluster = RedisCluster::start(&RedisOptions::new(), 3, 0);
    let routes = Routes::to("member.invalid", cluster.member(0).addr());
    let locks = connect("redis+cluster://member.invalid", &routes).await.unwrap();
    for member in 0..3 {
        let name = crate::cluster::name_at(&cluster, member);
        let ours = claim(&name, 60_000);
        granted(locks.try_acquire(&ours).await);
        locks.release(&ours, ReleaseMode::now()).await.unwrap();
        assert!(member == 0 || routes.has_asked_for(cluster.member(member).addr().port()));
    }
}

#[tokio::test]
async fn writes_that_wait_for_replicas_go_through_it() {
    let (server, replica) = (Server::start(), Server::start());
    let (host, port) = (server.addr().ip().to_string(), server.port().to_string());
    let _: String = replica.command(&["REPLICAOF", &host, &port]);
    let routes = Routes::to("redis.invalid", server.addr());
    let url = format!("{URL}?min_replicas=1&min_replicas_timeout=10s");
    let locks = connect(&url, &routes).await.unwrap();
    let before = routes.count();
    let mut ours = claim("n", 300_000);
    crate::support::win(&locks, &mut ours).await;
    assert!(routes.count() > before, "the connection that waits");
}

#[tokio::test]
async fn debug_shows_nothing_of_a_connector() {
    struct Secretive(&'static str);

    impl Connector for Secretive {
        type Stream = TcpStream;

        async fn connect(&self, _: &ServerAddress) -> io::Result<TcpStream> {
            Err(io::Error::other(self.0))
        }
    }

    let config = Config::new(URL).unwrap().connector(Secretive("hunter2"));
    let shown = format!("{config:?}");
    assert!(shown.contains("connector") && !shown.contains("hunter2"), "{shown}");
}

/// The program of `examples/redis_connector.rs`, with a relay for its tunnel.
#[tokio::test]
async fn the_example_enters_its_tunnel() {
    let (server, directory) = (Server::start(), tempfile::tempdir().unwrap());
    let near_end = directory.path().join("redis.sock");
    let listener = tokio::net::UnixListener::bind(&near_end).unwrap();
    let (used, far_end) = (Arc::new(AtomicBool::new(false)), server.addr());
    let relay = tokio::spawn({
        let used = Arc::clone(&used);
        async move {
            while let Ok((mut near, _)) = listener.accept().await {
                used.store(true, Ordering::Relaxed);
                let mut far = TcpStream::connect(far_end).await.unwrap();
                tokio::spawn(
                    async move { tokio::io::copy_bidirectional(&mut near, &mut far).await },
                );
            }
        }
    });
    let locks = example::connect(near_end).await.unwrap();
    let guard = locks.lock("report").unwrap().acquire().await.unwrap();
    assert!(server.get("report").is_some() && used.load(Ordering::Relaxed));
    guard.release().await.unwrap();
    locks.close().await.unwrap();
    relay.abort();
}

/// TLS inside of the stream, as strict as without a connector.
#[cfg(feature = "tls")]
mod encrypted {
    use super::*;
    use crate::certificates::{Certificates, OF_THIS_HOST};

    #[tokio::test]
    async fn certificates_are_checked_inside_the_stream() {
        let certificates = Certificates::new().with_stranger();
        certificates.issue("named", "ca", "subjectAltName=DNS:redis.invalid", 30);
        assert!(OF_THIS_HOST.contains("127.0.0.1"));
        for (certificate, ca, expected) in [
            ("named", "ca=@/ca.pem", Ok(())),
            ("named", "ca=@/other.pem", Err("no trusted authority")),
            ("named", "", Err("no trusted authority")),
            ("good", "ca=@/ca.pem", Err("another host")),
        ] {
            let (_server, port) = certificates.server(certificate, &[]);
            let routes = Routes::to("redis.invalid", ([127, 0, 0, 1], port).into());
            let url = certificates.url(7, ca).replace("127.0.0.1", "redis.invalid");
            let connected = connect(&url, &routes).await;
            match expected {
                Ok(()) => {
                    granted(connected.unwrap().try_acquire(&claim("n", 60_000)).await);
                }
                Err(hint) => {
                    let error = connected.unwrap_err();
                    assert_eq!(error.kind(), ErrorKind::Denied, "{certificate} {ca}: {error:?}");
                    assert!(error.to_string().contains(hint), "{certificate} {ca}: {error}");
                }
            }
        }
    }

    #[tokio::test]
    async fn a_client_certificate_is_shown_inside_the_stream() {
        let certificates = Certificates::new();
        certificates.issue("named", "ca", "subjectAltName=DNS:redis.invalid", 30);
        let (_server, port) = certificates.server("named", &[("tls-auth-clients", "yes")]);
        let routes = Routes::to("redis.invalid", ([127, 0, 0, 1], port).into());
        let url =
            |options: &str| certificates.url(7, options).replace("127.0.0.1", "redis.invalid");
        let with = url("ca=@/ca.pem&cert=@/client.pem&key=@/client.key");
        let locks = connect(&with, &routes).await.unwrap();
        granted(locks.try_acquire(&claim("n", 60_000)).await);
        let error = connect(&url("ca=@/ca.pem"), &routes).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
    }
}
