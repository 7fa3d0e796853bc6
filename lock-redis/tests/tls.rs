//! Encrypted connections.
#![cfg(feature = "tls")]

use std::path::Path;
use std::process::Command;

use lock_core::backend::Effect;
use lock_core::{Backend, ErrorKind};
use lock_redis::{Config, Redis};

mod support;

use support::{Server, claim, granted};

fn openssl(dir: &Path, arguments: &str) {
    let output = Command::new("openssl")
        .args(arguments.split(' '))
        .current_dir(dir)
        .output()
        .expect("openssl is needed: sudo apt-get install openssl");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
}

/// Two authorities, and two certificates of the first one: for this host, by its address (a bare system
/// has no names), and for another.
fn certificates() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let new_key = "-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes";
    openssl(
        at,
        &format!("req -x509 {new_key} -keyout ca.key -out ca.pem -days 30 -subj /CN=tests"),
    );
    openssl(
        at,
        &format!("req -x509 {new_key} -keyout o.key -out other.pem -days 30 -subj /CN=other"),
    );
    for (name, host) in [("good", "IP:127.0.0.1"), ("elsewhere", "DNS:example.com")] {
        std::fs::write(at.join("names"), format!("subjectAltName={host}")).unwrap();
        openssl(at, &format!("req -new {new_key} -keyout {name}.key -out r.csr -subj /CN={name}"));
        let sign = "x509 -req -in r.csr -CA ca.pem -CAkey ca.key -CAcreateserial -extfile names";
        openssl(at, &format!("{sign} -out {name}.pem -days 30"));
    }
    dir
}

fn server(dir: &Path, certificate: &str) -> (Server, u16) {
    let probe = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    let file = |name: &str| dir.join(name).to_str().unwrap().to_owned();
    let server = Server::with(&[
        ("tls-port", &port.to_string()),
        ("tls-auth-clients", "no"),
        ("tls-cert-file", &file(&format!("{certificate}.pem"))),
        ("tls-key-file", &file(&format!("{certificate}.key"))),
        ("tls-ca-cert-file", &file("ca.pem")),
    ]);
    (server, port)
}

#[tokio::test]
async fn a_server_is_trusted_for_its_certificate_only() {
    let dir = certificates();
    let pem = |name: &str| std::fs::read(dir.path().join(name)).unwrap();
    let (_good, port) = server(dir.path(), "good");
    let config = Config::new(&format!("rediss://127.0.0.1:{port}")).unwrap();
    let trusting = config.clone().root_certificates(pem("ca.pem"));
    let locks = Redis::connect(trusting.clone()).await.unwrap();
    granted(locks.try_acquire(&claim("n", 60_000)).await);

    let (elsewhere, elsewhere_port) = server(dir.path(), "elsewhere");
    let at_other_host = Config::new(&format!("rediss://127.0.0.1:{elsewhere_port}")).unwrap();
    let plain = Config::new(&format!("rediss://127.0.0.1:{}", elsewhere.port())).unwrap();
    for (what, config) in [
        ("an authority that nobody knows", config.clone()),
        ("another authority", config.root_certificates(pem("other.pem"))),
        ("another host's certificate", at_other_host.root_certificates(pem("ca.pem"))),
        ("a server that does not encrypt", plain.root_certificates(pem("ca.pem"))),
    ] {
        let error = Redis::connect(config).await.expect_err(what);
        assert_eq!(error.effect(), Effect::NotApplied, "{what}");
        assert!(
            matches!(error.kind(), ErrorKind::Unavailable | ErrorKind::Denied),
            "{what}: {error:?}"
        );
    }
}

#[tokio::test]
async fn what_is_no_certificate_is_refused() {
    let config = Config::new("rediss://127.0.0.1").unwrap().root_certificates("nonsense");
    let error = Redis::connect(config).await.unwrap_err();
    assert_eq!(error.effect(), Effect::NotApplied);
}
