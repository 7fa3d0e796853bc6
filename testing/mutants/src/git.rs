//! The few things that git does for this program.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// Runs git in `directory`, with `input` on its standard input, and returns its output.
///
/// # Errors
///
/// Git cannot be run, or fails: its messages.
pub(crate) fn git(directory: &Path, arguments: &[&str], input: &str) -> Result<String, String> {
    run(Command::new("git").arg("-C").arg(directory).args(arguments), input)
}

fn run(command: &mut Command, input: &str) -> Result<String, String> {
    let pipes = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = pipes.spawn().map_err(|error| format!("git: {error}"))?;
    // A git that fails early closes its end, and says why itself.
    let _ = child.stdin.take().expect("it is piped").write_all(input.as_bytes());
    let output = child.wait_with_output().map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).trim().to_owned()),
    }
}

/// Checks whether a patch applies to the files of `directory`.
///
/// # Errors
///
/// It does not, and git says why.
#[cfg(test)]
pub(crate) fn check(directory: &Path, diff: &str) -> Result<(), String> {
    git(directory, &["apply", "--check", "--unidiff-zero", "-"], diff).map(drop)
}

/// Applies a patch to the files of `directory`.
///
/// # Errors
///
/// It does not apply, and git says why.
pub(crate) fn apply(directory: &Path, diff: &str) -> Result<(), String> {
    git(directory, &["apply", "--unidiff-zero", "-"], diff).map(drop)
}

/// A tree of files that is put together aside from the working tree.
pub(crate) struct Aside<'a> {
    project: &'a Path,
    index: std::path::PathBuf,
}

impl<'a> Aside<'a> {
    /// Begins with the tree of `commit`.
    ///
    /// # Errors
    ///
    /// Git does not know it.
    pub(crate) fn at(project: &'a Path, commit: &str) -> Result<Self, String> {
        let index = project.join("target/mutants/index");
        std::fs::create_dir_all(project.join("target/mutants"))
            .map_err(|error| error.to_string())?;
        let aside = Self { project, index };
        aside.git(&["read-tree", commit], "")?;
        Ok(aside)
    }

    /// Takes over all files of the working tree.
    ///
    /// # Errors
    ///
    /// Git fails.
    pub(crate) fn add_all(&self) -> Result<(), String> {
        self.git(&["add", "--all"], "").map(drop)
    }

    /// Applies a patch.
    ///
    /// # Errors
    ///
    /// It does not apply.
    pub(crate) fn apply(&self, diff: &str) -> Result<(), String> {
        self.git(&["apply", "--cached", "--unidiff-zero", "-"], diff).map(drop)
    }

    /// Makes a commit of it, with the given parent, that no branch knows.
    ///
    /// # Errors
    ///
    /// Git fails.
    pub(crate) fn commit(&self, parent: &str) -> Result<String, String> {
        let tree = self.git(&["write-tree"], "")?;
        let names = ["-c", "user.name=mutants", "-c", "user.email=mutants@localhost"];
        let commit = ["commit-tree", tree.trim(), "-p", parent, "-m", "A scratch tree"];
        Ok(self.git(&[&names[..], &commit].concat(), "")?.trim().to_owned())
    }

    fn git(&self, arguments: &[&str], input: &str) -> Result<String, String> {
        let mut command = Command::new("git");
        command.arg("-C").arg(self.project).args(arguments).env("GIT_INDEX_FILE", &self.index);
        run(&mut command, input)
    }
}
