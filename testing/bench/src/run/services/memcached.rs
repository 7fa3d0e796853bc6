//! memcached: a new server, or a given one.

use std::fmt::Display;
use std::net::SocketAddr;

use test_servers::{Memcached, MemcachedOptions, TextSession};

use super::{Count, Server, Target, resolve, timed};
use crate::run::error::{Result, RunError};

/// The server's counters, one of them for each command on a key; none counts `stats` and `version`.
const COUNTERS: &str = "cmd_get cmd_set cmd_touch delete_hits delete_misses incr_hits incr_misses \
    decr_hits decr_misses";

/// The number of keys that are added in one round trip.
const FILLED_AT_ONCE: usize = 500;

/// Opens a target: `memcache:` starts a server, and `memcache://host:port` is a running one.
pub(crate) fn memcached(url: &str) -> Result<Target> {
    let (own, addr) = match resolve(url, "memcache", 11211)? {
        None => {
            // Enough connections for a client with one per task.
            let options = MemcachedOptions::new().arg("-c").arg("4096");
            let server = Memcached::try_start(options).map_err(failed)?;
            let addr = server.addr();
            (Some(server), addr)
        }
        Some(addr) => (None, addr),
    };
    Ok(Target::of(MemcachedServer { own, addr }))
}

struct MemcachedServer {
    own: Option<Memcached>,
    addr: SocketAddr,
}

impl Server for MemcachedServer {
    fn addrs(&self) -> Vec<SocketAddr> {
        vec![self.addr]
    }

    fn url_at(&self, addrs: &[SocketAddr]) -> String {
        format!("memcache://{}", addrs[0])
    }

    fn pids(&self) -> Vec<u32> {
        self.own.iter().map(|server| server.pid()).collect()
    }

    fn version(&self) -> Result<String> {
        let mut session = TextSession::connect(self.addr).map_err(failed)?;
        let answer = session.command("version").map_err(failed)?;
        let version = answer.strip_prefix("VERSION ").unwrap_or("of unknown version");
        Ok(format!("memcached {version}"))
    }

    fn count(&self) -> Result<Box<dyn Count>> {
        let begun = commands_counted(self.addr)?;
        Ok(Box::new(CommandCount { addr: self.addr, begun }))
    }

    fn round_trips(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<Vec<u64>> {
        let mut session = TextSession::connect(addr).map_err(failed)?;
        timed(times, pause, || session.command("mn").map(drop).map_err(failed))
    }

    fn fill(&self, keys: usize) -> Result<()> {
        let mut session = TextSession::connect(self.addr).map_err(failed)?;
        for begin in (0..keys).step_by(FILLED_AT_ONCE) {
            let these = begin..keys.min(begin + FILLED_AT_ONCE);
            let adds =
                these.map(|i| format!("add others-{i} 0 {} 0 noreply\r\n\r\n", 3600 + i % 3600));
            let answer = session.command(&(adds.collect::<String>() + "mn")).map_err(failed)?;
            if answer != "MN" {
                return Err(failed(answer));
            }
        }
        Ok(())
    }
}

/// The server's own counters, at the beginning.
struct CommandCount {
    addr: SocketAddr,
    begun: u64,
}

impl Count for CommandCount {
    fn finish(self: Box<Self>) -> Result<u64> {
        Ok(commands_counted(self.addr)? - self.begun)
    }
}

fn commands_counted(addr: SocketAddr) -> Result<u64> {
    let mut session = TextSession::connect(addr).map_err(failed)?;
    let stats = session.command("stats").map_err(failed)?;
    let of = |counter: &str| -> Result<u64> {
        let mut lines =
            stats.lines().filter_map(|line| line.strip_prefix("STAT ")?.split_once(' '));
        let value = lines.find_map(|(name, value)| (name == counter).then_some(value.trim()));
        value.and_then(|value| value.parse().ok()).ok_or_else(|| failed(format!("no {counter}")))
    };
    COUNTERS.split(' ').map(of).sum()
}

fn failed(error: impl Display) -> RunError {
    RunError::Failed(format!("memcached: {error}"))
}
