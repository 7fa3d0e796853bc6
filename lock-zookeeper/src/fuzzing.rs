//! Entry points of the fuzz targets. Not a public API. Each panics on a broken property.

use lock_core::{Error, LockName};

use crate::names::{Layout, Names};
use crate::value::NodeData;

const LAYOUTS: [Layout; 2] = [Layout::Curator, Layout::Kazoo];

/// Parses the data of a queue entry. The same results from its text.
pub fn data(data: &[u8]) {
    let Some(parsed) = NodeData::parse(data) else { return };
    let text = NodeData::text(&parsed.owner, parsed.label.as_ref());
    assert_eq!(NodeData::parse(text.as_bytes()), Some(parsed));
}

/// Sorts the children of a lock's node, and finds the holders among them.
pub fn queue(children: &[String]) {
    for layout in LAYOUTS {
        let Ok(queue) = layout.sort_queue(children.to_vec()) else { continue };
        let (mut before, mut after) = (children.to_vec(), queue.clone());
        before.sort_unstable();
        after.sort_unstable();
        assert_eq!(before, after, "the same nodes");
        let sequence = |node: &String| layout.sequence(node).expect("it is queued");
        assert!(queue.is_sorted_by_key(sequence), "{queue:?}");
        let holders = layout.possible_holders(&queue);
        assert!(queue.starts_with(holders) && holders.is_empty() == queue.is_empty());
        let _ = queue.iter().any(|ours| layout.has_order(ours, &queue));
    }
}

/// Returns the path of a lock's node. The name results from its last element, if it is reversible.
///
/// # Errors
///
/// The prefix is refused.
pub fn path(prefix: &str, name: &LockName) -> Result<String, Error> {
    let names = Names::new(prefix, Layout::Curator)?;
    assert_eq!(names.prefix(), prefix);
    let path = names.path(name);
    let (directory, element) = path.rsplit_once('/').expect("an absolute path");
    assert_eq!(if directory.is_empty() { "/" } else { directory }, names.directory());
    assert!(!matches!(element, "" | "." | ".." | "zookeeper"), "{element}");
    match names.name(element) {
        Some(read) => assert_eq!(read, *name),
        None => assert!(element.contains("%~"), "{element} is not read"),
    }
    Ok(path)
}

/// Reads the name of a node beside the locks. The node of that lock has that name.
pub fn element(element: &str) {
    let names = Names::new("", Layout::Curator).expect("an empty prefix");
    if let Some(name) = names.name(element) {
        assert_eq!(names.path(&name), format!("/{element}"));
    }
}
