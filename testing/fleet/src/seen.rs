//! The record of all observations: one JSON line for each check and way.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// One of the two sides of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Side {
    /// This library.
    Ours,
    /// The other client.
    Theirs,
}

impl Side {
    /// Returns the other side.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Ours => Self::Theirs,
            Self::Theirs => Self::Ours,
        }
    }
}

/// The result of a check of one client, in one way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seen {
    /// The client.
    pub client: String,
    /// Its version.
    pub version: String,
    /// The check.
    pub check: String,
    /// The side that held the lock first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub holder: Option<Side>,
    /// The observation, in the form of the check.
    pub seen: String,
}

/// All results.
#[derive(Clone, Debug, Default)]
pub struct Record(BTreeMap<(String, String, Option<Side>), Seen>);

impl Record {
    /// Reads a record; a missing file is an empty one.
    ///
    /// # Errors
    ///
    /// The file has other contents.
    pub fn load(path: &Path) -> Result<Self, String> {
        let mut record = Self::default();
        for line in std::fs::read_to_string(path).unwrap_or_default().lines() {
            let seen = serde_json::from_str(line)
                .map_err(|error| format!("{} is no record: {error}: {line}", path.display()))?;
            record.add(seen);
        }
        Ok(record)
    }

    /// Adds a result. It replaces an older one of the same check, and a client's results of another
    /// version.
    pub fn add(&mut self, seen: Seen) {
        self.0.retain(|_, old| old.client != seen.client || old.version == seen.version);
        let key = (seen.client.clone(), seen.check.clone(), seen.holder);
        self.0.insert(key, seen);
    }

    /// Returns the results of a client, by check and holder.
    pub fn of<'a>(&'a self, client: &'a str) -> impl Iterator<Item = &'a Seen> {
        self.0.values().filter(move |seen| seen.client == client)
    }

    /// Returns the observation of a check.
    #[must_use]
    pub fn get(&self, client: &str, check: &str, holder: Side) -> Option<&str> {
        let key = (client.to_owned(), check.to_owned(), Some(holder));
        self.0.get(&key).map(|seen| seen.seen.as_str())
    }

    /// Writes the record.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn store(&self, path: &Path) -> Result<(), String> {
        let mut text = String::new();
        for seen in self.0.values() {
            text += &serde_json::to_string(seen).map_err(|error| error.to_string())?;
            text.push('\n');
        }
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}
