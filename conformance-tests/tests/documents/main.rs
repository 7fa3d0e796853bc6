//! The documents agree with the code: the laws in LAWS.md, the capability table in
//! docs/backends.md. With `BLESS=1` the generated parts are written instead of compared.

#[cfg(feature = "__tools")]
mod capabilities;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Write;
use std::path::PathBuf;

use lock_conformance::{Law, Level, laws, sabotage};

/// Replaces the text between the two marks of `part` in `file`, or compares it.
fn generated(file: &str, part: &str, text: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..").join(file);
    let document = std::fs::read_to_string(&path).expect("the document is there");
    let (open, close) =
        (format!("<!-- {part}: generated -->\n"), format!("<!-- end of {part} -->"));
    let begin = document.find(&open).unwrap_or_else(|| panic!("{file} has no {open}")) + open.len();
    let end =
        begin + document[begin..].find(&close).unwrap_or_else(|| panic!("{file} has no {close}"));
    if std::env::var_os("BLESS").is_some() {
        let blessed = format!("{}{text}{}", &document[..begin], &document[end..]);
        std::fs::write(&path, blessed).expect("the document can be written");
    } else {
        assert!(
            &document[begin..end] == text,
            "{file} is out of date; write it anew with: BLESS=1 cargo test -p lock-conformance --features __tools --test documents"
        );
    }
}

fn caught(law: &Law) -> Vec<&'static str> {
    let catching = |saboteur: &&sabotage::Saboteur| saboteur.caught_by.contains(&law.number);
    sabotage::all().iter().filter(catching).map(|saboteur| saboteur.name).collect()
}

#[test]
fn laws_checks_and_saboteurs_correspond() {
    let mut numbers = BTreeSet::new();
    let mut names = BTreeSet::new();
    for law in laws::all() {
        assert!(numbers.insert(law.number), "law {} is there twice", law.number);
        assert!(names.insert(law.name), "{} is there twice", law.name);
        assert!(
            !law.promise.is_empty() && !law.because.is_empty(),
            "law {} says nothing",
            law.number
        );
        assert!(
            !caught(law).is_empty(),
            "law {} has no saboteur: does its check check?",
            law.number
        );
    }
    let mut saboteurs = HashMap::new();
    for saboteur in sabotage::all() {
        assert!(saboteurs.insert(saboteur.name, ()).is_none(), "{} is there twice", saboteur.name);
        assert!(!saboteur.caught_by.is_empty(), "{} is caught by nothing", saboteur.name);
        for number in saboteur.caught_by {
            assert!(numbers.contains(number), "{} is caught by no law {number}", saboteur.name);
        }
    }
    assert!(saboteurs.len() >= 25);
}

#[test]
fn laws_md_holds_the_laws() {
    let mut text = String::new();
    for law in laws::all() {
        let title = law.name.replace('_', " ");
        let level = match law.level {
            Level::Must => "must",
            Level::IfDeclared => "if declared",
            Level::Stochastic => "must, stochastic",
        };
        let saboteurs = caught(law).join("`, `");
        writeln!(text, "\n### {} {title}\n", law.number).unwrap();
        writeln!(text, "*{level}.* {}\n", law.promise).unwrap();
        writeln!(text, "Because: {}\n", law.because).unwrap();
        writeln!(text, "Caught: `{saboteurs}`").unwrap();
    }
    text.push('\n');
    generated("LAWS.md", "laws", &text);
}

/// Checks that the README's program is an example, line for line, so that it compiles.
#[test]
fn readme_shows_the_example() {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |file: &str| std::fs::read_to_string(root.join(file)).expect("the file is there");
    let readme = read("README.md");
    let (_, block) = readme.split_once("```rust\n").expect("the README shows code");
    let (block, _) = block.split_once("```").expect("the block ends");
    let lines =
        |text: &str| text.lines().map(|line| format!("{}\n", line.trim())).collect::<String>();
    let example = lines(&read("lock-any/examples/quickstart.rs"));
    assert!(
        example.contains(&lines(block)),
        "README.md and lock-any/examples/quickstart.rs differ"
    );
}
