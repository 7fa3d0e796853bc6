//! What is broken when: one lane of faults for each client, and one for what all of them share.
//!
//! The seed draws which faults there are, in which order, and how long they last; traffic decides when the
//! next one begins. Before and after each fault there must have been grants, and while it lasts there
//! must be more of them or, where the server is away, calls that feel it. A run in which that does not
//! happen proves nothing, and fails.

use std::collections::BTreeMap;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use conformance_tests::history::{Assumption, Recorder, Trouble, UnderFault};
use conformance_tests::proxy::{Direction, Fault, Match, Proxy};
use conformance_tests::servers::{KeepData, Step};
use fastrand::Rng;
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, LockName};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, RwLock, Semaphore};
use tokio::task::block_in_place;

use crate::crew::{OBEYS_WITHIN, Post};
use crate::desk::{Office, lock_name};
use crate::kind::{Kind, Offer, Scope};
use crate::sites::{self, Removal, Site, Terms};
use crate::worker::Order;

/// How long traffic may take to come up again.
pub(crate) const QUIET_FOR: Duration = Duration::from_secs(60);

/// For how long a leader goes on alone that is cut off before it is gone.
const ALONE: Duration = Duration::from_millis(500);

/// Of the grants between two faults, one in so many has to be of the client that was hit, or of the locks.
const ITS_SHARE: u64 = 100;

/// How often traffic is looked at.
const LOOK: Duration = Duration::from_millis(3);

/// What happened around the faults of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Around {
    /// How many faults.
    pub faults: u64,
    /// Grants between these faults and the ones before in their lanes.
    pub before: u64,
    /// Grants while they lasted.
    pub during: u64,
    /// Grants after them, up to the next ones at least.
    pub after: u64,
    /// The fewest grants before one, and after one.
    pub least: u64,
    /// Calls made or under way while they lasted.
    pub calls: u64,
    /// The fewest grants, before one and after one, of the client that was hit or of the locks; `None` if all were hit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_of_hit: Option<u64>,
}

impl Around {
    /// Adds others.
    pub fn add(&mut self, other: &Self) {
        self.least = if self.faults == 0 { other.least } else { self.least.min(other.least) };
        self.faults += other.faults;
        self.before += other.before;
        self.during += other.during;
        self.after += other.after;
        self.calls += other.calls;
        self.at_least(other.least_of_hit);
    }

    fn at_least(&mut self, of_hit: Option<u64>) {
        self.least_of_hit = self.least_of_hit.into_iter().chain(of_hit).min();
    }
}

/// Runs the faults of one run.
pub(crate) struct Director {
    pub(crate) office: Arc<Office>,
    pub(crate) site: Arc<dyn Site>,
    pub(crate) terms: Terms,
    /// Whether what breaks an assumption for all locks at once may be done.
    pub(crate) breaks_all: bool,
    /// So many grants come between the end of a fault and the next one of its lane.
    pub(crate) grants_between: u64,
    /// How many faults are still to come.
    pub(crate) left: AtomicU32,
    pub(crate) operator: Arc<dyn Backend>,
    /// Where holders are told of a break only when they look: nobody is kept from it meanwhile.
    pub(crate) undisturbed: RwLock<()>,
    /// At least one client is left alone at any time: all of them silent would prove nothing.
    pub(crate) victims: Semaphore,
    /// Whether locks lapse. Where they do not, a client that is stopped may keep all others waiting.
    pub(crate) has_leases: bool,
    pub(crate) around: Mutex<BTreeMap<Kind, Around>>,
    pub(crate) failed: AtomicBool,
}

/// What went wrong with the run itself.
pub(crate) type Failure = String;

impl Director {
    /// The kinds of one lane that this run can have.
    fn deck(&self, clients: bool) -> Vec<Kind> {
        let kinds = Kind::ALL.into_iter().filter(|kind| (kind.scope() == Scope::Client) == clients);
        kinds.filter(|&kind| self.allows(kind)).collect()
    }

