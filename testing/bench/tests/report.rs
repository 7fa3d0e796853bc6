//! A report says what the run has written, and nothing gets lost on the way.

use std::path::Path;
use std::process::{Command, Output};

fn bench(arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lock-bench"))
        .args(arguments)
        .output()
        .expect("the program can be started")
}

fn read(file: &Path) -> String {
    std::fs::read_to_string(file).unwrap()
}

#[test]
fn a_report_has_what_the_run_has_written() {
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let words = |name: &str| file(name).to_str().unwrap().to_owned();
    let run = ["run", "redis:", "crowd", "growth", "--exact", "--json", &words("run")];
    assert!(bench(&run).status.success());
    std::fs::write(
        file("doc"),
        "before\n<!-- figures: generated -->\nold\n<!-- end of figures -->\nafter\n",
    )
    .unwrap();
    let output = bench(&[
        "report",
        &words("run"),
        "--html",
        &words("html"),
        "--markdown",
        &words("markdown"),
        "--json",
        &words("json"),
        "--document",
        &words("doc"),
    ]);
    assert!(output.status.success(), "{output:?}");

    let lines = |name: &str| -> Vec<serde_json::Value> {
        let text = read(&file(name));
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert_eq!(lines("run"), lines("json"), "what was read is what was written");
    let page = read(&file("html"));
    for needle in ["Who is served when", "What a waiter costs", "<circle class=\"ours\"", "floor"] {
        assert!(page.contains(needle), "no {needle:?} in the page");
    }
    // A dot for each of the waiters of the one crowd that is drawn, and one for each length of the line, of ours with
    // and without hand-overs.
    assert_eq!(page.matches("<circle").count(), 2 * (64 + 3));
    assert!(read(&file("markdown")).contains("| requests a waiter, w=1000 |"));
    let document = read(&file("doc"));
    assert!(document.starts_with("before\n<!-- figures: generated -->\n### Ours, by backend"));
    assert!(document.ends_with("<!-- end of figures -->\nafter\n") && !document.contains("old"));
}

/// Half a report would look like a whole one.
#[test]
fn a_goals_file_without_a_run_keeps_anything_from_being_written() {
    let directory = tempfile::tempdir().unwrap();
    let words = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let run = r#"{"environment":{"backend":"quorum-3"}}"#;
    std::fs::write(words("run"), format!("{run}\n")).unwrap();
    let goals = "[[goal]]\nworkload='pairs'\nlib='l'\nfigure='f'\nmax=1.0\npromise='p'\n";
    for name in ["quorum-3.toml", "quorum-5.toml"] {
        std::fs::write(words(name), goals).unwrap();
    }
    let report = |goals: &[&str]| {
        let goals: Vec<String> = goals.iter().map(|goals| words(goals)).collect();
        let (run, html) = (words("run"), words("html"));
        let mut arguments = vec!["report", &*run, "--html", &*html, "--goals"];
        arguments.extend(goals.iter().map(String::as_str));
        bench(&arguments)
    };
    let output = report(&["quorum-3.toml", "quorum-5.toml"]);
    assert_eq!(output.status.code(), Some(5));
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("no run of that backend"),
        "{output:?}"
    );
    assert!(!Path::new(&words("html")).exists());
    let output = report(&["quorum-3.toml"]);
    assert!(output.status.success() && Path::new(&words("html")).exists(), "{output:?}");
}

/// Two Redis runs of one machine, the later one of takeovers alone, beside a lock that takes over too early.
#[test]
fn a_document_says_where_another_one_is_ahead_and_who_breaks_leases() {
    const RUN: &str = r#"{"environment":{"backend":"redis","rounds":1,"others":{"rslock":"1","python-redis-lock":"1"}}}
{"workload":"pairs c=1","lib":"locks","round":0,"times":{"p50 µs":150.0}}
{"workload":"pairs c=1","lib":"rslock","round":0,"times":{"p50 µs":120.0}}
{"workload":"killed","lib":"locks","round":0,"times":{"late p50 ms":90.0}}
"#;
    const LATER: &str = r#"{"environment":{"backend":"redis","rounds":1,"others":{"rslock":"1"}}}
{"workload":"killed","lib":"locks","round":0,"times":{"late p50 ms":4.0},"counts":{"takeovers too early":0.0}}
{"workload":"killed","lib":"rslock","round":0,"times":{"late p50 ms":-380.0},"counts":{"takeovers too early":7.0}}
"#;
    const GOALS: &str = "[[goal]]\nworkload = 'pairs c=1'\nlib = 'locks'\nfigure = 'p50 µs'\nover = 'others'\n\
        max = 1.5\nmissed = 'because'\npromise = 'p'\n\n[[goal]]\nworkload = 'idle'\nlib = 'locks'\n\
        figure = 'requests/s'\nmax = 1\nmeasured = 0.500\npromise = 'p'\n";
    let directory = tempfile::tempdir().unwrap();
    let file = |name: &str| directory.path().join(name);
    let words = |name: &str| file(name).to_str().unwrap().to_owned();
    let document = "<!-- figures: generated -->\n<!-- end of figures -->\n";
    for (name, text) in [("run", RUN), ("later", LATER), ("doc", document), ("redis.toml", GOALS)] {
        std::fs::write(file(name), text).unwrap();
    }
    let report = |runs: &[&str]| {
        let runs: Vec<String> = runs.iter().map(|run| words(run)).collect();
        let (doc, goals, results) = (words("doc"), words("redis.toml"), words("results"));
        let mut arguments = vec!["report"];
        arguments.extend(runs.iter().map(String::as_str));
        arguments.extend(["--document", &doc, "--goals", &goals, "--results", &results]);
        let output = bench(&arguments);
        assert!(output.status.success(), "{output:?}");
        (read(&file("doc")), String::from_utf8(output.stderr).unwrap())
    };
    let (document, remarks) = report(&["run", "later"]);
    for needle in [
        "| rslock | 120 | -380, **7 too early** |\n",
        "| pairs c=1 | p50 µs | 150 | 120 (rslock) | 1.25 | because |\n",
        "Of a later run: `killed`.",
        "Without a second row: `python-redis-lock`, which is told.",
    ] {
        assert!(document.contains(needle), "no {needle:?} in\n{document}");
    }
    assert!(!document.contains("| killed |"), "who breaks leases is ahead of nobody:\n{document}");
    for needle in [
        "p50 µs is 1.250, which is met: delete `missed`",
        "requests/s is not in this run: 0.500 is left",
    ] {
        assert!(remarks.contains(needle), "no {needle:?} in\n{remarks}");
    }
    assert!(read(&file("redis.toml")).contains("measured = 1.250"));
    let again = report(&["results/redis.json"]).0;
    assert_eq!(again, document, "what is kept has all that the document shows");
}

#[test]
fn what_is_no_run_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("run");
    let path = file.to_str().unwrap();
    for (text, needle) in [("{}\n", "line 1: no line of"), ("nothing\n", "line 1: expected")] {
        std::fs::write(&file, text).unwrap();
        let output = bench(&["report", path, "--html", "/dev/null"]);
        assert_eq!(output.status.code(), Some(5));
        assert!(String::from_utf8_lossy(&output.stderr).contains(needle), "{output:?}");
    }
    let output = bench(&["report", path]);
    assert!(String::from_utf8_lossy(&output.stderr).contains("say what to write"), "{output:?}");
}
