//! Renewals: extensions of the lease of a held lock.

use lock_core::backend::{Claim, Fault, Grant, HoldKind, Lease, Renewal, Ticket};
use lock_core::clock::Moment;
use lock_core::{FencingToken, OwnerId};

use crate::client::{Client, Server};
use crate::connection::Connection;
use crate::connection::wire::{Item, Reply, Request};
use crate::fault::{self, OUT_OF_MEMORY, unexpected_reply};
use crate::holds::{HoldState, HoldTicket};
use crate::lease::{MAX_EXPTIME, exptime};
use crate::stored::{MAX_ROUNDS, StoredItem, contested_key, seen};
use crate::token_counter::{self, drawn};
use crate::value::Value;
use crate::verbs::release::{delete, held};

/// Limit of conditional raises of the counter, which fail if another client draws at the same time.
const MAX_RAISES: u32 = 16;

impl Client {
    /// Renews the claims. All requests are sent before the first answer is awaited.
    pub(crate) async fn renew(&self, claims: &[&Claim]) -> Vec<Result<Renewal, Fault>> {
        let mut under_way = Vec::with_capacity(claims.len());
        for claim in claims {
            let (key, server) = self.server_of_lock(&claim.name);
            let begun = match server.link.connection().await {
                Ok(connection) => {
                    let (request, extension) = first_extension(claim, &key, &connection);
                    Ok((connection.ask(&request), extension, connection))
                }
                Err(fault) => Err(fault),
            };
            under_way.push((begun, key, server));
        }
        let mut answers = Vec::with_capacity(claims.len());
        for (claim, (begun, key, server)) in claims.iter().zip(under_way) {
            answers.push(match begun {
                Ok((answer, extension, connection)) => match answer.await {
                    Ok(answer) => {
                        let held_key = HeldKey { claim, key: &key, server, connection };
                        self.extend(&held_key, extension, answer).await.map(|held| match held {
                            Some(grant) => Renewal::Held(grant),
                            None => Renewal::NotHeld,
                        })
                    }
                    Err(fault) => Err(fault),
                },
                Err(fault) => Err(fault),
            });
        }
        answers
    }

    /// Returns the request that extends an item of this claim.
    pub(super) fn extend_seen(
        &self,
        held_key: &HeldKey<'_>,
        extension: Extension,
        attempt: u64,
        item: &Item,
    ) -> (Request, Extension) {
        let claim = held_key.claim;
        let left = extension.until.map(Moment::remaining).unwrap_or_default();
        // Never shorter than the rest of the lease on the server.
        let left_there = item.expires_in.unwrap_or(0).min(MAX_EXPTIME);
        let exptime = exptime(claim.ttl.max(left)).max(left_there);
        let value = Value::format(claim, attempt, extension.number);
        let mut request = Request::new();
        let draws = extension.number.is_none_or(|number| shortfall(claim, number).is_some());
        request = match extension.out_of_memory {
            true => request.touch_if(held_key.key, exptime, item.cas),
            false => request.cas(held_key.key, exptime, &value, item.cas),
        };
        request = request.get(held_key.key);
        if draws {
            request = request.increment(&self.counter_key, 1, token_counter::COUNTER_TTL);
        }
        (request, Extension { attempt: Some(attempt), writes: true, draws, ..extension })
    }

    /// Repeats requests until it is clear whether the lease was extended. Returns `None` if the
    /// claim does not hold the lock.
    pub(super) async fn extend(
        &self,
        held_key: &HeldKey<'_>,
        mut extension: Extension,
        mut answer: (Moment, Vec<Reply>),
    ) -> Result<Option<Grant>, Fault> {
        const ACTION: &str = "extend a lock";

        let HeldKey { claim, key, server, connection } = held_key;
        for _ in 0..MAX_ROUNDS {
            let (since, replies) = answer;
            let mut replies = replies.into_iter();
            let written = if extension.writes { replies.next() } else { None };
            let looked = seen(replies.next(), ACTION)?;
            let (value, item) = match looked {
                StoredItem::Ours(value, item) if value.owner == claim.owner => (value, item),
                _ => return Ok(None),
            };
            if !extension.is_of(&value) {
                // Otherwise it would keep the lock unavailable without a holder.
                let seen = Some((item.cas, value.attempt));
                delete(connection, key, &claim.owner, seen, "end a late attempt").await?;
                return Ok(None);
            }
            match written {
                Some(Reply::Stored | Reply::Done) => {
                    let until = extension.until.unwrap_or(since).max(since + claim.ttl);
                    extension.until = Some(until);
                    let number =
                        if extension.draws { drawn(replies.next())? } else { extension.number };
                    match self.raise_counter(held_key, number).await? {
                        Some(number) if shows_token(claim, &value, number) => {
                            token_counter::check(connection, &self.counter_key, number).await?;
                            let (attempt, connection) = (value.attempt, connection.id());
                            let known =
                                HoldState { attempt, number, cas: item.cas, connection, until };
                            return self.grant(claim.owner, known, since).map(Some);
                        }
                        Some(_) if extension.out_of_memory => {
                            return Err(fault::refused(ACTION, OUT_OF_MEMORY));
                        }
                        Some(number) => extension.number = Some(number),
                        None => server.counter.begin(&server.link, &self.counter_key).await?,
                    }
                }
                // A foreign hand has touched it, or it is known from before a new connection.
                Some(Reply::Exists | Reply::Missing) | None => {}
                Some(Reply::Refused(text)) if text.starts_with(OUT_OF_MEMORY) => {
                    if extension.out_of_memory {
                        return Err(fault::refused(ACTION, &text));
                    }
                    extension.out_of_memory = true;
                }
                Some(other) => return Err(other.unexpected(ACTION)),
            }
            extension.number = extension.number.or(value.number);
            let (request, next) = self.extend_seen(held_key, extension, value.attempt, &item);
            extension = next;
            answer = connection.ask(&request).await?;
        }
        Err(contested_key(key))
    }

