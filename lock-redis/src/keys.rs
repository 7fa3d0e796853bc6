//! From lock names to keys.
//!
//! A lock has up to seven keys: its own, its token key, two for the queue, one for waiters that
//! race, one for the share of clients that poll, and a tombstone for each released owner whose
//! attempt may still arrive. All of them hash to one cluster slot. No key of one lock is a key of
//! another: a companion has a `%` that is followed by something other than upper-case hex digits or
//! `~`, and no encoded name has that. Exact names could have it, so those that end like a companion
//! are refused.

use lock_core::backend::{Fault, FaultKind};
use lock_core::{Encoding, Error, ErrorKind, LockName, OwnerId};

use crate::slots::{hash_tag, slot_of, tag_in};

/// Everything printable stays as it is, so that a lock with a plain name has the key that other
/// libraries give it.
const PUNCTUATION: &str = "!\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~";
const WITHOUT_BRACES: &str = "!\"#$&'()*+,-./:;<=>?@[\\]^_`|~";
const MAX_KEY: usize = 200;

/// How the name of a lock becomes its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Names {
    /// Each name has a key: bytes other than printable ASCII are escaped, and a long key ends in a
    /// digest. A name with such bytes is another key for a client of another library.
    #[default]
    Encoded,
    /// The key is the prefix and the name, byte for byte, as in other libraries. Some names cannot
    /// be carried and are refused as [`ErrorKind::Invalid`]; see
    /// [`Config::names`](crate::Config::names).
    Exact,
}

/// The keys of locks under one prefix.
#[derive(Clone, Debug)]
pub(crate) struct Keys {
    /// `None` for exact names.
    encodings: Option<Encodings>,
    prefix: String,
    /// The prefix of channels, which stand in lists of words.
    channels: String,
}

#[derive(Clone, Debug)]
struct Encodings {
    plain: Encoding,
    /// For names whose braces would put their companions into another slot. It yields `%7B` or
    /// `%7D` where the plain one never does, so the two never give one key to two names.
    without_braces: Encoding,
}

/// The keys of one lock. Each verb makes them, so all are in one text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LockKeys {
    text: String,
    /// The end of each key: the lock's, those of its [`COMPANIONS`], and the common beginning of
    /// companions.
    ends: [usize; 6],
}

const COMPANIONS: [&str; 5] = ["token", "queue", "procs", "wake", ""];
/// The companion that exists while a release does not leave the lock free for clients that poll.
const SHARE: &str = "share";
/// The part of a tombstone's key before its owner.
const TOMBSTONE: &str = "gone:";
/// The part after the prefix of keys for trials of rights.
const TRIAL: &str = "%~rights";

impl Keys {
    pub(crate) fn new(names: Names, prefix: &str) -> Result<Self, Error> {
        match names {
            Names::Encoded => Self::encoded(prefix),
            Names::Exact => Ok(Self::exact(prefix)),
        }
    }

    fn exact(prefix: &str) -> Self {
        let encoding = Encoding::new(WITHOUT_BRACES, MAX_KEY);
        let channels =
            LockName::new(prefix).map_or_else(|_| String::new(), |it| encoding.encode(&it));
        Self { encodings: None, prefix: prefix.to_owned(), channels }
    }

    fn encoded(prefix: &str) -> Result<Self, Error> {
        let plain = Encoding::new(PUNCTUATION, MAX_KEY).with_prefix(prefix)?;
        let mut without_braces = Encoding::new(WITHOUT_BRACES, MAX_KEY);
        if !prefix.contains(['{', '}']) {
            without_braces = without_braces.with_prefix(prefix)?;
        } else if hash_tag(prefix).is_none() {
            // With a hash tag in its prefix, no name ever needs the other encoding.
            let why =
                format!("the braces of the prefix {prefix:?} must make up a hash tag: {{app}}:");
            return Err(Error::new(ErrorKind::Invalid, why));
        }
        let encodings = Some(Encodings { plain, without_braces });
        Ok(Self { encodings, prefix: prefix.to_owned(), channels: prefix.to_owned() })
    }

    pub(crate) fn names(&self) -> Names {
        if self.encodings.is_some() { Names::Encoded } else { Names::Exact }
    }

