//! One socket that blocks: a request, its reply, the next request.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::{COMPARE_AND_DELETE, acquire_command, address, command, random_value};
use crate::worker::Lib;

pub(crate) struct RawRedis {
    socket: Mutex<BufReader<TcpStream>>,
    script: String,
}

impl RawRedis {
    pub(crate) fn connect(url: &str) -> Result<Self, String> {
        let socket = TcpStream::connect(address(url)?).map_err(|e| e.to_string())?;
        socket.set_nodelay(true).map_err(|e| e.to_string())?;
        let mut socket = BufReader::new(socket);
        socket
            .get_mut()
            .write_all(&command(&["SCRIPT", "LOAD", COMPARE_AND_DELETE]))
            .map_err(|e| e.to_string())?;
        let mut digest = [0; "$40\r\n".len() + 42];
        socket.read_exact(&mut digest).map_err(|e| e.to_string())?;
        let script = String::from_utf8_lossy(&digest[5..45]).into_owned();
        Ok(Self { socket: Mutex::new(socket), script })
    }

    /// Sends a command whose reply is one line, and demands that line.
    fn expect(&self, request: &[u8], expected: &str) -> Result<(), String> {
        let mut socket = self.socket.lock().unwrap_or_else(PoisonError::into_inner);
        let mut reply = String::new();
        let exchange = socket.get_mut().write_all(request);
        exchange.and_then(|()| socket.read_line(&mut reply)).map_err(|e| e.to_string())?;
        match reply.trim_end() == expected {
            true => Ok(()),
            false => Err(format!("the server answers {reply:?}")),
        }
    }
}

impl Lib for RawRedis {
    type Lock = String;
    type Held = (String, String);

    fn lock(&self, name: &str) -> Result<String, String> {
        Ok(name.to_owned())
    }

    async fn acquire(&self, key: &String, ttl: Duration) -> Result<Self::Held, String> {
        let value = random_value();
        self.expect(&acquire_command(key, &value, ttl), "+OK")?;
        Ok((key.clone(), value))
    }

    async fn release(&self, (key, value): Self::Held) -> Result<(), String> {
        self.expect(&command(&["EVALSHA", &self.script, "1", &key, &value]), ":1")
    }
}
