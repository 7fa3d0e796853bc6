//! A cluster: which of its members has which lock.
//!
//! A [`Link`] to each master, as to a server of its own, and a map of the slots. Where the map is
//! wrong, a member says so before it runs the request. So following its redirection is no second
//! attempt of a verb. It is followed a few times at most.

use std::borrow::Cow;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::Error;
use lock_core::backend::{Fault, FaultKind};
use lock_core::clock::Moment;
use lock_core::dial::SingleFlight;
use lock_core::url::Host;
use redis::{FromRedisValue, RedisError, Value as Answer};

use crate::clock::within;
use crate::config::Config;
use crate::connection::client_state::ClientState;
use crate::connection::handle::Connection;
use crate::connection::prelude::ClusterPrelude;
use crate::fault;
use crate::keys::LockKeys;
use crate::slots::SLOTS;
use crate::topology::link::Link;
use crate::topology::replicas::Replicated;
use crate::topology::request::{Request, Response};

/// How often one verb is sent to another member. A slot that is being moved takes two: the one that
/// has it, and the one that gets it.
const MAX_REDIRECTS: usize = 5;

/// Out of so many keys, one master of three has none once in 10^11 times.
pub(crate) const MAX_TRIALS: usize = 64;

/// How long one member is waited for when it is asked where the slots are.
const MEMBER_TIMEOUT: Duration = Duration::from_secs(1);

/// How old a map has to be before members are asked for a new one.
const MIN_MAP_AGE: Duration = Duration::from_millis(200);

/// The way to all members of a cluster.
pub(crate) struct Cluster {
    pub(crate) config: Config,
    pub(crate) client: Arc<ClientState>,
    pub(crate) map: Mutex<SlotMap>,
    pub(crate) asking: SingleFlight<()>,
}

/// A member, and the way to it.
#[derive(Clone)]
pub(crate) struct ClusterMember {
    pub(crate) host: Host,
    pub(crate) link: Arc<Link>,
    /// It said that the cluster is down, and has done nothing since then: it may be cut off from
    /// the others, and would go on naming itself the master of its slots.
    is_down: Arc<AtomicBool>,
}

pub(crate) struct SlotMap {
    /// All masters, and the members that the configuration names.
    pub(crate) members: Vec<ClusterMember>,
    /// By slots: which of them has it.
    pub(crate) masters: Vec<Option<usize>>,
    /// When members were asked last.
    pub(crate) asked: Option<Moment>,
    /// The member to ask first, in turn: a fixed one may be wrong.
    pub(crate) turn: usize,
}

/// The first and the last slot of a range, and its master.
pub(crate) type SlotRange = (u16, u16, Host);

impl Cluster {
    /// Creates the cluster without asking any member.
    pub(crate) fn new(config: Config, client: Arc<ClientState>) -> Self {
        let masters = vec![None; usize::from(SLOTS)];
        let map = SlotMap { members: Vec::new(), masters, asked: None, turn: 0 };
        let cluster =
            Self { config, client, map: Mutex::new(map), asking: SingleFlight::default() };
        for host in cluster.config.members.clone() {
            cluster.member_at(host);
        }
        cluster
    }

    /// Connects to one of the members that are named, and asks it for the map.
    pub(crate) async fn first_connection(&self) -> Result<(), Error> {
        let members = self.map().members.clone();
        let mut failure = None;
        for member in members {
            let asking = async {
                member.link.first_connection().await?;
                self.update_map(&member.host, &member.link.slots().await?)
            };
            match within(MEMBER_TIMEOUT * 4, asking).await {
                Some(Ok(())) => return Ok(()),
                Some(Err(fault)) => failure = failure.or(Some(fault)),
                None => failure = failure.or(Some(fault::unanswered(&member.host.to_string()))),
            }
        }
        Err(fault::error(failure.unwrap_or_else(no_map)))
    }

    /// Returns the master of `slot` and a connection to it, or to the master that has taken over.
    pub(crate) async fn reach(
        self: &Arc<Self>,
        slot: u16,
    ) -> Result<(ClusterMember, Connection), Fault> {
        let member = self.master_of(slot).await?;
        let fault = match member.link.connection().await {
            Ok(connection) => return Ok((member, connection)),
            Err(fault) => fault,
        };
        // If this fails too, the first fault says more.
        let _ = self.refresh().await;
        let next =
            self.map().master_of(slot).filter(|next| next.host != member.host).ok_or(fault)?;
        let connection = next.link.connection().await?;
        Ok((next, connection))
    }

