//! The line before a lock: nodes that enter it, are found in it again, and leave it.

use std::collections::HashSet;
use std::sync::{Arc, MutexGuard, PoisonError};

use lock_core::OwnerId;
use lock_core::backend::{Effect, Fault, FaultKind};
use lock_core::clock::Moment;
use zookeeper_client::{CreateMode, Error as ZkError, MultiWriteResult};

use super::{Session, expired};
use crate::fault::fault;
use crate::names::{Layout, OddLine};
use crate::place::{Node, Place};

/// The number of times that the lock's node is created when it keeps vanishing.
const ATTEMPTS: u32 = 5;

/// The number of nodes that are remembered to hold no data.
const MAX_WITHOUT_DATA: usize = 1000;

/// The result of creating a queue entry.
struct Entered {
    node: Node,
    /// The session that owns it, if the server says so.
    owner: Option<i64>,
    /// The number of nodes in the queue, including this one.
    places: i32,
}

impl Session {
    /// Creates the node of `place`, and returns the queue. The work goes on if its caller is
    /// cancelled, so that its outcome is always recorded.
    pub(crate) async fn enter(
        self: &Arc<Self>,
        place: &Arc<Place>,
        data: String,
    ) -> Result<Vec<String>, Fault> {
        place.state().entering = true;
        let (session, entering) = (Arc::clone(self), Arc::clone(place));
        let work = tokio::spawn(async move {
            let answer = tokio::select! {
                answer = session.create(&entering, data.as_bytes()) => answer,
                () = session.over() => Err(expired()),
            };
            entering.update(|state| state.entering = false);
            answer
        });
        work.await.unwrap_or_else(|_| {
            Err(Fault::unknown(FaultKind::Unavailable, "the runtime was shut down"))
        })
    }

