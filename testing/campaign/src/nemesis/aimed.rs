//! Faults aimed at one moment: a client takes a lock on order, and the fault hits it right then.
//!
//! A fault at a random time seldom hits the one moment in which a mistake shows. Here the client
//! reports that it holds the lock, or the nemesis knows the request that must get no answer.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use lock_conformance::proxy::{Fault, Hit, Match, Proxy};
use lock_core::LockName;
use lock_core::clock::sleep;
use lock_history::{Assumption, Trouble};
use tokio::task::block_in_place;

use super::{Failure, Nemesis, RESUMES_WITHIN, failure, record_end};
use crate::clients::ClientSlot;
use crate::kind::{Kind, Scope};
use crate::lock_names::lock_name;
use crate::orders::Order;
use crate::sites::{self, Removal};

/// The time within which a client sends a request.
const SENT_WITHIN: Duration = Duration::from_secs(1);

/// The time after which a holder that was not notified of a break releases the lock.
const NOTIFIED_WITHIN: Duration = Duration::from_secs(7);

impl Nemesis {
    /// Injects a fault at the moment of a grant, an attempt or a release. Returns whether it had an
    /// effect.
    pub(super) async fn inject_aimed_fault(
        &self,
        kind: Kind,
        rng: &mut Rng,
        slot: &mut ClientSlot,
    ) -> Result<bool, Failure> {
        let mechanism =
            sites::mechanism(&*self.site, kind).ok_or("the site has no mechanism for it")?;
        let lock = rng.usize(..self.collector.locks());
        let beyond_lease = self.lease().mul_f64(1.2 + rng.f64());
        let host = slot.host().to_owned();
        let begin = |trouble: Trouble| self.recorder().fault(trouble).process(&host).begin();
        let other = || begin(Trouble::Other(kind.name()));
        let mut hit = true;
        match kind {
            Kind::AttemptCut => {
                let fault = other();
                hit = self.cut_reply(mechanism, lock, &Order::Hold(lock, true), slot).await?;
                record_end(fault, hit);
                wait_for(slot, "holds", RESUMES_WITHIN)?;
            }
            Kind::ReleaseCut => {
                take_lock(slot, lock, false)?;
                let fault = other();
                hit = self.cut_reply(mechanism, lock, &Order::Release, slot).await?;
                record_end(fault, hit);
            }
            Kind::LateGrant => {
                let fault = other();
                let delay = self.params.max_delay.mul_f64(0.3 + 0.7 * rng.f64());
                disturb(mechanism, delay, slot)?;
                let taken = take_lock(slot, lock, false);
                sleep(beyond_lease).await;
                calm(mechanism, slot)?;
                fault.heal();
                taken?;
            }
            Kind::CutFromGrant => {
                take_lock(slot, lock, true)?;
                let fault = begin(Trouble::Partition);
                disturb(mechanism, Duration::ZERO, slot)?;
                let lasted = self.last_for(&host, beyond_lease).await;
                calm(mechanism, slot)?;
                fault.heal();
                lasted?;
            }
            Kind::StoppedFromGrant | Kind::StarvedFromGrant => {
                take_lock(slot, lock, true)?;
                let is_stop = kind == Kind::StoppedFromGrant;
                let fault = begin(if is_stop { Trouble::Stop } else { Trouble::Starve });
                self.suspend(mechanism, beyond_lease, slot).await?;
                fault.heal();
            }
            Kind::KilledFromGrant => {
                take_lock(slot, lock, true)?;
                let _ = begin(Trouble::Kill);
                self.kill(self.draw_span(rng) / 4, slot).await?;
                return Ok(true);
            }
            _ => return self.break_under_holder(lock, slot).await,
        }
        send(slot, &Order::Release)?;
        wait_for(slot, "done", RESUMES_WITHIN)?;
        Ok(hit)
    }

