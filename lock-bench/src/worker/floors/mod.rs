//! Floors: the same work, written by hand without any library of ours, and without what makes a lock a
//! good one. They wait for nobody, handle no errors and show what is reachable.

mod file_lock;
mod mux_redis;
mod raw_redis;
mod tokio_mutex;

pub(crate) use file_lock::FileLock;
pub(crate) use mux_redis::MuxRedis;
pub(crate) use raw_redis::RawRedis;
pub(crate) use tokio_mutex::TokioMutex;

/// Deletes a key if it has this value.
const COMPARE_AND_DELETE: &str =
    "return redis.call('GET', KEYS[1]) == ARGV[1] and redis.call('DEL', KEYS[1])";

/// `host:port` of `redis://host:port`.
fn address(url: &str) -> Result<&str, String> {
    url.strip_prefix("redis://")
        .ok_or_else(|| "this floor speaks to redis://host:port and nothing else".to_owned())
}

/// A command as Redis reads it.
fn command(words: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", words.len()).into_bytes();
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).into_bytes());
    }
    bytes
}

fn acquire_command(key: &str, value: &str, ttl: std::time::Duration) -> Vec<u8> {
    command(&["SET", key, value, "NX", "PX", &ttl.as_millis().to_string()])
}

/// 128 bits in hex, as much as an owner id that nobody guesses needs.
fn random_value() -> String {
    format!("{:032x}", fastrand::u128(..))
}
