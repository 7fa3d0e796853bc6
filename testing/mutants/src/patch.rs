//! The form of a mutant: a header, and a unified diff with one line of context.

use std::fs;
use std::path::{Path, PathBuf};

/// A mistake that can be planted in the source.
#[derive(Debug)]
pub(crate) struct Mutant {
    /// `CRATE/NAME`, as its file is called.
    pub(crate) name: String,
    /// The file with its patch.
    pub(crate) file: PathBuf,
    /// All that stands before the diff.
    pub(crate) header: String,
    /// The law or test that must fail.
    pub(crate) breaks: String,
    /// The shortest command that shows it.
    pub(crate) seen_by: String,
    /// The diff.
    pub(crate) diff: String,
}

impl Mutant {
    /// Reads a mutant.
    ///
    /// # Errors
    ///
    /// The text has no header, or no diff.
    fn parse(name: String, file: PathBuf, text: &str) -> Result<Self, String> {
        let starts = |line: &&str| line.starts_with("diff --git ") || line.starts_with("--- ");
        let first = text.lines().find(starts).ok_or_else(|| format!("{name} has no diff"))?;
        let at =
            text.find(&format!("\n{first}\n")).ok_or_else(|| format!("{name} has no header"))?;
        let (header, diff) = text.split_at(at + 1);
        let field = |key: &str| {
            let value = header.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(": "));
            value.map(str::to_owned).ok_or_else(|| format!("{name} has no line {key}:"))
        };
        Ok(Self {
            breaks: field("Breaks")?,
            seen_by: field("Seen-by")?,
            header: header.trim_end().to_owned(),
            diff: diff.to_owned(),
            name,
            file,
        })
    }

    /// Returns whether a test of this name is one that must fail. `Breaks:` has names of tests, or
    /// parts of them, and numbers of laws.
    pub(crate) fn breaks_test(&self, name: &str) -> bool {
        self.broken().any(|broken| name.contains(&broken))
    }

    fn broken(&self) -> impl Iterator<Item = String> {
        self.breaks.split([',', ';']).map(|broken| {
            let broken = broken.trim();
            let number = broken.strip_prefix("law ").unwrap_or(broken);
            match number.split_once('.') {
                Some((chapter, law)) => format!("law_{chapter}_{law}_"),
                None => broken.to_owned(),
            }
        })
    }

    /// Writes the mutant with another diff.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub(crate) fn rewrite(&self, diff: &str) -> Result<(), String> {
        let text = format!("{}\n\n{}", self.header, tidy(diff));
        fs::write(&self.file, text).map_err(|error| format!("{}: {error}", self.file.display()))
    }
}

/// Reads all mutants of the project, by name.
///
/// # Errors
///
/// One cannot be read.
pub(crate) fn all(project: &Path) -> Result<Vec<Mutant>, String> {
    let mut mutants = Vec::new();
    for folder in entries(&project.join("mutants"))? {
        for file in entries(&folder)? {
            let name = |path: &Path| path.file_stem().unwrap_or_default().display().to_string();
            let text = fs::read_to_string(&file)
                .map_err(|error| format!("{}: {error}", file.display()))?;
            let name = format!("{}/{}", name(&folder), name(&file));
            mutants.push(Mutant::parse(name, file, &text)?);
        }
    }
    Ok(mutants)
}

fn entries(folder: &Path) -> Result<Vec<PathBuf>, String> {
    let said = |error| format!("{}: {error}", folder.display());
    let entries = fs::read_dir(folder).map_err(said)?;
    let mut paths: Vec<_> =
        entries.map(|entry| Ok(entry.map_err(said)?.path())).collect::<Result<_, String>>()?;
    paths.sort();
    Ok(paths)
}