    /// Keys for a trial, and a connection to the master that has them: to any master, as some may
    /// be gone.
    pub(crate) async fn reach_for_trial(
        self: &Arc<Self>,
    ) -> Result<(LockKeys, ClusterMember, Connection), Fault> {
        let (mut gone, mut failure) = (Vec::new(), None);
        for keys in (0..MAX_TRIALS).map(|number| self.config.keys.for_trial(number)) {
            let master = self.map().master_of(keys.slot()).map(|member| member.host);
            if gone.contains(&master) {
                continue;
            }
            match self.reach(keys.slot()).await {
                Ok((member, connection)) => return Ok((keys, member, connection)),
                Err(fault) => failure = failure.or(Some(fault)),
            }
            gone.push(master);
        }
        Err(failure.unwrap_or_else(no_map))
    }

    /// Returns the links to all members that have slots.
    pub(crate) fn masters(&self) -> Vec<Arc<Link>> {
        let map = self.map();
        let has_slots = |index: &usize| map.masters.contains(&Some(*index));
        let masters = (0..map.members.len()).filter(has_slots);
        masters.filter_map(|index| Some(Arc::clone(&map.members.get(index)?.link))).collect()
    }

    /// Returns the links to the masters of all slots, by a new map.
    pub(crate) async fn all_masters(self: &Arc<Self>) -> Result<Vec<Arc<Link>>, Fault> {
        self.refresh().await?;
        if self.map().masters.contains(&None) {
            let why = "some slots of the cluster have no master, so some locks cannot be seen";
            return Err(Fault::not_applied(FaultKind::Unavailable, why));
        }
        Ok(self.masters())
    }

    /// Returns true if this client receives the messages of `slot`.
    pub(crate) fn is_listening_in(&self, slot: u16) -> bool {
        self.map().master_of(slot).is_some_and(|member| member.link.is_listening_in(slot))
    }

    /// Returns true if the master of `slot`, or the client, refused the certificate of the other.
    pub(crate) fn refuses_certificate_in(&self, slot: u16) -> bool {
        self.map().master_of(slot).is_some_and(|member| member.link.refuses_certificate())
    }

    /// Runs a script where its keys are.
    pub(crate) async fn run<T: FromRedisValue>(
        self: &Arc<Self>,
        request: &Request<'_>,
    ) -> Result<Response<T>, Fault> {
        let slot = request.keys.slot();
        let (mut member, mut connection) = self.reach(slot).await?;
        let (mut fallback, mut asking) = (None, false);
        for _ in 0..MAX_REDIRECTS {
            let call = fallback.map_or_else(|| request.call_on(&connection), Cow::Borrowed);
            let listens = request.channel.as_ref().filter(|_| !connection.is_listening_in(slot));
            let channel = listens.map(|channel| connection.channel(channel));
            let channel = channel.as_deref();
            let prelude =
                (asking || channel.is_some()).then_some(ClusterPrelude { asking, channel });
            let Replicated { since: asked, answer, missing } = if request.replicated {
                member.link.send_replicated(&connection, &call, prelude).await?
            } else {
                let (since, answer) = member.link.send(&connection, &call, prelude).await;
                Replicated { since, answer, missing: None }
            };
            let error = match answer {
                Ok(answer) => {
                    member.is_down.store(false, Ordering::Relaxed);
                    if channel.is_some() {
                        connection.listens_in(slot);
                    }
                    let fallback = fallback.is_some();
                    return Ok(Response { asked, connection, answer, fallback, missing });
                }
                Err(error) => error,
            };
            match (error.code(), request.fallback) {
                (Some("MOVED"), _) => {
                    asking = false;
                    member = self.moved(slot, &member, &error).await?;
                }
                (Some("ASK"), _) => {
                    asking = true;
                    member = self.member_at(redirected(&error, &member.host)?);
                }
                (Some("CLUSTERDOWN"), _) => {
                    asking = false;
                    let failed = || member.link.failed(&connection, request.action, &error);
                    let other = self.replacement_for(&member, slot).await.ok_or_else(failed)?;
                    member.link.leave(&connection);
                    member = other;
                }
                // Some keys are here, and some are there or nowhere.
                (Some("TRYAGAIN"), Some(other)) if fallback.is_none() => {
                    (fallback, asking) = (Some(other), false);
                    member = self.master_of(slot).await?;
                }
                _ => return Err(member.link.failed(&connection, request.action, &error)),
            }
            connection = member.link.connection().await?;
        }
        Err(Fault::not_applied(
            FaultKind::Unavailable,
            "the members of the cluster do not agree which of them has the lock",
        ))
    }

