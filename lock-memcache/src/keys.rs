//! From lock names to keys, and from keys to servers.

use lock_core::{Encoding, Error, LockName};
use sha2::{Digest, Sha256};

/// Characters that are not escaped: all printable ones, so that a lock with a plain name has the
/// key that other libraries give it. Blanks, control characters and others would end the key, or
/// the command.
const PUNCTUATION: &str = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~";
/// Longest key. Servers take 250 bytes, and parse the rest of longer keys as other commands.
const MAX_KEY: usize = 200;

/// The keys of locks under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    encoding: Encoding,
    prefix: String,
}

impl Keys {
    pub(crate) fn with_prefix(prefix: &str) -> Result<Self, Error> {
        let encoding = Encoding::new(PUNCTUATION, MAX_KEY).with_prefix(prefix)?;
        Ok(Self { encoding, prefix: prefix.to_owned() })
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the key of the lock `name`.
    pub(crate) fn of(&self, name: &LockName) -> String {
        self.encoding.encode(name)
    }

    /// Returns the key of the counter of tokens. No lock has it, since no escape begins like this.
    pub(crate) fn counter(&self) -> String {
        format!("{}%fence", self.prefix)
    }
}

/// Returns the index of the server of `key`: the one with the highest digest together with it. So
/// each client finds the same, in any order of servers, and a new server takes a fair share of the
/// names from each of the others.
pub(crate) fn server_of(servers: &[String], key: &str) -> usize {
    if servers.len() == 1 {
        return 0;
    }
    let weight = |at: &usize| -> [u8; 32] {
        Sha256::new()
            .chain_update(&servers[*at])
            .chain_update(" ")
            .chain_update(key)
            .finalize()
            .into()
    };
    (0..servers.len()).max_by_key(weight).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn keys(prefix: &str) -> Keys {
        Keys::with_prefix(prefix).unwrap()
    }

    #[test]
    fn the_keys_are_pinned() {
        // A change splits a fleet into two lock spaces.
        for (prefix, name, key) in [
            ("", "orders/42", "orders/42"),
            ("", "a:b*[c]{d}", "a:b*[c]{d}"),
            ("", "é 1%\r\n", "%C3%A9%201%25%0D%0A"),
            ("app:", "a:b", "app:a%3Ab"),
        ] {
            assert_eq!(keys(prefix).of(&LockName::new(name).unwrap()), key);
        }
        assert_eq!(keys("app:").counter(), "app:%fence");
        assert_eq!(keys("").of(&LockName::new("x".repeat(500)).unwrap()).len(), MAX_KEY);
    }

    #[test]
    fn the_servers_are_pinned() {
        let of = |servers: &[&str], key: &str| {
            let servers: Vec<String> = servers.iter().map(|&s| s.to_owned()).collect();
            servers[server_of(&servers, key)].clone()
        };
        // By SHA-256 of "<server> <key>".
        for (key, server) in PINNED {
            for order in [["a:1", "b:2", "c:3"], ["c:3", "a:1", "b:2"]] {
                assert_eq!(of(&order, key), server, "{key}");
            }
        }
        let names: Vec<String> = (0..3000).map(|i| format!("lock-{i}")).collect();
        let moved = names.iter().filter(|name| {
            let (before, after) =
                (of(&["a:1", "b:2", "c:3"], name), of(&["a:1", "b:2", "c:3", "d:4"], name));
            assert!(before == after || after == "d:4", "{name} moved between old servers");
            before != after
        });
        let moved = moved.count();
        assert!((600..900).contains(&moved), "{moved} of 3000 names moved to a fourth server");
    }

    const PINNED: [(&str, &str); 4] =
        [("orders/42", "a:1"), ("orders/43", "b:2"), ("x", "c:3"), ("%C3%A9", "a:1")];

    proptest::proptest! {
        #[test]
        fn a_key_is_one_word(name in ".{1,400}", other in ".{1,400}") {
            let [key, other_key] =
                [&name, &other].map(|name| keys("p/").of(&LockName::new(name).unwrap()));
            proptest::prop_assert!(key.bytes().all(|byte| byte.is_ascii_graphic()));
            proptest::prop_assert!(key.len() <= MAX_KEY);
            proptest::prop_assert_eq!(name == other, key == other_key);
        }
    }

    #[test]
    fn the_fence_is_no_lock() {
        let names = ["%fence", "fence", "%", "p:%fence"].map(|name| LockName::new(name).unwrap());
        let of_locks: HashSet<String> =
            names.iter().flat_map(|name| [keys("").of(name), keys("p:").of(name)]).collect();
        assert!(
            !of_locks.contains(&keys("").counter()) && !of_locks.contains(&keys("p:").counter())
        );
    }
}
