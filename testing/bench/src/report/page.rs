//! One self-contained page: the measurements in pictures, each beside its floor.

use std::fmt::Write as _;

use serde_json::Value;

use super::picture::{Entry, Mark, Unit, bars, curves, distributions, escaped, orders, with_unit};
use super::run::{Role, Run};
use super::summary::Spread;
use super::table::short;

const STYLE: &str = include_str!("style.css");

pub(super) fn html(runs: &[Run]) -> String {
    let mut page = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>The cost of locks</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style><h1>The cost of locks</h1>\
         <p>Client processes acquire and release locks on real servers, all on one machine. <b>locks</b> are ours. \
         <b>locks-16</b> are the same with hand-overs: a release passes the lock to the next waiter of its process \
         without a request, up to 16 times in a row. Beside them are the locks of other projects with their defaults. \
         If their waiters poll and their documents offer the interval as an option, a second row has an interval of \
         10 ms, chosen by us. Libraries with notifications, or with such an interval by default, have no second row. \
         <b>Floors</b> are the same work written by hand without the features of a good lock: they show the least \
         possible cost. Two rows are neither: <b>bare-redis</b> sends our own scripts without the rest of our library, \
         and <b>memcache-crate</b> is our add and delete on the client of another project.</p>\
         <p>Requests and round trips are the same on every machine, except where waiters poll: their number depends on \
         time. The pings and heartbeat writes of a session are counted, too. Times are those of this machine: compare \
         them with the floor in the same picture, which was measured right before and right after. A floor that is \
         the minimum of a protocol, and not measured, is marked as such.</p>\
         <p><i class=\"key floor\"></i>floor <i class=\"key ours\"></i>ours <i class=\"key other\"></i>of other projects \
         <i class=\"key tuned\"></i>the same, tuned; black: the median, or from the least to the most of all rounds</p>"
    );
    for run in runs {
        page += &section(run);
    }
    page + "</html>\n"
}

fn section(run: &Run) -> String {
    let environment = &run.environment;
    let text = |key: &str| environment[key].as_str().unwrap_or("–").to_owned();
    let mut page = format!("<h2 id=\"{0}\">{0}</h2>", escaped(run.backend()));
    let _ = write!(
        page,
        "<p>{}, {} on {} processors, Linux {}, {}, {} rounds.{}{}</p>",
        escaped(environment["server"].as_str().unwrap_or("no server")),
        escaped(&text("cpu")),
        environment["cpus"],
        escaped(&text("kernel")),
        escaped(&text("rustc")),
        environment["rounds"],
        if text("profile") == "dev" { " <b>Not optimised: no measure of speed.</b>" } else { "" },
        others(&environment["others"]),
    );
    let again = run.again().join(", ");
    if !again.is_empty() {
        let _ = write!(page, "<p>Of a later run: {}.</p>", escaped(&again));
    }
    page += &pairs(run);
    page += &hand_offs(run);
    page += &crowds(run);
    page += &growth(run);
    page += &waiting(run);
    page += &takeovers(run);
    page += &held(run);
    page + &tables(run)
}

fn others(others: &Value) -> String {
    let others: Vec<String> = others
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(name, _)| !name.contains(','))
        .map(|(name, version)| format!("{name} {}", version.as_str().unwrap_or_default()))
        .collect();
    if others.is_empty() { String::new() } else { format!(" {}.", escaped(&others.join(", "))) }
}

/// Returns a title, a few words and a picture, or nothing if there is no picture.
fn figure(title: &str, words: &str, picture: &str) -> String {
    match picture.is_empty() {
        true => String::new(),
        false => format!("<h3>{title}</h3><p>{words}</p>{picture}"),
    }
}

