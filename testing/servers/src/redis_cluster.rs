//! Redis Cluster.

use std::net::{IpAddr, Ipv4Addr};
use std::time::Duration;

use super::error::ServerError;
use super::ports::bus_port;
use super::redis::{Redis, RedisOptions};
use super::resp::Reply;
use lock_conformance::proxy::{Fault, Proxy};
use lock_conformance::{KeepData, ServerProcess};

const SLOTS: usize = 1 << 14;

/// The bound on the discovery of all members. A master waits two seconds after its start in any
/// case.
const READY: Duration = Duration::from_secs(60);

/// Masters that share the slots, on loopback ports, with a replica each if wanted. Each can be
/// stopped, killed and restarted by itself.
///
/// ```no_run
/// use test_servers::{RedisCluster, RedisOptions};
///
/// let cluster = RedisCluster::start(&RedisOptions::new(), 3, 1);
/// let (from, slot) = (cluster.home("a lock"), cluster.slot("a lock"));
/// cluster.move_slot(slot, from, (from + 1) % 3); // its keys, too
/// cluster.member(from).kill(); // its replica takes over
/// ```
#[derive(Debug)]
pub struct RedisCluster {
    options: RedisOptions,
    members: Vec<Redis>,
    /// The proxies to each member for the others, if the connections can be cut.
    links: Vec<Proxy>,
    ids: Vec<String>,
    masters: usize,
}