    /// Fetches a new map unless the current one is recent. Concurrent callers share one request.
    async fn refresh(self: &Arc<Self>) -> Result<(), Fault> {
        if self.map().asked.is_some_and(|asked| !(asked + MIN_MAP_AGE).has_passed()) {
            return Ok(());
        }
        let this = Arc::clone(self);
        let ask = || async move {
            let updated = this.query_members().await;
            this.map().asked = Some(Moment::now());
            updated
        };
        self.asking.join(ask).await
    }

    async fn query_members(&self) -> Result<(), Fault> {
        let mut failure = None;
        let candidates = self.map().candidates();
        for ClusterMember { host, link, .. } in candidates {
            match within(MEMBER_TIMEOUT, link.slots()).await {
                Some(Ok(answer)) => match self.update_map(&host, &answer) {
                    Ok(()) => return Ok(()),
                    Err(fault) => failure = Some(fault),
                },
                Some(Err(fault)) => failure = Some(fault),
                None => failure = Some(fault::unanswered(&host.to_string())),
            }
        }
        Err(failure.unwrap_or_else(no_map))
    }

    /// Applies the slots as the member at `host` reports them.
    fn update_map(&self, host: &Host, answer: &Answer) -> Result<(), Fault> {
        let ranges = ranges(answer, host).filter(|ranges| !ranges.is_empty());
        let ranges = ranges.ok_or_else(no_map)?;
        let mut map = self.map();
        map.masters.fill(None);
        let before = std::mem::take(&mut map.members);
        for host in ranges.iter().map(|(_, _, host)| host).chain(&self.config.members) {
            if !map.members.iter().any(|member| member.host == *host) {
                let known = before.iter().find(|member| member.host == *host).cloned();
                map.members.push(known.unwrap_or_else(|| self.new_member(host.clone())));
            }
        }
        let SlotMap { members, masters, .. } = &mut *map;
        for (first, last, host) in ranges {
            let master = members.iter().position(|member| member.host == host);
            for slot in masters.iter_mut().take(usize::from(last) + 1).skip(usize::from(first)) {
                *slot = master;
            }
        }
        Ok(())
    }

    /// Returns the master of the slot that `error` of the `member` names. Other slots have probably
    /// moved with it, so the map is refreshed.
    pub(crate) async fn moved(
        self: &Arc<Self>,
        slot: u16,
        member: &ClusterMember,
        error: &RedisError,
    ) -> Result<ClusterMember, Fault> {
        let host = redirected(error, &member.host)?;
        // A failure does not matter: the redirection names the master.
        let _ = self.refresh().await;
        let master = self.member_at(host);
        let mut map = self.map();
        let index = map.members.iter().position(|member| member.host == master.host);
        if let Some(entry) = map.masters.get_mut(usize::from(slot)) {
            *entry = index;
        }
        Ok(master)
    }

    /// Returns another master of the slot, as the members that are not down report it.
    async fn replacement_for(
        self: &Arc<Self>,
        member: &ClusterMember,
        slot: u16,
    ) -> Option<ClusterMember> {
        member.is_down.store(true, Ordering::Relaxed);
        // If no member knows better, the member's own answer stands.
        let _ = self.refresh().await;
        self.map().master_of(slot).filter(|other| other.host != member.host)
    }

    async fn master_of(self: &Arc<Self>, slot: u16) -> Result<ClusterMember, Fault> {
        let known = self.map().master_of(slot);
        if let Some(member) = known.filter(|member| !member.link.is_in_doubt()) {
            return Ok(member);
        }
        let refreshed = self.refresh().await;
        let master = self.map().master_of(slot);
        master.ok_or_else(|| {
            refreshed.err().unwrap_or_else(|| {
                let why = "no member of the cluster has the slot of this lock";
                Fault::not_applied(FaultKind::Unavailable, why)
            })
        })
    }

    fn member_at(&self, host: Host) -> ClusterMember {
        let mut map = self.map();
        if let Some(known) = map.members.iter().find(|member| member.host == host) {
            return known.clone();
        }
        let member = self.new_member(host);
        map.members.push(member.clone());
        member
    }

