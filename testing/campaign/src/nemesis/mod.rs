//! What is broken when: one lane of faults for each client, and one for what all of them share.
//!
//! The seed draws which faults there are, in which order, and how long they last; traffic decides
//! when the next one begins. Before and after each fault there must have been grants, and while it
//! lasts there must be more of them or, where the server is away, calls that feel it. A run in
//! which that does not happen proves nothing, and fails.

mod aimed;
mod clients;
mod servers;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, Takeover};
use lock_history::{Assumption, Recorder, UnderFault};
use serde::{Deserialize, Serialize};
use tokio::sync::{Mutex, RwLock, Semaphore};

use crate::clients::ClientSlot;
use crate::collector::Collector;
use crate::kind::{FaultSupport, Kind, Scope};
use crate::outcome::Settings;
use crate::sites::{self, Site, SiteParams};

/// How long traffic may take to come up again.
const QUIET_FOR: Duration = Duration::from_secs(60);

/// Of the grants between two faults, one in so many has to be of the client that was hit, or of the
/// locks.
const ITS_SHARE: u64 = 100;

/// So many faults in a row that hit nothing, and nothing can be hit.
const MISSES: usize = 10;

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
    /// The fewest grants, before one and after one, of the client that was hit or of the locks;
    /// `None` if all were hit.
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
pub(crate) struct Nemesis {
    collector: Arc<Collector>,
    site: Arc<dyn Site>,
    params: SiteParams,
    /// Whether what breaks an assumption for all locks at once may be done.
    breaks_all: bool,
    /// The kinds of fault, unless all.
    only: Vec<Kind>,
    /// So many grants come between the end of a fault and the next one of its lane.
    grants_between: u64,
    /// How many faults are still to come.
    left: AtomicU32,
    operator: Arc<dyn Backend>,
    /// Where holders are told of a break only when they look: nobody is kept from it meanwhile.
    undisturbed: RwLock<()>,
    /// At least one client is left alone at any time: all of them silent would prove nothing.
    victims: Semaphore,
    /// Whether locks lapse. Where they do not, a client that is stopped may keep all others
    /// waiting.
    has_leases: bool,
    around: Mutex<BTreeMap<Kind, Around>>,
    /// How many faults of each kind hit nothing.
    missed: Mutex<BTreeMap<Kind, u64>>,
    failed: AtomicBool,
}

/// A fault that is over.
struct Deed {
    kind: Kind,
    /// Who was hit.
    hit: Vec<String>,
    /// Grants while it lasted.
    grants: u64,
    /// Calls made or under way.
    calls: u64,
}

/// What went wrong with the run itself.
pub(crate) type Failure = String;

