//! One run: servers, clients, faults, and the verdict.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use fastrand::Rng;
use lock_core::clock::{Moment, sleep};
use lock_core::{Backend, LockName, Takeover, Wakeup};
use lock_history::{Assumption, Clock, Header, History, Line, Recorder, Report};
use tokio::task::JoinSet;

use crate::clients::{ClientSlot, Program};
use crate::collector::{Collector, Effects, lock_name};
use crate::draws;
use crate::kind::{FaultSupport, Kind};
use crate::nemesis::Nemesis;
use crate::outcome::{Outcome, Prompt, Settings};
use crate::sites::{self, BackendSpec, Site, check_free};
use crate::times;
use crate::verdict::VERDICT;
use crate::worker::{self, Duty, Order};

/// What a loaded machine may need wherever a bound is promised.
const SLACK: Duration = Duration::from_secs(4);

/// For how long a lock stays with a waiter that was sent it and does not answer; for its lease, if
/// that is shorter.
const CLAIM_LEASE: Duration = Duration::from_secs(3);

/// What passing over all stale queue entries may take besides a claim lease.
const PASSING_OVER: Duration = Duration::from_millis(100);

/// The largest median and 90th percentile of undisturbed hand-offs. A hand-off takes a message or
/// two, and the load of the machine adds to it: four clients with six tasks each, their proxies and
/// the servers.
const PROMPT: [Duration; 2] = [Duration::from_millis(50), Duration::from_millis(200)];

/// The factor by which other programs may slow the typical hand-off. A missed wake-up costs a
/// lease, which is longer than the median may be even then.
const BUSY: u32 = 10;

/// No hand-off that no fault disturbed takes longer than this, and three leases: those before the
/// waiter in line may be silent. In 100 runs the longest took two leases, and the longest without
/// them 0.9 s.
const LATEST: Duration = Duration::from_secs(1);

/// How long waiters that nothing wakes look away, at the most.
const LOOKS_AWAY: Duration = Duration::from_millis(25);

/// So long after another one somebody may begin to wait and still be served before it, besides the
/// bound of a call: until both stand in line.
const IN_LINE: Duration = Duration::from_millis(500);

/// Of the waits that no fault disturbed, one in so many has to end when certainly nobody else had
/// the lock: otherwise hardly any could have been found late. What faults leave behind excuses the
/// others, and there is little time between faults.
const JUDGED: u64 = 20;

/// How long the servers may take until a lock can be had.
const READY_WITHIN: Duration = Duration::from_secs(60);

/// How long the clients may take to end what they have begun.
const QUIT_WITHIN: Duration = Duration::from_secs(60);

/// A run that is over.
#[derive(Debug)]
pub struct Run {
    /// What came of it.
    pub outcome: Outcome,
    /// What was recorded.
    pub lines: Vec<Line>,
}

/// Runs what a seed stands for on servers of its own.
///
/// # Errors
///
/// No servers, no processes, no history: the campaign itself is broken. What is wrong with locks,
/// and a run in which too little happened, is in the outcome.
pub async fn run(target: &BackendSpec, seed: u64, settings: &Settings) -> io::Result<Run> {
    let site: Arc<dyn Site> = Arc::from(tokio::task::block_in_place(|| (target.start)()));
    on(site, target, seed, settings).await
}

/// The same on a site that is there.
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
    // Two runs in three break nothing that all exclusion rests on.
    let breaks_all = rng.u8(..3) == 0 || !settings.only.is_empty();
    has_all(&*site, settings)?;
    let url = site.url(&[]);
    let operator = match site.shared_backend() {
        Some(shared) => shared,
        None => worker::reach(&url, target.connect).await.map_err(io::Error::other)?,
    };
    until_ready(&*site, &url, target).await?;
    let header = header(target.name, seed, settings, &*site, &*operator, breaks_all);
    let recorder = Recorder::in_memory(Clock::raw(), header.clone());
    let collector = Collector::new(recorder.clone(), locks(&*site, settings));
    let nemesis = Arc::new(Nemesis::new(&collector, &site, &operator, settings, breaks_all));

    let mut failures = Vec::new();
    let slots = tokio::task::block_in_place(|| {
        start_clients(&*site, target, seed, settings, &collector, &mut rng)
    })?;
    let began = Moment::now();
    let slots = play(&nemesis, slots, &mut rng, &mut failures).await;
    let played = Moment::now().saturating_since(began);
    tokio::task::block_in_place(|| dismiss(slots, &mut failures));
    look_what_is_left(&*site, &*operator, &recorder, &header).await;

    let context =
        RunContext { site, operator, target, seed, settings, breaks_all, header, started };
    verdict(context, &collector, &nemesis, played, failures).await
}

