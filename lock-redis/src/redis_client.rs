//! The settings of a client of the crate `redis`, for locks on the same server.

use std::borrow::Borrow;

use lock_core::url::Host;
use lock_core::{Error, ErrorKind};
use redis::{Client, ConnectionAddr, ConnectionInfo};

use crate::Redis;
use crate::config::Config;
use crate::connection::address::{Address, Endpoint, Login};

impl Config {
    /// Takes the settings of a client of the crate `redis` 1.x over, as
    /// [`Client::get_connection_info`] returns them. The locks get a connection of their own.
    ///
    /// | setting | of the locks' connection |
    /// |---|---|
    /// | address: host and port, or path of the socket | the client's |
    /// | user, password, database | the client's |
    /// | TCP keep-alive, user timeout, linger time | the client's, or those of this crate where it sets none |
    /// | `TCP_NODELAY` | always set |
    /// | protocol (RESP2, RESP3) | RESP3 where the server has it |
    /// | name of the library (`CLIENT SETINFO`) | not sent |
    /// | TLS | checked: the authorities of the system, or [`root_certificates`](Self::root_certificates) |
    ///
    /// Not in a client, and so not taken over: the settings of its connections
    /// (`AsyncConnectionConfig`: timeouts, DNS resolver, caches, providers of credentials). The
    /// password is the one that the client has now: if it changes, connect anew.
    ///
    /// `ClusterClient` and `SentinelClient` do not show their addresses. Name these to
    /// [`Config::new`], by `redis+cluster:` and `redis+sentinel:`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] for a client
    /// * that checks no certificates (`#insecure`): locks never use weaker TLS than `rediss:`;
    /// * with TLS settings of its own (`Client::build_with_tls`): `redis` does not show them. Write
    ///   [`Config::new`] with `rediss:` and the options `ca`, `cert` and `key`, or with
    ///   [`root_certificates`](Self::root_certificates) and
    ///   [`client_identity`](Self::client_identity);
    /// * with a user and no password, which it would not use;
    /// * with a negative database, or an address of an unknown kind.
    ///
    /// [`ErrorKind::Unsupported`] for a client with TLS, if the Cargo feature `tls` is off.
    pub fn from_connection_info(info: impl Borrow<ConnectionInfo>) -> Result<Self, Error> {
        let info = info.borrow();
        let settings = info.redis_settings();
        let login = Login {
            user: settings.username().filter(|user| !user.is_empty()).map(str::to_owned),
            password: settings.password().map(str::to_owned),
        };
        if login.user.is_some() && login.password.is_none() {
            return Err(invalid(
                "the client has a user and no password, so it would be the default user: give it the \
                 password, or no user",
            ));
        }
        if settings.db() < 0 {
            return Err(invalid("the database of the client is negative"));
        }
        let mut config = Self::at(Endpoint::Fixed(address(info.addr())?))?;
        config.login = login;
        config.database = settings.db();
        config.tcp = info.tcp_settings().clone();
        Ok(config)
    }
}

impl Redis {
    /// Connects to the server of a client of the crate `redis` 1.x, with its address, credentials,
    /// database and TCP settings. [`Config::from_connection_info`] has the details, and is the way
    /// to a prefix and other options.
    ///
    /// The locks get a connection of their own, one more for the server. A connection of the
    /// program (`MultiplexedConnection`, `ConnectionManager`) cannot be shared: its blocking
    /// commands and its timeouts would delay renewals, and it reconnects unseen. `docs/recipes.md`
    /// in the repository has all reasons.
    ///
    /// ```no_run
    /// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
    /// use lock_core::Locker;
    /// use lock_redis::{Config, Redis};
    ///
    /// let client = redis::Client::open("redis://127.0.0.1")?; // of your program
    /// let locks = Locker::new(Redis::from_client(&client).await?);
    /// // The same with an option:
    /// let config = Config::from_connection_info(client.get_connection_info())?;
    /// let locks = Locker::new(Redis::connect(config.prefix("app:")?).await?);
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Config::from_connection_info`] and [`Redis::connect`].
    ///
    /// # Cancel safety
    ///
    /// As [`Redis::connect`].
    pub async fn from_client(client: impl Borrow<Client>) -> Result<Self, Error> {
        let info = client.borrow().get_connection_info().clone();
        drop(client);
        Self::connect(Config::from_connection_info(info)?).await
    }
}

fn address(address: &ConnectionAddr) -> Result<Address, Error> {
    let tcp = |host: &str, port, tls| Address::Tcp { host: Host { name: host.into(), port }, tls };
    match address {
        ConnectionAddr::Unix(path) => Ok(Address::Unix(path.clone())),
        ConnectionAddr::Tcp(host, port) => Ok(tcp(host, *port, false)),
        ConnectionAddr::TcpTls { .. } if !cfg!(feature = "tls") => {
            let why =
                "the client uses TLS: needs the Cargo feature \"tls\" of lock-redis, which is off";
            Err(Error::new(ErrorKind::Unsupported, why))
        }
        ConnectionAddr::TcpTls { insecure: true, .. } => Err(invalid(
            "the client does not check the server's certificate (insecure), and locks always do: \
             use Config::new with rediss://, and the option ca for an authority of your own",
        )),
        ConnectionAddr::TcpTls { tls_params: Some(_), .. } => Err(invalid(
            "the certificates of a client cannot be read: use Config::new with rediss:// and the \
             options ca, cert and key, or with root_certificates and client_identity",
        )),
        ConnectionAddr::TcpTls { host, port, .. } => Ok(tcp(host, *port, true)),
        _ => Err(invalid("the address of the client is of an unknown kind: use Config::new")),
    }
}

fn invalid(why: &'static str) -> Error {
    Error::new(ErrorKind::Invalid, why)
}
