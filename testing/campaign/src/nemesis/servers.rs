//! Faults that hit what all clients share: servers, and locks behind the back of their holders.

use std::time::Duration;

use fastrand::Rng;
use lock_conformance::ServerProcess;
use lock_conformance::proxy::Fault;
use lock_core::LockName;
use lock_core::clock::{Moment, sleep};
use lock_history::{Assumption, Trouble, UnderFault};
use test_servers::{KeepData, Step};
use tokio::task::block_in_place;

use super::{Failure, LOOK, Nemesis, QUIET_FOR};
use crate::collector::lock_name;
use crate::kind::{FaultSupport, Kind, Scope};
use crate::sites::{self, Removal};

/// For how long somebody else is waited for who leads.
const ELECTION: Duration = Duration::from_secs(15);

/// For how long a leader goes on alone that is cut off before it is gone.
const ALONE: Duration = Duration::from_millis(500);

impl Nemesis {
    /// Returns the locks that were hit; none, if all of them.
    pub(super) async fn hit_all(&self, kind: Kind, rng: &mut Rng) -> Result<Vec<String>, Failure> {
        if matches!(kind, Kind::Evicted | Kind::Broken) {
            return self.remove_one(kind, rng).await;
        }
        let span = self.span(rng);
        let leader = if kind.needs_leader() { Some(self.someone_leads().await?) } else { None };
        let hit =
            leader.and_then(|leader| block_in_place(|| self.site.affected_locks(kind, leader)));
        if let Some(locks) = &hit {
            self.is_served(locks, self.collector.traffic.grants_of(locks), "before it").await?;
        }
        let fault = self.begin(kind, hit.clone());
        match kind {
            Kind::LeaderKilled | Kind::LeaderStopped => {
                let leader = leader.ok_or("nobody leads")?;
                // Who is back before is not replaced, and that has to be seen as well.
                let outlasts = rng.usize(..4) > 0;
                self.hit_leader(kind, leader, span, outlasts).await?;
            }
            Kind::LeaderReplaced => {
                self.replace_leader(leader.ok_or("nobody leads")?).await?;
            }
            Kind::ServerAged => self.age_server(span).await?,
            Kind::FollowerCut => {
                let heal = block_in_place(|| self.site.cut_follower()).ok_or("nobody follows")?;
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
                self.someone_leads().await?;
            }
        }
        fault.heal();
        if matches!(kind, Kind::LeaderReplaced | Kind::ServerAged) {
            self.each_lock_is_served().await?;
        }
        if matches!(kind, Kind::MemberRestarted | Kind::MemberEmptied) {
            // Until whoever holds a lock has it there again: a minority may fail, and not one after
            // the other.
            sleep(self.lease() * 3).await;
        }
        Ok(hit.unwrap_or_default())
    }

    /// Notes a fault of servers that hits all locks, or these.
    fn begin(&self, kind: Kind, locks: Option<Vec<String>>) -> UnderFault {
        let mut fault = self.recorder().fault(Trouble::Other(kind.name()));
        if let Some(assumption) = sites::support(&*self.site, kind).broken_assumption() {
            fault = fault.breaks(assumption);
        }
        if kind.hits_one_member() {
            // The others make a majority.
            fault = fault.hidden();
        }
        if let Some(locks) = locks {
            fault = fault.locks(locks);
        }
        fault.begin()
    }

    /// All of them.
    async fn hit_servers(&self, kind: Kind, span: Duration, rng: &mut Rng) -> Result<(), Failure> {
        let servers = self.site.servers();
        match kind {
            Kind::ServerStopped => {
                block_in_place(|| servers.iter().for_each(|server| server.stop()));
                let lasted = self.last(Scope::Outage, span).await;
                block_in_place(|| servers.iter().for_each(|server| server.cont()));
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
                // Leases that were granted before the step back last longer by it.
                sleep(by).await;
                Ok(())
            }
            // They are started anew.
            kind => {
                block_in_place(|| servers.iter().for_each(|server| server.kill()));
                self.last(Scope::Outage, span / 4).await?;
                let keep = if kind == Kind::ServerEmptied { KeepData::No } else { KeepData::Yes };
                block_in_place(|| servers.iter().for_each(|server| server.restart(keep)));
                if kind == Kind::ServerEmptied {
                    self.site.lose_data();
                }
                Ok(())
            }
        }
    }