/// Returns each library that has the figure in the workload, the floor first.
fn entries(
    run: &Run,
    workload: &str,
    name: &str,
    note: impl Fn(&str, Spread) -> String,
) -> Vec<Entry> {
    let libs = run.libs(workload);
    let entry = |lib: &String| {
        let spread = run.summary.find(workload, lib, name)?;
        Some(Entry {
            name: lib.clone(),
            class: run.role(lib).class(),
            value: spread.median,
            ends: (spread.min, spread.max),
            shape: run.shape(workload, lib),
            note: note(lib, spread),
        })
    };
    libs.iter().filter_map(entry).collect()
}

fn floor_mark(entries: &[Entry]) -> Option<Mark> {
    let floor = entries.iter().find(|entry| entry.class == "floor")?;
    Some(Mark { value: floor.value, name: format!("floor: {}", floor.name) })
}

/// Returns the workload of this kind with 64 waiters, and where they are.
fn with_64_waiters(run: &Run, kind: &str) -> Option<(String, &'static str)> {
    let places = [("p=8", "in eight processes"), ("p=1", "in one process")];
    let mut workloads =
        places.map(|(processes, place)| (format!("{kind} w=64 {processes}"), place)).into_iter();
    workloads.find(|(workload, _)| !run.libs(workload).is_empty())
}

/// Formats `67 µs, 1.04 × floor`.
fn time_note(run: &Run, workload: &str, lib: &str, value: f64) -> String {
    let ratio = run.summary.find(workload, lib, "p50 × floor");
    let ratio = ratio.map(|ratio| format!(", {} × floor", short(ratio.median)));
    format!("{}{}", with_unit(value, Unit::Micros), ratio.unwrap_or_default())
}

fn times(run: &Run, workload: &str, words: &str, title: &str) -> String {
    let note = |lib: &str, spread: Spread| time_note(run, workload, lib, spread.median);
    let entries = entries(run, workload, "p50 µs", note);
    let mark = floor_mark(&entries);
    let picture = distributions(&entries, Unit::Micros, "time, logarithmic", mark.as_ref());
    figure(title, words, &picture)
}

fn counts(run: &Run, workload: &str, name: &str, mark: Option<&Mark>) -> String {
    let note = |_: &str, spread: Spread| short(spread.median);
    bars(&entries(run, workload, name, note), Unit::Plain, name, mark)
}

fn pairs(run: &Run) -> String {
    let mut page = times(
        run,
        "pairs c=1",
        "One task acquires and releases an uncontended lock, again and again: the distribution of the times of such a \
         pair. The black line is the median, which is printed at the right.",
        "Uncontended acquire and release",
    );
    let count = |name: &str| {
        let floor = run.floor("pairs c=1", name);
        let mark = floor.map(|floor| Mark { value: floor.median, name: "floor".to_owned() });
        counts(run, "pairs c=1", name, mark.as_ref())
    };
    page += &figure(
        "Requests of a pair",
        "Requests of one acquire and release, as the server counts them. They include fencing tokens, if there are any.",
        &count("requests a pair"),
    );
    page += &figure(
        "Round trips of a pair",
        "Counted through a relay that adds latency: with a distant server, a pair takes this many times the round-trip time.",
        &count("round trips a pair"),
    );
    for tasks in [64, 1024] {
        let workload = format!("pairs c={tasks}");
        let note = |lib: &str, spread: Spread| {
            let ratio = run.summary.find(&workload, lib, "pairs/s × floor");
            let ratio = ratio.map(|r| format!(", {} × floor", short(r.median))).unwrap_or_default();
            format!("{}/s{ratio}", with_unit(spread.median, Unit::Plain))
        };
        let entries = entries(run, &workload, "pairs/s", note);
        let mark = floor_mark(&entries);
        page += &figure(
            &format!("Pairs a second, {tasks} tasks in one process"),
            "Each task has a lock of its own. Longer is better. The floor pipelines all requests on one socket.",
            &bars(&entries, Unit::Plain, "pairs a second", mark.as_ref()),
        );
    }
    page
}

