//! How the prose reads: comments, rustdoc and Markdown, per package and folder of documents.

use std::collections::BTreeMap;
use std::fmt::Write;

use crate::project::Exception;
use crate::text::{Block, Paragraph, blocks};
use crate::{Finding, Project};

/// More words than this make a sentence long.
const LONG: usize = 28;
/// The columns of a line.
const COLUMNS: usize = 100;
const WHO: [&str; 5] = ["who", "whoever", "whom", "nobody", "somebody"];
const WHAT: [&str; 2] = ["what", "whatever"];
/// First words with an s at their end that are no verbs.
const NO_VERBS: [&str; 12] = [
    "This",
    "Its",
    "Is",
    "Has",
    "Was",
    "Does",
    "As",
    "Us",
    "Thus",
    "Always",
    "Sometimes",
    "Unless",
];

#[derive(Debug, Default)]
struct Area {
    words: usize,
    who: usize,
    what: usize,
    sentences: usize,
    long: usize,
    functions: usize,
    no_verb: usize,
    wide: usize,
    /// Places to mend: the measure, how bad, and the place.
    places: Vec<(&'static str, usize, Finding)>,
}

impl Area {
    /// Returns each measure with its figure and its goal; less is better.
    ///
    /// `who` and `what` are per 1 000 words, `long` and `no_verb` in percent, `wide` counts lines.
    fn figures(&self) -> [(&'static str, f64, f64); 5] {
        let share = |part: usize, of: usize, times: f64| {
            (10.0 * times * part as f64 / of.max(1) as f64).round() / 10.0
        };
        [
            ("who", share(self.who, self.words, 1000.0), 0.3),
            ("what", share(self.what, self.words, 1000.0), 0.8),
            ("long", share(self.long, self.sentences, 100.0), 5.0),
            ("no_verb", share(self.no_verb, self.functions, 100.0), 20.0),
            ("wide", self.wide as f64, 0.0),
        ]
    }

    fn sentence(&mut self, file: &str, line: usize, sentence: &str) {
        let words: Vec<&str> = sentence
            .split_whitespace()
            .filter(|word| word.contains(char::is_alphanumeric))
            .collect();
        self.words += words.len();
        self.sentences += 1;
        let count = |list: &[&str]| {
            let plain = words.iter().map(|word| word.trim_matches(|c: char| !c.is_alphanumeric()));
            plain.filter(|word| list.contains(&word.to_lowercase().as_str())).count()
        };
        let (who, what) = (count(&WHO), count(&WHAT));
        self.who += who;
        self.what += what;
        let remedies = [
            ("who", who, "name the holder, the waiter, the client"),
            ("what", what, "name the thing"),
        ];
        for (measure, times, remedy) in remedies {
            if times > 0 {
                let message = format!("{remedy} in place of \"{measure}\": {sentence}");
                self.places.push((measure, times, Finding::new(file, line, message)));
            }
        }
        if words.len() > LONG {
            self.long += 1;
            let message = format!("{} words; split it: {sentence}", words.len());
            self.places.push(("long", words.len() - LONG, Finding::new(file, line, message)));
        }
    }

    /// Measures how the documentation that begins on a line opens, if it is that of a function.
    fn opener(&mut self, file: &str, text: &[&str], line: usize, doc: &str) {
        let is_doc = |line: &str| line.trim_start().starts_with("///");
        let mut code = text[line - 1..].iter().map(|line| line.trim_start());
        let item = code.find(|line| !line.starts_with(['#', ')']) && !line.starts_with("//"));
        let mut words = item.unwrap_or_default().split([' ', '(']);
        let before = ["pub", "crate)", "super)", "const", "async", "unsafe"];
        let is_fn = words.find(|word| !before.contains(word)) == Some("fn");
        if !is_fn || !is_doc(text[line - 1]) || (line > 1 && is_doc(text[line - 2])) {
            return;
        }
        self.functions += 1;
        let first = doc.split_whitespace().next().unwrap_or_default();
        let letters = first.len() > 2 && first.chars().all(|letter| letter.is_ascii_alphabetic());
        if !letters || !first.ends_with('s') || NO_VERBS.contains(&first) {
            self.no_verb += 1;
            let message = format!("open with a verb (Returns, Waits until, ...): {doc}");
            self.places.push(("no_verb", 1, Finding::new(file, line, message)));
        }
    }

    fn lines(&mut self, project: &Project, file: &str, blocks: &[Block]) {
        let markdown = file.ends_with(".md");
        // The page's block, in place of the file, has no generated parts.
        let text = if markdown { blocks[0].lines.join("\n") } else { project.read(file) };
        let mark = if file.ends_with(".lua") { "--" } else { "//" };
        let mut fenced = false;
        for (index, line) in text.lines().enumerate() {
            let trimmed = line.trim_start();
            if !markdown && !trimmed.starts_with(mark) {
                fenced = false;
                continue;
            }
            let text = trimmed.trim_start_matches(['/', '!', ' ']);
            fenced ^= text.starts_with("```");
            let link = line.contains("](") || line.contains("://");
            let columns = line.chars().count();
            if columns > COLUMNS && !fenced && !link && !text.starts_with('|') {
                self.wide += 1;
                let message = format!("{columns} columns; break the line at {COLUMNS}");
                let place = Finding::new(file, index + 1, message);
                self.places.push(("wide", columns - COLUMNS, place));
            }
        }
    }
}

/// Measures each area: a package, or a folder outside of all packages.
fn measure(project: &Project, prefix: &str) -> BTreeMap<String, Area> {
    let mut areas: BTreeMap<String, Area> = BTreeMap::new();
    for file in project.files.iter().filter(|file| file.starts_with(prefix)) {
        let blocks = blocks(project, file, false);
        if blocks.is_empty() {
            continue;
        }
        let folder = file.rsplit_once('/').map_or(".", |(folder, _)| folder);
        let package = project.package_of(file).map(|package| package.name.as_str());
        let area = areas.entry(package.unwrap_or(folder).to_owned()).or_default();
        let text = project.read(file);
        let text: Vec<&str> = text.lines().collect();
        for paragraph in blocks.iter().flat_map(Block::paragraphs) {
            let Paragraph { line, heading: false, .. } = paragraph else { continue };
            let sentences = paragraph.sentences();
            sentences.iter().for_each(|sentence| area.sentence(file, line, sentence));
            if let (true, Some(first)) = (file.ends_with(".rs"), sentences.first()) {
                area.opener(file, &text, line, first);
            }
        }
        area.lines(project, file, &blocks);
    }
    areas
}

/// Finds areas that are worse than the goal and than their limits in `prose.toml`.
///
/// A limit of an area that has reached the goal is a finding, too.
pub fn prose(project: &Project) -> Vec<Finding> {
    let mut found = Vec::new();
    for (name, area) in measure(project, "") {
        for (measure, figure, goal) in area.figures() {
            let places = area.places.iter().filter(|(of, ..)| *of == measure);
            let worst_place = places.max_by_key(|(_, badness, _)| *badness);
            let Some((_, _, place)) = worst_place.filter(|_| figure > goal) else { continue };
            let message = format!(
                "{measure} of {name} is {figure} (limit: LIMIT, goal: {goal}); mend some of these \
                 (all: cargo run -q -p style -- prose {name}){}",
                worst(&area, measure, 5)
            );
            let finding = Finding::new(&place.file, place.line, message);
            let (package, key) = (name.clone(), measure.to_owned());
            found.push(Exception { package, key, figure, finding });
        }
    }
    project.settle("prose.toml", found)
}

fn worst(area: &Area, measure: &str, count: usize) -> String {
    let mut places: Vec<_> = area.places.iter().filter(|(of, ..)| *of == measure).collect();
    places.sort_by_key(|(_, badness, _)| std::cmp::Reverse(*badness));
    let shown = places.iter().take(count);
    shown.map(|(measure, _, finding)| format!("\n    {measure} {finding}")).collect()
}

/// Returns the table of all areas, or of a package or path with the worst places.
pub fn report(project: &Project, prefix: Option<&str>) -> String {
    let package = project.packages.iter().find(|package| Some(&*package.name) == prefix);
    let path = package.map(|package| package.directory.as_str()).or(prefix).unwrap_or("");
    let mut text = String::from("who, what: per 1 000 words; long, no_verb: percent; wide: lines");
    let mut places = String::new();
    for (name, area) in measure(project, path.trim_end_matches('/')) {
        let _ = write!(text, "\n{name:20}{:8} words", area.words);
        for (measure, figure, _) in area.figures() {
            let _ = write!(text, "{measure:>10}{figure:7.1}");
            places += &worst(&area, measure, if prefix.is_some() { 20 } else { 0 });
        }
    }
    text + &places
}
