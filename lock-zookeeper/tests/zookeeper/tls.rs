//! Encrypted connections.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::process::Command;

use lock_conformance::proxy::Proxy;
use lock_core::backend::{Release, ReleaseMode, Renewal};
use lock_core::diagnosis::{Finding, Severity};
use lock_core::{Backend, Error, ErrorKind, Locker};
use lock_zookeeper::{Config, ZooKeeper, diagnose};
use tempfile::TempDir;
use test_servers::{ZooKeeper as Server, ZooKeeperOptions};

use crate::support::{claim, is_contended, soon, until, win};

const NEW_KEY: &str = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
const OF_THIS_HOST: &str = "subjectAltName=IP:127.0.0.1";
const PASSWORD: &str = "hunter2secret";

/// Authorities and the certificates that they sign. This host is named by its address: a bare
/// system has no names.
struct Certificates(TempDir);

impl Certificates {
    /// An authority, a server and a client; and a client of another authority.
    fn new() -> Self {
        let these = Self(tempfile::tempdir().unwrap());
        for authority in ["ca", "other"] {
            let files = format!("-keyout {authority}.key -out {authority}.pem");
            let subject = format!("-days 30 -subj /CN={authority}");
            let is_one = "-addext basicConstraints=critical,CA:TRUE";
            these.openssl(&format!("req -x509 {NEW_KEY} {files} {subject} {is_one}"));
        }
        these.issue("good", "ca", OF_THIS_HOST);
        these.issue("elsewhere", "ca", "subjectAltName=DNS:example.com");
        these.issue("client", "ca", "basicConstraints=CA:FALSE");
        these.issue("stranger", "other", "basicConstraints=CA:FALSE");
        these
    }

    fn issue(&self, name: &str, authority: &str, extension: &str) {
        std::fs::write(self.path("extension"), extension).unwrap();
        self.openssl(&format!("req -new {NEW_KEY} -keyout {name}.key -out r.csr -subj /CN={name}"));
        let by = format!("-CA {authority}.pem -CAkey {authority}.key -CAcreateserial");
        self.openssl(&format!(
            "x509 -req -in r.csr {by} -extfile extension -out {name}.pem -days 30"
        ));
    }