    /// Breaks a lock whose holder holds on until it is notified, while the next client acquires it.
    /// Returns whether the lock was broken.
    async fn break_under_holder(
        &self,
        lock: usize,
        slot: &mut ClientSlot,
    ) -> Result<bool, Failure> {
        take_lock(slot, lock, true)?;
        let name = lock_name(lock);
        let fault = self.recorder().fault(Trouble::Other(Kind::BrokenFromGrant.name()));
        let fault = fault.lock(&name).breaks(Assumption::A3).begin();
        let name = LockName::new(name).map_err(|error| error.to_string())?;
        let removed = self.break_lock(&name).await;
        self.record_removal(removed, fault).await;
        if removed == Removal::NotFound || wait_for(slot, "done", NOTIFIED_WITHIN).is_err() {
            send(slot, &Order::Release)?;
            wait_for(slot, "done", RESUMES_WITHIN)?;
        }
        self.last(Scope::Client, Duration::ZERO).await?;
        Ok(removed == Removal::Removed)
    }

    /// Sends `order`, and lets the request that follows take effect without an answer. Returns
    /// false if there was no request: a lock may be handed over inside of a process.
    async fn cut_reply(
        &self,
        mechanism: Kind,
        lock: usize,
        order: &Order,
        slot: &mut ClientSlot,
    ) -> Result<bool, Failure> {
        if mechanism.is_in_calls() {
            disturb(mechanism, Duration::ZERO, slot)?;
            send(slot, order)?;
            let lasted = self.last_for(slot.host(), self.params.timeout / 2).await;
            calm(mechanism, slot)?;
            return lasted.map(|()| true);
        }
        // The proxies are armed before the order is sent.
        let arm = |proxy: &Proxy| proxy.cut_after(Match::on(lock_name(lock)));
        let mut hits: Vec<Hit> = slot.proxies.iter().map(arm).collect();
        send(slot, order)?;
        let _ = tokio::time::timeout(SENT_WITHIN, wait_for_first(&mut hits)).await;
        Ok(hits.into_iter().map(Hit::call_off).filter(|called_off| !called_off).count() > 0)
    }
}

/// Waits until a fault has happened, or cannot happen any more.
async fn wait_for_first(hits: &mut [Hit]) {
    let mut all: Vec<_> = hits.iter_mut().map(|hit| Box::pin(hit.happened())).collect();
    std::future::poll_fn(|cx| match all.iter_mut().any(|one| one.as_mut().poll(cx).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

fn send(slot: &ClientSlot, order: &Order) -> Result<(), Failure> {
    slot.order(order).map_err(failure)
}

fn wait_for(slot: &ClientSlot, event: &str, within: Duration) -> Result<(), Failure> {
    block_in_place(|| slot.wait_for(event, within)).map_err(failure)
}

/// Orders the client to take the lock, and waits until it holds it.
fn take_lock(slot: &ClientSlot, lock: usize, renewed: bool) -> Result<(), Failure> {
    send(slot, &Order::Hold(lock, renewed))?;
    wait_for(slot, "holds", RESUMES_WITHIN)
}

/// Delays answers by `delay`, lets nothing pass, or lets calls pass without an answer.
fn disturb(mechanism: Kind, delay: Duration, slot: &ClientSlot) -> Result<(), Failure> {
    if mechanism.is_in_calls() {
        return send(slot, &Order::Disturb(mechanism, 1000, delay));
    }
    let fault = match mechanism {
        Kind::Delay => Fault::Delay { to_server: Duration::ZERO, to_client: delay },
        _ => Fault::BlackHole,
    };
    slot.proxies.iter().for_each(|proxy| proxy.set(fault));
    Ok(())
}

/// Ends the effect of [`disturb`].
fn calm(mechanism: Kind, slot: &ClientSlot) -> Result<(), Failure> {
    if mechanism.is_in_calls() {
        return send(slot, &Order::Calm);
    }
    slot.proxies.iter().for_each(Proxy::heal);
    Ok(())
}
