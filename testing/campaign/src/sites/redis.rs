//! One Redis server with an append-only file and a clock of its own.

use std::net::SocketAddr;
use std::time::Duration;

use lock_conformance::ServerProcess;
use lock_core::LockName;
use lock_history::Assumption;
use test_servers::{Persistence, Redis, RedisOptions, Reply, Step};

use super::site::{BY_NETWORK, BackendSpec, Removal, Site, SiteParams, Undo, connect};
use crate::kind::{FaultSupport, Kind};

pub(super) const SPEC: BackendSpec = BackendSpec { name: "redis", start, connect };

fn start() -> Box<dyn Site> {
    Box::new(OneRedis(Redis::start(RedisOptions::new().persistence(Persistence::Aof).clock())))
}

struct OneRedis(Redis);

impl Site for OneRedis {
    fn params(&self) -> SiteParams {
        let half = Duration::from_millis(500);
        SiteParams::new(half, half, half / 2)
    }

    fn support(&self, kind: Kind) -> FaultSupport {
        match kind {
            Kind::ServerClockStepped => FaultSupport::Breaks(Assumption::A1),
            Kind::ServerEmptied | Kind::ServerAged => FaultSupport::Breaks(Assumption::A2),
            Kind::Evicted | Kind::Broken => FaultSupport::Breaks(Assumption::A3),
            kind if kind.needs_several_servers() => FaultSupport::No("there is one server"),
            kind if kind.is_in_calls() => FaultSupport::No(BY_NETWORK),
            _ => FaultSupport::Yes,
        }
    }

    fn url(&self, through: &[SocketAddr]) -> String {
        through.first().map_or_else(|| self.0.url(), |addr| format!("redis://{addr}"))
    }

    fn upstreams(&self) -> Vec<SocketAddr> {
        vec![self.0.addr()]
    }

    fn servers(&self) -> Vec<&dyn ServerProcess> {
        vec![&self.0]
    }

    fn snapshot_data(&self) -> Option<Undo<'_>> {
        let written = self.0.aof_len();
        Some(Box::new(move || self.0.truncate_aof(written)))
    }

    fn step_clock(&self, step: Step) {
        self.0.step_clock(step);
    }

    fn set_full(&self, full: bool) {
        self.0.command(&["CONFIG", "SET", "maxmemory", if full { "1" } else { "0" }]);
    }

    fn evict(&self, name: &LockName) -> Removal {
        // The names of a campaign need no encoding, so they are the keys.
        deleted(&self.0.command(&["DEL", name.as_str()]))
    }

    fn residue(&self) -> Option<Vec<String>> {
        match self.0.command(&["KEYS", "*"]) {
            Reply::Array(keys) => Some(keys.iter().map(Reply::text).collect()),
            other => Some(vec![format!("{other:?}")]),
        }
    }

    fn documented_residue(&self) -> Option<Vec<&'static str>> {
        Some(vec!["{n*}%token", "{n*}%gone:*"])
    }
}

/// Returns the result of a `DEL`.
pub(super) fn deleted(reply: &Reply) -> Removal {
    match reply.text().as_str() {
        "1" => Removal::Removed,
        "0" => Removal::NotFound,
        _ => Removal::Unknown,
    }
}
