//! The lock recipe of the crate `zookeeper-client`: it watches the predecessor, and then reads the
//! queue again.

use std::time::Duration;

use lock_bench_worker::Lib;
use zookeeper_client::{Acls, Client, CreateMode, LockOptions, LockPrefix, OwnedLockClient};

pub(crate) struct ZooKeeperCrate(Client);

impl ZooKeeperCrate {
    /// Connects with a session as long as ours.
    pub(crate) async fn connect(url: &str) -> Result<Self, String> {
        let usage = "it speaks to zookeeper://host:port?session_timeout=SECONDSs";
        let address = url.strip_prefix("zookeeper://").ok_or(usage)?;
        let (address, seconds) = address.split_once("?session_timeout=").ok_or(usage)?;
        let seconds = seconds.strip_suffix('s').and_then(|s| s.parse().ok()).ok_or(usage)?;
        let connector = Client::connector().with_session_timeout(Duration::from_secs(seconds));
        connector.connect(address).await.map(Self).map_err(|e| e.to_string())
    }
}

impl Lib for ZooKeeperCrate {
    type Lock = String;
    type Held = OwnedLockClient;

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(format!("/{name}"))
    }

    async fn acquire(&self, lock: &String, _ttl: Duration) -> Result<OwnedLockClient, String> {
        let prefix = LockPrefix::new_curator(lock, "lock-").map_err(|e| e.to_string())?;
        let parents = CreateMode::Container.with_acls(Acls::anyone_all());
        let options = LockOptions::new(Acls::anyone_all()).with_ancestor_options(parents);
        let options = options.map_err(|e| e.to_string())?;
        let held = self.0.lock(prefix, b"", options).await.map_err(|e| e.to_string())?;
        Ok(held.into_owned())
    }

    /// Deletes the node.
    ///
    /// The recipe releases on drop, which cannot be awaited. So the node is deleted here. The guard
    /// would delete it once more, and is leaked with its handle of the client.
    async fn release(&self, held: OwnedLockClient) -> Result<(), String> {
        let deleted = self.0.delete(held.lock_path(), None).await.map_err(|e| e.to_string());
        std::mem::forget(held);
        deleted
    }
}