    /// Draws a token.
    pub(super) async fn draw(
        &self,
        connection: &Connection,
        by: u64,
    ) -> Result<Option<u64>, Fault> {
        let request = Request::new().increment(&self.counter_key, by, token_counter::COUNTER_TTL);
        drawn(Some(connection.ask_one(&request).await?))
    }

    /// Returns the token, or a higher one if the claim asks for that; `None` without a counter.
    ///
    /// The shortfall is added with a comparison, unless other clients draw all the time. Without
    /// it, several clients that raise the counter at once would each add to the additions of the
    /// others. The counter would be far ahead of the clock, and a restart would go back behind it.
    pub(super) async fn raise_counter(
        &self,
        HeldKey { claim, connection, .. }: &HeldKey<'_>,
        number: Option<u64>,
    ) -> Result<Option<u64>, Fault> {
        let Some(number) = number else { return Ok(None) };
        let Some(mut by) = shortfall(claim, number) else { return Ok(Some(number)) };
        for _ in 0..MAX_RAISES {
            // A read changes nothing, so concurrent raises conflict only after one has succeeded.
            let looked = connection.ask_one(&Request::new().get(&self.counter_key)).await?;
            let cas = if let Reply::Value(item) = &looked { item.cas } else { 0 };
            let Some(now) = drawn(Some(looked))? else { return Ok(None) };
            let Some(missing) = shortfall(claim, now) else {
                return self.draw(connection, 1).await;
            };
            by = missing;
            let request =
                Request::new().increment_if(&self.counter_key, by, token_counter::COUNTER_TTL, cas);
            match connection.ask_one(&request).await? {
                Reply::Exists => {}
                raised => return drawn(Some(raised)),
            }
        }
        self.draw(connection, by).await
    }

    /// Records the hold and returns its grant.
    pub(super) fn grant(
        &self,
        owner: OwnerId,
        known: HoldState,
        since: Moment,
    ) -> Result<Grant, Fault> {
        let token = FencingToken::from_backend(known.number)
            .ok_or_else(|| unexpected_reply("read the fencing token", known.number))?;
        let lease = Lease::For(known.until.saturating_since(since));
        let held = self.holds.note(owner, known);
        Ok(Grant::new(lease, since).with_token(token).with_ticket(Ticket::new(held)))
    }
}

/// A held lock, with its key, server and connection.
pub(super) struct HeldKey<'a> {
    pub(crate) claim: &'a Claim,
    pub(crate) key: &'a str,
    pub(crate) server: &'a Server,
    pub(crate) connection: Connection,
}

/// The last request of a renewal and its state.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Extension {
    /// The request wrote before it read.
    pub(crate) writes: bool,
    /// The request drew a token after that.
    pub(crate) draws: bool,
    /// The attempt that was granted. A process that does not know it takes one whose token is
    /// stored: that one was granted.
    pub(crate) attempt: Option<u64>,
    pub(crate) number: Option<u64>,
    pub(crate) until: Option<Moment>,
    /// The server refused a command that needs memory.
    pub(crate) out_of_memory: bool,
}

impl Extension {
    fn knowing(known: HoldState) -> Self {
        let HoldState { attempt, number, until, .. } = known;
        let (attempt, number, until) = (Some(attempt), Some(number), Some(until));
        Self { attempt, number, until, ..Self::default() }
    }

    fn is_of(&self, value: &Value) -> bool {
        self.attempt.map_or(value.number.is_some(), |attempt| attempt == value.attempt)
    }
}

/// Returns the first request of a renewal: it extends a known hold, or reads the key.
fn first_extension(claim: &Claim, key: &str, connection: &Connection) -> (Request, Extension) {
    match held(claim).map(HoldTicket::known) {
        Some(known) if known.connection == connection.id() => extend_known(claim, key, known),
        known => (Request::new().get(key), known.map(Extension::knowing).unwrap_or_default()),
    }
}

/// Returns the request that extends an item that no other client has changed.
pub(super) fn extend_known(claim: &Claim, key: &str, known: HoldState) -> (Request, Extension) {
    let value = Value::format(claim, known.attempt, Some(known.number));
    let exptime = exptime(claim.ttl.max(known.until.remaining()));
    let request = Request::new().cas(key, exptime, &value, known.cas).get(key);
    (request, Extension { writes: true, ..Extension::knowing(known) })
}

/// Returns whether the value has all that must be visible of a grant, and nothing else. A process
/// that renews a detached lock knows only the owner, and late attempts have no token.
fn shows_token(claim: &Claim, value: &Value, number: u64) -> bool {
    match value.number {
        // It may have been raised since.
        Some(shown) => shown == number,
        None => claim.hold != HoldKind::Detached,
    }
}

/// Returns the amount by which a token is too low for the claim, if it is.
pub(super) fn shortfall(claim: &Claim, number: u64) -> Option<u64> {
    let min_token = claim.min_token?.backend_number();
    (number <= min_token).then(|| min_token - number + 1)
}
