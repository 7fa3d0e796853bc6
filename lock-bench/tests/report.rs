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