impl Nemesis {
    pub(crate) fn new(
        collector: &Arc<Collector>,
        site: &Arc<dyn Site>,
        operator: &Arc<dyn Backend>,
        settings: &Settings,
        breaks_all: bool,
    ) -> Self {
        Self {
            collector: Arc::clone(collector),
            site: Arc::clone(site),
            params: site.params(),
            breaks_all,
            only: settings.only.clone(),
            grants_between: settings.grants,
            left: AtomicU32::new(settings.faults),
            operator: Arc::clone(operator),
            undisturbed: RwLock::new(()),
            victims: Semaphore::new(settings.clients.saturating_sub(1).max(1)),
            has_leases: operator.capabilities().takeover != Takeover::AtOnce,
            around: Mutex::default(),
            missed: Mutex::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// What happened around the faults so far.
    pub(crate) async fn around(&self) -> BTreeMap<Kind, Around> {
        self.around.lock().await.clone()
    }

    /// How many faults hit nothing, and do not count.
    pub(crate) async fn missed(&self) -> BTreeMap<Kind, u64> {
        self.missed.lock().await.clone()
    }

    /// The kinds of one lane that this run can have.
    fn deck(&self, clients: bool) -> Vec<Kind> {
        let kinds = Kind::ALL.into_iter().filter(|kind| (kind.scope() == Scope::Client) == clients);
        kinds.filter(|&kind| self.allows(kind) && self.is_wanted(kind)).collect()
    }

    fn is_wanted(&self, kind: Kind) -> bool {
        self.only.is_empty() || self.only.contains(&kind)
    }

    fn allows(&self, kind: Kind) -> bool {
        match sites::support(&*self.site, kind) {
            FaultSupport::Yes => true,
            FaultSupport::No(_) => false,
            // One lock is not all of them.
            FaultSupport::Breaks(Assumption::A3) => true,
            FaultSupport::Breaks(assumption) => self.breaks_all || !assumption.guards_exclusion(),
        }
    }

    /// The faults of one client, one after the other.
    pub(crate) async fn haunt(
        self: Arc<Self>,
        mut slot: ClientSlot,
        rng: Rng,
    ) -> (ClientSlot, Result<(), Failure>) {
        let deck = self.deck(true);
        let ended = self.lane(deck, rng, &mut Target::Client(&mut slot)).await;
        (slot, ended)
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
        let traffic = &self.collector.traffic;
        let mut healed = traffic.grants();
        // Of a client, also before its first fault; of locks, after each.
        let mut hit: Vec<String> = match target {
            Target::Client(slot) => vec![slot.name()],
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
            let deed = self.hit_something(deck, &mut pile, rng, target).await?;
            hit = deed.hit;
            (healed, healed_of_hit) = (traffic.grants(), traffic.grants_of(&hit));
            let of_hit = of_hit.filter(|_| matches!(target, Target::Client(_)));
            self.note(deed.kind, |around| {
                around.faults += 1;
                around.before += between;
                around.least = if around.faults == 1 { between } else { around.least.min(between) };
                around.at_least(of_hit);
                around.during += deed.grants;
                around.calls += deed.calls;
            })
            .await;
            last = Some(deed.kind);
        }
    }

    /// What hits nothing is no fault, and the next one is drawn.
    async fn hit_something(
        &self,
        deck: &[Kind],
        pile: &mut Vec<Kind>,
        rng: &mut Rng,
        target: &mut Target<'_>,
    ) -> Result<Deed, Failure> {
        let traffic = &self.collector.traffic;
        for _ in 0..MISSES {
            if pile.is_empty() {
                *pile = shuffled(deck, rng);
            }
            let kind = pile.pop().expect("a deck is not empty");
            let _victim = match target {
                Target::Client(_) => Some(self.victims.acquire().await),
                Target::Shared => None,
            };
            let (grants, calls) = (traffic.grants(), traffic.calls());
            let under_way = traffic.under_way();
            let caused = self.cause(kind, rng, target).await;
            if let Some(hit) = caused.map_err(|why| format!("{}: {why}", kind.name()))? {
                let (grants, calls) = (traffic.grants() - grants, traffic.calls() - calls);
                return Ok(Deed { kind, hit, grants, calls: calls + under_way });
            }
            *self.missed.lock().await.entry(kind).or_default() += 1;
        }
        Err(format!("minimum traffic: {MISSES} faults in a row hit nothing"))
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
        let enough = || self.collector.traffic.grants() >= grants;
        self.until(enough).await.map_err(|()| {
            let wanted = self.grants_between;
            format!("minimum traffic: fewer than {wanted} grants in {QUIET_FOR:?} {when}")
        })
    }

    /// Traffic of others proves nothing for the client that was hit, or for the locks.
    async fn is_served(&self, hit: &[String], before: u64, when: &str) -> Result<(), Failure> {
        let wanted = if hit.is_empty() { 0 } else { (self.grants_between / ITS_SHARE).max(1) };
        let enough = || self.collector.traffic.grants_of(hit) >= before + wanted;
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
    async fn last(&self, scope: Scope, duration: Duration) -> Result<(), Failure> {
        self.last_while(scope, duration, || true).await
    }

    /// The same for a fault in the calls or in the network of this client, which has to feel it
    /// itself.
    async fn last_for(&self, host: &str, duration: Duration) -> Result<(), Failure> {
        let traffic = &self.collector.traffic;
        let calls = traffic.calls_of(host);
        let has_called = || traffic.calls_of(host) > calls || traffic.under_way_of(host) > 0;
        self.last_while(Scope::Client, duration, has_called).await
    }

    async fn last_while(
        &self,
        scope: Scope,
        duration: Duration,
        is_felt: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        let traffic = &self.collector.traffic;
        let (grants, calls) = (traffic.grants(), traffic.calls());
        sleep(duration).await;
        let goes_on = || match scope {
            Scope::Client if !self.has_leases => traffic.calls() > calls || traffic.under_way() > 0,
            Scope::Outage => traffic.calls() > calls || traffic.under_way() > 0,
            Scope::Client | Scope::Partial => traffic.grants() > grants,
        };
        self.until(|| goes_on() && is_felt()).await.map_err(|()| {
            format!("minimum traffic: nothing happened in {QUIET_FOR:?} while it lasted")
        })
    }

    /// Returns who was hit: the place of a client, or locks; nobody, if all of them. `None`:
    /// nothing was hit.
    async fn cause(
        &self,
        kind: Kind,
        rng: &mut Rng,
        target: &mut Target<'_>,
    ) -> Result<Option<Vec<String>>, Failure> {
        match target {
            Target::Client(slot) => {
                let _disturbs = self.undisturbed.read().await;
                let hit = self.hit_client(kind, rng, slot).await?;
                Ok(hit.then(|| vec![slot.name()]))
            }
            Target::Shared => self.hit_all(kind, rng).await.map(Some),
        }
    }

    fn recorder(&self) -> &Recorder {
        self.collector.recorder()
    }

    fn lease(&self) -> Duration {
        self.params.lease.unwrap_or(self.params.ttl)
    }

    /// Up to some leases, short spans as often as long ones.
    fn span(&self, rng: &mut Rng) -> Duration {
        self.lease()
            .min(Duration::from_millis(1200))
            .mul_f64([0.1, 0.4, 1.0, 2.2][rng.usize(..4)] * (0.3 + 0.7 * rng.f64()))
    }
}

/// A fault is over, or it hit nothing.
fn over(fault: UnderFault, hit: bool) {
    if hit {
        fault.heal();
    } else {
        fault.never_happened();
    }
}

/// An error as a reason.
#[expect(clippy::needless_pass_by_value, reason = "that is how `map_err` calls it")]
fn text(error: std::io::Error) -> Failure {
    error.to_string()
}

/// All kinds of a deck in any order. Every other one is aimed: chance alone seldom finds the
/// moment.
fn shuffled(deck: &[Kind], rng: &mut Rng) -> Vec<Kind> {
    let (mut aimed, mut others): (Vec<Kind>, Vec<Kind>) =
        deck.iter().partition(|kind| kind.is_aimed());
    rng.shuffle(&mut others);
    rng.shuffle(&mut aimed);
    if others.is_empty() || aimed.is_empty() {
        return [others, aimed].concat();
    }
    let count = others.len().max(aimed.len());
    let both = others.into_iter().cycle().zip(aimed.into_iter().cycle()).take(count);
    both.flat_map(|(other, aimed)| [other, aimed]).collect()
}

enum Target<'a> {
    Client(&'a mut ClientSlot),
    Shared,
}

#[cfg(test)]
mod tests {
    use lock_history::{Clock, Header, Line};

    use super::*;

    /// One whose clients say `lines` meanwhile, and nothing else.
    fn nemesis(lines: &[&str]) -> Nemesis {
        let target = sites::all().iter().find(|target| target.name == "memory");
        let site: Arc<dyn Site> = Arc::from((target.expect("it is there").start)());
        let operator = site.shared_backend().expect("it is in memory");
        let params = site.params();
        let header = Header::new("r", 1, &operator.capabilities(), params.ttl);
        let collector = Collector::new(Recorder::in_memory(Clock::core(), header), params.locks);
        for line in lines {
            let Ok(Line::Record(record)) = Line::parse(line.as_bytes()) else { panic!("{line}") };
            collector.traffic.note(&record);
        }
        Nemesis::new(&collector, &site, &operator, &Settings::default(), false)
    }

    #[tokio::test(start_paused = true)]
    async fn what_others_are_granted_is_no_traffic_of_who_was_hit() {
        let granted =
            r#"{"kind":"ok","t":1,"proc":"p1.2/t0+1","lock":"n3","op":"acquire","grant":"a"}"#;
        let refused =
            r#"{"kind":"fail","t":1,"proc":"p1.2/t0","lock":"n3","op":"try","grant":"b"}"#;
        let nemesis = nemesis(&[granted, refused, granted, refused]);
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
            let served = nemesis.is_served(&names, before, "then").await;
            assert_eq!(served.is_ok(), is_served, "{hit:?}: {served:?}");
        }
        assert_eq!(nemesis.collector.traffic.grants(), 2);
    }
}
