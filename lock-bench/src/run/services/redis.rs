//! Redis: a server of our own, or one that is given.

use std::fmt::Display;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use conformance_tests::servers::{Redis, RedisOptions, Session};

use super::{Count, Place, Server};
use crate::clock::now;
use crate::run::Stop;

/// `redis:` starts a server; `redis://host:port` is one that runs already.
pub(crate) fn redis(url: &str) -> Result<Place, Stop> {
    let (own, addr) = match url.strip_prefix("redis://") {
        None if url == "redis:" => {
            let server = Redis::try_start(RedisOptions::new()).map_err(failed)?;
            let addr = server.addr();
            (Some(server), addr)
        }
        Some(host) if !host.contains(['@', '/', '?']) => (None, resolve(host)?),
        _ => return Err(failed("write redis: for a server of its own, or redis://host:port")),
    };
    let url = format!("redis://{addr}");
    let server: Box<dyn Server> = Box::new(Measured { own, addr });
    Ok(Place { url, server: Some(server), _directory: None })
}

fn resolve(host: &str) -> Result<SocketAddr, Stop> {
    let with_port = if host.contains(':') { host.to_owned() } else { format!("{host}:6379") };
    let found = with_port.to_socket_addrs().map_err(failed)?.next();
    found.ok_or_else(|| failed(format!("{host} has no address")))
}

struct Measured {
    own: Option<Redis>,
    addr: SocketAddr,
}

impl Server for Measured {
    fn addr(&self) -> SocketAddr {
        self.addr
    }

    fn url_at(&self, addr: SocketAddr) -> String {
        format!("redis://{addr}")
    }

    fn pid(&self) -> Option<u32> {
        self.own.as_ref().map(|server| server.pid())
    }

    fn version(&self) -> Result<String, Stop> {
        let mut session = Session::connect(self.addr).map_err(failed)?;
        let info = session.command(&["INFO", "server"]).map_err(failed)?.text();
        let version = info.lines().find_map(|line| line.strip_prefix("redis_version:"));
        Ok(format!("redis {}", version.unwrap_or("of unknown version")))
    }

    fn count(&self) -> Result<Box<dyn Count>, Stop> {
        Ok(Box::new(Monitor::start(self.addr).map_err(failed)?))
    }

    fn round_trips(&self, addr: SocketAddr, times: usize) -> Result<Vec<u64>, Stop> {
        let mut session = Session::connect(addr).map_err(failed)?;
        (0..times)
            .map(|_| {
                let asked = now();
                session.command(&["PING"]).map_err(failed)?;
                Ok(now() - asked)
            })
            .collect()
    }

    fn fill(&self, keys: usize) -> Result<(), Stop> {
        let script = "for i = 1, ARGV[1] do \
             redis.call('SET', 'others-' .. i, '', 'PX', 3600000 + i) end return ARGV[1]";
        let mut session = Session::connect(self.addr).map_err(failed)?;
        let done = session.command(&["EVAL", script, "0", &keys.to_string()]).map_err(failed)?;
        match done.text() == keys.to_string() {
            true => Ok(()),
            false => Err(failed(done.text())),
        }
    }
}

/// `MONITOR` on a socket of our own. It shows what clients send, and what scripts call marked as such;
/// the server's counters mix the two. `redis-cli monitor` in a pipe loses its last lines, this does not:
/// it reads until it has seen our own mark.
struct Monitor {
    addr: SocketAddr,
    mark: String,
    reader: JoinHandle<io::Result<u64>>,
}

impl Monitor {
    fn start(addr: SocketAddr) -> io::Result<Self> {
        static MARKS: AtomicU64 = AtomicU64::new(0);

        let number = MARKS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("lock-bench-{}-{number}", std::process::id());
        let mut socket = TcpStream::connect(addr)?;
        socket.write_all(b"*1\r\n$7\r\nMONITOR\r\n")?;
        let mut lines = BufReader::new(socket);
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line)?;
        if line != b"+OK\r\n" {
            return Err(io::Error::other(String::from_utf8_lossy(&line).into_owned()));
        }
        let end = format!("\"{mark}\"\r\n").into_bytes();
        let reader = std::thread::spawn(move || {
            let mut requests = 0;
            loop {
                line.clear();
                if lines.read_until(b'\n', &mut line)? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                if line.ends_with(&end) {
                    return Ok(requests);
                }
                requests += u64::from(!is_of_a_script(&line));
            }
        });
        Ok(Self { addr, mark, reader })
    }
}

/// `+1700000000.123456 [0 lua] "GET" …`: the part in brackets has no `]` in it.
fn is_of_a_script(line: &[u8]) -> bool {
    let origin = line.split(|&byte| byte == b']').next().unwrap_or_default();
    origin.ends_with(b" lua")
}

impl Count for Monitor {
    fn finish(self: Box<Self>) -> Result<u64, Stop> {
        let mut session = Session::connect(self.addr).map_err(failed)?;
        session.command(&["ECHO", &self.mark]).map_err(failed)?;
        let counted = self.reader.join().map_err(|_| failed("the monitor's thread ended"))?;
        counted.map_err(failed)
    }
}

fn failed(error: impl Display) -> Stop {
    Stop::Failed(format!("redis: {error}"))
}
