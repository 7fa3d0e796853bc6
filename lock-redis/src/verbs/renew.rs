//! Renewals: in batches on one server, one by one in a cluster.

use std::iter::zip;
use std::time::Duration;

use lock_core::backend::{Claim, Fault, Renewal};
use lock_core::clock::Moment;

use crate::backend::{Inner, Redis};
use crate::connection::client_state::ClientState;
use crate::fault::unexpected_answer;
use crate::keys::LockKeys;
use crate::limits::{TOKEN_RETENTION, duration, millis};
use crate::scripts::Call;
use crate::topology::request::{Request, Response};
use crate::topology::servers::all;
use crate::verbs::held::{HeldLock, held};

/// Claims in one renewal script: the server does nothing else meanwhile.
const MAX_BATCH: usize = 64;

impl Redis {
    pub(crate) async fn renew_claims(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        if self.inner.servers.are_many() {
            let mut answers = Vec::with_capacity(claims.len());
            for batch in claims.chunks(MAX_BATCH) {
                answers.extend(all(batch.iter().map(|claim| self.renew_alone(claim))).await);
            }
            return answers;
        }
        let mut answers: Vec<_> = claims.iter().map(|_| None).collect();
        let (plain, mut others) = self.sorted(claims);
        for batch in plain.chunks(MAX_BATCH) {
            match self.renew_plain(claims, batch).await {
                Ok(renewals) => {
                    zip(batch, renewals).for_each(|(&(at, _), renewal)| match renewal {
                        Some(renewal) => answers[at] = Some(renewal),
                        None => others.push(at),
                    });
                }
                Err(fault) => {
                    batch.iter().for_each(|&(at, _)| answers[at] = Some(Err(fault.repeated())));
                }
            }
        }
        for batch in others.chunks(MAX_BATCH) {
            let asked: Vec<_> = batch.iter().map(|&at| claims[at]).collect();
            match self.renew_batch(&asked).await {
                Ok(renewals) => {
                    zip(batch, renewals).for_each(|(&at, renewal)| answers[at] = Some(renewal));
                }
                Err(fault) => {
                    batch.iter().for_each(|&at| answers[at] = Some(Err(fault.repeated())));
                }
            }
        }
        answers.into_iter().flatten().collect()
    }

