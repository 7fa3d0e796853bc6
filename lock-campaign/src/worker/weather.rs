//! What happens to the calls of a client's backend, where no network can be disturbed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fastrand::Rng;
use lock_core::backend::FaultKind;
use lock_core::faults::{Call, Disturbance, Verb};

use crate::kind::Kind;

#[derive(Debug)]
pub(super) struct Weather(Mutex<Inner>);

#[derive(Debug)]
struct Inner {
    rng: Rng,
    now: Option<(Kind, u32, Duration)>,
}

impl Weather {
    pub(super) fn new(rng: Rng) -> Self {
        Self(Mutex::new(Inner { rng, now: None }))
    }

    pub(super) fn set(&self, now: Option<(Kind, u32, Duration)>) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).now = now;
    }

    /// What happens to this call.
    pub(super) fn over(&self, call: &Call<'_>) -> Disturbance {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((kind, rate, longest)) = inner.now else { return Disturbance::None };
        if kind == Kind::CallsCutOff {
            return Disturbance::Hang;
        }
        if inner.rng.u32(..1000) >= rate {
            return Disturbance::None;
        }
        let by = longest.mul_f64(inner.rng.f64());
        match kind {
            Kind::CallsRefused => Disturbance::Refuse(FaultKind::Unavailable),
            Kind::CallsRepliesLost => Disturbance::LoseReply,
            Kind::CallsUnanswered => Disturbance::HangAfter,
            Kind::CallsLate => Disturbance::DelayRequest(by),
            Kind::CallsRepliesLate => Disturbance::DelayReply(by),
            // A wait changes nothing on the backend, so there is nothing to land.
            Kind::CallsLandLate if call.verb != Verb::Wait => Disturbance::LandLate(by),
            _ => Disturbance::None,
        }
    }
}
