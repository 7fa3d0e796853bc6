//! The commands of our own pair: `add`, `mg` and an increment of a counter in one write; then `md`
//! of just the value that `mg` returned.

use std::time::Duration;

use super::{Dialect, line, random_owner};

/// A key as long as that of our counter, and a different one, as its value is not derived from the
/// server's clock.
const COUNTER: &str = "%floor";

pub(crate) struct Memcached;

impl Dialect for Memcached {
    type Held = (String, String);

    const SCHEME: &str = "memcache";

    fn greeting() -> Vec<u8> {
        format!("ma {COUNTER} N0 J1000000000000000\r\n").into_bytes()
    }

    fn greeted(reply: &[u8]) -> Option<Self> {
        reply.starts_with(b"HD").then_some(Self)
    }

    /// Returns the length of a reply. An `add` is never alone.
    fn length(bytes: &[u8]) -> Option<usize> {
        let first = item(bytes)?;
        if !bytes.starts_with(b"STORED") && !bytes.starts_with(b"NOT_STORED") {
            return Some(first);
        }
        let looked = first + item(&bytes[first..])?;
        Some(looked + item(&bytes[looked..])?)
    }

    fn acquire(&self, key: &str, ttl: Duration) -> (Vec<u8>, String) {
        let (owner, seconds) = (random_owner(), ttl.as_millis().div_ceil(1000) + 3);
        let value = format!("{owner} 1 -");
        let request = format!(
            "add {key} 0 {seconds} {}\r\n{value}\r\nmg {key} v t c\r\nma {COUNTER} D1 T2592000 v\r\n",
            value.len()
        );
        (request.into_bytes(), owner)
    }

    fn acquired(&self, key: &str, owner: String, reply: &[u8]) -> Option<Self::Held> {
        let mut lines = std::str::from_utf8(reply).ok()?.strip_prefix("STORED\r\n")?.lines();
        let number = lines.next()?.split(' ').find_map(|flag| flag.strip_prefix('c'))?;
        let is_ours = lines.next()?.starts_with(&owner);
        let _length = lines.next()?;
        let has_token = lines.next()?.parse::<u64>().is_ok();
        (is_ours && has_token).then(|| (key.to_owned(), number.to_owned()))
    }

    fn release(&self, (key, number): &Self::Held) -> Vec<u8> {
        format!("md {key} C{number}\r\n").into_bytes()
    }

    fn released(&self, reply: &[u8]) -> bool {
        reply == b"HD\r\n"
    }
}

/// Returns the length of a line, with the value that it announces.
fn item(bytes: &[u8]) -> Option<usize> {
    let end = line(bytes)?;
    let Some(announced) = bytes[..end].strip_prefix(b"VA ") else { return Some(end) };
    let digits = announced.iter().take_while(|byte| byte.is_ascii_digit());
    let length = digits.fold(0, |length, digit| length * 10 + usize::from(digit - b'0'));
    let whole = end + length + 2;
    (bytes.len() >= whole).then_some(whole)
}