/// Returns the diff without comments among its context and without git's own headers.
///
/// A comment that is reworded must not spoil a patch. A hunk is split where a comment was.
fn tidy(diff: &str) -> String {
    let mut text = String::new();
    let mut hunk = Hunk::default();
    for line in diff.lines() {
        if let Some(starts) = line.strip_prefix("@@ ") {
            hunk.write(&mut text);
            hunk = Hunk::at(starts);
        } else if line.starts_with("--- ") || line.starts_with("+++ ") {
            hunk.write(&mut text);
            hunk = Hunk::default();
            text.push_str(line);
            text.push('\n');
        } else if line.starts_with([' ', '-', '+']) {
            if line.starts_with(' ') && is_comment(&line[1..]) {
                hunk.write(&mut text);
                hunk = hunk.behind_comment();
            } else {
                hunk.lines.push(line);
            }
        }
    }
    hunk.write(&mut text);
    text
}

/// Returns whether the line of Rust or Lua is a comment and no more.
fn is_comment(line: &str) -> bool {
    line.trim_start().starts_with("//") || line.trim_start().starts_with("--")
}

/// The lines of a hunk, and where it begins before and after.
#[derive(Default)]
struct Hunk<'a> {
    old: usize,
    new: usize,
    lines: Vec<&'a str>,
}

impl<'a> Hunk<'a> {
    /// Returns an empty hunk from its head, such as `-70,3 +70,2 @@`.
    fn at(head: &str) -> Self {
        let mut starts = head.split(' ').map(|range| {
            let mut numbers = range[1..].split(',').map(|n| n.parse::<usize>().unwrap_or_default());
            let (start, count) = (numbers.next().unwrap_or_default(), numbers.next().unwrap_or(1));
            // An empty range stands for the line behind it.
            start + usize::from(count == 0)
        });
        let (old, new) = (starts.next().unwrap_or_default(), starts.next().unwrap_or_default());
        Self { old, new, lines: Vec::new() }
    }

    /// Returns an empty hunk that begins behind this one and the comment that follows it.
    fn behind_comment(&self) -> Self {
        Self {
            old: self.old + self.count('+') + 1,
            new: self.new + self.count('-') + 1,
            lines: Vec::new(),
        }
    }

    /// Counts the lines of one side: all but those that are only on the `other`.
    fn count(&self, other: char) -> usize {
        self.lines.iter().filter(|line| !line.starts_with(other)).count()
    }

