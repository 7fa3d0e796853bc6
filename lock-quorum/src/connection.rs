//! The connection by which a member is asked, and the server that has answered on it.

use std::sync::Arc;
use std::time::Duration;

use lock_core::Backend;
use lock_core::backend::{Fault, FaultKind};

use crate::member::Member;
use crate::quorum::Inner;
use crate::server::{Origin, Server};

/// A member that is about to be asked, and the server to which its connection leads.
pub(crate) struct Connection<'a> {
    member: &'a Member,
    pub(crate) backend: Arc<dyn Backend>,
    server: Arc<Server>,
}

impl Connection<'_> {
    /// Returns the server that has answered since the connection was taken.
    ///
    /// # Errors
    ///
    /// The server is not known, so the answer belongs to no server.
    pub(crate) async fn origin(self) -> Result<Origin, Fault> {
        self.member.is_heard();
        let server = self.server;
        // A server without an identity may be any server of its kind, and the next one is of that
        // kind.
        if !server.is_identified() || server.is_current() {
            return Ok(Origin { server, or: None });
        }
        // The verb may have been applied, even if the next connection fails.
        let in_doubt = |fault: Fault| Fault::unknown(fault.kind(), fault.into_source());
        let next = self.member.server(&*self.backend).await.map_err(in_doubt)?;
        if !server.epoch.is_next_to(&next.epoch) {
            let why = "its connection was replaced more than once while it was asked";
            return Err(Fault::unknown(FaultKind::Unavailable, why));
        }
        Ok(Origin { server, or: Some(next) })
    }
}

impl Inner {
    /// Connects a member if necessary, and determines to which server the connection leads.
    pub(crate) async fn connection(
        &self,
        member: usize,
        limit: Duration,
    ) -> Result<Connection<'_>, Fault> {
        let backend = self.backend(member, limit).await?;
        let member = &*self.members[member];
        match member.server(&*backend).await {
            Ok(server) => Ok(Connection { member, backend, server }),
            Err(fault) => Err(Fault::not_applied(fault.kind(), fault.into_source())),
        }
    }

    /// Returns why an answer does not count: the server has also answered by the address of the
    /// `other` member.
    pub(crate) fn duplicate_of(&self, other: usize) -> Fault {
        let why =
            format!("it is the same server as {}, and counted once", self.members[other].name);
        Fault::unknown(FaultKind::Unavailable, why)
    }
}
