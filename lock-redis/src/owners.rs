//! Tables by owner.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use lock_core::OwnerId;

/// Something for each owner.
pub(crate) type ByOwner<T> = HashMap<OwnerId, T, BuildHasherDefault<OwnerHasher>>;

/// Owner ids are random, and no other client chooses those in a table. So some of their bits are as
/// good as a hash of all of them.
#[derive(Debug, Default)]
pub(crate) struct OwnerHasher(u64);

impl Hasher for OwnerHasher {
    fn write(&mut self, bytes: &[u8]) {
        let first = bytes.first_chunk().copied().map(u64::from_ne_bytes);
        self.0 ^= first.unwrap_or_default();
    }

    /// Ignores the number of bytes, which is the same for all owners.
    fn write_usize(&mut self, _: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::hash::BuildHasher;

    use super::*;

    #[test]
    fn owners_differ_by_their_hashes() {
        let table = ByOwner::<()>::default();
        let hashes: HashSet<_> =
            (0..1000).map(|_| table.hasher().hash_one(OwnerId::mint())).collect();
        assert_eq!(hashes.len(), 1000);
    }
}
