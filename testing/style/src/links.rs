//! Links, paths and commands in Markdown and comments lead to something that is there.

use std::collections::{BTreeMap, BTreeSet};

use crate::text::{Paragraph, paragraphs};
use crate::{Finding, Project};

/// The script with the tiers of the tests, which takes packages and parts as arguments.
const TEST: &str = "./test";
/// Names that end with one of these are those of files.
const EXTENSIONS: [&str; 13] =
    ["rs", "md", "toml", "lua", "py", "sh", "patch", "json", "jsonl", "bsh", "c", "php", "html"];

/// Finds relative links and anchors, paths in backticks and commands that lead nowhere.
pub fn links(project: &Project) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut anchors = BTreeMap::new();
    for file in &project.files {
        let markdown = file.ends_with(".md");
        for paragraph in paragraphs(project, file) {
            let links = paragraph.links.iter().filter(|_| markdown);
            let wrong = links.filter_map(|(line, link)| {
                let message = broken(project, file, link, &mut anchors)?;
                Some((*line, message))
            });
            let absent = paragraph.code.iter().filter(|(_, code)| is_absent(project, file, code));
            let absent = absent.map(|(line, code)| {
                (*line, format!("no file `{code}` here; write its path in the repository"))
            });
            let all = wrong.chain(absent).collect::<Vec<_>>();
            findings.extend(all.into_iter().map(|(line, text)| Finding::new(file, line, text)));
        }
        let of_mutant = |line: &&str| line.starts_with("Seen-by: ");
        let text = if markdown || file.ends_with(".patch") { project.read(file) } else { continue };
        for (index, line) in text.lines().enumerate().filter(|(_, it)| markdown || of_mutant(it)) {
            let wrong = commands(project, line);
            findings.extend(wrong.into_iter().map(|text| Finding::new(file, index + 1, text)));
        }
    }
    findings
}

/// Returns why a link leads nowhere.
fn broken(
    project: &Project,
    file: &str,
    link: &str,
    anchors: &mut BTreeMap<String, BTreeSet<String>>,
) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
    let target = if path.is_empty() { file.to_owned() } else { join(file, path) };
    if !project.has(&target) {
        return Some(format!("the link {link} leads to no file: there is no {target}"));
    }
    if anchor.is_empty() || !target.ends_with(".md") {
        return None;
    }
    let read = || headings(project, &target);
    let there = anchors.entry(target.clone()).or_insert_with(read);
    let near = there.iter().cloned().collect::<Vec<_>>().join(", ");
    (!there.contains(anchor)).then(|| format!("{target} has no heading #{anchor}, but {near}"))
}

/// Resolves a path that is relative to a file's folder.
fn join(file: &str, path: &str) -> String {
    let mut parts: Vec<&str> = file.split('/').collect();
    parts.pop();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    parts.join("/")
}

/// Returns the anchors that GitHub makes of a page's headings, and those written as HTML.
fn headings(project: &Project, file: &str) -> BTreeSet<String> {
    let mut anchors = BTreeSet::new();
    let headings = paragraphs(project, file).into_iter().filter(|paragraph| paragraph.heading);
    for Paragraph { text, .. } in headings {
        let kept = text.to_lowercase().replace(' ', "-");
        let slug: String = { kept }
            .chars()
            .filter(|letter| letter.is_alphanumeric() || "-_".contains(*letter))
            .collect();
        let numbered = (1..).map(|number| format!("{slug}-{number}"));
        let mut slugs = std::iter::once(slug.clone()).chain(numbered);
        anchors.insert(slugs.find(|slug| !anchors.contains(slug)).expect("endless"));
    }
    let text = project.read(file);
    for mark in ["<a id=\"", "<a name=\""] {
        anchors.extend(
            text.split(mark).skip(1).filter_map(|it| Some(it.split_once('"')?.0.to_owned())),
        );
    }
    anchors
}

