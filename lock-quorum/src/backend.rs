//! The verbs.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, Hold, Identity, LetGo, Listed, LockState, Mode, Release,
    Renewal, Wake,
};
use lock_core::clock::sleep_between;
use lock_core::{Capabilities, LockName, OwnerId, Support};

use crate::quorum::{Inner, Quorum};
use crate::round::Round;

/// Who was told to look and came too late comes up to so much later the next time, doubled each time up to this
/// often: the more there are, the fewer come at once.
const SHORTEST_TURN: Duration = Duration::from_millis(1);
const MAX_DOUBLINGS: u32 = 5;

#[async_trait]
impl Backend for Quorum {
    fn capabilities(&self) -> Capabilities {
        self.inner.caps
    }

    /// A quorum is no server.
    async fn identity(&self) -> Result<Option<Identity>, Fault> {
        Ok(None)
    }

    async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        let caps = &self.inner.caps;
        if claim.mode != Mode::Exclusive {
            return Err(Fault::unsupported("this mode"));
        }
        if claim.hold == Hold::Detached && caps.detached == Support::Absent {
            return Err(Fault::unsupported("detached holds"));
        }
        let candidacy = self.inner.book.find_or_open(claim, self.inner.members.len());
        Round::new(&self.inner, &candidacy, claim).run().await
    }

    /// Waits at the first of the members that refused the claim. It only gives hints: nobody queues anywhere.
    async fn wait(&self, claim: &Claim) -> Result<Wake, Fault> {
        let inner = &self.inner;
        let candidacy = inner.book.find_or_open(claim, inner.members.len());
        let (keep_away, mut told_by) = {
            let notes = candidacy.notes();
            (notes.keep_away, notes.refused_by.clone())
        };
        if let Some(at_most) = keep_away {
            sleep_between(Duration::ZERO, at_most).await;
            return Ok(Wake::Look);
        }
        let first = inner.first_for(&claim.name);
        if told_by.is_empty() {
            told_by = (first..inner.members.len()).chain(0..first).collect();
        }
        let mut told = Err(Fault::unsupported("waiting"));
        for member in told_by {
            told = inner.wait_at(member, claim).await.map(|()| member == first);
            if told.is_ok() {
                break;
            }
        }
        let at_most = {
            let mut notes = candidacy.notes();
            notes.called = told?;
            notes
                .refusals
                .checked_sub(1)
                .map(|times| SHORTEST_TURN * 2_u32.pow(times.min(MAX_DOUBLINGS)))
        };
        // All who wait are told at once, and one of them gets it.
        if let Some(at_most) = at_most {
            sleep_between(Duration::ZERO, at_most).await;
        }
        Ok(Wake::Look)
    }

    async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        if claims.is_empty() {
            return Vec::new();
        }
        self.inner.renew(claims).await
    }

    async fn release(&self, claim: &Claim, how: LetGo) -> Result<Release, Fault> {
        self.inner.release(claim, how).await
    }

    async fn inspect(&self, name: &LockName) -> Result<LockState, Fault> {
        if self.inner.caps.inspecting == Support::Absent {
            return Err(Fault::unsupported("inspect"));
        }
        self.inner.inspect(name).await
    }

    /// Pages of several members do not make a page.
    async fn list(
        &self,
        _prefix: &str,
        _after: Option<&LockName>,
        _limit: usize,
    ) -> Result<Vec<Listed>, Fault> {
        Err(Fault::unsupported("list"))
    }

    async fn break_lock(&self, name: &LockName, expected: &OwnerId) -> Result<bool, Fault> {
        if self.inner.caps.breaking == Support::Absent {
            return Err(Fault::unsupported("break"));
        }
        self.inner.break_lock(name, expected).await
    }
}

impl Inner {
    /// Returns when another attempt may be worthwhile at this member.
    async fn wait_at(self: &Arc<Self>, member: usize, claim: &Claim) -> Result<(), Fault> {
        let backend = self.backend(member, claim.ttl).await?;
        let mut asked = claim.clone();
        (asked.queue, asked.ticket, asked.floor) = (false, None, None);
        backend.wait(&asked).await.map(|_| ())
    }
}
