//! The nemesis: injects a sequence of faults into each client, and one into servers and locks.
//!
//! The seed draws the kinds of fault, their order and their durations; traffic decides when the
//! next fault begins. There must be grants before and after each fault. During the fault there must
//! be more grants or, if the server is down, calls that meet the fault. A run without this traffic
//! proves nothing, and fails.

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
use tokio::sync::{Mutex, RwLock, Semaphore};

use crate::clients::ClientSlot;
use crate::collector::Collector;
use crate::fault_traffic::FaultTraffic;
use crate::kind::{FaultSupport, Kind, Scope};
use crate::outcome::Settings;
use crate::sites::{self, Site, SiteParams};

/// The time within which traffic must resume.
const RESUMES_WITHIN: Duration = Duration::from_secs(60);

/// One in this many of the grants between two faults must be to the client, or of the locks, that
/// the first fault hit.
const TARGET_SHARE: u64 = 100;

/// The number of consecutive faults without an effect after which a run fails.
const MAX_MISSES: usize = 10;

/// The interval at which the nemesis polls traffic.
const POLL_INTERVAL: Duration = Duration::from_millis(3);

/// The part of a run that injects faults.
pub(crate) struct Nemesis {
    collector: Arc<Collector>,
    site: Arc<dyn Site>,
    params: SiteParams,
    /// True if faults may break, for all locks at once, an assumption that exclusion depends on.
    breaks_all: bool,
    /// The kinds of fault to inject; all of them if empty.
    only: Vec<Kind>,
    /// The number of grants between the end of a fault and the next fault of the sequence.
    grants_between: u64,
    /// The number of faults still to inject.
    faults_left: AtomicU32,
    operator: Arc<dyn Backend>,
    /// Held for reading during each fault of a client. Without leases, a holder notices a break
    /// only when it checks. A break then holds this for writing, so that no client is kept from
    /// the check.
    client_faults: RwLock<()>,
    /// Permits for faults of clients. At least one client is without a fault at any time, because a
    /// run in which all clients stand still proves nothing.
    victims: Semaphore,
    /// True if locks expire. If not, a stopped client may keep all others waiting.
    has_leases: bool,
    traffic_by_kind: Mutex<BTreeMap<Kind, FaultTraffic>>,
    /// The number of faults of each kind without an effect.
    missed: Mutex<BTreeMap<Kind, u64>>,
    failed: AtomicBool,
}

/// The target of a sequence of faults: a client slot, or the servers and locks.
enum FaultTarget<'a> {
    Client(&'a mut ClientSlot),
    Shared,
}

/// A fault that is over.
struct PastFault {
    kind: Kind,
    /// The client slot or the locks that it hit; empty if it hit all of them.
    hit: Vec<String>,
    /// Grants during the fault.
    grants: u64,
    /// Calls that were started or pending during the fault.
    calls: u64,
}

