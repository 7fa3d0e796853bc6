//! Feeds the parsers of this workspace with bytes that other programs may have written.
//!
//! A target takes any bytes and panics on a broken property. Examples are a parser that panics, a
//! value that its own text does not give back, a key of two locks, and a password in an error.
//! `tests/corpus.rs` replays the files of `corpus/TARGET` with seeded mutations of them, and
//! `guided` runs the same targets under libFuzzer.

mod names;
mod urls;

use std::str::from_utf8;

/// The name of a target, and its function.
pub type Target = (&'static str, fn(&[u8]));

/// All targets.
pub const TARGETS: [Target; 6] = [
    ("file_record", file_record),
    ("memcached_wire", memcached_wire),
    ("name", names::name),
    ("redis_value", redis_value),
    ("url", urls::url),
    ("zookeeper_node", zookeeper_node),
];

/// Returns the function of a target.
#[must_use]
pub fn target(name: &str) -> Option<fn(&[u8])> {
    TARGETS.into_iter().find_map(|(known, target)| (known == name).then_some(target))
}

/// Parses the record and the slots of a lock file.
fn file_record(data: &[u8]) {
    lock_file::fuzzing::record(data);
    lock_file::fuzzing::slot(data);
}

/// Parses the replies of memcached, and the value of a lock.
fn memcached_wire(data: &[u8]) {
    lock_memcache::fuzzing::wire(data);
    lock_memcache::fuzzing::value(data);
}

/// Parses the replies and pushes of Redis, messages of other clients, and the value of a lock.
fn redis_value(data: &[u8]) {
    lock_redis::fuzzing::reply(data);
    lock_redis::fuzzing::value(data);
    if let Ok(text) = from_utf8(data) {
        lock_redis::fuzzing::messages(text);
    }
}

/// Parses the data of a node, and the names of nodes, one on each line.
fn zookeeper_node(data: &[u8]) {
    lock_zookeeper::fuzzing::data(data);
    if let Ok(text) = from_utf8(data) {
        let nodes: Vec<String> = text.lines().map(str::to_owned).collect();
        lock_zookeeper::fuzzing::queue(&nodes);
        nodes.iter().for_each(|node| lock_zookeeper::fuzzing::element(node));
    }
}
