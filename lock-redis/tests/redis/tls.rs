//! Encrypted connections.

use std::error::Error as _;
use std::process::Command;
use std::time::Duration;

use lock_conformance::helpers::Output;
use lock_conformance::proxy::{Direction, Fault, Match, Proxy};
use lock_core::backend::{Effect, FaultKind, Release, ReleaseMode, Renewal};
use lock_core::clock::Moment;
use lock_core::{Backend, Error, ErrorKind, Locker, Wakeup};
use lock_redis::{Config, Redis};
use rustls::crypto::{CryptoProvider, aws_lc_rs, ring};

use crate::certificates::{AUTHORITY, Certificates, NO_AUTHORITY, OF_THIS_HOST};
use crate::support::{SOON, claim, contended, eventually, granted, release, renew, win};

const LONG: u64 = 300_000;
const PASSWORD: &str = "hunter2secret";

/// Both are to say so: the error alone, and with its cause.
async fn refused(config: impl AsRef<str>) -> (Error, String) {
    refused_with(Config::new(config.as_ref()).unwrap()).await
}

async fn refused_with(config: Config) -> (Error, String) {
    let began = Moment::now();
    let error = Redis::connect(config).await.expect_err("it is refused");
    let took = Moment::now().saturating_since(began);
    assert!(took < SOON, "{error:?} took {took:?}");
    assert_eq!(error.effect(), Effect::NotApplied, "{error:?}");
    let shown = format!("{error}: {}", error.source().map(ToString::to_string).unwrap_or_default());
    (error, shown)
}

#[tokio::test]
async fn a_server_is_trusted_for_its_certificate_only() {
    let certificates = Certificates::new().with_stranger();
    certificates.self_signed("leaf", &[OF_THIS_HOST, NO_AUTHORITY]);
    certificates.self_signed("root", &[OF_THIS_HOST, AUTHORITY]);
    certificates.issue("elsewhere", "ca", "subjectAltName=DNS:example.com", 30);
    certificates.issue("expired", "ca", OF_THIS_HOST, -1);
    for (certificate, options, expected) in [
        ("good", "ca=@/ca.pem", Ok(())),
        ("good", "", Err("no trusted authority")),
        ("good", "ca=@/other.pem", Err("no trusted authority")),
        ("leaf", "ca=@/ca.pem", Err("no trusted authority")),
        ("root", "ca=@/root.pem", Err("not fit for a server")),
        ("elsewhere", "ca=@/ca.pem", Err("another host")),
        ("expired", "ca=@/ca.pem", Err("has expired")),
    ] {
        let (_server, port) = certificates.server(certificate, &[]);
        let url = certificates.url(port, options);
        match expected {
            Ok(()) => {
                let locks = Redis::connect(url).await.unwrap();
                granted(locks.try_acquire(&claim("n", LONG)).await);
            }
            Err(hint) => {
                let (error, _) = refused(url).await;
                assert_eq!(error.kind(), ErrorKind::Denied, "{certificate} {options}");
                assert!(error.to_string().contains(hint), "{certificate} {options}: {error}");
            }
        }
    }
}

#[tokio::test]
async fn authorities_can_be_given_in_memory_and_several_in_one_file() {
    let certificates = Certificates::new().with_stranger();
    let (_server, port) = certificates.server("good", &[]);
    let config = Config::new(&certificates.url(port, "ca=@/other.pem")).unwrap();
    refused_with(config.clone()).await;
    Redis::connect(config.clone().root_certificates(certificates.read("ca.pem"))).await.unwrap();
    certificates.join(&["other.pem", "ca.pem"], "both.pem");
    Redis::connect(certificates.url(port, "ca=@/both.pem")).await.unwrap();
    let (error, _) = refused_with(config.root_certificates(certificates.read("client.pem"))).await;
    assert_eq!(error.kind(), ErrorKind::Denied);
}

