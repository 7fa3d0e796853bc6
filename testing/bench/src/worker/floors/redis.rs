//! `SET key owner NX PX ttl`, and a script that compares and deletes.

use std::time::Duration;

use super::{Dialect, line, random_owner};

const COMPARE_AND_DELETE: &str =
    "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])";

pub(crate) struct Redis {
    /// The digest of the script.
    script: String,
}

impl Dialect for Redis {
    type Held = (String, String);

    const SCHEME: &str = "redis";

    fn greeting() -> Vec<u8> {
        command(&["SCRIPT", "LOAD", COMPARE_AND_DELETE])
    }

    fn greeted(reply: &[u8]) -> Option<Self> {
        let digest = reply.strip_prefix(b"$40\r\n")?.strip_suffix(b"\r\n")?;
        Some(Self { script: String::from_utf8_lossy(digest).into_owned() })
    }

    /// Returns the length of a line, or of the one bulk string here: the reply to the greeting.
    fn length(bytes: &[u8]) -> Option<usize> {
        let first = line(bytes)?;
        match bytes.starts_with(b"$40\r") {
            true => Some(first + line(&bytes[first..])?),
            false => Some(first),
        }
    }

    fn acquire(&self, key: &str, ttl: Duration) -> (Vec<u8>, String) {
        let owner = random_owner();
        let request = command(&["SET", key, &owner, "NX", "PX", &ttl.as_millis().to_string()]);
        (request, owner)
    }

    fn acquired(&self, key: &str, owner: String, reply: &[u8]) -> Option<Self::Held> {
        (reply == b"+OK\r\n").then(|| (key.to_owned(), owner))
    }

    fn release(&self, (key, owner): &Self::Held) -> Vec<u8> {
        command(&["EVALSHA", &self.script, "1", key, owner])
    }

    fn released(&self, reply: &[u8]) -> bool {
        reply == b":1\r\n"
    }
}

/// Encodes a command.
fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}