    fn new_member(&self, host: Host) -> ClusterMember {
        let config = self.config.at_member(host.clone());
        let link = Arc::new(Link::new(config, Arc::clone(&self.client)));
        ClusterMember { host, link, is_down: Arc::default() }
    }

    pub(crate) fn map(&self) -> MutexGuard<'_, SlotMap> {
        self.map.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SlotMap {
    fn master_of(&self, slot: u16) -> Option<ClusterMember> {
        self.members.get((*self.masters.get(usize::from(slot))?)?).cloned()
    }

    /// Returns the members to ask, in order: first those that answer and are not down, as far as is
    /// known.
    fn candidates(&mut self) -> Vec<ClusterMember> {
        self.turn = (self.turn + 1) % self.members.len().max(1);
        let mut members = self.members.clone();
        members.rotate_left(self.turn);
        members.sort_by_key(|member| {
            (member.is_down.load(Ordering::Relaxed), member.link.is_in_doubt())
        });
        members
    }
}

impl fmt::Debug for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let members: Vec<_> = self.map().members.iter().map(|m| Arc::clone(&m.link)).collect();
        f.debug_struct("Cluster").field("members", &members).finish_non_exhaustive()
    }
}

/// Returns the target of a redirection. The address is empty if it is the redirecting member's own.
pub(crate) fn redirected(error: &RedisError, from: &Host) -> Result<Host, Fault> {
    let address = error.redirect_node().and_then(|(address, _)| address.rsplit_once(':'));
    let host = address.and_then(|(name, port)| host(name, port.parse().ok()?, from));
    host.ok_or_else(|| {
        let why = "a member of the cluster says that the lock is elsewhere, and not where";
        Fault::not_applied(FaultKind::Unavailable, why)
    })
}

/// Returns the member at `name`, as `from` calls it.
pub(crate) fn host(name: &str, port: u16, from: &Host) -> Option<Host> {
    let name = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
    let name = if name.is_empty() { &from.name } else { name };
    (name != "?" && port != 0).then(|| Host { name: name.to_owned(), port })
}

/// Reads the answer of the member `from` to `CLUSTER SLOTS`: for each range of slots its ends, its
/// master, and its replicas. Ranges whose master has no known address are left out. Returns `None`
/// if the answer is malformed.
pub(crate) fn ranges(answer: &Answer, from: &Host) -> Option<Vec<SlotRange>> {
    let Answer::Array(entries) = answer else { return None };
    let mut ranges = Vec::new();
    for entry in entries {
        let Answer::Array(entry) = entry else { return None };
        let [Answer::Int(first), Answer::Int(last), Answer::Array(master), ..] = &entry[..] else {
            return None;
        };
        let name = match master.first()? {
            Answer::BulkString(name) => std::str::from_utf8(name).ok()?,
            Answer::SimpleString(name) => name,
            Answer::Nil => "",
            _ => return None,
        };
        let Answer::Int(port) = master.get(1)? else { return None };
        let (first, last) = (u16::try_from(*first).ok()?, u16::try_from(*last).ok()?);
        if let Some(host) = host(name, u16::try_from(*port).ok()?, from) {
            ranges.push((first, last, host));
        }
    }
    Some(ranges)
}

