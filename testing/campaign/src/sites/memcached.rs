//! One memcached server.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_core::LockName;
use lock_history::Assumption;
use test_servers::{Memcached, MemcachedOptions};

use super::site::{BY_NETWORK, BackendSpec, Removal, Site, SiteParams, connect};
use crate::kind::{FaultSupport, Kind};

pub(super) const SPEC: BackendSpec = BackendSpec { name: "memcache", start, connect };

fn start() -> Box<dyn Site> {
    Box::new(OneMemcached(Memcached::start(MemcachedOptions::new())))
}

struct OneMemcached(Memcached);

impl Site for OneMemcached {
    fn params(&self) -> SiteParams {
        let half = Duration::from_millis(500);
        // A lock that is not released stays unavailable for seconds.
        SiteParams { locks: 48, ..SiteParams::new(half, half, half / 2) }
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            // Its clock ticks once a second, and late after a stop.
            Kind::ServerStopped => FaultSupport::Breaks(Assumption::A1),
            Kind::ServerEmptied => FaultSupport::Breaks(Assumption::A2),
            Kind::Evicted | Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            Kind::ServerRestarted | Kind::ServerAged => {
                FaultSupport::No("it keeps no data over a restart")
            }
            Kind::ServerClockStepped => FaultSupport::No("it counts leases by a monotonic clock"),
            Kind::ServerFull => FaultSupport::No("its limit cannot be set below its usage"),
            kind if kind.needs_several_servers() => FaultSupport::No("there is one server"),
            kind if kind.is_in_calls() => FaultSupport::No(BY_NETWORK),
            _ => FaultSupport::Yes,
        }
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        through.first().map_or_else(|| self.0.url(), |addr| format!("memcache://{addr}"))
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        vec![self.0.addr()]
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        vec![&self.0]
    }

    /// Returns 1.5 s: a server that was stopped uses the time of its last tick until the next one.
    fn recovery_time(&self) -> Duration {
        Duration::from_millis(1500)
    }

    fn evict(&self, name: &LockName) -> Removal {
        // The names of a campaign need no encoding, so they are the keys.
        match self.0.command(&format!("delete {}", name.as_str())).as_str() {
            "DELETED" => Removal::Removed,
            "NOT_FOUND" => Removal::NotFound,
            _ => Removal::Unknown,
        }
    }

    fn residue(&self) -> Option<Vec<String>> {
        Some(keys(self.0.addr()).unwrap_or_else(|error| vec![error.to_string()]))
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        // Its crawler escapes keys.
        Some(vec!["%25fence", "%25server"])
    }
}

/// Lists the keys by the server's crawler.
fn keys(addr: SocketAddr) -> std::io::Result<Vec<String>> {
    let mut stream = TcpStream::connect(addr)?;
    stream.set_read_timeout(Some(Duration::from_secs(5)))?;
    stream.write_all(b"lru_crawler metadump all\r\n")?;
    let mut keys = Vec::new();
    for line in BufReader::new(stream).lines() {
        let line = line?;
        if line == "END" {
            break;
        }
        let key = line.strip_prefix("key=").and_then(|rest| rest.split(' ').next());
        keys.push(key.unwrap_or(&line).to_owned());
    }
    Ok(keys)
}
