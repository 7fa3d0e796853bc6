//! The same in tables.

use super::run::{Run, Side};
use super::summary::Spread;
use super::table::{cells, short};
use crate::worker::HANDING_OVER;

/// What stands side by side: where it is from, what it is called there, and here.
const COLUMNS: &[(&str, &str, &str)] = &[
    ("pairs c=1", "requests a pair", "requests a pair"),
    ("pairs c=1", "round trips a pair", "round trips a pair"),
    ("pairs c=1", "p50 × floor", "pair × floor"),
    ("pairs c=64", "pairs/s × floor", "pairs/s of 64 tasks × floor"),
    ("handoff relay", "round trips a hand-off", "round trips a hand-off"),
    ("handoff local w=8", "p50 µs", "hand-off in one process, µs"),
    ("handoff w=8 p=8", "p50 µs", "hand-off between processes, µs"),
    ("crowd w=64 p=8", "requests a waiter", "requests for each of 64 waiters"),
    ("crowd w=64 p=8", "share served out of order", "share out of order"),
    ("idle w=64 p=8", "requests/s", "requests/s of 64 who wait"),
    ("killed", "late p50 ms", "takeover late, ms"),
];

/// What nobody measured.
const NOTHING: &str = "–";

pub(super) fn markdown(runs: &[Run]) -> String {
    let mut text = format!("# What locks cost\n\n{}", figures(runs));
    for run in runs {
        text +=
            &format!("\n## {}: everything\n\nMedian (least–most) of all rounds.\n", run.backend());
        for (workload, lines) in &run.summary.workloads {
            text += &format!("\n### {workload}\n\n{}", table(cells(lines)));
        }
    }
    text
}

/// Ours on all backends side by side; then each backend with its floors and the locks of other projects.
pub(super) fn figures(runs: &[Run]) -> String {
    let mut text = String::from("### Ours, by backend\n\n");
    let mut rows = vec![vec![String::new()]];
    rows[0].extend(runs.iter().map(|run| format!("**{}**", run.backend())));
    for (workload, figure, title) in COLUMNS {
        let handed_over = format!("{title}, `{HANDING_OVER}`");
        for (lib, title) in [("locks", (*title).to_owned()), (HANDING_OVER, handed_over)] {
            let mut row = vec![title];
            row.extend(runs.iter().map(|run| cell(run.summary.find(workload, lib, figure))));
            if row.iter().skip(1).any(|cell| cell != NOTHING) {
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
        text += &table(beside(run));
    }
    text
}

/// Where the figures of a run are from, and the command that makes them.
fn origin(run: &Run) -> String {
    let environment = &run.environment;
    let of = |key: &str| environment[key].as_str().unwrap_or("no server").to_owned();
    let others = environment["others"].as_object().is_some_and(|others| !others.is_empty());
    let profile = match of("profile").as_str() {
        "dev" => " **Not optimised: no measure of speed.**",
        _ => "",
    };
    format!(
        "{}, {}, {} rounds: `lock-bench run {}{}{}`.{profile}\n\n",
        of("server"),
        of("cpu"),
        environment["rounds"],
        run.url(),
        if others { " --others" } else { "" },
        if environment["exact"] == true { " --exact" } else { "" },
    )
}

/// A row for each library, without the columns that nobody has.
fn beside(run: &Run) -> Vec<Vec<String>> {
    let mut libs: Vec<String> = Vec::new();
    for (workload, ..) in COLUMNS {
        let new = run.libs(workload).into_iter().filter(|lib| !libs.contains(lib));
        libs.extend(new.collect::<Vec<_>>());
    }
    libs.sort_by_key(|lib| match run.side(lib) {
        Side::Floor => 0,
        Side::Ours => 1,
        Side::Bare => 2,
        Side::Other | Side::Tuned => 3,
    });
    let find = |lib: &str, column: &(&str, &str, &str)| run.summary.find(column.0, lib, column.1);
    let is_known =
        |column: &&(&str, &str, &str)| libs.iter().any(|lib| find(lib, column).is_some());
    let columns: Vec<_> = COLUMNS.iter().filter(is_known).collect();
    let mut head = vec![String::new()];
    head.extend(columns.iter().map(|column| column.2.to_owned()));
    let row = |lib: &String| {
        let name = match run.side(lib) {
            Side::Floor => format!("*{lib}*"),
            Side::Ours => format!("**{lib}**"),
            Side::Bare | Side::Other | Side::Tuned => lib.clone(),
        };
        let cells = columns.iter().map(|column| cell(find(lib, column)));
        std::iter::once(name).chain(cells).collect()
    };
    std::iter::once(head).chain(libs.iter().map(row)).collect()
}

fn cell(spread: Option<Spread>) -> String {
    spread.map_or_else(|| NOTHING.to_owned(), |spread| short(spread.median))
}

/// The first row is the head.
fn table(rows: Vec<Vec<String>>) -> String {
    let mut text = String::new();
    for (i, row) in rows.into_iter().enumerate() {
        let columns = row.len();
        text += &format!("| {} |\n", row.join(" | "));
        if i == 0 {
            text += &format!("|---{}|\n", "|--:".repeat(columns - 1));
        }
    }
    text
}
