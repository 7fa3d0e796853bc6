//! The page of all results.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::figures::{bound, nanos, ranges, short};
use super::totals::{Total, of_code, totals};
use crate::bugs::Finding;
use crate::draws;
use crate::outcome::Outcome;
use crate::times::Spread;

const NOTES_ON_RUNS: &str = "\n*Verdict* is the version of the rules that judged a run. A result of an older version was not\n\
    judged by the rules that were added since (`verdict.rs` lists them).\n\n\
    *Failed without a fault* are calls that returned an error although their client felt no fault\n\
    then or shortly before. Renewed holds that were lost without a fault are counted, too. A run is\n\
    not clean if more than one in two hundred acquisitions, releases, holds or calls in all failed\n\
    so, at more than three moments. Up to verdict 5 the limit was one in a hundred.\n\n\
    *Waits judged* are undisturbed waits at whose end certainly no other client had the lock, so the\n\
    campaign would have found a late grant. A run is not clean if fewer than one wait in twenty\n\
    could be judged. `–`: not counted.\n";

const PICTURES: &str = "\n![Updates lost with and without a check of fencing tokens](pictures/fencing.svg)\n\n\
    ## A member cut off from its leader\n\n\
    A ZooKeeper server that receives nothing from its leader answers pings until `syncLimit` has passed.\n\
    That is 10 s in ZooKeeper's sample configuration, and here. The leader ends the sessions of its\n\
    clients earlier, after 4 s here, and the next client is granted the lock. A holder that relies\n\
    on its connection continues for the difference. There is none if the session timeout is longer\n\
    than `syncLimit`. Curator asks for 60 s by default.\n\n\
    ![The first and the next holder after each cut, of two libraries](pictures/cut-off.svg)\n\n\
    Both libraries lost their member at the same moment, each holding another lock: Curator 5.4.0\n\
    beside this project, on ZooKeeper 3.8.0. Curator's holder stops when its listener is notified of\n\
    SUSPENDED.\n\n\
    `CUT_OFF_RUNS=8 cargo test -p lock-zookeeper --test zookeeper cut_off::` records this.\n";

/// Returns the page of all results, in Markdown.
#[must_use]
pub fn markdown(outcomes: &[Outcome], findings: &[Finding]) -> String {
    let totals = totals(outcomes);
    let mut text = "# The fault campaign\n\n\
        Made by `lock-campaign report`; the last section has the commands. Client processes take locks on\n\
        real servers. Under each lock they write to two counters: one that checks fencing tokens and one\n\
        that does not. Meanwhile the campaign stops and kills the clients, breaks their network and\n\
        restarts their servers. It records and judges all calls. Some locks are taken with `lockctl`. An\n\
        application that blocks its runtime has to keep its locks.\n\n\
        The locks of `memory` live in one process, so its clients are threads with a runtime each:\n\
        *stopped* there is a thread whose runtime is blocked, and *killed* one that was ordered to end at\n\
        once. `file` has processes, and no server.\n\n\
        ## Runs\n\n\
        | backend | runs | clean | verdict | time | operations | grants | faults | kinds | losses notified | failed without a fault | waits judged |\n\
        |---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for total in &totals {
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {:.0} s | {} | {} | {} | {} | {} | {} | {} |",
            total.backend,
            total.outcomes.len(),
            total.clean(),
            total.verdicts(),
            total.took.as_secs_f64(),
            total.operations,
            total.grants,
            total.faults,
            total.around.len(),
            total.losses.notified,
            total.failed(),
            total.waits_judged()
        );
    }
    text += NOTES_ON_RUNS;
    text += &fencing(&totals);
    text += &times(&totals);
    text += &standstills(&totals);
    text += &faults(&totals);
    text += &coverage(&totals);
    text += &unclean(&totals);
    text += &bugs(findings);
    text += "\n## Commands\n\n";
    for total in &totals {
        for (origin, seeds) in total.by_settings() {
            let command = total.command(origin.settings);
            let _ = writeln!(text, "* seeds {}{}: `{command}`", ranges(&seeds), of_code(origin));
        }
    }
    text += "* planted bugs: `lock-campaign bugs --out docs/campaign`; with `--anew`, also those with a current finding\n\
        * this page: `lock-campaign report docs/campaign --markdown docs/campaign.md`\n\n\
        `lock-campaign` is `cargo run --release -p lock-campaign --`. The option `--out docs/campaign` adds\n\
        a run to this page.\n";
    text
}