    fn allows(&self, kind: Kind) -> bool {
        match sites::offer(&*self.site, kind) {
            Offer::Yes => true,
            Offer::No(_) => false,
            // One lock is not all of them.
            Offer::Breaks(Assumption::A3 | Assumption::Minority) => true,
            Offer::Breaks(_) => self.breaks_all,
        }
    }

    /// The faults of one client, one after the other.
    pub(crate) async fn haunt(
        self: Arc<Self>,
        mut post: Post,
        rng: Rng,
    ) -> (Post, Result<(), Failure>) {
        let deck = self.deck(true);
        let ended = self.lane(deck, rng, &mut Target::Client(&mut post)).await;
        (post, ended)
    }

    /// The faults that hit all clients.
    pub(crate) async fn shake(self: Arc<Self>, rng: Rng) -> Result<(), Failure> {
        let deck = self.deck(false);
        self.lane(deck, rng, &mut Target::Shared).await
    }

    async fn lane(
        &self,
        deck: Vec<Kind>,
        mut rng: Rng,
        target: &mut Target<'_>,
    ) -> Result<(), Failure> {
        if deck.is_empty() {
            return Ok(());
        }
        let result = self.deal(&deck, &mut rng, target).await;
        if result.is_err() {
            self.failed.store(true, Ordering::SeqCst);
        }
        result
    }

    async fn deal(
        &self,
        deck: &[Kind],
        rng: &mut Rng,
        target: &mut Target<'_>,
    ) -> Result<(), Failure> {
        let mut pile: Vec<Kind> = Vec::new();
        let mut last: Option<Kind> = None;
        let traffic = &self.office.traffic;
        let mut healed = traffic.grants();
        // Of a client, also before its first fault; of locks, after each.
        let mut hit: Vec<String> = match target {
            Target::Client(post) => vec![post.name()],
            Target::Shared => Vec::new(),
        };
        let mut healed_of_hit = traffic.grants_of(&hit);
        loop {
            let when = last
                .map_or_else(|| "before the first fault".into(), |k| format!("after {}", k.name()));
            self.grants_reach(healed + self.grants_between, &when).await?;
            let between = traffic.grants() - healed;
            self.is_served(&hit, healed_of_hit, &when).await?;
            let of_hit = (!hit.is_empty()).then(|| traffic.grants_of(&hit) - healed_of_hit);
            if let Some(last) = last {
                self.note(last, |around| {
                    around.after += between;
                    around.least = around.least.min(between);
                    around.at_least(of_hit);
                })
                .await;
            }
            if !self.takes_one() {
                return Ok(());
            }
            if pile.is_empty() {
                pile = shuffled(deck, rng);
            }
            let kind = pile.pop().expect("a deck is not empty");
            let _victim = match target {
                Target::Client(_) => Some(self.victims.acquire().await),
                Target::Shared => None,
            };
            let (grants, calls) = (traffic.grants(), traffic.calls());
            let under_way = traffic.under_way();
            let caused = self.cause(kind, rng, target).await;
            hit = caused.map_err(|why| format!("{}: {why}", kind.name()))?;
            (healed, healed_of_hit) = (traffic.grants(), traffic.grants_of(&hit));
            let calls = traffic.calls() - calls + under_way;
            let of_hit = of_hit.filter(|_| matches!(target, Target::Client(_)));
            self.note(kind, |around| {
                around.faults += 1;
                around.before += between;
                around.least = if around.faults == 1 { between } else { around.least.min(between) };
                around.at_least(of_hit);
                around.during += healed - grants;
                around.calls += calls;
            })
            .await;
            last = Some(kind);
        }
    }

