//! The queue of a lock: creating, finding and removing its entries.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use lock_core::OwnerId;
use lock_core::backend::{Effect, Fault, FaultKind};
use lock_core::clock::Moment;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteResult};

use super::heartbeats::commit_no_op;
use super::queue_entry::{EntryNode, QueueEntry};
use super::{Session, expired};
use crate::fault::fault;
use crate::names::{Layout, QueueError};

/// The number of times that the lock's node is created when it keeps vanishing.
const ATTEMPTS: u32 = 5;

/// The number of nodes that are remembered to hold no data.
const MAX_WITHOUT_DATA: usize = 1000;

/// The result of creating a queue entry.
struct CreatedNode {
    node: EntryNode,
    /// The session that owns it, if the server says so.
    owner: Option<i64>,
    /// The number of nodes in the queue, including this one.
    queue_length: i32,
}

impl Session {
    /// Returns the queue entry of a claim, unless its node is gone for good.
    ///
    /// Fails if an operator has removed the node of a waiter. The node goes with its session, too.
    /// A write that commits afterwards shows that this is not the reason.
    pub(crate) async fn usable_entry(
        &self,
        owner: &OwnerId,
    ) -> Result<Option<Arc<QueueEntry>>, Fault> {
        let Some(entry) = self.entry(owner) else { return Ok(None) };
        if !entry.is_finished() {
            return Ok(Some(entry));
        }
        let has_waited = {
            let state = entry.state();
            !state.granted && !state.releasing
        };
        if has_waited {
            let client = self.client();
            let alive = self.until_over(async {
                let heartbeat = commit_no_op(&client).await;
                heartbeat.map_err(|error| fault("sending a heartbeat write", &error))
            });
            let unknown =
                |fault: Fault| Fault::not_applied(FaultKind::Unavailable, fault.into_source());
            alive.await.map_err(unknown)?;
        }
        self.forget(owner, &entry);
        if has_waited { Err(removed_by_operator()) } else { Ok(None) }
    }

    /// Creates the node of `entry`, and returns the queue. The work goes on if its caller is
    /// cancelled, so that its outcome is always recorded.
    pub(crate) async fn create_entry(
        self: &Arc<Self>,
        entry: &Arc<QueueEntry>,
        data: String,
    ) -> Result<Vec<String>, Fault> {
        {
            let mut state = entry.state();
            state.creating = true;
            state.data = Some(data.clone());
        }
        let (session, creating) = (Arc::clone(self), Arc::clone(entry));
        let work = tokio::spawn(async move {
            let answer = tokio::select! {
                answer = session.create_node(&creating, data.as_bytes()) => answer,
                () = session.over() => Err(expired()),
            };
            creating.update(|state| state.creating = false);
            answer
        });
        work.await.unwrap_or_else(|_| {
            Err(Fault::unknown(FaultKind::Unavailable, "the runtime was shut down"))
        })
    }

    /// Creates the node, and the lock's node if it is missing.
    async fn create_node(&self, entry: &QueueEntry, data: &[u8]) -> Result<Vec<String>, Fault> {
        if self.layout == Layout::Kazoo {
            self.check_no_data(&entry.lock).await?;
        }
        for _ in 0..ATTEMPTS {
            match self.create_in_transaction(entry, data).await {
                Ok(CreatedNode { owner: Some(owner), .. }) if owner != self.id => {
                    // The server has replaced the session without an error.
                    self.end();
                    return Err(expired());
                }
                Ok(CreatedNode { node, queue_length, .. }) => {
                    let name = node.name.clone();
                    entry.update(|state| state.node = Some(node));
                    return match queue_length {
                        1 => self.sorted(&entry.lock, Ok(vec![name])),
                        _ => self.queue(&entry.lock).await,
                    };
                }
                Err(ZkError::NoNode) => self.create_lock_node(&entry.lock).await?,
                Err(error) => {
                    let fault = fault("entering the queue", &error);
                    if fault.effect() == Effect::Unknown {
                        // An old connection may still deliver the request, until the server closes
                        // that for its silence.
                        let until = Moment::now() + self.timeout() * 3 / 2;
                        entry.update(|state| state.late_create_until = Some(until));
                    }
                    return Err(fault);
                }
            }
        }
        let why = "the node of the lock is removed again and again";
        Err(Fault::not_applied(FaultKind::Unavailable, why))
    }

