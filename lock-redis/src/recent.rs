//! The locks that this client released a moment ago. It may take them again without a script: see
//! `verbs/uncontended.rs`.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use lock_core::FencingToken;
use lock_core::backend::Claim;
use lock_core::clock::Moment;

use crate::limits::{LAST_TOKENS, TOKEN_LIMIT, TOKEN_RETENTION};
use crate::verbs::held::{HeldLock, held};

/// How long the last token is a lower bound of the next one. The token key outlives the lock by
/// that much less than [`TOKEN_RETENTION`].
pub(crate) const MOMENT: Duration = Duration::from_secs(1);

/// The most locks that are remembered, at about 150 bytes each.
const MAX_RECENT: usize = 4096;

/// The locks that this client released a moment ago, by their keys, or found contended.
#[derive(Debug, Default)]
pub(crate) struct RecentLocks(Mutex<HashMap<Box<str>, RecentLock>>);

#[derive(Clone, Copy, Debug)]
struct RecentLock {
    at: Moment,
    what: Recent,
}

#[derive(Clone, Copy, Debug)]
enum Recent {
    Released(LastHold),
    /// A claim of this client attempts, or holds it.
    Taken,
    /// Another client wanted it.
    Contended,
}

/// A hold that ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LastHold {
    pub(crate) token: u64,
    pub(crate) token_key_until: Moment,
    pub(crate) script_token: u64,
    pub(crate) connection: u64,
}

impl LastHold {
    /// Returns the token of the next hold. `None` if the token key might expire before the server's
    /// clock has passed that, so that a later token could be lower. `None` also if it exceeds the
    /// last token by more than [`MOMENT`]: an attempt that fails leaves the token key that much
    /// higher, and if the data is lost, the next token is the clock.
    pub(crate) fn next_token(&self, min_token: Option<FencingToken>) -> Option<u64> {
        let above = self.token.max(min_token.map_or(0, FencingToken::backend_number));
        let limit = self.script_token.saturating_add(micros(TOKEN_RETENTION));
        let limit = limit.min(TOKEN_LIMIT - LAST_TOKENS);
        let highest = self.token.saturating_add(micros(MOMENT));
        Some(above + 1).filter(|next| *next < limit && *next <= highest)
    }
}

impl RecentLocks {
    /// Records a release, unless the lock was contended a moment ago. Then the next release will
    /// find a waiter, probably, and the script serves that one in the same request.
    pub(crate) fn released(&self, lock: &str, claim: &Claim, at: Moment) {
        let Some(held) = held(claim) else { return };
        let HeldLock { token, token_key_until, script_token, connection, .. } = *held;
        let last = LastHold { token, token_key_until, script_token, connection };
        self.record(lock, RecentLock { at, what: Recent::Released(last) });
    }

    /// Records that another client wants the lock.
    pub(crate) fn contended(&self, lock: &str) {
        self.record(lock, RecentLock { at: Moment::now(), what: Recent::Contended });
    }

    /// Returns true if another client wanted the lock a moment ago.
    pub(crate) fn is_contended(&self, lock: &str) -> bool {
        let locks = self.locks();
        let recent = locks.get(lock).filter(|recent| matches!(recent.what, Recent::Contended));
        recent.is_some_and(|recent| is_recent(recent.at))
    }

    fn record(&self, lock: &str, now: RecentLock) {
        let mut locks = self.locks();
        if let Some(before) = locks.get_mut(lock) {
            let was_contended = matches!(before.what, Recent::Contended) && is_recent(before.at);
            if !was_contended || matches!(now.what, Recent::Contended) {
                *before = now;
            }
            return;
        }
        if locks.len() >= MAX_RECENT {
            // Half of the room becomes free at once, or each further lock would check all of them.
            locks.retain(|_, lock| is_recent(lock.at));
            if locks.len() > MAX_RECENT / 2 {
                locks.clear();
            }
        }
        locks.insert(lock.into(), now);
    }

    /// Takes the last hold out: only one claim of this client attempts without a script.
    pub(crate) fn take(&self, lock: &str) -> Option<(Moment, LastHold)> {
        let mut locks = self.locks();
        let recent = locks.get_mut(lock).filter(|recent| is_recent(recent.at))?;
        let Recent::Released(last) = recent.what else { return None };
        recent.what = Recent::Taken;
        Some((recent.at, last))
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<Box<str>, RecentLock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns the duration in the unit of tokens.
fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).unwrap_or(u64::MAX)
}

/// Returns true if no more than a [`MOMENT`] has passed.
pub(crate) fn is_recent(at: Moment) -> bool {
    !(at + MOMENT).has_passed()
}
