//! ZooKeeper: a new server, or a given one.

use std::fmt::Display;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use lock_bench_worker::clock::now;
use test_servers::{ZooKeeper, ZooKeeperOptions};

use super::{Count, Server, Target, resolve, timed};
use crate::run::error::{Result, RunError};
use crate::worker::floors::{Dialect, ZooKeeper as Requests};

/// The timeout of our sessions, in seconds. A session has six heartbeat writes in it, and the
/// server counts them with all other requests. So it is long: most measurements end before the
/// second one.
const SESSION: u64 = 24;

/// The timeout where holders are killed, in seconds: two ticks of a server with defaults.
pub(crate) const SHORT_SESSION: u64 = 4;

/// Opens a target: `zookeeper:` starts a server, and `zookeeper://host:port` is a running one,
/// which has to answer the commands `mntr` and `srvr`.
pub(crate) fn zookeeper(url: &str) -> Result<Target> {
    let (own, addr) = match resolve(url, "zookeeper", 2181)? {
        None => {
            let server = ZooKeeper::try_start(&ZooKeeperOptions::new()).map_err(failed)?;
            let addr = server.addr();
            (Some(server), addr)
        }
        Some(addr) => (None, addr),
    };
    Ok(Target::of(ZooKeeperServer { own, addr }))
}

fn url(addr: SocketAddr, session: u64) -> String {
    format!("zookeeper://{addr}?session_timeout={session}s")
}

struct ZooKeeperServer {
    own: Option<ZooKeeper>,
    addr: SocketAddr,
}

impl Server for ZooKeeperServer {
    fn addrs(&self) -> Vec<SocketAddr> {
        vec![self.addr]
    }

    fn url_at(&self, addrs: &[SocketAddr]) -> String {
        url(addrs[0], SESSION)
    }

    fn short_session_url(&self) -> String {
        url(self.addr, SHORT_SESSION)
    }

    fn pids(&self) -> Vec<u32> {
        self.own.iter().map(|server| server.pid()).collect()
    }

    fn version(&self) -> Result<String> {
        let answer = status(self.addr, "srvr").map_err(failed)?;
        let version = answer.lines().find_map(|line| line.strip_prefix("Zookeeper version: "));
        let version = version.and_then(|version| version.split(['-', ',']).next());
        Ok(format!("zookeeper {}", version.unwrap_or("of unknown version")))
    }

    fn count(&self) -> Result<Box<dyn Count>> {
        Ok(Box::new(PacketCount { addr: self.addr, before: packets(self.addr)? }))
    }

    /// Measures writes: nodes are created and deleted in turns.
    fn round_trips(&self, addr: SocketAddr, times: usize, pause: u64) -> Result<Vec<u64>> {
        write_times(addr, times, pause).map_err(failed)
    }

    /// Does nothing, as no node expires by itself.
    fn fill(&self, _keys: usize) -> Result<()> {
        Ok(())
    }
}

fn write_times(addr: SocketAddr, times: usize, pause: u64) -> io::Result<Vec<u64>> {
    let mut socket = TcpStream::connect(addr)?;
    socket.set_nodelay(true)?;
    let refused = || io::Error::other("the server refuses a node");
    let greeting = exchange(&mut socket, &Requests::greeting())?;
    let requests = Requests::greeted(&greeting).ok_or_else(refused)?;
    let key = format!("lock-bench-{}-{}", std::process::id(), now());
    let mut made = None;
    timed(times, pause, || {
        made = match made.take() {
            None => {
                let (request, path) = requests.acquire(&key, Duration::ZERO);
                let reply = exchange(&mut socket, &request)?;
                Some(requests.acquired(&key, path, &reply).ok_or_else(refused)?)
            }
            Some(path) => {
                let reply = exchange(&mut socket, &requests.release(&path))?;
                requests.released(&reply).then_some(None).ok_or_else(refused)?
            }
        };
        Ok(())
    })
}

fn exchange(socket: &mut TcpStream, request: &[u8]) -> io::Result<Vec<u8>> {
    socket.write_all(request)?;
    let mut reply = vec![0; 4];
    socket.read_exact(&mut reply)?;
    let length = u32::from_be_bytes([reply[0], reply[1], reply[2], reply[3]]);
    reply.resize(4 + length as usize, 0);
    socket.read_exact(&mut reply[4..])?;
    Ok(reply)
}

/// The packets that the server has counted, of every session, and each command such as `mntr`.
struct PacketCount {
    addr: SocketAddr,
    before: u64,
}

impl Count for PacketCount {
    fn finish(self: Box<Self>) -> Result<u64> {
        // The last command was counted, too.
        Ok((packets(self.addr)? - self.before).saturating_sub(1))
    }
}

fn packets(addr: SocketAddr) -> Result<u64> {
    let answer = status(addr, "mntr").map_err(failed)?;
    let counted = answer.lines().find_map(|line| line.strip_prefix("zk_packets_received"));
    let counted = counted.and_then(|counted| counted.trim().parse().ok());
    counted.ok_or_else(|| failed("the server does not count: is mntr in 4lw.commands.whitelist?"))
}

fn status(addr: SocketAddr, command: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(addr)?;
    stream.write_all(command.as_bytes())?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    Ok(answer)
}

fn failed(error: impl Display) -> RunError {
    RunError::Failed(format!("zookeeper: {error}"))
}