#[tokio::test]
async fn a_server_may_require_client_certificates() {
    let certificates = Certificates::new().with_stranger().with_employee();
    certificates.join(&["client.key", "client.pem"], "all.pem");
    for version in ["TLSv1.2", "TLSv1.3"] {
        let settings = [("tls-auth-clients", "yes"), ("tls-protocols", version)];
        let (_server, port) = certificates.server("good", &settings);
        for (options, is_known, hint) in [
            ("", false, "client certificate"),
            ("&cert=@/stranger.pem&key=@/stranger.key", false, "refuses this client certificate"),
            ("&cert=@/employee.pem&key=@/employee.key", false, "refuses this client certificate"),
            ("&cert=@/chain.pem&key=@/employee.key", true, ""),
            ("&cert=@/client.pem&key=@/client.key", true, ""),
            ("&cert=@/all.pem&key=@/all.pem", true, ""),
        ] {
            let url = certificates.url(port, &format!("ca=@/ca.pem{options}"));
            if is_known {
                let locks = Redis::connect(url).await.unwrap();
                let ours = claim("n", LONG);
                granted(locks.try_acquire(&ours).await);
                assert_eq!(
                    locks.release(&ours, ReleaseMode::now()).await.unwrap(),
                    Release::Released
                );
                continue;
            }
            let (error, _) = refused(url).await;
            assert_eq!(error.kind(), ErrorKind::Denied, "{version} {options}: {error:?}");
            assert!(error.to_string().contains(hint), "{version} {options}: {error}");
        }
        let config = Config::new(&certificates.url(port, "ca=@/ca.pem")).unwrap();
        let (chain, key) = (certificates.read("chain.pem"), certificates.read("employee.key"));
        Redis::connect(config.client_identity(chain, key)).await.unwrap();
    }
}

#[tokio::test]
async fn every_verb_works_encrypted() {
    let certificates = Certificates::new();
    let (server, port) = certificates.server("good", &[("tls-auth-clients", "yes")]);
    let url = certificates.url(port, "ca=@/ca.pem&cert=@/client.pem&key=@/client.key");
    let locks = Redis::connect(url.as_str()).await.unwrap();
    let elsewhere = Redis::connect(url.as_str()).await.unwrap();
    assert_eq!(locks.capabilities().wakeup, Wakeup::HandOff);
    assert!(locks.identity().await.unwrap().is_some());

    let mut held = claim("n", LONG);
    win(&locks, &mut held).await;
    contended(elsewhere.try_acquire(&claim("n", LONG)).await);
    assert!(matches!(renew(&locks, &held).await.unwrap(), Renewal::Held(_)));
    let holders = elsewhere.inspect(&held.name).await.unwrap().holders;
    assert_eq!(holders[0].owner, Some(held.owner));
    assert!(elsewhere.break_lock(&held.name, &held.owner).await.unwrap());
    assert_eq!(
        locks.release(&held, ReleaseMode::after_unknown_outcome()).await.unwrap(),
        Release::NotHeld
    );
    assert!(locks.try_acquire(&held).await.is_err(), "it was let go before");

    // Sent by the server: a look of its own would come after the lease.
    let ttl = Duration::from_millis(LONG);
    let guard = Locker::new(locks).lock("n").unwrap().ttl(ttl).acquire().await.unwrap();
    let lock = Locker::new(elsewhere).lock("n").unwrap().ttl(ttl);
    let waiter = tokio::spawn(async move { lock.acquire().await });
    eventually(|| server.waiting("n") == 1).await;
    guard.release().await.unwrap();
    let next = tokio::time::timeout(SOON, waiter).await.expect("it is woken").unwrap().unwrap();
    next.release().await.unwrap();
}

