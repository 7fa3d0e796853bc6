//! How the prose reads: comments, rustdoc and Markdown, per package and folder of documents.

use std::collections::BTreeMap;
use std::fmt::Write;

use syn::visit::{self, Visit};
use syn::{Attribute, Expr, ExprLit, Lit};

use crate::text::{Block, Paragraph, blocks};
use crate::{Finding, Project};

const LIST: &str = "prose.toml";
/// The entry of the list with the limits of an area that has none of its own.
const GOAL: &str = "goal";
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

/// The limits of each area; a missing figure is that of the goal.
type Limits = BTreeMap<String, BTreeMap<String, f64>>;

#[derive(Debug, Default)]
struct Area {
    words: usize,
    who: usize,
    what: usize,
    sentences: usize,
    long: usize,
    functions: usize,
    verbs: usize,
    wide: usize,
    /// Places to mend: the measure, how bad, and the place.
    places: Vec<(&'static str, usize, Finding)>,
}

impl Area {
    /// Returns the figures, each with whether less of it is better.
    ///
    /// `who` and `what` are per 1 000 words, `long` and `verb` in percent, `wide` counts lines.
    fn figures(&self) -> [(&'static str, f64, bool); 5] {
        let share = |part: usize, of: usize, times: usize| {
            if of == 0 { 0.0 } else { ((times * part) as f64 / of as f64 * 10.0).round() / 10.0 }
        };
        // Where no function has documentation, none opens wrongly.
        let verb = if self.functions == 0 { 100.0 } else { share(self.verbs, self.functions, 100) };
        [
            ("who", share(self.who, self.words, 1000), true),
            ("what", share(self.what, self.words, 1000), true),
            ("long", share(self.long, self.sentences, 100), true),
            ("verb", verb, false),
            ("wide", self.wide as f64, true),
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

    fn function(&mut self, file: &str, line: usize, doc: &str) {
        self.functions += 1;
        let first = doc.split_whitespace().next().unwrap_or_default();
        let letters = first.len() > 2 && first.chars().all(|letter| letter.is_ascii_alphabetic());
        if letters && first.ends_with('s') && !NO_VERBS.contains(&first) {
            self.verbs += 1;
        } else {
            let message = format!("open with a verb (Returns, Waits until, ...):{doc}");
            self.places.push(("verb", 1, Finding::new(file, line, message)));
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

/// Finds the documented functions of a file.
#[derive(Default)]
struct Functions(Vec<(usize, String)>);

impl Functions {
    fn add(&mut self, attributes: &[Attribute]) {
        let doc = attributes.iter().find(|attribute| attribute.path().is_ident("doc"));
        let value = doc.and_then(|doc| doc.meta.require_name_value().ok()).map(|doc| &doc.value);
        if let Some(Expr::Lit(ExprLit { lit: Lit::Str(text), .. })) = value {
            self.0.push((text.span().start().line, text.value()));
        }
    }
}

impl<'ast> Visit<'ast> for Functions {
    fn visit_item_fn(&mut self, it: &'ast syn::ItemFn) {
        self.add(&it.attrs);
        visit::visit_item_fn(self, it);
    }

    fn visit_impl_item_fn(&mut self, it: &'ast syn::ImplItemFn) {
        self.add(&it.attrs);
        visit::visit_impl_item_fn(self, it);
    }

    fn visit_trait_item_fn(&mut self, it: &'ast syn::TraitItemFn) {
        self.add(&it.attrs);
        visit::visit_trait_item_fn(self, it);
    }
}

/// Measures each area: a package, or a folder outside of all packages.
fn measure(project: &Project, prefix: &str) -> BTreeMap<String, Area> {
    let mut areas: BTreeMap<String, Area> = BTreeMap::new();
    for file in project.files.iter().filter(|file| file.starts_with(prefix)) {
        let blocks = blocks(project, file);
        if blocks.is_empty() {
            continue;
        }
        let folder = file.rsplit_once('/').map_or(".", |(folder, _)| folder);
        let package = project.package_of(file).map(|package| package.name.as_str());
        let area = areas.entry(package.unwrap_or(folder).to_owned()).or_default();
        for paragraph in blocks.iter().flat_map(|block| block.paragraphs()) {
            let Paragraph { line, heading: false, .. } = paragraph else { continue };
            paragraph.sentences().iter().for_each(|sentence| area.sentence(file, line, sentence));
        }
        area.lines(project, file, &blocks);
        if file.ends_with(".rs") {
            let mut functions = Functions::default();
            let parsed = syn::parse_file(&project.read(file));
            functions.visit_file(&parsed.unwrap_or_else(|error| panic!("{file}: {error}")));
            functions.0.iter().for_each(|(line, doc)| area.function(file, *line, doc));
        }
    }
    areas
}

/// Finds areas that are worse than their limits in `prose.toml`, with their worst places.
///
/// A limit of an area that has reached the goal is a finding, too.
pub fn prose(project: &Project) -> Vec<Finding> {
    let mut limits: Limits = project.known(LIST);
    let goal = limits.remove(GOAL).expect("prose.toml has a goal");
    let mut found = Limits::from([(GOAL.to_owned(), goal.clone())]);
    let mut findings = Vec::new();
    let areas = measure(project, "");
    for (name, area) in &areas {
        for (measure, figure, less) in area.figures() {
            let known = limits.get_mut(name).and_then(|known| known.remove(measure));
            let limit = known.unwrap_or(goal[measure]);
            let worse = |limit: f64| if less { figure > limit } else { figure < limit };
            if worse(limit) {
                let message = format!(
                    "{measure} of {name} is {figure}, its limit {limit}; mend some of these (all: \
                     cargo run -q -p style -- prose {name}){}",
                    worst(area, Some(measure), 5)
                );
                let places = area.places.iter().filter(|(of, ..)| *of == measure);
                let (_, _, place) = places.max_by_key(|(_, badness, _)| *badness).expect("one");
                findings.push(Finding::new(&place.file, place.line, message));
            }
            if worse(goal[measure]) {
                let figure = if worse(limit) { known.unwrap_or(figure) } else { figure };
                found.entry(name.clone()).or_default().insert(measure.to_owned(), figure);
            } else if known.is_some() {
                let message = format!("{name} has reached the goal of {measure}: delete its limit");
                findings.push(Finding::new(&project.list(LIST), 1, message));
            }
        }
    }
    for (name, left) in limits {
        if !areas.contains_key(&name) || !left.is_empty() {
            let message = format!("no area {name} with {left:?}: delete it here");
            findings.push(Finding::new(&project.list(LIST), 1, message));
        }
    }
    if project.bless(LIST, &found) { Vec::new() } else { findings }
}

fn worst(area: &Area, only: Option<&str>, count: usize) -> String {
    let mut places: Vec<_> = area
        .places
        .iter()
        .filter(|(measure, ..)| only.is_none_or(|only| only == *measure))
        .collect();
    places.sort_by_key(|(_, badness, _)| std::cmp::Reverse(*badness));
    let shown = places.iter().take(count);
    shown.map(|(measure, _, finding)| format!("\n    {measure} {finding}")).collect()
}

/// Returns the table of all areas, or of a package or path with the worst places.
pub fn report(project: &Project, prefix: Option<&str>) -> String {
    let package = project.packages.iter().find(|package| Some(&*package.name) == prefix);
    let path = package.map(|package| package.directory.as_str()).or(prefix).unwrap_or("");
    let mut text = format!("{:24}{:>8}", "", "words");
    let mut places = String::new();
    for (index, (name, area)) in measure(project, path.trim_end_matches('/')).iter().enumerate() {
        let figures = area.figures();
        if index == 0 {
            figures.iter().for_each(|(measure, ..)| text += &format!("{measure:>8}"));
        }
        let _ = write!(text, "\n{name:24}{:8}", area.words);
        figures.iter().for_each(|(_, figure, _)| text += &format!("{figure:8.1}"));
        if prefix.is_some() {
            for (measure, ..) in figures {
                places += &worst(area, Some(measure), 20);
            }
        }
    }
    text + "\n(who, what: per 1 000 words; long, verb: per cent; wide: lines)" + &places
}
