//! Faults that hit a client in the act: it is told to take a lock, and is hit right then.
//!
//! Whatever breaks at some time seldom breaks in the one moment that a mistake is about. Here the
//! client says that it has the lock, or the request is known that must not be answered.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use lock_conformance::proxy::{Fault, Hit, Match, Proxy};
use lock_core::LockName;
use lock_core::clock::sleep;
use lock_history::{Assumption, Trouble};
use tokio::task::block_in_place;

use super::{Failure, Nemesis, QUIET_FOR, over, text};
use crate::clients::ClientSlot;
use crate::collector::lock_name;
use crate::kind::{Kind, Scope};
use crate::sites::{self, Removal};
use crate::worker::Order;

/// How long a request may take to be on its way.
const SENT_WITHIN: Duration = Duration::from_secs(1);

/// How long a holder that is never told of its loss holds on.
const HOLDS_ON: Duration = Duration::from_secs(7);

impl Nemesis {
    /// Returns whether anything was hit.
    pub(super) async fn hit_in_the_act(
        &self,
        kind: Kind,
        rng: &mut Rng,
        slot: &mut ClientSlot,
    ) -> Result<bool, Failure> {
        let way = sites::mechanism(&*self.site, kind).ok_or("there is no way to do it")?;
        let lock = rng.usize(..self.collector.locks());
        let beyond = self.lease().mul_f64(1.2 + rng.f64());
        let host = slot.host().to_owned();
        let begin = |what: Trouble| self.recorder().fault(what).process(&host).begin();
        let other = || begin(Trouble::Other(kind.name()));
        let mut hit = true;
        match kind {
            Kind::AttemptCut => {
                let fault = other();
                hit = self.cut(way, lock, &Order::Hold(lock, true), slot).await?;
                over(fault, hit);
                hears(slot, "holds", QUIET_FOR)?;
            }
            Kind::ReleaseCut => {
                wins(slot, lock, false)?;
                let fault = other();
                hit = self.cut(way, lock, &Order::ReleaseMode, slot).await?;
                over(fault, hit);
            }
            Kind::LateGrant => {
                let fault = other();
                let late = self.params.max_delay.mul_f64(0.3 + 0.7 * rng.f64());
                disturb(way, late, slot)?;
                let won = wins(slot, lock, false);
                sleep(beyond).await;
                calm(way, slot)?;
                fault.heal();
                won?;
            }
            Kind::CutFromGrant => {
                wins(slot, lock, true)?;
                let fault = begin(Trouble::Partition);
                disturb(way, Duration::ZERO, slot)?;
                let lasted = self.last_for(&host, beyond).await;
                calm(way, slot)?;
                fault.heal();
                lasted?;
            }
            Kind::StoppedFromGrant => {
                wins(slot, lock, true)?;
                let fault = begin(Trouble::Stop);
                self.silence(way, beyond, slot).await?;
                fault.heal();
            }
            Kind::StarvedFromGrant => {
                wins(slot, lock, true)?;
                let fault = begin(Trouble::Starve);
                self.silence(way, beyond, slot).await?;
                fault.heal();
            }
            Kind::KilledFromGrant => {
                wins(slot, lock, true)?;
                let _ = begin(Trouble::Kill);
                self.kill(self.span(rng) / 4, slot).await?;
                return Ok(true);
            }
            _ => return self.hold_on_to_what_is_broken(lock, slot).await,
        }
        tell(slot, &Order::ReleaseMode)?;
        hears(slot, "done", QUIET_FOR)?;
        Ok(hit)
    }

    /// The next one gets the lock, and its holder looks until it is told. Returns whether it was
    /// broken.
    async fn hold_on_to_what_is_broken(
        &self,
        lock: usize,
        slot: &mut ClientSlot,
    ) -> Result<bool, Failure> {
        wins(slot, lock, true)?;
        let name = lock_name(lock);
        let fault = self.recorder().fault(Trouble::Other(Kind::BrokenFromGrant.name()));
        let fault = fault.lock(&name).breaks(Assumption::A3).begin();
        let name = LockName::new(name).map_err(|error| error.to_string())?;
        let removed = self.break_lock(&name).await;
        self.close(removed, fault).await;
        if removed == Removal::NotFound || hears(slot, "done", HOLDS_ON).is_err() {
            tell(slot, &Order::ReleaseMode)?;
            hears(slot, "done", QUIET_FOR)?;
        }
        self.last(Scope::Client, Duration::ZERO).await?;
        Ok(removed == Removal::Removed)
    }

    /// The request that follows from `order` takes effect, and is not answered. False if there was
    /// none: a lock may go from hand to hand inside of a process.
    async fn cut(
        &self,
        way: Kind,
        lock: usize,
        order: &Order,
        slot: &mut ClientSlot,
    ) -> Result<bool, Failure> {
        if way.is_in_calls() {
            disturb(way, Duration::ZERO, slot)?;
            tell(slot, order)?;
            let lasted = self.last_for(slot.host(), self.params.timeout / 2).await;
            calm(way, slot)?;
            return lasted.map(|()| true);
        }
        // Armed before the order goes out.
        let cut = |line: &Proxy| line.cut_after(Match::on(lock_name(lock)));
        let mut cuts: Vec<Hit> = slot.lines.iter().map(cut).collect();
        tell(slot, order)?;
        let _ = tokio::time::timeout(SENT_WITHIN, first(&mut cuts)).await;
        Ok(cuts.into_iter().map(Hit::call_off).filter(|called_off| !called_off).count() > 0)
    }
}

/// Returns when one of them has happened, or cannot happen any more.
async fn first(cuts: &mut [Hit]) {
    let mut all: Vec<_> = cuts.iter_mut().map(|cut| Box::pin(cut.happened())).collect();
    std::future::poll_fn(|cx| match all.iter_mut().any(|one| one.as_mut().poll(cx).is_ready()) {
        true => Poll::Ready(()),
        false => Poll::Pending,
    })
    .await;
}

fn tell(slot: &ClientSlot, order: &Order) -> Result<(), Failure> {
    slot.order(order).map_err(text)
}

fn hears(slot: &ClientSlot, word: &str, within: Duration) -> Result<(), Failure> {
    block_in_place(|| slot.hears(word, within)).map_err(text)
}

/// The client has the lock when this returns.
fn wins(slot: &ClientSlot, lock: usize, renewed: bool) -> Result<(), Failure> {
    tell(slot, &Order::Hold(lock, renewed))?;
    hears(slot, "holds", QUIET_FOR)
}

/// Answers come late by `late`, or nothing passes, or it does and is not answered.
fn disturb(way: Kind, late: Duration, slot: &ClientSlot) -> Result<(), Failure> {
    if way.is_in_calls() {
        return tell(slot, &Order::Disturb(way, 1000, late));
    }
    let fault = match way {
        Kind::Delay => Fault::Delay { to_server: Duration::ZERO, to_client: late },
        _ => Fault::BlackHole,
    };
    slot.lines.iter().for_each(|line| line.set(fault));
    Ok(())
}

fn calm(way: Kind, slot: &ClientSlot) -> Result<(), Failure> {
    if way.is_in_calls() {
        return tell(slot, &Order::Calm);
    }
    slot.lines.iter().for_each(Proxy::heal);
    Ok(())
}