/// The reason why the run itself failed.
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
            faults_left: AtomicU32::new(settings.faults),
            operator: Arc::clone(operator),
            client_faults: RwLock::new(()),
            victims: Semaphore::new(settings.clients.saturating_sub(1).max(1)),
            has_leases: operator.capabilities().takeover != Takeover::AtOnce,
            traffic_by_kind: Mutex::default(),
            missed: Mutex::default(),
            failed: AtomicBool::new(false),
        }
    }

    /// Injects faults into the clients of one slot, one after the other.
    pub(crate) async fn run_client_faults(
        self: Arc<Self>,
        mut slot: ClientSlot,
        rng: Rng,
    ) -> (ClientSlot, Result<(), Failure>) {
        let kinds = self.kinds(true);
        let ended = self.run_faults(kinds, rng, &mut FaultTarget::Client(&mut slot)).await;
        (slot, ended)
    }

    /// Injects faults into servers and locks, which all clients share.
    pub(crate) async fn run_shared_faults(self: Arc<Self>, rng: Rng) -> Result<(), Failure> {
        let kinds = self.kinds(false);
        self.run_faults(kinds, rng, &mut FaultTarget::Shared).await
    }

    /// Returns the traffic around the faults so far.
    pub(crate) async fn traffic_by_kind(&self) -> BTreeMap<Kind, FaultTraffic> {
        self.traffic_by_kind.lock().await.clone()
    }

    /// Returns the number of faults without an effect, which do not count.
    pub(crate) async fn missed(&self) -> BTreeMap<Kind, u64> {
        self.missed.lock().await.clone()
    }

    /// Returns the kinds of fault that this run can have: of clients, or of servers and locks.
    fn kinds(&self, of_clients: bool) -> Vec<Kind> {
        let kinds =
            Kind::ALL.into_iter().filter(|kind| (kind.scope() == Scope::Client) == of_clients);
        kinds.filter(|&kind| self.allows(kind) && self.is_wanted(kind)).collect()
    }

    fn is_wanted(&self, kind: Kind) -> bool {
        self.only.is_empty() || self.only.contains(&kind)
    }

    fn allows(&self, kind: Kind) -> bool {
        match sites::support(&*self.site, kind) {
            FaultSupport::Yes => true,
            FaultSupport::No(_) => false,
            // The assumption is broken for one lock only.
            FaultSupport::Breaks(Assumption::A3) => true,
            FaultSupport::Breaks(assumption) => self.breaks_all || !assumption.guards_exclusion(),
        }
    }

    async fn run_faults(
        &self,
        kinds: Vec<Kind>,
        mut rng: Rng,
        target: &mut FaultTarget<'_>,
    ) -> Result<(), Failure> {
        if kinds.is_empty() {
            return Ok(());
        }
        let result = self.run_schedule(&kinds, &mut rng, target).await;
        if result.is_err() {
            self.failed.store(true, Ordering::SeqCst);
        }
        result
    }

    /// Injects faults until enough have been injected in this run, with traffic between them.
    async fn run_schedule(
        &self,
        kinds: &[Kind],
        rng: &mut Rng,
        target: &mut FaultTarget<'_>,
    ) -> Result<(), Failure> {
        let mut schedule: Vec<Kind> = Vec::new();
        let mut last: Option<Kind> = None;
        let traffic = &self.collector.traffic;
        let mut healed = traffic.grants();
        // The grants of a client count also before its first fault, those of locks only after one.
        let mut hit: Vec<String> = match target {
            FaultTarget::Client(slot) => vec![slot.name()],
            FaultTarget::Shared => Vec::new(),
        };
        let mut healed_of_hit = traffic.grants_of(&hit);
        loop {
            let when = last
                .map_or_else(|| "before the first fault".into(), |k| format!("after {}", k.name()));
            self.await_grants(healed + self.grants_between, &when).await?;
            let between = traffic.grants() - healed;
            self.await_grants_of(&hit, healed_of_hit, &when).await?;
            let of_hit = (!hit.is_empty()).then(|| traffic.grants_of(&hit) - healed_of_hit);
            if let Some(last) = last {
                self.count(last, |counts| {
                    counts.after += between;
                    counts.least = counts.least.min(between);
                    counts.lower_least_of_hit(of_hit);
                })
                .await;
            }
            if !self.take_fault() {
                return Ok(());
            }
            let fault = self.inject_next(kinds, &mut schedule, rng, target).await?;
            hit = fault.hit;
            (healed, healed_of_hit) = (traffic.grants(), traffic.grants_of(&hit));
            let of_hit = of_hit.filter(|_| matches!(target, FaultTarget::Client(_)));
            self.count(fault.kind, |counts| {
                counts.faults += 1;
                counts.before += between;
                counts.least = if counts.faults == 1 { between } else { counts.least.min(between) };
                counts.lower_least_of_hit(of_hit);
                counts.during += fault.grants;
                counts.calls += fault.calls;
            })
            .await;
            last = Some(fault.kind);
        }
    }

    /// Injects the next fault of the schedule. A fault without an effect does not count, and the
    /// one after it is injected.
    async fn inject_next(
        &self,
        kinds: &[Kind],
        schedule: &mut Vec<Kind>,
        rng: &mut Rng,
        target: &mut FaultTarget<'_>,
    ) -> Result<PastFault, Failure> {
        let traffic = &self.collector.traffic;
        for _ in 0..MAX_MISSES {
            if schedule.is_empty() {
                *schedule = shuffled(kinds, rng);
            }
            let kind = schedule.pop().expect("there are kinds");
            let _victim = match target {
                FaultTarget::Client(_) => Some(self.victims.acquire().await),
                FaultTarget::Shared => None,
            };
            let (grants, calls) = (traffic.grants(), traffic.calls());
            let pending = traffic.pending();
            let injected = self.inject(kind, rng, target).await;
            if let Some(hit) = injected.map_err(|why| format!("{}: {why}", kind.name()))? {
                let (grants, calls) = (traffic.grants() - grants, traffic.calls() - calls);
                return Ok(PastFault { kind, hit, grants, calls: calls + pending });
            }
            *self.missed.lock().await.entry(kind).or_default() += 1;
        }
        Err(format!("minimum traffic: {MAX_MISSES} faults in a row hit nothing"))
    }

    /// Takes one of the faults that are left. Returns false if there are none, or if the run has
    /// failed.
    fn take_fault(&self) -> bool {
        let take = |left: u32| left.checked_sub(1);
        !self.failed.load(Ordering::SeqCst)
            && self.faults_left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_ok()
    }

    async fn count(&self, kind: Kind, change: impl FnOnce(&mut FaultTraffic)) {
        change(self.traffic_by_kind.lock().await.entry(kind).or_default());
    }

    /// Waits until the run has this many grants.
    async fn await_grants(&self, grants: u64, when: &str) -> Result<(), Failure> {
        let enough = || self.collector.traffic.grants() >= grants;
        self.poll_until(enough).await.map_err(|()| {
            let wanted = self.grants_between;
            format!("minimum traffic: fewer than {wanted} grants in {RESUMES_WITHIN:?} {when}")
        })
    }

    /// Waits for the share of grants of the client, or of the locks, that a fault hit. The traffic
    /// of others proves nothing about them.
    async fn await_grants_of(
        &self,
        hit: &[String],
        before: u64,
        when: &str,
    ) -> Result<(), Failure> {
        let wanted = if hit.is_empty() { 0 } else { (self.grants_between / TARGET_SHARE).max(1) };
        let enough = || self.collector.traffic.grants_of(hit) >= before + wanted;
        self.poll_until(enough).await.map_err(|()| {
            let hit = hit.join(", ");
            let within = RESUMES_WITHIN;
            format!("minimum traffic: fewer than {wanted} grants of {hit} in {within:?} {when}")
        })
    }

    /// Polls until `condition` holds. Fails after [`RESUMES_WITHIN`].
    async fn poll_until(&self, condition: impl Fn() -> bool) -> Result<(), ()> {
        poll(RESUMES_WITHIN, POLL_INTERVAL, || condition().then_some(())).await.ok_or(())
    }

    /// Lets a fault last for `duration`, and until there was traffic during it.
    async fn last(&self, scope: Scope, duration: Duration) -> Result<(), Failure> {
        self.last_until(scope, duration, || true).await
    }

    /// Lets a fault in the calls or in the network of one client last for `duration`, until there
    /// was traffic during it and that client has met it.
    async fn last_for(&self, host: &str, duration: Duration) -> Result<(), Failure> {
        let traffic = &self.collector.traffic;
        let calls = traffic.calls_of(host);
        let has_called = || traffic.calls_of(host) > calls || traffic.pending_of(host) > 0;
        self.last_until(Scope::Client, duration, has_called).await
    }

    async fn last_until(
        &self,
        scope: Scope,
        duration: Duration,
        is_met: impl Fn() -> bool,
    ) -> Result<(), Failure> {
        let traffic = &self.collector.traffic;
        let (grants, calls) = (traffic.grants(), traffic.calls());
        sleep(duration).await;
        let goes_on = || match scope {
            Scope::Client if !self.has_leases => traffic.calls() > calls || traffic.pending() > 0,
            Scope::Outage => traffic.calls() > calls || traffic.pending() > 0,
            Scope::Client | Scope::Partial => traffic.grants() > grants,
        };
        self.poll_until(|| goes_on() && is_met()).await.map_err(|()| {
            format!("minimum traffic: nothing happened in {RESUMES_WITHIN:?} during the fault")
        })
    }

    /// Injects a fault and heals it. Returns the client slot or the locks that it hit, none of them
    /// if it hit all, and `None` if it had no effect.
    async fn inject(
        &self,
        kind: Kind,
        rng: &mut Rng,
        target: &mut FaultTarget<'_>,
    ) -> Result<Option<Vec<String>>, Failure> {
        match target {
            FaultTarget::Client(slot) => {
                let _client_fault = self.client_faults.read().await;
                let hit = self.inject_client_fault(kind, rng, slot).await?;
                Ok(hit.then(|| vec![slot.name()]))
            }
            FaultTarget::Shared => self.inject_shared_fault(kind, rng).await.map(Some),
        }
    }

    fn recorder(&self) -> &Recorder {
        self.collector.recorder()
    }

    fn lease(&self) -> Duration {
        self.params.lease.unwrap_or(self.params.ttl)
    }

    /// Draws a duration of up to some leases, short ones as often as long ones.
    fn draw_span(&self, rng: &mut Rng) -> Duration {
        self.lease()
            .min(Duration::from_millis(1200))
            .mul_f64([0.1, 0.4, 1.0, 2.2][rng.usize(..4)] * (0.3 + 0.7 * rng.f64()))
    }
}

