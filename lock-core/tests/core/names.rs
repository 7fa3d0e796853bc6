//! The encoding of names: injective, bounded, readable backwards, and the same for ever.

use std::collections::HashMap;

use lock_core::{ENCODING_VERSION, Encoding, LockName};
use proptest::prelude::*;

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn encodings() -> Vec<Encoding> {
    vec![
        Encoding::new("-_.:/", 200),
        Encoding::new("-_.", 100).escape_leading_dot(),
        Encoding::new("-_.:/", 250).with_prefix("app:").unwrap(),
        Encoding::new("-_.:/", 200).with_prefix("a/b/").unwrap(),
    ]
}

proptest! {
    #[test]
    fn a_name_without_digest_decodes(text in "\\PC{1,60}|[a%~./:]{1,60}|[\\x00-\\x20]{1,20}") {
        for encoding in encodings() {
            let key = encoding.encode(&name(&text));
            prop_assert!(key.is_ascii());
            match encoding.decode(&key) {
                Some(decoded) => prop_assert_eq!(decoded.as_str(), &text),
                None => prop_assert!(key.contains("%~"), "{:?} is neither read nor digested", key),
            }
        }
    }

    #[test]
    fn foreign_keys_are_not_decoded(key in "[a-c%0-9A-F~.:/ \\n]{0,30}") {
        for encoding in encodings() {
            if let Some(name) = encoding.decode(&key) {
                prop_assert_eq!(encoding.encode(&name), key.clone());
            }
        }
    }

    #[test]
    fn keys_are_bounded(text in "\\PC{1,400}") {
        prop_assert!(Encoding::new("-_.:/", 200).encode(&name(&text)).len() <= 200);
        prop_assert!(Encoding::new("", 100).encode(&name(&text)).len() <= 100);
    }
}

/// Names that are alike: short ones over an alphabet of marks, long ones that differ by a byte,
/// names that look like encoded ones.
fn alike() -> Vec<String> {
    let marks = ["a", "A", "%", "~", "2", "5", "F", ".", "/", ":", " ", "é"];
    let mut names: Vec<String> = vec![String::new()];
    let mut shortest = 0;
    for _ in 0..4 {
        let longer: Vec<String> = names[shortest..]
            .iter()
            .flat_map(|stem| marks.iter().map(move |mark| format!("{stem}{mark}")))
            .collect();
        shortest = names.len();
        names.extend(longer);
    }
    names.remove(0);
    for length in (90..320).chain([1000, 10_000, 65_536]) {
        let plain = "x".repeat(length);
        names.push(format!("y{}", &plain[1..]));
        names.push(format!("{}y", &plain[1..]));
        names.push(format!("{}%", &plain[1..]));
        names.push(plain);
    }
    for encoding in encodings() {
        let keys: Vec<String> =
            names.iter().rev().take(900).map(|n| encoding.encode(&name(n))).collect();
        names.extend(keys);
    }
    names.sort();
    names.dedup();
    names
}

#[test]
fn different_names_have_different_keys() {
    let names = alike();
    // Every pair of them is compared, by way of the map.
    assert!(names.len() * (names.len() - 1) / 2 > 100_000_000, "only {} names", names.len());
    for encoding in encodings() {
        let mut keys = HashMap::new();
        for text in &names {
            if let Some(other) = keys.insert(encoding.encode(&name(text)), text) {
                panic!("{} and {} have the same key", name(text), name(other));
            }
        }
    }
}

#[test]
fn the_encoding_never_changes() {
    assert_eq!(ENCODING_VERSION, 1);
    let golden = include_str!("encoding.golden");
    let mut seen = 0;
    for line in golden.lines().filter(|line| !line.starts_with('#')) {
        let (json, key) = line.split_once('\t').expect("a name, a tab, a key");
        let text: String = serde_json::from_str(json).unwrap();
        assert_eq!(encodings()[0].encode(&name(&text)), key, "{json}");
        seen += 1;
    }
    assert!(seen >= 10);
}

#[test]
fn a_prefix_leaves_100_bytes_for_names() {
    let with_prefix = |bytes: usize| {
        Encoding::new("-_.:/", 250).with_prefix(&format!("{}:", "a".repeat(bytes - 1)))
    };
    assert!(with_prefix(150).is_ok());
    let error = with_prefix(151).unwrap_err().to_string();
    assert!(error.contains("151 bytes long; at most 150 fit"), "{error}");
}

#[test]
fn a_prefix_leaves_the_rest_of_the_room_to_names() {
    let encoding = Encoding::new("-_.:/", 250).with_prefix("app:").unwrap();
    let key = |len: usize| encoding.encode(&name(&"a".repeat(len)));
    assert_eq!(key(246), format!("app:{}", "a".repeat(246)));
    // As much of it as there is room for, and its digest.
    for len in [247, 254, 1000] {
        let (key, readable) = (key(len), format!("app:{}%~", "a".repeat(180)));
        assert!(key.len() == 250 && key.starts_with(&readable), "{len}: {key}");
    }
}
