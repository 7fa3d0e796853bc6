//! Help, completions and manual pages, as read by the programs that they are for.

use std::process::{Command, Output};

use crate::support::{Scratch, outcome};

const VERBS: &[&str] = &[
    "run",
    "acquire",
    "renew",
    "release",
    "inspect",
    "list",
    "top",
    "break",
    "doctor",
    "completions",
    "man",
];

/// Writes the page of a verb, or that of lockctl, to a file. Returns its path.
#[cfg(feature = "__tools")]
fn page(scratch: &Scratch, verb: Option<&str>) -> std::path::PathBuf {
    let mut command = scratch.lockctl(&["man"]);
    let (code, page, stderr) = outcome(command.args(verb));
    assert_eq!((code, stderr.as_str()), (0, ""), "{verb:?}");
    let path = scratch.path(&format!("lockctl-{}.1", verb.unwrap_or("")));
    std::fs::write(&path, page).unwrap();
    path
}

/// Removes the characters that a printer would overstrike.
#[cfg(feature = "__tools")]
fn plain(shown: &str) -> String {
    let mut plain = String::new();
    for c in shown.chars() {
        match c {
            '\u{8}' => drop(plain.pop()),
            c => plain.push(c),
        }
    }
    plain
}

fn text(output: &Output) -> String {
    format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    )
}

#[cfg(feature = "__tools")]
#[test]
fn every_manual_page_renders_without_warnings() {
    let scratch = Scratch::new();
    for verb in VERBS.iter().copied().map(Some).chain([None]) {
        let page = page(&scratch, verb);
        let lint = Command::new("mandoc").args(["-Tlint", "-Wwarning"]).arg(&page).output();
        let lint = lint.expect("mandoc is missing; install it: apt-get install mandoc");
        assert!(lint.status.success(), "{verb:?}: {}", text(&lint));
        assert_eq!(text(&lint), "", "{verb:?}");

        let shown = Command::new("mandoc").args(["-Tascii", "-O", "width=78"]).arg(&page).output();
        let shown = plain(&text(&shown.unwrap()));
        let name = verb.map_or_else(|| "LOCKCTL".to_owned(), |verb| format!("LOCKCTL-{verb}"));
        assert!(shown.contains(&format!("{}(1)", name.to_uppercase())), "{shown}");
        let usage = outcome(&mut scratch.lockctl(&[verb.unwrap_or("--help"), "--help"])).1;
        let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
        let (example, shown) = (
            usage.split("Examples:\n").nth(1).unwrap().lines().next().unwrap().to_owned(),
            words(&shown).join(" "),
        );
        assert!(shown.contains(&words(&example).join(" ")), "{example}: {shown}");
        assert!(!shown.contains("__"), "{shown}");
    }
}

#[test]
fn every_verb_has_help_with_examples() {
    let scratch = Scratch::new();
    for verb in VERBS {
        let (code, help, stderr) = outcome(&mut scratch.lockctl(&[verb, "--help"]));
        assert_eq!((code, stderr.as_str()), (0, ""), "{verb}");
        assert!(help.contains(&format!("\n  lockctl {verb} ")) || *verb == "acquire", "{help}");
        let has_status = matches!(*verb, "completions" | "man") || help.contains("Exit status:");
        assert!(has_status && help.contains("Examples:"), "{help}");
        let (_, short, _) = outcome(&mut scratch.lockctl(&[verb, "-h"]));
        assert!(short.lines().count() < help.lines().count(), "{short}");
    }
}

#[test]
fn bash_completes_verbs_and_options() {
    let scratch = Scratch::new();
    let (code, script, stderr) = outcome(&mut scratch.lockctl(&["completions", "bash"]));
    assert_eq!((code, stderr.as_str()), (0, ""));
    std::fs::write(scratch.path("completions"), script).unwrap();
    let complete = |words: &[&str]| {
        let asks = "set -eu; source \"$0\"; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); \
            read -ra words <<<\"$(complete -p lockctl)\"; \
            for ((at = 0; at < ${#words[@]}; at++)); do \
                [[ ${words[at]} == -F ]] && completes=${words[at + 1]}; done; \
            $completes lockctl \"${COMP_WORDS[COMP_CWORD]}\" \"${COMP_WORDS[COMP_CWORD-1]}\" || :; \
            echo \"${COMPREPLY[*]}\"";
        let mut bash = Command::new("bash");
        bash.args(["--norc", "-c", asks]).arg(scratch.path("completions"));
        let output = bash.args(words).output().unwrap();
        assert!(output.status.success() && output.stderr.is_empty(), "{}", text(&output));
        text(&output).trim().to_owned()
    };
    assert_eq!(complete(&["lockctl", "rel"]), "release");
    assert_eq!(complete(&["lockctl", "re"]), "renew release");
    assert_eq!(complete(&["lockctl", "inspect", "--sh"]), "--show-owner");
    assert_eq!(complete(&["lockctl", "run", "--min"]), "--min-hold");
    assert_eq!(complete(&["lockctl", "completions", "b"]), "bash");
    let after = |words: &[&str]| complete(&[&["lockctl", "run", "n", "--"], words].concat());
    // The command appears twice where /bin is /usr/bin.
    let commands = after(&["rmdi"]);
    assert!(commands.split(' ').all(|command| command == "rmdir"), "{commands}");
    assert_eq!(after(&["env", "--"]), "", "the options of the command are not those of lockctl");
    assert_eq!(complete(&["lockctl", "run", "n", "--"]).split(' ').next(), Some("--ttl"));
    assert_eq!(complete(&["lockctl", "__"]), "", "internal verbs are not offered");
}

#[test]
fn other_shells_have_completions_too() {
    let scratch = Scratch::new();
    for (shell, begins, command) in [
        (
            "zsh",
            "#compdef lockctl",
            "*::command -- The command and its arguments:_lockctl_command'",
        ),
        ("fish", "# Print an optspec", "-k -x -a '(__fish_lockctl_command)'"),
    ] {
        let (code, script, stderr) = outcome(&mut scratch.lockctl(&["completions", shell]));
        assert_eq!((code, stderr.as_str()), (0, ""), "{shell}");
        assert!(script.starts_with(begins), "{script}");
        assert!(script.contains("show-owner") && !script.contains("__exec"), "{shell}");
        assert!(shell == "fish" || script.contains("\n_lockctl_command() {\n"), "{script}");
        assert!(script.contains(command), "{shell} completes the command of run: {script}");
    }
    let (code, stdout, stderr) = outcome(&mut scratch.lockctl(&["completions", "tcsh"]));
    assert_eq!((code, stdout.as_str(), stderr.lines().count()), (64, "", 1), "{stderr}");
    assert!(stderr.contains("zsh"), "{stderr}");
}

#[test]
fn a_closed_pipe_is_no_error() {
    let scratch = Scratch::new();
    let script = "\"$0\" man | true; echo ${PIPESTATUS[0]}";
    let mut bash = Command::new("bash");
    bash.args(["-c", script, env!("CARGO_BIN_EXE_lockctl")]).current_dir(scratch.path(""));
    assert_eq!(outcome(&mut bash), (0, "0\n".to_owned(), String::new()));
}