#[tokio::test]
async fn nothing_is_sent_in_the_clear() {
    let certificates = Certificates::new();
    let (server, port) = certificates.server("good", &[]);
    let secret = format!("ACL SETUSER locks on >{PASSWORD} ~* &* +@all");
    let _: String = server.run(&secret);
    let with_password = |port: u16, scheme: &str| {
        let url = certificates.url(port, if scheme == "rediss" { "ca=@/ca.pem" } else { "" });
        url.replace("rediss://", &format!("{scheme}://locks:{PASSWORD}@"))
    };
    for (to, scheme, seen) in
        [(server.port(), "redis", true), (port, "rediss", false), (server.port(), "rediss", false)]
    {
        let proxy = Proxy::start(([127, 0, 0, 1], to).into()).unwrap();
        let (hello, password) = (proxy.count("HELLO"), proxy.count(PASSWORD));
        let connected = Redis::connect(with_password(proxy.addr().port(), scheme)).await;
        assert_eq!(connected.is_ok(), scheme == "redis" || to == port, "{connected:?}");
        assert_eq!((hello.seen() > 0, password.seen() > 0), (seen, seen), "{scheme} to {to}");
        assert!(proxy.stats().to_server.received > 0);
    }
}

#[tokio::test]
async fn a_wrong_scheme_is_reported() {
    let certificates = Certificates::new();
    let (server, port) = certificates.server("good", &[]);
    let (error, shown) = refused(format!("redis://127.0.0.1:{port}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{shown}");
    assert!(shown.contains("use rediss://"), "{shown}");
    // The server waits for the end of a line, or finds one in the handshake and replies.
    let (error, shown) = refused(certificates.url(server.port(), "ca=@/ca.pem")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "{shown}");
    assert!(shown.contains("on this port"), "{shown}");
}

#[tokio::test]
async fn servers_receive_the_name_of_the_url() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let hearing = tokio::task::spawn_blocking(move || {
        let (mut stream, _) = listener.accept().unwrap();
        let mut acceptor = rustls::server::Acceptor::default();
        loop {
            acceptor.read_tls(&mut stream).unwrap();
            if let Some(accepted) = acceptor.accept().map_err(|(error, _)| error).unwrap() {
                return accepted.client_hello().server_name().map(str::to_owned);
            }
        }
    });
    let (error, _) = refused(format!("rediss://localhost:{port}")).await;
    assert_eq!(error.kind(), ErrorKind::Unavailable, "nobody goes on to talk");
    assert_eq!(hearing.await.unwrap().as_deref(), Some("localhost"));
}

#[tokio::test]
async fn a_connection_cut_without_a_tls_close_has_an_unknown_outcome() {
    let certificates = Certificates::new();
    let (server, port) = certificates.server("good", &[]);
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let url = certificates.url(proxy.addr().port(), "ca=@/ca.pem");
    let locks = Redis::connect(url).await.unwrap();
    // Beforehand: a script that the server does not know yet is sent twice.
    let another = claim("another", LONG);
    granted(locks.try_acquire(&another).await);
    locks.release(&another, ReleaseMode::now()).await.unwrap();

    let ours = claim("n", LONG);
    let hit = proxy.cut_after(Match::on(""));
    let fault = locks.try_acquire(&ours).await.unwrap_err();
    hit.await.unwrap();
    assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Unavailable));
    granted(locks.try_acquire(&ours).await);

    // The connection is closed as if all were well, in the middle of an answer, or before it.
    for bytes in [0, 7] {
        let before = proxy.stats().to_client;
        proxy.set(Fault::Lose(Direction::ToClient));
        let asking = tokio::spawn({
            let (locks, ours) = (locks.clone(), ours.clone());
            async move { locks.release(&ours, ReleaseMode::now()).await }
        });
        proxy.until(|stats| stats.to_client.received > before.received).await;
        if bytes > 0 {
            proxy.set(Fault::Trickle { bytes, every: Duration::from_secs(3600) });
            proxy.until(|stats| stats.to_client.sent == before.sent + bytes as u64).await;
        }
        proxy.half_close(Direction::ToClient);
        let fault = tokio::time::timeout(SOON, asking).await.unwrap().unwrap().unwrap_err();
        assert_eq!((fault.effect(), fault.kind()), (Effect::Unknown, FaultKind::Unavailable));
        let said = fault.into_source().to_string();
        assert!(said.contains("close_notify"), "{said}");
        proxy.heal();
        assert_eq!(locks.release(&ours, ReleaseMode::now()).await.unwrap(), Release::NotHeld);
        assert_eq!(server.command::<Option<String>>(&["GET", "n"]), None);
        granted(locks.try_acquire(&ours).await);
    }
}

