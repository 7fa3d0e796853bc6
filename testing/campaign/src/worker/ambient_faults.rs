//! Faults in the calls of a client's backend, for sites without a network to disturb.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use lock_core::backend::FaultKind;
use lock_core::faults::{Call, Injection, Verb};

use crate::kind::Kind;

/// The faults of the calls of one client.
#[derive(Debug)]
pub(super) struct AmbientFaults(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    rng: Rng,
    current: Option<(Kind, u32, Duration)>,
}

impl AmbientFaults {
    pub(super) fn new(rng: Rng) -> Self {
        Self(Mutex::new(Inner { rng, current: None }))
    }

    /// Sets the kind of fault, the calls in a thousand that it disturbs, and its longest delay.
    pub(super) fn set(&self, current: Option<(Kind, u32, Duration)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).current = current;
    }

    /// Draws the injection for `call`.
    pub(super) fn draw(&self, call: &Call<'_>) -> Injection {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((kind, rate, longest)) = inner.current else { return Injection::None };
        if kind == Kind::CallsCutOff {
            return Injection::Hang;
        }
        if inner.rng.u32(..1000) >= rate {
            return Injection::None;
        }
        let by = longest.mul_f64(inner.rng.f64());
        match kind {
            Kind::CallsRefused => Injection::Refuse(FaultKind::Unavailable),
            Kind::CallsRepliesLost => Injection::LoseReply,
            Kind::CallsUnanswered => Injection::HangAfter,
            Kind::CallsLate => Injection::DelayRequest(by),
            Kind::CallsRepliesLate => Injection::DelayReply(by),
            // A wait changes nothing on the backend, so nothing of it can land late.
            Kind::CallsLandLate if !matches!(call.verb, Verb::Wait | Verb::WaitLost) => {
                Injection::LandLate(by)
            }
            _ => Injection::None,
        }
    }
}
