//! A report has everything that the run has written.

use std::process::{Command, Output};

use tempfile::TempDir;

fn bench(arguments: &[&str], directory: &TempDir) -> Output {
    Command::new(env!("CARGO_BIN_EXE_lock-bench"))
        .args(arguments)
        .current_dir(directory)
        .output()
        .expect("the program can be started")
}

fn read(directory: &TempDir, file: &str) -> String {
    std::fs::read_to_string(directory.path().join(file)).unwrap()
}

fn write(directory: &TempDir, file: &str, text: &str) {
    std::fs::write(directory.path().join(file), text).unwrap();
}

#[track_caller]
fn says(output: &[u8], needle: &str) {
    let text = String::from_utf8_lossy(output);
    assert!(text.contains(needle), "no {needle:?} in\n{text}");
}

#[test]
fn a_report_shows_the_run() {
    let directory = tempfile::tempdir().unwrap();
    let run = ["run", "redis:", "crowd", "growth", "--exact", "--json", "run"];
    assert!(bench(&run, &directory).status.success());
    let document = "before\n<!-- figures: generated -->\nold\n<!-- end of figures -->\nafter\n";
    write(&directory, "doc", document);
    let report = "report run --html html --markdown markdown --json json --document doc";
    let output = bench(&report.split(' ').collect::<Vec<_>>(), &directory);
    assert!(output.status.success(), "{output:?}");

    let lines = |name: &str| -> Vec<serde_json::Value> {
        read(&directory, name).lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    assert_eq!(lines("run"), lines("json"), "the report has the run as it was written");
    let page = read(&directory, "html");
    for needle in ["Order of service", "Requests of a waiter", "<circle class=\"ours\"", "floor"] {
        says(page.as_bytes(), needle);
    }
    // A dot for each waiter of the one crowd that is drawn, and one for each queue length, of ours
    // with and without hand-overs.
    assert_eq!(page.matches("<circle").count(), 2 * (64 + 3));
    says(read(&directory, "markdown").as_bytes(), "| requests a waiter, w=1000 |");
    let document = read(&directory, "doc");
    assert!(document.starts_with("before\n<!-- figures: generated -->\n### Ours, by backend"));
    assert!(document.ends_with("<!-- end of figures -->\nafter\n") && !document.contains("old"));
}

/// Half a report would look like a whole one.
#[test]
fn a_goals_file_without_a_run_prevents_the_report() {
    let directory = tempfile::tempdir().unwrap();
    write(&directory, "run", "{\"environment\":{\"backend\":\"quorum-3\"}}\n");
    let goals = "[[goal]]\nworkload='pairs'\nlib='l'\nfigure='f'\nmax=1.0\npromise='p'\n";
    for name in ["quorum-3.toml", "quorum-5.toml"] {
        write(&directory, name, goals);
    }
    let report = ["report", "run", "--html", "html", "--goals", "quorum-3.toml", "quorum-5.toml"];
    let output = bench(&report, &directory);
    assert_eq!(output.status.code(), Some(5));
    says(&output.stderr, "no run of that backend");
    assert!(!directory.path().join("html").exists());
    let output = bench(&report[..6], &directory);
    assert!(output.status.success() && directory.path().join("html").exists(), "{output:?}");
}

/// Two Redis runs of one machine, the later one only of takeovers, beside a lock that takes over
/// too early.
#[test]
fn a_document_lists_faster_libraries_and_broken_leases() {
    const RUN: &str = r#"{"environment":{"backend":"redis","rounds":1,"server_cpus":[0],"worker_cpus":[0],"others":{"rslock":"1","python-redis-lock":"1"}}}
{"workload":"pairs c=1","lib":"locks","round":0,"times":{"p50 µs":150.0}}
{"workload":"pairs c=1","lib":"rslock","round":0,"times":{"p50 µs":120.0}}
{"workload":"killed","lib":"locks","round":0,"times":{"late p50 ms":90.0}}
"#;
    const LATER: &str = r#"{"environment":{"backend":"redis","rounds":1,"server_cpus":[0],"worker_cpus":[0],"others":{"rslock":"1"}}}
{"workload":"killed","lib":"locks","round":0,"times":{"late p50 ms":4.0},"counts":{"takeovers too early":0.0}}
{"workload":"killed","lib":"rslock","round":0,"times":{"late p50 ms":-380.0},"counts":{"takeovers too early":7.0}}
"#;
    const GOALS: &str = "[[goal]]\nworkload = 'pairs c=1'\nlib = 'locks'\nfigure = 'p50 µs'\nover = 'others'\n\
        max = 1.5\nmissed = 'because'\npromise = 'p'\n\n[[goal]]\nworkload = 'idle'\nlib = 'locks'\n\
        figure = 'requests/s'\nmax = 1\nmeasured = 0.500\npromise = 'p'\n";
    let directory = tempfile::tempdir().unwrap();
    let document = "<!-- figures: generated -->\n<!-- end of figures -->\n";
    for (name, text) in [("run", RUN), ("later", LATER), ("doc", document), ("redis.toml", GOALS)] {
        write(&directory, name, text);
    }
    let report = |runs: &[&str]| {
        let options = ["--document", "doc", "--goals", "redis.toml", "--results", "results"];
        let output = bench(&[&["report"], runs, &options].concat(), &directory);
        assert!(output.status.success(), "{output:?}");
        (read(&directory, "doc"), String::from_utf8(output.stderr).unwrap())
    };
    let (document, remarks) = report(&["run", "later"]);
    for needle in [
        "| rslock | 120 | -380, **7 too early** |\n",
        "| pairs c=1 | p50 µs | 150 | 120 (rslock) | 1.25 | because |\n",
        "`lock-bench run redis: --others --one-core`. Of a later run: `killed`.",
        "Without a second row: `python-redis-lock`, which notifies its waiters.",
    ] {
        says(document.as_bytes(), needle);
    }
    assert!(
        !document.contains("| killed |"),
        "a library that breaks leases is not ahead:\n{document}"
    );
    for needle in [
        "p50 µs is 1.250, which is met: delete `missed`",
        "requests/s is not in this run: 0.500 is left",
    ] {
        says(remarks.as_bytes(), needle);
    }
    says(read(&directory, "redis.toml").as_bytes(), "measured = 1.250");
    let again = report(&["results/redis.json"]).0;
    assert_eq!(again, document, "the stored results have everything in the document");
}

#[test]
fn an_invalid_run_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    for (text, needle) in [("{}\n", "line 1: no line of"), ("nothing\n", "line 1: expected")] {
        write(&directory, "run", text);
        let output = bench(&["report", "run", "--html", "/dev/null"], &directory);
        assert_eq!(output.status.code(), Some(5));
        says(&output.stderr, needle);
    }
    says(&bench(&["report", "run"], &directory).stderr, "say what to write");
}
