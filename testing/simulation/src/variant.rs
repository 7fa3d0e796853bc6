//! The backend of one run: with a fast clock, or without a queue.

use std::time::Duration;

use async_trait::async_trait;
use lock_core::backend::{Attempt, Claim, Fault, Grant, Lease, OnContention, Renewal, Wake};
use lock_core::layer::Layer;
use lock_core::{Backend, Capabilities, Order, Support, Wakeup};

/// A client of the backend of a run. A server with a fast clock ends a lease before the time that
/// its clients know.
#[derive(Debug)]
pub(super) struct Variant {
    /// The rate by which the server's clock is too fast, in ten-thousandths.
    pub(super) drift: u32,
    /// True without a queue and a minimum hold: core implements both.
    pub(super) is_queueless: bool,
}

impl Variant {
    fn on_the_server(&self, claim: &Claim) -> Claim {
        let mut claim = claim.clone();
        if self.is_queueless {
            claim.on_contention = OnContention::Return;
        }
        claim.ttl = claim.ttl * 10_000 / (10_000 + self.drift);
        claim
    }

    fn reported(&self, of_server: Duration) -> Duration {
        of_server * (10_000 + self.drift) / 10_000
    }

    fn grant(&self, mut grant: Grant) -> Grant {
        if let Lease::For(lease) = grant.lease {
            grant.lease = Lease::For(self.reported(lease));
        }
        grant
    }
}

#[async_trait]
impl Layer for Variant {
    fn capabilities(&self, inner: &dyn Backend) -> Capabilities {
        let mut caps = inner.capabilities();
        if self.is_queueless {
            caps.order = Order::PerProcess;
            caps.wakeup = Wakeup::Signal;
            caps.minimum_hold = Support::Absent;
        }
        caps
    }

    async fn try_acquire(&self, inner: &dyn Backend, claim: &Claim) -> Result<Attempt, Fault> {
        Ok(match inner.try_acquire(&self.on_the_server(claim)).await? {
            Attempt::Acquired(grant) => Attempt::Acquired(self.grant(grant)),
            Attempt::Contended { expires_in } => {
                Attempt::Contended { expires_in: expires_in.map(|left| self.reported(left)) }
            }
        })
    }

    async fn wait(&self, inner: &dyn Backend, claim: &Claim) -> Result<Wake, Fault> {
        Ok(match inner.wait(&self.on_the_server(claim)).await? {
            Wake::Granted(grant) => Wake::Granted(self.grant(grant)),
            other => other,
        })
    }

    async fn renew(&self, inner: &dyn Backend, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let claims: Vec<Claim> = claims.iter().map(|claim| self.on_the_server(claim)).collect();
        let answers = inner.renew(&claims.iter().collect::<Vec<_>>()).await;
        let reported = |renewal| match renewal {
            Renewal::Held(grant) => Renewal::Held(self.grant(grant)),
            Renewal::NotHeld => Renewal::NotHeld,
        };
        answers.into_iter().map(|answer| answer.map(reported)).collect()
    }
}
