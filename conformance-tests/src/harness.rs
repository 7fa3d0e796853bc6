//! The harness of a backend: clients, a network and a server for the checks.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use lock_core::faults::{Call, FaultInjector, Injection};
use lock_core::{Backend, Capabilities, LockName};

use crate::network::Network;

/// Decides before each call of a client which fault to inject.
pub type Script = Box<dyn Fn(&Call<'_>) -> Injection + Send + Sync>;

/// The fate of a server's files at a restart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeepData {
    /// The files stay.
    Yes,
    /// The files are deleted.
    No,
}

/// The clock that the checks run on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClockMode {
    /// A paused clock that jumps: for backends without sockets, files and threads.
    Paused,
    /// The real clock.
    Real,
}

/// A lock space of a backend, made anew for each trial and discarded after it.
#[async_trait]
pub trait Harness: Send + Sync + 'static {
    /// Returns the clock that the checks run on.
    fn clock_mode(&self) -> ClockMode;

    /// Returns a client of the lock space with a connection of its own.
    async fn client(&self) -> Arc<dyn Backend>;

    /// Returns a client that can crash like a killed process, without telling the server.
    ///
    /// By default a crash drops the client. That suffices where a drop sends nothing.
    async fn crashable_client(&self) -> CrashableClient {
        CrashableClient::new(self.client().await, || ())
    }

    /// Returns a client whose calls fail as `script` says.
    async fn client_with_faults(&self, script: Script) -> Arc<dyn Backend> {
        Arc::new(FaultInjector::new(self.client().await, script))
    }

    /// Returns the client of a simulated process, numbered from zero.
    ///
    /// By default its calls fail as `script` says.
    async fn client_of(&self, process: usize, script: Script) -> Arc<dyn Backend> {
        let _ = process;
        self.client_with_faults(script).await
    }

    /// Removes a held lock on the server, as an operator or an eviction would.
    ///
    /// Returns false if this harness cannot. The laws about removal are then checked by breaking
    /// the lock. They are shown as ignored if the backend cannot break locks either.
    async fn evict(&self, name: &LockName) -> bool {
        let _ = name;
        false
    }

    /// Returns whether [`evict`](Self::evict) works.
    fn can_evict(&self) -> bool {
        false
    }

    /// Forgets every lock, as a server does that restarts without its data.
    ///
    /// Returns false if this harness cannot.
    async fn lose_data(&self) -> bool {
        false
    }

    /// Returns the network on which the checks of chapter 12 cut, delay and swallow the bytes of
    /// [proxied clients](Self::proxied_client) and the server.
    ///
    /// With `None` these checks are shown as ignored.
    fn network(&self) -> Option<&Network> {
        None
    }

    /// Returns a client whose connection goes through [`network`](Self::network).
    async fn proxied_client(&self) -> Arc<dyn Backend> {
        self.client().await
    }

    /// Returns the server's process, if the checks may stop and kill it.
    fn server(&self) -> Option<&dyn ServerProcess> {
        None
    }
}

/// A client that can crash.
pub struct CrashableClient {
    client: Arc<dyn Backend>,
    before_crash: Box<dyn FnOnce() + Send>,
}

impl CrashableClient {
    /// Wraps `client`. `before_crash` runs before its drop, and hides the drop from the server.
    #[must_use]
    pub fn new(client: Arc<dyn Backend>, before_crash: impl FnOnce() + Send + 'static) -> Self {
        Self { client, before_crash: Box::new(before_crash) }
    }

    /// Returns the client before the crash.
    #[must_use]
    pub fn client(&self) -> &dyn Backend {
        &*self.client
    }

    /// Crashes the client: its connections, files and memory are gone.
    pub fn crash(self) {
        (self.before_crash)();
    }
}

impl fmt::Debug for CrashableClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CrashableClient").field(&self.client).finish()
    }
}

/// A server's process, as the checks of chapter 13 treat it.
///
/// The calls may block for milliseconds, a restart for longer.
pub trait ServerProcess: Send + Sync {
    /// Stops the process as SIGSTOP does: connections stay open, and no request is answered.
    fn stop(&self);

    /// Continues the process as SIGCONT does.
    fn cont(&self);

    /// Kills the process as SIGKILL does.
    fn kill(&self);

    /// Starts the process again at the same address, with or without its data.
    ///
    /// The server answers when this returns.
    fn restart(&self, keep_data: KeepData);

    /// Returns whether a restart that keeps data restores those of the last [`save`](Self::save).
    fn can_save(&self) -> bool {
        false
    }

    /// Saves the server's data.
    fn save(&self) {}
}

/// The capabilities of a backend and the facilities of its harness.
#[derive(Clone, Debug)]
pub struct TestEnv {
    /// The capabilities that the backend declares.
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
    /// Reads the capabilities from a client of the harness.
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
