//! What a backend brings along to be checked.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lock_core::faults::{Call, FaultInjector, Injection};
use lock_core::{Backend, Capabilities, LockName};

use crate::network::Network;

/// Asked before each call of a injected client.
pub type Script = Box<dyn Fn(&Call<'_>) -> Injection + Send + Sync>;

/// What becomes of a server's files when it is restarted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepData {
    /// They stay.
    Yes,
    /// They are deleted.
    No,
}

/// Which clock the checks run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockMode {
    /// A paused one that jumps: for backends without sockets, files and threads.
    Paused,
    /// The real one.
    Real,
}

/// One lock space of a backend, made afresh for each trial and thrown away after it.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Which clock the checks run on.
    fn clock_mode(&self) -> ClockMode;

    /// A client of the lock space with a connection of its own.
    async fn client(&self) -> Arc<dyn Backend>;

    /// A client that can die as a process does that is killed: without a farewell. Where dropping a client
    /// says none, that is how it dies.
    async fn crashable_client(&self) -> CrashableClient {
        CrashableClient::new(self.client().await, || ())
    }

    /// A client whose calls are injected as `script` says.
    async fn client_with_faults(&self, script: Script) -> Arc<dyn Backend> {
        Arc::new(FaultInjector::new(self.client().await, script))
    }

    /// The client of a process of a simulation, numbered from zero. By default one whose
    /// calls are injected as `script` says.
    async fn client_of(&self, process: usize, script: Script) -> Arc<dyn Backend> {
        let _ = process;
        self.client_with_faults(script).await
    }

    /// Removes a held lock behind everybody's back, as an operator or an eviction would. False if
    /// this harness cannot; the laws about it are then checked by breaking the lock, if the backend
    /// can do that, and otherwise shown as ignored.
    async fn evict(&self, name: &LockName) -> bool {
        let _ = name;
        false
    }

    /// Whether [`evict`](Self::evict) works.
    fn can_evict(&self) -> bool {
        false
    }

    /// Forgets every lock, as a server does that restarts without its data. False if this harness cannot.
    async fn lose_data(&self) -> bool {
        false
    }

    /// The network on which the checks of chapter 12 cut, delay and swallow what
    /// [distant clients](Self::proxied_client) and the server say to each other. `None`: these checks
    /// are shown as ignored.
    fn network(&self) -> Option<&Network> {
        None
    }

    /// A client whose connection goes through [`network`](Self::network).
    async fn proxied_client(&self) -> Arc<dyn Backend> {
        self.client().await
    }

    /// The server's process, if the checks may stop and kill it.
    fn server(&self) -> Option<&dyn ServerProcess> {
        None
    }
}

/// A client, and how it dies.
pub struct CrashableClient {
    client: Arc<dyn Backend>,
    before_crash: Box<dyn FnOnce() + Send>,
}

impl CrashableClient {
    /// `before_crash` is what happens before `client` is dropped: it keeps the server from hearing of that.
    #[must_use]
    pub fn new(client: Arc<dyn Backend>, before_crash: impl FnOnce() + Send + 'static) -> Self {
        Self { client, before_crash: Box::new(before_crash) }
    }

    /// The client, alive.
    #[must_use]
    pub fn client(&self) -> &dyn Backend {
        &*self.client
    }

    /// All that a dead process had is gone: its connections, its files, its memory.
    pub fn crash(self) {
        (self.before_crash)();
    }
}

impl fmt::Debug for CrashableClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CrashableClient").field(&self.client).finish()
    }
}

/// A server's process, as the checks of chapter 13 treat it. The calls may block for milliseconds, a
/// restart for longer.
pub trait ServerProcess: Send + Sync {
    /// Stops it as SIGSTOP does: connections stay open, and nothing is answered.
    fn stop(&self);

    /// Lets it go on.
    fn cont(&self);

    /// Ends it as SIGKILL does.
    fn kill(&self);

    /// Starts it again at the same address, without its data if so asked. It answers when this returns.
    fn restart(&self, keep_data: KeepData);

    /// Whether a restart that keeps data brings back those of the last [`save`](Self::save).
    fn can_save(&self) -> bool {
        false
    }

    /// Saves its data.
    fn save(&self) {}
}

/// What a check can count on: what the backend declares, and what the harness brings along.
#[derive(Clone, Debug)]
pub struct TestEnv {
    /// What the backend declares.
    pub caps: Capabilities,
    /// [`Harness::evict`] works.
    pub can_evict: bool,
    /// There is a [`Harness::network`].
    pub network: bool,
    /// There is a [`Harness::server`].
    pub server: bool,
    /// [`ServerProcess::save`] works.
    pub can_save: bool,
}

impl TestEnv {
    /// Asks the harness for a client, to learn what is declared.
    pub async fn of(harness: &dyn Harness) -> Self {
        Self {
            caps: harness.client().await.capabilities(),
            can_evict: harness.can_evict(),
            network: harness.network().is_some(),
            server: harness.server().is_some(),
            can_save: harness.server().is_some_and(ServerProcess::can_save),
        }
    }
}