/// Polls until `find` returns a value. Returns `None` if it finds none in time.
async fn poll<T>(
    within: Duration,
    interval: Duration,
    mut find: impl FnMut() -> Option<T>,
) -> Option<T> {
    let deadline = Moment::now() + within;
    loop {
        let found = find();
        if found.is_some() || deadline.has_passed() {
            return found;
        }
        sleep(interval).await;
    }
}

/// Records the end of a fault, or that it had no effect.
fn record_end(fault: UnderFault, hit: bool) {
    if hit {
        fault.heal();
    } else {
        fault.never_happened();
    }
}

/// Converts an error to a failure.
#[expect(clippy::needless_pass_by_value, reason = "that is how `map_err` calls it")]
fn failure(error: std::io::Error) -> Failure {
    error.to_string()
}

/// Returns all kinds in random order. Every other one is aimed, because chance alone seldom hits
/// the critical moment.
fn shuffled(kinds: &[Kind], rng: &mut Rng) -> Vec<Kind> {
    let (mut aimed, mut others): (Vec<Kind>, Vec<Kind>) =
        kinds.iter().partition(|kind| kind.is_aimed());
    rng.shuffle(&mut others);
    rng.shuffle(&mut aimed);
    if others.is_empty() || aimed.is_empty() {
        return [others, aimed].concat();
    }
    let count = others.len().max(aimed.len());
    let both = others.into_iter().cycle().zip(aimed.into_iter().cycle()).take(count);
    both.flat_map(|(other, aimed)| [other, aimed]).collect()
}

#[cfg(test)]
mod tests {
    use lock_history::{Clock, Header, Line};

    use super::*;

    /// Creates a nemesis whose collector has counted these records, and no others.
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
    async fn grants_of_others_are_no_traffic_of_the_target() {
        let granted =
            r#"{"kind":"ok","t":1,"proc":"p1.2/t0+1","lock":"n3","op":"acquire","grant":"a"}"#;
        let refused =
            r#"{"kind":"fail","t":1,"proc":"p1.2/t0","lock":"n3","op":"try","grant":"b"}"#;
        let nemesis = nemesis(&[granted, refused, granted, refused]);
        for (hit, before, enough) in [
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
            let result = nemesis.await_grants_of(&names, before, "then").await;
            assert_eq!(result.is_ok(), enough, "{hit:?}: {result:?}");
        }
        assert_eq!(nemesis.collector.traffic.grants(), 2);
    }
}
