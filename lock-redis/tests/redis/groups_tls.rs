//! Encrypted connections to servers behind Sentinels and in clusters. Each server needs a
//! certificate for the name under which it was announced. The URL only names the servers to ask
//! first.

use lock_conformance::helpers::{claim, contended, eventually, granted, name, renew, until, win};
use lock_core::backend::{Claim, FaultKind, Release, ReleaseMode, Renewal};
use lock_core::{Backend, ErrorKind, LockGuard, Locker};
use lock_redis::Redis;
use std::sync::Arc;
use test_servers::{Redis as Server, RedisCluster, RedisOptions, SentinelGroup, Session};

use crate::certificates::Certificates;
use crate::support::{LONG, SOON, replica_has, verified};

/// The name of this host, and not its address.
const BY_NAME: &str = "subjectAltName=DNS:localhost";

/// Creates a certificate for the address of this host, one for its name, and one for neither.
fn certificates() -> Certificates {
    let certificates = Certificates::new();
    certificates.issue("named", "ca", BY_NAME, 30);
    certificates.issue("elsewhere", "ca", "subjectAltName=DNS:example.com", 30);
    certificates
}

fn encrypted(certificates: &Certificates, name: &str) -> RedisOptions {
    RedisOptions::new().encrypted(certificates.files(name))
}

/// Presents the certificate of that name to every later client.
fn show(server: &Server, certificates: &Certificates, name: &str) {
    let files = certificates.files(name);
    let (certificate, key) = (files.certificate.to_str().unwrap(), files.key.to_str().unwrap());
    let words = ["CONFIG", "SET", "tls-cert-file", certificate, "tls-key-file", key];
    assert_eq!(server.command(&words).text(), "OK");
}

/// Adds the trusted authority of the servers to the URL.
fn trusting(certificates: &Certificates, url: &str) -> String {
    format!("{url}?ca={}", certificates.path("ca.pem").display())
}

/// Connects, and retries: a Sentinel has a second for its answer, and on a loaded machine a
/// handshake alone may take longer.
async fn connect(certificates: &Certificates, url: &str) -> Redis {
    let mut connected = None;
    until("it is connected", async || {
        let tried = Redis::connect(trusting(certificates, url)).await;
        assert!(!tried.as_ref().is_err_and(|e| e.kind() != ErrorKind::Unavailable), "{tried:?}");
        connected = tried.ok();
        connected.is_some()
    })
    .await;
    connected.expect("it was waited for")
}

async fn refused(url: String) -> (ErrorKind, String) {
    let error = Redis::connect(url).await.unwrap_err();
    let source = std::error::Error::source(&error).map(ToString::to_string);
    (error.kind(), format!("{error}: {}", source.unwrap_or_default()))
}

async fn hold(locks: &Redis) -> LockGuard {
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(LONG);
    tokio::time::timeout(SOON, lock.acquire()).await.expect("it is free").unwrap()
}

/// Asserts that only the test itself connects without encryption.
fn only_encrypted(mut session: Session) {
    let port = |addr: &str| addr.rsplit_once(':').map(|(_, port)| port.to_owned());
    let list = session.command(&["CLIENT", "LIST"]).unwrap().text();
    let field = |line: &str, name: &str| {
        line.split(' ').find_map(|word| word.strip_prefix(name)).and_then(port).expect("it is told")
    };
    let us = session.command(&["CLIENT", "INFO"]).unwrap().text();
    let (us, plain) = (field(&us, "addr="), field(&us, "laddr="));
    // A replica's connection to its primary is one that it made, and did not accept.
    let clients = list.lines().filter(|line| !line.contains("flags=M"));
    let clients: Vec<_> = clients.filter(|line| field(line, "laddr=") == plain).collect();
    assert!(clients.iter().all(|line| field(line, "addr=") == us), "in the clear: {clients:?}");
}

async fn group(options: RedisOptions) -> Arc<SentinelGroup> {
    let starting = tokio::task::spawn_blocking(|| SentinelGroup::start(options));
    Arc::new(starting.await.unwrap())
}

/// Makes the replica take over.
async fn fail_over(group: &Arc<SentinelGroup>) {
    let group = Arc::clone(group);
    let deciding = tokio::task::spawn_blocking(move || {
        group.server(0).kill();
        group.wait_until_named(1);
    });
    deciding.await.unwrap();
}

