//! Attempts: one round trip that stores the value, reads it back and draws a token.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use lock_core::backend::{Attempt, Claim, Fault, Grant, HoldKind};
use lock_core::clock::Moment;

use crate::client::{Client, Server};
use crate::connection::wire::{Item, Reply, Request};
use crate::fault::{self, unexpected_reply};
use crate::holds::HoldState;
use crate::lease::exptime;
use crate::stored::{MAX_ROUNDS, StoredItem, contended, contested_key, seen};
use crate::token_counter::{self, drawn};
use crate::value::Value;
use crate::verbs::release::delete;
use crate::verbs::renew::{Extension, HeldKey, extend_known, shortfall};

impl Client {
    /// Makes an attempt. A contended claim that queues joins the waiters of the key.
    pub(crate) async fn try_acquire(&self, claim: &Claim) -> Result<Attempt, Fault> {
        claim.must_be_exclusive()?;
        let (key, server) = self.server_of_lock(&claim.name);
        let answer = self.attempt(server, &key, claim).await;
        match &answer {
            Ok(Attempt::Acquired(_)) => self.waiters.leave(&claim.owner, &key),
            Ok(Attempt::Contended { .. }) if claim.queues() => {
                self.waiters.join(claim.owner, &key);
            }
            _ => {}
        }
        answer
    }

    /// Stores the value, reads it back, and draws a token, in one round trip. The answers decide
    /// whether the token is used.
    async fn attempt(&self, server: &Server, key: &str, claim: &Claim) -> Result<Attempt, Fault> {
        const ACTION: &str = "take a lock";

        for _ in 0..MAX_ROUNDS {
            let connection = server.link.connection().await?;
            let attempt = next_attempt();
            let value = Value::format(claim, attempt, None);
            let request = Request::new().add(key, exptime(claim.ttl), &value).get(key).increment(
                &self.counter_key,
                1,
                token_counter::COUNTER_TTL,
            );
            let (since, replies) = connection.ask(&request).await?;
            let mut replies = replies.into_iter();
            let (added, looked, draw) = (replies.next(), replies.next(), replies.next());
            match (added, looked) {
                (Some(Reply::Stored), Some(Reply::Value(item))) if item.is(&value) => {
                    let taken = Stored { attempt, cas: item.cas, since };
                    let held_key = HeldKey { claim, key, server, connection };
                    let grant = self.finish(&held_key, taken, draw).await;
                    if let Some(grant) = grant.map_err(fault::with_unknown_effect)? {
                        return Ok(Attempt::Acquired(grant));
                    }
                }
                (Some(Reply::Stored), looked @ Some(_)) => {
                    match seen(looked, ACTION).map_err(fault::with_unknown_effect)? {
                        // Flushed, evicted or broken at once; another claim may have it by now.
                        StoredItem::Nothing => {}
                        // Renewed at once by another client: the next attempt finds the lock taken
                        // by us.
                        StoredItem::Ours(value, _) if value.owner == claim.owner => {}
                        StoredItem::Ours(_, item) | StoredItem::Foreign(item) => {
                            return Ok(contended(&item));
                        }
                    }
                }
                (Some(refusal), None) => return Err(refusal.unexpected(ACTION)),
                (Some(added), looked @ Some(_)) => match seen(looked, ACTION)? {
                    StoredItem::Ours(value, item) if value.owner == claim.owner => {
                        let held_key = HeldKey { claim, key, server, connection };
                        // Boxed, as all that is rare: the future of each attempt is small without
                        // it.
                        let repeated = Box::pin(self.repeat(&held_key, value, item)).await?;
                        if let Some(grant) = repeated {
                            return Ok(Attempt::Acquired(grant));
                        }
                    }
                    StoredItem::Ours(_, item) | StoredItem::Foreign(item) => {
                        return Ok(contended(&item));
                    }
                    StoredItem::Nothing if added == Reply::NotStored => {
                        return Ok(Attempt::Contended { expires_in: Some(Duration::ZERO) });
                    }
                    StoredItem::Nothing => return Err(added.unexpected(ACTION)),
                },
                (None, _) => return Err(unexpected_reply(ACTION, "nothing")),
            }
        }
        Err(contested_key(key))
    }

    /// Returns the grant of a stored lock, if there is a token for it. Without a counter to draw
    /// from, the lock is released while one is started.
    async fn finish(
        &self,
        taking: &HeldKey<'_>,
        taken: Stored,
        draw: Option<Reply>,
    ) -> Result<Option<Grant>, Fault> {
        let (claim, Stored { attempt, cas, since }) = (taking.claim, taken);
        let (until, connection) = (since + claim.ttl, taking.connection.id());
        let known = |number| HoldState { attempt, number, cas, connection, until };
        match drawn(draw)? {
            Some(number)
                if shortfall(claim, number).is_none() && claim.hold == HoldKind::Guarded =>
            {
                token_counter::check(&taking.connection, &self.counter_key, number).await?;
                self.grant(claim.owner, known(number), since).map(Some)
            }
            Some(number) => Box::pin(self.record_token(taking, known(number))).await,
            None => Box::pin(self.give_back(taking, (cas, attempt))).await,
        }
    }

    /// Raises the token of a lock that was just stored if need be, and writes it. A process that
    /// renews a detached lock knows only the owner, and must see that the lock was granted.
    async fn record_token(
        &self,
        taking: &HeldKey<'_>,
        known: HoldState,
    ) -> Result<Option<Grant>, Fault> {
        let (request, extension) = extend_known(taking.claim, taking.key, known);
        self.extend(taking, extension, taking.connection.ask(&request).await?).await
    }

    /// Releases a stored lock and starts the counter.
    async fn give_back(
        &self,
        HeldKey { claim, key, server, connection }: &HeldKey<'_>,
        seen: (u64, u64),
    ) -> Result<Option<Grant>, Fault> {
        delete(connection, key, &claim.owner, Some(seen), "give a lock back").await?;
        server.counter.begin(&server.link, &self.counter_key).await?;
        Ok(None)
    }

    /// Repeats the attempt of a claim that holds the lock already, as after a lost answer. It takes
    /// the lock of the earlier attempt, as that one's grant, or as a new one if another one had
    /// been granted.
    async fn repeat(
        &self,
        held_key: &HeldKey<'_>,
        value: Value,
        item: Item,
    ) -> Result<Option<Grant>, Fault> {
        let known = self.holds.get(&held_key.claim.owner).map(|held| held.known());
        let known = known.filter(|known| known.attempt == value.attempt);
        let extension = Extension {
            attempt: Some(value.attempt),
            number: known.map(|known| known.number).or(value.number),
            until: known.map(|known| known.until),
            ..Extension::default()
        };
        let (request, extension) = self.extend_seen(held_key, extension, value.attempt, &item);
        let answer = held_key.connection.ask(&request).await?;
        self.extend(held_key, extension, answer).await
    }
}

/// A lock whose value was just stored.
struct Stored {
    attempt: u64,
    cas: u64,
    since: Moment,
}

/// Returns a number for an attempt, unlike all others of this process and so of this owner.
fn next_attempt() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(1);

    COUNT.fetch_add(1, Ordering::Relaxed)
}
