//! The keys, paths and files of names.

use lock_core::{Encoding, LockName};
use lock_redis::Names;

/// A byte of no name, which ends one.
const END: u8 = 0xff;

/// Encodes up to two names with a prefix, in this order. Two names never have the same key, and a
/// key that can be decoded gives its name back.
pub(crate) fn name(data: &[u8]) {
    let mut texts = data.split(|byte| *byte == END).map(std::str::from_utf8);
    let Some(Ok(one)) = texts.next().map(|text| text.map(LockName::new)) else { return };
    let Ok(one) = one else { return };
    let other = match texts.next() {
        Some(Ok(text)) => LockName::new(text).unwrap_or_else(|_| one.clone()),
        _ => one.clone(),
    };
    let prefix = texts.next().and_then(Result::ok).unwrap_or_default();
    distinct([&one, &other], |name| encoded(prefix, name));
    distinct([&one, &other], |name| lock_memcache::fuzzing::key(prefix, name).ok());
    distinct([&one, &other], |name| lock_zookeeper::fuzzing::path(prefix, name).ok());
    distinct([&one, &other], |name| Some(file_name(name)));
    for names in [Names::Encoded, Names::Exact] {
        lock_redis::fuzzing::keys(names, prefix, [&one, &other]);
    }
    // A prefix ends in one way only: another prefix and name never make the same key.
    if let Some(key) = encoded(prefix, &one)
        && let Some(same) = encoded("", &one)
    {
        assert_eq!(key == same, prefix.is_empty(), "{key}");
    }
}

fn distinct(names: [&LockName; 2], key: impl Fn(&LockName) -> Option<String>) {
    if let [Some(one), Some(other)] = names.map(key) {
        assert_eq!(one == other, names[0] == names[1], "{names:?}: {one} and {other}");
    }
}

fn encoded(prefix: &str, name: &LockName) -> Option<String> {
    let encoding = Encoding::new("-_.:/", 200).with_prefix(prefix).ok()?;
    let key = encoding.encode(name);
    assert!(key.len() <= 200 && key.starts_with(prefix), "{key}");
    match encoding.decode(&key) {
        Some(decoded) => assert_eq!(decoded, *name),
        None => assert!(key.contains("%~"), "{key} is not decoded"),
    }
    if let Some(read) = encoding.decode(name.as_str()) {
        assert_eq!(encoding.encode(&read), name.as_str());
    }
    Some(key)
}

fn file_name(name: &LockName) -> String {
    let file = lock_file::fuzzing::file_name(name);
    assert!(file.len() <= 200 && file.ends_with(".lock") && !file.starts_with('.'), "{file}");
    assert!(!file.contains(['/', '\0']), "{file}");
    file
}
