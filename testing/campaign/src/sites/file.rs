//! The file backend, whose clients are processes that share a directory.

use std::net::SocketAddr;
use std::time::Duration;

use lock_history::Assumption;
use tempfile::TempDir;

use super::site::{BackendSpec, NO_NETWORK, Site, SiteParams, connect};
use crate::kind::{FaultSupport, Kind};

pub(super) const SPEC: BackendSpec = BackendSpec { name: "file", start, connect };

fn start() -> Box<dyn Site> {
    let directory = tempfile::Builder::new().prefix("campaign-").tempdir();
    Box::new(Directory(directory.expect("a temporary directory can be made")))
}

struct Directory(TempDir);

impl Site for Directory {
    fn params(&self) -> SiteParams {
        let [ttl, timeout, delay] = [600, 500, 150].map(Duration::from_millis);
        SiteParams::new(ttl, timeout, delay)
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            Kind::ClientKilled
            | Kind::ClientStopped
            | Kind::ClientStarved
            | Kind::ClientClockStepped
            | Kind::ShortLeases => FaultSupport::Yes,
            Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::Evicted => {
                FaultSupport::No("removing a lock file is tampering with its directory")
            }
            Kind::BrokenFromGrant => {
                FaultSupport::No("a holder is notified when it checks: see broken")
            }
            kind if kind.is_in_calls() || kind.is_aimed() => FaultSupport::Yes,
            kind if kind.is_in_network() => FaultSupport::No(NO_NETWORK),
            _ => FaultSupport::No("there is no server but the kernel"),
        }
    }

    fn url(&self, _: &[SocketAddr]) -> String {
        format!("file://{}", self.0.path().join("locks").display())
    }

    fn residue(&self) -> Option<Vec<String>> {
        let entries = std::fs::read_dir(self.0.path().join("locks")).ok()?;
        let names = entries.filter_map(Result::ok).map(|entry| entry.file_name());
        Some(names.map(|name| name.to_string_lossy().into_owned()).collect())
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        // A lock file stays, with the counter of its fencing tokens.
        Some(vec!["n*.lock"])
    }
}
