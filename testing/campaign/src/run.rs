//! One run: servers, clients, faults, and the verdict.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::{Moment, sleep};
use lock_core::diagnosis::{Finding, Severity};
use lock_core::{Backend, LockName, Takeover, Wakeup};
use lock_history::{Assumption, Clock, Header, History, Line, Recorder, Report};
use tokio::task::JoinSet;

use crate::clients::{ClientSlot, Program};
use crate::collector::{Collector, Effects};
use crate::draws;
use crate::kind::{FaultSupport, Kind};
use crate::lock_names::lock_name;
use crate::nemesis::Nemesis;
use crate::orders::{ClientConfig, Order};
use crate::outcome::{Outcome, Prompt, Settings};
use crate::sites::{self, BackendSpec, Site, check_free};
use crate::times;
use crate::verdict::VERDICT;
use crate::worker;

/// The allowance for a loaded machine in each bound.
const SLACK: Duration = Duration::from_secs(4);

/// The time for which a server with hand-off reserves a lock for a waiter that does not answer. The
/// lease limits it.
const CLAIM_LEASE: Duration = Duration::from_secs(3);

/// The time that a server may take to skip all stale queue entries, in addition to a claim lease.
const SKIPS_STALE_WITHIN: Duration = Duration::from_millis(100);

/// The bounds on the median and the 90th percentile of undisturbed hand-offs. A hand-off takes one
/// or two messages. The load of the machine adds to it: four clients with six tasks each, their
/// proxies and the servers.
const PROMPT: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];

/// The factor by which other programs may slow the typical hand-off. A missed wake-up costs a
/// lease, and a lease is longer than the median may be even then.
const BUSY_FACTOR: u32 = 10;

/// The bound on undisturbed hand-offs in addition to three leases, for which waiters ahead in the
/// queue may be silent. In 100 runs the longest hand-off took two leases, and the longest without
/// them 0.9 s.
const SLOWEST: Duration = Duration::from_secs(1);

/// The longest interval between the polls of waiters that get no wake-up.
const POLL_INTERVAL: Duration = Duration::from_millis(25);

/// The time, in addition to the bound of a call, by which one waiter may start after another and
/// still be served first: until then both are queued.
const QUEUED_WITHIN: Duration = Duration::from_millis(500);

/// One in this many of the undisturbed waits must end while certainly no other client had the lock.
/// With fewer, hardly any wait could have been found late. Residues of faults excuse the others,
/// and there is little time between faults.
const JUDGED: u64 = 20;

/// The time within which servers grant the first lock.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// The time within which clients finish their operations and exit.
const QUIT_WITHIN: Duration = Duration::from_secs(60);

/// A completed run.
#[derive(Debug)]
pub struct Run {
    /// The result.
    pub outcome: Outcome,
    /// The history.
    pub lines: Vec<Line>,
}

/// Starts servers, and runs a seed on them.
///
/// # Errors
///
/// The campaign itself failed: there are no servers, no processes, or no history. Violations, and a
/// run with too little traffic, are no errors but part of the outcome.
pub async fn run(target: &BackendSpec, seed: u64, settings: &Settings) -> io::Result<Run> {
    let site: Arc<dyn Site> = Arc::from(tokio::task::block_in_place(|| (target.start)()));
    on(site, target, seed, settings).await
}