    fn write(&self, text: &mut String) {
        if !self.lines.iter().any(|line| line.starts_with(['-', '+'])) {
            return;
        }
        let (before, after) = (self.count('+'), self.count('-'));
        let start = |start: usize, count| start - usize::from(count == 0);
        let (old, new) = (start(self.old, before), start(self.new, after));
        text.push_str(&format!("@@ -{old},{before} +{new},{after} @@\n"));
        for line in &self.lines {
            text.push_str(line);
            text.push('\n');
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::process::Command;

    use super::*;
    use crate::git;

    /// Checks that each mutant can be planted in the present code.
    #[test]
    fn every_patch_applies() {
        let project = crate::project();
        let mutants = all(&project).unwrap();
        assert!(!mutants.is_empty());
        let fails = |mutant: &Mutant| {
            git::check(&project, &mutant.diff)
                .err()
                .map(|error| format!("{}: {error}", mutant.name))
        };
        let stale: Vec<_> = mutants.iter().filter_map(fails).collect();
        assert!(stale.is_empty(), "run scripts/mutants --refresh:\n{}", stale.join("\n"));
    }

    /// Checks that a reworded comment spoils no patch, and that a hunk is found by its code and not
    /// by its line number.
    #[test]
    fn every_patch_is_anchored_in_code() {
        for mutant in all(&crate::project()).unwrap() {
            assert_eq!(
                tidy(&mutant.diff),
                mutant.diff,
                "{}: run scripts/mutants --refresh",
                mutant.name
            );
            for hunk in mutant.diff.split("\n@@ ").skip(1) {
                let lines: Vec<_> =
                    hunk.lines().skip(1).take_while(|line| !line.starts_with("---")).collect();
                let comments =
                    lines.iter().any(|line| line.starts_with('-') && is_comment(&line[1..]));
                assert!(!comments, "{} changes a comment:\n{hunk}", mutant.name);
                let anchors = lines.iter().any(|line| !line.starts_with('+'));
                assert!(anchors, "{} has a hunk that only adds:\n{hunk}", mutant.name);
                let is_context = |line: &&str| line.starts_with(' ');
                let before = lines.iter().take_while(|line| is_context(line)).count();
                let behind = lines.iter().rev().take_while(|line| is_context(line)).count();
                assert!(
                    before <= 1 && behind <= 1,
                    "{} has too much context:\n{hunk}",
                    mutant.name
                );
            }
        }
    }

    /// Checks that each header has the effect, the test that must fail, and the command that shows
    /// it.
    #[test]
    fn every_header_is_whole() {
        for mutant in all(&crate::project()).unwrap() {
            let effect = mutant.header.lines().next().unwrap();
            assert!(
                effect.ends_with('.') && !effect.starts_with("Breaks"),
                "{}: no sentence first",
                mutant.name
            );
            assert!(!mutant.breaks.is_empty(), "{} breaks nothing", mutant.name);
            assert!(
                mutant.seen_by.contains("cargo test -p "),
                "{}: {}",
                mutant.name,
                mutant.seen_by
            );
        }
    }

    /// A command whose test has another name by now would run no test, and a mutant whose test has
    /// another name could not be caught.
    #[test]
    fn every_mutant_names_its_tests() {
        let project = crate::project();
        let files = Command::new("git").args(["ls-files", "*.rs"]).current_dir(&project).output();
        let files = String::from_utf8(files.unwrap().stdout).unwrap();
        let read = |file| fs::read_to_string(project.join(file)).unwrap_or_default();
        let source: String = files.lines().map(read).collect();
        let names = source.lines().filter_map(|line| {
            let (_, name) = line.split_once("fn ").or_else(|| line.split_once("mod "))?;
            name.split(|c: char| !c.is_alphanumeric() && c != '_').next()
        });
        let names: HashSet<_> = names.collect();
        let is_there = |path: &str| {
            let name = path.split("::").filter(|part| !part.is_empty()).last().unwrap();
            // Macros name the tests of laws.
            name.contains("law_") || names.iter().any(|it| it.contains(name))
        };
        let mut stale = Vec::new();
        for mutant in all(&project).unwrap() {
            let filter = mutant.seen_by.split(' ').next_back().unwrap().to_owned();
            let named = mutant.broken().chain([filter]);
            stale.extend(
                named.filter(|name| !is_there(name)).map(|name| (mutant.name.clone(), name)),
            );
        }
        assert!(stale.is_empty(), "no test has these names: {stale:#?}");
    }

    #[test]
    fn comments_are_no_context() {
        let diff = "diff --git a/x.rs b/x.rs\nindex 1..2 100644\n--- a/x.rs\n+++ b/x.rs\n\
            @@ -7,3 +7,3 @@ fn x() {\n     // why\n-    one();\n+    two();\n     three();\n";
        let tidied =
            "--- a/x.rs\n+++ b/x.rs\n@@ -8,2 +8,2 @@\n-    one();\n+    two();\n     three();\n";
        assert_eq!(tidy(diff), tidied);
        assert_eq!(tidy(tidied), tidied);
    }

    #[test]
    fn a_hunk_is_split_at_a_comment() {
        let diff = "--- a/x.lua\n+++ b/x.lua\n@@ -1,4 +1,2 @@\n a()\n-b()\n --- why\n-c()\n";
        let tidied =
            "--- a/x.lua\n+++ b/x.lua\n@@ -1,2 +1,1 @@\n a()\n-b()\n@@ -4,1 +2,0 @@\n-c()\n";
        assert_eq!(tidy(diff), tidied);
    }
}
