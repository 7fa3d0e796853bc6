//! The commands that clients send to a Redis server.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;

use super::resp::Session;

/// A `MONITOR` session on a socket of its own. It shows the commands of clients and, marked as
/// such, those of scripts; the server's counters mix the two. `redis-cli monitor` in a pipe loses
/// its last lines. This session does not, because it reads until it has seen its own mark.
#[derive(Debug)]
pub struct Monitor {
    addr: SocketAddr,
    mark: String,
    reader: JoinHandle<io::Result<Vec<String>>>,
}

impl Monitor {
    /// Starts to record the commands of clients.
    ///
    /// # Errors
    ///
    /// The connection fails, or the server refuses.
    pub fn start(addr: SocketAddr) -> io::Result<Self> {
        static MARKS: AtomicU64 = AtomicU64::new(0);

        let number = MARKS.fetch_add(1, Ordering::Relaxed);
        let mark = format!("monitor-{}-{number}", std::process::id());
        let mut socket = TcpStream::connect(addr)?;
        socket.write_all(b"*1\r\n$7\r\nMONITOR\r\n")?;
        let mut lines = BufReader::new(socket);
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line)?;
        if line != b"+OK\r\n" {
            return Err(io::Error::other(String::from_utf8_lossy(&line).into_owned()));
        }
        let end = format!("\"{mark}\"\r\n");
        let reader = std::thread::spawn(move || {
            let mut requests = Vec::new();
            loop {
                line.clear();
                if lines.read_until(b'\n', &mut line)? == 0 {
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
                let line = String::from_utf8_lossy(&line);
                if line.ends_with(&end) {
                    return Ok(requests);
                }
                if !is_of_a_script(&line) {
                    requests.push(line.trim_end().to_owned());
                }
            }
        });
        Ok(Self { addr, mark, reader })
    }

    /// Returns the commands of clients until now, one line for each as the server writes it:
    /// `+1700000000.123456 [0 127.0.0.1:50000] "SET" "a" …`. The commands of scripts are left out.
    /// The server does not show passwords.
    ///
    /// # Errors
    ///
    /// The connection fails.
    ///
    /// # Panics
    ///
    /// The thread that reads has panicked.
    pub fn finish(self) -> io::Result<Vec<String>> {
        Session::connect(self.addr)?.command(&["ECHO", &self.mark])?;
        self.reader.join().expect("reading lines does not panic")
    }
}

/// Returns whether a script sent the command: `+1700000000.123456 [0 lua] "GET" …`. The part in
/// brackets contains no `]`.
fn is_of_a_script(line: &str) -> bool {
    line.split(']').next().unwrap_or_default().ends_with(" lua")
}