#[tokio::test]
async fn a_failover_is_followed_encrypted_by_addresses_and_by_names() {
    let certificates = certificates();
    let options = encrypted(&certificates, "named").named("localhost");
    for options in [encrypted(&certificates, "good"), options] {
        let group = group(options).await;
        assert!(group.url().starts_with("rediss+sentinel://"));
        let locks = connect(&certificates, &group.url()).await;
        let other = connect(&certificates, &group.url()).await;
        let guard = hold(&locks).await;
        let waiter = tokio::spawn(async move { hold(&other).await });
        let there = |key| group.server(1).command(&["EXISTS", key]).text() == "1";
        eventually(|| there("n") && there("{n}%queue")).await;
        only_encrypted(group.server(0).connect().unwrap());
        for sentinel in group.sentinels() {
            only_encrypted(Session::connect(sentinel.addr()).unwrap());
        }
        fail_over(&group).await;
        verified(&guard).await;
        assert!(!waiter.is_finished());
        guard.release().await.unwrap();
        waiter.await.unwrap().release().await.unwrap();
        only_encrypted(group.server(1).connect().unwrap());
    }
}

#[tokio::test]
async fn a_new_primary_is_not_trusted_with_the_certificate_of_another() {
    let certificates = certificates();
    let group = group(encrypted(&certificates, "good")).await;
    let locks = connect(&certificates, &group.url()).await;
    let mut held = claim("n", 300_000);
    win(&locks, &mut held).await;
    eventually(|| group.server(1).command(&["EXISTS", "n"]).text() == "1").await;
    show(group.server(1), &certificates, "elsewhere");
    fail_over(&group).await;
    // Until its connection has ended, the client still asks the old server.
    let mut refusal = None;
    until("the new one is asked", async || {
        refusal =
            renew(&locks, &held).await.err().filter(|fault| fault.kind() == FaultKind::Denied);
        refusal.is_some()
    })
    .await;
    let fault = refusal.unwrap();
    assert_eq!(fault.effect(), lock_core::backend::Effect::NotApplied);
    let why = fault.into_source().to_string();
    assert!(why.contains("for another host"), "{why}");
    assert!(why.contains(&group.server(1).tls_addr().to_string()), "{why}");
    let (kind, why) = refused(trusting(&certificates, &group.url())).await;
    assert_eq!(kind, ErrorKind::Denied, "{why}");
    assert!(why.contains("for another host"), "{why}");
    show(group.server(1), &certificates, "good");
    // On a busy machine a Sentinel may not answer in time, but nothing is refused any more.
    until("the lock is renewed", async || match renew(&locks, &held).await {
        Ok(renewal) => matches!(renewal, Renewal::Held(_)) || panic!("it is lost: {renewal:?}"),
        Err(fault) => {
            let (kind, why) = (fault.kind(), fault.into_source());
            assert!(
                matches!(kind, FaultKind::Unavailable | FaultKind::TimedOut),
                "{kind:?}: {why}"
            );
            false
        }
    })
    .await;
}

#[tokio::test]
async fn sentinels_are_not_trusted_with_the_certificate_of_another() {
    let certificates = certificates().with_stranger();
    let group = group(encrypted(&certificates, "good")).await;
    let url = group.url();
    let stranger = format!("{url}?ca={}", certificates.path("other.pem").display());
    let plain: Vec<_> = group.sentinels().iter().map(|it| it.addr().to_string()).collect();
    let plain = format!("{}/{}", plain.join(","), group.service());
    for (url, kind, hint) in [
        (
            trusting(&certificates, &url.replace("127.0.0.1", "localhost")),
            ErrorKind::Denied,
            "another host",
        ),
        (stranger, ErrorKind::Denied, "no trusted authority"),
        (url.replace("rediss+", "redis+"), ErrorKind::Unavailable, "use rediss"),
        (
            trusting(&certificates, &format!("rediss+sentinel://{plain}")),
            ErrorKind::Unavailable,
            "on this port",
        ),
        // They name the unencrypted port of a server that encrypts.
        (format!("redis+sentinel://{plain}"), ErrorKind::Unavailable, "use rediss"),
    ] {
        let (refused, why) = refused(url.clone()).await;
        assert_eq!(refused, kind, "{url}: {why}");
        assert!(why.contains(hint), "{url}: {why}");
    }
}

fn in_cluster(options: RedisOptions) -> RedisOptions {
    options.setting("cluster-node-timeout", "1000").setting("repl-diskless-sync-delay", "0")
}

async fn cluster(options: RedisOptions, replicas: usize) -> Arc<RedisCluster> {
    let options = in_cluster(options.setting("cluster-replica-validity-factor", "0"));
    let starting = tokio::task::spawn_blocking(move || RedisCluster::start(&options, 3, replicas));
    Arc::new(starting.await.unwrap())
}

