//! Faults of servers, and of locks that are removed while clients hold them.

use std::time::Duration;

use fastrand::Rng;
use lock_conformance::ServerProcess;
use lock_conformance::proxy::Fault;
use lock_core::LockName;
use lock_core::clock::{Moment, sleep};
use lock_history::{Assumption, Trouble, UnderFault};
use test_servers::{KeepData, Step};
use tokio::task::block_in_place;

use super::{Failure, Nemesis, POLL_INTERVAL, RESUMES_WITHIN, poll};
use crate::kind::{FaultSupport, Kind, Scope};
use crate::lock_names::lock_name;
use crate::sites::{self, Removal};

/// The time for which the nemesis waits for another leader.
const ELECTION: Duration = Duration::from_secs(15);

/// The interval at which the nemesis asks which server leads.
const LEADER_INTERVAL: Duration = Duration::from_millis(50);

/// The time for which a leader runs without a follower before it is stopped or killed.
const ALONE: Duration = Duration::from_millis(500);

/// A way to take servers down for a while.
#[derive(Clone, Copy)]
enum Down {
    Stopped,
    /// Killed, and restarted with or without their data.
    Killed(KeepData),
}

impl Down {
    fn begin(self, servers: &[&dyn ServerProcess]) {
        block_in_place(|| match self {
            Self::Stopped => servers.iter().for_each(|server| server.stop()),
            Self::Killed(_) => servers.iter().for_each(|server| server.kill()),
        });
    }

    fn end(self, servers: &[&dyn ServerProcess]) {
        block_in_place(|| match self {
            Self::Stopped => servers.iter().for_each(|server| server.cont()),
            Self::Killed(keep) => servers.iter().for_each(|server| server.restart(keep)),
        });
    }
}

impl Nemesis {
    /// Injects a fault into servers or a lock. Returns the locks that it hit, none of them if it
    /// hit all.
    pub(super) async fn inject_shared_fault(
        &self,
        kind: Kind,
        rng: &mut Rng,
    ) -> Result<Vec<String>, Failure> {
        if matches!(kind, Kind::Evicted | Kind::Broken) {
            return self.remove_one(kind, rng).await;
        }
        let span = self.draw_span(rng);
        let leader = if kind.needs_leader() { Some(self.await_leader().await?) } else { None };
        let hit =
            leader.and_then(|leader| block_in_place(|| self.site.affected_locks(kind, leader)));
        if let Some(locks) = &hit {
            let before = self.collector.traffic.grants_of(locks);
            self.await_grants_of(locks, before, "before it").await?;
        }
        let fault = self.begin(kind, hit.clone());
        match kind {
            Kind::LeaderKilled | Kind::LeaderStopped => {
                let leader = leader.ok_or("there is no leader")?;
                // One in four leaders may return before it is replaced: that has to work as well.
                let outlasts = rng.usize(..4) > 0;
                self.hit_leader(kind, leader, span, outlasts).await?;
            }
            Kind::LeaderReplaced => {
                self.replace_leader(leader.ok_or("there is no leader")?).await?;
            }
            Kind::ServerAged => self.age_server(span).await?,
            Kind::FollowerCut => {
                let heal = block_in_place(|| self.site.cut_follower());
                let heal = heal.ok_or("there is no follower")?;
                let lasted = self.last(self.site.scope(kind), span * 2).await;
                block_in_place(heal);
                lasted?;
            }
            Kind::SlotMoved => {
                if !block_in_place(|| self.site.move_slot()) {
                    return Err("no slot could be moved".into());
                }
                self.last(Scope::Partial, span).await?;
            }
            kind if kind.hits_two_members() => self.hit_two_members(kind, span, rng).await?,
            kind if kind.hits_one_member() => self.hit_member(kind, span, rng).await?,
            kind => self.hit_servers(kind, span, rng).await?,
        }
        if let FaultSupport::Breaks(assumption) = sites::support(&*self.site, kind)
            && assumption.guards_exclusion()
            && kind != Kind::LeaderReplaced
        {
            sleep(self.site.recovery_time()).await;
            if matches!(kind, Kind::LeaderKilled | Kind::LeaderStopped) {
                self.await_leader().await?;
            }
        }
        fault.heal();
        if matches!(kind, Kind::LeaderReplaced | Kind::ServerAged) {
            self.await_grant_of_each_lock().await?;
        }
        if matches!(kind, Kind::MemberRestarted | Kind::MemberEmptied) {
            // Waits until the member has the current holds again. A minority may fail at a time:
            // the next failed member must not add to this one.
            sleep(self.lease() * 3).await;
        }
        Ok(hit.unwrap_or_default())
    }

