//! The list of held locks, by a scan over all keys of each primary.
//!
//! A server has no index of keys, so each page costs a whole scan. The scan goes in short steps on
//! the shared connection: a renewal waits for one step at most.

use std::collections::BTreeMap;
use std::sync::Arc;

use lock_core::LockName;
use lock_core::backend::{Fault, FaultKind, Listed, LockState};

use crate::backend::Redis;
use crate::connection::handle::Connection;
use crate::keys::{Keys, LockKeys};
use crate::topology::link::Link;
use crate::topology::servers::all;
use crate::value::Value;

/// The most keys that a list looks at, on all primaries together.
const MAX_KEYS: u64 = 1_000_000;

/// The number of locks that are inspected in one step.
const AT_ONCE: usize = 64;

impl Redis {
    /// Returns a page of the held locks.
    pub(crate) async fn list_locks(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        if limit == 0 {
            return Ok(Vec::new());
        }
        self.list_among(MAX_KEYS, Page::new(prefix, after, limit)).await
    }

    /// Fills the page, unless the servers have more keys than that.
    async fn list_among(&self, max_keys: u64, mut page: Page<'_>) -> Result<Vec<Listed>, Fault> {
        let servers = &self.inner.servers;
        let mut scans = Vec::new();
        let mut keys: u64 = 0;
        for link in servers.primaries().await? {
            let connection = link.connection().await?;
            keys += link.count_keys(&connection).await?;
            // One connection for the whole scan: a cursor belongs to its server.
            scans.push((link, connection));
        }
        if keys > max_keys {
            return Err(too_many(keys, max_keys));
        }
        for (link, connection) in scans {
            self.scan(&link, &connection, &mut page).await?;
        }
        Ok(page.finish())
    }

    async fn scan(
        &self,
        link: &Arc<Link>,
        connection: &Connection,
        page: &mut Page<'_>,
    ) -> Result<(), Fault> {
        let keys = &self.inner.keys;
        // Without any prefix, other strings of the application are more likely than foreign locks.
        let only_ours = keys.prefix().is_empty() && page.prefix.is_empty();
        let pattern = keys.pattern(page.prefix);
        let mut cursor = "0".to_owned();
        loop {
            let (next, found) = link.scan_step(connection, &cursor, &pattern).await?;
            let mut names = page.names_of(keys, &found);
            if only_ours {
                names = self.likely_ours(link, connection, names).await?;
            }
            for names in names.chunks(AT_ONCE) {
                let states = all(names.iter().map(|name| self.inspect_lock(name))).await;
                for (name, state) in names.iter().zip(states) {
                    page.add(name, state, only_ours)?;
                }
            }
            if next == "0" {
                return Ok(());
            }
            cursor = next;
        }
    }

    /// Keeps the names whose keys have a value of this library, or could not be read here.
    async fn likely_ours(
        &self,
        link: &Link,
        connection: &Connection,
        names: Vec<LockName>,
    ) -> Result<Vec<LockName>, Fault> {
        if names.is_empty() {
            return Ok(names);
        }
        let keys = names.iter().map(|name| self.inner.keys.of(name));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let values = link.read_values(connection, keys.iter().map(LockKeys::lock)).await?;
        let is_likely =
            |value: &Option<Vec<u8>>| value.as_ref().is_none_or(|it| Value::parse(it).is_some());
        let likely = names.into_iter().zip(values).filter(|(_, value)| is_likely(value));
        Ok(likely.map(|(name, _)| name).collect())
    }
}

/// A page of the list while it is filled: the first locks that were found so far.
struct Page<'a> {
    prefix: &'a str,
    after: Option<&'a LockName>,
    limit: usize,
    found: BTreeMap<LockName, LockState>,
    /// The number of keys that may be locks and cannot be shown.
    hidden: u64,
}

impl<'a> Page<'a> {
    fn new(prefix: &'a str, after: Option<&'a LockName>, limit: usize) -> Self {
        Self { prefix, after, limit, found: BTreeMap::new(), hidden: 0 }
    }

    /// Returns the names of the keys that belong on the page as far as their names tell.
    fn names_of(&mut self, keys: &Keys, found: &[Vec<u8>]) -> Vec<LockName> {
        let mut names = Vec::new();
        for key in found.iter().filter_map(|key| std::str::from_utf8(key).ok()) {
            match keys.name_of(key) {
                Some(name) if self.wants(&name) => names.push(name),
                Some(_) => {}
                None => self.hidden += u64::from(keys.has_digest(key)),
            }
        }
        names
    }

    fn wants(&self, name: &LockName) -> bool {
        let last = self.found.last_key_value().filter(|_| self.found.len() >= self.limit);
        name.as_str().starts_with(self.prefix)
            && self.after.is_none_or(|after| name > after)
            && last.is_none_or(|(last, _)| name < last)
            // A scan may show a key twice.
            && !self.found.contains_key(name)
    }

    /// Adds a lock if it is held.
    fn add(
        &mut self,
        name: &LockName,
        state: Result<LockState, Fault>,
        only_ours: bool,
    ) -> Result<(), Fault> {
        match state {
            Ok(state) => {
                let is_shown = |owner: bool| owner || !only_ours;
                if state.holders.iter().any(|holder| is_shown(holder.owner.is_some())) {
                    self.found.insert(name.clone(), state);
                    if self.found.len() > self.limit {
                        self.found.pop_last();
                    }
                }
            }
            // Something other than a lock took its key, or this user may not read it. The other
            // locks are still listed.
            Err(fault) if matches!(fault.kind(), FaultKind::Invalid | FaultKind::Denied) => {
                self.hidden += 1;
            }
            Err(fault) => return Err(fault),
        }
        Ok(())
    }

    fn finish(self) -> Vec<Listed> {
        if self.hidden > 0 {
            tracing::warn!(
                hidden = self.hidden,
                "not listed: keys whose names end in a digest, or that this user may not read"
            );
        }
        self.found.into_iter().map(|(name, state)| Listed::new(name, state)).collect()
    }
}

fn too_many(keys: u64, max_keys: u64) -> Fault {
    let message = format!(
        "the server has {keys} keys, and a list looks at {max_keys} at most, whatever the prefix; \
         inspect a lock by its name, or keep the locks on a server or in a database of their own"
    );
    Fault::not_applied(FaultKind::Unsupported, message)
}

#[cfg(test)]
mod tests {
    use test_servers::{Redis as Server, RedisOptions};

    use super::*;

    #[tokio::test]
    async fn a_server_with_too_many_keys_is_not_scanned() {
        let server = Server::start(RedisOptions::new());
        let mut shell = server.connect().unwrap();
        let mut set = |key: &str| {
            let value = "00112233445566778899aabbccddeeff 17";
            shell.command(&["SET", key, value, "PX", "300000"]).unwrap();
        };
        let redis = Redis::connect(server.url()).await.unwrap();
        (0..10).for_each(|number| set(&format!("n{number}")));
        let listed = redis.list_among(10, Page::new("", None, 100)).await.unwrap();
        assert_eq!(listed.len(), 10);
        set("one more");
        let fault = redis.list_among(10, Page::new("n1", None, 100)).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Unsupported);
        let why = fault.into_source().to_string();
        assert!(why.contains("11 keys") && why.contains("10 at most"), "{why}");
        let stats = server.connect().unwrap().command(&["INFO", "commandstats"]).unwrap().text();
        assert_eq!(stats.matches("cmdstat_scan:calls=1,").count(), 1, "{stats}");
    }
}
