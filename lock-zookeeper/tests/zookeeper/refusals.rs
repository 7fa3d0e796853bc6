//! Refusals of servers, and their errors.

use std::cell::OnceCell;
use std::time::Duration;

use lock_conformance::helpers::Output;
use lock_core::backend::{Claim, FaultKind, HoldKind};
use lock_core::{Backend, ErrorKind, Locker, Support};
use lock_zookeeper::ZooKeeper;
use test_servers::{KeepData, ZooKeeper as Server, ZooKeeperEnsemble, ZooKeeperOptions};
use tokio::task::{JoinHandle, JoinSet};
use zookeeper_client::{Acl, Acls, AuthId, Client, CreateMode, Error, Permission};

use crate::support::{claim, client, name, operator, server, soon, until, url, win};

#[tokio::test]
async fn with_credentials_nodes_are_ours_alone() {
    let server = server();
    let url = |user: &str| format!("zookeeper://{user}@{}", server.addr());
    let ours = ZooKeeper::connect(url("locks:secret")).await.unwrap();
    let held = claim("n", true);
    win(&ours, &held).await;
    let stranger = operator(server.addr()).await;
    let node = stranger.list_children("/n").await;
    assert_eq!(node, Err(Error::NoAuth));
    let owner = Client::connector().with_auth("digest", b"locks:secret");
    let owner = owner.connect(&server.addr().to_string()).await.unwrap();
    let node = format!("/n/{}", owner.list_children("/n").await.unwrap().remove(0));
    for path in ["/n", &node] {
        let (acls, _) = owner.get_acl(path).await.unwrap();
        assert_eq!(acls.len(), 1);
        assert_eq!((acls[0].scheme(), acls[0].permission()), ("digest", Permission::ALL));
    }
    assert!(stranger.delete(&node, None).await.is_err());

    let theirs = ZooKeeper::connect(url("other:hunter2")).await.unwrap();
    for queue in [false, true] {
        let fault = theirs.try_acquire(&claim("n", queue)).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Denied, "{fault:?}");
        let text = fault.into_source().to_string();
        assert!(text.contains("rights") && !text.contains("hunter2"), "{text}");
    }
    let error = Locker::new(theirs).lock("n").unwrap().acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied);
}

/// A setting of the servers, which waiting does not change.
#[tokio::test]
async fn sessions_that_are_local_to_a_member_are_refused_for_good() {
    let options = ZooKeeperOptions::new().setting("localSessionsEnabled", "true");
    let ensemble = ZooKeeperEnsemble::start(&options);
    let member = ensemble.member(ensemble.follower()).addr();
    let error = soon(ZooKeeper::connect(url(member))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
    assert!(error.to_string().contains("localSessionsUpgradingEnabled"), "{error}");
}

/// The session goes on, and so does the lock, for an unknown time.
#[tokio::test]
async fn a_release_that_is_refused_promises_no_bound_and_is_warned_of() {
    let output = Output::default();
    let _tracing = output.listen();
    let server = server();
    let (client, operator) = (client(server.addr()).await, operator(server.addr()).await);
    let guard = Locker::new(client).lock("n").unwrap().acquire().await.unwrap();
    let rights = |rights| [Acl::new(rights, AuthId::anyone())];
    let fixed = rights(Permission::READ | Permission::ADMIN);
    operator.set_acl("/n", &fixed, None).await.unwrap();
    let error = soon(guard.release()).await.unwrap_err();
    assert_eq!((error.kind(), error.free_within()), (ErrorKind::Denied, None), "{error:?}");
    assert!(output.text().contains("stays taken"), "{}", output.text());
    operator.set_acl("/n", &rights(Permission::ALL), None).await.unwrap();
    until("it is removed", async || crate::support::queue_of(&operator, "n").await.is_empty())
        .await;
}

#[tokio::test]
async fn a_used_up_quota_is_no_contention() {
    let server = Server::start(&ZooKeeperOptions::new().setting("enforceQuota", "true"));
    set_quota(&operator(server.addr()).await, 2).await;
    let client = ZooKeeper::connect(format!("{}/app", server.url())).await.unwrap();
    let fault = client.try_acquire(&claim("n", true)).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Invalid);
    let text = fault.into_source().to_string();
    assert!(text.contains("quota"), "{text}");
    let error = Locker::new(client).lock("n").unwrap().acquire().await.unwrap_err();
    assert!(error.to_string().contains("quota"), "{error}");
}

/// The server takes one request at a time, syncs a write after 50 ms, and drops requests that have
/// waited for 10 ms. Each acquisition begins while another client writes.
#[tokio::test]
async fn an_acquisition_goes_on_after_requests_that_the_server_throttles() {
    let options = ZooKeeperOptions::new()
        .property("zookeeper.flushDelay", "1000")
        .property("zookeeper.maxWriteQueuePollTime", "50")
        .property("zookeeper.request_throttle_max_requests", "1")
        .property("zookeeper.throttled_op_wait_time", "10");
    let server = Server::start(&options);
    // A busy machine makes requests wait, too, and `connect` does not repeat its own.
    let connected = OnceCell::new();
    until("it takes a client", async || {
        let client = ZooKeeper::connect(url(server.addr())).await;
        client.is_ok_and(|client| connected.set(client).is_ok())
    })
    .await;
    let locks = Locker::new(connected.into_inner().unwrap());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let other = operator(server.addr()).await;
    for round in 0..20 {
        let lock = locks.lock(format!("n{round}")).unwrap();
        let acquiring = throttled(&other, async move { lock.acquire().await }).await;
        drop(soon(acquiring).await.unwrap().unwrap());
    }
    let taken_over = async move {
        drop(guard);
        locks.lock("n").unwrap().acquire().await
    };
    let waiting = throttled(&other, taken_over).await;
    drop(soon(waiting).await.unwrap().unwrap());
}