fn fencing(totals: &[Total<'_>]) -> String {
    let mut text = "\n## Fencing tokens\n\n\
        Each write stores the value that was read under the same lock plus one, and some writes are late.\n\
        An *overlap* is two claims of one lock at once. There must be none, with one exception: the\n\
        campaign broke an assumption of exclusion on purpose (the server's clock, its data, no removal by\n\
        force) while the first claim may have had the lock. These overlaps are counted in pairs, since one\n\
        claim may overlap several. A claim was *at risk* if an assumption was broken while it lasted.\n\n\
        | backend | lost without tokens | lost with tokens | refused by token | pairs that overlapped | claims at risk |\n\
        |---|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for total in totals {
        let effects = &total.effects;
        let _ = writeln!(
            text,
            "| {} | {} of {} | {} of {} | {} | {} | {} |",
            total.backend,
            effects.unfenced_lost,
            effects.unfenced_writes,
            effects.fenced_lost,
            effects.fenced_writes,
            effects.refused,
            total.excused_overlaps,
            total.claims_at_risk
        );
    }
    text + PICTURES
}

fn times(totals: &[Total<'_>]) -> String {
    let mut text = "\n## Times\n\n\
        Each cell has the median, the 99th percentile, the maximum and the count. *Takeover* is the time\n\
        from the fault that ended a holder to the next grant. *Loss* is from the notification of a loss\n\
        to the next grant, and *hand-off* from a release to the next grant. Other faults go on meanwhile,\n\
        they may hit the next waiter itself, and the machine was busy. So these times do not measure\n\
        speed, and a takeover may take longer than is declared for a healthy server and a healthy waiter.\n\
        Where locks have no lease, a stopped holder keeps them.\n\n\
        | backend | takeover | declared | allowed for load | loss to next grant | notified after it | hand-off | without a fault |\n\
        |---|---|---|--:|---|--:|---|---|\n"
        .to_owned();
    let figures = |spread: &Spread| match spread.count {
        0 => "–".to_owned(),
        count => format!(
            "{}, {}, {}; of {count}",
            short(spread.percentile(50)),
            short(spread.percentile(99)),
            nanos(spread.most)
        ),
    };
    for total in totals {
        let last = total.last();
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} | {} |",
            total.backend,
            figures(&total.takeovers),
            bound(last.takeover, last.lease).1,
            last.allowed().map_or_else(|| "–".to_owned(), short),
            figures(&total.losses.before_next),
            total.losses.after_next.count,
            figures(&total.hand_offs),
            total.promptness()
        );
    }
    text += "\nBeyond the declared bounds the verdict allows six seconds and the bound of a call, for the load of\n\
        the machine. Where the server hands locks over and a queued client was killed or stopped, it adds\n\
        one lease for each waiter of that process (up to verdict 2, always). A fault that a waiter felt\n\
        itself extends its bound until the waiter has recovered; the time that it waited between faults\n\
        counts. Three kinds of holders are notified only after the next grant: a holder that was stopped\n\
        (its deadline passes by itself), a holder whose lock was removed by force, and a holder whose lock\n\
        was lost with the server's data.\n\n\
        *Without a fault* are hand-offs in which neither the releasing client nor the waiter felt a fault,\n\
        from a lease before on: their median and their 90th percentile. The bounds are 50 ms for the\n\
        median and 200 ms for the 90th percentile. Where waiters poll, one poll interval is added to the\n\
        first and two to the second. A run that exceeds a bound is not clean, unless it had fewer than 100\n\
        such hand-offs. `–`: not counted.\n";
    text
}

fn standstills(totals: &[Total<'_>]) -> String {
    if totals.iter().all(|total| total.standstills.is_empty()) {
        return String::new();
    }
    let mut text = "\n## Standstill\n\n\
        The longest time after each failover and each restart with older data in which a waiter waited\n\
        and no client relied on the lock, of all locks. It counts from the moment when the server accepts\n\
        writes again. The promise is one claim lease and 100 ms in total, however many queue entries are\n\
        stale, after the lease of a holder that the data may name. The verdict allows four seconds and\n\
        the bound of a call for the load of the machine. A client that was killed, stopped or cut off\n\
        then or shortly before adds a lease. A run with a longer standstill is not clean. Waits of\n\
        disturbed clients are not counted.\n\n\
        | backend | fault | count | median | longest | promised | allowed for load |\n\
        |---|---|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for total in totals {
        let Some([promised, load]) = total.resumes else { continue };
        for (kind, longest) in &total.standstills {
            let _ = writeln!(
                text,
                "| {} | {kind} | {} | {} | {} | {} | {} |",
                total.backend,
                longest.count,
                short(longest.percentile(50)),
                nanos(longest.most),
                short(promised),
                short(load)
            );
        }
    }
    text
}

