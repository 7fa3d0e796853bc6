//! The data and the token of a queue entry.

use lock_core::{FencingToken, Label, OwnerId};

/// The data of a queue entry of this project: `<owner>[ <label>]`.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NodeData {
    pub(crate) owner: OwnerId,
    pub(crate) label: Option<Label>,
}

impl NodeData {
    /// Returns the text of the data.
    pub(crate) fn text(owner: &OwnerId, label: Option<&Label>) -> String {
        match label {
            Some(label) => format!("{} {}", owner.expose(), label.as_str()),
            None => owner.expose(),
        }
    }

    /// Parses the data. Returns `None` if it has another format.
    pub(crate) fn parse(bytes: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        let (owner, label) = match text.split_once(' ') {
            Some((owner, label)) => (owner, Some(Label::new(label))),
            None => (text, None),
        };
        Some(Self { owner: owner.parse().ok()?, label })
    }
}

/// Returns the token of a node: the transaction that created it.
pub(crate) fn token(czxid: i64) -> Option<FencingToken> {
    FencingToken::from_backend(u64::try_from(czxid).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_data_differ_from_other_formats() {
        let owner: OwnerId = "00112233445566778899aabbccddeeff".parse().unwrap();
        for label in [None, Some(Label::new("web-1: a b"))] {
            let text = NodeData::text(&owner, label.as_ref());
            assert_eq!(NodeData::parse(text.as_bytes()), Some(NodeData { owner, label }));
        }
        for bytes in [&b""[..], b"127.0.0.1", b"\xff", b" 00112233445566778899aabbccddeeff"] {
            assert_eq!(NodeData::parse(bytes), None);
        }
    }
}
