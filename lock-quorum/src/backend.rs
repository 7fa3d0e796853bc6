//! The verbs.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{
    Attempt, Backend, Claim, Fault, Hold, Identity, LetGo, Listed, LockState, Release, Renewal,
    Wake,
};
use lock_core::clock::{sleep, sleep_between};
use lock_core::{Capabilities, LockName, OwnerId, Support};

use crate::quorum::{Inner, Quorum};
use crate::round::Round;

/// How much later the first member may tell of a release than another one.
const FIRST_IS_LATE: Duration = Duration::from_millis(5);

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
        claim.must_be_exclusive()?;
        if claim.hold == Hold::Detached && caps.detached == Support::Absent {
            return Err(Fault::unsupported("detached holds"));
        }
        let candidacy = self.inner.book.find_or_open(claim, self.inner.members.len());
        Round::new(&self.inner, &candidacy, claim).run().await
    }

    /// Waits at two of the members that refused the claim: what stands at one of them may be a stray vote. They
    /// only give hints: nobody queues anywhere.
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
            told_by = vec![first, (first + 1) % inner.members.len()];
        }
        let mut one = pin!(inner.wait_at(told_by[0], claim));
        let Some(&second) = told_by.get(1) else {
            one.await?;
            candidacy.notes().called = told_by[0] == first;
            return Ok(Wake::Look);
        };
        let mut other = pin!(inner.wait_at(second, claim));
        let first_told = tokio::select! {
            biased;
            told = &mut one => match told {
                Ok(()) => true,
                Err(_) => {
                    other.await?;
                    false
                }
            },
            told = &mut other => match told {
                Ok(()) => tokio::select! {
                    biased;
                    told = &mut one => told.is_ok(),
                    () = sleep(FIRST_IS_LATE) => false,
                },
                Err(_) => {
                    one.await?;
                    true
                }
            },
        };
        let at_most = {
            let mut notes = candidacy.notes();
            notes.called = first_told && told_by[0] == first;
            let times = notes.refusals.checked_sub(1);
            times.map(|times| SHORTEST_TURN * 2_u32.pow(times.min(MAX_DOUBLINGS)))
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