fn hand_offs(run: &Run) -> String {
    let mut page = times(
        run,
        "handoff local w=8",
        "Nine tasks of one process take turns with a lock: the time from a release until the next task holds it. Only \
         waiters that were queued before the release count. The floor is one round trip to the server, if there is one. \
         tokio's mutex shows the time without a server, and is the comparison for locks-16: each task holds the lock \
         for half a millisecond, in which the processor goes idle.",
        "From a release to the next holder, in one process",
    );
    page += &times(
        run,
        "handoff w=8 p=8",
        "The same with a task in each of eight processes.",
        "From a release to the next holder, between eight processes",
    );
    page += &figure(
        "Round trips of a hand-off",
        "Between two processes, counted through a relay. A release has to reach the server, and its notification the \
         next holder: half a round trip each. Libraries that poll are left out: their hand-offs depend on the interval. \
         Where waiters pause at random, as those of a quorum do, it is an estimate.",
        &counts(
            run,
            "handoff relay",
            "round trips a hand-off",
            Some(&Mark { value: 1.0, name: "at least: there and back".to_owned() }),
        ),
    );
    page
}

fn crowds(run: &Run) -> String {
    let Some((workload, place)) = with_64_waiters(run, "crowd") else { return String::new() };
    let workload = workload.as_str();
    let note = |lib: &str, spread: Spread| {
        let unfair = run.summary.find(workload, lib, "max wait / mean wait");
        let unfair = unfair.map(|unfair| format!(", longest {} × mean", short(unfair.median)));
        format!("{} % overtaken{}", short(spread.median * 100.0), unfair.unwrap_or_default())
    };
    let mut entries = entries(run, workload, "share served out of order", note);
    entries.retain(|entry| !entry.shape.is_empty());
    let picture = if entries.is_empty() { String::new() } else { orders(&entries) };
    figure(
        "Order of service",
        &format!(
            "64 waiters {place} acquire a lock once each. Their processes came one after the other, and all at once if \
             they poll. Each dot is a waiter: further right came later, further up was served later. On the dashed line \
             no waiter is overtaken by a later one. Below: the share of all pairs of waiters that were served in the \
             wrong order, and the longest wait divided by the mean, from the first release on."
        ),
        &picture,
    )
}

fn growth(run: &Run) -> String {
    let workload = "growth p=5";
    let curve = |lib: &String| {
        let points = [10, 100, 1000, 10_000].into_iter().filter_map(|waiters| {
            let name = format!("requests a waiter, w={waiters}");
            Some([f64::from(waiters), run.summary.find(workload, lib, &name)?.median])
        });
        let shape: Vec<[f64; 2]> = points.collect();
        let last = shape.last()?[1];
        Some(Entry {
            name: lib.clone(),
            class: run.role(lib).class(),
            value: last,
            ends: (last, last),
            shape,
            note: short(last),
        })
    };
    let entries: Vec<Entry> = run.libs(workload).iter().filter_map(curve).collect();
    if entries.is_empty() {
        return String::new();
    }
    let floor = Mark { value: 2.0, name: "at least, one by one: enqueue, release".to_owned() };
    figure(
        "Requests of a waiter, by the number of waiters",
        "So many waiters in five processes acquire a lock once each: requests to the server for each of them. A flat \
         line is good: a waiter in a long queue costs no more than one in a short queue. The number behind each name is \
         that of its last point.",
        &curves(&entries, "waiters, logarithmic", "requests a waiter, logarithmic", &floor),
    )
}

fn waiting(run: &Run) -> String {
    let Some((workload, place)) = with_64_waiters(run, "idle") else { return String::new() };
    let workload = workload.as_str();
    let note = |lib: &str, spread: Spread| {
        let cpu = run.summary.find(workload, lib, "client CPU ms/s");
        let cpu = cpu.map(|cpu| format!(", CPU {} %", short(cpu.median / 10.0)));
        format!("{}/s{}", short(spread.median), cpu.unwrap_or_default())
    };
    let entries = entries(run, workload, "requests/s", note);
    let floor = Mark { value: 0.0, name: "at least: none".to_owned() };
    figure(
        "The cost of waiting for a held lock",
        &format!(
            "64 waiters {place} wait for a lock that stays held: the requests a second of all of them together, and the \
             share of a processor that their processes use."
        ),
        &bars(&entries, Unit::Plain, "requests a second", Some(&floor)),
    )
}

