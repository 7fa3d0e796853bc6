//! Fencing tokens, and a gate that checks them.

use std::fmt;
use std::str::FromStr;
use std::sync::Mutex;

use crate::error::{Error, ErrorKind};

/// The low bits that every backend leaves to hand-overs inside one process.
const LOCAL_BITS: u32 = 8;

/// A number that grows with every grant of a lock.
///
/// Send it along with each access; a resource that remembers the highest token it has seen can then
/// refuse a holder that was paused past its lease and woke up too late. No lock service can refuse
/// it for you: the write does not pass through the lock.
///
/// It is the first checked access of the new holder that shuts the old one out, and not the grant:
/// until the resource has seen the new token, it takes writes with the old one. A holder that reads
/// before it writes therefore shows its token with the read.
///
/// Tokens of different backends are not comparable. Where the locks of a resource move to another
/// backend, the resource has to forget the highest token, or start again above it.
///
/// The idea is known as a *sequencer* from Burrows, "The Chubby lock service", OSDI 2006.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FencingToken(u64);

impl FencingToken {
    /// The highest number that a backend may use: tokens stay below 2⁶³, so that every language and
    /// database with a signed 64-bit integer can store them.
    pub const MAX_BACKEND_NUMBER: u64 = (1 << (63 - LOCAL_BITS)) - 1;

    /// Returns the token for a backend's own counter value; `None` above
    /// [`MAX_BACKEND_NUMBER`](Self::MAX_BACKEND_NUMBER).
    ///
    /// The counter becomes the high bits. The low eight are kept for hand-overs inside one process.
    #[must_use]
    pub fn from_backend(number: u64) -> Option<Self> {
        (number <= Self::MAX_BACKEND_NUMBER).then_some(Self(number << LOCAL_BITS))
    }

    /// Returns the backend's own counter value in this token: the same for all holders in one
    /// process that have handed the lock on to each other.
    #[must_use]
    pub fn backend_number(self) -> u64 {
        self.0 >> LOCAL_BITS
    }

    /// Returns the token of the `nth` successor of this token's holder in the same process.
    pub(crate) fn of_successor(self, nth: u8) -> Self {
        Self((self.0 >> LOCAL_BITS << LOCAL_BITS) + u64::from(nth))
    }

    /// Returns the whole number, which the guarded resource compares.
    #[must_use]
    pub fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the token as databases store it. It is never negative.
    #[must_use]
    pub fn as_i64(self) -> i64 {
        i64::try_from(self.0).unwrap_or(i64::MAX)
    }

    /// Restores a token from a stored [`as_u64`](Self::as_u64).
    #[must_use]
    pub fn from_u64(number: u64) -> Self {
        Self(number)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.as_u64()
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for FencingToken {
    type Err = Error;

    /// Parses the output of `Display`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if it is not an unsigned 64-bit number.
    fn from_str(text: &str) -> Result<Self, Error> {
        text.parse().map(Self).map_err(|_| {
            Error::new(ErrorKind::Invalid, "a fencing token is an unsigned 64-bit number")
        })
    }
}

#[cfg(feature = "serde")]
impl serde::Serialize for FencingToken {
    /// Serialises a string in formats that people read, because JSON readers round numbers above
    /// 2⁵³.
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        if serializer.is_human_readable() {
            serializer.collect_str(self)
        } else {
            serializer.serialize_u64(self.0)
        }
    }
}

#[cfg(feature = "serde")]
impl<'de> serde::Deserialize<'de> for FencingToken {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        if deserializer.is_human_readable() {
            let text = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
            text.parse().map_err(serde::de::Error::custom)
        } else {
            u64::deserialize(deserializer).map(Self)
        }
    }
}

