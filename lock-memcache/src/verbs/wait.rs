//! Waits: polls by one waiter for all of its key.

use std::sync::Arc;

use lock_core::backend::{Claim, Fault, Wake};

use crate::client::Client;
use crate::connection::wire::{Reply, Request};
use crate::waiters::KeyWaiters;

impl Client {
    /// Waits until the key is free.
    pub(crate) async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        let (key, server) = self.server_of_lock(&claim.name);
        let waiters = match claim.queues() {
            true => self.waiters.join(claim.owner, &key),
            false => Arc::new(KeyWaiters::default()),
        };
        let is_free = || async {
            let connection = server.link.connection().await?;
            match connection.ask_one(&Request::new().exists(&key)).await? {
                Reply::Missing => Ok(true),
                Reply::Done => Ok(false),
                other => Err(other.unexpected("look at a lock")),
            }
        };
        waiters.wait(is_free).await?;
        Ok(Wake::Retry)
    }
}
