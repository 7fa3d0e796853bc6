//! A quorum of new Redis servers, each of which counts.

use std::net::SocketAddr;

use super::redis::RedisServer;
use super::{Count, Server, Target};
use crate::run::error::{Result, RunError};

/// Starts the servers: `quorum:` three, `quorum:5` five.
pub(crate) fn quorum(url: &str) -> Result<Target> {
    let members = match url.strip_prefix("quorum:") {
        Some("" | "3") => 3,
        Some("5") => 5,
        _ => {
            return Err(RunError::Failed(
                "write quorum:3 or quorum:5 for servers of its own".into(),
            ));
        }
    };
    let members: Result<Vec<RedisServer>> = (0..members).map(|_| RedisServer::start()).collect();
    Ok(Target::of(QuorumServers(members?)))
}

struct QuorumServers(Vec<RedisServer>);

impl Server for QuorumServers {
    fn addrs(&self) -> Vec<SocketAddr> {
        self.0.iter().flat_map(RedisServer::addrs).collect()
    }

    /// Returns a URL with `restarts=remember`: the servers are new, and have forgotten nothing.
    fn url_at(&self, addrs: &[SocketAddr]) -> String {
        let members = addrs.iter().map(|addr| format!("&member=redis://{addr}"));
        format!("quorum:?restarts=remember{}", members.collect::<String>())
    }

    fn pids(&self) -> Vec<u32> {
        self.0.iter().flat_map(RedisServer::pids).collect()
    }

    fn set_paused(&self, nth: usize, paused: bool) -> bool {
        self.0[nth % self.0.len()].set_paused(paused);
        true
    }

    fn version(&self) -> Result<String> {
        Ok(format!("{} times {}", self.0.len(), self.0[0].version()?))
    }

    fn count(&self) -> Result<Box<dyn Count>> {
        let counts: Result<Vec<_>> = self.0.iter().map(RedisServer::count).collect();
        Ok(Box::new(Counts(counts?)))
    }

    fn round_trips(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<Vec<u64>> {
        self.0[0].round_trips(addr, times, pause)
    }

    fn fill(&self, keys: usize) -> Result<()> {
        self.0.iter().try_for_each(|member| member.fill(keys))
    }
}

struct Counts(Vec<Box<dyn Count>>);

impl Count for Counts {
    fn finish(self: Box<Self>) -> Result<u64> {
        self.0.into_iter().map(Count::finish).sum()
    }
}
