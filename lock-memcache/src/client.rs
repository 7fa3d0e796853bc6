//! The servers of one backend and the state that its verbs share.

use std::sync::Arc;

use lock_core::backend::{Fault, FaultKind};
use lock_core::{Error, Executor, LockName};
use tokio::task::JoinSet;
use tracing::instrument::WithSubscriber;

use crate::config::{Config, Credentials};
use crate::connection::wire::Request;
use crate::connection::{Endpoint, Link};
use crate::fault;
use crate::holds::Holds;
use crate::keys::{Keys, server_of};
use crate::token_counter::{self, TokenCounter, drawn};
use crate::waiters::Waiters;

#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) keys: Keys,
    pub(crate) counter_key: String,
    pub(crate) names: Vec<String>,
    pub(crate) servers: Vec<Server>,
    pub(crate) holds: Arc<Holds>,
    pub(crate) waiters: Waiters,
    pub(crate) executor: Executor,
}

#[derive(Clone, Debug)]
pub(crate) struct Server {
    pub(crate) link: Arc<Link>,
    pub(crate) counter: Arc<TokenCounter>,
}

impl Client {
    /// Connects to all servers at the same time.
    pub(crate) async fn connect(config: Config) -> Result<Self, Error> {
        let Config { servers: names, credentials, keys } = config;
        let counter_key = keys.counter();
        let executor = Executor::current_or_new()?;
        let servers: Vec<Server> =
            names.iter().map(|address| Server::at(address, credentials.as_ref())).collect();
        let connecting = connect_all(&servers, &counter_key);
        executor.within(connecting).await.map_err(fault::error)?;
        let (holds, waiters) = (Arc::default(), Waiters::default());
        Ok(Self { keys, counter_key, names, servers, holds, waiters, executor })
    }

    /// Returns the key of a lock and its server.
    pub(crate) fn server_of_lock(&self, name: &LockName) -> (String, &Server) {
        let key = self.keys.of(name);
        let server = &self.servers[server_of(&self.names, &key)];
        (key, server)
    }
}

/// Connects to all servers at the same time, because those that are down take their time.
///
/// # Errors
///
/// A server that answers and refuses, or no server that answers.
async fn connect_all(servers: &[Server], counter_key: &str) -> Result<(), Fault> {
    let mut connecting = JoinSet::new();
    for server in servers {
        let (server, key) = (server.clone(), counter_key.to_owned());
        let connect = async move { (server.ensure_counter(&key).await, server) };
        connecting.spawn(connect.with_current_subscriber());
    }
    let (mut is_one_up, mut down) = (false, None);
    while let Some(ended) = connecting.join_next().await {
        match ended {
            Ok((Ok(()), _)) => is_one_up = true,
            Ok((Err(fault), server)) if fault.kind() == FaultKind::Unavailable => {
                let why = fault.into_source();
                tracing::warn!(memcache.server = server.link.address(), %why, "a server is down");
                down = Some(Fault::not_applied(FaultKind::Unavailable, why));
            }
            Ok((Err(fault), _)) => return Err(fault),
            Err(_) => {
                let why = "the runtime has ended";
                return Err(Fault::not_applied(FaultKind::Unavailable, why));
            }
        }
    }
    down.filter(|_| !is_one_up).map_or(Ok(()), Err)
}

impl Server {
    fn at(address: &str, credentials: Option<&Credentials>) -> Self {
        let endpoint = Endpoint::new(address, credentials);
        Self { link: Arc::new(Link::to(endpoint)), counter: Arc::default() }
    }

    /// Starts the counter of fencing tokens, unless it exists.
    async fn ensure_counter(&self, key: &str) -> Result<(), Fault> {
        let connection = self.link.connection().await?;
        let reply = connection
            .ask_one(&Request::new().increment(key, 1, token_counter::COUNTER_TTL))
            .await?;
        match drawn(Some(reply))? {
            Some(number) => token_counter::check(&connection, key, number).await,
            None => self.counter.begin(&self.link, key).await,
        }
    }
}