fn faults(totals: &[Total<'_>]) -> String {
    let mut text = "\n## Faults\n\n\
        Each cell has the number of faults and the grants while they lasted. Before and after each fault\n\
        there were at least as many grants as the run asks for. Since verdict 2 some of them were of the\n\
        client or the locks that the fault hit, or the run would have failed. `–`: not supported by this\n\
        backend, for the reason below the table.\n\n| kind |"
        .to_owned();
    text += &columns(totals);
    for kind in crate::Kind::ALL {
        if !totals.iter().any(|total| total.around.contains_key(&kind)) {
            continue;
        }
        let _ = write!(text, "| {} |", kind.description());
        for total in totals {
            let _ = match total.around.get(&kind) {
                Some(around) => write!(text, " {}; {} |", around.faults, around.during),
                None if total.last().refused_kinds.contains_key(&kind) => write!(text, " – |"),
                None => write!(text, " 0 |"),
            };
        }
        text += "\n";
    }
    for total in totals {
        let refused = &total.last().refused_kinds;
        text += &not_with(total, refused.iter().map(|(kind, reason)| (kind.name(), reason)));
    }
    text
}

/// Returns the head of a table with a column for each backend.
fn columns<'a>(totals: impl IntoIterator<Item = &'a Total<'a>>) -> String {
    let (mut names, mut rule) = (String::new(), "\n|---|".to_owned());
    for total in totals {
        let _ = write!(names, " {} |", total.backend);
        rule += "--:|";
    }
    names + &rule + "\n"
}

/// Lists the kinds or verbs that a backend does not support, by reason.
fn not_with<'a>(total: &Total<'_>, refused: impl Iterator<Item = (String, &'a String)>) -> String {
    let mut by_reason: Vec<(&String, Vec<String>)> = Vec::new();
    for (name, reason) in refused {
        match by_reason.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, names)) => names.push(name),
            None => by_reason.push((reason, vec![name])),
        }
    }
    if by_reason.is_empty() {
        return String::new();
    }
    let mut text = format!("\nNot with {}:\n", total.backend);
    for (reason, names) in by_reason {
        let _ = writeln!(text, "* {}: {reason}", names.join(", "));
    }
    text
}

fn coverage(totals: &[Total<'_>]) -> String {
    let counted: Vec<_> = totals.iter().filter(|total| total.drawn_grants > 0).collect();
    if counted.is_empty() {
        return String::new();
    }
    let mut text = "\n## Coverage\n\n\
        The calls of each verb and the hits of holders, per 1 000 grants, of the runs since verdict 6. A\n\
        run of the default length that calls a supported verb less than once per 1 000 grants is not\n\
        clean. `–`: not supported by this backend, for the reason below the table.\n\n| verb or hit |"
        .to_owned();
    let verbs: BTreeSet<&String> = counted.iter().flat_map(|total| total.draws.keys()).collect();
    text += &columns(counted.iter().copied());
    for verb in verbs {
        let _ = write!(text, "| {verb} |");
        for total in &counted {
            let rate = match total.draws.get(verb) {
                None if total.last().refused_verbs.contains_key(verb) => "–".to_owned(),
                count => draws::rate(count.copied().unwrap_or(0), total.drawn_grants),
            };
            let _ = write!(text, " {rate} |");
        }
        text += "\n";
    }
    for total in counted {
        let refused = &total.last().refused_verbs;
        text += &not_with(total, refused.iter().map(|(verb, reason)| (verb.clone(), reason)));
    }
    text
}

fn unclean(totals: &[Total<'_>]) -> String {
    let outcomes = totals.iter().flat_map(|total| &total.outcomes);
    let unclean: Vec<_> = outcomes.filter(|outcome| !outcome.is_clean()).collect();
    if unclean.is_empty() {
        return String::new();
    }
    let mut text = "\n## Not clean\n\n".to_owned();
    for outcome in unclean {
        let _ = writeln!(text, "* `{}`", outcome.command());
        for problem in outcome.failures.iter().chain(&outcome.violations) {
            let _ = writeln!(text, "  * {problem}");
        }
    }
    text
}

fn bugs(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let seen = findings.iter().filter(|finding| finding.seen.is_some()).count();
    let campaign = findings.iter().filter(|finding| finding.is_by_campaign()).count();
    let mut text = format!(
        "\n## Planted bugs\n\n\
        Known bugs of lock libraries, planted one at a time by `lock-campaign bugs`. {seen} of {} are\n\
        detected, {campaign} of them by the campaign itself. The evidence then has the violated rules and the\n\
        number of violations. All clients of such a run have the bug. Other bugs are given to the check\n\
        of a law, or planted in a copy of the code, and a test must fail.\n\n\
        | bug | mistake | detected by | evidence | command |\n|---|---|---|---|---|\n",
        findings.len(),
    );
    for finding in findings {
        let Finding { bug, description, seen, command, .. } = finding;
        let seen_by = finding.origin();
        let seen = seen.as_deref().unwrap_or("**none**").replace('|', "\\|");
        let _ = writeln!(text, "| {bug} | {description} | {seen_by} | {seen} | `{command}` |");
    }
    text
}