    fn takes_one(&self) -> bool {
        let take = |left: u32| left.checked_sub(1);
        !self.failed.load(Ordering::SeqCst)
            && self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    async fn note(&self, kind: Kind, change: impl FnOnce(&mut Around)) {
        change(self.around.lock().await.entry(kind).or_default());
    }

    /// Traffic has to go on.
    async fn grants_reach(&self, grants: u64, when: &str) -> Result<(), Failure> {
        let enough = || self.office.traffic.grants() >= grants;
        self.until(enough).await.map_err(|()| {
            let wanted = self.grants_between;
            format!("minimum traffic: fewer than {wanted} grants in {QUIET_FOR:?} {when}")
        })
    }

    /// Traffic of others proves nothing for the client that was hit, or for the locks.
    async fn is_served(&self, hit: &[String], before: u64, when: &str) -> Result<(), Failure> {
        let wanted = if hit.is_empty() { 0 } else { (self.grants_between / ITS_SHARE).max(1) };
        let enough = || self.office.traffic.grants_of(hit) >= before + wanted;
        self.until(enough).await.map_err(|()| {
            let hit = hit.join(", ");
            format!("minimum traffic: fewer than {wanted} grants of {hit} in {QUIET_FOR:?} {when}")
        })
    }

    async fn until(&self, condition: impl Fn() -> bool) -> Result<(), ()> {
        let deadline = Moment::now() + QUIET_FOR;
        while !condition() {
            if deadline.has_passed() {
                return Err(());
            }
            sleep(LOOK).await;
        }
        Ok(())
    }

    /// A fault lasts for this long, and until there was traffic under it.
    pub(crate) async fn last(&self, scope: Scope, duration: Duration) -> Result<(), Failure> {
        let traffic = &self.office.traffic;
        let (grants, calls) = (traffic.grants(), traffic.calls());
        sleep(duration).await;
        let felt = || match scope {
            Scope::Client if !self.has_leases => traffic.calls() > calls || traffic.under_way() > 0,
            Scope::Outage => traffic.calls() > calls || traffic.under_way() > 0,
            Scope::Client | Scope::Nuisance => traffic.grants() > grants,
        };
        self.until(felt).await.map_err(|()| {
            format!("minimum traffic: nothing happened in {QUIET_FOR:?} while it lasted")
        })
    }

    /// Returns who was hit: the place of a client, or locks; nobody, if all of them.
    async fn cause(
        &self,
        kind: Kind,
        rng: &mut Rng,
        target: &mut Target<'_>,
    ) -> Result<Vec<String>, Failure> {
        match target {
            Target::Client(post) => {
                let _disturbs = self.undisturbed.read().await;
                self.hit_client(kind, rng, post).await?;
                Ok(vec![post.name()])
            }
            Target::Shared => self.hit_all(kind, rng).await,
        }
    }

    pub(crate) fn recorder(&self) -> &Recorder {
        self.office.recorder()
    }

    pub(crate) fn lease(&self) -> Duration {
        self.terms.lease.unwrap_or(self.terms.ttl)
    }

    /// Up to some leases, short spans as often as long ones.
    fn span(&self, rng: &mut Rng) -> Duration {
        self.lease()
            .min(Duration::from_millis(1200))
            .mul_f64([0.1, 0.4, 1.0, 2.2][rng.usize(..4)] * (0.3 + 0.7 * rng.f64()))
    }

    async fn hit_client(&self, kind: Kind, rng: &mut Rng, post: &mut Post) -> Result<(), Failure> {
        if kind.is_aimed() {
            return self.hit_in_the_act(kind, rng, post).await;
        }
        let span = self.span(rng);
        let some = self.some_ways(kind, rng, post);
        let what = match kind {
            Kind::ClientKilled => Trouble::Kill,
            Kind::ClientStopped | Kind::ClientStarved => Trouble::Stop,
            Kind::BlackHole if some.len() == post.lines.len() => Trouble::Partition,
            Kind::CallsCutOff => Trouble::Partition,
            other => Trouble::Other(other.name()),
        };
        let fault = self.recorder().fault(what).process(post.host()).begin();
        match kind {
            Kind::ClientKilled => {
                block_in_place(|| post.kill()).map_err(text)?;
                self.last(Scope::Client, span / 4).await?;
                block_in_place(|| post.start().and_then(|()| post.ready())).map_err(text)?;
                // The dead stay dead: who comes next has another name.
                return Ok(());
            }
            Kind::ClientStopped | Kind::ClientStarved => self.silence(kind, span, post).await?,
            Kind::ClientClockStepped => {
                let clock = post.clock().ok_or("its clock is the system's")?;
                let hour = Duration::from_secs(3600);
                let (there, back) = match rng.bool() {
                    true => (Step::Forward(hour), Step::Back(hour)),
                    false => (Step::Back(hour), Step::Forward(hour)),
                };
                clock.step(there);
                let lasted = self.last(Scope::Client, span).await;
                clock.step(back);
                lasted?;
            }
            Kind::ShortLeases => {
                post.order(&Order::Short(true)).map_err(text)?;
                self.last(Scope::Client, span * 2).await?;
                post.order(&Order::Short(false)).map_err(text)?;
            }
            kind if kind.is_in_calls() => {
                let by = self.terms.ttl.mul_f64(1.5 * rng.f64());
                let order = Order::Disturb(kind, rng.u32(50..600), by);
                post.order(&order).map_err(text)?;
                let lasted = self.last(Scope::Client, span).await;
                post.order(&Order::Calm).map_err(text)?;
                lasted?;
            }
            kind => self.disturb_lines(kind, span, rng, some).await?,
        }
        fault.heal();
        Ok(())
    }

    /// Where there are ways to servers that know nothing of each other, some of them, as often as all.
    fn some_ways<'a>(&self, kind: Kind, rng: &mut Rng, post: &'a Post) -> &'a [Proxy] {
        let all = post.lines.len();
        if self.site.ways().len() < 2 || !kind.is_in_network() || rng.bool() {
            return &post.lines;
        }
        let from = rng.usize(..all);
        &post.lines[from..rng.usize(from + 1..=all)]
    }

    /// The client does nothing for a while.
    pub(crate) async fn silence(
        &self,
        kind: Kind,
        span: Duration,
        post: &mut Post,
    ) -> Result<(), Failure> {
        if kind == Kind::ClientStopped {
            block_in_place(|| post.stop()).map_err(text)?;
            let lasted = self.last(Scope::Client, span).await;
            post.cont().map_err(text)?;
            return lasted;
        }
        post.order(&Order::Freeze).map_err(text)?;
        block_in_place(|| post.hears("frozen", OBEYS_WITHIN)).map_err(text)?;
        let lasted = self.last(Scope::Client, span).await;
        post.order(&Order::Thaw).map_err(text)?;
        block_in_place(|| post.hears("thawed", OBEYS_WITHIN)).map_err(text)?;
        lasted
    }

    async fn disturb_lines(
        &self,
        kind: Kind,
        span: Duration,
        rng: &mut Rng,
        lines: &[Proxy],
    ) -> Result<(), Failure> {
        let lasting = match kind {
            Kind::BlackHole => Fault::BlackHole,
            Kind::RequestsLost => Fault::Lose(Direction::ToServer),
            Kind::RepliesLost => Fault::Lose(Direction::ToClient),
            Kind::Refused => Fault::Refuse,
            Kind::Trickle => {
                Fault::Trickle { bytes: rng.usize(1..64), every: Duration::from_millis(2) }
            }
            Kind::Slices => Fault::Slice,
            Kind::Delay => Fault::delay(Duration::from_millis(rng.u64(5..100))),
            _ => Fault::None,
        };
        for line in lines {
            line.set(lasting);
        }
        if kind == Kind::Refused {
            each(lines, Proxy::reset_connections).await;
        }
        let lasted = match kind {
            Kind::Reset => {
                self.again_and_again(span, rng, || each(lines, Proxy::reset_connections)).await
            }
            Kind::CutBeforeReply => {
                self.again_and_again(span, rng, || {
                    each(lines, |line| {
                        let hit = line.cut_after(Match::on(""));
                        async move { drop(tokio::time::timeout(span / 4, hit.into_future()).await) }
                    })
                })
                .await
            }
            Kind::HeldAndDelivered => {
                self.again_and_again(span, rng, || {
                    each(lines, |line| {
                        let mut held = line.hold(Match::on(""));
                        async move {
                            let caught = tokio::time::timeout(span / 4, held.caught()).await;
                            sleep(span / 2).await;
                            if caught.is_ok_and(|caught| caught.is_ok()) {
                                drop(tokio::time::timeout(span, held.deliver()).await);
                            }
                        }
                    })
                })
                .await
            }
            _ => self.last(Scope::Client, span).await,
        };
        for line in lines {
            line.heal();
        }
        lasted
    }

    /// What happens at a point in time, a few times.
    async fn again_and_again<F: Future<Output = ()>>(
        &self,
        span: Duration,
        rng: &mut Rng,
        what: impl Fn() -> F,
    ) -> Result<(), Failure> {
        for _ in 0..3 {
            what().await;
            sleep(span.mul_f64(rng.f64() / 4.0)).await;
        }
        self.last(Scope::Client, Duration::ZERO).await
    }

    /// Notes a fault of servers that hits all locks, or these.
    fn begin(&self, kind: Kind, locks: Option<Vec<String>>) -> UnderFault {
        let mut fault = self.recorder().fault(Trouble::Other(kind.name()));
        if let Some(assumption) = sites::offer(&*self.site, kind).breaks() {
            fault = fault.breaks(assumption);
        }
        if kind.is_of_a_member() {
            // The others make a majority.
            fault = fault.hidden();
        }
        if let Some(locks) = locks {
            fault = fault.locks(locks);
        }
        fault.begin()
    }

    async fn hit_all(&self, kind: Kind, rng: &mut Rng) -> Result<Vec<String>, Failure> {
        if matches!(kind, Kind::Evicted | Kind::Broken) {
            return self.remove_one(kind, rng).await;
        }
        let span = self.span(rng);
        let lease = self.lease();
        let leader = if kind.takes_a_leader() { Some(self.someone_leads().await?) } else { None };
        let hit = leader.and_then(|leader| block_in_place(|| self.site.hit(kind, leader)));
        if let Some(locks) = &hit {
            self.is_served(locks, self.office.traffic.grants_of(locks), "before it").await?;
        }
        let fault = self.begin(kind, hit.clone());
        let servers = self.site.servers();
        match kind {
            Kind::ServerStopped => {
                block_in_place(|| servers.iter().for_each(|server| server.stop()));
                let lasted = self.last(Scope::Outage, span).await;
                block_in_place(|| servers.iter().for_each(|server| server.cont()));
                lasted?;
            }
            Kind::ServerRestarted | Kind::ServerEmptied => {
                block_in_place(|| servers.iter().for_each(|server| server.kill()));
                self.last(Scope::Outage, span / 4).await?;
                let keep = if kind == Kind::ServerEmptied { KeepData::No } else { KeepData::Yes };
                block_in_place(|| servers.iter().for_each(|server| server.restart(keep)));
                if kind == Kind::ServerEmptied {
                    self.site.lose_data();
                }
            }
            Kind::ServerFull => {
                block_in_place(|| self.site.fill(true));
                let lasted = self.last(Scope::Outage, span).await;
                block_in_place(|| self.site.fill(false));
                lasted?;
            }
            Kind::ServerClockStepped => {
                let by = lease.mul_f64(0.2 + 3.0 * rng.f64());
                let (there, back) = (Step::Forward(by), Step::Back(by));
                self.site.step_clock(there);
                let lasted = self.last(Scope::Nuisance, span).await;
                self.site.step_clock(back);
                lasted?;
                // Leases that were granted before the step back last longer by it.
                sleep(by).await;
            }
            Kind::LeaderKilled | Kind::LeaderStopped => {
                self.hit_leader(kind, leader.ok_or("nobody leads")?, span).await?;
            }
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
                self.last(Scope::Nuisance, span).await?;
            }
            kind => self.hit_member(kind, span, rng).await?,
        }
        if let Offer::Breaks(assumption) = sites::offer(&*self.site, kind)
            && assumption.guards_exclusion()
        {
            sleep(self.site.aftermath()).await;
            if matches!(kind, Kind::LeaderKilled | Kind::LeaderStopped) {
                self.someone_leads().await?;
            }
        }
        fault.heal();
        if matches!(kind, Kind::MemberRestarted | Kind::MemberEmptied) {
            // Until whoever holds a lock has it there again: a minority may fail, and not one after the other.
            sleep(lease * 3).await;
        }
        Ok(hit.unwrap_or_default())
    }

    async fn hit_leader(&self, kind: Kind, leader: usize, span: Duration) -> Result<(), Failure> {
        let alone = self.site.cuts_leaders_off_first();
        let heal = block_in_place(|| alone.then(|| self.site.cut_follower()).flatten());
        if heal.is_some() {
            self.last(Scope::Outage, ALONE).await?;
        }
        let servers = self.site.servers();
        let lasted = if kind == Kind::LeaderKilled {
            block_in_place(|| servers[leader].kill());
            let lasted = self.last(Scope::Outage, span).await;
            block_in_place(|| servers[leader].restart(KeepData::Yes));
            lasted
        } else {
            block_in_place(|| servers[leader].stop());
            let lasted = self.last(Scope::Outage, span * 2).await;
            block_in_place(|| servers[leader].cont());
            lasted
        };
        if let Some(heal) = heal {
            block_in_place(heal);
        }
        lasted?;
        self.someone_leads().await.map(drop)
    }

    /// One of several servers that know nothing of each other; the others make a majority.
    async fn hit_member(&self, kind: Kind, span: Duration, rng: &mut Rng) -> Result<(), Failure> {
        if kind == Kind::MemberCut {
            let way = rng.choice(self.site.ways()).ok_or("there are no members")?;
            way.set(Fault::BlackHole);
            let lasted = self.last(Scope::Nuisance, span * 2).await;
            way.heal();
            return lasted;
        }
        let member = rng.choice(self.site.members(kind)).ok_or("no member is fit for it")?;
        if kind == Kind::MemberStopped {
            block_in_place(|| member.stop());
            let lasted = self.last(Scope::Nuisance, span * 2).await;
            block_in_place(|| member.cont());
            return lasted;
        }
        let keep = if kind == Kind::MemberEmptied { KeepData::No } else { KeepData::Yes };
        block_in_place(|| member.kill());
        let lasted = self.last(Scope::Nuisance, span).await;
        block_in_place(|| member.restart(keep));
        lasted
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
            let lock = lock_name(rng.usize(..self.terms.locks));
            let name = lock.clone();
            let fault = self.recorder().fault(Trouble::Other(kind.name()));
            let fault = fault.lock(&name).breaks(Assumption::A3).begin();
            let name = LockName::new(name).map_err(|error| error.to_string())?;
            let removed = match kind {
                Kind::Evicted => block_in_place(|| self.site.evict(&name)),
                _ => self.break_lock(&name).await,
            };
            self.close(removed, fault).await;
            if removed == Removal::Done {
                // The holder believes in its lock until its next renewal, or its deadline.
                self.last(Scope::Nuisance, self.terms.ttl * 2).await?;
                return Ok(vec![lock]);
            }
            if deadline.has_passed() {
                return Err(format!("no lock could be removed in {QUIET_FOR:?}"));
            }
            sleep(LOOK).await;
        }
    }

    /// What became of the removal that `fault` stands for.
    pub(crate) async fn close(&self, removed: Removal, fault: UnderFault) {
        match removed {
            Removal::Done => fault.heal(),
            Removal::Nothing => fault.never_happened(),
            Removal::Unknown => {
                // It may land until its holder has gone by itself.
                sleep(self.terms.timeout + self.lease()).await;
                fault.heal();
            }
        }
    }

    pub(crate) async fn break_lock(&self, name: &LockName) -> Removal {
        let bounded = |span| tokio::time::timeout(span, self.operator.inspect(name));
        let Ok(Ok(seen)) = bounded(self.terms.timeout).await else { return Removal::Nothing };
        let Some(owner) = seen.holders.first().and_then(|holder| holder.owner) else {
            return Removal::Nothing;
        };
        // Whoever it is by then: it names the holder that was seen.
        let breaking = self.operator.break_lock(name, &owner);
        match tokio::time::timeout(self.terms.timeout, breaking).await {
            Ok(Ok(true)) => Removal::Done,
            Ok(Ok(false)) => Removal::Nothing,
            _ => Removal::Unknown,
        }
    }
}

