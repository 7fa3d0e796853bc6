//! Faults of one client.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use lock_conformance::proxy::{Direction, Fault, Match, Proxy};
use lock_core::clock::sleep;
use lock_history::Trouble;
use test_servers::Step;
use tokio::task::block_in_place;

use super::{Failure, Nemesis, failure, record_end};
use crate::clients::ClientSlot;
use crate::kind::{Kind, Scope};
use crate::orders::Order;

impl Nemesis {
    /// Injects a fault into the client of a slot. Returns whether it had an effect.
    pub(super) async fn inject_client_fault(
        &self,
        kind: Kind,
        rng: &mut Rng,
        slot: &mut ClientSlot,
    ) -> Result<bool, Failure> {
        if kind.is_aimed() {
            return self.inject_aimed_fault(kind, rng, slot).await;
        }
        let span = self.draw_span(rng);
        let proxies = self.draw_proxies(kind, rng, slot);
        let trouble = match kind {
            Kind::ClientKilled => Trouble::Kill,
            Kind::ClientStopped => Trouble::Stop,
            Kind::ClientStarved => Trouble::Starve,
            Kind::BlackHole if proxies.len() == slot.proxies.len() => Trouble::Partition,
            Kind::CallsCutOff => Trouble::Partition,
            other => Trouble::Other(other.name()),
        };
        let host = slot.host().to_owned();
        let fault = self.recorder().fault(trouble).process(&host);
        // A correct client reads no wall clock, and expects the end of leases that it does not
        // renew. So these faults excuse nothing.
        let is_hidden = matches!(kind, Kind::ClientClockStepped | Kind::ShortLeases);
        let fault = if is_hidden { fault.hidden().begin() } else { fault.begin() };
        let mut hit = true;
        match kind {
            Kind::ClientKilled => {
                self.kill(span / 4, slot).await?;
                // A kill is never healed: the next client has another name.
                return Ok(true);
            }
            Kind::ClientStopped | Kind::ClientStarved => self.suspend(kind, span, slot).await?,
            Kind::ClientClockStepped => {
                let clock = slot.clock().ok_or("its clock is the system's")?;
                let hour = Duration::from_secs(3600);
                let (there, back) = match rng.bool() {
                    true => (Step::Forward(hour), Step::Back(hour)),
                    false => (Step::Back(hour), Step::Forward(hour)),
                };
                clock.step(there);
                let lasted = self.last(Scope::Client, span).await;
                clock.step(back);
                lasted?;
            }
            Kind::ShortLeases => {
                slot.order(&Order::Unrenewed(true)).map_err(failure)?;
                self.last(Scope::Client, span * 2).await?;
                slot.order(&Order::Unrenewed(false)).map_err(failure)?;
            }
            kind if kind.is_in_calls() => {
                let by = self.params.ttl.mul_f64(1.5 * rng.f64());
                let order = Order::Disturb(kind, rng.u32(50..600), by);
                slot.order(&order).map_err(failure)?;
                let lasted = self.last_for(&host, span).await;
                slot.order(&Order::Calm).map_err(failure)?;
                lasted?;
            }
            kind => hit = self.disturb_network(kind, span, rng, (&host, proxies)).await?,
        }
        record_end(fault, hit);
        Ok(hit)
    }

