//! The paths and names of nodes, and the order of a queue.

use lock_core::{Encoding, Error, ErrorKind, LockName, OwnerId};

/// The characters of a path element besides letters and digits. All others are escaped.
const PUNCTUATION: &str = "!\"#$&'()*+,-.:;<=>?@[\\]^_`{|}~";
const MAX_ELEMENT: usize = 200;

/// The last sequence number of a queue. ZooKeeper gives it to every later node, and their order is
/// lost.
const LAST_SEQUENCE: i64 = i32::MAX as i64;

/// The sequence numbers before the last one that are not used. Refused claims use them up, and so
/// do clients of other libraries meanwhile.
const UNUSED_SEQUENCES: i64 = 1_000_000;

/// The first sequence number that is refused.
pub(crate) const SEQUENCE_LIMIT: i64 = LAST_SEQUENCE - UNUSED_SEQUENCES;

/// The mark in the names of nodes of kazoo's `ReadLock`, before the sequence number.
const KAZOO_READER: &str = "__rlock__";

/// The path element that the server reserves at its root, and the element in its place.
const RESERVED: (&str, &str) = ("zookeeper", "%7Aookeeper");

/// The names of queue entries, and the nodes that count as such.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Layout {
    /// The names of Apache Curator's `InterProcessMutex`: `_c_<uuid>-lock-<sequence>`.
    #[default]
    Curator,
    /// The names of kazoo's `Lock`: `<32 hex digits>__lock__<sequence>`. Its readers, `<32 hex
    /// digits>__rlock__<sequence>`, exclude a claim as well.
    Kazoo,
}

/// The paths of the locks.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    encoding: Encoding,
    /// The parent of all locks: empty, or an absolute path.
    directory: String,
    pub(crate) layout: Layout,
}

impl Names {
    pub(crate) fn new(prefix: &str, layout: Layout) -> Result<Self, Error> {
        let encoding = Encoding::new(PUNCTUATION, MAX_ELEMENT).escape_leading_dot();
        let directory = match prefix {
            "" => String::new(),
            _ => format!("/{}", checked(prefix)?),
        };
        Ok(Self { encoding, directory, layout })
    }

    /// Returns the prefix as it is configured.
    pub(crate) fn prefix(&self) -> String {
        self.directory.strip_prefix('/').map(|path| format!("{path}/")).unwrap_or_default()
    }

    /// Returns the parent of all locks.
    pub(crate) fn directory(&self) -> &str {
        if self.directory.is_empty() { "/" } else { &self.directory }
    }

    /// Returns the path of a lock's node, the parent of its queue entries.
    pub(crate) fn path(&self, name: &LockName) -> String {
        let element = self.encoding.encode(name);
        let element = if element == RESERVED.0 { RESERVED.1 } else { &element };
        format!("{}/{element}", self.directory)
    }

    /// Returns the lock with this child of the [directory](Self::directory), or `None` if the name
    /// is not reversible.
    pub(crate) fn name(&self, element: &str) -> Option<LockName> {
        match element {
            _ if element == RESERVED.1 => LockName::new(RESERVED.0).ok(),
            _ if element == RESERVED.0 => None,
            _ => self.encoding.decode(element),
        }
    }
}

/// Returns the path of a prefix.
fn checked(prefix: &str) -> Result<&str, Error> {
    let invalid =
        |why: &str| Error::new(ErrorKind::Invalid, format!("the prefix {prefix:?} {why}"));
    let path = prefix.strip_suffix('/').ok_or_else(|| invalid("must end in '/'"))?;
    let plain = |element: &str| {
        let odd = |c: char| !(c.is_ascii_alphanumeric() || PUNCTUATION.contains(c));
        !element.is_empty() && !element.starts_with('.') && !element.contains(odd)
    };
    if !path.split('/').all(plain) {
        return Err(invalid(
            "must be made of printable ASCII names with single slashes between them",
        ));
    }
    if path.split('/').next() == Some(RESERVED.0) {
        return Err(invalid("belongs to the server"));
    }
    if path.len() > MAX_ELEMENT {
        return Err(invalid("is too long"));
    }
    Ok(path)
}