    pub(crate) fn prefix(&self) -> &str {
        &self.prefix
    }

    /// Returns the keys of the lock `name`.
    ///
    /// # Errors
    ///
    /// `Invalid` if names are exact and this one cannot be carried.
    pub(crate) fn of(&self, name: &LockName) -> Result<LockKeys, Fault> {
        let Some(Encodings { plain, without_braces }) = &self.encodings else {
            return self.exactly(name);
        };
        let keys =
            LockKeys::of(plain.encode(name)).or_else(|| LockKeys::of(without_braces.encode(name)));
        Ok(keys.expect("a key without braces has companions"))
    }

    fn exactly(&self, name: &LockName) -> Result<LockKeys, Fault> {
        let key = [&self.prefix, name.as_str()].concat();
        let why = if is_companion(&key) || name.as_str().starts_with(TRIAL) {
            "this library uses keys of that form beside its locks"
        } else if let Some(keys) = LockKeys::of(key) {
            return Ok(keys);
        } else {
            "its braces leave no key for the fencing token in the same cluster slot; \
             a hash tag needs {, some text and }, in this order"
        };
        let said = format!("names=exact cannot carry the name {name}: {why}");
        Err(Fault::not_applied(FaultKind::Invalid, said))
    }

    /// Returns the name of the lock with this key. `None` for a key of no lock, and for one that
    /// holds a digest, which cannot be decoded.
    pub(crate) fn name_of(&self, key: &str) -> Option<LockName> {
        let is_key_of = |name: &LockName| self.of(name).is_ok_and(|keys| keys.lock() == key);
        match &self.encodings {
            Some(Encodings { plain, without_braces }) => [plain, without_braces]
                .into_iter()
                .filter_map(|encoding| encoding.decode(key))
                .find(is_key_of),
            None => LockName::new(key.strip_prefix(&self.prefix)?).ok().filter(is_key_of),
        }
    }

    /// Returns true if the key may be that of a lock whose name is too long to be decoded.
    pub(crate) fn has_digest(&self, key: &str) -> bool {
        let digest = key.rsplit_once("%~").map(|(_, digest)| digest.as_bytes());
        self.encodings.is_some()
            && digest.is_some_and(|it| it.len() == 64 && it.iter().all(u8::is_ascii_hexdigit))
    }

    /// Returns a glob pattern that matches the keys of all locks with names that start with
    /// `prefix`, and few others.
    pub(crate) fn pattern(&self, prefix: &str) -> String {
        let separator = self.prefix.bytes().last();
        let is_plain = |byte: u8| {
            let is_kept = byte.is_ascii_alphanumeric() || WITHOUT_BRACES.as_bytes().contains(&byte);
            is_kept && Some(byte) != separator
        };
        // Up to the first character that either encoding may escape.
        let end = match &self.encodings {
            Some(_) => prefix.bytes().position(|byte| !is_plain(byte)).unwrap_or(prefix.len()),
            None => prefix.len(),
        };
        let mut pattern = String::new();
        for char in self.prefix.chars().chain(prefix[..end].chars()) {
            if "*?[]\\".contains(char) {
                pattern.push('\\');
            }
            pattern.push(char);
        }
        pattern + "*"
    }

    /// Returns the keys of the lock under the key `lock`, or `None` if no lock has that key.
    pub(crate) fn parse(lock: &str) -> Option<LockKeys> {
        LockKeys::of(lock.to_owned())
    }

    /// Returns the channel on which the process `id` receives grants. It equals no key, and no
    /// channel of another prefix.
    pub(crate) fn channel(&self, id: &str) -> String {
        format!("{}%~to:{id}", self.channels)
    }

    /// Returns the channel in a cluster, for the locks in `slot`. It is in that slot itself, so the
    /// server of the locks serves it.
    pub(crate) fn channel_in(&self, slot: u16, id: &str) -> String {
        match hash_tag(&self.channels) {
            // Then there is no other slot.
            Some(_) => self.channel(id),
            None => format!("{}{{{}}}%~to:{id}", self.channels, tag_in(slot)),
        }
    }