/// What a run is played on.
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

/// What came of it.
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
    failures.extend(what_failed(&report, &effects));
    let draws = draws::count(&lines, collector.deeds());
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
        around: nemesis.around().await,
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
            .map(|(what, longest)| (what.clone(), times::Spread::of(&longest.all)))
            .collect(),
        resumes: header.resumes.map(|bound| {
            let promised = promised(&*site);
            [promised, bound.saturating_sub(promised)]
        }),
        losses: times::losses(&lines),
    };
    Ok(Run { outcome, lines })
}

/// Waits until a new client gets a lock. Members of a quorum count only when they have run for a
/// while, and each client finds out by itself for how long they have, to the second.
async fn until_ready(site: &dyn Site, url: &str, target: &BackendSpec) -> io::Result<()> {
    let deadline = Moment::now() + READY_WITHIN;
    let name = LockName::new(lock_name(0)).expect("a good name");
    loop {
        let client = match site.shared_backend() {
            Some(shared) => shared,
            None => worker::reach(url, target.connect).await.map_err(io::Error::other)?,
        };
        let Err(why) = check_free(&*client, &name).await else { return Ok(()) };
        if deadline.has_passed() {
            return Err(io::Error::other(format!("it is not ready: {why}")));
        }
        sleep(Duration::from_millis(100)).await;
    }
}

/// What is wrong besides broken rules.
fn what_failed(report: &Report, effects: &Effects) -> Vec<String> {
    let mut failures = Vec::new();
    if effects.fenced_lost > 0 {
        failures.push(format!("{} updates behind fences were lost", effects.fenced_lost));
    }
    let (judged, waits) = (report.judged_waits, report.waits);
    if judged < waits / JUDGED {
        failures.push(format!("of {waits} waits that no fault disturbed {judged} could be judged"));
    }
    failures
}

/// Hand-offs that no fault disturbed, and their bounds.
fn prompt(header: &Header, report: &Report) -> Option<Prompt> {
    Some(Prompt {
        took: times::Spread::of(&report.calm.all),
        half: header.half?,
        most: header.most?,
        judged: report.has_been_calm(),
    })
}

/// What the verdict allows beyond what is declared.
fn slack(header: &Header, declared: Takeover) -> Duration {
    match declared {
        Takeover::AtOnce => header.takeover,
        Takeover::LeasePlus(more) => header.takeover.saturating_sub(more),
    }
}

fn refused_kinds(site: &dyn Site) -> BTreeMap<Kind, String> {
    let refused = Kind::ALL.into_iter().filter_map(|kind| match sites::support(site, kind) {
        FaultSupport::No(why) => Some((kind, why.to_owned())),
        _ => None,
    });
    refused.collect()
}

/// A kind of fault that a site cannot have is not left out without a word.
fn has_all(site: &dyn Site, settings: &Settings) -> io::Result<()> {
    for &kind in &settings.only {
        if let FaultSupport::No(why) = sites::support(site, kind) {
            return Err(io::Error::other(format!("no {}: {why}", kind.name())));
        }
    }
    Ok(())
}

/// In one run of four, locks are handed over inside of clients.
fn handovers(seed: u64) -> u8 {
    if seed % 4 == 3 { 4 } else { 0 }
}

fn locks(site: &dyn Site, settings: &Settings) -> usize {
    settings.locks.unwrap_or(site.params().locks)
}

/// How long a contended lock may stand still after a failover or a restart with older data, in
/// total: the claim lease counts from the end of the lease of a holder that the data may name.
fn promised(site: &dyn Site) -> Duration {
    let ttl = site.params().ttl;
    ttl + ttl.min(CLAIM_LEASE) + PASSING_OVER
}