impl RedisCluster {
    /// Starts this many masters, with this many replicas for each, and waits until all of them
    /// serve.
    ///
    /// # Panics
    ///
    /// There is no `redis-server`, or one of them does not come up. The message says why.
    #[must_use]
    pub fn start(options: &RedisOptions, masters: usize, replicas: usize) -> Self {
        Self::try_start(options, masters, replicas).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Starts this many masters, with this many replicas for each, and waits until all of them
    /// serve.
    ///
    /// # Errors
    ///
    /// There is no `redis-server`, or one of them does not come up.
    pub fn try_start(
        options: &RedisOptions,
        masters: usize,
        replicas: usize,
    ) -> Result<Self, ServerError> {
        let options = options.clone().cluster_member();
        let member = |place| match options.links {
            true => options
                .clone()
                .setting("bind-source-addr", &address_of(place).to_string())
                // Protected mode refuses clients from any address but the first one of this host.
                .setting("protected-mode", "no"),
            false => options.clone(),
        };
        let members = (0..masters * (1 + replicas)).map(|place| Redis::try_start(member(place)));
        let members = members.collect::<Result<Vec<_>, _>>()?;
        let ids = members.iter().map(|member| member.command(&["CLUSTER", "MYID"]).text());
        let links = if options.links { members.iter().map(link_to).collect() } else { Vec::new() };
        let cluster = Self { ids: ids.collect(), options, members, links, masters };
        cluster.share_slots();
        cluster.introduce();
        let all = cluster.members.len();
        cluster.wait(|member| says(member, "cluster_known_nodes", &all.to_string()))?;
        for replica in masters..all {
            cluster.expect_ok(replica, &["CLUSTER", "REPLICATE", &cluster.ids[replica % masters]]);
        }
        cluster.wait(|member| {
            says(member, "cluster_state", "ok")
                && says(member, "cluster_size", &masters.to_string())
                && cluster.knows_replicas(member, replicas)
        })?;
        Ok(cluster)
    }

    fn share_slots(&self) {
        for (master, member) in self.members.iter().take(self.masters).enumerate() {
            let first = (SLOTS * master / self.masters).to_string();
            let last = (SLOTS * (master + 1) / self.masters - 1).to_string();
            ok(member, &["CLUSTER", "ADDSLOTSRANGE", &first, &last]);
            ok(member, &["CLUSTER", "SET-CONFIG-EPOCH", &(master + 1).to_string()]);
        }
    }

    fn introduce(&self) {
        for (place, other) in self.members.iter().enumerate().skip(1) {
            let port = other.addr().port();
            let bus = self.links.get(place).map_or(bus_port(port), |link| link.addr().port());
            let (port, bus) = (port.to_string(), bus.to_string());
            ok(&self.members[0], &["CLUSTER", "MEET", "127.0.0.1", &port, &bus]);
        }
    }

    /// Returns true if `member` lists each slot with all of its owners, and all replicas are up to
    /// date.
    fn knows_replicas(&self, member: &Redis, replicas: usize) -> bool {
        let Reply::Array(ranges) = member.command(&["CLUSTER", "SLOTS"]) else { return false };
        let complete = |range: &Reply| matches!(range, Reply::Array(r) if r.len() == 3 + replicas);
        let info = member.command(&["INFO", "replication"]).text();
        ranges.len() == self.masters
            && ranges.iter().all(complete)
            && (info.contains("role:master") || info.contains("master_link_status:up"))
    }

    fn wait(&self, is_ready: impl Fn(&Redis) -> bool) -> Result<(), ServerError> {
        self.members.iter().try_for_each(|member| member.wait_until(READY, || is_ready(member)))
    }

    /// Returns `redis+cluster://…`, or `rediss+cluster://…`, with all members.
    #[must_use]
    pub fn url(&self) -> String {
        let host = self.options.host();
        let place = |member: &Redis| format!("{host}:{}", member.service_port());
        let places: Vec<_> = self.members.iter().map(place).collect();
        format!("{}://{}", self.options.scheme("cluster"), places.join(","))
    }

    /// Returns a member: first the masters, in the order of their initial slots, then the replicas
    /// in the same order.
    #[must_use]
    pub fn member(&self, place: usize) -> &Redis {
        &self.members[place]
    }

    /// Returns the number of members.
    #[must_use]
    pub fn len(&self) -> usize {
        self.members.len()
    }

    /// Returns false, as a cluster has members.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    /// Returns the slot of a key, as the servers compute it.
    ///
    /// # Panics
    ///
    /// No member answers.
    #[must_use]
    pub fn slot(&self, key: &str) -> u16 {
        let slot = self.members.iter().find_map(|member| {
            match member.connect().and_then(|mut s| s.command(&["CLUSTER", "KEYSLOT", key])) {
                Ok(Reply::Integer(slot)) => u16::try_from(slot).ok(),
                _ => None,
            }
        });
        slot.expect("a member answers")
    }

    /// Returns the member that has a key, by its own account.
    ///
    /// # Panics
    ///
    /// None does. A slot that is being moved still has an owner.
    #[must_use]
    pub fn home(&self, key: &str) -> usize {
        self.try_home(key).expect("a member has the key")
    }

    /// Returns the member that has a key, by its own account, or `None` if none does now.
    #[must_use]
    pub fn try_home(&self, key: &str) -> Option<usize> {
        let slot = self.slot(key);
        self.members.iter().position(|member| nodes(member).is_some_and(|n| has_slot(&n, slot)))
    }

    /// Returns true if a member other than `lost`, which may be silent, has the key by its own
    /// account.
    #[must_use]
    pub fn has_replaced(&self, lost: usize, key: &str) -> bool {
        let slot = self.slot(key);
        let mut others = self.members.iter().enumerate().filter(|(place, _)| *place != lost);
        others.any(|(_, member)| nodes(member).is_some_and(|nodes| has_slot(&nodes, slot)))
    }

    /// Returns the masters with slots, by their own account.
    #[must_use]
    pub fn masters(&self) -> Vec<usize> {
        let is_master = |place: &usize| nodes(&self.members[*place]).is_some_and(|n| has_slots(&n));
        (0..self.members.len()).filter(is_master).collect()
    }

    /// Returns true if all initial masters serve, and all other members are up to date with their
    /// master.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        let replicates = |member: &Redis| {
            let info = member.connect().and_then(|mut s| s.command(&["INFO", "replication"]));
            info.is_ok_and(|info| info.text().contains("master_link_status:up"))
        };
        let masters = self.masters();
        let mut all = self.members.iter().enumerate();
        masters.len() == self.masters
            && all.all(|(place, member)| match masters.contains(&place) {
                true => says(member, "cluster_state", "ok"),
                false => replicates(member),
            })
    }

    /// Begins to move a slot. From now on, clients are redirected to the other member for missing
    /// keys.
    ///
    /// # Panics
    ///
    /// A member refuses.
    pub fn open_slot(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        self.expect_ok(to, &["CLUSTER", "SETSLOT", &slot, "IMPORTING", &self.ids[from]]);
        self.expect_ok(from, &["CLUSTER", "SETSLOT", &slot, "MIGRATING", &self.ids[to]]);
    }

    /// Moves one key of an open slot.
    ///
    /// # Panics
    ///
    /// A member refuses.
    pub fn move_key(&self, key: &str, from: usize, to: usize) {
        let port = self.members[to].service_port().to_string();
        self.expect_ok(from, &["MIGRATE", "127.0.0.1", &port, key, "0", "5000"]);
    }

    /// Moves the remaining keys of an open slot, closes it, and notifies all masters.
    ///
    /// # Panics
    ///
    /// A member refuses.
    pub fn finish_slot(&self, slot: u16, from: usize, to: usize) {
        let slot = slot.to_string();
        loop {
            let keys =
                self.members[from].command(&["CLUSTER", "GETKEYSINSLOT", &slot, "100"]).text();
            for key in keys.lines() {
                self.move_key(key, from, to);
            }
            if keys.is_empty() {
                break;
            }
        }
        let masters = self.masters();
        let others = masters.iter().copied().filter(|member| ![to, from].contains(member));
        for member in [to, from].into_iter().chain(others) {
            self.expect_ok(member, &["CLUSTER", "SETSLOT", &slot, "NODE", &self.ids[to]]);
        }
        // A member that does not know the new epoch may revert the slot to an older owner, and then
        // no member has the slot.
        let epoch = |member: &Redis| self.epoch_of(to, member);
        let newest = epoch(&self.members[to]);
        for member in masters.iter().map(|place| &self.members[*place]) {
            let agreed = member.wait_until(READY, || epoch(member) == newest);
            agreed.unwrap_or_else(|error| panic!("{error}"));
        }
    }

    /// Returns the epoch of a member's slots, as another member knows it.
    fn epoch_of(&self, place: usize, member: &Redis) -> Option<u64> {
        let nodes = member.command(&["CLUSTER", "NODES"]).text();
        let line = nodes.lines().find(|line| line.starts_with(&self.ids[place]))?;
        line.split(' ').nth(6)?.parse().ok()
    }

    /// Moves a slot with its keys.
    ///
    /// # Panics
    ///
    /// A member refuses.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize) {
        self.open_slot(slot, from, to);
        self.finish_slot(slot, from, to);
    }

    /// Cuts the connections between this member and the others, until [`heal`](Self::heal). Clients
    /// and its own replicas still reach it. Returns when it has noticed and serves no client.
    ///
    /// # Panics
    ///
    /// The member is not there, does not notice, or the cluster was started without
    /// [links](RedisOptions::links).
    pub fn cut_off(&self, member: usize) {
        self.set_links(member, Fault::BlackHole);
        let cut = &self.members[member];
        let noticed = cut.wait_until(READY, || says(cut, "cluster_state", "fail"));
        noticed.unwrap_or_else(|error| panic!("{error}"));
    }

    /// Restores the connections of this member.
    ///
    /// # Panics
    ///
    /// The member is not there.
    pub fn heal(&self, member: usize) {
        self.set_links(member, Fault::None);
    }

    fn set_links(&self, member: usize, fault: Fault) {
        self.links[member].set(fault);
        for link in &self.links {
            link.set_from(address_of(member), fault);
        }
    }

    /// Stops replication from this master to its replica, until
    /// [`replicate_again`](Self::replicate_again).
    ///
    /// # Panics
    ///
    /// The member is not there.
    pub fn cut_from_replica(&self, member: usize) {
        self.expect_ok(member, &["ACL", "SETUSER", "default", "-psync", "-sync", "-replconf"]);
        self.members[member].command(&["CLIENT", "KILL", "TYPE", "replica"]);
    }

    /// Restores replication from this master.
    ///
    /// # Panics
    ///
    /// The member is not there.
    pub fn replicate_again(&self, member: usize) {
        self.expect_ok(member, &["ACL", "SETUSER", "default", "+psync", "+sync", "+replconf"]);
    }

    fn expect_ok(&self, member: usize, words: &[&str]) {
        ok(&self.members[member], words);
    }
}