/// Runs a seed on a started site.
///
/// # Errors
///
/// As [`run`].
pub async fn on(
    site: Arc<dyn Site>,
    target: &BackendSpec,
    seed: u64,
    settings: &Settings,
) -> io::Result<Run> {
    let started = Moment::now();
    let mut rng = Rng::with_seed(seed);
    // Two runs in three keep all assumptions of exclusion.
    let breaks_all = rng.u8(..3) == 0 || !settings.only.is_empty();
    check_support(&*site, settings)?;
    let url = site.url(&[]);
    let operator = match site.shared_backend() {
        Some(shared) => shared,
        None => worker::reach(&url, target.connect).await.map_err(io::Error::other)?,
    };
    wait_until_ready(&*site, &url, target).await?;
    let header = header(target.name, seed, settings, &*site, &*operator, breaks_all);
    let recorder = Recorder::in_memory(Clock::raw(), header.clone());
    let collector = Collector::new(recorder.clone(), locks(&*site, settings));
    let nemesis = Arc::new(Nemesis::new(&collector, &site, &operator, settings, breaks_all));

    let mut failures = Vec::new();
    let slots = tokio::task::block_in_place(|| {
        start_clients(&*site, target, seed, settings, &collector, &mut rng)
    })?;
    let began = Moment::now();
    let slots = run_faults(&nemesis, slots, &mut rng, &mut failures).await;
    let played = Moment::now().saturating_since(began);
    tokio::task::block_in_place(|| stop_clients(slots, &mut failures));
    record_residue(&*site, &*operator, &recorder, &header).await;

    let context =
        RunContext { site, operator, target, seed, settings, breaks_all, header, started };
    verdict(context, &collector, &nemesis, played, failures).await
}

/// The parts of a run that its verdict needs.
struct RunContext<'a> {
    site: Arc<dyn Site>,
    operator: Arc<dyn Backend>,
    target: &'a BackendSpec,
    seed: u64,
    settings: &'a Settings,
    breaks_all: bool,
    header: Header,
    started: Moment,
}

/// Judges the history, and collects the outcome.
async fn verdict(
    context: RunContext<'_>,
    collector: &Collector,
    nemesis: &Nemesis,
    played: Duration,
    mut failures: Vec<String>,
) -> io::Result<Run> {
    let RunContext { site, operator, target, seed, settings, breaks_all, header, started } =
        context;
    let lines = collector.recorder().lines();
    let history = History::new(lines.iter().cloned()).map_err(io::Error::other)?;
    let effects = collector.effects();
    let judged = Moment::now();
    let report = lock_history::check(&history);
    failures.extend(failures_of(&report, &effects));
    let draws = draws::count(&lines, collector.verb_counts());
    let caps = operator.capabilities();
    let verbs = draws::verbs(&caps, draws::lockctl_support(target.name, &*site));
    failures.extend(draws::missing(&draws, report.grants as u64, settings, &verbs));
    let (undisturbed, unexplained) = report
        .tallies()
        .iter()
        .fold((0, 0), |(all, failed), (_, tally)| (all + tally.count, failed + tally.failed));
    let outcome = Outcome {
        backend: target.name.to_owned(),
        seed,
        settings: settings.clone(),
        code: None,
        breaks_all,
        took: Moment::now().saturating_since(started),
        played,
        judged_in: Moment::now().saturating_since(judged),
        lease: header.lease,
        takeover: operator.capabilities().takeover.into(),
        slack: slack(&header, operator.capabilities().takeover),
        verdict: VERDICT,
        undisturbed,
        unexplained,
        waits: report.waits,
        judged_waits: report.judged_waits,
        around: nemesis.traffic_by_kind().await,
        missed: nemesis.missed().await,
        refused_kinds: refused_kinds(&*site),
        refused_verbs: draws::refused(&verbs),
        draws,
        effects,
        failures,
        violations: report.violations.iter().map(ToString::to_string).collect(),
        broken: report.broken.iter().map(|(rule, count)| (format!("{rule:?}"), *count)).collect(),
        operations: report.operations,
        grants: report.grants,
        locks: report.locks,
        unknown: report.unknown,
        excused_overlaps: report.excused_overlaps,
        claims_at_risk: report.claims_at_risk,
        excused_fences: report.excused_fences,
        hand_offs: times::Spread::of(&report.hand_offs.all),
        prompt: prompt(&header, &report),
        takeovers: times::Spread::of(&report.takeovers.all),
        standstills: report
            .standstills
            .iter()
            .map(|(fault, longest)| (fault.clone(), times::Spread::of(&longest.all)))
            .collect(),
        resumes: header.resumes.map(|bound| {
            let declared = max_standstill(&*site);
            [declared, bound.saturating_sub(declared)]
        }),
        losses: times::losses(&lines),
    };
    Ok(Run { outcome, lines })
}