#[tokio::test]
async fn files_are_read_whenever_a_connection_is_made() {
    let certificates = Certificates::new().with_stranger().with_employee();
    let (_server, port) = certificates.server("good", &[("tls-auth-clients", "yes")]);
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let replace = |certificate: &str, key: &str| {
        certificates.write("own.pem", certificates.read(certificate));
        certificates.write("own.key", certificates.read(key));
    };
    replace("client.pem", "client.key");
    let url = certificates.url(proxy.addr().port(), "ca=@/ca.pem&cert=@/own.pem&key=@/own.key");
    let locks = Redis::connect(url).await.unwrap();
    let mut held = claim("n", LONG);
    win(&locks, &mut held).await;
    for (certificate, key, expected, hint) in [
        ("stranger.pem", "stranger.key", FaultKind::Denied, "refuses this client certificate"),
        // Halfway through being replaced: no reason to give up.
        ("chain.pem", "client.key", FaultKind::Unavailable, "own.key"),
        ("chain.pem", "extension", FaultKind::Unavailable, "no private key"),
    ] {
        replace(certificate, key);
        assert!(matches!(renew(&locks, &held).await, Ok(Renewal::Held(_))), "it needs no file");
        proxy.reset_connections().await;
        eventually(|| format!("{locks:?}").contains("connected: false")).await;
        let fault = renew(&locks, &held).await.unwrap_err();
        assert_eq!((fault.effect(), fault.kind()), (Effect::NotApplied, expected), "{hint}");
        let said = fault.into_source().to_string();
        assert!(said.contains(hint), "{said}");
        replace("chain.pem", "employee.key");
        assert!(matches!(renew(&locks, &held).await, Ok(Renewal::Held(_))), "the new one counts");
    }
}

