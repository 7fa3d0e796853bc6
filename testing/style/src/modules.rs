//! The modules of a crate: the items that each defines, imports and names.

use std::collections::{BTreeMap, BTreeSet};
use std::iter::Peekable;

use proc_macro2::{Delimiter, TokenStream, TokenTree, token_stream};

use crate::Project;
use crate::project::Package;

/// A path as it stands in the source, split at `::`.
#[derive(Debug)]
pub(crate) struct Named {
    pub(crate) segments: Vec<String>,
    pub(crate) line: usize,
}

#[derive(Debug)]
pub(crate) struct Import {
    /// The name that it has here; `*` is a glob.
    name: String,
    pub(crate) public: bool,
    pub(crate) path: Named,
}

/// A module. Its key is its path in the crate; that of the root is empty.
#[derive(Debug, Default)]
pub(crate) struct Module {
    /// The first file of the module, or of the module around an inline one.
    pub(crate) file: String,
    /// The key of the module that this one shares its file with.
    pub(crate) node: String,
    items: BTreeSet<String>,
    /// Structs, enums, traits and aliases, each with its file and line.
    pub(crate) types: Vec<(String, String, usize)>,
    pub(crate) imports: Vec<Import>,
    pub(crate) paths: Vec<Named>,
}

/// The end of a path: a module, or an item of the module with this key.
#[derive(Debug)]
pub(crate) enum Target {
    Module(String),
    Item(String),
}

/// All modules of a crate but those for tests.
#[derive(Debug, Default)]
pub(crate) struct Modules(pub(crate) BTreeMap<String, Module>);

type Tokens = Peekable<token_stream::IntoIter>;

/// The place of a module in the source.
#[derive(Clone, Copy)]
struct Place<'a> {
    key: &'a str,
    node: &'a str,
    file: &'a str,
    /// The folder with the files of its children.
    folder: &'a str,
}

impl Modules {
    /// Reads the modules of a package's library, or else of its program, from file to file.
    pub(crate) fn read(project: &Project, package: &Package) -> Self {
        let mut modules = Self::default();
        let folder = format!("{}/src", package.directory);
        let entries = ["lib.rs", "main.rs"].map(|file| format!("{folder}/{file}"));
        if let Some(file) = entries.iter().find(|file| project.has(file)) {
            modules.file(project, Place { key: "", node: "", file, folder: &folder });
        }
        modules
    }

    fn file(&mut self, project: &Project, place: Place<'_>) {
        let tokens: TokenStream = project
            .read(place.file)
            .parse()
            .unwrap_or_else(|error| panic!("{}: {error}", place.file));
        self.items(project, tokens, place);
    }

    fn items(&mut self, project: &Project, tokens: TokenStream, place: Place<'_>) {
        let mut tokens = tokens.into_iter().peekable();
        let mut module = self.0.remove(place.key).unwrap_or_default();
        if module.file.is_empty() {
            (module.file, module.node) = (place.file.to_owned(), place.node.to_owned());
        }
        let mut children = Vec::new();
        let (mut public, mut moved) = (false, None);
        while let Some(token) = tokens.next() {
            let word = token.to_string();
            let line = token.span().start().line;
            match word.as_str() {
                "#" => {
                    let attribute = attribute(&mut tokens);
                    if attribute == "cfg(test)" {
                        tokens.by_ref().find(is_end);
                    }
                    let path = attribute.strip_prefix("path=");
                    moved = path.map(|path| path.trim_matches('"').to_owned()).or(moved);
                    continue;
                }
                "pub" => {
                    public = true;
                    tokens.next_if(|token| matches!(token, TokenTree::Group(_)));
                    continue;
                }
                "use" => {
                    let tree = tokens.by_ref().take_while(|token| token.to_string() != ";");
                    imports(tree.collect(), &[], public, &mut module.imports);
                }
                "mod" => {
                    let name = tokens.next().expect("a name").to_string();
                    children.push((name, tokens.next(), moved.take()));
                }
                "struct" | "enum" | "union" | "trait" | "type" | "fn" | "const" | "static"
                | "!" => {
                    if let Some(TokenTree::Ident(name)) = tokens.peek() {
                        module.items.insert(name.to_string());
                        if ["struct", "enum", "union", "trait", "type"].contains(&word.as_str()) {
                            module.types.push((name.to_string(), place.file.to_owned(), line));
                        }
                    }
                }
                // A lifetime, such as `'static`.
                "'" => drop(tokens.next()),
                _ => {}
            }
            public = false;
            paths(TokenStream::from(token), &mut tokens, &mut module.paths);
        }
        self.0.insert(place.key.to_owned(), module);
        for (name, body, moved) in children {
            let key = below(place.key, &name);
            let folder = format!("{}/{name}", place.folder);
            if let Some(TokenTree::Group(body)) = body {
                self.items(project, body.stream(), Place { key: &key, folder: &folder, ..place });
                continue;
            }
            let beside = place.file.rsplit_once('/').map_or("", |(beside, _)| beside);
            let usual = [format!("{folder}.rs"), format!("{folder}/mod.rs")];
            let mut files = moved.map(|path| format!("{beside}/{path}")).into_iter().chain(usual);
            if let Some(file) = files.find(|file| project.has(file)) {
                let place = Place { key: &key, node: &key, file: &file, folder: &folder };
                self.file(project, place);
            }
        }
    }