/// Starts `work` while the server drops requests, and returns it when some more were dropped.
async fn throttled<T: Send + 'static>(
    other: &Client,
    work: impl Future<Output = T> + Send + 'static,
) -> JoinHandle<T> {
    let writer = other.clone();
    let mut writes = JoinSet::new();
    writes.spawn(async move {
        while matches!(writer.set_data("/", b"", None).await, Ok(_) | Err(Error::Throttled)) {}
    });
    let dropped = async || {
        until("it drops requests", async || {
            other.list_children("/").await == Err(Error::Throttled)
        })
        .await;
    };
    dropped().await;
    let started = tokio::spawn(work);
    dropped().await;
    started
}

/// Creates the node `/app`, and limits the nodes from there on.
pub(crate) async fn set_quota(operator: &Client, nodes: u32) {
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create("/app", b"", &open).await.unwrap();
    let limits = "/zookeeper/quota/app";
    operator.create(limits, b"", &open).await.unwrap();
    let limit = format!("count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit={nodes}");
    for (node, data) in [("zookeeper_limits", &*limit), ("zookeeper_stats", "count=1,bytes=0")] {
        operator.create(&format!("{limits}/{node}"), data.as_bytes(), &open).await.unwrap();
    }
}

#[tokio::test]
async fn a_server_with_too_many_connections_refuses_and_says_so() {
    let server = Server::start(&ZooKeeperOptions::new().setting("maxClientCnxns", "2"));
    let _taken = (client(server.addr()).await, client(server.addr()).await);
    let error = soon(ZooKeeper::connect(url(server.addr()))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    assert!(error.to_string().contains("maxClientCnxns"), "{error}");
}

#[tokio::test]
async fn a_member_without_quorum_is_refused_though_it_answers_reads() {
    let options = ZooKeeperOptions::new().property("readonlymode.enabled", "true");
    let ensemble = ZooKeeperEnsemble::start(&options);
    ensemble.member(0).kill();
    ensemble.member(1).kill();
    let left = ensemble.member(2);
    until("it answers reads", async || left.mode().as_deref() == Some("read-only")).await;
    let url = format!("{}?session_timeout=2s", left.url());
    let error = soon(ZooKeeper::connect(url)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
}

#[tokio::test]
async fn what_is_not_declared_is_refused_before_anything_is_sent() {
    let server = server();
    let client = client(server.addr()).await;
    assert_eq!(client.capabilities().detached, Support::Absent);
    let mut detached = Claim::new(name("n"), claim("n", false).owner, Duration::from_secs(3));
    detached.hold = HoldKind::Detached;
    let fault = client.try_acquire(&detached).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Unsupported);
    assert!(operator(server.addr()).await.check_stat("/n").await.unwrap().is_none());
}

/// Heartbeat writes check the root. Without the right to read it, every lock would be lost a little
/// later.
#[tokio::test]
async fn a_root_that_may_not_be_read_is_refused() {
    let server = server();
    let operator = operator(server.addr()).await;
    let rights = Permission::WRITE | Permission::CREATE | Permission::DELETE;
    let acl = [Acl::new(rights, AuthId::anyone())];
    let blind = CreateMode::Persistent.with_acls(Acls::new(&acl));
    operator.create("/app", b"", &blind).await.unwrap();
    let error = soon(ZooKeeper::connect(format!("{}/app", server.url()))).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().contains("read"), "{error}");
}

#[tokio::test]
async fn a_root_that_may_not_be_read_any_more_is_warned_of() {
    let output = Output::default();
    let _tracing = output.listen();
    let server = server();
    let operator = operator(server.addr()).await;
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator.create("/app", b"", &open).await.unwrap();
    let url = format!("{}/app?session_timeout=2s", server.url());
    let locks = Locker::new(ZooKeeper::connect(url).await.unwrap());
    let guard = locks.lock("n").unwrap().acquire().await.unwrap();
    let acl = [Acl::new(Permission::ADMIN, AuthId::anyone())];
    operator.set_acl("/app", &acl, None).await.unwrap();
    until("it is told", async || output.text().contains("lacks rights")).await;
    soon(guard.lost()).await;
}

#[tokio::test]
async fn why_there_is_no_other_session_is_warned_of() {
    let output = Output::default();
    let _tracing = output.listen();
    let server = server();
    let open = CreateMode::Persistent.with_acls(Acls::anyone_all());
    operator(server.addr()).await.create("/app", b"", &open).await.unwrap();
    let url = format!("{}/app?session_timeout=2s", server.url());
    let client = ZooKeeper::connect(url).await.unwrap();
    server.restart(KeepData::No);
    let why = "the chroot /app does not exist";
    until("it is told", async || output.text().contains(why)).await;
    let fault = client.try_acquire(&claim("n", true)).await.unwrap_err();
    assert!(fault.is_transient(), "{fault:?}");
    operator(server.addr()).await.create("/app", b"", &open).await.unwrap();
    until("it goes on", async || client.try_acquire(&claim("n", true)).await.is_ok()).await;
}