    /// Returns keys of no lock, for a trial of this user's rights. Each number gives other keys,
    /// which a cluster has on other members unless the prefix has a hash tag.
    pub(crate) fn for_trial(&self, number: usize) -> LockKeys {
        let number = if number == 0 { String::new() } else { number.to_string() };
        let trial = |prefix| LockKeys::of(format!("{prefix}{TRIAL}{number}"));
        trial(&self.prefix).or_else(|| trial(&self.channels)).expect("channels have no odd braces")
    }
}

impl LockKeys {
    /// Returns the keys, or `None` if the braces of `lock` allow no companion key in its slot.
    fn of(mut text: String) -> Option<Self> {
        // Different joints, or the locks `a` and `{a}` would share their companions.
        let (before, after) = match hash_tag(&text) {
            Some(_) => ("", "%:"),
            None if !text.contains('}') => ("{", "}%"),
            None => return None,
        };
        let lock = text.len();
        let mut ends = [lock; 6];
        text.reserve(COMPANIONS.iter().map(|what| lock + 3 + what.len()).sum());
        for (end, what) in ends.iter_mut().skip(1).zip(COMPANIONS) {
            text.push_str(before);
            text.extend_from_within(..lock);
            text.push_str(after);
            text.push_str(what);
            *end = text.len();
        }
        Some(Self { text, ends })
    }

    pub(crate) fn lock(&self) -> &str {
        self.part(0)
    }

    /// Returns the token key.
    pub(crate) fn token(&self) -> &str {
        self.part(1)
    }

    /// Returns the key of the queue.
    pub(crate) fn queue(&self) -> &str {
        self.part(2)
    }

    /// Returns the release key. It exists while a waiter without a queue entry waits, and a release
    /// deletes it.
    pub(crate) fn release_key(&self) -> &str {
        self.part(4)
    }

    /// Returns the keys of the lock, the fencing token, the queue and its processes, and the
    /// release key, in the order of the scripts.
    pub(crate) fn all(&self) -> [&str; 5] {
        [self.lock(), self.part(1), self.queue(), self.part(3), self.release_key()]
    }

    fn part(&self, at: usize) -> &str {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before]);
        &self.text[start..self.ends[at]]
    }

    /// Returns the cluster slot of all keys.
    pub(crate) fn slot(&self) -> u16 {
        slot_of(self.lock())
    }

    /// Returns the key that changes when the lock becomes free. A holder of this library deletes
    /// the release key then, and not with each renewal. Of a foreign holder only the key of the
    /// lock is known.
    pub(crate) fn watched_key(&self, holder_is_ours: bool) -> &str {
        if holder_is_ours { self.release_key() } else { self.lock() }
    }

    /// Returns the share key: see `release.lua`.
    pub(crate) fn share(&self) -> String {
        [self.part(5), SHARE].concat()
    }

    /// Returns the key that records the release by `owner`.
    pub(crate) fn tombstone(&self, owner: &OwnerId) -> String {
        [self.part(5), TOMBSTONE, &owner.expose()].concat()
    }
}

