//! The wire format: requests as bytes, and bytes as replies.
//!
//! Locks are taken by the old `add` and extended by the old `cas`, not by the newer `ms`: at its
//! memory limit a server that refuses an `ms` deletes the item under the key, in all of its modes
//! (seen with 1.6.18). All other requests use the meta protocol, whose replies are short.

use std::fmt;

use lock_core::backend::Fault;

use crate::fault;
use crate::value::Value;

/// Longest line of a server's reply.
const MAX_LINE: usize = 4096;

/// Limit of the lines of statistics.
const MAX_STATS: usize = 4096;

/// Commands that are sent in one piece, and the number of their replies.
#[derive(Debug, Default)]
pub(crate) struct Request {
    pub(crate) text: String,
    pub(crate) replies: usize,
}

impl Request {
    pub(crate) fn new() -> Self {
        Self { text: String::with_capacity(320), replies: 0 }
    }

    /// Stores `value` unless the key has one.
    pub(crate) fn add(self, key: &str, exptime: u64, value: &str) -> Self {
        let length = value.len();
        self.command(format_args!("add {key} 0 {exptime} {length}\r\n{value}\r\n"))
    }

    /// Stores `value` if the item has the CAS number `cas`.
    pub(crate) fn cas(self, key: &str, exptime: u64, value: &str, cas: u64) -> Self {
        let length = value.len();
        self.command(format_args!("cas {key} 0 {exptime} {length} {cas}\r\n{value}\r\n"))
    }

    /// Extends the item with the CAS number `cas` until `exptime`, which needs no memory. It also
    /// marks the item as stale, which has no effect here.
    pub(crate) fn touch_if(self, key: &str, exptime: u64, cas: u64) -> Self {
        self.command(format_args!("md {key} C{cas} I T{exptime}\r\n"))
    }

    /// Deletes the item with the CAS number `cas`.
    pub(crate) fn delete(self, key: &str, cas: u64) -> Self {
        self.command(format_args!("md {key} C{cas}\r\n"))
    }

    /// Reads the item, its CAS number, and its expiry.
    pub(crate) fn get(self, key: &str) -> Self {
        self.command(format_args!("mg {key} v t c\r\n"))
    }

    /// Checks whether the key has an item.
    pub(crate) fn exists(self, key: &str) -> Self {
        self.command(format_args!("mg {key}\r\n"))
    }

    /// Adds to an existing counter, and extends it until `exptime`.
    pub(crate) fn increment(self, key: &str, by: u64, exptime: u64) -> Self {
        self.command(format_args!("ma {key} D{by} T{exptime} v\r\n"))
    }

    /// Adds to a counter with the CAS number `cas`.
    pub(crate) fn increment_if(self, key: &str, by: u64, exptime: u64, cas: u64) -> Self {
        self.command(format_args!("ma {key} C{cas} D{by} T{exptime} v\r\n"))
    }

    /// Requests statistics; `""` for those of the server.
    pub(crate) fn stats(self, about: &str) -> Self {
        self.command(format_args!("stats{}{about}\r\n", if about.is_empty() { "" } else { " " }))
    }

    /// Sends the credentials. Any key is accepted.
    pub(crate) fn credentials(self, user: &str, password: &str) -> Self {
        let length = user.len() + 1 + password.len();
        self.command(format_args!("set auth 0 0 {length}\r\n{user} {password}\r\n"))
    }

    fn command(mut self, command: fmt::Arguments<'_>) -> Self {
        use std::fmt::Write;

        self.text.write_fmt(command).expect("memory can be written to");
        self.replies += 1;
        self
    }
}

/// The reply of a server to one command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Stored,
    /// The key has an item already.
    NotStored,
    /// The item has another CAS number.
    Exists,
    /// The key has no item.
    Missing,
    Done,
    Value(Item),
    Stats(Vec<(String, String)>),
    /// The text of the server.
    Refused(String),
}

/// The item under a key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Item {
    /// `None` if it is longer than any value of this backend.
    pub(crate) value: Option<Vec<u8>>,
    pub(crate) cas: u64,
    /// Seconds of the server until its expiry, at the latest; `None`: never.
    pub(crate) expires_in: Option<u64>,
}

impl Item {
    pub(crate) fn is(&self, value: &str) -> bool {
        self.value.as_deref() == Some(value.as_bytes())
    }
}

impl Reply {
    /// Returns true if the server may not have understood the end of the command.
    pub(crate) fn desynchronizes(&self) -> bool {
        let is_understood =
            |text: &str| text.starts_with("SERVER_ERROR") || text.contains("non-numeric");
        matches!(self, Self::Refused(text) if !is_understood(text))
    }