fn takeovers(run: &Run) -> String {
    let timed = |lib: &str, value: f64| {
        let early = run.summary.too_early("killed", lib);
        let early = early.map(|early| format!(", {} too early", short(early)));
        format!("{}{}", with_unit(value, Unit::Millis), early.unwrap_or_default())
    };
    let note = |lib: &str, spread: Spread| timed(lib, spread.median);
    let mut entries = entries(run, "killed", "late p50 ms", note);
    // The session is the same for all of them.
    let session =
        run.libs("killed").iter().find_map(|lib| run.summary.find("killed", lib, "session s"));
    let Some(session) = session.map(|session| session.median) else {
        return figure(
            "After a holder was killed",
            "A process that holds ten locks with leases of 2 s is killed with SIGKILL: the time from the end of its \
             lease (of its life, where there are no leases) until waiters hold its locks. Never earlier: the holder \
             might live.",
            &distributions(
                &entries,
                Unit::Millis,
                "time after the earliest moment, logarithmic",
                None,
            ),
        );
    };
    for entry in &mut entries {
        entry.value += session * 1e3;
        entry.note = timed(&entry.name, entry.value);
    }
    figure(
        "After a holder was killed",
        &format!(
            "A process that holds ten locks is killed with SIGKILL. Its locks last as long as its session, here {} s from \
             its last request: the time from the kill until waiters hold its locks. The tables below count from the end \
             of such a session.",
            short(session)
        ),
        &distributions(
            &entries,
            Unit::Millis,
            "time after the kill, logarithmic",
            Some(&Mark { value: session * 1e3, name: "the session's time".to_owned() }),
        ),
    )
}

fn held(run: &Run) -> String {
    let mut workloads = run.summary.workloads.iter().rev().map(|(name, _)| name);
    let Some(workload) = workloads.find(|name| name.starts_with("held")) else {
        return String::new();
    };
    let note = |_: &str, spread: Spread| format!("{}/s", with_unit(spread.median, Unit::Plain));
    let entries = entries(run, workload, "requests/s", note);
    // n=10000 ttl=5s: each lock is renewed at each third of the lease, 64 together.
    let number = |key: &str| {
        let word = workload.split(' ').find_map(|word| word.strip_prefix(key))?;
        word.trim_end_matches('s').parse::<f64>().ok()
    };
    let floor = number("n=").zip(number("ttl=")).map(|(locks, ttl)| locks / (ttl / 3.0) / 64.0);
    let mark = floor.map(|value| Mark { value, name: "computed: 64 renewed together".to_owned() });
    figure(
        "Many locks held at once",
        &format!(
            "One process holds and renews locks ({}): requests a second. Libraries that do not renew by themselves are left out.",
            escaped(workload)
        ),
        &bars(&entries, Unit::Plain, "requests a second", mark.as_ref()),
    )
}

/// Formats tables of all figures.
fn tables(run: &Run) -> String {
    let mut page = "<details><summary>All figures: median (least–most)</summary>".to_owned();
    for (workload, lines) in &run.summary.workloads {
        let _ = write!(page, "<h3>{}</h3><table>", escaped(workload));
        for (i, row) in super::table::cells(lines).iter().enumerate() {
            let tag = if i == 0 { "th" } else { "td" };
            let cells: Vec<String> =
                row.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell))).collect();
            let _ = write!(page, "<tr>{}</tr>", cells.concat());
        }
        page += "</table>";
    }
    page + "</details>"
}

impl Role {
    /// Returns its colour.
    fn class(self) -> &'static str {
        match self {
            Self::Floor => "floor",
            Self::Ours | Self::Bare => "ours",
            Self::Other => "other",
            Self::Tuned => "tuned",
        }
    }
}
