//! The messages that a server sends without a request.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use redis::aio::{AsyncPushSender, SendError};
use redis::{PushInfo, PushKind, Value as Answer};

use crate::connection::client_state::ClientState;
use crate::connection::health::Health;
use crate::topology::link::Link;

/// The receiver of pushed messages. It runs inside the connection's task and must not wait.
pub(crate) struct Pushes {
    pub(crate) client: Arc<ClientState>,
    pub(crate) health: Arc<Health>,
    pub(crate) link: Weak<Link>,
}

impl AsyncPushSender for Pushes {
    fn send(&self, push: PushInfo) -> Result<(), SendError> {
        match push.kind {
            PushKind::Invalidate => self.invalidate(push.data.first()),
            PushKind::Message | PushKind::SMessage => self.on_message(&push.data),
            // A slot was moved away, and the channel with it. The library takes this push for the
            // answer to the oldest request, and gives each later answer to the wrong request. So no
            // answer counts from here on.
            PushKind::SUnsubscribe => {
                self.health.desynchronized.store(true, Ordering::Release);
                self.client.mark_broken(&self.health);
            }
            _ => {}
        }
        Ok(())
    }
}

impl Pushes {
    pub(crate) fn invalidate(&self, keys: Option<&Answer>) {
        match keys {
            Some(Answer::Array(keys)) => {
                for key in keys {
                    match key {
                        Answer::BulkString(key) => {
                            // Ours are all UTF-8.
                            if let Ok(key) = std::str::from_utf8(key) {
                                self.client.waiters.signal(key);
                            }
                        }
                        _ => self.client.waiters.signal_all(),
                    }
                }
            }
            // All keys are gone.
            _ => self.client.waiters.signal_all(),
        }
    }

    pub(crate) fn on_message(&self, message: &[Answer]) {
        if let [Answer::BulkString(channel), Answer::BulkString(text)] = message
            && let Some((channel, [b':', _, _, _])) = channel.split_last_chunk()
            && self.client.id.as_ref().is_some_and(|id| channel.ends_with(id.as_bytes()))
            && let Ok(text) = std::str::from_utf8(text)
        {
            let unclaimed = self.client.queues.on_message(text, *self.health.clock());
            if let Some((unclaimed, link)) = unclaimed.zip(self.link.upgrade()) {
                tokio::spawn(link.give_back(unclaimed));
            }
        }
    }
}

impl Drop for Pushes {
    /// Marks the connection as broken: its task has failed, or its runtime has ended.
    fn drop(&mut self) {
        self.client.mark_broken(&self.health);
    }
}
