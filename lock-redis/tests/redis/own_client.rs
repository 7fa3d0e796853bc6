//! Locks with the settings of a client that the program has.

use lock_core::{Backend, Error, ErrorKind, Wakeup};
use lock_redis::{Config, Redis};
use redis::{Client, ConnectionAddr, IntoConnectionInfo, RedisConnectionInfo};

use crate::support::{Server, claim, eventually, granted, release};

#[path = "../../examples/own_redis_client.rs"]
#[expect(dead_code, reason = "its main function is not called")]
mod example;

const PASSWORD: &str = "hunter2secret";

/// Returns a server with a user, and the settings of that user for one of its databases.
fn server_with_user() -> (Server, RedisConnectionInfo) {
    let server = Server::start();
    let _: String = server.run(&format!("ACL SETUSER app on >{PASSWORD} ~* &* +@all"));
    let settings = RedisConnectionInfo::default();
    (server, settings.set_username("app").set_password(PASSWORD).set_db(3))
}

fn refused(client: &Client) -> Error {
    let error = Config::from_connection_info(client.get_connection_info()).unwrap_err();
    assert!(!format!("{error} {error:?}").contains(PASSWORD), "{error}");
    error
}

#[tokio::test]
async fn address_credentials_and_database_are_those_of_the_client() {
    let (server, settings) = server_with_user();
    let addresses = [
        ConnectionAddr::Tcp(server.addr().ip().to_string(), server.port()),
        ConnectionAddr::Unix(server.unix_socket()),
    ];
    for address in addresses {
        let info = address.clone().into_connection_info().unwrap();
        let client = Client::open(info.set_redis_settings(settings.clone())).unwrap();
        let locks = Redis::from_client(&client).await.unwrap();
        assert_eq!(locks.capabilities().wakeup, Wakeup::HandOff, "the client speaks RESP2");
        let ours = claim("n", 60_000);
        granted(locks.try_acquire(&ours).await);
        let clients: String = server.run("CLIENT LIST");
        let ours_is = |line: &str| line.contains(" user=app ") && line.contains(" db=3 ");
        assert_eq!(clients.lines().filter(|line| ours_is(line)).count(), 1, "{clients}");
        assert_eq!(server.get("n"), None, "that is database 0");
        release(&locks, &ours).await;
        let shown = format!(
            "{locks:?} {:?}",
            Config::from_connection_info(client.get_connection_info().clone(),)
        );
        assert!(!shown.contains(PASSWORD), "{shown}");
    }
}

#[tokio::test]
async fn wrong_credentials_of_a_client_are_denied() {
    let (server, settings) = server_with_user();
    let address = ConnectionAddr::Tcp(server.addr().ip().to_string(), server.port());
    let info = address.into_connection_info().unwrap();
    let wrong = settings.set_password("another");
    let error = Redis::from_client(Client::open(info.set_redis_settings(wrong)).unwrap()).await;
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Denied);
}

/// A blocking command of the program holds up its own connection, and no lock.
#[tokio::test]
async fn a_blocking_command_of_the_program_delays_no_lock() {
    let server = Server::start();
    let client = Client::open(server.url()).unwrap();
    let mut data = client.get_multiplexed_async_connection().await.unwrap();
    let locks = Redis::from_client(&client).await.unwrap();
    let blocked = tokio::spawn(async move {
        let mut command = redis::cmd("BLPOP");
        command.arg("list").arg(0).query_async::<redis::Value>(&mut data).await
    });
    let is_blocked = || server.run::<String>("INFO clients").contains("blocked_clients:1");
    eventually(is_blocked).await;
    let ours = claim("n", 60_000);
    granted(locks.try_acquire(&ours).await);
    release(&locks, &ours).await;
    assert!(is_blocked());
    blocked.abort();
}

