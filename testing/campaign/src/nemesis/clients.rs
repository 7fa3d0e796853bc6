//! Faults that hit one client.

use std::future::Future;
use std::task::Poll;
use std::time::Duration;

use fastrand::Rng;
use lock_conformance::proxy::{Direction, Fault, Match, Proxy};
use lock_core::clock::sleep;
use lock_history::Trouble;
use test_servers::Step;
use tokio::task::block_in_place;

use super::{Failure, Nemesis, over, text};
use crate::clients::ClientSlot;
use crate::kind::{Kind, Scope};
use crate::worker::Order;

impl Nemesis {
    /// Returns whether anything was hit.
    pub(super) async fn hit_client(
        &self,
        kind: Kind,
        rng: &mut Rng,
        slot: &mut ClientSlot,
    ) -> Result<bool, Failure> {
        if kind.is_aimed() {
            return self.hit_in_the_act(kind, rng, slot).await;
        }
        let span = self.span(rng);
        let some = self.some_ways(kind, rng, slot);
        let what = match kind {
            Kind::ClientKilled => Trouble::Kill,
            Kind::ClientStopped => Trouble::Stop,
            Kind::ClientStarved => Trouble::Starve,
            Kind::BlackHole if some.len() == slot.lines.len() => Trouble::Partition,
            Kind::CallsCutOff => Trouble::Partition,
            other => Trouble::Other(other.name()),
        };
        let host = slot.host().to_owned();
        let fault = self.recorder().fault(what).process(&host);
        // Who is right asks no wall clock, and does not mind that leases end which it does not
        // renew.
        let is_hidden = matches!(kind, Kind::ClientClockStepped | Kind::ShortLeases);
        let fault = if is_hidden { fault.hidden().begin() } else { fault.begin() };
        let mut hit = true;
        match kind {
            Kind::ClientKilled => {
                self.kill(span / 4, slot).await?;
                // The dead stay dead: who comes next has another name.
                return Ok(true);
            }
            Kind::ClientStopped | Kind::ClientStarved => self.silence(kind, span, slot).await?,
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
                slot.order(&Order::Short(true)).map_err(text)?;
                self.last(Scope::Client, span * 2).await?;
                slot.order(&Order::Short(false)).map_err(text)?;
            }
            kind if kind.is_in_calls() => {
                let by = self.params.ttl.mul_f64(1.5 * rng.f64());
                let order = Order::Disturb(kind, rng.u32(50..600), by);
                slot.order(&order).map_err(text)?;
                let lasted = self.last_for(&host, span).await;
                slot.order(&Order::Calm).map_err(text)?;
                lasted?;
            }
            kind => hit = self.disturb_lines(kind, span, rng, (&host, some)).await?,
        }
        over(fault, hit);
        Ok(hit)
    }

    /// Where there are ways to servers that know nothing of each other, some of them, as often as
    /// all.
    fn some_ways<'a>(&self, kind: Kind, rng: &mut Rng, slot: &'a ClientSlot) -> &'a [Proxy] {
        let all = slot.lines.len();
        if self.site.member_proxies().len() < 2 || !kind.is_in_network() || rng.bool() {
            return &slot.lines;
        }
        let from = rng.usize(..all);
        &slot.lines[from..rng.usize(from + 1..=all)]
    }

    /// Kills the client, and starts another one in its place after a while.
    pub(super) async fn kill(&self, span: Duration, slot: &mut ClientSlot) -> Result<(), Failure> {
        block_in_place(|| slot.kill()).map_err(text)?;
        self.last(Scope::Client, span).await?;
        block_in_place(|| slot.start().and_then(|()| slot.ready())).map_err(text)
    }

    /// The client does nothing for a while.
    pub(super) async fn silence(
        &self,
        kind: Kind,
        span: Duration,
        slot: &mut ClientSlot,
    ) -> Result<(), Failure> {
        let starves = kind == Kind::ClientStarved;
        block_in_place(|| if starves { slot.freeze() } else { slot.stop() }).map_err(text)?;
        let lasted = self.last(Scope::Client, span).await;
        block_in_place(|| if starves { slot.thaw() } else { slot.cont() }).map_err(text)?;
        lasted
    }

    /// Returns whether anything was cut or held, where something has to come by for it.
    async fn disturb_lines(
        &self,
        kind: Kind,
        span: Duration,
        rng: &mut Rng,
        (host, lines): (&str, &[Proxy]),
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
        for line in lines {
            line.set(lasting);
        }
        if kind == Kind::Refused {
            each(lines, reset).await;
        }
        let mut lasts = Duration::ZERO;
        let hit = match kind {
            Kind::Reset => again_and_again(span, rng, || each(lines, reset)).await,
            Kind::CutBeforeReply => {
                again_and_again(span, rng, || each(lines, |line| cut(line, span / 4))).await
            }
            Kind::HeldAndDelivered => {
                again_and_again(span, rng, || each(lines, |line| hold(line, span))).await
            }
            _ => {
                lasts = span;
                true
            }
        };
        let lasted = if hit { self.last_for(host, lasts).await } else { Ok(()) };
        for line in lines {
            line.heal();
        }
        lasted.map(|()| hit)
    }
}

/// What happens at a point in time, a few times; whether it has happened at all.
async fn again_and_again<F: Future<Output = bool>>(
    span: Duration,
    rng: &mut Rng,
    what: impl Fn() -> F,
) -> bool {
    let mut hit = false;
    for _ in 0..3 {
        hit |= what().await;
        sleep(span.mul_f64(rng.f64() / 4.0)).await;
    }
    hit
}

/// Does something on all lines at once; whether it did anything on one of them.
async fn each<'a, F: Future<Output = bool>>(
    lines: &'a [Proxy],
    what: impl Fn(&'a Proxy) -> F,
) -> bool {
    let mut hit = false;
    let mut all: Vec<_> = lines.iter().map(|line| Box::pin(what(line))).collect();
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

async fn reset(line: &Proxy) -> bool {
    let is_there = line.stats().live > 0;
    line.reset_connections().await;
    is_there
}

async fn cut(line: &Proxy, within: Duration) -> bool {
    let mut hit = line.cut_after(Match::on(""));
    let _ = tokio::time::timeout(within, hit.happened()).await;
    !hit.call_off()
}

async fn hold(line: &Proxy, span: Duration) -> bool {
    let mut held = line.hold(Match::on(""));
    let caught = tokio::time::timeout(span / 4, held.caught()).await;
    sleep(span / 2).await;
    if caught.is_ok_and(|caught| caught.is_ok()) {
        drop(tokio::time::timeout(span, held.deliver()).await);
    }
    !held.call_off()
}
