//! The modules of a crate: the items that each defines, imports and names.

use std::collections::{BTreeMap, BTreeSet};

use proc_macro2::{TokenStream, TokenTree};
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{Attribute, Item, UseTree, Visibility};

use crate::Project;

/// A path as it stands in the source, split at `::`.
#[derive(Debug, Clone)]
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
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Target {
    Module(String),
    Item(String),
}

/// All modules of a crate but those for tests.
#[derive(Debug, Default)]
pub(crate) struct Modules(pub(crate) BTreeMap<String, Module>);

impl Modules {
    /// Reads the modules that `entry` declares, from file to file.
    pub(crate) fn read(project: &Project, entry: &str) -> Self {
        let mut modules = Self::default();
        let directory = entry.rsplit_once('/').map_or("", |(directory, _)| directory);
        modules.file(project, entry, "", directory);
        modules
    }

    fn file(&mut self, project: &Project, file: &str, key: &str, directory: &str) {
        let parsed = syn::parse_file(&project.read(file));
        let parsed = parsed.unwrap_or_else(|error| panic!("{file}: {error}"));
        if !is_test(&parsed.attrs) {
            self.items(project, parsed.items, key, key, file, directory);
        }
    }

    fn items(
        &mut self,
        project: &Project,
        items: Vec<Item>,
        key: &str,
        node: &str,
        file: &str,
        directory: &str,
    ) {
        let module = self.0.entry(key.to_owned()).or_default();
        if module.file.is_empty() {
            (module.file, module.node) = (file.to_owned(), node.to_owned());
        }
        let mut paths = Paths::default();
        let mut children = Vec::new();
        for item in items {
            let (ident, attributes, is_type) = match &item {
                Item::Mod(it) => (Some(&it.ident), &it.attrs, false),
                Item::Use(it) => (None, &it.attrs, false),
                Item::Struct(it) => (Some(&it.ident), &it.attrs, true),
                Item::Enum(it) => (Some(&it.ident), &it.attrs, true),
                Item::Union(it) => (Some(&it.ident), &it.attrs, true),
                Item::Trait(it) => (Some(&it.ident), &it.attrs, true),
                Item::Type(it) => (Some(&it.ident), &it.attrs, true),
                Item::Fn(it) => (Some(&it.sig.ident), &it.attrs, false),
                Item::Const(it) => (Some(&it.ident), &it.attrs, false),
                Item::Static(it) => (Some(&it.ident), &it.attrs, false),
                Item::Impl(it) => (None, &it.attrs, false),
                Item::Macro(it) => (it.ident.as_ref(), &it.attrs, false),
                _ => continue,
            };
            if is_test(attributes) {
                continue;
            }
            let ident = ident.cloned();
            match item {
                Item::Mod(child) => children.push(child),
                Item::Use(it) => {
                    let public = !matches!(it.vis, Visibility::Inherited);
                    flatten(&it.tree, &mut Vec::new(), public, &mut module.imports);
                }
                item => {
                    if let Some(ident) = ident {
                        module.items.insert(ident.to_string());
                        if is_type {
                            let line = ident.span().start().line;
                            module.types.push((ident.to_string(), file.to_owned(), line));
                        }
                    }
                    paths.visit_item(&item);
                }
            }
        }
        module.paths.extend(paths.0);
        for child in children {
            let name = child.ident.to_string();
            let child_key = if key.is_empty() { name.clone() } else { format!("{key}::{name}") };
            let inner = format!("{directory}/{name}");
            if let Some((_, items)) = child.content {
                self.items(project, items, &child_key, node, file, &inner);
                continue;
            }
            let beside = file.rsplit_once('/').map_or("", |(directory, _)| directory);
            let moved = path_attribute(&child.attrs).map(|path| format!("{beside}/{path}"));
            let usual = [format!("{inner}.rs"), format!("{inner}/mod.rs")];
            if let Some(file) = moved.into_iter().chain(usual).find(|file| project.has(file)) {
                self.file(project, &file, &child_key, &inner);
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
                "super" => Target::Module(parent(key).to_owned()),
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
        let child = if key.is_empty() { name.to_owned() } else { format!("{key}::{name}") };
        if self.0.contains_key(&child) {
            return Some(Target::Module(child));
        }
        if module.items.contains(name) {
            return Some(Target::Item(key.to_owned()));
        }
        let depth = depth.checked_sub(1)?;
        let imports = module.imports.iter();
        { imports }.filter(|it| it.name == name || it.name == "*").find_map(|import| {
            let target = self.resolve(key, &import.path.segments, depth)?;
            match target {
                Target::Module(glob) if import.name == "*" => self.lookup(&glob, name, depth),
                Target::Item(_) if import.name == "*" => None,
                target => Some(target),
            }
        })
    }
}

pub(crate) fn parent(key: &str) -> &str {
    key.rsplit_once("::").map_or("", |(parent, _)| parent)
}

pub(crate) fn is_test(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let condition = attribute.path().is_ident("cfg").then(|| attribute.parse_args());
        matches!(condition, Some(Ok(syn::Path { segments, .. })) if segments[0].ident == "test")
    })
}