    /// Returns the fault of a reply that the command never has. Values are not shown: they hold the
    /// right to unlock.
    pub(crate) fn unexpected(self, action: &'static str) -> Fault {
        let what = match self {
            Self::Refused(text) => return fault::refused(action, &text),
            Self::Value(_) => "a value",
            Self::Stats(_) => "statistics",
            Self::Stored => "stored",
            Self::NotStored => "not stored",
            Self::Exists => "exists",
            Self::Missing => "not found",
            Self::Done => "done",
        };
        fault::unexpected_reply(action, what)
    }
}

/// Bytes that no memcached sends.
#[derive(Debug)]
pub(crate) struct ProtocolError;

/// A parser of replies that arrive in pieces.
#[derive(Debug, Default)]
pub(crate) struct ReplyParser {
    buffer: Vec<u8>,
    used: usize,
    state: ParserState,
}

#[derive(Debug, Default)]
enum ParserState {
    #[default]
    Nothing,
    /// So many bytes of a value are to come, and the end of the line.
    Value {
        item: Item,
        left: usize,
    },
    Stats(Vec<(String, String)>),
}

impl ReplyParser {
    /// Returns the buffer for arriving bytes.
    pub(crate) fn buffer(&mut self) -> &mut Vec<u8> {
        self.buffer.drain(..self.used);
        self.used = 0;
        &mut self.buffer
    }

    /// Returns the next reply, if it is complete.
    pub(crate) fn next(&mut self) -> Result<Option<Reply>, ProtocolError> {
        loop {
            if let ParserState::Value { .. } = self.state {
                return self.value();
            }
            let rest = &self.buffer[self.used..];
            let Some((line, length)) = line(rest)? else { return Ok(None) };
            self.used += length;
            if let Some(reply) = self.state.begin(line)? {
                return Ok(Some(reply));
            }
        }
    }

    /// Parses a value. A long one is discarded: other clients may store anything under these keys.
    fn value(&mut self) -> Result<Option<Reply>, ProtocolError> {
        let ParserState::Value { item, left } = &mut self.state else { return Ok(None) };
        let rest = &self.buffer[self.used..];
        let taken = rest.len().min(*left);
        if let Some(value) = &mut item.value {
            value.extend_from_slice(&rest[..taken]);
        }
        *left -= taken;
        self.used += taken;
        let rest = &rest[taken..];
        if *left > 0 || (rest.len() < 2 && b"\r\n".starts_with(rest)) {
            return Ok(None);
        }
        if !rest.starts_with(b"\r\n") {
            return Err(ProtocolError);
        }
        self.used += 2;
        let item = std::mem::take(item);
        self.state = ParserState::Nothing;
        Ok(Some(Reply::Value(item)))
    }
}

impl ParserState {
    /// Parses a line. Returns `None` if more is to come.
    fn begin(&mut self, line: &str) -> Result<Option<Reply>, ProtocolError> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        if let Self::Stats(stats) = self {
            return match word {
                "END" => {
                    let stats = std::mem::take(stats);
                    *self = Self::Nothing;
                    Ok(Some(Reply::Stats(stats)))
                }
                "STAT" if stats.len() < MAX_STATS => {
                    stats.push(stat(rest));
                    Ok(None)
                }
                _ => Err(ProtocolError),
            };
        }
        Ok(Some(match word {
            "STORED" => Reply::Stored,
            "NOT_STORED" | "NS" => Reply::NotStored,
            "EXISTS" | "EX" => Reply::Exists,
            "NOT_FOUND" | "NF" | "EN" => Reply::Missing,
            "HD" => Reply::Done,
            "END" => Reply::Stats(Vec::new()),
            "STAT" => {
                *self = Self::Stats(vec![stat(rest)]);
                return Ok(None);
            }
            "VA" => {
                let (item, left) = announced(rest)?;
                *self = Self::Value { item, left };
                return Ok(None);
            }
            "ERROR" | "CLIENT_ERROR" | "SERVER_ERROR" => Reply::Refused(line.to_owned()),
            _ => return Err(ProtocolError),
        }))
    }
}

/// Returns the first line, without its end, and its length with it; `None` if it is incomplete.
fn line(bytes: &[u8]) -> Result<Option<(&str, usize)>, ProtocolError> {
    let Some(end) = bytes.iter().take(MAX_LINE).position(|&byte| byte == b'\n') else {
        return if bytes.len() < MAX_LINE { Ok(None) } else { Err(ProtocolError) };
    };
    let line = bytes[..end].strip_suffix(b"\r").ok_or(ProtocolError)?;
    let line = std::str::from_utf8(line).map_err(|_| ProtocolError)?;
    Ok(Some((line, end + 1)))
}