    /// Creates the node, and the lock's node if it is missing.
    async fn create(&self, place: &Place, data: &[u8]) -> Result<Vec<String>, Fault> {
        if self.layout == Layout::Kazoo {
            self.must_hold_no_data(&place.lock).await?;
        }
        for _ in 0..ATTEMPTS {
            match self.create_and_count(place, data).await {
                Ok(Entered { owner: Some(owner), .. }) if owner != self.id => {
                    // The server has replaced the session without an error.
                    self.end();
                    return Err(expired());
                }
                Ok(Entered { node, places, .. }) => {
                    let name = node.name.clone();
                    place.update(|state| state.node = Some(node));
                    return match places {
                        1 => self.in_order(&place.lock, Ok(vec![name])),
                        _ => self.line(&place.lock).await,
                    };
                }
                Err(ZkError::NoNode) => self.make_lock(&place.lock).await?,
                Err(error) => {
                    let fault = fault("entering the line", &error);
                    if fault.effect() == Effect::Unknown {
                        // An old connection may still deliver the request, until the server closes
                        // that for its silence.
                        let until = Moment::now() + self.timeout() * 3 / 2;
                        place.update(|state| state.may_land_until = Some(until));
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
    async fn create_and_count(&self, place: &Place, data: &[u8]) -> Result<Entered, ZkError> {
        let options = CreateMode::EphemeralSequential.with_acls(self.acls);
        let client = self.client();
        let mut write = client.new_multi_writer();
        write.add_create(&format!("{}/{}", place.lock, place.stem), data, &options)?;
        write.add_set_data(&place.lock, b"", None)?;
        let answers = write.commit().await?;
        let [MultiWriteResult::Create { path, stat: child }, MultiWriteResult::SetData { stat }] =
            &answers[..]
        else {
            return Err(ZkError::UnexpectedError("a transaction's answer has other parts".into()));
        };
        let name = path.rsplit('/').next().unwrap_or_default().to_owned();
        Ok(Entered {
            // Servers before 3.7.2 and 3.8.2 omit the stat of a node that a transaction created.
            // Setting a watch reads it then.
            owner: (!child.is_invalid()).then_some(child.ephemeral_owner),
            // One transaction wrote both.
            node: Node { name, czxid: stat.mzxid },
            places: stat.num_children,
        })
    }

    /// Refuses a node with data, which creating the entry would overwrite: kazoo's `Semaphore`
    /// keeps its maximum there. Reads each node once.
    async fn must_hold_no_data(&self, lock: &str) -> Result<(), Fault> {
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
            Err(error) => return Err(before_entering("looking at the node of the lock", &error)),
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
    async fn make_lock(&self, lock: &str) -> Result<(), Fault> {
        let mode = match self.layout {
            Layout::Curator => CreateMode::Container,
            Layout::Kazoo => CreateMode::Persistent,
        };
        let made = self.client().mkdir(lock, &mode.with_acls(self.acls)).await;
        made.map_err(|error| before_entering("making the node of the lock", &error))
    }

    /// The line before a lock, first come first; empty if there is none.
    pub(crate) async fn line(&self, lock: &str) -> Result<Vec<String>, Fault> {
        self.in_order(lock, self.client().list_children(lock).await)
    }

    /// Returns the children of a lock's node in order.
    fn in_order(
        &self,
        lock: &str,
        children: Result<Vec<String>, ZkError>,
    ) -> Result<Vec<String>, Fault> {
        let children = match children {
            Ok(children) => children,
            Err(ZkError::NoNode) => return Ok(Vec::new()),
            Err(error) => return Err(fault("looking at the line", &error)),
        };
        self.layout.line(children).map_err(|odd| match odd {
            OddLine::Exhausted => exhausted(lock),
            OddLine::Stranger(node) => Fault::not_applied(
                FaultKind::Invalid,
                format!("the node {lock} holds {node:?}, which is no place in a line: what else uses it?"),
            ),
        })
    }

    /// Checks that `ours` has a definite position in the queue.
    pub(crate) fn must_be_ordered(
        &self,
        lock: &str,
        ours: &str,
        line: &[String],
    ) -> Result<(), Fault> {
        if self.layout.is_ordered(ours, line) { Ok(()) } else { Err(exhausted(lock)) }
    }

    /// Returns the nodes that may hold the lock: one, or several at the end of the sequence numbers
    /// and with readers.
    pub(crate) fn first<'a>(&self, line: &'a [String]) -> &'a [String] {
        self.layout.first(line)
    }

    /// Returns the nodes of `place` on the server. There may be two if a request was applied late.
    async fn find(&self, place: &Place) -> Result<Vec<String>, Fault> {
        // The two requests go in this order on the connection: the first one brings the member up
        // to date for the second.
        let client = self.client();
        let sync = client.sync(&place.lock);
        let list = client.list_children(&place.lock);
        match sync.await {
            Ok(()) | Err(ZkError::NoNode) => {}
            Err(error) => return Err(fault("looking for our node", &error)),
        }
        match list.await {
            Ok(mut nodes) => {
                nodes.retain(|node| node.starts_with(&place.stem));
                nodes.sort_unstable();
                Ok(nodes)
            }
            Err(ZkError::NoNode) => Ok(Vec::new()),
            Err(error) => Err(fault("looking for our node", &error)),
        }
    }

    /// Finds the node of a creation that went unanswered. Returns true if it exists.
    pub(crate) async fn recover(&self, place: &Place) -> Result<bool, Fault> {
        let found = self.insist(|| self.find(place)).await.ok_or_else(expired)?;
        let Some(name) = found.into_iter().next() else {
            return Ok(false);
        };
        let stat = self.client().check_stat(&format!("{}/{name}", place.lock)).await;
        match stat.map_err(|error| fault("looking at our node", &error))? {
            Some(stat) if stat.ephemeral_owner == self.id => {
                place.update(|state| state.node = Some(Node { name, czxid: stat.czxid }));
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// Removes all nodes of a claim. Returns true if its node still existed.
    pub(crate) async fn leave(&self, owner: &OwnerId, place: &Arc<Place>) -> Result<bool, Fault> {
        place.until(|state| (!state.entering).then_some(())).await;
        let mut was_there = false;
        if let Some(path) = place.path() {
            was_there = self.delete(&path).await?;
            place.is_gone();
        }
        let may_land_until = place.state().may_land_until;
        if let Some(until) = may_land_until {
            let settled = until.has_passed();
            for node in self.find(place).await? {
                was_there |= self.delete(&format!("{}/{node}", place.lock)).await?;
            }
            place.update(|state| {
                state.gone = true;
                state.may_land_until = (!settled).then_some(until);
            });
        }
        if place.state().may_land_until.is_none() {
            self.forget(owner, place);
        }
        Ok(was_there)
    }

    /// Deletes a node. Returns true if it existed.
    async fn delete(&self, path: &str) -> Result<bool, Fault> {
        match self.client().delete(path, None).await {
            Ok(()) => Ok(true),
            Err(ZkError::NoNode) => Ok(false),
            Err(error) => Err(fault("leaving the line", &error)),
        }
    }
}

/// Returns the fault of a queue whose order is lost, or soon would be.
fn exhausted(lock: &str) -> Fault {
    let why = format!(
        "the line {lock} has come to the end of its numbers, 32 bits, where nobody can tell who is first: let its \
         holder finish, then delete the node, and its numbers begin anew"
    );
    Fault::not_applied(FaultKind::Invalid, why)
}

/// Returns the fault of a request before the creation of a node, which has no effect on the claim.
fn before_entering(doing: &str, error: &ZkError) -> Fault {
    match fault(doing, error) {
        fault if fault.is_transient() => {
            Fault::not_applied(FaultKind::Unavailable, fault.into_source())
        }
        fault => fault,
    }
}
