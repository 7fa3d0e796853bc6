//! `ms` in the mode that only adds, which answers the item's number; `md` of just that number.

use std::time::Duration;

use super::{Dialect, line, random_owner};

pub(crate) struct Memcached;

impl Dialect for Memcached {
    type Held = (String, String);

    const SCHEME: &str = "memcached";

    fn greeting() -> Vec<u8> {
        b"version\r\n".to_vec()
    }

    fn greeted(reply: &[u8]) -> Option<Self> {
        reply.starts_with(b"VERSION ").then_some(Self)
    }

    fn length(bytes: &[u8]) -> Option<usize> {
        line(bytes)
    }

    fn acquire(&self, key: &str, ttl: Duration) -> (Vec<u8>, String) {
        let (owner, seconds) = (random_owner(), ttl.as_millis().div_ceil(1000));
        let request = format!("ms {key} {} T{seconds} ME c\r\n{owner}\r\n", owner.len());
        (request.into_bytes(), owner)
    }

    fn acquired(&self, key: &str, _owner: String, reply: &[u8]) -> Option<Self::Held> {
        let number = reply.strip_prefix(b"HD c")?.strip_suffix(b"\r\n")?;
        Some((key.to_owned(), String::from_utf8_lossy(number).into_owned()))
    }

    fn release(&self, (key, number): &Self::Held) -> Vec<u8> {
        format!("md {key} C{number}\r\n").into_bytes()
    }

    fn released(&self, reply: &[u8]) -> bool {
        reply == b"HD\r\n"
    }
}