fn no_map() -> Fault {
    let why = "no member of the cluster knows which of them has which locks";
    Fault::not_applied(FaultKind::Unavailable, why)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn at(name: &str, port: u16) -> Host {
        Host { name: name.into(), port }
    }

    fn master(name: Answer, port: i64) -> Answer {
        let id = Answer::BulkString(b"0123".to_vec());
        Answer::Array(vec![name, Answer::Int(port), id])
    }

    fn range(first: i64, last: i64, master: Answer) -> Answer {
        let replica = Answer::Array(vec![Answer::Nil, Answer::Int(1)]);
        Answer::Array(vec![Answer::Int(first), Answer::Int(last), master, replica])
    }

    fn bulk(text: &str) -> Answer {
        Answer::BulkString(text.into())
    }

    #[test]
    fn the_map_has_each_slot_at_its_master() {
        let answer = Answer::Array(vec![
            range(0, 5, master(bulk("10.0.0.1"), 7)),
            range(6, 6, master(bulk(""), 8)),
            range(7, 8, master(Answer::Nil, 9)),
            range(9, 9, master(bulk("?"), 9)),
            range(10, 16383, master(bulk("::1"), 9)),
        ]);
        let expected = [
            (0, 5, at("10.0.0.1", 7)),
            (6, 6, at("me", 8)),
            (7, 8, at("me", 9)),
            (10, 16383, at("::1", 9)),
        ];
        assert_eq!(ranges(&answer, &at("me", 1)).unwrap(), expected);
    }

    #[test]
    fn malformed_maps_are_refused() {
        let wrong = [
            Answer::Nil,
            Answer::Array(vec![Answer::Int(1)]),
            Answer::Array(vec![Answer::Array(vec![])]),
            Answer::Array(vec![range(-1, 5, master(bulk("h"), 7))]),
            Answer::Array(vec![range(0, 1 << 20, master(bulk("h"), 7))]),
            Answer::Array(vec![range(0, 5, master(bulk("h"), 70_000))]),
            Answer::Array(vec![range(0, 5, Answer::Array(vec![bulk("h")]))]),
            Answer::Array(vec![range(0, 5, master(Answer::BulkString(vec![0xff]), 7))]),
        ];
        for answer in wrong {
            assert_eq!(ranges(&answer, &at("me", 1)), None, "{answer:?}");
        }
    }

    #[tokio::test]
    async fn a_map_replaces_the_one_before() {
        let config = Config::new("redis+cluster://me:1").unwrap();
        let client = Arc::new(ClientState::new(&config));
        let cluster = Arc::new(Cluster::new(config, client));
        let update_map = |entries| cluster.update_map(&at("me", 1), &Answer::Array(entries));
        let owner = |slot| cluster.map().master_of(slot).map(|member| member.host);
        assert_eq!(owner(0), None);
        update_map(vec![range(0, 9, master(bulk("a"), 1)), range(10, 16383, master(bulk("b"), 1))])
            .unwrap();
        assert_eq!((owner(9), owner(10)), (Some(at("a", 1)), Some(at("b", 1))));
        let kept = cluster.map().master_of(10).unwrap().link;
        update_map(vec![range(10, 20, master(bulk("b"), 1))]).unwrap();
        assert_eq!((owner(9), owner(20), owner(21)), (None, Some(at("b", 1)), None));
        assert!(Arc::ptr_eq(&kept, &cluster.map().master_of(10).unwrap().link), "its connection");
        assert!(update_map(vec![]).is_err(), "who has been forgotten knows nothing");
        assert_eq!(owner(10), Some(at("b", 1)));
        let hosts: Vec<_> = cluster.map().members.iter().map(|m| m.host.clone()).collect();
        assert_eq!(hosts, [at("b", 1), at("me", 1)], "those who were named stay");
    }

    #[test]
    fn members_that_are_down_are_asked_last() {
        let config = Config::new("redis+cluster://a,b,c").unwrap();
        let client = Arc::new(ClientState::new(&config));
        let cluster = Cluster::new(config, client);
        let down = cluster.map().members[1].clone();
        down.is_down.store(true, Ordering::Relaxed);
        let asked = || {
            let members = cluster.map().candidates();
            members.iter().map(|member| &*member.host.name).collect::<String>()
        };
        let turns: HashSet<_> = (0..6).map(|_| asked()).collect();
        assert_eq!(turns, ["acb", "cab"].map(String::from).into());
        down.is_down.store(false, Ordering::Relaxed);
        let first: HashSet<_> = (0..3).filter_map(|_| asked().chars().next()).collect();
        assert_eq!(first.len(), 3, "each has its turn");
    }

    #[test]
    fn redirections_are_understood() {
        let from = at("me", 1);
        let to = |detail: &str| {
            let error = format!("-MOVED {detail}\r\n");
            let error = redis::parse_redis_value(error.as_bytes()).unwrap().extract_error();
            redirected(&error.unwrap_err(), &from).ok()
        };
        assert_eq!(to("1 10.0.0.1:7"), Some(at("10.0.0.1", 7)));
        assert_eq!(to("1 :7"), Some(at("me", 7)));
        assert_eq!(to("1 ::1:7"), Some(at("::1", 7)));
        for wrong in ["1 ?:7", "1 h:0", "1 h", "1 h:x", "1", ""] {
            assert_eq!(to(wrong), None, "{wrong:?}");
        }
    }
}