    /// Records the start of a fault that hits `locks`, or all of them.
    fn begin(&self, kind: Kind, locks: Option<Vec<String>>) -> UnderFault {
        let mut fault = self.recorder().fault(Trouble::Other(kind.name()));
        if let Some(assumption) = sites::support(&*self.site, kind).broken_assumption() {
            fault = fault.breaks(assumption);
        }
        if kind.hits_one_member() {
            // The other members are a majority.
            fault = fault.hidden();
        }
        if let Some(locks) = locks {
            fault = fault.locks(locks);
        }
        fault.begin()
    }

    /// Stops, fills or restarts all servers, or steps their clock.
    async fn hit_servers(&self, kind: Kind, span: Duration, rng: &mut Rng) -> Result<(), Failure> {
        let servers = self.site.servers();
        match kind {
            Kind::ServerStopped => {
                Down::Stopped.begin(&servers);
                let lasted = self.last(Scope::Outage, span).await;
                Down::Stopped.end(&servers);
                lasted
            }
            Kind::ServerFull => {
                block_in_place(|| self.site.set_full(true));
                let lasted = self.last(Scope::Outage, span).await;
                block_in_place(|| self.site.set_full(false));
                lasted
            }
            Kind::ServerClockStepped => {
                let by = self.lease().mul_f64(0.2 + 3.0 * rng.f64());
                self.site.step_clock(Step::Forward(by));
                let lasted = self.last(Scope::Partial, span).await;
                self.site.step_clock(Step::Back(by));
                lasted?;
                // Leases that were granted before the step back last this much longer.
                sleep(by).await;
                Ok(())
            }
            kind => {
                let keep = if kind == Kind::ServerEmptied { KeepData::No } else { KeepData::Yes };
                Down::Killed(keep).begin(&servers);
                self.last(Scope::Outage, span / 4).await?;
                Down::Killed(keep).end(&servers);
                if kind == Kind::ServerEmptied {
                    self.site.lose_data();
                }
                Ok(())
            }
        }
    }

    /// Kills or stops the leader, for a while or until it is replaced, and brings it back.
    async fn hit_leader(
        &self,
        kind: Kind,
        leader: usize,
        span: Duration,
        outlasts: bool,
    ) -> Result<(), Failure> {
        let alone = self.site.isolates_leaders_first();
        let heal = block_in_place(|| alone.then(|| self.site.cut_follower()).flatten());
        if heal.is_some() {
            self.last(Scope::Outage, ALONE).await?;
        }
        let servers = [self.site.servers()[leader]];
        let (down, span) = match kind {
            Kind::LeaderKilled => (Down::Killed(KeepData::Yes), span),
            _ => (Down::Stopped, span * 2),
        };
        down.begin(&servers);
        let lasted = self.last(Scope::Outage, span).await;
        if outlasts {
            self.await_replacement(leader).await;
        }
        down.end(&servers);
        if let Some(heal) = heal {
            block_in_place(heal);
        }
        lasted?;
        self.await_leader().await.map(drop)
    }

    /// Replaces the leader by an operator's request, while clients run.
    async fn replace_leader(&self, leader: usize) -> Result<(), Failure> {
        let replace = || {
            block_in_place(|| match self.site.has_replaced(leader) {
                true => Some(()),
                false => {
                    // Does nothing while a replacement runs, and starts again one that was
                    // abandoned.
                    self.site.replace_leader(leader);
                    None
                }
            })
        };
        let replaced = poll(RESUMES_WITHIN, LEADER_INTERVAL, replace).await;
        replaced.ok_or("no server could be made the leader")?;
        if self.site.isolates_leaders_first() {
            // A leader without a replica grants no locks.
            self.await_leader().await?;
        }
        self.record_resumption();
        self.await_leader().await.map(drop)
    }

    /// Keeps the server's data, kills it after `span`, and restarts it with the kept data.
    async fn age_server(&self, span: Duration) -> Result<(), Failure> {
        let server = *self.site.servers().first().ok_or("there is no server")?;
        let put_back = block_in_place(|| self.site.snapshot_data()).ok_or("it keeps no data")?;
        self.last(Scope::Partial, span).await?;
        block_in_place(|| {
            server.kill();
            put_back();
            server.restart(KeepData::Yes);
        });
        self.record_resumption();
        Ok(())
    }

    /// Records that a server accepts writes again, perhaps with older data.
    fn record_resumption(&self) {
        self.recorder().fault(Trouble::Resumes).begin().heal();
    }

    /// Waits for a grant of each lock, so that a standstill is not attributed to the next fault.
    async fn await_grant_of_each_lock(&self) -> Result<(), Failure> {
        for number in 0..self.collector.locks() {
            let lock = [lock_name(number)];
            let before = self.collector.traffic.grants_of(&lock);
            let is_granted = || self.collector.traffic.grants_of(&lock) > before;
            self.poll_until(is_granted).await.map_err(|()| {
                format!("minimum traffic: no grant of {} in {RESUMES_WITHIN:?} afterwards", lock[0])
            })?;
        }
        Ok(())
    }

