//! The slots of a cluster: where a key is, and names that are in a slot.

use std::sync::LazyLock;

/// How many there are.
pub(crate) const SLOTS: u16 = 1 << 14;

/// Returns the slot of a key, or of its hash tag if it has one.
pub(crate) fn slot_of(key: &str) -> u16 {
    crc16(hash_tag(key).unwrap_or(key).as_bytes()) % SLOTS
}

/// Returns a number whose digits are in `slot`, the same number every time.
pub(crate) fn tag_in(slot: u16) -> u32 {
    TAGS.get(usize::from(slot)).copied().unwrap_or_default()
}

/// Found by trying: about 200 000 numbers, in milliseconds, once.
static TAGS: LazyLock<Box<[u32]>> = LazyLock::new(|| {
    let mut tags = vec![None; usize::from(SLOTS)];
    let mut missing = tags.len();
    for number in 0.. {
        let slot = crc16(number.to_string().as_bytes()) % SLOTS;
        if let Some(tag @ None) = tags.get_mut(usize::from(slot)) {
            *tag = Some(number);
            missing -= 1;
        }
        if missing == 0 {
            break;
        }
    }
    tags.into_iter().flatten().collect()
});

/// Computes CRC-16/XMODEM: the polynomial x¹⁶ + x¹² + x⁵ + 1, most significant bit first, beginning
/// with 0.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc: u16, byte| {
        let [high, _] = crc.to_be_bytes();
        crc << 8 ^ TABLE[usize::from(high ^ byte)]
    })
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut crc = (byte as u16) << 8;
        let mut bit = 0;
        while bit < 8 {
            crc = crc << 1 ^ if crc & 0x8000 == 0 { 0 } else { 0x1021 };
            bit += 1;
        }
        table[byte] = crc;
        byte += 1;
    }
    table
};

/// Returns the part that a cluster hashes instead of the whole key.
pub(crate) fn hash_tag(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    let (tag, _) = rest.split_once('}')?;
    (!tag.is_empty()).then_some(tag)
}

#[cfg(test)]
mod tests {
    use lock_core::{LockName, OwnerId};
    use proptest::prelude::*;
    use proptest::test_runner::TestRunner;
    use test_servers::{Redis, RedisOptions, Reply};

    use super::*;
    use crate::keys::{Keys, Names};

    #[test]
    fn all_keys_of_a_lock_and_its_channel_are_in_one_slot_of_the_server() {
        let server = Redis::start(RedisOptions::new().cluster_member());
        let mut session = server.connect().unwrap();
        let names = prop_oneof!["[{}%:/a-c]{1,12}", "\\PC{1,40}", "[{}a]{190,260}"];
        let prefixes = prop::sample::select(vec!["", "app:", "{app}:"]);
        let law = |(prefix, name): (&str, String)| {
            let keys = Keys::new(Names::Encoded, prefix).unwrap();
            let lock = keys.of(&LockName::new(&*name).unwrap()).unwrap();
            let (tombstone, channel) =
                (lock.tombstone(&OwnerId::mint()), keys.channel_in(lock.slot(), "1"));
            for key in lock.all().into_iter().chain([&*tombstone, &*channel]) {
                let slot = session.command(&["CLUSTER", "KEYSLOT", key]).unwrap();
                prop_assert_eq!(slot, Reply::Integer(lock.slot().into()), "{}", key);
            }
            Ok(())
        };
        let law = std::cell::RefCell::new(law);
        TestRunner::default()
            .run(&(prefixes, names), |drawn| (law.borrow_mut())(drawn))
            .unwrap_or_else(|failure| panic!("{failure}"));
    }

    #[test]
    fn crc16_has_the_check_value_of_the_standard() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
    }

    #[test]
    fn every_slot_has_a_tag() {
        for slot in 0..SLOTS {
            assert_eq!(slot_of(&tag_in(slot).to_string()), slot);
        }
    }

    #[test]
    fn a_hash_tag_is_hashed_alone() {
        assert_eq!(slot_of("{user}:1"), slot_of("user"));
        assert_ne!(slot_of("{}user"), slot_of("user"));
    }
}