/// An error as a reason.
#[expect(clippy::needless_pass_by_value, reason = "that is how `map_err` calls it")]
pub(crate) fn text(error: std::io::Error) -> Failure {
    error.to_string()
}

/// All kinds of a deck in any order. Every other one is aimed: chance alone seldom finds the moment.
fn shuffled(deck: &[Kind], rng: &mut Rng) -> Vec<Kind> {
    let (aimed, mut others): (Vec<Kind>, _) = deck.iter().partition(|kind| kind.is_aimed());
    rng.shuffle(&mut others);
    let with_aimed = |kind| [Some(kind), rng.choice(&aimed).copied()];
    others.into_iter().flat_map(with_aimed).flatten().collect()
}

enum Target<'a> {
    Client(&'a mut Post),
    Shared,
}

/// Does something on all lines at once.
async fn each<'a, F: Future<Output = ()>>(lines: &'a [Proxy], what: impl Fn(&'a Proxy) -> F) {
    let all: Vec<_> = lines.iter().map(what).collect();
    let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
    std::future::poll_fn(|cx| {
        all.retain_mut(|one| one.as_mut().poll(cx).is_pending());
        if all.is_empty() { std::task::Poll::Ready(()) } else { std::task::Poll::Pending }
    })
    .await;
}

#[cfg(test)]
mod tests {
    use conformance_tests::history::{Clock, Header, Line};