fn path_attribute(attributes: &[Attribute]) -> Option<String> {
    let attribute = attributes.iter().find(|attribute| attribute.path().is_ident("path"))?;
    match &attribute.meta.require_name_value().ok()?.value {
        syn::Expr::Lit(syn::ExprLit { lit: syn::Lit::Str(path), .. }) => Some(path.value()),
        _ => None,
    }
}

fn flatten(tree: &UseTree, prefix: &mut Vec<String>, public: bool, out: &mut Vec<Import>) {
    let line = tree.span().start().line;
    let mut push = |name: String, last: Option<String>| {
        let segments = prefix.iter().cloned().chain(last).collect();
        out.push(Import { name, public, path: Named { segments, line } });
    };
    match tree {
        UseTree::Path(path) => {
            prefix.push(path.ident.to_string());
            flatten(&path.tree, prefix, public, out);
            prefix.pop();
        }
        UseTree::Name(it) if it.ident == "self" => {
            push(prefix.last().cloned().unwrap_or_default(), None);
        }
        UseTree::Name(it) => push(it.ident.to_string(), Some(it.ident.to_string())),
        UseTree::Rename(it) => push(it.rename.to_string(), Some(it.ident.to_string())),
        UseTree::Glob(_) => push("*".to_owned(), None),
        UseTree::Group(group) => {
            group.items.iter().for_each(|tree| flatten(tree, prefix, public, out));
        }
    }
}

/// Collects the paths of types, expressions, patterns and macro calls.
#[derive(Default)]
struct Paths(Vec<Named>);

impl<'ast> Visit<'ast> for Paths {
    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter().map(|segment| segment.ident.to_string()).collect();
        self.0.push(Named { segments, line: path.span().start().line });
        visit::visit_path(self, path);
    }

    fn visit_item_use(&mut self, it: &'ast syn::ItemUse) {
        let mut imports = Vec::new();
        flatten(&it.tree, &mut Vec::new(), false, &mut imports);
        self.0.extend(imports.into_iter().map(|import| import.path));
    }

    fn visit_macro(&mut self, call: &'ast syn::Macro) {
        visit::visit_macro(self, call);
        self.tokens(call.tokens.clone());
    }

    // `pub(super)` is no use of the module above.
    fn visit_visibility(&mut self, _: &'ast Visibility) {}
}

impl Paths {
    fn tokens(&mut self, tokens: TokenStream) {
        let mut continues = false; // the token before was `::`
        for token in tokens {
            match token {
                TokenTree::Ident(ident) if continues => {
                    self.0.last_mut().expect("begun").segments.push(ident.to_string());
                    continues = false;
                }
                TokenTree::Ident(ident) => {
                    let line = ident.span().start().line;
                    self.0.push(Named { segments: vec![ident.to_string()], line });
                }
                TokenTree::Punct(mark) => continues = mark.as_char() == ':' && !self.0.is_empty(),
                TokenTree::Group(group) => {
                    continues = false;
                    self.tokens(group.stream());
                }
                TokenTree::Literal(_) => continues = false,
            }
        }
    }
}