    /// Creates the node and writes nothing to the lock's node, in one transaction. The answer to
    /// the write has the number of children, so a claim that is alone knows without another request
    /// that it is first.
    async fn create_in_transaction(
        &self,
        entry: &QueueEntry,
        data: &[u8],
    ) -> Result<CreatedNode, ZkError> {
        let options = CreateMode::EphemeralSequential.with_acls(self.acls);
        let client = self.client();
        let mut write = client.new_multi_writer();
        write.add_create(&format!("{}/{}", entry.lock, entry.name_prefix), data, &options)?;
        write.add_set_data(&entry.lock, b"", None)?;
        let answers = write.commit().await?;
        let [MultiWriteResult::Create { path, stat: child }, MultiWriteResult::SetData { stat }] =
            &answers[..]
        else {
            return Err(ZkError::UnexpectedError("a transaction's answer has other parts".into()));
        };
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(CreatedNode {
            // Servers before 3.7.2 and 3.8.2 omit the stat of a node that a transaction created.
            // Setting a watch reads it then.
            owner: (!child.is_invalid()).then_some(child.ephemeral_owner),
            // One transaction wrote both.
            node: EntryNode { name, czxid: stat.mzxid },
            queue_length: stat.num_children,
        })
    }

    /// Refuses a node with data, which creating the entry would overwrite: kazoo's `Semaphore`
    /// keeps its maximum there. Reads each node once.
    async fn check_no_data(&self, lock: &str) -> Result<(), Fault> {
        if self.without_data().contains(lock) {
            return Ok(());
        }
        match self.client().get_data(lock).await {
            Ok((data, _)) if !data.is_empty() => {
                let why = format!(
                    "the node {lock} holds data, which a lock's does not: what else uses it?"
                );
                return Err(Fault::not_applied(FaultKind::Invalid, why));
            }
            Ok(_) | Err(ZkError::NoNode) => {}
            Err(error) => return Err(without_effect("reading the lock's node", &error)),
        }
        let mut without_data = self.without_data();
        if without_data.len() >= MAX_WITHOUT_DATA {
            without_data.clear();
        }
        without_data.insert(lock.to_owned());
        Ok(())
    }

    fn without_data(&self) -> MutexGuard<'_, HashSet<String>> {
        self.without_data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Creates the node of a lock and its parents: containers, which the server removes when they
    /// are empty. kazoo creates a path once for each of its locks, and fails when that is removed.
    async fn create_lock_node(&self, lock: &str) -> Result<(), Fault> {
        let mode = match self.layout {
            Layout::Curator => CreateMode::Container,
            Layout::Kazoo => CreateMode::Persistent,
        };
        let made = self.client().mkdir(lock, &mode.with_acls(self.acls)).await;
        made.map_err(|error| without_effect("creating the lock's node", &error))
    }

    /// Returns the queue of a lock in order, empty if there is none.
    pub(crate) async fn queue(&self, lock: &str) -> Result<Vec<String>, Fault> {
        self.sorted(lock, self.client().list_children(lock).await)
    }

    /// Returns the children of a lock's node in order.
    fn sorted(
        &self,
        lock: &str,
        children: Result<Vec<String>, ZkError>,
    ) -> Result<Vec<String>, Fault> {
        let children = match children {
            Ok(children) => children,
            Err(ZkError::NoNode) => return Ok(Vec::new()),
            Err(error) => return Err(fault("reading the queue", &error)),
        };
        self.layout.sort_queue(children).map_err(|odd| match odd {
            QueueError::Exhausted => exhausted(lock),
            QueueError::ForeignNode(node) => Fault::not_applied(
                FaultKind::Invalid,
                format!("the node {lock} holds {node:?}, which is no place in a line: what else uses it?"),
            ),
        })
    }