    /// Follows a path that stands in the module `at`, through re-exports, to its definition.
    ///
    /// Returns `None` for items of other crates and for local names.
    pub(crate) fn resolve(&self, at: &str, segments: &[String], depth: usize) -> Option<Target> {
        let mut here = Target::Module(at.to_owned());
        for (index, segment) in segments.iter().enumerate() {
            let Target::Module(key) = &here else { break };
            here = match segment.as_str() {
                "crate" => Target::Module(String::new()),
                "self" => continue,
                "super" => {
                    Target::Module(key.rsplit_once("::").map_or("", |(up, _)| up).to_owned())
                }
                name => match self.lookup(key, name, depth) {
                    Some(target) => target,
                    None if index == 0 => return None,
                    None => Target::Item(key.clone()),
                },
            };
        }
        Some(here)
    }

    fn lookup(&self, key: &str, name: &str, depth: usize) -> Option<Target> {
        let module = self.0.get(key)?;
        let child = below(key, name);
        if self.0.contains_key(&child) {
            return Some(Target::Module(child));
        }
        if module.items.contains(name) {
            return Some(Target::Item(key.to_owned()));
        }
        let depth = depth.checked_sub(1)?;
        let imports = module.imports.iter();
        { imports }.filter(|it| it.name == name || it.name == "*").find_map(|import| {
            match self.resolve(key, &import.path.segments, depth)? {
                Target::Module(glob) if import.name == "*" => self.lookup(&glob, name, depth),
                Target::Item(_) if import.name == "*" => None,
                target => Some(target),
            }
        })
    }
}

fn below(key: &str, name: &str) -> String {
    if key.is_empty() { name.to_owned() } else { format!("{key}::{name}") }
}

/// Takes the rest of an attribute, and returns its text without spaces.
fn attribute(tokens: &mut Tokens) -> String {
    tokens.next_if(|token| token.to_string() == "!");
    match tokens.next() {
        Some(TokenTree::Group(group)) => group.stream().to_string().replace(' ', ""),
        _ => String::new(),
    }
}

/// Returns whether an item ends with this token.
fn is_end(token: &TokenTree) -> bool {
    let body = matches!(token, TokenTree::Group(group) if group.delimiter() == Delimiter::Brace);
    body || token.to_string() == ";"
}

/// Adds the imports of a tree: `a::{b as c, d::*}`.
fn imports(tree: TokenStream, prefix: &[String], public: bool, out: &mut Vec<Import>) {
    let mut tokens = tree.into_iter().peekable();
    while tokens.peek().is_some() {
        let mut segments = prefix.to_vec();
        let (mut name, mut line) = (None, 0);
        for token in tokens.by_ref().take_while(|token| token.to_string() != ",") {
            line = token.span().start().line;
            match token {
                TokenTree::Group(group) => {
                    imports(group.stream(), &segments, public, out);
                    segments.clear();
                }
                TokenTree::Ident(word) if word == "as" => name = Some(String::new()),
                TokenTree::Ident(word) if name.is_some() => name = Some(word.to_string()),
                TokenTree::Ident(word) if word == "self" && !segments.is_empty() => {}
                TokenTree::Ident(word) => segments.push(word.to_string()),
                TokenTree::Punct(mark) if mark.as_char() == '*' => name = Some("*".to_owned()),
                _ => {}
            }
        }
        if let Some(name) =
            name.or_else(|| segments.last().cloned()).filter(|_| !segments.is_empty())
        {
            out.push(Import { name, public, path: Named { segments, line } });
        }
    }
}

/// Adds the paths that begin in `first` and go on in `rest`: of types, expressions and macro calls.
fn paths(first: TokenStream, rest: &mut Tokens, out: &mut Vec<Named>) {
    for token in first {
        match token {
            TokenTree::Group(group) => {
                let mut inner = group.stream().into_iter().peekable();
                while let Some(token) = inner.next() {
                    paths(token.into(), &mut inner, out);
                }
            }
            TokenTree::Ident(first) => {
                let (mut segments, line) = (vec![first.to_string()], first.span().start().line);
                let is_colon = |token: &TokenTree| token.to_string() == ":";
                while rest.next_if(is_colon).is_some() && rest.next_if(is_colon).is_some() {
                    if let Some(TokenTree::Ident(_)) = rest.peek() {
                        segments.extend(rest.next().map(|token| token.to_string()));
                    }
                }
                out.push(Named { segments, line });
            }
            _ => {}
        }
    }
}
