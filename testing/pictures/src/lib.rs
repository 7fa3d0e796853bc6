//! Draws the pictures of the documentation from recorded results, as SVG.
//!
//! A code host shows them in its own pages, in light and in dark mode. So they have no background,
//! and their colours are legible on both, even where the reader's mode is not known.
//! `BLESS=1 cargo test -p lock-pictures` writes them again after a change of the results.

mod canvas;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use canvas::{Canvas, WIDTH, grouped};

/// Returns the name and the text of each picture.
///
/// # Panics
///
/// Recorded results below `root`, or the demonstration in its README, are missing or not readable.
pub fn draw(root: &Path) -> [(&'static str, String); 4] {
    let docs = root.join("docs");
    let readme = std::fs::read_to_string(root.join("README.md")).expect("a README");
    [
        ("cut-off.svg", cut_off(&lines(&docs.join("pictures/cut-off.jsonl")))),
        ("fencing.svg", fencing(&docs.join("campaign"))),
        ("peers.svg", peers(&docs.join("comparison"))),
        ("two-terminals.svg", two_terminals(&readme)),
    ]
}

fn lines(file: &Path) -> Vec<Value> {
    let text = std::fs::read_to_string(file).unwrap_or_else(|e| panic!("{}: {e}", file.display()));
    text.lines().map(|line| serde_json::from_str(line).expect("a line is JSON")).collect()
}

/// Draws the first holder and the next one as bars over time, a row for each recorded cut.
fn cut_off(runs: &[Value]) -> String {
    const LEFT: f64 = 96.0;
    const RIGHT: f64 = 690.0;
    const ROW: f64 = 19.0;

    let latest = |run: &Value| {
        let times = ["ours", "curator"].map(|lib| [&run[lib]["stopped"], &run[lib]["granted"]]);
        times.concat().into_iter().filter_map(Value::as_f64).fold(0.0, f64::max)
    };
    let last = runs.iter().map(latest).fold(0.0, f64::max) / 1e3 + 1.0;
    let at = |seconds: f64| LEFT + (seconds + 1.0) / (last + 1.0) * (RIGHT - LEFT);
    let mut svg = Canvas::default();
    let mut y = 16.0;
    for (lib, title) in [("ours", "this library"), ("curator", "Curator’s InterProcessMutex")] {
        svg.text("strong", 0.0, y, title);
        svg.text("end good strong", LEFT + 250.0, y, "first holder");
        svg.text("next strong", LEFT + 262.0, y, "next holder");
        y += 8.0;
        for (number, run) in (1..).zip(runs) {
            let [stopped, granted] =
                ["stopped", "granted"].map(|key| run[lib][key].as_f64().expect("a time") / 1e3);
            svg.text("small end", LEFT - 10.0, y + 12.0, &format!("cut {number}"));
            svg.rect("good", LEFT, y + 2.0, at(stopped) - LEFT, 7.0);
            svg.rect("next", at(granted), y + 9.0, RIGHT - at(granted), 7.0);
            let (class, text) = match stopped - granted {
                both if both > 0.0 => ("small bad strong", format!("two holders for {both:.1} s")),
                gap => ("small", format!("no holder for {:.1} s", -gap)),
            };
            if stopped > granted {
                svg.rect("bad", at(granted), y + 2.0, at(stopped) - at(granted), 14.0);
            }
            svg.text(class, RIGHT + 10.0, y + 13.0, &text);
            y += ROW;
        }
        svg.line("axis", at(0.0), y - ROW * runs.len() as f64, at(0.0), y + 2.0);
        y += 26.0;
    }
    y -= 20.0;
    svg.line("axis", LEFT, y, RIGHT, y);
    for second in (0..=last as u32).step_by(2) {
        let x = at(second.into());
        svg.line("axis", x, y, x, y + 4.0);
        svg.text("small middle", x, y + 18.0, &second.to_string());
    }
    let title = "seconds since the holder’s ZooKeeper member was cut off from its leader";
    svg.text("middle", f64::midpoint(LEFT, RIGHT), y + 38.0, title);
    svg.close(y + 46.0, "A lock on a ZooKeeper member that is cut off from its leader")
}

/// Draws the share of updates that were lost with and without a check of tokens.
fn fencing(campaign: &Path) -> String {
    const LEFT: f64 = 130.0;
    const RIGHT: f64 = 660.0;
    const ROW: f64 = 36.0;

    let mut sums: BTreeMap<String, BTreeMap<String, f64>> = BTreeMap::new();
    for entry in std::fs::read_dir(campaign).expect("a directory of results") {
        for run in lines(&entry.expect("an entry").path()) {
            let Some(effects) = run["effects"].as_object() else { continue };
            let sum = sums.entry(run["backend"].as_str().expect("a name").to_owned()).or_default();
            for (key, value) in effects {
                *sum.entry(key.clone()).or_default() += value.as_f64().unwrap_or(0.0);
            }
        }
    }
    let rate = |sum: &BTreeMap<_, _>, kind: &str| {
        1e3 * sum[&format!("{kind}_lost")] / sum[&format!("{kind}_writes")]
    };
    let most = sums.values().map(|sum| rate(sum, "unfenced")).fold(1.0, f64::max);
    let at = |rate: f64| LEFT + rate / most * (RIGHT - LEFT);
    let mut svg = Canvas::default();
    svg.text("bad strong", LEFT, 14.0, "the resource accepts every write");
    svg.text("good strong", LEFT + 280.0, 14.0, "the resource checks the fencing token");
    let foot = 24.0 + ROW * sums.len() as f64;
    for tick in (0..=most as u32).step_by(5) {
        let x = at(tick.into());
        svg.line("rail", x, 24.0, x, foot);
        svg.text("small middle", x, foot + 17.0, &tick.to_string());
    }
    svg.text("middle", f64::midpoint(LEFT, RIGHT), foot + 38.0, "updates lost, of 1 000 writes");
    for (index, (backend, sum)) in sums.iter().enumerate() {
        let y = 26.0 + ROW * index as f64;
        svg.text("end", LEFT - 10.0, y + 20.0, backend);
        for (kind, class, top) in [("unfenced", "bad", y), ("fenced", "good", y + 16.0)] {
            let rate = rate(sum, kind);
            svg.rect(class, LEFT, top, (at(rate) - LEFT).max(2.0), 12.0);
            let [lost, writes] =
                ["lost", "writes"].map(|key| grouped(sum[&format!("{kind}_{key}")]));
            let refused = match kind {
                "fenced" => format!("; {} more refused", grouped(sum["refused"])),
                _ => String::new(),
            };
            let text = format!("{lost} of {writes}{refused}");
            svg.text(&format!("small {class}"), at(rate) + 8.0, top + 10.0, &text);
        }
    }
    svg.close(foot + 46.0, "Lost updates with and without fencing tokens")
}

/// The figures of a backend: the libraries in the order of their rows, and the medians.
struct Comparison {
    environment: Value,
    medians: Vec<(String, String, f64)>,
}

impl Comparison {
    /// Reads the result of one backend.
    fn read(file: &Path) -> Self {
        let mut lines = lines(file).into_iter();
        let environment = lines.next().expect("an environment")["environment"].take();
        let median = |row: Value| {
            let [workload, library] = ["workload", "lib"].map(|key| row[key].as_str());
            let figure = if workload?.starts_with("pairs") { "pairs/s" } else { "p50 µs" };
            let value = row["times"][figure].as_f64().filter(|_| row["round"] == 0)?;
            Some((workload?.to_owned(), library?.to_owned(), value))
        };
        Self { environment, medians: lines.filter_map(median).collect() }
    }

    /// Returns the name of the row that a library belongs to, unless it is a variant of ours.
    fn row(&self, library: &str) -> Option<String> {
        let peers = self.environment["peers"].as_array().into_iter().flatten();
        let is_peer = self.environment["others"].get(library).is_some() || { peers }
            .any(|peer| peer == library);
        let is_ours = library.starts_with("locks") || library.starts_with("bare-");
        (!is_ours).then(|| if is_peer { library } else { "floor" }.to_owned())
    }

    /// Returns our figure, and by the names of rows the times by which we are better.
    fn ratios(&self, workload: &str) -> Option<(f64, BTreeMap<String, f64>)> {
        let of_workload = || self.medians.iter().filter(|(of, ..)| of == workload);
        let (_, _, ours) = of_workload().find(|(_, library, _)| library == "locks")?;
        let mut ratios = BTreeMap::new();
        for (_, library, theirs) in of_workload() {
            let better = if workload.starts_with("pairs") { ours / theirs } else { theirs / ours };
            self.row(library).map(|row| ratios.entry(row).or_insert(better));
        }
        Some((*ours, ratios))
    }
}

/// Draws how many times as fast as others we are, a panel for each backend.
fn peers(directory: &Path) -> String {
    const BACKENDS: [&str; 7] =
        ["memory", "file", "redis", "zookeeper", "memcache", "quorum-3", "quorum-5"];
    const ROW: f64 = 19.0;
    /// The left ends and the powers of ten at both ends of the two axes.
    const AXES: [(f64, i32, i32); 2] = [(160.0, -2, 2), (515.0, -2, 3)];
    const LENGTH: f64 = 290.0;

    let at = |(left, from, to): (f64, i32, i32), ratio: f64| {
        left + (ratio.log10() - f64::from(from)) / f64::from(to - from) * LENGTH
    };
    let mut svg = Canvas::default();
    let mut y = 60.0;
    for backend in BACKENDS {
        let comparison = Comparison::read(&directory.join(format!("{backend}.json")));
        let handoff = if backend == "memory" { "handoff local w=8" } else { "handoff w=8 p=8" };
        let columns = ["pairs c=64", handoff].map(|workload| comparison.ratios(workload));
        let columns = columns.map(|column| column.expect("both workloads were measured"));
        svg.text("strong", 0.0, y, backend);
        let place = if backend == "memory" { " (in one process)" } else { "" };
        let [pairs, time] = [0, 1].map(|column| grouped(columns[column].0));
        svg.text("small", AXES[0].0, y, &format!("ours: {pairs} pairs/s"));
        svg.text("small", AXES[1].0, y, &format!("ours: {time} µs{place}"));
        let mut rows: Vec<&String> = columns.iter().flat_map(|column| column.1.keys()).collect();
        rows.sort_by_key(|name| (*name != "floor", name.to_lowercase()));
        rows.dedup();
        for name in rows {
            y += ROW;
            svg.text("small end", AXES[0].0 - 20.0, y, name);
            for (axis, (_, ratios)) in AXES.into_iter().zip(&columns) {
                let Some(ratio) = ratios.get(name) else { continue };
                let (one, end) = (at(axis, 1.0), at(axis, *ratio));
                let (class, side, gap) =
                    if *ratio < 1.0 { ("bad", "end ", -5.0) } else { ("good", "", 5.0) };
                svg.rect(class, one.min(end), y - 11.0, (one - end).abs().max(1.0), 13.0);
                let digits = if *ratio < 9.95 { 2 - usize::from(*ratio >= 0.995) } else { 0 };
                svg.text(
                    &format!("small {side}{class}"),
                    end + gap,
                    y,
                    &format!("{ratio:.digits$}×"),
                );
            }
        }
        y += 30.0;
    }
    y -= 18.0;
    let rows = std::mem::take(&mut svg.0);
    let titles = ["Pairs per second of 64 tasks", "Hand-off between processes, median"];
    for (axis, title) in AXES.into_iter().zip(titles) {
        svg.text("strong", axis.0, 14.0, title);
        svg.text("small bad end", at(axis, 1.0) - 8.0, 34.0, "◂ ours is slower");
        svg.text("small good", at(axis, 1.0) + 8.0, 34.0, "ours is faster ▸");
        for power in axis.1..=axis.2 {
            let (ratio, strong) = (10_f64.powi(power), if power == 0 { "axis" } else { "rail" });
            svg.line(strong, at(axis, ratio), 42.0, at(axis, ratio), y);
            svg.text("small middle", at(axis, ratio), y + 16.0, &format!("{ratio}×"));
        }
        svg.text("middle", axis.0 + LENGTH / 2.0, y + 36.0, "times as fast (logarithmic)");
    }
    svg.0 += &rows;
    svg.close(y + 44.0, "Our speed as a multiple of that of other libraries")
}

/// Draws two terminals with the commands of the README's demonstration and their output.
fn two_terminals(readme: &str) -> String {
    let (_, section) = readme.split_once("## Two terminals\n").expect("the demonstration");
    let blocks = section.split("```").skip(1).step_by(2).take(3);
    let blocks = blocks.map(|block| block.split_once('\n').expect("a block of lines").1.trim());
    let [first, second, output] = { blocks.collect::<Vec<_>>() }[..] else {
        panic!("the demonstration has two commands and an output")
    };
    let mut svg = Canvas::default();
    let mut top = 1.0;
    let second_title = "terminal 2: the line below the command is updated until the lock is free";
    for (title, command, output) in [("terminal 1", first, ""), (second_title, second, output)] {
        let lines = format!("$ {command}\n{output}");
        let lines = lines.trim().lines();
        let height = 44.0 + 21.0 * lines.clone().count() as f64;
        svg.0 += &format!(
            "<rect class=\"frame\" x=\"1\" y=\"{top}\" width=\"{}\" height=\"{height}\" rx=\"8\"/>",
            WIDTH - 2.0
        );
        svg.line("rail", 1.0, top + 26.0, WIDTH - 1.0, top + 26.0);
        svg.text("small middle", WIDTH / 2.0, top + 18.0, title);
        for (index, line) in lines.enumerate() {
            let class = if line.starts_with('$') { "mono strong" } else { "mono" };
            svg.text(class, 16.0, top + 49.0 + 21.0 * index as f64, line);
        }
        top += height + 14.0;
    }
    svg.close(top - 13.0, "Two terminals: the second command waits for the first one")
}