    /// Checks that `ours` has a definite position in the queue.
    pub(crate) fn check_order(
        &self,
        lock: &str,
        ours: &str,
        queue: &[String],
    ) -> Result<(), Fault> {
        if self.layout.has_order(ours, queue) { Ok(()) } else { Err(exhausted(lock)) }
    }

    /// Returns the nodes that may hold the lock: one, or several at the end of the sequence numbers
    /// and with readers.
    pub(crate) fn possible_holders<'a>(&self, queue: &'a [String]) -> &'a [String] {
        self.layout.possible_holders(queue)
    }

    /// Returns the nodes of `entry` on the server. There may be two if a request was applied late.
    async fn find_nodes(&self, entry: &QueueEntry) -> Result<Vec<String>, Fault> {
        // The two requests go in this order on the connection: the first one brings the member up
        // to date for the second.
        let client = self.client();
        let sync = client.sync(&entry.lock);
        let list = client.list_children(&entry.lock);
        match sync.await {
            Ok(()) | Err(ZkError::NoNode) => {}
            Err(error) => return Err(fault("finding the claim's node", &error)),
        }
        match list.await {
            Ok(mut nodes) => {
                nodes.retain(|node| node.starts_with(&entry.name_prefix));
                nodes.sort_unstable();
                Ok(nodes)
            }
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(fault("finding the claim's node", &error)),
        }
    }

    /// Finds the node of a creation that went unanswered. Returns true if it exists.
    pub(crate) async fn recover_node(&self, entry: &QueueEntry) -> Result<bool, Fault> {
        let found = self.retry(|| self.find_nodes(entry)).await.ok_or_else(expired)?;
        let Some(name) = found.into_iter().next() else {
            return Ok(false);
        };
        let stat = self.client().check_stat(&format!("{}/{name}", entry.lock)).await;
        match stat.map_err(|error| fault("reading the claim's node", &error))? {
            Some(stat) if stat.ephemeral_owner == self.id => {
                entry.update(|state| state.node = Some(EntryNode { name, czxid: stat.czxid }));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Removes all nodes of a claim. Returns true if its node still existed.
    pub(crate) async fn remove_entry(
        &self,
        owner: &OwnerId,
        entry: &Arc<QueueEntry>,
    ) -> Result<bool, Fault> {
        entry.until(|state| (!state.creating).then_some(())).await;
        let mut was_there = false;
        if let Some(path) = entry.path() {
            was_there = self.delete_node(&path).await?;
            entry.mark_removed();
        }
        let late_create_until = entry.state().late_create_until;
        if let Some(until) = late_create_until {
            let settled = until.has_passed();
            for node in self.find_nodes(entry).await? {
                was_there |= self.delete_node(&format!("{}/{node}", entry.lock)).await?;
            }
            entry.update(|state| {
                state.removed = true;
                state.late_create_until = (!settled).then_some(until);
            });
        }
        if entry.state().late_create_until.is_none() {
            self.forget(owner, entry);
        }
        Ok(was_there)
    }

    /// Deletes a node. Returns true if it existed.
    async fn delete_node(&self, path: &str) -> Result<bool, Fault> {
        match self.client().delete(path, None).await {
            Ok(()) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(fault("leaving the queue", &error)),
        }
    }
}

/// Returns the fault of a queue whose order is lost, or soon would be.
fn exhausted(lock: &str) -> Fault {
    let why = format!(
        "the queue {lock} is at the end of its sequence numbers, 32 bits, where its order is lost: let its \
         holder finish, then delete the node, and the numbers start again"
    );
    Fault::not_applied(FaultKind::Invalid, why)
}

/// Returns the fault of a request before the creation of a node, which has no effect on the claim.
fn without_effect(doing: &str, error: &ZkError) -> Fault {
    match fault(doing, error) {
        fault if fault.is_transient() => {
            Fault::not_applied(FaultKind::Unavailable, fault.into_source())
        }
        fault => fault,
    }
}

/// Returns the fault of a waiter whose node an operator removed.
fn removed_by_operator() -> Fault {
    let why = "an operator removed this claim's node from the queue: it does not wait any more";
    Fault::not_applied(FaultKind::Invalid, why)
}