    /// For a while, or until another one leads.
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
        let servers = self.site.servers();
        let lasted = if kind == Kind::LeaderKilled {
            block_in_place(|| servers[leader].kill());
            let lasted = self.last(Scope::Outage, span).await;
            if outlasts {
                self.is_replaced(leader).await;
            }
            block_in_place(|| servers[leader].restart(KeepData::Yes));
            lasted
        } else {
            block_in_place(|| servers[leader].stop());
            let lasted = self.last(Scope::Outage, span * 2).await;
            if outlasts {
                self.is_replaced(leader).await;
            }
            block_in_place(|| servers[leader].cont());
            lasted
        };
        if let Some(heal) = heal {
            block_in_place(heal);
        }
        lasted?;
        self.someone_leads().await.map(drop)
    }

    /// By hand, while clients go on.
    async fn replace_leader(&self, leader: usize) -> Result<(), Failure> {
        let deadline = Moment::now() + QUIET_FOR;
        while !block_in_place(|| self.site.has_replaced(leader)) {
            if deadline.has_passed() {
                return Err("nobody could be made the leader".into());
            }
            // One that is under way is not begun again, and one that was given up is.
            block_in_place(|| self.site.replace_leader(leader));
            sleep(Duration::from_millis(50)).await;
        }
        if self.site.isolates_leaders_first() {
            // Without a replica it gives no lock.
            self.someone_leads().await?;
        }
        self.resumes();
        self.someone_leads().await.map(drop)
    }

    /// Kills the server, and starts it again with the data that it had a while before.
    async fn age_server(&self, span: Duration) -> Result<(), Failure> {
        let server = *self.site.servers().first().ok_or("there is no server")?;
        let put_back = block_in_place(|| self.site.snapshot_data()).ok_or("it keeps no data")?;
        self.last(Scope::Partial, span).await?;
        block_in_place(|| {
            server.kill();
            put_back();
            server.restart(KeepData::Yes);
        });
        self.resumes();
        Ok(())
    }

    /// Notes that a server takes writes again, perhaps with older data.
    fn resumes(&self) {
        self.recorder().fault(Trouble::Resumes).begin().heal();
    }

    /// Waits for a grant of each lock: one that stands still is not taken for one under the next
    /// fault.
    async fn each_lock_is_served(&self) -> Result<(), Failure> {
        for number in 0..self.collector.locks() {
            let lock = [lock_name(number)];
            let before = self.collector.traffic.grants_of(&lock);
            let is_served = || self.collector.traffic.grants_of(&lock) > before;
            self.until(is_served).await.map_err(|()| {
                format!("minimum traffic: no grant of {} in {QUIET_FOR:?} afterwards", lock[0])
            })?;
        }
        Ok(())
    }

    /// Two of three members, so that no majority is left.
    async fn hit_two_members(
        &self,
        kind: Kind,
        span: Duration,
        rng: &mut Rng,
    ) -> Result<(), Failure> {
        let mut members = self.site.members(kind);
        rng.shuffle(&mut members);
        let Some(two) = members.get(..2) else {
            return Err("no two members are fit for it".into());
        };
        let is_stop = kind == Kind::TwoStopped;
        let each =
            |what: fn(&dyn ServerProcess)| block_in_place(|| two.iter().for_each(|one| what(*one)));
        each(if is_stop { |one| one.stop() } else { |one| one.kill() });
        let lasted = self.last(Scope::Outage, span).await;
        each(if is_stop { |one| one.cont() } else { |one| one.restart(KeepData::Yes) });
        lasted
    }

    /// One of several servers that know nothing of each other; the others make a majority.
    async fn hit_member(&self, kind: Kind, span: Duration, rng: &mut Rng) -> Result<(), Failure> {
        if kind == Kind::MemberCut {
            let way = rng.choice(self.site.member_proxies()).ok_or("there are no members")?;
            way.set(Fault::BlackHole);
            let lasted = self.last(Scope::Partial, span * 2).await;
            way.heal();
            return lasted;
        }
        let member = rng.choice(self.site.members(kind)).ok_or("no member is fit for it")?;
        if kind == Kind::MemberStopped {
            block_in_place(|| member.stop());
            let lasted = self.last(Scope::Partial, span * 2).await;
            block_in_place(|| member.cont());
            return lasted;
        }
        let keep = if kind == Kind::MemberEmptied { KeepData::No } else { KeepData::Yes };
        block_in_place(|| member.kill());
        let lasted = self.last(Scope::Partial, span).await;
        block_in_place(|| member.restart(keep));
        lasted
    }

    /// Waits until another server leads: for a while, since an election may find nobody fit.
    async fn is_replaced(&self, leader: usize) {
        let deadline = Moment::now() + ELECTION;
        while !block_in_place(|| self.site.has_replaced(leader)) {
            if deadline.has_passed() {
                return;
            }
            sleep(Duration::from_millis(50)).await;
        }
        // Without a replica, who waits for one goes on later.
        if !self.site.isolates_leaders_first() {
            self.resumes();
        }
    }

    /// Which server leads, once one does.
    async fn someone_leads(&self) -> Result<usize, Failure> {
        let deadline = Moment::now() + QUIET_FOR;
        loop {
            if let Some(leader) = block_in_place(|| self.site.leader()) {
                return Ok(leader);
            }
            if deadline.has_passed() {
                return Err("nobody leads any more".into());
            }
            sleep(Duration::from_millis(50)).await;
        }
    }

    /// One lock that is held is removed, by an operator or behind everybody's back.
    async fn remove_one(&self, kind: Kind, rng: &mut Rng) -> Result<Vec<String>, Failure> {
        let _undisturbed =
            if self.has_leases { None } else { Some(self.undisturbed.write().await) };
        let deadline = Moment::now() + QUIET_FOR;
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
            self.close(removed, fault).await;
            if removed == Removal::Removed {
                // The holder believes in its lock until its next renewal, or its deadline.
                self.last(Scope::Partial, self.params.ttl * 2).await?;
                return Ok(vec![lock]);
            }
            if deadline.has_passed() {
                return Err(format!("no lock could be removed in {QUIET_FOR:?}"));
            }
            sleep(LOOK).await;
        }
    }

    /// What became of the removal that `fault` stands for.
    pub(super) async fn close(&self, removed: Removal, fault: UnderFault) {
        match removed {
            Removal::Removed => fault.has_removed(),
            Removal::NotFound => fault.never_happened(),
            Removal::Unknown => {
                // It may land until its holder has gone by itself.
                sleep(self.params.timeout + self.lease()).await;
                fault.heal();
            }
        }
    }

    pub(super) async fn break_lock(&self, name: &LockName) -> Removal {
        let bounded = |span| tokio::time::timeout(span, self.operator.inspect(name));
        let Ok(Ok(seen)) = bounded(self.params.timeout).await else { return Removal::NotFound };
        let Some(owner) = seen.holders.first().and_then(|holder| holder.owner) else {
            return Removal::NotFound;
        };
        // Whoever it is by then: it names the holder that was seen.
        let breaking = self.operator.break_lock(name, &owner);
        match tokio::time::timeout(self.params.timeout, breaking).await {
            Ok(Ok(true)) => Removal::Removed,
            Ok(Ok(false)) => Removal::NotFound,
            _ => Removal::Unknown,
        }
    }
}
