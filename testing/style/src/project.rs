//! The workspace as the checks see it: its tracked files and its packages.

use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde::Serialize;
use serde::de::DeserializeOwned;

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

/// A member of the workspace.
#[derive(Debug)]
pub(crate) struct Package {
    pub(crate) name: String,
    /// Relative to the project, as are all paths here.
    pub(crate) directory: String,
    pub(crate) manifest: toml::Table,
}

impl Package {
    /// Returns the file that declares the package's modules: its library, or else its program.
    pub(crate) fn entry(&self, project: &Project) -> Option<String> {
        let candidates = ["lib", "main"].map(|file| format!("{}/src/{file}.rs", self.directory));
        candidates.into_iter().find(|file| project.has(file))
    }
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

    /// Returns the path of a known list of this crate.
    pub(crate) fn list(&self, name: &str) -> String {
        let package = self.packages.iter().find(|package| package.name == env!("CARGO_PKG_NAME"));
        format!("{}/{name}", package.map_or("testing/style", |package| &package.directory))
    }

    /// Reads a known list; a missing file is an empty list.
    pub(crate) fn known<T: DeserializeOwned + Default>(&self, name: &str) -> T {
        let file = self.list(name);
        if !self.has(&file) {
            return T::default();
        }
        toml::from_str(&self.read(&file)).unwrap_or_else(|error| panic!("{file}: {error}"))
    }

    /// Writes a known list below the comment at its top, if `BLESS` asks for it.
    ///
    /// Returns whether it did: then there is nothing to compare with.
    pub(crate) fn bless<T: Serialize>(&self, name: &str, list: &T) -> bool {
        if std::env::var_os("BLESS").is_none() {
            return false;
        }
        let file = self.root.join(self.list(name));
        let old = std::fs::read_to_string(&file).unwrap_or_default();
        let comment = old.lines().take_while(|line| line.starts_with('#'));
        let comment: String = comment.map(|line| format!("{line}\n")).collect();
        let list = toml::to_string(list).expect("a list is TOML");
        std::fs::write(&file, format!("{comment}\n{list}")).expect("the list can be written");
        true
    }
}