impl Layout {
    /// Returns a new node name, to which the server appends the sequence number. It does not reveal
    /// the owner id, because all clients that list the queue see it, and logs do.
    pub(crate) fn new_node_name(self) -> String {
        let random = OwnerId::mint().expose();
        match self {
            Self::Kazoo => format!("{random}__lock__"),
            Self::Curator => {
                let (a, b, c, d, e) =
                    (&random[..8], &random[8..12], &random[13..16], &random[17..20], &random[20..]);
                // The version and the variant say that the UUID is random.
                format!("_c_{a}-{b}-4{c}-8{d}-{e}-lock-")
            }
        }
    }

    /// Returns the sequence number of a queue entry, or `None` for other nodes.
    pub(crate) fn sequence(self, node: &str) -> Option<i64> {
        let marks: &[&str] = match self {
            Self::Curator => &["lock-"],
            Self::Kazoo => &["__lock__", KAZOO_READER],
        };
        let (_, digits) = marks.iter().find_map(|mark| node.rsplit_once(mark))?;
        (digits.len() >= 10).then(|| digits.parse().ok()).flatten()
    }

    /// Returns true if `ours` may take its turn in `queue`, which is sorted. Its sequence number is
    /// not near the end, and no other node has reached the end.
    pub(crate) fn has_order(self, ours: &str, queue: &[String]) -> bool {
        let is_near_end = self.sequence(ours).is_none_or(|at| at >= SEQUENCE_LIMIT);
        !is_near_end && !queue.last().is_some_and(|last| self.has_last_sequence(last))
    }

    /// Returns the first node of `queue` and those that hold or may hold the lock besides: other
    /// readers, and nodes that share the last sequence number.
    pub(crate) fn possible_holders(self, queue: &[String]) -> &[String] {
        let tied = queue.iter().take_while(|node| self.has_last_sequence(node)).count();
        let is_reader = |node: &&String| self == Self::Kazoo && node.contains(KAZOO_READER);
        let readers = queue.iter().take_while(is_reader).count();
        &queue[..tied.max(readers).max(1).min(queue.len())]
    }

    fn has_last_sequence(self, node: &str) -> bool {
        self.sequence(node).is_some_and(|number| number >= LAST_SEQUENCE)
    }

    /// Returns the queued nodes in order. A node that is not queued, or out of order, is an error,
    /// because some clients count such nodes and others do not.
    pub(crate) fn sort_queue(self, children: Vec<String>) -> Result<Vec<String>, QueueError> {
        let mut queue = Vec::with_capacity(children.len());
        for node in children {
            match self.sequence(&node) {
                Some(number) if number < 0 => return Err(QueueError::Exhausted),
                Some(number) => queue.push((number, node)),
                None => return Err(QueueError::ForeignNode(node)),
            }
        }
        queue.sort_unstable();
        Ok(queue.into_iter().map(|(_, node)| node).collect())
    }
}

