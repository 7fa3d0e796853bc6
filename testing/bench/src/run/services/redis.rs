//! Redis: a new server, or a given one.

use std::fmt::Display;
use std::net::SocketAddr;

use test_servers::{Monitor, Redis, RedisOptions, Session};

use super::{Count, Server, Target, resolve, timed};
use crate::run::error::{Result, RunError};

/// Opens a target: `redis:` starts a server, and `redis://host:port` is a running one.
pub(crate) fn redis(url: &str) -> Result<Target> {
    Ok(Target::of(match resolve(url, "redis", 6379)? {
        None => RedisServer::start()?,
        Some(addr) => RedisServer { own: None, addr },
    }))
}

pub(super) struct RedisServer {
    own: Option<Redis>,
    addr: SocketAddr,
}

impl RedisServer {
    pub(super) fn start() -> Result<Self> {
        let server = Redis::try_start(RedisOptions::new()).map_err(failed)?;
        Ok(Self { addr: server.addr(), own: Some(server) })
    }

    pub(super) fn set_paused(&self, paused: bool) {
        if let Some(server) = &self.own {
            if paused { server.stop() } else { server.cont() }
        }
    }
}

impl Server for RedisServer {
    fn addrs(&self) -> Vec<SocketAddr> {
        vec![self.addr]
    }

    fn url_at(&self, addrs: &[SocketAddr]) -> String {
        format!("redis://{}", addrs[0])
    }

    fn pids(&self) -> Vec<u32> {
        self.own.iter().map(|server| server.pid()).collect()
    }

    fn version(&self) -> Result<String> {
        let mut session = Session::connect(self.addr).map_err(failed)?;
        let info = session.command(&["INFO", "server"]).map_err(failed)?.text();
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(format!("redis {}", version.unwrap_or("of unknown version")))
    }

    fn count(&self) -> Result<Box<dyn Count>> {
        Ok(Box::new(Monitor::start(self.addr).map_err(failed)?))
    }

    fn round_trips(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<Vec<u64>> {
        let mut session = Session::connect(addr).map_err(failed)?;
        timed(times, pause, || session.command(&["PING"]).map(drop).map_err(failed))
    }

    fn fill(&self, keys: usize) -> Result<()> {
        let script = "for i = 1, ARGV[1] do \
             redis.call('SET', 'others-' .. i, '', 'PX', 3600000 + i) end return ARGV[1]";
        let mut session = Session::connect(self.addr).map_err(failed)?;
        let done = session.command(&["EVAL", script, "0", &keys.to_string()]).map_err(failed)?;
        let is_done = done.text() == keys.to_string();
        is_done.then_some(()).ok_or_else(|| failed(done.text()))
    }
}

impl Count for Monitor {
    fn finish(self: Box<Self>) -> Result<u64> {
        Ok((*self).finish().map_err(failed)?.len() as u64)
    }
}

fn failed(error: impl Display) -> RunError {
    RunError::Failed(format!("redis: {error}"))
}