    use super::*;

    /// One whose clients say `lines` meanwhile, and nothing else.
    fn director(lines: &[&str]) -> Director {
        let backing = sites::all().iter().find(|backing| backing.name == "memory");
        let site: Arc<dyn Site> = Arc::from((backing.expect("it is there").start)());
        let operator = site.shared().expect("it is in memory");
        let terms = site.terms();
        let header = Header::new("r", 1, &operator.capabilities(), terms.ttl);
        let office = Office::new(Recorder::in_memory(Clock::core(), header), terms.locks);
        for line in lines {
            let Ok(Line::Record(record)) = Line::parse(line.as_bytes()) else { panic!("{line}") };
            office.traffic.note(&record);
        }
        Director {
            office,
            site,
            terms,
            breaks_all: false,
            grants_between: 200,
            left: AtomicU32::new(1),
            operator,
            undisturbed: RwLock::new(()),
            victims: Semaphore::new(1),
            has_leases: true,
            around: Mutex::default(),
            failed: AtomicBool::new(false),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_are_granted_is_no_traffic_of_who_was_hit() {
        let granted =
            r#"{"kind":"ok","t":1,"proc":"p1.2/t0+1","lock":"n3","op":"acquire","grant":"a"}"#;
        let refused =
            r#"{"kind":"fail","t":1,"proc":"p1.2/t0","lock":"n3","op":"try","grant":"b"}"#;
        let director = director(&[granted, refused, granted, refused]);
        for (hit, before, is_served) in [
            (&["p1"][..], 0, true),
            (&["p1"], 1, false),
            (&["p0"], 0, false),
            (&["p10"], 0, false),
            (&["n3"], 0, true),
            (&["n1", "n3"], 0, true),
            (&["n1", "n30"], 0, false),
            (&[], 0, true),
        ] {
            let names: Vec<String> = hit.iter().map(|&name| name.to_owned()).collect();
            let served = director.is_served(&names, before, "then").await;
            assert_eq!(served.is_ok(), is_served, "{hit:?}: {served:?}");
        }
        assert_eq!(director.office.traffic.grants(), 2);
    }
}
