//! Backends around other backends: a [`Layer`] changes some verbs and forwards the others.
//!
//! ```
//! use std::sync::Arc;
//!
//! use lock_core::layer::{Layer, Layered};
//! use lock_core::{Backend, Capabilities, Memory, Support};
//!
//! #[derive(Debug)]
//! struct WithoutList;
//! impl Layer for WithoutList {
//!     fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
//!         inner.capabilities().listing(Support::Absent)
//!     }
//! }
//! let backend = Layered::new(Arc::new(Memory::new()), WithoutList);
//! assert_eq!(backend.capabilities().listing, Support::Absent);
//! ```

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;

use crate::backend::Capabilities;
use crate::backend::{
    Attempt, Backend, Claim, Fault, Identity, Listed, LockState, Release, ReleaseMode, Renewal,
    Wake,
};
use crate::executor::Executor;
use crate::name::LockName;
use crate::owner::OwnerId;

/// The changes that one backend makes to the verbs of another one. Each verb forwards by default.
#[async_trait]
pub trait Layer: fmt::Debug + Send + Sync + 'static {
    /// Runs each time the layer is put around a backend, on the thread that does so.
    fn attach(&self) {}

    /// Returns the capabilities to declare.
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        inner.capabilities()
    }

    /// Changes [`Backend::identity`].
    async fn identity(&self, inner: &dyn Backend) -> Result<Option<Identity>, Fault> {
        inner.identity().await
    }

    /// Changes [`Backend::try_acquire`].
    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        inner.try_acquire(claim).await
    }

    /// Changes [`Backend::wait`].
    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        inner.wait(claim).await
    }

    /// Changes [`Backend::wait_lost`].
    async fn wait_lost(&self, inner: &dyn Backend, claim: &Claim) -> Result<(), Fault> {
        inner.wait_lost(claim).await
    }

    /// Changes [`Backend::renew`].
    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        inner.renew(claims).await
    }

    /// Changes [`Backend::release`].
    async fn release(
        &self,
        inner: &dyn Backend,
        claim: &Claim,
        mode: ReleaseMode,
    ) -> Result<Release, Fault> {
        inner.release(claim, mode).await
    }

    /// Changes [`Backend::inspect`].
    async fn inspect(&self, inner: &dyn Backend, name: &LockName) -> Result<LockState, Fault> {
        inner.inspect(name).await
    }

    /// Changes [`Backend::list`].
    async fn list(
        &self,
        inner: &dyn Backend,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        inner.list(prefix, after, limit).await
    }

    /// Changes [`Backend::break_lock`].
    async fn break_lock(
        &self,
        inner: &dyn Backend,
        name: &LockName,
        expected: &OwnerId,
    ) -> Result<bool, Fault> {
        inner.break_lock(name, expected).await
    }

    /// Returns where tasks run: by default, where those of the inner backend do.
    fn executor(&self, inner: &dyn Backend) -> Option<Executor> {
        inner.executor()
    }

    /// Formats the layered backend: by default, as the inner one.
    ///
    /// # Errors
    ///
    /// Those of the formatter.
    fn debug(&self, inner: &dyn Backend, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(inner, f)
    }
}

/// A backend with a [`Layer`] around it. Layered backends may share one layer and its state.
pub struct Layered<L: ?Sized> {
    inner: Arc<dyn Backend>,
    layer: Arc<L>,
}

impl<L: Layer + ?Sized> Layered<L> {
    /// Puts `layer` around `inner`.
    #[must_use]
    pub fn new(inner: Arc<dyn Backend>, layer: impl Into<Arc<L>>) -> Self {
        let layer = layer.into();
        layer.attach();
        Self { inner, layer }
    }

    /// Returns the layer.
    #[must_use]
    pub fn layer(&self) -> &L {
        &self.layer
    }
}

impl<L: ?Sized> Clone for Layered<L> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner), layer: Arc::clone(&self.layer) }
    }
}

impl<L: Layer + ?Sized> fmt::Debug for Layered<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.layer.debug(&*self.inner, f)
    }
}

#[async_trait]
impl<L: Layer + ?Sized> Backend for Layered<L> {
    fn capabilities(&self) -> Capabilities {
        self.layer.capabilities(&*self.inner)
    }

    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        self.layer.identity(&*self.inner).await
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        self.layer.try_acquire(&*self.inner, claim).await
    }

    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        self.layer.wait(&*self.inner, claim).await
    }

    async fn wait_lost(&self, claim: &Claim) -> Result<(), Fault> {
        self.layer.wait_lost(&*self.inner, claim).await
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        self.layer.renew(&*self.inner, claims).await
    }

    async fn release(&self, claim: &Claim, mode: ReleaseMode) -> Result<Release, Fault> {
        self.layer.release(&*self.inner, claim, mode).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        self.layer.inspect(&*self.inner, name).await
    }

    async fn list(
        &self,
        prefix: &str,
        after: Option<&LockName>,
        limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        self.layer.list(&*self.inner, prefix, after, limit).await
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        self.layer.break_lock(&*self.inner, name, expected).await
    }

    fn executor(&self) -> Option<Executor> {
        self.layer.executor(&*self.inner)
    }
}
