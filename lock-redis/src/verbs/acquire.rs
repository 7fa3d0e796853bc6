//! Attempts: with a queue entry, and without one.

use lock_core::backend::{Attempt, Claim, Effect, Fault, FaultKind, Grant, ReleaseMode, Renewal};
use lock_core::{FencingToken, LockName, OwnerId, Wakeup};
use redis::{FromRedisValue, ParsingError, from_redis_value};

use crate::backend::{Inner, Redis};
use crate::clock;
use crate::connection::client_state::ClientState;
use crate::connection::handle::Connection;
use crate::fault::{self, unexpected_answer};
use crate::keys::LockKeys;
use crate::limits::{TOKEN_RETENTION, duration, millis};
use crate::queue::{QueuePosition, QueueReply, Queues};
use crate::scripts::Call;
use crate::topology::request::{Request, Response};
use crate::topology::servers::Servers;
use crate::value::shown;
use crate::verbs::held::HeldLock;
use crate::verbs::uncontended::{Uncontended, after_a_value};

/// Why a grant is none, if it was sent to a claim that did not wait then.
const GIVEN_BACK: &str = "the server sent the lock to this claim while it did not wait, and the client gives it back; try again";

/// Why a grant is none, if it was gone when replicas were asked for it.
const ENDED_EARLY: &str =
    "the lease ended before replicas knew of the lock; ask for a longer one, or look at the server";

/// A flag of a reply: the server had forgotten this process.
const PROCESS_IS_NEW: u8 = 1;

/// A flag of a reply: the claim is one of the first two in the queue.
const IS_NEXT: u8 = 2;

/// A flag of a reply: the entry of the claim was gone.
const WAS_REQUEUED: u8 = 4;

impl Redis {
    pub(crate) async fn acquire_claim(&self, claim: &Claim) -> Result<Attempt, Fault> {
        claim.must_be_exclusive()?;
        let (client, keys) = (&self.inner.servers.client, self.inner.keys.of(&claim.name)?);
        let waits = claim.queues() && client.is_fifo();
        // A claim that is queued asks as the queue needs it.
        let Uncontended { granted, may_have_its_value } =
            match waits && client.queues.has(&claim.owner) {
                true => Uncontended::NOTHING_DONE,
                false => self.attempt_uncontended(claim, &keys).await?,
            };
        // Larger than an attempt without a script, so these take no room in its future.
        let attempt = match granted {
            Some(attempt) => attempt,
            None if waits => Box::pin(self.enqueue(claim, &keys, may_have_its_value)).await?,
            None => Box::pin(self.attempt(claim, &keys, None, may_have_its_value)).await?.attempt,
        };
        match attempt {
            Attempt::Acquired(grant) if self.inner.waits_for_replicas => {
                // Larger than the rest of an attempt.
                Box::pin(self.confirm(claim, grant)).await
            }
            attempt => Ok(attempt),
        }
    }

    /// Queues the claim, and returns its reply from the server. Sends no request if another claim
    /// of this process has asked a moment ago: one claim asks for all of them.
    async fn enqueue(
        &self,
        claim: &Claim,
        keys: &LockKeys,
        may_have_its_value: bool,
    ) -> Result<Attempt, Fault> {
        let servers = &self.inner.servers;
        let queues = &servers.client.queues;
        let channel = servers.client.channel(keys).unwrap_or_default();
        let is_first_attempt = queues.enter(claim, keys.lock(), channel);
        let turn = if is_first_attempt { None } else { queues.turn(&claim.owner) };
        let _turn = match turn {
            Some(turn) => Some(turn.lock_owned().await),
            None => None,
        };
        if !is_first_attempt && let Some(expires_in) = queues.known_reply(&claim.owner) {
            return Ok(Attempt::Contended { expires_in });
        }
        let asking = PendingAttempt { queues, owner: &claim.owner, answered: false };
        let answer = self.attempt_queued(claim, keys, may_have_its_value).await;
        asking.answered(&answer);
        if is_first_attempt
            && answer.as_ref().is_err_and(|fault| fault.effect() == Effect::NotApplied)
        {
            // The server has no state of the claim, so core does not release it if it ends here.
            queues.leave(&claim.owner);
        }
        let outcome = answer.map_err(|fault| {
            match !is_first_attempt && servers.refuses_certificate(keys) {
                // Certificates are replaced while programs run: a queued claim waits for that, too.
                true => fault::as_outage(fault),
                false => fault,
            }
        })?;
        match outcome.reply {
            None if is_first_attempt && outcome.is_new => queues.leave(&claim.owner),
            None => queues.hold(&claim.owner),
            Some(reply) => {
                queues.on_reply(&claim.owner, &reply, || !outcome.connection.is_broken());
            }
        }
        Ok(outcome.attempt)
    }