/// Acquires a lock at each master.
async fn hold_everywhere(cluster: &RedisCluster, locks: &Redis) -> Vec<Claim> {
    let mut held = Vec::new();
    for member in 0..3 {
        let name = (0..).map(|i| format!("n{i}")).find(|name| cluster.home(name) == member);
        let mut claim = claim(&name.unwrap(), 300_000);
        win(locks, &mut claim).await;
        held.push(claim);
    }
    held
}

async fn still_held(locks: &Redis, claims: &[Claim]) {
    for claim in claims {
        let renewal = renew(locks, claim).await;
        assert!(matches!(renewal, Ok(Renewal::Held(_))), "{renewal:?}");
    }
}

#[tokio::test]
async fn slots_and_replicas_are_followed_encrypted_by_addresses_and_by_names() {
    let certificates = certificates();
    let options = encrypted(&certificates, "named").named("localhost");
    for options in [encrypted(&certificates, "good"), options] {
        let cluster = cluster(options, 1).await;
        assert!(cluster.url().starts_with("rediss+cluster://"));
        // One member is enough to learn of the others.
        let first = cluster.url().split(',').next().unwrap().to_owned();
        let locks = connect(&certificates, &first).await;
        let held = hold_everywhere(&cluster, &locks).await;
        let (moved, dead) = (&held[1], &held[0]);
        // The former master of the slot is asked first, and redirects.
        cluster.move_slot(cluster.slot(moved.name.as_str()), 1, 2);
        still_held(&locks, &held).await;
        (0..3).for_each(|member| only_encrypted(cluster.member(member).connect().unwrap()));
        let lock = dead.name.as_str();
        let known = || replica_has(cluster.member(3), lock);
        eventually(known).await;
        cluster.member(0).kill();
        until("the replica takes over", async || {
            matches!(renew(&locks, dead).await, Ok(Renewal::Held(_)))
        })
        .await;
        contended(locks.try_acquire(&claim(lock, 1000)).await);
        for claim in &held {
            let released = locks.release(claim, ReleaseMode::now()).await.unwrap();
            assert_eq!(released, Release::Released);
        }
        only_encrypted(cluster.member(3).connect().unwrap());
    }
}

#[tokio::test]
async fn a_member_is_not_trusted_with_the_certificate_of_another() {
    let certificates = certificates();
    let cluster = cluster(encrypted(&certificates, "good"), 0).await;
    show(cluster.member(1), &certificates, "elsewhere");
    let first = cluster.url().split(',').next().unwrap().to_owned();
    let locks = connect(&certificates, &first).await;
    let name_at =
        |member| (0..).map(|i| format!("n{i}")).find(|name| cluster.home(name) == member).unwrap();
    for member in [0, 2] {
        granted(locks.try_acquire(&claim(&name_at(member), 300_000)).await);
    }
    let fault = locks.try_acquire(&claim(&name_at(1), 300_000)).await.unwrap_err();
    assert_eq!(
        (fault.effect(), fault.kind()),
        (lock_core::backend::Effect::NotApplied, FaultKind::Denied)
    );
    let why = fault.into_source().to_string();
    assert!(why.contains("for another host"), "{why}");
    assert!(why.contains(&cluster.member(1).tls_addr().to_string()), "{why}");
    show(cluster.member(1), &certificates, "good");
    granted(locks.try_acquire(&claim(&name_at(1), 300_000)).await);
}

/// Checks that a member's certificate is for the name that members announce, and not the name in
/// the URL.
#[tokio::test]
async fn members_are_checked_by_the_name_that_they_announce() {
    let certificates = certificates();
    // For a name, and announced by address.
    let cluster = cluster(encrypted(&certificates, "named"), 0).await;
    let url = cluster.url().replace("127.0.0.1", "localhost");
    let (kind, why) = refused(trusting(&certificates, &url)).await;
    assert_eq!(kind, ErrorKind::Denied, "{why}");
    assert!(why.contains("for another host"), "{why}");
    // Without an announced name: the name by which the answering member was reached.
    for member in 0..3 {
        let words = ["CONFIG", "SET", "cluster-preferred-endpoint-type", "unknown-endpoint"];
        assert_eq!(cluster.member(member).command(&words).text(), "OK");
    }
    let locks = connect(&certificates, &url).await;
    let held = hold_everywhere(&cluster, &locks).await;
    cluster.move_slot(cluster.slot(held[0].name.as_str()), 0, 1);
    still_held(&locks, &held).await;
    assert_eq!(locks.inspect(&name(held[0].name.as_str())).await.unwrap().holders.len(), 1);
    let (kind, why) = refused(url.replace("rediss+", "redis+")).await;
    assert_eq!(kind, ErrorKind::Unavailable, "{why}");
    assert!(why.contains("use rediss"), "{why}");
}
