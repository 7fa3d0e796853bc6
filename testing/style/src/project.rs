//! The workspace as the checks see it: its tracked files and its packages.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// A place in the source that breaks a rule, with the remedy.
#[derive(Debug)]
pub struct Finding {
    pub(crate) file: String,
    pub(crate) line: usize,
    pub(crate) message: String,
}

impl Finding {
    pub(crate) fn new(file: &str, line: usize, message: String) -> Self {
        Self { file: file.to_owned(), line, message }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file, self.line, self.message)
    }
}

/// A finding that a known list may allow.
pub(crate) struct Exception {
    pub(crate) package: String,
    pub(crate) key: String,
    /// Zero, if there is nothing to measure.
    pub(crate) figure: f64,
    pub(crate) finding: Finding,
}

/// A member of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Relative to the project, as are all paths here.
    pub(crate) directory: String,
    pub(crate) manifest: toml::Table,
}

/// The files and packages of a workspace.
#[derive(Debug)]
pub struct Project {
    root: PathBuf,
    /// Tracked files, and new ones that git does not ignore; sorted.
    pub(crate) files: Vec<String>,
    pub(crate) packages: Vec<Package>,
}

impl Project {
    /// Opens the workspace that this crate belongs to.
    pub fn this() -> Self {
        let up = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().skip(1);
        let is_root = |directory: &&Path| {
            let manifest = std::fs::read_to_string(directory.join("Cargo.toml"));
            manifest.is_ok_and(|text| text.contains("[workspace]"))
        };
        Self::open({ up }.find(is_root).expect("this crate is a member of a workspace"))
    }

    /// Opens the workspace in `root`.
    ///
    /// # Panics
    ///
    /// It is not a git work tree, or its manifests are not readable.
    pub fn open(root: &Path) -> Self {
        let mut git = Command::new("git");
        git.arg("-C").arg(root).args(["ls-files", "-co", "--exclude-standard"]);
        let listed = git.output().expect("git lists the files").stdout;
        let mut files: Vec<String> =
            String::from_utf8(listed).expect("UTF-8").lines().map(str::to_owned).collect();
        files.retain(|file| root.join(file).is_file());
        files.sort();
        let mut project = Self { root: root.to_owned(), files, packages: Vec::new() };
        let workspace = project.manifest("Cargo.toml");
        let members = workspace["workspace"]["members"].as_array().expect("a list of members");
        for directory in members.iter().filter_map(toml::Value::as_str) {
            let manifest = project.manifest(&format!("{directory}/Cargo.toml"));
            let name = manifest["package"]["name"].as_str().expect("a name").to_owned();
            project.packages.push(Package { name, directory: directory.to_owned(), manifest });
        }
        project
    }

    fn manifest(&self, file: &str) -> toml::Table {
        self.read(file).parse().unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    pub(crate) fn read(&self, file: &str) -> String {
        std::fs::read_to_string(self.root.join(file))
            .unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// Returns whether this file or directory is there.
    pub(crate) fn has(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// Returns the package that a file belongs to: the innermost one.
    pub(crate) fn package_of(&self, file: &str) -> Option<&Package> {
        let inside = |package: &&Package| {
            file.strip_prefix(&package.directory).is_some_and(|rest| rest.starts_with('/'))
        };
        self.packages.iter().filter(inside).max_by_key(|package| package.directory.len())
    }

    /// Returns the member of this name.
    pub(crate) fn package(&self, name: &str) -> &Package {
        let mut packages = self.packages.iter();
        packages.find(|package| package.name == name).unwrap_or_else(|| panic!("no package {name}"))
    }

    /// Takes from `found` the exceptions that a known list allows, and adds its needless entries.
    ///
    /// `BLESS` in the environment writes the list anew, below the comment at its top. It never
    /// raises a figure.
    pub(crate) fn settle(&self, list: &str, found: Vec<Exception>) -> Vec<Finding> {
        let file = format!("{}/{list}", self.package("style").directory);
        let text = self.read(&file);
        let known: toml::Table = text.parse().unwrap_or_else(|error| panic!("{file}: {error}"));
        let mut unused = known.clone();
        let mut needed = toml::Table::new();
        let mut findings = Vec::new();
        for Exception { package, key, figure, mut finding } in found {
            let entry = unused.get_mut(&package).and_then(|keys| keys.as_table_mut()?.remove(&key));
            let limit = entry.as_ref().and_then(toml::Value::as_float);
            if entry.is_none() || figure > limit.unwrap_or(figure) {
                let limit = limit.map_or("goal".into(), |limit| format!("{limit}, in {file}"));
                finding.message = finding.message.replace("LIMIT", &limit);
                findings.push(finding);
            }
            let value = match entry {
                Some(reason) if reason.is_str() => reason,
                None if figure == 0.0 => "to be mended".into(),
                _ => figure.min(limit.unwrap_or(figure)).into(),
            };
            let keys = needed.entry(package).or_insert_with(|| toml::Table::new().into());
            keys.as_table_mut().expect("a table").insert(key, value);
        }
        for (package, keys) in &unused {
            for key in keys.as_table().into_iter().flat_map(toml::Table::keys) {
                let line = text.lines().position(|line| line.trim_matches('"').starts_with(key));
                let message = format!("{package} needs no entry {key} any more: delete it");
                findings.push(Finding::new(&file, line.unwrap_or(0) + 1, message));
            }
        }
        if std::env::var_os("BLESS").is_some() {
            let comment = text.lines().take_while(|line| line.starts_with('#'));
            let comment: String = comment.map(|line| format!("{line}\n")).collect();
            let entries = toml::to_string(&needed).expect("a table is TOML");
            let list = format!("{comment}\n{entries}");
            let list = list.trim_end().to_owned() + "\n";
            std::fs::write(self.root.join(file), list).expect("the list can be written");
        }
        findings
    }
}
