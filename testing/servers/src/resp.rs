//! The part of the Redis protocol that an operator's shell needs. It does not use the client under
//! test, on purpose.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::handle;

/// The largest reply; no test asks for more at once.
const LARGEST: usize = 64 << 20;

/// A reply of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A word such as `OK`.
    Simple(String),
    /// A refusal.
    Error(String),
    /// A number.
    Integer(i64),
    /// A string of bytes.
    Bulk(Vec<u8>),
    /// Nothing.
    Nil,
    /// Several replies.
    Array(Vec<Reply>),
}

impl Reply {
    /// Returns the reply as text for comparisons: empty for nothing, one line for each element of
    /// an array.
    #[must_use]
    pub fn text(&self) -> String {
        match self {
            Self::Simple(text) | Self::Error(text) => text.clone(),
            Self::Integer(number) => number.to_string(),
            Self::Bulk(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Nil => String::new(),
            Self::Array(items) => items.iter().map(Self::text).collect::<Vec<_>>().join("\n"),
        }
    }
}

/// A connection to a Redis.
#[derive(Debug)]
pub struct Session(BufReader<TcpStream>);

impl Session {
    /// Opens a connection. Each call on the connection is bounded.
    ///
    /// # Errors
    ///
    /// No server listens at `addr`.
    pub fn connect(addr: SocketAddr) -> io::Result<Self> {
        handle::connect(addr).map(Self)
    }

    /// Sends a command and reads one reply. After an error the connection is unusable.
    ///
    /// # Errors
    ///
    /// The connection is broken, the answer is late, or it is none.
    pub fn command(&mut self, words: &[&str]) -> io::Result<Reply> {
        let mut request = format!("*{}\r\n", words.len());
        for word in words {
            request.push_str(&format!("${}\r\n{word}\r\n", word.len()));
        }
        self.0.get_mut().write_all(request.as_bytes())?;
        self.reply()
    }

    /// Reads one more reply, such as a message of a subscription or of `MONITOR`.
    ///
    /// # Errors
    ///
    /// The connection is broken, the answer is late, or it is none.
    pub fn reply(&mut self) -> io::Result<Reply> {
        let mut line = Vec::new();
        (&mut self.0).take(LARGEST as u64).read_until(b'\n', &mut line)?;
        let line = line.strip_suffix(b"\r\n").ok_or(io::ErrorKind::UnexpectedEof)?;
        let (kind, rest) = line.split_first().ok_or(io::ErrorKind::InvalidData)?;
        let text = String::from_utf8_lossy(rest).into_owned();
        match kind {
            b'+' => Ok(Reply::Simple(text)),
            b'-' => Ok(Reply::Error(text)),
            b':' => text.parse().map(Reply::Integer).map_err(|_| malformed(&text)),
            b'$' => self.bulk(&text),
            b'*' => self.array(&text),
            _ => Err(malformed(&text)),
        }
    }

    fn bulk(&mut self, length: &str) -> io::Result<Reply> {
        let Some(length) = count(length)? else { return Ok(Reply::Nil) };
        let mut bytes = vec![0; length + 2];
        self.0.read_exact(&mut bytes)?;
        bytes.truncate(length);
        Ok(Reply::Bulk(bytes))
    }

    fn array(&mut self, length: &str) -> io::Result<Reply> {
        let Some(length) = count(length)? else { return Ok(Reply::Nil) };
        (0..length).map(|_| self.reply()).collect::<io::Result<_>>().map(Reply::Array)
    }
}

/// Parses a length; `None` for a null.
fn count(text: &str) -> io::Result<Option<usize>> {
    match text.parse() {
        Ok(length) if length <= LARGEST => Ok(Some(length)),
        _ if text == "-1" => Ok(None),
        _ => Err(malformed(text)),
    }
}

fn malformed(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not a reply: {text}"))
}