    /// Asks for a queue entry. A free lock needs no subscription, which a cluster wants for each
    /// slot. So the first claim of this process first asks without an entry.
    async fn attempt_queued(
        &self,
        claim: &Claim,
        keys: &LockKeys,
        may_have_its_value: bool,
    ) -> Result<AttemptOutcome, Fault> {
        let Servers { client, .. } = &self.inner.servers;
        if !self.inner.servers.is_listening(keys) && client.queues.is_alone(&claim.owner) {
            // In a cluster only, so it takes no room in each future.
            let outcome = Box::pin(self.attempt(claim, keys, None, false)).await?;
            if matches!(outcome.attempt, Attempt::Acquired(_)) {
                return Ok(outcome);
            }
        }
        let position = client.queues.position(&claim.owner);
        self.attempt(claim, keys, position, may_have_its_value).await
    }

    /// Sends an attempt by the script. With a queue position, the outcome has the server's reply
    /// about it. The lock may have a value of the claim if one without the script came before.
    async fn attempt(
        &self,
        claim: &Claim,
        keys: &LockKeys,
        position: Option<QueuePosition>,
        may_have_its_value: bool,
    ) -> Result<AttemptOutcome, Fault> {
        let servers = &self.inner.servers;
        let ClientState { waiters, recent, .. } = &*servers.client;
        let arms_release_key =
            claim.queues() && position.is_none() && self.inner.wakeup == Wakeup::Signal;
        let call = acquire(&servers.client, claim, keys, position.as_ref(), arms_release_key);
        let mut request = Request::new("acquire", keys, &call);
        request.channel = position.as_ref().map(|position| position.entry.channel());
        let Response { asked, connection, answer, .. } = match servers.run(&request).await {
            Err(fault) if may_have_its_value => return Err(after_a_value(fault)),
            sent => sent?,
        };
        let AcquireReply(answer, token, ms, now, flags) = answer;
        if now > 0 {
            // By this the age of the next lock that is sent is known.
            connection.record_server_time(asked, now);
            clock::report(asked, now);
        }
        match answer {
            1 => {
                waiters.leave(&claim.owner);
                self.inner.warned.forget(keys.lock());
                let lease = duration(ms).unwrap_or(claim.ttl);
                let token = token.parse().map_err(|e| unexpected_answer("acquire", e))?;
                // The short form of the reply has no time.
                let is_new = now == 0;
                if !is_new && servers.client.queues.is_given_back(&claim.owner, token) {
                    // The attempt has prolonged it.
                    drop(Box::pin(self.release_claim(claim, ReleaseMode::now())).await);
                    return Err(Fault::unknown(FaultKind::Unavailable, GIVEN_BACK));
                }
                if is_new && claim.min_token.is_none() {
                    // The token of the short form is the server's time.
                    clock::report(asked, token);
                }
                let token_key_until = asked + lease + TOKEN_RETENTION;
                let held = HeldLock {
                    token,
                    token_key_until,
                    script_token: token,
                    connection: connection.id(),
                    is_new: is_new.into(),
                    is_stored: true,
                };
                let attempt = Attempt::Acquired(held.grant(lease, asked)?);
                Ok(AttemptOutcome { attempt, is_new, reply: None, connection })
            }
            0 | 2 => {
                recent.contended(keys.lock());
                let (holder_is_ours, expires_in) = (answer == 0, duration(ms));
                self.warn_if_stuck(&claim.name, keys.lock(), holder_is_ours, ms);
                let reply = match position {
                    None => None,
                    Some(_) => Some(QueueReply {
                        asked,
                        connection: connection.id(),
                        now,
                        arrival: token.parse().map_err(|e| unexpected_answer("acquire", e))?,
                        expires_in,
                        holder_is_ours,
                        is_next: flags & IS_NEXT != 0,
                        is_new: flags & PROCESS_IS_NEW != 0,
                        is_back: flags & WAS_REQUEUED != 0,
                    }),
                };
                let watches = match &reply {
                    Some(reply) => reply.is_next && !holder_is_ours,
                    None => claim.queues() && !servers.client.is_fifo(),
                };
                if watches {
                    waiters.enter(claim.owner, keys.watched_key(holder_is_ours));
                }
                let attempt = Attempt::Contended { expires_in };
                Ok(AttemptOutcome { attempt, is_new: false, reply, connection })
            }
            3 => Err(Fault::not_applied(FaultKind::Invalid, "this claim was let go before")),
            other => Err(unexpected_answer("acquire", other)),
        }
    }

    /// Keeps a grant if enough replicas know of it, and else undoes it.
    pub(crate) async fn confirm(&self, claim: &Claim, grant: Grant) -> Result<Attempt, Fault> {
        let mut claim = claim.clone();
        claim.ticket = grant.ticket;
        let answer =
            self.renew_batch(&[&claim]).await.and_then(|mut answers| match answers.pop() {
                Some(Ok(Renewal::Held(grant))) => Ok(grant),
                Some(Err(fault)) => Err(fault),
                _ => Err(Fault::unknown(FaultKind::Unavailable, ENDED_EARLY)),
            });
        let fault = match answer {
            Ok(mut known) => {
                // From before the attempt, though the server has counted anew since.
                known.since = grant.since;
                return Ok(Attempt::Acquired(known));
            }
            Err(fault) => fault,
        };
        let (kind, undone) = (fault.kind(), self.release_claim(&claim, ReleaseMode::now()).await);
        Err(match undone {
            Ok(_) => Fault::not_applied(kind, fault.into_source()),
            Err(_) => Fault::unknown(kind, fault.into_source()),
        })
    }

