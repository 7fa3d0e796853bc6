//! Every law on a real server, one server for each trial.

use std::process::ExitCode;
use std::sync::Arc;

use async_trait::async_trait;
use conformance_tests::{Harness, Pace, Suite};
use lock_core::{Backend, LockName, Wakeup};

mod support;

use support::Server;

struct OnServer {
    server: Server,
    /// Whether clients may ask to be told of changes.
    has_signals: bool,
}

impl OnServer {
    fn new(has_signals: bool) -> Self {
        let server = Server::start();
        if !has_signals {
            let _: String = server.run("ACL SETUSER default -client|tracking");
        }
        Self { server, has_signals }
    }
}

#[async_trait]
impl Harness for OnServer {
    fn pace(&self) -> Pace {
        Pace::Real
    }

    async fn client(&self) -> Arc<dyn Backend> {
        let client = self.server.client().await;
        let polls = client.capabilities().wakeup == Wakeup::Poll;
        assert_eq!(polls, !self.has_signals);
        Arc::new(client)
    }

    async fn evict(&self, name: &LockName) -> bool {
        // The names of the checks are plain, so they are the keys.
        self.server.command::<u64>(&["DEL", name.as_str()]) == 1
    }

    fn can_evict(&self) -> bool {
        true
    }
}

fn main() -> ExitCode {
    conformance_tests::run(&[
        Suite::new("redis", || Box::new(OnServer::new(true))),
        Suite::new("redis_without_signals", || Box::new(OnServer::new(false))),
    ])
}
