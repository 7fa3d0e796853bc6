//! Faults that hit a client in the act: it is told to take a lock, and is hit right then.
//!
//! Whatever breaks at some time seldom breaks in the one moment that a mistake is about. Here the client says
//! that it has the lock, or the request is known that must not be answered.

use std::time::Duration;

use conformance_tests::history::{Assumption, Trouble};
use conformance_tests::proxy::{Fault, Match, Proxy};
use fastrand::Rng;
use lock_core::LockName;
use lock_core::clock::sleep;
use tokio::task::{JoinSet, block_in_place};

use super::{Director, Failure, QUIET_FOR, text};
use crate::crew::Post;
use crate::desk::lock_name;
use crate::kind::{Kind, Scope};
use crate::sites;
use crate::worker::Order;

/// How long a request may take to be on its way.
const SENT_WITHIN: Duration = Duration::from_secs(1);

/// How long a holder that is never told of its loss holds on.
const HOLDS_ON: Duration = Duration::from_secs(7);

impl Director {
    pub(super) async fn hit_in_the_act(
        &self,
        kind: Kind,
        rng: &mut Rng,
        post: &mut Post,
    ) -> Result<(), Failure> {
        let way = sites::way(&*self.site, kind).ok_or("there is no way to do it")?;
        let lock = rng.usize(..self.terms.locks);
        let beyond = self.lease().mul_f64(1.2 + rng.f64());
        let host = post.host().to_owned();
        let begin = |what: Trouble| self.recorder().fault(what).process(&host).begin();
        let other = || begin(Trouble::Other(kind.name()));
        match kind {
            Kind::AttemptCut => {
                let fault = other();
                self.cut(way, lock, &Order::Hold(lock, true), post).await?;
                fault.heal();
                hears(post, "holds", QUIET_FOR)?;
            }
            Kind::ReleaseCut => {
                wins(post, lock, false)?;
                let fault = other();
                self.cut(way, lock, &Order::LetGo, post).await?;
                fault.heal();
            }
            Kind::LateGrant => {
                let fault = other();
                let late = self.terms.late.mul_f64(0.3 + 0.7 * rng.f64());
                disturb(way, late, post)?;
                let won = wins(post, lock, false);
                sleep(beyond).await;
                calm(way, post)?;
                fault.heal();
                won?;
            }
            Kind::CutFromGrant => {
                wins(post, lock, true)?;
                let fault = begin(Trouble::Partition);
                disturb(way, Duration::ZERO, post)?;
                let lasted = self.last(Scope::Client, beyond).await;
                calm(way, post)?;
                fault.heal();
                lasted?;
            }
            Kind::StoppedFromGrant => {
                wins(post, lock, true)?;
                let fault = begin(Trouble::Stop);
                self.silence(way, beyond, post).await?;
                fault.heal();
            }
            _ => return self.hold_on_to_what_is_broken(lock, post).await,
        }
        tell(post, &Order::LetGo)?;
        hears(post, "done", QUIET_FOR)
    }

    /// The next one gets the lock, and its holder looks until it is told.
    async fn hold_on_to_what_is_broken(&self, lock: usize, post: &mut Post) -> Result<(), Failure> {
        wins(post, lock, true)?;
        let name = lock_name(lock);
        let fault = self.recorder().fault(Trouble::Other(Kind::BrokenFromGrant.name()));
        let fault = fault.lock(&name).breaks(Assumption::A3).begin();
        let name = LockName::new(name).map_err(|error| error.to_string())?;
        let removed = self.break_lock(&name).await;
        self.close(removed, fault).await;
        let told = hears(post, "done", HOLDS_ON);
        if told.is_err() {
            tell(post, &Order::LetGo)?;
            hears(post, "done", QUIET_FOR)?;
        }
        self.last(Scope::Client, Duration::ZERO).await
    }

    /// The request that follows from `order` takes effect, and is not answered.
    async fn cut(
        &self,
        way: Kind,
        lock: usize,
        order: &Order,
        post: &mut Post,
    ) -> Result<(), Failure> {
        if way.is_in_calls() {
            disturb(way, Duration::ZERO, post)?;
            tell(post, order)?;
            sleep(self.terms.timeout / 2).await;
            return calm(way, post);
        }
        let mut cuts = JoinSet::new();
        for line in &post.lines {
            // Armed before the order goes out.
            let cut = line.cut_after(Match::on(lock_name(lock)));
            cuts.spawn(cut.into_future());
        }
        tell(post, order)?;
        let _ = tokio::time::timeout(SENT_WITHIN, cuts.join_next()).await;
        Ok(())
    }
}

fn tell(post: &Post, order: &Order) -> Result<(), Failure> {
    post.order(order).map_err(text)
}

fn hears(post: &Post, word: &str, within: Duration) -> Result<(), Failure> {
    block_in_place(|| post.hears(word, within)).map_err(text)
}

/// The client has the lock when this returns.
fn wins(post: &Post, lock: usize, renewed: bool) -> Result<(), Failure> {
    tell(post, &Order::Hold(lock, renewed))?;
    hears(post, "holds", QUIET_FOR)
}

/// Answers come late by `late`, or nothing passes, or it does and is not answered.
fn disturb(way: Kind, late: Duration, post: &Post) -> Result<(), Failure> {
    if way.is_in_calls() {
        return tell(post, &Order::Disturb(way, 1000, late));
    }
    let fault = match way {
        Kind::Delay => Fault::Delay { to_server: Duration::ZERO, to_client: late },
        _ => Fault::BlackHole,
    };
    post.lines.iter().for_each(|line| line.set(fault));
    Ok(())
}

fn calm(way: Kind, post: &Post) -> Result<(), Failure> {
    if way.is_in_calls() {
        return tell(post, &Order::Calm);
    }
    post.lines.iter().for_each(Proxy::heal);
    Ok(())
}