/// The checking side of fencing, for a resource that lives in this process: it lets a token pass
/// unless a higher one has passed before.
///
/// A resource elsewhere does the same with its own means, for example
/// `UPDATE … SET fence = $t WHERE id = $id AND fence <= $t`. The check and the write must be one
/// atomic step: here the gate stays shut for others while the admitted closure runs.
///
/// The first checked access of a new holder shuts the old one out, and nothing before does. A
/// holder that reads first and decides by the result admits the read, too.
///
/// ```
/// use lock_core::{FenceGate, FencingToken};
///
/// let gate = FenceGate::new(Vec::new());
/// let (old, new) = (FencingToken::from_u64(256), FencingToken::from_u64(512));
/// gate.admit(new, |rows| rows.push("from the new holder")).unwrap();
/// let late = gate.admit(old, |rows| rows.push("from a holder that woke up too late"));
/// assert!(late.is_err());
/// ```
#[derive(Debug, Default)]
pub struct FenceGate<T> {
    guarded: Mutex<(Option<FencingToken>, T)>,
}

impl<T> FenceGate<T> {
    /// Creates a gate that has seen no token yet.
    pub fn new(resource: T) -> Self {
        Self { guarded: Mutex::new((None, resource)) }
    }

    /// Runs `access` on the resource if no higher token was admitted before. `access` must not use
    /// the same gate: it would wait for itself.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::FenceRegressed`] if a higher token was admitted; `access` is not run then.
    ///
    /// # Panics
    ///
    /// If an `access` before has panicked: its half-made change is shown to no other holder.
    pub fn admit<R>(
        &self,
        token: FencingToken,
        access: impl FnOnce(&mut T) -> R,
    ) -> Result<R, Error> {
        let mut guarded = self.guarded.lock().expect("no access has panicked half-way before");
        let (highest, resource) = &mut *guarded;
        if highest.is_some_and(|highest| token < highest) {
            return Err(Error::new(
                ErrorKind::FenceRegressed,
                "a newer holder has been here: this one must not write any more",
            ));
        }
        *highest = Some(token);
        Ok(access(resource))
    }

    /// Returns the highest token admitted so far.
    #[must_use]
    pub fn highest(&self) -> Option<FencingToken> {
        self.guarded.lock().unwrap_or_else(std::sync::PoisonError::into_inner).0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_backend_number_leaves_the_low_byte_alone() {
        let token = FencingToken::from_backend(7).unwrap();
        assert_eq!(token.as_u64(), 7 << 8);
        assert_eq!(token.backend_number(), 7);
    }

    #[test]
    fn tokens_fit_a_signed_integer_and_overflow_is_refused() {
        let highest = FencingToken::from_backend(FencingToken::MAX_BACKEND_NUMBER).unwrap();
        assert!(i64::try_from(highest.as_u64() | 0xff).is_ok());
        assert_eq!(FencingToken::from_backend(FencingToken::MAX_BACKEND_NUMBER + 1), None);
    }

    #[test]
    fn the_gate_refuses_only_what_is_lower() {
        let gate = FenceGate::new(0);
        let token = FencingToken::from_u64;
        assert!(gate.admit(token(5), |n| *n += 1).is_ok());
        assert!(gate.admit(token(5), |n| *n += 1).is_ok(), "the same holder may write again");
        assert!(gate.admit(token(4), |n| *n += 1).is_err());
        assert_eq!(gate.admit(token(6), |n| *n).unwrap(), 2);
        assert_eq!(gate.highest(), Some(token(6)));
    }

    #[test]
    fn a_resource_whose_change_panicked_half_way_is_not_shown_to_the_next() {
        let gate = FenceGate::new((1, 1));
        let token = FencingToken::from_u64;
        let torn = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            gate.admit(token(5), |(left, _)| {
                *left = 2;
                panic!("half-way");
            })
        }));
        assert!(torn.is_err());
        let next = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            gate.admit(token(6), |pair| *pair)
        }));
        assert!(next.is_err(), "a half-made change is shown: {next:?}");
        assert_eq!(gate.highest(), Some(token(5)), "the bar can still be asked for");
    }
}