    /// Separates the plain renewals from the others. A plain renewal changes nothing but the end of
    /// the lease, and all plain ones have the same ttl.
    fn sorted<'a>(&self, claims: &[&'a Claim]) -> (Vec<(usize, &'a HeldLock)>, Vec<usize>) {
        let now = Moment::now();
        let (mut plain, mut others) = (Vec::with_capacity(claims.len()), Vec::new());
        let mut ttl = None;
        for (at, claim) in claims.iter().enumerate() {
            match held(claim) {
                Some(held)
                    if held.is_stored
                        && !self.prolongs_token_key(held, claim.ttl, now)
                        && self.inner.servers.client.queues.position(&claim.owner).is_none()
                        && *ttl.get_or_insert(claim.ttl) == claim.ttl =>
                {
                    plain.push((at, held));
                }
                _ => others.push(at),
            }
        }
        // It is not worth a request of its own where it costs none.
        let (few, room) = (plain.len() % MAX_BATCH, others.len() % MAX_BATCH);
        if room > 0 && few + room <= MAX_BATCH {
            others.extend(plain.drain(plain.len() - few..).map(|(at, _)| at));
        }
        (plain, others)
    }

    /// Renews a batch of the plain ones. Where the server finds anything unusual it leaves them as
    /// they are: `None`.
    async fn renew_plain(
        &self,
        claims: &[&Claim],
        batch: &[(usize, &HeldLock)],
    ) -> Result<Vec<Option<Result<Renewal, Fault>>>, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let locks = batch.iter().map(|&(at, _)| keys.of(&claims[at].name));
        let locks = locks.collect::<Result<Vec<_>, _>>()?;
        let (Some(some), Some(&(first, _))) = (locks.first(), batch.first()) else {
            return Ok(Vec::new());
        };
        let ttl = claims[first].ttl;
        let locks: Vec<_> = locks.iter().map(LockKeys::lock).collect();
        let mut call = Call::new(&servers.client.scripts().quick_renew, &locks);
        call.arg(millis(ttl));
        for &(at, held) in batch {
            call.arg(format!("{} {}", claims[at].owner.expose(), held.token));
        }
        let done = servers.run::<Vec<usize>>(&Request::new("renew", some, &call)).await?;
        let Response { asked, connection, answer: others, .. } = done;
        let renewed = |(token, &(_, held)): (usize, &(usize, &HeldLock))| {
            let held = HeldLock { connection: connection.id(), is_new: false.into(), ..*held };
            (!others.contains(&token)).then(|| held.grant(ttl, asked).map(Renewal::Held))
        };
        Ok((1..).zip(batch).map(renewed).collect())
    }

    /// Renews a batch of locks that are all on one server.
    pub(crate) async fn renew_batch(
        &self,
        claims: &[&Claim],
    ) -> Result<Vec<Result<Renewal, Fault>>, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let ClientState { queues, .. } = &*servers.client;
        let keys = claims.iter().map(|claim| keys.of(&claim.name));
        let keys = keys.collect::<Result<Vec<_>, _>>()?;
        let Some(some) = keys.first() else { return Ok(Vec::new()) };
        let all: Vec<_> = keys.iter().flat_map(LockKeys::all).collect();
        let mut call = Call::new(&servers.client.scripts().renew, &all);
        let prolonged: Vec<_> = claims.iter().map(|claim| self.add(&mut call, claim)).collect();
        let request = Request::new("renew", some, &call).replicated(self.inner.waits_for_replicas);
        let done = servers.run::<Vec<(String, i64)>>(&request).await?;
        let Response { asked, connection, answer: answers, missing, .. } = done;
        if answers.len() != claims.len() {
            return Err(unexpected_answer("renew", format!("{} answers", answers.len())));
        }
        claims.iter().for_each(|claim| queues.hold(&claim.owner));
        let renewals = claims.iter().zip(prolonged).zip(answers);
        let renewals = renewals.map(|((claim, prolonged), answer)| match &missing {
            Some(missing) if !answer.0.is_empty() => Err(missing.repeated()),
            _ => renewed(claim, asked, connection.id(), prolonged, answer),
        });
        Ok(renewals.collect())
    }

    /// Renews a lock that shares its server with others by chance. While the keys of its slot move
    /// to another member, one after the other, its own key is renewed alone: it is always on some
    /// member.
    async fn renew_alone(&self, claim: &Claim) -> Result<Renewal, Fault> {
        let Inner { keys, servers, .. } = &*self.inner;
        let keys = keys.of(&claim.name)?;
        let script = &servers.client.scripts().renew;
        let mut call = Call::new(script, &keys.all());
        let prolonged = self.add(&mut call, claim);
        let mut alone = Call::new(script, &[keys.lock(); 5]);
        alone.arg(claim.owner.expose()).arg(millis(claim.ttl)).arg(0).arg("").arg("");
        let request = Request::new("renew", &keys, &call).with_fallback(&alone);
        let request = request.replicated(self.inner.waits_for_replicas);
        let mut done = servers.run::<Vec<(String, i64)>>(&request).await?;
        let (Some(answer), 0) = (done.answer.pop(), done.answer.len()) else {
            return Err(unexpected_answer("renew", "another number of answers"));
        };
        if !done.fallback {
            servers.client.queues.hold(&claim.owner);
        }
        if let Some(missing) = done.missing.filter(|_| !answer.0.is_empty()) {
            return Err(missing);
        }
        let prolonged = prolonged && !done.fallback;
        renewed(claim, done.asked, done.connection.id(), prolonged, answer)
    }

    /// Adds the renewal of a claim to a call that has its keys. Returns true if its token key is to
    /// be prolonged.
    pub(crate) fn add(&self, call: &mut Call, claim: &Claim) -> bool {
        let now = Moment::now();
        let prolong = held(claim).is_none_or(|held| self.prolongs_token_key(held, claim.ttl, now));
        call.arg(claim.owner.expose()).arg(millis(claim.ttl)).arg(i32::from(prolong));
        // A claim that was sent its grant and has not answered is still known as a waiter.
        let position = self.inner.servers.client.queues.position(&claim.owner);
        call.arg(position.map(|position| position.entry.to_string()).unwrap_or_default());
        let not_stored = held(claim).filter(|held| !held.is_stored);
        call.arg(not_stored.map(|held| held.token.to_string()).unwrap_or_default());
        prolong
    }

    /// Returns true if the token key is to be prolonged. With replicas to wait for, each renewal
    /// needs a write that they acknowledge.
    fn prolongs_token_key(&self, held: &HeldLock, ttl: Duration, now: Moment) -> bool {
        self.inner.waits_for_replicas || held.token_key_expires_soon(now, ttl)
    }
}

/// Converts the server's answer to a renewal that was sent at `asked` on that connection.
pub(crate) fn renewed(
    claim: &Claim,
    asked: Moment,
    connection: u64,
    prolonged: bool,
    (token, ms): (String, i64),
) -> Result<Renewal, Fault> {
    if token.is_empty() {
        return Ok(Renewal::NotHeld);
    }
    let lease = duration(ms).unwrap_or(claim.ttl);
    let token = token.parse().map_err(|e| unexpected_answer("renew", e))?;
    let (token_key_until, script_token) = match held(claim) {
        Some(held) if !prolonged => (held.token_key_until, held.script_token),
        _ => (asked + lease + TOKEN_RETENTION * 2, token),
    };
    let held = HeldLock {
        token,
        token_key_until,
        script_token,
        connection,
        is_new: false.into(),
        is_stored: true,
    };
    held.grant(lease, asked).map(Renewal::Held)
}
