//! One page that needs nothing else.

use std::fmt::Write as _;

use super::picture::{histogram, timeline};
use super::sums::{Sum, sums};
use super::{bound, grouped, nanos, of_code, ranges, short};
use crate::bugs::Finding;
use crate::outcome::Outcome;
use crate::times::Spread;

const STYLE: &str = include_str!("style.css");

/// The page.
#[must_use]
pub fn html(outcomes: &[Outcome], findings: &[Finding]) -> String {
    let sums = sums(outcomes);
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>The fault campaign</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style>\
         <h1>The fault campaign</h1>\
         <p>Client processes take locks on real servers and write, under each lock, to two counters: one \
         that checks fencing tokens and one that does not. Meanwhile they are stopped and killed, their \
         network is broken, their servers are restarted. (The locks of memory live in one process: its clients are \
         threads, and one that is killed is told to end where it is.) Everything is recorded and judged: no two claims \
         of a lock may overlap unless the first of them may have had it when what exclusion rests on was broken on \
         purpose, and an update that passed a fence must never be lost.</p>"
    );
    page += &overview(&sums);
    page += &fences(&sums);
    for sum in &sums {
        page += &section(sum);
    }
    page += &bugs(findings);
    page + "</html>\n"
}

fn overview(sums: &[Sum<'_>]) -> String {
    let mut table = "<h2>What was run</h2><table><tr><th>backend<th>runs<th>clean<th>verdict<th>time<th>operations\
        <th>grants<th>faults<th>kinds<th>losses<br>told<th>failed without<br>a fault<th>waits judged</tr>"
        .to_owned();
    for sum in sums {
        let _ = write!(
            table,
            "<tr><td><a href=\"#{0}\">{0}</a><td>{1}<td class=\"{2}\">{3}<td>{4}<td>{5:.0}&nbsp;s<td>{6}<td>{7}\
             <td>{8}<td>{9}<td>{10}<td>{11}<td>{12}</tr>",
            sum.backend,
            sum.outcomes.len(),
            if sum.clean() == sum.outcomes.len() { "good" } else { "bad" },
            sum.clean(),
            sum.verdicts(),
            sum.took.as_secs_f64(),
            grouped(sum.operations),
            grouped(sum.grants),
            grouped(sum.faults),
            sum.around.len(),
            grouped(sum.losses.told),
            sum.failed(),
            sum.waits_judged(),
        );
    }
    table + "</table>"
}

fn fences(sums: &[Sum<'_>]) -> String {
    let mut table = "<h2>What fences buy</h2><p>Each write puts back, one higher, what was read under the same lock, \
        some of them late. An <em>overlap</em> is a pair of claims of one lock at once while an assumption was broken on \
        purpose; a claim was <em>at risk</em> if one was broken while it lasted. One claim may overlap several.</p>\
        <table><tr><th>backend<th>lost without fences<th>lost with fences<th>refused<br>by fences<th>pairs that<br>\
        overlapped<th>claims<br>at risk</tr>"
        .to_owned();
    for sum in sums {
        let effects = &sum.effects;
        let _ = write!(
            table,
            "<tr><td><a href=\"#{0}\">{0}</a><td>{1} of {2}<td class=\"{3}\">{4} of {5}<td>{6}<td>{7}<td>{8}</tr>",
            sum.backend,
            grouped(effects.unfenced_lost),
            grouped(effects.unfenced_writes),
            if effects.fenced_lost == 0 { "good" } else { "bad" },
            effects.fenced_lost,
            grouped(effects.fenced_writes),
            grouped(effects.refused),
            grouped(sum.excused_overlaps),
            grouped(sum.claims_at_risk),
        );
    }
    table + "</table>"
}

fn section(sum: &Sum<'_>) -> String {
    let last = sum.last();
    let mut text = format!("<h2 id=\"{0}\">{0}</h2>", sum.backend);
    text += &verdicts(sum);
    text += &faults(sum);
    let allowed =
        last.allowed().map_or_else(String::new, |slack| format!("{} more: ", short(slack)));
    let (limit, words) = bound(last.takeover, last.lease);
    text += &spread(
        "From a crash to the next holder (takeover)",
        &sum.takeovers,
        &format!(
            "Declared: {words}. The verdict allows {allowed}six seconds and the bound of a call more, for the load of the \
             machine. Where the server hands locks over and somebody who stood in line was killed or stopped meanwhile, it \
             allows a lease for each of its process who waited, too. Other faults go on meanwhile: the next in line may be hit itself. Where locks have no \
             lease, a holder that is stopped keeps them."
        ),
        Some(limit),
    );
    text += &spread(
        "From a loss that was told to the next grant",
        &sum.losses.before_next,
        &format!(
            "{} losses were told. {} of them when the next holder had the lock already, up to {} later: holders \
             that could not be told because they were stopped (what they may rely on ends by itself), or whose \
             lock was removed by force, or with the server's data.",
            grouped(sum.losses.told),
            grouped(sum.losses.after_next.count),
            nanos(sum.losses.after_next.most)
        ),
        None,
    );
    text += &spread(
        "From a release to the next holder (hand-off)",
        &sum.hand_offs,
        &format!(
            "Where neither who let go nor who waited felt a fault, from a lease before on, half of them, and nine in \
             ten, have to be within a bound: {}.",
            sum.promptness()
        ),
        None,
    );
    if let Some((outcome, scene)) = sum.best_scene().and_then(|o| Some((o, o.scene.as_ref()?))) {
        let _ = write!(
            text,
            "<h3>A piece of history</h3><p>Seed {}, lock <code>{}</code>. {}</p>{}",
            outcome.seed,
            scene.lock,
            LEGEND,
            timeline(scene)
        );
    }
    text
}

fn faults(sum: &Sum<'_>) -> String {
    let mut text = "<h3>Faults</h3><table><tr><th>kind<th class=\"words\">what<th>how often<th>grants before\
        <th>during<th>after<th>fewest before<br>or after one<th>of whom it hit<th>calls<br>meanwhile</tr>"
        .to_owned();
    for (kind, around) in &sum.around {
        let _ = write!(
            text,
            "<tr><td>{}<td class=\"words\">{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
            kind.name(),
            kind.what(),
            grouped(around.faults),
            grouped(around.before),
            grouped(around.during),
            grouped(around.after),
            grouped(around.least),
            around.least_of_hit.map_or_else(|| "–".to_owned(), grouped),
            grouped(around.calls),
        );
    }
    text += "</table><details><summary>Kinds that are not tried here, and why</summary><table>";
    for (kind, why) in &sum.last().refused_kinds {
        let _ = write!(text, "<tr><td>{}<td class=\"words\">{why}</tr>", kind.name());
    }
    text + "</table></details>"
}

const LEGEND: &str = "One row for each task, <span class=\"key holds\">holds</span> \
    <span class=\"key waits\">waits</span> <span class=\"key fault\">its process is hit</span>; \
    <b class=\"lost\">!</b> told of its loss, <b class=\"write\">•</b> a write that passes the fence, \
    <b class=\"refused\">✗</b> one that is refused.";

fn verdicts(sum: &Sum<'_>) -> String {
    let mut text = "<p>".to_owned();
    for (origin, seeds) in sum.by_settings() {
        let _ = write!(
            text,
            "{} runs, seeds {}{}: <code>{}</code><br>",
            seeds.len(),
            ranges(&seeds),
            escaped(&of_code(origin)),
            sum.command(origin.settings)
        );
    }
    text += "</p>";
    for outcome in sum.outcomes.iter().filter(|outcome| !outcome.is_clean()) {
        let _ = write!(text, "<p class=\"bad\">Seed {} is not clean:</p><ul>", outcome.seed);
        for what in outcome.failures.iter().chain(&outcome.violations) {
            let _ = write!(text, "<li>{}", escaped(what));
        }
        text += "</ul>";
    }
    text
}

fn spread(title: &str, spread: &Spread, words: &str, bound: Option<std::time::Duration>) -> String {
    let figures = format!(
        "{} times; half of them below {}, 99 % below {}, the longest {}.",
        grouped(spread.count),
        short(spread.percentile(50)),
        short(spread.percentile(99)),
        nanos(spread.most)
    );
    let figures = if spread.count == 0 { String::new() } else { figures };
    format!("<h3>{title}</h3><p>{figures} {words}</p>{}", histogram(spread, bound))
}

fn bugs(findings: &[Finding]) -> String {
    if findings.is_empty() {
        return String::new();
    }
    let mut text = "<h2>Bugs on purpose</h2><p>Old bugs of lock libraries, planted one at a time. A campaign, \
        a law or a test that does not see its bug would prove nothing.</p><table class=\"words\"><tr><th>bug<th>what \
        it does<th>seen by<th>what was seen<th>command</tr>"
        .to_owned();
    for finding in findings {
        let Finding { bug, what, seen, command, .. } = finding;
        let seen_by = escaped(&finding.origin());
        let seen = seen.as_deref().map_or("<b class=\"bad\">nothing</b>".into(), escaped);
        let _ = write!(
            text,
            "<tr><td>{bug}<td>{what}<td>{seen_by}<td>{seen}<td><code>{command}</code></tr>"
        );
    }
    text + "</table>"
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
