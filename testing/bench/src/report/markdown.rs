//! The report as Markdown tables.

use super::goals::GoalsFile;
use super::run::{Role, Run};
use super::summary::Spread;
use super::table::{cells, short};
use crate::run::{pauses, untuned};
use crate::worker::WITH_HANDOVERS;

/// The columns of the comparison: a workload, its figure, and the title here.
const COLUMNS: &[(&str, &str, &str)] = &[
    ("pairs c=1", "requests a pair", "requests a pair"),
    ("pairs c=1", "round trips a pair", "round trips a pair"),
    ("pairs c=1", "p50 µs", "pair, µs"),
    ("pairs c=1", "p50 × floor", "pair × floor"),
    ("pairs c=1", "server CPU µs a pair", "server CPU of a pair, µs"),
    ("pairs c=64", "pairs/s", "pairs/s of 64 tasks"),
    ("pairs c=64", "pairs/s × floor", "pairs/s of 64 tasks × floor"),
    ("pairs c=64", "server CPU µs a pair", "server CPU of a pair of 64 tasks, µs"),
    (RELAY, "round trips a hand-off", "round trips a hand-off"),
    ("handoff local w=8", "p50 µs", "hand-off in one process, µs"),
    ("handoff w=8 p=8", "p50 µs", "hand-off between processes, µs"),
    ("crowd w=64 p=8", "requests a waiter", "requests for each of 64 waiters"),
    ("crowd w=64 p=8", "share served out of order", "share out of order"),
    ("idle w=64 p=8", "requests/s", "requests/s of 64 waiters"),
    ("killed", "late p50 ms", "takeover late, ms"),
];

/// The workload that counts hand-offs in round trips.
const RELAY: &str = "handoff relay";

/// The cell of a missing value.
const MISSING: &str = "–";

/// Figures that do not tell which library is faster. They are the number of measurements, the
/// slowest of all, or a figure that another one already covers.
const NOT_COMPARED: &[&str] = &[
    "hand-offs measured",
    "takeovers measured",
    "session s",
    "max µs",
    "late max ms",
    "least lease left %",
    "requests a waiter, greatest ÷ least",
];