/// Why locks do not use a connection of the program: it is held up, and a request that its timeout
/// ended runs all the same.
#[tokio::test]
async fn a_blocking_command_delays_its_own_connection_past_the_timeout() {
    let server = Server::start();
    let client = Client::open(server.url()).unwrap();
    let mut data = client.get_multiplexed_async_connection().await.unwrap();
    let mut blocked = data.clone();
    let mut command = redis::cmd("BLPOP");
    command.arg("list").arg(0);
    assert!(command.query_async::<redis::Value>(&mut blocked).await.unwrap_err().is_timeout());
    let behind = redis::cmd("INCR").arg("n").query_async::<redis::Value>(&mut data).await;
    assert!(behind.unwrap_err().is_timeout());
    assert_eq!(server.get("n"), None);
    let _: i64 = server.run("LPUSH list x");
    eventually(|| server.get("n").as_deref() == Some("1")).await;
}

#[test]
fn clients_that_would_become_others_are_refused() {
    let open = |settings| {
        let info = ConnectionAddr::Tcp("h".into(), 1).into_connection_info().unwrap();
        Client::open(info.set_redis_settings(settings)).unwrap()
    };
    for (settings, hint) in [
        (RedisConnectionInfo::default().set_username("app"), "no password"),
        (RedisConnectionInfo::default().set_password(PASSWORD).set_db(-1), "negative"),
    ] {
        let error = refused(&open(settings));
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(hint), "{error}");
    }
}

#[tokio::test]
async fn the_example_deposits_under_its_locks() {
    let server = Server::start();
    let client = || Client::open(server.url()).unwrap();
    let (one, other) =
        (example::App::new(client()).await.unwrap(), example::App::new(client()).await.unwrap());
    let deposits = async |app: &example::App| {
        for _ in 0..20 {
            app.deposit("account", 1).await.unwrap();
        }
    };
    tokio::join!(deposits(&one), deposits(&other));
    assert_eq!(server.get("account").as_deref(), Some("40"));
    assert!(server.keys().iter().all(|key| key == "account" || key.contains("locks:")));
}

#[cfg(feature = "tls")]
mod encrypted {
    use redis::{ConnectionInfo, TlsCertificates};

    use super::*;
    use crate::certificates::Certificates;

    fn over_tls(port: u16, insecure: bool) -> ConnectionInfo {
        let host = "127.0.0.1".to_owned();
        let address = ConnectionAddr::TcpTls { host, port, insecure, tls_params: None };
        address.into_connection_info().unwrap()
    }

    #[tokio::test]
    async fn an_encrypted_client_stays_encrypted_and_is_checked() {
        let certificates = Certificates::new().with_stranger();
        let (_server, port) = certificates.server("good", &[]);
        let config = || Config::from_connection_info(over_tls(port, false)).unwrap();
        let trusting = |file| config().root_certificates(certificates.read(file));
        let locks = Redis::connect(trusting("ca.pem")).await.unwrap();
        granted(locks.try_acquire(&claim("n", 60_000)).await);
        for unknown in [config(), trusting("other.pem")] {
            let error = Redis::connect(unknown).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Denied, "{error:?}");
            assert!(error.to_string().contains("no trusted authority"), "{error}");
        }
    }

    #[test]
    fn weaker_and_unreadable_tls_is_refused() {
        let certificates = Certificates::new();
        let insecure = Client::open(over_tls(7, true)).unwrap();
        let root_cert = Some(certificates.read("ca.pem"));
        let given = TlsCertificates { client_tls: None, root_cert };
        // The library builds them with the default provider.
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let with_certificates = Client::build_with_tls(over_tls(7, false), given).unwrap();
        for (client, hint) in [(insecure, "insecure"), (with_certificates, "root_certificates")] {
            let error = refused(&client);
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.to_string().contains(hint), "{error}");
            assert!(error.to_string().contains("rediss://"), "{error}");
        }
    }
}

#[cfg(not(feature = "tls"))]
#[test]
fn an_encrypted_client_needs_the_feature_tls() {
    let address =
        ConnectionAddr::TcpTls { host: "h".into(), port: 1, insecure: false, tls_params: None };
    let error = refused(&Client::open(address).unwrap());
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("\"tls\""), "{error}");
}