    /// Stops or kills two of three members, so that no majority is left, and brings them back.
    async fn hit_two_members(
        &self,
        kind: Kind,
        span: Duration,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let mut members = self.site.members(kind);
        rng.shuffle(&mut members);
        let Some(two) = members.get(..2) else {
            return Err("there are no two members to suspend".into());
        };
        let down = match kind {
            Kind::TwoStopped => Down::Stopped,
            _ => Down::Killed(KeepData::Yes),
        };
        down.begin(two);
        let lasted = self.last(Scope::Outage, span).await;
        down.end(two);
        lasted
    }

    /// Cuts off, stops or restarts one of several independent servers. The others are a majority.
    async fn hit_member(&self, kind: Kind, span: Duration, rng: &mut Rng) -> Result<(), Failure> {
        if kind == Kind::MemberCut {
            let proxy = rng.choice(self.site.member_proxies()).ok_or("there are no members")?;
            proxy.set(Fault::BlackHole);
            let lasted = self.last(Scope::Partial, span * 2).await;
            proxy.heal();
            return lasted;
        }
        let member = [rng.choice(self.site.members(kind)).ok_or("there is no member for it")?];
        let (down, span) = match kind {
            Kind::MemberStopped => (Down::Stopped, span * 2),
            Kind::MemberEmptied => (Down::Killed(KeepData::No), span),
            _ => (Down::Killed(KeepData::Yes), span),
        };
        down.begin(&member);
        let lasted = self.last(Scope::Partial, span).await;
        down.end(&member);
        lasted
    }

    /// Waits until another server leads. Returns after [`ELECTION`] in any case: an election may
    /// find no eligible server.
    async fn await_replacement(&self, leader: usize) {
        let has_replaced = || block_in_place(|| self.site.has_replaced(leader)).then_some(());
        let replaced = poll(ELECTION, LEADER_INTERVAL, has_replaced).await;
        // A new leader that waits for a replica does not accept writes yet.
        if replaced.is_some() && !self.site.isolates_leaders_first() {
            self.record_resumption();
        }
    }

    /// Waits until a server leads, and returns its index.
    async fn await_leader(&self) -> Result<usize, Failure> {
        let leader = || block_in_place(|| self.site.leader());
        let found = poll(RESUMES_WITHIN, LEADER_INTERVAL, leader).await;
        found.ok_or_else(|| "no server leads".to_owned())
    }

    /// Removes a held lock: an operator breaks it, or it is deleted on the server. Returns its
    /// name.
    async fn remove_one(&self, kind: Kind, rng: &mut Rng) -> Result<Vec<String>, Failure> {
        let _no_client_faults =
            if self.has_leases { None } else { Some(self.client_faults.write().await) };
        let deadline = Moment::now() + RESUMES_WITHIN;
        loop {
            let lock = lock_name(rng.usize(..self.collector.locks()));
            let name = lock.clone();
            let fault = self.recorder().fault(Trouble::Other(kind.name()));
            let fault = fault.lock(&name).breaks(Assumption::A3).begin();
            let name = LockName::new(name).map_err(|error| error.to_string())?;
            let removed = match kind {
                Kind::Evicted => block_in_place(|| self.site.evict(&name)),
                _ => self.break_lock(&name).await,
            };
            self.record_removal(removed, fault).await;
            if removed == Removal::Removed {
                // The holder treats the lock as held until its next renewal or its deadline.
                self.last(Scope::Partial, self.params.ttl * 2).await?;
                return Ok(vec![lock]);
            }
            if deadline.has_passed() {
                return Err(format!("no lock could be removed in {RESUMES_WITHIN:?}"));
            }
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Records the result of the removal that is recorded as `fault`.
    pub(super) async fn record_removal(&self, removed: Removal, fault: UnderFault) {
        match removed {
            Removal::Removed => fault.has_removed(),
            Removal::NotFound => fault.never_happened(),
            Removal::Unknown => {
                // The removal may take effect until the hold has ended by itself.
                sleep(self.params.timeout + self.lease()).await;
                fault.heal();
            }
        }
    }

    /// Breaks a lock as an operator does: inspects it, and ends the hold of the inspected owner.
    pub(super) async fn break_lock(&self, name: &LockName) -> Removal {
        let inspection = tokio::time::timeout(self.params.timeout, self.operator.inspect(name));
        let Ok(Ok(seen)) = inspection.await else { return Removal::NotFound };
        let Some(owner) = seen.holders.first().and_then(|holder| holder.owner) else {
            return Removal::NotFound;
        };
        let breaking = self.operator.break_lock(name, &owner);
        match tokio::time::timeout(self.params.timeout, breaking).await {
            Ok(Ok(true)) => Removal::Removed,
            Ok(Ok(false)) => Removal::NotFound,
            _ => Removal::Unknown,
        }
    }
}
