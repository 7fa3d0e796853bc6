//! The summary that is checked in.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use super::figures::{bound, nanos, ranges, short};
use super::totals::{Total, of_code, totals};
use crate::bugs::Finding;
use crate::draws;
use crate::outcome::Outcome;
use crate::times::Spread;

const WHAT_IS_COUNTED: &str = "\n*Verdict* is the version of the rules that a run was judged by. A result of an older version was not judged by the\n\
    rules that were added since (`outcome.rs` lists them).\n\n\
    *Failed without a fault* are calls that returned an error although their client felt no fault then or shortly before.\n\
    Renewed holds that were lost without a fault are counted, too. A run is not clean if more than one in two hundred\n\
    acquisitions, releases, holds or calls in all failed so, at more than three moments. Up to verdict 5 the limit was one in\n\
    a hundred.\n\n\
    *Waits judged* are undisturbed waits at whose end certainly no other client had the lock, so a late grant would have been\n\
    found. A run is not clean if fewer than one wait in twenty could be judged. `–`: not counted.\n";

const PICTURES: &str = "\n![Updates lost with and without a check of fencing tokens](pictures/fencing.svg)\n\n\
    ## A member cut off from its leader\n\n\
    A ZooKeeper server that hears nothing of its leader answers pings until `syncLimit` has passed.\n\
    That is 10 s in ZooKeeper's sample configuration, and here. The leader ends the sessions of its\n\
    clients earlier, after 4 s here, and the next client is granted the lock. A holder that relies\n\
    on its connection goes on for the difference. There is none if the session timeout is longer\n\
    than `syncLimit`. Curator asks for 60 s by default.\n\n\
    ![The first and the next holder after each cut, of two libraries](pictures/cut-off.svg)\n\n\
    Both libraries lost their member in the same moment, each holding another lock: Curator 5.4.0\n\
    beside ours, on ZooKeeper 3.8.0. Curator's holder stops when its listener is notified of\n\
    SUSPENDED.\n\n\
    `CUT_OFF_RUNS=8 cargo test -p lock-zookeeper --test zookeeper cut_off::` records this.\n";

/// The summary.
#[must_use]
pub fn markdown(outcomes: &[Outcome], findings: &[Finding]) -> String {
    let totals = totals(outcomes);
    let mut text = "# The fault campaign\n\n\
        Made by `lock-campaign report`; the last section has the commands. Client processes take locks on real servers and\n\
        write, under each lock, to two counters: one that checks fencing tokens and one that does not. Meanwhile they are\n\
        stopped and killed, their network is broken, their servers are restarted. Everything is recorded and judged. Some\n\
        locks are taken with `lockctl`. An application that blocks its runtime has to keep its locks. The locks of `memory`\n\
        live in one process, so its clients are threads with a runtime each: *stopped* there is a thread whose runtime is\n\
        blocked, and *killed* one that was told to end where it is. `file` has processes, and no server.\n\n\
        ## What was run\n\n\
        | backend | runs | clean | verdict | time | operations | grants | faults | kinds | losses told | failed without a fault | waits judged |\n\
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
            total.losses.told,
            total.failed(),
            total.waits_judged()
        );
    }
    text += WHAT_IS_COUNTED;
    text += &fences(&totals);
    text += &times(&totals);
    text += &standstills(&totals);
    text += &faults(&totals);
    text += &draw_table(&totals);
    text += &unclean(&totals);
    text += &bugs(findings);
    text += "\n## Commands\n\n";
    for total in &totals {
        for (origin, seeds) in total.by_settings() {
            let command = total.command(origin.settings);
            let _ = writeln!(text, "* seeds {}{}: `{command}`", ranges(&seeds), of_code(origin));
        }
    }
    text += "* bugs on purpose: `lock-campaign bugs --out docs/campaign`; with `--anew`, also those that are there already\n\
        * this page: `lock-campaign report docs/campaign --markdown docs/campaign.md`\n\n\
        `lock-campaign` is `cargo run --release -p lock-campaign --`; with `--out docs/campaign` a run is added to this page.\n";
    text
}

