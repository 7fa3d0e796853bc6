//! What came of a bug that was planted: one file for each.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Bug;
use crate::outcome::{VERDICT, first_verdict};

/// Below the directory of results.
const DIRECTORY: &str = "bugs";

/// What a finding of the campaign begins with.
pub(super) const CAMPAIGN: &str = "campaign";

/// What came of a bug.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// Its name.
    pub bug: String,
    /// What it does.
    pub what: String,
    /// Who had to see it.
    pub seen_by: String,
    /// What was seen of it; `None`: nothing.
    pub seen: Option<String>,
    /// The command that shows it.
    pub command: String,
    /// By which version of the verdict.
    #[serde(default = "first_verdict")]
    pub verdict: u32,
    /// Which code it was, in the words of who ran it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl Finding {
    pub(super) fn new(bug: &Bug, seen_by: String, seen: Option<String>, command: String) -> Self {
        let (bug, what) = (bug.name.to_owned(), bug.what.to_owned());
        Self { bug, what, seen_by, seen, command, verdict: VERDICT, code: None }
    }

    /// Whether it is what would be found now, as far as that can be told. The verdict is only asked where the campaign
    /// has looked.
    pub(super) fn is_current(&self) -> bool {
        self.seen.is_some() && (self.verdict == VERDICT || !self.seen_by.starts_with(CAMPAIGN))
    }

    fn path(directory: &Path, bug: &str) -> PathBuf {
        directory.join(DIRECTORY).join(format!("{bug}.json"))
    }

    /// The one about `bug`, if it is there.
    ///
    /// # Errors
    ///
    /// It cannot be read.
    pub fn of(directory: &Path, bug: &str) -> io::Result<Option<Self>> {
        let path = Self::path(directory, bug);
        match fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map(Some).map_err(io::Error::other),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// All that are there, in the order of the catalogue.
    ///
    /// # Errors
    ///
    /// One cannot be read.
    pub fn all(directory: &Path) -> io::Result<Vec<Self>> {
        let each = super::ALL.iter().map(|bug| Self::of(directory, bug.name));
        each.filter_map(Result::transpose).collect()
    }

    /// Keeps it, whole or not at all.
    ///
    /// # Errors
    ///
    /// It cannot be written.
    pub fn keep(&self, directory: &Path) -> io::Result<()> {
        let path = Self::path(directory, &self.bug);
        let unfinished = path.with_extension("unfinished");
        fs::create_dir_all(directory.join(DIRECTORY))?;
        fs::write(&unfinished, serde_json::to_string(self)? + "\n")?;
        fs::rename(unfinished, path)
    }

    /// Who had to see it and, if that was the campaign, by which verdict on which code.
    pub(crate) fn origin(&self) -> String {
        let mut text = self.seen_by.clone();
        if text.starts_with(CAMPAIGN) {
            text += &format!(", verdict {}", self.verdict);
        }
        text + &self.code.as_ref().map_or_else(String::new, |code| format!(", of {code}"))
    }

    /// Whether the campaign itself has seen it.
    pub(crate) fn is_by_campaign(&self) -> bool {
        self.seen.is_some() && self.seen_by.starts_with(CAMPAIGN)
    }

    /// Whether a path is that of the directory where they are.
    pub(crate) fn is_there(path: &Path) -> bool {
        path.file_name().is_some_and(|name| name == DIRECTORY)
    }
}
