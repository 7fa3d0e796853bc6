//! The nodes of locks: their sequence numbers, their rights, and other recipes on the same path.

use lock_core::diagnosis::Finding;
use zookeeper_client::{Client, Error as ZkError, Stat};

use super::member::Member;
use super::rights::missing_in_lock;
use crate::config::Config;
use crate::fault::fault;
use crate::names::{Layout, SEQUENCE_LIMIT};

/// The number of nodes that are looked at, and of those whose rights are asked for.
const SAMPLE: usize = 1000;
const RIGHTS_SAMPLE: usize = 50;

/// The number of nodes that a finding names.
const EXAMPLES: usize = 3;

/// The part of the sequence numbers, in percent, from which on their use is a warning.
const WORN: i64 = 90;

/// Returns the findings about a sample of the nodes of locks.
pub(super) async fn check(config: &Config, member: &Member) -> Vec<Finding> {
    let Some(client) = member.client() else { return Vec::new() };
    let sample = match sample(config, client).await {
        Ok(sample) => sample,
        Err(error) => {
            let why = fault("reading the nodes of locks", &error).into_source().to_string();
            let remedy = "give the user of the URL the right to read the parent of the locks";
            let unseen = |check| Finding::unseen(check, &why).remedy(remedy);
            return ["sequence numbers", "other recipes", "lock rights"].map(unseen).into();
        }
    };
    vec![
        sequence_numbers(&sample),
        other_recipes(config, client, &sample).await,
        lock_rights(config, client, &sample).await,
    ]
}

/// Nodes of the directory that may be locks, with their state.
struct Sample {
    nodes: Vec<(String, Stat)>,
    /// Nodes that the user may not read.
    hidden: Vec<String>,
    is_complete: bool,
}

impl Sample {
    /// Returns the number of nodes, as text.
    fn size(&self) -> String {
        let only = if self.is_complete { "all" } else { "the first" };
        format!("{only} {} lock nodes", self.nodes.len() + self.hidden.len())
    }
}

async fn sample(config: &Config, client: &Client) -> Result<Sample, ZkError> {
    let elements = match client.list_children(config.names.directory()).await {
        Ok(elements) => elements,
        Err(ZkError::NoNode) => Vec::new(),
        Err(error) => return Err(error),
    };
    let mut locks: Vec<String> = elements
        .iter()
        .filter_map(|element| config.names.name(element))
        .map(|name| config.names.path(&name))
        .collect();
    locks.sort_unstable();
    let is_complete = locks.len() <= SAMPLE;
    locks.truncate(SAMPLE);
    // All requests are sent before the first answer is awaited.
    let stats: Vec<_> = locks.iter().map(|lock| client.check_stat(lock)).collect();
    let (mut nodes, mut hidden) = (Vec::with_capacity(stats.len()), Vec::new());
    for (lock, stat) in locks.iter().zip(stats) {
        match stat.await {
            Ok(Some(stat)) if stat.ephemeral_owner == 0 => nodes.push((lock.clone(), stat)),
            // Ephemeral nodes, and nodes that are gone, are no locks.
            Ok(_) => {}
            Err(ZkError::NoAuth) => hidden.push(lock.clone()),
            Err(error) => return Err(error),
        }
    }
    Ok(Sample { nodes, hidden, is_complete })
}

/// Returns the number that the next sequential child gets. The server shows twice the number of its
/// children so far without those that are there, in 32 bits.
fn next_sequence(stat: &Stat) -> i64 {
    let created_twice = stat.cversion.wrapping_add(stat.num_children).cast_unsigned();
    i64::from(created_twice / 2)
}

fn sequence_numbers(sample: &Sample) -> Finding {
    let busiest = sample.nodes.iter().map(|(lock, stat)| (next_sequence(stat), lock)).max();
    let Some((next, lock)) = busiest else {
        return Finding::ok("sequence numbers", "there is no node of a lock yet");
    };
    let text = format!("{lock} has used {next} of {SEQUENCE_LIMIT}, the most of {}", sample.size());
    let remedy = "stop the clients of that lock, delete its node, and start them again";
    if next >= SEQUENCE_LIMIT {
        Finding::failure("sequence numbers", format!("{text}: its claims are refused"))
            .remedy(remedy)
    } else if next >= SEQUENCE_LIMIT / 100 * WORN {
        let text = format!("{text}: over {WORN} %, and at the end its claims are refused");
        Finding::warning("sequence numbers", text).remedy(remedy)
    } else {
        Finding::ok("sequence numbers", text)
    }
}