fn fences(totals: &[Total<'_>]) -> String {
    let mut text = "\n## What fences buy\n\n\
        Each write puts back, one higher, what was read under the same lock, some of them late. An *overlap* is two claims of\n\
        one lock at once: there must be none, unless the first of them may have had the lock when what exclusion rests on\n\
        (the server's clock, its data, nobody's force) was broken on purpose. These are counted, by pairs: one claim may\n\
        overlap several. A claim was *at risk* if it was broken while the claim lasted.\n\n\
        | backend | lost without fences | lost with fences | refused by fences | pairs that overlapped | claims at risk |\n\
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
        Each cell has the median, the 99th percentile, the maximum and the count. *Takeover* is from the fault that ended a\n\
        holder to the next holder, *loss* from the notification of a loss to the next grant, *hand-off* from a release to the\n\
        next holder. Other faults go on meanwhile, the next waiter may be hit itself, and the machine was busy. So these are\n\
        no measurements of speed, and a takeover may take longer than is declared for a healthy server and a healthy waiter.\n\
        Where locks have no lease, a stopped holder keeps them.\n\n\
        | backend | takeover | declared | allowed for load | loss to next grant | told after it | hand-off | without a fault |\n\
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
    text += "\nBeyond the declared bounds the verdict allows six seconds and the bound of a call, for the load of the machine. Where\n\
        the server hands locks over and a queued client was killed or stopped, one lease for each waiter of its process is\n\
        added (up to verdict 2, always). A fault that a waiter felt itself extends its bound until the waiter has recovered;\n\
        the time that it waited between faults counts. Three kinds of holders are notified only after the next grant: a holder\n\
        that was stopped (its deadline passes by itself), a holder whose lock was removed by force, and a holder whose lock\n\
        was lost with the server's data.\n\n\
        *Without a fault* are hand-offs in which neither the releasing client nor the waiter felt a fault, from a lease before\n\
        on: their median and their 90th percentile. A run in which these are more than 50 ms and 200 ms, with a pause between two looks (two, of\n\
        nine in ten) where waiters look from time to time, is not clean, unless there were fewer than 100. `–`: nobody looked.\n";
    text
}

fn standstills(totals: &[Total<'_>]) -> String {
    if totals.iter().all(|total| total.standstills.is_empty()) {
        return String::new();
    }
    let mut text = "\n## Standstill\n\n\
        The longest time after each failover and each restart with older data in which a waiter waited and no client relied\n\
        on the lock, of all locks, counted from when the server takes writes again. Promised is one claim lease and 100 ms\n\
        in total, however many queue entries are stale, after the lease of a holder that the data may name. The verdict\n\
        allows four seconds and the bound of a call for the load of the machine. A client that was killed, stopped or cut off\n\
        then or shortly before adds a lease. A run with a longer standstill is not clean. Waits of clients that were disturbed themselves are not counted.\n\n\
        | backend | fault | how many | half below | longest | promised | allowed for load |\n\
        |---|---|--:|--:|--:|--:|--:|\n"
        .to_owned();
    for total in totals {
        let Some([promised, load]) = total.resumes else { continue };
        for (what, longest) in &total.standstills {
            let _ = writeln!(
                text,
                "| {} | {what} | {} | {} | {} | {} | {} |",
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
        How often; and the grants while they lasted. Before and after each single one there were at least as many as the\n\
        run asks for, and since the second verdict some of the client or the locks that it hit, or it would have failed.\n\
        `–`: not with this backend; why stands below the table.\n\n| kind |"
        .to_owned();
    for total in totals {
        let _ = write!(text, " {} |", total.backend);
    }
    text += "\n|---|";
    text += &"--:|".repeat(totals.len());
    text += "\n";
    for kind in crate::Kind::ALL {
        if !totals.iter().any(|total| total.around.contains_key(&kind)) {
            continue;
        }
        let _ = write!(text, "| {} |", kind.what());
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
        text += &not_with(total, refused.iter().map(|(kind, why)| (kind.name(), why)));
    }
    text
}

/// Lists the kinds or verbs that a backend cannot have, by reason.
fn not_with<'a>(total: &Total<'_>, refused: impl Iterator<Item = (String, &'a String)>) -> String {
    let mut reasons: Vec<(&String, Vec<String>)> = Vec::new();
    for (what, why) in refused {
        match reasons.iter_mut().find(|(reason, _)| *reason == why) {
            Some((_, whats)) => whats.push(what),
            None => reasons.push((why, vec![what])),
        }
    }
    if reasons.is_empty() {
        return String::new();
    }
    let mut text = format!("\nNot with {}:\n", total.backend);
    for (why, whats) in reasons {
        let _ = writeln!(text, "* {}: {why}", whats.join(", "));
    }
    text
}

fn draw_table(totals: &[Total<'_>]) -> String {
    let counted: Vec<_> = totals.iter().filter(|total| total.drawn_grants > 0).collect();
    if counted.is_empty() {
        return String::new();
    }
    let mut text = "\n## Draws\n\n\
        How often clients did what, and holders were hit, per 1 000 grants; of the runs since verdict 6. A run of the\n\
        default length in which a verb that the backend has comes less than once is not clean. `–`: not with this backend; why\n\
        stands below the table.\n\n| draw |"
        .to_owned();
    let verbs: BTreeSet<&String> = counted.iter().flat_map(|total| total.draws.keys()).collect();
    for total in &counted {
        let _ = write!(text, " {} |", total.backend);
    }
    text += "\n|---|";
    text += &"--:|".repeat(counted.len());
    text += "\n";
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
        text += &not_with(total, refused.iter().map(|(verb, why)| (verb.clone(), why)));
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
        for what in outcome.failures.iter().chain(&outcome.violations) {
            let _ = writeln!(text, "  * {what}");
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
        "\n## Bugs on purpose\n\n\
        Old bugs of lock libraries, planted one at a time by `lock-campaign bugs`: {seen} of {} are seen, {campaign} of\n\
        them by the campaign itself, as violations of rules, so many times. All clients of such a run have the bug. Others\n\
        are shown to the check of a law, or planted in a copy of the code, and a test of it has to fail.\n\n\
        | bug | what it does | seen by | what was seen | command |\n|---|---|---|---|---|\n",
        findings.len(),
    );
    for finding in findings {
        let Finding { bug, what, seen, command, .. } = finding;
        let seen_by = finding.origin();
        let seen = seen.as_deref().unwrap_or("**nothing**").replace('|', "\\|");
        let _ = writeln!(text, "| {bug} | {what} | {seen_by} | {seen} | `{command}` |");
    }
    text
}
