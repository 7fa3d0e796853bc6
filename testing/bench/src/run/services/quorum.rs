//! A quorum of Redis servers of our own, each of which counts.

use std::net::SocketAddr;

use super::redis::Measured;
use super::{Count, Place, Server};
use crate::run::Stop;

/// `quorum:` starts three servers, `quorum:5` five.
pub(crate) fn quorum(url: &str) -> Result<Place, Stop> {
    let members = match url.strip_prefix("quorum:") {
        Some("" | "3") => 3,
        Some("5") => 5,
        _ => return Err(Stop::Failed("write quorum:3 or quorum:5 for servers of its own".into())),
    };
    let members: Result<Vec<Measured>, Stop> = (0..members).map(|_| Measured::start()).collect();
    Ok(Place::at(Members(members?)))
}

struct Members(Vec<Measured>);

impl Server for Members {
    fn addrs(&self) -> Vec<SocketAddr> {
        self.0.iter().flat_map(Measured::addrs).collect()
    }

    /// They have just been started, and have forgotten nothing.
    fn url_at(&self, addrs: &[SocketAddr]) -> String {
        let members = addrs.iter().map(|addr| format!("&member=redis://{addr}"));
        format!("quorum:?restarts=remember{}", members.collect::<String>())
    }

    fn pids(&self) -> Vec<u32> {
        self.0.iter().flat_map(Measured::pids).collect()
    }

    fn stand_still(&self, nth: usize, stands: bool) -> bool {
        self.0[nth % self.0.len()].stand_still(stands);
        true
    }

    fn version(&self) -> Result<String, Stop> {
        Ok(format!("{} times {}", self.0.len(), self.0[0].version()?))
    }

    fn count(&self) -> Result<Box<dyn Count>, Stop> {
        let counts: Result<Vec<_>, Stop> = self.0.iter().map(Measured::count).collect();
        Ok(Box::new(Counts(counts?)))
    }

    fn round_trips(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<Vec<u64>, Stop> {
        self.0[0].round_trips(addr, times, pause)
    }

    fn fill(&self, keys: usize) -> Result<(), Stop> {
        self.0.iter().try_for_each(|member| member.fill(keys))
    }
}

struct Counts(Vec<Box<dyn Count>>);

impl Count for Counts {
    fn finish(self: Box<Self>) -> Result<u64, Stop> {
        self.0.into_iter().map(Count::finish).sum()
    }
}
