//! Entry points of the fuzz targets. Not a public API. Each panics on a broken property.

use std::time::Duration;

use lock_core::backend::Claim;
use lock_core::{Error, FencingToken, LockName};

use crate::connection::wire::{Item, Reply, ReplyParser, Request};
use crate::keys::Keys;
use crate::stored::{StoredItem, contended, seen};
use crate::token_counter::{drawn, seed, time_of};
use crate::value::Value;

/// The longest line of a reply, and so the limit of bytes that wait for the rest of a reply.
const MAX_LEFT: usize = 4096;

/// Parses what a server sends, and reads the replies as the verbs do. The first byte says how the
/// rest is cut into pieces, on which no reply depends.
pub fn wire(data: &[u8]) {
    let Some((&cut, bytes)) = data.split_first() else { return };
    let (whole, is_valid) = replies([bytes]);
    assert_eq!((&whole, is_valid), (&replies(bytes.chunks(1 + usize::from(cut))).0, is_valid));
    for reply in whole {
        let _ = drawn(Some(reply.clone()));
        if let Reply::Stats(stats) = &reply
            && let Some(second) = time_of(stats)
        {
            let first: u64 = seed(second).parse().expect("a number");
            assert!(FencingToken::from_backend(first).is_some(), "{first} is no token");
        }
        if let Ok(StoredItem::Ours(_, item) | StoredItem::Foreign(item)) = seen(Some(reply), "fuzz")
        {
            let _ = contended(&item);
        }
    }
}

fn replies<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> (Vec<Reply>, bool) {
    let (mut parser, mut replies) = (ReplyParser::default(), Vec::new());
    for piece in pieces {
        parser.buffer().extend_from_slice(piece);
        loop {
            match parser.next() {
                Ok(Some(Reply::Value(Item { value: Some(value), .. })))
                    if value.len() > Value::MAX_LEN =>
                {
                    panic!("a value of {} bytes is kept", value.len());
                }
                Ok(Some(reply)) => replies.push(reply),
                Ok(None) => break,
                Err(_) => return (replies, false),
            }
        }
        assert!(parser.buffer().len() <= MAX_LEFT, "{} bytes are left", parser.buffer().len());
    }
    (replies, true)
}

/// Parses the value of a lock. The same value results from its text.
pub fn value(data: &[u8]) {
    let Some(value) = Value::parse(data) else { return };
    let name = LockName::new("n").expect("a name");
    let mut claim = Claim::new(name, value.owner, Duration::from_secs(1));
    claim.label.clone_from(&value.label);
    let text = Value::format(&claim, value.attempt, value.number);
    assert!(text.len() <= Value::MAX_LEN, "{} bytes", text.len());
    assert_eq!(Value::parse(text.as_bytes()), Some(value));
}

/// Returns the key of a lock, which is one word of a request.
///
/// # Errors
///
/// The prefix is refused.
pub fn key(prefix: &str, name: &LockName) -> Result<String, Error> {
    let keys = Keys::with_prefix(prefix)?;
    let key = keys.of(name);
    assert_ne!(key, keys.counter());
    assert_eq!(Request::new().get(&key).text.split_whitespace().nth(1), Some(&*key));
    assert!(key.len() <= 250, "{} bytes", key.len());
    Ok(key)
}