async fn other_recipes(config: &Config, client: &Client, sample: &Sample) -> Finding {
    let mut found = Vec::new();
    for (lock, stat) in &sample.nodes {
        // Most nodes are empty, and need no request.
        let seen = match (stat.num_children, stat.data_length) {
            (0, 0) => continue,
            (0, _) => client.get_data(lock).await.map(|(data, _)| (data, Vec::new())),
            (_, 0) => client.list_children(lock).await.map(|children| (Vec::new(), children)),
            _ => match client.get_data(lock).await {
                Ok((data, _)) => client.list_children(lock).await.map(|children| (data, children)),
                Err(error) => Err(error),
            },
        };
        match seen {
            Ok((data, children)) => {
                found.extend(recipe(config.names.layout, &data, &children).map(|it| (lock, it)));
            }
            // Rights are a finding of their own.
            Err(ZkError::NoNode | ZkError::NoAuth) => {}
            Err(error) => {
                let why = fault("reading the nodes of locks", &error).into_source();
                return Finding::unseen("other recipes", why).remedy("see the log of the server");
            }
        }
    }
    if found.is_empty() {
        return Finding::ok("other recipes", format!("none in {}", sample.size()));
    }
    let examples = found.iter().take(EXAMPLES).map(|(lock, recipe)| format!("{lock} ({recipe})"));
    let text = format!(
        "{} of {} are used by recipes that do not exclude ours: {}",
        found.len(),
        sample.size(),
        examples.collect::<Vec<_>>().join(", ")
    );
    Finding::warning("other recipes", text)
        .remedy("use other paths or another prefix for ours, or the URL option layout")
}

/// Returns the recipe that uses a node in a way that does not exclude claims in this layout.
fn recipe(layout: Layout, data: &[u8], children: &[String]) -> Option<&'static str> {
    let any = |part: &str| children.iter().any(|child| child.contains(part));
    let is_hex = |child: &String| child.len() == 32 && child.bytes().all(|c| c.is_ascii_hexdigit());
    let is_number = !data.is_empty() && data.iter().all(u8::is_ascii_digit);
    if children.iter().any(|child| child == "leases") {
        Some("Curator's semaphore")
    } else if any("-__READ__") || any("-__WRIT__") {
        Some("Curator's InterProcessReadWriteLock")
    } else if any("-latch-") {
        Some("Curator's LeaderLatch")
    } else if is_number && children.iter().all(is_hex) {
        Some("kazoo's Semaphore")
    } else if layout == Layout::Curator && (any("__lock__") || any("__rlock__")) {
        Some("kazoo's Lock")
    } else if layout == Layout::Kazoo && any("-lock-") {
        Some("Curator's InterProcessMutex, or go-zookeeper's Lock")
    } else {
        None
    }
}

async fn lock_rights(config: &Config, client: &Client, sample: &Sample) -> Finding {
    let mut denied = Vec::new();
    let seen = sample.nodes.iter().map(|(lock, _)| lock);
    let locks: Vec<_> = sample.hidden.iter().chain(seen).take(RIGHTS_SAMPLE).collect();
    for lock in &locks {
        let read = match client.list_children(lock).await {
            Ok(_) | Err(ZkError::NoNode) => None,
            Err(ZkError::NoAuth) => Some("read"),
            Err(error) => return unseen_rights(&error),
        };
        let right = match read {
            Some(read) => Some(read),
            None => match missing_in_lock(config, client, lock).await {
                Ok(right) => right,
                Err(ZkError::NoNode) => None,
                Err(error) => return unseen_rights(&error),
            },
        };
        denied.extend(right.map(|right| format!("{lock} ({right})")));
    }
    if denied.is_empty() {
        let text = format!("the user has all rights in {} lock nodes", locks.len());
        return Finding::ok("lock rights", text);
    }
    let count = denied.len();
    denied.truncate(EXAMPLES);
    let text = format!(
        "{count} of {} lock nodes deny the user a right that claims need: {}",
        locks.len(),
        denied.join(", ")
    );
    Finding::failure("lock rights", text)
        .remedy("lock with the user that created them, or delete them")
}

fn unseen_rights(error: &ZkError) -> Finding {
    Finding::unseen("lock rights", fault("asking for rights", error).into_source())
        .remedy("see the log of the server")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn recipes_are_told_by_their_nodes() {
        let of = |layout, data: &str, children: &[&str]| {
            let children: Vec<String> = children.iter().map(|&child| child.to_owned()).collect();
            recipe(layout, data.as_bytes(), &children).unwrap_or("")
        };
        let hex = "00112233445566778899aabbccddeeff";
        for layout in [Layout::Curator, Layout::Kazoo] {
            assert!(of(layout, "", &["leases", "locks"]).contains("semaphore"));
            assert!(of(layout, "", &["_c_x-__READ__0000000000"]).contains("ReadWrite"));
            assert!(of(layout, "", &["_c_x-latch-0000000000"]).contains("Latch"));
            assert!(of(layout, "5", &[hex]).contains("Semaphore"));
            assert!(of(layout, "5", &[]).contains("Semaphore"));
            assert_eq!(of(layout, "", &["anything"]), "");
            assert_eq!(of(layout, "{}", &["anything"]), "");
        }
        let (kazoo, curator) = (format!("{hex}__lock__0000000000"), "_c_x-lock-0000000000");
        assert!(of(Layout::Curator, "", &[&kazoo]).contains("kazoo"));
        assert_eq!(of(Layout::Kazoo, "", &[&kazoo]), "");
        assert!(of(Layout::Kazoo, "", &[curator]).contains("Curator"));
        assert_eq!(of(Layout::Curator, "", &[curator]), "");
    }
}
