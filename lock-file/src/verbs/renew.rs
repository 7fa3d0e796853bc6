//! Renewals.

use lock_core::FencingToken;
use lock_core::backend::{Claim, Fault, Grant, HoldKind, Renewal};
use lock_core::clock::{Moment, since_boot};

use crate::config::FileLocks;
use crate::fault::with_unknown_effect;
use crate::verbs::lease::RequestTime;

impl FileLocks {
    /// Renews each claim: a lease in the file, or a kernel lock whose file is still in place.
    pub(crate) async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut answers = Vec::with_capacity(claims.len());
        for claim in claims {
            answers.push(match claim.hold {
                HoldKind::Detached => self.renew_detached(claim).await,
                _ => self.renew_guarded(claim),
            });
        }
        answers
    }

    /// Confirms a kernel lock.
    fn renew_guarded(&self, claim: &Claim) -> Result<Renewal, Fault> {
        let asked = Moment::now();
        let Some((held, token)) = self.inner.claims.find(claim) else {
            return Ok(Renewal::NotHeld);
        };
        if !held.is_in_place()? {
            return Ok(Renewal::NotHeld);
        }
        // Only a claim that has lost its ticket gets a new one.
        Ok(Renewal::Held(if claim.ticket.is_some() {
            Self::process_grant(token, asked)
        } else {
            self.grant(claim, held, token, asked)
        }))
    }

    /// Extends the lease in the lock file. A shorter lease leaves its end unchanged.
    async fn renew_detached(&self, claim: &Claim) -> Result<Renewal, Fault> {
        let asked = RequestTime::now();
        let path = self.path_of(&claim.name);
        let Some((file, mut record)) = self.open_lease(&path, &claim.owner).await? else {
            return Ok(Renewal::NotHeld);
        };
        let lease = record.holder.as_mut().and_then(|holder| holder.lease.as_mut());
        let token = record.number.and_then(FencingToken::from_backend);
        let (Some(lease), Some(token)) = (lease, token) else {
            return Ok(Renewal::NotHeld);
        };
        lease.until = lease.until.max(since_boot() + claim.ttl);
        let left = asked.lease(lease);
        // A record that was half written is none.
        file.write(&record).map_err(with_unknown_effect)?;
        Ok(Renewal::Held(Grant::new(left, asked.at).with_token(token)))
    }
}