/// All members at once.
impl ServerProcess for RedisCluster {
    fn stop(&self) {
        self.members.iter().for_each(ServerProcess::stop);
    }
    fn cont(&self) {
        self.members.iter().for_each(ServerProcess::cont);
    }
    fn kill(&self) {
        self.members.iter().for_each(ServerProcess::kill);
    }
    fn restart(&self, keep_data: KeepData) {
        self.members.iter().for_each(|member| member.restart(keep_data));
        let serving = self.wait(|member| says(member, "cluster_state", "ok"));
        serving.unwrap_or_else(|error| panic!("{error}"));
    }
}

/// Returns the address from which a member connects to the others, if that can be cut.
fn address_of(place: usize) -> IpAddr {
    let place = u8::try_from(place).expect("there are few members");
    Ipv4Addr::new(127, 0, 1, 1 + place).into()
}

/// Creates a proxy to a member that can be cut, and announces it to the other members.
fn link_to(member: &Redis) -> Proxy {
    let bus = (Ipv4Addr::LOCALHOST, bus_port(member.addr().port()));
    let link = Proxy::start(bus.into()).expect("a proxy can be started");
    let port = link.addr().port().to_string();
    // Other members do not find it at the address from which it connects.
    ok(member, &["CONFIG", "SET", "cluster-announce-ip", "127.0.0.1"]);
    ok(member, &["CONFIG", "SET", "cluster-announce-bus-port", &port]);
    link
}

