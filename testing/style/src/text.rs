//! The prose of a file: its Markdown, or its comments read as Markdown.

use pulldown_cmark::{Event, Options, Parser, Tag, TagEnd};

use crate::Project;

/// Returns the paragraphs of a file, generated ones with them.
pub(crate) fn paragraphs(project: &Project, file: &str) -> Vec<Paragraph> {
    blocks(project, file, true).iter().flat_map(Block::paragraphs).collect()
}

/// A paragraph, an item of a list or a heading, with its first line.
///
/// A code span is the word `X` in `text`, and stands in `code` with its line.
#[derive(Debug, Default)]
pub(crate) struct Paragraph {
    pub(crate) line: usize,
    pub(crate) text: String,
    pub(crate) heading: bool,
    pub(crate) code: Vec<(usize, String)>,
    /// The destinations of its links.
    pub(crate) links: Vec<(usize, String)>,
}

impl Paragraph {
    /// Returns the sentences, split behind a full stop, a question or an exclamation mark.
    pub(crate) fn sentences(&self) -> Vec<&str> {
        let marks = [". ", "? ", "! ", ".) "];
        let mut sentences = Vec::new();
        let mut rest = self.text.as_str();
        while let Some(end) = marks.iter().filter_map(|mark| rest.find(mark)).min() {
            sentences.push(&rest[..=end]);
            rest = rest[end + 1..].trim_start_matches([')', ' ']);
        }
        sentences.push(rest);
        sentences.retain(|sentence| !sentence.trim().is_empty());
        sentences
    }
}

/// A comment, or a whole Markdown file: the line before its first one, and its text.
pub(crate) struct Block {
    before: usize,
    pub(crate) lines: Vec<String>,
}

/// Returns the blocks of prose of a file; none for a file of another kind.
///
/// Without `all`, a generated page has none either, and generated parts of pages are left blank, so
/// that lines keep their numbers.
pub(crate) fn blocks(project: &Project, file: &str, all: bool) -> Vec<Block> {
    let marks: &[&str] = match file.rsplit_once('.') {
        Some((_, "md")) => &[],
        Some((_, "rs")) => &["//!", "///", "//"],
        Some((_, "lua")) => &["--"],
        _ => return Vec::new(),
    };
    let text = project.read(file);
    if marks.is_empty() {
        if !all && text.lines().take(5).any(|line| line.starts_with("Made by `")) {
            return Vec::new();
        }
        let mut generated = false;
        let lines = text.lines().map(|line| {
            generated |= line.starts_with("<!--") && line.ends_with(": generated -->");
            generated &= !line.starts_with("<!-- end of ");
            if generated && !all { String::new() } else { line.to_owned() }
        });
        return vec![Block { before: 0, lines: lines.collect() }];
    }
    let mut blocks: Vec<Block> = Vec::new();
    let mut last = "";
    for (index, line) in text.lines().enumerate() {
        let line = line.trim_start();
        let mark = marks.iter().find(|mark| line.starts_with(**mark)).copied().unwrap_or("");
        if !mark.is_empty() {
            if mark != last {
                blocks.push(Block { before: index, lines: Vec::new() });
            }
            let rest = &line[mark.len()..];
            let rest = rest.strip_prefix(' ').unwrap_or(rest).to_owned();
            blocks.last_mut().expect("begun").lines.push(rest);
        }
        last = mark;
    }
    blocks
}

impl Block {
    /// Parses the block. Code blocks and tables are no prose; the cells of tables only lend their
    /// code spans and links, in paragraphs without text.
    pub(crate) fn paragraphs(&self) -> Vec<Paragraph> {
        let text = self.lines.join("\n");
        let ends: Vec<usize> = text.match_indices('\n').map(|(end, _)| end).collect();
        let line_of = |offset| self.before + ends.partition_point(|end| *end < offset) + 1;
        let mut paragraphs = vec![Paragraph::default()];
        let (mut code_block, mut table) = (false, false);
        for (event, range) in Parser::new_ext(&text, Options::ENABLE_TABLES).into_offset_iter() {
            let line = line_of(range.start);
            let paragraph = paragraphs.last_mut().expect("begun");
            match event {
                Event::Start(Tag::Paragraph | Tag::Item | Tag::Heading { .. } | Tag::Table(_)) => {
                    let heading = matches!(event, Event::Start(Tag::Heading { .. }));
                    table = matches!(event, Event::Start(Tag::Table(_)));
                    paragraphs.push(Paragraph { line, heading, ..Paragraph::default() });
                }
                Event::End(TagEnd::Item | TagEnd::Table) => {
                    table = false;
                    paragraphs.push(Paragraph { line, ..Paragraph::default() });
                }
                Event::Start(Tag::CodeBlock(_)) => code_block = true,
                Event::End(TagEnd::CodeBlock) => code_block = false,
                Event::Start(Tag::Link { dest_url, .. }) => {
                    paragraph.links.push((line, dest_url.into_string()));
                }
                Event::Code(code) => {
                    // A heading keeps its code, which is a part of its anchor.
                    let shown = if paragraph.heading { &*code } else { "X" };
                    paragraph.text += if table { "" } else { shown };
                    paragraph.code.push((line, code.into_string()));
                }
                Event::Text(text) if !code_block && !table => paragraph.text += &text,
                Event::SoftBreak | Event::HardBreak if !table => paragraph.text += " ",
                _ => {}
            }
        }
        paragraphs.retain(|it| !(it.text.is_empty() && it.code.is_empty() && it.links.is_empty()));
        paragraphs
    }
}