    /// Warns of a lock whose end no client with our settings can have set. Its key came back when
    /// the server's clock was set back, or was changed by hand. The longest lease of other
    /// libraries is unknown, except that a lock without an end outlives its holder.
    fn warn_if_stuck(&self, name: &LockName, key: &str, is_ours: bool, remaining_ms: i64) {
        let Inner { max_ttl, warned, .. } = &*self.inner;
        let remaining = duration(remaining_ms);
        if remaining_ms == -1 && warned.is_new(key) {
            tracing::warn!(
                lock.name = name.as_str(),
                redis.key = key,
                "the key of this lock has no expiry: if its holder is gone, nothing ends it; \
                 inspect it, and if nobody holds it, break the lock or delete the key"
            );
        } else if is_ours && remaining > Some(*max_ttl) && warned.is_new(key) {
            tracing::warn!(
                lock.name = name.as_str(),
                redis.key = key,
                lock.remaining = ?remaining.unwrap_or_default(),
                redis.max_ttl = ?max_ttl,
                "this lock is taken for longer than any client with this max_ttl asks for; \
                 inspect it, and if nobody holds it, break it"
            );
        }
    }
}

/// The outcome of an attempt.
pub(crate) struct AttemptOutcome {
    pub(crate) attempt: Attempt,
    /// The lock was free. Otherwise it may have been sent to this owner before.
    pub(crate) is_new: bool,
    /// For a queued claim.
    pub(crate) reply: Option<QueueReply>,
    pub(crate) connection: Connection,
}

/// The reply of `acquire.lua`.
pub(crate) struct AcquireReply(i64, String, i64, u64, u8);

impl FromRedisValue for AcquireReply {
    fn from_redis_value(answer: redis::Value) -> Result<Self, ParsingError> {
        if let redis::Value::BulkString(_) = answer {
            return Ok(Self(1, from_redis_value(answer)?, -1, 0, 0));
        }
        let (answer, token, ms, now, flags) = from_redis_value(answer)?;
        Ok(Self(answer, token, ms, now, flags))
    }
}

/// Builds the call of `acquire.lua`. Empty arguments at the end are left out. For a queued
/// claim, [`Request::channel`] adds the last one.
pub(crate) fn acquire(
    client: &ClientState,
    claim: &Claim,
    keys: &LockKeys,
    position: Option<&QueuePosition>,
    arms_release_key: bool,
) -> Call {
    let ([lock, token_key, queue, processes, release_key], tombstone) =
        (keys.all(), keys.tombstone(&claim.owner));
    let share_key = client.polling_share.map(|_| keys.share());
    let (release_key, count) = match (arms_release_key, &share_key) {
        (true, None) => (release_key, 6),
        (true, Some(_)) => (release_key, 7),
        (false, None) => ("", 5),
        (false, Some(share_key)) => (share_key.as_str(), 7),
    };
    let share_key = share_key.as_deref().unwrap_or_default();
    let keys = [lock, token_key, queue, processes, &tombstone, release_key, share_key];
    let mut call = Call::new(&client.scripts().acquire, keys.get(..count).unwrap_or_default());
    call.arg(claim.owner.expose()).arg(millis(claim.ttl));
    let label = shown(claim.label.as_ref());
    let token = |token: Option<u64>| token.map(|token| token.to_string()).unwrap_or_default();
    let arrival = token(position.and_then(|position| position.arrival));
    let min_token = token(claim.min_token.map(FencingToken::backend_number));
    let optional = [label, &arrival, &min_token];
    let last = optional.iter().rposition(|text| !text.is_empty());
    // The channel follows all of them.
    let given = if position.is_some() { optional.len() } else { last.map_or(0, |last| last + 1) };
    for text in optional.iter().take(given) {
        call.arg(*text);
    }
    call
}

/// An attempt of a queued claim. If it is dropped, a reply about lost positions may be lost with
/// it.
pub(crate) struct PendingAttempt<'a> {
    pub(crate) queues: &'a Queues,
    pub(crate) owner: &'a OwnerId,
    pub(crate) answered: bool,
}

impl PendingAttempt<'_> {
    pub(crate) fn answered<T>(mut self, answer: &Result<T, Fault>) {
        self.answered =
            answer.as_ref().err().is_none_or(|fault| fault.effect() == Effect::NotApplied);
        if answer.is_err() {
            self.queues.invalidate(self.owner);
        }
    }
}

impl Drop for PendingAttempt<'_> {
    fn drop(&mut self) {
        if !self.answered {
            self.queues.invalidate_all(self.owner);
        }
    }
}