/// As when each file is written in two steps, and its first part is whole by itself.
#[tokio::test]
async fn a_queued_claim_waits_while_certificates_are_replaced() {
    let certificates = Certificates::new().with_stranger().with_employee();
    certificates.join(&["other.pem", "ca.pem"], "trusted.pem");
    let (_server, port) = certificates.server("good", &[("tls-auth-clients", "yes")]);
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let holder = certificates.url(port, "ca=@/ca.pem&cert=@/client.pem&key=@/client.key");
    let holder = Redis::connect(holder).await.unwrap();
    let mut held = claim("n", LONG);
    win(&holder, &mut held).await;
    let write = |file: &str, content: &str| certificates.write(file, certificates.read(content));
    write("own.pem", "chain.pem");
    write("own-ca.pem", "trusted.pem");
    let options = "ca=@/own-ca.pem&cert=@/own.pem&key=@/employee.key";
    let locks = Redis::connect(certificates.url(proxy.addr().port(), options)).await.unwrap();
    let lock = Locker::new(locks.clone()).lock("n").unwrap().ttl(Duration::from_millis(LONG));
    let waiting = tokio::spawn(async move { lock.acquire().await });
    let queued = async || holder.inspect(&held.name).await.unwrap().waiting == Some(1);
    lock_conformance::helpers::until("it is queued", queued).await;
    // Behind the answer that says so: an attempt that was never answered may fail.
    locks.inspect(&held.name).await.unwrap();
    for (file, half, whole) in
        [("own.pem", "employee.pem", "chain.pem"), ("own-ca.pem", "other.pem", "trusted.pem")]
    {
        write(file, half);
        let before = proxy.stats().connections;
        proxy.reset_connections().await;
        // It tries again and again.
        proxy.until(|stats| stats.connections >= before + 3).await;
        assert!(!waiting.is_finished(), "{file}: {:?}", waiting.await);
        write(file, whole);
        eventually(|| format!("{locks:?}").contains("connected: true")).await;
    }
    release(&holder, &held).await;
    let served = tokio::time::timeout(SOON, waiting).await.expect("it is served");
    served.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_malformed_certificate_is_refused_before_any_request() {
    let certificates = Certificates::new();
    let (_server, port) = certificates.server("good", &[]);
    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let port = proxy.addr().port();
    certificates.write("empty", "");
    certificates.write("garbage", b"\xff\x00-----BEGIN \n".repeat(9));
    certificates.write("large", vec![b'x'; (1 << 20) + 1]);
    certificates.write(
        "one line",
        String::from_utf8(certificates.read("client.key")).unwrap().replace('\n', ""),
    );
    let wrapped = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    certificates.write("no certificate", wrapped);
    certificates.openssl("pkey -in client.key -aes256 -passout pass:x -out locked.key");
    for (options, file, hint) in [
        ("ca=@/nosuch", "nosuch\" of the URL option ca", "No such file"),
        ("ca=", "\"\" of the URL option ca", "No such file"),
        ("ca=@", "option ca", "no regular file"),
        ("ca=/dev/zero", "/dev/zero", "no regular file"),
        ("ca=@/empty", "empty", "no certificate in PEM"),
        ("ca=@/garbage", "garbage", "PEM"),
        ("ca=@/large", "large", "too large"),
        ("ca=@/client.key", "client.key", "no certificate in PEM"),
        ("ca=@/no%20certificate", "no certificate", "what is no certificate"),
        ("cert=@/nosuch&key=@/client.key", "nosuch\" of the URL option cert", "No such file"),
        ("cert=@/client.pem&key=@/nosuch", "nosuch\" of the URL option key", "No such file"),
        ("cert=@/client.key&key=@/client.key", "option cert", "no certificate in PEM"),
        ("cert=@/no%20certificate&key=@/client.key", "option cert", "what is no certificate"),
        ("cert=@/client.pem&key=@/client.pem", "option key", "no private key"),
        ("cert=@/client.pem&key=@/one%20line", "option key", "no private key"),
        ("cert=@/client.pem&key=@/garbage", "option key", "no private key"),
        ("cert=@/client.pem&key=@/locked.key", "option key", "encrypted"),
        ("cert=@/client.pem&key=@/good.key", "good.key", "client.pem"),
    ] {
        let (error, shown) = refused(certificates.url(port, options)).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{options}: {shown}");
        assert!(shown.contains(file) && shown.contains(hint), "{options}: {shown}");
    }
    let config = || Config::new(&certificates.url(port, "")).unwrap();
    let (client, key) = (certificates.read("client.pem"), certificates.read("good.key"));
    for (config, hint) in [
        (config().root_certificates("nonsense"), "given to root_certificates holds no certificate"),
        (config().client_identity("nonsense", "nonsense"), "given to client_identity holds no cer"),
        (config().client_identity(client, key), "does not hold the key of the first certificate"),
        (
            Config::new(&format!("redis://127.0.0.1:{port}")).unwrap().root_certificates("x"),
            "use rediss://",
        ),
    ] {
        let (error, shown) = refused_with(config).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{shown}");
        assert!(shown.contains(hint), "{shown}");
    }
    assert_eq!(proxy.stats().connections, 0);
}

/// Two providers are compiled into this test. The library panics then, unless one was chosen. Each
/// process chooses once, so each case is a process of its own.
#[test]
fn any_provider_or_none_may_be_installed() {
    const CASE: &str = "LOCK_REDIS_TEST_PROVIDER";
    let Ok(case) = std::env::var(CASE) else {
        for case in ["none", "ring", "aws-lc-rs"] {
            let output = Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "tls::any_provider_or_none_may_be_installed", "--nocapture"])
                .env(CASE, case)
                .output()
                .unwrap();
            let printed = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && printed.contains("it works"), "{case}: {output:?}");
        }
        return;
    };
    assert!(CryptoProvider::get_default().is_none(), "a process of its own");
    let mut chosen = match case.as_str() {
        "ring" => ring::default_provider(),
        _ => aws_lc_rs::default_provider(),
    };
    if case != "none" {
        // A choice that no library would make.
        chosen.cipher_suites.truncate(1);
        chosen.clone().install_default().unwrap();
    }
    let certificates = Certificates::new();
    let (_server, port) = certificates.server("good", &[("tls-auth-clients", "yes")]);
    let url = certificates.url(port, "ca=@/ca.pem&cert=@/client.pem&key=@/client.key");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let locks = Redis::connect(url).await.unwrap();
        granted(locks.try_acquire(&claim("n", LONG)).await);
    });
    let installed = CryptoProvider::get_default().expect("without one, nothing is encrypted");
    assert_eq!(installed.cipher_suites, chosen.cipher_suites, "what the program has chosen stays");
    println!("it works");
}