    fn openssl(&self, arguments: &str) {
        let output = Command::new("openssl")
            .args(arguments.split(' '))
            .current_dir(&self.0)
            .output()
            .expect("openssl is needed: sudo apt-get install openssl");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    fn path(&self, file: &str) -> PathBuf {
        self.0.path().join(file)
    }

    /// A server with the certificate of that name, and where it encrypts.
    async fn server(&self, name: &str, asks_clients: bool) -> (Server, SocketAddr) {
        let probe = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let addr = probe.local_addr().unwrap();
        drop(probe);
        let parts = ["pem", "key"].map(|kind| std::fs::read(self.path(&format!("{name}.{kind}"))));
        std::fs::write(self.path("keys.pem"), parts.map(Result::unwrap).concat()).unwrap();
        let file = |name: &str| self.path(name).to_str().unwrap().to_owned();
        let options = ZooKeeperOptions::new()
            .setting("secureClientPort", &addr.port().to_string())
            .setting("secureClientPortAddress", "127.0.0.1")
            .setting("serverCnxnFactory", "org.apache.zookeeper.server.NettyServerCnxnFactory")
            .setting("ssl.keyStore.location", &file("keys.pem"))
            .setting("ssl.keyStore.type", "PEM")
            .setting("ssl.trustStore.location", &file("ca.pem"))
            .setting("ssl.trustStore.type", "PEM")
            .setting("ssl.clientAuth", if asks_clients { "need" } else { "none" });
        let server = Server::start(&options);
        // It serves in the clear first.
        until("it encrypts", async || TcpStream::connect(addr).is_ok()).await;
        (server, addr)
    }

    /// `options` with a place holder for the directory.
    fn url(&self, addr: SocketAddr, options: &str) -> String {
        let options = options.replace('@', self.0.path().to_str().unwrap());
        format!("zookeeper+tls://locks:{PASSWORD}@{addr}?{options}")
    }
}

async fn refused(url: String) -> Error {
    let error = soon(ZooKeeper::connect(url)).await.expect_err("it is refused");
    assert!(!error.to_string().contains(PASSWORD), "{error}");
    error
}

#[tokio::test]
async fn a_server_is_trusted_for_its_certificate_only() {
    let certificates = Certificates::new();
    for (certificate, authority, is_trusted) in
        [("good", "ca", true), ("good", "other", false), ("elsewhere", "ca", false)]
    {
        let (_server, addr) = certificates.server(certificate, false).await;
        let url = certificates.url(addr, &format!("ca=@/{authority}.pem"));
        if is_trusted {
            win(&ZooKeeper::connect(url).await.unwrap(), &claim("n", true)).await;
            continue;
        }
        let error = refused(url).await;
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{certificate} by {authority}");
        assert!(error.to_string().contains("certificates of both sides"), "{error}");
    }
}

#[tokio::test]
async fn locks_work_with_a_server_that_requires_client_certificates() {
    let certificates = Certificates::new();
    let (_server, addr) = certificates.server("good", true).await;
    for options in ["ca=@/ca.pem", "ca=@/ca.pem&cert=@/stranger.pem&key=@/stranger.key"] {
        assert_eq!(refused(certificates.url(addr, options)).await.kind(), ErrorKind::Unavailable);
    }
    let url = certificates.url(addr, "ca=@/ca.pem&cert=@/client.pem&key=@/client.key");
    let near = ZooKeeper::connect(url.as_str()).await.unwrap();
    let far = ZooKeeper::connect(url.as_str()).await.unwrap();
    let held = claim("n", true);
    win(&near, &held).await;
    assert!(is_contended(&far, &claim("n", false)).await);
    assert!(matches!(near.renew(&[&held]).await.remove(0), Ok(Renewal::Held(_))));
    assert_eq!(far.inspect(&held.name).await.unwrap().holders[0].owner, Some(held.owner));
    let waiter = tokio::spawn(async move { Locker::new(far).lock("n").unwrap().acquire().await });
    assert_eq!(near.release(&held, ReleaseMode::now()).await.unwrap(), Release::Released);
    soon(waiter).await.unwrap().unwrap().release().await.unwrap();
}

#[tokio::test]
async fn nothing_is_sent_in_the_clear() {
    let certificates = Certificates::new();
    let (server, addr) = certificates.server("good", false).await;
    for (to, is_encrypted) in [(addr, true), (server.addr(), false)] {
        let proxy = Proxy::start(to).unwrap();
        let (password, node) = (proxy.count(PASSWORD), proxy.count("-lock-"));
        let encrypted = certificates.url(proxy.addr(), "ca=@/ca.pem");
        let url = match is_encrypted {
            true => encrypted,
            false => format!("zookeeper://locks:{PASSWORD}@{}", proxy.addr()),
        };
        win(&ZooKeeper::connect(url).await.unwrap(), &claim(&format!("n{is_encrypted}"), true))
            .await;
        assert_eq!((password.seen() > 0, node.seen() > 0), (!is_encrypted, !is_encrypted));
    }
    // The two ports are mixed up.
    refused(certificates.url(server.addr(), "ca=@/ca.pem")).await;
    refused(format!("zookeeper://locks:{PASSWORD}@{addr}")).await;
}

#[tokio::test]
async fn an_encrypted_server_is_diagnosed_without_words() {
    let certificates = Certificates::new();
    let (_server, addr) = certificates.server("good", false).await;
    let of_authority = |authority: &str| {
        let options = format!("ca=@/{authority}.pem&session_timeout=60s");
        diagnosis(certificates.url(addr, &options))
    };
    let flaws = of_authority("ca").await;
    assert_eq!(
        flaws.iter().map(|flaw| flaw.check).collect::<Vec<_>>(),
        ["version", "mode", "tick", "ensemble"]
    );
    for flaw in flaws {
        assert!(flaw.text.contains("could not be seen"), "{flaw}");
        let remedy = flaw.remedy.as_deref().unwrap_or_default();
        assert!(remedy.contains("plain client port"), "{remedy}");
    }
    let flaws = of_authority("other").await;
    assert_eq!((flaws[0].severity, flaws[0].check), (Severity::Failure, "connection"));
    assert!(flaws[0].text.contains("certificates of both sides"), "{}", flaws[0]);
}

async fn diagnosis(url: String) -> Vec<Finding> {
    let mut findings = soon(diagnose(&Config::new(&url).unwrap())).await;
    assert!(!findings.iter().any(|finding| finding.to_string().contains(PASSWORD)));
    // On a busy machine commits take long, and the shortest sessions cannot be opened.
    let is_busy = |finding: &Finding| ["round trip", "session limits"].contains(&finding.check);
    findings.retain(|finding| finding.severity != Severity::Ok && !is_busy(finding));
    findings
}

#[tokio::test]
async fn files_that_are_no_use_are_told_by_name_before_anything_is_sent() {
    let certificates = Certificates::new();
    std::fs::write(certificates.path("nonsense"), PASSWORD).unwrap();
    let nobody = (Ipv4Addr::LOCALHOST, 1).into();
    for (options, hint) in [
        ("ca=@/nosuch", "cannot be read"),
        ("ca=@", "no regular file"),
        ("ca=@/nonsense", "no certificate in PEM"),
        ("ca=@/ca.pem&cert=@/ca.key&key=@/ca.key", "no certificate in PEM"),
        ("ca=@/ca.pem&cert=@/client.pem&key=@/nonsense", "no private key in PEM"),
        ("ca=@/ca.pem&cert=@/client.pem&key=@/good.key", "does not hold the key"),
    ] {
        let error = refused(certificates.url(nobody, options)).await;
        assert_eq!(error.kind(), ErrorKind::Invalid, "{options}: {error}");
        assert!(error.to_string().contains(hint), "{options}: {error}");
    }
}