    /// Draws the proxies that a fault hits. If they lead to independent servers, a fault of the
    /// network hits only some of them as often as all.
    fn draw_proxies<'a>(&self, kind: Kind, rng: &mut Rng, slot: &'a ClientSlot) -> &'a [Proxy] {
        let all = slot.proxies.len();
        if self.site.member_proxies().len() < 2 || !kind.is_in_network() || rng.bool() {
            return &slot.proxies;
        }
        let from = rng.usize(..all);
        &slot.proxies[from..rng.usize(from + 1..=all)]
    }

    /// Kills the client, and starts the next one of its slot after `span`.
    pub(super) async fn kill(&self, span: Duration, slot: &mut ClientSlot) -> Result<(), Failure> {
        block_in_place(|| slot.kill()).map_err(failure)?;
        self.last(Scope::Client, span).await?;
        block_in_place(|| slot.start().and_then(|()| slot.ready())).map_err(failure)
    }

    /// Stops the client, or blocks its executor, for `span`.
    pub(super) async fn suspend(
        &self,
        kind: Kind,
        span: Duration,
        slot: &mut ClientSlot,
    ) -> Result<(), Failure> {
        let starves = kind == Kind::ClientStarved;
        block_in_place(|| if starves { slot.freeze() } else { slot.stop() }).map_err(failure)?;
        let lasted = self.last(Scope::Client, span).await;
        block_in_place(|| if starves { slot.thaw() } else { slot.cont() }).map_err(failure)?;
        lasted
    }

    /// Disturbs the network of a client. Returns false if the fault needed a connection or a
    /// request, and there was none.
    async fn disturb_network(
        &self,
        kind: Kind,
        span: Duration,
        rng: &mut Rng,
        (host, proxies): (&str, &[Proxy]),
    ) -> Result<bool, Failure> {
        let lasting = match kind {
            Kind::BlackHole => Fault::BlackHole,
            Kind::RequestsLost => Fault::Lose(Direction::ToServer),
            Kind::RepliesLost => Fault::Lose(Direction::ToClient),
            Kind::Refused => Fault::Refuse,
            Kind::Trickle => {
                Fault::Trickle { bytes: rng.usize(1..64), every: Duration::from_millis(2) }
            }
            Kind::Slices => Fault::Slice,
            Kind::Delay => Fault::delay(Duration::from_millis(rng.u64(5..100))),
            _ => Fault::None,
        };
        for proxy in proxies {
            proxy.set(lasting);
        }
        if kind == Kind::Refused {
            on_all(proxies, reset).await;
        }
        let mut lasts = Duration::ZERO;
        let hit = match kind {
            Kind::Reset => repeat(span, rng, || on_all(proxies, reset)).await,
            Kind::CutBeforeReply => {
                repeat(span, rng, || on_all(proxies, |proxy| cut(proxy, span / 4))).await
            }
            Kind::HeldAndDelivered => {
                repeat(span, rng, || on_all(proxies, |proxy| hold(proxy, span))).await
            }
            _ => {
                lasts = span;
                true
            }
        };
        let lasted = if hit { self.last_for(host, lasts).await } else { Ok(()) };
        for proxy in proxies {
            proxy.heal();
        }
        lasted.map(|()| hit)
    }
}

/// Injects a short fault three times, with pauses. Returns whether it had an effect at least once.
async fn repeat<F: Future<Output = bool>>(
    span: Duration,
    rng: &mut Rng,
    inject: impl Fn() -> F,
) -> bool {
    let mut hit = false;
    for _ in 0..3 {
        hit |= inject().await;
        sleep(span.mul_f64(rng.f64() / 4.0)).await;
    }
    hit
}

/// Injects a fault into all proxies at once. Returns whether it had an effect on one of them.
async fn on_all<'a, F: Future<Output = bool>>(
    proxies: &'a [Proxy],
    inject: impl Fn(&'a Proxy) -> F,
) -> bool {
    let mut hit = false;
    let mut all: Vec<_> = proxies.iter().map(|proxy| Box::pin(inject(proxy))).collect();
    std::future::poll_fn(|cx| {
        all.retain_mut(|one| match one.as_mut().poll(cx) {
            Poll::Ready(done) => {
                hit |= done;
                false
            }
            Poll::Pending => true,
        });
        if all.is_empty() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
    hit
}

/// Resets all connections. Returns whether there were any.
async fn reset(proxy: &Proxy) -> bool {
    let is_there = proxy.stats().live > 0;
    proxy.reset_connections().await;
    is_there
}

/// Cuts the reply to the next request off. Returns whether there was a request.
async fn cut(proxy: &Proxy, within: Duration) -> bool {
    let mut hit = proxy.cut_after(Match::on(""));
    let _ = tokio::time::timeout(within, hit.happened()).await;
    !hit.call_off()
}

/// Holds the next request, and delivers it later. Returns whether there was a request.
async fn hold(proxy: &Proxy, span: Duration) -> bool {
    let mut held = proxy.hold(Match::on(""));
    let caught = tokio::time::timeout(span / 4, held.caught()).await;
    sleep(span / 2).await;
    if caught.is_ok_and(|caught| caught.is_ok()) {
        drop(tokio::time::timeout(span, held.deliver()).await);
    }
    !held.call_off()
}
