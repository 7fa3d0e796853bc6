//! Asks cargo for the test programs and for the crates that depend on others.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use serde::Deserialize;

/// A test program that was built.
#[derive(Debug)]
pub(crate) struct Program {
    /// The crate that it belongs to.
    pub(crate) package: String,
    /// The name of its file, or `lib`.
    pub(crate) name: String,
    pub(crate) executable: PathBuf,
    /// It has its own file of tests: one that runs none is a mistake.
    pub(crate) is_test: bool,
    /// The crate's folder, where cargo runs it.
    pub(crate) folder: PathBuf,
}

#[derive(Deserialize)]
struct Message {
    reason: String,
    manifest_path: Option<PathBuf>,
    target: Option<Target>,
    profile: Option<Profile>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

impl Target {
    fn is_test(&self) -> bool {
        self.kind.iter().any(|kind| kind == "test")
    }
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds the selected tests and returns their programs.
///
/// # Errors
///
/// They do not compile, or there are none.
pub(crate) fn build(selection: &[String]) -> Result<Vec<Program>, String> {
    let output = Command::new("cargo")
        .args(["test", "-q", "--locked", "--no-run", "--message-format=json-render-diagnostics"])
        .args(selection)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    if !output.status.success() {
        return Err("the tests do not compile".to_owned());
    }
    let text = String::from_utf8_lossy(&output.stdout);
    let messages = text.lines().map(serde_json::from_str).collect::<Result<Vec<Message>, _>>();
    let messages = messages.map_err(|error| format!("cargo has said something else: {error}"))?;
    let programs: Vec<_> = messages.into_iter().filter_map(Program::of).collect();
    match programs.is_empty() {
        true => Err("cargo has built no test program".to_owned()),
        false => Ok(programs),
    }
}

impl Program {
    /// Returns `CRATE/PROGRAM`.
    pub(crate) fn path(&self) -> String {
        format!("{}/{}", self.package, self.name)
    }

    fn of(message: Message) -> Option<Self> {
        let (target, profile) = (message.target?, message.profile?);
        if message.reason != "compiler-artifact" || !profile.test {
            return None;
        }
        let folder = message.manifest_path?.parent()?.to_owned();
        let is_lib = target.kind.iter().any(|kind| kind.ends_with("lib"));
        Some(Self {
            is_test: target.is_test(),
            package: folder.file_name()?.to_string_lossy().into_owned(),
            name: if is_lib { "lib".to_owned() } else { target.name },
            executable: message.executable?,
            folder,
        })
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<Package>,
}

#[derive(Deserialize)]
struct Package {
    name: String,
    manifest_path: PathBuf,
    targets: Vec<Target>,
    dependencies: Vec<Dependency>,
}

#[derive(Deserialize)]
struct Dependency {
    name: String,
}

/// Returns the arguments that select these crates, all crates that depend on them, and their
/// features.
///
/// A dependency of tests counts. Without `crates`, all are selected.
///
/// # Errors
///
/// One of them is no crate of the workspace.
pub(crate) fn select(crates: &[String], features: &[String]) -> Result<Vec<String>, String> {
    let mut selection = Vec::new();
    let mut features = features.to_owned();
    if crates.is_empty() {
        selection.push("--workspace".to_owned());
    } else {
        let wanted = with_dependents(crates)?;
        features
            .retain(|feature| wanted.iter().any(|name| feature.starts_with(&format!("{name}/"))));
        selection.extend(wanted.into_iter().flat_map(|name| ["-p".to_owned(), name]));
    }
    features.retain(|feature| !feature.is_empty());
    if !features.is_empty() {
        selection.extend(["--features".to_owned(), features.join(",")]);
    }
    Ok(selection)
}

/// Returns the test programs that the workspace has, as `CRATE/PROGRAM`. Cargo builds those alone
/// whose features are on.
///
/// # Errors
///
/// Cargo does not know the workspace.
pub(crate) fn all_programs() -> Result<Vec<String>, String> {
    let mut programs = Vec::new();
    for package in metadata()?.packages {
        let folder = package.manifest_path.parent().and_then(|folder| folder.file_name());
        let folder = folder.unwrap_or_default().to_string_lossy();
        let tests = package.targets.iter().filter(|target| target.is_test());
        programs.extend(tests.map(|target| format!("{folder}/{}", target.name)));
    }
    Ok(programs)
}

fn metadata() -> Result<Metadata, String> {
    let output = Command::new("cargo")
        .args(["metadata", "--locked", "--no-deps", "--format-version", "1"])
        .stderr(Stdio::inherit())
        .output()
        .map_err(|error| format!("cargo: {error}"))?;
    serde_json::from_slice(&output.stdout).map_err(|error| format!("cargo: {error}"))
}

fn with_dependents(crates: &[String]) -> Result<Vec<String>, String> {
    let metadata = metadata()?;
    let names = metadata.packages.iter().map(|package| package.name.as_str());
    let known: BTreeSet<_> = names.collect();
    if let Some(unknown) = crates.iter().find(|name| !known.contains(name.as_str())) {
        let known = known.into_iter().collect::<Vec<_>>().join(", ");
        return Err(format!("there is no crate {unknown}; there are {known}"));
    }
    let mut wanted: BTreeSet<&str> = crates.iter().map(String::as_str).collect();
    loop {
        let stands_on = |package: &&Package| {
            package.dependencies.iter().any(|dependency| wanted.contains(dependency.name.as_str()))
        };
        let more = metadata.packages.iter().filter(stands_on).map(|package| package.name.as_str());
        let more: Vec<_> = more.filter(|name| !wanted.contains(name)).collect();
        if more.is_empty() {
            break;
        }
        wanted.extend(more);
    }
    Ok(wanted.into_iter().map(str::to_owned).collect())
}