/// Parses the header of a value into an item and its length.
fn announced(words: &str) -> Result<(Item, usize), ProtocolError> {
    let mut words = words.split(' ');
    let length: u32 = words.next().unwrap_or_default().parse().map_err(|_| ProtocolError)?;
    let length = usize::try_from(length).map_err(|_| ProtocolError)?;
    let value = (length <= Value::MAX_LEN).then(|| Vec::with_capacity(length));
    let mut item = Item { value, ..Item::default() };
    for flag in words {
        if let Some(cas) = flag.strip_prefix('c') {
            item.cas = cas.parse().map_err(|_| ProtocolError)?;
        } else if let Some(seconds) = flag.strip_prefix('t') {
            let seconds: i64 = seconds.parse().map_err(|_| ProtocolError)?;
            item.expires_in = u64::try_from(seconds).ok();
        }
    }
    Ok((item, length))
}

fn stat(rest: &str) -> (String, String) {
    let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
    (name.to_owned(), value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_error_shows_a_value() {
        let value = Some(b"hunter2".to_vec());
        let reply = Reply::Value(Item { value, ..Item::default() });
        let shown = reply.unexpected("release a lock").into_source().to_string();
        let bytes = format!("{:?}", b"hunter2");
        assert!(!shown.contains(&bytes[1..bytes.len() - 1]), "{shown}");
        assert!(shown.contains("release a lock") && shown.contains("a value"), "{shown}");
    }

    fn all(parser: &mut ReplyParser, pieces: &[&[u8]]) -> Result<Vec<Reply>, ProtocolError> {
        let mut replies = Vec::new();
        for piece in pieces {
            parser.buffer().extend_from_slice(piece);
            while let Some(reply) = parser.next()? {
                replies.push(reply);
            }
        }
        Ok(replies)
    }

    const TALK: &[u8] =
        b"STORED\r\nVA 5 t-1 c7 W\r\na\r\nb \r\nHD\r\nEN\r\nVA 0 t3 c18446744073709551615\r\n\
        \r\nSTAT time 12\r\nSTAT version 1.6.18 x\r\nEND\r\nSERVER_ERROR out of memory\r\nNS\r\n";

    fn expected_replies() -> Vec<Reply> {
        let item = |value: &[u8], cas, expires_in| {
            Reply::Value(Item { value: Some(value.to_vec()), cas, expires_in })
        };
        let stat = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        vec![
            Reply::Stored,
            item(b"a\r\nb ", 7, None),
            Reply::Done,
            Reply::Missing,
            item(b"", u64::MAX, Some(3)),
            Reply::Stats(vec![stat("time", "12"), stat("version", "1.6.18 x")]),
            Reply::Refused("SERVER_ERROR out of memory".into()),
            Reply::NotStored,
        ]
    }

    #[test]
    fn replies_are_the_same_however_they_are_cut() {
        assert_eq!(all(&mut ReplyParser::default(), &[TALK]).unwrap(), expected_replies());
        let bytes: Vec<&[u8]> = TALK.chunks(1).collect();
        assert_eq!(all(&mut ReplyParser::default(), &bytes).unwrap(), expected_replies());
        for at in 0..TALK.len() {
            let (a, b) = TALK.split_at(at);
            assert_eq!(
                all(&mut ReplyParser::default(), &[a, b]).unwrap(),
                expected_replies(),
                "cut at {at}"
            );
        }
    }

    #[test]
    fn long_values_are_discarded() {
        let mut parser = ReplyParser::default();
        assert!(all(&mut parser, &[b"VA 4000000 t9 c1\r\n"]).unwrap().is_empty());
        for _ in 0..1000 {
            assert!(all(&mut parser, &[&[b'x'; 4000]]).unwrap().is_empty());
            assert!(parser.buffer().len() < 5000, "it is kept");
        }
        let replies = all(&mut parser, &[b"\r\nHD\r\n"]).unwrap();
        let item = Item { value: None, cas: 1, expires_in: Some(9) };
        assert_eq!(replies, [Reply::Value(item), Reply::Done]);
    }

    #[test]
    fn garbage_is_found_and_not_waited_for() {
        for garbage in [
            &b"\r\n"[..],
            b"HD\n",
            b"hello\r\n",
            b"VA x\r\n",
            b"VA -1\r\n",
            b"VA 99999999999\r\n",
            b"VA 1 cx\r\n",
            b"VA 1\r\nab",
            b"VA 1\r\na\rb",
            b"STAT a b\r\nHD\r\n",
            b"\xff\xff\r\n",
            &[b'x'; MAX_LINE],
        ] {
            let replies = all(&mut ReplyParser::default(), &[garbage]);
            assert!(replies.is_err(), "{:?} is {replies:?}", garbage.escape_ascii().to_string());
        }
    }

    proptest::proptest! {
        #[test]
        fn no_bytes_make_it_panic(pieces: Vec<Vec<u8>>) {
            let pieces: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
            let _ = all(&mut ReplyParser::default(), &pieces);
        }
    }
}