fn ok(member: &Redis, words: &[&str]) {
    let reply = member.command(words);
    // For the MIGRATE of a key that has just expired.
    assert!(matches!(reply.text().as_str(), "OK" | "NOKEY"), "{words:?}: {reply:?}");
}

fn says(member: &Redis, name: &str, value: &str) -> bool {
    let line = format!("{name}:{value}");
    member.command(&["CLUSTER", "INFO"]).text().lines().any(|said| said == line)
}

/// Returns the list of nodes of a member; `None` if it does not answer.
fn nodes(member: &Redis) -> Option<String> {
    let nodes = member.connect().and_then(|mut session| session.command(&["CLUSTER", "NODES"]));
    nodes.ok().map(|nodes| nodes.text())
}

/// Returns true if the member that lists these nodes is a master with slots.
fn has_slots(nodes: &str) -> bool {
    let mine = nodes.lines().find(|line| line.contains("myself,master"));
    mine.is_some_and(|line| line.split(' ').nth(8).is_some())
}

/// Returns true if the member that lists these nodes is a master with this slot.
fn has_slot(nodes: &str, slot: u16) -> bool {
    let mine = nodes.lines().find(|line| line.contains("myself,master"));
    let mut ranges = mine.into_iter().flat_map(|line| line.split(' ').skip(8));
    ranges.any(|range| {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let (first, last) = (first.parse::<u16>(), last.parse::<u16>());
        matches!((first, last), (Ok(first), Ok(last)) if (first..=last).contains(&slot))
    })
}