/// Returns whether a code span looks like a path of the repository and leads to no file.
///
/// It may be relative to the folder of its file, or be the end of the path from the root.
fn is_absent(project: &Project, file: &str, code: &str) -> bool {
    let path = code.split_once(':').map_or(code, |(path, _)| path);
    let plain =
        path.chars().all(|letter| letter.is_ascii_alphanumeric() || "/._-".contains(letter));
    let ending = path.rsplit_once('.').map_or("", |(_, ending)| ending);
    let in_repository = plain && path.contains('/') && !path.starts_with(['/', '~']);
    if !in_repository || !EXTENSIONS.contains(&ending) || path.split('/').any(is_placeholder) {
        return false;
    }
    let end = format!("/{path}");
    let is_end = |known: &String| known.ends_with(&end) || known == path;
    !project.has(&join(file, path)) && !project.files.iter().any(is_end)
}

/// Returns whether this part of a path stands for others, as `CRATE` and `NAME.patch` do.
fn is_placeholder(part: &str) -> bool {
    let (stem, ending) = part.split_once('.').unwrap_or((part, ""));
    stem.len() > 1 && stem.chars().all(|letter| letter.is_ascii_uppercase()) && ending != "md"
}

/// Returns the errors in the commands of a line.
fn commands(project: &Project, line: &str) -> Vec<String> {
    let mut wrong = Vec::new();
    let is_end = |word: &&str| ["--", "#", "&&", "|", "then", "and"].contains(word);
    let placeholder = |word: &str| !word.starts_with(|letter: char| letter.is_ascii_lowercase());
    for part in line.split('`') {
        let words: Vec<&str> =
            part.split_whitespace().map(|it| it.trim_end_matches([',', ';'])).collect();
        for (index, word) in words.iter().enumerate() {
            let following: Vec<&str> =
                words[index + 1..].iter().copied().take_while(|it| !is_end(it)).collect();
            if *word == "cargo" && following.first().is_some_and(|it| ["run", "test"].contains(it))
            {
                wrong.extend(cargo(project, &following));
            } else if word.starts_with("scripts/") && !word.contains('*') && !project.has(word) {
                wrong.push(format!("no script {word}; name one of scripts/"));
            } else if *word == TEST {
                let script = project.read("test");
                let parts = script.lines().find_map(|line| line.strip_prefix("parts=("));
                let parts = parts.unwrap_or_default().trim_end_matches(')');
                let known = |name: &str| {
                    parts.split(' ').any(|part| part == name)
                        || project.packages.iter().any(|package| package.name == name)
                };
                // Prose may go on behind the bare command; in backticks all of it is the command.
                let alone = part.starts_with(TEST);
                let names = following.iter().filter(|it| alone && !it.starts_with("--"));
                let unknown = names.filter(|it| !placeholder(it) && !known(it));
                wrong.extend(unknown.map(|it| format!("./test knows no package and no part {it}")));
            }
        }
    }
    wrong
}

/// Returns the error in the arguments of `cargo run` or `cargo test`.
fn cargo(project: &Project, arguments: &[&str]) -> Option<String> {
    let value = |options: [&str; 2]| {
        let at = arguments.iter().position(|argument| options.contains(argument))?;
        let value = arguments.get(at + 1)?.trim_end_matches(['.', ')', ':']);
        value.starts_with(|letter: char| letter.is_ascii_lowercase()).then_some(value)
    };
    let name = value(["-p", "--package"])?;
    let Some(package) = project.packages.iter().find(|package| package.name == name) else {
        return Some(format!("no package {name}; name a member of the workspace"));
    };
    let test = value(["--test", "--test"])?;
    let usual = [format!("tests/{test}.rs"), format!("tests/{test}/main.rs")];
    let listed = package.manifest.get("test").and_then(toml::Value::as_array);
    let named = |table: &toml::Value| table.get("name").and_then(toml::Value::as_str) == Some(test);
    let there = listed.is_some_and(|tables| tables.iter().any(named))
        || usual.iter().any(|file| project.has(&format!("{}/{file}", package.directory)));
    (!there).then(|| format!("{name} has no test target {test}; name a file of its tests"))
}
