//! The requests of `lock-redis` without the library: the same scripts with the same arguments, by
//! the same crate, on one connection like ours.
//!
//! The rest of the time of `locks` is spent in our library.

use std::time::Duration;

use lock_bench_worker::Lib;
use redis::aio::MultiplexedConnection;
use redis::io::tcp::TcpSettings;
use redis::{AsyncConnectionConfig, Client, IntoConnectionInfo, ProtocolVersion, Script};

use super::floors::random_owner;

macro_rules! script {
    ($($file:literal)+) => {
        Script::new(concat!($(include_str!(concat!("../../../../lock-redis/src/scripts/", $file))),+))
    };
}

pub(crate) struct BareRedis {
    connection: MultiplexedConnection,
    acquire: Script,
    release: Script,
    /// The notification channel of a process with queued waiters.
    channel: String,
}

/// The keys of a lock, and its owner.
pub(crate) struct Held {
    keys: [String; 5],
    owner: String,
    number: u64,
}

impl BareRedis {
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let info = url.into_connection_info().map_err(|e| e.to_string())?;
        let speaks = info.redis_settings().clone().set_protocol(ProtocolVersion::RESP3);
        let info = info.set_tcp_settings(TcpSettings::default().set_nodelay(true));
        let client = Client::open(info.set_redis_settings(speaks)).map_err(|e| e.to_string())?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        let connection = client.get_multiplexed_async_connection_with_config(&config).await;
        Ok(Self {
            connection: connection.map_err(|e| e.to_string())?,
            acquire: script!("prelude.lua" "queue.lua" "acquire.lua"),
            release: script!("prelude.lua" "queue.lua" "release.lua"),
            channel: format!("%~to:{}:001", random_owner()),
        })
    }
}

impl Lib for BareRedis {
    type Lock = String;
    type Held = Held;

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, name: &String, ttl: Duration) -> Result<Held, String> {
        let owner = random_owner();
        let companion = |suffix: &str| format!("{{{name}}}%{suffix}");
        let keys = ["token", "queue", "procs", "wake"].map(companion);
        let [token, queue, processes, notify] = keys;
        let keys = [name.clone(), token, queue, processes, notify];
        let tombstone = companion(&format!("gone:{owner}"));
        let ttl = ttl.as_millis() as u64;
        let mut script = self.acquire.prepare_invoke();
        script.key(&keys[..4]).key(&tombstone);
        script.arg(&owner).arg(ttl).arg("").arg("").arg("").arg("").arg(&self.channel);
        let number = script.invoke_async(&mut self.connection.clone()).await;
        let number = number.map_err(|e| format!("not granted: {e}"))?;
        Ok(Held { keys, owner, number })
    }

    async fn release(&self, held: Held) -> Result<(), String> {
        let mut script = self.release.prepare_invoke();
        script.key(&held.keys[..]).arg(&held.owner);
        match script.invoke_async(&mut self.connection.clone()).await {
            Ok(1) => Ok(()),
            Ok(other) => Err(format!("not released: {other}")),
            Err(error) => Err(error.to_string()),
        }
    }

    fn token(held: &Held) -> Option<u64> {
        Some(held.number)
    }
}