/// Returns true if `key` ends like a companion of some lock.
pub(crate) fn is_companion(key: &str) -> bool {
    let plain =
        key.rsplit_once('%').filter(|(lock, _)| lock.starts_with('{') && lock.ends_with('}'));
    let tagged = key.rsplit_once("%:").filter(|(lock, _)| hash_tag(lock).is_some());
    [plain, tagged].into_iter().flatten().any(|(_, what)| {
        let is_tombstone =
            what.strip_prefix(TOMBSTONE).is_some_and(|owner| owner.parse::<OwnerId>().is_ok());
        is_tombstone || what == SHARE || (!what.is_empty() && COMPANIONS.contains(&what))
    })
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn with_prefix(prefix: &str) -> Result<Keys, Error> {
        Keys::new(Names::Encoded, prefix)
    }

    fn keys() -> Keys {
        with_prefix("").unwrap()
    }

    fn of(name: &str) -> LockKeys {
        keys().of(&LockName::new(name).unwrap()).unwrap()
    }

    fn exactly(prefix: &str, name: &str) -> Result<LockKeys, Fault> {
        Keys::new(Names::Exact, prefix).unwrap().of(&LockName::new(name).unwrap())
    }

    #[test]
    fn exact_names_are_kept_byte_by_byte() {
        let long = "x".repeat(500);
        for (prefix, name) in [
            ("", "nightly backup"),
            ("laravel_cache_", "é 1%"),
            ("a b", "%41"),
            ("{app} ", "}{"),
            ("", "{user}:1"),
            ("", "a{b"),
            ("", &long),
            ("", "a%token"),
        ] {
            let keys = exactly(prefix, name).unwrap();
            assert_eq!(keys.lock(), format!("{prefix}{name}"));
            for key in keys.all() {
                assert_eq!(slot_of(key), keys.slot(), "{key}");
            }
        }
    }

    #[test]
    fn exact_names_without_companion_keys_are_refused() {
        let owner = OwnerId::mint();
        for name in ["a}b", "{}a", "}", "a{}{b}", "%~rights", "%~rights3"] {
            assert!(exactly("", name).is_err(), "{name}");
        }
        assert!(exactly("a}", "b").is_err());
        for lock in ["a", "a b", "{a}b", "a{b"] {
            let keys = exactly("p ", lock).unwrap();
            let tombstone = keys.tombstone(&owner);
            let share = keys.share();
            let others = [tombstone.as_str(), share.as_str()];
            for key in keys.all().into_iter().skip(1).chain(others) {
                assert!(exactly("", key).is_err(), "{key}");
                let (start, end) = key.split_at(1);
                assert!(exactly(start, end).is_err(), "{key}");
            }
        }
    }

    #[test]
    fn channels_of_exact_names_are_words_in_the_slot_of_their_locks() {
        for prefix in ["", "app:", "{a b}", "a } b"] {
            let keys = Keys::new(Names::Exact, prefix).unwrap();
            for slot in [0, 7, 16383] {
                let channel = keys.channel_in(slot, "1");
                assert!(!channel.contains(' ') && channel.ends_with("%~to:1"), "{channel}");
                assert_eq!(slot_of(&channel), slot, "{channel}");
            }
        }
        assert_eq!(Keys::new(Names::Exact, "app:").unwrap().channel("1"), "app:%~to:1");
    }

    /// Returns the part of the key that a cluster hashes.
    fn hashed(key: &str) -> &str {
        hash_tag(key).unwrap_or(key)
    }

    #[test]
    fn the_keys_are_pinned() {
        // A change splits a fleet into two lock spaces.
        for (name, lock, token_key) in [
            ("orders/42", "orders/42", "{orders/42}%token"),
            ("a:b*[c]", "a:b*[c]", "{a:b*[c]}%token"),
            ("{user}:1", "{user}:1", "{user}:1%:token"),
            ("{a}", "{a}", "{a}%:token"),
            ("a{b", "a{b", "{a{b}%token"),
            ("a}b", "a%7Db", "{a%7Db}%token"),
            ("{}a", "%7B%7Da", "{%7B%7Da}%token"),
            ("a{}{b}", "a%7B%7D%7Bb%7D", "{a%7B%7D%7Bb%7D}%token"),
            ("}{a}", "}{a}", "}{a}%:token"),
            ("é 1%", "%C3%A9%201%25", "{%C3%A9%201%25}%token"),
        ] {
            let keys = of(name);
            assert_eq!(keys.all()[..2], [lock, token_key], "{name}");
        }
        let owner = "00112233445566778899aabbccddeeff".parse().unwrap();
        assert_eq!(of("a").tombstone(&owner), "{a}%gone:00112233445566778899aabbccddeeff");
        assert_eq!(of("a").all()[2..], ["{a}%queue", "{a}%procs", "{a}%wake"]);
        assert_eq!(keys().channel("1"), "%~to:1");
        assert_eq!(with_prefix("app:").unwrap().channel("1"), "app:%~to:1");
        assert_eq!(of(&"x".repeat(500)).lock().len(), MAX_KEY);
    }

    #[test]
    fn the_key_of_a_lock_tells_its_name_and_no_other_key_does() {
        let owner = OwnerId::mint();
        for names in [Names::Encoded, Names::Exact] {
            for prefix in ["", "p:", "{p}:"] {
                let keys = Keys::new(names, prefix).unwrap();
                let all = small_names().into_iter().chain(["é 1", "a/b", "a:b"].map(String::from));
                for name in all.map(|name| LockName::new(name).unwrap()) {
                    let Ok(of) = keys.of(&name) else { continue };
                    assert_eq!(keys.name_of(of.lock()), Some(name), "{of:?}");
                    let tombstone = of.tombstone(&owner);
                    for key in of.all().into_iter().skip(1).chain([tombstone.as_str()]) {
                        assert_eq!(keys.name_of(key), None, "{key}");
                    }
                }
            }
        }
        let long = of(&"x".repeat(500));
        assert_eq!(keys().name_of(long.lock()), None);
        assert!(keys().has_digest(long.lock()) && !keys().has_digest(long.queue()));
    }

    #[test]
    fn a_pattern_matches_the_prefix_as_far_as_it_is_not_escaped() {
        let pattern = |names, prefix, of: &str| Keys::new(names, prefix).unwrap().pattern(of);
        for (prefix, of, expected) in [
            ("", "", "*"),
            ("", "jobs/", "jobs/*"),
            ("app:", "jobs/", "app:jobs/*"),
            ("app:", "jobs:a", "app:jobs*"),
            ("", "a*?[b]\\", "a\\*\\?\\[b\\]\\\\*"),
            ("", "a{b", "a*"),
            ("{app}:", "é", "{app}:*"),
        ] {
            assert_eq!(pattern(Names::Encoded, prefix, of), expected);
        }
        assert_eq!(pattern(Names::Exact, "p*", "é {"), "p\\*é {*");
    }

    #[test]
    fn a_channel_is_in_the_slot_of_its_locks() {
        for prefix in ["", "app:", "{app}:"] {
            let keys = with_prefix(prefix).unwrap();
            for name in ["a", "{a}", "a}b", "orders/42"] {
                let slot = keys.of(&LockName::new(name).unwrap()).unwrap().slot();
                let channel = keys.channel_in(slot, "1");
                assert_eq!(slot_of(&channel), slot, "{channel}");
                assert!(channel.starts_with(prefix) && channel.ends_with("%~to:1"), "{channel}");
            }
        }
    }

    #[test]
    fn prefixes_with_braces_must_have_a_tag() {
        for prefix in ["{:", "}:", "{}:", "a{}b:", "}{:"] {
            assert_eq!(with_prefix(prefix).unwrap_err().kind(), ErrorKind::Invalid, "{prefix}");
        }
        let keys = with_prefix("{app}:").unwrap();
        let keys = keys.of(&LockName::new("}{}").unwrap()).unwrap();
        assert_eq!(keys.all()[..2], ["{app}:}{}", "{app}:}{}%:token"]);
    }

    /// Returns every name over a small alphabet that has all difficult characters.
    fn small_names() -> Vec<String> {
        let mut names = vec![String::new()];
        for _ in 0..5 {
            let longer = names
                .iter()
                .flat_map(|n| ["{", "}", "%", "7", "D", "a"].map(|c| format!("{n}{c}")));
            names = names.iter().cloned().chain(longer.collect::<Vec<_>>()).collect();
            names.sort_unstable();
            names.dedup();
        }
        names.retain(|name| !name.is_empty());
        names
    }

    #[test]
    fn no_two_locks_share_a_key_and_all_keys_of_one_share_a_slot() {
        let owner = OwnerId::mint();
        for prefix in ["", "p:", "{p}:"] {
            let keys = with_prefix(prefix).unwrap();
            let mut seen = HashSet::new();
            for name in small_names() {
                let keys = keys.of(&LockName::new(&name).unwrap()).unwrap();
                assert!(keys.lock().starts_with(prefix) && keys.lock().len() <= MAX_KEY);
                for key in keys.all().into_iter().chain([keys.tombstone(&owner).as_str()]) {
                    assert_eq!(hashed(keys.lock()), hashed(key), "{name}");
                    assert!(seen.insert(key.to_owned()), "{name} shares {key}");
                }
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn long_names_keep_apart_too(a in "[{}%a7D]{190,260}", b in "[{}%a7D]{190,260}") {
            let (ka, kb) = (of(&a), of(&b));
            proptest::prop_assert_eq!(ka.lock() == kb.lock(), a == b);
            proptest::prop_assert_eq!(hashed(ka.lock()), hashed(ka.queue()));
            proptest::prop_assert!(ka.lock().len() <= MAX_KEY);
        }
    }
}