/// Waits until a new client gets a lock. Members of a quorum count only after some uptime, and each
/// client measures their uptime itself, to the second.
async fn wait_until_ready(site: &dyn Site, url: &str, target: &BackendSpec) -> io::Result<()> {
    let deadline = Moment::now() + READY_WITHIN;
    let name = LockName::new(lock_name(0)).expect("a good name");
    loop {
        let client = match site.shared_backend() {
            Some(shared) => shared,
            None => worker::reach(url, target.connect).await.map_err(io::Error::other)?,
        };
        let is_ready = match check_free(&*client, &name).await {
            Ok(()) if site.decides_by_majority() => all_members_count(url).await,
            checked => checked,
        };
        let Err(why) = is_ready else { return Ok(()) };
        if deadline.has_passed() {
            return Err(io::Error::other(format!("the site is not ready: {why}")));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// Checks that each member is there and has run for long enough. While one does not count,
/// concurrent tries may all be refused.
async fn all_members_count(url: &str) -> Result<(), String> {
    // It acquires no lock, which would leave a token.
    let findings = lock_any::diagnose_while(url, || false).await;
    let findings = findings.map_err(|error| format!("{error:#}"))?;
    let is_missing = |it: &&Finding| match it.severity {
        Severity::Failure => true,
        severity => it.check == "restart" && severity == Severity::Warning,
    };
    findings.iter().find(is_missing).map_or(Ok(()), |it| Err(it.to_string()))
}

/// Returns the failures of a run other than broken rules.
fn failures_of(report: &Report, effects: &Effects) -> Vec<String> {
    let mut failures = Vec::new();
    if effects.fenced_lost > 0 {
        failures.push(format!("{} updates of fenced counters were lost", effects.fenced_lost));
    }
    let (judged, waits) = (report.judged_waits, report.waits);
    if judged < waits / JUDGED {
        failures.push(format!("only {judged} of {waits} undisturbed waits could be judged"));
    }
    failures
}

/// Returns the undisturbed hand-offs and their bounds.
fn prompt(header: &Header, report: &Report) -> Option<Prompt> {
    Some(Prompt {
        took: times::Spread::of(&report.calm.all),
        half: header.half?,
        most: header.most?,
        judged: report.has_been_calm(),
    })
}

/// Returns the time that the verdict adds to the declared bound on takeover.
fn slack(header: &Header, declared: Takeover) -> Duration {
    match declared {
        Takeover::AtOnce => header.takeover,
        Takeover::LeasePlus(more) => header.takeover.saturating_sub(more),
    }
}

/// Returns the kinds of fault that the site cannot have, and the reasons.
fn refused_kinds(site: &dyn Site) -> BTreeMap<Kind, String> {
    let refused = Kind::ALL.into_iter().filter_map(|kind| match sites::support(site, kind) {
        FaultSupport::No(why) => Some((kind, why.to_owned())),
        _ => None,
    });
    refused.collect()
}

/// Checks that the site can have each kind of fault that the settings ask for.
fn check_support(site: &dyn Site, settings: &Settings) -> io::Result<()> {
    for &kind in &settings.only {
        if let FaultSupport::No(why) = sites::support(site, kind) {
            return Err(io::Error::other(format!("no {}: {why}", kind.name())));
        }
    }
    Ok(())
}

/// Returns the limit on consecutive hand-overs inside a client: one run in four has some.
fn handovers(seed: u64) -> u8 {
    if seed % 4 == 3 { 4 } else { 0 }
}

fn locks(site: &dyn Site, settings: &Settings) -> usize {
    settings.locks.unwrap_or(site.params().locks)
}

/// Returns the declared bound on the standstill of a contended lock after a failover or a restart
/// with older data. The data may name a holder, and the claim lease counts from the end of its
/// lease.
fn max_standstill(site: &dyn Site) -> Duration {
    let ttl = site.params().ttl;
    ttl + ttl.min(CLAIM_LEASE) + SKIPS_STALE_WITHIN
}

/// Returns the header of the history: the bounds and promises by which the run is judged.
fn header(
    name: &str,
    seed: u64,
    settings: &Settings,
    site: &dyn Site,
    backend: &dyn Backend,
    breaks_all: bool,
) -> Header {
    let (params, caps) = (site.params(), backend.capabilities());
    let mut header = Header::new(&format!("campaign {name}"), seed, &caps, params.ttl);
    header.lease = header.lease.map(|ttl| params.lease.unwrap_or(ttl));
    let lease = header.lease.unwrap_or_default();
    let tasks = u32::try_from(settings.tasks).unwrap_or(u32::MAX);
    // Queued waiters that were just killed or stopped may be served first, each for a lease.
    header.absent = (caps.wakeup == Wakeup::HandOff).then_some(params.ttl);
    // After a lost wake-up the waiter polls, within a lease.
    header.hand_off = SLACK + params.timeout + lease.max(params.ttl) * 2;
    header.takeover += SLACK + params.timeout;
    let declared = match caps.takeover {
        Takeover::AtOnce => Duration::ZERO,
        Takeover::LeasePlus(more) => more,
    };
    let outdated = [Kind::LeaderReplaced, Kind::ServerAged];
    let outdated = outdated.into_iter().any(|kind| site.support(kind).is_supported());
    header.resumes = outdated.then(|| max_standstill(site) + SLACK + params.timeout);
    header.fades = Some(declared + params.timeout);
    header.timeout = Some(params.timeout);
    let poll = if caps.wakeup == Wakeup::Poll { POLL_INTERVAL } else { Duration::ZERO };
    let load = if settings.busy { BUSY_FACTOR } else { 1 };
    header.half = Some(PROMPT[0] * load + poll);
    header.most = Some(PROMPT[1] * load + poll * 2);
    header.all = Some(lease.max(params.ttl) * 3 + SLOWEST);
    header.told_within = SLACK;
    header.drain = lease.max(params.ttl) * 3 + params.timeout * 4 + Duration::from_secs(6);
    header.drain += header.absent.unwrap_or_default() * tasks;
    header.recovers = Some(SLACK + params.timeout);
    header.votes = site.decides_by_majority();
    // Clients stamp their records, which arrive later.
    header.sequential = false;
    // The server counts the lease of the session, not the one that the client asks for.
    header.moves_back = params.lease.is_some();
    // A process that does not answer a pushed lock loses its queue entries. Threads get no pushes.
    header.passes_over = caps.wakeup == Wakeup::HandOff && site.shared_backend().is_none();
    header.fifo_after = header.fifo_after.map(|_| params.timeout + QUEUED_WITHIN);
    if handovers(seed) > 0 {
        // Each hand-over passes the waiters of other processes.
        (header.passes_on, header.fifo_after) = (true, None);
    }
    // A site that cannot list its names promises nothing about them.
    let documented = site.documented_residue();
    header.residue = documented.map(|names| names.into_iter().map(str::to_owned).collect());
    let mut breaks: Vec<Assumption> = Vec::new();
    for assumption in
        Kind::ALL.into_iter().filter_map(|kind| site.support(kind).broken_assumption())
    {
        let for_all = assumption != Assumption::A3 && assumption.guards_exclusion();
        if !breaks.contains(&assumption) && (breaks_all || !for_all) {
            breaks.push(assumption);
        }
    }
    header.breaks = breaks;
    header
}

/// Starts all clients, and waits until they have started their work.
fn start_clients(
    site: &dyn Site,
    target: &BackendSpec,
    seed: u64,
    settings: &Settings,
    collector: &Arc<Collector>,
    rng: &mut Rng,
) -> io::Result<Vec<ClientSlot>> {
    let params = site.params();
    let mut slots = Vec::new();
    for number in 0..settings.clients {
        let config = ClientConfig {
            run: format!("campaign {}", target.name),
            seed,
            host: String::new(),
            url: String::new(),
            ttl: params.ttl,
            typical_hold: params.typical_hold,
            timeout: params.timeout,
            locks: locks(site, settings),
            tasks: settings.tasks,
            draw: rng.u64(..),
            calls: Kind::ALL
                .iter()
                .any(|kind| kind.is_in_calls() && site.support(*kind).is_supported()),
            bug: settings.bug.clone(),
            handovers: handovers(seed),
            lockctl: draws::lockctl_support(target.name, site).is_ok(),
        };
        let program = match site.shared_backend() {
            Some(backend) => Program::Thread(backend),
            None => Program::Process { target: target.name.to_owned() },
        };
        let with_clock = site.support(Kind::ClientClockStepped).is_supported();
        let mut slot = ClientSlot::new(number, config, collector, site, program, with_clock)?;
        slot.start()?;
        slots.push(slot);
    }
    for slot in &slots {
        slot.ready()?;
    }
    Ok(slots)
}

/// Injects faults until there have been enough, and returns the client slots.
async fn run_faults(
    nemesis: &Arc<Nemesis>,
    slots: Vec<ClientSlot>,
    rng: &mut Rng,
    failures: &mut Vec<String>,
) -> Vec<ClientSlot> {
    let (mut of_clients, mut back) = (JoinSet::new(), Vec::new());
    for slot in slots {
        of_clients.spawn(Arc::clone(nemesis).run_client_faults(slot, rng.fork()));
    }
    let shared = tokio::spawn(Arc::clone(nemesis).run_shared_faults(rng.fork()));
    while let Some(joined) = of_clients.join_next().await {
        match joined {
            Ok((slot, ended)) => {
                failures.extend(ended.err());
                back.push(slot);
            }
            Err(error) => failures.push(format!("the faults of a client have panicked: {error}")),
        }
    }
    match shared.await {
        Ok(ended) => failures.extend(ended.err()),
        Err(error) => failures.push(format!("the shared faults have panicked: {error}")),
    }
    back
}

/// Orders all clients to quit, and waits until they have ended.
fn stop_clients(mut slots: Vec<ClientSlot>, failures: &mut Vec<String>) {
    let mut check = |result: io::Result<()>| failures.extend(result.err().map(|e| e.to_string()));
    for slot in &slots {
        check(slot.order(&Order::Quit));
    }
    let deadline = Moment::now() + QUIT_WITHIN;
    for slot in &mut slots {
        check(slot.wait_for_exit(deadline.remaining()));
    }
}

/// Waits until all leases have expired, and records the residue: locks that are not free, and the
/// names that are left on the servers. The checker compares the names with the documented ones.
async fn record_residue(
    site: &dyn Site,
    operator: &dyn Backend,
    recorder: &Recorder,
    header: &Header,
) {
    let deadline = Moment::now() + header.drain * 2;
    let mut left = Vec::new();
    for number in 0..site.params().locks {
        let name = LockName::new(lock_name(number)).expect("a good name");
        while let Err(taken) = check_free(operator, &name).await {
            if deadline.has_passed() {
                left.push(taken);
                break;
            }
            sleep(Duration::from_millis(20)).await;
        }
    }
    while let Some(documented) = &header.residue {
        let names = tokio::task::block_in_place(|| site.residue());
        let names = names.unwrap_or_else(|| vec!["? (the names could not be listed)".to_owned()]);
        // The checker decides. Here the patterns only end the wait.
        let is_known =
            |name: &String| documented.iter().any(|pattern| lock_history::fits(name, pattern));
        let is_known = names.iter().all(is_known);
        if is_known || deadline.has_passed() {
            left.extend(names);
            break;
        }
        sleep(Duration::from_millis(50)).await;
    }
    recorder.residue(left);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A process that does not answer a pushed lock within the claim lease loses its queue entries,
    /// as documented for Redis.
    #[tokio::test(flavor = "multi_thread")]
    async fn only_processes_with_pushed_locks_are_skipped() {
        for (name, is_skipped) in [("redis", true), ("file", false), ("memory", false)] {
            let target = sites::all().iter().find(|target| target.name == name).unwrap();
            let site = tokio::task::block_in_place(|| (target.start)());
            let backend = match site.shared_backend() {
                Some(shared) => shared,
                None => worker::reach(&site.url(&[]), target.connect).await.unwrap(),
            };
            let header = header(name, 1, &Settings::default(), &*site, &*backend, false);
            assert_eq!(header.passes_over, is_skipped, "{name}");
        }
    }
}