pub(super) fn markdown(runs: &[Run], goals: &[GoalsFile<'_>]) -> String {
    let mut text = format!("# The cost of locks\n\n{}", figures(runs, goals));
    for run in runs {
        text +=
            &format!("\n## {}: everything\n\nMedian (least–most) of all rounds.\n", run.backend());
        for (workload, lines) in &run.summary.workloads {
            text += &format!("\n### {workload}\n\n{}", table(cells(lines)));
        }
    }
    text
}

/// Returns three parts: our locks on all backends; each backend with its floors and the locks of
/// other projects; and the figures in which one of those is ahead.
pub(super) fn figures(runs: &[Run], goals: &[GoalsFile<'_>]) -> String {
    let mut text = String::from(
        "### Ours, by backend\n\n\
         Each workload ran on one machine, with its servers. The machines are of one kind, but two of a kind may differ \
         by half, and so may times of two backends. \
         Where waiters pause at random or poll, a hand-off is not a number of round trips.\n\n",
    );
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(runs.iter().map(|run| format!("**{}**", run.backend())));
    for (workload, figure, title) in COLUMNS {
        let handed_over = format!("{title}, `{WITH_HANDOVERS}`");
        for (lib, title) in [("locks", (*title).to_owned()), (WITH_HANDOVERS, handed_over)] {
            let mut row = vec![title];
            row.extend(runs.iter().map(|run| cell(run, workload, lib, figure)));
            if row.iter().skip(1).any(|cell| cell != MISSING) {
                rows.push(row);
            }
        }
    }
    text += &table(rows);
    for run in runs {
        text += &format!(
            "\n### {}, beside the locks of other projects\n\n{}",
            run.backend(),
            origin(run)
        );
        text += &table(compared(run));
        text += &notes(run);
    }
    text + &where_ahead(runs, goals)
}

/// Returns notes on the rows above.
fn notes(run: &Run) -> String {
    let mut text = String::new();
    let find = |workload, lib, figure| Some(run.summary.find(workload, lib, figure)?.median);
    let members =
        run.backend().split_once('-').and_then(|(_, members)| members.parse::<u32>().ok());
    if let (Some(members), Some(pair)) = (members, find("pairs c=1", "locks", "requests a pair")) {
        let majority = members / 2 + 1;
        let grant = find("crowd w=64 p=8", "locks", "requests a waiter");
        let grant = grant.map(|grant| {
            format!("; with 64 waiters in eight processes each grant takes {}", short(grant))
        });
        text += &format!(
            "\nAn uncontended pair is {} requests, where {majority} of {members} members are a majority{}.\n",
            short(pair),
            grant.unwrap_or_default()
        );
    }
    let libs = run.others();
    let why = libs.iter().filter_map(|lib| Some((lib, untuned(run.backend(), lib)?)));
    let why: Vec<String> = why.map(|(lib, why)| format!("`{lib}`, which {why}")).collect();
    if !why.is_empty() {
        text += &format!("\nWithout a second row: {}.\n", why.join("; "));
    }
    text
}

/// Lists each figure in which a lock of another project is better than ours, with the reason from
/// the goals.
fn where_ahead(runs: &[Run], goals: &[GoalsFile<'_>]) -> String {
    let mut text = String::from(
        "\n### Where another library is ahead\n\n\
         Each figure of this run in which the best of the others is better than `locks` with their defaults, and the ratio \
         of both. Round trips are exact to a twentieth. A library that took locks over before their leases had ended is \
         never the best. `why` is the reason in the goals file, if that figure has a goal.\n",
    );
    for run in runs.iter().filter(|run| !run.others().is_empty()) {
        let head = ["workload", "figure", "ours", "theirs", "times", "why"].map(str::to_owned);
        let mut rows = vec![Vec::from(head)];
        for (workload, lines) in &run.summary.workloads {
            let ours = lines.iter().filter(|line| line.lib == "locks");
            for (figure, ours) in ours.flat_map(|line| &line.figures) {
                rows.extend(rival(run, workload, &figure.name, ours.median).map(
                    |(lib, theirs)| {
                        let of_backend = goals.iter().find(|file| file.backend == run.backend());
                        let why = of_backend
                            .and_then(|file| file.goals.why_missed(workload, &figure.name, lib));
                        Vec::from([
                            workload.clone(),
                            figure.name.to_string(),
                            short(ours.median),
                            format!("{} ({lib})", short(theirs)),
                            times(ours.median, theirs),
                            why.unwrap_or(MISSING).replace('|', "\\|"),
                        ])
                    },
                ));
            }
        }
        text += &format!("\n#### {}\n\n", run.backend());
        text += &match rows.len() {
            1 => "Nowhere.\n".to_owned(),
            _ => table_with(rows, "|---|---|--:|--:|--:|---|"),
        };
    }
    text
}

/// Finds the best library of other projects, if it is better than ours in a figure that allows a
/// comparison.
fn rival<'a>(run: &'a Run, workload: &str, figure: &str, ours: f64) -> Option<(&'a str, f64)> {
    if NOT_COMPARED.contains(&figure)
        || figure.ends_with("× floor")
        || is_meaningless(run, workload)
    {
        return None;
    }
    let more_is_better = figure.starts_with("pairs/s");
    let is_better = |one: f64, than: f64| if more_is_better { one > than } else { one < than };
    let (_, lines) = run.summary.workloads.iter().find(|(name, _)| name == workload)?;
    let others = lines.iter().map(|line| line.lib.as_str()).filter(|lib| {
        matches!(run.role(lib), Role::Other | Role::Tuned)
            && !run.summary.breaks_leases(workload, lib)
    });
    let theirs =
        others.filter_map(|lib| Some((lib, run.summary.find(workload, lib, figure)?.median)));
    let best = theirs.reduce(|one, other| if is_better(other.1, one.1) { other } else { one })?;
    // Values that print alike are equal.
    (is_better(best.1, ours) && short(best.1) != short(ours)).then_some(best)
}

/// Returns the ratio of both, if there is one.
fn times(one: f64, other: f64) -> String {
    let (least, most) = (one.min(other), one.max(other));
    if least > 0.0 { short(most / least) } else { MISSING.to_owned() }
}

/// Returns whether the figure counts round trips, although a hand-off waits for a pause and not for
/// the network.
fn is_meaningless(run: &Run, workload: &str) -> bool {
    workload == RELAY && pauses(run.backend())
}

/// Describes the origin of a run's figures, with the command that produces them.
fn origin(run: &Run) -> String {
    let environment = &run.environment;
    let of = |key: &str| environment[key].as_str().unwrap_or("no server").to_owned();
    let others = environment["others"].as_object().is_some_and(|others| !others.is_empty());
    let profile = match of("profile").as_str() {
        "dev" => " **Not optimised: no measure of speed.**",
        _ => "",
    };
    let again = match run.again().join("`, `") {
        again if again.is_empty() => again,
        again => format!(" Of a later run: `{again}`."),
    };
    let one_core = environment["server_cpus"].is_array()
        && environment["server_cpus"] == environment["worker_cpus"];
    format!(
        "{}, {}, {} rounds: `lock-bench run {}{}{}{}`.{again}{profile}\n\n",
        of("server"),
        of("cpu"),
        environment["rounds"],
        run.url(),
        if others { " --others" } else { "" },
        if environment["exact"] == true { " --exact" } else { "" },
        if one_core { " --one-core" } else { "" },
    )
}

/// Returns a row for each library, without the empty columns.
fn compared(run: &Run) -> Vec<Vec<String>> {
    let mut libs: Vec<String> = Vec::new();
    for (workload, ..) in COLUMNS {
        let new = run.libs(workload).into_iter().filter(|lib| !libs.contains(lib));
        libs.extend(new.collect::<Vec<_>>());
    }
    libs.sort_by_key(|lib| match run.role(lib) {
        Role::Floor => 0,
        Role::Ours => 1,
        Role::Bare => 2,
        Role::Other | Role::Tuned => 3,
    });
    let find = |lib: &str, column: &(&str, &str, &str)| run.summary.find(column.0, lib, column.1);
    let is_known = |column: &&(&str, &str, &str)| {
        !is_meaningless(run, column.0) && libs.iter().any(|lib| find(lib, column).is_some())
    };
    let columns: Vec<_> = COLUMNS.iter().filter(is_known).collect();
    let mut head = vec![String::new()];
    head.extend(columns.iter().map(|column| column.2.to_owned()));
    let row = |lib: &String| {
        let name = match run.role(lib) {
            Role::Floor => format!("*{lib}*"),
            Role::Ours => format!("**{lib}**"),
            Role::Bare | Role::Other | Role::Tuned => lib.clone(),
        };
        let cells = columns.iter().map(|column| cell(run, column.0, lib, column.1));
        std::iter::once(name).chain(cells).collect()
    };
    std::iter::once(head).chain(libs.iter().map(row)).collect()
}

fn cell(run: &Run, workload: &str, lib: &str, figure: &str) -> String {
    let spread = run.summary.find(workload, lib, figure).filter(|_| !is_meaningless(run, workload));
    let text = spread.map_or_else(|| MISSING.to_owned(), |spread: Spread| short(spread.median));
    match run.summary.too_early(workload, lib) {
        Some(early) => format!("{text}, **{} too early**", short(early)),
        None => text,
    }
}

/// Formats a table with numbers behind names. The first row is the head.
fn table(rows: Vec<Vec<String>>) -> String {
    let columns = rows.first().map_or(1, Vec::len);
    table_with(rows, &format!("|---{}|", "|--:".repeat(columns - 1)))
}

/// Formats a table with the given alignments.
fn table_with(rows: Vec<Vec<String>>, sides: &str) -> String {
    let mut text = String::new();
    for (i, row) in rows.into_iter().enumerate() {
        text += &format!("| {} |\n", row.join(" | "));
        if i == 0 {
            text += &format!("{sides}\n");
        }
    }
    text
}