/// What is promised in such a run.
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
    // Those in line who have just died, or are stopped, may be served first, each for a lease.
    header.absent = (caps.wakeup == Wakeup::HandOff).then_some(params.ttl);
    // A signal that was lost costs a look, which comes within a lease.
    header.hand_off = SLACK + params.timeout + lease.max(params.ttl) * 2;
    header.takeover += SLACK + params.timeout;
    let declared = match caps.takeover {
        Takeover::AtOnce => Duration::ZERO,
        Takeover::LeasePlus(more) => more,
    };
    let gets_old = [Kind::LeaderReplaced, Kind::ServerAged];
    let gets_old = gets_old.into_iter().any(|kind| site.support(kind).is_supported());
    header.resumes = gets_old.then(|| promised(site) + SLACK + params.timeout);
    header.fades = Some(declared + params.timeout);
    header.timeout = Some(params.timeout);
    let looks_away = if caps.wakeup == Wakeup::Poll { LOOKS_AWAY } else { Duration::ZERO };
    let load = if settings.busy { BUSY } else { 1 };
    header.half = Some(PROMPT[0] * load + looks_away);
    header.most = Some(PROMPT[1] * load + looks_away * 2);
    header.all = Some(lease.max(params.ttl) * 3 + LATEST);
    header.told_within = SLACK;
    header.drain = lease.max(params.ttl) * 3 + params.timeout * 4 + Duration::from_secs(6);
    header.drain += header.absent.unwrap_or_default() * tasks;
    header.recovers = Some(SLACK + params.timeout);
    header.votes = site.decides_by_majority();
    // Clients stamp their answers, which arrive later.
    header.sequential = false;
    // A process that does not answer a lock that it is sent loses its places. Threads have no such
    // connection. The server counts another lease than the one asked for: that of the session.
    header.moves_back = params.lease.is_some();
    header.passes_over = caps.wakeup == Wakeup::HandOff && site.shared_backend().is_none();
    header.fifo_after = header.fifo_after.map(|_| params.timeout + IN_LINE);
    if handovers(seed) > 0 {
        // Others are overtaken by as many.
        (header.passes_on, header.fifo_after) = (true, None);
    }
    // Where nobody can look, nothing is promised.
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
        let duty = Duty {
            run: format!("campaign {}", target.name),
            seed,
            host: String::new(),
            url: String::new(),
            ttl: params.ttl,
            beat: params.typical_hold,
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
        let mut slot = ClientSlot::new(number, duty, collector, site, program, with_clock)?;
        slot.start()?;
        slots.push(slot);
    }
    for slot in &slots {
        slot.ready()?;
    }
    Ok(slots)
}

/// Faults, until there have been enough of them.
async fn play(
    nemesis: &Arc<Nemesis>,
    slots: Vec<ClientSlot>,
    rng: &mut Rng,
    failures: &mut Vec<String>,
) -> Vec<ClientSlot> {
    let (mut lanes, mut back) = (JoinSet::new(), Vec::new());
    for slot in slots {
        lanes.spawn(Arc::clone(nemesis).haunt(slot, rng.fork()));
    }
    let shared = tokio::spawn(Arc::clone(nemesis).shake(rng.fork()));
    while let Some(lane) = lanes.join_next().await {
        match lane {
            Ok((slot, ended)) => {
                failures.extend(ended.err());
                back.push(slot);
            }
            Err(error) => failures.push(format!("a lane of faults has panicked: {error}")),
        }
    }
    match shared.await {
        Ok(ended) => failures.extend(ended.err()),
        Err(error) => failures.push(format!("the servers' lane of faults has panicked: {error}")),
    }
    back
}

/// All clients end in their own time.
fn dismiss(mut slots: Vec<ClientSlot>, failures: &mut Vec<String>) {
    let mut check = |result: io::Result<()>| failures.extend(result.err().map(|e| e.to_string()));
    for slot in &slots {
        check(slot.order(&Order::Quit));
    }
    let deadline = Moment::now() + QUIT_WITHIN;
    for slot in &mut slots {
        check(slot.quit(deadline.remaining()));
    }
}

/// When what was not let go has lapsed, every lock is free, and only documented names are left.
async fn look_what_is_left(
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
        let names = names.unwrap_or_else(|| vec!["? (nobody could look)".to_owned()]);
        // The checker decides; this only says whether it is worth while to wait.
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

    /// A process that is sent a lock and does not answer within the claim lease loses its places.
    /// Redis documents that.
    #[tokio::test(flavor = "multi_thread")]
    async fn only_processes_that_are_sent_locks_are_passed_over() {
        for (name, is_passed_over) in [("redis", true), ("file", false), ("memory", false)] {
            let target = sites::all().iter().find(|target| target.name == name).unwrap();
            let site = tokio::task::block_in_place(|| (target.start)());
            let backend = match site.shared_backend() {
                Some(shared) => shared,
                None => worker::reach(&site.url(&[]), target.connect).await.unwrap(),
            };
            let header = header(name, 1, &Settings::default(), &*site, &*backend, false);
            assert_eq!(header.passes_over, is_passed_over, "{name}");
        }
    }
}
