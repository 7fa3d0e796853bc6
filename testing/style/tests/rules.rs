//! The checks find breaches of the rules, and nothing else.

use std::path::Path;
use std::process::Command;

use style::{Finding, Project};

/// Returns the findings of a check on a workspace with these files.
fn findings(check: fn(&Project) -> Vec<Finding>, files: &[(&str, &str)]) -> Vec<String> {
    let root = tempfile::tempdir().expect("a directory");
    let manifest =
        |name: &str| format!("[package]\nname = \"{name}\"\n[dependencies]\nback = {{}}\n");
    let write = |file: &str, text: &str| {
        let path = root.path().join(file);
        std::fs::create_dir_all(path.parent().unwrap_or(Path::new("/"))).expect("a directory");
        std::fs::write(path, text).expect("a file");
    };
    let members = [("back", "back"), ("any", "lock-any"), ("testing/style", "style")];
    write("Cargo.toml", &format!("[workspace]\nmembers = {:?}\n", members.map(|it| it.0)));
    for (directory, name) in members {
        write(&format!("{directory}/Cargo.toml"), &manifest(name));
    }
    write("docs/glossary.md", "# Glossary\n\n## Two words\n\n| claim, `Claim` | one | |\n");
    write("test", "parts=(soaks)\n");
    for list in ["cycles", "names", "backends", "prose"] {
        write(&format!("testing/style/{list}.toml"), "");
    }
    files.iter().for_each(|(file, text)| write(file, text));
    let git = Command::new("git").arg("-C").arg(root.path()).args(["init", "-q"]).status();
    assert!(git.expect("git runs").success());
    check(&Project::open(root.path())).iter().map(ToString::to_string).collect()
}

#[track_caller]
fn only(findings: &[String], expected: &[&str]) {
    let all = findings.len() == expected.len()
        && findings.iter().zip(expected).all(|(finding, expected)| finding.contains(expected));
    assert!(all, "{findings:#?}, expected {expected:#?}");
}

#[test]
fn imports_in_a_circle_are_found_through_re_exports() {
    let root = "mod a;\nmod b;\npub use a::A;\npub use b::B;\n";
    let a = "pub struct A(crate::B);\n";
    let files = |b| [("back/src/lib.rs", root), ("back/src/a.rs", a), ("back/src/b.rs", b)];
    let circle = "back/src/a.rs:1: modules of back import each other: a, b";
    for b in [
        "use super::A;\npub struct B;",
        "pub struct B;\nfn f() { println!(\"{}\", crate::a::A::N) }",
    ] {
        only(&findings(style::structure, &files(b)), &[circle]);
    }
    for b in ["pub struct B;", "pub struct B;\n#[cfg(test)]\nmod tests { use crate::A; }"] {
        only(&findings(style::structure, &files(b)), &[]);
    }
}

#[test]
fn a_parent_that_calls_a_child_which_uses_the_parent_is_a_circle() {
    let child = ("back/src/a.rs", "pub(super) fn run() { super::help() }");
    let calls = "mod a;\nfn help() {}\nfn start() { a::run() }";
    only(
        &findings(style::structure, &[("back/src/lib.rs", calls), child]),
        &["modules of back import each other: a, crate"],
    );
    let declares = "mod a;\npub(crate) use a::run;\nfn help() {}";
    only(&findings(style::structure, &[("back/src/lib.rs", declares), child]), &[]);
}

#[test]
fn entries_that_are_not_needed_are_found() {
    let list = ("testing/style/cycles.toml", "# A list.\n\n[back]\n\"a, b\" = \"a reason\"\n");
    let found = findings(style::structure, &[list]);
    only(&found, &["testing/style/cycles.toml:4: back needs no entry a, b any more"]);
}

#[test]
fn types_share_a_name_only_for_a_reason() {
    let root = "mod a;\nstruct Claim;\nstruct State;\ntrait T { type Error; }\nstruct Error;";
    let files = [("back/src/lib.rs", root), ("back/src/a.rs", "enum State {}\ntype Claim = ();")];
    let another = "back/src/lib.rs:3: back has another `State`: back/src/a.rs:1";
    only(&findings(style::names, &files), &[another]);
    let reason = ("testing/style/names.toml", "[back]\nState = \"of other things\"\n");
    only(&findings(style::names, &[files[0], files[1], reason]), &[]);
}

#[test]
fn backends_have_the_same_files() {
    let long = "fn f() {}\n// No code.\n\n".repeat(150);
    let files = ["config", "fault", "names"].map(|name| format!("back/src/{name}.rs"));
    let mut files: Vec<(&str, &str)> = files.iter().map(|file| (file.as_str(), "")).collect();
    files.push(("back/src/backend.rs", &long));
    let expected = ["back/src/value.rs:1: is missing", "back/src/backend.rs:1: 150 lines of code"];
    only(&findings(style::backends, &files), &expected);
    let list = "[back]\n\"value.rs or record.rs\" = \"none\"\n\"backend.rs lines\" = 149.0\n";
    files.push(("testing/style/backends.toml", list));
    only(&findings(style::backends, &files), &["(limit: 149, in testing/style/backends.toml"]);
}

#[test]
fn sentences_openers_and_wide_lines_are_measured() {
    let long = "word ".repeat(29);
    let text = format!(
        "/// Whoever waits.\nfn f() {{}}\n\n/// Returns it.\npub(crate) const fn g() {{}}\n// {long}\n"
    );
    let text = text + "/// The state.\nstruct S;\n";
    only(
        &findings(style::prose, &[("back/src/lib.rs", &text)]),
        &["lib.rs:1: who of back", "lib.rs:6: long", "lib.rs:1: no_verb of back is 50", "wide"],
    );
}

#[test]
fn links_paths_and_commands_lead_somewhere() {
    let right = "[a](docs/glossary.md#two-words) `docs/glossary.md` `mutants/CRATE/NAME.patch`\n\
        `cargo test -p back --test t`, `cargo run -p NAME`, `./test soaks`, `./test back`\n";
    let files = |text| [("back/tests/t.rs", ""), ("README.md", text)];
    only(&findings(style::links, &files(right)), &[]);
    let wrong = [
        ("[a](nowhere.md)", "README.md:1: the link nowhere.md leads to no file"),
        ("[a](docs/glossary.md#three)", "docs/glossary.md has no heading #three"),
        ("`back/src/gone.rs`", "no file `back/src/gone.rs`"),
        ("`cargo test -p gone`", "no package gone"),
        ("`cargo test -p back --test gone`", "back has no test target gone"),
        ("`./test gone`", "no package and no part gone"),
        ("`scripts/gone all`", "no script scripts/gone"),
    ];
    for (text, expected) in wrong {
        only(&findings(style::links, &files(text)), &[expected]);
    }
    let mutant = ("mutants/back/m.patch", "Wrong.\nSeen-by: cargo test -p back --test gone\n");
    only(&findings(style::links, &[mutant]), &["mutants/back/m.patch:2: back has no test target"]);
}
