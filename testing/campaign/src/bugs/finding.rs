//! Findings about planted bugs, one a line in a file.

use std::io;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::catalogue::{ALL, Bug};
use crate::lines;
use crate::verdict::{VERDICT, first_verdict};

/// The prefix of `seen_by` in a finding of the campaign.
pub(super) const CAMPAIGN: &str = "campaign";

/// The result of planting a bug.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Finding {
    /// The name of the bug.
    pub bug: String,
    /// The mistake in words.
    #[serde(rename = "what")]
    pub description: String,
    /// The check that had to detect the bug.
    pub seen_by: String,
    /// The evidence of the detection. `None` if the bug was not detected.
    pub seen: Option<String>,
    /// The command that repeats the detection.
    pub command: String,
    /// The version of the verdict.
    #[serde(default = "first_verdict")]
    pub verdict: u32,
    /// The description of the tested code, from the option `--code`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub code: Option<String>,
}

impl Finding {
    pub(super) fn new(bug: &Bug, seen_by: String, seen: Option<String>, command: String) -> Self {
        let (bug, description) = (bug.name.to_owned(), bug.description.to_owned());
        Self { bug, description, seen_by, seen, command, verdict: VERDICT, code: None }
    }

    /// Returns true if the finding need not be repeated: the bug was detected. A finding of the
    /// campaign must also be of the current verdict.
    pub(super) fn is_current(&self) -> bool {
        self.seen.is_some() && (self.verdict == VERDICT || !self.seen_by.starts_with(CAMPAIGN))
    }

    /// Returns the file of all findings.
    pub(crate) fn path(directory: &Path) -> PathBuf {
        directory.join("bugs.jsonl")
    }

    /// Returns the stored finding about `bug`, if there is one.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn find(directory: &Path, bug: &str) -> io::Result<Option<Self>> {
        let all: Vec<Self> = lines::read(&Self::path(directory))?;
        Ok(all.into_iter().find(|finding| finding.bug == bug))
    }

    /// Returns all findings in the order of the catalogue, with its descriptions of the bugs.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    pub fn load_all(directory: &Path) -> io::Result<Vec<Self>> {
        let all: Vec<Self> = lines::read(&Self::path(directory))?;
        let of_bug = |bug: &Bug| {
            let mut finding = all.iter().find(|finding| finding.bug == bug.name)?.clone();
            bug.description.clone_into(&mut finding.description);
            Some(finding)
        };
        Ok(ALL.iter().filter_map(of_bug).collect())
    }

    /// Stores the finding in the place of an earlier one about its bug.
    ///
    /// # Errors
    ///
    /// The file cannot be read or written.
    pub fn store(&self, directory: &Path) -> io::Result<()> {
        let mut all = Self::load_all(directory)?;
        all.retain(|other| other.bug != self.bug);
        all.push(self.clone());
        lines::write(&Self::path(directory), &all)
    }

    /// Returns the check that had to detect the bug, the verdict if that was the campaign, and the
    /// code.
    pub(crate) fn origin(&self) -> String {
        let mut text = self.seen_by.clone();
        if text.starts_with(CAMPAIGN) {
            text += &format!(", verdict {}", self.verdict);
        }
        text + &self.code.as_ref().map_or_else(String::new, |code| format!(", of {code}"))
    }

    /// Returns true if the campaign itself detected the bug.
    pub(crate) fn is_by_campaign(&self) -> bool {
        self.seen.is_some() && self.seen_by.starts_with(CAMPAIGN)
    }
}