#[tokio::test]
async fn no_secret_is_shown() {
    let output = Output::default();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing::Level::TRACE)
        .with_writer(output.clone())
        .finish();
    let _tracing = lock_conformance::helpers::listen(subscriber);
    tracing::trace!("this is traced");
    let mut shown = Vec::new();

    let certificates = Certificates::new().with_stranger();
    let (server, port) = certificates.server("good", &[("tls-auth-clients", "yes")]);
    let _: String = server.run(&format!("ACL SETUSER locks on >{PASSWORD} ~* &* +@all"));
    let one_line = String::from_utf8(certificates.read("client.key")).unwrap().replace('\n', "");
    certificates.write("one line", &one_line);
    let url = |port: u16, options: &str| {
        certificates.url(port, options).replace("://", &format!("://locks:{PASSWORD}@"))
    };
    for (port, options) in [
        (port, "ca=@/ca.pem"),
        (port, "ca=@/client.key"),
        (port, "ca=@/one%20line"),
        (port, "ca=@/ca.pem&cert=@/stranger.pem&key=@/stranger.key"),
        (port, "ca=@/ca.pem&cert=@/good.pem&key=@/client.key"),
        (port, "ca=@/ca.pem&cert=@/client.key&key=@/client.key"),
        (port, "ca=@/ca.pem&cert=@/client.pem&key=@/one%20line"),
        (port, "ca=@/ca.pem&cert=@/one%20line&key=@/one%20line"),
        (port, "ca=@/other.pem&cert=@/client.pem&key=@/client.key"),
        (server.port(), "ca=@/ca.pem&cert=@/client.pem&key=@/client.key"),
    ] {
        let config = Config::new(&url(port, options)).unwrap();
        shown.push(format!("{config:?} {config:#?}"));
        let (error, text) = refused_with(config).await;
        shown.push(format!("{error:?} {error:#?} {text}"));
    }

    let proxy = Proxy::start(([127, 0, 0, 1], port).into()).unwrap();
    let (chain, key) = (certificates.read("client.pem"), certificates.read("client.key"));
    let config = Config::new(&url(proxy.addr().port(), "ca=@/ca.pem")).unwrap();
    let config = config.client_identity(chain, key);
    shown.push(format!("{config:?} {config:#?}"));
    let locks = Redis::connect(config).await.unwrap();
    let ours = claim("n", LONG);
    granted(locks.try_acquire(&ours).await);
    let hit = proxy.cut_after(Match::on(""));
    let fault = locks.release(&ours, ReleaseMode::now()).await.unwrap_err();
    hit.await.unwrap();
    shown.push(format!("{locks:?} {fault:?}"));
    shown.push(fault.into_source().to_string());

    shown.push(output.text());
    assert!(shown.last().unwrap().contains("this is traced"));
    let shown = shown.join("\n");
    let mut secrets = vec![PASSWORD.to_owned(), ours.owner.expose().to_string()];
    for key in ["client.key", "stranger.key"] {
        let text = String::from_utf8(certificates.read(key)).unwrap();
        let lines = text.lines().filter(|line| !line.starts_with('-'));
        secrets.extend(lines.flat_map(|line| {
            // As text, as a list of numbers, and as hex.
            let part = &line.as_bytes()[..12];
            let numbers = format!("{part:?}");
            let hex = part.iter().map(|byte| format!("{byte:02x}")).collect();
            [line[..12].to_owned(), numbers[1..numbers.len() - 1].to_owned(), hex]
        }));
    }
    assert!(secrets.len() > 8);
    for secret in secrets {
        assert!(!shown.contains(&secret), "{secret} in {shown}");
    }
}
