//! Findings about planted bugs: one line of a file for each.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::catalogue::{ALL, Bug};
use crate::lines;
use crate::verdict::{VERDICT, first_verdict};

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

    /// Whether it is what would be found now, as far as that can be told. The verdict is only asked
    /// where the campaign has looked.
    pub(super) fn is_current(&self) -> bool {
        self.seen.is_some() && (self.verdict == VERDICT || !self.seen_by.starts_with(CAMPAIGN))
    }

    /// Returns the file of all findings.
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join("bugs.jsonl")
    }

    /// Returns the one about `bug`, if it is there.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn of(directory: &Path, bug: &str) -> io::Result<Option<Self>> {
        let all: Vec<Self> = lines::read(&Self::path(directory))?;
        Ok(all.into_iter().find(|finding| finding.bug == bug))
    }

    /// Returns all, in the order of the catalogue.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn all(directory: &Path) -> io::Result<Vec<Self>> {
        let place = |finding: &Self| ALL.iter().position(|bug| bug.name == finding.bug);
        let mut all: Vec<Self> = lines::read(&Self::path(directory))?;
        all.retain(|finding| place(finding).is_some());
        all.sort_by_key(place);
        Ok(all)
    }

    /// Stores it in the place of an earlier finding about its bug.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn keep(&self, directory: &Path) -> io::Result<()> {
        let mut all = Self::all(directory)?;
        all.retain(|other| other.bug != self.bug);
        all.push(self.clone());
        lines::write(&Self::path(directory), &all)
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
}