/// The reason why a queue has no order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum QueueError {
    /// The sequence numbers passed the end of 32 bits, and the newest nodes look like the oldest.
    /// ZooKeeper 3.8 gives the last number instead, see [`has_order`](Layout::has_order).
    Exhausted,
    /// A node that is not a queue entry of this layout.
    ForeignNode(String),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(prefix: &str) -> Names {
        Names::new(prefix, Layout::Curator).unwrap()
    }

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn the_paths_are_pinned() {
        // A change splits a fleet into two lock spaces.
        for (prefix, lock, path) in [
            ("", "orders", "/orders"),
            ("", "orders/42", "/orders%2F42"),
            ("", "zookeeper", "/%7Aookeeper"),
            ("app/locks/", "zookeeper", "/app/locks/%7Aookeeper"),
            ("app/", "..", "/app/%2E."),
            ("", "é 1%", "/%C3%A9%201%25"),
            ("", "%7Aookeeper", "/%257Aookeeper"),
        ] {
            let names = names(prefix);
            assert_eq!(names.path(&name(lock)), path);
            let element = path.rsplit('/').next().unwrap();
            assert_eq!(names.name(element), Some(name(lock)));
        }
        assert_eq!(names("").name("zookeeper"), None);
        assert_eq!((names("a/b/").directory(), names("").directory()), ("/a/b", "/"));
        assert_eq!(names("a/b/").prefix(), "a/b/");
    }

    #[test]
    fn unusable_prefixes_are_refused() {
        for prefix in ["a", "/", "/a/", "a//b/", "./", "a/../", "é/", "zookeeper/", "a%/"] {
            assert!(Names::new(prefix, Layout::Curator).is_err(), "{prefix}");
        }
    }

    #[test]
    fn node_names_match_other_libraries() {
        let curator = Layout::Curator.new_node_name();
        assert_eq!(curator.len(), "_c_6ba7b810-9dad-41d1-80b4-00c04fd430c8-lock-".len());
        assert_ne!(curator, Layout::Curator.new_node_name());
        assert_eq!(Layout::Curator.sequence(&format!("{curator}0000000042")), Some(42));
        assert_eq!(
            Layout::Kazoo.sequence(&format!("{}0000000007", Layout::Kazoo.new_node_name())),
            Some(7)
        );
        assert_eq!(Layout::Kazoo.sequence("x-lock-0000000007"), None);
        assert_eq!(Layout::Curator.sequence("lock-"), None);
        assert_eq!(Layout::Curator.sequence("_c_x-lock--2147483648"), Some(-2_147_483_648));
    }

    #[test]
    fn a_queue_is_sorted_by_sequence() {
        let nodes = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let queue = Layout::Curator.sort_queue(nodes(&["b-lock-0000000003", "c-lock-0000000001"]));
        assert_eq!(queue, Ok(nodes(&["c-lock-0000000001", "b-lock-0000000003"])));
        let wrapped = nodes(&["a-lock-2147483647", "b-lock--2147483648"]);
        assert_eq!(Layout::Curator.sort_queue(wrapped), Err(QueueError::Exhausted));
        let odd = nodes(&["leases"]);
        assert_eq!(
            Layout::Curator.sort_queue(odd.clone()),
            Err(QueueError::ForeignNode("leases".into()))
        );
        assert_eq!(Layout::Kazoo.sort_queue(odd), Err(QueueError::ForeignNode("leases".into())));
        let readers =
            nodes(&["b__lock__0000000003", "c__rlock__0000000002", "a__rlock__0000000001"]);
        let queue = Layout::Kazoo.sort_queue(readers.clone()).unwrap();
        assert_eq!(queue, readers.iter().rev().cloned().collect::<Vec<_>>());
        assert_eq!(Layout::Kazoo.possible_holders(&queue), &queue[..2]);
    }

    #[test]
    fn at_the_end_of_the_sequence_numbers_there_is_no_order() {
        let nodes = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<Vec<_>>();
        let layout = Layout::Curator;
        let before = nodes(&["b-lock-0000000003", "a-lock-2146483646"]);
        assert!(layout.has_order("a-lock-2146483646", &before));
        assert!(!layout.has_order("a-lock-2146483647", &nodes(&["a-lock-2146483647"])));
        let tied = nodes(&["a-lock-2147483647", "b-lock-2147483647"]);
        assert!(!layout.has_order("b-lock-2147483647", &tied));
        assert!(!layout.has_order("b-lock-0000000003", &[&before[..1], &tied[..]].concat()));
        assert_eq!(layout.possible_holders(&tied), tied);
        assert_eq!(layout.possible_holders(&before), &before[..1]);
        assert_eq!(layout.possible_holders(&[]), &[] as &[String]);
    }
}
